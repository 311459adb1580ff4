"""The declarative look-up against a receiver that says odd things, and the configurations that cannot work."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from ledger.contracts import Contract
from reconciliation import reconcilers
from reconciliation.findings import Finding, FindingKind, Item, ItemStatus, Question, ReceiverFacts
from reconciliation.reconcilers import http_lookup
from reconciliation.reconcilers.base import UnknownReconciler
from reconciliation.reconcilers.http_lookup import HttpLookup, read_time, retry_after_s, validate_receiver
from reconciliation.reconcilers.http_plan import NEVER_ABSENT, plan
from tests.reconciliation.reconcilers.conftest import Receiver, Script, json_reply, reply

CONFIGURATION: dict[str, Any] = {
    "kind": "http_lookup",
    "url": "{base_url}/refunds?reference={business_reference}",
    "items": "$.data[*]",
    "complete": {"path": "$.has_more", "equals": False},
    "attributed": {"path": "$.metadata.operation_id", "equals": "operation_id"},
    "reference": "$.id",
    "status": {
        "path": "$.status",
        "completed": ["succeeded"],
        "in_progress": ["pending", "processing"],
        "denied": ["failed", "canceled"],
    },
    "match": {
        "$.amount": {"to": "/arguments/amount", "as": "minor_units"},
        "$.currency": {"to": "/arguments/currency", "as": "caseless"},
    },
    "absent_status": [404],
}


def refund(**changes: Any) -> dict[str, Any]:
    """Return what the receiver shows of the refund that was intended, with changes."""
    shown = {
        "id": "re_1",
        "status": "succeeded",
        "amount": 12000,
        "currency": "eur",
        "metadata": {"operation_id": "op-1"},
    }
    return {**shown, **changes}


def page(*items: Any, **more: Any) -> dict[str, Any]:
    return {"data": list(items), "has_more": False, **more}


def question(at: Receiver | None, configuration: dict[str, Any] | None = None, **changes: Any) -> Question:
    """Return the question about operation op-1, a refund of 120.00 EUR."""
    facts = ReceiverFacts(
        name="acme-pay",
        base_url="http://127.0.0.1:1" if at is None else at.base_url,
        headers=changes.pop("headers", {}),
        allow_private_addresses=changes.pop("allow_private_addresses", True),
    )
    asked: dict[str, Any] = {
        "operation_id": "op-1",
        "idempotency_key": "cf_01",
        "business_reference": "order-991",
        "arguments": {
            "amount": "120.00",
            "currency": "EUR",
            "order_id": "991",
            "n": 7,
            "yes": True,
            "list": [1],
        },
        "amount": {"value": "120.00", "currency": "EUR"},
        "receiver": facts,
        "lookup": "by_reference",
        "configuration": CONFIGURATION if configuration is None else configuration,
        "timeout_s": 5.0,
    }
    return Question(**{**asked, **changes})


def ask(at: Receiver | None, configuration: dict[str, Any] | None = None, **changes: Any) -> Finding:
    environment = changes.pop("environment", {})
    return HttpLookup(environment=environment).look_up(question(at, configuration, **changes))


def having(**changes: Any) -> dict[str, Any]:
    """Return the example configuration with changes; None takes a key away."""
    return {key: value for key, value in {**CONFIGURATION, **changes}.items() if value is not None}


def unclear(finding: Finding) -> str | None:
    """Return why, after making sure that nothing of an unclear finding can be taken for an answer."""
    assert finding.kind is FindingKind.UNCLEAR
    assert finding.items == ()
    assert not finding.complete
    return finding.why


# -- unclear: what cannot be understood proves nothing


# F27 F28
@pytest.mark.parametrize("status", [201, 202, 204, 301, 302, 400, 401, 403, 409, 429, 500, 502, 503, 599])
def test_any_other_status_is_unclear_and_says_which(status: int, receiver: Receiver) -> None:
    receiver.says = [json_reply(page(), status, Retry_After="7")]
    finding = ask(receiver)
    assert unclear(finding) == f"http_{status}"
    assert finding.http_status == status
    assert finding.retry_after_s == 7
    assert receiver.connections == 1


def test_an_absence_is_only_read_where_it_was_configured(receiver: Receiver) -> None:
    receiver.says = [reply(status=404)]
    assert unclear(ask(receiver, having(absent_status=None))) == "http_404"


# F33
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>login</html>",
        b'{"data": [',
        b'{"data": [], "has_more": false} trailing',
        b'{"data": [], "has_more": false, "has_more": false}',
        b'{"data": ["\xff"], "has_more": false}',
        b'{"data": ["\x00"], "has_more": false}',
        b'{"data": [NaN], "has_more": false}',
        b'{"data": ' + b"[" * 20_000 + b"]" * 20_000 + b', "has_more": false}',
    ],
)
def test_a_body_that_is_no_clear_json_is_unclear_and_kept(body: bytes, receiver: Receiver) -> None:
    receiver.says = [reply(body, Content_Type="application/json")]
    finding = ask(receiver)
    assert unclear(finding) == "bad_body"
    assert finding.raw == body[: http_lookup.RAW_BYTES_MAX]
    assert finding.raw_truncated is (len(body) > http_lookup.RAW_BYTES_MAX)


@pytest.mark.parametrize(
    "answer",
    [None, "OK", 7, [], {}, {"error": "busy"}, {"data": None}, {"data": "none"}, {"data": 0}, {"Data": []}],
)
def test_json_of_another_shape_is_not_an_empty_list(answer: Any, receiver: Receiver) -> None:
    receiver.says = [json_reply(answer)]
    for configuration in (CONFIGURATION, having(complete=None, next="$.next")):
        assert unclear(ask(receiver, configuration)) == "unexpected_shape"


# E16
@pytest.mark.parametrize(
    ("says", "why"),
    [
        (reply(json.dumps(page()).encode(), length=500), "truncated"),
        (reply(b"a" * (http_lookup.ANSWER_BYTES_MAX + 1)), "too_large"),
        (reply(b"\x1f\x8b", Content_Encoding="gzip"), "encoded_body"),
        (b"", "connection_closed"),
        (b"nonsense\r\n\r\n", "bad_http"),
        (json_reply(page(*range(http_lookup.ITEMS_MAX + 1))), "too_many_items"),
    ],
)
def test_an_answer_that_is_not_whole_is_unclear(says: bytes, why: str, receiver: Receiver) -> None:
    receiver.says = [says]
    assert unclear(ask(receiver)) == why


def test_an_absence_that_was_cut_off_is_unclear(receiver: Receiver) -> None:
    receiver.says = [reply(b"{", 404, length=500)]
    assert unclear(ask(receiver)) == "truncated"


# F27
def test_a_silent_receiver_is_unclear_within_the_time_of_the_question(receiver: Receiver) -> None:
    receiver.says = [receiver.silence()]
    started = time.monotonic()
    assert unclear(ask(receiver, timeout_s=0.3)) == "timeout"
    assert time.monotonic() - started < 1


def test_all_pages_share_one_deadline(receiver: Receiver) -> None:
    def slowly(number: int) -> Script:
        def script(connection: Any) -> None:
            time.sleep(0.15)
            connection.sendall(json_reply({"data": [], "next": f"/page/{number}"}))

        return script

    receiver.says = [slowly(number) for number in range(20)]
    started = time.monotonic()
    assert unclear(ask(receiver, having(complete=None, next="$.next"), timeout_s=0.5)) == "timeout"
    assert time.monotonic() - started < 1
    assert 2 <= receiver.connections <= 4


# E5
def test_a_receiver_that_is_down_is_unclear(receiver: Receiver) -> None:
    receiver.stop()
    assert unclear(ask(receiver)) == "connection_refused"


def test_an_inner_address_is_refused_without_leave(receiver: Receiver) -> None:
    finding = ask(receiver, allow_private_addresses=False)
    assert unclear(finding) == "refused_egress:scheme"
    assert receiver.connections == 0


def test_a_name_that_leads_inside_is_refused(receiver: Receiver) -> None:
    facts = ReceiverFacts(name="acme-pay", base_url="https://pay.receiver.test")
    lookup = HttpLookup(resolve=lambda _host: ["10.0.0.1"], environment={})
    assert unclear(lookup.look_up(question(receiver, receiver=facts))) == "refused_egress:private_address"


@pytest.mark.parametrize(
    "account",
    [{}, {"account": "acct_2"}, {"account": None}, {"account": ["acct_1"]}, {"account": "ACCT_1"}],
)
def test_another_namespace_is_unclear_even_where_our_effect_seems_to_be_there(
    account: dict[str, Any], receiver: Receiver
) -> None:
    receiver.says = [json_reply(page(refund(), **account))]
    configuration = having(namespace={"path": "$.account", "equals": "acct_1"})
    assert unclear(ask(receiver, configuration)) == "wrong_namespace"


def test_an_absent_answer_has_to_show_its_namespace_too(receiver: Receiver) -> None:
    configuration = having(namespace={"path": "$.account", "equals": "acct_1"})
    receiver.says = [reply(status=404), json_reply({"account": "acct_1"}, 404)]
    assert unclear(ask(receiver, configuration)) == "wrong_namespace"
    assert ask(receiver, configuration).complete


def test_a_namespace_in_the_items_has_to_hold_for_each_and_be_there_at_all(receiver: Receiver) -> None:
    configuration = having(namespace={"path": "$.data[*].account", "equals": "acct_1"})
    receiver.says = [
        json_reply(page(refund(account="acct_1"), refund(id="re_2", account="acct_2"))),
        json_reply(page()),
        json_reply(page(refund(account="acct_1"))),
    ]
    assert unclear(ask(receiver, configuration)) == "wrong_namespace"
    assert unclear(ask(receiver, configuration)) == "wrong_namespace"
    assert ask(receiver, configuration).kind is FindingKind.ITEMS


# -- what is not asked


@pytest.mark.parametrize(
    ("changes", "url", "why"),
    [
        ({"business_reference": None}, "{base_url}/r/{business_reference}", "reference_missing"),
        ({"business_reference": ""}, "{base_url}/r?q={business_reference}", "reference_missing"),
        ({"business_reference": ".."}, "{base_url}/r/{business_reference}", "unsafe_value"),
        ({"business_reference": "."}, "{base_url}/r/{business_reference}/x", "unsafe_value"),
        ({"business_reference": "."}, "{base_url}/r/.{business_reference}", "unsafe_value"),
        ({"business_reference": "\ud800"}, "{base_url}/r/{business_reference}", "unsafe_value"),
        ({"arguments": None}, "{base_url}/r/{arguments./order_id}", "arguments_aged_out"),
        ({}, "{base_url}/r/{arguments./nothing}", "argument_missing"),
        ({}, "{base_url}/r/{arguments./list}", "argument_missing"),
        ({"arguments": {"order_id": ""}}, "{base_url}/r/{arguments./order_id}", "argument_missing"),
        ({"arguments": {"order_id": None}}, "{base_url}/r/{arguments./order_id}", "argument_missing"),
        ({"business_reference": "a" * 9_000}, "{base_url}/r/{business_reference}", "refused_egress:bad_url"),
    ],
)
def test_a_question_that_cannot_be_put_is_not_put(
    changes: dict[str, Any], url: str, why: str, receiver: Receiver
) -> None:
    finding = ask(receiver, having(url=url), **changes)
    assert unclear(finding) == why
    assert receiver.connections == 0


def test_attribution_by_a_reference_that_does_not_exist_is_unclear(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund()))]
    configuration = having(
        url="{base_url}/r/{operation_id}", attributed={"path": "$.order", "equals": "business_reference"}
    )
    assert unclear(ask(receiver, configuration, business_reference=None)) == "reference_missing"


@pytest.mark.parametrize(
    ("header", "environment", "why"),
    [
        ("Bearer ${ACME_PAY_KEY}", {}, "credential_missing:ACME_PAY_KEY"),
        ("Bearer ${ACME_PAY_KEY}", {"ACME_PAY_KEY": " "}, "credential_missing:ACME_PAY_KEY"),
        ("${A_KEY}:${B_KEY}", {"A_KEY": "s3cret-of-a"}, "credential_missing:B_KEY"),
        ("${DATABASE_URL}", {"DATABASE_URL": "postgres://u:p@h/d"}, "credential_refused:DATABASE_URL"),
        (
            "${COUNTERFOIL_SECRET_KEY}",
            {"COUNTERFOIL_SECRET_KEY": "x"},
            "credential_refused:COUNTERFOIL_SECRET_KEY",
        ),
        ("${not a name}", {"not a name": "x"}, "credential_refused:not a name"),
        ("Bearer ${KEY}", {"KEY": "a\r\nX-Evil: 1"}, "refused_egress:header"),
    ],
)
def test_a_credential_that_cannot_be_used_names_the_variable_and_asks_nothing(
    header: str, environment: dict[str, str], why: str, receiver: Receiver
) -> None:
    finding = ask(receiver, headers={"Authorization": header}, environment=environment)
    assert unclear(finding) == why
    assert receiver.connections == 0
    assert not any(
        value.strip() and value in repr(finding) for value in environment.values() if len(value) > 5
    )


def test_credentials_are_resolved_at_the_call_and_hidden_where_the_receiver_echoes_them(
    receiver: Receiver,
) -> None:
    receiver.says = [reply(b'{"error": "bad key sk_live_12345678"}', 401)]
    finding = ask(
        receiver,
        headers={"Authorization": "Bearer ${ACME_KEY}"},
        environment={"ACME_KEY": "sk_live_12345678"},
    )
    assert receiver.header("Authorization") == "Bearer sk_live_12345678"
    assert finding.raw == b'{"error": "bad key [ACME_KEY]"}'
    assert "sk_live" not in repr(finding)


def test_a_configuration_that_cannot_work_is_unclear_not_an_exception(receiver: Receiver) -> None:
    finding = ask(receiver, {"kind": "http_lookup"})
    assert unclear(finding) == "bad_configuration"
    assert receiver.connections == 0


# -- items


def test_the_effect_is_found_as_it_was_intended(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund()))]
    finding = ask(receiver)
    assert receiver.targets == ["/refunds?reference=order-991"]
    assert finding.items == (
        Item(
            status=ItemStatus.COMPLETED,
            reference="re_1",
            raw_status="succeeded",
            attributed_to="op-1",
            ours=True,
        ),
    )
    assert finding.complete
    assert finding.authoritative
    assert finding.why is None
    assert finding.http_status == 200
    assert json.loads(finding.raw) == page(refund())
    assert finding.scope == f"GET {receiver.base_url}/refunds?reference=order-991 (1 page)"


# F31
@pytest.mark.parametrize(
    ("changes", "field", "intended", "found"),
    [
        ({"amount": 12001}, "$.amount", "12000", "12001"),
        ({"amount": 120}, "$.amount", "12000", "120"),
        ({"amount": None}, "$.amount", "120.00", "null"),
        ({"currency": "usd"}, "$.currency", "EUR", "usd"),
    ],
)
def test_an_effect_that_is_not_what_was_intended_shows_the_difference(
    changes: dict[str, Any], field: str, intended: str, found: str, receiver: Receiver
) -> None:
    receiver.says = [json_reply(page(refund(**changes)))]
    (difference,) = ask(receiver).items[0].differences
    assert (difference.field, difference.intended, difference.found) == (field, intended, found)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("succeeded", ItemStatus.COMPLETED),
        ("pending", ItemStatus.IN_PROGRESS),
        ("processing", ItemStatus.IN_PROGRESS),
        ("failed", ItemStatus.DENIED),
        ("canceled", ItemStatus.DENIED),
        ("Succeeded", ItemStatus.UNLISTED),  # case is part of a name
        ("requires_action", ItemStatus.UNLISTED),
        ("", ItemStatus.UNLISTED),
        (None, ItemStatus.UNLISTED),
        (True, ItemStatus.UNLISTED),
        (["succeeded"], ItemStatus.UNLISTED),
    ],
)
def test_only_a_listed_status_is_final(said: Any, status: ItemStatus, receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund(status=said)))]
    assert ask(receiver).items[0].status is status


def test_an_item_without_status_is_unlisted(receiver: Receiver) -> None:
    receiver.says = [json_reply(page({"id": "re_1"}, "text", 7, None, []))]
    assert {item.status for item in ask(receiver).items} == {ItemStatus.UNLISTED}


@pytest.mark.parametrize(
    ("said", "status"), [(200, ItemStatus.COMPLETED), (False, ItemStatus.DENIED), (0, "unlisted")]
)
def test_a_status_may_be_a_number_or_boolean_and_zero_is_not_false(
    said: Any, status: str, receiver: Receiver
) -> None:
    receiver.says = [json_reply(page(refund(status=said)))]
    rules = {"path": "$.status", "completed": [200], "denied": [False]}
    assert ask(receiver, having(status=rules)).items[0].status == status


def test_existence_may_be_completion(receiver: Receiver) -> None:
    receiver.says = [json_reply(page({"id": "o-1", "metadata": {"operation_id": "op-1"}}))]
    (item,) = ask(receiver, having(status="existence", match=None)).items
    assert (item.status, item.raw_status) == (ItemStatus.COMPLETED, None)


@pytest.mark.parametrize(
    ("metadata", "ours", "attributed_to"),
    [
        ({"operation_id": "op-1"}, True, "op-1"),
        ({"operation_id": "op-2"}, False, "op-2"),
        ({"operation_id": "OP-1"}, False, "OP-1"),
        ({"operation_id": 1}, False, "1"),
        ({"operation_id": ""}, False, ""),
        ({"operation_id": None}, False, None),
        ({}, False, None),
        (None, False, None),
    ],
)
def test_an_item_is_ours_by_the_name_it_carries_and_by_nothing_else(
    metadata: Any, ours: bool, attributed_to: str | None, receiver: Receiver
) -> None:
    receiver.says = [json_reply(page(refund(metadata=metadata, amount=1)))]
    (item,) = ask(receiver).items
    assert (item.ours, item.attributed_to) == (ours, attributed_to)
    assert bool(item.differences) is ours  # what is not ours is not compared


def test_without_attribution_nobody_says_whose_an_item_is(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund()))]
    (item,) = ask(receiver, having(attributed=None)).items
    assert (item.ours, item.attributed_to) == (None, None)


@pytest.mark.parametrize(
    ("configured", "shown", "reason"),
    [
        (None, {}, "failed"),
        ("$.failure_reason", {"failure_reason": "card_declined"}, "card_declined"),
        ("$.failure_reason", {}, "failed"),
        ("$.failure_reason", {"failure_reason": None}, "failed"),
    ],
)
def test_a_refusal_carries_its_reason(
    configured: str | None, shown: dict[str, Any], reason: str, receiver: Receiver
) -> None:
    receiver.says = [json_reply(page(refund(status="failed", **shown)))]
    assert ask(receiver, having(denial_reason=configured)).items[0].denial_reason == reason


def test_what_the_receiver_names_can_always_be_stored(receiver: Receiver) -> None:
    odd = "a\x00\ud800" + "b" * 1_000
    receiver.says = [json_reply(page(refund(id=odd, status=odd, metadata={"operation_id": odd})))]
    (item,) = ask(receiver).items
    for text in (item.reference, item.raw_status, item.attributed_to):
        assert text is not None
        assert "\x00" not in text
        assert len(text.encode()) < 400


def test_a_whole_document_may_be_the_one_item(receiver: Receiver) -> None:
    receiver.says = [json_reply(refund()), reply(status=404)]
    configuration = having(url="{base_url}/by-key/{idempotency_key}", items=None, complete=None)
    found = ask(receiver, configuration, lookup="by_key")
    assert [item.reference for item in found.items] == ["re_1"]
    absent = ask(receiver, configuration, lookup="by_key")
    assert (absent.kind, absent.items, absent.complete, absent.http_status) == (
        FindingKind.ITEMS,
        (),
        True,
        404,
    )
    assert receiver.targets == ["/by-key/cf_01", "/by-key/cf_01"]


def test_a_null_in_the_place_of_the_one_item_is_no_item(receiver: Receiver) -> None:
    receiver.says = [json_reply({"refund": None, "has_more": False}), json_reply({"has_more": False})]
    configuration = having(items="$.refund")
    assert ask(receiver, configuration).items == ()
    assert unclear(ask(receiver, configuration)) == "unexpected_shape"


def test_items_may_be_filtered(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund(), refund(id="x", kind="fee"), refund(id="y", kind="fee")))]
    finding = ask(receiver, having(items="$.data[?@.kind == 'fee']"))
    assert [item.reference for item in finding.items] == ["x", "y"]


def test_amounts_are_read_without_a_double_in_between(receiver: Receiver) -> None:
    body = json.dumps(page(refund(amount="AMOUNT"))).replace('"AMOUNT"', "0.30000000000000001")
    receiver.says = [reply(body.encode())]
    rules = {"$.amount": "/arguments/amount"}
    (item,) = ask(receiver, having(match=rules), arguments={"amount": "0.3"}).items
    assert [each.found for each in item.differences] == ["0.30000000000000001"]


# -- what is sent


def test_values_are_percent_encoded_into_the_template(receiver: Receiver) -> None:
    receiver.says = [json_reply(page())]
    url = "{base_url}/o/{operation_id}/{arguments./order_id}?r={business_reference}&n={arguments./n}&y={arguments./yes}"
    ask(receiver, having(url=url), business_reference="a/b?c=d&e#f%g ü+{x}\r\n", operation_id="op:1")
    assert receiver.targets == [
        "/o/op%3A1/991?r=a%2Fb%3Fc%3Dd%26e%23f%25g%20%C3%BC%2B%7Bx%7D%0D%0A&n=7&y=true"
    ]


def test_a_value_is_never_read_as_a_template(receiver: Receiver) -> None:
    receiver.says = [json_reply(page())]
    ask(receiver, business_reference="{idempotency_key}")
    assert receiver.targets == ["/refunds?reference=%7Bidempotency_key%7D"]


def test_a_pointer_may_go_deep(receiver: Receiver) -> None:
    receiver.says = [json_reply(page())]
    ask(receiver, having(url="{base_url}/o/{arguments./a/b~1c/0}"), arguments={"a": {"b/c": ["x?"]}})
    assert receiver.targets == ["/o/x%3F"]


def test_a_base_address_may_end_in_a_slash(receiver: Receiver) -> None:
    receiver.says = [json_reply(page())]
    facts = ReceiverFacts("acme-pay", f"{receiver.base_url}/v1/", {}, allow_private_addresses=True)
    ask(receiver, receiver=facts)
    assert receiver.targets == ["/v1/refunds?reference=order-991"]


# -- completeness


@pytest.mark.parametrize(
    ("answer", "complete"),
    [
        ({"data": [], "has_more": False}, True),
        ({"data": [], "has_more": True}, False),
        ({"data": []}, False),  # not said
        ({"data": [], "has_more": None}, False),
        ({"data": [], "has_more": 0}, False),
        ({"data": [], "has_more": "false"}, False),
    ],
)
def test_a_list_is_complete_only_where_it_says_so(
    answer: dict[str, Any], complete: bool, receiver: Receiver
) -> None:
    receiver.says = [json_reply(answer)]
    assert ask(receiver).complete is complete


def test_completeness_that_is_not_configured_is_incompleteness(receiver: Receiver) -> None:
    receiver.says = [json_reply(page())]
    assert not ask(receiver, having(complete=None)).complete


NEXT = having(complete=None, next="$.next")


@pytest.mark.parametrize("end", [{}, {"next": None}, {"next": ""}])
def test_pages_are_followed_to_the_end(end: dict[str, Any], receiver: Receiver) -> None:
    receiver.says = [
        json_reply({"data": [refund(id="a")], "next": "?after=a"}),
        json_reply({"data": [refund(id="b")], "next": f"{receiver.base_url}/refunds?after=b"}),
        json_reply({"data": [refund(id="c")], **end}),
    ]
    finding = ask(receiver, NEXT, headers={"X-Key": "k"})
    assert [item.reference for item in finding.items] == ["a", "b", "c"]
    assert finding.complete
    assert receiver.targets == ["/refunds?reference=order-991", "/refunds?after=a", "/refunds?after=b"]
    assert all(receiver.header("X-Key", number) == "k" for number in range(3))
    assert finding.raw.count(b"\n") == 2
    assert finding.scope.endswith("(3 pages)")


def test_with_both_the_last_page_has_to_say_that_nothing_follows(receiver: Receiver) -> None:
    both = having(next="$.next")
    receiver.says = [
        json_reply({"data": [], "has_more": True, "next": "?p=2"}),
        json_reply({"data": [], "has_more": False, "next": "?p=3"}),  # always names a next one
    ]
    assert ask(receiver, both).complete
    assert receiver.connections == 2
    receiver.says = [json_reply({"data": [], "has_more": True, "next": None})]
    assert not ask(receiver, both).complete


@pytest.mark.parametrize(
    "following",
    [
        "http://127.0.0.2/refunds",
        "https://{host}/refunds",
        "//evil.example.net/x",
        "http://user@{host}/x",
        "ftp://{host}/",
        "http://[::1",
        "http://{host}0/",
        "javascript:1",
    ],
)
def test_a_next_page_elsewhere_is_not_asked(following: str, receiver: Receiver) -> None:
    host = receiver.base_url.removeprefix("http://")
    receiver.says = [json_reply({"data": [], "next": following.format(host=host)})]
    assert unclear(ask(receiver, NEXT, headers={"Authorization": "Bearer k"})) == "foreign_next"
    assert receiver.connections == 1


@pytest.mark.parametrize("following", [7, True, ["?p=2"], {"url": "?p=2"}])
def test_a_next_page_that_is_no_text_is_unclear(following: Any, receiver: Receiver) -> None:
    receiver.says = [json_reply({"data": [], "next": following})]
    assert unclear(ask(receiver, NEXT)) == "unexpected_shape"


def test_a_list_that_runs_in_a_circle_is_unclear(receiver: Receiver) -> None:
    receiver.says = [
        json_reply({"data": [], "next": "?p=2"}),
        json_reply({"data": [], "next": "?reference=order-991"}),
    ]
    assert unclear(ask(receiver, NEXT)) == "page_loop"


def numbered(count: int, **items: Any) -> list[bytes | Script]:
    return [json_reply({"data": items.get(f"p{n}", []), "next": f"?p={n + 1}"}) for n in range(count)]


def test_a_list_beyond_the_page_cap_is_unclear(receiver: Receiver) -> None:
    receiver.says = numbered(http_lookup.PAGES_MAX + 5)
    assert unclear(ask(receiver, NEXT)) == "page_cap"
    assert receiver.connections == http_lookup.PAGES_MAX


def test_refusals_and_other_peoples_items_before_the_cap_are_no_answer(receiver: Receiver) -> None:
    others = [refund(status="failed"), refund(id="x", metadata={"operation_id": "op-2"})]
    receiver.says = numbered(http_lookup.PAGES_MAX + 5, p0=others)
    assert unclear(ask(receiver, NEXT)) == "page_cap"


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (reply(status=503), "http_503"),
        (reply(status=404), "http_404"),  # "absent" speaks of the first page only
        (b"", "connection_closed"),
        (reply(b"{"), "bad_body"),
        (json_reply({"data": None}), "unexpected_shape"),
        (json_reply({"data": [], "next": "http://evil.example.net/"}), "foreign_next"),
    ],
)
def test_an_effect_that_was_seen_survives_the_failure_of_a_later_page(
    second: bytes, why: str, receiver: Receiver
) -> None:
    receiver.says = [json_reply({"data": [refund()], "next": "?p=2"}), second]
    finding = ask(receiver, NEXT)
    assert finding.kind is FindingKind.ITEMS
    assert [item.reference for item in finding.items] == ["re_1"]
    assert finding.why == why
    assert not finding.complete
    receiver.says = [json_reply({"data": [refund(status="failed")], "next": "?p=2"}), second, second]
    receiver.connections = 0
    assert unclear(ask(receiver, NEXT)) == why


@pytest.mark.parametrize(
    ("lookup", "kind"), [("by_key", FindingKind.ITEMS), ("by_reference", FindingKind.UNCLEAR)]
)
def test_without_attribution_only_a_key_makes_an_effect_ours(
    lookup: str, kind: FindingKind, receiver: Receiver
) -> None:
    receiver.says = [json_reply({"data": [refund()], "next": "?p=2"}), reply(status=503)]
    unattributed = {key: value for key, value in NEXT.items() if key != "attributed"}
    assert ask(receiver, unattributed, lookup=lookup).kind is kind


def test_under_a_key_too_what_is_attributed_to_another_is_not_ours(receiver: Receiver) -> None:
    others = refund(metadata={"operation_id": "op-2"})
    receiver.says = [json_reply({"data": [others], "next": "?p=2"}), reply(status=503)]
    assert unclear(ask(receiver, NEXT, lookup="by_key")) == "http_503"


def test_a_later_page_of_another_namespace_spoils_the_earlier_ones(receiver: Receiver) -> None:
    receiver.says = [
        json_reply({"data": [refund()], "next": "?p=2", "account": "acct_1"}),
        json_reply({"data": [], "account": "acct_2"}),
    ]
    configuration = {**NEXT, "namespace": {"path": "$.account", "equals": "acct_1"}}
    assert unclear(ask(receiver, configuration)) == "wrong_namespace"


def test_an_item_that_moved_to_the_next_page_is_one_effect(receiver: Receiver) -> None:
    receiver.says = [
        json_reply({"data": [refund()], "next": "?p=2"}),
        json_reply({"data": [refund(), refund(id="re_2", metadata={"operation_id": "op-2"})]}),
    ]
    assert [item.reference for item in ask(receiver, NEXT).items] == ["re_1", "re_2"]


def test_an_item_that_changed_between_two_pages_is_asked_for_again(receiver: Receiver) -> None:
    receiver.says = [
        json_reply({"data": [refund(status="pending")], "next": "?p=2"}),
        json_reply({"data": [refund()]}),
    ]
    assert unclear(ask(receiver, NEXT)) == "inconsistent_pages"


def test_items_without_reference_are_counted_one_by_one(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund(), refund()))]
    assert len(ask(receiver, having(reference=None)).items) == 2


# -- freshness


# F30
@pytest.mark.parametrize(
    ("age", "complete"), [("0", True), ("1", False), ("3600", False), ("00", True), ("x", True)]
)
def test_an_answer_out_of_a_cache_proves_no_absence(age: str, complete: bool, receiver: Receiver) -> None:
    receiver.says = [json_reply(page(), Age=age)]
    finding = ask(receiver)
    assert finding.complete is complete
    assert finding.why == (None if complete else "cached")


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


# E6
def test_the_receivers_own_time_of_the_answer_is_taken_where_it_is_configured(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(snapshot_at="2026-11-30T13:00:00+01:00"))]
    assert ask(receiver, having(as_of={"path": "$.snapshot_at"})).as_of == NOON
    assert ask(receiver).as_of is None


def test_the_date_header_is_taken_only_where_it_is_asked_for(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(), Date=format_datetime(NOON, usegmt=True))]
    assert ask(receiver).as_of is None
    assert ask(receiver, having(as_of={"header": "Date"})).as_of == NOON


def test_the_oldest_page_dates_the_answer(receiver: Receiver) -> None:
    stamps = [NOON, NOON - timedelta(minutes=5), NOON + timedelta(minutes=5)]
    receiver.says = [
        json_reply({"data": [], "at": stamp.isoformat(), "next": f"?p={n}" if n < 2 else None})
        for n, stamp in enumerate(stamps)
    ]
    finding = ask(receiver, {**NEXT, "as_of": {"path": "$.at"}})
    assert finding.as_of == stamps[1]
    assert finding.complete


@pytest.mark.parametrize("said", [None, "", "yesterday", "2026-11-30T12:00:00", True, [], 1e300])
def test_an_answer_without_its_configured_time_is_not_complete(said: Any, receiver: Receiver) -> None:
    receiver.says = [json_reply(page(at=said)), reply(status=404)]
    for _ in receiver.says:
        finding = ask(receiver, having(as_of={"path": "$.at"}))
        assert (finding.complete, finding.as_of, finding.why) == (False, None, "as_of_missing")


@pytest.mark.parametrize(
    ("said", "moment"),
    [
        ("2026-11-30T12:00:00Z", NOON),
        ("2026-11-30T12:00:00+00:00", NOON),
        (NOON.timestamp(), NOON),
        (int(NOON.timestamp()) * 1000, NOON),
        ("Mon, 30 Nov 2026 12:00:00 GMT", NOON),
        (str(int(NOON.timestamp())), None),  # digits in a text may be anything
        (float("1e300"), None),
        (-1e300, None),
        ({}, None),
    ],
)
def test_times_of_receivers_are_read_or_not_read(said: Any, moment: datetime | None) -> None:
    assert read_time(said) == moment


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "120"}, 120),
        ({"retry-after": " 120 "}, 120),
        ({"retry-after": "999999999"}, 86_400),
        ({"retry-after": "9" * 5_000}, None),
        # The receiver's clock is five years ahead of ours: only the difference of its own two times counts.
        ({"retry-after": "Sat, 30 Nov 2030 12:02:00 GMT", "date": "Sat, 30 Nov 2030 12:00:00 GMT"}, 120),
        ({"retry-after": "Sat, 30 Nov 2030 11:00:00 GMT", "date": "Sat, 30 Nov 2030 12:00:00 GMT"}, 0),
        ({"retry-after": "Sat, 30 Nov 1999 12:00:00 GMT"}, 0),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_at_most_a_day(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_s(headers) == seconds


# E12
@pytest.mark.parametrize(("said", "stored"), [(500, True), (502, True), (200, False), (None, False)])
def test_an_error_stored_under_the_key_is_said(said: int | None, stored: bool, receiver: Receiver) -> None:
    configuration = having(
        url="{base_url}/keys/{idempotency_key}",
        items="$.effect",
        complete={"path": "$.final", "equals": True},
        stored_error={"path": "$.response.status", "equals": [500, 502]},
    )
    answer = {"effect": None, "final": True, "response": {"status": said}}
    receiver.says = [json_reply(answer), json_reply(answer, 404)]
    for _ in receiver.says:
        finding = ask(receiver, configuration, lookup="by_key")
        assert (finding.stored_error, finding.items, finding.complete) == (stored, (), True)


def test_a_look_up_may_be_declared_not_authoritative(receiver: Receiver) -> None:
    receiver.says = [json_reply(page())]
    assert not ask(receiver, having(authoritative=False)).authoritative


def test_only_the_first_part_of_a_long_answer_is_kept(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund(note="n" * 100_000)))]
    finding = ask(receiver)
    assert (len(finding.raw), finding.raw_truncated) == (http_lookup.RAW_BYTES_MAX, True)
    assert finding.complete  # what is kept is cut, what was read is not


# -- validation

CONTRACTS = {
    lookup: Contract.parse({"deduplicates": "key", "lookup": lookup})
    for lookup in ("by_reference", "by_key", "by_list", "callback", "none")
}


def faults(configuration: dict[str, Any], lookup: str = "by_reference") -> list[tuple[str, str]]:
    return reconcilers.validate(configuration, CONTRACTS[lookup])


def test_the_documented_example_is_accepted() -> None:
    documented = having(
        next="$.next_url",
        denial_reason="$.failure_reason",
        namespace={"path": "$.account", "equals": "acct_1"},
        as_of={"header": "X-Snapshot-At"},
        stored_error={"path": "$.response.status", "equals": [500, 502]},
        authoritative=True,
    )
    assert faults(documented) == []


@pytest.mark.parametrize(
    ("changes", "path", "why"),
    [
        ({"kind": None}, "kind", "required"),
        ({"kind": 7}, "kind", "required"),
        ({"kind": "no_such_thing"}, "kind", "names no reconciler"),
        ({"kind": "no_such.module.Thing"}, "kind", "ModuleNotFoundError"),
        ({"kind": "json.JSONDecoder"}, "kind", "no look_up"),
        ({"kind": "json.no_such_thing"}, "kind", "AttributeError"),
        ({"method": "POST"}, "method", "unknown key"),
        ({"url": None}, "url", "required"),
        ({"url": "https://other.example.org/x"}, "url", "begins with {base_url}"),
        ({"url": "{base_url}.evil.example.net/"}, "url", "begins with {base_url}"),
        ({"url": "{base_url}@evil.example.net/"}, "url", "begins with {base_url}"),
        ({"url": "{base_url}/{operation}"}, "url", "unknown placeholder {operation}"),
        ({"url": "{base_url}/{arguments.order}"}, "url", "unknown placeholder"),
        ({"url": "{base_url}/{arguments}"}, "url", "unknown placeholder"),
        ({"url": "{base_url}/{}"}, "url", "unknown placeholder"),
        ({"url": "{base_url}/{base_url}"}, "url", "unknown placeholder"),
        ({"url": "{base_url}/{operation_id"}, "url", "brace"),
        ({"url": "{base_url}/{operation_id} x"}, "url", "space"),
        ({"url": "{base_url}/{operation_id}#x"}, "url", "'#'"),
        ({"url": "{base_url}/refunds"}, "url", "by_reference needs"),
        ({"items": "data[*]"}, "items", "no JSONPath"),
        ({"items": 7}, "items", "must be a JSONPath"),
        ({"items": "$.data[?match(@.a, 'b')]"}, "items", "match() is not offered"),
        ({"status": None}, "status", "required"),
        ({"status": "always"}, "status", "required"),
        ({"status": {"path": "$.s"}}, "status.completed", "required"),
        ({"status": {"path": "$.s", "completed": []}}, "status.completed", "required"),
        ({"status": {"path": "$.s", "completed": "ok"}}, "status.completed", "list"),
        ({"status": {"path": "$.s", "completed": [{}]}}, "status.completed", "list"),
        ({"status": {"completed": ["ok"]}}, "status.path", "JSONPath"),
        ({"status": {"path": "$.s[*]", "completed": ["ok"]}}, "status.path", "one node"),
        ({"status": {"path": "$.s", "completed": ["ok"], "unknown": []}}, "status.unknown", "unknown key"),
        ({"status": {"path": "$.s", "completed": ["ok"], "denied": ["ok"]}}, "status.denied", "two lists"),
        ({"attributed": {"path": "$.a", "equals": "op-1"}}, "attributed.equals", "must be one of"),
        ({"attributed": {"path": "$.a"}}, "attributed.equals", "must be one of"),
        ({"attributed": {"path": "$..a", "equals": "operation_id"}}, "attributed.path", "one node"),
        ({"attributed": "$.a"}, "attributed", "mapping"),
        ({"reference": "$.data[*].id"}, "reference", "one node"),
        ({"match": {"$.a": "amount"}}, "match.$.a", "JSON Pointer"),
        ({"match": []}, "match", "mapping"),
        ({"complete": {"path": "$.a"}}, "complete.equals", "required"),
        ({"complete": {"path": "$.a", "equals": []}}, "complete.equals", "text, number"),
        ({"complete": {"path": "$.a", "equals": True, "or": 1}}, "complete.or", "unknown key"),
        ({"complete": {"path": "$.a[*]", "equals": True}}, "complete.path", "one node"),
        ({"next": "$.links[*]"}, "next", "one node"),
        ({"namespace": {"equals": "a"}}, "namespace.path", "JSONPath"),
        ({"namespace": {"path": "$.a", "equals": ["a", "b"]}}, "namespace.equals", "text, number"),
        ({"absent_status": 404}, "absent_status", "list"),
        ({"absent_status": ["404"]}, "absent_status", "cannot mean"),
        ({"absent_status": [200]}, "absent_status", "cannot mean"),
        ({"absent_status": [503]}, "absent_status", "cannot mean"),
        ({"absent_status": [301]}, "absent_status", "cannot mean"),
        ({"absent_status": [True]}, "absent_status", "cannot mean"),
        ({"as_of": {}}, "as_of", "either"),
        ({"as_of": {"path": "$.a", "header": "Date"}}, "as_of", "either"),
        ({"as_of": {"header": "No Name"}}, "as_of.header", "name of a header"),
        ({"as_of": {"header": None}}, "as_of.header", "name of a header"),
        ({"stored_error": {"path": "$.a", "equals": []}}, "stored_error.equals", "text, number"),
        ({"authoritative": "yes"}, "authoritative", "true or false"),
        ({"denial_reason": "$["}, "denial_reason", "no JSONPath"),
    ],
)
def test_what_cannot_work_is_refused_with_its_path(changes: dict[str, Any], path: str, why: str) -> None:
    found = faults(having(**changes))
    assert [where for where, _ in found] == [f"reconciler.{path}"]
    assert why in found[0][1]


@pytest.mark.parametrize("status", sorted(NEVER_ABSENT))
def test_an_answer_about_the_asker_is_never_an_absence(status: int) -> None:
    assert faults(having(absent_status=[status]))[0][0] == "reconciler.absent_status"


def test_every_fault_is_named_at_once() -> None:
    found = faults(
        {"kind": "http_lookup", "url": "x", "items": "y", "extra": 1, "match": {"a": "b", "$.c": "d"}}
    )
    assert {path for path, _ in found} == {
        "reconciler.extra",
        "reconciler.url",
        "reconciler.items",
        "reconciler.status",
        "reconciler.match.a",
        "reconciler.match.$.c",
    }


@pytest.mark.parametrize(
    ("lookup", "changes", "path"),
    [
        ("by_key", {}, "reconciler.url"),
        ("by_key", {"url": "{base_url}/keys/{idempotency_key}"}, None),
        ("by_reference", {"url": "{base_url}/orders/{arguments./order_id}"}, None),
        ("by_reference", {"url": "{base_url}/orders/{operation_id}"}, None),
        ("by_list", {"url": "{base_url}/orders"}, None),
        ("by_list", {"url": "{base_url}/orders", "attributed": None}, "reconciler.attributed"),
    ],
)
def test_a_look_up_has_to_ask_what_the_contract_promises(
    lookup: str, changes: dict[str, Any], path: str | None
) -> None:
    assert [where for where, _ in faults(having(**changes), lookup)] == ([] if path is None else [path])


@pytest.mark.parametrize(
    ("base_url", "headers", "allow_private", "path"),
    [
        ("https://pay.example.org/v1", {"Authorization": "Bearer ${KEY}"}, False, None),
        ("http://127.0.0.1:9000", {}, True, None),
        ("http://pay.example.org", {}, False, "base_url"),
        ("https://pay.example.org:8443", {}, False, "base_url"),
        ("https://10.0.0.1", {}, False, "base_url"),
        ("http://169.254.169.254", {}, True, "base_url"),
        ("https://u:p@pay.example.org", {}, False, "base_url"),
        ("https://pay.example.org?x=1", {}, False, "base_url"),
        ("pay.example.org", {}, False, "base_url"),
        ("https://pay.example.org", {"Host": "x"}, False, "headers.Host"),
        ("https://pay.example.org", {"X": "a\nb"}, False, "headers.X"),
        ("https://pay.example.org", {"X": "${1}"}, False, "headers.X"),
        ("https://pay.example.org", {"X": "${DATABASE_URL}"}, False, "headers.X"),
    ],
)
def test_a_receiver_that_can_never_be_asked_is_refused(
    base_url: str, headers: dict[str, str], allow_private: bool, path: str | None
) -> None:
    found = validate_receiver(base_url, headers, allow_private=allow_private)
    assert [where for where, _ in found] == ([] if path is None else [path])


# -- the registry and its door


class Faulty:
    """A reconciler with a bug."""

    def look_up(self, question: Question) -> Finding:
        raise KeyError("secret value")

    def validate(self, configuration: Any, contract: Contract) -> list[tuple[str, str]]:
        return []


@pytest.mark.parametrize("kind", [f"{__name__}:Faulty", f"{__name__}.Faulty"])
def test_a_reconciler_is_found_by_dotted_path_and_its_bug_costs_one_look_up(kind: str) -> None:
    finding = reconcilers.look_up(question(None, {"kind": kind}))
    assert unclear(finding) == "reconciler_failed:KeyError"
    assert "secret value" not in repr(finding)


@pytest.mark.parametrize("kind", ["", "nothing", ":", ".", "a:", "no.such.Thing", "json"])
def test_an_unknown_kind_is_unclear(kind: str) -> None:
    with pytest.raises(UnknownReconciler):
        reconcilers.reconciler(kind)
    assert unclear(reconcilers.look_up(question(None, {"kind": kind}))) == "unknown_reconciler"


@pytest.mark.parametrize("lookup", ["none", "callback"])
def test_where_the_contract_has_no_look_up_nobody_is_asked(lookup: str, receiver: Receiver) -> None:
    assert reconcilers.look_up(question(receiver, lookup=lookup)).kind is FindingKind.NO_LOOKUP
    assert reconcilers.look_up(question(receiver, {})).kind is FindingKind.NO_LOOKUP
    assert receiver.connections == 0


def test_the_built_in_kind_asks(receiver: Receiver) -> None:
    receiver.says = [json_reply(page(refund()))]
    assert reconcilers.look_up(question(receiver)).items[0].reference == "re_1"


def test_a_plan_holds_what_the_example_says() -> None:
    made = plan(CONFIGURATION)
    assert (made.items.text, made.absent_status, made.authoritative) == ("$.data[*]", frozenset({404}), True)

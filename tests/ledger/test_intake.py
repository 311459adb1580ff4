"""What a runtime says, read strictly, and put to its capability: no database, no clock."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from cryptography.fernet import Fernet, MultiFernet
from hypothesis import given
from hypothesis import strategies as st

from ledger.contracts import Contract
from ledger.digests import arguments_digest, canonical
from ledger.errors import Malformed, ReferenceRequired
from ledger.intake import (
    INTENT_FIELDS,
    Amount,
    CapabilityFacts,
    Intent,
    agreed_amount,
    nonce_hash,
    parse_intent,
    parse_nonce,
    prepare,
    unseal,
    valid_name,
)
from tests.arrange import OPAQUE, READABLE

FERNET = MultiFernet([Fernet(Fernet.generate_key())])
PEPPER = b"p" * 32
BODY: dict[str, Any] = {
    "task_id": "t-1",
    "capability": "refund.create",
    "arguments": {"amount": "120.00"},
    "actor": {"subject": "agent:7"},
}
CAPABILITY = CapabilityFacts(
    workspace_id=1,
    workspace="acme",
    environment="test",
    id=1,
    receiver="acme-pay",
    receiver_id=1,
    sensitive=(),
    audit_sensitive=False,
    amount=None,
    arguments_schema=None,
    approval={"required": False},
    contract=Contract.parse(OPAQUE),
    as_row={},
)
INTENT = parse_intent("op-1", BODY)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def prepared(intent: Intent = INTENT, **columns: Any) -> Any:
    return prepare(intent, replace(CAPABILITY, **columns), fernet=FERNET, pepper=PEPPER)


# Names


@pytest.mark.parametrize("name", ["a", "-", "...", "A-z0.9_~:@+=-", "x" * 200, "op:1@example.org", "..."])
def test_a_name_is_what_a_url_carries_unchanged(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", " ", "a b", "a/b", "a%", "a?", "a#", "a\n", "\na", "é", "x" * 201, "a\x00", "a,b", "a;b"],
)
def test_anything_else_is_no_name(name: str) -> None:
    assert not valid_name(name)


@given(st.text())
def test_a_name_has_one_spelling_in_a_url(name: str) -> None:
    from urllib.parse import quote, unquote

    if valid_name(name):
        assert quote(name, safe=":@+=~") == name == unquote(name)
        assert re.fullmatch(r"[A-Za-z0-9._~:@+=-]{1,200}", name)


# Nonces


@pytest.mark.parametrize(
    "nonce",
    [
        None,
        "",
        "x" * 15,
        "x" * 201,
        "with a space in it",
        "tab\tin-the-middle",
        "ünïcödé-ünïcödé-",
        7,
        [],
        {},
        True,
    ],
)
def test_a_nonce_is_long_visible_ascii(nonce: object) -> None:
    with pytest.raises(Malformed) as refused:
        parse_nonce(nonce, where="/permit_nonce")

    assert refused.value.path == "/permit_nonce"


def test_what_is_stored_of_a_nonce_is_its_hash() -> None:
    assert parse_nonce("n" * 16) == "n" * 16
    assert len(nonce_hash("n" * 16)) == 32
    assert nonce_hash("n" * 16) != nonce_hash("n" * 17)


# Intents


def test_the_smallest_intent_leaves_everything_else_open() -> None:
    assert (
        Intent(
            operation_id="op-1",
            task_id="t-1",
            capability="refund.create",
            arguments={"amount": "120.00"},
            subject="agent:7",
        )
        == INTENT
    )


def test_the_largest_intent_is_read_whole() -> None:
    body = {
        **BODY,
        "actor": {"subject": "agent:7", "on_behalf_of": "user:alice"},
        "business_reference": "order-991",
        "idempotency_key": "key-1",
        "amount": {"value": "120.00", "currency": "EUR"},
        "checkpoint": {"b": 1, "a": [None]},
        "purpose": "the customer asked",
        "supersedes": "op-0",
        "compensates": "op-9",
        "dispatch": True,
        "expect": "recorded",
    }
    assert body.keys() == INTENT_FIELDS

    intent = parse_intent("op-1", body)

    assert intent.on_behalf_of == "user:alice"
    assert intent.amount == Amount("120.00", "EUR")
    assert intent.checkpoint == '{"a":[null],"b":1}'
    assert (intent.supersedes, intent.compensates) == ("op-0", "op-9")
    assert (intent.dispatch, intent.expect_recorded) == (True, True)


@pytest.mark.parametrize("field", sorted(INTENT_FIELDS))
def test_null_is_the_same_as_left_out_where_a_field_may_be(field: str) -> None:
    if field in BODY:
        with pytest.raises(Malformed, match="required"):
            parse_intent("op-1", {**BODY, field: None})
    elif field == "dispatch":
        with pytest.raises(Malformed):
            parse_intent("op-1", {**BODY, field: None})
    else:
        assert parse_intent("op-1", {**BODY, field: None}) == INTENT


@given(JSON)
def test_any_json_is_read_or_refused_with_a_path(body: object) -> None:
    for attempted in (body, {**BODY, "arguments": body}, {**BODY, "amount": body}, {**BODY, "actor": body}):
        try:
            intent = parse_intent("op-1", attempted)
        except Malformed as refused:
            assert refused.path == "" or refused.path.startswith("/")
        else:
            assert intent.operation_id == "op-1"


def test_fields_that_a_batch_reads_itself_are_its_own_only() -> None:
    body = {**BODY, "operation_id": "op-1"}

    assert parse_intent("op-1", body, also=frozenset({"operation_id"})) == INTENT
    with pytest.raises(Malformed):
        parse_intent("op-1", body)


@pytest.mark.parametrize("value", ["0", "-5", "0.000000000000000001", "9" * 30, "120.0"])
def test_money_is_a_decimal_as_text(value: str) -> None:
    amount = parse_intent("op-1", {**BODY, "amount": {"value": value, "currency": "EUR"}}).amount

    assert amount == Amount(value, "EUR")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "+1",
        "1.",
        ".5",
        "01",
        "1e3",
        "1,00",
        "0x10",
        "NaN",
        "Infinity",
        "9" * 31,
        "1." + "0" * 19,
        "١",
        " 1",
        "1\n",
    ],
)
def test_no_other_text_is_money(value: str) -> None:
    with pytest.raises(Malformed):
        parse_intent("op-1", {**BODY, "amount": {"value": value, "currency": "EUR"}})


# Beside the capability


def test_what_is_prepared_of_an_intent() -> None:
    ready = prepared()

    assert ready.arguments == '{"amount":"120.00"}'
    assert ready.digest == arguments_digest(INTENT.arguments, None)
    assert (ready.sealed, ready.salt, ready.twin_digest, ready.amount) == (None, None, None, None)
    assert ready.key.startswith("cf_")
    assert ready.key != prepared().key, "minted anew for each operation"
    assert prepared(replace(INTENT, idempotency_key="key-1")).key == "key-1"


def test_a_receiver_asked_by_reference_needs_one() -> None:
    with pytest.raises(ReferenceRequired):
        prepared(contract=Contract.parse(READABLE))
    prepared(replace(INTENT, business_reference="order-991"), contract=Contract.parse(READABLE))


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        ({"required": False}, 0),
        ({"required": False, "when": []}, 0),
        ({"required": True}, 1),
        ({"required": True, "approvals": 2}, 2),
        ({"required": True, "approvals": 0}, 1),  # at least one
        # What cannot be judged yet is taken as met: never open by mistake.
        ({"required": False, "when": [{"param": "tier", "op": "in", "value": ["gold"]}]}, 1),
        (
            {"required": False, "above": {"amount": {"value": "1000.00", "currency": "EUR"}}, "approvals": 2},
            2,
        ),
    ],
)
def test_how_many_people_must_approve(rule: dict[str, Any], needed: int) -> None:
    ready = prepared(approval=rule)

    assert ready.approvals_needed == needed
    assert (ready.approval_reason is None) is (needed == 0)


AMOUNT = {"value": "/arguments/amount", "currency": "/arguments/currency"}


@pytest.mark.parametrize(
    ("arguments", "said", "agreed"),
    [
        ({"amount": "120.00", "currency": "EUR"}, None, Amount("120.00", "EUR")),
        ({"amount": "120.00", "currency": "EUR"}, Amount("120.00", "EUR"), Amount("120.00", "EUR")),
        ({"amount": "120.00", "currency": "EUR"}, Amount("120", "EUR"), Amount("120", "EUR")),
        ({"amount": 120, "currency": "EUR"}, None, Amount("120", "EUR")),
        ({"amount": 0.1, "currency": "EUR"}, None, Amount("0.1", "EUR")),
        ({"amount": False, "currency": "EUR"}, None, None),
        ({"amount": "120.00"}, Amount("5", "EUR"), Amount("5", "EUR")),  # not found: what is said stands
        ({}, None, None),
    ],
)
def test_the_amount_is_said_or_found_and_both_agree(
    arguments: dict[str, Any], said: Amount | None, agreed: Amount | None
) -> None:
    assert agreed_amount(replace(INTENT, arguments=arguments, amount=said), AMOUNT) == agreed


@pytest.mark.parametrize("said", [Amount("120.01", "EUR"), Amount("120.00", "USD"), Amount("-120.00", "EUR")])
def test_an_amount_that_disagrees_with_the_arguments_is_refused(said: Amount) -> None:
    arguments = {"amount": "120.00", "currency": "EUR"}

    with pytest.raises(Malformed) as refused:
        agreed_amount(replace(INTENT, arguments=arguments, amount=said), AMOUNT)

    assert refused.value.path == "/amount"


def test_a_currency_may_be_the_capabilitys_own() -> None:
    where = {"value": "/arguments/amount", "currency": "EUR"}

    assert agreed_amount(replace(INTENT, arguments={"amount": "7"}), where) == Amount("7", "EUR")


def test_a_schema_is_held_to_without_quoting_values() -> None:
    schema = json.dumps({"properties": {"card": {"properties": {"number": {"maxLength": 4}}}}})

    with pytest.raises(Malformed) as refused:
        prepared(replace(INTENT, arguments={"card": {"number": "4111111111111111"}}), arguments_schema=schema)

    assert refused.value.path == "/arguments/card/number"
    assert "4111" not in str(refused.value)


# Sealing

SECRET = "4111111111111111"


@given(
    JSON,
    st.sampled_from(
        [
            ("/card",),
            ("/card/number",),
            ("/card", "/card/number"),
            ("/list/0", "/list/1"),
            ("/a~1b", "/~0"),
            ("/none",),
            ("",),
        ]
    ),
)
def test_what_is_sealed_is_not_readable_and_comes_back_as_it_was(
    other: Any, pointers: tuple[str, ...]
) -> None:
    arguments = {
        "card": {"number": SECRET, "other": other},
        "list": [SECRET, SECRET, other],
        "a/b": SECRET,
        "~": SECRET,
        "free": other,
    }
    ready = prepared(replace(INTENT, arguments=arguments), sensitive=pointers)

    assert unseal(ready.arguments, ready.sealed, FERNET) == arguments
    shown = json.loads(ready.arguments)
    if pointers == ("",):
        assert shown is None
    if "/card" in pointers:
        assert shown["card"] is None
    elif "/card/number" in pointers:
        assert shown["card"] == {"number": None, "other": other}
    if "/list/0" in pointers:
        assert shown["list"] == [None, None, other]
    if "/a~1b" in pointers:
        assert (shown["a/b"], shown["~"]) == (None, None)
    assert SECRET.encode() not in ready.sealed
    assert ready.digest == arguments_digest(arguments, ready.salt)


def test_each_operation_has_a_salt_of_its_own_and_twins_are_still_told() -> None:
    one, two = prepared(audit_sensitive=True), prepared(audit_sensitive=True)
    other = prepared(replace(INTENT, arguments={"amount": "1"}), audit_sensitive=True)

    assert one.salt != two.salt
    assert one.digest != two.digest
    assert one.twin_digest == two.twin_digest != other.twin_digest
    assert one.arguments == "null"
    # Who has the database but not the pepper cannot try arguments out.
    guessed = "hmac-sha256:" + canonical(INTENT.arguments).hex()
    assert one.twin_digest != guessed


def test_what_aged_out_is_nothing() -> None:
    assert unseal(None, None, FERNET) is None
    assert unseal(None, b"x", FERNET) is None

"""PUT /operations/{operation_id}: the intent is on record before anything leaves the process."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection

from ledger import tenancy
from ledger.digests import arguments_digest
from ledger.keys import current
from ledger.models import Capability, Invocation, Mandate
from ledger.permits import read
from ledger.selectors import arguments_of
from tests.arrange import (
    COMPLETED,
    DECLINED,
    NOT_SENT,
    OPAQUE,
    READABLE,
    UNKNOWN,
    Agent,
    Arranged,
    in_process,
    nonce,
    over_http,
)
from tests.ledger.api.steps import ask, dispatch, lost, ok, own_arguments, problem, record

LEAVE_OUT: Any = object()


def _count(workspace: Arranged) -> int:
    with tenancy.workspace(workspace.id):
        return Invocation.objects.filter(workspace_id=workspace.id).count()


# What is refused, with nothing recorded


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"task_id": LEAVE_OUT}, "/task_id"),
        ({"task_id": None}, "/task_id"),
        ({"task_id": ""}, "/task_id"),
        ({"task_id": "."}, "/task_id"),
        ({"task_id": "a/b"}, "/task_id"),
        ({"task_id": "x" * 201}, "/task_id"),
        ({"task_id": 7}, "/task_id"),
        ({"capability": LEAVE_OUT}, "/capability"),
        ({"capability": ""}, "/capability"),
        ({"capability": " refund.create"}, "/capability"),
        ({"capability": ["refund.create"]}, "/capability"),
        ({"arguments": LEAVE_OUT}, "/arguments"),
        ({"arguments": []}, "/arguments"),
        ({"arguments": "{}"}, "/arguments"),
        ({"arguments": None}, "/arguments"),
        ({"actor": LEAVE_OUT}, "/actor"),
        ({"actor": "agent:7"}, "/actor"),
        ({"actor": {}}, "/actor/subject"),
        ({"actor": {"subject": ""}}, "/actor/subject"),
        ({"actor": {"subject": "  "}}, "/actor/subject"),
        ({"actor": {"subject": "a\tb"}}, "/actor/subject"),
        ({"actor": {"subject": "x" * 201}}, "/actor/subject"),
        ({"actor": {"subject": "agent:7", "role": "admin"}}, "/actor/role"),  # C20: no field of ours
        ({"actor": {"subject": "agent:7", "on_behalf_of": ""}}, "/actor/on_behalf_of"),
        ({"business_reference": ""}, "/business_reference"),
        ({"business_reference": "line\nfeed"}, "/business_reference"),
        ({"business_reference": 991}, "/business_reference"),
        ({"idempotency_key": ""}, "/idempotency_key"),
        ({"idempotency_key": "two words"}, "/idempotency_key"),
        ({"idempotency_key": "ключ"}, "/idempotency_key"),
        ({"idempotency_key": "k" * 256}, "/idempotency_key"),
        ({"amount": "120.00"}, "/amount"),
        ({"amount": {}}, "/amount/value"),
        ({"amount": {"value": 120, "currency": "EUR"}}, "/amount/value"),
        ({"amount": {"value": "1e3", "currency": "EUR"}}, "/amount/value"),
        ({"amount": {"value": "NaN", "currency": "EUR"}}, "/amount/value"),
        ({"amount": {"value": "120.00"}}, "/amount/currency"),
        ({"amount": {"value": "120.00", "currency": "eur"}}, "/amount/currency"),
        ({"amount": {"value": "120.00", "currency": "EUR", "minor": 1}}, "/amount/minor"),
        ({"checkpoint": {"state": "x" * 8192}}, "/checkpoint"),
        ({"purpose": "x" * 4097}, "/purpose"),
        ({"purpose": {"text": "refund"}}, "/purpose"),
        ({"supersedes": ""}, "/supersedes"),
        ({"supersedes": "a b"}, "/supersedes"),
        ({"compensates": 7}, "/compensates"),
        ({"compensates": "no-such-operation"}, "/compensates"),
        ({"dispatch": "true"}, "/dispatch"),
        ({"dispatch": 1}, "/dispatch"),
        ({"expect": "nothing"}, "/expect"),
        ({"expect": ["recorded"]}, "/expect"),
        ({"operation_id": "op-1"}, "/operation_id"),
        ({"permit_nonce": "nonce-nonce-nonce"}, "/permit_nonce"),
        ({"decided_by": "ada"}, "/decided_by"),
        ({"argumnets": {}}, "/argumnets"),
    ],
)
def test_a_malformed_intent_is_refused_with_the_path_of_its_fault(
    agent: Agent, workspace: Arranged, fields: dict[str, Any], path: str
) -> None:
    operation_id = workspace.operation_id()
    body = workspace.intent(**fields)
    body = {name: value for name, value in body.items() if value is not LEAVE_OUT}

    refused = problem(agent.put_intent(operation_id, body, nonce=nonce()), 400, "malformed")

    assert refused["path"] == path
    assert refused["effect_may_have_happened"] in (None, False)
    assert _count(workspace) == 0
    # C83: what was never recorded burns no name
    assert agent.put_intent(operation_id, workspace.intent()).status_code == 201


def test_unknown_fields_are_all_named(agent: Agent, workspace: Arranged) -> None:
    body = problem(agent.put_intent("op-1", workspace.intent(b=1, a=2)), 400, "malformed")

    assert body["unknown_fields"] == ["a", "b"]


def _with_arguments(text: str) -> bytes:
    return (
        '{"task_id": "t-1", "capability": "refund.create", "actor": {"subject": "agent:7"}, "arguments": '
        + text
        + "}"
    ).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"", ""),
        (b"{", ""),
        (b"[]", ""),
        (b"null", ""),
        (b"\xff\xfe{\x00}\x00", ""),
        (b"\xef\xbb\xbf{}", ""),
        (_with_arguments('{"amount": 10, "amount": 1000}'), "/arguments/amount"),  # C18
        (_with_arguments('{"amount": 1e400}'), "/arguments/amount"),  # C18
        (_with_arguments('{"amount": 9007199254740993}'), "/arguments/amount"),  # C18
        (_with_arguments('{"amount": 9007199254740993.0}'), "/arguments/amount"),
        (_with_arguments('{"amount": 0.1000000000000000055}'), "/arguments/amount"),
        (_with_arguments('{"amount": NaN}'), "/arguments/amount"),  # C85
        (_with_arguments('{"amount": -Infinity}'), "/arguments/amount"),  # C85
        (_with_arguments('{"amount": ' + "7" * 5000 + "}"), "/arguments/amount"),  # C85
        (_with_arguments('{"text": "\\ud800"}'), "/arguments/text"),  # C84
        (_with_arguments('{"text": "\ud800"}'), None),  # C84, as bytes
        (_with_arguments('{"\\ud800": 1}'), None),  # C84, in a name
        (_with_arguments('{"text": "\\u0000"}'), "/arguments/text"),
        (_with_arguments('{"text": "a\x00b"}'), None),
        (_with_arguments("[" * 100_000 + "]" * 100_000), None),  # C85
        (_with_arguments('{"a":' * 50 + "1" + "}" * 50), None),
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_not_recorded(
    agent: Agent, workspace: Arranged, raw: bytes, path: str | None
) -> None:
    body = problem(agent.call("PUT", "/api/v1/operations/op-1", raw=raw), 400, "malformed")

    assert "path" in body
    if path is not None:
        assert body["path"] == path
    assert _count(workspace) == 0


def test_an_intent_over_256_kib_is_too_large(agent: Agent, workspace: Arranged) -> None:
    body = workspace.intent(arguments={"text": "x" * (256 * 1024)})

    refused = problem(agent.put_intent("op-1", body), 413, "too-large")

    assert refused["max_bytes"] == 256 * 1024
    assert _count(workspace) == 0


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "text/json"],
)
def test_an_intent_is_json_and_says_so(agent: Agent, workspace: Arranged, content_type: str | None) -> None:
    answer = agent.put_intent("op-1", workspace.intent(), content_type=content_type)

    problem(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_a_charset_beside_json_changes_nothing(agent: Agent, workspace: Arranged, content_type: str) -> None:
    ok(agent.put_intent("op-1", workspace.intent(), content_type=content_type), 201)


# C38
@pytest.mark.parametrize(
    "name",
    [
        ".",
        "..",
        "%20",
        "%20op-1",
        "op-1%20",
        "x" * 201,
        "x" * 5000,
        "%00",
        "op%00-1",
        "op%0A1",
        "op%7F1",
        "op,1",
        "op%251",
        "op%5C1",
        "op;1",
        "op*1",
        "%C3%A9t%C3%A9",  # été
        "%F0%9F%98%80",  # an emoji
        "%E2%80%8B",  # a zero-width space
        "%ED%A0%80",  # a lone surrogate
        "%FF",
        "op%3F1",
        "op%231",
        "<b>",
    ],
)
def test_an_operation_id_that_could_be_mistaken_is_refused(
    agent: Agent, workspace: Arranged, name: str
) -> None:
    for answer in (
        agent.call("PUT", f"/api/v1/operations/{name}", workspace.intent()),
        agent.call("GET", f"/api/v1/operations/{name}"),
        agent.ask(name, 1, nonce=nonce()),
        agent.report(name, 1, COMPLETED),
        agent.withdraw(name),
    ):
        body = problem(answer, 400, "malformed")
        assert "operation ID" in body["detail"]
        assert "operation_id" not in body
    assert _count(workspace) == 0


@pytest.mark.parametrize("name", ["", "a/b", "a%2Fb", "%2F", "a/../b"])
def test_an_address_with_another_number_of_parts_is_nothing(
    agent: Agent, workspace: Arranged, name: str
) -> None:
    problem(agent.call("PUT", f"/api/v1/operations/{name}", workspace.intent()), 404, "not-found")
    assert _count(workspace) == 0


@pytest.mark.parametrize(
    "name", ["a", "x" * 200, "A-z0.9_~:@+=-", "...", "-", "op%2D1", "op@example.org", "__proto__"]
)
def test_any_other_operation_id_is_taken_as_it_is(agent: Agent, workspace: Arranged, name: str) -> None:
    body = ok(agent.call("PUT", f"/api/v1/operations/{name}", workspace.intent()), 201)

    assert body["operation_id"] == name.replace("%2D", "-")
    assert body["links"]["self"] == f"/api/v1/operations/{body['operation_id']}"


def test_operation_ids_differ_by_case(agent: Agent, workspace: Arranged) -> None:
    one = ok(agent.put_intent("op-a", workspace.intent()), 201)
    other = ok(agent.put_intent("OP-A", workspace.intent()), 201)

    assert one["invocation_id"] != other["invocation_id"]


@pytest.mark.parametrize(
    ("scopes", "capabilities", "subjects"),
    [
        (["permit", "outcome", "read"], ["*"], ["*"]),
        (["intent"], ["order.*"], ["*"]),
        (["intent"], ["refund"], ["*"]),  # the whole name must match
        (["intent"], [], ["*"]),
        (["intent"], ["*"], ["agent:support-8"]),
        (["intent"], ["*"], ["Agent:support-7"]),  # case counts
    ],
)
def test_the_token_must_cover_scope_capability_and_subject(
    workspace: Arranged, scopes: list[str], capabilities: list[str], subjects: list[str]
) -> None:
    token = workspace.second_token(scopes=scopes, capabilities=capabilities, subjects=subjects)

    problem(in_process(token).put_intent("op-1", workspace.intent()), 403, "forbidden")

    assert _count(workspace) == 0


def test_dispatching_needs_the_permit_scope_too(workspace: Arranged) -> None:
    agent = in_process(workspace.second_token(scopes=["intent"]))

    ok(agent.put_intent("op-1", workspace.intent()), 201)
    problem(agent.put_intent("op-2", workspace.intent(dispatch=True), nonce=nonce()), 403, "forbidden")
    problem(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()), 403, "forbidden")
    assert _count(workspace) == 1


def test_a_capability_nobody_registered_is_unknown(agent: Agent, workspace: Arranged) -> None:
    body = problem(
        agent.put_intent("op-1", workspace.intent(capability="refund.crate")), 422, "capability-unknown"
    )

    assert body["effect_may_have_happened"] is False
    assert _count(workspace) == 0


# C31: what could never be looked up is refused, or said to be for people only
def test_a_receiver_that_is_asked_by_reference_needs_one(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(contract=READABLE)

    body = problem(agent.put_intent("op-1", workspace.intent()), 422, "reference-required")
    assert body["effect_may_have_happened"] is False
    told = ok(agent.put_intent("op-1", workspace.intent(business_reference="order-991")), 201)
    assert (told["lookup"], told["operator_only"]) == ("by_reference", False)


def test_an_effect_nobody_can_look_up_is_said_to_be_for_people(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(contract=OPAQUE)

    body = ok(agent.put_intent("op-1", workspace.intent()), 201)

    assert (body["lookup"], body["operator_only"]) == ("none", True)


def test_arguments_are_held_to_the_capabilitys_schema(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(
        arguments_schema={
            "type": "object",
            "required": ["order_id"],
            "properties": {"order_id": {"type": "string", "maxLength": 8}, "a/b": {"type": "integer"}},
        }
    )
    for arguments, path in [
        ({}, "/arguments"),
        ({"order_id": "secret-number"}, "/arguments/order_id"),
        ({"order_id": "8841", "a/b": "x"}, "/arguments/a~1b"),
    ]:
        body = problem(agent.put_intent("op-1", workspace.intent(arguments=arguments)), 400, "malformed")
        assert body["path"] == path
        assert "secret-number" not in json.dumps(body), "no value travels in a problem"
    ok(agent.put_intent("op-1", workspace.intent(arguments={"order_id": "8841"})), 201)


# What is recorded


def test_a_new_intent_is_recorded_and_nothing_is_dispatched(agent: Agent, workspace: Arranged) -> None:
    body = ok(
        agent.put_intent(
            "op-7f3",
            workspace.intent(
                actor={"subject": "agent:support-7", "on_behalf_of": "user:alice"},
                business_reference="order-991",
                checkpoint={"step": 3},
                purpose="the customer asked",
            ),
        ),
        201,
    )

    row = workspace.row("op-7f3")
    assert body["operation_id"] == "op-7f3"
    assert body["invocation_id"] == str(row.id)
    assert (body["task_id"], body["capability"], body["capability_version"]) == ("task-1", "refund.create", 1)
    assert body["actor"] == {"subject": "agent:support-7", "on_behalf_of": "user:alice"}
    assert body["arguments_digest"] == arguments_digest(workspace.intent()["arguments"], None)
    assert body["business_reference"] == "order-991"
    assert body["idempotency_key"].startswith("cf_")
    assert (body["state"], body["dispatched"], body["effect"], body["evidence"]) == (
        "intended",
        "no",
        "no",
        "missing",
    )
    assert (body["permission"], body["permission_reason"]) == ("not_required", None)
    assert (body["replayed"], body["attempts"], body["permit"]) == (False, [], None)
    assert (body["denial"], body["outcome"], body["reservation"]) == (None, None, "released")
    assert body["case"] == {"standing": "none", "flags": []}
    assert body["decision"] == {
        "action": "dispatch",
        "reason": "intent_recorded",
        "dispatch_allowed": False,
        "next_attempt": 1,
        "retry_at": None,
    }
    assert (body["retryable"], body["reuse_key"], body["effect_may_have_happened"]) == (True, True, False)
    assert (row.checkpoint, row.purpose) == ('{"step":3}', "the customer asked")
    (entry,) = workspace.entries("op-7f3")
    assert (entry.event, entry.from_state, entry.to_state) == ("record", None, "intended")
    assert (entry.actor_kind, entry.actor_name) == ("runtime", "support-agent")


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("dispatches", [False, True])
def test_both_ways_of_recording_write_and_answer_the_same(
    agent: Agent, workspace: Arranged, warm: bool, dispatches: bool
) -> None:
    """The first intent of a process goes the long way, the next ones are one statement in the database."""
    if warm:
        record(agent, workspace, task_id="task-warm")
    intent = workspace.intent(
        business_reference="order-991",
        amount={"value": "120.00", "currency": "EUR"},
        checkpoint=[1],
        purpose="why",
        idempotency_key="key-1",
        dispatch=dispatches,
    )
    answer = ok(agent.put_intent("op-1", intent, nonce=nonce()), 201)
    read_back = ok(agent.get("op-1"))
    row = workspace.row("op-1")

    only_now = {"decision", "permit"} if dispatches else set()
    for name in answer.keys() - only_now:
        assert answer[name] == read_back[name], name
    assert (row.arguments, row.key_given, row.checkpoint, row.purpose) == (
        '{"amount":"120.00","currency":"EUR","order_id":"8841"}',
        True,
        "[1]",
        "why",
    )
    assert (row.amount_value, row.amount_currency) == ("120.00", "EUR")
    assert row.version == (2 if dispatches else 1)
    assert row.intent_valid_until - row.created_at == timedelta(days=1)
    entries = workspace.entries("op-1")
    assert [(e.event, e.from_state, e.to_state) for e in entries] == [
        ("record", None, "intended"),
        ("dispatch", "intended", "dispatched"),
    ][: 2 if dispatches else 1]
    recorded = json.loads(entries[0].detail)
    assert recorded == {"capability": "refund.create", "digest": row.arguments_digest}


# The same again


# C03, C41
def test_a_second_put_returns_the_same_invocation(agent: Agent, workspace: Arranged) -> None:
    first = ok(agent.put_intent("op-1", workspace.intent()), 201)

    for _ in range(3):
        again = ok(agent.put_intent("op-1", workspace.intent()), 200)
        assert again["replayed"] is True
        assert {**again, "replayed": False} == first
    assert _count(workspace) == 1


# C41
def test_a_repeat_is_no_error_in_the_log(
    agent: Agent, workspace: Arranged, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            agent.put_intent("op-1", workspace.intent())

    assert [entry for entry in caplog.records if entry.levelno >= logging.WARNING] == []


def test_what_is_not_compared_may_differ(agent: Agent, workspace: Arranged) -> None:
    ok(agent.put_intent("op-1", workspace.intent(purpose="first", checkpoint={"step": 1})), 201)

    for changed in (
        {"purpose": "second"},
        {"checkpoint": {"step": 2}},
        {"expect": "recorded"},
        {"purpose": None, "checkpoint": None},
    ):
        assert ok(agent.put_intent("op-1", workspace.intent(**changed)))["replayed"] is True
    assert workspace.row("op-1").purpose == "first", "what was recorded stays"


@pytest.mark.parametrize(
    "same",
    [
        '{"currency": "EUR", "amount": 120.0, "order_id": "8841"}',  # order of names, spelling of a number
        '{"order_id":"8841","amount":1.2e2,"currency":"\\u0045UR"}',
        '{"order_id": "8841",\n "amount": 120, "currency": "EUR"}',
    ],
)
# C87
def test_the_same_arguments_in_another_spelling_are_the_same(
    agent: Agent, workspace: Arranged, same: str
) -> None:
    arguments = {"order_id": "8841", "amount": 120, "currency": "EUR"}
    ok(agent.put_intent("op-1", workspace.intent(arguments=arguments)), 201)
    raw = json.dumps(workspace.intent(arguments="HERE")).replace('"HERE"', same).encode()

    assert ok(agent.call("PUT", "/api/v1/operations/op-1", raw=raw))["replayed"] is True


BASE: dict[str, Any] = {
    "business_reference": "order-991",
    "actor": {"subject": "agent:support-7", "on_behalf_of": "user:alice"},
    "idempotency_key": "key-1",
    "amount": {"value": "120.00", "currency": "EUR"},
}
DRIFT = [
    # C04
    ({"arguments": {"order_id": "8841", "amount": "1000.00", "currency": "EUR"}}, ["arguments"]),
    # C88: neither contains the other
    ({"arguments": {"order_id": "8841", "amount": "120.00"}}, ["arguments"]),
    ({"arguments": {"order_id": "8841", "amount": "120.00", "currency": "EUR", "note": None}}, ["arguments"]),
    ({"arguments": {"order_id": 8841, "amount": "120.00", "currency": "EUR"}}, ["arguments"]),
    ({"actor": {"subject": "agent:support-8", "on_behalf_of": "user:alice"}}, ["actor.subject"]),
    ({"actor": {"subject": "agent:support-7"}}, ["actor.on_behalf_of"]),
    ({"capability": "refund.partial"}, ["capability"]),
    ({"task_id": "task-2"}, ["task_id"]),
    ({"business_reference": "order-992"}, ["business_reference"]),
    ({"business_reference": None}, ["business_reference"]),
    ({"amount": {"value": "120.01", "currency": "EUR"}}, ["amount"]),
    ({"amount": {"value": "120.00", "currency": "USD"}}, ["amount"]),
    ({"amount": None}, ["amount"]),
    ({"supersedes": "op-other"}, ["supersedes"]),
    ({"compensates": "op-other"}, ["compensates"]),
    ({"idempotency_key": "key-2"}, ["idempotency_key"]),
    ({"task_id": "task-2", "business_reference": None}, ["business_reference", "task_id"]),
]


# C04
@pytest.mark.parametrize(("changed", "drifted"), DRIFT)
@pytest.mark.parametrize("dispatches", [False, True])
def test_the_same_name_for_another_intent_is_refused(
    agent: Agent, workspace: Arranged, changed: dict[str, Any], drifted: list[str], dispatches: bool
) -> None:
    workspace.capability("refund.partial")
    first = ok(agent.put_intent("op-1", workspace.intent(**BASE)), 201)

    other = workspace.intent(**{**BASE, **changed, "dispatch": dispatches})
    body = problem(agent.put_intent("op-1", other, nonce=nonce()), 422, "intent-mismatch")

    assert sorted(body["drifted"]) == drifted
    assert body["invocation_id"] == first["invocation_id"]
    assert body["decision"]["action"] == "dispatch", "it carries the standing decision"
    assert (body["retryable"], body["repeat_request"], body["effect_may_have_happened"]) == (
        False,
        False,
        False,
    )
    for value in ("1000.00", "support-8", "alice", "order-992", "key-2"):
        assert value not in json.dumps(body), "names, never values"
    assert ok(agent.get("op-1")) == {**first, "replayed": False}


def test_what_was_not_given_the_first_time_may_be_left_out_again(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(amount={"value": "/arguments/amount", "currency": "/arguments/currency"})
    first = ok(agent.put_intent("op-1", workspace.intent()), 201)
    assert first["amount"] == {"value": "120.00", "currency": "EUR"}, "found in the arguments"

    for same in (
        {},
        {"amount": {"value": "120.00", "currency": "EUR"}},
        {"amount": {"value": "120.0", "currency": "EUR"}},  # decimals compare by value
        {"idempotency_key": first["idempotency_key"]},
    ):
        assert ok(agent.put_intent("op-1", workspace.intent(**same)))["replayed"] is True


# C04: before and after completion
@pytest.mark.parametrize("report", [None, COMPLETED, DECLINED, UNKNOWN])
def test_a_mismatch_says_what_may_have_happened_to_the_first(
    agent: Agent, workspace: Arranged, report: dict[str, Any] | None
) -> None:
    held = dispatch(agent, workspace)
    if report is not None:
        ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    body = problem(
        agent.put_intent(held.operation_id, workspace.intent(arguments={"amount": "1000.00"})),
        422,
        "intent-mismatch",
    )

    assert body["effect_may_have_happened"] is (report is not DECLINED)
    assert body["reconciliation_required"] is (report is UNKNOWN)
    assert (
        body["decision"]["action"]
        == {None: "wait", "completed": "resume", "denied": "stop", "unknown": "reconcile"}[
            None if report is None else report["outcome"]
        ]
    )


def test_a_token_that_does_not_cover_what_is_on_record_learns_nothing_of_it(
    agent: Agent, workspace: Arranged
) -> None:
    workspace.capability("order.cancel")
    operation_id = record(agent, workspace)
    other = in_process(workspace.second_token(capabilities=["order.*"]))

    body = problem(
        other.put_intent(operation_id, workspace.intent(capability="order.cancel")), 403, "forbidden"
    )

    assert "decision" not in body


# C14
def test_each_workspace_has_names_and_keys_of_its_own(
    agent: Agent, workspace: Arranged, other_workspace: Arranged
) -> None:
    intent = workspace.intent(idempotency_key="key-1", business_reference="order-991")
    ours = ok(agent.put_intent("op-1", intent), 201)
    stranger = in_process(other_workspace.token)

    theirs = ok(stranger.put_intent("op-1", intent), 201)
    ok(stranger.put_intent("op-2", workspace.intent(arguments={"n": 1}, idempotency_key="key-2")), 201)

    assert theirs["invocation_id"] != ours["invocation_id"]
    problem(stranger.put_intent("op-3", workspace.intent(supersedes="op-1-of-ours")), 409, "not-supersedable")
    assert ok(agent.get("op-1")) == ours


# Keys


def test_a_key_names_one_operation_at_a_receiver_for_ever(agent: Agent, workspace: Arranged) -> None:
    ok(agent.put_intent("op-1", workspace.intent(idempotency_key="key-1")), 201)

    for warm_or_not in range(2):
        body = problem(
            agent.put_intent(f"op-2-{warm_or_not}", workspace.intent(idempotency_key="key-1")),
            422,
            "key-in-use",
        )
        assert (body["reuse_key"], body["effect_may_have_happened"]) == (False, False)
    assert _count(workspace) == 1
    assert "op-1" not in json.dumps(body)


def test_the_key_is_the_same_on_every_attempt(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace, idempotency_key="our-own-key")
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))

    assert ask(agent, held.operation_id, 2).permit["idempotency_key"] == "our-own-key"


# C46
def test_another_broken_rule_is_not_taken_for_a_repeat(agent: Agent, workspace: Arranged) -> None:
    record(agent, workspace)
    row = workspace.row(record(agent, workspace))

    with pytest.raises(IntegrityError), tenancy.workspace(workspace.id):
        Invocation.objects.filter(pk=row.pk).update(operation_id="op-renamed")
    with pytest.raises(IntegrityError), tenancy.workspace(workspace.id):
        Invocation.objects.filter(pk=row.pk).update(standing="perhaps")


# Intents that ask for their permit in the same round trip


@pytest.mark.parametrize("bad", [None, "short"])
def test_dispatching_needs_a_nonce_and_records_nothing_without(
    agent: Agent, workspace: Arranged, bad: str | None
) -> None:
    problem(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=bad), 400, "malformed")

    assert _count(workspace) == 0


def test_a_nonce_without_dispatch_does_nothing(agent: Agent, workspace: Arranged) -> None:
    assert (
        ok(agent.put_intent("op-1", workspace.intent(dispatch=False), nonce="short"), 201)["permit"] is None
    )


@pytest.mark.parametrize("warm", [False, True])
def test_dispatch_records_and_permits_in_one_round_trip(
    agent: Agent, workspace: Arranged, warm: bool
) -> None:
    if warm:
        record(agent, workspace)
    minted = nonce()

    body = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=minted), 201)

    assert (body["state"], body["permit"]["attempt"]) == ("dispatched", 1)
    assert body["decision"]["dispatch_allowed"] is True
    statement = read(body["permit"]["token"], current())
    assert (statement.operation_id, statement.attempt) == ("op-1", 1)
    # The same ask again, in either form, is the same permit; another nonce gets none.
    for again in (
        agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=minted),
        agent.ask("op-1", 1, nonce=minted),
    ):
        assert ok(again)["permit"]["token"] == body["permit"]["token"]
    other = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()))
    assert (other["permit"], other["decision"]["reason"]) == (None, "attempt_in_flight")
    # and a plain repeat none either
    assert ok(agent.put_intent("op-1", workspace.intent()))["permit"] is None


def test_dispatch_opens_attempt_one_of_what_was_only_intended(agent: Agent, workspace: Arranged) -> None:
    ok(agent.put_intent("op-1", workspace.intent()), 201)

    body = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()))

    assert (body["replayed"], body["permit"]["attempt"]) == (True, 1)


def test_dispatch_opens_attempt_one_only(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    held = dispatch(agent, workspace, arguments=arguments)
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))

    again = workspace.intent(arguments=arguments, dispatch=True)
    body = ok(agent.put_intent(held.operation_id, again, nonce=nonce()))

    assert (body["permit"], body["decision"]["action"], body["decision"]["next_attempt"]) == (
        None,
        "retry",
        2,
    )


# C01
def test_dispatching_what_is_unknown_gives_no_permit(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    held = lost(agent, workspace, arguments=arguments)

    again = workspace.intent(arguments=arguments, dispatch=True)
    for shown in (held.nonce, nonce()):
        body = ok(agent.put_intent(held.operation_id, again, nonce=shown))
        assert (body["permit"], body["state"], body["decision"]["action"]) == (None, "unknown", "reconcile")
        assert body["invocation_id"] == held.body["invocation_id"]


@pytest.mark.parametrize("warm", [False, True])
def test_dispatching_without_permission_is_recorded_as_refused(
    agent: Agent, workspace: Arranged, warm: bool
) -> None:
    if warm:
        record(agent, workspace)
    with tenancy.workspace(workspace.id):
        Mandate.objects.filter(workspace_id=workspace.id).update(revoked_at=datetime.now(UTC))

    body = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()), 201)

    assert (body["state"], body["permit"]) == ("denied", None)
    assert body["denial"] == {"reason": "mandate_revoked", "class": "cleared"}
    assert (body["decision"]["action"], body["decision"]["reason"]) == ("stop", "not_permitted")
    assert [entry.event for entry in workspace.entries("op-1")] == ["record", "refuse"]


def test_a_plain_intent_without_permission_is_recorded_and_lapsed(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        Mandate.objects.filter(workspace_id=workspace.id).update(subject="agent:billing-*")
    agent = in_process(workspace.token)

    body = ok(agent.put_intent("op-1", workspace.intent()), 201)

    assert (body["state"], body["permission"], body["permission_reason"]) == (
        "intended",
        "lapsed",
        "no_mandate",
    )
    assert body["decision"]["action"] == "stop"
    workspace.mandate()
    assert ok(agent.get("op-1"))["decision"]["action"] == "dispatch"


def test_dispatching_what_needs_approval_waits(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(approval={"required": True})

    body = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()), 201)

    assert (body["state"], body["permit"]) == ("intended", None)
    assert (body["decision"]["action"], body["decision"]["reason"]) == ("wait", "awaiting_approval")


@pytest.mark.parametrize("warm", [False, True])
def test_dispatching_a_twin_is_held(agent: Agent, workspace: Arranged, warm: bool) -> None:
    if warm:
        record(agent, workspace)
    arguments = own_arguments()
    first = lost(agent, workspace, arguments=arguments)

    body = ok(
        agent.put_intent("op-1", workspace.intent(arguments=arguments, dispatch=True), nonce=nonce()), 201
    )

    assert (body["state"], body["permit"]) == ("intended", None)
    assert (body["decision"]["reason"], body["possible_duplicates"]) == (
        "possible_duplicate",
        [first.operation_id],
    )


# C30
def test_equal_arguments_under_two_names_are_two_operations(agent: Agent, workspace: Arranged) -> None:
    one = ok(agent.put_intent("op-1", workspace.intent()), 201)
    two = ok(agent.put_intent("op-2", workspace.intent()), 201)

    assert one["arguments_digest"] == two["arguments_digest"]
    assert one["invocation_id"] != two["invocation_id"]
    assert two["possible_duplicates"] == [], "nothing of the first was dispatched"


# Intents that expect to be on record


# C15, C43: fail closed, and say so for the operators
def test_what_was_expected_on_record_and_is_not_is_a_fact(agent: Agent, workspace: Arranged) -> None:
    for _ in range(2):
        body = problem(
            agent.put_intent("op-1", workspace.intent(expect="recorded", dispatch=True), nonce=nonce()),
            404,
            "no-ledger-entry",
        )
        assert body["effect_may_have_happened"] is True
        assert body["repeat_request"] is False

    assert _count(workspace) == 0
    (fact,) = workspace.parked("op-1")
    assert fact.kind == "no_entry"
    assert json.loads(bytes(fact.raw)) == {"task_id": "task-1", "capability": "refund.create"}
    assert fact.recorded_by == "support-agent"


def test_reading_what_is_not_on_record_writes_nothing(agent: Agent, workspace: Arranged) -> None:
    problem(agent.get("op-1"), 404, "no-ledger-entry")

    assert workspace.parked("op-1") == []


def test_what_was_expected_and_is_on_record_is_resumed(agent: Agent, workspace: Arranged) -> None:
    ok(agent.put_intent("op-1", workspace.intent()), 201)

    body = ok(agent.put_intent("op-1", workspace.intent(expect="recorded", dispatch=True), nonce=nonce()))

    assert (body["replayed"], body["permit"]["attempt"]) == (True, 1)
    assert workspace.parked("op-1") == []
    other = workspace.intent(expect="recorded", task_id="task-2")
    problem(agent.put_intent("op-1", other), 422, "intent-mismatch")


# intent_valid_s


def test_an_old_intent_is_withdrawn_when_read_and_when_dispatched(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(intent_valid_s=60)
    ok(agent.put_intent("op-1", workspace.intent()), 201)
    workspace.change("op-1", intent_valid_until=datetime.now(UTC) - timedelta(seconds=1))

    body = ok(agent.get("op-1"))
    assert (body["state"], body["decision"]["reason"]) == ("withdrawn", "withdrawn")
    assert workspace.row("op-1").state == "intended", "reading writes nothing"
    body = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()))
    assert (body["state"], body["permit"]) == ("withdrawn", None)
    assert workspace.row("op-1").state == "withdrawn"


# supersedes, compensates


@pytest.mark.parametrize("before", ["intended", "denied", "withdrawn", "refused"])
def test_a_superseded_operation_is_withdrawn_with_the_new_one(
    agent: Agent, workspace: Arranged, before: str
) -> None:
    old = _in_state(agent, workspace, before)

    body = ok(agent.put_intent("op-new", workspace.intent(supersedes=old)), 201)

    assert body["supersedes"] == old
    replaced = ok(agent.get(old))
    assert (replaced["state"], replaced["superseded_by"]) == ("withdrawn", "op-new")
    problem(agent.ask(old, 1, nonce=nonce()), 409, "withdrawn")
    # once
    refused = problem(agent.put_intent("op-newer", workspace.intent(supersedes=old)), 409, "not-supersedable")
    assert refused["effect_may_have_happened"] is False
    problem(agent.get("op-newer"), 404, "no-ledger-entry")
    # and repeated it is the same
    assert ok(agent.put_intent("op-new", workspace.intent(supersedes=old)))["replayed"] is True


def _in_state(agent: Agent, workspace: Arranged, state: str) -> str:
    if state in ("intended", "withdrawn", "refused"):
        operation_id = record(agent, workspace)
        if state == "withdrawn":
            ok(agent.withdraw(operation_id))
        if state == "refused":
            with tenancy.workspace(workspace.id):
                Mandate.objects.filter(workspace_id=workspace.id).update(revoked_at=datetime.now(UTC))
            problem(agent.ask(operation_id, 1, nonce=nonce()), 403, "not-permitted")
            workspace.mandate()
        return operation_id
    held = dispatch(agent, workspace)
    report = {"denied": DECLINED, "completed": COMPLETED, "unknown": UNKNOWN}.get(state)
    if report is not None:
        ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))
    if state == "past its lease":
        workspace.end_lease(held.operation_id)
    return held.operation_id


@pytest.mark.parametrize("before", ["dispatched", "unknown", "completed", "past its lease"])
def test_what_may_have_an_effect_cannot_be_superseded(agent: Agent, workspace: Arranged, before: str) -> None:
    old = _in_state(agent, workspace, before)

    for dispatches in (False, True):
        new = workspace.intent(supersedes=old, dispatch=dispatches)
        problem(agent.put_intent("op-new", new, nonce=nonce()), 409, "not-supersedable")

    problem(agent.get("op-new"), 404, "no-ledger-entry")
    assert ok(agent.get(old))["superseded_by"] is None


@pytest.mark.parametrize(
    "other",
    [
        {"task_id": "task-2"},
        {"capability": "refund.partial"},
        {"supersedes": "op-new"},
        {"supersedes": "op-none"},
    ],
)
def test_only_the_same_task_and_capability_can_be_superseded(
    agent: Agent, workspace: Arranged, other: dict[str, Any]
) -> None:
    workspace.capability("refund.partial")
    old = record(agent, workspace)

    problem(
        agent.put_intent("op-new", workspace.intent(**{"supersedes": old, **other})), 409, "not-supersedable"
    )

    assert ok(agent.get(old))["state"] == "intended"


def test_two_that_supersede_the_same_at_once_are_one(live: str, workspace: Arranged) -> None:
    agents = [over_http(live, workspace.token) for _ in range(6)]
    old = record(agents[0], workspace)
    together = threading.Barrier(len(agents))
    numbers = itertools.count()

    def supersede(agent: Agent) -> Any:
        name = f"op-new-{next(numbers)}"
        together.wait()
        return agent.put_intent(name, workspace.intent(arguments=own_arguments(), supersedes=old))

    with ThreadPoolExecutor(len(agents)) as pool:
        answers = list(pool.map(supersede, agents))

    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 5


def test_a_compensation_is_an_operation_of_its_own(agent: Agent, workspace: Arranged) -> None:
    old = _in_state(agent, workspace, "completed")

    body = ok(agent.put_intent("op-undo", workspace.intent(compensates=old)), 201)

    assert body["compensates"] == old
    assert ok(agent.get(old))["state"] == "completed"
    refused = problem(
        agent.put_intent("op-undo-2", workspace.intent(compensates=old)), 409, "already-compensated"
    )
    assert refused["effect_may_have_happened"] is False
    assert ok(agent.put_intent("op-undo", workspace.intent(compensates=old)))["replayed"] is True
    # One that was given up leaves room for another.
    ok(agent.withdraw("op-undo"))
    ok(agent.put_intent("op-undo-3", workspace.intent(compensates=old)), 201)


def test_an_operation_cannot_compensate_itself_or_another_workspaces(
    agent: Agent, workspace: Arranged, other_workspace: Arranged
) -> None:
    theirs = record(in_process(other_workspace.token), other_workspace)

    for name in ("op-1", theirs):
        problem(agent.put_intent("op-1", workspace.intent(compensates=name)), 400, "malformed")


# Amounts


def test_the_amount_beside_the_arguments_must_agree_with_them(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(amount={"value": "/arguments/amount", "currency": "/arguments/currency"})

    for wrong in ({"value": "12.00", "currency": "EUR"}, {"value": "120.00", "currency": "USD"}):
        body = problem(agent.put_intent("op-1", workspace.intent(amount=wrong)), 400, "malformed")
        assert body["path"] == "/amount"
    right = ok(agent.put_intent("op-1", workspace.intent(amount={"value": "120.0", "currency": "EUR"})), 201)
    assert right["amount"] == {"value": "120.0", "currency": "EUR"}


@pytest.mark.parametrize(
    ("arguments", "amount"),
    [
        ({"amount": 120, "currency": "EUR"}, {"value": "120", "currency": "EUR"}),
        ({"amount": 120.5, "currency": "EUR"}, {"value": "120.5", "currency": "EUR"}),
        ({"amount": 1e21, "currency": "EUR"}, None),
        ({"amount": 1e-7, "currency": "EUR"}, {"value": "0.0000001", "currency": "EUR"}),
        ({"amount": True, "currency": "EUR"}, None),
        ({"amount": "a lot", "currency": "EUR"}, None),
        ({"amount": "120.00"}, None),
        ({"amount": ["120.00"], "currency": "EUR"}, None),
    ],
)
def test_the_amount_is_found_in_the_arguments(
    agent: Agent, workspace: Arranged, arguments: dict[str, Any], amount: dict[str, str] | None
) -> None:
    workspace.capability(amount={"value": "/arguments/amount", "currency": "/arguments/currency"})
    answer = agent.put_intent("op-1", workspace.intent(arguments=arguments))
    if arguments.get("amount") == 1e21:
        problem(answer, 400, "malformed")  # an integral value beyond what a double keeps apart
    else:
        assert ok(answer, 201)["amount"] == amount


# Sensitive values

CARD = "4111111111111111"


def _rows_as_text(workspace: Arranged) -> str:
    """Everything the tables of the record hold of a workspace, as text."""
    tables = ("invocation", "entry", "evidence", "parkedevidence", "attempt", "reservation", "task")
    with tenancy.workspace(workspace.id), connection.cursor() as cursor:
        found = []
        for table in tables:
            cursor.execute(
                f"SELECT to_jsonb(t)::text FROM ledger_{table} t WHERE workspace_id = %s", [workspace.id]
            )
            found += [row[0] for row in cursor.fetchall()]
        cursor.execute(
            "SELECT coalesce(encode(sealed, 'escape'), '') || coalesce(encode(salt, 'escape'), '')"
            " FROM ledger_invocation WHERE workspace_id = %s",
            [workspace.id],
        )
        found += [row[0] for row in cursor.fetchall()]
    return "\n".join(found)


@pytest.mark.parametrize(
    "columns",
    [
        {"sensitive": ["/card/number", "/missing/one"]},
        {"sensitive": ["/card"]},
        {"sensitive": ["/card", "/card/number"]},
        {"sensitive": ["/card/number", "/card"]},
        {"sensitive": ["/cards/0"]},
        {"sensitive": [""]},
        {"audit_sensitive": True},
    ],
)
def test_sensitive_values_are_encrypted_at_rest(
    agent: Agent, workspace: Arranged, columns: dict[str, Any]
) -> None:
    workspace.capability(**columns)
    arguments = {"order_id": "8841", "card": {"number": CARD, "name": "Alice"}, "cards": [CARD, "other"]}
    if columns.get("sensitive") != ["/cards/0"]:
        arguments["cards"] = []
    else:
        arguments["card"] = None
    intent = workspace.intent(arguments=arguments)

    first = ok(agent.put_intent("op-1", {**intent, "dispatch": True}, nonce=nonce()), 201)

    kept = _rows_as_text(workspace)
    assert CARD not in kept
    assert CARD not in json.dumps(first)
    assert arguments_of(workspace.row("op-1")) == arguments, "whoever may see them can"
    # The digest is salted, and the permit's holder can compute it.
    assert first["arguments_digest"] != arguments_digest(arguments, None)
    statement = read(first["permit"]["token"], current())
    assert statement.salt is not None
    assert arguments_digest(arguments, statement.salt) == first["arguments_digest"]
    # A repeat is still recognised, and a change still refused.
    assert ok(agent.put_intent("op-1", intent))["arguments_digest"] == first["arguments_digest"]
    changed = json.loads(json.dumps(intent).replace(CARD, "4000000000000002"))
    refused = problem(agent.put_intent("op-1", changed), 422, "intent-mismatch")
    assert refused["drifted"] == ["arguments"]


def test_two_salted_digests_of_the_same_arguments_differ_and_twins_are_still_found(
    agent: Agent, workspace: Arranged
) -> None:
    workspace.capability(sensitive=["/card"])
    arguments = {"card": CARD}
    first = lost(agent, workspace, arguments=arguments)
    second = record(agent, workspace, arguments=arguments)

    assert first.permit["arguments_digest"] != ok(agent.get(second))["arguments_digest"]
    body = problem(agent.ask(second, 1, nonce=nonce()), 409, "possible-duplicate")
    assert body["possible_duplicates"] == [first.operation_id]


def test_a_permit_of_what_is_not_sensitive_carries_no_salt(agent: Agent, workspace: Arranged) -> None:
    payload = dispatch(agent, workspace).token.split(".")[1]

    assert "salt" not in json.loads(base64.urlsafe_b64decode(payload + "=="))


# Capability versions


def test_an_invocation_keeps_the_version_it_was_recorded_under(agent: Agent, workspace: Arranged) -> None:
    old = record(agent, workspace)
    workspace.capability(lease_s=10)

    new = dispatch(agent, workspace)
    late = ask(agent, old, 1)

    assert (new.body["capability_version"], late.body["capability_version"]) == (2, 1)
    assert new.permit["lease_s"] <= 10 < late.permit["lease_s"]


def test_a_process_that_knew_an_older_version_records_under_the_new(
    agent: Agent, workspace: Arranged
) -> None:
    record(agent, workspace)
    workspace.capability(contract=OPAQUE)

    assert ok(agent.get(record(agent, workspace)))["capability_version"] == 2
    with tenancy.workspace(workspace.id):
        Capability.objects.filter(workspace_id=workspace.id).update(enabled=False)
    body = ok(agent.put_intent("op-1", workspace.intent(dispatch=True), nonce=nonce()), 201)
    assert (body["permit"], body["permission_reason"]) == (None, "capability_disabled")


# C03, F34, F35
@pytest.mark.parametrize("same", [True, False])
def test_of_many_at_once_one_records(live: str, workspace: Arranged, same: bool) -> None:
    many = 16
    agents = [over_http(live, workspace.token) for _ in range(many)]
    together = threading.Barrier(many)
    numbers = itertools.count()

    def put(agent: Agent) -> Any:
        arguments = {"amount": "10" if same else str(next(numbers))}
        together.wait()
        return agent.put_intent("op-1", workspace.intent(arguments=arguments, dispatch=True), nonce=nonce())

    with ThreadPoolExecutor(many) as pool:
        answers = list(pool.map(put, agents))

    assert sorted(answer.status_code for answer in answers) == [
        *([200] * (many - 1) if same else []),
        201,
        *([] if same else [422] * (many - 1)),
    ]
    assert sum(answer.json().get("permit") is not None for answer in answers) == 1
    assert _count(workspace) == 1
    assert len({answer.json()["invocation_id"] for answer in answers}) == 1

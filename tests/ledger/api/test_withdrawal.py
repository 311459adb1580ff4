"""PUT …/withdrawal: giving up what was never dispatched, or was denied."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger import services
from ledger.services.writing import SYSTEM
from ledger.states import Standing
from tests.arrange import COMPLETED, DECLINED, NOT_SENT, UNKNOWN, Agent, Arranged, in_process, nonce
from tests.ledger.api.steps import dispatch, lost, ok, problem, record


def test_what_is_not_on_record_cannot_be_withdrawn(agent: Agent) -> None:
    problem(agent.withdraw("op-nobody-knows"), 404, "no-ledger-entry")


def test_what_is_in_flight_is_reported_first(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    body = problem(agent.withdraw(held.operation_id), 409, "attempt-in-flight")

    assert "not_sent" in body["detail"]
    assert body["effect_may_have_happened"] is True
    assert ok(agent.get(held.operation_id))["state"] == "dispatched"
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    assert ok(agent.withdraw(held.operation_id))["state"] == "withdrawn"


@pytest.mark.parametrize("how", ["reported unknown", "past its lease"])
def test_what_is_unknown_is_reconciled_first(agent: Agent, workspace: Arranged, how: str) -> None:
    held = lost(agent, workspace) if how == "past its lease" else dispatch(agent, workspace)
    if how == "reported unknown":
        ok(agent.report(held.operation_id, 1, UNKNOWN, nonce=held.nonce))

    body = problem(agent.withdraw(held.operation_id), 409, "reconciliation-required")

    assert body["reconciliation_required"] is True
    assert ok(agent.get(held.operation_id))["state"] == "unknown"


def test_what_is_completed_is_not_withdrawn(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    body = problem(agent.withdraw(held.operation_id), 409, "settled")

    assert body["outcome"]["receiver_reference"] == "re_1"


@pytest.mark.parametrize(
    ("standing", "code"), [(Standing.DISCREPANCY, "discrepancy"), (Standing.ABANDONED, "abandoned")]
)
def test_what_people_must_settle_is_not_withdrawn(
    agent: Agent, workspace: Arranged, standing: Standing, code: str
) -> None:
    held = lost(agent, workspace)
    services.set_standing(workspace.id, held.operation_id, SYSTEM, standing)

    problem(agent.withdraw(held.operation_id), 409, code)


@pytest.mark.parametrize("before", ["intended", "declined", "not sent"])
def test_what_has_no_effect_is_withdrawn_and_stays_so(agent: Agent, workspace: Arranged, before: str) -> None:
    if before == "intended":
        operation_id = record(agent, workspace)
    else:
        held = dispatch(agent, workspace)
        operation_id = held.operation_id
        ok(agent.report(operation_id, 1, DECLINED if before == "declined" else NOT_SENT, nonce=held.nonce))

    first = ok(agent.withdraw(operation_id))
    assert (first["state"], first["replayed"]) == ("withdrawn", False)
    assert (first["decision"]["action"], first["decision"]["reason"]) == ("stop", "withdrawn")
    again = ok(agent.withdraw(operation_id))
    assert again == {**first, "replayed": True}
    entry = workspace.entries(operation_id)[-1]
    assert (entry.event, entry.to_state, entry.actor_name) == ("withdraw", "withdrawn", "support-agent")
    problem(agent.ask(operation_id, 1, nonce=nonce()), 409, "withdrawn")


def test_an_intent_that_aged_is_withdrawn_by_the_system(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    workspace.change(operation_id, intent_valid_until=datetime.now(UTC) - timedelta(seconds=1))

    ok(agent.withdraw(operation_id))

    assert workspace.entries(operation_id)[-1].actor_kind == "system"


@pytest.mark.parametrize(
    "narrow",
    [{"scopes": ["read", "permit"]}, {"capabilities": ["order.*"]}, {"subjects": ["agent:billing-*"]}],
)
def test_only_a_token_that_covers_it_withdraws(
    agent: Agent, workspace: Arranged, narrow: dict[str, list[str]]
) -> None:
    operation_id = record(agent, workspace)

    problem(in_process(workspace.second_token(**narrow)).withdraw(operation_id), 403, "forbidden")

    assert ok(agent.get(operation_id))["state"] == "intended"


@pytest.mark.parametrize("body", [{"reason": "changed my mind"}, [], "x", 7])
def test_a_withdrawal_and_an_ask_have_no_fields(agent: Agent, workspace: Arranged, body: Any) -> None:
    operation_id = record(agent, workspace)

    for path in ("withdrawal", "attempts/1"):
        refused = problem(
            agent.call("PUT", f"/api/v1/operations/{operation_id}/{path}", body, permit_nonce=nonce()),
            400,
            "malformed",
        )
        if isinstance(body, dict):
            assert refused["unknown_fields"] == ["reason"]
    assert ok(agent.get(operation_id))["state"] == "intended"
    ok(agent.call("PUT", f"/api/v1/operations/{operation_id}/withdrawal", {}))

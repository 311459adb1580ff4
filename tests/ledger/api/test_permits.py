"""PUT …/attempts/{n}: permission to dispatch one attempt, judged anew at every ask."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

import ledger
from ledger import services, tenancy
from ledger.keys import current
from ledger.models import Capability, Grant, Mandate, Membership, Pause
from ledger.permits import read
from ledger.services.writing import SYSTEM, locked
from ledger.states import Standing
from tests.arrange import (
    COMPLETED,
    DECLINED,
    NOT_SENT,
    OPAQUE,
    REPLAYS,
    UNKNOWN,
    Agent,
    Arranged,
    in_process,
    nonce,
    over_http,
)
from tests.ledger.api.steps import ask, dispatch, lost, ok, own_arguments, problem, record

PAST = timedelta(seconds=-1)


def now() -> datetime:
    return datetime.now(UTC)


# What is refused before anything is looked at


@pytest.mark.parametrize(
    "bad",
    [
        None,  # the header is missing
        "",
        "short",  # could be guessed
        "x" * 201,
        "with spaces in between",
        "nön-äscii-nönce-nönce",
    ],
)
def test_an_ask_without_a_nonce_that_could_be_kept_secret_is_refused(
    agent: Agent, workspace: Arranged, bad: str | None
) -> None:
    operation_id = record(agent, workspace)

    body = problem(agent.ask(operation_id, 1, nonce=bad), 400, "malformed")

    assert "Permit-Nonce" in body["detail"]
    assert workspace.row(operation_id).state == "intended"


@pytest.mark.parametrize(
    "number", ["0", "01", "10000", "-1", "+1", "1.0", "x", "%D9%A1", "1%20", "%00", "1e1"]
)
def test_an_attempt_number_is_decimal_without_leading_zero(
    agent: Agent, workspace: Arranged, number: str
) -> None:
    operation_id = record(agent, workspace)

    problem(agent.ask(operation_id, number, nonce=nonce()), 400, "malformed")


def test_an_attempt_of_nothing_on_record_fails_closed(agent: Agent) -> None:
    body = problem(agent.ask("op-nobody-knows", 1, nonce=nonce()), 404, "no-ledger-entry")

    assert body["effect_may_have_happened"] is True
    assert body["operation_id"] == "op-nobody-knows"
    assert body["decision"] == {
        "action": "stop",
        "reason": "no_ledger_entry",
        "dispatch_allowed": False,
        "next_attempt": None,
        "retry_at": None,
    }


# C14
def test_another_workspaces_operation_answers_as_if_it_did_not_exist(
    agent: Agent, workspace: Arranged, other_workspace: Arranged
) -> None:
    operation_id = record(agent, workspace)
    stranger = in_process(other_workspace.token)

    theirs = problem(stranger.ask(operation_id, 1, nonce=nonce()), 404, "no-ledger-entry")
    nobodys = problem(stranger.ask("op-none", 1, nonce=nonce()), 404, "no-ledger-entry")

    theirs.pop("operation_id"), nobodys.pop("operation_id")
    theirs.pop("status_url"), nobodys.pop("status_url")
    assert theirs == nobodys
    assert workspace.row(operation_id).state == "intended"


@pytest.mark.parametrize(
    "narrow",
    [
        {"scopes": ["intent", "outcome", "read"]},  # may not ask
        {"capabilities": ["order.*"]},  # another capability
        {"subjects": ["agent:billing-*"]},  # another actor
    ],
)
def test_a_token_that_does_not_cover_the_operation_is_given_no_permit(
    agent: Agent, workspace: Arranged, narrow: dict[str, list[str]]
) -> None:
    operation_id = record(agent, workspace)
    other = in_process(workspace.second_token(**narrow))

    problem(other.ask(operation_id, 1, nonce=nonce()), 403, "forbidden")

    assert workspace.row(operation_id).state == "intended"


# The permit


def test_the_first_ask_is_answered_with_a_permit(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)

    body = ok(agent.ask(operation_id, 1, nonce=nonce()), 201)

    permit = body["permit"]
    assert (body["state"], body["reservation"], body["dispatched"]) == ("dispatched", "held", "unknown")
    assert body["decision"] == {
        "action": "dispatch",
        "reason": "intent_recorded",
        "dispatch_allowed": True,
        "next_attempt": None,
        "retry_at": None,
    }
    assert permit["attempt"] == 1
    assert permit["idempotency_key"] == body["idempotency_key"]
    assert permit["arguments_digest"] == body["arguments_digest"]
    assert 59 < permit["lease_s"] <= 60
    assert permit["lease_until"] == body["attempts"][0]["lease_until"]
    assert permit["lease_until"].endswith("Z")


def test_the_permit_says_what_is_permitted_and_verifies_with_the_published_keys(
    agent: Agent, workspace: Arranged
) -> None:
    held = dispatch(agent, workspace)

    statement = read(held.token, current())

    row = workspace.row(held.operation_id)
    assert statement.workspace == workspace.name
    assert statement.operation_id == held.operation_id
    assert statement.invocation_id == str(row.id)
    assert statement.attempt == 1
    assert statement.idempotency_key == row.idempotency_key
    assert statement.arguments_digest == row.arguments_digest
    assert statement.salt is None
    assert (statement.capability, statement.receiver) == ("refund.create", "acme-pay")
    published = agent.call("GET", "/.well-known/counterfoil-keys.json").json()["keys"]
    assert [key["kty"] for key in published] == ["OKP"] * len(published)


def test_dispatch_is_allowed_only_beside_a_permit(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    before = ok(agent.get(operation_id))
    held = ask(agent, operation_id, 1)
    after = ok(agent.get(operation_id))

    assert before["decision"]["action"] == "dispatch"
    assert before["decision"]["dispatch_allowed"] is False
    assert before["decision"]["next_attempt"] == 1
    assert held.body["decision"]["dispatch_allowed"] is True
    assert after["decision"]["dispatch_allowed"] is False
    assert after["permit"] is None


def test_the_lease_ends_with_the_mandate_if_that_ends_first(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        Mandate.objects.filter(workspace_id=workspace.id).update(revoked_at=now())
    ends = workspace.mandate(valid_until=now() + timedelta(seconds=20)).valid_until
    agent = in_process(workspace.token)

    permit = dispatch(agent, workspace).permit

    assert datetime.fromisoformat(permit["lease_until"]) == ends
    assert permit["lease_s"] <= 20


# F3: the permit was committed, and its reply was lost
def test_the_same_nonce_gets_the_same_permit_again(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.ask(held.operation_id, 1, nonce=held.nonce), 200)

    assert body["replayed"] is True
    assert body["permit"]["token"] == held.token
    assert body["permit"]["lease_until"] == held.permit["lease_until"]
    assert body["permit"]["lease_s"] <= held.permit["lease_s"]
    assert body["decision"]["dispatch_allowed"] is True
    assert body["version"] == held.body["version"], "nothing was written"
    assert len(body["attempts"]) == 1


# C40
def test_another_nonce_is_told_to_wait_for_the_attempt_in_flight(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    answer = agent.ask(held.operation_id, 1, nonce=nonce())

    body = problem(answer, 409, "attempt-in-flight")
    assert 1 <= int(answer.headers["Retry-After"]) <= 61
    assert body["repeat_request"] is True
    assert body["retryable"] is False
    assert body["reuse_key"] is True
    assert body["effect_may_have_happened"] is True
    assert body["decision"]["action"] == "wait"
    assert body["status_url"] == f"/api/v1/operations/{held.operation_id}"
    assert body["invocation_id"] == held.body["invocation_id"]
    assert "permit" not in body


# C13: the number is the fence, and each attempt has a nonce of its own.
def test_a_nonce_is_good_for_its_own_attempt_only(agent: Agent, workspace: Arranged) -> None:
    first = dispatch(agent, workspace)
    ok(agent.report(first.operation_id, 1, NOT_SENT, nonce=first.nonce))
    second = ask(agent, first.operation_id, 2)

    # (number, nonce): none of them is the ask that got attempt 2
    for number, shown in [(1, first.nonce), (2, first.nonce), (1, second.nonce), (3, second.nonce)]:
        problem(agent.ask(first.operation_id, number, nonce=shown), 409, "attempt-in-flight")

    assert ok(agent.ask(first.operation_id, 2, nonce=second.nonce))["permit"]["token"] == second.token


# C08, C01
def test_a_lease_that_ended_makes_it_unknown_before_anybody_swept(agent: Agent, workspace: Arranged) -> None:
    held = lost(agent, workspace)

    read_again = ok(agent.get(held.operation_id))
    assert (read_again["state"], read_again["effect"], read_again["reservation"]) == (
        "unknown",
        "unknown",
        "held",
    )
    assert read_again["attempts"][0]["state"] == "lost"
    assert workspace.row(held.operation_id).state == "dispatched", "reading writes nothing"
    # However often, whoever, whichever attempt, with the nonce of the first ask or another
    for number in (1, 2, 1):
        for shown in (held.nonce, nonce()):
            body = problem(agent.ask(held.operation_id, number, nonce=shown), 409, "reconciliation-required")
            assert body["reconciliation_required"] is True
            assert body["effect_may_have_happened"] is True
            assert (body["retryable"], body["repeat_request"], body["reuse_key"]) == (False, False, True)
            assert body["decision"]["action"] == "reconcile"
            assert body["state"] == "unknown"
    assert workspace.row(held.operation_id).attempt_count == 1
    events = [(entry.event, entry.actor_kind) for entry in workspace.entries(held.operation_id)]
    assert events == [("record", "runtime"), ("dispatch", "runtime"), ("lose", "system")]


# C44, C79, C43: whoever comes first writes it down, once; the row itself is the queue
def test_two_sweeps_at_once_write_one_loss(agent: Agent, workspace: Arranged) -> None:
    held = lost(agent, workspace)

    def sweep() -> None:
        services.expire_leases(limit=1000)
        connection.close()

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [entry.event for entry in workspace.entries(held.operation_id)] == ["record", "dispatch", "lose"]
    assert workspace.row(held.operation_id).state == "unknown"
    assert services.expire_leases(limit=1000) == 0


# C01
def test_what_was_reported_unknown_is_not_dispatched_again(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, UNKNOWN, nonce=held.nonce))

    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "reconciliation-required")
    problem(agent.ask(held.operation_id, 1, nonce=held.nonce), 409, "reconciliation-required")


def test_what_is_completed_is_resumed_with_its_outcome(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    for number in (1, 2):
        body = problem(agent.ask(held.operation_id, number, nonce=nonce()), 409, "settled")
        assert body["outcome"]["outcome"] == "completed"
        assert body["outcome"]["receiver_reference"] == "re_1"
        assert body["outcome"]["result"] == {"id": "re_1"}
        assert body["outcome"]["source"] == "runtime"
        assert body["decision"]["action"] == "resume"
        assert body["effect_may_have_happened"] is True
    problem(agent.ask(held.operation_id, 1, nonce=held.nonce), 409, "settled")


@pytest.mark.parametrize("number", [2, 3, 9999])
def test_another_number_than_the_next_is_stale(agent: Agent, workspace: Arranged, number: int) -> None:
    operation_id = record(agent, workspace)

    body = problem(agent.ask(operation_id, number, nonce=nonce()), 409, "stale-attempt")

    assert body["next_attempt"] == 1
    assert body["decision"]["action"] == "dispatch"
    assert workspace.row(operation_id).attempt_count == 0


# C13
def test_attempt_numbers_rise_for_the_operations_whole_life(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    keys = {held.permit["idempotency_key"]}
    for number in (2, 3, 4):
        ok(agent.report(held.operation_id, number - 1, NOT_SENT, nonce=held.nonce))
        body = problem(agent.ask(held.operation_id, number - 1, nonce=nonce()), 409, "stale-attempt")
        assert body["next_attempt"] == number
        held = ask(agent, held.operation_id, number)
        keys.add(held.permit["idempotency_key"])

    assert [attempt["number"] for attempt in held.body["attempts"]] == [1, 2, 3, 4]
    assert len(keys) == 1, "one key for the operation, on every attempt"
    assert held.body["decision"]["reason"] == "denial_cleared"


# Denials


def test_a_standing_denial_stops(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, DECLINED, nonce=held.nonce))

    answer = agent.ask(held.operation_id, 2, nonce=nonce())

    body = problem(answer, 409, "denied")
    assert body["denial"]["reason"] == "card_declined"
    assert body["denial"]["class"] == "standing"
    assert (body["repeat_request"], body["retryable"]) == (False, False)
    assert "Retry-After" not in answer.headers
    assert body["effect_may_have_happened"] is False


def test_a_denial_that_clears_is_waited_for_and_then_retried(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    limited = {"outcome": "denied", "denial": {"reason": "slow_down"}, "evidence": {"http_status": 429}}
    ok(agent.report(held.operation_id, 1, limited, nonce=held.nonce))

    answer = agent.ask(held.operation_id, 2, nonce=nonce())
    body = problem(answer, 409, "denied")
    assert 55 <= int(answer.headers["Retry-After"]) <= 61
    assert body["repeat_request"] is True
    assert body["denial"]["class"] == "clears_at"
    assert body["decision"]["reason"] == "denial_clears_at"
    assert body["decision"]["retry_at"] == body["denial"]["clears_at"]

    workspace.change(held.operation_id, denial_clears_at=now() + PAST)
    assert ask(agent, held.operation_id, 2).body["decision"]["action"] == "retry"


def test_what_was_not_sent_is_retried_under_the_same_key(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    told = ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    assert (told["decision"]["action"], told["decision"]["next_attempt"]) == ("retry", 2)
    assert (told["retryable"], told["dispatched"], told["effect"]) == (True, "no", "no")

    again = ask(agent, held.operation_id, 2)

    assert again.permit["idempotency_key"] == held.permit["idempotency_key"]
    assert again.permit["attempt"] == 2
    assert again.body["denial"] is None
    assert again.body["outcome"] is None


def test_what_was_withdrawn_is_not_dispatched(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    ok(agent.withdraw(operation_id))

    body = problem(agent.ask(operation_id, 1, nonce=nonce()), 409, "withdrawn")

    assert (body["repeat_request"], body["retryable"]) == (False, False)
    assert body["effect_may_have_happened"] is False


def test_an_intent_past_its_validity_is_withdrawn_by_the_ask(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    workspace.change(operation_id, intent_valid_until=now() + PAST)

    problem(agent.ask(operation_id, 1, nonce=nonce()), 409, "withdrawn")

    entry = workspace.entries(operation_id)[-1]
    assert (entry.event, entry.to_state, entry.actor_kind) == ("withdraw", "withdrawn", "system")


def test_a_denied_operation_does_not_age(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    workspace.change(held.operation_id, intent_valid_until=now() + PAST)

    ask(agent, held.operation_id, 2)


# What people must settle


@pytest.mark.parametrize(
    ("standing", "code", "action"),
    [
        (Standing.DISCREPANCY, "discrepancy", "wait"),
        (Standing.ABANDONED, "abandoned", "stop"),
    ],
)
def test_what_people_must_settle_is_not_dispatched(
    agent: Agent, workspace: Arranged, standing: Standing, code: str, action: str
) -> None:
    held = lost(agent, workspace)
    services.set_standing(workspace.id, held.operation_id, SYSTEM, standing)

    body = problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, code)

    assert body["decision"]["action"] == action
    assert body["repeat_request"] is (action == "wait")
    assert body["effect_may_have_happened"] is True


# Permission is judged at every ask


def _pause(workspace: Arranged, **columns: Any) -> Pause:
    with tenancy.workspace(workspace.id):
        return Pause.objects.create(
            workspace_id=workspace.id, reason="incident 7", paused_by="olive", **columns
        )


def _lift(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        Pause.objects.filter(workspace_id=workspace.id).update(lifted_at=now())


@pytest.mark.parametrize("what", ["workspace", "capability", "receiver"])
def test_a_pause_stops_permits_until_it_is_lifted(agent: Agent, workspace: Arranged, what: str) -> None:
    operation_id = record(agent, workspace)
    columns = {"workspace": {}, "capability": {"capability": "refund.create"}}.get(
        what, {"receiver_id": workspace.receiver_id}
    )
    _pause(workspace, **columns)

    answer = agent.ask(operation_id, 1, nonce=nonce())

    body = problem(answer, 409, "paused")
    assert "Retry-After" in answer.headers
    assert body["repeat_request"] is True
    assert body["decision"]["reason"] == "paused"
    _lift(workspace)
    ask(agent, operation_id, 1)


def test_a_pause_of_something_else_stops_nothing(agent: Agent, workspace: Arranged) -> None:
    _pause(workspace, capability="order.cancel")
    _pause(workspace, ends_at=now() + PAST)

    dispatch(agent, workspace)


def test_a_permit_is_not_handed_out_again_while_paused(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    _pause(workspace)

    answer = agent.ask(held.operation_id, 1, nonce=held.nonce)

    problem(answer, 409, "paused")
    assert "Retry-After" in answer.headers
    _lift(workspace)
    assert ok(agent.ask(held.operation_id, 1, nonce=held.nonce))["permit"]["token"] == held.token


# C19
def test_a_permit_is_not_handed_out_again_once_permission_lapsed(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    with tenancy.workspace(workspace.id):
        Mandate.objects.filter(workspace_id=workspace.id).update(revoked_at=now())

    body = problem(agent.ask(held.operation_id, 1, nonce=held.nonce), 403, "not-permitted")

    assert body["permission_reason"] == "mandate_revoked"
    assert body["state"] == "dispatched", "the permit that was given is still out there"
    assert body["effect_may_have_happened"] is True
    assert workspace.entries(held.operation_id)[-1].event == "permit_refused"
    # Its holder may have begun: what it reports still counts.
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))


def _lapse(workspace: Arranged, why: str) -> None:
    with tenancy.workspace(workspace.id):
        mandates = Mandate.objects.filter(workspace_id=workspace.id)
        match why:
            case "mandate_revoked":
                mandates.update(revoked_at=now())
            case "no_mandate":
                mandates.update(valid_until=now() + PAST)
            case "capability_disabled":
                Capability.objects.filter(workspace_id=workspace.id).update(enabled=False)


@pytest.mark.parametrize("why", ["mandate_revoked", "no_mandate", "capability_disabled"])
def test_an_ask_without_permission_is_refused_and_recorded(
    agent: Agent, workspace: Arranged, why: str
) -> None:
    operation_id = record(agent, workspace)
    _lapse(workspace, why)

    read_first = ok(agent.get(operation_id))
    assert (read_first["state"], read_first["permission"]) == ("intended", "lapsed"), (
        "reading refuses nothing"
    )
    for _ in range(2):
        body = problem(agent.ask(operation_id, 1, nonce=nonce()), 403, "not-permitted")
        assert body["permission_reason"] == why
        assert body["state"] == "denied"
        assert (body["retryable"], body["repeat_request"]) == (False, False)
        assert body["effect_may_have_happened"] is False

    after = ok(agent.get(operation_id))
    assert after["denial"] == {"reason": why, "class": "cleared"}
    assert (after["dispatched"], after["effect"], after["reservation"]) == ("no", "no", "released")
    assert after["decision"]["action"] == "stop"
    refusals = [entry for entry in workspace.entries(operation_id) if entry.event == "refuse"]
    assert [(entry.from_state, entry.to_state) for entry in refusals] == [("intended", "denied")]


def test_permission_given_again_makes_it_attempt_one(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    _lapse(workspace, "mandate_revoked")
    problem(agent.ask(operation_id, 1, nonce=nonce()), 403, "not-permitted")

    workspace.mandate()

    told = ok(agent.get(operation_id))
    assert (told["decision"]["action"], told["decision"]["next_attempt"]) == ("retry", 1)
    assert ask(agent, operation_id, 1).permit["attempt"] == 1


def test_a_mandate_that_ends_between_attempts_stops_the_next(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    _lapse(workspace, "no_mandate")

    body = problem(agent.ask(held.operation_id, 2, nonce=nonce()), 403, "not-permitted")

    assert body["permission_reason"] == "no_mandate"
    workspace.mandate()
    ask(agent, held.operation_id, 2)


def test_an_open_workspace_needs_no_mandate(workspace: Arranged) -> None:
    from ledger.models import Workspace

    _lapse(workspace, "mandate_revoked")
    Workspace.objects.filter(pk=workspace.id).update(mandates_open=True)

    dispatch(in_process(workspace.token), workspace)


# Approvals: the fact that a permit depends on, as the other app will write it


def _approve(workspace: Arranged, operation_id: str, *approvers: int, **columns: Any) -> None:
    row = workspace.row(operation_id)
    with tenancy.workspace(workspace.id):
        Grant.objects.update_or_create(
            invocation_id=row.id,
            defaults={
                "workspace_id": workspace.id,
                "binding": row.arguments_digest,
                "needed": 1,
                "approver_ids": list(approvers),
                **columns,
            },
        )


def test_an_operation_that_needs_approval_waits_for_it(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(approval={"required": True})
    operation_id = record(agent, workspace)

    answer = agent.ask(operation_id, 1, nonce=nonce())

    body = problem(answer, 409, "awaiting-approval")
    assert body["repeat_request"] is True
    assert body["decision"]["reason"] == "awaiting_approval"
    assert "Retry-After" in answer.headers
    assert ok(agent.get(operation_id))["permission"] == "pending"


def test_a_rule_that_cannot_be_judged_yet_requires_approval(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(
        approval={"required": False, "when": [{"param": "tier", "op": "in", "value": ["gold"]}]}
    )

    problem(agent.ask(record(agent, workspace), 1, nonce=nonce()), 409, "awaiting-approval")


# C05, C19, C21
def test_an_approval_counts_only_while_everything_it_was_given_for_holds(
    agent: Agent, workspace: Arranged
) -> None:
    workspace.capability(approval={"required": True})
    ada = workspace.person("approver")
    operation_id = record(agent, workspace)
    refused = [
        ({"binding": "jcs-sha256:" + "0" * 64}, "binding_changed"),
        ({"refused_at": now()}, "refused"),
        ({"refused_at": None, "revoked_at": now()}, "revoked"),
        ({"revoked_at": None, "until": now() + PAST}, "expired"),
    ]
    for columns, why in refused:
        _approve(workspace, operation_id, ada.pk, **columns)
        body = problem(agent.ask(operation_id, 1, nonce=nonce()), 403, "not-permitted")
        assert body["permission_reason"] == why

    _approve(workspace, operation_id, ada.pk, until=now() + timedelta(seconds=30))
    Membership.objects.filter(user=ada).delete()
    body = problem(agent.ask(operation_id, 1, nonce=nonce()), 403, "not-permitted")
    assert body["permission_reason"] == "approver_lost_role"

    Membership.objects.create(user=ada, workspace_id=workspace.id, role="approver")
    held = ask(agent, operation_id, 1)
    assert held.body["permission"] == "granted"
    assert held.permit["lease_s"] <= 30, "the lease ends with the approval"


# Possible duplicates (C30)


def test_the_twin_of_an_unsettled_operation_is_held(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    first = lost(agent, workspace, arguments=arguments)
    second = record(agent, workspace, arguments=arguments)

    answer = agent.ask(second, 1, nonce=nonce())

    body = problem(answer, 409, "possible-duplicate")
    assert body["possible_duplicates"] == [first.operation_id]
    assert body["decision"]["reason"] == "possible_duplicate"
    assert body["repeat_request"] is True
    assert "Retry-After" in answer.headers
    told = ok(agent.get(second))
    assert (told["permission"], told["permission_reason"]) == ("pending", "possible_duplicate")
    assert told["possible_duplicates"] == [first.operation_id]


def test_a_twin_is_known_by_its_business_reference_too(agent: Agent, workspace: Arranged) -> None:
    first = dispatch(agent, workspace, business_reference="order-991")
    second = record(agent, workspace, business_reference="order-991")
    third = record(agent, workspace, business_reference="order-992")

    body = problem(agent.ask(second, 1, nonce=nonce()), 409, "possible-duplicate")

    assert body["possible_duplicates"] == [first.operation_id]
    ask(agent, third, 1)


@pytest.mark.parametrize("report", [COMPLETED, DECLINED, NOT_SENT])
def test_the_hold_clears_by_itself_when_the_twin_settles(
    agent: Agent, workspace: Arranged, report: dict[str, Any]
) -> None:
    arguments = own_arguments()
    first = dispatch(agent, workspace, arguments=arguments)
    second = record(agent, workspace, arguments=arguments)
    problem(agent.ask(second, 1, nonce=nonce()), 409, "possible-duplicate")

    ok(agent.report(first.operation_id, 1, report, nonce=first.nonce))

    # Equal arguments are not one intent: settled twins hold nothing.
    assert ask(agent, second, 1).body["possible_duplicates"] == []


def test_only_a_first_permit_is_held(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    first = dispatch(agent, workspace, arguments=arguments)
    ok(agent.report(first.operation_id, 1, NOT_SENT, nonce=first.nonce))
    dispatch(agent, workspace, arguments=arguments)

    ask(agent, first.operation_id, 2)


def test_a_first_permit_after_a_refusal_is_held_like_any_other(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    refused = record(agent, workspace, arguments=arguments)
    _lapse(workspace, "mandate_revoked")
    problem(agent.ask(refused, 1, nonce=nonce()), 403, "not-permitted")
    workspace.mandate()
    twin = lost(agent, workspace, arguments=arguments)

    body = problem(agent.ask(refused, 1, nonce=nonce()), 409, "possible-duplicate")

    assert body["possible_duplicates"] == [twin.operation_id]


def test_a_capability_may_show_twins_without_holding_them(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(duplicates="flag")
    arguments = own_arguments()
    first = dispatch(agent, workspace, arguments=arguments)

    second = dispatch(agent, workspace, arguments=arguments)

    assert second.body["possible_duplicates"] == [first.operation_id]
    in_one_trip = agent.put_intent(
        workspace.operation_id(), workspace.intent(arguments=arguments, dispatch=True), nonce=nonce()
    )
    shown = ok(in_one_trip, 201)["possible_duplicates"]
    assert shown == [first.operation_id, second.operation_id]


def test_a_capability_may_not_look_for_twins(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(duplicates="off")
    arguments = own_arguments()
    dispatch(agent, workspace, arguments=arguments)

    assert dispatch(agent, workspace, arguments=arguments).body["possible_duplicates"] == []


def test_twins_of_another_capability_or_workspace_hold_nothing(
    agent: Agent, workspace: Arranged, other_workspace: Arranged
) -> None:
    arguments = own_arguments()
    workspace.capability("refund.partial")
    dispatch(agent, workspace, arguments=arguments, business_reference="order-1")

    dispatch(agent, workspace, arguments=arguments, capability="refund.partial", business_reference="order-1")
    dispatch(
        in_process(other_workspace.token), other_workspace, arguments=arguments, business_reference="order-1"
    )


@pytest.mark.parametrize("shared", ["arguments", "business_reference"])
def test_of_two_first_permits_at_once_one_is_held(live: str, workspace: Arranged, shared: str) -> None:
    agents = [over_http(live, workspace.token) for _ in range(6)]
    common = (
        {"arguments": own_arguments()} if shared == "arguments" else {"business_reference": workspace.name}
    )
    ids = [record(agent, workspace, **common) for agent in agents]
    together = threading.Barrier(len(agents))

    def first_permit(agent: Agent, operation_id: str) -> Any:
        together.wait()
        return agent.ask(operation_id, 1, nonce=nonce())

    with ThreadPoolExecutor(len(agents)) as pool:
        answers = list(pool.map(first_permit, agents, ids))

    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 5
    assert {answer.json().get("code") for answer in answers} == {None, "possible-duplicate"}


# Receivers that replay

KEYED_OPAQUE = {**OPAQUE, **{key: REPLAYS[key] for key in ("deduplicates", "key_retained_s", "replays")}}


def _replaying(workspace: Arranged, *, contract: dict[str, Any] = KEYED_OPAQUE, **columns: Any) -> None:
    workspace.capability(
        contract={**contract, "key_claimed": "before_effect"}, **{"verified": True, "lease_s": 5, **columns}
    )


def test_a_verified_replay_is_retried_under_the_same_key(agent: Agent, workspace: Arranged) -> None:
    _replaying(workspace)
    held = lost(agent, workspace)

    told = ok(agent.get(held.operation_id))
    assert (told["decision"]["action"], told["decision"]["reason"]) == ("retry", "receiver_replays")
    assert told["decision"]["next_attempt"] == 2
    again = ask(agent, held.operation_id, 2)

    assert again.body["decision"]["reason"] == "receiver_replays"
    assert again.permit["idempotency_key"] == held.permit["idempotency_key"]
    assert [attempt["state"] for attempt in again.body["attempts"]] == ["lost", "open"]
    # The earlier attempt stays lost: that this one was not sent settles nothing.
    told = ok(agent.report(held.operation_id, 2, NOT_SENT, nonce=again.nonce))
    assert told["state"] == "unknown"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"verified": False}, "nobody verified the claim"),
        ({"max_attempts": 1}, "no attempts are left"),
        ({"contract": {**KEYED_OPAQUE, "replays": "none"}}, "the receiver does not replay"),
        ({"contract": {**KEYED_OPAQUE, "deduplicates": "reference"}}, "it does not know the key"),
        ({"contract": {**KEYED_OPAQUE, "key_retained_s": None}}, "nobody said how long it keeps keys"),
        ({"contract": {**KEYED_OPAQUE, "key_retained_s": 36}}, "C29: it forgets the key too soon"),
        ({"contract": {**KEYED_OPAQUE, "lookup": "by_list"}}, "it can be asked and was not"),
    ],
)
def test_without_every_clause_of_the_promise_it_is_reconciled(
    agent: Agent, workspace: Arranged, columns: dict[str, Any], why: str
) -> None:
    _replaying(workspace, **columns)
    held = lost(agent, workspace, business_reference=workspace.name)

    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "reconciliation-required")


# C29: days later the receiver has forgotten the key
def test_after_the_key_window_a_replay_is_no_replay_any_more(agent: Agent, workspace: Arranged) -> None:
    _replaying(workspace)
    held = lost(agent, workspace)
    assert ok(agent.get(held.operation_id))["decision"]["action"] == "retry"

    workspace.change(held.operation_id, first_permit_at=now() - timedelta(days=1))

    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "reconciliation-required")


def test_a_receiver_that_was_asked_since_the_loss_may_be_retried(agent: Agent, workspace: Arranged) -> None:
    _replaying(workspace, contract={**KEYED_OPAQUE, "lookup": "by_list"})
    held = lost(agent, workspace)

    services.note_asked(workspace.id, held.operation_id, now())

    ask(agent, held.operation_id, 2)


def test_a_duplicate_found_under_the_key_ends_replays(agent: Agent, workspace: Arranged) -> None:
    _replaying(workspace)
    held = lost(agent, workspace)
    workspace.change(held.operation_id, flags=["duplicate_effect"])

    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "reconciliation-required")


# Races, over real HTTP


# C03, C41, F34, F36
def test_of_many_asks_at_once_one_gets_the_permit(live: str, workspace: Arranged) -> None:
    many = 20
    agents = [over_http(live, workspace.token) for _ in range(many)]
    operation_id = workspace.operation_id()
    body = workspace.intent()
    together = threading.Barrier(many)

    def put(agent: Agent) -> Any:
        together.wait()
        return agent.put_intent(operation_id, body)

    def take(agent: Agent) -> Any:
        together.wait()
        return agent.ask(operation_id, 1, nonce=nonce())

    with ThreadPoolExecutor(many) as pool:
        recorded = list(pool.map(put, agents))
        asked = list(pool.map(take, agents))

    assert sorted(answer.status_code for answer in recorded) == [200] * (many - 1) + [201]
    assert len({answer.json()["invocation_id"] for answer in recorded}) == 1
    assert sorted(answer.status_code for answer in asked) == [201] + [409] * (many - 1)
    refused = [answer.json()["code"] for answer in asked if answer.status_code == 409]
    assert set(refused) == {"attempt-in-flight"}


# C48
def test_one_operation_locked_holds_up_no_other_of_the_same_actor(live: str, workspace: Arranged) -> None:
    agent = over_http(live, workspace.token, timeout_s=10)
    blocked, free = record(agent, workspace), record(agent, workspace)

    with locked(workspace.id, blocked, SYSTEM):
        held = ask(agent, free, 1)
        ok(agent.report(free, 1, COMPLETED, nonce=held.nonce))
        dispatch(agent, workspace)
        ok(agent.get(blocked))


# C78
def test_nothing_that_a_permit_depends_on_is_kept_in_redis(agent: Agent, workspace: Arranged) -> None:
    import redis

    operation_id = record(agent, workspace)
    held = dispatch(agent, workspace)
    with redis.Redis.from_url(settings.REDIS_URL) as server:
        server.flushall()

    problem(agent.ask(held.operation_id, 1, nonce=nonce()), 409, "attempt-in-flight")
    ok(agent.ask(held.operation_id, 1, nonce=held.nonce))
    ask(agent, operation_id, 1)


# C49
def test_there_is_one_database_and_the_permit_reads_it(agent: Agent, workspace: Arranged) -> None:
    assert list(settings.DATABASES) == ["default"]
    assert settings.DATABASE_ROUTERS == []
    ask(agent, record(agent, workspace), 1)


# C27, F24: no process clock decides anything
def test_no_clock_but_the_databases_is_read_where_leases_are_judged() -> None:
    folder = Path(ledger.__file__).parent
    judging = [
        *sorted((folder / "services").glob("*.py")),
        *(
            folder / name
            for name in ("facts.py", "intake.py", "reports.py", "selectors.py", "permissions.py")
        ),
        *(folder / "api" / name for name in ("operations.py", "views.py", "representation.py")),
    ]
    clocks = {"now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime"}
    for path in judging:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                named = ast.unparse(node.func)
                assert not (
                    node.func.attr in clocks
                    and named.split(".")[0] in {"datetime", "time", "timezone", "date"}
                ), f"{path.name}:{node.lineno} reads a clock of its own: {named}"

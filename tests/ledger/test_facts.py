"""What follows from what is on record at one moment: no database, and no clock but the one in the facts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger.contracts import Contract
from ledger.decisions import Action, DenialClass, Permission, Reason
from ledger.facts import RECONCILE_POLL_S, Facts
from ledger.permissions import PermissionReason
from ledger.states import AttemptState, Standing, State
from tests.arrange import OPAQUE, REPLAYS

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    """A database timestamp that many seconds from now."""
    return (NOW + timedelta(seconds=seconds)).isoformat()


def attempt(number: int, state: AttemptState, *, lease_s: float = 60, **columns: Any) -> dict[str, Any]:
    return {
        "number": number,
        "state": state,
        "permitted_at": at(lease_s - 60),
        "lease_until": at(lease_s),
        "reported_at": None,
        "ended_at": None,
        "fault": None,
        "nonce_hash": "00",
        **columns,
    }


def facts(*attempts: Mapping[str, Any], contract: Mapping[str, Any] = OPAQUE, **columns: Any) -> Facts:
    """Facts of an operation that may be dispatched, but for what is said otherwise."""
    capability = {
        "id": 1,
        "name": "refund.create",
        "version": 1,
        "risk": "medium",
        "lease_s": 60,
        "max_attempts": 5,
        "duplicates": "hold",
        "contract": Contract.parse(contract).as_json(),
        "verified": False,
        "matches_evidence": False,
        "enabled": True,
        **columns.pop("capability", {}),
    }
    row = {
        "now": at(0),
        "workspace_id": 1,
        "workspace": "acme",
        "invocation_id": "0198",
        "operation_id": "op-1",
        "actor_subject": "agent:7",
        "arguments_digest": "jcs-sha256:00",
        "state": "intended",
        "standing": "none",
        "flags": [],
        "version": 1,
        "first_permit_at": attempts[0]["permitted_at"] if attempts else None,
        "asked_at": None,
        "outcome": None,
        "approvals_needed": 0,
        "denial_reason": None,
        "denial_class": None,
        "denial_clears_at": None,
        "intent_valid_until": at(3600),
        "capability": capability,
        "attempts": list(attempts),
        "mandates_open": True,
        "mandates": [],
        "paused": None,
        "grant": None,
        "twins": [],
        **columns,
    }
    return Facts.read(row)


# Time passes only through `now`


@pytest.mark.parametrize(
    ("lease_s", "state", "action"),
    [
        (0.000001, State.DISPATCHED, Action.WAIT),
        (0, State.UNKNOWN, Action.RECONCILE),  # at its very end it is over
        (-0.000001, State.UNKNOWN, Action.RECONCILE),
        (-86_400, State.UNKNOWN, Action.RECONCILE),
    ],
)
def test_dispatched_past_its_lease_is_unknown(lease_s: float, state: State, action: Action) -> None:
    found = facts(attempt(1, AttemptState.OPEN, lease_s=lease_s), state="dispatched")

    assert (found.state, found.decision.action) == (state, action)
    assert found.recorded_state is State.DISPATCHED
    assert (found.open_attempt is None) is (state is State.UNKNOWN)


@pytest.mark.parametrize(("valid_s", "state"), [(0.000001, State.INTENDED), (0, State.WITHDRAWN)])
def test_an_intent_past_its_validity_is_withdrawn(valid_s: float, state: State) -> None:
    found = facts(intent_valid_until=at(valid_s))

    assert (found.state, found.is_too_old) == (state, state is State.WITHDRAWN)


@pytest.mark.parametrize("state", [state for state in State if state is not State.INTENDED])
def test_only_an_intent_ages(state: State) -> None:
    found = facts(
        attempt(1, AttemptState.OPEN if state is State.DISPATCHED else AttemptState.DENIED),
        state=state,
        intent_valid_until=at(-1),
    )

    assert (found.state, found.is_too_old) == (state, False)


@pytest.mark.parametrize(
    ("clears_s", "denial", "reason"),
    [
        (0.000001, DenialClass.CLEARS_AT, Reason.DENIAL_CLEARS_AT),
        (0, DenialClass.CLEARED, Reason.DENIAL_CLEARED),
        (-60, DenialClass.CLEARED, Reason.DENIAL_CLEARED),
    ],
)
def test_a_denial_whose_time_has_come_is_cleared(
    clears_s: float, denial: DenialClass, reason: Reason
) -> None:
    found = facts(
        attempt(1, AttemptState.DENIED),
        state="denied",
        denial_class="clears_at",
        denial_clears_at=at(clears_s),
    )

    assert (found.denial, found.decision.reason) == (denial, reason)


def test_a_denial_whose_class_is_missing_stands() -> None:
    found = facts(attempt(1, AttemptState.DENIED), state="denied")

    assert (found.denial, found.decision.action) == (DenialClass.STANDING, Action.STOP)
    never = facts(attempt(1, AttemptState.DENIED), state="denied", denial_class="clears_at")
    assert never.denial is DenialClass.CLEARS_AT, "without a time it does not clear"


@pytest.mark.parametrize("state", [state for state in State if state is not State.DENIED])
def test_only_what_is_denied_has_a_denial(state: State) -> None:
    found = facts(
        attempt(1, AttemptState.OPEN), state=state, denial_class="standing", denial_reason="card_declined"
    )

    assert found.denial is None


# Which attempt comes next, and when to look again


def test_the_next_attempt_is_the_one_after_the_last() -> None:
    assert facts().next_attempt == 1
    assert facts(attempt(1, AttemptState.NOT_SENT), state="denied", denial_class="cleared").next_attempt == 2
    assert facts(attempt(1, AttemptState.OPEN), state="dispatched").next_attempt is None
    assert facts(attempt(1, AttemptState.LOST), state="unknown").next_attempt is None
    # A permission that was refused made no attempt.
    assert facts(state="denied", denial_class="cleared").next_attempt == 1


@pytest.mark.parametrize(
    ("found", "retry_at", "by_itself_at"),
    [
        (facts(), None, 3600),
        (facts(attempt(1, AttemptState.OPEN, lease_s=42), state="dispatched"), 42, 42),
        (facts(attempt(1, AttemptState.LOST), state="unknown"), RECONCILE_POLL_S, None),
        (
            facts(
                attempt(1, AttemptState.DENIED),
                state="denied",
                denial_class="clears_at",
                denial_clears_at=at(99),
            ),
            99,
            99,
        ),
        (facts(paused="incident"), RECONCILE_POLL_S, 3600),
        (facts(approvals_needed=1), RECONCILE_POLL_S, 3600),
        (facts(attempt(1, AttemptState.COMPLETED), state="completed"), None, None),
        (facts(attempt(1, AttemptState.DENIED), state="denied"), None, None),
        (facts(state="withdrawn"), None, None),
    ],
)
def test_when_another_decision_can_first_be_found(
    found: Facts, retry_at: float | None, by_itself_at: float | None
) -> None:
    assert found.retry_at == (None if retry_at is None else NOW + timedelta(seconds=retry_at))
    assert found.changes_by_itself_at == (
        None if by_itself_at is None else NOW + timedelta(seconds=by_itself_at)
    )


# The questions, over every combination of up to three attempts


def _combinations() -> list[tuple[AttemptState, ...]]:
    closed = [state for state in AttemptState if state is not AttemptState.OPEN]
    found: list[tuple[AttemptState, ...]] = [()]
    for length in (1, 2, 3):
        for earlier in itertools.product(closed, repeat=length - 1):
            found += [(*earlier, last) for last in AttemptState]
    return found


@pytest.mark.parametrize("states", _combinations(), ids=str)
def test_the_questions_agree_with_the_attempts(states: tuple[AttemptState, ...]) -> None:
    from ledger.states import fold

    state = fold(states)
    found = facts(
        *(attempt(number, one) for number, one in enumerate(states, 1)),
        state=state,
        outcome=state if state in (State.COMPLETED, State.DENIED) else None,
    )

    assert found.state is state
    assert found.effect == {
        State.COMPLETED: "yes",
        State.UNKNOWN: "unknown",
        State.DISPATCHED: "unknown",
    }.get(state, "no")
    assert found.reservation == ("held" if found.effect == "unknown" else "released")
    assert found.evidence == ("preserved" if state in (State.COMPLETED, State.DENIED) else "missing")
    if not states or set(states) == {AttemptState.NOT_SENT}:
        assert found.dispatched == "no"
    elif {AttemptState.COMPLETED, AttemptState.DENIED} & set(states):
        assert found.dispatched == "yes"
    else:
        assert found.dispatched == "unknown"
    # No permit while anything may have happened that nobody knows of.
    if found.effect != "no":
        assert not found.decision.allows_permit


def test_a_report_of_its_loss_says_that_it_was_dispatched() -> None:
    reported = facts(attempt(1, AttemptState.LOST, reported_at=at(-1)), state="unknown")
    silent = facts(attempt(1, AttemptState.LOST), state="unknown")

    assert (reported.dispatched, silent.dispatched) == ("yes", "unknown")


def test_what_is_unknown_without_an_attempt_may_have_been_dispatched() -> None:
    assert facts(state="unknown").dispatched == "unknown"


# Permission


def _mandate(**columns: Any) -> dict[str, Any]:
    return {
        "subject": "agent:*",
        "capability": "*",
        "valid_until": at(60),
        "revoked": False,
        "limited": False,
        **columns,
    }


@pytest.mark.parametrize(
    ("columns", "permission", "reason"),
    [
        ({}, Permission.NOT_REQUIRED, None),
        ({"mandates_open": False}, Permission.LAPSED, PermissionReason.NO_MANDATE),
        ({"mandates_open": False, "mandates": [_mandate()]}, Permission.NOT_REQUIRED, None),
        (
            {"mandates_open": False, "mandates": [_mandate(valid_until=at(0))]},
            Permission.LAPSED,
            PermissionReason.NO_MANDATE,
        ),
        (
            {"mandates_open": False, "mandates": [_mandate(revoked=True)]},
            Permission.LAPSED,
            PermissionReason.MANDATE_REVOKED,
        ),
        ({"capability": {"enabled": False}}, Permission.LAPSED, PermissionReason.CAPABILITY_DISABLED),
        ({"paused": "incident"}, Permission.PAUSED, PermissionReason.PAUSED),
        ({"approvals_needed": 1}, Permission.PENDING, PermissionReason.AWAITING_APPROVAL),
        ({"twins": ["op-0"]}, Permission.PENDING, PermissionReason.POSSIBLE_DUPLICATE),
        # shown, not held
        ({"twins": ["op-0"], "capability": {"duplicates": "flag"}}, Permission.NOT_REQUIRED, None),
        ({"twins": ["op-0"], "capability": {"duplicates": "off"}}, Permission.NOT_REQUIRED, None),
        # only a first permit is held
        ({"twins": ["op-0"], "first_permit_at": at(-99)}, Permission.NOT_REQUIRED, None),
        # lapsed > paused > pending
        (
            {"paused": "x", "capability": {"enabled": False}},
            Permission.LAPSED,
            PermissionReason.CAPABILITY_DISABLED,
        ),
        (
            {"paused": "x", "twins": ["op-0"], "approvals_needed": 1},
            Permission.PAUSED,
            PermissionReason.PAUSED,
        ),
    ],
)
def test_permission_is_judged_on_the_facts(
    columns: dict[str, Any], permission: Permission, reason: PermissionReason | None
) -> None:
    judged = facts(**columns).permission

    assert (judged.permission, judged.reason) == (permission, reason)


# Replays


def _lost(**columns: Any) -> Facts:
    capability = {"verified": True, "lease_s": 5, **columns.pop("capability", {})}
    one = attempt(1, AttemptState.LOST, lease_s=-10, ended_at=at(-10))
    return facts(one, state="unknown", capability=capability, **columns)


REPLAYING = {**REPLAYS, "lookup": "none"}


def test_every_clause_of_the_promise_is_read_from_the_facts() -> None:
    assert _lost(contract=REPLAYING).decision.reason is Reason.RECEIVER_REPLAYS
    broken: list[dict[str, Any]] = [
        {"contract": OPAQUE},
        {"contract": {**REPLAYING, "replays": "none"}},
        {"contract": {**REPLAYING, "key_retained_s": 60}},
        {"contract": {**REPLAYING, "lookup": "by_list"}},  # never asked
        {"contract": {**REPLAYING, "lookup": "by_list"}, "asked_at": at(-11)},  # before the loss
        {"contract": {**REPLAYING, "key_claimed": "after_effect", "in_flight_s": 60}},
        {"contract": REPLAYING, "capability": {"verified": False}},
        {"contract": REPLAYING, "capability": {"max_attempts": 1}},
        {"contract": REPLAYING, "flags": ["duplicate_effect"]},
        {"contract": REPLAYING, "first_permit_at": at(-86_400)},
        {"contract": REPLAYING, "first_permit_at": None},
        {"contract": REPLAYING, "standing": Standing.DISCREPANCY},
        {"contract": REPLAYING, "standing": Standing.ABANDONED},
        {"contract": REPLAYING, "paused": "incident"},
        {"contract": REPLAYING, "mandates_open": False},
    ]
    for columns in broken:
        assert not _lost(**columns).decision.allows_permit, columns
    asked = _lost(contract={**REPLAYING, "lookup": "by_list"}, asked_at=at(-10))
    assert asked.decision.reason is Reason.RECEIVER_REPLAYS
    landed = _lost(contract={**REPLAYING, "key_claimed": "after_effect", "in_flight_s": 9})
    assert landed.decision.reason is Reason.RECEIVER_REPLAYS


def test_what_is_unknown_without_a_lost_attempt_is_never_replayed() -> None:
    # Disputed or met by parked evidence: there is nothing whose repeat a receiver could recognise.
    denied = facts(
        attempt(1, AttemptState.DENIED), state="unknown", contract=REPLAYING, capability={"verified": True}
    )
    nothing = facts(state="unknown", contract=REPLAYING, capability={"verified": True})

    assert denied.decision.reason is Reason.OUTCOME_UNKNOWN
    assert nothing.decision.reason is Reason.OUTCOME_UNKNOWN


def test_the_last_of_several_attempts_must_have_landed() -> None:
    slow = {**REPLAYING, "key_claimed": "after_effect", "in_flight_s": 30}
    attempts = [
        attempt(1, AttemptState.LOST, lease_s=-300, ended_at=at(-300)),
        attempt(2, AttemptState.LOST, lease_s=-10, ended_at=at(-10)),
    ]
    found = facts(*attempts, state="unknown", contract=slow, capability={"verified": True})
    assert not found.decision.allows_permit
    # Its holder said when it had stopped: that counts, not the lease.
    attempts[1] = attempt(2, AttemptState.LOST, lease_s=30, ended_at=at(-40), reported_at=at(-40))
    found = facts(*attempts, state="unknown", contract=slow, capability={"verified": True})
    assert found.decision.allows_permit

"""The decision table against an oracle written the other way round, over the whole product of its columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from ledger.decisions import (
    MAX_ATTEMPTS,
    RULES,
    Action,
    Decision,
    DenialClass,
    Permission,
    Reason,
    ReplayFacts,
    Situation,
    decide,
    replay_guaranteed,
    stricter,
)
from ledger.permissions import PermissionReason
from ledger.states import Standing, State

STATES: list[State | None] = [None, *State]
DENIALS: list[DenialClass | None] = [None, *DenialClass]
BOTH = [True, False]
REASONS: list[str | None] = [None, *PermissionReason]

EVERY_SITUATION = [
    Situation(*columns) for columns in product(STATES, BOTH, Standing, Permission, REASONS, DENIALS, BOTH)
]


def _told(situation: Situation) -> tuple[str, str]:
    """The design's table once more, as nested questions instead of rows."""
    if situation.state is None:
        return "stop", "no_ledger_entry"
    match situation.state:
        case State.DISPATCHED if situation.lease_running:
            return "wait", "attempt_in_flight"
        case State.WITHDRAWN:
            return "stop", "withdrawn"
    if situation.standing is Standing.DISCREPANCY:
        return "wait", "discrepancy"
    if situation.state is State.COMPLETED:
        return "resume", "effect_exists"
    if situation.standing is Standing.ABANDONED:
        return "stop", "abandoned"
    may = situation.permission in (Permission.GRANTED, Permission.NOT_REQUIRED)
    if situation.state in (State.UNKNOWN, State.DISPATCHED):
        if may and situation.replay_guaranteed:
            return "retry", "receiver_replays"
        return "reconcile", "outcome_unknown"
    if situation.state is State.DENIED and situation.denial is DenialClass.STANDING:
        return "stop", "denied"
    if not may:
        return {
            Permission.LAPSED: ("stop", "not_permitted"),
            Permission.PAUSED: ("wait", "paused"),
            Permission.PENDING: (
                "wait",
                "possible_duplicate"
                if situation.permission_reason == "possible_duplicate"
                else "awaiting_approval",
            ),
        }[situation.permission]
    if situation.state is State.INTENDED:
        return "dispatch", "intent_recorded"
    return {
        DenialClass.CLEARS_AT: ("wait", "denial_clears_at"),
        DenialClass.CLEARED: ("retry", "denial_cleared"),
        None: ("stop", "no_rule"),  # denied without a class: nobody knows whether its reason stands
    }[situation.denial]


def test_every_combination_gets_the_answer_of_the_design() -> None:
    for situation in EVERY_SITUATION:
        decision = decide(situation)
        assert (decision.action, decision.reason) == _told(situation), situation


def test_every_row_of_the_table_decides_something() -> None:
    reached = Counter(decide(situation).reason for situation in EVERY_SITUATION)
    assert set(reached) == set(Reason) == {rule.reason for rule in RULES}


def test_only_dispatch_and_retry_allow_a_permit() -> None:
    for situation in EVERY_SITUATION:
        decision = decide(situation)
        assert decision.allows_permit is (decision.action in ("dispatch", "retry"))


def test_no_permit_without_permission_whatever_else_holds() -> None:
    for situation in EVERY_SITUATION:
        if situation.permission not in (Permission.GRANTED, Permission.NOT_REQUIRED):
            assert not decide(situation).allows_permit, situation


# I4: no permission while unknown, unless the receiver is proven to replay
def test_no_permit_while_unknown_unless_the_receiver_replays() -> None:
    for situation in EVERY_SITUATION:
        if situation.state in (State.UNKNOWN, State.DISPATCHED) and decide(situation).allows_permit:
            assert situation.replay_guaranteed
            assert not (situation.state is State.DISPATCHED and situation.lease_running)


def test_no_permit_once_the_effect_exists() -> None:
    for situation in EVERY_SITUATION:
        if situation.state is State.COMPLETED:
            assert not decide(situation).allows_permit


def test_no_permit_while_people_have_something_to_settle() -> None:
    for situation in EVERY_SITUATION:
        if situation.standing is not Standing.NONE:
            assert not decide(situation).allows_permit, situation


# C08
def test_dispatched_past_its_lease_is_reconciled_like_unknown() -> None:
    late = Situation(State.DISPATCHED, lease_running=False, permission=Permission.GRANTED)
    assert decide(late) == Decision(Action.RECONCILE, Reason.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("situation", EVERY_SITUATION[:: len(EVERY_SITUATION) // 50])
def test_the_lease_means_nothing_unless_dispatched(situation: Situation) -> None:
    if situation.state is not State.DISPATCHED:
        assert decide(situation) == decide(replace(situation, lease_running=not situation.lease_running))


@pytest.mark.parametrize("which", PermissionReason)
def test_which_permission_is_lacking_is_told_beside_not_permitted_only(which: PermissionReason) -> None:
    intended = Situation(State.INTENDED, permission=Permission.LAPSED, permission_reason=which)
    assert decide(intended) == Decision(Action.STOP, Reason.NOT_PERMITTED, which)
    waiting = replace(intended, permission=Permission.PAUSED)
    assert decide(waiting).detail is None


def test_a_situation_nobody_filled_in_stops() -> None:
    for state in (State.INTENDED, State.DENIED):
        assert decide(Situation(state)).action is Action.STOP


@pytest.mark.parametrize(("first", "second"), list(product(DenialClass, DenialClass)))
def test_a_runtime_may_tighten_a_denial_and_never_loosen_it(first: DenialClass, second: DenialClass) -> None:
    order = [DenialClass.CLEARED, DenialClass.CLEARS_AT, DenialClass.STANDING]
    result = stricter(first, second)
    assert result is stricter(second, first)
    assert order.index(result) == max(order.index(first), order.index(second))


NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


GUARANTEED = ReplayFacts(
    now=NOW,
    replays_same_key=True,
    verified=True,
    first_permit_at=ago(600),
    key_retained_s=86_400,
    lease_s=60,
    in_flight_s=30,
    key_claimed_before_effect=False,
    sending_ended_at=ago(31),
    can_be_asked=True,
    lost_at=ago(31),
    asked_at=ago(5),
    attempts=1,
    margin_s=30,
)


def test_a_verified_receiver_that_was_asked_within_its_window_replays() -> None:
    assert replay_guaranteed(GUARANTEED)


BREAKERS: list[dict[str, Any]] = [
    {"replays_same_key": False},  # the contract does not claim it
    {"verified": False},  # a claim nobody verified
    {"duplicate_under_key": True},  # two effects were found under one key
    {"first_permit_at": None},  # unknown from parked evidence: nobody knows when the key was first used
    {"key_retained_s": None},  # for how long is not said
    {"key_retained_s": 600},  # C29: the key is forgotten already
    {"key_retained_s": 720},  # 600 elapsed + 60 lease + 30 in flight + 30 margin: exactly at the end
    {"first_permit_at": ago(86_400 - 120)},  # the same, by age
    {"sending_ended_at": ago(30)},  # may land in this very moment
    {"sending_ended_at": ago(1)},  # certainly in flight
    {"sending_ended_at": None},  # not over at all
    {"asked_at": None},  # never asked, though it could be
    {"asked_at": ago(32)},  # asked before the loss
    {"lost_at": None},  # nobody can say whether it was asked since
    {"attempts": MAX_ATTEMPTS},
    {"attempts": MAX_ATTEMPTS + 1},
]


@pytest.mark.parametrize("change", BREAKERS, ids=str)
def test_every_clause_alone_breaks_the_guarantee(change: dict[str, Any]) -> None:
    assert not replay_guaranteed(replace(GUARANTEED, **change))


KEEPERS: list[dict[str, Any]] = [
    {"key_retained_s": 721},  # one second of room
    {"sending_ended_at": ago(1), "key_claimed_before_effect": True},  # a repeat in flight is refused
    {"sending_ended_at": None, "key_claimed_before_effect": True},
    {"can_be_asked": False, "asked_at": None, "lost_at": None},  # nothing to ask
    {"asked_at": ago(31)},  # asked in the moment of the loss
    {"attempts": MAX_ATTEMPTS - 1},
    {"attempts": 7, "max_attempts": 8},
]


@pytest.mark.parametrize("change", KEEPERS, ids=str)
def test_what_the_design_allows_keeps_the_guarantee(change: dict[str, Any]) -> None:
    assert replay_guaranteed(replace(GUARANTEED, **change))

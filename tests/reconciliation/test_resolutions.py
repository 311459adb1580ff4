"""The table of people's decisions: every kind in every situation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from ledger.states import Event, Standing, State, advance
from reconciliation.models import Resolution
from reconciliation.resolutions import (
    RULES,
    WAIT_MAX_S,
    Given,
    Kind,
    Need,
    Second,
    Situation,
    faults,
    needs_second,
    offers,
    rule_for,
    too_early,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SITUATIONS = [
    Situation(state, NOW, standing, bound, high_risk, references)
    for state, standing, bound, high_risk, references in product(
        (*State, None),
        Standing,
        (None, NOW - timedelta(seconds=1), NOW, NOW + timedelta(seconds=1)),
        (False, True),
        (frozenset[str](), frozenset({"re_1"})),
    )
]
ENOUGH = Given(
    remark="I looked at it myself.",
    evidence="The receiver's dashboard, page 3.",
    references=("re_1", "re_2"),
    wait_until=NOW + timedelta(hours=1),
    compensated_by="op-2",
)


def test_every_decision_moves_along_the_states_table() -> None:
    for situation, kind in product(SITUATIONS, Kind):
        rule = rule_for(kind, situation)
        if rule is None or situation.state is None:
            continue
        state = situation.state
        for event in rule.events:
            state = advance(state, event)
        if rule.closes:
            # A case is over only when the operation is settled, or two people gave it up.
            assert state in (State.COMPLETED, State.DENIED) or rule.standing is Standing.ABANDONED


def test_nothing_a_person_decides_opens_the_way_to_a_second_effect_but_did_not_happen() -> None:
    denying = {rule.kind for rule in RULES if Event.DENY in rule.events}
    assert denying == {Kind.DID_NOT_HAPPEN}
    assert all(rule.after_bound for rule in RULES if Event.DENY in rule.events)


def test_it_did_not_happen_is_never_taken_before_the_bound() -> None:
    for situation in SITUATIONS:
        rule = rule_for(Kind.DID_NOT_HAPPEN, situation)
        if rule is None or situation.state is None:
            continue
        early = situation.bound is None or situation.bound >= situation.now
        assert too_early(rule, situation) is early
        assert bool(faults(rule, situation, ENOUGH)) is early
        (offer,) = [offer for offer in offers(situation) if offer.kind is Kind.DID_NOT_HAPPEN]
        assert (offer.why_not is not None) is early


def test_a_discrepancy_is_cleared_only_where_there_is_one() -> None:
    for situation in SITUATIONS:
        allowed = rule_for(Kind.DIVERGED, situation) is not None
        assert allowed is (situation.state is State.COMPLETED and situation.standing is Standing.DISCREPANCY)


def test_what_was_settled_without_a_discrepancy_is_decided_by_nobody() -> None:
    for situation in SITUATIONS:
        if (
            situation.state in (State.COMPLETED, State.DENIED, State.INTENDED, State.WITHDRAWN)
            and situation.standing is not Standing.DISCREPANCY
        ):
            assert {offer.kind for offer in offers(situation)} <= {Kind.WAIT}


@pytest.mark.parametrize(
    ("kind", "high_risk", "second"),
    [
        # giving up for good: always
        (Kind.ABANDONED, False, True),
        (Kind.ABANDONED, True, True),
        # opening the way to another dispatch: where much is at stake
        (Kind.DID_NOT_HAPPEN, False, False),
        (Kind.DID_NOT_HAPPEN, True, True),
        # what only ever stops a dispatch: never
        (Kind.HAPPENED, True, False),
        (Kind.WAIT, True, False),
        (Kind.DUPLICATE, True, False),
        (Kind.COMPENSATED, True, False),
    ],
)
def test_a_second_person_confirms(kind: Kind, high_risk: bool, second: bool) -> None:
    situation = Situation(State.UNKNOWN, NOW, bound=NOW - timedelta(1), high_risk=high_risk)
    rule = rule_for(kind, situation)
    assert rule is not None
    assert needs_second(rule, situation) is second


@pytest.mark.parametrize(
    ("kind", "lacking", "field"),
    [
        (Kind.HAPPENED, replace(ENOUGH, references=()), "references"),
        (Kind.HAPPENED, replace(ENOUGH, remark="ok"), "remark"),
        # spaces are no remark
        (Kind.HAPPENED, replace(ENOUGH, remark=" " * 20), "remark"),
        (Kind.HAPPENED, replace(ENOUGH, remark="x" * 5_000), "remark"),
        (Kind.HAPPENED, replace(ENOUGH, remark="with a NUL \0 inside"), "remark"),
        # a reference is one line, as it was given
        (Kind.HAPPENED, replace(ENOUGH, references=("",)), "references"),
        (Kind.HAPPENED, replace(ENOUGH, references=(" re_1",)), "references"),
        (Kind.HAPPENED, replace(ENOUGH, references=("re_1\nre_2",)), "references"),
        (Kind.HAPPENED, replace(ENOUGH, references=("x" * 300,)), "references"),
        (Kind.DID_NOT_HAPPEN, replace(ENOUGH, evidence=""), "evidence"),
        (Kind.DID_NOT_HAPPEN, replace(ENOUGH, evidence="saw"), "evidence"),
        # never without an end
        (Kind.WAIT, replace(ENOUGH, wait_until=None), "wait_until"),
        (Kind.WAIT, replace(ENOUGH, wait_until=NOW), "wait_until"),
        (Kind.WAIT, replace(ENOUGH, wait_until=NOW + timedelta(seconds=WAIT_MAX_S + 1)), "wait_until"),
        # a duplicate has two
        (Kind.DUPLICATE, replace(ENOUGH, references=("re_1",)), "references"),
        (Kind.DUPLICATE, replace(ENOUGH, references=("re_1", "re_1")), "references"),
        (Kind.COMPENSATED, replace(ENOUGH, compensated_by=None), "compensated_by"),
    ],
)
def test_what_is_missing_is_named(kind: Kind, lacking: Given, field: str) -> None:
    situation = Situation(State.UNKNOWN, NOW, bound=NOW - timedelta(1))
    rule = rule_for(kind, situation)
    assert rule is not None
    assert faults(rule, situation, ENOUGH) == ()
    assert [fault.field for fault in faults(rule, situation, lacking)] == [field]


def test_the_reference_on_record_counts_as_one_of_two() -> None:
    situation = Situation(
        State.COMPLETED, NOW, Standing.DISCREPANCY, bound=None, references=frozenset({"re_1"})
    )
    rule = rule_for(Kind.DUPLICATE, situation)
    assert rule is not None
    assert faults(rule, situation, replace(ENOUGH, references=("re_2",))) == ()
    assert faults(rule, situation, replace(ENOUGH, references=("re_1",))) != ()


def test_the_database_knows_the_same_kinds() -> None:
    assert set(Resolution.Kind.values) == {kind.value for kind in Kind}


def test_every_row_says_what_follows_and_every_member_is_used() -> None:
    assert all(rule.consequence.endswith(".") for rule in RULES)
    assert {rule.kind for rule in RULES} == set(Kind)
    assert {need for rule in RULES for need in rule.needs} == set(Need)
    assert {rule.second for rule in RULES} == set(Second)

"""What findings prove: one claim per row of the table, its edges, and the whole product against an oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations_with_replacement, product
from typing import Any

import pytest

from ledger.contracts import Contract, Deduplicates, Lookup
from ledger.decisions import DenialClass
from ledger.states import Event, IllegalTransition, Standing, State, advance
from reconciliation.findings import Difference, Finding, FindingKind, Item, ItemStatus
from reconciliation.verdicts import (
    BACKOFF_LONGEST_S,
    BUDGET_LOOKUPS,
    BUDGET_S,
    ESCALATED_EVERY_S,
    RETRY_AFTER_LONGEST_S,
    WHEN_BUDGET_IS_USED,
    Circumstances,
    Flag,
    Outcome,
    Verdict,
    VerdictKind,
    VerdictReason,
    attempt_end,
    attributed,
    bound,
    judge,
    settlement_event,
)

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LAG_S = 5


def at(seconds: float) -> datetime:
    """So many seconds after noon. The permit was given at noon, its lease ended 60 s later, the bound is at 95 s."""
    return NOON + timedelta(seconds=seconds)


BOUND = at(95)
CONTRACT = Contract(
    Deduplicates.KEY,
    Lookup.BY_REFERENCE,
    key_retained_s=600,
    lookup_reaches_back_s=6000,
    visibility_lag_s=LAG_S,
    in_flight_s=30,
)
AMOUNT = Difference("amount", "120.00", "12.00")
EFFECT = Item(ItemStatus.COMPLETED, "re_1", "succeeded", "op-1", ours=True)
SECOND = replace(EFFECT, reference="re_2")
DIVERGED = replace(EFFECT, differences=(AMOUNT,))
REFUSED = Item(ItemStatus.DENIED, "re_3", "failed", "op-1", ours=True, denial_reason="card_declined")
PENDING = Item(ItemStatus.IN_PROGRESS, "re_4", "pending", "op-1", ours=True)
UNLISTED = Item(ItemStatus.UNLISTED, "re_5", "booked", "op-1", ours=True)
STRANGER = Item(ItemStatus.COMPLETED, "re_6", "succeeded", None, ours=False)
OTHERS = Item(ItemStatus.COMPLETED, "re_7", "succeeded", "op-2", ours=False)


def found(*items: Item, **changes: Any) -> Finding:
    return replace(Finding(FindingKind.ITEMS, items, complete=True), **changes)


def unclear(why: str = "http_503", **changes: Any) -> Finding:
    return replace(Finding(FindingKind.UNCLEAR, why=why), **changes)


def asked(seconds: float, contract: Contract = CONTRACT, **changes: Any) -> Circumstances:
    """A look-up asked and judged so many seconds after noon, of a case that was opened at 60 s."""
    return replace(
        Circumstances(
            contract=contract,
            now=at(seconds),
            asked_at=at(seconds),
            since=at(60),
            bound=BOUND,
            first_permit_at=NOON,
            known_others=frozenset({"op-2"}),
        ),
        **changes,
    )


USED: dict[str, Any] = {"since": at(-BUDGET_S), "lookups": BUDGET_LOOKUPS}
"""Both halves of the budget gone."""

ONCE: dict[str, Any] = {"sightings": (at(96),)}
"""Absence was seen a second after the bound."""


def told(verdict: Verdict) -> tuple[str, str]:
    return verdict.kind.value, verdict.reason.value


# ----- the rows -----


def test_without_a_look_up_only_an_operator_can_settle() -> None:
    contract = replace(CONTRACT, lookup=Lookup.NONE)
    for finding in (Finding(FindingKind.NO_LOOKUP), found(), found(EFFECT), unclear()):
        verdict = judge(finding, asked(200, contract))
        assert told(verdict) == ("escalate", "operator_only")
        assert verdict.next_at is None  # there is nothing to ask hourly either


def test_a_callback_settles_even_where_nothing_can_be_asked() -> None:
    contract = replace(CONTRACT, lookup=Lookup.NONE)
    assert told(judge(found(EFFECT, callback=True), asked(200, contract))) == ("settle", "effect_found")
    assert told(judge(found(PENDING, callback=True), asked(200, contract))) == ("escalate", "operator_only")


def test_a_capability_whose_look_up_is_not_configured_is_an_operators() -> None:
    assert told(judge(Finding(FindingKind.NO_LOOKUP), asked(200))) == ("escalate", "operator_only")


def test_an_effect_that_nothing_ties_to_an_operation_goes_to_a_person() -> None:
    verdict = judge(found(STRANGER), asked(200))
    assert told(verdict) == ("escalate", "unattributed_effect")
    assert verdict.outcome is None
    assert verdict.next_at == at(200 + ESCALATED_EVERY_S)


def test_more_than_one_effect_completes_and_is_flagged() -> None:
    verdict = judge(found(EFFECT, SECOND), asked(200))
    assert told(verdict) == ("settle", "duplicate_effect")
    assert (verdict.outcome, verdict.flag) == (Outcome.COMPLETED, Flag.DUPLICATE_EFFECT)
    assert verdict.references == ("re_1", "re_2")


def test_one_effect_that_differs_completes_and_is_flagged() -> None:
    verdict = judge(found(DIVERGED), asked(200))
    assert told(verdict) == ("settle", "diverged_effect")
    assert (verdict.outcome, verdict.flag) == (Outcome.COMPLETED, Flag.DIVERGED_EFFECT)
    assert verdict.differences == (AMOUNT,)


def test_one_effect_as_intended_completes() -> None:
    verdict = judge(found(EFFECT), asked(200))
    assert told(verdict) == ("settle", "effect_found")
    assert (verdict.outcome, verdict.flag, verdict.references) == (Outcome.COMPLETED, None, ("re_1",))


def test_an_effect_completes_at_any_time_and_out_of_any_answer() -> None:
    hasty = found(EFFECT, complete=False, authoritative=False, as_of=at(1))
    for around in (asked(2), asked(2, bound=None), asked(2, **USED), asked(90_000)):
        assert told(judge(hasty, around)) == ("settle", "effect_found")


def test_a_refusal_after_the_bound_denies_with_its_reason() -> None:
    verdict = judge(found(REFUSED), asked(96))
    assert told(verdict) == ("settle", "refused")
    assert verdict.outcome is Outcome.DENIED
    assert (verdict.denial_reason, verdict.denial_class) == ("card_declined", DenialClass.STANDING)


def test_absence_seen_twice_after_the_bound_denies_and_may_be_tried_again() -> None:
    verdict = judge(found(), asked(101, **ONCE))
    assert told(verdict) == ("settle", "absent")
    assert verdict.outcome is Outcome.DENIED
    assert (verdict.denial_reason, verdict.denial_class) == ("absent", DenialClass.CLEARED)


# E12
def test_absence_under_a_key_that_replays_an_error_stands() -> None:
    verdict = judge(found(stored_error=True), asked(101, **ONCE))
    assert told(verdict) == ("settle", "replays_error")
    assert (verdict.denial_reason, verdict.denial_class) == ("replays_error", DenialClass.STANDING)


# E12: the stored error alone says nothing about the effect
def test_a_replayed_error_without_a_look_up_answer_settles_nothing() -> None:
    verdict = judge(unclear("http_500", stored_error=True), asked(101, **ONCE))
    assert told(verdict) == ("ask_again", "unclear")


# C29
def test_absence_beyond_the_look_ups_memory_goes_to_a_person() -> None:
    by_key = replace(CONTRACT, lookup=Lookup.BY_KEY)
    assert told(judge(found(), asked(599, by_key, sightings=(at(500),)))) == ("settle", "absent")
    assert told(judge(found(), asked(600, by_key, sightings=(at(500),)))) == (
        "escalate",
        "absence_unprovable",
    )
    assert told(judge(found(), asked(6000, sightings=(at(500),)))) == ("escalate", "absence_unprovable")


# C11
@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (found(PENDING), "in_progress"),
        (found(UNLISTED), "unlisted_status"),
        (found(PENDING, UNLISTED), "unlisted_status"),  # the louder of the two: the contract has a gap
        (found(PENDING, REFUSED), "in_progress"),  # not only refused
        (found(REFUSED, authoritative=False), "refusal_unproven"),
        (found(REFUSED, complete=False), "refusal_unproven"),
        (found(), "absence_unproven"),
        (unclear(), "unclear"),
        (found(callback=True), "unclear"),  # a callback that names nothing is no absence
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_proves_nothing_is_asked_again_while_the_budget_lasts(finding: Finding, reason: str) -> None:
    verdict = judge(finding, asked(200))
    assert told(verdict) == ("ask_again", reason)
    assert verdict.outcome is None
    assert verdict.next_at is not None
    assert verdict.next_at > at(200)


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (found(PENDING), "still_pending"),
        (found(UNLISTED), "still_pending"),
        (found(REFUSED, authoritative=False), "refusal_unproven"),
        (found(complete=False), "absence_unprovable"),
        (unclear(), "receiver_unreachable"),  # E5
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_proves_nothing_goes_to_a_person_once_the_budget_is_used(finding: Finding, reason: str) -> None:
    verdict = judge(finding, asked(200, **USED))
    assert told(verdict) == ("escalate", reason)
    assert verdict.next_at == at(200 + ESCALATED_EVERY_S)  # the receiver is still asked


# ----- absence: every condition alone -----


# E6, S06, F29: a search index that lags, an effect that lands late
@pytest.mark.parametrize(
    "change",
    [
        {"sightings": ()},  # seen once
        {"sightings": (at(96.5),)},  # twice, but not the visibility lag apart
        {"sightings": (at(95),)},  # the first in the moment of the bound
        {"sightings": (at(60), at(90))},  # twice before the bound
        {"bound": None},  # nothing says when sending ended
        {"bound": at(101)},  # asked in the moment of the bound
        {"bound": at(150)},  # another attempt since
    ],
    ids=str,
)
def test_absence_lacking_one_condition_settles_nothing(change: dict[str, Any]) -> None:
    assert told(judge(found(), asked(101, **{**ONCE, **change}))) == ("ask_again", "absence_unproven")


# E16
@pytest.mark.parametrize(
    "finding",
    [
        found(complete=False),  # completeness that is not configured is incompleteness
        found(authoritative=False),
        found(as_of=at(94)),  # F30: a stale replica
        unclear("truncated"),
        unclear("wrong_namespace"),
    ],
)
def test_a_partial_stale_or_foreign_answer_is_no_absence(finding: Finding) -> None:
    verdict = judge(finding, asked(101, **ONCE))
    assert verdict.kind is VerdictKind.ASK_AGAIN
    assert verdict.sightings == (at(96),)


def test_an_answer_counts_by_the_receivers_time_and_never_by_a_clock_that_runs_ahead() -> None:
    assert judge(found(as_of=at(90)), asked(300)).as_of == at(90)
    ahead = judge(found(as_of=at(900)), asked(90))
    assert (ahead.as_of, ahead.sightings) == (at(90), ())


def test_two_sightings_are_a_second_apart_where_the_receiver_has_no_lag() -> None:
    contract = replace(CONTRACT, visibility_lag_s=0)
    assert judge(found(), asked(96.5, contract, **ONCE)).kind is VerdictKind.ASK_AGAIN
    assert judge(found(), asked(97, contract, **ONCE)).kind is VerdictKind.SETTLE


def test_two_sightings_with_one_and_the_same_time_of_the_receivers_are_one() -> None:
    stuck = found(as_of=at(96))
    verdict = judge(stuck, asked(96))
    for later in (200, 300, 400):
        verdict = judge(stuck, asked(later, sightings=verdict.sightings))
        assert verdict.kind is VerdictKind.ASK_AGAIN


def test_sightings_recorded_in_the_wrong_order_count_all_the_same() -> None:
    assert judge(found(), asked(96, sightings=(at(101),))).kind is VerdictKind.SETTLE


def test_anything_that_could_be_ours_ends_a_row_of_sightings() -> None:
    for item in (PENDING, REFUSED, UNLISTED, STRANGER):
        assert judge(found(item), asked(98, **ONCE)).sightings == ()
    assert judge(found(OTHERS), asked(98, **ONCE)).sightings == (at(96), at(98))
    assert judge(unclear(), asked(98, **ONCE)).sightings == (at(96),)


def test_a_new_attempt_makes_earlier_sightings_worthless() -> None:
    assert judge(unclear(), asked(200, bound=at(150), **ONCE)).sightings == ()


def test_many_looks_within_the_lag_are_kept_as_two_times() -> None:
    contract = replace(CONTRACT, visibility_lag_s=100)
    sightings: tuple[datetime, ...] = ()
    for second in range(96, 196):
        verdict = judge(found(), asked(second, contract, sightings=sightings))
        assert verdict.kind is VerdictKind.ASK_AGAIN
        sightings = verdict.sightings
    assert sightings == (at(96), at(195))
    assert judge(found(), asked(196, contract, sightings=sightings)).kind is VerdictKind.SETTLE


def test_a_key_look_up_without_a_stated_memory_never_proves_absence() -> None:
    contract = Contract(Deduplicates.NONE, Lookup.BY_KEY)
    assert judge(found(), asked(200, contract, **ONCE)).reason is VerdictReason.ABSENCE_UNPROVABLE


def test_memory_without_a_first_permit_is_no_memory() -> None:
    assert judge(found(), asked(101, first_permit_at=None, **ONCE)).reason is VerdictReason.ABSENCE_UNPROVABLE


# ----- whose items they are -----


def test_items_of_other_known_operations_are_dropped_before_judging() -> None:
    assert told(judge(found(OTHERS, EFFECT), asked(200))) == ("settle", "effect_found")
    assert told(judge(found(OTHERS), asked(101, **ONCE))) == ("settle", "absent")
    assert told(judge(found(OTHERS), asked(101, known_others=frozenset(), **ONCE))) == (
        "escalate",
        "unattributed_effect",
    )


@pytest.mark.parametrize("lookup", [Lookup.BY_REFERENCE, Lookup.BY_KEY, Lookup.BY_LIST])
def test_without_attribution_items_are_ours_by_key_only(lookup: Lookup) -> None:
    verdict = judge(
        found(replace(EFFECT, ours=None, attributed_to=None)), asked(200, replace(CONTRACT, lookup=lookup))
    )
    assert verdict.reason is (
        VerdictReason.EFFECT_FOUND if lookup is Lookup.BY_KEY else VerdictReason.UNATTRIBUTED_EFFECT
    )


def test_what_is_ours_is_never_dropped_as_anothers() -> None:
    assert judge(found(EFFECT), asked(200, known_others=frozenset({"op-1"}))).outcome is Outcome.COMPLETED


def test_a_refusal_of_ours_beside_an_effect_of_nobodys_goes_to_a_person() -> None:
    assert told(judge(found(REFUSED, STRANGER), asked(200))) == ("escalate", "unattributed_effect")
    refused_stranger = replace(STRANGER, status=ItemStatus.DENIED)
    assert told(judge(found(REFUSED, refused_stranger), asked(200))) == ("settle", "refused")


def test_an_effect_that_a_list_repeats_is_one_effect() -> None:
    assert judge(found(EFFECT, EFFECT), asked(200)).reason is VerdictReason.EFFECT_FOUND
    nameless = replace(EFFECT, reference=None)
    assert judge(found(nameless, nameless), asked(200)).reason is VerdictReason.DUPLICATE_EFFECT
    assert judge(found(EFFECT, DIVERGED), asked(200)).reason is VerdictReason.DIVERGED_EFFECT


def test_every_name_an_item_is_attributed_to_is_listed_for_the_search_of_others() -> None:
    assert attributed(found(EFFECT, OTHERS, STRANGER)) == {"op-1", "op-2"}


# ----- refusals -----


@pytest.mark.parametrize(
    "around",
    [
        asked(95),  # in the moment of the bound
        asked(40),
        asked(200, bound=None),
    ],
)
def test_a_refusal_before_the_bound_is_not_the_last_word(around: Circumstances) -> None:
    assert told(judge(found(REFUSED), around)) == ("ask_again", "refusal_unproven")


# E16: the success of another attempt may stand on the page that was not shown
def test_a_refusal_in_an_answer_that_may_lack_something_settles_and_disputes_nothing() -> None:
    for callback in (False, True):
        verdict = judge(found(REFUSED, complete=False, callback=callback), asked(200, settled_as_of=at(100)))
        assert told(verdict) == ("ask_again", "refusal_unproven")
        assert "may be incomplete" in verdict.explanation
        assert all(settlement_event(state, verdict) == () for state in State)


@pytest.mark.parametrize("lookup", [Lookup.BY_REFERENCE, Lookup.BY_KEY, Lookup.BY_LIST])
@pytest.mark.parametrize("deduplicates", Deduplicates)
def test_only_a_key_under_which_the_receiver_keeps_one_record_needs_no_complete_answer(
    lookup: Lookup, deduplicates: Deduplicates
) -> None:
    contract = replace(CONTRACT, lookup=lookup, deduplicates=deduplicates)
    partial, whole = (judge(found(REFUSED, complete=said), asked(200, contract)) for said in (False, True))
    one_record = lookup is Lookup.BY_KEY and deduplicates is Deduplicates.KEY
    assert partial.kind is (VerdictKind.SETTLE if one_record else VerdictKind.ASK_AGAIN)
    assert told(whole) == ("settle", "refused")


REFUSALS: list[tuple[tuple[str | None, ...], str, DenialClass, float | None]] = [
    (("402",), "402", DenialClass.STANDING, None),
    (("429",), "429", DenialClass.CLEARS_AT, 60),
    (("insufficient_funds",), "insufficient_funds", DenialClass.STANDING, None),  # not listed: stands
    ((None,), "failed", DenialClass.STANDING, None),  # the raw status where no reason is given
    (("429", "402"), "402", DenialClass.STANDING, None),  # the strictest of several
    (("402", "429"), "402", DenialClass.STANDING, None),
]


@pytest.mark.parametrize(("reasons", "reason", "denial_class", "clears_after_s"), REFUSALS)
def test_the_contract_classes_a_refusal_and_what_it_does_not_list_stands(
    reasons: tuple[str | None, ...], reason: str, denial_class: DenialClass, clears_after_s: float | None
) -> None:
    verdict = judge(found(*(replace(REFUSED, denial_reason=one) for one in reasons)), asked(200))
    assert (verdict.denial_reason, verdict.denial_class, verdict.clears_after_s) == (
        reason,
        denial_class,
        clears_after_s,
    )


# ----- duplicates and divergence that people have seen -----


def test_a_second_reference_than_the_one_on_record_is_flagged() -> None:
    settled = asked(200, known_references=frozenset({"re_1"}))
    assert judge(found(EFFECT), settled).flag is None
    verdict = judge(found(SECOND), settled)
    assert told(verdict) == ("settle", "second_reference")
    assert verdict.flag is Flag.DUPLICATE_EFFECT
    assert judge(found(replace(EFFECT, reference=None)), settled).flag is None


def test_duplicates_that_a_person_cleared_are_agreement_until_another_turns_up() -> None:
    cleared = asked(
        200, known_references=frozenset({"re_1", "re_2"}), flags=frozenset({Flag.DUPLICATE_EFFECT})
    )
    assert told(judge(found(EFFECT, SECOND), cleared)) == ("settle", "effect_found")
    assert judge(found(EFFECT, SECOND, replace(EFFECT, reference="re_9")), cleared).flag is not None


def test_a_divergence_that_a_person_accepted_is_agreement_for_that_effect() -> None:
    accepted = asked(200, known_references=frozenset({"re_1"}), flags=frozenset({Flag.DIVERGED_EFFECT}))
    assert told(judge(found(DIVERGED), accepted)) == ("settle", "effect_found")
    assert judge(found(replace(DIVERGED, reference="re_9")), accepted).flag is Flag.DIVERGED_EFFECT


def test_two_effects_under_one_key_void_the_verified_claim() -> None:
    assert judge(found(EFFECT, SECOND), asked(200)).unverifies
    assert not judge(found(EFFECT), asked(200)).unverifies
    by_reference = replace(CONTRACT, deduplicates=Deduplicates.REFERENCE)
    assert not judge(found(EFFECT, SECOND), asked(200, by_reference)).unverifies


# ----- cases that belong to people -----


ALL_SORTS = [
    found(),
    found(EFFECT),
    found(EFFECT, SECOND),
    found(DIVERGED),
    found(REFUSED),
    found(PENDING),
    found(STRANGER),
    unclear(),
    Finding(FindingKind.NO_LOOKUP),
]


@pytest.mark.parametrize("finding", ALL_SORTS)
def test_on_a_discrepancy_a_verdict_only_adds_evidence(finding: Finding) -> None:
    free = judge(finding, asked(101, **ONCE))
    held = judge(finding, asked(101, standing=Standing.DISCREPANCY, **ONCE))
    assert held.kind is VerdictKind.EVIDENCE_ONLY
    assert (held.outcome, held.flag, held.reason) == (free.outcome, free.flag, free.reason)
    assert held.next_at == at(101 + ESCALATED_EVERY_S)
    assert all(settlement_event(state, held) == () for state in State)


@pytest.mark.parametrize("finding", ALL_SORTS)
def test_late_evidence_on_an_abandoned_operation_changes_nothing(finding: Finding) -> None:
    held = judge(finding, asked(101, standing=Standing.ABANDONED, **ONCE))
    assert (held.kind, held.next_at) == (VerdictKind.EVIDENCE_ONLY, None)
    assert all(settlement_event(state, held) == () for state in State)


# ----- when to ask again -----


def test_the_budget_is_twelve_look_ups_or_a_day_whichever_is_later() -> None:
    day_over, day_left = at(-BUDGET_S), at(60)
    for lookups, since, kind in [
        (BUDGET_LOOKUPS - 1, day_left, VerdictKind.ASK_AGAIN),
        (BUDGET_LOOKUPS, day_left, VerdictKind.ASK_AGAIN),
        (1000, day_left, VerdictKind.ASK_AGAIN),
        (BUDGET_LOOKUPS - 1, day_over, VerdictKind.ASK_AGAIN),
        (BUDGET_LOOKUPS, day_over, VerdictKind.ESCALATE),
    ]:
        assert judge(unclear(), asked(200, lookups=lookups, since=since)).kind is kind


def test_the_day_is_over_in_the_moment_it_ends() -> None:
    for second, kind in ((BUDGET_S - 1, VerdictKind.ASK_AGAIN), (BUDGET_S, VerdictKind.ESCALATE)):
        assert judge(unclear(), asked(second, since=NOON, lookups=99)).kind is kind


def test_absence_before_the_bound_is_asked_again_right_after_it() -> None:
    verdict = judge(found(), asked(94, lookups=10))
    assert verdict.next_at is not None
    assert BOUND < verdict.next_at < BOUND + timedelta(seconds=0.1)


def test_a_receiver_whose_answers_lag_is_asked_later_by_as_much() -> None:
    verdict = judge(found(as_of=at(84)), asked(94, lookups=10))
    assert verdict.next_at is not None
    assert at(105) < verdict.next_at < at(105.1)


def test_long_before_the_bound_backoff_goes_first() -> None:
    verdict = judge(found(), asked(10, bound=at(5000)))
    assert verdict.next_at is not None
    assert verdict.next_at < at(13)


def test_the_second_sighting_is_asked_for_as_soon_as_it_counts() -> None:
    assert judge(found(), asked(96, lookups=10)).next_at == at(96 + LAG_S)
    assert judge(found(), asked(96, now=at(120))).next_at == at(120)  # judged late


def test_a_second_sighting_is_not_put_off_because_a_person_was_called() -> None:
    assert judge(found(), asked(96, **USED)).next_at == at(96 + LAG_S)


@pytest.mark.parametrize(
    ("wish_s", "next_s"),
    [
        (600.0, 600),
        (float("inf"), RETRY_AFTER_LONGEST_S),
        (1e300, RETRY_AFTER_LONGEST_S),
        (0.0, None),
        (-5.0, None),
        (float("nan"), None),
    ],
)
def test_the_receivers_retry_after_is_obeyed_within_reason(wish_s: float, next_s: float | None) -> None:
    verdict = judge(unclear("http_429", retry_after_s=wish_s), asked(200))
    plain = judge(unclear("http_429"), asked(200))
    assert verdict.next_at == (plain.next_at if next_s is None else at(200 + next_s))


def test_backoff_doubles_to_an_hour_and_jitter_spreads_it() -> None:
    waits = []
    for lookups in range(1, 40):
        times = [
            judge(unclear(), asked(0, lookups=lookups, jitter=jitter)).next_at for jitter in (0.0, 0.999)
        ]
        assert times[0] is not None
        assert times[1] is not None
        shortest, longest = (times[0] - NOON).total_seconds(), (times[1] - NOON).total_seconds()
        assert 1 <= shortest < longest <= BACKOFF_LONGEST_S
        waits.append(longest)
    assert waits == sorted(waits)
    assert waits[0] < 2 <= waits[1] < 4
    assert waits[-1] > BACKOFF_LONGEST_S * 0.9


# ----- callbacks -----


def test_where_only_a_callback_is_promised_it_is_waited_for_a_day() -> None:
    contract = replace(CONTRACT, lookup=Lookup.CALLBACK)
    waiting = judge(Finding(FindingKind.NO_LOOKUP), asked(200, contract, lookups=50))
    assert told(waiting) == ("ask_again", "awaiting_callback")
    assert waiting.next_at == at(60 + BUDGET_S)
    over = judge(Finding(FindingKind.NO_LOOKUP), asked(60 + BUDGET_S, contract, lookups=0))
    assert told(over) == ("escalate", "still_pending")
    assert over.next_at is None


def test_a_callback_is_a_finding_like_any_other() -> None:
    contract = replace(CONTRACT, lookup=Lookup.CALLBACK)
    for finding in (found(EFFECT), found(EFFECT, SECOND), found(DIVERGED), found(REFUSED), found(STRANGER)):
        called = judge(replace(finding, callback=True), asked(200, contract))
        assert told(called) == told(judge(finding, asked(200)))


# C10, C50
def test_a_stale_or_older_callback_cannot_dispute_what_is_settled() -> None:
    fresh = asked(200, settled_as_of=at(100))
    refusal = found(REFUSED, callback=True)
    assert settlement_event(State.COMPLETED, judge(refusal, fresh)) == (Event.DISPUTE,)
    assert settlement_event(State.COMPLETED, judge(refusal, replace(fresh, stale=True))) == ()
    older = replace(refusal, as_of=at(99))
    assert settlement_event(State.COMPLETED, judge(older, fresh)) == ()
    same = replace(refusal, as_of=at(100))
    assert settlement_event(State.COMPLETED, judge(same, fresh)) == (Event.DISPUTE,)


# F21
def test_a_pending_callback_after_completion_changes_nothing() -> None:
    verdict = judge(found(PENDING, callback=True), asked(200, settled_as_of=at(100)))
    assert settlement_event(State.COMPLETED, verdict) == ()


# E11
def test_what_the_receiver_did_not_authenticate_disputes_nothing() -> None:
    claim = judge(found(EFFECT, authoritative=False), asked(200))
    for state in (State.INTENDED, State.DENIED, State.WITHDRAWN):
        assert settlement_event(state, claim) == ()


# ----- what a verdict does to the invocation -----

COMPLETED = judge(found(EFFECT), asked(200))
DUPLICATED = judge(found(EFFECT, SECOND), asked(200))
DIFFERENT = judge(found(DIVERGED), asked(200))
DENIED = judge(found(REFUSED), asked(200))
ABSENT = judge(found(), asked(101, **ONCE))

MOVES: list[tuple[State, Verdict, tuple[Event, ...]]] = [
    (State.INTENDED, COMPLETED, (Event.DISPUTE,)),  # an effect without a permit on record
    (State.DENIED, COMPLETED, (Event.DISPUTE,)),
    (State.WITHDRAWN, COMPLETED, (Event.DISPUTE,)),
    (State.DISPATCHED, COMPLETED, (Event.COMPLETE,)),  # while the attempt is open
    (State.UNKNOWN, COMPLETED, (Event.COMPLETE,)),
    (State.COMPLETED, COMPLETED, ()),  # agreement
    *((state, flagged, (Event.DISPUTE,)) for state in (State.INTENDED, State.DENIED, State.WITHDRAWN)
      for flagged in (DUPLICATED, DIFFERENT)),
    *((state, flagged, (Event.COMPLETE, Event.FLAG)) for state in (State.DISPATCHED, State.UNKNOWN)
      for flagged in (DUPLICATED, DIFFERENT)),
    *((State.COMPLETED, flagged, (Event.FLAG,)) for flagged in (DUPLICATED, DIFFERENT)),
    *((state, denied, (Event.DENY,)) for state in (State.DISPATCHED, State.UNKNOWN) for denied in (DENIED, ABSENT)),
    *((State.COMPLETED, denied, (Event.DISPUTE,)) for denied in (DENIED, ABSENT)),  # vanished
    *((state, denied, ()) for state in (State.INTENDED, State.DENIED, State.WITHDRAWN) for denied in (DENIED, ABSENT)),
]  # fmt: skip


@pytest.mark.parametrize(("state", "verdict", "events"), MOVES)
def test_settling_maps_onto_the_transitions(
    state: State, verdict: Verdict, events: tuple[Event, ...]
) -> None:
    assert settlement_event(state, verdict) == events


def test_settling_covers_every_state_and_every_sort_of_verdict() -> None:
    assert Counter(state for state, _, _ in MOVES) == dict.fromkeys(State, 5)


@pytest.mark.parametrize("state", State)
def test_the_events_of_every_verdict_are_legal_from_every_state(state: State) -> None:
    verdicts = [COMPLETED, DUPLICATED, DIFFERENT, DENIED, ABSENT]
    for verdict, may in product(verdicts, [True, False]):
        reached = state
        for event in settlement_event(state, replace(verdict, may_dispute=may)):
            reached = advance(reached, event)
        if verdict.outcome is Outcome.COMPLETED:
            assert reached in (State.COMPLETED, State.UNKNOWN) or (reached is state and not may)
        else:
            assert reached is not State.DENIED or state in (State.DENIED, State.DISPATCHED, State.UNKNOWN)


@pytest.mark.parametrize(
    "finding", [found(PENDING), found(STRANGER), unclear(), Finding(FindingKind.NO_LOOKUP)]
)
def test_nothing_moves_until_a_verdict_settles(finding: Finding) -> None:
    for around, state in product((asked(200), asked(200, **USED)), State):
        assert settlement_event(state, judge(finding, around)) == ()


def test_a_disputed_record_cannot_be_flagged_besides() -> None:
    with pytest.raises(IllegalTransition):
        advance(State.UNKNOWN, Event.FLAG)  # so a flagged effect of a denied record is a dispute alone


# ----- the bound -----


def test_the_bound_is_the_latest_end_of_sending_and_what_may_come_after_it() -> None:
    ends = [
        attempt_end(reported_at=at(3), lease_until=at(60)),  # its holder said that it had stopped
        attempt_end(reported_at=None, lease_until=at(40)),  # nobody said anything: the lease's end
    ]
    assert ends == [at(3), at(40)]
    assert bound(ends, in_flight_s=30, visibility_lag_s=5) == at(75)
    assert bound(reversed(ends), in_flight_s=30, visibility_lag_s=5) == at(75)


def test_without_an_attempt_there_is_no_bound() -> None:
    assert bound([], in_flight_s=30, visibility_lag_s=5) is None


# ----- the whole product -----

KINDS = {
    "effect": EFFECT,
    "second": SECOND,
    "diverged": replace(DIVERGED, reference="re_8"),
    "refused": REFUSED,
    "pending": PENDING,
    "unlisted": UNLISTED,
    "stranger": STRANGER,
    "refused stranger": replace(STRANGER, status=ItemStatus.DENIED, reference="re_10"),
    "another's": OTHERS,
}
BUNDLES = [names for size in range(3) for names in combinations_with_replacement(KINDS, size)]
CASES = list(
    product(
        Lookup,
        [False, True],  # a callback
        [False, True],  # complete
        [False, True],  # authoritative
        [False, True],  # after the bound
        [False, True],  # remembered
        ["never", "just now", "before"],  # an earlier sighting
        [False, True],  # budget left
    )
)


def _oracle(names: tuple[str, ...], case: tuple[Any, ...]) -> tuple[str, str]:
    """The table of the design once more, read from names instead of items."""
    lookup, callback, complete, authoritative, after, remembered, earlier, budget = case
    names = tuple(dict.fromkeys(name for name in names if name != "another's"))
    ours = [name for name in names if "stranger" not in name]
    effects = [name for name in ours if name in ("effect", "second", "diverged")]
    again: str
    if lookup is Lookup.NONE and not callback:
        return "escalate", "operator_only"
    if names and not ours:
        return "escalate", "unattributed_effect"
    if effects:
        if len(effects) > 1:
            return "settle", "duplicate_effect"
        return "settle", "diverged_effect" if effects == ["diverged"] else "effect_found"
    if ours == ["refused"]:
        if "stranger" in names:
            return "escalate", "unattributed_effect"
        # CONTRACT deduplicates by key, so a look-up by key shows the one record there is.
        if authoritative and after and (complete or lookup is Lookup.BY_KEY):
            return "settle", "refused"
        again = "refusal_unproven"
    elif "unlisted" in ours:
        again = "unlisted_status"
    elif "pending" in ours:
        again = "in_progress"
    elif callback:
        again = "unclear"
    else:
        if not remembered:
            return "escalate", "absence_unprovable"
        if after and complete and authoritative and earlier == "before":
            return "settle", "absent"
        again = "absence_unproven"
    if lookup is Lookup.NONE:
        return "escalate", "operator_only"
    if budget:
        return "ask_again", again
    return "escalate", WHEN_BUDGET_IS_USED[VerdictReason(again)].value


def _posed(names: tuple[str, ...], case: tuple[Any, ...]) -> tuple[Finding, Circumstances]:
    lookup, callback, complete, authoritative, after, remembered, earlier, budget = case
    items = tuple(KINDS[name] for name in names)
    finding = Finding(
        FindingKind.ITEMS, items, complete=complete, authoritative=authoritative, callback=callback
    )
    second = 300 if after else 90
    contract = replace(
        CONTRACT,
        lookup=lookup,
        key_retained_s=1000 if remembered else 80,
        lookup_reaches_back_s=1000 if remembered else 80,
    )
    sightings = {"never": (), "just now": (at(second - 1),), "before": (at(second - 60),)}[earlier]
    spent = {} if budget else USED
    return finding, asked(second, contract, sightings=sightings, **spent)


@pytest.mark.parametrize("names", BUNDLES, ids=" and ".join)
def test_every_answer_in_every_circumstance_gets_the_verdict_of_the_design(names: tuple[str, ...]) -> None:
    for case in CASES:
        finding, around = _posed(names, case)
        verdict = judge(finding, around)
        assert told(verdict) == _oracle(names, case), case
        assert (verdict.outcome is not None) is (verdict.kind is VerdictKind.SETTLE)
        assert (verdict.next_at is not None) or verdict.kind is not VerdictKind.ASK_AGAIN
        if verdict.outcome is Outcome.DENIED:
            assert around.bound is not None
            assert verdict.as_of > around.bound
            assert finding.authoritative
            assert finding.complete or around.contract.lookup is Lookup.BY_KEY


def test_every_reason_to_ask_again_has_an_end() -> None:
    asked_again = set()
    for names, case in product(BUNDLES, CASES):
        verdict = judge(*_posed(names, case))
        if verdict.kind is VerdictKind.ASK_AGAIN:
            asked_again.add(verdict.reason)
    assert asked_again | {VerdictReason.AWAITING_CALLBACK} == set(WHEN_BUDGET_IS_USED)


def test_every_verdict_explains_itself_in_one_line_and_as_json() -> None:
    for finding, around in product(ALL_SORTS, (asked(50), asked(101, **ONCE), asked(200, **USED))):
        verdict = judge(finding, around)
        assert verdict.explanation.endswith(".")
        assert "\n" not in verdict.explanation
        shown = verdict.as_json()
        assert shown["kind"] == verdict.kind
        assert (shown["denial"] is None) is (verdict.outcome is not Outcome.DENIED)

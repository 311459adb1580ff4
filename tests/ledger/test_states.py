"""The transition rows, walked completely: every state by every event, every attempt state by every attempt state."""

from __future__ import annotations

from itertools import product

import pytest

from ledger.states import (
    ATTEMPT_TRANSITIONS,
    EFFECT,
    TRANSITIONS,
    AttemptState,
    Event,
    IllegalTransition,
    Standing,
    State,
    advance,
    advance_attempt,
    at_lease,
    contradicts,
    event_after,
    fold,
)

# Written out a second time, by state, so that a slip in the rows shows: what is not here must be refused.
ALLOWED: dict[State | None, dict[Event, State]] = {
    None: {Event.RECORD: State.INTENDED},
    State.INTENDED: {
        Event.DISPATCH: State.DISPATCHED,
        Event.REFUSE: State.DENIED,
        Event.WITHDRAW: State.WITHDRAWN,
        Event.DISPUTE: State.UNKNOWN,
    },
    State.DISPATCHED: {
        Event.COMPLETE: State.COMPLETED,
        Event.DENY: State.DENIED,
        Event.LOSE: State.UNKNOWN,
    },
    State.UNKNOWN: {
        Event.COMPLETE: State.COMPLETED,
        Event.DENY: State.DENIED,
        Event.DISPATCH: State.DISPATCHED,
    },
    State.DENIED: {
        Event.WITHDRAW: State.WITHDRAWN,
        Event.DISPATCH: State.DISPATCHED,
        Event.DISPUTE: State.UNKNOWN,
    },
    State.WITHDRAWN: {Event.DISPUTE: State.UNKNOWN},
    State.COMPLETED: {
        Event.DISPUTE: State.UNKNOWN,
        Event.FLAG: State.COMPLETED,
        Event.RESOLVE: State.COMPLETED,
    },
}

EVERY_STATE: list[State | None] = [None, *State]


@pytest.mark.parametrize(("state", "event"), list(product(EVERY_STATE, Event)))
def test_every_event_from_every_state_goes_where_the_design_says_or_is_refused(
    state: State | None, event: Event
) -> None:
    to = ALLOWED[state].get(event)
    if to is None:
        with pytest.raises(IllegalTransition) as refused:
            advance(state, event)
        assert (refused.value.state, refused.value.event) == (state, event)
    else:
        assert advance(state, event) is to


def test_an_intent_that_meets_parked_evidence_starts_unknown() -> None:
    assert advance(None, Event.RECORD, parked=True) is State.UNKNOWN


@pytest.mark.parametrize(("state", "event"), list(product(EVERY_STATE, Event)))
def test_parked_evidence_matters_to_recording_only(state: State | None, event: Event) -> None:
    if event is Event.RECORD:
        return
    to = ALLOWED[state].get(event)
    if to is None:
        with pytest.raises(IllegalTransition):
            advance(state, event, parked=True)
    else:
        assert advance(state, event, parked=True) is to


def test_no_row_stands_twice_and_every_row_says_why() -> None:
    keys = [(row.from_, row.event, row.parked) for row in TRANSITIONS]
    assert len(keys) == len(set(keys))
    assert all(row.remark for row in TRANSITIONS)


def test_what_is_settled_becomes_unknown_by_dispute_only() -> None:
    settled = {State.INTENDED, State.DENIED, State.WITHDRAWN, State.COMPLETED}
    ways = {row.event for row in TRANSITIONS if row.from_ in settled and row.to is State.UNKNOWN}
    assert ways == {Event.DISPUTE}


def test_nothing_but_a_permit_leaves_unknown_without_an_effect_being_known() -> None:
    ways = {row.event for row in TRANSITIONS if row.from_ is State.UNKNOWN}
    assert ways == {Event.COMPLETE, Event.DENY, Event.DISPATCH}


@pytest.mark.parametrize(("from_", "to"), list(product(AttemptState, AttemptState)))
def test_every_attempt_step_only_adds_knowledge(from_: AttemptState, to: AttemptState) -> None:
    known = {AttemptState.COMPLETED, AttemptState.DENIED, AttemptState.NOT_SENT}
    allowed = (from_ is AttemptState.OPEN and to is not AttemptState.OPEN) or (
        from_ is AttemptState.LOST and to in known
    )
    assert ((from_, to) in ATTEMPT_TRANSITIONS) is allowed
    if allowed:
        assert advance_attempt(from_, to) is to
    else:
        with pytest.raises(IllegalTransition):
            advance_attempt(from_, to)


@pytest.mark.parametrize(("known", "reported"), list(product(AttemptState, AttemptState)))
def test_only_effect_against_no_effect_is_a_contradiction(
    known: AttemptState, reported: AttemptState
) -> None:
    without = {AttemptState.DENIED, AttemptState.NOT_SENT}
    expected = (known is AttemptState.COMPLETED and reported in without) or (
        known in without and reported is AttemptState.COMPLETED
    )
    assert contradicts(known, reported) is expected
    assert contradicts(known, reported) is contradicts(reported, known)


def test_every_attempt_state_says_whether_there_is_an_effect() -> None:
    assert set(EFFECT) == set(AttemptState)


FOLDS: list[tuple[str, State]] = [
    ("", State.INTENDED),  # nothing was ever permitted
    ("o", State.DISPATCHED),
    ("l", State.UNKNOWN),
    ("d", State.DENIED),
    ("n", State.DENIED),
    ("c", State.COMPLETED),
    ("dn", State.DENIED),  # every one is denied or not sent
    ("ld", State.UNKNOWN),  # the later denial says nothing about the earlier, lost attempt
    ("ln", State.UNKNOWN),
    ("lo", State.DISPATCHED),
    ("lc", State.COMPLETED),  # of whichever attempt
    ("co", State.COMPLETED),  # an open attempt on a completed invocation
    ("cd", State.COMPLETED),
]
LETTERS = {
    "o": AttemptState.OPEN,
    "l": AttemptState.LOST,
    "d": AttemptState.DENIED,
    "n": AttemptState.NOT_SENT,
    "c": AttemptState.COMPLETED,
}


@pytest.mark.parametrize(("letters", "state"), FOLDS)
def test_attempts_fold_into_their_invocation(letters: str, state: State) -> None:
    assert fold([LETTERS[letter] for letter in letters]) is state


@pytest.mark.parametrize("count", range(5))
def test_the_order_of_attempts_never_matters_to_the_fold(count: int) -> None:
    for attempts in product(AttemptState, repeat=count):
        assert fold(attempts) is fold(tuple(sorted(attempts)))


def test_folding_agrees_with_every_walk_of_permits_and_reports() -> None:
    """All lives of up to three attempts: a permit opens one, a report or the lease's end moves one.

    Whatever moved an attempt, the event that follows from it leads to the state that the attempts fold into.
    """
    start: tuple[State, tuple[AttemptState, ...]] = (advance(None, Event.RECORD), ())
    seen = {start}
    open_ends = [start]
    while open_ends:
        state, attempts = open_ends.pop()
        following: list[tuple[AttemptState, ...]] = []
        if AttemptState.OPEN not in attempts and len(attempts) < 3 and state is not State.COMPLETED:
            following.append((*attempts, AttemptState.OPEN))
        for index, to in product(range(len(attempts)), AttemptState):
            if (attempts[index], to) in ATTEMPT_TRANSITIONS:
                following.append((*attempts[:index], to, *attempts[index + 1 :]))
        for changed in following:
            event = event_after(state, changed)
            reached = state if event is None else advance(state, event)
            assert reached is fold(changed), (state, attempts, changed, event)
            if (reached, changed) not in seen:
                seen.add((reached, changed))
                open_ends.append((reached, changed))
    assert {state for state, _ in seen} == set(State) - {State.WITHDRAWN}


@pytest.mark.parametrize(("state", "standing"), list(product(State, Standing)))
def test_the_event_after_an_attempt_is_always_a_legal_one(state: State, standing: Standing) -> None:
    for count in range(4):
        for attempts in product(AttemptState, repeat=count):
            event = event_after(state, attempts, standing)
            if event is not None:
                assert advance(state, event) is fold(attempts)


@pytest.mark.parametrize("standing", [Standing.DISCREPANCY, Standing.ABANDONED])
def test_attempts_never_settle_what_only_a_person_may(standing: Standing) -> None:
    for attempts in product(AttemptState, repeat=2):
        assert event_after(State.UNKNOWN, attempts, standing) is None


@pytest.mark.parametrize("settled", [State.COMPLETED, State.WITHDRAWN])
def test_an_attempt_ending_on_a_settled_invocation_changes_the_attempt_only(settled: State) -> None:
    for attempts in product(AttemptState, repeat=2):
        assert event_after(settled, attempts) is None


@pytest.mark.parametrize(("state", "running"), list(product(State, [True, False])))
def test_dispatched_past_its_lease_is_read_as_unknown_and_nothing_else_changes(
    state: State, running: bool
) -> None:
    expected = State.UNKNOWN if state is State.DISPATCHED and not running else state
    assert at_lease(state, lease_running=running) is expected

"""What may happen next to an invocation and to its attempts: rows of data and the three functions that read them.

Pure: standard library only, no clock, no database. The database enforces the same rows again.

An *attempt* is one transport try; an *invocation* is the ledger's record of one operation and has any number of them.
Knowledge only grows: what is lost may become known, what is known never becomes lost. The single way from a settled
invocation back to ``unknown`` is a dispute, and only a person leaves that again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where an invocation stands. ``unknown`` means sent, and whether the effect exists is not known: never failed."""

    INTENDED = "intended"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    DENIED = "denied"
    UNKNOWN = "unknown"
    WITHDRAWN = "withdrawn"


class AttemptState(StrEnum):
    """Where one attempt stands. ``denied``: the receiver refused it. ``not_sent``: nothing left the process."""

    OPEN = "open"
    COMPLETED = "completed"
    DENIED = "denied"
    NOT_SENT = "not_sent"
    LOST = "lost"


class Event(StrEnum):
    """What can happen to an invocation."""

    RECORD = "record"
    DISPATCH = "dispatch"
    REFUSE = "refuse"
    WITHDRAW = "withdraw"
    COMPLETE = "complete"
    DENY = "deny"
    LOSE = "lose"
    DISPUTE = "dispute"
    FLAG = "flag"
    RESOLVE = "resolve"


class Standing(StrEnum):
    """What people must settle or have settled: beside the state, never instead of it."""

    NONE = "none"
    DISCREPANCY = "discrepancy"
    ABANDONED = "abandoned"


class IllegalTransition(Exception):
    """Raised when no row allows the step. ``state`` is where it stood (None: not on record), ``event`` what was tried
    (for an attempt: the attempt state it was to reach).
    """

    def __init__(self, state: State | AttemptState | None, event: Event | AttemptState) -> None:
        self.state = state
        self.event = event
        super().__init__(f"{event} is not possible from {state or 'no entry'}")


@dataclass(frozen=True, slots=True)
class Transition:
    """One row. ``from_`` None: the invocation is not on record yet. ``parked``: only where evidence for it waited."""

    from_: State | None
    event: Event
    to: State
    remark: str
    parked: bool = False


TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        None, Event.RECORD, State.INTENDED, "the intent is durable before anything leaves the process"
    ),
    Transition(
        None, Event.RECORD, State.UNKNOWN, "evidence for it was parked before it was recorded", parked=True
    ),
    Transition(
        State.INTENDED, Event.DISPATCH, State.DISPATCHED, "a permit was granted: it may be in flight now"
    ),
    Transition(State.INTENDED, Event.REFUSE, State.DENIED, "a permit was asked for without permission"),
    Transition(State.INTENDED, Event.WITHDRAW, State.WITHDRAWN, "given up, superseded or too old"),
    Transition(State.DENIED, Event.WITHDRAW, State.WITHDRAWN, "given up or superseded, never by age"),
    Transition(State.DISPATCHED, Event.COMPLETE, State.COMPLETED, "the effect exists, of whichever attempt"),
    Transition(State.DISPATCHED, Event.DENY, State.DENIED, "every attempt was denied or not sent"),
    Transition(
        State.DISPATCHED, Event.LOSE, State.UNKNOWN, "nothing is in flight any more and something is lost"
    ),
    Transition(State.UNKNOWN, Event.COMPLETE, State.COMPLETED, "only with evidence"),
    Transition(State.UNKNOWN, Event.DENY, State.DENIED, "only with evidence, and it covers every attempt"),
    Transition(
        State.UNKNOWN, Event.DISPATCH, State.DISPATCHED, "only where the receiver is proven to replay"
    ),
    Transition(State.DENIED, Event.DISPATCH, State.DISPATCHED, "only where the decision says retry"),
    Transition(State.INTENDED, Event.DISPUTE, State.UNKNOWN, "an effect without a permit on record"),
    Transition(
        State.DENIED, Event.DISPUTE, State.UNKNOWN, "the receiver shows an effect that was said not to exist"
    ),
    Transition(
        State.WITHDRAWN, Event.DISPUTE, State.UNKNOWN, "the receiver shows an effect of what was given up"
    ),
    Transition(
        State.COMPLETED, Event.DISPUTE, State.UNKNOWN, "the receiver says that the effect does not exist"
    ),
    Transition(
        State.COMPLETED,
        Event.FLAG,
        State.COMPLETED,
        "what or how many differs: a discrepancy, the state stays",
    ),
    Transition(
        State.COMPLETED, Event.RESOLVE, State.COMPLETED, "a person cleared the discrepancy, the flag is kept"
    ),
)

ATTEMPT_TRANSITIONS: frozenset[tuple[AttemptState, AttemptState]] = frozenset(
    {
        (AttemptState.OPEN, AttemptState.COMPLETED),
        (AttemptState.OPEN, AttemptState.DENIED),
        (AttemptState.OPEN, AttemptState.NOT_SENT),
        (AttemptState.OPEN, AttemptState.LOST),
        (AttemptState.LOST, AttemptState.COMPLETED),
        (AttemptState.LOST, AttemptState.DENIED),
        (AttemptState.LOST, AttemptState.NOT_SENT),
    }
)

EFFECT: dict[AttemptState, bool | None] = {
    AttemptState.OPEN: None,
    AttemptState.COMPLETED: True,
    AttemptState.DENIED: False,
    AttemptState.NOT_SENT: False,
    AttemptState.LOST: None,
}
"""Whether an attempt in that state made the effect; None where nobody knows."""

_NEXT: dict[tuple[State | None, Event, bool], State] = {
    (row.from_, row.event, row.parked): row.to for row in TRANSITIONS
}

_EVENT_TOWARDS: dict[State, Event] = {
    State.DISPATCHED: Event.DISPATCH,
    State.COMPLETED: Event.COMPLETE,
    State.DENIED: Event.DENY,
    State.UNKNOWN: Event.LOSE,
}


def advance(state: State | None, event: Event, *, parked: bool = False) -> State:
    """The state after ``event``. ``parked`` is read by ``record`` only: evidence for this name waited already.

    Raises IllegalTransition where no row allows it.
    """
    waited = parked and event is Event.RECORD
    try:
        return _NEXT[state, event, waited]
    except KeyError:
        raise IllegalTransition(state, event) from None


def advance_attempt(from_: AttemptState, to: AttemptState) -> AttemptState:
    """``to``, if an attempt may go there; staying where it is is no step either. Raises IllegalTransition."""
    if (from_, to) not in ATTEMPT_TRANSITIONS:
        raise IllegalTransition(from_, to)
    return to


def contradicts(known: AttemptState, reported: AttemptState) -> bool:
    """Whether a report says the opposite of what is known about *whether* the effect exists.

    Denied and not sent do not contradict each other: both say that there is no effect.
    """
    before, after = EFFECT[known], EFFECT[reported]
    return before is not None and after is not None and before is not after


def fold(attempts: Sequence[AttemptState]) -> State:
    """What the attempts alone say about their invocation, in any order.

    A denial settles its attempt only: the invocation is denied when *every* attempt is denied or not sent.
    """
    if not attempts:
        return State.INTENDED
    if AttemptState.COMPLETED in attempts:
        return State.COMPLETED
    if AttemptState.OPEN in attempts:
        return State.DISPATCHED
    if AttemptState.LOST in attempts:
        return State.UNKNOWN
    return State.DENIED


def event_after(
    state: State, attempts: Sequence[AttemptState], standing: Standing = Standing.NONE
) -> Event | None:
    """The event that brings an invocation in ``state`` into line with its attempts; None where nothing changes.

    A disputed or abandoned unknown stays whatever its attempts say: only a person leaves it. The attempts of a
    completed or withdrawn invocation change without it, and a denied one is left by a new permit only.
    """
    if state in (State.COMPLETED, State.WITHDRAWN):
        return None
    if state is State.UNKNOWN and standing is not Standing.NONE:
        return None
    target = fold(attempts)
    if target in (state, State.INTENDED):
        return None
    event = _EVENT_TOWARDS[target]
    return event if (state, event, False) in _NEXT else None


def at_lease(state: State, *, lease_running: bool) -> State:
    """The state as everybody must read it: dispatched past its lease *is* unknown, swept or not."""
    if state is State.DISPATCHED and not lease_running:
        return State.UNKNOWN
    return state

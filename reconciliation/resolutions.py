"""What a person may decide about a case, and what each decision needs and does: rows of data and who reads them.

Pure: standard library only, no clock, no database. The service holds every decision against these rows again when it is
taken; a page only shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ledger.states import Event, Standing, State

REMARK_MIN = 10
"""Characters of a remark: enough that "ok" is none."""

TEXT_MAX = 4_000
"""Characters of a remark or of evidence in words: two pages."""

REFERENCE_MAX = 255
"""Characters of one receiver's reference."""

WAIT_MAX_S = 30 * 86_400
"""The longest wait: a month. Whoever needs longer decides again."""


class Kind(StrEnum):
    """A typed decision."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    WAIT = "wait"
    DUPLICATE = "duplicate"
    DIVERGED = "diverged"
    COMPENSATED = "compensated"
    ABANDONED = "abandoned"


class Need(StrEnum):
    """What must come with a decision, besides the remark."""

    REFERENCE = "reference"
    REFERENCES = "references"  # of every effect there is: two at least, the one on record included
    EVIDENCE = "evidence"
    UNTIL = "until"
    OPERATION = "operation"  # that made up for this one, completed


class Second(StrEnum):
    """When a second person has to confirm."""

    NEVER = "never"
    HIGH_RISK = "high_risk"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: in ``states`` (None among them: the name is not on record) the decision takes ``events``.

    ``flagged``: only where the record stands as a discrepancy. ``standing``: what it is afterwards; None: as it was.
    ``after_bound``: only once nothing of it can still arrive. ``closes``: the case is over with it.
    """

    kind: Kind
    states: frozenset[State | None]
    events: tuple[Event, ...]
    needs: frozenset[Need]
    consequence: str
    flagged: bool = False
    after_bound: bool = False
    second: Second = Second.NEVER
    standing: Standing | None = None
    closes: bool = True


_UNSETTLED = frozenset({State.UNKNOWN, State.DISPATCHED})
_UNKNOWN = frozenset({State.UNKNOWN})
_COMPLETED = frozenset({State.COMPLETED})
_NO_ENTRY = frozenset({None})
_ANY = frozenset({*State, None})

RULES: tuple[Rule, ...] = (
    Rule(
        Kind.HAPPENED,
        _UNSETTLED,
        (Event.COMPLETE,),
        frozenset({Need.REFERENCE}),
        "The operation is completed on your word: the agent resumes with this reference and dispatches nothing more.",
        standing=Standing.NONE,
    ),
    Rule(
        Kind.HAPPENED,
        _NO_ENTRY,
        (),
        frozenset({Need.REFERENCE}),
        "Your word is kept for this name: an intent that is recorded under it begins as unknown, never free to dispatch.",
    ),
    Rule(
        Kind.DID_NOT_HAPPEN,
        _UNKNOWN,
        (Event.DENY,),
        frozenset({Need.EVIDENCE}),
        "The agent may dispatch it again, under the same key. If you are wrong, the effect happens twice.",
        after_bound=True,
        second=Second.HIGH_RISK,
        standing=Standing.NONE,
    ),
    Rule(
        Kind.DID_NOT_HAPPEN,
        _NO_ENTRY,
        (),
        frozenset({Need.EVIDENCE}),
        "The case is closed and nothing else changes: a report that waits for this name still makes its intent begin unknown.",
    ),
    Rule(
        Kind.WAIT,
        _ANY,
        (),
        frozenset({Need.UNTIL}),
        "Nothing is settled and nothing may be dispatched. The case comes back at the time you give.",
        closes=False,
    ),
    Rule(
        Kind.DUPLICATE,
        _UNSETTLED,
        (Event.COMPLETE, Event.FLAG, Event.RESOLVE),
        frozenset({Need.REFERENCES}),
        "The operation is completed and keeps the flag of a duplicate. Making up for the second effect is up to you.",
        standing=Standing.NONE,
    ),
    Rule(
        Kind.DUPLICATE,
        _COMPLETED,
        (Event.FLAG, Event.RESOLVE),
        frozenset({Need.REFERENCES}),
        "The operation stays completed and keeps the flag of a duplicate; the agent may resume.",
        flagged=True,
        standing=Standing.NONE,
    ),
    Rule(
        Kind.DIVERGED,
        _COMPLETED,
        (Event.RESOLVE,),
        frozenset({Need.REFERENCE}),
        "The effect is accepted as it is: the flag stays on record and the agent may resume.",
        flagged=True,
        standing=Standing.NONE,
    ),
    Rule(
        Kind.COMPENSATED,
        _UNSETTLED,
        (Event.COMPLETE,),
        frozenset({Need.OPERATION}),
        "The operation is completed and linked to the one that made up for it.",
        standing=Standing.NONE,
    ),
    Rule(
        Kind.COMPENSATED,
        _COMPLETED,
        (Event.RESOLVE,),
        frozenset({Need.OPERATION}),
        "The operation stays completed and is linked to the one that made up for it; the agent may resume.",
        flagged=True,
        standing=Standing.NONE,
    ),
    Rule(
        Kind.ABANDONED,
        _UNKNOWN,
        (),
        frozenset(),
        "Nobody will dispatch it again, and whether the effect exists stays unknown. The case is not opened again.",
        second=Second.ALWAYS,
        standing=Standing.ABANDONED,
    ),
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rows are held against. ``state`` None: the name is not on record."""

    state: State | None
    now: datetime
    standing: Standing = Standing.NONE
    bound: datetime | None = None  # after which nothing can arrive any more; None: nothing says when
    high_risk: bool = False
    references: frozenset[str] = frozenset()  # the receiver's, on record


@dataclass(frozen=True, slots=True)
class Given:
    """What came with a decision."""

    remark: str
    evidence: str = ""
    references: tuple[str, ...] = ()
    wait_until: datetime | None = None
    compensated_by: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """One decision as a page shows it. ``why_not``: it cannot be taken now, and why."""

    kind: Kind
    needs: frozenset[Need]
    consequence: str
    second_person: bool
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What is missing or wrong: ``field`` is the form's, "" where the decision as a whole is."""

    field: str
    why: str


def rule_for(kind: Kind, situation: Situation) -> Rule | None:
    """The row that applies; None: this cannot be decided about an operation in that state."""
    for rule in RULES:
        if (
            rule.kind is kind
            and situation.state in rule.states
            and (not rule.flagged or situation.standing is Standing.DISCREPANCY)
        ):
            return rule
    return None


def needs_second(rule: Rule, situation: Situation) -> bool:
    """Whether the decision takes effect only once a second person has confirmed it."""
    return rule.second is Second.ALWAYS or (rule.second is Second.HIGH_RISK and situation.high_risk)


def too_early(rule: Rule, situation: Situation) -> bool:
    """Whether the effect may still arrive, so that nobody can say that it did not happen."""
    return rule.after_bound and (situation.bound is None or situation.now <= situation.bound)


def offers(situation: Situation) -> tuple[Offer, ...]:
    """Every decision that makes sense in this situation, in the table's order."""
    found = []
    for kind in Kind:
        rule = rule_for(kind, situation)
        if rule is not None:
            why_not = None
            if too_early(rule, situation):
                when = "" if situation.bound is None else f" before {situation.bound:%Y-%m-%d %H:%M:%S} UTC"
                why_not = f"The effect may still arrive: this cannot be said{when}."
            found.append(Offer(kind, rule.needs, rule.consequence, needs_second(rule, situation), why_not))
    return tuple(found)


def faults(rule: Rule, situation: Situation, given: Given) -> tuple[Fault, ...]:
    """Everything that keeps the decision from being taken; empty: it may be."""
    found = _text_faults(given)
    if Need.EVIDENCE in rule.needs and len(given.evidence.strip()) < REMARK_MIN:
        found.append(Fault("evidence", f"Say in {REMARK_MIN} characters or more what you saw, and where."))
    if Need.REFERENCE in rule.needs and not given.references:
        found.append(Fault("references", "Give the receiver's own reference of the effect."))
    if Need.REFERENCES in rule.needs and len({*given.references, *situation.references}) < 2:
        found.append(Fault("references", "Name the receiver's references of both effects."))
    if Need.OPERATION in rule.needs and not given.compensated_by:
        found.append(Fault("compensated_by", "Name the operation that made up for this one."))
    if Need.UNTIL in rule.needs:
        found.extend(_wait_faults(situation, given.wait_until))
    if too_early(rule, situation):
        found.append(Fault("", "The effect may still arrive: nobody can say yet that it did not happen."))
    return tuple(found)


def _text_faults(given: Given) -> list[Fault]:
    found = []
    if len(given.remark.strip()) < REMARK_MIN:
        found.append(Fault("remark", f"Say why, in {REMARK_MIN} characters or more."))
    for name, text in (("remark", given.remark), ("evidence", given.evidence)):
        if len(text) > TEXT_MAX or "\0" in text:
            found.append(Fault(name, f"May have {TEXT_MAX} characters at most, none of them NUL."))
    if any(not _is_reference(reference) for reference in given.references):
        found.append(
            Fault("references", f"A reference has 1 to {REFERENCE_MAX} characters and no line breaks.")
        )
    return found


def _is_reference(text: str) -> bool:
    return 1 <= len(text) <= REFERENCE_MAX and text == text.strip() and text.isprintable()


def _wait_faults(situation: Situation, until: datetime | None) -> Sequence[Fault]:
    if until is None:
        return [Fault("wait_until", "A wait has an end: give the time.")]
    seconds = (until - situation.now).total_seconds()
    if not 0 < seconds <= WAIT_MAX_S:
        return [Fault("wait_until", f"Must be in the future, at most {WAIT_MAX_S // 86_400} days from now.")]
    return []


class ResolutionRefused(Exception):
    """The decision was not taken and nothing was changed. ``faults`` say why, ``allowed`` what can be decided now."""

    status = 422

    def __init__(self, found: Sequence[Fault], allowed: Sequence[Kind] = ()) -> None:
        self.faults = tuple(found)
        self.allowed = tuple(allowed)
        super().__init__(" ".join(fault.why for fault in found))


class NotPossibleNow(ResolutionRefused):
    """The operation is not in a state in which this can be decided."""

    status = 409

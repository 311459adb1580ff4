"""What does a finding prove under its contract? The first row that matches; where nothing matches, a person.

Pure: standard library only, no clock, no network, no database. A finding is what the receiver said; only a verdict may
move an invocation. "Not found" is never by itself "did not happen": absence counts only when the effect can no longer
land or still be invisible, when the look-up shows everything and still remembers, and when it was seen twice.

The service calls, in this order: ``bound`` over the attempts, ``judge`` for each finding, ``settlement_event`` for what
the verdict does to the invocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ledger.contracts import Contract, Deduplicates, Lookup
from ledger.decisions import STRICTNESS, DenialClass
from ledger.states import Event, Standing, State
from reconciliation.findings import Difference, Finding, FindingKind, Item, ItemStatus

BUDGET_LOOKUPS = 12
"""Look-ups before a person is called: with the backoff below they span about two hours."""

BUDGET_S = 86_400
"""Seconds before a person is called, if the look-ups were used up sooner: one day outlives most outages."""

ESCALATED_EVERY_S = 3_600
"""How often the receiver is still asked once a person has been called."""

BACKOFF_FIRST_S = 2
BACKOFF_LONGEST_S = 3_600
"""Backoff doubles from two seconds, soon enough for a slow index, to an hour, rare enough for an outage."""

RETRY_AFTER_LONGEST_S = 86_400
"""The longest wish of a receiver that is obeyed: beyond a day it cannot be told from a mistake."""

SIGHTINGS_APART_S = 1
"""Two sightings of absence are at least this far apart, or the visibility lag if that is longer."""

JUST_AFTER = timedelta(milliseconds=1)
"""A look-up *at* the bound proves nothing yet: it is asked a moment later."""


class VerdictKind(StrEnum):
    """What is done about it."""

    SETTLE = "settle"
    ASK_AGAIN = "ask_again"
    ESCALATE = "escalate"
    EVIDENCE_ONLY = "evidence_only"  # a person has the case: kept and shown, nothing moves


class Outcome(StrEnum):
    """What was proved about the effect."""

    COMPLETED = "completed"
    DENIED = "denied"


class Flag(StrEnum):
    """What is wrong with an effect that exists."""

    DUPLICATE_EFFECT = "duplicate_effect"
    DIVERGED_EFFECT = "diverged_effect"


class VerdictReason(StrEnum):
    """Why the verdict is what it is."""

    # settle
    EFFECT_FOUND = "effect_found"
    DUPLICATE_EFFECT = "duplicate_effect"
    DIVERGED_EFFECT = "diverged_effect"
    SECOND_REFERENCE = "second_reference"
    REFUSED = "refused"
    ABSENT = "absent"
    REPLAYS_ERROR = "replays_error"
    # ask again
    IN_PROGRESS = "in_progress"
    UNLISTED_STATUS = "unlisted_status"
    ABSENCE_UNPROVEN = "absence_unproven"
    UNCLEAR = "unclear"
    AWAITING_CALLBACK = "awaiting_callback"
    # ask again, and escalate
    REFUSAL_UNPROVEN = "refusal_unproven"
    # escalate
    OPERATOR_ONLY = "operator_only"
    UNATTRIBUTED_EFFECT = "unattributed_effect"
    STILL_PENDING = "still_pending"
    ABSENCE_UNPROVABLE = "absence_unprovable"
    RECEIVER_UNREACHABLE = "receiver_unreachable"


WHEN_BUDGET_IS_USED: dict[VerdictReason, VerdictReason] = {
    VerdictReason.IN_PROGRESS: VerdictReason.STILL_PENDING,
    VerdictReason.UNLISTED_STATUS: VerdictReason.STILL_PENDING,
    VerdictReason.AWAITING_CALLBACK: VerdictReason.STILL_PENDING,
    VerdictReason.REFUSAL_UNPROVEN: VerdictReason.REFUSAL_UNPROVEN,
    VerdictReason.ABSENCE_UNPROVEN: VerdictReason.ABSENCE_UNPROVABLE,
    VerdictReason.UNCLEAR: VerdictReason.RECEIVER_UNREACHABLE,
}
"""What a reason to ask again becomes once asking is used up."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Everything besides the finding that a verdict reads: plain facts of the database, all times aware and its own.

    contract          of the capability version that the invocation is judged against
    now               when it is judged
    asked_at          when the look-up was *asked*; of a callback, when it arrived
    since             when the budget began: the case's opening
    lookups           look-ups of this case, this one included; callbacks do not count
    bound             see the function of that name; None where nothing says when sending ended
    first_permit_at   of the invocation; where there was none, the arrival of the parked evidence
    sightings         ``Verdict.sightings`` of the case's verdict before this one
    standing          the invocation's
    known_others      what the receiver may attribute to *other* operations on record: their operation IDs, business
                      references or idempotency keys, whichever the configuration compares
    known_references  receiver's references the invocation was settled with, or that a person accepted; empty while
                      nothing is settled
    flags             flags on record that a person has cleared: the same finding again is agreement
    settled_as_of     the time that the evidence speaks of which settled the invocation; None while unsettled
    stale             of a callback: correctly signed, but older than the tolerance
    jitter            a fresh random number from 0 up to, not including, 1
    """

    contract: Contract
    now: datetime
    asked_at: datetime
    since: datetime
    lookups: int = 1
    bound: datetime | None = None
    first_permit_at: datetime | None = None
    sightings: tuple[datetime, ...] = ()
    standing: Standing = Standing.NONE
    known_others: frozenset[str] = frozenset()
    known_references: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    settled_as_of: datetime | None = None
    stale: bool = False
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a finding proves, and what follows.

    outcome        None unless something was proved. Beside ``evidence_only`` it says what would have been settled.
    flag           beside ``completed`` only
    denial_reason  and ``denial_class``, ``clears_after_s`` (seconds from ``as_of``, for ``clears_at``): beside ``denied``
    next_at        when to ask again; None: there is nothing to ask, or no need to
    references     the receiver's references of what is ours
    differences    between what was intended and what was found
    sightings      to be kept with the case and given to the next judgement
    as_of          the time that the finding speaks of
    may_dispute    receiver-authenticated, fresh, and not older than what settled the record
    unverifies     the receiver made two effects under one key: its contract's verification is void at once
    explanation    one sentence for people
    """

    kind: VerdictKind
    reason: VerdictReason
    explanation: str
    as_of: datetime
    outcome: Outcome | None = None
    flag: Flag | None = None
    denial_reason: str | None = None
    denial_class: DenialClass | None = None
    clears_after_s: float | None = None
    next_at: datetime | None = None
    references: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    sightings: tuple[datetime, ...] = ()
    may_dispute: bool = False
    unverifies: bool = False

    def as_json(self) -> dict[str, Any]:
        """The verdict as the API shows it."""
        denial = None
        if self.outcome is Outcome.DENIED:
            denial = {"reason": self.denial_reason, "class": self.denial_class}
        return {
            "kind": self.kind.value,
            "outcome": self.outcome and self.outcome.value,
            "flag": self.flag and self.flag.value,
            "reason": self.reason.value,
            "denial": denial,
            "next_at": self.next_at and self.next_at.isoformat(),
            "references": list(self.references),
            "differences": [
                {"field": one.field, "intended": one.intended, "found": one.found} for one in self.differences
            ],
            "explanation": self.explanation,
        }


def attempt_end(*, reported_at: datetime | None, lease_until: datetime) -> datetime:
    """When sending of one attempt was over: its permit's *holder* said so, else its lease ended."""
    return lease_until if reported_at is None else reported_at


def bound(
    attempt_ends: Iterable[datetime], *, in_flight_s: float, visibility_lag_s: float
) -> datetime | None:
    """The moment after which an effect of any of the attempts has landed and can be seen, if it exists.

    ``attempt_ends``: ``attempt_end`` of *all* attempts. None without any: then nothing says when sending ended, and
    absence is never proved.
    """
    last = max(attempt_ends, default=None)
    return None if last is None else last + timedelta(seconds=in_flight_s + visibility_lag_s)


def attributed(finding: Finding) -> frozenset[str]:
    """Every name that the receiver attributes an item to: those of them on record fill ``known_others``."""
    return frozenset(item.attributed_to for item in finding.items if item.attributed_to is not None)


def judge(finding: Finding, circumstances: Circumstances) -> Verdict:
    """What the finding proves. On a discrepancy or an abandoned operation it is kept and shown, and nothing moves."""
    verdict = _judge(_Judged.of(finding, circumstances))
    match circumstances.standing:
        case Standing.NONE:
            return verdict
        case Standing.DISCREPANCY:
            why, next_at = (
                "The record and the receiver disagree, so a person decides.",
                _hourly(circumstances),
            )
        case Standing.ABANDONED:
            why, next_at = "The operation was abandoned; only a person changes that.", None
    explanation = f"{verdict.explanation} {why}"
    return replace(verdict, kind=VerdictKind.EVIDENCE_ONLY, explanation=explanation, next_at=next_at)


def settlement_event(state: State, verdict: Verdict) -> tuple[Event, ...]:
    """The events, in order, by which a verdict moves an invocation in ``state``; none where it is evidence only.

    What contradicts *whether* the effect exists disputes, if the evidence may; a flag completes first, if needed.
    """
    if verdict.kind is not VerdictKind.SETTLE or verdict.outcome is None:
        return ()
    undecided = state in (State.DISPATCHED, State.UNKNOWN)
    dispute = (Event.DISPUTE,) if verdict.may_dispute else ()
    if verdict.outcome is Outcome.DENIED:
        return (Event.DENY,) if undecided else dispute if state is State.COMPLETED else ()
    flag = (Event.FLAG,) if verdict.flag else ()
    if state is State.COMPLETED:
        return flag
    return (Event.COMPLETE, *flag) if undecided else dispute


@dataclass(frozen=True, slots=True)
class _Judged:
    """A finding with its circumstances, and what the rows ask of both, worked out once."""

    finding: Finding
    around: Circumstances
    ours: tuple[Item, ...]
    nobodys: tuple[Item, ...]
    as_of: datetime

    @classmethod
    def of(cls, finding: Finding, around: Circumstances) -> _Judged:
        """Drops what is attributed to other known operations, and says whose the rest is.

        A finding cannot know more than when it was asked: a receiver's clock that runs ahead gains it nothing.
        """
        ours: list[Item] = []
        nobodys: list[Item] = []
        for item in finding.items:
            if item.ours is not True and item.attributed_to in around.known_others:
                continue
            mine = around.contract.lookup is Lookup.BY_KEY if item.ours is None else item.ours
            (ours if mine else nobodys).append(item)
        as_of = around.asked_at if finding.as_of is None else min(finding.as_of, around.asked_at)
        return cls(finding, around, tuple(ours), tuple(nobodys), as_of)

    @property
    def contract(self) -> Contract:
        return self.around.contract

    @property
    def effects(self) -> tuple[Item, ...]:
        """Ours that exist. One reference is one effect, however often a list repeats it."""
        return _distinct(item for item in self.ours if item.status is ItemStatus.COMPLETED)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of all our effects, each once."""
        found = (one for item in self.ours if item.status is ItemStatus.COMPLETED for one in item.differences)
        return tuple(dict.fromkeys(found))

    @property
    def only_refused(self) -> bool:
        return bool(self.ours) and all(item.status is ItemStatus.DENIED for item in self.ours)

    @property
    def absent(self) -> bool:
        """Understood, and nothing in it that could be ours. A callback that names nothing is not an absence."""
        return (
            self.finding.kind is FindingKind.ITEMS
            and not self.finding.callback
            and not self.ours
            and not self.nobodys
        )

    @property
    def after_bound(self) -> bool:
        return self.around.bound is not None and self.as_of > self.around.bound

    @property
    def remembered(self) -> bool:
        """Whether the look-up, when it was asked, still reached back to the first permit."""
        memory_s = self.contract.memory_s
        if memory_s is None:
            return True
        first = self.around.first_permit_at
        return first is not None and self.around.asked_at < first + timedelta(seconds=memory_s)

    @property
    def counts_for_absence(self) -> bool:
        return (
            self.absent
            and self.after_bound
            and self.remembered
            and self.finding.complete
            and self.finding.authoritative
        )

    @property
    def shows_every_record(self) -> bool:
        """Whether no effect can stand on a part that was not shown.

        Where the receiver deduplicates by key, there is one record under a key, and a look-up by it shows that one.
        """
        single = self.contract.lookup is Lookup.BY_KEY and self.contract.deduplicates is Deduplicates.KEY
        return self.finding.complete or single

    @property
    def counts_for_refusal(self) -> bool:
        return (
            self.only_refused and self.after_bound and self.finding.authoritative and self.shows_every_record
        )

    @property
    def counted(self) -> tuple[datetime, ...]:
        """Earlier sightings that count: those after the bound, which moves with every attempt."""
        bound_at = self.around.bound
        return tuple(seen for seen in self.around.sightings if bound_at is not None and seen > bound_at)

    @property
    def apart(self) -> timedelta:
        return timedelta(seconds=max(self.contract.visibility_lag_s, SIGHTINGS_APART_S))

    @property
    def seen_twice(self) -> bool:
        return any(abs(self.as_of - seen) >= self.apart for seen in self.counted)

    @property
    def sightings(self) -> tuple[datetime, ...]:
        """What the case keeps. Any item that is or could be ours ends a row of sightings; no answer leaves it."""
        if self.ours or self.nobodys:
            return ()
        if self.counts_for_absence:
            seen = (*self.counted, self.as_of)
            return (min(seen), max(seen)) if len(seen) > 1 else seen
        return self.counted

    @property
    def may_dispute(self) -> bool:
        settled = self.around.settled_as_of
        fresh = not self.around.stale and (settled is None or self.as_of >= settled)
        return self.finding.authoritative and fresh

    def verdict(self, kind: VerdictKind, reason: VerdictReason, explanation: str, **more: Any) -> Verdict:
        return Verdict(
            kind,
            reason,
            explanation,
            as_of=self.as_of,
            references=_references(self.ours),
            sightings=self.sightings,
            may_dispute=self.may_dispute,
            **more,
        )


def _judge(judged: _Judged) -> Verdict:
    """The rows in their order."""
    if not judged.finding.callback and _nothing_to_ask(judged):
        return _operator_only(judged)
    if judged.finding.kind is not FindingKind.ITEMS:
        return _again(judged, _why_unclear(judged))
    if judged.nobodys and _only_strangers(judged):
        return _unattributed(judged)
    effects = judged.effects
    if len(effects) > 1:
        return _completed(judged, effects, _flag_of_duplicates(judged, effects))
    if effects:
        return _completed(judged, effects, _flag_of_one(judged, effects[0]))
    if judged.only_refused:
        if judged.counts_for_refusal:
            return _refused(judged)
        return _again(judged, VerdictReason.REFUSAL_UNPROVEN)
    if judged.absent:
        if judged.counts_for_absence and judged.seen_twice:
            return _absent(judged)
        if not judged.remembered:
            return _forgotten(judged)
        return _again(judged, VerdictReason.ABSENCE_UNPROVEN)
    return _again(judged, _why_pending(judged))


def _nothing_to_ask(judged: _Judged) -> bool:
    """Whether the contract has no look-up; where a callback is promised, no answer means waiting for it."""
    if judged.contract.operator_only:
        return True
    return judged.finding.kind is FindingKind.NO_LOOKUP and judged.contract.lookup is not Lookup.CALLBACK


def _only_strangers(judged: _Judged) -> bool:
    """Whether nothing of ours stands beside nobody's items, or nothing but refusals beside an effect of nobody's.

    In the second case the effect may be ours after all, unmarked: denying it would open the way to a second one.
    """
    if not judged.ours:
        return True
    effect = any(item.status is ItemStatus.COMPLETED for item in judged.nobodys)
    return effect and judged.only_refused


def _why_unclear(judged: _Judged) -> VerdictReason:
    no_lookup = judged.finding.kind is FindingKind.NO_LOOKUP
    return VerdictReason.AWAITING_CALLBACK if no_lookup else VerdictReason.UNCLEAR


def _why_pending(judged: _Judged) -> VerdictReason:
    statuses = {item.status for item in judged.ours}
    if ItemStatus.UNLISTED in statuses:
        return VerdictReason.UNLISTED_STATUS
    return VerdictReason.IN_PROGRESS if ItemStatus.IN_PROGRESS in statuses else VerdictReason.UNCLEAR


def _operator_only(judged: _Judged) -> Verdict:
    return judged.verdict(
        VerdictKind.ESCALATE,
        VerdictReason.OPERATOR_ONLY,
        "The receiver offers no way to ask what happened: only a person can find out.",
    )


def _unattributed(judged: _Judged) -> Verdict:
    return judged.verdict(
        VerdictKind.ESCALATE,
        VerdictReason.UNATTRIBUTED_EFFECT,
        f"The receiver shows {_count(judged.nobodys, 'entry', 'entries')} that nothing ties to this operation or to "
        "another: a person has to say whose.",
        next_at=_hourly(judged.around),
    )


def _flag_of_duplicates(judged: _Judged, effects: Sequence[Item]) -> VerdictReason:
    """Duplicates that a person has seen and cleared are agreement, until another one turns up."""
    known = judged.around.known_references
    cleared = Flag.DUPLICATE_EFFECT in judged.around.flags
    if cleared and all(item.reference is None or item.reference in known for item in effects):
        return VerdictReason.EFFECT_FOUND
    return VerdictReason.DUPLICATE_EFFECT


def _flag_of_one(judged: _Judged, effect: Item) -> VerdictReason:
    """Whether the one effect is what was intended, and the one on record."""
    known = judged.around.known_references
    other = bool(known) and effect.reference is not None and effect.reference not in known
    accepted = Flag.DIVERGED_EFFECT in judged.around.flags and not other
    if judged.differences and not accepted:
        return VerdictReason.DIVERGED_EFFECT
    return VerdictReason.SECOND_REFERENCE if other else VerdictReason.EFFECT_FOUND


def _completed(judged: _Judged, effects: Sequence[Item], reason: VerdictReason) -> Verdict:
    flag, explanation = _said_of_effects(judged, effects, reason)
    duplicated = reason is VerdictReason.DUPLICATE_EFFECT
    return judged.verdict(
        VerdictKind.SETTLE,
        reason,
        explanation,
        outcome=Outcome.COMPLETED,
        flag=flag,
        differences=judged.differences,
        unverifies=duplicated and judged.contract.deduplicates is Deduplicates.KEY,
    )


def _said_of_effects(
    judged: _Judged, effects: Sequence[Item], reason: VerdictReason
) -> tuple[Flag | None, str]:
    references = _references(effects)
    named = f" ({', '.join(references)})" if references else ""
    fields = ", ".join(dict.fromkeys(one.field for one in judged.differences))
    match reason:
        case VerdictReason.DUPLICATE_EFFECT:
            return (
                Flag.DUPLICATE_EFFECT,
                f"The receiver shows {len(effects)} effects of this operation{named}.",
            )
        case VerdictReason.DIVERGED_EFFECT:
            return (
                Flag.DIVERGED_EFFECT,
                f"The effect exists{named}, but is not what was intended in: {fields}.",
            )
        case VerdictReason.SECOND_REFERENCE:
            return (
                Flag.DUPLICATE_EFFECT,
                f"The receiver shows an effect{named} that is not the one on record.",
            )
        case _ if fields or len(effects) > 1:
            return None, f"The receiver shows{named} what a person has already accepted."
        case _:
            return None, f"The receiver shows the effect{named} as it was intended."


def _refused(judged: _Judged) -> Verdict:
    """Denied, with the strictest class among the refusals: what the contract does not list stands."""
    reason, denial_class, clears_after_s = _strictest(judged)
    return judged.verdict(
        VerdictKind.SETTLE,
        VerdictReason.REFUSED,
        f"The receiver refused it ({reason}), and nothing of it can still arrive.",
        outcome=Outcome.DENIED,
        denial_reason=reason,
        denial_class=denial_class,
        clears_after_s=clears_after_s,
    )


def _strictest(judged: _Judged) -> tuple[str, DenialClass, float | None]:
    refusals: list[tuple[str, DenialClass, float | None]] = []
    for item in judged.ours:
        reason = item.denial_reason or item.raw_status or VerdictReason.REFUSED.value
        refusals.append((reason, *(judged.contract.denial_class(reason) or (DenialClass.STANDING, None))))
    return max(refusals, key=lambda refusal: (STRICTNESS.index(refusal[1]), refusal[2] or 0))


def _absent(judged: _Judged) -> Verdict:
    """Denied: gone for good and free to be tried again, unless the receiver would only repeat a stored error."""
    if judged.finding.stored_error:
        reason, denial_class = VerdictReason.REPLAYS_ERROR, DenialClass.STANDING
        explanation = "The effect does not exist, and the receiver answers this key with a stored error."
    else:
        reason, denial_class = VerdictReason.ABSENT, DenialClass.CLEARED
        explanation = (
            "The receiver was asked twice after everything had to have arrived: the effect does not exist."
        )
    return judged.verdict(
        VerdictKind.SETTLE,
        reason,
        explanation,
        outcome=Outcome.DENIED,
        denial_reason=reason.value,
        denial_class=denial_class,
    )


def _forgotten(judged: _Judged) -> Verdict:
    return judged.verdict(
        VerdictKind.ESCALATE,
        VerdictReason.ABSENCE_UNPROVABLE,
        "Nothing was found, but the look-up no longer reaches back far enough to mean anything.",
        next_at=_hourly(judged.around),
    )


_WHY_AGAIN: dict[VerdictReason, str] = {
    VerdictReason.IN_PROGRESS: "The receiver is still working on it",
    VerdictReason.UNLISTED_STATUS: "The receiver shows a status that its contract does not list",
    VerdictReason.AWAITING_CALLBACK: "The receiver cannot be asked, and its callback has not come",
    VerdictReason.REFUSAL_UNPROVEN: "The receiver shows a refusal, which does not yet rule out an effect",
    VerdictReason.ABSENCE_UNPROVEN: "Nothing was found, which does not yet mean that it did not happen",
    VerdictReason.UNCLEAR: "The receiver's answer says nothing about the effect",
}


def _again(judged: _Judged, reason: VerdictReason) -> Verdict:
    """Asks again while the budget lasts; then a person is called, and the receiver is still asked every hour."""
    around = judged.around
    if judged.contract.operator_only:
        return _operator_only(judged)
    lacking = _lacking(judged, reason)
    explanation = f"{_WHY_AGAIN[reason]}{f': {lacking}' if lacking else ''}."
    if _budget_left(around):
        return judged.verdict(VerdictKind.ASK_AGAIN, reason, explanation, next_at=_next_at(judged, reason))
    next_at = _hourly(around)
    if next_at is not None:
        settling = _settling_at(judged, reason)
        next_at = _as_wished(judged, next_at if settling is None else min(next_at, settling))
    return judged.verdict(
        VerdictKind.ESCALATE,
        WHEN_BUDGET_IS_USED[reason],
        f"{explanation} It was asked for long enough: a person has to look.",
        next_at=next_at,
    )


def _lacking(judged: _Judged, reason: VerdictReason) -> str | None:
    """What is missing, for people: why the answer was unclear, or the first condition that is not met."""
    if reason is VerdictReason.UNCLEAR:
        return judged.finding.why
    if reason not in (VerdictReason.REFUSAL_UNPROVEN, VerdictReason.ABSENCE_UNPROVEN):
        return None
    if judged.around.bound is None:
        return "nothing on record says when sending ended"
    if not judged.after_bound:
        until = judged.around.bound.isoformat(timespec="seconds")
        return f"an effect may arrive and become visible until {until}"
    if not judged.finding.authoritative:
        return "its source cannot prove it"
    return "it has to be seen a second time" if judged.finding.complete else "the answer may be incomplete"


def _budget_left(around: Circumstances) -> bool:
    """Twelve look-ups or a day, whichever is later; where nothing can be asked, the day."""
    in_time = around.now < around.since + timedelta(seconds=BUDGET_S)
    return in_time or (around.contract.can_be_asked and around.lookups < BUDGET_LOOKUPS)


def _next_at(judged: _Judged, reason: VerdictReason) -> datetime:
    around = judged.around
    if not judged.contract.can_be_asked:
        return around.since + timedelta(seconds=BUDGET_S)
    settling = _settling_at(judged, reason)
    backoff = around.now + timedelta(seconds=_backoff_s(around))
    if settling is None:
        next_at = backoff
    elif judged.after_bound:
        next_at = settling
    else:
        next_at = min(settling, backoff)
    return _as_wished(judged, next_at)


def _as_wished(judged: _Judged, next_at: datetime) -> datetime:
    """Not before the receiver's retry-after is over."""
    wish_s = judged.finding.retry_after_s
    if wish_s is None or not wish_s > 0:
        return next_at
    return max(next_at, judged.around.now + timedelta(seconds=min(wish_s, RETRY_AFTER_LONGEST_S)))


def _settling_at(judged: _Judged, reason: VerdictReason) -> datetime | None:
    """When the same answer would settle it: after the bound, or as the second sighting; None: at no known time."""
    around = judged.around
    if reason not in (VerdictReason.REFUSAL_UNPROVEN, VerdictReason.ABSENCE_UNPROVEN) or around.bound is None:
        return None
    if not judged.finding.authoritative:
        return None
    if not judged.after_bound:
        behind = around.asked_at - judged.as_of
        return max(around.now, around.bound + behind + JUST_AFTER)
    if judged.counts_for_absence:
        return max(around.now, around.asked_at + judged.apart)
    return None


def _backoff_s(around: Circumstances) -> float:
    """Doubles with each look-up; jitter takes up to half of it away, so that cases do not ask in step."""
    doubled: int = BACKOFF_FIRST_S * 2 ** min(max(around.lookups - 1, 0), BUDGET_LOOKUPS)
    share = 0.5 + min(max(around.jitter, 0.0), 1.0) / 2
    return min(doubled, BACKOFF_LONGEST_S) * share


def _hourly(around: Circumstances) -> datetime | None:
    if not around.contract.can_be_asked:
        return None
    return around.now + timedelta(seconds=ESCALATED_EVERY_S)


def _distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    """One item per reference; without a reference nothing says that two are the same."""
    kept: list[Item] = []
    seen: set[str] = set()
    for item in items:
        if item.reference is not None:
            if item.reference in seen:
                continue
            seen.add(item.reference)
        kept.append(item)
    return tuple(kept)


def _references(items: Iterable[Item]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.reference for item in items if item.reference is not None))


def _count(items: Sequence[Item], one: str, many: str) -> str:
    return f"one {one}" if len(items) == 1 else f"{len(items)} {many}"

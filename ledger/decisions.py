"""May the caller dispatch? One table, tried from the top; the first row that matches decides.

Pure: standard library only, no clock, no database. The table is total: its last row stops whatever no other row
knows, so that a combination nobody thought of fails closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from ledger.states import Standing, State, at_lease


class Permission(StrEnum):
    """What the permission facts amount to at this moment (see ``permissions.judge``)."""

    GRANTED = "granted"
    NOT_REQUIRED = "not_required"
    PENDING = "pending"
    PAUSED = "paused"
    LAPSED = "lapsed"


class DenialClass(StrEnum):
    """Whether the reason of a denial stands. A ``clears_at`` whose time has passed is to be given as ``cleared``."""

    STANDING = "standing"
    CLEARS_AT = "clears_at"
    CLEARED = "cleared"


class Action(StrEnum):
    """What the caller does next. Only ``dispatch`` and ``retry`` allow a permit."""

    DISPATCH = "dispatch"
    RETRY = "retry"
    WAIT = "wait"
    RESUME = "resume"
    RECONCILE = "reconcile"
    STOP = "stop"


class Reason(StrEnum):
    """Why the caller is told so."""

    NO_LEDGER_ENTRY = "no_ledger_entry"
    ATTEMPT_IN_FLIGHT = "attempt_in_flight"
    WITHDRAWN = "withdrawn"
    DISCREPANCY = "discrepancy"
    ABANDONED = "abandoned"
    EFFECT_EXISTS = "effect_exists"
    RECEIVER_REPLAYS = "receiver_replays"
    OUTCOME_UNKNOWN = "outcome_unknown"
    DENIED = "denied"
    NOT_PERMITTED = "not_permitted"
    PAUSED = "paused"
    AWAITING_APPROVAL = "awaiting_approval"
    POSSIBLE_DUPLICATE = "possible_duplicate"
    DENIAL_CLEARS_AT = "denial_clears_at"
    DENIAL_CLEARED = "denial_cleared"
    INTENT_RECORDED = "intent_recorded"
    NO_RULE = "no_rule"


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the table reads.

    ``state`` None: there is no entry. ``lease_running``: the open attempt's lease, by the database's clock; it means
    nothing unless the state is dispatched. ``permission_reason`` is a word of ``permissions.PermissionReason``.
    ``denial`` None: nothing was denied. ``replay_guaranteed``: see the function of that name.
    """

    state: State | None
    lease_running: bool = False
    standing: Standing = Standing.NONE
    permission: Permission = Permission.LAPSED
    permission_reason: str | None = None
    denial: DenialClass | None = None
    replay_guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why. ``detail`` says which lack of permission it is, beside ``not_permitted`` only."""

    action: Action
    reason: Reason
    detail: str | None = None

    @property
    def allows_permit(self) -> bool:
        """Whether an attempt may be opened on it."""
        return self.action in (Action.DISPATCH, Action.RETRY)

    @property
    def may_change(self) -> bool:
        """Whether waiting for another decision makes sense: a long poll answers at once where it does not."""
        return self.action in (Action.WAIT, Action.RECONCILE)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. A column that is None matches anything; ``states`` None also matches every state on record.

    ``no_entry`` is the row for what is not on record; ``permission_reason`` tells the two pending rows apart.
    """

    action: Action
    reason: Reason
    states: frozenset[State] | None = None
    no_entry: bool = False
    standing: Standing | None = None
    permissions: frozenset[Permission] | None = None
    permission_reason: str | None = None
    denial: DenialClass | None = None
    replay_guaranteed: bool | None = None
    remark: str = ""

    def matches(self, situation: Situation, state: State | None) -> bool:
        """Whether every column holds. ``state`` is the situation's, read with its lease."""
        if state is None or self.no_entry:
            return state is None and self.no_entry
        return (
            (self.states is None or state in self.states)
            and (self.standing is None or situation.standing is self.standing)
            and (self.permissions is None or situation.permission in self.permissions)
            and (self.permission_reason is None or situation.permission_reason == self.permission_reason)
            and (self.denial is None or situation.denial is self.denial)
            and (self.replay_guaranteed is None or situation.replay_guaranteed is self.replay_guaranteed)
        )


_ALLOWED = frozenset({Permission.GRANTED, Permission.NOT_REQUIRED})
_LAPSED = frozenset({Permission.LAPSED})
_PAUSED = frozenset({Permission.PAUSED})
_PENDING = frozenset({Permission.PENDING})
_INTENDED = frozenset({State.INTENDED})
_DISPATCHED = frozenset({State.DISPATCHED})
_COMPLETED = frozenset({State.COMPLETED})
_DENIED = frozenset({State.DENIED})
_UNKNOWN = frozenset({State.UNKNOWN})
_WITHDRAWN = frozenset({State.WITHDRAWN})

RULES: tuple[Rule, ...] = (
    Rule(Action.STOP, Reason.NO_LEDGER_ENTRY, no_entry=True, remark="fail closed; opens a case"),
    Rule(Action.WAIT, Reason.ATTEMPT_IN_FLIGHT, states=_DISPATCHED, remark="its lease runs"),
    Rule(Action.STOP, Reason.WITHDRAWN, states=_WITHDRAWN),
    Rule(Action.WAIT, Reason.DISCREPANCY, standing=Standing.DISCREPANCY, remark="a person settles it"),
    Rule(
        Action.STOP,
        Reason.ABANDONED,
        states=frozenset(State) - _COMPLETED,
        standing=Standing.ABANDONED,
    ),
    Rule(Action.RESUME, Reason.EFFECT_EXISTS, states=_COMPLETED, remark="the stored outcome is returned"),
    Rule(
        Action.RETRY,
        Reason.RECEIVER_REPLAYS,
        states=_UNKNOWN,
        permissions=_ALLOWED,
        replay_guaranteed=True,
        remark="same key, same arguments",
    ),
    Rule(Action.RECONCILE, Reason.OUTCOME_UNKNOWN, states=_UNKNOWN),
    Rule(Action.STOP, Reason.DENIED, states=_DENIED, denial=DenialClass.STANDING),
    Rule(Action.STOP, Reason.NOT_PERMITTED, permissions=_LAPSED, remark="with which permission is lacking"),
    Rule(Action.WAIT, Reason.PAUSED, permissions=_PAUSED),
    Rule(
        Action.WAIT,
        Reason.POSSIBLE_DUPLICATE,
        permissions=_PENDING,
        permission_reason="possible_duplicate",
        remark="clears when the twin settles",
    ),
    Rule(Action.WAIT, Reason.AWAITING_APPROVAL, permissions=_PENDING),
    Rule(
        Action.WAIT,
        Reason.DENIAL_CLEARS_AT,
        states=_DENIED,
        permissions=_ALLOWED,
        denial=DenialClass.CLEARS_AT,
    ),
    Rule(
        Action.RETRY,
        Reason.DENIAL_CLEARED,
        states=_DENIED,
        permissions=_ALLOWED,
        denial=DenialClass.CLEARED,
    ),
    Rule(Action.DISPATCH, Reason.INTENT_RECORDED, states=_INTENDED, permissions=_ALLOWED),
    Rule(Action.STOP, Reason.NO_RULE, remark="anything else"),
)


def decide(situation: Situation) -> Decision:
    """The first matching row's answer. Dispatched past its lease is read as unknown, whatever the row still says."""
    state = situation.state
    if state is not None:
        state = at_lease(state, lease_running=situation.lease_running)
    for rule in RULES:
        if rule.matches(situation, state):
            detail = situation.permission_reason if rule.reason is Reason.NOT_PERMITTED else None
            return Decision(rule.action, rule.reason, detail)
    raise AssertionError("the last rule matches everything on record")  # pragma: no cover


STRICTNESS = (DenialClass.CLEARED, DenialClass.CLEARS_AT, DenialClass.STANDING)
"""From the mildest to the strictest."""


def stricter(first: DenialClass, second: DenialClass) -> DenialClass:
    """The stricter of two classes: a runtime may tighten what the contract says, never loosen it."""
    return max(first, second, key=STRICTNESS.index)


MAX_ATTEMPTS = 5
"""Attempts of one operation: five lost replies under one key say that something else is wrong."""

REPLAY_MARGIN_S = 30
"""Seconds kept between the end of a retry and the end of the receiver's key window: clocks differ by less."""


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """What has to hold before the same key may be sent while the outcome is unknown. Seconds and database times.

    ``replays_same_key``: the contract says that the receiver deduplicates by key and answers a repeat from its record.
    ``verified``: an administrator and a second person verified that claim for this capability version.
    ``duplicate_under_key``: two effects were ever found under one key at this receiver.
    ``first_permit_at`` None: no permit on record. ``key_retained_s`` None: the contract does not say.
    ``sending_ended_at``: the last attempt's end: when its holder reported on it, else its lease end.
    ``lost_at``: when the outcome became unknown: the report of it, or the lease's end.
    ``asked_at``: when the receiver was last asked; None if never.
    ``attempts``: how many permits the operation has had.
    """

    now: datetime
    replays_same_key: bool
    verified: bool
    first_permit_at: datetime | None
    key_retained_s: float | None
    lease_s: float
    in_flight_s: float
    key_claimed_before_effect: bool
    sending_ended_at: datetime | None
    can_be_asked: bool
    lost_at: datetime | None
    asked_at: datetime | None
    attempts: int
    max_attempts: int = MAX_ATTEMPTS
    duplicate_under_key: bool = False
    margin_s: float = REPLAY_MARGIN_S


def replay_guaranteed(facts: ReplayFacts) -> bool:
    """Whether a second sending under the same key cannot make a second effect. Every clause must hold.

    1. the receiver replays under the same key, that claim is verified, and nothing has disproved it;
    2. the retry is over, with a margin, before the receiver forgets the key;
    3. the last attempt can no longer land, unless the receiver claims the key before it makes the effect;
    4. the receiver was asked since the loss, where it can be asked;
    5. attempts are left.
    """
    return (
        facts.replays_same_key
        and facts.verified
        and not facts.duplicate_under_key
        and _ends_within_key_window(facts)
        and (facts.key_claimed_before_effect or _landed(facts))
        and (not facts.can_be_asked or _asked_since_loss(facts))
        and facts.attempts < facts.max_attempts
    )


def _ends_within_key_window(facts: ReplayFacts) -> bool:
    if facts.first_permit_at is None or facts.key_retained_s is None:
        return False
    needed_s = facts.lease_s + facts.in_flight_s + facts.margin_s
    elapsed_s = (facts.now - facts.first_permit_at).total_seconds()
    return elapsed_s + needed_s < facts.key_retained_s


def _landed(facts: ReplayFacts) -> bool:
    ended_at = facts.sending_ended_at
    return ended_at is not None and facts.now > ended_at + timedelta(seconds=facts.in_flight_s)


def _asked_since_loss(facts: ReplayFacts) -> bool:
    return facts.lost_at is not None and facts.asked_at is not None and facts.asked_at >= facts.lost_at

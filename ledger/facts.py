"""What is known of one operation at one moment, and everything that follows from it by the tables.

``Facts`` is built from one row of the SQL function ``ledger_facts_of`` (or, after the hot path, from what was just
written) and is put to ``decisions.decide`` through ``Facts.decision``. Time passes only through ``now``: a lease that
is over by the database clock *is* over here, whether or not the sweep has been there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

import orjson

from ledger import decisions, permissions, states
from ledger.contracts import Contract, KeyClaimed
from ledger.decisions import Action, Decision, DenialClass, Permission, ReplayFacts, Situation
from ledger.permissions import GrantFact, Judgement, MandateFact, PermissionFacts, PermissionReason
from ledger.states import AttemptState, Standing, State

RECONCILE_POLL_S = 5  # how soon a caller that is told "reconcile" should look again: two sweeps and a look-up


def moment(text: str | None) -> datetime | None:
    """A database timestamp in JSON → aware datetime."""
    return None if text is None else datetime.fromisoformat(text)


@lru_cache(maxsize=1024)
def _contract(text: bytes) -> Contract:
    return Contract.parse(orjson.loads(text))


def contract_of(stored: Mapping[str, Any]) -> Contract:
    """The parsed contract of a stored one; parsed once per distinct contract and process."""
    return _contract(orjson.dumps(stored, option=orjson.OPT_SORT_KEYS))


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt as the record has it; ``state`` is still ``open`` after its lease until somebody writes that down."""

    number: int
    state: AttemptState
    permitted_at: datetime
    lease_until: datetime
    reported_at: datetime | None
    ended_at: datetime | None
    fault: str | None
    nonce_hash: str  # hex

    def at(self, now: datetime) -> AttemptState:
        """Its state at ``now``: an open attempt whose lease is over is lost."""
        if self.state is AttemptState.OPEN and self.lease_until <= now:
            return AttemptState.LOST
        return self.state


@dataclass(frozen=True)
class Facts:
    """Everything a permit, an answer or a page needs of one operation."""

    now: datetime
    row: Mapping[str, Any]  # the jsonb object of ledger_facts_of

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Facts:
        now = moment(row["now"])
        assert now is not None
        return cls(now, row)

    # The columns that callers use by name.

    @property
    def workspace_id(self) -> int:
        return int(self.row["workspace_id"])

    @property
    def invocation_id(self) -> str:
        return str(self.row["invocation_id"])

    @property
    def operation_id(self) -> str:
        return str(self.row["operation_id"])

    @property
    def capability(self) -> str:
        return str(self.row["capability"]["name"])

    @property
    def version(self) -> int:
        return int(self.row["version"])

    @cached_property
    def recorded_state(self) -> State:
        return State(self.row["state"])

    @cached_property
    def standing(self) -> Standing:
        return Standing(self.row["standing"])

    @cached_property
    def contract(self) -> Contract:
        return contract_of(self.row["capability"]["contract"])

    @cached_property
    def attempts(self) -> tuple[AttemptFacts, ...]:
        return tuple(
            AttemptFacts(
                number=a["number"],
                state=AttemptState(a["state"]),
                permitted_at=datetime.fromisoformat(a["permitted_at"]),
                lease_until=datetime.fromisoformat(a["lease_until"]),
                reported_at=moment(a["reported_at"]),
                ended_at=moment(a["ended_at"]),
                fault=a["fault"],
                nonce_hash=a["nonce_hash"],
            )
            for a in self.row["attempts"]
        )

    # What follows.

    @cached_property
    def open_attempt(self) -> AttemptFacts | None:
        """The attempt whose lease still runs."""
        return next((a for a in self.attempts if a.at(self.now) is AttemptState.OPEN), None)

    @cached_property
    def is_too_old(self) -> bool:
        """Only what was never dispatched, refused or disputed is given up by age."""
        valid_until = moment(self.row["intent_valid_until"])
        return self.recorded_state is State.INTENDED and valid_until is not None and valid_until <= self.now

    @cached_property
    def state(self) -> State:
        """The state now: dispatched past its lease is unknown, an intent past its validity is withdrawn."""
        if self.is_too_old:
            return State.WITHDRAWN
        return states.at_lease(self.recorded_state, lease_running=self.open_attempt is not None)

    @cached_property
    def permission(self) -> Judgement:
        capability = self.row["capability"]
        grant = self.row["grant"]
        twins = (
            self.row["twins"]
            if capability["duplicates"] == "hold" and self.row["first_permit_at"] is None
            else ()
        )
        return permissions.judge(
            PermissionFacts(
                now=self.now,
                mandates_open=self.row["mandates_open"],
                mandates=tuple(
                    MandateFact(
                        subject=m["subject"],
                        capability=m["capability"],
                        valid_until=datetime.fromisoformat(m["valid_until"]),
                        revoked=m["revoked"],
                        limited=m["limited"],
                    )
                    for m in self.row["mandates"]
                ),
                subject=self.row["actor_subject"],
                capability=self.capability,
                capability_enabled=capability["enabled"],
                approval_required=self.row["approvals_needed"] > 0,
                binding=self.row["arguments_digest"],
                grant=None
                if grant is None
                else GrantFact(
                    binding=grant["binding"],
                    needed=grant["needed"],
                    given=grant["given"],
                    until=moment(grant["until"]),
                    revoked=grant["revoked"],
                    refused=grant["refused"],
                    approver_lost_role=grant["approver_lost_role"],
                ),
                paused=self.row["paused"],
                twins=tuple(twins),
                # Limits are not counted yet, and what cannot be counted must not be passed.
                limit=PermissionReason.LIMIT_EXCEEDED
                if any(m["limited"] and not m["revoked"] for m in self.row["mandates"])
                else None,
            )
        )

    @cached_property
    def denial(self) -> DenialClass | None:
        """The class of the denial that stands, judged now: one whose time has come is cleared."""
        if self.state is not State.DENIED:
            return None
        denial = DenialClass(self.row["denial_class"] or DenialClass.STANDING)
        if denial is DenialClass.CLEARS_AT:
            clears_at = moment(self.row["denial_clears_at"])
            if clears_at is not None and clears_at <= self.now:
                return DenialClass.CLEARED
        return denial

    @cached_property
    def situation(self) -> Situation:
        return Situation(
            state=self.state,
            lease_running=self.open_attempt is not None,
            standing=self.standing,
            permission=self.permission.permission,
            permission_reason=self.permission.reason,
            denial=self.denial,
            replay_guaranteed=self.state is State.UNKNOWN and self._replay_guaranteed(),
        )

    def _replay_guaranteed(self) -> bool:
        first_permit_at = moment(self.row["first_permit_at"])
        lost = [a for a in self.attempts if a.at(self.now) is AttemptState.LOST]
        if first_permit_at is None or not lost:
            return False
        contract = self.contract
        return decisions.replay_guaranteed(
            ReplayFacts(
                now=self.now,
                replays_same_key=contract.replays_same_key,
                verified=self.row["capability"]["verified"],
                first_permit_at=first_permit_at,
                key_retained_s=contract.key_retained_s,
                lease_s=self.row["capability"]["lease_s"],
                in_flight_s=contract.in_flight_s,
                key_claimed_before_effect=contract.key_claimed is KeyClaimed.BEFORE_EFFECT,
                sending_ended_at=max(a.reported_at or a.lease_until for a in self.attempts),
                can_be_asked=contract.can_be_asked,
                lost_at=max(a.ended_at or a.lease_until for a in lost),
                asked_at=moment(self.row["asked_at"]),
                attempts=len(self.attempts),
                max_attempts=self.row["capability"]["max_attempts"],
                duplicate_under_key="duplicate_effect" in self.row["flags"],
            )
        )

    @cached_property
    def decision(self) -> Decision:
        return decisions.decide(self.situation)

    @property
    def next_attempt(self) -> int | None:
        """The number the next permit would carry; None where none would be given."""
        return len(self.attempts) + 1 if self.decision.action in (Action.DISPATCH, Action.RETRY) else None

    @cached_property
    def retry_at(self) -> datetime | None:
        """When asking again may first find another decision, as far as the record can tell."""
        match self.decision.action:
            case Action.RECONCILE:
                return self.now + timedelta(seconds=RECONCILE_POLL_S)
            case Action.WAIT if self.open_attempt is not None:
                return self.open_attempt.lease_until
            case Action.WAIT if self.denial is DenialClass.CLEARS_AT:
                return moment(self.row["denial_clears_at"])
            case Action.WAIT:
                return self.now + timedelta(seconds=RECONCILE_POLL_S)
        return None

    @cached_property
    def changes_by_itself_at(self) -> datetime | None:
        """When the decision changes although nobody does anything: a lease ends, a denial clears, an intent ages."""
        if self.open_attempt is not None:
            return self.open_attempt.lease_until
        if self.denial is DenialClass.CLEARS_AT:
            return moment(self.row["denial_clears_at"])
        return moment(self.row["intent_valid_until"]) if self.state is State.INTENDED else None

    # The three questions, and what is held.

    @property
    def dispatched(self) -> str:
        """yes: a report or evidence says so; no: no attempt, or every attempt not sent; else unknown."""
        now_states = [a.at(self.now) for a in self.attempts]
        if (
            self.state is State.COMPLETED
            or AttemptState.COMPLETED in now_states
            or AttemptState.DENIED in now_states
        ):
            return "yes"
        if not now_states:
            return "no" if self.state is not State.UNKNOWN else "unknown"
        if all(s is AttemptState.NOT_SENT for s in now_states):
            return "no"
        if any(a.at(self.now) is AttemptState.LOST and a.reported_at is not None for a in self.attempts):
            return "yes"
        return "unknown"

    @property
    def effect(self) -> str:
        if self.state is State.COMPLETED:
            return "yes"
        if self.state in (State.UNKNOWN, State.DISPATCHED):
            return "unknown"
        return "no"

    @property
    def evidence(self) -> str:
        """Whether something outside this ledger has been kept that says how it ended."""
        return (
            "preserved"
            if self.state in (State.COMPLETED, State.DENIED) and self.row["outcome"]
            else "missing"
        )

    @property
    def reservation(self) -> str:
        return "held" if self.state in (State.DISPATCHED, State.UNKNOWN) else "released"

    @property
    def permission_granted(self) -> bool:
        return self.permission.permission in (Permission.GRANTED, Permission.NOT_REQUIRED)


def fold(attempts: tuple[AttemptFacts, ...], now: datetime) -> State:
    """The invocation's state that its attempts imply at ``now``."""
    return states.fold([a.at(now) for a in attempts])

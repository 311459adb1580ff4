"""From the record to what the two tables read: verdicts (for machines) and resolutions (for people)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ledger.contracts import Contract
from ledger.facts import Facts
from ledger.states import Standing, State
from reconciliation import verdicts
from reconciliation.resolutions import Situation
from reconciliation.verdicts import Circumstances

NAMES = frozenset({"operation_id", "business_reference", "idempotency_key"})


def situation_of(facts: Facts | None, now: datetime) -> Situation:
    """What the rules for people are held against. Without any attempt the record's own beginning is the last moment
    at which anybody can have sent something."""
    if facts is None:
        return Situation(state=None, now=now)
    reference = facts.row["receiver_reference"]
    return Situation(
        state=facts.state,
        now=now,
        standing=facts.standing,
        bound=bound_of(facts) or _bound_without_attempts(facts),
        high_risk=facts.row["capability"]["risk"] == "high",
        references=frozenset() if reference is None else frozenset({reference}),
    )


def bound_of(facts: Facts) -> datetime | None:
    """After this nothing of any attempt can still arrive or be invisible; None without an attempt."""
    ends = [
        verdicts.attempt_end(reported_at=a.reported_at, lease_until=a.lease_until) for a in facts.attempts
    ]
    contract = facts.contract
    return verdicts.bound(ends, in_flight_s=contract.in_flight_s, visibility_lag_s=contract.visibility_lag_s)


def _bound_without_attempts(facts: Facts) -> datetime:
    created_at = datetime.fromisoformat(facts.row["created_at"])
    contract = facts.contract
    return created_at + timedelta(seconds=contract.in_flight_s + contract.visibility_lag_s)


def askable(contract: Contract, reconciler: object) -> bool:
    """Whether a look-up can be made at all."""
    return contract.can_be_asked and bool(reconciler)


def circumstances(
    facts: Facts,
    *,
    asked_at: datetime,
    since: datetime,
    lookups: int,
    sightings: tuple[datetime, ...],
    first_parked_at: datetime | None,
    known_others: frozenset[str],
    accepted_references: frozenset[str],
) -> Circumstances:
    """Everything besides the finding that a verdict reads. ``facts`` are read under the operation's lock.

    ``accepted_references``: those that people named when they settled it.
    """
    row = facts.row
    settled = facts.state in (State.COMPLETED, State.DENIED)
    known: frozenset[str] = frozenset()
    if facts.state is State.COMPLETED:
        known = accepted_references
        if row["receiver_reference"] is not None:
            known |= {row["receiver_reference"]}
    first = row["first_permit_at"]
    return Circumstances(
        contract=facts.contract,
        now=facts.now,
        asked_at=asked_at,
        since=since,
        lookups=lookups,
        bound=bound_of(facts),
        first_permit_at=first_parked_at if first is None else datetime.fromisoformat(first),
        sightings=sightings,
        standing=facts.standing,
        known_others=known_others,
        known_references=known,
        # While a discrepancy stands nobody has cleared anything yet.
        flags=frozenset(row["flags"]) if facts.standing is Standing.NONE else frozenset(),
        # When it was settled is never before the time that its evidence speaks of: disputes are not made too easy.
        settled_as_of=datetime.fromisoformat(row["settled_at"]) if settled and row["settled_at"] else None,
        jitter=random.random(),  # noqa: S311 (spreads load, keeps no secret)
    )


def attributed_by(configuration: Mapping[str, Any]) -> str:
    """Which of our names the receiver's items carry: the column in which others of that kind are looked for."""
    attributed = configuration.get("attributed")
    column = attributed.get("equals") if isinstance(attributed, Mapping) else None
    return column if column in NAMES else "operation_id"

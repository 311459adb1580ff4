"""What is due, whoever forgot it: the rows are the queue, and a sweep finds everything that a lost message lost.

Any number of sweeps may run at once, anywhere. Each step looks at open work only and can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from ledger import tenancy
from ledger.services import expire_leases
from ledger.services.writing import locked, one_by_one
from ledger.states import Standing, State
from reconciliation.models import CLOCK, Case, CaseKind, SweepRun
from reconciliation.services.cases import (
    SWEEP,
    close,
    lock_case,
    make_discrepancy,
    open_case,
    open_missing,
)

AT_MOST = 500
"""Rows of each step in one sweep: about a second's work, and the next sweep is two seconds away."""

JUST_NOW_S = 0.2
"""A sweep that ended this long ago found what there is: nothing but a message that had waited asks again so soon."""

CLAIMED_AT_MOST = 200
"""Look-ups handed out by one sweep: what a few workers do within a case's lease when the receiver is slow."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One due case, held for one look-up until its lease ends."""

    workspace_id: int
    case_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did. ``claims`` are to be looked up by the caller, or released."""

    expired: int
    opened: int
    closed: int
    claims: tuple[Claim, ...]

    def counts(self) -> dict[str, int]:
        """{"expired", "opened", "closed", "claimed"}."""
        return {
            "expired": self.expired,
            "opened": self.opened,
            "closed": self.closed,
            "claimed": len(self.claims),
        }


def sweep(*, claimed_at_most: int = CLAIMED_AT_MOST) -> Swept:
    """One pass:

    1. leases that ended are written down: what was dispatched is unknown;
    2. unknown outcomes, discrepancies and missing names without a case get one;
    3. cases that their operation has left behind are closed;
    4. due cases are claimed, each for one look-up.
    """
    started = time.monotonic()
    expired = expire_leases(limit=AT_MOST)
    opened = _open_cases()
    closed = _close_overtaken()
    claims = claim(at_most=claimed_at_most)
    swept = Swept(expired, opened, closed, tuple(claims))
    _note(swept, took_ms=round((time.monotonic() - started) * 1000))
    return swept


def just_swept() -> bool:
    """Whether a sweep ended a moment ago, by the database's clock.

    A worker that was away finds a message for every sweep it has missed. They cannot be given an end: it would be
    judged by the worker's clock, and one that runs ahead of the sender's would find every message too old, always.
    """
    return SweepRun.objects.filter(ended_at__gt=CLOCK - timedelta(seconds=JUST_NOW_S)).exists()


def _open_cases() -> int:
    unknown = _rows("SELECT * FROM reconciliation_uncased(%s)", [AT_MOST])
    disputed = _rows("SELECT * FROM reconciliation_disputed(%s)", [AT_MOST])
    missing = _rows("SELECT * FROM reconciliation_parked(%s)", [AT_MOST])
    return one_by_one([*unknown, *disputed], open_case) + one_by_one(missing, _open_missing)


def _open_missing(workspace_id: int, operation_id: str, kind: str) -> bool:
    with tenancy.workspace(workspace_id):
        return open_missing(workspace_id, operation_id, kind)


def _close_overtaken() -> int:
    return one_by_one(_rows("SELECT * FROM reconciliation_overtaken(%s)", [AT_MOST]), _close_if_overtaken)


def _close_if_overtaken(workspace_id: int, case_id: int) -> bool:
    with tenancy.workspace(workspace_id):
        case = lock_case(workspace_id, case_id)
        return case.closed_at is None and _overtake(case)


def _overtake(case: Case) -> bool:
    """Brings a case into line with its operation, under both locks; True: it was closed."""
    with locked(case.workspace_id, case.operation_id, SWEEP) as unit:
        assert unit is not None  # the function that named it had seen the operation
        facts, now = unit.facts, unit.now
        if case.invocation_id is None:
            close(case, by="runtime", what="the intent was recorded", now=now)
        elif facts.standing is Standing.DISCREPANCY:
            make_discrepancy(case, unit)
        elif facts.standing is Standing.ABANDONED:
            close(case, by="operator", what="abandoned", now=now)
        elif case.kind == CaseKind.UNKNOWN and facts.state in (State.UNKNOWN, State.DISPATCHED):
            return False
        else:
            source = facts.row["outcome_source"] or "runtime"
            by = {"lookup": "reconciler", "operator": "operator"}.get(source, "runtime")
            close(case, by=by, what=f"settled as {facts.state}", now=now)
        case.save()
        return case.closed_at is not None


def claim(*, at_most: int) -> list[Claim]:
    """Due cases of every workspace, each given to this caller alone until its lease ends."""
    if at_most <= 0:
        return []
    rows = _rows("SELECT * FROM reconciliation_claim(%s, %s)", [at_most, settings.CASE_LEASE_S])
    return [Claim(*row) for row in rows]


def release(claims: Sequence[Claim]) -> None:
    """Gives claims back that could not be handed out: the next sweep, anywhere, takes them."""
    for one in claims:
        with tenancy.workspace(one.workspace_id):
            Case.objects.filter(pk=one.case_id, fence=one.fence, asking_at=None).update(leased_until=None)


def _note(swept: Swept, *, took_ms: int) -> None:
    SweepRun.objects.update_or_create(
        id=1, defaults={"ended_at": CLOCK, "took_ms": took_ms, **swept.counts()}
    )


def _rows(statement: str, parameters: list[int]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())

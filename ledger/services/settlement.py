"""What others found out about an operation: ended leases, look-ups, a person's decision.

Reconciliation judges; this file writes, and keeps the rules that hold whoever judged: evidence first, every attempt
covered by a denial, a dispute left by people only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from ledger import errors, tenancy
from ledger.decisions import DenialClass
from ledger.facts import Facts
from ledger.models import Capability, Entry, Invocation
from ledger.services.outcomes import flag
from ledger.services.writing import SYSTEM, Actor, Locked, Shown, locked, one_by_one
from ledger.states import AttemptState, Event, Standing, State


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What was found and what it does. ``events`` are steps of the state table, in order; none: evidence only.

    ``source``: lookup | callback | operator. ``flags`` go with Event.FLAG. ``standing``: what it is afterwards, where a
    person says so. ``unverifies``: the receiver broke its promise, so no verification of it holds any more.
    """

    source: str
    claim: str
    shown: Shown
    events: tuple[Event, ...] = ()
    flags: tuple[str, ...] = ()
    receiver_reference: str | None = None
    result: str | None = None
    denial_reason: str | None = None
    denial_class: str | None = None
    denial_clears_at: datetime | None = None
    authenticated: bool = False
    as_of: datetime | None = None
    scope: str = ""
    standing: Standing | None = None
    unverifies: bool = False
    detail: dict[str, Any] = field(default_factory=dict)


def expire_leases(*, limit: int) -> int:
    """Writes down the leases that have ended, oldest first; returns how many. Safe to run anywhere, twice, at once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT workspace_id, operation_id FROM ledger_overdue(%s)", [limit])
        overdue = cursor.fetchall()
    return one_by_one(overdue, _write_down)


def _write_down(workspace_id: int, operation_id: str) -> bool:
    with locked(workspace_id, operation_id, SYSTEM) as unit:
        return unit is not None  # the lock itself writes an ended lease down, for whoever comes first


def note_asked(workspace_id: int, operation_id: str, asked_at: datetime) -> None:
    """The receiver was asked about it at that time: a fact that a permit under the same key may depend on."""
    with tenancy.workspace(workspace_id):
        Invocation.objects.filter(workspace_id=workspace_id, operation_id=operation_id).update(
            asked_at=asked_at
        )


def settle(workspace_id: int, operation_id: str, actor: Actor, conclusion: Conclusion) -> tuple[Facts, int]:
    """Keeps the evidence and takes the steps; returns the facts afterwards and the Evidence row's id.

    Raises NoLedgerEntry, and IllegalTransition where the record has moved on: nothing is written then.
    """
    with locked(workspace_id, operation_id, actor) as unit:
        if unit is None:
            raise errors.NoLedgerEntry()
        evidence_id = conclude(unit, conclusion)
    return unit.facts, evidence_id


def conclude(unit: Locked, conclusion: Conclusion) -> int:
    """The same for an operation that the caller holds locked, having judged it under the lock."""
    evidence_id = unit.keep(
        conclusion.shown,
        source=conclusion.source,
        claim=conclusion.claim,
        stored_as="+".join(conclusion.events) or "evidence",
        by=unit.actor.name,
        reference=conclusion.receiver_reference,
        authenticated=conclusion.authenticated,
        scope=conclusion.scope,
        as_of=conclusion.as_of,
    )
    for event in conclusion.events:
        _take(unit, event, conclusion, evidence_id)
    if not conclusion.events:
        unit.write("evidence", detail={**conclusion.detail, "evidence": evidence_id})
    if conclusion.standing is not None and unit.row.standing != conclusion.standing:
        unit.write("standing", detail={"standing": conclusion.standing}, standing=conclusion.standing)
    if conclusion.unverifies and unit.row.capability.verified:
        Capability.objects.filter(pk=unit.row.capability_id).update(verified=False)
        unit.write("unverify", detail={"capability": str(unit.row.capability), "evidence": evidence_id})
    unit.reread()
    return evidence_id


def annotate(
    workspace_id: int, operation_id: str, actor: Actor, event: str, detail: Mapping[str, Any]
) -> None:
    """An entry about the operation that changes nothing of it: a note, a claim, a wish to be asked again.

    Where the name is not on record the entry stands by itself.
    """
    with locked(workspace_id, operation_id, actor) as unit:
        if unit is not None:
            unit.write(event, detail=detail)
            return
        Entry.objects.create(
            workspace_id=workspace_id,
            actor_kind=actor.kind,
            actor_name=actor.name,
            event=event,
            detail=json.dumps({"operation_id": operation_id, **detail}, ensure_ascii=False),
        )


def _take(unit: Locked, event: Event, conclusion: Conclusion, evidence_id: int) -> None:
    detail = {**conclusion.detail, "source": conclusion.source, "evidence": evidence_id}
    match event:
        case Event.COMPLETE:
            lost = _lost(unit)
            if len(lost) == 1:  # with several, nobody can say which of them it was
                unit.end_attempt(lost[0], AttemptState.COMPLETED)
            unit.write(
                event,
                detail=detail,
                outcome="completed",
                receiver_reference=conclusion.receiver_reference,
                result=conclusion.result,
                outcome_source=conclusion.source,
                settled_at=unit.now,
                denial_reason=None,
                denial_class=None,
                denial_clears_at=None,
            )
        case Event.DENY:
            denial = _denial(unit, conclusion)
            for number in _lost(unit):
                unit.end_attempt(number, AttemptState.DENIED)
            unit.write(
                event,
                detail=detail,
                outcome="denied",
                outcome_source=conclusion.source,
                settled_at=unit.now,
                **denial,
            )
        case Event.DISPUTE:
            unit.write(event, detail=detail, standing=Standing.DISCREPANCY)
        case Event.FLAG:
            flag(unit, list(conclusion.flags))
        case Event.RESOLVE:
            unit.write(event, detail=detail, standing=Standing.NONE)
        case _:
            unit.write(event, detail=detail)
    unit.reread()


def _denial(unit: Locked, conclusion: Conclusion) -> dict[str, Any]:
    """Why there is no effect. That the receiver knows nothing of a lost attempt does not undo the standing refusal of
    another one, which its holder reported while nothing could be settled yet."""
    row = unit.row
    refused = any(attempt.state is AttemptState.DENIED for attempt in unit.facts.attempts)
    if refused and row.denial_class == DenialClass.STANDING and row.standing == Standing.NONE:
        return {
            "denial_reason": row.denial_reason,
            "denial_class": row.denial_class,
            "denial_clears_at": row.denial_clears_at,
        }
    if row.superseded_by is not None:  # another operation has taken its place: it is never dispatched again
        return {
            "denial_reason": conclusion.denial_reason,
            "denial_class": DenialClass.STANDING,
            "denial_clears_at": None,
        }
    return {
        "denial_reason": conclusion.denial_reason,
        "denial_class": conclusion.denial_class,
        "denial_clears_at": conclusion.denial_clears_at,
    }


def _lost(unit: Locked) -> Sequence[int]:
    return [a.number for a in unit.facts.attempts if a.at(unit.now) is AttemptState.LOST]


def set_standing(
    workspace_id: int, operation_id: str, actor: Actor, standing: Standing, **detail: Any
) -> Facts:
    """What people settled or must settle, beside the state."""
    with locked(workspace_id, operation_id, actor) as unit:
        if unit is None:
            raise errors.NoLedgerEntry()
        if State(unit.row.state) is State.COMPLETED and standing is Standing.NONE:
            unit.write(Event.RESOLVE, detail=detail, standing=standing)
        else:
            unit.write("standing", detail={**detail, "standing": standing}, standing=standing)
        unit.reread()
    return unit.facts

"""One case: opening it, what changes it, closing it. A case is locked before its operation, everywhere."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection

from ledger.services.writing import Actor, Locked, locked
from ledger.states import AttemptState, Standing, State
from reconciliation import verdicts
from reconciliation.circumstances import askable
from reconciliation.models import Case, CaseKind
from reconciliation.verdicts import VerdictReason

SWEEP = Actor("reconciler", "sweep")

NO_LEDGER_ENTRY = "no_ledger_entry"
LOOK_UP_FAILED = "look_up_failed"  # begun again and again, and never recorded
CONTRADICTED = "contradicted"  # evidence says the opposite of what was on record


def clock() -> datetime:
    """The database's clock, now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def lock_case(workspace_id: int, case_id: int) -> Case:
    """The case, locked until the transaction ends. Raises Case.DoesNotExist."""
    return Case.objects.select_for_update(of=("self",), no_key=True).get(
        pk=case_id, workspace_id=workspace_id
    )


def open_case(workspace_id: int, operation_id: str) -> Case | None:
    """The open case of an operation that needs one, opened now if there is none; None where it needs none.

    Openers wait for each other at the operation's lock, so the second finds the first one's case.
    """
    with locked(workspace_id, operation_id, SWEEP) as unit:
        return None if unit is None else open_locked(unit)


def open_locked(unit: Locked) -> Case | None:
    """The same for an operation that the caller holds locked."""
    facts = unit.facts
    disputed = facts.standing is Standing.DISCREPANCY
    if not disputed and (facts.state is not State.UNKNOWN or facts.standing is Standing.ABANDONED):
        return None
    found = Case.objects.filter(invocation_id=unit.row.pk, closed_at=None).first()
    if found is not None:
        return found
    case = Case(
        workspace_id=unit.row.workspace_id,
        invocation_id=unit.row.pk,
        operation_id=unit.row.operation_id,
        opened_at=unit.now,
        changed_at=unit.now,
        kind=CaseKind.UNKNOWN,
        why=_why_unknown(unit),
        next_check_at=unit.now,
    )
    can_ask = askable(facts.contract, unit.row.capability.reconciler)
    if disputed:
        make_discrepancy(case, unit)
    elif facts.contract.lookup == "callback":
        case.last_reason = VerdictReason.AWAITING_CALLBACK
        case.last_answer = "The receiver cannot be asked; its callback has not come."
        case.next_check_at = unit.now + timedelta(seconds=verdicts.BUDGET_S)
    elif not can_ask:
        case.next_check_at = None
        case.last_reason = VerdictReason.OPERATOR_ONLY
        case.last_answer = "The receiver offers no way to ask what happened: only a person can find out."
        escalate(case, VerdictReason.OPERATOR_ONLY, unit.now)
    case.save(force_insert=True)
    if case.escalated_at is not None:
        unit.write("escalated", detail={"reason": case.escalation, "case": case.pk}, actor=SWEEP)
        unit.reread()
    return case


def _why_unknown(unit: Locked) -> str:
    """What is known of why the outcome is not: the last lost attempt's fault."""
    for attempt in reversed(unit.facts.attempts):
        if attempt.state is AttemptState.LOST:
            return attempt.fault or "unknown"
    return "parked_evidence"


def make_discrepancy(case: Case, unit: Locked) -> None:
    """Turns it into a case that a person settles; the receiver is still asked, hourly, where it can be."""
    flags = unit.facts.row["flags"]
    why = flags[-1] if flags else CONTRADICTED
    can_ask = askable(unit.facts.contract, unit.row.capability.reconciler)
    case.next_check_at = unit.now + timedelta(seconds=verdicts.ESCALATED_EVERY_S) if can_ask else None
    known = case.kind == CaseKind.DISCREPANCY and case.why == why
    if known and case.waiting_until is not None and case.waiting_until > unit.now:
        case.next_check_at = min(case.next_check_at or case.waiting_until, case.waiting_until)
        return
    case.kind, case.why, case.waiting_until = CaseKind.DISCREPANCY, why, None
    escalate(case, why, unit.now)


def open_missing(workspace_id: int, operation_id: str, why: str) -> bool:
    """Opens the case of a name that is not on record; False where it has one."""
    now = clock()
    _, made = Case.objects.get_or_create(
        workspace_id=workspace_id,
        operation_id=operation_id,
        invocation=None,
        closed_at=None,
        defaults={
            "kind": CaseKind.NO_ENTRY,
            "why": why,
            "opened_at": now,
            "changed_at": now,
            "changed_by": SWEEP.name,
            "changed_what": "opened",
            "escalated_at": now,
            "escalation": NO_LEDGER_ENTRY,
            "last_answer": "The ledger has no such entry, so nothing of it may be dispatched.",
        },
    )
    return made


def escalate(case: Case, reason: str, now: datetime) -> None:
    """A person is needed. Saying so again for another reason keeps the time of the first."""
    if case.escalation != reason:
        case.escalation = reason
        case.escalated_at = case.escalated_at or now
        changed(case, by="reconciler", what=f"handed to a person: {reason}", now=now)


def changed(case: Case, *, by: str, what: str, now: datetime) -> None:
    """A decision taken on what was shown before would be taken on something else: ``version`` rises."""
    case.version += 1
    case.changed_by, case.changed_what, case.changed_at = by, what, now


def close(case: Case, *, by: str, what: str, now: datetime, who: str | None = None) -> None:
    """The case is over. ``by``: reconciler, runtime or operator; ``who``: the person, for whoever decides too late.

    A look-up that is under way keeps its lease: what it finds is still evidence, and may contradict what was decided.
    """
    case.closed_at, case.closed_by = now, by
    case.next_check_at = case.waiting_until = case.proposal = None
    changed(case, by=who or by, what=what, now=now)

"""How a new operation stands to an older one: it supersedes it, or it compensates it."""

from __future__ import annotations

from django.db import connection

from ledger import errors
from ledger.intake import Intent
from ledger.models import Invocation
from ledger.permissions import matches
from ledger.services.writing import Caller, Locked, find_facts
from ledger.states import Event, State


def relate(unit: Locked, intent: Intent, caller: Caller) -> None:
    """Marks what the intent supersedes and checks what it compensates, in the transaction of the new operation.

    Raises NotSupersedable, AlreadyCompensated, Malformed (nothing on record to compensate): nothing is recorded then.
    """
    if intent.supersedes is not None:
        _supersede(unit, intent.supersedes, caller)
    if intent.compensates is not None:
        _compensate(unit, intent.compensates)


def _supersede(unit: Locked, name: str, caller: Caller) -> None:
    old = _related(unit, name)
    if old is None or old.task_id != unit.row.task_id or old.capability.name != unit.facts.capability:
        raise errors.NotSupersedable()
    if not any(
        matches(pattern, old.actor_subject) for pattern in caller.subjects
    ):  # it could not withdraw it either
        raise errors.NotSupersedable()
    if old.superseded_by is not None or old.state not in (State.INTENDED, State.DENIED, State.WITHDRAWN):
        raise errors.NotSupersedable()
    other = Locked(old, find_facts(old.workspace_id, name) or unit.facts, unit.actor)
    if other.facts.standing != "none":
        raise errors.NotSupersedable()
    event: Event | str = "superseded" if old.state == State.WITHDRAWN else Event.WITHDRAW
    other.write(event, detail={"superseded_by": unit.row.operation_id}, superseded_by=unit.row.operation_id)


def _compensate(unit: Locked, name: str) -> None:
    old = _related(unit, name)
    if old is None:
        raise errors.Malformed("/compensates", "names no operation on record")
    with connection.cursor() as cursor:  # one compensation at a time: serialised by the row lock on the other
        cursor.execute(
            "SELECT EXISTS (SELECT FROM ledger_invocation WHERE workspace_id = %s AND compensates = %s"
            " AND id <> %s AND state <> 'withdrawn')",  # what was denied may be dispatched again
            [unit.row.workspace_id, name, unit.row.id],
        )
        if cursor.fetchone()[0]:
            raise errors.AlreadyCompensated()


def _related(unit: Locked, name: str) -> Invocation | None:
    return (
        Invocation.objects.select_for_update(of=("self",), no_key=True)
        .filter(workspace_id=unit.row.workspace_id, operation_id=name)
        .exclude(pk=unit.row.pk)
        .first()
    )

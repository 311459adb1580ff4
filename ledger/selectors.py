"""Reading the record for the API: a task's operations, the arguments of one operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from django.db import connection

from ledger import errors, tenancy
from ledger.facts import Facts
from ledger.intake import unseal
from ledger.keys import current
from ledger.models import Invocation, Task
from ledger.permissions import matches
from ledger.services.writing import Caller


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Operations in the order they were recorded; ``next`` names where the following page begins, None at the end."""

    facts: tuple[Facts, ...]
    next: str | None


def task_page(caller: Caller, task_id: str, *, after: str | None, limit: int) -> TaskPage | None:
    """One page of a task's operations that the caller's token covers; None where no operation of it is on record."""
    try:
        beyond = None if after is None else UUID(after)
    except ValueError:
        raise errors.Malformed("", "after is not a place in this list") from None
    with tenancy.workspace(caller.workspace_id):
        task = Task.objects.filter(workspace_id=caller.workspace_id, task_id=task_id).first()
        rows = Invocation.objects.filter(task=task).order_by("id") if task else Invocation.objects.none()
        if not rows.exists():
            return None
        if beyond is not None:
            rows = rows.filter(id__gt=beyond)
        names = list(rows.values_list("operation_id", "id")[: limit + 1])
        shown = names[:limit]
        found = facts_of(caller.workspace_id, [name for name, _ in shown])
    by_name = {facts.operation_id: facts for facts in found}
    covered = tuple(by_name[name] for name, _ in shown if _covers(caller, by_name[name]))
    return TaskPage(covered, str(shown[-1][1]) if len(names) > limit else None)


def facts_of(workspace_id: int, operation_ids: list[str]) -> list[Facts]:
    """The facts of those operations that are on record, in one statement, in no particular order."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT ledger_facts(%s, %s)::text", [workspace_id, operation_ids])
        return [Facts.read(orjson.loads(row[0])) for row in cursor.fetchall()]


def arguments_of(row: Invocation) -> Any:
    """The arguments as they were sent, sensitive values included; None once they have aged out."""
    return unseal(row.arguments, None if row.sealed is None else bytes(row.sealed), current().fernet)


def _covers(caller: Caller, facts: Facts) -> bool:
    return any(matches(pattern, facts.capability) for pattern in caller.capabilities) and any(
        matches(pattern, facts.row["actor_subject"]) for pattern in caller.subjects
    )

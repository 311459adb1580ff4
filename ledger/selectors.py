"""Reading the record: a task's operations, one operation's arguments, entries, names that are known; the console's lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from ledger import errors, tenancy, wording
from ledger.facts import Facts
from ledger.intake import unseal
from ledger.keys import current
from ledger.models import Entry, Invocation, Membership, ParkedEvidence, Task
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


# For the apps above this one, which read the record through these only.


def entries_of(invocation_id: str, *, limit: int) -> list[Entry]:
    """The newest ``limit`` entries of an operation, oldest first. Needs the workspace's transaction."""
    newest = Entry.objects.filter(invocation_id=invocation_id).order_by("-position")[:limit]
    return list(reversed(newest))


def known_names(workspace_id: int, column: str, names: Collection[str], *, other_than: str) -> frozenset[str]:
    """Which of these names belong to other operations on record than ``other_than``.

    ``column``: operation_id, business_reference or idempotency_key. Needs the workspace's transaction.
    """
    if not names:
        return frozenset()
    known = Invocation.objects.filter(workspace_id=workspace_id, **{f"{column}__in": names})
    return frozenset(known.exclude(operation_id=other_than).values_list(column, flat=True))


def first_parked_at(workspace_id: int, operation_id: str) -> datetime | None:
    """When evidence for this name first arrived before the name was on record. Needs the workspace's transaction."""
    return (
        ParkedEvidence.objects.filter(workspace_id=workspace_id, operation_id=operation_id)
        .order_by("recorded_at")
        .values_list("recorded_at", flat=True)
        .first()
    )


def parked_of(workspace_id: int, operation_id: str) -> list[ParkedEvidence]:
    """What arrived for this name while it was not on record, oldest first. Needs the workspace's transaction."""
    return list(
        ParkedEvidence.objects.filter(workspace_id=workspace_id, operation_id=operation_id).order_by("id")
    )


def roles_of(user_id: int, workspace_id: int) -> frozenset[str]:
    """The roles of a person in a workspace, read now."""
    held = Membership.objects.filter(user_id=user_id, workspace_id=workspace_id)
    return frozenset(held.values_list("role", flat=True))


# For the console's pages. Each is one statement and needs the workspace's transaction.

PAGE_LENGTH = 50
"""Operations on one page of the list: three screens."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One operation: the facts by the database's clock, and its row with capability, receiver and task."""

    facts: Facts
    row: Invocation

    @property
    def badge(self) -> tuple[wording.Loudness, str]:
        """How its state is drawn, and the word beside it."""
        return wording.badge(self.facts.state, self.facts.standing)

    @property
    def sentence(self) -> str:
        """What it is, in the capability's own sentence; nothing sensitive is in it."""
        capability = self.row.capability
        return wording.sentence(
            capability.summary,
            capability=capability.name,
            arguments=None if self.row.arguments is None else orjson.loads(self.row.arguments),
            amount=self.facts.row["amount"],
            sensitive=capability.sensitive,
            everything=capability.audit_sensitive,
        )


def _recorded(workspace_id: int) -> QuerySet[Invocation]:
    return (
        Invocation.objects.select_related("capability", "receiver", "task")
        .filter(workspace_id=workspace_id)
        .annotate(facts_text=RawSQL("ledger_facts_of(ledger_invocation)::text", []))
    )


def _read(row: Any) -> Recorded:
    return Recorded(Facts.read(orjson.loads(row.facts_text)), row)


def recorded(workspace_id: int, operation_id: str) -> Recorded | None:
    """The operation of this name; None where there is none in this workspace."""
    row = _recorded(workspace_id).filter(operation_id=operation_id).first()
    return None if row is None else _read(row)


@dataclass(frozen=True, slots=True)
class OperationsPage:
    """``next`` names where the following page begins, None at the end."""

    operations: Sequence[Recorded]
    next: str | None


def operations_page(
    workspace_id: int, *, starting_with: str = "", after: UUID | None = None
) -> OperationsPage:
    """The newest operations, by the time in their IDs; with ``starting_with`` those whose operation ID begins so."""
    rows = Invocation.objects.filter(workspace_id=workspace_id).order_by("-id")
    if starting_with:
        rows = rows.filter(operation_id__startswith=starting_with)
    if after is not None:
        rows = rows.filter(id__lt=after)
    # The names of one page first: joined before it is cut, the whole workspace would be read.
    names = rows.values("pk")[: PAGE_LENGTH + 1]
    found = [_read(row) for row in _recorded(workspace_id).filter(pk__in=names).order_by("-id")]
    shown = found[:PAGE_LENGTH]
    return OperationsPage(shown, str(shown[-1].row.pk) if len(found) > PAGE_LENGTH else None)


def anything_recorded(workspace_id: int) -> bool:
    """Whether this workspace has any operation at all."""
    return Invocation.objects.filter(workspace_id=workspace_id).exists()


def version_of(workspace_id: int, operation_id: str) -> int | None:
    """The version of the operation, None where there is none."""
    rows = Invocation.objects.filter(workspace_id=workspace_id, operation_id=operation_id)
    return rows.values_list("version", flat=True).first()

"""What the console reads of the record: one operation with its history, and the newest operations.

Called inside ``console.reading``. Each function is one statement, or a fixed few, however long the history is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

import orjson
from django.db import connection

from ledger import wording
from ledger.facts import Facts
from ledger.models import Entry, Evidence

ENTRIES_MAX = 500
"""Lines of one timeline. An operation has about ten; the newest are kept where there are more."""

EVIDENCE_MAX = 100
"""Pieces of evidence on one page, the newest; an escalated case that is asked hourly gathers 24 a day."""

PAGE_LENGTH = 50
"""Operations on one page of the list: three screens."""


@dataclass(frozen=True)
class OperationRecord:
    """One operation as the record has it. ``arguments`` holds null in the place of each sensitive value."""

    facts: Facts
    columns: Mapping[str, Any]  # of ledger_invocation and ledger_capability, those that facts leave out

    @property
    def arguments(self) -> Any:
        """The parsed arguments; None once they have aged out."""
        text = self.columns["arguments"]
        return None if text is None else orjson.loads(text)

    @cached_property
    def arguments_kept(self) -> bool:
        return self.columns["arguments"] is not None

    @cached_property
    def badge(self) -> tuple[wording.Loudness, str]:
        """How its state is drawn, and the word beside it."""
        return wording.badge(self.facts.state, self.facts.standing)

    @cached_property
    def sentence(self) -> str:
        return wording.sentence(
            self.columns["summary"],
            capability=self.facts.capability,
            arguments=self.arguments,
            amount=self.facts.row["amount"],
            sensitive=self.columns["sensitive"],
            everything=self.columns["audit_sensitive"],
        )

    @cached_property
    def leaves(self) -> tuple[wording.Leaf, ...]:
        if not self.arguments_kept:
            return ()
        return tuple(
            wording.leaves(
                self.arguments, self.columns["sensitive"], everything=self.columns["audit_sensitive"]
            )
        )


_RECORD = """
    SELECT ledger_facts_of(i)::text, to_jsonb(shown)::text
    FROM ledger_invocation i
    JOIN ledger_capability c ON c.id = i.capability_id
    LEFT JOIN ledger_runtime r ON r.id = i.recorded_by_id
    CROSS JOIN LATERAL (
        SELECT i.id, i.arguments, i.purpose, i.key_given, r.name AS recorded_by,
               c.summary, c.sensitive, c.audit_sensitive, c.reconciler
    ) shown
    WHERE i.workspace_id = %(workspace)s
"""


def _records(condition: str, **values: object) -> list[OperationRecord]:
    with connection.cursor() as cursor:
        cursor.execute(_RECORD + condition, values)
        return [
            OperationRecord(Facts.read(orjson.loads(facts)), orjson.loads(columns))
            for facts, columns in cursor.fetchall()
        ]


def operation_record(workspace_id: int, operation_id: str) -> OperationRecord | None:
    """The operation of this name in this workspace, judged by the database's clock; None where there is none."""
    found = _records("AND i.operation_id = %(operation)s", workspace=workspace_id, operation=operation_id)
    return found[0] if found else None


def operation_records(workspace_id: int, operation_ids: Sequence[str]) -> dict[str, OperationRecord]:
    """Those of the operations that are on record, by operation ID, in one statement."""
    found = _records(
        "AND i.operation_id = ANY (%(operations)s)", workspace=workspace_id, operations=list(operation_ids)
    )
    return {record.facts.operation_id: record for record in found}


def timeline(invocation_id: UUID | str) -> list[Entry]:
    """Its entries by position, oldest first."""
    newest = Entry.objects.filter(invocation_id=invocation_id).order_by("-position")[:ENTRIES_MAX]
    return list(newest)[::-1]


def evidence(invocation_id: UUID | str) -> list[Evidence]:
    """What is kept of it, oldest first; the raw bytes stay in the database."""
    newest = Evidence.objects.filter(invocation_id=invocation_id).defer("raw").order_by("-id")[:EVIDENCE_MAX]
    return list(newest)[::-1]


@dataclass(frozen=True, slots=True)
class OperationsPage:
    """``next`` names where the following page begins, None at the end."""

    records: Sequence[OperationRecord]
    next: str | None


def operations(workspace_id: int, *, starting_with: str = "", after: UUID | None = None) -> OperationsPage:
    """The newest operations, by the time in their IDs; with ``starting_with`` those whose operation ID begins so."""
    found = _records(
        "AND (%(after)s::uuid IS NULL OR i.id < %(after)s) AND i.operation_id ^@ %(prefix)s"
        " ORDER BY i.id DESC LIMIT %(limit)s",
        workspace=workspace_id,
        after=after,
        prefix=starting_with,
        limit=PAGE_LENGTH + 1,
    )
    shown = found[:PAGE_LENGTH]
    return OperationsPage(shown, str(shown[-1].columns["id"]) if len(found) > PAGE_LENGTH else None)

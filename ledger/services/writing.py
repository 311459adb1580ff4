"""One operation under its row lock: the facts as they stand then, and the way to change them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from django.db import connection

from ledger import tenancy
from ledger.facts import Facts
from ledger.models import Attempt, Entry, Evidence, Invocation, Reservation
from ledger.states import AttemptState, Event, Standing, State, advance, advance_attempt, event_after

logger = logging.getLogger(__name__)

RAW_KEPT = 64 * 1024  # of a body from outside; the digest covers all of it
PARSED_KEPT = 16 * 1024  # what a page shows of it without asking for the raw bytes


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did it, for the entry: ``kind`` is runtime, user, reconciler or system."""

    kind: str
    name: str


SYSTEM = Actor("system", "counterfoil")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token this is and what it may do."""

    workspace_id: int
    workspace: str
    environment: str
    runtime_id: int
    runtime: str
    scopes: frozenset[str]
    capabilities: tuple[str, ...]
    subjects: tuple[str, ...]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Caller:
        """From a row of the SQL function ``ledger_authenticate``."""
        return cls(
            workspace_id=row["workspace_id"],
            workspace=row["workspace"],
            environment=row["environment"],
            runtime_id=row["runtime_id"],
            runtime=row["runtime"],
            scopes=frozenset(row["scopes"]),
            capabilities=tuple(row["capabilities"]),
            subjects=tuple(row["subjects"]),
        )

    @property
    def actor(self) -> Actor:
        return Actor("runtime", self.runtime)


@dataclass(frozen=True, slots=True)
class Shown:
    """Evidence from outside as it is kept: bytes, their digest, and what could be read of them."""

    raw: bytes
    sha256: bytes
    size: int
    parsed: str | None

    @classmethod
    def of(cls, raw: bytes, parsed: object = None) -> Shown:
        """``parsed``: the same content as JSON where it could be read; kept as text, cut to nothing when long."""
        return cls.beginning(raw, hashlib.sha256(raw).digest(), len(raw), parsed)

    @classmethod
    def beginning(cls, raw: bytes, sha256: bytes, size: int, parsed: object = None) -> Shown:
        """The same where only the beginning is at hand; ``sha256`` and ``size`` are of all of it."""
        text = None
        if parsed is not None:
            text = json.dumps(parsed, ensure_ascii=True)
            if len(text) > PARSED_KEPT:
                text = None
        return cls(raw[:RAW_KEPT], sha256, size, text)


class Locked:
    """One operation, locked until the transaction ends. ``row`` and ``facts`` agree; every change goes through here."""

    def __init__(self, row: Invocation, facts: Facts, actor: Actor) -> None:
        self.row = row
        self.facts = facts
        self.actor = actor

    @property
    def now(self) -> datetime:
        """The database's clock, read after the row lock."""
        return self.facts.now

    def write(
        self,
        event: Event | str,
        *,
        detail: Mapping[str, Any] | None = None,
        actor: Actor | None = None,
        **changes: Any,
    ) -> None:
        """One step: the state that the table gives for ``event`` (a plain string leaves it), the given columns, and
        the Entry that says so. Raises IllegalTransition."""
        before = State(self.row.state)
        after = advance(before, event) if isinstance(event, Event) else before
        changes["state"] = after
        changes["version"] = self.row.version + 1
        for name, value in changes.items():
            setattr(self.row, name, value)
        self.row.save(update_fields=list(changes))
        who = actor or self.actor
        Entry.objects.create(
            workspace_id=self.row.workspace_id,
            invocation_id=self.row.id,
            position=self.row.version,
            actor_kind=who.kind,
            actor_name=who.name,
            event=str(event),
            from_state=before,
            to_state=after,
            detail=None if detail is None else json.dumps(detail, ensure_ascii=False),
        )
        if after is State.UNKNOWN:
            hold(self.row, lease_until=None)
        elif after is not State.DISPATCHED:
            Reservation.objects.filter(invocation_id=self.row.id).delete()

    def end_attempt(self, number: int, to: AttemptState, **changes: Any) -> None:
        """Ends one attempt; the caller then brings the invocation into line with ``follow_attempts``.

        Raises IllegalTransition.
        """
        advance_attempt(self.facts.attempts[number - 1].state, to)
        changes.setdefault("ended_at", self.now)
        Attempt.objects.filter(invocation_id=self.row.id, number=number).update(state=to, **changes)
        self.reread()

    def follow_attempts(
        self,
        *,
        detail: Mapping[str, Any],
        actor: Actor | None = None,
        noted: Mapping[str, Any] | None = None,
        **settled: Any,
    ) -> bool:
        """The event that the attempts call for, if any; ``settled`` are the columns of an outcome, ``noted`` those that
        are written whatever the event is. True: it moved."""
        event = event_after(
            State(self.row.state), [a.at(self.now) for a in self.facts.attempts], Standing(self.row.standing)
        )
        if event is None:
            return False
        columns = settled if event in (Event.COMPLETE, Event.DENY) else {}
        self.write(event, detail=detail, actor=actor, **{**columns, **(noted or {})})
        self.reread()
        return True

    def keep(
        self,
        shown: Shown,
        *,
        source: str,
        claim: str,
        stored_as: str,
        by: str,
        attempt: int | None = None,
        reference: str | None = None,
        authenticated: bool = False,
        scope: str = "",
        as_of: datetime | None = None,
    ) -> int:
        """Adds one Evidence row; returns its id."""
        return Evidence.objects.create(
            workspace_id=self.row.workspace_id,
            invocation_id=self.row.id,
            attempt_number=attempt,
            source=source,
            authenticated=authenticated,
            claim=claim,
            stored_as=stored_as,
            receiver_reference=reference,
            scope=scope,
            raw=shown.raw,
            raw_sha256=shown.sha256,
            raw_size=shown.size,
            parsed=shown.parsed,
            as_of=as_of,
            recorded_by=by,
        ).pk

    def reread(self) -> None:
        """The facts after a change, with the clock as it is now."""
        self.facts = read_facts(self.row.workspace_id, self.row.operation_id)

    def write_down_loss(self) -> None:
        """An attempt that stands open past its lease is lost: said here, if the sweep has not been there."""
        for attempt in self.facts.attempts:
            if attempt.state is AttemptState.OPEN and attempt.lease_until <= self.now:
                self.end_attempt(
                    attempt.number, AttemptState.LOST, ended_at=attempt.lease_until, fault="lease_ended"
                )
                # Nobody did it, whoever came first to write it down.
                detail = {"attempt": attempt.number, "why": "lease_ended"}
                if not self.follow_attempts(detail=detail, actor=SYSTEM):
                    self.write("attempt_lost", detail=detail, actor=SYSTEM)
                    self.reread()


def hold(row: Invocation, *, lease_until: datetime | None) -> None:
    """The reservation of what is dispatched (with its lease) or unknown (without)."""
    Reservation.objects.update_or_create(
        invocation_id=row.id,
        defaults={"lease_until": lease_until},
        create_defaults={
            "workspace_id": row.workspace_id,
            "operation_id": row.operation_id,
            "capability_name": row.capability.name,
            "business_reference": row.business_reference,
            "twin_digest": row.twin_digest or row.arguments_digest,
            "lease_until": lease_until,
        },
    )


def one_by_one(rows: Iterable[tuple[Any, ...]], act: Callable[..., object]) -> int:
    """How many rows ``act`` came back true for. One that cannot be acted on, held by another session or not understood
    by this code, is logged and left for the next time: it must not keep all the others waiting.

    Raises what the database raised when it is gone.
    """
    acted = 0
    for row in rows:
        try:
            acted += bool(act(*row))
        except Exception:  # whatever it is, the other rows still have their turn
            if not connection.is_usable():
                raise
            logger.exception("%s left %s as it is", getattr(act, "__name__", act), row)
    return acted


def lock_name(workspace_id: int, operation_id: str, *, parks: bool = False) -> None:
    """Until the transaction ends: nobody parks evidence for this name while an intent is recorded under it, and the
    other way round (``parks``)."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT ledger_lock_name(%s, %s, %s)", [workspace_id, operation_id, parks])


def read_facts(workspace_id: int, operation_id: str) -> Facts:
    """The facts of an operation that is on record; raises Invocation.DoesNotExist where it is not."""
    found = find_facts(workspace_id, operation_id)
    if found is None:
        raise Invocation.DoesNotExist(operation_id)
    return found


def find_facts(workspace_id: int, operation_id: str) -> Facts | None:
    """The facts of one operation, None where there is none in this workspace."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT ledger_facts(%s, %s)::text", [workspace_id, [operation_id]])
        row = cursor.fetchone()
    return None if row is None else Facts.read(orjson.loads(row[0]))


@contextmanager
def locked(workspace_id: int, operation_id: str, actor: Actor) -> Iterator[Locked | None]:
    """A transaction with the operation locked, its facts read after the lock and an ended lease written down.

    None where the operation is not on record. Nothing may go over the network inside.
    """
    with tenancy.workspace(workspace_id):
        row = (
            Invocation.objects.select_for_update(of=("self",), no_key=True)
            .filter(workspace_id=workspace_id, operation_id=operation_id)
            .first()
        )
        if row is None:
            yield None
            return
        unit = Locked(row, read_facts(workspace_id, operation_id), actor)
        unit.write_down_loss()
        yield unit

"""What a runtime reports about an attempt. An outcome is never lost: what cannot count is kept all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from django.db import connection

from ledger import errors, failpoints, matching
from ledger.decisions import DenialClass, stricter
from ledger.facts import AttemptFacts, Facts
from ledger.intake import nonce_hash, unseal
from ledger.keys import current
from ledger.models import EvidenceSource, ParkedEvidence, Workspace
from ledger.permits import PermitStatement
from ledger.reports import STORED_AS, Claim, Counted, Report, count
from ledger.services.permits import Answer, authenticate, check_covers
from ledger.services.writing import Actor, Locked, Shown, find_facts, lock_name, locked
from ledger.states import AttemptState, Event, Standing, State, contradicts

DIVERGED = "diverged_effect"
DUPLICATE = "duplicate_effect"


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who reports: a runtime's token, or the permit's own token (read and verified). ``nonce``: the ask's, if shown."""

    token_id: str | None = None
    secret_hash: bytes | None = None
    permit: PermitStatement | None = None
    nonce: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """What came over the wire. ``report`` None: it could not be read, ``fault`` says why."""

    shown: Shown
    report: Report | None = None
    fault: errors.Malformed | errors.TooLarge | None = None


def report_outcome(reporter: Reporter, operation_id: str, number: int, body: Body) -> Answer:
    """Records one report; ``stored_as`` says what it counted for.

    Raises NoLedgerEntry or StaleAttempt with ``recorded: true`` (parked), EvidenceConflict (stored, and the opposite of
    what is known), MalformedOutcome (kept raw, the attempt unknown), Unauthenticated, Forbidden.
    """
    failpoints.reach("outcome.before_commit")
    answer = _report_completed(reporter, operation_id, number, body) or _report(
        reporter, operation_id, number, body
    )
    failpoints.reach("outcome.after_commit")
    return answer


def _report_completed(reporter: Reporter, operation_id: str, number: int, body: Body) -> Answer | None:
    """The hot path: the holder of the open attempt shows the receiver's answer. None: not that."""
    report = body.report
    if (
        report is None
        or reporter.nonce is None
        or reporter.token_id is None
        or report.claim is not Claim.COMPLETED
        or not report.shows_effect
    ):
        return None
    shown = body.shown
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT facts::text FROM ledger_report_completed(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                reporter.token_id,
                reporter.secret_hash,
                operation_id,
                number,
                nonce_hash(reporter.nonce),
                _source(report),
                report.receiver_reference,
                None if report.result is None else orjson.dumps(report.result).decode(),
                shown.raw,
                shown.sha256,
                shown.size,
                shown.parsed,
            ],
        )
        row = cursor.fetchone()
    return None if row is None else Answer(Facts.read(orjson.loads(row[0])), stored_as="completed")


def _report(reporter: Reporter, operation_id: str, number: int, body: Body) -> Answer:
    workspace_id, actor, caller = _who(reporter, operation_id, number)
    refusal: errors.Refusal | None = None
    with locked(workspace_id, operation_id, actor) as unit:
        recorded_meanwhile = unit is None and not _park_missing(
            workspace_id, operation_id, number, body, actor
        )
        if recorded_meanwhile:
            pass  # read again below, once this transaction is over
        elif unit is None:
            refusal = errors.NoLedgerEntry(extra=_PARKED)
        elif number > len(unit.facts.attempts):
            if caller is not None:
                check_covers(caller, unit.facts.capability, unit.facts.row["actor_subject"])
            refusal = _store_unpermitted(unit, number, body, permitted=caller is None)
        else:
            attempt = unit.facts.attempts[number - 1]
            holder = _holds(reporter, attempt, unit.facts)
            if caller is not None and not holder:
                check_covers(caller, unit.facts.capability, unit.facts.row["actor_subject"])
            stored_as, refusal = _store(unit, attempt, body, holder=holder)
            unit.reread()
            if refusal is not None:
                refusal.facts = unit.facts
                refusal.extra.setdefault("stored_as", stored_as)
    if recorded_meanwhile:
        return _report(reporter, operation_id, number, body)
    if refusal is not None:  # raised after the commit: the report stays on record
        raise refusal
    assert unit is not None
    return Answer(unit.facts, stored_as=stored_as)


def _park_missing(workspace_id: int, operation_id: str, number: int, body: Body, actor: Actor) -> bool:
    """Parks the report of a name that is not on record; False where its intent was recorded just now."""
    lock_name(workspace_id, operation_id, parks=True)
    if find_facts(workspace_id, operation_id) is not None:
        return False
    park(workspace_id, operation_id, number, body.shown, actor.name)
    return True


_PARKED = {"recorded": True, "stored_as": "parked"}


def _who(reporter: Reporter, operation_id: str, number: int) -> tuple[int, Actor, Any]:
    """(workspace, actor, caller): by the permit's token where it is this attempt's, else by the runtime's token.

    Raises Forbidden (a permit of another attempt), Unauthenticated.
    """
    permit = reporter.permit
    if permit is not None and (permit.operation_id, permit.attempt) == (operation_id, number):
        found = Workspace.objects.filter(name=permit.workspace).values_list("id", flat=True).first()
        if found is None:
            raise errors.Unauthenticated()
        return found, Actor("runtime", "permit holder"), None
    if reporter.token_id is None or reporter.secret_hash is None:
        raise errors.Forbidden("A permit is a credential for the outcome of its own attempt only.")
    caller = authenticate(reporter.token_id, reporter.secret_hash, "outcome")
    return caller.workspace_id, caller.actor, caller


def _holds(reporter: Reporter, attempt: AttemptFacts, facts: Facts) -> bool:
    """Only who was given the permit can say that nothing was sent or that it has stopped."""
    permit = reporter.permit
    if permit is not None and (permit.invocation_id, permit.attempt) == (facts.invocation_id, attempt.number):
        return True
    return reporter.nonce is not None and nonce_hash(reporter.nonce).hex() == attempt.nonce_hash


def park(
    workspace_id: int, operation_id: str, number: int | None, shown: Shown, by: str, kind: str = "outcome"
) -> None:
    """Keeps what arrived for a name that is not on record, inside the caller's transaction. Once per content."""
    lock_name(workspace_id, operation_id, parks=True)
    known = ParkedEvidence.objects.filter(
        workspace_id=workspace_id,
        operation_id=operation_id,
        raw_sha256=shown.sha256,
        attempt_number=number,
        kind=kind,
    )
    if not known.exists():
        ParkedEvidence.objects.create(
            workspace_id=workspace_id,
            operation_id=operation_id,
            attempt_number=number,
            kind=kind,
            raw=shown.raw,
            raw_sha256=shown.sha256,
            raw_size=shown.size,
            recorded_by=by,
        )


def _store_unpermitted(unit: Locked, number: int, body: Body, *, permitted: bool) -> errors.Refusal:
    """The report of an attempt that is not on record.

    A receiver's answer that shows the effect disputes a record that knows of none: dispatching it (again) would make a
    second one. So does a permit of ours (``permitted``) for an attempt that the record has forgotten, as a restored
    backup does, unless its holder can say that there was no effect. Everything else waits for a person.
    """
    report = body.report
    counted = AttemptState.LOST if report is None else count(report, unit.facts.contract).attempt
    shows_effect = counted is AttemptState.COMPLETED
    if unit.facts.recorded_state in _WITHOUT_EFFECT:
        acts = shows_effect or (permitted and counted is AttemptState.LOST)
    else:
        acts = shows_effect and report is not None and _matters(unit, report, permitted=permitted)
    if _is_repeat(unit, number, body, "parked"):
        pass  # kept, and acted upon, before
    elif acts:
        why = "effect_without_a_permit" if shows_effect else "permit_not_on_record"
        unit.keep(
            body.shown,
            source=_source(report),
            claim="unreadable" if report is None else report.claim,
            stored_as="parked",
            by=unit.actor.name,
            attempt=number,
            reference=None if report is None else report.receiver_reference,
            scope=why,
        )
        _account_for(unit, report, detail={"attempt": number, "why": why})
    else:
        park(unit.row.workspace_id, unit.row.operation_id, number, body.shown, unit.actor.name)
    return errors.StaleAttempt(
        "No such attempt is on record; the report was kept.",
        extra={**_PARKED, "next_attempt": unit.facts.next_attempt},
        facts=unit.facts,
    )


_WITHOUT_EFFECT = frozenset({State.INTENDED, State.DENIED, State.WITHDRAWN})


def _matters(unit: Locked, report: Report, *, permitted: bool) -> bool:
    """Whether an effect that is no permitted attempt's says something new of an operation that may have one."""
    if not (permitted or report.shows_success):
        return False  # from others than a permit's holder only the receiver's answer counts
    if unit.facts.recorded_state is State.COMPLETED:
        return _is_another(unit, report)
    return unit.facts.standing is Standing.NONE


def _account_for(unit: Locked, report: Report | None, *, detail: Mapping[str, Any]) -> None:
    """An effect is shown that no attempt can take: its own is not on record, or was said to have none.

    It disputes a record that knows of no effect, completes one that is not settled (no further attempt can then be
    permitted), and beside another reference it is a second one. None: only that there may be one.
    """
    state = unit.facts.recorded_state
    if state in _WITHOUT_EFFECT:
        unit.write(Event.DISPUTE, detail=detail, standing=Standing.DISCREPANCY)
    elif report is not None and state is not State.COMPLETED and unit.facts.standing is Standing.NONE:
        unit.write(Event.COMPLETE, detail={**detail, "source": "runtime"}, **_completed_columns(unit, report))
    else:
        unit.write("evidence_conflict", detail=detail)
    unit.reread()
    if report is not None and unit.facts.recorded_state is State.COMPLETED:
        _compare(unit, report)


def _store(
    unit: Locked, attempt: AttemptFacts, body: Body, *, holder: bool
) -> tuple[str, errors.Refusal | None]:
    report = body.report
    if report is None:
        return _store_unreadable(unit, attempt, body, holder=holder)
    counted = count(report, unit.facts.contract)
    counts = holder or (counted.attempt is AttemptState.COMPLETED and report.shows_success)
    stored_as = STORED_AS[counted.attempt] if counts else "claim"
    conflict = None
    if counts and contradicts(attempt.state, counted.attempt):
        conflict = errors.EvidenceConflict(extra={"recorded": True})
    if _is_repeat(unit, attempt.number, body, stored_as):  # kept, and acted upon, before
        return stored_as, conflict
    _keep(unit, attempt, body, report, counted, stored_as)
    if conflict is not None:
        detail = {"attempt": attempt.number, "why": "evidence_conflict", "said": counted.attempt}
        if counted.attempt is AttemptState.COMPLETED:
            _account_for(unit, report, detail=detail)
        else:
            unit.write("evidence_conflict", detail=detail)
    elif counts:
        _apply(unit, attempt, report, counted, holder=holder)
    else:
        unit.write("claim", detail={"attempt": attempt.number, "outcome": report.claim})
    return stored_as, conflict


def _store_unreadable(
    unit: Locked, attempt: AttemptFacts, body: Body, *, holder: bool
) -> tuple[str, errors.Refusal | None]:
    """Kept raw; from the permit's holder the attempt is unknown from now on."""
    stored_as = "unknown" if holder else "claim"
    fault = body.fault
    why = getattr(fault, "why", None) or (fault.detail.rstrip(".") if fault else "could not be read")
    refusal = errors.MalformedOutcome(
        getattr(fault, "path", ""), why, extra=dict(fault.extra) if fault else {}
    )
    if _is_repeat(unit, attempt.number, body, stored_as):
        return stored_as, refusal
    unit.keep(
        body.shown,
        source=EvidenceSource.RUNTIME,
        claim="unreadable",
        stored_as=stored_as,
        by=unit.actor.name,
        attempt=attempt.number,
    )
    if holder and attempt.state is AttemptState.OPEN:
        unit.end_attempt(attempt.number, AttemptState.LOST, reported_at=unit.now, fault="unreadable_report")
        unit.follow_attempts(detail={"attempt": attempt.number, "why": "unreadable_report"})
    else:
        unit.write("claim", detail={"attempt": attempt.number, "outcome": "unreadable"})
    return stored_as, refusal


def _is_repeat(unit: Locked, number: int, body: Body, stored_as: str) -> bool:
    """The same bytes about the same attempt were kept as the same before: nothing is stored or done twice.

    What was only a claim is new when the permit's holder says it.
    """
    return unit.row.evidence.filter(
        attempt_number=number, raw_sha256=body.shown.sha256, stored_as=stored_as
    ).exists()


def _source(report: Report | None) -> EvidenceSource:
    """Whose word it is: a reference without the receiver's answer is the runtime's own."""
    shows_answer = report is not None and report.has_receiver_evidence
    return EvidenceSource.RECEIVER_RESPONSE if shows_answer else EvidenceSource.RUNTIME


def _keep(
    unit: Locked, attempt: AttemptFacts, body: Body, report: Report, counted: Counted, stored_as: str
) -> None:
    unit.keep(
        body.shown,
        source=_source(report),
        claim=report.claim,
        stored_as=stored_as,
        by=unit.actor.name,
        attempt=attempt.number,
        reference=report.receiver_reference,
        scope=counted.why,
    )


def _apply(unit: Locked, attempt: AttemptFacts, report: Report, counted: Counted, *, holder: bool) -> None:
    """The attempt's end, then what follows for the invocation."""
    detail: dict[str, Any] = {"attempt": attempt.number, "source": "runtime", "why": counted.why}
    moved = False
    noted: dict[str, Any] = {}
    ended = attempt.state is AttemptState.OPEN or (
        attempt.state is AttemptState.LOST and counted.attempt is not AttemptState.LOST
    )
    if ended:
        changes: dict[str, Any] = {"fault": report.fault or attempt.fault}
        if holder and attempt.reported_at is None:
            changes["reported_at"] = unit.now
        unit.end_attempt(attempt.number, counted.attempt, **changes)
        columns = _outcome_columns(unit, report, counted)
        # While an earlier attempt is lost nothing is settled, and why this one was refused is remembered.
        if State(unit.row.state) in (State.DISPATCHED, State.UNKNOWN):
            noted = {name: columns[name] for name in columns.keys() & _DENIAL}
        moved = unit.follow_attempts(detail=detail, noted=noted, **columns)
    if not moved:
        unit.write("report", detail={**detail, "said": counted.attempt}, **noted)
        unit.reread()
    if counted.attempt is AttemptState.COMPLETED and unit.facts.recorded_state is State.COMPLETED:
        _compare(unit, report)


def _outcome_columns(unit: Locked, report: Report, counted: Counted) -> Mapping[str, Any]:
    if counted.attempt is AttemptState.COMPLETED:
        return _completed_columns(unit, report)
    columns: dict[str, Any] = {"outcome_source": "runtime", "settled_at": unit.now}
    if counted.attempt is AttemptState.LOST:
        return columns
    return {
        **columns,
        "outcome": "denied",
        "result": None if report.result is None else orjson.dumps(report.result).decode(),
        **_denial_columns(unit, counted),
    }


def _completed_columns(unit: Locked, report: Report) -> Mapping[str, Any]:
    return {
        "outcome_source": "runtime",
        "settled_at": unit.now,
        "outcome": "completed",
        "receiver_reference": report.receiver_reference,
        "result": None if report.result is None else orjson.dumps(report.result).decode(),
        **dict.fromkeys(_DENIAL),
    }


_DENIAL = frozenset({"denial_reason", "denial_class", "denial_clears_at"})


def _denial_columns(unit: Locked, counted: Counted) -> Mapping[str, Any]:
    """Why there is no effect. Of several attempts without a permit between them, the strictest reason stands: that an
    earlier attempt was never sent does not undo a later one's refusal."""
    row, denial = unit.row, counted.denial_class or DenialClass.STANDING
    clears_at = None
    if denial is DenialClass.CLEARS_AT:
        clears_at = unit.now + timedelta(seconds=counted.clears_after_s or 0)
    if row.denial_class is not None:
        before = DenialClass(row.denial_class)
        known_longer = (
            clears_at is not None and row.denial_clears_at is not None and row.denial_clears_at > clears_at
        )
        if known_longer or (stricter(before, denial) is before and before is not denial):
            return {name: getattr(row, name) for name in _DENIAL}
    return {"denial_reason": counted.reason, "denial_class": denial, "denial_clears_at": clears_at}


def _compare(unit: Locked, report: Report) -> None:
    """The receiver's own answer beside what was intended: another amount or a second reference is a discrepancy."""
    flags = []
    capability = unit.row.capability
    if capability.matches_evidence and isinstance(report.evidence_body, dict) and capability.reconciler:
        arguments = unseal(unit.row.arguments, _bytes(unit.row.sealed), current().fernet)
        mismatches = matching.match_item(
            capability.reconciler, report.evidence_body, arguments, unit.facts.row["amount"]
        )
        # An answer to the call may say less than the receiver's record: what it does not say is not another value.
        if any(mismatch.found != matching.printable(matching.ABSENT) for mismatch in mismatches):
            flags.append(DIVERGED)
    if _is_another(unit, report):
        flags.append(DUPLICATE)
    flag(unit, flags)


def _is_another(unit: Locked, report: Report) -> bool:
    """Whether it names another effect than the one on record."""
    known = unit.row.receiver_reference
    return known is not None and report.receiver_reference not in (None, known)


def flag(unit: Locked, flags: list[str]) -> None:
    """Marks a completed operation as a discrepancy; a flag that is there already changes nothing."""
    new = [name for name in flags if name not in unit.row.flags]
    if new:
        unit.write(
            Event.FLAG, detail={"flags": new}, flags=[*unit.row.flags, *new], standing=Standing.DISCREPANCY
        )
        unit.reread()


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)

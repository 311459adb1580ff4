"""What is durable before anything leaves the process: the intent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
from django.db import IntegrityError, connection, transaction

from ledger import errors, failpoints, tenancy
from ledger.digests import arguments_digest, uuid7
from ledger.facts import Facts, contract_of
from ledger.intake import Amount, CapabilityFacts, Intent, Prepared, agreed_amount, nonce_hash, prepare
from ledger.keys import current
from ledger.models import Capability, Entry, Invocation, ParkedEvidence, Task
from ledger.services.outcomes import park
from ledger.services.permits import (
    Answer,
    authenticate,
    check_covers,
    check_scope,
    grant,
    permit_of,
)
from ledger.services.relations import relate
from ledger.services.writing import Caller, Locked, Shown, find_facts, hold, lock_name, locked, read_facts
from ledger.states import Event, State

KNOWN_MAX = 4096  # capabilities a process remembers, one for each token that used it
_known: dict[tuple[str, bytes, str], CapabilityFacts] = {}


def record_intent(token_id: str, secret_hash: bytes, intent: Intent, nonce: str | None) -> Answer:
    """The invocation of this operation ID, recorded now (``created``) or before; with a permit where the intent asks
    for one and the decision allows attempt 1.

    Raises IntentMismatch, CapabilityUnknown, ReferenceRequired, KeyInUse, Malformed, NotSupersedable,
    AlreadyCompensated, NoLedgerEntry (``expect``), Unauthenticated, Forbidden.
    """
    hashed = nonce_hash(nonce) if intent.dispatch and nonce is not None else None
    failpoints.reach("intent.before_commit")
    answer = _record_all_clear(token_id, secret_hash, intent, hashed) or _record(
        token_id, secret_hash, intent, hashed
    )
    failpoints.reach("intent.after_commit")
    return answer


# The hot path: one statement, when everything is clear.


def _record_all_clear(
    token_id: str, secret_hash: bytes, intent: Intent, hashed: bytes | None
) -> Answer | None:
    capability = _known.get((token_id, secret_hash, intent.capability))
    if capability is None or intent.expect_recorded or intent.supersedes or intent.compensates:
        return None
    keys = current()
    try:
        prepared = prepare(intent, capability, fernet=keys.fernet, pepper=keys.pepper)
    except errors.Refusal:
        return None  # raised again once the caller has been authenticated
    if prepared.approvals_needed or prepared.salt is not None:
        return None
    invocation_id = uuid7()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT recorded_at, lease_until, permission_until FROM ledger_record_intent("
            "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                token_id,
                secret_hash,
                invocation_id,
                intent.operation_id,
                intent.task_id,
                capability.id,
                intent.subject,
                intent.on_behalf_of,
                prepared.arguments,
                prepared.digest,
                intent.business_reference,
                prepared.key,
                intent.idempotency_key is not None,
                prepared.amount.value if prepared.amount else None,
                prepared.amount.currency if prepared.amount else None,
                intent.checkpoint,
                intent.purpose,
                _recorded_detail(prepared),
                hashed,
            ],
        )
        row = cursor.fetchone()
    if row is None:
        return None
    facts = _facts_just_written(prepared, str(invocation_id), hashed, *row)
    return Answer(facts, created=True, permit=permit_of(facts, facts.attempts[0]) if hashed else None)


def _recorded_detail(prepared: Prepared) -> str:
    detail: dict[str, Any] = {"capability": prepared.capability.as_row["name"], "digest": prepared.digest}
    if prepared.approval_reason is not None:
        detail["approvals_needed"] = prepared.approvals_needed
        detail["approval_reason"] = prepared.approval_reason
    return orjson.dumps(detail).decode()


_UNTOUCHED: Mapping[str, Any] = {
    "salt": None,
    "supersedes": None,
    "superseded_by": None,
    "compensates": None,
    "approvals_needed": 0,
    "approval_reason": None,
    "standing": "none",
    "flags": [],
    "asked_at": None,
    "outcome": None,
    "receiver_reference": None,
    "result": None,
    "outcome_source": None,
    "settled_at": None,
    "denial_reason": None,
    "denial_class": None,
    "denial_clears_at": None,
    "paused": None,
    "grant": None,
    "twins": [],
}


def _facts_just_written(
    prepared: Prepared,
    invocation_id: str,
    hashed: bytes | None,
    recorded_at: datetime,
    lease_until: datetime,
    permission_until: datetime | None,
) -> Facts:
    """What ledger_facts_of would read of a row that the all-clear has just written."""
    intent, capability = prepared.intent, prepared.capability
    at = recorded_at.isoformat()
    permits = hashed is not None
    attempt = {
        "number": 1,
        "state": "open",
        "permitted_at": at,
        "lease_until": lease_until.isoformat(),
        "reported_at": None,
        "ended_at": None,
        "fault": None,
        "nonce_hash": (hashed or b"").hex(),
    }
    mandate = permission_until and {
        "subject": intent.subject,
        "capability": intent.capability,
        "valid_until": permission_until.isoformat(),
        "revoked": False,
        "limited": False,
    }
    valid_until = recorded_at + timedelta(seconds=capability.as_row["intent_valid_s"])
    return Facts(
        recorded_at,
        {
            **_UNTOUCHED,
            "now": at,
            "workspace_id": capability.workspace_id,
            "workspace": capability.workspace,
            "environment": capability.environment,
            "invocation_id": invocation_id,
            "operation_id": intent.operation_id,
            "task_id": intent.task_id,
            "actor_subject": intent.subject,
            "on_behalf_of": intent.on_behalf_of,
            "arguments_digest": prepared.digest,
            "business_reference": intent.business_reference,
            "idempotency_key": prepared.key,
            "amount": prepared.amount
            and {"value": prepared.amount.value, "currency": prepared.amount.currency},
            "state": "dispatched" if permits else "intended",
            "version": 2 if permits else 1,
            "attempt_count": int(permits),
            "first_permit_at": at if permits else None,
            "created_at": at,
            "intent_valid_until": valid_until.isoformat(),
            "capability": capability.as_row,
            "receiver": capability.receiver,
            "receiver_id": capability.receiver_id,
            "attempts": [attempt] if permits else [],
            "mandates_open": permission_until is None,
            "mandates": [mandate] if mandate else [],
        },
    )


# Everything else.


def _record(token_id: str, secret_hash: bytes, intent: Intent, hashed: bytes | None) -> Answer:
    caller = authenticate(token_id, secret_hash, "intent")
    if intent.dispatch:
        check_scope(caller, "permit")
    check_covers(caller, intent.capability, intent.subject)
    if intent.expect_recorded and find_facts(caller.workspace_id, intent.operation_id) is None:
        _note_missing(caller, intent)
        raise errors.NoLedgerEntry("A record was expected and there is none; an operator has been told.")
    answer = _replay(caller, intent, hashed)
    if answer is None:
        answer = _create(caller, token_id, secret_hash, intent, hashed)
    # Another request may have recorded it in between: then this one is its repeat.
    answer = answer or _replay(caller, intent, hashed)
    if answer is None:
        raise errors.KeyInUse()
    return answer


def _note_missing(caller: Caller, intent: Intent) -> None:
    with tenancy.workspace(caller.workspace_id):
        seen = orjson.dumps({"task_id": intent.task_id, "capability": intent.capability})
        park(caller.workspace_id, intent.operation_id, None, Shown.of(seen), caller.runtime, kind="no_entry")


def _replay(caller: Caller, intent: Intent, hashed: bytes | None) -> Answer | None:
    """The operation that stands under this ID; None where there is none. Raises IntentMismatch."""
    facts = find_facts(caller.workspace_id, intent.operation_id)
    if facts is None:
        return None
    check_covers(caller, facts.capability, facts.row["actor_subject"])
    drifted = _drift(caller, intent, facts)
    if drifted:
        raise errors.IntentMismatch(extra={"drifted": drifted}, facts=facts)
    if hashed is None:
        return Answer(facts, replayed=True)
    with locked(caller.workspace_id, intent.operation_id, caller.actor) as unit:
        assert unit is not None  # names are never deleted
        answer, _ = grant(unit, 1, hashed, caller)
        if answer is None:
            return Answer(unit.facts, replayed=True)
        return Answer(answer.facts, replayed=True, permit=answer.permit)


def _drift(caller: Caller, intent: Intent, facts: Facts) -> list[str]:
    """Which of the compared fields differ from what is on record; names only, never values."""
    row = facts.row
    salt = row["salt"]
    digest = arguments_digest(intent.arguments, None if salt is None else bytes.fromhex(salt))
    compared: list[tuple[str, object, object]] = [
        ("arguments", digest, row["arguments_digest"]),
        ("actor.subject", intent.subject, row["actor_subject"]),
        ("actor.on_behalf_of", intent.on_behalf_of, row["on_behalf_of"]),
        ("capability", intent.capability, facts.capability),
        ("task_id", intent.task_id, row["task_id"]),
        ("business_reference", intent.business_reference, row["business_reference"]),
        ("supersedes", intent.supersedes, row["supersedes"]),
        ("compensates", intent.compensates, row["compensates"]),
    ]
    if not _same_amount(_amount_said(caller, intent, facts), row["amount"]):
        compared.append(("amount", True, False))
    if intent.idempotency_key is not None:
        compared.append(("idempotency_key", intent.idempotency_key, row["idempotency_key"]))
    return [name for name, said, known in compared if said != known]


def _amount_said(caller: Caller, intent: Intent, facts: Facts) -> Amount | None:
    """The amount of an intent that is sent again: stated, or where the recorded capability finds it."""
    if intent.amount is not None or facts.row["amount"] is None:
        return intent.amount
    with tenancy.workspace(caller.workspace_id):
        where = Capability.objects.values_list("amount", flat=True).get(pk=facts.row["capability"]["id"])
    return agreed_amount(intent, where)


def _same_amount(said: Amount | None, known: Mapping[str, str] | None) -> bool:
    """Decimals compare by value: 120.0 is 120.00."""
    if said is None or known is None:
        return said is None and known is None
    return Decimal(said.value) == Decimal(known["value"]) and said.currency == known["currency"]


def _create(
    caller: Caller, token_id: str, secret_hash: bytes, intent: Intent, hashed: bytes | None
) -> Answer | None:
    """Records it; None where the operation ID or the key turned out to be taken."""
    keys = current()
    try:
        with tenancy.workspace(caller.workspace_id):
            capability = _capability(caller, intent.capability)
            prepared = prepare(intent, capability, fernet=keys.fernet, pepper=keys.pepper)
            unit = _insert(caller, prepared)
            relate(unit, intent, caller)
            answer = Answer(unit.facts, created=True)
            if hashed is not None:
                granted, _ = grant(unit, 1, hashed, caller)
                permit = None if granted is None else granted.permit
                answer = Answer(unit.facts, created=True, permit=permit)
    except IntegrityError as error:
        if _constraint(error) not in (
            "one_invocation_per_operation_id",
            "one_invocation_per_idempotency_key",
        ):
            raise
        return None
    if len(_known) >= KNOWN_MAX:
        _known.clear()
    _known[token_id, secret_hash, intent.capability] = capability
    return answer


def _constraint(error: IntegrityError) -> str | None:
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None)


def _capability(caller: Caller, name: str) -> CapabilityFacts:
    found = (
        Capability.objects.select_related("receiver")
        .filter(workspace_id=caller.workspace_id, name=name, current=True)
        .first()
    )
    if found is None:
        raise errors.CapabilityUnknown()
    return capability_facts(found, caller.workspace, caller.environment)


def capability_facts(found: Capability, workspace: str, environment: str) -> CapabilityFacts:
    """A capability row as intake reads it."""
    return CapabilityFacts(
        workspace_id=found.workspace_id,
        workspace=workspace,
        environment=environment,
        id=found.pk,
        receiver=found.receiver.name,
        receiver_id=found.receiver_id,
        sensitive=tuple(found.sensitive),
        audit_sensitive=found.audit_sensitive,
        amount=found.amount,
        arguments_schema=None
        if found.arguments_schema is None
        else orjson.dumps(found.arguments_schema).decode(),
        approval=found.approval,
        contract=contract_of(found.contract),
        as_row={
            "id": found.pk,
            "name": found.name,
            "version": found.version,
            "risk": found.risk,
            "lease_s": found.lease_s,
            "intent_valid_s": found.intent_valid_s,
            "max_attempts": found.max_attempts,
            "duplicates": found.duplicates,
            "contract": found.contract,
            "verified": found.verified,
            "matches_evidence": found.matches_evidence,
            "enabled": found.enabled,
        },
    )


def _insert(caller: Caller, prepared: Prepared) -> Locked:
    """The invocation's row and first entry, locked by being new. Evidence parked for its name makes it unknown."""
    intent, capability = prepared.intent, prepared.capability
    lock_name(caller.workspace_id, intent.operation_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now = cursor.fetchone()[0]
    parked = ParkedEvidence.objects.filter(
        workspace_id=caller.workspace_id,
        operation_id=intent.operation_id,
        kind__in=(ParkedEvidence.Kind.OUTCOME, ParkedEvidence.Kind.CALLBACK),
        matched_at=None,
    )
    waited = list(parked)
    state = State.UNKNOWN if waited else State.INTENDED
    task, _ = Task.objects.get_or_create(workspace_id=caller.workspace_id, task_id=intent.task_id)
    with transaction.atomic():  # a taken name leaves the outer transaction usable
        row = Invocation.objects.create(
            id=uuid7(),
            workspace_id=caller.workspace_id,
            operation_id=intent.operation_id,
            task=task,
            capability_id=capability.id,
            receiver_id=capability.receiver_id,
            recorded_by_id=caller.runtime_id,
            actor_subject=intent.subject,
            on_behalf_of=intent.on_behalf_of,
            arguments=prepared.arguments,
            sealed=prepared.sealed,
            salt=prepared.salt,
            arguments_digest=prepared.digest,
            twin_digest=prepared.twin_digest,
            business_reference=intent.business_reference,
            idempotency_key=prepared.key,
            key_given=intent.idempotency_key is not None,
            amount_value=prepared.amount.value if prepared.amount else None,
            amount_currency=prepared.amount.currency if prepared.amount else None,
            checkpoint=intent.checkpoint,
            purpose=intent.purpose,
            supersedes=intent.supersedes,
            compensates=intent.compensates,
            approvals_needed=prepared.approvals_needed,
            approval_reason=prepared.approval_reason,
            state=state,
            created_at=now,
            intent_valid_until=now + timedelta(seconds=capability.as_row["intent_valid_s"]),
        )
    Entry.objects.create(
        workspace_id=caller.workspace_id,
        invocation_id=row.id,
        position=1,
        actor_kind="runtime",
        actor_name=caller.runtime,
        event=Event.RECORD,
        to_state=state,
        detail=_recorded_detail(prepared),
    )
    unit = Locked(row, read_facts(caller.workspace_id, intent.operation_id), caller.actor)
    if waited:
        for evidence in waited:
            unit.keep(
                # As it came: what is kept of it may be cut, its digest covers all of it.
                Shown(bytes(evidence.raw or b""), bytes(evidence.raw_sha256), evidence.raw_size, None),
                source="runtime",
                claim=evidence.kind,
                stored_as="parked",
                by=evidence.recorded_by,
                attempt=evidence.attempt_number,
            )
        parked.update(matched_at=now)
        hold(row, lease_until=None)
        unit.reread()
    return unit

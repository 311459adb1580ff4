"""Permission to dispatch one attempt: asked anew each time, granted to one asker, until its lease ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import orjson
from django.db import connection

from ledger import errors, failpoints, permits
from ledger.decisions import Action, Decision, Reason
from ledger.facts import RECONCILE_POLL_S, AttemptFacts, Facts
from ledger.intake import nonce_hash
from ledger.keys import current
from ledger.models import Attempt
from ledger.permissions import PermissionReason, matches
from ledger.services.writing import SYSTEM, Caller, Locked, hold, locked
from ledger.states import Event, State


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to dispatch one attempt. ``lease_s`` is what is left, counted from the database's clock."""

    attempt: int
    token: str
    idempotency_key: str
    arguments_digest: str
    lease_s: float
    lease_until: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service gives back: the facts after it, and what belongs to this one call only."""

    facts: Facts
    created: bool = False
    replayed: bool = False
    permit: Permit | None = None
    stored_as: str | None = None


def ask_permit(token_id: str, secret_hash: bytes, operation_id: str, number: int, nonce: str) -> Answer:
    """The permit of attempt ``number``; ``created`` is False when the same nonce is answered again.

    Raises the refusal that the decision calls for, StaleAttempt for another number, Unauthenticated, Forbidden.
    """
    hashed = nonce_hash(nonce)
    failpoints.reach("permit.before_commit")
    if number == 1:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT facts::text FROM ledger_ask_permit(%s, %s, %s, %s)",
                [token_id, secret_hash, operation_id, hashed],
            )
            row = cursor.fetchone()
        if row is not None:
            failpoints.reach("permit.after_commit")
            facts = Facts.read(orjson.loads(row[0]))
            return Answer(facts, created=True, permit=permit_of(facts, facts.attempts[0]))
    caller = authenticate(token_id, secret_hash, "permit")
    refusal: errors.Refusal | None = None
    with locked(caller.workspace_id, operation_id, caller.actor) as unit:
        if unit is None:
            raise errors.NoLedgerEntry()
        check_covers(caller, unit.facts.capability, unit.facts.row["actor_subject"])
        answer, refusal = grant(unit, number, hashed, caller)
    if refusal is not None:  # raised after the commit: what was refused stays on record
        raise refusal
    failpoints.reach("permit.after_commit")
    assert answer is not None
    return answer


def grant(
    unit: Locked, number: int, hashed: bytes, caller: Caller
) -> tuple[Answer | None, errors.Refusal | None]:
    """The permit or the refusal; a refusal that changes the record (lapsed, too old) has been written when it returns."""
    facts = unit.facts
    if facts.is_too_old:
        unit.write(Event.WITHDRAW, detail={"why": "intent_valid_s"}, actor=SYSTEM)
        unit.reread()
        return None, refusal_for(unit.facts)
    again = facts.open_attempt
    if (
        again is not None
        and again.number == number
        and again.nonce_hash == hashed.hex()
        and facts.recorded_state is State.DISPATCHED
    ):
        if not facts.permission_granted:
            return None, _refused_again(unit, number)
        return Answer(facts, replayed=True, permit=permit_of(facts, again)), None
    lock_twins(unit)
    decision = unit.facts.decision
    if not decision.allows_permit:
        if decision.reason is Reason.NOT_PERMITTED and unit.facts.state is State.INTENDED:
            unit.write(
                Event.REFUSE,
                detail={"why": decision.detail},
                denial_reason=decision.detail,
                denial_class="cleared",
            )
            unit.reread()
            return None, errors.NotPermitted(extra={"permission_reason": decision.detail}, facts=unit.facts)
        return None, refusal_for(unit.facts)
    if number != unit.facts.next_attempt:
        return None, errors.StaleAttempt(extra={"next_attempt": unit.facts.next_attempt}, facts=unit.facts)
    permit = _open(unit, number, hashed, caller, decision)
    return Answer(unit.facts, created=True, permit=permit), None


def _refused_again(unit: Locked, number: int) -> errors.Refusal:
    """A permit that was given is not handed out again; the attempt stays in flight, for its holder may have begun."""
    refusal = refusal_for_permission(unit.facts)
    if isinstance(refusal, errors.NotPermitted):  # a pause or a missing approval passes, and is no refusal
        unit.write("permit_refused", detail={"attempt": number, "why": unit.facts.permission.reason})
        unit.reread()
        refusal.facts = unit.facts
    return refusal


def lock_twins(unit: Locked) -> None:
    """Before a first permit: other first permits of the same reference or arguments wait here, then are seen."""
    row = unit.facts.row
    if row["first_permit_at"] is not None or row["capability"]["duplicates"] == "off":
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT ledger_lock_twins(%s, %s, %s, %s)",
            [
                unit.row.workspace_id,
                unit.facts.capability,
                unit.row.twin_digest or unit.row.arguments_digest,
                unit.row.business_reference,
            ],
        )
    unit.reread()


def _open(unit: Locked, number: int, hashed: bytes, caller: Caller, decision: Decision) -> Permit:
    facts = unit.facts
    lease_until = unit.now + timedelta(seconds=facts.row["capability"]["lease_s"])
    if facts.permission.until is not None:
        lease_until = min(lease_until, facts.permission.until)
    Attempt.objects.create(
        workspace_id=unit.row.workspace_id,
        invocation_id=unit.row.id,
        number=number,
        nonce_hash=hashed,
        permitted_at=unit.now,
        lease_until=lease_until,
        runtime_id=caller.runtime_id,
    )
    unit.write(
        Event.DISPATCH,
        detail={"attempt": number, "reason": decision.reason},
        attempt_count=number,
        first_permit_at=unit.row.first_permit_at or unit.now,
        outcome=None,
        outcome_source=None,
        settled_at=None,
        denial_reason=None,
        denial_class=None,
        denial_clears_at=None,
    )
    hold(unit.row, lease_until=lease_until)
    unit.reread()
    return permit_of(unit.facts, unit.facts.attempts[-1])


def permit_of(facts: Facts, attempt: AttemptFacts) -> Permit:
    """The permit of an open attempt: the same statement, signed again, whenever it is asked for."""
    salt = facts.row["salt"]
    token = permits.sign(
        permits.PermitStatement(
            workspace=facts.row["workspace"],
            operation_id=facts.operation_id,
            invocation_id=facts.invocation_id,
            attempt=attempt.number,
            idempotency_key=facts.row["idempotency_key"],
            arguments_digest=facts.row["arguments_digest"],
            salt=None if salt is None else bytes.fromhex(salt),
            capability=facts.capability,
            receiver=facts.row["receiver"],
            permitted_at=attempt.permitted_at,
            lease_until=attempt.lease_until,
        ),
        current(),
    )
    return Permit(
        attempt=attempt.number,
        token=token,
        idempotency_key=facts.row["idempotency_key"],
        arguments_digest=facts.row["arguments_digest"],
        lease_s=round(max(0.0, (attempt.lease_until - facts.now).total_seconds()), 3),
        lease_until=attempt.lease_until.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    )


# Who may ask.


def authenticate(token_id: str, secret_hash: bytes, scope: str) -> Caller:
    """Whose token this is. Raises Unauthenticated, and Forbidden where it lacks the scope."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(a)::text FROM ledger_authenticate(%s, %s) a", [token_id, secret_hash])
        row = cursor.fetchone()
    if row is None:
        raise errors.Unauthenticated()
    caller = Caller.read(orjson.loads(row[0]))
    check_scope(caller, scope)
    return caller


def check_scope(caller: Caller, scope: str) -> None:
    if scope not in caller.scopes:
        raise errors.Forbidden(f"This token has no scope {scope!r}.")


def check_covers(caller: Caller, capability: str, subject: str) -> None:
    """Raises Forbidden unless the token covers both."""
    if not any(matches(pattern, capability) for pattern in caller.capabilities):
        raise errors.Forbidden("This token does not cover that capability.")
    if not any(matches(pattern, subject) for pattern in caller.subjects):
        raise errors.Forbidden("This token does not cover that subject.")


# What is answered instead.

_REFUSALS: dict[Reason, type[errors.Refusal]] = {
    Reason.NO_LEDGER_ENTRY: errors.NoLedgerEntry,
    Reason.ATTEMPT_IN_FLIGHT: errors.AttemptInFlight,
    Reason.WITHDRAWN: errors.Withdrawn,
    Reason.DISCREPANCY: errors.Discrepancy,
    Reason.ABANDONED: errors.Abandoned,
    Reason.EFFECT_EXISTS: errors.Settled,
    Reason.OUTCOME_UNKNOWN: errors.ReconciliationRequired,
    Reason.DENIED: errors.Denied,
    Reason.NOT_PERMITTED: errors.NotPermitted,
    Reason.PAUSED: errors.Paused,
    Reason.AWAITING_APPROVAL: errors.AwaitingApproval,
    Reason.POSSIBLE_DUPLICATE: errors.PossibleDuplicate,
    Reason.DENIAL_CLEARS_AT: errors.Denied,
    Reason.NO_RULE: errors.NotPermitted,
}


def refusal_for(facts: Facts) -> errors.Refusal:
    """The problem that the decision calls for, where it allows no permit."""
    decision = facts.decision
    retry_after = None
    if decision.action in (Action.WAIT, Action.RECONCILE) and facts.retry_at is not None:
        retry_after = int((facts.retry_at - facts.now).total_seconds()) + 1
    if decision.reason is Reason.NOT_PERMITTED:
        return refusal_for_permission(facts)
    return _REFUSALS[decision.reason](facts=facts, retry_after=retry_after)


def refusal_for_permission(facts: Facts) -> errors.Refusal:
    """Permission does not hold, whatever the decision's first row says: for the second hand-out of a permit."""
    reason = facts.permission.reason
    match reason:
        case PermissionReason.PAUSED:
            return errors.Paused(facts=facts, retry_after=RECONCILE_POLL_S)
        case PermissionReason.AWAITING_APPROVAL:
            return errors.AwaitingApproval(facts=facts, retry_after=RECONCILE_POLL_S)
        case PermissionReason.POSSIBLE_DUPLICATE:
            return errors.PossibleDuplicate(facts=facts, retry_after=RECONCILE_POLL_S)
    return errors.NotPermitted(extra={"permission_reason": reason}, facts=facts)

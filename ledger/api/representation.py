"""The one shape in which an operation leaves the API, whatever the call."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from ledger.decisions import Action, DenialClass, Reason, Situation, decide
from ledger.facts import AttemptFacts, Facts
from ledger.services.permits import Permit
from ledger.states import AttemptState, State


def operation_body(
    facts: Facts, *, replayed: bool = False, permit: Permit | None = None, stored_as: str | None = None
) -> dict[str, Any]:
    """The operation body of every call. ``permit`` and ``stored_as`` belong to one call only."""
    row = facts.row
    body: dict[str, Any] = {
        "operation_id": row["operation_id"],
        "invocation_id": row["invocation_id"],
        "task_id": row["task_id"],
        "capability": facts.capability,
        "capability_version": row["capability"]["version"],
        "version": row["version"],
        "actor": {"subject": row["actor_subject"], "on_behalf_of": row["on_behalf_of"]},
        "arguments_digest": row["arguments_digest"],
        "business_reference": row["business_reference"],
        "idempotency_key": row["idempotency_key"],
        "amount": row["amount"],
        "state": facts.state,
        "dispatched": facts.dispatched,
        "effect": facts.effect,
        "evidence": facts.evidence,
        "reservation": facts.reservation,
        "permission": facts.permission.permission,
        "permission_reason": facts.permission.reason,
        "denial": _denial(facts),
        "outcome": _outcome(facts),
        "case": {"standing": row["standing"], "flags": row["flags"]},
        "possible_duplicates": row["twins"],
        "supersedes": row["supersedes"],
        "superseded_by": row["superseded_by"],
        "compensates": row["compensates"],
        "lookup": facts.contract.lookup,
        "operator_only": facts.contract.operator_only,
        "decision": decision_body(facts) if permit is None else _permitted(facts),
        "retryable": facts.decision.allows_permit,
        "reuse_key": True,
        "reconciliation_required": facts.state is State.UNKNOWN,
        "effect_may_have_happened": facts.effect != "no",
        "replayed": replayed,
        "attempts": [_attempt(attempt, facts.now) for attempt in facts.attempts],
        "permit": None if permit is None else _permit(permit),
        "created_at": z(row["created_at"]),
        "links": {
            "self": f"/api/v1/operations/{row['operation_id']}",
            "console": f"/operations/{row['operation_id']}",
        },
    }
    if stored_as is not None:
        body["stored_as"] = stored_as
    return body


def decision_body(facts: Facts | None) -> dict[str, Any]:
    """What a caller without a permit is to do. None: there is no entry."""
    decision = decide(Situation(state=None)) if facts is None else facts.decision
    return {
        "action": decision.action,
        "reason": decision.reason,
        "dispatch_allowed": False,
        "next_attempt": None if facts is None else facts.next_attempt,
        "retry_at": None if facts is None else z(facts.retry_at),
    }


def _permitted(facts: Facts) -> dict[str, Any]:
    """What the holder of a permit is to do, while everybody else waits: the decision that gave it."""
    *earlier, _ = facts.attempts
    if not earlier:
        action, reason = Action.DISPATCH, Reason.INTENT_RECORDED
    elif any(attempt.state is AttemptState.LOST for attempt in earlier):
        action, reason = Action.RETRY, Reason.RECEIVER_REPLAYS
    else:
        action, reason = Action.RETRY, Reason.DENIAL_CLEARED
    return {
        "action": action,
        "reason": reason,
        "dispatch_allowed": True,
        "next_attempt": None,
        "retry_at": None,
    }


def z(moment: datetime | str | None) -> str | None:
    """A moment as RFC 3339 in UTC with a Z, always to the microsecond: the same moment is the same text."""
    if moment is None:
        return None
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return known.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _attempt(attempt: AttemptFacts, now: datetime) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "state": attempt.at(now),
        "permitted_at": z(attempt.permitted_at),
        "lease_until": z(attempt.lease_until),
        "fault": attempt.fault,
    }


def _permit(permit: Permit) -> dict[str, Any]:
    return {
        "attempt": permit.attempt,
        "token": permit.token,
        "idempotency_key": permit.idempotency_key,
        "arguments_digest": permit.arguments_digest,
        "lease_s": permit.lease_s,
        "lease_until": permit.lease_until,
    }


def _denial(facts: Facts) -> dict[str, Any] | None:
    if facts.denial is None:
        return None
    denial: dict[str, Any] = {"reason": facts.row["denial_reason"], "class": facts.denial}
    if facts.denial is DenialClass.CLEARS_AT:
        denial["clears_at"] = z(facts.row["denial_clears_at"])
    return denial


def _outcome(facts: Facts) -> dict[str, Any] | None:
    row = facts.row
    if row["outcome"] is None or facts.state not in (State.COMPLETED, State.DENIED):
        return None
    return {
        "outcome": row["outcome"],
        "receiver_reference": row["receiver_reference"],
        "result": None if row["result"] is None else orjson.loads(row["result"]),
        "source": row["outcome_source"],
        "settled_at": z(row["settled_at"]),
    }

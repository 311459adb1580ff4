"""When each problem occurs, and how its body looks: what GET /api/v1/problems shows beside ledger/errors.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledger import errors
from ledger.api.problems import problem_body
from ledger.decisions import Action, Reason

_OPERATION = "refund-8841-1"
_INVOCATION = "01992f0e-7a5c-7cc1-9d7a-3f1b8a2c6e10"
_LATER = "2026-11-30T12:00:05.000000Z"


@dataclass(frozen=True, slots=True)
class Explained:
    """One refusal as people read it. ``example`` is a whole problem body."""

    refusal: type[errors.Refusal]
    when: str
    example: Mapping[str, Any]


def _decided(action: Action, reason: Reason, state: str, **more: Any) -> dict[str, Any]:
    """The members that a problem has where the operation is on record."""
    decision = {
        "action": action,
        "reason": reason,
        "dispatch_allowed": False,
        "next_attempt": None,
        "retry_at": None,
    }
    return {"invocation_id": _INVOCATION, "state": state, "decision": decision | more}


# (when it occurs, members beside the common ones); an operation ID of None: the call names no operation.
_WHEN: Mapping[type[errors.Refusal], tuple[str, Mapping[str, Any]]] = {
    errors.NoLedgerEntry: (
        "The operation or task is not on record here; another workspace's names answer the same.",
        {},
    ),
    errors.AttemptInFlight: (
        "The lease of an attempt still runs and the ask shows another nonce than the one that was granted.",
        _decided(Action.WAIT, Reason.ATTEMPT_IN_FLIGHT, "dispatched", retry_at=_LATER),
    ),
    errors.Withdrawn: (
        "The operation was given up, superseded, or stayed undispatched beyond its validity.",
        _decided(Action.STOP, Reason.WITHDRAWN, "withdrawn"),
    ),
    errors.Discrepancy: (
        (
            "What the receiver shows contradicts the record (a duplicate, another amount, an effect without a permit), and"
            " nobody has settled it yet."
        ),
        _decided(Action.WAIT, Reason.DISCREPANCY, "completed"),
    ),
    errors.Abandoned: (
        "Operators closed an unknown outcome without finding out.",
        _decided(Action.STOP, Reason.ABANDONED, "unknown"),
    ),
    errors.Settled: (
        "A permit is asked for, or a withdrawal, and the effect is on record as completed.",
        _decided(Action.RESUME, Reason.EFFECT_EXISTS, "completed")
        | {
            "outcome": {
                "outcome": "completed",
                "receiver_reference": "re_1",
                "result": {"id": "re_1"},
                "source": "lookup",
                "settled_at": _LATER,
            }
        },
    ),
    errors.ReconciliationRequired: (
        "An attempt was dispatched and its outcome is not known, and the receiver is not known to replay.",
        _decided(Action.RECONCILE, Reason.OUTCOME_UNKNOWN, "unknown", retry_at=_LATER),
    ),
    errors.Denied: (
        "The receiver's refusal stands, or has not cleared yet.",
        _decided(Action.STOP, Reason.DENIED, "denied")
        | {"denial": {"reason": "card_declined", "class": "standing", "clears_at": None}},
    ),
    errors.NotPermitted: (
        "No mandate covers the actor and the capability, or permission was refused, revoked, has expired, or exceeds a limit.",
        _decided(Action.STOP, Reason.NOT_PERMITTED, "denied") | {"permission_reason": "no_mandate"},
    ),
    errors.Paused: (
        "A permit is asked for while the workspace, the capability or the receiver is paused.",
        _decided(Action.WAIT, Reason.PAUSED, "intended", next_attempt=1, retry_at=_LATER),
    ),
    errors.AwaitingApproval: (
        "The capability's rule asks for a person's approval, and it has not been given.",
        _decided(Action.WAIT, Reason.AWAITING_APPROVAL, "intended", next_attempt=1, retry_at=_LATER),
    ),
    errors.PossibleDuplicate: (
        "An operation with the same arguments or business reference is dispatched or unknown.",
        _decided(Action.WAIT, Reason.POSSIBLE_DUPLICATE, "intended", next_attempt=1, retry_at=_LATER)
        | {"possible_duplicates": ["refund-8841-0"]},
    ),
    errors.StaleAttempt: (
        (
            "The number in the address is not the next one; or an outcome is reported for an attempt that nobody permitted,"
            " which is kept (`recorded`)."
        ),
        _decided(Action.RETRY, Reason.DENIAL_CLEARED, "denied", next_attempt=2) | {"next_attempt": 2},
    ),
    errors.IntentMismatch: (
        "An intent is sent again under its operation ID with other contents.",
        _decided(Action.RECONCILE, Reason.OUTCOME_UNKNOWN, "unknown", retry_at=_LATER)
        | {"drifted": ["arguments"]},
    ),
    errors.CapabilityUnknown: ("An intent names a capability that this workspace does not have.", {}),
    errors.ReferenceRequired: (
        "The capability's contract looks effects up by reference and the intent brings none.",
        {},
    ),
    errors.KeyInUse: ("An intent brings an idempotency key that another operation already has.", {}),
    errors.NotSupersedable: (
        (
            "An intent supersedes an operation that is unknown here, was dispatched, belongs to another task or capability, or"
            " was superseded before."
        ),
        {},
    ),
    errors.AlreadyCompensated: (
        "An intent compensates an operation for which another compensation is under way or done.",
        {},
    ),
    errors.EvidenceConflict: (
        "A report says the opposite of what is known about the attempt: completed where it was denied, or the reverse.",
        _decided(Action.RESUME, Reason.EFFECT_EXISTS, "completed")
        | {"recorded": True, "stored_as": "denied"},
    ),
    errors.PostDispatchEvidenceFailed: ("An outcome was reported and the database did not take it.", {}),
    errors.ApprovalExpired: (
        "A person decides an approval after its time. No call of a runtime answers this.",
        {},
    ),
    errors.AlreadyDecided: (
        "A person decides what another one has decided meanwhile. No call of a runtime answers this.",
        {},
    ),
    errors.Malformed: (
        "A name, header, query or body does not have its shape, or a body is not I-JSON.",
        {"unknown_fields": ["argumnets"]},
    ),
    errors.MalformedOutcome: (
        "The body of a report could not be read: not I-JSON, too large, or with fields that are not known.",
        _decided(Action.RECONCILE, Reason.OUTCOME_UNKNOWN, "unknown", retry_at=_LATER)
        | {"stored_as": "unknown"},
    ),
    errors.TooLarge: ("The body is longer than `max_bytes`.", {}),
    errors.UnsupportedMediaType: ("A body is sent with another Content-Type than application/json.", {}),
    errors.MethodNotAllowed: (
        "A known address is called by another method.",
        {"allow": ["GET", "HEAD", "PUT"]},
    ),
    errors.NotFound: ("The address is none of this API's; a slash at its end is enough.", {}),
    errors.Unauthenticated: ("The token is missing, mistyped, expired or revoked.", {}),
    errors.Forbidden: (
        "The token lacks the scope of this call, or does not cover the operation's capability or subject.",
        {},
    ),
    errors.RateLimited: ("A caller asks more often than it may.", {}),
    errors.Unavailable: ("The database does not answer, or nothing may be permitted now.", {}),
    errors.InternalError: ("A fault of the service; it is in its log.", {}),
}
_RETRY_AFTER: Mapping[type[errors.Refusal], int] = {
    errors.AttemptInFlight: 58,
    errors.ReconciliationRequired: 5,
    errors.Paused: 5,
    errors.AwaitingApproval: 5,
    errors.PossibleDuplicate: 5,
    errors.RateLimited: 1,
    errors.Unavailable: 1,
    errors.PostDispatchEvidenceFailed: 1,
}
_NAMELESS = (errors.NotFound, errors.ApprovalExpired, errors.AlreadyDecided)


def explained() -> tuple[Explained, ...]:
    """Every refusal, by status and code; two refusals of one code stand beside each other."""
    return tuple(
        Explained(refusal, _WHEN[refusal][0], _example(refusal))
        for refusal in sorted(errors.ALL, key=lambda one: (one.code, one.status))
    )


def _example(refusal: type[errors.Refusal]) -> Mapping[str, Any]:
    instance: errors.Refusal
    if issubclass(refusal, errors.Malformed):
        instance = refusal("/argumnets", "is not a field of this call")
    elif issubclass(refusal, errors.TooLarge):
        instance = refusal(262_144)
    else:
        instance = refusal(retry_after=_RETRY_AFTER.get(refusal))
    instance.extra.update(_WHEN[refusal][1])
    return problem_body(instance, None if refusal in _NAMELESS else _OPERATION)

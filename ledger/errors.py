"""Every refusal of the API: machine code, HTTP status, and the sentence that people read.

One class per problem (RFC 9457). The first line of a docstring is the problem's `title`, the rest its `detail`
unless the raiser says something more exact; both are what a person reads, and both name the way out. The machine
fields stand in the body because agents see no headers:

* `retryable` is about the *effect*: may it be dispatched (again) by a new permit?
* `repeat_request` is about the HTTP call: can the same request, sent again unchanged (after `retry_after`, where one
  is given), be answered differently? Repeating is always *safe*; this says whether it is of use.
* `reconciliation_required`: the outcome has to be found out before anything else may happen.
* `effect_may_have_happened`: None means that the class alone cannot tell; the record's facts say it.
* `reuse_key`: keep the operation ID and the idempotency key. A caller who mints new ones after a refusal is the
  most frequent cause of a second effect.

This file knows no web framework: `ledger.api` renders it. Source: RFC 9457; RFC 9110 section 15.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


class Refusal(Exception):
    """The request was refused."""

    code: str
    status: int
    title: str = ""
    way_out: str = ""
    retryable: bool = False
    repeat_request: bool = False
    reconciliation_required: bool = False
    effect_may_have_happened: bool | None = None
    reuse_key: bool = True

    def __init_subclass__(cls) -> None:
        title, _, rest = inspect.cleandoc(cls.__doc__ or cls.code).partition("\n")
        cls.title, cls.way_out = title, " ".join(rest.split())

    def __init__(
        self,
        detail: str | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
        facts: object = None,
        retry_after: int | None = None,
    ) -> None:
        """`extra` is merged into the problem body (`drifted`, `next_attempt`, `recorded` …); `facts` is opaque here:
        the API takes the decision and the identifiers from it; `retry_after` is whole seconds, at least 1."""
        self.detail = detail or self.way_out
        self.extra: dict[str, Any] = dict(extra or {})
        self.facts = facts
        self.retry_after = None if retry_after is None else max(1, retry_after)
        super().__init__(f"{self.code}: {self.detail}")


# What the decision table says: in the order of its rows.


class NoLedgerEntry(Refusal):
    """The ledger has no such entry.

    Do not dispatch. No record is not evidence that nothing happened: if this operation was ever dispatched, an
    operator has to look into it. For a new intent, record it first with PUT /api/v1/operations/{operation_id}.
    """

    code = "no-ledger-entry"
    status = 404
    effect_may_have_happened = True


class AttemptInFlight(Refusal):
    """An attempt of this operation is in flight.

    Somebody holds its permit until the lease ends. Wait for `retry_after`, or follow the operation with
    GET ?wait=20; keep the operation ID and the idempotency key. Whoever holds the permit reports its outcome.
    """

    code = "attempt-in-flight"
    status = 409
    repeat_request = True
    effect_may_have_happened = True


class Withdrawn(Refusal):
    """This operation was withdrawn.

    It will not be dispatched any more. If the effect is still wanted, record it as a new operation.
    """

    code = "withdrawn"
    status = 409


class Discrepancy(Refusal):
    """The record and the receiver disagree about this operation.

    A person is settling it. Dispatch nothing and mint no new operation for the same intent; follow the operation
    with GET ?wait=20.
    """

    code = "discrepancy"
    status = 409
    repeat_request = True
    effect_may_have_happened = True


class Abandoned(Refusal):
    """This operation was given up with its outcome unknown.

    Two people decided that it stays unknown. It is never dispatched again, and its effect may exist: tell the user
    so, and do not repeat it under another operation ID.
    """

    code = "abandoned"
    status = 409
    effect_may_have_happened = True


class Settled(Refusal):
    """The effect exists already.

    There is nothing to dispatch: resume with the stored `outcome` of this body.
    """

    code = "settled"
    status = 409
    effect_may_have_happened = True


class ReconciliationRequired(Refusal):
    """Whether the effect exists is not known.

    Do not dispatch, and mint no new key. Ask with POST …/reconcile, or follow the operation with GET ?wait=20: a
    worker asks the receiver, and what no machine can tell an operator decides.
    """

    code = "reconciliation-required"
    status = 409
    reconciliation_required = True
    effect_may_have_happened = True


class Denied(Refusal):
    """The receiver refused, and the effect does not exist.

    `denial` has the reason and whether it stands. Where it clears with time, ask again after `retry_after`;
    where it stands, only another intent (another card, another amount) can succeed, under an operation ID of its own.
    """

    code = "denied"
    status = 409

    def __init__(
        self,
        detail: str | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
        facts: object = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(detail, extra=extra, facts=facts, retry_after=retry_after)
        # A standing denial has no time at which asking again could help.
        self.repeat_request = self.retry_after is not None


class NotPermitted(Refusal):
    """Permission to dispatch was refused, or no longer holds.

    `permission_reason` says why: refused, revoked, expired, no_mandate, mandate_revoked, limit_exceeded,
    amount_unknown, capability_disabled, approver_lost_role or binding_changed. A person has to change that; asking
    again by itself changes nothing.
    """

    code = "not-permitted"
    status = 403


class Paused(Refusal):
    """Dispatching is paused here.

    The workspace, the capability or the receiver was paused by an operator. Keep the operation and ask again later;
    outcomes and reconciliation go on meanwhile.
    """

    code = "paused"
    status = 409
    repeat_request = True


class AwaitingApproval(Refusal):
    """A person has to approve this operation first.

    It stands in the approval queue. Follow it with GET ?wait=20 and ask for the permit when `decision.action` is
    dispatch. Keep the operation ID: a new one is a new request for approval.
    """

    code = "awaiting-approval"
    status = 409
    repeat_request = True


class PossibleDuplicate(Refusal):
    """Another operation may be making this effect already.

    `possible_duplicates` names it: same capability and the same business reference or arguments, not yet settled. If
    this is the same intent, go on with that operation instead. Otherwise wait: the hold ends when the other settles,
    or when a person lets this one pass.
    """

    code = "possible-duplicate"
    status = 409
    repeat_request = True


class StaleAttempt(Refusal):
    """This is not the next attempt's number.

    Ask for attempt `next_attempt` instead, with a fresh Permit-Nonce. Attempt numbers rise by one and are never
    used again.
    """

    code = "stale-attempt"
    status = 409


# What an intent, an outcome or a person's decision can run into.


class IntentMismatch(Refusal):
    """This operation ID already stands for another intent.

    Nothing was changed; `drifted` names what differs. If you meant the first intent, send it as it was recorded; if
    this is another intent, give it an operation ID of its own.
    """

    code = "intent-mismatch"
    status = 422


class CapabilityUnknown(Refusal):
    """No such capability is registered.

    Nothing was recorded. Check the name, or have an administrator register the capability with its contract.
    """

    code = "capability-unknown"
    status = 422
    effect_may_have_happened = False


class ReferenceRequired(Refusal):
    """This capability needs a `business_reference`.

    Nothing was recorded. The receiver can be asked about an effect by that reference only: mint one, send it to
    the receiver too, and record the intent again under the same operation ID.
    """

    code = "reference-required"
    status = 422
    effect_may_have_happened = False


class KeyInUse(Refusal):
    """This idempotency key belongs to another operation.

    Nothing was recorded. A key names one operation at a receiver for ever: leave `idempotency_key` out and the
    ledger mints one, or send a key that was never used.
    """

    code = "key-in-use"
    status = 422
    effect_may_have_happened = False
    reuse_key = False


class NotSupersedable(Refusal):
    """The operation named in `supersedes` cannot be superseded.

    Nothing was recorded. It must be intended, denied or withdrawn, belong to the same task and capability, and not
    be superseded yet. What was dispatched has to be settled first.
    """

    code = "not-supersedable"
    status = 409
    effect_may_have_happened = False


class AlreadyCompensated(Refusal):
    """The operation named in `compensates` has a compensation already.

    Nothing was recorded. Read that operation: its compensation is an operation of its own and may be under way. One that
    was denied is withdrawn before there can be another.
    """

    code = "already-compensated"
    status = 409
    effect_may_have_happened = False


class EvidenceConflict(Refusal):
    """The report contradicts what is on record.

    It was kept as evidence. Do not dispatch. Where it shows an effect that was said not to exist, the operation waits
    until an operator has compared both.
    """

    code = "evidence-conflict"
    status = 409
    effect_may_have_happened = True


class PostDispatchEvidenceFailed(Refusal):
    """The outcome could not be written down.

    The effect may exist although this report was not recorded. Send the same report again; never dispatch again on
    account of this answer. If the report stays lost, the operation becomes unknown and is reconciled.
    """

    code = "post-dispatch-evidence-failed"
    status = 503
    repeat_request = True
    reconciliation_required = True
    effect_may_have_happened = True


class ApprovalExpired(Refusal):
    """The time to decide this approval is over.

    Nothing was decided and nothing ran. If the effect is still wanted, the runtime asks again, or records a new
    operation.
    """

    code = "approval-expired"
    status = 410


class AlreadyDecided(Refusal):
    """This was decided already, or the world moved since the page was loaded.

    Nothing was changed. Look at the present state, with who decided it and when, and decide again if that is
    still open.
    """

    code = "already-decided"
    status = 409


# What is wrong with the request itself.


class Malformed(Refusal):
    """The request could not be read.

    Nothing was recorded. `path` is a JSON Pointer to what is wrong; correct it and send the request again under the
    same operation ID.
    """

    code = "malformed"
    status = 400

    def __init__(
        self, path: str, why: str, *, extra: Mapping[str, Any] | None = None, facts: object = None
    ) -> None:
        """`path` is a JSON Pointer into the body ("" is the whole of it), `why` a clause without a full stop."""
        self.path, self.why = path, why
        place = f"{path}: " if path else ""
        super().__init__(f"{place}{why}.", extra={"path": path, **(extra or {})}, facts=facts)


class MalformedOutcome(Malformed):
    """The report could not be read, and was kept as it came.

    The attempt is recorded as unknown, because what cannot be read is not evidence. `path` is a JSON Pointer to what
    is wrong; a correct report is still accepted. Do not dispatch again on account of this answer.
    """

    status = 422
    reconciliation_required = True
    effect_may_have_happened = True

    def __init__(
        self, path: str, why: str, *, extra: Mapping[str, Any] | None = None, facts: object = None
    ) -> None:
        super().__init__(path, why, extra={"recorded": True, **(extra or {})}, facts=facts)


class TooLarge(Refusal):
    """The request is too large.

    Nothing was recorded. `max_bytes` is the limit; keep big contents elsewhere and send a reference or a digest.
    """

    code = "too-large"
    status = 413

    def __init__(
        self, max_bytes: int, *, extra: Mapping[str, Any] | None = None, facts: object = None
    ) -> None:
        super().__init__(
            f"The body may have {max_bytes} bytes at most; keep big contents elsewhere and send a reference or a digest.",
            extra={"max_bytes": max_bytes, **(extra or {})},
            facts=facts,
        )


class UnsupportedMediaType(Refusal):
    """The body must be JSON.

    Send it as UTF-8 with the header Content-Type: application/json.
    """

    code = "unsupported-media-type"
    status = 415


class MethodNotAllowed(Refusal):
    """This URL does not know that method.

    The Allow header lists those it knows; /api/v1/docs describes every call.
    """

    code = "method-not-allowed"
    status = 405


class NotFound(Refusal):
    """There is nothing at this URL.

    Check the path; /api/v1/docs describes every call.
    """

    code = "not-found"
    status = 404


# Who asks, and whether the service can answer.


class Unauthenticated(Refusal):
    """The request carries no valid token.

    Send Authorization: Bearer with a runtime token that is neither expired nor revoked. An outcome may also be
    reported with the permit's own token, which stays good for that.
    """

    code = "unauthenticated"
    status = 401


class Forbidden(Refusal):
    """This token does not cover the request.

    Its scopes, capabilities or subjects do not include what was asked. An administrator can widen them; another
    actor or capability name must not be used to get around it.
    """

    code = "forbidden"
    status = 403


class RateLimited(Refusal):
    """Too many requests.

    Send the same request again after `retry_after`. Outcomes are never limited.
    """

    code = "rate-limited"
    status = 429
    repeat_request = True


class Unavailable(Refusal):
    """The ledger cannot answer safely now.

    No permit was given by this answer. Send the same request again, with the same operation ID and, for a permit,
    the same Permit-Nonce; do not dispatch meanwhile.
    """

    code = "unavailable"
    status = 503
    repeat_request = True


class InternalError(Refusal):
    """Something went wrong on our side.

    Whether the request took effect is not known: read the operation with GET before anything else, and do not
    dispatch on account of this answer.
    """

    code = "internal-error"
    status = 500
    repeat_request = True


ALL: tuple[type[Refusal], ...] = (
    NoLedgerEntry,
    AttemptInFlight,
    Withdrawn,
    Discrepancy,
    Abandoned,
    Settled,
    ReconciliationRequired,
    Denied,
    NotPermitted,
    Paused,
    AwaitingApproval,
    PossibleDuplicate,
    StaleAttempt,
    IntentMismatch,
    CapabilityUnknown,
    ReferenceRequired,
    KeyInUse,
    NotSupersedable,
    AlreadyCompensated,
    EvidenceConflict,
    PostDispatchEvidenceFailed,
    ApprovalExpired,
    AlreadyDecided,
    Malformed,
    MalformedOutcome,
    TooLarge,
    UnsupportedMediaType,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
    Forbidden,
    RateLimited,
    Unavailable,
    InternalError,
)

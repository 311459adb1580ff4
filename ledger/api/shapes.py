"""The shapes of requests and answers, for the OpenAPI document only: reading is ``intake``, writing ``representation``.

tests/ledger/api/test_schema.py holds real answers against them.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers as s

from ledger.contracts import Lookup
from ledger.decisions import Action, DenialClass, Permission, Reason
from ledger.permissions import PermissionReason
from ledger.reports import Claim
from ledger.states import AttemptState, Standing, State

ANY: Any = {"description": "any JSON value"}
NAME_PATTERN = r"^[A-Za-z0-9._~:@+=-]{1,200}$"


@extend_schema_field(ANY)
class AnyJSON(s.JSONField):
    """Whatever JSON it is: null is a value like others (no `oneOf` that null would match twice)."""


def _choice(enum: Any, **options: Any) -> s.ChoiceField:
    return s.ChoiceField(choices=[(member.value, member.name) for member in enum], **options)


def _name(**options: Any) -> s.RegexField:
    return s.RegexField(NAME_PATTERN, **options)


class Actor(s.Serializer[Any]):
    subject = s.CharField(max_length=200)
    on_behalf_of = s.CharField(max_length=200, required=False, allow_null=True)


class Amount(s.Serializer[Any]):
    value = s.RegexField(r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$", help_text='A decimal as text: "120.00".')
    currency = s.RegexField(r"^[A-Z]{3}$", help_text="ISO 4217.")


class Intent(s.Serializer[Any]):
    """What a runtime wants to do. Unknown fields are refused."""

    task_id = _name()
    capability = s.CharField(max_length=200)
    arguments = s.DictField(child=AnyJSON(), help_text="An object; I-JSON, at most 32 levels deep.")
    actor = Actor()
    business_reference = s.CharField(max_length=200, required=False, allow_null=True)
    idempotency_key = s.CharField(max_length=255, required=False, allow_null=True)
    amount = Amount(required=False, allow_null=True)
    checkpoint = AnyJSON(required=False, help_text="Where the runtime was; at most 8 KiB.")
    purpose = s.CharField(
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="The agent's words: shown to people as a claim.",
    )
    supersedes = _name(required=False, allow_null=True)
    compensates = _name(required=False, allow_null=True)
    dispatch = s.BooleanField(required=False, help_text="Also open attempt 1, when the decision allows it.")
    expect = s.ChoiceField(
        choices=["recorded"],
        required=False,
        allow_null=True,
        help_text="Create nothing: 404 if it is not on record.",
    )


class BatchItem(Intent):
    operation_id = _name()
    permit_nonce = s.CharField(required=False, min_length=16, max_length=200)


class Batch(s.Serializer[Any]):
    operations = s.ListField(child=BatchItem(), min_length=1, max_length=100)


class ReceiverEvidence(s.Serializer[Any]):
    source = s.ChoiceField(choices=["receiver_response"], required=False)  # type: ignore[assignment]  # the stubs' Field has an attribute of that name
    http_status = s.IntegerField(min_value=100, max_value=999, required=False, allow_null=True)
    body = AnyJSON(required=False)


class DenialReport(s.Serializer[Any]):
    clears_after_s = s.FloatField(min_value=0, required=False, allow_null=True)

    def get_fields(self) -> dict[str, s.Field[Any, Any, Any, Any]]:
        """``class`` is a keyword of Python, not of JSON."""
        reason = s.CharField(max_length=200, required=False, allow_null=True)
        return {
            **super().get_fields(),
            "reason": reason,
            "class": _choice(DenialClass, required=False, allow_null=True),
        }


class Outcome(s.Serializer[Any]):
    """How one attempt ended. What it counts for is in ``stored_as`` of the answer."""

    outcome = _choice(Claim)
    receiver_reference = s.CharField(max_length=255, required=False, allow_null=True)
    result = AnyJSON(required=False)
    evidence = ReceiverEvidence(required=False, allow_null=True)
    denial = DenialReport(required=False, allow_null=True)
    fault = s.CharField(max_length=200, required=False, allow_null=True)
    retry_after_s = s.FloatField(min_value=0, required=False, allow_null=True)


class Decision(s.Serializer[Any]):
    action = _choice(Action)
    reason = _choice(Reason)
    dispatch_allowed = s.BooleanField(help_text="True beside a permit only.")
    next_attempt = s.IntegerField(allow_null=True)
    retry_at = s.DateTimeField(allow_null=True)


class Attempt(s.Serializer[Any]):
    number = s.IntegerField()
    state = _choice(AttemptState)
    permitted_at = s.DateTimeField()
    lease_until = s.DateTimeField()
    fault = s.CharField(allow_null=True)


class Permit(s.Serializer[Any]):
    """Permission to dispatch one attempt, once. Sending may begin only within ``lease_s`` of having asked."""

    attempt = s.IntegerField()
    token = s.CharField(
        help_text="A signed statement (JWS, Ed25519); keys at /.well-known/counterfoil-keys.json."
    )
    idempotency_key = s.CharField()
    arguments_digest = s.CharField()
    lease_s = s.FloatField()
    lease_until = s.DateTimeField()


class Denial(s.Serializer[Any]):
    clears_at = s.DateTimeField(required=False, allow_null=True)

    def get_fields(self) -> dict[str, s.Field[Any, Any, Any, Any]]:
        return {
            **super().get_fields(),
            "reason": s.CharField(allow_null=True),
            "class": _choice(DenialClass),
        }


class Settled(s.Serializer[Any]):
    outcome = s.ChoiceField(choices=["completed", "denied"])
    receiver_reference = s.CharField(allow_null=True)
    result = AnyJSON()
    source = s.ChoiceField(choices=["runtime", "lookup", "callback", "operator"])  # type: ignore[assignment]
    settled_at = s.DateTimeField()


class CaseFlags(s.Serializer[Any]):
    standing = _choice(Standing)
    flags = s.ListField(child=s.CharField())


class Links(s.Serializer[Any]):
    console = s.CharField()

    def get_fields(self) -> dict[str, s.Field[Any, Any, Any, Any]]:
        return {**super().get_fields(), "self": s.CharField()}


class Operation(s.Serializer[Any]):
    """The operation body: the same everywhere."""

    operation_id = s.CharField()
    invocation_id = s.UUIDField()
    task_id = s.CharField()
    capability = s.CharField()
    capability_version = s.IntegerField()
    version = s.IntegerField()
    actor = Actor()
    arguments_digest = s.CharField()
    business_reference = s.CharField(allow_null=True)
    idempotency_key = s.CharField()
    amount = Amount(allow_null=True)
    state = _choice(State)
    dispatched = s.RegexField("^(yes|no|unknown)$")
    effect = s.RegexField("^(yes|no|unknown)$")
    evidence = s.ChoiceField(choices=["preserved", "missing"])
    reservation = s.ChoiceField(choices=["held", "released"])
    permission = _choice(Permission)
    permission_reason = _choice(PermissionReason, allow_null=True)
    denial = Denial(allow_null=True)
    outcome = Settled(allow_null=True)
    case = CaseFlags()
    possible_duplicates = s.ListField(child=s.CharField())
    supersedes = s.CharField(allow_null=True)
    superseded_by = s.CharField(allow_null=True)
    compensates = s.CharField(allow_null=True)
    lookup = _choice(Lookup)
    operator_only = s.BooleanField()
    decision = Decision()
    retryable = s.BooleanField()
    reuse_key = s.BooleanField()
    reconciliation_required = s.BooleanField()
    effect_may_have_happened = s.BooleanField()
    replayed = s.BooleanField()
    attempts = Attempt(many=True)
    permit = Permit(allow_null=True)
    created_at = s.DateTimeField()
    links = Links()


class ReportedOperation(Operation):
    stored_as = s.ChoiceField(choices=["completed", "denied", "not_sent", "unknown", "claim", "parked"])


class TaskOperations(s.Serializer[Any]):
    task_id = s.CharField()
    operations = Operation(many=True)
    next = s.CharField(allow_null=True)


class BatchAnswer(s.Serializer[Any]):
    status = s.IntegerField()
    body = s.DictField(child=AnyJSON(), help_text="An operation or a problem.")


class BatchAnswers(s.Serializer[Any]):
    operations = BatchAnswer(many=True)


class Problem(s.Serializer[Any]):
    """RFC 9457, with what an agent needs in the body. Some problems carry more members."""

    type = s.CharField()
    title = s.CharField()
    status = s.IntegerField()
    detail = s.CharField()
    code = s.CharField()
    retryable = s.BooleanField(help_text="Of the effect: may it be dispatched by a new permit?")
    repeat_request = s.BooleanField(
        help_text="Of this call: may the same request be answered differently later?"
    )
    reuse_key = s.BooleanField()
    reconciliation_required = s.BooleanField()
    effect_may_have_happened = s.BooleanField(allow_null=True)
    operation_id = s.CharField(required=False)
    invocation_id = s.UUIDField(required=False)
    status_url = s.CharField(required=False)
    retry_after = s.IntegerField(required=False)
    decision = Decision(required=False)


class ReconcileRequest(s.Serializer[Any]):
    timeout_s = s.FloatField(min_value=0.1, max_value=30, required=False)


class Reconciled(s.Serializer[Any]):
    finding = s.DictField(child=AnyJSON(), allow_null=True)
    verdict = s.DictField(child=AnyJSON(), allow_null=True)
    operation = Operation()


class Keys(s.Serializer[Any]):
    keys = s.ListField(child=s.DictField(child=s.CharField()))

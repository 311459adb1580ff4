"""The shapes of requests and answers, for the OpenAPI document only: reading is ``intake``, writing ``representation``.

tests/ledger/api/test_schema.py holds real answers against them.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers as s

from ledger import errors
from ledger.contracts import Lookup
from ledger.decisions import Action, DenialClass, Permission, Reason
from ledger.permissions import PermissionReason
from ledger.reports import LONGEST_S, REASON_MAX, REFERENCE_MAX, Claim
from ledger.states import AttemptState, Standing, State

ANY: Any = {"description": "any JSON value"}
NAME_PATTERN = r"^(?!\.{1,2}$)[A-Za-z0-9._~:@+=-]{1,200}$"
TEXT_PATTERN = r"^(?!\s)[^\x00-\x1f\x7f]+(?<!\s)$"  # one line, without outer white space
NOT_BLANK_PATTERN = r"\S"
KEY_PATTERN = r"^[\x21-\x7e]{1,255}$"
NONCE_PATTERN = r"^[\x21-\x7e]{16,200}$"
DECIMAL_PATTERN = r"^-?(0|[1-9][0-9]{0,29})(\.[0-9]{1,18})?$"


@extend_schema_field(ANY)
class AnyJSON(s.JSONField):
    """Whatever JSON it is: null is a value like others (no `oneOf` that null would match twice)."""


@extend_schema_field({"type": "string", "enum": ["yes", "no", "unknown"]})
class YesNoUnknown(s.CharField):
    """An answer to one question about the effect."""


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class Names(s.JSONField):
    """A list of names."""


def _choice(enum: Any, **options: Any) -> s.ChoiceField:
    return s.ChoiceField(choices=[(member.value, member.name) for member in enum], **options)


def _name(**options: Any) -> s.RegexField:
    return s.RegexField(NAME_PATTERN, **options)


def _text(longest: int = 200, **options: Any) -> s.RegexField:
    return s.RegexField(TEXT_PATTERN, max_length=longest, **options)


def _words(longest: int, **options: Any) -> s.RegexField:
    return s.RegexField(NOT_BLANK_PATTERN, max_length=longest, **options)


# What is sent.


class Actor(s.Serializer[Any]):
    subject = _text()
    on_behalf_of = _text(required=False, allow_null=True)


class Amount(s.Serializer[Any]):
    value = s.RegexField(DECIMAL_PATTERN, help_text='A decimal as text: "120.00".')
    currency = s.RegexField(r"^[A-Z]{3}$", help_text="ISO 4217.")


class Intent(s.Serializer[Any]):
    """What a runtime wants to do. Unknown fields are refused."""

    task_id = _name()
    capability = _text()
    arguments = s.DictField(
        child=AnyJSON(),
        help_text="An object; I-JSON (no number that a double cannot carry), at most 32 levels deep.",
    )
    actor = Actor()
    business_reference = _text(required=False, allow_null=True)
    idempotency_key = s.RegexField(
        KEY_PATTERN, required=False, allow_null=True, help_text="What the receiver knows it by; else minted."
    )
    amount = Amount(required=False, allow_null=True, help_text="Must agree with the arguments.")
    checkpoint = AnyJSON(required=False, help_text="Where the runtime was; at most 8 KiB.")
    purpose = s.CharField(
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="The agent's words, at most 4 KiB: shown to people as a claim.",
    )
    supersedes = _name(required=False, allow_null=True, help_text="Withdraws that operation.")
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
    permit_nonce = s.RegexField(
        NONCE_PATTERN, required=False, help_text="The Permit-Nonce of an item with `dispatch`."
    )


class Batch(s.Serializer[Any]):
    operations = s.ListField(child=BatchItem(), min_length=1, max_length=100)


class ReceiverEvidence(s.Serializer[Any]):
    source = s.ChoiceField(choices=["receiver_response"], required=False)  # type: ignore[assignment]  # the stubs' Field has an attribute of that name
    http_status = s.IntegerField(min_value=100, max_value=999, required=False, allow_null=True)
    body = AnyJSON(required=False)


class DenialReport(s.Serializer[Any]):
    clears_after_s = s.FloatField(min_value=0, max_value=LONGEST_S, required=False, allow_null=True)

    def get_fields(self) -> dict[str, s.Field[Any, Any, Any, Any]]:
        """``class`` is a keyword of Python, not of JSON."""
        return {
            **super().get_fields(),
            "reason": _words(REASON_MAX, required=False, allow_null=True),
            "class": _choice(DenialClass, required=False, allow_null=True),
        }


class Outcome(s.Serializer[Any]):
    """How one attempt ended. What it counts for is in ``stored_as`` of the answer."""

    outcome = _choice(Claim)
    receiver_reference = _words(REFERENCE_MAX, required=False, allow_null=True)
    result = AnyJSON(required=False)
    evidence = ReceiverEvidence(required=False, allow_null=True)
    denial = DenialReport(required=False, allow_null=True)
    fault = _words(REASON_MAX, required=False, allow_null=True)
    retry_after_s = s.FloatField(min_value=0, max_value=LONGEST_S, required=False, allow_null=True)


CLOSED = (Actor, Amount, Intent, BatchItem, Batch, ReceiverEvidence, DenialReport, Outcome)
"""Shapes in which a field that is not named here is refused."""


# What is answered.


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
    flags = Names()


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
    version = s.IntegerField(help_text="Rises with every change: what `since` compares.")
    actor = Actor()
    arguments_digest = s.CharField()
    business_reference = s.CharField(allow_null=True)
    idempotency_key = s.CharField(help_text="Send it to the receiver on every attempt.")
    amount = Amount(allow_null=True)
    state = _choice(State)
    dispatched = YesNoUnknown()
    effect = YesNoUnknown()
    evidence = s.ChoiceField(choices=["preserved", "missing"])
    reservation = s.ChoiceField(choices=["held", "released"])
    permission = _choice(Permission)
    permission_reason = _choice(PermissionReason, allow_null=True)
    denial = Denial(allow_null=True)
    outcome = Settled(allow_null=True)
    case = CaseFlags()
    possible_duplicates = Names()
    supersedes = s.CharField(allow_null=True)
    superseded_by = s.CharField(allow_null=True)
    compensates = s.CharField(allow_null=True)
    lookup = _choice(Lookup)
    operator_only = s.BooleanField(
        help_text="The receiver cannot be asked: a person settles what is unknown."
    )
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


def _stored_as(**options: Any) -> s.ChoiceField:
    choices = ["completed", "denied", "not_sent", "unknown", "claim", "parked"]
    return s.ChoiceField(choices=choices, **options)


class ReportedOperation(Operation):
    stored_as = _stored_as()


class TaskOperations(s.Serializer[Any]):
    task_id = s.CharField()
    operations = Operation(many=True)
    next = s.CharField(allow_null=True, help_text="The address of the next page.")


class Problem(s.Serializer[Any]):
    """RFC 9457, with what an agent needs in the body. Which members come beside the required ones depends on the code."""

    type = s.CharField(help_text="Where it is explained.")
    title = s.CharField()
    status = s.IntegerField()
    detail = s.CharField()
    code = s.ChoiceField(choices=sorted({refusal.code for refusal in errors.ALL}))
    retryable = s.BooleanField(help_text="Of the effect: may it be dispatched by a new permit?")
    repeat_request = s.BooleanField(
        help_text="Of this call: may the same request be answered differently later?"
    )
    reuse_key = s.BooleanField(help_text="Keep the operation ID and the idempotency key.")
    reconciliation_required = s.BooleanField()
    effect_may_have_happened = s.BooleanField(allow_null=True)
    operation_id = s.CharField(required=False)
    invocation_id = s.UUIDField(required=False)
    status_url = s.CharField(required=False)
    retry_after = s.IntegerField(required=False, min_value=1, help_text="Seconds; also the header.")
    state = _choice(State, required=False)
    decision = Decision(required=False)
    outcome = Settled(required=False, allow_null=True, help_text="settled: what to resume with.")
    denial = Denial(required=False, help_text="denied.")
    permission_reason = _choice(PermissionReason, required=False, allow_null=True, help_text="not-permitted.")
    possible_duplicates = Names(required=False, help_text="possible-duplicate: the operations it may repeat.")
    next_attempt = s.IntegerField(required=False, allow_null=True, help_text="stale-attempt.")
    drifted = Names(required=False, help_text="intent-mismatch: the fields that differ, never their values.")
    path = s.CharField(required=False, allow_blank=True, help_text="malformed: a JSON Pointer, or empty.")
    unknown_fields = Names(required=False, help_text="malformed.")
    max_bytes = s.IntegerField(required=False, help_text="too-large.")
    allow = Names(required=False, help_text="method-not-allowed; also the header.")
    recorded = s.BooleanField(required=False, help_text="Of an outcome: the report was kept all the same.")
    stored_as = _stored_as(required=False)


@extend_schema_field(
    {"anyOf": [{"$ref": "#/components/schemas/Operation"}, {"$ref": "#/components/schemas/Problem"}]}
)
class OperationOrProblem(s.JSONField):
    """What PUT on one operation answers."""


class BatchAnswer(s.Serializer[Any]):
    status = s.IntegerField(help_text="The status that the item would have got alone.")
    body = OperationOrProblem()


class BatchAnswers(s.Serializer[Any]):
    operations = BatchAnswer(many=True)


class PublicKey(s.Serializer[Any]):
    """RFC 7517, RFC 8037."""

    kty = s.ChoiceField(choices=["OKP"])
    crv = s.ChoiceField(choices=["Ed25519"])
    use = s.ChoiceField(choices=["sig"])
    alg = s.ChoiceField(choices=["EdDSA"])
    kid = s.CharField()
    x = s.RegexField(r"^[A-Za-z0-9_-]{43}$")


class Keys(s.Serializer[Any]):
    keys = PublicKey(many=True, help_text="Newest first; old ones stay.")

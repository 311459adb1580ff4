"""The shapes of reconciliation's requests and answers, for the OpenAPI document only."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers as s

from ledger.api.shapes import Operation
from ledger.decisions import DenialClass
from reconciliation.findings import FindingKind, ItemStatus
from reconciliation.verdicts import Flag, Outcome, VerdictKind, VerdictReason

TIMEOUT_MAX_S = 30.0


@extend_schema_field({"type": "number", "exclusiveMinimum": 0, "maximum": TIMEOUT_MAX_S})
class Timeout(s.FloatField):
    """Seconds, more than 0."""


class ReconcileRequest(s.Serializer[Any]):
    timeout_s = Timeout(required=False, help_text="Seconds: how long the receiver may take.")


class Difference(s.Serializer[Any]):
    """One field in which the receiver's record is not what was intended."""

    field = s.CharField()
    intended = s.CharField(allow_blank=True)
    found = s.CharField(allow_blank=True)


class FoundItem(s.Serializer[Any]):
    """One candidate effect in the receiver's answer."""

    status = s.ChoiceField(choices=[member.value for member in ItemStatus])
    reference = s.CharField(allow_null=True)
    raw_status = s.CharField(allow_null=True)
    attributed_to = s.CharField(allow_null=True)
    ours = s.BooleanField(allow_null=True)
    denial_reason = s.CharField(allow_null=True)
    differences = Difference(many=True)


class Finding(s.Serializer[Any]):
    """What the receiver answered. It proves nothing by itself."""

    kind = s.ChoiceField(choices=[member.value for member in FindingKind])
    items = FoundItem(many=True)
    complete = s.BooleanField()
    authoritative = s.BooleanField()
    as_of = s.DateTimeField(allow_null=True)
    asked_at = s.DateTimeField()
    why = s.CharField(allow_null=True)
    http_status = s.IntegerField(allow_null=True)
    scope = s.CharField(allow_blank=True)


class ProvedDenial(s.Serializer[Any]):
    def get_fields(self) -> dict[str, s.Field[Any, Any, Any, Any]]:
        """``class`` is a keyword of Python, not of JSON."""
        return {
            "reason": s.CharField(allow_null=True),
            "class": s.ChoiceField(
                choices=[(member.value, member.name) for member in DenialClass], allow_null=True
            ),
        }


class Verdict(s.Serializer[Any]):
    """What the finding proves under the contract."""

    kind = s.ChoiceField(choices=[member.value for member in VerdictKind])
    outcome = s.ChoiceField(choices=[member.value for member in Outcome], allow_null=True)
    flag = s.ChoiceField(choices=[member.value for member in Flag], allow_null=True)
    reason = s.ChoiceField(choices=[member.value for member in VerdictReason])
    denial = ProvedDenial(allow_null=True)
    next_at = s.DateTimeField(allow_null=True)
    references = s.ListField(child=s.CharField())
    differences = Difference(many=True)
    explanation = s.CharField()


class Reconciled(s.Serializer[Any]):
    finding = Finding(allow_null=True, help_text="null: there was nothing to ask, or no answer in time.")
    verdict = Verdict(allow_null=True)
    operation = Operation()

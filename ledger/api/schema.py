"""The OpenAPI document: DRF's calls as they are, and the plain views described beside them.

The hot routes are plain views, which drf-spectacular cannot see; ``DESCRIBED`` says of each what it takes and gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.parsers import JSONParser
from rest_framework.views import APIView

from ledger import errors
from ledger.api import shapes
from ledger.api.authentication import RuntimeToken
from ledger.api.explained import Explained, explained

OPERATION_ID = OpenApiParameter("operation_id", str, OpenApiParameter.PATH, pattern=shapes.NAME_PATTERN)
NUMBER = OpenApiParameter("number", str, OpenApiParameter.PATH, pattern="^[1-9][0-9]{0,3}$")
NONCE = "Minted for this one ask, 16 to 200 visible ASCII characters, kept in memory only."


def nonce(description: str = NONCE, **options: Any) -> OpenApiParameter:
    """The header Permit-Nonce."""
    return OpenApiParameter("Permit-Nonce", str, OpenApiParameter.HEADER, description=description, **options)


def problems(
    *refusals: type[errors.Refusal],
    everywhere: tuple[type[errors.Refusal], ...] = (
        errors.Malformed,
        errors.Unauthenticated,
        errors.Forbidden,
        errors.InternalError,
        errors.Unavailable,
    ),
) -> dict[Any, Any]:
    """Responses for the refusals that a call can answer with, grouped by status, besides those that most calls have."""
    by_status: dict[int, list[Explained]] = {}
    for one in explained():
        if one.refusal in (*everywhere, *refusals):
            by_status.setdefault(one.refusal.status, []).append(one)
    return {
        (status, "application/problem+json"): OpenApiResponse(
            shapes.Problem,
            description=" · ".join(
                f"[{one.refusal.code}](/api/v1/problems#{one.refusal.code})" for one in all_of_it
            ),
            examples=[OpenApiExample(one.refusal.code, dict(one.example)) for one in all_of_it],
        )
        for status, all_of_it in sorted(by_status.items())
    }


_LINKED = re.compile(r"/api/v1/problems#([a-z-]+)")


def codes_of(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """{code: ["PUT /api/v1/…", …]}: which calls of the document can answer with it."""
    found: dict[str, list[str]] = {}
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            said = " ".join(answer["description"] for answer in call["responses"].values())
            for code in dict.fromkeys(_LINKED.findall(said)):
                found.setdefault(code, []).append(f"{method.upper()} {path}")
    return found


BODY = (errors.TooLarge, errors.UnsupportedMediaType)
_DECISIONS = (
    errors.NoLedgerEntry,
    errors.AttemptInFlight,
    errors.Withdrawn,
    errors.Discrepancy,
    errors.Abandoned,
    errors.Settled,
    errors.ReconciliationRequired,
    errors.Denied,
    errors.NotPermitted,
    errors.Paused,
    errors.AwaitingApproval,
    errors.PossibleDuplicate,
    errors.StaleAttempt,
)


_INTENT = OpenApiExample(
    "A refund",
    request_only=True,
    value={
        "task_id": "ticket-4711",
        "capability": "refund.create",
        "arguments": {"order_id": "8841", "amount": "120.00", "currency": "EUR"},
        "actor": {"subject": "agent:support-7", "on_behalf_of": "user:alice"},
        "business_reference": "order-8841",
    },
)
_OUTCOME = OpenApiExample(
    "The receiver answered",
    request_only=True,
    value={
        "outcome": "completed",
        "receiver_reference": "re_1",
        "evidence": {"source": "receiver_response", "http_status": 200, "body": {"id": "re_1"}},
    },
)


class Described(APIView):
    """Described here, served by a plain view."""

    authentication_classes: tuple[type[RuntimeToken], ...] = (RuntimeToken,)
    parser_classes = (JSONParser,)


class DescribedOperation(Described):
    """Served by ``operations.operation``."""

    @extend_schema(
        operation_id="record_intent",
        tags=["operations"],
        summary="Record the intent",
        description="Safe to repeat: the same body finds the same operation. With `dispatch` it also asks for attempt 1.",
        parameters=[OPERATION_ID, nonce(f"With `dispatch`: required. {NONCE}")],
        request=shapes.Intent,
        examples=[_INTENT],
        responses={
            201: OpenApiResponse(shapes.Operation, description="Recorded now."),
            200: OpenApiResponse(shapes.Operation, description="Recorded before; `replayed` is true."),
            **problems(
                *BODY,
                errors.NoLedgerEntry,
                errors.IntentMismatch,
                errors.CapabilityUnknown,
                errors.ReferenceRequired,
                errors.KeyInUse,
                errors.NotSupersedable,
                errors.AlreadyCompensated,
            ),
        },
    )
    def put(self) -> None:
        """Documentation only."""

    @extend_schema(
        operation_id="read_operation",
        tags=["operations"],
        summary="Read the operation and its decision",
        description="With `wait` it answers when something changes, at once where waiting could not help.",
        parameters=[
            OPERATION_ID,
            OpenApiParameter("wait", {"type": "number", "minimum": 0, "maximum": 20}, description="Seconds."),
            OpenApiParameter(
                "since",
                {"type": "integer", "minimum": 0, "maximum": 999_999_999},
                description="The version you have: another one is answered at once.",
            ),
        ],
        responses={200: shapes.Operation, **problems(errors.NoLedgerEntry)},
    )
    def get(self) -> None:
        """Documentation only."""


class DescribedAttempt(Described):
    """Served by ``operations.attempt``."""

    @extend_schema(
        operation_id="ask_permit",
        tags=["operations"],
        summary="Ask for the permit of one attempt",
        description=(
            "Permission is judged anew for each attempt. After a lost reply ask again with the same nonce, which gives the"
            " same permit while its lease runs; `next_attempt` of the decision is the number to ask for."
        ),
        parameters=[OPERATION_ID, NUMBER, nonce(required=True, pattern=shapes.NONCE_PATTERN)],
        request=None,
        responses={
            201: OpenApiResponse(
                shapes.Operation, description="`permit` is there: dispatch once, within its lease."
            ),
            200: OpenApiResponse(shapes.Operation, description="The same nonce again: the same permit."),
            **problems(errors.TooLarge, *_DECISIONS),
        },
    )
    def put(self) -> None:
        """Documentation only."""


class DescribedOutcome(Described):
    """Served by ``operations.outcome``."""

    @extend_schema(
        operation_id="report_outcome",
        tags=["operations"],
        summary="Report how an attempt ended",
        description=(
            "Whatever can be kept is kept, and `stored_as` says what it counted for. Only the permit's holder, who shows"
            " the nonce of the ask or the permit's token, can say that nothing was sent; the bearer may be that token"
            " itself. A report that could not be written answers `post-dispatch-evidence-failed`: send it again."
        ),
        parameters=[
            OPERATION_ID,
            NUMBER,
            nonce("The nonce of the ask."),
            OpenApiParameter(
                "Permit-Token",
                str,
                OpenApiParameter.HEADER,
                description="The permit's token, instead of the nonce.",
            ),
        ],
        request=shapes.Outcome,
        examples=[_OUTCOME],
        responses={
            200: shapes.ReportedOperation,
            **problems(
                errors.NoLedgerEntry,
                errors.StaleAttempt,
                errors.EvidenceConflict,
                errors.MalformedOutcome,
                everywhere=(
                    errors.Malformed,
                    errors.Unauthenticated,
                    errors.Forbidden,
                    errors.PostDispatchEvidenceFailed,
                ),
            ),
        },
    )
    def put(self) -> None:
        """Documentation only."""


class DescribedKeys(Described):
    """Served by ``views.public_keys``."""

    authentication_classes = ()

    @extend_schema(
        operation_id="public_keys",
        tags=["permits"],
        summary="The keys that permits are signed with",
        description="A JWK Set (RFC 7517): a permit is verified with it offline.",
        responses={200: shapes.Keys, **problems(everywhere=(errors.InternalError, errors.Unavailable))},
    )
    def get(self) -> None:
        """Documentation only."""


_OPERATION = "/api/v1/operations/{operation_id}"
DESCRIBED: tuple[tuple[str, str, Any], ...] = (
    (_OPERATION, "PUT", DescribedOperation.as_view()),
    (_OPERATION, "GET", DescribedOperation.as_view()),
    (f"{_OPERATION}/attempts/{{number}}", "PUT", DescribedAttempt.as_view()),
    (f"{_OPERATION}/attempts/{{number}}/outcome", "PUT", DescribedOutcome.as_view()),
    ("/.well-known/counterfoil-keys.json", "GET", DescribedKeys.as_view()),
)


CLOSED = {*(shape.__name__ for shape in shapes.CLOSED), "ReconcileRequest"}


class Endpoints(EndpointEnumerator):
    """The calls that DRF knows, and the described ones."""

    def get_api_endpoints(self, patterns: Any = None, prefix: str = "") -> list[Any]:
        found = super().get_api_endpoints(patterns, prefix)  # type: ignore[no-untyped-call]
        return [*((path, path, method, view) for path, method, view in DESCRIBED), *found]


class Generator(SchemaGenerator):
    """drf-spectacular's, over both kinds of view; what refuses unknown fields says so."""

    endpoint_inspector_cls = Endpoints

    def get_schema(self, request: Any = None, public: bool = False) -> Any:
        document = super().get_schema(request, public)  # type: ignore[no-untyped-call]
        for name, shape in document["components"]["schemas"].items():
            if name in CLOSED:
                shape["additionalProperties"] = False
        return document


class RuntimeTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the document names the runtime's token."""

    target_class = RuntimeToken
    name = "runtimeToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A runtime token: cfl_<env>_<id>_<secret>.",
        }

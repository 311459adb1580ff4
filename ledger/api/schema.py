"""The OpenAPI document: DRF's calls as they are, and the plain views described beside them.

The hot routes are plain views, which drf-spectacular cannot see; ``DESCRIBED`` says of each what it takes and gives.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.views import APIView

from ledger import errors
from ledger.api import shapes
from ledger.api.authentication import RuntimeToken

OPERATION_ID = OpenApiParameter("operation_id", str, OpenApiParameter.PATH, pattern=shapes.NAME_PATTERN)
NUMBER = OpenApiParameter("number", str, OpenApiParameter.PATH, pattern="^[1-9][0-9]{0,3}$")
NONCE = OpenApiParameter(
    "Permit-Nonce",
    str,
    OpenApiParameter.HEADER,
    description="Minted for this one ask, 16 to 200 visible ASCII characters, kept in memory only.",
)


def problems(*refusals: type[errors.Refusal]) -> dict[Any, Any]:
    """Responses for the refusals a call can answer with, grouped by status, besides those that every call has."""
    everywhere: tuple[type[errors.Refusal], ...] = (
        errors.Malformed,
        errors.Unauthenticated,
        errors.Forbidden,
        errors.Unavailable,
    )
    by_status: dict[int, list[str]] = {}
    for refusal in (*everywhere, *refusals):
        by_status.setdefault(refusal.status, []).append(refusal.code)
    return {
        (status, "application/problem+json"): OpenApiResponse(
            shapes.Problem, description=" · ".join(sorted(set(codes)))
        )
        for status, codes in by_status.items()
    }


_BODY = (errors.TooLarge, errors.UnsupportedMediaType)
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


class DescribedOperation(APIView):
    """Described here, served by ``operations.operation``."""

    authentication_classes = (RuntimeToken,)

    @extend_schema(
        operation_id="record_intent",
        tags=["operations"],
        summary="Record the intent",
        description="Safe to repeat: the same body finds the same operation. With `dispatch` it also asks for attempt 1.",
        parameters=[OPERATION_ID, NONCE],
        request=shapes.Intent,
        responses={
            201: OpenApiResponse(shapes.Operation, description="Recorded now."),
            200: OpenApiResponse(shapes.Operation, description="Recorded before; `replayed` is true."),
            **problems(
                *_BODY,
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
        parameters=[
            OPERATION_ID,
            OpenApiParameter("wait", float, description="Seconds, up to 20: answer when something changes."),
            OpenApiParameter("since", int, description="The version you have."),
        ],
        responses={200: shapes.Operation, **problems(errors.NoLedgerEntry)},
    )
    def get(self) -> None:
        """Documentation only."""


class DescribedAttempt(APIView):
    """Described here, served by ``operations.attempt``."""

    authentication_classes = (RuntimeToken,)

    @extend_schema(
        operation_id="ask_permit",
        tags=["operations"],
        summary="Ask for the permit of one attempt",
        parameters=[OPERATION_ID, NUMBER, NONCE],
        request=None,
        responses={
            201: OpenApiResponse(
                shapes.Operation, description="`permit` is there: dispatch once, within its lease."
            ),
            200: OpenApiResponse(shapes.Operation, description="The same nonce again: the same permit."),
            **problems(*_DECISIONS),
        },
    )
    def put(self) -> None:
        """Documentation only."""


class DescribedOutcome(APIView):
    """Described here, served by ``operations.outcome``."""

    authentication_classes = (RuntimeToken,)

    @extend_schema(
        operation_id="report_outcome",
        tags=["operations"],
        summary="Report how an attempt ended",
        description=(
            "Whatever can be kept is kept, and `stored_as` says what it counted for. The bearer may be the permit's own"
            " token. A report that could not be written answers `post-dispatch-evidence-failed`: send it again."
        ),
        parameters=[OPERATION_ID, NUMBER, NONCE],
        request=shapes.Outcome,
        responses={
            200: shapes.ReportedOperation,
            **problems(
                errors.NoLedgerEntry,
                errors.StaleAttempt,
                errors.EvidenceConflict,
                errors.MalformedOutcome,
                errors.PostDispatchEvidenceFailed,
            ),
        },
    )
    def put(self) -> None:
        """Documentation only."""


class DescribedKeys(APIView):
    """Described here, served by ``views.public_keys``."""

    authentication_classes = ()

    @extend_schema(
        operation_id="public_keys",
        tags=["permits"],
        summary="The keys that permits are signed with",
        responses=shapes.Keys,
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


class Endpoints(EndpointEnumerator):
    """The calls that DRF knows, and the described ones."""

    def get_api_endpoints(self, patterns: Any = None, prefix: str = "") -> list[Any]:
        found = super().get_api_endpoints(patterns, prefix)  # type: ignore[no-untyped-call]
        return [*((path, path, method, view) for path, method, view in DESCRIBED), *found]


class Generator(SchemaGenerator):
    """drf-spectacular's, over both kinds of view."""

    endpoint_inspector_cls = Endpoints


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

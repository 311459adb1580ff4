"""Reconciliation as runtimes call it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from ledger import errors
from ledger import selectors as ledger
from ledger.api.problems import json_response
from ledger.api.representation import operation_body
from ledger.api.requests import json_body, operation_name
from ledger.api.schema import BODY, OPERATION_ID, problems
from ledger.api.views import RuntimeView
from ledger.services.permits import check_covers
from reconciliation import services
from reconciliation.api import shapes
from reconciliation.api.shapes import TIMEOUT_MAX_S

TIMEOUT_S = 10.0  # where the caller names none: what a receiver is given by the workers too


class ReconcileView(RuntimeView):
    """Asks the receiver now what became of an operation. Body: ``{"timeout_s": up to 30}``, or none."""

    scope = "reconcile"

    @extend_schema(
        operation_id="reconcile",
        tags=["operations"],
        summary="Ask the receiver now",
        description="Look-ups of one operation coalesce, at most one begins per second; where there is nothing to ask,"
        " `finding` is null.",
        parameters=[OPERATION_ID],
        request=shapes.ReconcileRequest,
        responses={200: shapes.Reconciled, **problems(errors.NoLedgerEntry, *BODY)},
    )
    def post(self, request: Request, operation_id: str) -> HttpResponse:
        name = operation_name(operation_id)
        timeout_s = _timeout(request._request)
        found = ledger.facts_of(self.caller.workspace_id, [name])
        if not found:
            raise errors.NoLedgerEntry()
        check_covers(self.caller, found[0].capability, found[0].row["actor_subject"])
        answer = services.reconcile_now(self.caller.workspace_id, name, timeout_s=timeout_s)
        response = json_response(
            {"finding": answer.finding, "verdict": answer.verdict, "operation": operation_body(answer.facts)}
        )
        if answer.crowded:  # too many ask already: the operation as it stands, and when to come again
            response["Retry-After"] = "1"
        return response


def _timeout(request: HttpRequest) -> float:
    if request.META.get("CONTENT_LENGTH") in (None, "", "0") and not request.META.get(
        "HTTP_TRANSFER_ENCODING"
    ):
        return TIMEOUT_S
    body = json_body(request)
    if not isinstance(body, dict):
        raise errors.Malformed("", "must be an object")
    unknown = sorted(body.keys() - {"timeout_s"})
    if unknown:
        raise errors.Malformed(
            f"/{unknown[0]}", "is not a field of this call", extra={"unknown_fields": unknown}
        )
    timeout_s = body.get("timeout_s", TIMEOUT_S)
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, int | float)
        or not 0 < timeout_s <= TIMEOUT_MAX_S
    ):
        raise errors.Malformed("/timeout_s", f"must be seconds, more than 0 and at most {TIMEOUT_MAX_S:g}")
    return float(timeout_s)

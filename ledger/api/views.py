"""The calls that DRF serves: withdrawal, a task's operations, a batch, the public keys."""

from __future__ import annotations

import logging
from typing import Any, cast
from uuid import UUID

from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.views import APIView

from ledger import errors, selectors, services
from ledger.api import shapes
from ledger.api.authentication import Credential, RuntimeToken, credential
from ledger.api.problems import answers_problems, is_down, json_response, problem_body, problem_response
from ledger.api.representation import operation_body
from ledger.api.requests import IN_BATCH, json_body, no_fields, operation_name, query_of
from ledger.api.schema import BODY, OPERATION_ID, problems
from ledger.digests import JSON
from ledger.intake import parse_intent, parse_nonce, valid_name
from ledger.keys import current
from ledger.services.writing import Caller

logger = logging.getLogger("ledger.api")

BATCH_MAX = 100
PAGE = 100  # operations of a task in one answer
_ITEM_FIELDS = frozenset({"operation_id", "permit_nonce"})


class OnlyJson(BaseContentNegotiation):
    """Every answer is JSON, whatever the caller would rather have: a refusal must reach it too."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class RuntimeView(APIView):
    """A call of a runtime: its token authenticates, refusals are problems."""

    authentication_classes = (RuntimeToken,)
    permission_classes = ()
    content_negotiation_class = OnlyJson
    parser_classes = (JSONParser,)
    http_method_names = ("get", "head", "post", "put")
    scope = "read"

    @property
    def caller(self) -> Caller:
        return cast(Caller, self.request.user)


class WithdrawalView(RuntimeView):
    """Gives up an operation that is intended or denied."""

    scope = "intent"

    @extend_schema(
        operation_id="withdraw",
        tags=["operations"],
        summary="Give up an operation that is intended or denied",
        description="Safe to repeat. What was dispatched is not given up: report its outcome first.",
        parameters=[OPERATION_ID],
        request=None,
        responses={
            200: shapes.Operation,
            **problems(
                errors.NoLedgerEntry,
                errors.AttemptInFlight,
                errors.ReconciliationRequired,
                errors.Settled,
                errors.Discrepancy,
                errors.Abandoned,
                errors.TooLarge,
            ),
        },
    )
    def put(self, request: Request, operation_id: str) -> HttpResponse:
        name = operation_name(operation_id)
        no_fields(request._request)
        answer = services.withdraw(self.caller, name)
        return json_response(operation_body(answer.facts, replayed=answer.replayed))


class TaskView(RuntimeView):
    """All operations of one task with their decisions: what a resumed task reads first."""

    @extend_schema(
        operation_id="read_task",
        tags=["operations"],
        summary="All operations of a task, with their decisions",
        description="What a resumed task reads first. Up to a hundred at a time; `next` is the address of the rest.",
        parameters=[
            OpenApiParameter("task_id", str, OpenApiParameter.PATH, pattern=shapes.NAME_PATTERN),
            OpenApiParameter("after", UUID, description="Where the page begins; `next` has it."),
        ],
        responses={200: shapes.TaskOperations, **problems(errors.NoLedgerEntry)},
    )
    def get(self, request: Request, task_id: str) -> HttpResponse:
        if not valid_name(task_id):
            raise errors.Malformed("", "that is no task ID")
        after = query_of(request._request).get("after")
        page = selectors.task_page(self.caller, task_id, after=after, limit=PAGE)
        if page is None:
            raise errors.NoLedgerEntry("No operation of this task is on record.")
        return json_response(
            {
                "task_id": task_id,
                "operations": [operation_body(facts) for facts in page.facts],
                "next": None if page.next is None else f"/api/v1/tasks/{task_id}?after={page.next}",
            }
        )


class BatchView(RuntimeView):
    """Up to a hundred intents in one request; each gets the answer it would have got alone."""

    scope = "intent"

    @extend_schema(
        operation_id="record_batch",
        tags=["operations"],
        summary="Record up to a hundred intents",
        description="Each gets the answer it would have got alone, in the order asked.",
        request=shapes.Batch,
        responses={200: shapes.BatchAnswers, **problems(*BODY)},
    )
    def post(self, request: Request) -> HttpResponse:
        held = credential(request._request)
        items = _items(json_body(request._request, around=IN_BATCH))
        answers: dict[int, dict[str, Any]] = {}
        # By name: two batches that share operations take their locks in one order.
        for index in sorted(range(len(items)), key=lambda i: str(items[i].get("operation_id"))):
            answers[index] = _answer_item(held, items[index])
        return json_response({"operations": [answers[index] for index in range(len(items))]})


def _items(body: JSON) -> list[dict[str, Any]]:
    if (
        not isinstance(body, dict)
        or body.keys() != {"operations"}
        or not isinstance(body["operations"], list)
    ):
        raise errors.Malformed("", 'must be {"operations": […]}')
    items = body["operations"]
    if not 1 <= len(items) <= BATCH_MAX:
        raise errors.Malformed("/operations", f"must hold 1 to {BATCH_MAX} operations")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise errors.Malformed(f"/operations/{index}", "must be an object")
    return cast(list[dict[str, Any]], items)


def _answer_item(held: Credential, item: dict[str, Any]) -> dict[str, Any]:
    """{"status", "body"}: what PUT on this operation would have answered."""
    name = item.get("operation_id")
    try:
        if not isinstance(name, str) or not valid_name(name):
            raise errors.Malformed("/operation_id", "must be an operation ID")
        intent = parse_intent(name, item, also=_ITEM_FIELDS)
        nonce = parse_nonce(item.get("permit_nonce"), where="/permit_nonce") if intent.dispatch else None
        answer = services.record_intent(held.token_id, held.secret_hash, intent, nonce)
    except errors.Refusal as refusal:
        return {
            "status": refusal.status,
            "body": problem_body(refusal, name if isinstance(name, str) else None),
        }
    body = operation_body(answer.facts, replayed=answer.replayed, permit=answer.permit)
    return {"status": 201 if answer.created else 200, "body": body}


@answers_problems()
def public_keys(request: HttpRequest) -> HttpResponse:
    """The keys that permits are signed with, old ones too, as a JWK Set (RFC 7517)."""
    if request.method not in ("GET", "HEAD"):
        raise errors.MethodNotAllowed(extra={"allow": ["GET", "HEAD"]})
    response = json_response(current().public_jwks())
    response["Cache-Control"] = "public, max-age=300"
    return response


def problem_of(exception: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """DRF's exceptions and our refusals, as problems; the database's silence as `unavailable`."""
    name = context["kwargs"].get("operation_id")
    match exception:
        case errors.Refusal():
            return problem_response(exception, name)
        case exceptions.MethodNotAllowed():
            allowed = [method for method in context["view"].allowed_methods if method != "OPTIONS"]
            return problem_response(errors.MethodNotAllowed(extra={"allow": sorted(allowed)}), name)
        case exceptions.UnsupportedMediaType():
            return problem_response(errors.UnsupportedMediaType(), name)
        case Http404():
            return problem_response(errors.NotFound(), name)
        case exceptions.NotAuthenticated() | exceptions.AuthenticationFailed():
            return problem_response(errors.Unauthenticated(), name)
        case _ if is_down(exception):
            connection.close()
            return problem_response(errors.Unavailable(retry_after=1), name)
    logger.exception("unexpected error: %s", context["request"].path, exc_info=exception)
    return problem_response(errors.InternalError(), name)

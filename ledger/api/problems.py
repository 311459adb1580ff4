"""Refusals as application/problem+json (RFC 9457), with everything an agent needs in the body."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

import orjson
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from psycopg.errors import IdleInTransactionSessionTimeout, ReadOnlySqlTransaction

from ledger import errors
from ledger.api.representation import decision_body, z
from ledger.facts import Facts
from ledger.intake import valid_name
from ledger.states import State

AGAIN_WITHIN_S = 5.0  # after a longer wait the caller is told, and asks again when it likes

logger = logging.getLogger("ledger.api")

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def problem_body(refusal: errors.Refusal, operation_id: str | None = None) -> dict[str, Any]:
    """The problem's members; what the record knows (``facts``) makes them exact."""
    facts = refusal.facts if isinstance(refusal.facts, Facts) else None
    body: dict[str, Any] = {
        "type": f"/api/v1/problems#{refusal.code}",
        "title": refusal.title,
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "retryable": refusal.retryable,
        "repeat_request": refusal.repeat_request,
        "reuse_key": refusal.reuse_key,
        "reconciliation_required": refusal.reconciliation_required,
        "effect_may_have_happened": refusal.effect_may_have_happened,
    }
    if operation_id is not None and valid_name(operation_id):  # what can be no name has no address either
        body["operation_id"] = operation_id
        body["status_url"] = f"/api/v1/operations/{operation_id}"
    if refusal.retry_after is not None:
        body["retry_after"] = refusal.retry_after
    if isinstance(refusal, errors.NoLedgerEntry) and "operation_id" in body:
        body["decision"] = decision_body(None)
    if facts is not None:
        body["invocation_id"] = facts.invocation_id
        body["state"] = facts.state
        body["decision"] = decision_body(facts)
        body["reconciliation_required"] = refusal.reconciliation_required or facts.state is State.UNKNOWN
        if refusal.effect_may_have_happened is None:
            body["effect_may_have_happened"] = facts.effect != "no"
        if isinstance(refusal, errors.StaleAttempt):
            body["retryable"] = facts.decision.allows_permit
        if isinstance(refusal, errors.Settled):
            from ledger.api.representation import operation_body

            body["outcome"] = operation_body(facts)["outcome"]
        if isinstance(refusal, errors.Denied):
            body["denial"] = {
                "reason": facts.row["denial_reason"],
                "class": facts.denial,
                "clears_at": z(facts.row["denial_clears_at"]),
            }
        if isinstance(refusal, errors.PossibleDuplicate):
            body["possible_duplicates"] = facts.row["twins"]
    body.update(refusal.extra)
    return body


def problem_response(refusal: errors.Refusal, operation_id: str | None = None) -> HttpResponse:
    """The refusal as a response, with Retry-After and WWW-Authenticate where they belong."""
    response = HttpResponse(
        orjson.dumps(problem_body(refusal, operation_id)),
        status=refusal.status,
        content_type="application/problem+json",
    )
    response["Cache-Control"] = "no-store"
    if refusal.retry_after is not None:
        response["Retry-After"] = str(refusal.retry_after)
    if isinstance(refusal, errors.MethodNotAllowed):
        response["Allow"] = ", ".join(refusal.extra.get("allow", ()))
    if isinstance(refusal, errors.Unauthenticated):
        response["WWW-Authenticate"] = 'Bearer realm="counterfoil"'
    return response


def json_response(body: object, status: int = 200) -> HttpResponse:
    response = HttpResponse(orjson.dumps(body), status=status, content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


def is_down(error: Exception) -> bool:
    """Whether the database is gone, or takes nothing just now: its error says nothing of the request.

    A provider turns a full database read-only, and a failover leaves a read-only one behind; a process that stood still
    inside a transaction finds its session ended.
    """
    return isinstance(error, (OperationalError, InterfaceError)) or isinstance(
        error.__cause__, (ReadOnlySqlTransaction, IdleInTransactionSessionTimeout)
    )


def answers_problems(
    *, when_unavailable: type[errors.Refusal] = errors.Unavailable
) -> Callable[[View[P]], View[P]]:
    """Turns refusals into problems, and a lost database into a second try.

    An error from the database says nothing about whether the statement took effect, so it is asked again on a new
    connection: every call here is safe to repeat and finds what it did before. Then ``when_unavailable`` is said; at once
    where the database took its time to fail, so that a frozen one is waited for once.
    """

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def answer(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            name = kwargs.get("operation_id")
            operation_id = name if isinstance(name, str) else None
            began = time.monotonic()
            for again in (True, False):
                try:
                    return view(request, *args, **kwargs)
                except errors.Refusal as refusal:
                    return problem_response(refusal, operation_id)
                except Exception as error:  # the API's outermost door: whatever it was, the answer is typed
                    if not is_down(error):
                        logger.exception("unexpected error: %s %s", request.method, request.path)
                        unexpected = when_unavailable is errors.Unavailable
                        return problem_response(
                            errors.InternalError() if unexpected else when_unavailable(), operation_id
                        )
                    connection.close()
                    if not again or time.monotonic() - began > AGAIN_WITHIN_S:
                        logger.error("database unavailable: %s %s: %s", request.method, request.path, error)
                        break
            return problem_response(when_unavailable(retry_after=1), operation_id)

        return cast(View[P], answer)

    return decorate

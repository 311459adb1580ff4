"""The hot routes, as plain views: intent, permit, outcome, and reading one operation.

No session, message or login middleware runs before them; the token is checked in the statement that acts.
"""

from __future__ import annotations

import orjson
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve

from ledger import errors, services
from ledger.api import waits
from ledger.api.authentication import Credential, bearer, credential, credential_of, permit_statement
from ledger.api.problems import answers_problems, json_response
from ledger.api.representation import operation_body
from ledger.api.requests import (
    BODY_MAX,
    IN_INTENT,
    IN_OUTCOME,
    OUTCOME_READ_MAX,
    attempt_number,
    json_body,
    no_fields,
    operation_name,
    read_body,
    wait_parameters,
)
from ledger.digests import parse
from ledger.facts import Facts
from ledger.intake import parse_intent, parse_nonce
from ledger.reports import parse_report
from ledger.services.outcomes import Body, Reporter
from ledger.services.permits import authenticate, check_covers
from ledger.services.writing import Caller, Shown

WAIT_MAX_S = 20.0  # below the idle limit of every common proxy


def method_not_allowed(*allowed: str) -> errors.MethodNotAllowed:
    return errors.MethodNotAllowed(extra={"allow": list(allowed)})


@answers_problems()
def operation(request: HttpRequest, operation_id: str) -> HttpResponse:
    """PUT records the intent; GET reads the operation."""
    if request.method == "PUT":
        return _record(request, operation_id)
    if request.method in ("GET", "HEAD"):
        return _read(request, operation_id)
    raise method_not_allowed("GET", "HEAD", "PUT")


def _record(request: HttpRequest, operation_id: str) -> HttpResponse:
    held = credential(request)
    try:
        name = operation_name(operation_id)
        intent = parse_intent(name, json_body(request, around=IN_INTENT))
        nonce = parse_nonce(request.headers.get("Permit-Nonce")) if intent.dispatch else None
    except errors.Refusal:
        authenticate(held.token_id, held.secret_hash, "intent")  # strangers learn nothing of what is wrong
        raise
    answer = services.record_intent(held.token_id, held.secret_hash, intent, nonce)
    body = operation_body(answer.facts, replayed=answer.replayed, permit=answer.permit)
    return json_response(body, 201 if answer.created else 200)


def _read(request: HttpRequest, operation_id: str) -> HttpResponse:
    held = credential(request)
    try:
        name = operation_name(operation_id)
        wait_s, since = wait_parameters(request, WAIT_MAX_S)
    except errors.Refusal:
        authenticate(held.token_id, held.secret_hash, "read")
        raise
    facts = read_operation(held, name)
    if wait_s and facts.decision.may_change and since in (None, facts.version):
        left = waits.wait(facts, wait_s, token_id=held.token_id)
        response = json_response(operation_body(read_operation(held, name)))
        if left is None:  # too many wait already: the answer as it is, and when to come again
            response["Retry-After"] = "1"
        return response
    return json_response(operation_body(facts))


def read_operation(held: Credential, operation_id: str) -> Facts:
    """The operation if the token may read it. Raises Unauthenticated, Forbidden, NoLedgerEntry."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT caller::text, facts::text FROM ledger_read(%s, %s, %s)",
            [held.token_id, held.secret_hash, operation_id],
        )
        row = cursor.fetchone()
    if row is None:
        raise errors.Unauthenticated()
    caller = Caller.read(orjson.loads(row[0]))
    if "read" not in caller.scopes:
        raise errors.Forbidden("This token has no scope 'read'.")
    if row[1] is None:
        raise errors.NoLedgerEntry()
    facts = Facts.read(orjson.loads(row[1]))
    check_covers(caller, facts.capability, facts.row["actor_subject"])
    return facts


@answers_problems()
def attempt(request: HttpRequest, operation_id: str, number: str) -> HttpResponse:
    """PUT asks for the permit of one attempt."""
    if request.method != "PUT":
        raise method_not_allowed("PUT")
    held = credential(request)
    try:
        name, n = operation_name(operation_id), attempt_number(number)
        nonce = parse_nonce(request.headers.get("Permit-Nonce"))
        no_fields(request)
    except errors.Refusal:
        authenticate(held.token_id, held.secret_hash, "permit")
        raise
    answer = services.ask_permit(held.token_id, held.secret_hash, name, n, nonce)
    body = operation_body(answer.facts, replayed=answer.replayed, permit=answer.permit)
    return json_response(body, 201 if answer.created else 200)


@answers_problems(when_unavailable=errors.PostDispatchEvidenceFailed)
def outcome(request: HttpRequest, operation_id: str, number: str) -> HttpResponse:
    """PUT reports how one attempt ended. Whatever can be kept of it is kept."""
    if request.method != "PUT":
        raise method_not_allowed("PUT")
    reporter = _reporter(request)
    try:
        name, n = operation_name(operation_id), attempt_number(number)
    except errors.Refusal:
        if reporter.token_id is not None and reporter.secret_hash is not None:
            authenticate(reporter.token_id, reporter.secret_hash, "outcome")
        raise
    # The body can be read once only; a second try after a lost database finds it here.
    body = getattr(request, "counterfoil_body", None)
    if body is None:
        body = _outcome_body(request)
        request.counterfoil_body = body  # type: ignore[attr-defined]
    answer = services.report_outcome(reporter, name, n, body)
    return json_response(operation_body(answer.facts, stored_as=answer.stored_as))


def _reporter(request: HttpRequest) -> Reporter:
    """The permit's own token is credential enough to report on its attempt."""
    token = bearer(request)
    nonce = request.headers.get("Permit-Nonce")
    permit = permit_statement(token) if token.count(".") == 2 else None
    if permit is not None:
        return Reporter(permit=permit, nonce=nonce)
    held = credential_of(token)
    beside = request.headers.get("Permit-Token")
    statement = None if beside is None else permit_statement(beside)
    return Reporter(held.token_id, held.secret_hash, statement, nonce)


def _outcome_body(request: HttpRequest) -> Body:
    read = read_body(request, OUTCOME_READ_MAX)
    try:
        if read.cut:
            raise errors.TooLarge(OUTCOME_READ_MAX)
        if read.size > BODY_MAX:
            raise errors.TooLarge(BODY_MAX)
        parsed = parse(read.raw, max_bytes=BODY_MAX, around=IN_OUTCOME)
        report = parse_report(parsed)
    except (errors.Malformed, errors.TooLarge) as fault:
        return Body(Shown.beginning(read.raw, read.sha256, read.size), fault=fault)
    return Body(Shown.beginning(read.raw, read.sha256, read.size, parsed), report)


@answers_problems()
def not_found(request: HttpRequest) -> HttpResponse:
    """Every other address below /api/ and /.well-known/."""
    path = request.path_info
    if path.endswith("/") and _is_a_call(path.rstrip("/")):
        raise errors.NotFound("Leave out the slash at the end; /api/v1/docs describes every call.")
    raise errors.NotFound()


def _is_a_call(path: str) -> bool:
    try:
        return resolve(path).func is not not_found
    except Resolver404:
        return False

"""The OpenAPI document against the service: what it describes is there, what is there it describes, and every answer fits."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import datetime
from functools import cache
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from jsonschema import Draft202012Validator, FormatChecker

from config.urls import urlpatterns as all_patterns
from ledger import errors, services
from ledger.api import docs, operations, views
from ledger.api import urls as ledger_urls
from ledger.api.explained import explained
from ledger.api.schema import Generator, codes_of
from ledger.decisions import Action, Permission, Reason
from ledger.models import Pause
from ledger.services.writing import SYSTEM
from ledger.states import Standing, State
from ledger.tenancy import workspace as in_workspace
from reconciliation.api import urls as reconciliation_urls
from reconciliation.api import views as reconciliation_views
from tests.arrange import COMPLETED, DECLINED, NOT_SENT, OPAQUE, UNKNOWN, Agent, Arranged, arrange, nonce
from tests.ledger.api.steps import ask, dispatch, lost, own_arguments, record
from tests.reconciliation.scene import Receiver, Scene

JSON, PROBLEM = "application/json", "application/problem+json"


@cache
def document() -> dict[str, Any]:
    return dict(Generator().get_schema(public=True))


def calls() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, what the document says of it)."""
    for path, methods in document()["paths"].items():
        for method, call in methods.items():
            yield method.upper(), path, call


def call_named(operation_id: str) -> dict[str, Any]:
    return next(call for _, _, call in calls() if call["operationId"] == operation_id)


# The document itself.


def test_the_document_is_generated_without_a_warning(tmp_path: Any) -> None:
    file = tmp_path / "schema.yaml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(file))
    assert file.read_text().startswith("openapi: 3.1.0\n")


@pytest.mark.parametrize(
    ("query", "media_type"),
    [
        ("", "application/vnd.oai.openapi"),
        ("?format=json", "application/vnd.oai.openapi+json"),
        # What is not there is no error of ours.
        ("?format=xml", "application/vnd.oai.openapi"),
        ("?version=%0d%0aSet-Cookie:%20a=b&lang=%22%3E", "application/vnd.oai.openapi"),
    ],
)
@pytest.mark.parametrize("accept", ["*/*", "text/csv", "application/vnd.oai.openapi;q=0.1"])
def test_the_document_is_served_without_a_login(query: str, media_type: str, accept: str) -> None:
    answer = Client().get(f"/api/v1/schema{query}", headers={"accept": accept})

    assert answer.status_code == 200
    assert answer.headers["Content-Type"].removesuffix("; charset=utf-8") == media_type
    assert "Set-Cookie" not in answer.headers
    if media_type.endswith("json"):
        assert answer.json() == document()


DESCRIBING = {docs.schema, docs.docs, docs.problems}
"""What describes the calls is none of them."""


def test_every_address_is_described_and_every_described_call_has_its_address() -> None:
    patterns = [*ledger_urls.urlpatterns, *reconciliation_urls.urlpatterns]
    served = {
        "/" + re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern))
        for pattern in patterns
        if pattern.callback not in DESCRIBING
    }

    assert served == document()["paths"].keys()


def test_every_method_that_is_described_is_served_and_no_other(agent: Agent) -> None:
    described: dict[str, set[str]] = {}
    for method, path, _ in calls():
        described.setdefault(path, set()).add(method)
    for path, methods in described.items():
        address = path.replace("{number}", "1").replace("{operation_id}", "op").replace("{task_id}", "t")
        refused = agent.call("DELETE", address)
        assert refused.status_code == 405, path
        assert set(refused.headers["Allow"].split(", ")) - {"HEAD"} == methods, path


def test_the_fallback_comes_after_everything_else() -> None:
    assert all_patterns[-1] is ledger_urls.fallback[-1]


def test_what_refuses_unknown_fields_says_so() -> None:
    for method, path, call in calls():
        body = call.get("requestBody")
        if body is None:
            continue
        assert body["content"].keys() == {JSON}, path
        shape = _deref(body["content"][JSON]["schema"])
        assert shape["additionalProperties"] is False, f"{method} {path}"


def test_every_call_names_its_media_types() -> None:
    for _, path, call in calls():
        for status, answer in call["responses"].items():
            assert answer["content"].keys() == {JSON if status in ("200", "201") else PROBLEM}, path


# Refusals: what the code can raise and what the document names, compared call by call.

CODE_OF: Mapping[str, Callable[..., Any]] = {
    "record_intent": operations._record,
    "read_operation": operations._read,
    "ask_permit": operations.attempt,
    "report_outcome": operations.outcome,
    "withdraw": views.WithdrawalView.put,
    "read_task": views.TaskView.get,
    "record_batch": views.BatchView.post,
    "reconcile": reconciliation_views.ReconcileView.post,
    "public_keys": views.public_keys,
}
DECISIONS = {
    errors.AttemptInFlight, errors.Withdrawn, errors.Discrepancy, errors.Abandoned, errors.Settled,
    errors.ReconciliationRequired, errors.Denied, errors.NotPermitted, errors.Paused, errors.AwaitingApproval,
    errors.PossibleDuplicate,
}  # fmt: skip
DOOR = {errors.Unauthenticated, errors.Forbidden, errors.Unavailable, errors.InternalError}
"""Raised before or around the view: by the token's check, and by what catches everything."""

# Read in the code and no answer of the call, with the reason.
NOT_ANSWERED: Mapping[str, set[type[errors.Refusal]]] = {
    # `dispatch` asks for attempt 1; where it is refused the operation's own decision says so.
    "record_intent": {*DECISIONS, errors.StaleAttempt},
    # Each item's refusal stands in its item.
    "record_batch": {
        *DECISIONS, errors.StaleAttempt, errors.NoLedgerEntry, errors.IntentMismatch, errors.CapabilityUnknown,
        errors.ReferenceRequired, errors.KeyInUse, errors.NotSupersedable, errors.AlreadyCompensated,
    },
    # A report that is too large is kept raw and answered as one that cannot be read; whatever else goes wrong is said
    # as post-dispatch-evidence-failed.
    "report_outcome": {errors.TooLarge, errors.Unavailable, errors.InternalError},
    # What is withdrawn is withdrawn again; permission, denials and numbers are no matter of giving up.
    "withdraw": DECISIONS - {
        errors.AttemptInFlight, errors.ReconciliationRequired, errors.Settled, errors.Discrepancy, errors.Abandoned,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CODE_OF)
def test_every_refusal_that_a_call_can_raise_is_named_in_its_answers(name: str) -> None:
    found = _raised_by(CODE_OF[name])
    if name not in ("report_outcome", "public_keys"):
        found |= DOOR
    # Both are answers of the address, not of the call that has it.
    found -= {errors.MethodNotAllowed, errors.NotFound}
    found -= NOT_ANSWERED.get(name, set())

    named = _named(call_named(name))

    assert named == {(refusal.status, refusal.code) for refusal in found}


def test_every_call_has_its_code_here() -> None:
    assert CODE_OF.keys() == {call["operationId"] for _, _, call in calls()}


def test_every_refusal_is_answered_by_some_call_or_known_not_to_be() -> None:
    by_no_call = {
        # By any address.
        errors.MethodNotAllowed,
        errors.NotFound,
        # To people, by the console.
        errors.ApprovalExpired,
        errors.AlreadyDecided,
        # By no code yet.
        errors.RateLimited,
    }
    answered = codes_of(document()).keys()
    assert answered == {refusal.code for refusal in errors.ALL} - {refusal.code for refusal in by_no_call}


def _named(call: Mapping[str, Any]) -> set[tuple[int, str]]:
    return {
        (int(status), code)
        for status, answer in call["responses"].items()
        for code in re.findall(r"/api/v1/problems#([a-z-]+)", answer["description"])
    }


def _raised_by(start: Callable[..., Any]) -> set[type[errors.Refusal]]:
    """Every refusal that is made by this function or by one of ours that it names, however far down."""
    seen: set[Any] = set()
    found: set[type[errors.Refusal]] = set()
    waiting: list[Any] = [start]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if function in seen or function.__code__.co_filename.startswith(
            "<"
        ):  # a dataclass writes its own methods
            continue
        seen.add(function)
        for thing in _named_in(function):
            if _is_refusal(thing):
                found.add(thing)
            elif isinstance(thing, Mapping):  # a table of refusals, by what calls for them
                found |= {value for value in thing.values() if _is_refusal(value)}
            elif inspect.isfunction(inspect.unwrap(thing)) and _is_ours(thing):
                waiting.append(thing)
            elif inspect.isclass(thing) and _is_ours(thing):
                waiting += filter(None, map(_function_of, vars(thing).values()))
    return found


def _named_in(function: Any) -> Iterator[Any]:
    """What the names in a function's text stand for, but for those that only compare with a refusal."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    compared: set[ast.AST] = set()
    for node in ast.walk(tree):
        compares = (
            [node.type] if isinstance(node, ast.ExceptHandler) and node.type is not None
            else [node.cls] if isinstance(node, ast.MatchClass)
            else node.args[1:] if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
            else [node.annotation] if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None
            else [node.returns] if isinstance(node, ast.FunctionDef) and node.returns is not None
            else []
        )  # fmt: skip
        compared |= {part for one in compares for part in ast.walk(one)}
    for decorator in getattr(tree.body[0], "decorator_list", ()):
        if not ast.unparse(decorator).startswith("answers_problems"):  # what the document says is no code
            compared |= set(ast.walk(decorator))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and node not in compared:
            thing = _resolve(node, function.__globals__)
            if thing is not None:
                yield thing


def _resolve(node: ast.AST, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _resolve(node.value, names)
        if isinstance(base, ModuleType) or inspect.isclass(base):
            return getattr(base, node.attr, None)
    return None


def _function_of(member: Any) -> Any:
    """The function behind a class's member; None where there is none of ours."""
    for wrapped in ("fget", "func", "__func__"):
        member = getattr(member, wrapped, member)
    return member if inspect.isfunction(inspect.unwrap(member)) and _is_ours(member) else None


def _is_ours(thing: Any) -> bool:
    module = getattr(inspect.unwrap(thing), "__module__", "") or ""
    return module.split(".")[0] in ("ledger", "reconciliation") and "models" not in module


def _is_refusal(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, errors.Refusal) and thing is not errors.Refusal


# Answers: every one has the shape that the document gives it, and no member beside it.

FORMATS = FormatChecker()


@FORMATS.checks("date-time", raises=ValueError)
def _is_moment(text: object) -> bool:
    if not isinstance(text, str):
        return True
    return text.endswith("Z") and datetime.fromisoformat(text).tzinfo is not None


@cache
def _closed() -> dict[str, Any]:
    """The document with every shape closed: members that it does not name are found."""
    whole = deepcopy(document())
    for shape in whole["components"]["schemas"].values():
        if "properties" in shape:
            shape["additionalProperties"] = False
    return whole


def _deref(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def check(body: Any, shape: str) -> None:
    """The body is this shape, to the last member. Raises AssertionError naming what is not."""
    schema = {"$ref": f"#/components/schemas/{shape}", "components": _closed()["components"]}
    faults = sorted(
        Draft202012Validator(schema, format_checker=FORMATS).iter_errors(body), key=lambda e: len(e.path)
    )
    assert not faults, f"{shape}: {[f'{fault.json_path}: {fault.message}' for fault in faults]}"


def check_answer(answer: Any, name: str) -> Any:
    """The answer is one that the document gives for this call; returns its body."""
    described = call_named(name)["responses"][str(answer.status_code)]
    assert answer.headers["Content-Type"] in described["content"], answer.headers["Content-Type"]
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.json()
    check(body, described["content"][answer.headers["Content-Type"]]["schema"]["$ref"].rsplit("/", 1)[1])
    if answer.headers["Content-Type"] == PROBLEM:
        assert (answer.status_code, body["code"]) in _named(call_named(name)), body
    return body


def _paused(agent: Agent, workspace: Arranged) -> str:
    with in_workspace(workspace.id):
        Pause.objects.create(workspace_id=workspace.id, reason="incident 7", paused_by="olive")
    return record(agent, workspace)


def _twin(agent: Agent, workspace: Arranged) -> str:
    arguments = own_arguments()
    dispatch(agent, workspace, arguments=arguments)
    return record(agent, workspace, arguments=arguments)


def _awaiting(agent: Agent, workspace: Arranged) -> str:
    workspace.capability("order.cancel", approval={"required": True})
    return record(agent, workspace, capability="order.cancel")


def _reported(body: Any) -> Callable[[Agent, Arranged], str]:
    def report(agent: Agent, workspace: Arranged) -> str:
        held = dispatch(agent, workspace)
        check_answer(agent.report(held.operation_id, 1, body, nonce=held.nonce), "report_outcome")
        return held.operation_id

    return report


def _standing(standing: Standing) -> Callable[[Agent, Arranged], str]:
    def stand(agent: Agent, workspace: Arranged) -> str:
        operation_id = _reported(UNKNOWN)(agent, workspace)
        services.set_standing(workspace.id, operation_id, SYSTEM, standing)
        return operation_id

    return stand


def _flagged(agent: Agent, workspace: Arranged) -> str:
    operation_id = _reported(COMPLETED)(agent, workspace)
    second = {**COMPLETED, "receiver_reference": "re_2"}
    agent.report(operation_id, 1, second, nonce=nonce())
    return operation_id


def _withdrawn(agent: Agent, workspace: Arranged) -> str:
    operation_id = record(agent, workspace)
    check_answer(agent.withdraw(operation_id), "withdraw")
    return operation_id


def _superseded(agent: Agent, workspace: Arranged) -> str:
    operation_id = record(agent, workspace)
    record(agent, workspace, supersedes=operation_id)
    return operation_id


def _unpermitted(agent: Agent, workspace: Arranged) -> str:
    workspace.capability("order.cancel")
    token = workspace.second_token()
    with in_workspace(workspace.id):
        workspace_mandates = workspace.mandate(subject="agent:nobody", capability="x")
        type(workspace_mandates).objects.filter(workspace_id=workspace.id).update(capability="x.*")
    operation_id = record(Agent(agent._send, token), workspace, capability="order.cancel")
    answer = agent.ask(operation_id, 1, nonce=nonce())
    check_answer(answer, "ask_permit")
    return operation_id


def _everything_given(agent: Agent, workspace: Arranged) -> str:
    return record(
        agent,
        workspace,
        actor={"subject": "agent:support-7", "on_behalf_of": "user:alice"},
        business_reference="order-8841",
        idempotency_key=f"key-{workspace.operation_id()}",
        amount={"value": "120.00", "currency": "EUR"},
        checkpoint={"step": 3},
        purpose="The parcel never arrived.",
        compensates=record(agent, workspace),
    )


def _opaque(agent: Agent, workspace: Arranged) -> str:
    workspace.capability("certificate.send", contract=OPAQUE)
    return record(agent, workspace, capability="certificate.send")


def _second_attempt(agent: Agent, workspace: Arranged) -> str:
    operation_id = _reported(NOT_SENT)(agent, workspace)
    check(ask(agent, operation_id, 2).body, "Operation")
    return operation_id


CLEARS = {"outcome": "denied", "evidence": {"http_status": 429}, "retry_after_s": 60}
# (how it comes about, then: state, action, reason)
SCENES: Mapping[str, tuple[Callable[[Agent, Arranged], str], State, Action, Reason]] = {
    "intended": (record, State.INTENDED, Action.DISPATCH, Reason.INTENT_RECORDED),
    "everything given": (_everything_given, State.INTENDED, Action.DISPATCH, Reason.INTENT_RECORDED),
    "nobody can be asked": (_opaque, State.INTENDED, Action.DISPATCH, Reason.INTENT_RECORDED),
    "dispatched": (
        lambda agent, workspace: dispatch(agent, workspace).operation_id,
        State.DISPATCHED, Action.WAIT, Reason.ATTEMPT_IN_FLIGHT,
    ),
    "lost": (
        lambda agent, workspace: lost(agent, workspace).operation_id,
        State.UNKNOWN, Action.RECONCILE, Reason.OUTCOME_UNKNOWN,
    ),
    "completed": (_reported(COMPLETED), State.COMPLETED, Action.RESUME, Reason.EFFECT_EXISTS),
    "denied, it stands": (_reported(DECLINED), State.DENIED, Action.STOP, Reason.DENIED),
    "denied, it clears": (_reported(CLEARS), State.DENIED, Action.WAIT, Reason.DENIAL_CLEARS_AT),
    "denied, it cleared": (_reported(NOT_SENT), State.DENIED, Action.RETRY, Reason.DENIAL_CLEARED),
    "attempt 2": (_second_attempt, State.DISPATCHED, Action.WAIT, Reason.ATTEMPT_IN_FLIGHT),
    "unknown": (_reported(UNKNOWN), State.UNKNOWN, Action.RECONCILE, Reason.OUTCOME_UNKNOWN),
    "withdrawn": (_withdrawn, State.WITHDRAWN, Action.STOP, Reason.WITHDRAWN),
    "superseded": (_superseded, State.WITHDRAWN, Action.STOP, Reason.WITHDRAWN),
    "held by its twin": (_twin, State.INTENDED, Action.WAIT, Reason.POSSIBLE_DUPLICATE),
    "paused": (_paused, State.INTENDED, Action.WAIT, Reason.PAUSED),
    "awaiting approval": (_awaiting, State.INTENDED, Action.WAIT, Reason.AWAITING_APPROVAL),
    "not permitted": (_unpermitted, State.DENIED, Action.STOP, Reason.NOT_PERMITTED),
    "discrepancy": (_standing(Standing.DISCREPANCY), State.UNKNOWN, Action.WAIT, Reason.DISCREPANCY),
    "abandoned": (_standing(Standing.ABANDONED), State.UNKNOWN, Action.STOP, Reason.ABANDONED),
    "flagged": (_flagged, State.COMPLETED, Action.WAIT, Reason.DISCREPANCY),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_an_operation_has_its_shape_in_every_state_and_from_every_call(
    agent: Agent, workspace: Arranged, scene: str
) -> None:
    make, state, action, reason = SCENES[scene]
    operation_id = make(agent, workspace)

    body = check_answer(agent.get(operation_id), "read_operation")

    assert (body["state"], body["decision"]["action"], body["decision"]["reason"]) == (state, action, reason)
    task = check_answer(agent.call("GET", f"/api/v1/tasks/{body['task_id']}"), "read_task")
    for one in (body, *task["operations"]):
        one["decision"]["retry_at"] = None  # "in five seconds" is another moment at every reading
    assert body in task["operations"]
    check_answer(agent.call("POST", f"/api/v1/operations/{operation_id}/reconcile", {}), "reconcile")
    again = agent.put_intent(operation_id, workspace.intent(arguments={"other": True}), nonce=nonce())
    assert check_answer(again, "record_intent")["drifted"]
    check_answer(agent.report(operation_id, 9, UNKNOWN, nonce=nonce()), "report_outcome")
    check_answer(agent.report(operation_id, 1, {"outcom": 1}, nonce=nonce()), "report_outcome")
    check_answer(agent.ask(operation_id, 1, nonce=nonce()), "ask_permit")
    check_answer(agent.ask(operation_id, 7, nonce=nonce()), "ask_permit")
    check_answer(agent.withdraw(operation_id), "withdraw")


def test_the_scenes_show_every_state_and_every_reason_but_those_said_here() -> None:
    assert {scene[1] for scene in SCENES.values()} == set(State)
    assert {scene[3] for scene in SCENES.values()} == set(Reason) - {
        Reason.NO_LEDGER_ENTRY,  # there is no body
        Reason.RECEIVER_REPLAYS,  # test_a_permit_has_its_shape
        Reason.NO_RULE,  # no situation leads to it
    }


def test_the_scenes_show_every_permission(workspace: Arranged, agent: Agent) -> None:
    shown = set()
    for make, *_ in SCENES.values():
        there = arrange()
        theirs = Agent(agent._send, there.token)
        shown.add(theirs.get(make(theirs, there)).json()["permission"])
    assert shown == set(Permission) - {Permission.GRANTED}  # it stands as not_required where nobody was asked


def test_a_permit_has_its_shape_when_given_and_when_given_again(agent: Agent, workspace: Arranged) -> None:
    operation_id, once = workspace.operation_id(), nonce()
    intent = workspace.intent(arguments=own_arguments(), dispatch=True)

    for answer in (
        agent.put_intent(operation_id, intent, nonce=once),
        agent.put_intent(operation_id, intent, nonce=once),
    ):
        assert check_answer(answer, "record_intent")["permit"] is not None
    assert check_answer(agent.ask(operation_id, 1, nonce=once), "ask_permit")["permit"] is not None


@pytest.mark.parametrize(
    ("first", "second", "status", "stored_as"),
    [
        (COMPLETED, COMPLETED, 200, "completed"),
        (DECLINED, DECLINED, 200, "denied"),
        (NOT_SENT, NOT_SENT, 200, "not_sent"),
        (UNKNOWN, UNKNOWN, 200, "unknown"),
        # the opposite
        (COMPLETED, DECLINED, 409, "denied"),
    ],
)
def test_a_reported_operation_has_its_shape(
    agent: Agent, workspace: Arranged, first: Any, second: Any, status: int, stored_as: str
) -> None:
    held = dispatch(agent, workspace)
    agent.report(held.operation_id, 1, first, nonce=held.nonce)

    answer = agent.report(held.operation_id, 1, second, nonce=held.nonce)

    assert answer.status_code == status
    assert check_answer(answer, "report_outcome")["stored_as"] == stored_as


def test_a_claim_has_its_shape_too(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    body = check_answer(agent.report(held.operation_id, 1, NOT_SENT, nonce=nonce()), "report_outcome")
    assert body["stored_as"] == "claim"


def test_a_batch_has_its_shape_whatever_its_items_get(agent: Agent, workspace: Arranged) -> None:
    items = [
        {"operation_id": workspace.operation_id(), **workspace.intent(arguments=own_arguments())},
        {
            "operation_id": workspace.operation_id(),
            "permit_nonce": nonce(),
            **workspace.intent(arguments=own_arguments(), dispatch=True),
        },
        {"operation_id": workspace.operation_id(), **workspace.intent(capability="none")},
        {"operation_id": "/", **workspace.intent()},
        {},
    ]
    body = check_answer(agent.call("POST", "/api/v1/operations:batch", {"operations": items}), "record_batch")
    assert [item["status"] for item in body["operations"]] == [201, 201, 422, 400, 400]
    for item in body["operations"]:
        check(item["body"], "Operation" if item["status"] < 300 else "Problem")


def test_the_public_keys_have_their_shape(record: None) -> None:
    answer = Client().get("/.well-known/counterfoil-keys.json")

    assert answer.headers["Content-Type"] == JSON
    assert answer.headers["Cache-Control"] == "public, max-age=300"
    assert answer.json()["keys"]
    check(answer.json(), "Keys")


def _operation_path(workspace: Arranged) -> str:
    return f"/api/v1/operations/{workspace.operation_id()}"


# (call, method, path after the operation's, body, headers, status, code)
REFUSED: tuple[tuple[str, str, str, Any, dict[str, Any], int, str], ...] = (
    ("record_intent", "PUT", "", {}, {}, 400, "malformed"),
    ("record_intent", "PUT", "", {}, {"content_type": "text/plain"}, 415, "unsupported-media-type"),
    ("record_intent", "PUT", "", {"x": "x" * 300_000}, {}, 413, "too-large"),
    ("record_intent", "PUT", "", {}, {"authorization": None}, 401, "unauthenticated"),
    ("read_operation", "GET", "?wait=x", None, {}, 400, "malformed"),
    ("read_operation", "GET", "", None, {}, 404, "no-ledger-entry"),
    ("ask_permit", "PUT", "/attempts/1", None, {}, 400, "malformed"),
    ("ask_permit", "PUT", "/attempts/1", None, {"permit_nonce": "n" * 16}, 404, "no-ledger-entry"),
    (
        "ask_permit", "PUT", "/attempts/1", {"x": "x" * 300_000}, {"permit_nonce": "n" * 16}, 413, "too-large",
    ),
    ("report_outcome", "PUT", "/attempts/0/outcome", UNKNOWN, {}, 400, "malformed"),
    ("report_outcome", "PUT", "/attempts/1/outcome", UNKNOWN, {}, 404, "no-ledger-entry"),
    ("withdraw", "PUT", "/withdrawal", None, {}, 404, "no-ledger-entry"),
    ("withdraw", "PUT", "/withdrawal", {"why": "x"}, {}, 400, "malformed"),
    ("reconcile", "POST", "/reconcile", {"x": 1}, {}, 400, "malformed"),
    ("reconcile", "POST", "/reconcile", {}, {"content_type": "text/plain"}, 415, "unsupported-media-type"),
    ("reconcile", "POST", "/reconcile", None, {}, 404, "no-ledger-entry"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "method", "path", "body", "headers", "status", "code"), REFUSED)
def test_a_refusal_has_its_shape(
    agent: Agent,
    workspace: Arranged,
    name: str,
    method: str,
    path: str,
    body: Any,
    headers: dict[str, Any],
    status: int,
    code: str,
) -> None:
    answer = agent.call(method, _operation_path(workspace) + path, body, **headers)
    assert answer.status_code == status, answer.content
    assert check_answer(answer, name)["code"] == code


def test_a_forbidden_call_has_its_shape(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    stranger = Agent(agent._send, workspace.second_token(scopes=["escalate"]))
    assert check_answer(stranger.get(operation_id), "read_operation")["code"] == "forbidden"


@pytest.mark.parametrize(
    ("effects", "answer", "reason"),
    [
        ([{}], None, "effect_found"),
        ([{}, {}], None, "duplicate_effect"),
        ([{"amount": "12000.00"}], None, "diverged_effect"),
        ([{"status": "pending"}], None, "in_progress"),
        ([{"status": "lost in the post"}], None, "unlisted_status"),
        ([{"status": "failed", "why": "card_declined"}], None, "refused"),
        ([], None, "absence_unproven"),
        ([], (503, b"later"), "unclear"),
        ([], (200, b"<html>"), "unclear"),
    ],
)
def test_what_a_receiver_says_has_its_shape(
    workspace: Arranged, effects: list[dict[str, Any]], answer: Any, reason: str
) -> None:
    with Receiver.listening() as receiver:
        scene = Scene(workspace, receiver)
        scene.capability()
        operation_id = scene.unknown()
        for effect in effects:
            receiver.make(operation_id, **effect)
        receiver.answer = lambda _: answer

        said = scene.agent.call("POST", f"/api/v1/operations/{operation_id}/reconcile", {})

        body = check_answer(said, "reconcile")
    assert body["verdict"]["reason"] == reason
    assert len(body["finding"]["items"]) == len(effects)


# Requests that nobody thought of.

AT_LEAST = 400  # fewer generated requests than this, and the document has lost its calls
GENERATES_WITHIN_S = 240  # some ten seconds on two free cores; a hung call hangs no longer than this


@pytest.mark.processes
def test_generated_requests_get_the_answers_that_the_document_gives(
    agent: Agent, workspace: Arranged, live: str, tmp_path: Path
) -> None:
    """Positive and negative ones from the document itself: no error of ours, only documented statuses and media types,
    every body fits, what is wrong is refused and what is right is not. The seed is in schemathesis.toml."""
    never_again = ("paused", "not permitted")  # they change the workspace for all that come after them
    on_record = [make(agent, workspace) for what, (make, *_) in SCENES.items() if what not in never_again]
    here = Path(__file__).parent
    command = [
        str(Path(sys.executable).with_name("st")), "--config-file", str(here / "schemathesis.toml"),
        "run", f"{live}/api/v1/schema?format=json", "--url", live, "--no-color",
        "--header", f"Authorization: Bearer {workspace.token}",
    ]  # fmt: skip

    ended = subprocess.run(
        command,
        cwd=tmp_path,  # it keeps notes
        env={**os.environ, "PYTHONPATH": str(here.parents[2]), "OPERATIONS_ON_RECORD": " ".join(on_record)},
        capture_output=True,
        text=True,
        timeout=GENERATES_WITHIN_S,
        check=False,
    )

    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0, "see above: `Reproduce with` has the call, `Seed` the seed"
    generated = re.search(r"(\d+) generated, (\d+) passed", ended.stdout)
    assert generated is not None
    assert int(generated[1]) == int(generated[2]) >= AT_LEAST


# What every answer carries.

CARRYING = (
    ("GET", "/api/v1/operations/op-nobody-knows", 401),
    ("GET", "/api/v1/operations/op/", 404),
    ("GET", "/api/", 404),
    ("POST", "/api/v7/x", 404),
    ("PUT", "/.well-known/x", 404),
    ("GET", "/.well-known/", 404),
    ("POST", "/.well-known/counterfoil-keys.json", 405),
    ("DELETE", "/api/v1/operations/op", 405),
    ("OPTIONS", "/api/v1/operations/op", 405),
    ("OPTIONS", "/api/v1/operations:batch", 405),
    ("OPTIONS", "/api/v1/schema", 405),
    ("POST", "/api/v1/docs", 405),
    ("POST", "/api/v1/problems", 405),
    ("GET", "/api/v1/schema", 200),
    ("GET", "/api/v1/docs", 200),
    ("GET", "/api/v1/docs?script=", 200),
    ("GET", "/api/v1/problems", 200),
    ("HEAD", "/api/v1/problems", 200),
    ("HEAD", "/api/v1/docs", 200),
    ("HEAD", "/api/v1/operations/op", 401),
)


@pytest.mark.parametrize(("method", "path", "status"), CARRYING)
def test_every_answer_carries_what_keeps_it_from_harm(
    agent: Agent, method: str, path: str, status: int
) -> None:
    answer = agent.call(method, path, authorization=None if status == 401 else f"Bearer {agent.token}")

    assert answer.status_code == status
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert ("data:" in answer.headers["Content-Security-Policy"]) == path.startswith("/api/v1/docs")
    assert not answer.cookies
    if status >= 400 and method != "HEAD":
        assert answer.headers["Content-Type"] == PROBLEM
        check(answer.json(), "Problem")
    if status == 405:
        assert answer.json()["allow"] == answer.headers["Allow"].split(", ")
    if method == "HEAD":
        assert answer.content == b""


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/api/v1/operations/op/", True),
        ("/api/v1/operations/op/attempts/1/", True),
        ("/api/v1/operations/op/attempts/1/outcome//", True),
        ("/api/v1/operations:batch/", True),
        ("/api/v1/schema/", True),
        ("/.well-known/counterfoil-keys.json/", True),
        # It is not the slash that is wrong with these.
        ("/api/v1/operations/", False),
        ("/api/v1/tasks/", False),
        ("/api/", False),
        ("/.well-known/", False),
        ("/api/v1/operation/op", False),
    ],
)
def test_a_slash_too_many_is_named(path: str, hint: bool) -> None:
    body = Client().get(path).json()
    assert body["code"] == "not-found"
    assert ("slash" in body["detail"]) is hint


@pytest.mark.parametrize("host", ["evil.example.org", "[::", "", "localhost:x"])
@pytest.mark.parametrize(
    "path", ["/api/v1/schema", "/api/v1/docs", "/api/v1/docs?script=", "/api/v1/problems"]
)
def test_a_strange_host_is_no_error_of_ours(path: str, host: str) -> None:
    answer = Client().get(path, headers={"host": host})
    assert answer.status_code == 200
    assert not host or host.encode() not in answer.content


# The page of problems.


@cache
def page() -> str:
    answer = Client().get("/api/v1/problems")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    return answer.content.decode()


@pytest.mark.parametrize("refusal", errors.ALL, ids=lambda refusal: refusal.__name__)
def test_every_problem_is_explained_where_its_type_points(refusal: type[errors.Refusal]) -> None:
    _, _, anchor = next(one for one in explained() if one.refusal is refusal).example["type"].partition("#")

    sections = re.findall(rf'<section class="card" id="{anchor}".*?</section>', page(), re.DOTALL)

    assert len(sections) == 1
    text = " ".join(unescape(re.sub("<[^>]+>", "", sections[0])).split())
    calls_of_it = codes_of(document()).get(refusal.code, ())
    for said in (
        refusal.title,
        refusal.way_out,
        str(refusal.status),
        f'"code": "{refusal.code}"',
        *calls_of_it,
    ):
        assert said.replace("`", "") in text


@pytest.mark.parametrize("one", explained(), ids=lambda one: one.refusal.__name__)
def test_the_example_of_a_problem_is_one(one: Any) -> None:
    check(one.example, "Problem")
    assert (one.example["code"], one.example["status"]) == (one.refusal.code, one.refusal.status)
    assert one.when.endswith(".")


def test_the_page_of_problems_needs_nothing_but_its_styles() -> None:
    assert not re.search(r"<script|<style|\sstyle=|\son[a-z]+=|https?://", page())


def test_the_document_links_to_the_page_of_problems() -> None:
    assert "(/api/v1/problems)" in document()["info"]["description"]

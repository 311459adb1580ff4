"""GET: one operation, waiting for it to change, and all operations of a task."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger import tenancy
from ledger.api.waits import PER_PROCESS, PER_TOKEN
from ledger.models import Pause
from tests.arrange import (
    COMPLETED,
    DECLINED,
    NOT_SENT,
    UNKNOWN,
    Agent,
    Arranged,
    arrange,
    in_process,
    nonce,
    over_http,
)
from tests.ledger.api.steps import dispatch, lost, ok, own_arguments, problem, record

# Every field of the one output, in the words of the design.
FIELDS = frozenset(
    [
        "operation_id",
        "invocation_id",
        "task_id",
        "capability",
        "capability_version",
        "version",
        "actor",
        "arguments_digest",
        "business_reference",
        "idempotency_key",
        "state",
        "dispatched",
        "effect",
        "evidence",
        "reservation",
        "permission",
        "permission_reason",
        "denial",
        "outcome",
        "case",
        "possible_duplicates",
        "superseded_by",
        "decision",
        "retryable",
        "reuse_key",
        "reconciliation_required",
        "effect_may_have_happened",
        "replayed",
        "attempts",
        "permit",
        "links",
    ]
)


def test_nothing_on_record_is_not_evidence_that_nothing_happened(agent: Agent, workspace: Arranged) -> None:
    body = problem(agent.get("op-nobody-knows"), 404, "no-ledger-entry")

    assert body["effect_may_have_happened"] is True
    assert (body["retryable"], body["repeat_request"]) == (False, False)


# C14
def test_another_workspaces_operation_reads_as_if_it_did_not_exist(
    agent: Agent, workspace: Arranged, other_workspace: Arranged
) -> None:
    operation_id = record(agent, workspace, task_id="task-of-ours")
    stranger = in_process(other_workspace.token)

    problem(stranger.get(operation_id), 404, "no-ledger-entry")
    problem(stranger.get(operation_id, "?wait=5"), 404, "no-ledger-entry")
    problem(stranger.withdraw(operation_id), 404, "no-ledger-entry")
    problem(stranger.call("GET", "/api/v1/tasks/task-of-ours"), 404, "no-ledger-entry")


@pytest.mark.parametrize(
    "narrow", [{"scopes": ["intent"]}, {"capabilities": ["order.*"]}, {"subjects": ["agent:billing-*"]}]
)
def test_a_token_reads_what_it_covers(
    agent: Agent, workspace: Arranged, narrow: dict[str, list[str]]
) -> None:
    operation_id = record(agent, workspace)

    problem(in_process(workspace.second_token(**narrow)).get(operation_id), 403, "forbidden")


def test_every_call_answers_with_the_one_body(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    answers = [
        held.body,
        ok(agent.get(held.operation_id)),
        ok(agent.ask(held.operation_id, 1, nonce=held.nonce)),
        ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce)),
        ok(agent.withdraw(held.operation_id)),
    ]
    for body in answers:
        assert body.keys() >= FIELDS


def test_head_answers_like_get_without_a_body(live: str, workspace: Arranged) -> None:
    agent = over_http(live, workspace.token)
    operation_id = record(agent, workspace, task_id="task-1")

    for path in (f"/api/v1/operations/{operation_id}", "/api/v1/tasks/task-1"):
        answer = agent.call("HEAD", path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 100
    assert agent.call("HEAD", "/api/v1/operations/op-none").status_code == 404


# state, dispatched, effect, evidence, reservation, retryable, reconciliation_required, may have happened
QUESTIONS = [
    ("intended", ("intended", "no", "no", "missing", "released", True, False, False)),
    ("dispatched", ("dispatched", "unknown", "unknown", "missing", "held", False, False, True)),
    ("past its lease", ("unknown", "unknown", "unknown", "missing", "held", False, True, True)),
    ("unknown", ("unknown", "yes", "unknown", "missing", "held", False, True, True)),
    ("completed", ("completed", "yes", "yes", "preserved", "released", False, False, True)),
    ("denied", ("denied", "yes", "no", "preserved", "released", False, False, False)),
    ("not sent", ("denied", "no", "no", "preserved", "released", True, False, False)),
    ("withdrawn", ("withdrawn", "no", "no", "missing", "released", False, False, False)),
]


@pytest.mark.parametrize(("step", "answers"), QUESTIONS)
def test_the_questions_are_answered_separately(
    agent: Agent, workspace: Arranged, step: str, answers: tuple[object, ...]
) -> None:
    body = ok(agent.get(_arrive(agent, workspace, step)))

    assert answers == (
        body["state"],
        body["dispatched"],
        body["effect"],
        body["evidence"],
        body["reservation"],
        body["retryable"],
        body["reconciliation_required"],
        body["effect_may_have_happened"],
    )
    assert body["reuse_key"] is True


def _arrive(agent: Agent, workspace: Arranged, step: str) -> str:
    if step in ("intended", "withdrawn"):
        operation_id = record(agent, workspace)
        if step == "withdrawn":
            ok(agent.withdraw(operation_id))
        return operation_id
    held = dispatch(agent, workspace)
    report = {"unknown": UNKNOWN, "completed": COMPLETED, "denied": DECLINED, "not sent": NOT_SENT}.get(step)
    if report is not None:
        ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))
    if step == "past its lease":
        workspace.end_lease(held.operation_id)
    return held.operation_id


def test_no_secret_of_a_permit_is_read_back(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    text = json.dumps(ok(agent.get(held.operation_id)))

    assert held.nonce not in text
    assert held.token not in text


# Waiting


@pytest.mark.parametrize(
    "query",
    [
        "wait=-1",
        "wait=20.1",
        "wait=x",
        "wait=nan",
        "wait=inf",
        "wait=",
        "since=-1",
        "since=x",
        "since=1.0",
        "since=",
    ],
)
def test_a_wait_is_bounded(agent: Agent, workspace: Arranged, query: str) -> None:
    problem(agent.get(record(agent, workspace), f"?{query}"), 400, "malformed")


@pytest.mark.parametrize(
    "query", ["&".join(f"f{n}=1" for n in range(3000)), "%", "%00=%00", "wait=%FF", "a=%ED%A0%80"]
)
def test_no_query_is_an_error_of_ours(agent: Agent, workspace: Arranged, query: str) -> None:
    operation_id = record(agent, workspace)

    for answer in (agent.get(operation_id, f"?{query}"), agent.call("GET", f"/api/v1/tasks/task-1?{query}")):
        assert answer.status_code in (200, 400)


@pytest.mark.parametrize("step", ["intended", "completed", "denied", "not sent", "withdrawn"])
def test_where_nothing_changes_by_waiting_the_answer_comes_at_once(
    agent: Agent, workspace: Arranged, step: str
) -> None:
    operation_id = _arrive(agent, workspace, step)

    began = time.monotonic()
    body = ok(agent.get(operation_id, "?wait=20"))

    assert time.monotonic() - began < 5
    assert body["decision"]["action"] in ("dispatch", "resume", "stop", "retry")


def test_a_version_that_is_no_longer_the_newest_is_answered_at_once(
    agent: Agent, workspace: Arranged
) -> None:
    held = dispatch(agent, workspace)

    began = time.monotonic()
    body = ok(agent.get(held.operation_id, f"?wait=20&since={held.body['version'] - 1}"))

    assert time.monotonic() - began < 5
    assert body["version"] == held.body["version"]


def test_a_wait_ends_when_somebody_changes_the_operation(live: str, workspace: Arranged) -> None:
    agent, other = over_http(live, workspace.token), over_http(live, workspace.token)
    held = dispatch(agent, workspace)

    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(agent.get, held.operation_id, f"?wait=20&since={held.body['version']}")
        time.sleep(0.5)
        ok(other.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))
        body = ok(waiting.result(timeout=20))

    assert time.monotonic() - began < 10
    assert (body["state"], body["decision"]["action"]) == ("completed", "resume")
    assert body["version"] > held.body["version"]


def test_a_wait_ends_when_the_lease_does(live: str, workspace: Arranged) -> None:
    workspace.capability(lease_s=2)
    agent = over_http(live, workspace.token)
    held = dispatch(agent, workspace)

    began = time.monotonic()
    body = ok(agent.get(held.operation_id, "?wait=20"))

    assert 1 < time.monotonic() - began < 8
    assert (body["state"], body["decision"]["action"]) == ("unknown", "reconcile")
    assert body["version"] == held.body["version"], "nobody wrote anything"


def test_a_wait_ends_when_a_denial_clears(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    limited = {"outcome": "denied", "evidence": {"http_status": 429}}
    ok(agent.report(held.operation_id, 1, limited, nonce=held.nonce))
    workspace.change(held.operation_id, denial_clears_at=datetime.now(UTC) + timedelta(seconds=1))

    body = ok(agent.get(held.operation_id, "?wait=20"))

    assert (body["decision"]["action"], body["denial"]["class"]) == ("retry", "cleared")


def test_a_wait_ends_when_the_intent_grows_too_old(agent: Agent, workspace: Arranged) -> None:
    operation_id = record(agent, workspace)
    with tenancy.workspace(workspace.id):
        Pause.objects.create(workspace_id=workspace.id, reason="incident", paused_by="olive")
    workspace.change(operation_id, intent_valid_until=datetime.now(UTC) + timedelta(seconds=1))

    assert ok(agent.get(operation_id, "?wait=20"))["state"] == "withdrawn"


def test_a_wait_that_nothing_ends_ends_by_itself(agent: Agent, workspace: Arranged) -> None:
    held = lost(agent, workspace)

    began = time.monotonic()
    body = ok(agent.get(held.operation_id, "?wait=1"))

    assert 0.9 < time.monotonic() - began < 6
    assert body["state"] == "unknown"


def test_beyond_the_caps_the_answer_comes_at_once_and_says_when_to_come_again(
    live: str, record: None
) -> None:
    arranged = [arrange() for _ in range(PER_PROCESS // PER_TOKEN + 1)]
    waiting: list[tuple[Agent, str]] = []
    for workspace in arranged:
        for _ in range(PER_TOKEN + 1):
            agent = over_http(live, workspace.token)
            waiting.append((agent, lost(agent, workspace).operation_id))
    together = threading.Barrier(len(waiting))

    def wait(agent: Agent, operation_id: str) -> tuple[float, Any]:
        together.wait()
        began = time.monotonic()
        answer = agent.get(operation_id, "?wait=4")
        return time.monotonic() - began, answer

    with ThreadPoolExecutor(len(waiting)) as pool:
        took = list(pool.map(lambda pair: wait(*pair), waiting))

    assert all(answer.status_code == 200 for _, answer in took)
    waited = [seconds for seconds, answer in took if "Retry-After" not in answer.headers]
    turned_away = [answer for _, answer in took if "Retry-After" in answer.headers]
    assert len(waited) <= PER_PROCESS
    assert turned_away
    assert {answer.headers["Retry-After"] for answer in turned_away} == {"1"}


# A task


def test_a_task_nobody_knows(agent: Agent) -> None:
    body = problem(agent.call("GET", "/api/v1/tasks/task-none"), 404, "no-ledger-entry")

    assert body["effect_may_have_happened"] is True


@pytest.mark.parametrize("name", [".", "..", "%20", "x" * 201, "%00", "a%0A", "%C3%A9"])
def test_a_task_id_that_cannot_be_one_is_malformed(agent: Agent, name: str) -> None:
    problem(agent.call("GET", f"/api/v1/tasks/{name}"), 400, "malformed")


@pytest.mark.parametrize("after", ["x", "", "%00", "01a22ccf-040a-7064-ad3d", "1"])
def test_a_place_that_is_none_is_malformed(agent: Agent, workspace: Arranged, after: str) -> None:
    record(agent, workspace)

    problem(agent.call("GET", f"/api/v1/tasks/task-1?after={after}"), 400, "malformed")


def test_a_task_lists_its_operations_in_the_order_they_were_recorded(
    agent: Agent, workspace: Arranged
) -> None:
    ids = [_arrive(agent, workspace, step) for step, _ in QUESTIONS]
    record(agent, workspace, task_id="task-2")

    page = ok(agent.call("GET", "/api/v1/tasks/task-1"))

    assert page.keys() == {"task_id", "operations", "next"}
    assert (page["task_id"], page["next"]) == ("task-1", None)
    assert [body["operation_id"] for body in page["operations"]] == ids
    assert [body["state"] for body in page["operations"]] == [answers[0] for _, answers in QUESTIONS]
    for body in page["operations"]:
        single = ok(agent.get(body["operation_id"]))
        single["decision"].pop("retry_at"), body["decision"].pop("retry_at")  # counted from now
        assert body == single


def test_a_long_task_is_paged(agent: Agent, workspace: Arranged) -> None:
    items = [
        {"operation_id": f"op-{n:03}", **workspace.intent(arguments=own_arguments())} for n in range(230)
    ]
    for start in range(0, len(items), 100):
        ok(agent.call("POST", "/api/v1/operations:batch", {"operations": items[start : start + 100]}))

    sizes, found, path = [], [], "/api/v1/tasks/task-1"
    while path is not None:
        page = ok(agent.call("GET", path))
        sizes.append(len(page["operations"]))
        found += [body["operation_id"] for body in page["operations"]]
        path = page["next"]

    assert sizes == [100, 100, 30]
    assert found == [item["operation_id"] for item in items]


def test_a_task_shows_what_the_token_covers(agent: Agent, workspace: Arranged) -> None:
    workspace.capability("order.cancel")
    record(agent, workspace)
    seen = record(agent, workspace, capability="order.cancel")
    other = in_process(workspace.second_token(capabilities=["order.*"]))

    page = ok(other.call("GET", "/api/v1/tasks/task-1"))

    assert [body["operation_id"] for body in page["operations"]] == [seen]


def test_reading_needs_the_scope_to_read(workspace: Arranged) -> None:
    agent = in_process(workspace.second_token(scopes=["intent", "permit", "outcome"]))
    operation_id = record(agent, workspace)

    problem(agent.get(operation_id), 403, "forbidden")
    problem(agent.call("GET", "/api/v1/tasks/task-1"), 403, "forbidden")
    ok(agent.ask(operation_id, 1, nonce=nonce()), 201)

"""POST /operations:batch: up to a hundred intents, each answered as it would have been alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.arrange import Agent, Arranged, in_process, nonce, over_http
from tests.ledger.api.steps import MACHINE_FIELDS, lost, ok, own_arguments, problem, record


def batch(agent: Agent, *items: Any) -> Any:
    return agent.call("POST", "/api/v1/operations:batch", {"operations": list(items)})


def item(workspace: Arranged, name: str | None = None, **fields: Any) -> dict[str, Any]:
    fields.setdefault("arguments", own_arguments())
    return {"operation_id": name or workspace.operation_id(), **workspace.intent(**fields)}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (None, ""),
        ([], ""),
        ({}, ""),
        ({"operations": {}}, ""),
        ({"operations": "x"}, ""),
        ({"operations": [], "atomic": True}, ""),
        ({"operations": []}, "/operations"),
        ({"operations": ["x"]}, "/operations/0"),
        ({"operations": [{}, None]}, "/operations/1"),
        ({"operations": [{}] * 101}, "/operations"),
    ],
)
def test_a_body_that_is_no_batch_is_refused(agent: Agent, body: Any, path: str) -> None:
    refused = problem(agent.call("POST", "/api/v1/operations:batch", body), 400, "malformed")

    assert refused["path"] == path


def test_a_batch_is_json_within_the_limit(agent: Agent, workspace: Arranged) -> None:
    big = item(workspace, arguments={"text": "x" * 256 * 1024})

    problem(batch(agent, big), 413, "too-large")
    answer = agent.call(
        "POST", "/api/v1/operations:batch", {"operations": [item(workspace)]}, content_type="text/plain"
    )
    problem(answer, 415, "unsupported-media-type")


def test_answers_come_in_the_order_asked(agent: Agent, workspace: Arranged) -> None:
    names = ["op-c", "op-a", "op-d", "op-b"]

    answers = ok(batch(agent, *(item(workspace, name) for name in names)))["operations"]

    assert [answer["body"]["operation_id"] for answer in answers] == names
    assert [answer["status"] for answer in answers] == [201] * 4


def test_each_item_gets_the_answer_it_would_have_got_alone(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    known = record(agent, workspace, arguments=arguments)
    unsettled = lost(agent, workspace).operation_id
    items = [
        (item(workspace), 201, None),
        (item(workspace, known, arguments=arguments), 200, None),  # a repeat
        (item(workspace, known), 422, "intent-mismatch"),
        (item(workspace, unsettled), 422, "intent-mismatch"),
        (item(workspace, capability="refund.crate"), 422, "capability-unknown"),
        (item(workspace, supersedes=unsettled), 409, "not-supersedable"),
        (item(workspace, expect="recorded"), 404, "no-ledger-entry"),
        (item(workspace, dispatch=True), 400, "malformed"),  # no nonce
        (item(workspace, dispatch=True, permit_nonce="short"), 400, "malformed"),
        (item(workspace, dispatch=True, permit_nonce=7), 400, "malformed"),
        (item(workspace, dispatch=True, permit_nonce=["nonce-nonce-nonce"]), 400, "malformed"),
        (item(workspace, "a b"), 400, "malformed"),
        (item(workspace, ".."), 400, "malformed"),
        ({**item(workspace), "operation_id": 7}, 400, "malformed"),
        ({**item(workspace), "operation_id": None}, 400, "malformed"),
        (workspace.intent(), 400, "malformed"),  # no name
        ({}, 400, "malformed"),
        (item(workspace, foo=1), 400, "malformed"),
        (item(workspace, dispatch=True, permit_nonce=nonce()), 201, None),
    ]

    answers = ok(batch(agent, *(one for one, _, _ in items)))["operations"]

    for (sent, status, code), answer in zip(items, answers, strict=True):
        assert (answer["status"], answer["body"].get("code")) == (status, code), sent
        if code is not None:
            assert answer["body"].keys() >= MACHINE_FIELDS
            assert answer["body"]["status"] == status
    assert answers[-1]["body"]["permit"]["attempt"] == 1
    assert [answer["body"]["permit"] for answer in answers[:2]] == [None, None]
    mismatch = answers[3]["body"]
    assert (mismatch["decision"]["action"], mismatch["reconciliation_required"]) == ("reconcile", True)
    assert answers[9]["body"]["path"] == "/permit_nonce"


def test_a_batch_may_be_repeated(agent: Agent, workspace: Arranged) -> None:
    items = [item(workspace, dispatch=True, permit_nonce=nonce()) for _ in range(5)]
    first = ok(batch(agent, *items))["operations"]

    again = ok(batch(agent, *items))["operations"]

    assert [answer["status"] for answer in first] == [201] * 5
    assert [answer["status"] for answer in again] == [200] * 5
    for before, after in zip(first, again, strict=True):
        assert after["body"]["permit"]["token"] == before["body"]["permit"]["token"]


def test_one_name_twice_in_a_batch_is_one_operation(agent: Agent, workspace: Arranged) -> None:
    one = item(workspace, "op-1")

    answers = ok(batch(agent, one, one, {**one, "task_id": "task-2"}))["operations"]

    assert [answer["status"] for answer in answers] == [201, 200, 422]


def test_twins_in_one_batch_are_held(agent: Agent, workspace: Arranged) -> None:
    arguments = own_arguments()
    items = [
        item(workspace, name, arguments=arguments, dispatch=True, permit_nonce=nonce())
        for name in ("op-2", "op-1")
    ]

    held, first = ok(batch(agent, *items))["operations"]

    assert first["body"]["permit"] is not None
    assert (held["body"]["permit"], held["body"]["possible_duplicates"]) == (None, ["op-1"])


def test_a_header_is_no_nonce_for_all(agent: Agent, workspace: Arranged) -> None:
    body = {"operations": [item(workspace, dispatch=True)]}

    answer = agent.call("POST", "/api/v1/operations:batch", body, permit_nonce=nonce())

    assert ok(answer)["operations"][0]["status"] == 400


def test_a_batch_needs_the_scopes_of_its_items(workspace: Arranged) -> None:
    reader = in_process(workspace.second_token(scopes=["read"]))
    problem(batch(reader, item(workspace)), 403, "forbidden")

    recorder = in_process(workspace.second_token(scopes=["intent"]))
    answers = ok(batch(recorder, item(workspace), item(workspace, dispatch=True, permit_nonce=nonce())))[
        "operations"
    ]
    assert [(answer["status"], answer["body"].get("code")) for answer in answers] == [
        (201, None),
        (403, "forbidden"),
    ]


def test_batches_that_share_operations_end(live: str, workspace: Arranged) -> None:
    agents = [over_http(live, workspace.token) for _ in range(4)]
    items = [item(workspace, f"op-{n:02}", dispatch=True) for n in range(20)]
    together = threading.Barrier(len(agents))

    def send(number: int) -> list[dict[str, Any]]:
        mine = [{**one, "permit_nonce": nonce()} for one in (items if number % 2 else reversed(items))]
        together.wait()
        answers: list[dict[str, Any]] = ok(batch(agents[number], *mine))["operations"]
        return answers if number % 2 else list(reversed(answers))

    with ThreadPoolExecutor(len(agents)) as pool:
        answered = list(pool.map(send, range(len(agents))))

    for answers in zip(*answered, strict=True):
        assert sorted(answer["status"] for answer in answers) == [200, 200, 200, 201]
        assert sum(answer["body"]["permit"] is not None for answer in answers) == 1

"""Many at once, over real connections: one operation, one permit, the first one's arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from tests.arrange import COMPLETED, Arranged, nonce, over_http

CLIENTS = 64

pytestmark = pytest.mark.processes


def all_at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What ``act`` gave for 0 … count-1, all begun together."""
    barrier = Barrier(count)

    def begin(index: int) -> Any:
        barrier.wait()
        return act(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


# C03, C41, F34
def test_64_clients_with_one_intent_record_one_operation(workspace: Arranged, live: str) -> None:
    agent, operation_id = over_http(live, workspace.token), workspace.operation_id()
    answers = all_at_once(CLIENTS, lambda _: agent.put_intent(operation_id, workspace.intent()))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: CLIENTS - 1}
    assert len({answer.json()["invocation_id"] for answer in answers}) == 1
    assert len({answer.json()["idempotency_key"] for answer in answers}) == 1
    assert [entry.event for entry in workspace.entries(operation_id)] == ["record"]


# C04, F35
def test_64_clients_with_different_arguments_record_the_winners(workspace: Arranged, live: str) -> None:
    agent, operation_id = over_http(live, workspace.token), workspace.operation_id()
    answers = all_at_once(
        CLIENTS, lambda index: agent.put_intent(operation_id, workspace.intent(arguments={"n": index}))
    )
    assert Counter(answer.status_code for answer in answers) == {201: 1, 422: CLIENTS - 1}
    winner = next(answer for answer in answers if answer.status_code == 201)
    assert workspace.facts(operation_id).row["arguments_digest"] == winner.json()["arguments_digest"]
    for answer in answers:
        if answer.status_code == 422:
            assert answer.json()["code"] == "intent-mismatch"
            assert answer.json()["drifted"] == ["arguments"]


# C03, F36
@pytest.mark.parametrize("with_intent", [True, False], ids=["dispatch: true", "attempts/1"])
def test_64_clients_asking_for_the_permit_get_one(with_intent: bool, workspace: Arranged, live: str) -> None:
    agent, operation_id = over_http(live, workspace.token), workspace.operation_id()
    intent = workspace.intent(dispatch=with_intent)
    if with_intent:
        answers = all_at_once(CLIENTS, lambda _: agent.put_intent(operation_id, intent, nonce=nonce()))
        granted = [answer for answer in answers if answer.json()["permit"] is not None]
    else:
        agent.put_intent(operation_id, intent)
        answers = all_at_once(CLIENTS, lambda _: agent.ask(operation_id, 1, nonce=nonce()))
        assert Counter(answer.status_code for answer in answers) == {201: 1, 409: CLIENTS - 1}
        granted = [answer for answer in answers if answer.status_code == 201]
        refused = {answer.json()["code"] for answer in answers if answer.status_code == 409}
        assert refused == {"attempt-in-flight"}
    assert len(granted) == 1
    assert [attempt.number for attempt in workspace.facts(operation_id).attempts] == [1]


# C30: a model that mints a new ID for the same intent.
@pytest.mark.parametrize("same", ["reference", "arguments"])
def test_twins_at_once_get_one_permit(same: str, workspace: Arranged, live: str) -> None:
    agent = over_http(live, workspace.token)
    names = [workspace.operation_id() for _ in range(16)]

    def record(index: int) -> Any:
        body = workspace.intent(dispatch=True)
        if same == "reference":
            body = workspace.intent(
                dispatch=True, business_reference="order-1", arguments={"phrased": f"in way {index}"}
            )
        return agent.put_intent(names[index], body, nonce=nonce())

    answers = all_at_once(len(names), record)
    permitted = [answer.json() for answer in answers if answer.json()["permit"] is not None]
    held = [answer.json() for answer in answers if answer.json()["permit"] is None]
    assert len(permitted) == 1
    for body in held:
        assert body["decision"]["reason"] == "possible_duplicate"
        assert body["possible_duplicates"] == [permitted[0]["operation_id"]]


# C34
def test_one_outcome_reported_by_many_settles_once(workspace: Arranged, live: str) -> None:
    agent, operation_id, mine = over_http(live, workspace.token), workspace.operation_id(), nonce()
    agent.put_intent(operation_id, workspace.intent(dispatch=True), nonce=mine)
    answers = all_at_once(CLIENTS, lambda _: agent.report(operation_id, 1, COMPLETED, nonce=mine))
    assert Counter(answer.status_code for answer in answers) == {200: CLIENTS}
    assert [entry.event for entry in workspace.entries(operation_id)] == ["record", "dispatch", "complete"]
    assert len(workspace.evidence(operation_id)) == 1


# C23
def test_withdrawal_and_permit_at_once_have_one_winner(workspace: Arranged, live: str) -> None:
    agent = over_http(live, workspace.token)
    for _ in range(8):
        operation_id = workspace.operation_id()
        agent.put_intent(operation_id, workspace.intent(arguments={"order": operation_id}))
        asked, withdrawn = all_at_once(
            2,
            lambda index, name=operation_id: (
                agent.withdraw(name) if index else agent.ask(name, 1, nonce=nonce())
            ),
        )
        assert (asked.status_code, withdrawn.status_code) in ((201, 409), (409, 200))

"""How deep a value may be: 32 containers, counted from the value itself and not from the body that carries it."""

from __future__ import annotations

from typing import Any

from ledger.selectors import arguments_of
from tests.arrange import COMPLETED, Agent, Arranged
from tests.ledger.api.steps import dispatch, ok, own_arguments, problem

DEEPEST = 32


def deep(containers: int) -> dict[str, Any]:
    """An object so many containers deep, arrays and objects in turn, that no other operation has."""
    value: Any = own_arguments()
    for level in range(containers - 1):
        value = {"a": value} if level % 2 or level == containers - 2 else [value]
    assert isinstance(value, dict)
    return value


def in_batch(agent: Agent, *items: dict[str, Any]) -> Any:
    return agent.call("POST", "/api/v1/operations:batch", {"operations": list(items)})


# C85
def test_arguments_deeper_than_32_are_refused_with_their_place(agent: Agent, workspace: Arranged) -> None:
    intent = workspace.intent(arguments=deep(DEEPEST + 1))

    alone = problem(agent.put_intent("op-1", intent), 400, "malformed")
    batched = problem(in_batch(agent, {"operation_id": "op-1", **intent}), 400, "malformed")

    for refused, place in ((alone, "/arguments/a/"), (batched, "/operations/0/arguments/a/")):
        assert refused["path"].startswith(place)
        assert "deeper than 32" in refused["detail"]
    problem(agent.get("op-1"), 404, "no-ledger-entry")


def test_arguments_as_deep_as_allowed_are_recorded_alone_and_in_a_batch(
    agent: Agent, workspace: Arranged
) -> None:
    alone, batched = workspace.intent(arguments=deep(DEEPEST)), workspace.intent(arguments=deep(DEEPEST))

    assert agent.put_intent("op-1", alone).status_code == 201
    (answer,) = ok(in_batch(agent, {"operation_id": "op-2", **batched}))["operations"]

    assert answer["status"] == 201
    assert arguments_of(workspace.row("op-1")) == alone["arguments"]
    assert arguments_of(workspace.row("op-2")) == batched["arguments"]
    # The same again is compared with what is on record.
    assert ok(agent.put_intent("op-2", batched))["replayed"] is True


def test_a_checkpoint_is_as_deep_as_arguments_may_be(agent: Agent, workspace: Arranged) -> None:
    assert agent.put_intent("op-1", workspace.intent(checkpoint=deep(DEEPEST))).status_code == 201
    refused = problem(agent.put_intent("op-2", workspace.intent(checkpoint=deep(33))), 400, "malformed")
    assert refused["path"].startswith("/checkpoint/a/")


def test_a_receivers_answer_as_deep_as_arguments_may_be_is_evidence(
    agent: Agent, workspace: Arranged
) -> None:
    held = dispatch(agent, workspace)
    report = {"outcome": "completed", "evidence": {"http_status": 200, "body": deep(DEEPEST)}}

    assert ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))["stored_as"] == "completed"


def test_a_deeper_answer_is_kept_and_settles_nothing(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    report = {"outcome": "completed", "evidence": {"http_status": 200, "body": deep(DEEPEST + 1)}}

    refused = problem(agent.report(held.operation_id, 1, report, nonce=held.nonce), 422, "malformed")
    assert refused["path"].startswith("/evidence/body/a/")
    assert (refused["recorded"], refused["stored_as"]) == (True, "unknown")
    assert ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))["stored_as"] == "completed"

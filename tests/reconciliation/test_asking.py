from __future__ import annotations

from tests.reconciliation.scene import Scene


def test_an_effect_that_the_receiver_shows_completes_the_operation(scene: Scene) -> None:
    operation_id = scene.unknown()
    reference = scene.receiver.make(operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["reason"] == "effect_found"
    body = scene.agent.get(operation_id).json()
    assert body["state"] == "completed"
    assert body["outcome"]["receiver_reference"] == reference
    assert body["outcome"]["source"] == "lookup"
    assert body["decision"]["action"] == "resume"
    case = scene.case(operation_id)
    assert case.closed_by == "reconciler"
    assert [lookup.verdict for lookup in scene.lookups(operation_id)] == ["settle"]

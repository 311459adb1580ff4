"""POST …/reconcile, as a runtime calls it while it waits."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from typing import Any

import pytest

from config.environment import read
from ledger import services as ledger
from ledger.api import waits
from ledger.services.writing import SYSTEM
from ledger.states import Standing
from reconciliation import services
from reconciliation.models import CLOCK, CaseKind
from reconciliation.services import asking
from tests.arrange import COMPLETED, OPAQUE, Arranged, in_process, over_http
from tests.reconciliation.scene import Scene
from tests.reconciliation.test_sweep import at_once


def reconcile(scene: Scene, operation_id: str, body: Any = None, *, token: str | None = None) -> Any:
    agent = scene.agent if token is None else in_process(token)
    return agent.call("POST", f"/api/v1/operations/{operation_id}/reconcile", body)


# Refusals first.


def test_a_token_without_the_scope_is_refused(scene: Scene) -> None:
    operation_id = scene.unknown()
    token = scene.workspace.second_token(scopes=["intent", "permit", "outcome", "read"])
    answer = reconcile(scene, operation_id, {}, token=token)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert scene.receiver.asked == []


@pytest.mark.parametrize("columns", [{"capabilities": ["order.*"]}, {"subjects": ["agent:billing-*"]}])
def test_a_token_that_does_not_cover_the_operation_is_refused(scene: Scene, columns: dict[str, Any]) -> None:
    operation_id = scene.unknown()
    answer = reconcile(scene, operation_id, {}, token=scene.workspace.second_token(**columns))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert scene.receiver.asked == []


# C14
def test_another_workspaces_operation_is_as_unknown_as_none(scene: Scene, other_workspace: Arranged) -> None:
    operation_id = scene.unknown()
    theirs = reconcile(scene, operation_id, {}, token=other_workspace.token)
    none = reconcile(scene, "op-nobody-knows", {}, token=other_workspace.token)
    assert theirs.status_code == none.status_code == 404
    assert theirs.json()["code"] == none.json()["code"] == "no-ledger-entry"
    assert theirs.json().keys() == none.json().keys()


@pytest.mark.parametrize(
    "body",
    [
        {"timeout_s": 31},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": "5"},
        {"timeout_s": True},
        {"timeout_s": None},
        # unknown fields are named
        {"timeout_s": 5, "force": True},
        [],
        "now",
    ],
)
def test_what_is_malformed_asks_nothing(scene: Scene, body: Any) -> None:
    operation_id = scene.unknown()
    answer = reconcile(scene, operation_id, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert scene.receiver.asked == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_only_post_is_known(scene: Scene, method: str) -> None:
    operation_id = scene.unknown()
    answer = scene.agent.call(method, f"/api/v1/operations/{operation_id}/reconcile", {})
    assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")


# What is answered.


@pytest.mark.parametrize("body", [None, {}, {"timeout_s": 5}, {"timeout_s": 0.5}])
def test_the_finding_the_verdict_and_the_operation_come_back_at_once(scene: Scene, body: Any) -> None:
    operation_id = scene.unknown()
    reference = scene.receiver.make(operation_id)
    answer = reconcile(scene, operation_id, body)
    assert answer.status_code == 200
    said = answer.json()
    assert said.keys() == {"finding", "verdict", "operation"}
    assert said["finding"]["items"][0]["reference"] == reference
    assert said["finding"]["asked_at"].endswith("Z")
    assert (said["verdict"]["kind"], said["verdict"]["reason"]) == ("settle", "effect_found")
    assert said["operation"] == scene.agent.get(operation_id).json()
    assert said["operation"]["state"] == "completed"


def test_no_worker_and_no_sweep_are_needed(scene: Scene) -> None:
    """The lease has ended, nobody wrote that down, and no case was opened: all of it happens in the request."""
    operation_id, _ = scene.dispatched()
    scene.age(operation_id, 120)
    scene.receiver.make(operation_id)
    assert reconcile(scene, operation_id).json()["operation"]["state"] == "completed"
    (case,) = scene.cases(operation_id)
    assert case.closed_by == "reconciler"


def test_what_proves_nothing_leaves_it_unknown_and_says_so(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.answer = lambda _: (503, b"later")
    said = reconcile(scene, operation_id).json()
    assert (said["finding"]["why"], said["verdict"]["kind"]) == ("http_503", "ask_again")
    assert said["operation"]["decision"]["action"] == "reconcile"
    assert said["operation"]["reconciliation_required"] is True


def test_two_absences_on_request_allow_the_retry(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    first = reconcile(scene, operation_id).json()
    assert first["operation"]["decision"]["action"] == "reconcile"
    time.sleep(1.1)
    second = reconcile(scene, operation_id).json()
    assert second["verdict"]["reason"] == "absent"
    assert second["operation"]["decision"]["action"] == "retry"


def test_where_there_is_nothing_to_ask_nothing_is_asked(scene: Scene) -> None:
    in_flight, ask = scene.dispatched()
    settled, ask = scene.dispatched()
    scene.agent.report(settled, 1, COMPLETED, nonce=ask)
    intended = scene.workspace.operation_id()
    scene.agent.put_intent(intended, scene.workspace.intent())
    for operation_id, state in ((in_flight, "dispatched"), (settled, "completed"), (intended, "intended")):
        said = reconcile(scene, operation_id).json()
        assert (said["finding"], said["verdict"]) == (None, None)
        assert said["operation"]["state"] == state
        assert scene.cases(operation_id) == []
    assert scene.receiver.asked == []


# C96
def test_a_receiver_that_cannot_be_asked_goes_to_a_person_at_once(scene: Scene) -> None:
    scene.capability(contract=OPAQUE, reconciler=None)
    operation_id = scene.unknown()
    said = reconcile(scene, operation_id).json()
    assert (said["finding"], said["operation"]["state"]) == (None, "unknown")
    case = scene.case(operation_id)
    assert (case.kind, case.escalation) == (CaseKind.UNKNOWN, "operator_only")


def test_what_was_abandoned_is_not_asked_about_and_gets_no_new_case(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    ledger.set_standing(scene.id, operation_id, SYSTEM, Standing.ABANDONED)
    scene.sweep()
    said = reconcile(scene, operation_id).json()
    assert (said["finding"], said["operation"]["decision"]["reason"]) == (None, "abandoned")
    assert [case.closed_at is None for case in scene.cases(operation_id)] == [False]


# Many at once.


def test_look_ups_of_one_case_coalesce(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.receiver.delay_s = 0.6
    answers = at_once(
        lambda: services.reconcile_now(scene.id, operation_id, timeout_s=10), asking.AT_ONCE_MAX
    )
    assert scene.receiver.questions_about(operation_id) == 1
    assert {answer.verdict["reason"] for answer in answers} == {"effect_found"}
    assert {answer.facts.state for answer in answers} == {"completed"}


def test_at_most_one_look_up_begins_per_second(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.answer = lambda _: (503, b"later")
    findings = [reconcile(scene, operation_id).json()["finding"] for _ in range(4)]
    began = scene.receiver.questions_about(operation_id)
    assert len({finding["asked_at"] for finding in findings}) == began
    asked = [lookup.asked_at for lookup in scene.lookups(operation_id)]
    apart = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert all(one >= timedelta(seconds=asking.AT_ONCE_S) for one in apart)


def test_a_claim_that_waits_in_a_queue_is_taken_over(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.sweep()
    scene.make_due(operation_id)
    queued = scene.claim(operation_id)
    assert reconcile(scene, operation_id).json()["operation"]["state"] == "completed"
    assert services.look_up(queued.workspace_id, queued.case_id, queued.fence) is None
    assert scene.receiver.questions_about(operation_id) == 1


def test_a_look_up_under_way_is_waited_for_and_its_worker_may_be_dead(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.begun(operation_id)  # and nothing comes of it
    began = time.monotonic()
    said = reconcile(scene, operation_id, {"timeout_s": 1}).json()
    assert 0.5 < time.monotonic() - began < 5
    assert (said["finding"], said["operation"]["state"]) == (None, "unknown")
    scene.change_case(operation_id, asking_at=CLOCK - timedelta(seconds=31))  # longer than any job lives
    assert reconcile(scene, operation_id).json()["operation"]["state"] == "completed"


def test_a_crowded_process_gives_the_operation_as_it_stands_and_when_to_come_again(scene: Scene) -> None:
    operation_id = scene.unknown()
    held = [asking._room.acquire(blocking=False) for _ in range(asking.AT_ONCE_MAX)]
    try:
        answer = reconcile(scene, operation_id)
    finally:
        for _ in filter(None, held):
            asking._room.release()
    assert answer.status_code == 200
    assert answer.headers["Retry-After"] == "1"
    assert answer.json()["finding"] is None
    assert scene.receiver.asked == []


def test_what_waits_and_what_asks_leave_half_the_threads_to_permits() -> None:
    assert 1 <= waits.PER_TOKEN <= waits.PER_PROCESS
    taken = waits.PER_PROCESS + asking.AT_ONCE_MAX
    assert taken <= int(read("WEB_THREADS")) // 2


def test_the_time_is_bounded_while_the_receiver_hangs(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.delay_s = 8
    began = time.monotonic()
    said = reconcile(scene, operation_id, {"timeout_s": 1}).json()
    assert time.monotonic() - began < 5
    assert said["finding"]["why"] == "timeout"
    assert said["operation"]["state"] == "unknown"


def test_over_real_http_the_answer_is_the_same(scene: Scene, live: str) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    agent = over_http(live, scene.workspace.token)
    answer = agent.call("POST", f"/api/v1/operations/{operation_id}/reconcile", {"timeout_s": 10})
    assert answer.status_code == 200
    assert answer.json()["operation"]["state"] == "completed"
    assert answer.headers["Content-Type"] == "application/json"

"""The README's loop of a runtime, against the real service and a receiver that loses replies: one effect, no more."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger import tenancy
from ledger.models import Receiver
from reconciliation.rehearsal.calls import Contract
from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.receivers import Sandbox
from tests import live as processes
from tests.arrange import OPAQUE, READABLE, Arranged
from tests.loop import perform, sender

pytestmark = pytest.mark.processes

CONTRACTS = {Contract.READABLE: READABLE, Contract.OPAQUE: OPAQUE}
RECONCILER = {
    "kind": "http_lookup",
    "url": "{base_url}/effects?client_reference={business_reference}",
    "items": "$.data[*]",
    "complete": {"path": "$.has_more", "equals": False},
    "attributed": {"path": "$.metadata.operation_id", "equals": "operation_id"},
    "reference": "$.id",
    "status": {"path": "$.status", "completed": ["succeeded"], "denied": ["failed"]},
}


@pytest.fixture(scope="module")
def sweep(record: None) -> Iterator[None]:
    with processes.sweeping():
        yield


class Scene:
    """One operation, one sandbox receiver with its own ledger, and a runtime that follows the README's loop."""

    def __init__(self, workspace: Arranged, base_url: str, receiver: Sandbox, contract: Contract) -> None:
        self.receiver, self.operation_id = receiver, workspace.operation_id()
        with tenancy.workspace(workspace.id):
            Receiver.objects.filter(pk=workspace.receiver_id).update(
                base_url=receiver.base_url_of(contract), allow_private_addresses=True
            )
        asked = {} if contract is Contract.OPAQUE else {"reconciler": RECONCILER}
        workspace.capability(lease_s=5, contract=CONTRACTS[contract], **asked)
        self.intent = workspace.intent(business_reference=self.operation_id)
        body = {
            "arguments": self.intent["arguments"],
            "client_reference": self.operation_id,
            "metadata": {"operation_id": self.operation_id},
        }
        self.send = sender(f"{receiver.base_url_of(contract)}/tools/refund", body)
        self.sent = 0
        self._client = lambda: httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {workspace.token}"},
            timeout=30,
            trust_env=False,
        )

    def perform(self, send: Callable[[dict[str, Any]], dict[str, Any]] | None = None, **how: Any) -> Any:
        def counting(permit: dict[str, Any]) -> dict[str, Any]:
            self.sent += 1
            return (send or self.send)(permit)

        with self._client() as ledger:
            return perform(ledger, self.operation_id, self.intent, counting, **how)

    def effects(self) -> int:
        """How many effects the receiver's own ledger holds."""
        with closing(sqlite3.connect(self.receiver.ledger)) as ledger:
            return int(
                ledger.execute("select count(*) from effects where status = 'succeeded'").fetchone()[0]
            )


@pytest.fixture
def scene(workspace: Arranged, live: str, tmp_path: Path, sweep: None) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as running:

        def make(faults: str, contract: Contract = Contract.READABLE) -> Scene:
            spec = FaultSpec.parse(faults)
            sandbox = Sandbox(tmp_path / "receiver.sqlite", faults=spec, seed=1)
            return Scene(workspace, live, running.enter_context(sandbox), contract)

        yield make


@pytest.mark.parametrize(
    ("faults", "contract", "ends", "sent", "effects"),
    [
        ("none", Contract.READABLE, ("resume", "effect_exists"), 1, 1),
        # The reply is lost, the effect is there: a look-up finds it, and nothing is sent again.
        ("cut=1", Contract.READABLE, ("resume", "effect_exists"), 1, 1),
        # The receiver declines: its refusal is the end.
        ("decline=1", Contract.READABLE, ("stop", "denied"), 1, 0),
        # A receiver that nobody can ask: it stays unknown, and whoever comes back sends nothing.
        ("cut=1", Contract.OPAQUE, ("reconcile", "outcome_unknown"), 1, 1),
        # The same where nothing arrived: the loop does not guess either.
        ("lost=1", Contract.OPAQUE, ("reconcile", "outcome_unknown"), 1, 0),
    ],
)
def test_the_loop_sends_once_and_ends_as_the_record_says(
    scene: Callable[..., Scene],
    faults: str,
    contract: Contract,
    ends: tuple[str, str],
    sent: int,
    effects: int,
) -> None:
    at = scene(faults, contract)
    patience_s = 3 if ends[0] == "reconcile" else 60
    op = at.perform(patience_s=patience_s)
    assert (op["decision"]["action"], op["decision"]["reason"]) == ends
    again = at.perform(patience_s=0)
    assert again["decision"] == {**op["decision"], "retry_at": again["decision"]["retry_at"]}
    assert (at.sent, at.effects()) == (sent, effects)


def test_what_a_look_up_proves_absent_is_sent_again_under_the_same_key(scene: Callable[..., Scene]) -> None:
    at = scene("none")
    keys: list[str] = []

    def lost_at_first(permit: dict[str, Any]) -> dict[str, Any]:
        keys.append(permit["idempotency_key"])
        return {"outcome": "unknown", "fault": "no_answer"} if len(keys) == 1 else at.send(permit)

    op = at.perform(lost_at_first)
    assert op["decision"]["action"] == "resume"
    assert len(keys) == 2 and len(set(keys)) == 1
    assert at.effects() == 1


def test_a_runtime_that_died_between_effect_and_report_is_followed_by_one_that_sends_nothing(
    scene: Callable[..., Scene],
) -> None:
    at = scene("none")

    def dies(permit: dict[str, Any]) -> dict[str, Any]:
        at.send(permit)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.perform(dies)
    op = at.perform()
    assert op["decision"]["action"] == "resume" and op["outcome"]["source"] == "lookup"
    assert (at.sent, at.effects()) == (1, 1)


def test_eight_runtimes_with_one_operation_make_one_effect(scene: Callable[..., Scene]) -> None:
    at = scene("none")
    start = threading.Barrier(8)

    def one(_: int) -> Any:
        start.wait(10)
        return at.perform()

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(one, range(8)))
    assert {op["decision"]["action"] for op in ended} == {"resume"}
    assert (at.sent, at.effects()) == (1, 1)


def test_a_permit_that_came_too_late_is_reported_as_not_sent(
    scene: Callable[..., Scene],
) -> None:
    at = scene("none")
    with at._client() as ledger:
        slow = SlowOnce(ledger)
        op = perform(slow, at.operation_id, at.intent, at.send)  # type: ignore[arg-type]
    assert op["decision"]["action"] == "resume"
    assert [attempt["state"] for attempt in op["attempts"]] == ["not_sent", "completed"]
    assert at.effects() == 1


class SlowOnce:
    """A client whose first answer is held back until its permit's lease has ended."""

    def __init__(self, client: httpx.Client) -> None:
        self._client, self._first = client, True

    def request(self, *arguments: Any, **named: Any) -> httpx.Response:
        answer = self._client.request(*arguments, **named)
        if self._first:
            self._first = False
            threading.Event().wait(answer.json()["permit"]["lease_s"])
        return answer


def test_a_mistake_of_ours_is_raised_and_sends_nothing(scene: Callable[..., Scene]) -> None:
    at = scene("none")
    at.perform()
    at.intent["arguments"] = {**at.intent["arguments"], "amount": "121.00"}
    with pytest.raises(RuntimeError, match="intent-mismatch"):
        at.perform()
    assert (at.sent, at.effects()) == (1, 1)

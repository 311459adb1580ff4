"""Valkey is emptied, full, read-only, frozen or gone: F14 to F17. Only latency may change, and only that of look-ups."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from tests.arrange import COMPLETED, nonce
from tests.faults.own import Own
from tests.faults.test_askers_killed import beat, unknown, worker
from tests.live import sweeping, wait_until

pytestmark = pytest.mark.processes

# What one call may take on a busy machine; without a broker in the way it takes milliseconds.
CALL_S = 2.0


def one_round(own: Own, service: str) -> float:
    """Intent, permit and outcome of one operation; returns the seconds that the slowest call took."""
    operation_id, mine, agent = own.operation_id(), nonce(), own.agent(service)
    slowest = 0.0

    def timed(answer: httpx.Response, status: int) -> Any:
        nonlocal slowest
        assert answer.status_code == status, answer.text
        slowest = max(slowest, answer.elapsed.total_seconds())
        return answer.json()

    timed(agent.put_intent(operation_id, own.intent(operation_id)), 201)
    permit = timed(agent.ask(operation_id, 1, nonce=mine), 201)["permit"]
    report = {**COMPLETED, "receiver_reference": own.make_effect(operation_id, permit)}
    timed(agent.report(operation_id, 1, report, nonce=mine), 200)
    return slowest


@contextmanager
def told(own: Own, on: tuple[str, ...], off: tuple[str, ...]) -> Any:
    with own.broker() as broker:
        broker.execute_command(*on)
        try:
            yield
        finally:
            broker.execute_command(*off)


@contextmanager
def emptied(own: Own) -> Any:
    """Everything in it is lost, again and again."""
    over = False

    def empty() -> None:
        with own.broker() as broker:
            while not over:
                broker.flushall()
                time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        emptying = pool.submit(empty)
        try:
            yield
        finally:
            over = True
            emptying.result()


FAULTS: dict[str, Callable[[Own], AbstractContextManager[None]]] = {
    "frozen": Own.frozen_valkey,  # F17
    "gone": Own.absent_valkey,  # F14
    "full": lambda own: told(
        own, ("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")
    ),  # F16
    "read-only": lambda own: told(own, ("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),  # F16
    "emptied": emptied,  # F15
}


def check_under(own: Own, service: str, name: str) -> None:
    """Intent, permit and outcome as ever, and what is unknown settles."""
    made, absent = unknown(own, service), unknown(own, service, effect=False)
    slowest = max(one_round(own, service) for _ in range(5))
    assert slowest < CALL_S, (name, slowest)
    assert own.settled(made, within_s=60) == "completed", name
    assert own.settled(absent, within_s=60) == "denied", name


# F17 I16 I10, and F9: since when nobody has swept is in the record, from where the queue's page has it
def test_without_a_broker_a_sweep_settles_what_is_unknown(own: Own, service: str) -> None:
    age = "SELECT extract(epoch FROM clock_timestamp() - ended_at)::float FROM reconciliation_sweeprun"
    with own.frozen_valkey(), sweeping(**own.env):
        check_under(own, service, "frozen")
        assert own.rows(age)[0][0] < 5
    (before,) = own.rows(age)[0]
    time.sleep(0.5)
    assert own.rows(age)[0][0] > before + 0.4


# F14 F15 F16 F17 I16 I10
@pytest.mark.long
def test_the_broker_changes_no_answer_and_no_conclusion(own: Own, service: str) -> None:
    with worker(own) as working, beat(own) as beating:
        first = unknown(own, service)
        assert own.settled(first, within_s=60) == "completed"  # worker and beat are up
        with sweeping(**own.env):
            for name, fault in FAULTS.items():
                with fault(own):
                    check_under(own, service, name)
        # The same worker and the same beat find their way back: nobody restarts them.
        assert (working.poll(), beating.poll()) == (None, None)
        last = unknown(own, service)
        assert own.settled(last, within_s=90) == "completed"


# F15: worker and beat alone, while everything in the broker is lost twenty times a second
@pytest.mark.long
def test_an_emptied_broker_loses_nothing(own: Own, service: str) -> None:
    with worker(own), beat(own):
        with emptied(own):
            made = [unknown(own, service) for _ in range(5)]
            time.sleep(10)
        assert [own.settled(one, within_s=90) for one in made] == ["completed"] * len(made)


def test_the_web_has_no_connection_to_the_broker(own: Own, service: str) -> None:
    one_round(own, service)
    with own.broker() as broker:
        wait_until(lambda: len(broker.client_list()) == 1, within_s=10)  # this one

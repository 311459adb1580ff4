"""PostgreSQL crashes, freezes or refuses to write: F10 and F13.

What was acknowledged stays; meanwhile every answer is typed, comes in bounded time and gives no permit; afterwards the
same web process goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.arrange import COMPLETED, NOT_SENT, UNKNOWN, Agent, nonce
from tests.faults.conftest import ANSWER_WITHIN_S
from tests.faults.own import Own, manage
from tests.faults.proxy import How
from tests.live import frozen, wait_until, web_process

pytestmark = pytest.mark.processes

SHOW = """
from django.db import connection
for name in ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout", "synchronous_commit"):
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        print(cursor.fetchone()[0])
"""

# Connecting or waiting for one answer, whichever hangs, and what a busy machine adds.
BOUNDED_S = ANSWER_WITHIN_S + 6


@dataclass
class Acknowledged:
    """What runtimes were told under load, with how long the longest answer took."""

    permits: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # nonce and permit
    completed: dict[str, str] = field(default_factory=dict)  # receiver's reference
    refused: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    slowest_s: float = 0.0


def play(own: Own, agent: Agent, told: Acknowledged, over: threading.Event) -> None:
    """One obedient runtime: it repeats what is answered 503, and dispatches once per permit it was given."""

    def until_answered(call: Callable[[], Any]) -> Any:
        while not over.is_set():
            began = time.monotonic()
            answer = call()
            told.slowest_s = max(told.slowest_s, time.monotonic() - began)
            if answer.status_code != 503:
                return answer
            told.refused.append((str(answer.request.url.path), answer.json()))
            time.sleep(0.05)
        return None

    while not over.is_set():
        operation_id, mine = own.operation_id(), nonce()
        intent = own.intent(operation_id, dispatch=True)
        answer = until_answered(lambda: agent.put_intent(operation_id, intent, nonce=mine))  # noqa: B023
        if answer is None:
            return
        permit = answer.json().get("permit")
        if permit is None:  # its lease ran out while the database was away
            continue
        told.permits[operation_id] = (mine, permit)
        reference = own.make_effect(operation_id, permit)
        report = {**COMPLETED, "receiver_reference": reference}
        answer = until_answered(lambda: agent.report(operation_id, 1, report, nonce=mine))  # noqa: B023
        if answer is not None and answer.status_code == 200:
            told.completed[operation_id] = reference


# F10 I11 I8
def test_what_was_acknowledged_survives_a_crash_of_the_database(own: Own, service: str) -> None:
    told, over = Acknowledged(), threading.Event()
    with ThreadPoolExecutor(6) as pool:
        playing = [pool.submit(play, own, own.agent(service), told, over) for _ in range(6)]
        try:
            wait_until(lambda: len(told.completed) >= 20, within_s=40)
            own.stop_postgres_at_once()
            before = dict(told.completed)
            wait_until(lambda: len(told.refused) >= 12, within_s=20)
            assert httpx.get(f"{service}/healthz", trust_env=False).status_code == 503
            own.start_postgres()
            # The same web process goes on: nobody restarts it.
            wait_until(lambda: len(told.completed) >= len(before) + 20, within_s=40)
        finally:
            over.set()
        for one in playing:
            one.result(60)
    for path, problem in told.refused:
        expected = "post-dispatch-evidence-failed" if path.endswith("/outcome") else "unavailable"
        assert problem["code"] == expected, problem
        assert problem["repeat_request"] and not problem["retryable"] and "permit" not in problem
    recorded = {
        name: (token_state, reference)
        for name, token_state, reference in own.rows(
            "SELECT i.operation_id, a.state, i.receiver_reference FROM ledger_invocation i"
            " JOIN ledger_attempt a ON a.invocation_id = i.id"
        )
    }
    assert told.permits.keys() <= recorded.keys()
    assert {name: recorded[name] for name in told.completed} == {
        name: ("completed", reference) for name, reference in told.completed.items()
    }
    assert told.slowest_s < BOUNDED_S


@contextmanager
def swallowing(own: Own, how: How) -> Any:
    """Every statement of ours is lost with its connection left open."""
    own.proxy.arm("ledger_", how, times=10_000)
    try:
        yield
    finally:
        own.proxy.disarm()
        own.proxy.cut_all()


@contextmanager
def black_hole(own: Own) -> Any:
    """Nothing moves on any connection, old or new."""
    own.proxy.frozen.set()
    try:
        yield
    finally:
        own.proxy.frozen.clear()


SILENCES: list[Any] = [
    pytest.param(lambda own: own.frozen_postgres(), id="frozen"),
    pytest.param(black_hole, id="black hole", marks=pytest.mark.long),
    pytest.param(lambda own: swallowing(own, How.SWALLOW), id="statements lost", marks=pytest.mark.long),
    pytest.param(lambda own: swallowing(own, How.SWALLOW_REPLY), id="replies lost", marks=pytest.mark.long),
]


# F13 I14
@pytest.mark.parametrize("silence", SILENCES)
def test_a_silent_database_is_answered_for_in_bounded_time(
    own: Own, service: str, silence: Callable[[Own], AbstractContextManager[None]]
) -> None:
    agent = own.agent(service, timeout_s=60)
    new, intended, sent = own.operation_id(), own.operation_id(), own.operation_id()
    mine = nonce()
    assert agent.put_intent(intended, own.intent(intended)).status_code == 201
    assert agent.put_intent(sent, own.intent(sent, dispatch=True), nonce=mine).status_code == 201
    calls: dict[str, Callable[[], Any]] = {
        "intent": lambda: agent.put_intent(new, own.intent(new, dispatch=True), nonce=mine),
        "permit": lambda: agent.ask(intended, 1, nonce=mine),
        "outcome": lambda: agent.report(sent, 1, UNKNOWN, nonce=mine),
        "read": lambda: agent.get(sent),
        "task": lambda: agent.call("GET", "/api/v1/tasks/task-1"),
        "health": lambda: httpx.get(f"{service}/healthz", timeout=60, trust_env=False),
    }
    with silence(own), ThreadPoolExecutor(len(calls)) as pool:
        began = time.monotonic()
        asked = {name: pool.submit(call) for name, call in calls.items()}
        answers = {name: one.result() for name, one in asked.items()}
        took_s = time.monotonic() - began
    assert took_s < 2 * BOUNDED_S  # the health check, which is no call of a runtime, tries twice
    answers.pop("health")  # well or not: where only our statements are lost, it is
    for name, answer in answers.items():
        problem = answer.json()
        expected = "post-dispatch-evidence-failed" if name == "outcome" else "unavailable"
        assert (answer.status_code, problem["code"]) == (503, expected), (name, problem)
        assert problem["repeat_request"] and "permit" not in problem
        assert answer.elapsed.total_seconds() < BOUNDED_S, name
    # It goes on without a restart, and what was done meanwhile is found by repeating: one permit, not two.
    wait_until(lambda: agent.get(sent).status_code == 200, within_s=20)
    again = agent.put_intent(new, own.intent(new, dispatch=True), nonce=mine)
    assert again.status_code in (200, 201), again.text
    assert len(own.attempts(new)) == 1
    for name in (new, intended, sent):
        agent.report(name, 1, NOT_SENT, nonce=mine)


# F26's neighbour: providers turn a database read-only when its disk fills up, and a failover leaves one behind
def test_a_database_that_only_reads_gives_no_permit(own: Own, service: str) -> None:
    agent = own.agent(service)
    operation_id, mine = own.operation_id(), nonce()
    intent = own.intent(operation_id, dispatch=True)
    own.change("ALTER SYSTEM SET default_transaction_read_only = on")
    own.change("SELECT pg_reload_conf()")
    try:
        wait_until(lambda: agent.put_intent(operation_id, intent, nonce=mine).status_code == 503)
        refused = agent.put_intent(operation_id, intent, nonce=mine).json()
        assert (refused["code"], refused["repeat_request"]) == ("unavailable", True)
        reported = agent.report(operation_id, 1, UNKNOWN, nonce=mine).json()
        assert reported["code"] == "post-dispatch-evidence-failed"
    finally:
        own.change("ALTER SYSTEM RESET default_transaction_read_only")
        own.change("SELECT pg_reload_conf()")
    wait_until(lambda: agent.put_intent(operation_id, intent, nonce=mine).status_code in (200, 201))
    assert len(own.attempts(operation_id)) <= 1


# F13: a web process that freezes, or whose machine does, inside a transaction gives its locks back
def test_a_frozen_web_does_not_keep_an_operation_locked(own: Own, service: str) -> None:
    agent = own.agent(service)
    operation_id, mine = own.operation_id(), nonce()
    opened = agent.put_intent(operation_id, own.intent(operation_id, dispatch=True), nonce=mine)
    assert opened.status_code == 201
    # The bound of 15 s, shortened.
    short = "?options=-c%20idle_in_transaction_session_timeout=2s"
    env = {**own.env, "DATABASE_URL": own.env["DATABASE_URL"] + short}
    with web_process(**env) as (process, base_url), ThreadPoolExecutor(1) as pool:
        own.proxy.arm("COMMIT", How.SWALLOW)  # the row is locked, and its transaction's end never comes
        held = pool.submit(own.agent(base_url).report, operation_id, 1, NOT_SENT, nonce=mine)
        wait_until(lambda: own.proxy.met == 1)
        with frozen(process):
            wait_until(lambda: agent.report(operation_id, 1, NOT_SENT, nonce=mine).status_code == 200)
        # Awake again, it finds its session ended. Within its patience it asks once more, and sees what was done meanwhile.
        answer = held.result()
        assert answer.status_code == 200 or answer.json()["code"] == "post-dispatch-evidence-failed"
    assert own.attempts(operation_id) == ["not_sent"]


# I11: a server may be set up to answer before a commit is on disk; what is acknowledged here is, all the same
def test_in_earnest_no_session_sleeps_on_its_locks_or_commits_to_memory_alone(own: Own) -> None:
    own.change("ALTER SYSTEM SET synchronous_commit = off")
    own.change("SELECT pg_reload_conf()")
    try:
        shown = manage(own.env, "shell", "--no-imports", "-c", SHOW)
    finally:
        own.change("ALTER SYSTEM RESET synchronous_commit")
        own.change("SELECT pg_reload_conf()")
    assert shown.split() == ["15s", "15s", "5s", "on"]

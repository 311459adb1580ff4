"""A web process dies around one request: F1, F2 and F3. And one that is asked to end, does."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ledger.api.waits import PER_TOKEN
from tests.arrange import NOT_SENT, Agent, nonce
from tests.faults.own import Own
from tests.live import wait_until, web

pytestmark = pytest.mark.processes


# The points at which intents and permits kill the process that handles them, and what the repeats are answered.
DEATHS = [
    # F2 F3: the repeats find the intent and the permit that were lost.
    pytest.param(
        "intent.after_commit", "dispatched", 200, "permit.after_commit", "dispatched", 200, id="after commit"
    ),
    # F1: nothing was done, so that the repeats do it, once.
    pytest.param(
        "intent.before_commit", None, 201, "permit.before_commit", "intended", 201,
        id="before commit", marks=pytest.mark.long,
    ),
]  # fmt: skip


# F1 F2 F3 I1 I2 I3 I11 I12
@pytest.mark.parametrize(
    ("intent_dies", "intent_left", "intent_again", "permit_dies", "permit_left", "permit_again"), DEATHS
)
def test_a_repeat_finds_what_a_killed_web_had_done_and_does_what_it_had_not(
    own: Own,
    service: str,
    intent_dies: str,
    intent_left: str | None,
    intent_again: int,
    permit_dies: str,
    permit_left: str,
    permit_again: int,
) -> None:
    points = f"{intent_dies}=kill,{permit_dies}=kill"
    agent, mine = own.agent(service), nonce()
    with web(**own.env, FAILPOINTS=points, COUNTERFOIL_DEBUG="true") as base_url:
        dying = own.agent(base_url)
        operation_id = own.operation_id()
        intent = own.intent(operation_id, dispatch=True)
        with pytest.raises(httpx.TransportError):
            dying.put_intent(operation_id, intent, nonce=mine)
        assert own.state(operation_id) == intent_left
        again = agent.put_intent(operation_id, intent, nonce=mine)
        assert again.status_code == intent_again
        assert again.json()["replayed"] is (intent_again == 200)
        check_one_permit(own, agent, operation_id, mine, again.json()["permit"])

        # Another worker takes the place of the killed one, at the same address.
        wait_until(lambda: is_well(base_url), within_s=60)
        operation_id = own.operation_id()
        assert agent.put_intent(operation_id, own.intent(operation_id)).status_code == 201
        with pytest.raises(httpx.TransportError):
            dying.ask(operation_id, 1, nonce=mine)
        assert own.state(operation_id) == permit_left
        again = agent.ask(operation_id, 1, nonce=mine)
        assert again.status_code == permit_again
        assert again.json()["replayed"] is (permit_again == 200)
        check_one_permit(own, agent, operation_id, mine, again.json()["permit"])


def check_one_permit(own: Own, agent: Agent, operation_id: str, mine: str, permit: dict[str, Any]) -> None:
    """One attempt, whose permit the same nonce finds again; another nonce waits, and is told until when."""
    assert permit["attempt"] == 1 and own.attempts(operation_id) == ["open"]
    again = agent.ask(operation_id, 1, nonce=mine)
    assert again.status_code == 200 and again.json()["permit"]["token"] == permit["token"]
    other = agent.ask(operation_id, 1, nonce=nonce())
    assert (other.status_code, other.json()["code"]) == (409, "attempt-in-flight")
    assert int(other.headers["Retry-After"]) >= 1
    assert agent.report(operation_id, 1, NOT_SENT, nonce=mine).status_code == 200


# F3 I4: nobody repeats the ask; when the lease is over the attempt is unknown, and no other nonce is let past
def test_a_permit_that_reached_nobody_becomes_unknown_and_is_not_given_again(own: Own, service: str) -> None:
    operation_id, agent = own.operation_id(), own.agent(service)
    intent = own.intent(operation_id, dispatch=True)
    answer = agent.put_intent(operation_id, intent, nonce=nonce())
    assert answer.status_code == 201  # and the reply is dropped here
    wait_until(lambda: agent.get(operation_id).json()["state"] == "unknown", within_s=10)
    for number in (1, 2):
        asked = agent.ask(operation_id, number, nonce=nonce())
        assert (asked.status_code, asked.json()["code"]) == (409, "reconciliation-required")
    assert agent.put_intent(operation_id, intent, nonce=nonce()).json()["permit"] is None


def is_well(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/healthz", trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


# A parked waiter holds a thread; those beyond the caps are answered at once, and a stop waits for none of them
def test_waiters_beyond_the_cap_are_answered_at_once_and_none_delays_a_stop(own: Own) -> None:
    operation_id, mine = own.operation_id(), nonce()
    with ThreadPoolExecutor(24) as pool, web(**own.env) as base_url:
        agent = own.agent(base_url)
        assert (
            agent.put_intent(operation_id, own.intent(operation_id, dispatch=True), nonce=mine).status_code
            == 201
        )
        # Unknown: nothing changes by itself, so a waiter waits for its whole time.
        report = agent.report(operation_id, 1, {"outcome": "unknown", "fault": "timeout"}, nonce=mine)
        assert report.json()["state"] == "unknown"
        began = time.monotonic()
        waiting = [pool.submit(agent.get, operation_id, "?wait=20") for _ in range(24)]
        wait_until(lambda: sum(one.done() for one in waiting) >= 24 - PER_TOKEN, within_s=10)
        answered = [one.result() for one in waiting if one.done()]
        assert all(one.status_code == 200 and one.headers["Retry-After"] == "1" for one in answered)
        # They keep no permit waiting.
        other = own.operation_id()
        assert agent.put_intent(other, own.intent(other, dispatch=True), nonce=mine).status_code == 201
        assert agent.report(other, 1, NOT_SENT, nonce=mine).status_code == 200
        assert time.monotonic() - began < 10
        assert sum(not one.done() for one in waiting) == PER_TOKEN
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 8

"""Clocks of web, worker and beat are an hour wrong, or jump: F24. Order and expiry come from the database."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.arrange import NOT_SENT, nonce
from tests.faults.own import LEASE_S, Own
from tests.faults.test_askers_killed import beat, unknown, worker
from tests.live import sweeping, web

pytestmark = pytest.mark.processes

FOLDER = str(Path(__file__).parent / "wrong_clock")


def wrong(shift: str) -> dict[str, str]:
    """The environment of a process whose clock is wrong."""
    path = os.pathsep.join(filter(None, (FOLDER, os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "WRONG_CLOCK_S": shift}


def database_now(own: Own) -> datetime:
    now: datetime = own.rows("SELECT clock_timestamp()")[0][0]
    return now


# F24 I15 I9
@pytest.mark.parametrize(
    "shift",
    [
        pytest.param("jumps", id="jumps by two hours"),
        pytest.param("3600", id="an hour ahead", marks=pytest.mark.long),
        pytest.param("-3600", id="an hour behind", marks=pytest.mark.long),
    ],
)
def test_a_lease_is_judged_by_the_databases_clock(own: Own, service: str, shift: str) -> None:
    with web(**own.env, **wrong(shift)) as base_url:
        agent, right = own.agent(base_url), own.agent(service)
        for _ in range(10):  # a jumping clock meets each step at another time
            operation_id, mine = own.operation_id(), nonce()
            intent = own.intent(operation_id, dispatch=True)
            before = database_now(own)
            answer = agent.put_intent(operation_id, intent, nonce=mine)
            assert answer.status_code == 201
            permit = answer.json()["permit"]
            assert 0 < permit["lease_s"] <= LEASE_S
            until = datetime.fromisoformat(permit["lease_until"])
            assert (
                before < until - timedelta(seconds=LEASE_S) + timedelta(milliseconds=1) <= database_now(own)
            )
            assert is_running(agent.get(operation_id).json()) and is_running(right.get(operation_id).json())
            again = agent.ask(operation_id, 1, nonce=mine)
            assert again.json()["permit"]["token"] == permit["token"]
            assert 0 < again.json()["permit"]["lease_s"] <= LEASE_S
            assert int(agent.ask(operation_id, 1, nonce=nonce()).headers["Retry-After"]) <= LEASE_S + 1
        # Once it is over by the database's clock, it is over for everybody, whatever their clocks say.
        time.sleep(LEASE_S + 0.1)
        for one in (agent, right):
            assert one.get(operation_id).json()["state"] == "unknown"
            assert one.ask(operation_id, 1, nonce=mine).json()["code"] == "reconciliation-required"
        assert agent.report(operation_id, 1, NOT_SENT, nonce=mine).status_code == 200


def is_running(body: dict[str, Any]) -> bool:
    return body["state"] == "dispatched" and body["decision"]["reason"] == "attempt_in_flight"


# F24 I10 I15: what was unknown settles, with a worker ahead of its beat (for it, every message is an hour old) and a
# sweep whose clock jumps
@pytest.mark.long
@pytest.mark.parametrize("who", ["worker", "sweep"])
def test_what_is_unknown_settles_by_whomever_with_a_wrong_clock(own: Own, service: str, who: str) -> None:
    made, absent = unknown(own, service), unknown(own, service, effect=False)
    began = database_now(own)
    if who == "sweep":
        with sweeping(**own.env, **wrong("jumps")):
            settle_both(own, made, absent)
    else:
        with worker(own, **wrong("3600")), beat(own):
            settle_both(own, made, absent)
    # And not too early: absence is proven only after the bound, by looks at least the visibility lag apart.
    (settled_at,) = own.rows("SELECT settled_at FROM ledger_invocation WHERE operation_id = %s", absent)[0]
    assert began + timedelta(seconds=2) < settled_at <= database_now(own)


def settle_both(own: Own, made: str, absent: str) -> None:
    assert own.settled(made, within_s=60) == "completed"
    assert own.settled(absent, within_s=60) == "denied"


# The entries of an operation are in order, however wrong the clocks of those who wrote them
def test_entries_are_ordered_by_the_record_alone(own: Own) -> None:
    assert own.rows(
        "SELECT invocation_id FROM (SELECT invocation_id, at, lag(at) OVER (PARTITION BY invocation_id ORDER BY position)"
        " AS before FROM ledger_entry WHERE invocation_id IS NOT NULL) e WHERE at < before"
    ) == []  # fmt: skip

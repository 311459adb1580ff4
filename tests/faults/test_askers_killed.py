"""Workers, sweeps and beats die, are doubled, or lose their messages: F6 to F9 and F18.

Here the whole processes; tests/reconciliation/test_crashes.py kills one look-up at each of its points. This file comes
first in its folder: what the others leave unknown would be asked about, too, and slow it down.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from celery import Celery

from tests.arrange import UNKNOWN, nonce
from tests.faults.own import Own
from tests.live import process, sweeping, wait_until

pytestmark = pytest.mark.processes

CELERY = [sys.executable, "-m", "celery", "--quiet", "--app", "config.celery"]
WORKER = [
    *CELERY,
    "worker",
    "--pool",
    "prefork",
    "--concurrency",
    "2",
    "--without-gossip",
    "--without-mingle",
]
BEAT = [*CELERY, "beat", "--scheduler", "celery.beat:Scheduler", "--pidfile="]


@contextmanager
def worker(own: Own, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as the Procfile starts it."""
    with process([*WORKER, "--loglevel", "ERROR"], {**own.env, **env}) as child:
        yield child


@contextmanager
def beat(own: Own) -> Iterator[subprocess.Popen[bytes]]:
    with process([*BEAT, "--loglevel", "CRITICAL"], own.env) as child:
        yield child


def unknown(own: Own, service: str, *, effect: bool = True) -> str:
    """An operation whose reply was lost, with or without an effect at the receiver."""
    operation_id, mine, agent = own.operation_id(), nonce(), own.agent(service)
    answer = agent.put_intent(operation_id, own.intent(operation_id, dispatch=True), nonce=mine)
    if effect:
        own.make_effect(operation_id, answer.json()["permit"])
    assert agent.report(operation_id, 1, UNKNOWN, nonce=mine).json()["state"] == "unknown"
    return operation_id


def asking(own: Own, operation_id: str) -> int | None:
    """The fence of the look-up under way; None where none is."""
    found = own.rows(
        "SELECT fence FROM reconciliation_case WHERE operation_id = %s AND asking_at IS NOT NULL",
        operation_id,
    )
    return int(found[0][0]) if found else None


def conclusions(own: Own, operation_id: str) -> list[tuple[str, int]]:
    """(verdict, fence) of every look-up that is on record."""
    return own.rows(  # type: ignore[return-value]
        "SELECT l.verdict, l.fence FROM reconciliation_lookup l JOIN reconciliation_case c ON c.id = l.case_id"
        " WHERE c.operation_id = %s ORDER BY l.id",
        operation_id,
    )


# F6 F7 F8 I10: all of a worker's processes are killed while one asks the receiver
@pytest.mark.long
@pytest.mark.parametrize("lease", ["made to have ended", "waited for"])
def test_what_a_killed_worker_was_asking_is_asked_by_another(own: Own, service: str, lease: str) -> None:
    with worker(own) as first:
        operation_id = unknown(own, service)
        with own.frozen_receiver():
            publish_sweeps(own)
            fence = wait_until(lambda: asking(own, operation_id), within_s=40)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(10)
    assert conclusions(own, operation_id) == []
    if lease == "made to have ended":
        end_lease(own, operation_id)
    with sweeping(**own.env):  # needs no broker, and does not know that anybody was there before
        assert own.settled(operation_id, within_s=80) == "completed"
    assert [(v, f > fence) for v, f in conclusions(own, operation_id) if v == "settle"] == [("settle", True)]
    assert own.rows(
        "SELECT count(*) FROM ledger_entry e JOIN ledger_invocation i ON i.id = e.invocation_id"
        " WHERE i.operation_id = %s AND e.event = 'complete'",
        operation_id,
    ) == [(1,)]


def publish_sweeps(own: Own, times: int = 1) -> None:
    """What a beat says, as often as wanted."""
    with Celery(broker=own.env["REDIS_URL"]) as beat_like:
        for _ in range(times):
            beat_like.send_task("reconciliation.tasks.sweep")


# F7 I3 I6: a sweep stands still while it asks, wakes up when another has concluded, and changes nothing any more
def test_the_answer_of_a_sweep_that_was_overtaken_is_kept_and_changes_nothing(own: Own, service: str) -> None:
    with sweeping(**own.env) as slow:
        operation_id = unknown(own, service)
        with own.frozen_receiver():
            fence = wait_until(lambda: asking(own, operation_id), within_s=40)
            os.killpg(slow.pid, signal.SIGSTOP)
        end_lease(own, operation_id)
        with sweeping(**own.env):
            assert own.settled(operation_id, within_s=60) == "completed"
        before = own.rows("SELECT version FROM ledger_invocation WHERE operation_id = %s", operation_id)
        os.killpg(slow.pid, signal.SIGCONT)
        wait_until(lambda: ("dropped", fence) in conclusions(own, operation_id), within_s=30)
    assert own.rows("SELECT version FROM ledger_invocation WHERE operation_id = %s", operation_id) == before
    assert [v for v, _ in conclusions(own, operation_id)].count("settle") == 1


# I10: one operation that this code cannot judge, as after a downgrade, or that a session holds, keeps no other waiting
def test_a_sweep_goes_past_what_it_cannot_act_on(own: Own, service: str) -> None:
    stuck, held, well = (unknown_at_lease_end(own, service) for _ in range(3))
    copied = own.change(
        "INSERT INTO ledger_capability SELECT (jsonb_populate_record(c, jsonb_build_object('id', nextval("
        "pg_get_serial_sequence('ledger_capability', 'id')), 'version', 1000, 'current', false,"
        " 'contract', '{\"deduplicates\": \"telepathy\"}'::jsonb))).* FROM ledger_capability c WHERE c.current"
    )
    assert copied == 1
    own.change("ALTER TABLE ledger_invocation DISABLE TRIGGER ALL")
    own.change(
        "UPDATE ledger_invocation SET capability_id = (SELECT id FROM ledger_capability WHERE version = 1000)"
        " WHERE operation_id = %s",
        stuck,
    )
    own.change("ALTER TABLE ledger_invocation ENABLE TRIGGER ALL")
    with psycopg.connect(own.postgres.superuser_url) as somebody:
        somebody.execute("SELECT 1 FROM ledger_invocation WHERE operation_id = %s FOR UPDATE", [held])
        with sweeping(**own.env) as sweep:
            assert own.settled(well, within_s=60) == "completed"
            assert sweep.poll() is None
            somebody.rollback()
            assert own.settled(held, within_s=60) == "completed"
            assert own.state(stuck) in ("dispatched", "unknown")
    # What it could not act on is still there, and nobody was let past.
    again = own.agent(service).ask(stuck, 1, nonce=nonce())
    assert again.status_code >= 400 and "permit" not in again.json()
    own.change("ALTER TABLE ledger_invocation DISABLE TRIGGER ALL")
    own.change(
        "UPDATE ledger_invocation SET capability_id = (SELECT id FROM ledger_capability WHERE current)"
        " WHERE operation_id = %s",
        stuck,
    )
    own.change("ALTER TABLE ledger_invocation ENABLE TRIGGER ALL")


def unknown_at_lease_end(own: Own, service: str) -> str:
    """An operation with an effect, whose runtime died: its lease is over, and nobody has written that down."""
    operation_id = own.operation_id()
    intent = own.intent(operation_id, dispatch=True)
    answer = own.agent(service).put_intent(operation_id, intent, nonce=nonce())
    own.make_effect(operation_id, answer.json()["permit"])
    return operation_id


def end_lease(own: Own, operation_id: str) -> None:
    """The lease of its case is over now, rather than after three quarters of a minute."""
    own.change(
        "UPDATE reconciliation_case SET leased_until = clock_timestamp() - interval '1 s' WHERE operation_id = %s",
        operation_id,
    )


# I10: worker and beat outlive a crash of the database
@pytest.mark.long
def test_worker_and_beat_go_on_after_a_crash_of_the_database(own: Own, service: str) -> None:
    with worker(own) as working, beat(own) as beating:
        assert own.settled(unknown(own, service), within_s=60) == "completed"
        left = unknown(own, service)
        own.stop_postgres_at_once()
        time.sleep(8)
        own.start_postgres()
        assert own.settled(left, within_s=90) == "completed"
        assert (working.poll(), beating.poll()) == (None, None)


# F9 F18 I16: two beats, two sweeps without a broker, every message of a look-up doubled
@pytest.mark.long
def test_doubled_beats_sweeps_and_messages_change_nothing(own: Own, service: str) -> None:
    made, absent = [], []
    with worker(own), beat(own), beat(own), sweeping(**own.env), sweeping(**own.env):
        for _ in range(6):
            made.append(unknown(own, service))
            absent.append(unknown(own, service, effect=False))
        publish_sweeps(own, times=20)
        wait_until(
            lambda: double_the_queue(own) or all_settled(own, made + absent), within_s=20, every_s=0.05
        )
        assert [own.settled(one, within_s=60) for one in made] == ["completed"] * len(made)
        assert [own.settled(one, within_s=60) for one in absent] == ["denied"] * len(absent)
    for one in made + absent:
        settled = [fence for verdict, fence in conclusions(own, one) if verdict == "settle"]
        assert len(settled) == 1, one
        fences = [fence for _, fence in conclusions(own, one)]
        assert len(set(fences)) == len(fences), f"{one}: one look-up was recorded twice"


def all_settled(own: Own, names: list[str]) -> bool:
    return all(own.state(one) in ("completed", "denied") for one in names)


def double_the_queue(own: Own) -> bool:
    """Every message that waits is there twice, in another order; False where none waits."""
    with own.broker() as broker:
        waiting = broker.lrange("celery", 0, -1)
        for message in waiting:
            broker.rpush("celery", message)
        return bool(waiting)

"""What a sweep finds, whoever forgot it; and any number of sweeps at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from ledger import services as ledger
from ledger import tenancy
from ledger.models import Invocation, ParkedEvidence
from ledger.services.writing import SYSTEM
from ledger.states import Standing
from reconciliation import selectors, services, tasks
from reconciliation.models import CLOCK, Case, CaseKind
from tests.arrange import COMPLETED, NOT_SENT, UNKNOWN, Arranged, nonce
from tests.live import ROOT, sweeping, wait_until
from tests.reconciliation.scene import Scene

# What is found.


# C08 F4
def test_a_lease_that_ended_without_an_outcome_becomes_an_unknown_with_a_case(scene: Scene) -> None:
    operation_id, _ = scene.dispatched()
    scene.sweep()
    assert scene.state(operation_id) == "dispatched"
    scene.age(operation_id, 120)
    scene.sweep()
    assert scene.workspace.row(operation_id).state == "unknown"
    case = scene.case(operation_id)
    assert (case.kind, case.why) == (CaseKind.UNKNOWN, "lease_ended")
    assert case.next_check_at is not None


# C43
def test_an_unknown_that_nobody_announced_gets_one_case(scene: Scene) -> None:
    operation_id = scene.unknown()
    for _ in range(3):
        scene.sweep()
    (case,) = scene.cases(operation_id)
    assert (case.why, case.closed_at) == ("timeout", None)


def test_what_is_settled_or_in_flight_gets_no_case(scene: Scene) -> None:
    in_flight, _ = scene.dispatched()
    settled, ask = scene.dispatched()
    scene.agent.report(settled, 1, COMPLETED, nonce=ask)
    denied, ask = scene.dispatched()
    scene.agent.report(denied, 1, NOT_SENT, nonce=ask)
    scene.sweep()
    assert [len(scene.cases(one)) for one in (in_flight, settled, denied)] == [0, 0, 0]


def test_a_discrepancy_that_a_runtime_reported_gets_a_case_for_a_person(scene: Scene) -> None:
    operation_id, ask = scene.dispatched()
    scene.agent.report(operation_id, 1, COMPLETED, nonce=ask)
    scene.agent.report(operation_id, 1, {**COMPLETED, "receiver_reference": "re_2"}, nonce=ask)
    assert scene.workspace.facts(operation_id).standing is Standing.DISCREPANCY
    scene.sweep()
    case = scene.case(operation_id)
    assert (case.kind, case.escalation) == (CaseKind.DISCREPANCY, "duplicate_effect")
    scene.sweep()
    assert len(scene.cases(operation_id)) == 1


def test_an_unknown_that_becomes_a_discrepancy_keeps_its_case(scene: Scene) -> None:
    operation_id, ask = scene.dispatched()
    scene.agent.report(operation_id, 1, {"outcome": "unknown", "fault": "timeout"}, nonce=ask)
    scene.sweep()
    scene.agent.report(operation_id, 1, COMPLETED, nonce=ask)
    scene.agent.report(operation_id, 1, {**COMPLETED, "receiver_reference": "re_2"}, nonce=ask)
    before = scene.case(operation_id)
    scene.sweep()
    (case,) = scene.cases(operation_id)
    assert (case.kind, case.closed_at) == (CaseKind.DISCREPANCY, None)
    assert case.version > before.version


def test_a_name_that_was_spoken_of_and_is_not_on_record_gets_a_case(scene: Scene) -> None:
    resumed, reported = scene.workspace.operation_id(), scene.workspace.operation_id()
    expect = scene.workspace.intent(expect="recorded")
    assert scene.agent.put_intent(resumed, expect).status_code == 404
    assert scene.agent.report(reported, 1, COMPLETED, nonce=nonce()).status_code == 404
    scene.sweep()
    scene.sweep()
    for operation_id, why in ((resumed, "no_entry"), (reported, "outcome")):
        (case,) = scene.cases(operation_id)
        assert (case.kind, case.why, case.escalation) == (CaseKind.NO_ENTRY, why, "no_ledger_entry")
        assert (case.invocation_id, case.next_check_at) == (None, None)


def test_the_case_of_a_missing_name_is_over_once_it_is_recorded(scene: Scene) -> None:
    operation_id = scene.workspace.operation_id()
    scene.agent.report(operation_id, 1, COMPLETED, nonce=nonce())
    scene.sweep()
    scene.agent.put_intent(operation_id, scene.workspace.intent())
    assert scene.state(operation_id) == "unknown"  # evidence for it waited
    scene.sweep()
    missing, unknown = scene.cases(operation_id)
    assert missing.closed_by == "runtime"
    assert (unknown.kind, unknown.why, unknown.closed_at) == (CaseKind.UNKNOWN, "parked_evidence", None)


def test_a_report_of_an_attempt_that_is_not_on_record_stays_a_case(scene: Scene) -> None:
    operation_id, _ = scene.dispatched()
    assert scene.agent.report(operation_id, 7, UNKNOWN, nonce=nonce()).status_code == 409
    scene.sweep()
    scene.sweep()
    (case,) = scene.cases(operation_id)
    assert (case.kind, case.closed_at) == (CaseKind.NO_ENTRY, None)


def test_a_case_is_closed_when_the_runtime_reports_late(scene: Scene) -> None:
    operation_id, ask = scene.dispatched()
    scene.age(operation_id, 120)
    scene.sweep()
    assert scene.case(operation_id).closed_at is None
    scene.agent.report(operation_id, 1, COMPLETED, nonce=ask)
    scene.sweep()
    case = scene.case(operation_id)
    assert (case.closed_by, case.next_check_at) == ("runtime", None)
    assert "completed" in case.changed_what


def test_an_abandoned_operation_is_left_alone(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    ledger.set_standing(scene.id, operation_id, SYSTEM, Standing.ABANDONED)
    scene.sweep()
    scene.sweep()
    (case,) = scene.cases(operation_id)
    assert case.closed_at is not None


def test_a_sweep_says_when_it_was_and_what_it_did(scene: Scene) -> None:
    scene.unknown()
    services.sweep()
    seen = selectors.last_sweep()
    assert seen is not None
    assert seen.age_s < 5
    assert seen.opened >= 1
    assert seen.claimed >= 1


# Several at once.


def at_once(work: Callable[[], Any], times: int) -> list[Any]:
    """The answers of as many threads, each with a database connection of its own, begun together."""
    together = threading.Barrier(times)

    def run() -> Any:
        try:
            connection.ensure_connection()
            together.wait(10)
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(times) as pool:
        return [one.result() for one in [pool.submit(run) for _ in range(times)]]


# C79 F9
def test_sweeps_at_once_open_each_case_once_and_give_each_claim_to_one(scene: Scene) -> None:
    late = [scene.dispatched()[0] for _ in range(6)]
    unknown = [scene.unknown() for _ in range(6)]
    for operation_id in late:
        scene.age(operation_id, 120)
    sweeps = at_once(lambda: [*services.sweep().claims, *services.claim(at_most=500)], 4)
    claims = [claim for found in sweeps for claim in found if claim.workspace_id == scene.id]
    claims += [claim for claim in services.claim(at_most=500) if claim.workspace_id == scene.id]
    for operation_id in late + unknown:
        (case,) = scene.cases(operation_id)
        assert [claim.case_id for claim in claims].count(case.pk) == 1
        events = Counter(entry.event for entry in scene.workspace.entries(operation_id))
        assert events["lose"] == 1


# F36
def test_many_workers_with_one_claim_conclude_once(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    done = at_once(lambda: services.look_up(claim.workspace_id, claim.case_id, claim.fence), 8)
    assert len([one for one in done if one is not None]) == 1
    assert scene.receiver.questions_about(operation_id) == 1
    assert scene.state(operation_id) == "completed"


def test_a_claim_is_not_given_out_while_its_lease_runs_and_again_once_released(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    assert claim not in services.claim(at_most=500)
    services.release([claim])
    assert scene.claim(operation_id).fence == claim.fence + 1


def test_a_claim_that_is_no_longer_ours_is_not_released(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    old = scene.claim(operation_id)
    scene.change_case(operation_id, leased_until=CLOCK - timedelta(seconds=1))
    scene.claim(operation_id)
    services.release([old])
    assert scene.case(operation_id).leased_until is not None


# The doors.


def test_the_command_finds_asks_and_ends_when_it_is_told_to(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    with sweeping() as child:
        wait_until(lambda: scene.state(operation_id) == "completed", within_s=40)
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def published_without_a_broker(url: str, claim: services.Claim) -> tuple[str, float]:
    """(how many jobs the process says it published, seconds it took) with REDIS_URL at ``url``."""
    script = (
        "import django, config.celery; django.setup()\n"
        "import sys, time\n"
        "from reconciliation import services, tasks\n"
        "began = time.monotonic()\n"
        "count = tasks.hand_out((services.Claim(*map(int, sys.argv[1:])),) * 3)\n"
        "print(count, time.monotonic() - began)\n"
    )
    ids = [str(claim.workspace_id), str(claim.case_id), str(claim.fence)]
    done = subprocess.run(
        [sys.executable, "-c", script, *ids],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    count, took_s = done.stdout.split()
    return count, float(took_s)


# F14 F17
@pytest.mark.parametrize("frozen", [False, True], ids=["away", "frozen"])
def test_without_a_broker_the_claims_are_given_back_in_bounded_time(scene: Scene, frozen: bool) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if frozen:
            listener.listen()  # connections are accepted by the kernel and never answered
        count, took_s = published_without_a_broker(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", claim)
    assert count == "0"
    assert took_s < 15
    assert scene.case(operation_id).leased_until is None


def test_a_job_is_a_case_and_a_fence_and_asks_by_itself(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    assert tasks.look_up(claim.workspace_id, claim.case_id, claim.fence) is True
    assert tasks.look_up(claim.workspace_id, claim.case_id, claim.fence) is False
    assert scene.state(operation_id) == "completed"


# The second wall.


def test_cases_are_seen_in_their_own_workspace_only(scene: Scene, other_workspace: Arranged) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    assert not Case.objects.filter(operation_id=operation_id).exists()
    with tenancy.workspace(other_workspace.id):
        assert not Case.objects.filter(operation_id=operation_id).exists()
        assert not ParkedEvidence.objects.filter(workspace_id=scene.id).exists()
        assert not Invocation.objects.filter(operation_id=operation_id).exists()


def test_one_sweep_costs_by_open_work_and_not_by_history(scene: Scene) -> None:
    """Everything a sweep reads stands in the small tables or behind a partial index: no history is scanned."""
    plans = []
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute("SET enable_seqscan = off")
        try:
            for name in ("uncased", "disputed"):
                cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = %s", [f"reconciliation_{name}"])
                (body,) = cursor.fetchone()
                cursor.execute(f"EXPLAIN {body.replace('p_limit', '10')}")
                plans.append("\n".join(line for (line,) in cursor.fetchall()))
        finally:
            cursor.execute("RESET enable_seqscan")
            cursor.execute("SET ROLE counterfoil_app")
    for plan in plans:
        assert "Seq Scan on ledger_invocation" not in plan
    assert "discrepancies" in plans[1]


def test_a_sweep_of_nothing_is_quick(scene: Scene) -> None:
    for _ in range(10):
        if not services.sweep().claims:
            break
    began = time.monotonic()
    services.sweep()
    assert time.monotonic() - began < 1

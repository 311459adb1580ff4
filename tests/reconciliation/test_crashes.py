"""Workers and operators' web processes that die at a named point, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from reconciliation import services
from reconciliation.management.commands.sweep import once
from reconciliation.models import CLOCK
from tests.live import ROOT, process, wait_until
from tests.reconciliation.scene import Scene

pytestmark = pytest.mark.processes

PREPARE = "import json, sys, django; django.setup(); from reconciliation import services; given = json.loads(sys.argv[1])\n"
LOOK_UP = PREPARE + "services.look_up(*given)\n"
RESOLVE = PREPARE + (
    "from django.contrib.auth import get_user_model\n"
    "user = get_user_model().objects.get(pk=given.pop('user'))\n"
    "services.resolve(given.pop('workspace_id'), given.pop('operation_id'), user, given.pop('kind'), **given)\n"
)


def run_and_die(script: str, given: Any, point: str) -> None:
    """Runs the script in a process that is killed at the point."""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(given)],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "COUNTERFOIL_DEBUG": "true",
            "FAILPOINTS": f"{point}=kill",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


# F6 F7 F8 C44
@pytest.mark.parametrize(
    ("point", "asked_before"),
    [
        ("lookup.after_claim", 0),
        ("lookup.after_answer", 1),
        ("lookup.before_write", 1),
        # written, and nobody was told: nothing is left to do
        ("lookup.after_write", 1),
    ],
)
def test_a_worker_killed_anywhere_leaves_one_conclusion(scene: Scene, point: str, asked_before: int) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    run_and_die(LOOK_UP, [claim.workspace_id, claim.case_id, claim.fence], point)
    assert scene.receiver.questions_about(operation_id) == asked_before
    written = point == "lookup.after_write"
    assert scene.state(operation_id) == ("completed" if written else "unknown")
    if not written:
        scene.change_case(operation_id, leased_until=CLOCK - timedelta(seconds=1))
        again = scene.claim(operation_id)
        assert again.fence == claim.fence + 1
        assert services.look_up(again.workspace_id, again.case_id, again.fence) is not None
    assert scene.state(operation_id) == "completed"
    events = [entry.event for entry in scene.workspace.entries(operation_id)]
    assert events.count("complete") == 1
    assert [lookup.verdict for lookup in scene.lookups(operation_id)] == ["settle"]


@pytest.mark.parametrize("point", ["decision.before_commit", "decision.after_commit"])
def test_a_decision_whose_answer_was_lost_counts_once_or_not_at_all(scene: Scene, point: str) -> None:
    operator = scene.workspace.person("operator")
    operation_id = scene.unknown()
    scene.sweep()
    page = scene.case(operation_id).version
    given = {
        "workspace_id": scene.id,
        "operation_id": operation_id,
        "user": operator.pk,
        "kind": "happened",
        "version": page,
        "remark": "The receiver's dashboard shows it.",
        "references": ["re_1"],
    }
    run_and_die(RESOLVE, given, point)
    committed = point == "decision.after_commit"
    assert scene.state(operation_id) == ("completed" if committed else "unknown")
    assert scene.case(operation_id).version == page + committed


# C43 F8: the real worker, and nothing that it was not told by the broker or found by its sweep
def test_a_worker_asks_what_a_sweep_hands_out_over_the_broker(scene: Scene) -> None:
    if not os.environ.get("REDIS_URL"):
        pytest.skip("needs a broker: python -m config.embedded exec -- pytest …, or make test")
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    command = [
        sys.executable,
        "-m",
        "celery",
        "--quiet",
        "--app",
        "config.celery",
        "worker",
        "--pool",
        "prefork",
    ]
    ask = "import django, config.celery; django.setup(); from reconciliation import tasks; tasks.sweep.apply_async()"
    with process([*command, "--concurrency", "2", "--without-gossip", "--without-mingle"], {}):
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"}

        def swept() -> bool:
            subprocess.run([sys.executable, "-c", ask], cwd=ROOT, env=env, check=True, timeout=60)
            return scene.state(operation_id) == "completed"

        wait_until(swept, within_s=60, every_s=1)
    assert scene.receiver.questions_about(operation_id) == 1
    assert scene.case(operation_id).closed_by == "reconciler"


def test_one_pass_of_the_command_asks_and_counts(scene: Scene) -> None:
    while services.claim(at_most=500):
        pass  # what other tests left due stays claimed: it is not this test's to ask
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    counts = once()
    assert counts["opened"] >= 1
    assert counts["looked_up"] >= 1
    assert scene.state(operation_id) == "completed"

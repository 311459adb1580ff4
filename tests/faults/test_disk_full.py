"""The disk of the database is full: F26. On a small file system in memory, which only root may make."""

from __future__ import annotations

import errno
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arrange import NOT_SENT, UNKNOWN, Agent, nonce
from tests.faults.own import Own, own_servers
from tests.live import wait_until, web

pytestmark = [pytest.mark.processes, pytest.mark.long]

SIZE_MB = 640  # a cluster with its log, and a copy of the server's programs where its user cannot reach them
CHUNK = bytes(1 << 20)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    disk = Path(tempfile.mkdtemp(prefix="faults-disk-"))
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0711", "tmpfs", str(disk)],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            pytest.skip(f"no file system in memory can be made here: {made.stderr.strip()}")
        try:
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    finally:
        disk.rmdir()


def fill(path: Path) -> None:
    """Until nothing more fits, by the last page."""
    with open(path, "wb", buffering=0) as file:
        for chunk in (CHUNK, CHUNK[:4096]):
            try:
                while True:
                    file.write(chunk)
            except OSError as error:
                assert error.errno == errno.ENOSPC


# F26 I14 I11
def test_a_full_disk_gives_no_permit_and_loses_nothing_acknowledged(small_disk: Path) -> None:
    with own_servers(small_disk) as own, web(**own.env) as base_url:
        agent = own.agent(base_url)
        dispatched, mine = own.operation_id(), nonce()
        intent = own.intent(dispatched, dispatch=True)
        assert agent.put_intent(dispatched, intent, nonce=mine).status_code == 201
        filler = small_disk / "filler"
        fill(filler)
        acknowledged = write_until_refused(own, agent)
        for _ in range(3):
            refused = own.operation_id()
            answer = agent.put_intent(refused, own.intent(refused, dispatch=True), nonce=mine)
            if answer.status_code == 201:  # a page or two were still free
                acknowledged.append(refused)
                continue
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (503, "unavailable"), problem
            assert problem["repeat_request"] and "permit" not in problem
        reported = agent.report(dispatched, 1, UNKNOWN, nonce=mine)
        assert reported.status_code == 200 or reported.json()["code"] == "post-dispatch-evidence-failed"
        filler.unlink()
        if own.postgres.process.poll() is not None:  # it gives up where even its log cannot be written
            own.start_postgres()
        again = own.operation_id()
        intent = own.intent(again, dispatch=True)
        wait_until(lambda: agent.put_intent(again, intent, nonce=mine).status_code in (200, 201), within_s=60)
        assert agent.report(again, 1, NOT_SENT, nonce=mine).status_code == 200
        recorded = {name for (name,) in own.rows("SELECT operation_id FROM ledger_invocation")}
        assert set(acknowledged) <= recorded
        own.check()


def write_until_refused(own: Own, agent: Agent) -> list[str]:
    """Operations that were acknowledged before the disk was full: each leaves some kilobytes."""
    acknowledged: list[str] = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        operation_id = own.operation_id()
        answer = agent.put_intent(operation_id, own.intent(operation_id, checkpoint=f"{operation_id} " * 700))
        if answer.status_code != 201:
            assert answer.json()["code"] == "unavailable", answer.text
            return acknowledged
        acknowledged.append(operation_id)
    raise AssertionError(f"the disk was never full, after {len(acknowledged)} operations")

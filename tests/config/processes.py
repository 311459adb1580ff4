"""Real services for tests: started in folders of their own, and everything they start is known by its process ID."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.environment import ROOT, VARIABLES

UP_WITHIN_S = 60.0
GONE_WITHIN_S = 20.0


def clean_env(**changes: str) -> dict[str, str]:
    """The environment without any setting of the run that this test is part of."""
    ours = {variable.name for variable in VARIABLES}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"PYTHONUNBUFFERED": "1"} | changes


def python(*arguments: str, env: dict[str, str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _parents() -> dict[int, int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    return parents


def descendants(pid: int) -> dict[int, str]:
    """Every process below ``pid`` with its command line."""
    parents = _parents()
    found: dict[int, str] = {}
    wave = {pid}
    while wave:
        wave = {child for child, parent in parents.items() if parent in wave} - found.keys()
        for child in wave:
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                found[child] = "?"
    return found


def left_of(processes: dict[int, str]) -> dict[int, str]:
    """Which of ``processes`` still run after GONE_WITHIN_S."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        left = {pid: command for pid, command in processes.items() if pid in _parents()}
        if not left:
            break
        time.sleep(0.1)
    return left


@dataclass
class Service:
    """One ``run`` on a data folder of its own."""

    data: Path
    port: int
    env: dict[str, str]
    process: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + UP_WITHIN_S
        while f"web on http://localhost:{self.port}" not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        return descendants(self.process.pid)


@contextmanager
def service(folder: Path) -> Iterator[Service]:
    """A service that is up; whatever the test did to it, nothing of it is left afterwards."""
    port, log = a_free_port(), folder / "said.log"
    env = clean_env(
        COUNTERFOIL_DATA=str(folder / "data"), PORT=str(port), WEB_WORKERS="1", WORKER_PROCESSES="1"
    )
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "config.embedded", "run", "--pg-option", "fsync=off"],
            cwd=ROOT,
            env=env,
            stdout=output,
            stderr=output,
            text=True,
        )
    now = Service(folder / "data", port, env, process, log)
    try:
        now.wait_until_up()
        yield now
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(GONE_WITHIN_S)

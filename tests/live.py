"""The real service for one test run: granian and a Celery worker as processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
STARTS_WITHIN_S = 60


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own group; the whole group is ended afterwards, kindly first."""
    child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, start_new_session=True)
    try:
        yield child
    finally:
        for signum, patience_s in ((signal.SIGTERM, 8), (signal.SIGKILL, 8)):
            try:
                os.killpg(child.pid, signum)
            except ProcessLookupError:
                break
            try:
                child.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                continue
        child.wait(8)


@contextmanager
def web(*, workers: int = 1, threads: int = 16, **env: str) -> Iterator[str]:
    """A web server of its own; yields its base URL once it says that it is well."""
    with web_process(workers=workers, threads=threads, **env) as (_, base_url):
        yield base_url


@contextmanager
def web_process(
    *, workers: int = 1, threads: int = 16, **env: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The same with its process, which leads a group of its own."""
    port = free_port()
    command = [
        sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port),
        "--workers", str(workers), "--blocking-threads", str(threads), "--backpressure", str(4 * threads),
        "--respawn-failed-workers", "--workers-kill-timeout", "3s", "--no-ws", "--log-level", "warning",
        "config.wsgi:application",
    ]  # fmt: skip
    base_url = f"http://127.0.0.1:{port}"
    with process(command, {"PORT": str(port), **env}) as child:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            if child.poll() is not None:
                raise RuntimeError(f"the web ended with {child.returncode} instead of starting")
            try:
                if httpx.get(f"{base_url}/healthz", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"the web is not well after {STARTS_WITHIN_S} s")
            time.sleep(0.1)
        yield child, base_url


@contextmanager
def frozen(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Every process of its group stands still: not ended, not answering."""
    os.killpg(child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(child.pid, signal.SIGCONT)


@contextmanager
def sweeping(**env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep that needs no broker: expires leases, opens cases and asks receivers until it is ended."""
    with process([sys.executable, "manage.py", "sweep", "--forever"], env) as child:
        yield child


def wait_until(condition: object, *, within_s: float = 20, every_s: float = 0.1) -> object:
    """The condition's first true value; raises AssertionError when it does not come in time."""
    assert callable(condition)
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {condition}"
        time.sleep(every_s)

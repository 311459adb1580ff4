"""Web, worker and beat of the Procfile under honcho, beside servers that are already up.

Whoever ends first, by a crash or because its server went away, is named, and everything else is stopped. Honcho gives
each command a session and a middle process of its own, which would outlive a supervisor killed with -9; so each command
runs under ``config.watched``, and the middle processes die with us.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from honcho.environ import parse_procfile
from honcho.manager import Manager
from honcho.process import Process

from config import environment
from config.demo import demo as play_demo
from config.embedded import Running, say
from config.environment import read
from config.watched import die_with_parent, dying_with

LOOK_EVERY_S = 0.2
# A first start on a slow machine imports everything; afterwards the web answers in two or three seconds.
WEB_ANSWERS_WITHIN_S = 60.0


class _MortalProcess(Process):  # type: ignore[misc]
    """Honcho's middle process, which ends with the supervisor and lets go of the data folder's lock."""

    def run(self, events: object = None, ignore_signals: bool = False) -> None:
        die_with_parent(signal.SIGKILL)
        super().run(events, ignore_signals)


class _Supervisor(Manager):  # type: ignore[misc]
    """Honcho's manager; remembers who ended first and looks after the servers, too."""

    def __init__(self, now: Running, when_up: Callable[[], None]) -> None:
        super().__init__()
        self._process_ctor = _MortalProcess
        self._now = now
        self._when_up = when_up
        self.first_to_end: str | None = None
        self._errand: subprocess.Popen[bytes] | None = None

    def manage(self, *arguments: str, **env: str) -> bool:
        """Runs one management command beside the service and waits for it; see ``config.demo.Manage``."""
        if self._terminating:
            return False
        self._errand = subprocess.Popen(
            [sys.executable, str(environment.ROOT / "manage.py"), *arguments],
            env={**self._now.env, **env},
            stdout=sys.stderr,
            preexec_fn=dying_with(os.getpid(), signal.SIGTERM),
        )
        return self._errand.wait() == 0

    def say(self, line: str) -> None:
        """As ``say``, but silent once everything is being stopped."""
        if not self._terminating:
            say(line)

    def _start(self) -> None:
        super()._start()
        # Threads only now: everything above forks.
        for work in (self._look_after_servers, self._when_up):
            threading.Thread(target=work, daemon=True).start()

    def terminate(self) -> None:
        ended = [name for name, process in self._processes.items() if process.get("returncode") is not None]
        if not self._terminating and self.first_to_end is None and ended:
            self.first_to_end = f"{ended[0]} (exit code {self._processes[ended[0]]['returncode']})"
        super().terminate()
        if self._errand and self._errand.poll() is None:
            self._errand.terminate()

    def _look_after_servers(self) -> None:
        while not self._terminating:
            time.sleep(LOOK_EVERY_S)
            for server in self._now.servers:
                code = server.process.poll()
                if code is not None and not self._terminating and self._all_started():
                    self.first_to_end = f"{server.name} (exit code {code})"
                    self.terminate()
                    return


def _wait_for_web(port: int) -> bool:
    """Whether /healthz says 200 within WEB_ANSWERS_WITHIN_S."""
    deadline = time.monotonic() + WEB_ANSWERS_WITHIN_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                if answer.status == 200:
                    return True
        except urllib.error.HTTPError as error:
            error.close()  # 503: not yet
        except OSError:
            pass
        time.sleep(0.1)
    return False


def supervise(now: Running, port: int, *, demo: bool) -> int:
    """Runs the Procfile until Ctrl-C (0) or until something ends by itself (1)."""
    multiprocessing.set_start_method(
        "fork", force=True
    )  # honcho's processes are bound methods of live objects
    begun = time.monotonic()
    env = dict(now.env, PYTHONUNBUFFERED="1")
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    for name in ("PORT", "WEB_WORKERS", "WEB_THREADS"):
        env[name] = read(name, env)
    now.note(port)
    base_url = read("COUNTERFOIL_BASE_URL", env) or f"http://localhost:{port}"

    def when_up() -> None:
        if not _wait_for_web(port):
            supervisor.say(
                f"the web has not said it is well for {WEB_ANSWERS_WITHIN_S:.0f} s: see http://localhost:{port}/healthz"
            )
            return
        supervisor.say(f"web on {base_url} {time.monotonic() - begun:.1f} s (Ctrl-C stops everything)")
        if demo:
            play_demo(now.data, base_url, supervisor.manage, supervisor.say)

    supervisor = _Supervisor(now, when_up)
    watched = shlex.join([sys.executable, "-m", "config.watched", str(os.getpid()), "--", "sh", "-c"])
    for name, command in parse_procfile((environment.ROOT / "Procfile").read_text()).processes.items():
        supervisor.add_process(
            name, f"exec {watched} {shlex.quote(f'exec {command}')}", env=env, cwd=str(environment.ROOT)
        )
    supervisor.loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # what is left is stopping servers, once
    if supervisor.first_to_end:
        say(f"counterfoil: {supervisor.first_to_end} ended; everything else was stopped.")
        return 1
    say("stopped")
    return 0

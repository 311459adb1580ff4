"""Starting and stopping sandbox receivers: each a process of its own that ends with its starter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from .calls import Contract
from .faults import FaultSpec

REPOSITORY = Path(__file__).resolve().parents[2]
# Stopping lands what is still on its way, which takes milliseconds.
STOP_S = 10.0


class SandboxFailed(RuntimeError):
    """The sandbox receiver did not start, or ended while it was needed."""


class Sandbox:
    """A running sandbox receiver. ``base_url_of`` is all that a player may know of it."""

    def __init__(self, ledger: Path, *, faults: FaultSpec, seed: int, port: int = 0) -> None:
        self.ledger = ledger
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "reconciliation.rehearsal.sandbox", "--port", str(port)),
                *("--ledger", str(ledger), "--faults", str(faults), "--seed", str(seed), "--stop-on-eof"),
            ],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the rehearsal, which has calls under way to report first
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise SandboxFailed("the sandbox receiver ended without a word")
        self.base_url: str = json.loads(line)["base_url"]

    def base_url_of(self, contract: Contract) -> str:
        return f"{self.base_url}/{contract}/v1"

    def stop(self) -> None:
        """Ask it to stop; on return its ledger file is whole and closed. Raises SandboxFailed when it crashed."""
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if process.returncode != 0:
            raise SandboxFailed(f"the sandbox receiver ended with code {process.returncode}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

"""Runs a command that ends when its supervisor ends, however the supervisor ended.

    python -m config.watched SUPERVISOR_PID -- command argument …

The command gets a process group of its own. When the supervisor is gone (killed with -9, too), when this process is
asked to stop, or when the command has ended by itself, the whole group is ended. Linux only: prctl(2), pidfd_open(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable

# Below honcho's own patience of five seconds, so that the group is ended here and not only this process there.
GRACE_S = 4.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int) -> None:
    """Asks the kernel for ``signum`` when the parent's thread that made this process ends."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def dying_with(parent: int, signum: int) -> Callable[[], None]:
    """A ``preexec_fn``: as above, and closes the gap in which ``parent`` died before the kernel was asked."""

    def ask() -> None:
        die_with_parent(signum)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Asks the command to stop, waits, then kills whatever of its group is left."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def watch(supervisor: int, command: list[str]) -> int:
    """The command's exit code (128 + n when signal n ended it)."""
    die_with_parent(signal.SIGTERM)
    stopping: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _frame: stopping.append(number))
    try:
        gone = os.pidfd_open(supervisor)
    except ProcessLookupError:
        return 1
    child = subprocess.Popen(command, process_group=0, preexec_fn=dying_with(os.getpid(), signal.SIGTERM))
    poll = select.poll()
    poll.register(gone, select.POLLIN)
    poll.register(os.pidfd_open(child.pid), select.POLLIN)
    # The time-out is there for signals: poll(2) is resumed after a handler has run.
    while not stopping and not poll.poll(200):
        pass
    _end_group(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--" or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    sys.exit(watch(int(sys.argv[1]), sys.argv[3:]))

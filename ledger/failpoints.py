"""Named points in the real code at which a test makes the process die, fail or sleep.

``FAILPOINTS="outcome.before_commit=raise,permit.after_commit=kill"``; actions: kill, raise, sleep:<seconds>. Read once,
at import; refused outside of COUNTERFOIL_DEBUG.
"""

from __future__ import annotations

import os
import signal
import time

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

POINTS = frozenset(
    f"{what}.{when}"
    for what, moments in {
        "intent": ("before_commit", "after_commit"),
        "permit": ("before_commit", "after_commit"),
        "outcome": ("before_commit", "after_commit"),
        "lookup": ("after_claim", "after_answer", "before_write", "after_write"),
        "decision": ("before_commit", "after_commit"),
        "publish": ("before",),
    }.items()
    for when in moments
)


def _read(text: str) -> dict[str, str]:
    armed = dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())
    if armed and not settings.DEBUG:
        raise ImproperlyConfigured("FAILPOINTS is for tests: it needs COUNTERFOIL_DEBUG=true.")
    unknown = armed.keys() - POINTS
    if unknown:
        raise ImproperlyConfigured(f"FAILPOINTS names no point of the code: {', '.join(sorted(unknown))}.")
    return armed


_ARMED = _read(os.environ.get("FAILPOINTS", ""))


def reach(point: str) -> None:
    """Does what the environment ordered for this point: nothing, in every process that is not under test."""
    if not _ARMED:
        return
    action, _, amount = _ARMED.get(point, "").partition(":")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise OperationalError(f"failpoint {point}")
    elif action == "sleep":
        time.sleep(float(amount))

"""Waiting for an operation to change: one poller per process asks for all waiters at once.

A waiter holds a thread and no transaction. The database is asked four times a second however many wait; beyond the
caps a caller gets its answer at once and is told when to come again, so that waiting never keeps a permit waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from ledger.facts import Facts

POLL_S = 0.25
PER_PROCESS = settings.LONG_CALLS_MAX
PER_TOKEN = max(1, PER_PROCESS // 2)

logger = logging.getLogger("ledger.api")


@dataclass(eq=False)
class _Waiter:
    invocation_id: str
    version: int
    changed: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_waiters: set[_Waiter] = set()
_by_token: Counter[str] = Counter()
_poller: threading.Thread | None = None


def wait(facts: Facts, longest_s: float, *, token_id: str) -> float | None:
    """Returns when the operation's version is no longer the one in ``facts``, when its decision changes by itself, or
    after ``longest_s``; gives the seconds that were left. None: too many wait already, nothing was waited for."""
    until = time.monotonic() + longest_s
    if facts.changes_by_itself_at is not None:
        by_itself_s = (facts.changes_by_itself_at - facts.now).total_seconds()
        until = min(until, time.monotonic() + max(0.0, by_itself_s))
    waiter = _Waiter(facts.invocation_id, facts.version)
    with _lock:
        if len(_waiters) >= PER_PROCESS or _by_token[token_id] >= PER_TOKEN:
            return None
        _waiters.add(waiter)
        _by_token[token_id] += 1
        _start()
    try:
        waiter.changed.wait(max(0.0, until - time.monotonic()))
    finally:
        with _lock:
            _waiters.discard(waiter)
            _by_token[token_id] -= 1
            if not _by_token[token_id]:
                del _by_token[token_id]
    return max(0.0, until - time.monotonic())


def _start() -> None:
    """The poller, while somebody waits; called with the lock held."""
    global _poller
    if _poller is None:
        _poller = threading.Thread(target=_poll, name="waits", daemon=True)
        _poller.start()


def _poll() -> None:
    global _poller
    while True:
        time.sleep(POLL_S)
        with _lock:
            waiters = list(_waiters)
            if not waiters:
                _poller = None
                break
        try:
            versions = _versions([waiter.invocation_id for waiter in waiters])
        except (DatabaseError, InterfaceError) as error:
            # Their answers are read again by the waiters themselves, who then say what is wrong.
            logger.warning("waiters cannot be told apart: %s", error)
            connection.close()
            versions = {}
        for waiter in waiters:
            if versions.get(waiter.invocation_id) != waiter.version:
                waiter.changed.set()
    connection.close()


def _versions(invocation_ids: list[str]) -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT invocation_id::text, version FROM ledger_versions(%s::uuid[])", [invocation_ids]
        )
        return dict(cursor.fetchall())

"""The sweep without a broker: finds what is due and asks the receivers itself."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import InterfaceError, OperationalError, connection

from reconciliation import services

THREADS = 8  # receivers asked at once: they wait for the network, so more than processors
DRAIN_S = 2 * settings.RECEIVER_TIMEOUT_S  # look-ups under way get this long when the command is ended


class Command(BaseCommand):
    help = "Expires leases, opens and closes cases, and asks receivers about what is due. Needs no broker."

    def add_arguments(self, parser: CommandParser) -> None:
        how = parser.add_mutually_exclusive_group(required=True)
        how.add_argument(
            "--once", action="store_true", help="one pass, its look-ups included; prints its counts"
        )
        how.add_argument(
            "--forever", action="store_true", help=f"a pass every {settings.SWEEP_EVERY_S} s until ended"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["once"]:
            self.stdout.write(json.dumps(once()))
            return
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        forever(ended, say=self.stderr.write)


def once() -> dict[str, int]:
    """One pass with its look-ups; returns the sweep's counts and how many look-ups were recorded (``looked_up``)."""
    swept = services.sweep()
    with ThreadPoolExecutor(THREADS, "look-up") as pool:
        done = list(pool.map(_look_up, swept.claims))
    return {**swept.counts(), "looked_up": sum(done)}


def forever(ended: threading.Event, *, say: Any) -> None:
    """A pass every few seconds until ``ended`` is set. Claims no more than it has threads for, so that no claim waits."""
    under_way: set[Future[bool]] = set()
    with ThreadPoolExecutor(THREADS, "look-up") as pool:
        while not ended.is_set():
            began = time.monotonic()
            under_way = {one for one in under_way if not one.done()}
            try:
                swept = services.sweep(claimed_at_most=THREADS - len(under_way))
                under_way |= {pool.submit(_look_up, claim) for claim in swept.claims}
                again_at_once = len(swept.claims) == THREADS
            except (OperationalError, InterfaceError) as error:
                connection.close()
                say(f"the database does not answer: {error}")
                again_at_once = False
            if again_at_once:
                _wait_for_one(under_way, ended)
            else:
                ended.wait(max(0.0, settings.SWEEP_EVERY_S - (time.monotonic() - began)))


def _wait_for_one(under_way: set[Future[bool]], ended: threading.Event) -> None:
    """There may be more due than threads: goes on as soon as one is free."""
    while under_way and not ended.is_set() and not any(one.done() for one in under_way):
        ended.wait(0.05)


def _look_up(claim: services.Claim) -> bool:
    """In a thread of its own, with a database connection that is given back."""
    try:
        return services.look_up(claim.workspace_id, claim.case_id, claim.fence) is not None
    except (OperationalError, InterfaceError):
        return False  # the claim's lease ends and another sweep takes it
    finally:
        connection.close()

"""The sweep without a broker: finds what is due and asks the receivers itself."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connection

from reconciliation import services

THREADS = 8  # receivers asked at once: they wait for the network, so more than processors

logger = logging.getLogger(__name__)


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


def forever(ended: threading.Event, *, say: Callable[[str], object]) -> None:
    """A pass every few seconds until ``ended`` is set. Claims no more than it has threads for: no claim waits for one."""
    under_way: set[Future[bool]] = set()
    with ThreadPoolExecutor(THREADS, "look-up") as pool:
        while not ended.is_set():
            next_at = time.monotonic() + settings.SWEEP_EVERY_S
            try:
                claims = list(services.sweep(claimed_at_most=_free(under_way)).claims)
                while claims and not ended.is_set():
                    under_way |= {pool.submit(_look_up, claim) for claim in claims}
                    _wait_for_room(under_way, ended, next_at)
                    claims = services.claim(at_most=_free(under_way))
            except (DatabaseError, InterfaceError) as error:  # gone, frozen, read-only: it may pass
                connection.close()
                say(f"the sweep is repeated, the database refused it: {error}")
            ended.wait(max(0.0, next_at - time.monotonic()))


def _free(under_way: set[Future[bool]]) -> int:
    """How many look-ups can be begun; those that ended are forgotten, what went wrong in them is logged."""
    for one in [one for one in under_way if one.done()]:
        under_way.discard(one)
        if (error := one.exception()) is not None:
            logger.error("A look-up failed and will be made again", exc_info=error)
    return THREADS - len(under_way)


def _wait_for_room(under_way: set[Future[bool]], ended: threading.Event, next_at: float) -> None:
    """Until a thread is free or the next sweep is due: receivers that hang hold up no lease."""
    while len(under_way) == THREADS and not any(one.done() for one in under_way):
        if ended.wait(0.02) or time.monotonic() > next_at:
            return


def _look_up(claim: services.Claim) -> bool:
    """In a thread of its own, with a database connection that is given back."""
    try:
        return services.look_up(claim.workspace_id, claim.case_id, claim.fence) is not None
    except (DatabaseError, InterfaceError) as error:
        logger.warning("A look-up could not be recorded and will be made again: %s", error)
        return False  # the claim's lease ends and another sweep takes it
    finally:
        connection.close()

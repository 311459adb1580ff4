"""The receiver's ledger file, read when its process has ended. For the checker only: no player imports this."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Truth:
    """What one recorded call came to at the receiver: effects made, refusals, and the faults its requests met."""

    effects: int = 0
    declined: int = 0
    arrivals: int = 0
    faults: tuple[str, ...] = ()


NOTHING = Truth()


def read(ledger: Path) -> Mapping[str, Truth]:
    """What happened, by call name; calls that never arrived are absent. Raises sqlite3.Error on a file that is none."""
    database = sqlite3.connect(f"{ledger.resolve().as_uri()}?mode=ro", uri=True)
    try:
        made: dict[str, tuple[int, int]] = {
            call: (succeeded, failed)
            for call, succeeded, failed in database.execute(
                "select call, sum(status = 'succeeded'), sum(status = 'failed') from effects group by call"
            )
        }
        arrivals: dict[str, list[str | None]] = {}
        for call, fault in database.execute("select call, fault from arrivals order by number"):
            arrivals.setdefault(call, []).append(fault)
    finally:
        database.close()
    return {
        call: Truth(
            effects=made.get(call, (0, 0))[0],
            declined=made.get(call, (0, 0))[1],
            arrivals=len(arrivals.get(call, ())),
            faults=tuple(fault for fault in arrivals.get(call, ()) if fault),
        )
        for call in made.keys() | arrivals.keys()
    }


def lookups(ledger: Path) -> int:
    """How many look-ups the receiver was asked."""
    database = sqlite3.connect(f"{ledger.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return int(database.execute("select count(*) from lookups").fetchone()[0])
    finally:
        database.close()

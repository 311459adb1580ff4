"""What the servers cost: CPU and memory from /proc, statements from pg_stat_statements."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Processes:
    """Some processes, by number."""

    pids: tuple[int, ...]

    @classmethod
    def below(cls, ancestor: int, *, named: str) -> Processes:
        """Descendants whose command line says ``named``, and their children."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(stat[1])
                except (FileNotFoundError, ProcessLookupError):
                    continue
        family = {ancestor}
        while True:
            grown = family | {pid for pid, parent in parents.items() if parent in family}
            if grown == family:
                break
            family = grown
        roots = {pid for pid in family - {ancestor} if named in _command(pid)}
        return cls(tuple(pid for pid in family if pid in roots or parents.get(pid) in roots))

    def cpu_s(self) -> float:
        """Seconds of CPU they have used so far."""
        total = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def largest_mb(self) -> float:
        """Resident memory of the largest of them."""
        sizes = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE for pid in self.pids]
        return max(sizes) / 1e6


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def calls_of_statements(connection: Any) -> int:
    """Statements that clients have sent so far, this one not counted."""
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        cursor.execute(
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE 'SELECT%ledger_%'"
            " AND query NOT LIKE 'SELECT % FROM ONLY%'"  # the foreign keys' own checks
        )
        return int(cursor.fetchone()[0])

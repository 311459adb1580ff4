"""Servers of these tests' own, which may be killed, frozen and restarted: never those that the other tests share.

PostgreSQL stands behind a proxy, so that the service keeps its address over a restart; a receiver keeps its true ledger
in a process of its own, and ``check`` compares the record with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis

from config.embedded import Server, _elsewhere, start_postgres, start_valkey
from ledger.keys import Keyring
from reconciliation.rehearsal.calls import Contract
from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.receivers import Sandbox
from tests.arrange import Agent, over_http
from tests.faults.proxy import Proxy
from tests.live import ROOT, free_port, wait_until

# Bounds of a few seconds, so that what is lost is unknown, and proven, within a test.
LEASE_S = 2
CONTRACT = {"deduplicates": "none", "lookup": "by_reference", "visibility_lag_s": 1, "in_flight_s": 1}
RECONCILER = {
    "kind": "http_lookup",
    "url": "{base_url}/effects?client_reference={business_reference}",
    "items": "$.data[*]",
    "complete": {"path": "$.has_more", "equals": False},
    "attributed": {"path": "$.metadata.operation_id", "equals": "operation_id"},
    "reference": "$.id",
    "status": {"path": "$.status", "completed": ["succeeded"], "denied": ["failed"]},
    "match": {"$.arguments.amount": "/arguments/amount"},
}

ARGUMENTS = {"amount": "120.00", "currency": "EUR"}


@dataclass
class Own:
    """One PostgreSQL, one Valkey, one receiver and a workspace that uses them. ``env`` leads a process to them."""

    data: Path
    receiver: Sandbox
    postgres: Server
    valkey: Server
    proxy: Proxy
    broker_proxy: Proxy
    token: str = ""
    names: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))

    @property
    def env(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.proxy.url(self.postgres.url),
            "REDIS_URL": self.broker_proxy.url(self.valkey.url),
            "COUNTERFOIL_DATA": str(self.data),
            "COUNTERFOIL_KEYS": str(self.data / "keys"),
        }

    # What a runtime does.

    def agent(self, base_url: str, *, timeout_s: float = 30) -> Agent:
        return over_http(base_url, self.token, timeout_s=timeout_s)

    def operation_id(self) -> str:
        return f"op-{next(self.names)}"

    @staticmethod
    def intent(operation_id: str, **fields: Any) -> dict[str, Any]:
        return {
            "task_id": "task-1",
            "capability": "refund.create",
            # Of each operation its own, so that no operation waits for another as its possible duplicate.
            "arguments": {**ARGUMENTS, "order_id": operation_id},
            "business_reference": f"ref-{operation_id}",
            "actor": {"subject": "agent:support-7"},
            **fields,
        }

    def make_effect(self, operation_id: str, permit: Mapping[str, Any]) -> str:
        """What a tool does with its permit; returns the receiver's reference."""
        answer = httpx.post(
            f"{self.receiver.base_url_of(Contract.READABLE)}/tools/refund",
            json={
                "arguments": {**ARGUMENTS, "order_id": operation_id},
                "client_reference": f"ref-{operation_id}",
                "metadata": {"operation_id": operation_id},
            },
            headers={"Idempotency-Key": permit["idempotency_key"], "Rehearsal-Call": operation_id},
            trust_env=False,
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    # What is on record, seen by a connection that passes the proxy by.

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.superuser_url, autocommit=True) as connection:
            return connection.execute(statement, parameters).fetchall()  # type: ignore[arg-type]

    def change(self, statement: str, *parameters: Any) -> int:
        """Also of a database that is told to take no changes."""
        writes = "-c default_transaction_read_only=off"
        with psycopg.connect(self.postgres.superuser_url, autocommit=True, options=writes) as connection:
            return connection.execute(statement, parameters).rowcount  # type: ignore[arg-type]

    def state(self, operation_id: str) -> str | None:
        """What is recorded; None where nothing is."""
        found = self.rows("SELECT state FROM ledger_invocation WHERE operation_id = %s", operation_id)
        return None if not found else str(found[0][0])

    def attempts(self, operation_id: str) -> list[str]:
        """The states of its attempts, in their order."""
        found = self.rows(
            "SELECT a.state FROM ledger_attempt a JOIN ledger_invocation i ON i.id = a.invocation_id"
            " WHERE i.operation_id = %s ORDER BY a.number",
            operation_id,
        )
        return [state for (state,) in found]

    def settled(self, operation_id: str, *, within_s: float = 30) -> str:
        """The state once it is neither dispatched nor unknown."""

        def now() -> str | None:
            state = self.state(operation_id)
            return None if state in (None, "dispatched", "unknown") else state

        return str(wait_until(now, within_s=within_s))

    # What becomes of the servers.

    def stop_postgres_at_once(self) -> None:
        """As a crash: nothing is flushed, no session is told."""
        self.postgres.process.send_signal(signal.SIGQUIT)
        self.postgres.process.wait(20)

    def start_postgres(self) -> None:
        self.postgres = start_postgres(self.data)
        self.proxy.target = port_of(self.postgres)

    @contextmanager
    def frozen_postgres(self) -> Iterator[None]:
        """The server and all of its sessions stand still; their sockets stay open, and the kernel answers for them."""
        frozen = [self.postgres.process.pid, *children_of(self.postgres.process.pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def frozen_receiver(self) -> Iterator[None]:
        pid = self.receiver._process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def frozen_valkey(self) -> Iterator[None]:
        self.valkey.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.valkey.process.send_signal(signal.SIGCONT)

    @contextmanager
    def absent_valkey(self) -> Iterator[None]:
        """Nobody answers at its address; whoever does afterwards has kept nothing."""
        self.broker_proxy.target = free_port()
        self.broker_proxy.cut_all()
        try:
            yield
        finally:
            with self.broker() as client:
                client.flushall()
            self.broker_proxy.target = port_of(self.valkey)

    def broker(self) -> redis.Redis:
        """A client of our own Valkey, which it has made sure of."""
        client: redis.Redis = redis.Redis.from_url(self.valkey.url, socket_timeout=5)
        assert client.info("server")["process_id"] == self.valkey.process.pid
        return client

    def close(self) -> None:
        for proxy in (self.proxy, self.broker_proxy):
            proxy.close()
        for server in (self.valkey, self.postgres):
            server.stop()

    # The checker.

    def check(self) -> None:
        """Compares all that is on record with what the receiver did, which the service cannot read."""
        with sqlite3.connect(f"{self.receiver.ledger.as_uri()}?mode=ro", uri=True) as ledger:
            effects = dict(
                ledger.execute(
                    "SELECT operation_id, count(*) FROM effects WHERE status = 'succeeded' GROUP BY operation_id"
                ).fetchall()
            )
        assert not {name: made for name, made in effects.items() if made > 1}, "I5: more than one effect"
        rows = self.rows(
            "SELECT i.operation_id, i.id, i.state, i.version, i.attempt_count,"
            " (SELECT count(*) FROM ledger_attempt a WHERE a.invocation_id = i.id),"
            " (SELECT count(*) FROM ledger_attempt a WHERE a.invocation_id = i.id AND a.state = 'open'),"
            " (SELECT count(*) FROM ledger_entry e WHERE e.invocation_id = i.id),"
            " (SELECT count(*) FROM ledger_entry e WHERE e.invocation_id = i.id AND e.event = 'dispatch'),"
            " (SELECT count(*) FROM ledger_evidence v WHERE v.invocation_id = i.id),"
            " EXISTS (SELECT FROM ledger_reservation r WHERE r.invocation_id = i.id) FROM ledger_invocation i"
        )
        known = {row[0] for row in rows}
        assert effects.keys() <= known, "I1: an effect without a durable intent"
        for name, _, state, version, counted, attempts, open_, entries, permits, evidence, held in rows:
            assert counted == attempts == permits, f"{name}: {attempts} attempts, {permits} permits"  # I3
            assert open_ == (state == "dispatched"), f"{name}: {state} with {open_} open attempts"
            assert version == entries, f"{name}: version {version}, {entries} entries"  # I8: gapless
            assert held == (state in ("dispatched", "unknown")), f"{name}: {state}, held: {held}"
            if state == "completed":
                assert name in effects and evidence, (
                    f"{name}: completed, and the receiver knows of nothing"
                )  # I6
            if state == "denied" and attempts:
                assert name not in effects, f"{name}: denied, and the receiver has made it"  # I6 I7


def port_of(server: Server) -> int:
    return int(server.url.rpartition("@")[2].partition(":")[2].partition("/")[0])


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def document(receiver: Sandbox) -> dict[str, Any]:
    """The workspace of these tests, as ``manage.py provision`` reads it."""
    return {
        "workspace": "faults",
        "runtimes": [
            {
                "name": "support-agent",
                "scopes": ["intent", "permit", "outcome", "reconcile", "read"],
                "capabilities": ["*"],
                "subjects": ["*"],
            }
        ],
        "receivers": [
            {
                "name": "sandbox",
                "base_url": receiver.base_url_of(Contract.READABLE),
                "allow_private_addresses": True,
            }
        ],
        "capabilities": [
            {
                "name": "refund.create",
                "receiver": "sandbox",
                "lease_s": LEASE_S,
                "contract": CONTRACT,
                "reconciler": RECONCILER,
                "approval": {"required": False},
            }
        ],
        "mandates": [
            {
                "subject": "*",
                "capability": "*",
                "valid_until": (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        ],
    }


def manage(env: Mapping[str, str], *arguments: str) -> str:
    """What one management command says on standard output."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def own_servers(parent: Path | None = None) -> Iterator[Own]:
    """Servers in a temporary folder (in ``parent``), migrated and provisioned; ended with the tests, or with this
    process."""
    with ExitStack() as stack:
        data = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="faults-", dir=parent, ignore_cleanup_errors=True)
            )
        ).resolve()
        data.chmod(0o711)  # the servers' user must pass through
        stack.callback(shutil.rmtree, _elsewhere(data), ignore_errors=True)
        receiver = stack.enter_context(
            Sandbox(data / "receiver.sqlite", faults=FaultSpec.parse("none"), seed=1)
        )
        postgres, valkey = start_postgres(data), start_valkey(data)
        own = Own(data, receiver, postgres, valkey, Proxy(port_of(postgres)), Proxy(port_of(valkey)))
        stack.callback(own.close)
        Keyring.load(data / "keys", create=True)
        manage({**own.env, "COUNTERFOIL_DB_ROLE": "owner"}, "migrate", "--no-input", "--verbosity=0")
        path = data / "faults.json"
        path.write_text(json.dumps(document(receiver)))
        said = json.loads(manage(own.env, "provision", str(path), "--json"))
        own.token = said["runtimes"][0]["token"]
        (where,) = own.rows("SHOW data_directory")
        assert Path(where[0]).is_relative_to(data) or Path(where[0]).is_relative_to(_elsewhere(data))
        yield own

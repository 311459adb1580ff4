"""A load of its own processes: each connection records, is permitted and reports, one operation after the other.

Raw sockets and ready-made bytes, so that on two cores the client takes as little as it can from the server.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from urllib.parse import urlsplit


@dataclass
class Load:
    """What one run measured. Latencies in seconds, of single requests."""

    life_cycles: int = 0
    seconds: float = 0.0
    intents: list[float] = field(default_factory=list)
    outcomes: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return self.life_cycles / self.seconds

    def percentile(self, share: float) -> float:
        """Seconds within which that share of all requests was answered."""
        ordered = sorted(self.intents + self.outcomes)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


OUTCOME = json.dumps(
    {
        "outcome": "completed",
        "receiver_reference": "re_1",
        "evidence": {"source": "receiver_response", "http_status": 200, "body": {"id": "re_1"}},
    }
).encode()


def _exchange(stream: socket.socket, head: str, body: bytes, expected: int) -> None:
    stream.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    got = stream.recv(65536)
    while b"\r\n\r\n" not in got:
        got += stream.recv(65536)
    headers, _, rest = got.partition(b"\r\n\r\n")
    at = headers.lower().index(b"content-length:")
    length = int(headers[at + 15 :].split(b"\r\n", 1)[0])
    while len(rest) < length:
        rest += stream.recv(65536)
    if int(headers[9:12]) != expected:
        raise RuntimeError(f"{headers[:60]!r} {rest[:300]!r}")


def _connection(base_url: str, token: str, until: float, load: Load, lock: threading.Lock) -> None:
    address = urlsplit(base_url)
    stream = socket.create_connection((address.hostname, address.port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    common = f"host: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
    intents: list[float] = []
    outcomes: list[float] = []
    while time.monotonic() < until:
        name, nonce = f"bench-{secrets.token_hex(8)}", secrets.token_hex(12)
        body = json.dumps(
            {
                "task_id": f"task-{name}",
                "capability": "bench.create",
                "arguments": {"order_id": name, "amount": "120.00", "currency": "EUR", "note": "x" * 120},
                "actor": {"subject": "agent:bench"},
                "business_reference": name,
                "dispatch": True,
            }
        ).encode()
        head = f"PUT /api/v1/operations/{name} HTTP/1.1\r\n{common}permit-nonce: {nonce}\r\n"
        begun = time.perf_counter()
        _exchange(stream, head, body, 201)
        between = time.perf_counter()
        head = (
            f"PUT /api/v1/operations/{name}/attempts/1/outcome HTTP/1.1\r\n{common}permit-nonce: {nonce}\r\n"
        )
        _exchange(stream, head, OUTCOME, 200)
        intents.append(between - begun)
        outcomes.append(time.perf_counter() - between)
    with lock:
        load.life_cycles += len(intents)
        load.intents += intents
        load.outcomes += outcomes


def _process(base_url: str, token: str, connections: int, seconds: float, answer: Connection) -> None:
    load, lock = Load(), threading.Lock()
    begun = time.monotonic()
    threads = [
        threading.Thread(target=_connection, args=(base_url, token, begun + seconds, load, lock))
        for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.seconds = time.monotonic() - begun
    answer.send(load)


def life_cycles(base_url: str, token: str, *, connections: int, seconds: float) -> Load:
    """Runs the load; raises RuntimeError when any answer is not the expected one."""
    shares = [connections] if connections == 1 else [connections // 2, connections - connections // 2]
    context = multiprocessing.get_context("fork")
    started = []
    for share in shares:
        here, there = context.Pipe()
        child = context.Process(target=_process, args=(base_url, token, share, seconds, there))
        child.start()
        started.append((child, here))
    total = Load()
    for child, here in started:
        part = here.recv()
        child.join()
        total.life_cycles += part.life_cycles
        total.seconds = max(total.seconds, part.seconds)
        total.intents += part.intents
        total.outcomes += part.outcomes
    if total.life_cycles == 0:
        raise RuntimeError("no operation went through")
    return total

"""The sandbox receiver: a process of its own, with a ledger file of its own, that misbehaves by a plan.

    python -m reconciliation.rehearsal.sandbox --port 0 --ledger FILE.sqlite [--faults standard] [--seed 1]

It prints one line of JSON on standard output: ``{"port", "base_url", "pid"}``. Standard library only.

Under ``/{contract}/v1``, where contract is replays, readable or opaque:

| call | does |
| --- | --- |
| ``POST /tools/{tool}`` | body ``{"arguments": {…}, "client_reference"?, "metadata"?: {"operation_id"?}}``, header ``Idempotency-Key`` (required by replays). 201 with the effect; 402 declined; 409 the same key is in progress; 422 the same key with another body |
| ``GET /effects?client_reference=&operation_id=&idempotency_key=&tool=&limit=&starting_after=`` | ``{"data": […], "has_more", "next_url", "account"}``, oldest first; 403 from opaque |
| ``GET /effects/by-key/{key}`` | one item, or 404 |

An item: ``{"id", "status": succeeded | failed, "tool", "arguments", "client_reference", "idempotency_key", "metadata":
{"operation_id"}, "failure_reason", "created_at", "account"}``. The header ``Rehearsal-Call`` names the recorded call: it
is the rehearsal's instrument, by which faults are planned and effects counted; nothing a receiver answers depends on
it otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from .calls import Contract
from .faults import Fault, FaultSpec, FaultSpecError, Plan

# Arguments of a call are capped by the service at 256 KiB; the envelope around them is small.
LARGEST_BODY = 1024 * 1024
PAGE, LARGEST_PAGE = 20, 100
# An idle kept-alive connection holds a thread; a minute is longer than a look-up worker pauses.
IDLE_S = 60.0

SCHEMA = """
create table if not exists arrivals (
    number integer primary key, at real not null, contract text not null, call text not null, arrival integer not null,
    idempotency_key text, operation_id text, fault text, handling text not null);
create index if not exists arrivals_of_a_call on arrivals (call);
create table if not exists effects (
    number integer primary key, reference text not null unique, contract text not null, call text not null,
    tool text not null, idempotency_key text, operation_id text, client_reference text, arguments text not null,
    status text not null check (status in ('succeeded', 'failed')), reason text,
    landed_at real not null, visible_at real not null);
create index if not exists effects_by_reference on effects (contract, client_reference);
create index if not exists effects_by_operation on effects (contract, operation_id);
create index if not exists effects_by_key on effects (contract, idempotency_key);
create table if not exists keys (
    contract text not null, key text not null, fingerprint text not null, status integer, body text,
    primary key (contract, key));
create table if not exists lookups (
    number integer primary key, at real not null, contract text not null, question text not null,
    asked integer not null, status integer not null);
"""

# Columns as ``item_of`` takes them.
NUMBERED = """
select reference, contract, tool, idempotency_key, operation_id, client_reference, arguments, status, reason, landed_at
from effects where number = ?"""
VISIBLE = """
select reference, contract, tool, idempotency_key, operation_id, client_reference, arguments, status, reason, landed_at
from effects where contract = ? and visible_at <= ?"""
CRITERIA = {
    "client_reference": " and client_reference = ?",
    "operation_id": " and operation_id = ?",
    "idempotency_key": " and idempotency_key = ?",
    "tool": " and tool = ?",
}
AFTER = " and number > (select number from effects where reference = ?)"


class Handling(StrEnum):
    """What an arrival came to, whatever the caller got to see of it."""

    APPLIED = "applied"
    DECLINED = "declined"
    NOT_APPLIED = "not_applied"
    LATER = "later"
    REPLAYED = "replayed"
    IN_PROGRESS = "in_progress"
    KEY_REUSED = "key_reused"


@dataclass(frozen=True, slots=True)
class Order:
    """One request to make an effect."""

    contract: Contract
    call: str
    tool: str
    arguments: Any
    idempotency_key: str | None
    operation_id: str | None
    client_reference: str | None

    @property
    def fingerprint(self) -> str:
        content = json.dumps(
            [self.tool, self.arguments, self.operation_id, self.client_reference], sort_keys=True
        )
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back. ``cut``: nothing does, the connection is reset; ``after_s``: how long it is kept waiting."""

    status: int = 0
    body: Any = None
    cut: bool = False
    after_s: float = 0.0
    replayed: bool = False
    retry_after_s: int | None = None


CUT = Answer(cut=True)


def refusal(status: int, code: str, message: str, *, retry_after_s: int | None = None) -> Answer:
    return Answer(status, {"error": {"code": code, "message": message}}, retry_after_s=retry_after_s)


class Receiver:
    """The receiver's business: one ledger, one lock, one plan. Every commit precedes the answer that tells of it."""

    def __init__(self, ledger: Path, plan: Plan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._landings: dict[int, Order] = {}
        self._landing = 0
        self._closed = False
        self._database = sqlite3.connect(ledger, check_same_thread=False, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = normal")
        self._database.executescript(SCHEMA)

    def take(self, order: Order) -> Answer:
        """Make the effect, or do to the request what the plan says. Returns what the caller gets to see."""
        with self._lock:
            if self._closed:
                return CUT
            arrival = 1 + self._one("select count(*) from arrivals where call = ?", order.call)
            fault = self._plan.fault_of(order.call, arrival)
            with self._database:
                self._database.execute("begin immediate")
                handling, answer = self._handle(order, fault)
                self._database.execute(
                    "insert into arrivals (at, contract, call, arrival, idempotency_key, operation_id, fault, handling)"
                    " values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        time.time(),
                        order.contract,
                        order.call,
                        arrival,
                        order.idempotency_key,
                        order.operation_id,
                        fault,
                        handling,
                    ),
                )
            if handling is Handling.LATER:
                self._land_later(order)
        match fault:
            case Fault.CUT | Fault.LOST | Fault.HIDDEN | Fault.LATE:
                return CUT
            case Fault.SERVER_ERROR_AFTER:
                return refusal(500, "internal", "something went wrong")
            case Fault.SLOW:
                return Answer(
                    answer.status, answer.body, after_s=self._plan.spec.slow_s, replayed=answer.replayed
                )
        return answer

    def _handle(self, order: Order, fault: Fault | None) -> tuple[Handling, Answer]:
        """What truly happens to one arrival, inside the lock and the transaction."""
        if fault is Fault.LOST:
            return Handling.NOT_APPLIED, CUT
        if fault is Fault.SERVER_ERROR_BEFORE:
            return Handling.NOT_APPLIED, refusal(503, "unavailable", "try again later")
        if order.contract is Contract.REPLAYS:
            known = self._database.execute(
                "select fingerprint, status, body from keys where contract = ? and key = ?",
                (order.contract, order.idempotency_key),
            ).fetchone()
            if known is not None:
                fingerprint, status, body = known
                if fingerprint != order.fingerprint:
                    return Handling.KEY_REUSED, refusal(422, "key_reused", "this key came with another body")
                if status is None:
                    in_progress = refusal(
                        409, "key_in_progress", "a request with this key is running", retry_after_s=1
                    )
                    return Handling.IN_PROGRESS, in_progress
                return Handling.REPLAYED, Answer(status, json.loads(body), replayed=True)
            self._database.execute(
                "insert into keys (contract, key, fingerprint) values (?, ?, ?)",
                (order.contract, order.idempotency_key, order.fingerprint),
            )
        if fault is Fault.LATE:
            return Handling.LATER, CUT
        answer = self._land(order, hidden_s=self._plan.spec.hidden_s if fault is Fault.HIDDEN else 0.0)
        return (Handling.DECLINED if answer.status == 402 else Handling.APPLIED), answer

    def _land(self, order: Order, *, hidden_s: float = 0.0) -> Answer:
        """Write the effect, or the refusal, into the ledger. Returns the truthful answer."""
        declined = self._plan.declines(order.call)
        landed_at = time.time()
        number = 1 + self._one("select coalesce(max(number), 0) from effects")
        reference = f"ef_{number:06d}"
        self._database.execute(
            "insert into effects (number, reference, contract, call, tool, idempotency_key, operation_id,"
            " client_reference, arguments, status, reason, landed_at, visible_at)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                reference,
                order.contract,
                order.call,
                order.tool,
                order.idempotency_key,
                order.operation_id,
                order.client_reference,
                json.dumps(order.arguments),
                "failed" if declined else "succeeded",
                "declined_by_receiver" if declined else None,
                landed_at,
                landed_at + hidden_s,
            ),
        )
        if declined:
            answer = refusal(402, "declined_by_receiver", "this call is declined")
        else:
            row = self._database.execute(NUMBERED, (number,)).fetchone()
            answer = Answer(201, item_of(row))
        if order.contract is Contract.REPLAYS:
            self._database.execute(
                "update keys set status = ?, body = ? where contract = ? and key = ?",
                (answer.status, json.dumps(answer.body), order.contract, order.idempotency_key),
            )
        return answer

    def _land_later(self, order: Order) -> None:
        self._landing += 1
        self._landings[self._landing] = order
        timer = threading.Timer(self._plan.spec.late_s, self._land_now, (self._landing,))
        timer.daemon = True
        timer.start()

    def _land_now(self, landing: int) -> None:
        with self._lock:
            order = self._landings.pop(landing, None)
            if order is not None and not self._closed:
                with self._database:
                    self._database.execute("begin immediate")
                    self._land(order)

    def look_up(
        self, contract: Contract, criteria: dict[str, str], *, limit: int, after: str | None
    ) -> Answer:
        """One page of what is visible now, oldest first. ``criteria`` maps columns of the ledger to wanted values."""
        question = json.dumps([contract, criteria, limit, after], sort_keys=True)
        with self._lock:
            if self._closed:
                return CUT
            asked = 1 + self._one("select count(*) from lookups where question = ?", question)
            answer = refusal(503, "unavailable", "try again later")
            if not self._plan.blinds(question, asked):
                answer = Answer(200, self._page(contract, criteria, limit=limit, after=after))
            self._database.execute(
                "insert into lookups (at, contract, question, asked, status) values (?, ?, ?, ?, ?)",
                (time.time(), contract, question, asked, answer.status),
            )
        return answer

    def _page(self, contract: Contract, criteria: dict[str, str], *, limit: int, after: str | None) -> Any:
        statement = VISIBLE + "".join(CRITERIA[column] for column in criteria)
        values: list[Any] = [contract, time.time(), *criteria.values()]
        if after is not None:
            statement += AFTER
            values.append(after)
        rows = self._database.execute(f"{statement} order by number limit ?", (*values, limit + 1)).fetchall()
        return {
            "data": [item_of(row) for row in rows[:limit]],
            "has_more": len(rows) > limit,
            "account": account_of(contract),
        }

    def close(self) -> None:
        """Let everything land that is still on its way, then close the file: what it holds now is the truth."""
        with self._lock:
            if self._closed:
                return
            for order in self._landings.values():
                with self._database:
                    self._database.execute("begin immediate")
                    self._land(order)
            self._landings.clear()
            self._closed = True
            self._database.close()

    def _one(self, statement: str, *values: Any) -> int:
        return int(self._database.execute(statement, values).fetchone()[0])


def item_of(row: Sequence[Any]) -> dict[str, Any]:
    """One ledger row, columns as in NUMBERED, as the receiver shows it."""
    reference, contract, tool, key, operation_id, client_reference, arguments, status, reason, landed_at = row
    return {
        "id": reference,
        "status": status,
        "tool": tool,
        "arguments": json.loads(arguments),
        "client_reference": client_reference,
        "idempotency_key": key,
        "metadata": {"operation_id": operation_id},
        "failure_reason": reason,
        "created_at": datetime.fromtimestamp(landed_at, UTC).isoformat(),
        "account": account_of(contract),
    }


def account_of(contract: str) -> str:
    return f"sandbox-{contract}"


class Server(ThreadingHTTPServer):
    """A threaded HTTP server that can reset a connection instead of closing it politely."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], receiver: Receiver) -> None:
        self.receiver = receiver
        self.resets: set[int] = set()
        super().__init__(address, Door)

    @property
    def base_url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def shutdown_request(self, request: Any) -> None:
        """Close a connection. One that is to be reset skips the farewell: closing with lingering off sends RST."""
        if id(request) in self.resets:
            self.resets.discard(id(request))
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is everyday business here; anything else is printed."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Door(BaseHTTPRequestHandler):
    """Reads requests, writes answers; knows nothing of the business."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_S

    def do_POST(self) -> None:
        answer = self._post()
        if answer.after_s:
            time.sleep(answer.after_s)
        self._send(answer)

    def do_GET(self) -> None:
        self._send(self._get())

    def _post(self) -> Answer:
        contract, rest = self._route(urlsplit(self.path).path)
        body = self._body()
        if isinstance(body, Answer):
            self.close_connection = True
            return body
        if contract is None or len(rest) != 2 or rest[0] != "tools" or not rest[1]:
            return refusal(404, "no_such_endpoint", "POST /{contract}/v1/tools/{tool}")
        order = self._order(contract, rest[1], body)
        return order if isinstance(order, Answer) else self.server.receiver.take(order)

    def _get(self) -> Answer:
        parts = urlsplit(self.path)
        contract, rest = self._route(parts.path)
        if contract is None or rest[:1] != ["effects"] or len(rest) not in (1, 3):
            return refusal(404, "no_such_endpoint", "GET /{contract}/v1/effects")
        if contract is Contract.OPAQUE:
            return refusal(403, "cannot_be_asked", "this receiver shows nobody what it did")
        if len(rest) == 3:
            return self._by_key(contract, rest)
        return self._list(contract, parts.path, {k: v[-1] for k, v in parse_qs(parts.query).items()})

    def _by_key(self, contract: Contract, rest: list[str]) -> Answer:
        if rest[1] != "by-key":
            return refusal(404, "no_such_endpoint", "GET /{contract}/v1/effects/by-key/{key}")
        answer = self.server.receiver.look_up(contract, {"idempotency_key": rest[2]}, limit=1, after=None)
        if answer.cut or answer.status != 200:
            return answer
        items = answer.body["data"]
        return Answer(200, items[0]) if items else refusal(404, "not_found", "no effect under this key")

    def _list(self, contract: Contract, path: str, query: dict[str, str]) -> Answer:
        """One page with the way to the next. Unknown parameters are refused: an ignored filter lists too much."""
        unknown = sorted(set(query) - {*CRITERIA, "limit", "starting_after"})
        limit = query.get("limit", str(PAGE))
        if unknown or not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= LARGEST_PAGE:
            return refusal(
                400, "bad_query", f"limit is 1 to {LARGEST_PAGE}; unknown: {', '.join(unknown) or 'none'}"
            )
        criteria = {column: query[column] for column in CRITERIA if column in query}
        answer = self.server.receiver.look_up(
            contract, criteria, limit=int(limit), after=query.get("starting_after")
        )
        if answer.status == 200 and not answer.cut:
            following = None
            if answer.body["has_more"]:
                turned = {**criteria, "limit": limit, "starting_after": answer.body["data"][-1]["id"]}
                following = f"{self.server.base_url}{path}?{urlencode(turned)}"
            answer.body["next_url"] = following
        return answer

    def _route(self, path: str) -> tuple[Contract | None, list[str]]:
        pieces = [unquote(piece) for piece in path.split("/")[1:]]
        if len(pieces) < 3 or pieces[0] not in list(Contract) or pieces[1] != "v1":
            return None, []
        return Contract(pieces[0]), pieces[2:]

    def _body(self) -> Any:
        """The parsed body, or the Answer that refuses it."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            return refusal(411, "length_required", "send Content-Length")
        if int(length) > LARGEST_BODY:
            return refusal(413, "too_large", f"at most {LARGEST_BODY} bytes")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return refusal(400, "bad_json", "the body is not JSON")

    def _order(self, contract: Contract, tool: str, body: Any) -> Order | Answer:
        key = self.headers.get("Idempotency-Key")
        if not isinstance(body, dict) or not isinstance(body.get("arguments"), dict):
            return refusal(400, "bad_body", "arguments must be an object")
        metadata = body.get("metadata")
        operation_id = metadata.get("operation_id") if isinstance(metadata, dict) else None
        reference = body.get("client_reference")
        if not all(name is None or _writable(name) for name in (operation_id, reference)):
            return refusal(400, "bad_body", "client_reference and metadata.operation_id must be strings")
        if contract is Contract.REPLAYS and not key:
            return refusal(400, "key_required", "send Idempotency-Key")
        call = self.headers.get("Rehearsal-Call") or operation_id or key or "unnamed"
        return Order(contract, unquote(call), tool, body["arguments"], key, operation_id, reference)

    def _send(self, answer: Answer) -> None:
        if answer.cut:
            self.server.resets.add(id(self.request))
            self.close_connection = True
            return
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if answer.replayed:
            self.send_header("Idempotent-Replayed", "true")
        if answer.retry_after_s is not None:
            self.send_header("Retry-After", str(answer.retry_after_s))
        if self.close_connection:
            self.send_header("Connection", "close")
        # One write: headers and body in two packets would wait for each other's acknowledgement.
        self._headers_buffer.append(b"\r\n" + body)  # type: ignore[attr-defined]
        self.flush_headers()

    def log_message(self, *_: Any) -> None:
        """Silence: the ledger file is the log."""


def _writable(name: Any) -> bool:
    """Whether a name is text that a file can hold: JSON can spell lone surrogates, UTF-8 cannot."""
    return isinstance(name, str) and not any("\ud800" <= c <= "\udfff" for c in name)


def call_header(name: str) -> str:
    """A call's name as the header ``Rehearsal-Call`` carries it."""
    return quote(name, safe="")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reconciliation.rehearsal.sandbox", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one (default)")
    parser.add_argument(
        "--ledger", type=Path, required=True, help="the receiver's own ledger, an SQLite file"
    )
    parser.add_argument(
        "--faults", default="standard", help="standard, none, or name=rate,… (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the fault plan (default %(default)s)")
    parser.add_argument(
        "--stop-on-eof", action="store_true", help="stop when standard input ends: with its starter"
    )
    options = parser.parse_args(arguments)
    try:
        plan = Plan(FaultSpec.parse(options.faults), options.seed)
    except FaultSpecError as error:
        parser.error(str(error))
    try:
        receiver = Receiver(options.ledger, plan)
        server = Server((options.host, options.port), receiver)
    except (sqlite3.Error, OSError) as error:
        sys.stderr.write(
            f"sandbox receiver: {options.ledger} or port {options.port} cannot be used: {error}\n"
        )
        return 1

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    def stop_on_eof() -> None:
        # Straight from the descriptor: a thread that sleeps inside a buffered reader would hold its lock at exit.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if options.stop_on_eof:
        threading.Thread(target=stop_on_eof, daemon=True).start()
    told = {"port": server.server_address[1], "base_url": server.base_url, "pid": os.getpid()}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        server.socket.close()
        receiver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One request to a receiver, and what its answer proves. Never a retry: who may send again is not decided here.

Connecting and sending are two steps on a connection of their own, so that what fails in the first provably sent
nothing, and no kept-alive connection that the other side has just closed turns a clear case into an unclear one.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

# What a receiver's answer may weigh before it is cut off; longer answers are unclear, not read for ever.
LARGEST_REPLY = 1024 * 1024


class Outcome(StrEnum):
    """What a runtime may report about an attempt."""

    COMPLETED = "completed"
    DENIED = "denied"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that arrived whole. ``body`` is parsed JSON, or None when it is not JSON; ``text`` as received."""

    status: int
    body: Any
    text: str
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class NoReply:
    """No answer. ``sent``: whether anything may have left; ``fault``: the name it is reported by."""

    fault: str
    sent: bool


@dataclass(frozen=True, slots=True)
class Report:
    """An outcome, and what it rests on. ``body`` is what the service's outcome endpoint takes."""

    outcome: Outcome
    body: Mapping[str, Any] = field(default_factory=dict)


def send(url: str, content: bytes, *, headers: Mapping[str, str], timeout_s: float) -> Reply | NoReply:
    """POST ``content`` once. ``timeout_s`` bounds connecting, and then each wait for the receiver."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        try:
            connection.connect()
        except OSError as error:
            return NoReply(_fault_of_connecting(error), sent=False)
        try:
            connection.request(
                "POST", parts.path, body=content, headers={"Content-Type": "application/json", **headers}
            )
            response = connection.getresponse()
            raw = response.read(LARGEST_REPLY + 1)
        except (OSError, http.client.HTTPException) as error:
            return NoReply(_fault_after_connecting(error), sent=True)
        if len(raw) > LARGEST_REPLY:
            return NoReply("reply_too_large", sent=True)
        if (
            response.length
        ):  # bytes that were promised and did not come: a capped read does not complain of them
            return NoReply("reply_truncated", sent=True)
        text = raw.decode("utf-8", "replace")
        retry_after = response.headers.get("Retry-After", "")
        return Reply(
            status=response.status,
            body=_parsed(text),
            text=text,
            retry_after_s=int(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
        )
    finally:
        connection.close()


def _fault_of_connecting(error: OSError) -> str:
    """Names of the ledger's *not sent* list; anything that is not on it keeps its own name, and stays unproven."""
    match error:
        case socket.gaierror():
            return "dns_failure"
        case ssl.SSLError():
            return "tls_failed"
        case ConnectionRefusedError():
            return "connection_refused"
        case TimeoutError():
            return "connect_timeout"
    return "connect_failed"


def _fault_after_connecting(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "timeout"
        case http.client.RemoteDisconnected():
            return "connection_closed"
        case ConnectionError():
            return "connection_reset"
        case http.client.IncompleteRead():
            return "reply_truncated"
        case http.client.HTTPException():
            return "reply_unreadable"
    return "transport_error"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# A refusal proves that no effect exists; these 4xx do not: time-out, conflict (the same key may be running), too early.
UNCLEAR_4XX = frozenset({408, 409, 425})


def classify(answer: Reply | NoReply) -> Report:
    """What an answer lets a runtime say. In doubt, unknown: a failure that proves nothing is not a denial."""
    if isinstance(answer, NoReply):
        outcome = Outcome.UNKNOWN if answer.sent else Outcome.NOT_SENT
        return Report(outcome, {"outcome": outcome, "fault": answer.fault})
    evidence = {
        "source": "receiver_response",
        "http_status": answer.status,
        "body": answer.text if answer.body is None else answer.body,
    }
    members = answer.body if isinstance(answer.body, dict) else {}
    if (
        answer.status in (200, 201)
        and members.get("status") == "succeeded"
        and isinstance(members.get("id"), str)
    ):
        return Report(
            Outcome.COMPLETED,
            {
                "outcome": Outcome.COMPLETED,
                "receiver_reference": members["id"],
                "result": {"id": members["id"], "status": members["status"]},
                "evidence": evidence,
            },
        )
    if 400 <= answer.status < 500 and answer.status not in UNCLEAR_4XX:
        error = members.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        reason = code if isinstance(code, str) and code else f"http_{answer.status}"
        return Report(
            Outcome.DENIED, {"outcome": Outcome.DENIED, "denial": {"reason": reason}, "evidence": evidence}
        )
    fault = f"http_{answer.status}" if not 200 <= answer.status < 300 else "reply_not_final"
    body: dict[str, Any] = {"outcome": Outcome.UNKNOWN, "fault": fault, "evidence": evidence}
    if answer.retry_after_s is not None:
        body["retry_after_s"] = answer.retry_after_s
    return Report(Outcome.UNKNOWN, body)

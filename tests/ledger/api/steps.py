"""The steps that most tests of the runtime API begin with, and how an answer is read."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from tests.arrange import Agent, Arranged, nonce

MACHINE_FIELDS = frozenset(
    [
        "code",
        "title",
        "detail",
        "retryable",
        "repeat_request",
        "reuse_key",
        "reconciliation_required",
        "effect_may_have_happened",
    ]
)
"""What every problem carries in its body, because agents do not see headers."""


@dataclass(frozen=True)
class Dispatched:
    """An operation whose attempt is in flight, as its holder knows it."""

    operation_id: str
    nonce: str
    permit: dict[str, Any]
    body: dict[str, Any]

    @property
    def token(self) -> str:
        return str(self.permit["token"])


def own_arguments() -> dict[str, Any]:
    """Arguments that no other operation has, so that none is taken for its twin."""
    return {"order_id": secrets.token_hex(6), "amount": "120.00", "currency": "EUR"}


def record(agent: Agent, workspace: Arranged, **fields: Any) -> str:
    """A recorded intent's operation ID."""
    operation_id = workspace.operation_id()
    fields.setdefault("arguments", own_arguments())
    answer = agent.put_intent(operation_id, workspace.intent(**fields))
    assert answer.status_code == 201, answer.json()
    return operation_id


def dispatch(agent: Agent, workspace: Arranged, **fields: Any) -> Dispatched:
    """A recorded intent with the permit of attempt 1."""
    return ask(agent, record(agent, workspace, **fields), 1)


def ask(agent: Agent, operation_id: str, number: int) -> Dispatched:
    """The permit of an attempt, which must be given."""
    minted = nonce()
    answer = agent.ask(operation_id, number, nonce=minted)
    assert answer.status_code == 201, answer.json()
    body = answer.json()
    return Dispatched(operation_id, minted, body["permit"], body)


def lost(agent: Agent, workspace: Arranged, **fields: Any) -> Dispatched:
    """An operation whose lease has ended without a report; nobody has read or swept it since."""
    held = dispatch(agent, workspace, **fields)
    workspace.end_lease(held.operation_id)
    return held


def ok(answer: Any, status: int = 200) -> dict[str, Any]:
    """The operation body of an answer that must have this status."""
    body: dict[str, Any] = answer.json()
    assert answer.status_code == status, body
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    return body


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The body of a refusal that must be this one, with every field that a machine reads."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body.get("code")) == (status, code), body
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert body["status"] == status
    missing = MACHINE_FIELDS - body.keys()
    assert not missing, f"{code} lacks {missing}"
    for field in ("retryable", "repeat_request", "reuse_key", "reconciliation_required"):
        assert isinstance(body[field], bool), f"{code}: {field} is {body[field]!r}"
    assert body["effect_may_have_happened"] in (True, False, None)
    assert answer.headers.get("Retry-After") == (str(body["retry_after"]) if "retry_after" in body else None)
    return body

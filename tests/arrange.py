"""A workspace of a test's own, and an agent's way of talking to the API.

Every test commits into a fresh workspace; nothing is rolled back or flushed, as in the real record.
"""

from __future__ import annotations

import itertools
import json
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from django.contrib.auth import get_user_model

from ledger import tenancy, tokens
from ledger.contracts import Contract
from ledger.facts import Facts
from ledger.keys import current
from ledger.models import (
    Attempt,
    Capability,
    Entry,
    Evidence,
    Invocation,
    Mandate,
    Membership,
    ParkedEvidence,
    Receiver,
    Reservation,
    Runtime,
    RuntimeToken,
    Workspace,
)
from ledger.services.writing import read_facts

SCOPES = ("intent", "permit", "outcome", "reconcile", "escalate", "read")
_numbers = itertools.count(1)

# A receiver that can be asked by reference and does not deduplicate: the plain case.
READABLE: dict[str, Any] = {
    "deduplicates": "none",
    "lookup": "by_reference",
    "visibility_lag_s": 1,
    "in_flight_s": 1,
}
REPLAYS: dict[str, Any] = {
    "deduplicates": "key",
    "key_retained_s": 86_400,
    "key_claimed": "before_effect",
    "replays": "original",
    "lookup": "by_reference",
    "visibility_lag_s": 1,
    "in_flight_s": 1,
}
OPAQUE: dict[str, Any] = {"deduplicates": "none", "lookup": "none", "in_flight_s": 1}


class Answer(Protocol):
    """What both Django's test client and httpx give."""

    status_code: int

    def json(self) -> Any: ...


def nonce() -> str:
    """A fresh Permit-Nonce."""
    return "nonce-" + secrets.token_hex(12)


@dataclass
class Arranged:
    """One workspace with one runtime; capabilities and people are added as a test needs them."""

    id: int
    name: str
    token: str
    token_id: str
    secret_hash: bytes
    runtime_id: int
    receiver_id: int
    known: dict[str, Capability] = field(default_factory=dict)

    # What is arranged

    def capability(self, name: str = "refund.create", **columns: Any) -> Capability:
        """A current capability. ``contract`` is a mapping (default READABLE, without needing a reference)."""
        contract = columns.pop("contract", {**READABLE, "lookup": "by_list"})
        with tenancy.workspace(self.id):
            before = Capability.objects.filter(workspace_id=self.id, name=name).order_by("-version").first()
            if before is not None:
                Capability.objects.filter(workspace_id=self.id, name=name).update(current=False)
            self.known[name] = Capability.objects.create(
                workspace_id=self.id,
                name=name,
                version=1 if before is None else before.version + 1,
                receiver_id=columns.pop("receiver_id", self.receiver_id),
                contract=Contract.parse(contract).as_json(),
                approval=columns.pop("approval", {"required": False}),
                **columns,
            )
        return self.known[name]

    def mandate(self, subject: str = "*", capability: str = "*", **columns: Any) -> Mandate:
        columns.setdefault("valid_until", datetime.now(UTC) + timedelta(days=1))
        with tenancy.workspace(self.id):
            return Mandate.objects.create(
                workspace_id=self.id, subject=subject, capability=capability, **columns
            )

    def person(self, *roles: str, email: str | None = None) -> Any:
        """A user who is a member with these roles."""
        address = email or f"person-{secrets.token_hex(6)}@example.org"
        user = get_user_model().objects.create_user(username=address, email=address, password="correct horse")
        for role in roles:
            Membership.objects.create(user=user, workspace_id=self.id, role=role)
        return user

    def second_token(self, **columns: Any) -> str:
        """The token of another runtime of this workspace."""
        return _runtime(self.id, f"runtime-{secrets.token_hex(4)}", **columns)[0]

    # What a runtime says

    def intent(self, **fields: Any) -> dict[str, Any]:
        """An intent body that is accepted as it stands."""
        return {
            "task_id": "task-1",
            "capability": "refund.create",
            "arguments": {"order_id": "8841", "amount": "120.00", "currency": "EUR"},
            "actor": {"subject": "agent:support-7"},
            **fields,
        }

    def operation_id(self) -> str:
        return f"op-{next(_numbers)}-{secrets.token_hex(4)}"

    # What time does, without waiting for it

    def end_lease(self, operation_id: str) -> None:
        """The running attempt's lease ended a second ago; nobody has noticed yet."""
        over = datetime.now(UTC) - timedelta(seconds=1)
        with tenancy.workspace(self.id):
            row = self.row(operation_id)
            Attempt.objects.filter(invocation_id=row.id, state="open").update(lease_until=over)
            Reservation.objects.filter(invocation_id=row.id).update(lease_until=over)

    def change(self, operation_id: str, **columns: Any) -> None:
        """Columns of the operation's row, such as a deadline that is to have passed."""
        with tenancy.workspace(self.id):
            Invocation.objects.filter(workspace_id=self.id, operation_id=operation_id).update(**columns)

    # What is on record

    def parked(self, operation_id: str) -> list[ParkedEvidence]:
        with tenancy.workspace(self.id):
            return list(
                ParkedEvidence.objects.filter(workspace_id=self.id, operation_id=operation_id).order_by("id")
            )

    def facts(self, operation_id: str) -> Facts:
        return read_facts(self.id, operation_id)

    def row(self, operation_id: str) -> Invocation:
        with tenancy.workspace(self.id):
            return Invocation.objects.select_related("capability").get(
                workspace_id=self.id, operation_id=operation_id
            )

    def entries(self, operation_id: str) -> list[Entry]:
        with tenancy.workspace(self.id):
            return list(Entry.objects.filter(invocation_id=self.row(operation_id).id).order_by("position"))

    def evidence(self, operation_id: str) -> list[Evidence]:
        with tenancy.workspace(self.id):
            return list(Evidence.objects.filter(invocation_id=self.row(operation_id).id).order_by("id"))


def _runtime(workspace_id: int, name: str, **columns: Any) -> tuple[str, str, bytes, int]:
    minted = tokens.mint("test", pepper=current().pepper)
    columns.setdefault("scopes", list(SCOPES))
    columns.setdefault("capabilities", ["*"])
    columns.setdefault("subjects", ["*"])
    expires_at = columns.pop("expires_at", None)
    with tenancy.workspace(workspace_id):
        runtime = Runtime.objects.create(workspace_id=workspace_id, name=name, **columns)
        RuntimeToken.objects.create(
            runtime=runtime,
            workspace_id=workspace_id,
            token_id=minted.token_id,
            secret_hash=minted.secret_hash,
            expires_at=expires_at,
        )
    return minted.token, minted.token_id, minted.secret_hash, runtime.pk


def arrange(*, mandate: bool = True, capability: bool = True) -> Arranged:
    """A fresh workspace with a receiver, a runtime, a mandate for everything and ``refund.create``."""
    name = f"workspace-{secrets.token_hex(6)}"
    workspace = Workspace.objects.create(name=name, environment="test")
    token, token_id, secret_hash, runtime_id = _runtime(workspace.pk, "support-agent")
    with tenancy.workspace(workspace.pk):
        receiver = Receiver.objects.create(
            workspace_id=workspace.pk,
            name="acme-pay",
            base_url="https://pay.example.org/v1",
            callback_endpoint=secrets.token_hex(16),
        )
    arranged = Arranged(workspace.pk, name, token, token_id, secret_hash, runtime_id, receiver.pk)
    if mandate:
        arranged.mandate()
    if capability:
        arranged.capability()
    return arranged


class Agent:
    """The API as a runtime calls it, through Django's test client or over HTTP (httpx): same verbs, same answers."""

    def __init__(self, send: Any, token: str) -> None:
        self._send = send
        self.token = token

    def call(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str | None
    ) -> Any:
        """``headers`` by Python name: permit_nonce="…"; None leaves one out."""
        named = {"authorization": f"Bearer {self.token}", "content_type": "application/json", **headers}
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        return self._send(
            method,
            path,
            content,
            {name.replace("_", "-"): value for name, value in named.items() if value is not None},
        )

    def put_intent(
        self, operation_id: str, body: dict[str, Any], *, nonce: str | None = None, **headers: Any
    ) -> Any:
        return self.call("PUT", f"/api/v1/operations/{operation_id}", body, permit_nonce=nonce, **headers)

    def get(self, operation_id: str, query: str = "", **headers: Any) -> Any:
        return self.call("GET", f"/api/v1/operations/{operation_id}{query}", **headers)

    def ask(self, operation_id: str, number: int | str = 1, *, nonce: str | None, **headers: Any) -> Any:
        return self.call(
            "PUT", f"/api/v1/operations/{operation_id}/attempts/{number}", permit_nonce=nonce, **headers
        )

    def report(
        self,
        operation_id: str,
        number: int | str,
        body: Any = None,
        *,
        nonce: str | None = None,
        raw: bytes | None = None,
        **headers: Any,
    ) -> Any:
        path = f"/api/v1/operations/{operation_id}/attempts/{number}/outcome"
        return self.call("PUT", path, body, raw=raw, permit_nonce=nonce, **headers)

    def withdraw(self, operation_id: str, **headers: Any) -> Any:
        return self.call("PUT", f"/api/v1/operations/{operation_id}/withdrawal", **headers)


def in_process(token: str) -> Agent:
    """An agent that calls the views through Django's own handler, with every middleware."""
    from django.test import Client

    client = Client()

    def send(method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Any:
        content_type = headers.pop("content-type", "")
        return client.generic(
            method,
            path,
            content or b"",
            content_type=content_type,
            # Also where there is no body, as HTTP clients do.
            CONTENT_TYPE=content_type,
            CONTENT_LENGTH=str(len(content or b"")),
            headers={k.title(): v for k, v in headers.items()},
        )

    return Agent(send, token)


def over_http(base_url: str, token: str, *, timeout_s: float = 30) -> Agent:
    """An agent of a running service; each call has a connection of its own."""
    import httpx

    def send(method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Any:
        return httpx.request(
            method, base_url + path, content=content, headers=headers, timeout=timeout_s, trust_env=False
        )

    return Agent(send, token)


COMPLETED = {
    "outcome": "completed",
    "receiver_reference": "re_1",
    "result": {"id": "re_1"},
    "evidence": {"source": "receiver_response", "http_status": 200, "body": {"id": "re_1"}},
}
DECLINED = {
    "outcome": "denied",
    "denial": {"reason": "card_declined"},
    "evidence": {"source": "receiver_response", "http_status": 402, "body": {"error": "card_declined"}},
}
NOT_SENT = {"outcome": "not_sent", "fault": "connection_refused"}
UNKNOWN = {"outcome": "unknown", "fault": "timeout"}

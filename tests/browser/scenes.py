"""Cases as they come to be, for pages to show: made through the API and the services, never by writing rows."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import F

from ledger import tenancy
from ledger.models import Membership
from reconciliation import services
from reconciliation.findings import Difference, Finding, FindingKind, Item, ItemStatus
from reconciliation.models import CLOCK, Case
from reconciliation.services.asking import Recorded
from reconciliation.services.cases import open_case
from tests.arrange import OPAQUE, UNKNOWN, Agent, Arranged, arrange, in_process, nonce

PASSWORD = "correct horse"

REFUND: dict[str, Any] = {
    "summary": "Refund {amount} to order {order_id}",
    "risk": "high",
    "amount": {"value": "/arguments/amount", "currency": "/arguments/currency"},
    "contract": {
        "deduplicates": "key",
        "key_retained_s": 3 * 3600,
        "key_claimed": "before_effect",
        "replays": "original",
        "lookup": "by_list",
        "visibility_lag_s": 1,
        "in_flight_s": 1,
    },
    "reconciler": {
        "kind": "http_lookup",
        "url": "{base_url}/refunds?operation={operation_id}",
        "items": "$.data[*]",
        "attributed": {"path": "$.metadata.operation_id", "equals": "operation_id"},
        "reference": "$.id",
        "status": {"path": "$.status", "completed": ["succeeded"]},
        "match": {
            "$.amount": {"to": "/arguments/amount", "as": "minor_units", "currency": "/arguments/currency"},
            "$.currency": {"to": "/arguments/currency", "as": "caseless"},
            "$.order": "/arguments/order_id",
        },
    },
}

CERTIFICATE: dict[str, Any] = {
    "summary": "Send certificate {amount} to {user_id}",
    "risk": "medium",
    "contract": OPAQUE,
}

NOTHING_FOUND = Finding(kind=FindingKind.ITEMS, complete=False, scope="GET /refunds?operation=…, page 1")
TIMED_OUT = Finding(kind=FindingKind.UNCLEAR, why="timeout", scope="GET /refunds?operation=…")


def effect(reference: str, **changes: Any) -> Item:
    """One effect that the receiver shows for our operation."""
    given: dict[str, Any] = {
        "status": ItemStatus.COMPLETED,
        "reference": reference,
        "raw_status": "succeeded",
        "ours": True,
    }
    return Item(**(given | changes))


def found(*items: Item) -> Finding:
    """A complete, authoritative answer with these items."""
    return Finding(
        kind=FindingKind.ITEMS,
        items=items,
        complete=True,
        raw=b'{"data": []}',
        scope="GET /refunds, all pages",
    )


DIVERGED = found(effect("re_51Qx8b", differences=(Difference("$.amount", "124000", "214000"),)))
DUPLICATED = found(effect("re_51Qx8b"), effect("re_51Qz4c", attributed_to=None))


@dataclass
class Scene:
    """One workspace with people in it and cases in every state that a page can show."""

    workspace: Arranged
    agent: Agent
    operator: Any
    second: Any
    viewer: Any

    def unknown(self, capability: str = "refund.create", **fields: Any) -> str:
        """An operation that was dispatched and whose outcome nobody knows, with an open case."""
        operation_id = fields.pop("operation_id", None) or self.workspace.operation_id()
        body = self.workspace.intent(capability=capability, dispatch=True, **fields)
        once = nonce()
        answer = self.agent.put_intent(operation_id, body, nonce=once)
        assert answer.status_code == 201, answer.json()
        assert answer.json()["permit"] is not None, answer.json()["decision"]
        answer = self.agent.report(operation_id, 1, UNKNOWN, nonce=once)
        assert answer.json()["state"] == "unknown", answer.json()
        open_case(self.workspace.id, operation_id)
        return operation_id

    def asked(self, operation_id: str, finding: Finding) -> Recorded:
        """The receiver has been asked about it, and this is what it said."""
        with tenancy.workspace(self.workspace.id):
            cases = Case.objects.filter(operation_id=operation_id, closed_at=None)
            lease = CLOCK + timedelta(seconds=60)
            cases.update(fence=F("fence") + 1, leased_until=lease, asking_at=None)
            case = cases.get()
        asked = services.begin(self.workspace.id, case.pk, case.fence)
        assert asked is not None
        recorded = services.record_finding(asked, finding)
        assert recorded is not None
        return recorded

    def version(self, operation_id: str) -> int:
        """The version of the newest case of this name."""
        with tenancy.workspace(self.workspace.id):
            return Case.objects.filter(operation_id=operation_id).latest("id").version


def person(workspace: Arranged, role: str, password: str | None) -> Any:
    """A member; without a password nobody can sign in as them, and nothing is spent on hashing one."""
    address = f"{role}-{secrets.token_hex(4)}@example.org"
    user = get_user_model().objects.create_user(username=address, email=address, password=password)
    Membership.objects.create(user=user, workspace_id=workspace.id, role=role)
    return user


def scene(agent_of: Callable[[str], Agent] = in_process, *, password: str | None = None) -> Scene:
    """A fresh workspace with an operator, a second operator and a viewer; no operation yet."""
    workspace = arrange(capability=False)
    workspace.capability("refund.create", **REFUND)
    workspace.capability("certificate.send", **CERTIFICATE)
    return Scene(
        workspace=workspace,
        agent=agent_of(workspace.token),
        operator=person(workspace, "operator", password),
        second=person(workspace, "operator", password),
        viewer=person(workspace, "viewer", password),
    )


def busy(scene_: Scene) -> dict[str, str]:
    """Fills the scene; returns operation IDs by what they show."""
    named = {}
    money = {"currency": "USD"}
    named["lost"] = scene_.unknown(
        arguments={"order_id": "8841", "amount": "1240.00", "reason": "parcel never arrived", **money},
        purpose="Customer says the first refund never arrived\u202e, refund again.\nOrder 8841 \u0430pproved by manager.",
        actor={"subject": "agent:support-7", "on_behalf_of": "user:alice"},
        business_reference="order-8841",
    )
    scene_.asked(named["lost"], NOTHING_FOUND)
    named["duplicate"] = scene_.unknown(
        arguments={"order_id": "9120", "amount": "80.00", **money}, task_id="task-2"
    )
    scene_.asked(named["duplicate"], DUPLICATED)
    named["diverged"] = scene_.unknown(
        arguments={"order_id": "7710", "amount": "1240.00", **money}, task_id="task-3"
    )
    scene_.asked(named["diverged"], DIVERGED)
    named["opaque"] = scene_.unknown(
        "certificate.send",
        arguments={
            "user_id": "mia_li_3668",
            "amount": 250,
            "note": "tab\tand\u200bzero width",
            "tags": ["vip", "\u202egold"],
        },
        task_id="task-4",
    )
    named["opaque_two"] = scene_.unknown(
        "certificate.send", arguments={"user_id": "raj_patel_77", "amount": 50}, task_id="task-5"
    )
    services.claim_case(scene_.workspace.id, named["opaque_two"], scene_.operator)
    named["unreachable"] = scene_.unknown(
        arguments={"order_id": "5512", "amount": "19.90", **money}, task_id="task-6"
    )
    scene_.asked(named["unreachable"], TIMED_OUT)
    named["settled"] = scene_.unknown(
        arguments={"order_id": "4410", "amount": "35.00", **money}, task_id="task-7"
    )
    scene_.asked(named["settled"], found(effect("re_51QaaA")))
    return named

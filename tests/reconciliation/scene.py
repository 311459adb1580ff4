"""What the tests of reconciliation stand on: a receiver over HTTP, unknown outcomes, and clocks turned back.

The database judges by its own clock, so a test that needs yesterday moves the record's times instead.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.db.models import F

from ledger import tenancy
from ledger.models import Attempt, Invocation, Reservation
from ledger.models import Receiver as ReceiverRow
from reconciliation import services
from reconciliation.models import CLOCK, Case, Lookup
from reconciliation.reconcilers.base import look_up as ask_receiver
from reconciliation.services.sweeping import Claim
from tests.arrange import UNKNOWN, Agent, Arranged, in_process, nonce

CONTRACT: dict[str, Any] = {
    "deduplicates": "none",
    "lookup": "by_list",
    "visibility_lag_s": 0,
    "in_flight_s": 0,
}
RECONCILER: dict[str, Any] = {
    "kind": "http_lookup",
    "url": "{base_url}/effects?operation_id={operation_id}",
    "items": "$.data[*]",
    "complete": {"path": "$.has_more", "equals": False},
    "attributed": {"path": "$.operation_id", "equals": "operation_id"},
    "reference": "$.id",
    "status": {
        "path": "$.status",
        "completed": ["succeeded"],
        "in_progress": ["pending"],
        "denied": ["failed"],
    },
    "denial_reason": "$.why",
    "match": {"$.amount": "/arguments/amount"},
}


@dataclass
class Receiver:
    """Its effects, and how it answers. ``answer`` overrides: (status, body) for one operation's question."""

    effects: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # operation IDs, in the order of the questions
    answer: Callable[[str], tuple[int, bytes] | None] = lambda _: None
    delay_s: float = 0.0
    base_url: str = ""

    def make(self, operation_id: str, **fields: Any) -> str:
        """An effect of that operation, as it was intended unless ``fields`` say otherwise; returns its reference."""
        reference = f"re_{len(self.effects) + 1}_{operation_id}"
        self.effects.append(
            {
                "id": reference,
                "operation_id": operation_id,
                "status": "succeeded",
                "amount": "120.00",
                **fields,
            }
        )
        return str(self.effects[-1]["id"])

    def questions_about(self, operation_id: str) -> int:
        return self.asked.count(operation_id)

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator[Receiver]:
        """On loopback, until the test is over."""
        receiver = cls()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = parse_qs(urlsplit(self.path).query).get("operation_id", [""])[0]
                receiver.asked.append(name)
                time.sleep(receiver.delay_s)
                found = [
                    effect
                    for effect in receiver.effects
                    if effect.get("asked_as", effect["operation_id"]) == name
                ]
                said = receiver.answer(name)
                status, body = said or (200, json.dumps({"data": found, "has_more": False}).encode())
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        receiver.base_url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            server.server_close()


@dataclass
class Scene:
    """One workspace, its receiver, and the ways in which a test moves both."""

    workspace: Arranged
    receiver: Receiver
    agent: Agent = field(init=False)

    def __post_init__(self) -> None:
        self.agent = in_process(self.workspace.token)
        with tenancy.workspace(self.workspace.id):
            ReceiverRow.objects.filter(pk=self.workspace.receiver_id).update(
                base_url=self.receiver.base_url, allow_private_addresses=True
            )

    @property
    def id(self) -> int:
        return self.workspace.id

    def capability(self, name: str = "refund.create", **columns: Any) -> None:
        columns["contract"] = {**CONTRACT, **columns.get("contract", {})}
        columns["reconciler"] = columns.get("reconciler", RECONCILER)
        self.workspace.capability(name, **columns)

    # What happened to runtimes

    def dispatched(self, **intent: Any) -> tuple[str, str]:
        """(operation ID, nonce) of an operation whose permit was granted just now."""
        operation_id, ask = self.workspace.operation_id(), nonce()
        # Equal arguments of unsettled operations hold each other: each has an order of its own.
        arguments = {"order_id": operation_id, "amount": "120.00", "currency": "EUR"}
        body = self.workspace.intent(arguments=arguments, dispatch=True, **intent)
        answer = self.agent.put_intent(operation_id, body, nonce=ask)
        assert answer.status_code == 201, answer.content
        assert answer.json()["permit"] is not None, answer.json()
        return operation_id, ask

    def unknown(self, **intent: Any) -> str:
        """An operation whose runtime reported that it does not know."""
        operation_id, ask = self.dispatched(**intent)
        answer = self.agent.report(operation_id, 1, UNKNOWN, nonce=ask)
        assert answer.json()["state"] == "unknown", answer.content
        return operation_id

    # What the service does about it

    def sweep(self) -> list[Claim]:
        """One sweep; the claims of this workspace (other tests' stay leased to nobody)."""
        return [claim for claim in services.sweep().claims if claim.workspace_id == self.id]

    def ask(self, operation_id: str) -> services.Recorded | None:
        """The operation's case, due now, claimed by a sweep and looked up."""
        self.sweep()
        self.make_due(operation_id)
        claim = self.claim(operation_id)
        return services.look_up(claim.workspace_id, claim.case_id, claim.fence)

    def begun(self, operation_id: str) -> services.Asked:
        """A look-up that was begun; its answer is the test's to record."""
        self.sweep()
        self.make_due(operation_id)
        claim = self.claim(operation_id)
        asked = services.begin(claim.workspace_id, claim.case_id, claim.fence)
        assert asked is not None
        return asked

    def answered_now(self, operation_id: str, asked: services.Asked) -> services.Recorded | None:
        """The answer to a look-up as if it were asked just now, whatever became of its case."""
        now = self.workspace.facts(operation_id).now
        return services.record_finding(replace(asked, asked_at=now), ask_receiver(asked.question))

    def claim(self, operation_id: str) -> Claim:
        """The claim of the operation's open case, out of as many as are due in the whole database."""
        case_id = self.case(operation_id).pk
        for _ in range(20):
            for claim in services.claim(at_most=500):
                if claim.case_id == case_id:
                    return claim
        raise AssertionError(f"nobody could claim {self.case(operation_id)}")

    def make_due(self, operation_id: str) -> None:
        self.change_case(operation_id, next_check_at=CLOCK - timedelta(days=1), leased_until=None)

    # What is on record

    def case(self, operation_id: str) -> Case:
        """The open case of the operation, else its last."""
        with tenancy.workspace(self.id):
            cases = Case.objects.filter(workspace_id=self.id, operation_id=operation_id)
            return (
                cases.order_by(F("closed_at").desc(nulls_first=True), "-id")
                .select_related("proposal")
                .first()
            )

    def cases(self, operation_id: str) -> list[Case]:
        with tenancy.workspace(self.id):
            return list(Case.objects.filter(workspace_id=self.id, operation_id=operation_id).order_by("id"))

    def lookups(self, operation_id: str) -> list[Lookup]:
        with tenancy.workspace(self.id):
            return list(Lookup.objects.filter(case__operation_id=operation_id).order_by("id"))

    def state(self, operation_id: str) -> str:
        return self.workspace.facts(operation_id).state.value

    def decision(self, operation_id: str) -> tuple[str, str]:
        """(action, reason) as the API says."""
        decision = self.agent.get(operation_id).json()["decision"]
        return decision["action"], decision["reason"]

    # Time

    def change_case(self, operation_id: str, **columns: Any) -> None:
        case_id = self.case(operation_id).pk
        with tenancy.workspace(self.id):
            Case.objects.filter(pk=case_id).update(**columns)

    def age(self, operation_id: str, seconds: float) -> None:
        """Moves everything that the record says of this operation into the past."""
        by = timedelta(seconds=seconds)
        with tenancy.workspace(self.id):
            row = Invocation.objects.get(workspace_id=self.id, operation_id=operation_id)
            Invocation.objects.filter(pk=row.pk).update(
                **{name: F(name) - by for name in ("first_permit_at", "settled_at", "created_at", "asked_at")}
            )
            Attempt.objects.filter(invocation_id=row.pk).update(
                **{name: F(name) - by for name in ("permitted_at", "lease_until", "reported_at", "ended_at")}
            )
            Reservation.objects.filter(invocation_id=row.pk).update(
                **{name: F(name) - by for name in ("lease_until", "held_since")}
            )
            for case in Case.objects.filter(invocation_id=row.pk):
                case.opened_at -= by
                case.absent_sightings = [seen - by for seen in case.absent_sightings]
                case.save()

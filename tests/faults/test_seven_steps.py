"""The test that matters, over real HTTP and processes: an outcome's write fails after the effect was made.

Source: sources' seven steps (persist the intent; let the tool make an effect; fail the outcome's append; a distinct,
non-retryable failure; no second dispatch; reconcile by the stable identity; complete the evidence without another
effect), and the four branches of the retry decision tree.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from django.db import connection

from ledger import tenancy
from ledger.models import Receiver
from reconciliation.rehearsal.calls import Contract
from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.receivers import Sandbox
from tests import live as processes
from tests.arrange import COMPLETED, DECLINED, UNKNOWN, Agent, Arranged, nonce, over_http

pytestmark = pytest.mark.processes

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


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "receiver.sqlite", faults=FaultSpec.parse("none"), seed=1) as sandbox:
        yield sandbox


@pytest.fixture
def refunds(workspace: Arranged, receiver: Sandbox) -> Arranged:
    """A workspace whose refunds go to the sandbox, which can be asked but does not deduplicate."""
    with tenancy.workspace(workspace.id):
        Receiver.objects.filter(pk=workspace.receiver_id).update(
            base_url=receiver.base_url_of(Contract.READABLE), allow_private_addresses=True
        )
    workspace.capability(
        lease_s=3,
        reconciler=RECONCILER,
        contract={
            "deduplicates": "none",
            "lookup": "by_reference",
            "visibility_lag_s": 1,
            "in_flight_s": 1,
        },
    )
    return workspace


@pytest.fixture(scope="module")
def sweep(record: None) -> Iterator[None]:
    with processes.sweeping():
        yield


@pytest.fixture(scope="module")
def failing(record: None) -> Iterator[str]:
    """A web server that cannot write outcomes."""
    with processes.web(FAILPOINTS="outcome.before_commit=raise", COUNTERFOIL_DEBUG="true") as base_url:
        yield base_url


def make_effect(
    receiver: Sandbox, operation_id: str, permit: dict[str, Any], arguments: dict[str, Any]
) -> str:
    """What a tool does with its permit: the receiver's reference of the effect."""
    answer = httpx.post(
        f"{receiver.base_url_of(Contract.READABLE)}/tools/refund",
        json={
            "arguments": arguments,
            "client_reference": f"ref-{operation_id}",
            "metadata": {"operation_id": operation_id},
        },
        headers={"Idempotency-Key": permit["idempotency_key"], "Rehearsal-Call": operation_id},
        trust_env=False,
    )
    assert answer.status_code == 201
    return str(answer.json()["id"])


def effects(receiver: Sandbox, operation_id: str) -> int:
    """How many effects the receiver's own ledger holds for this operation."""
    with sqlite3.connect(receiver.ledger) as ledger:
        return int(
            ledger.execute("select count(*) from effects where operation_id = ?", [operation_id]).fetchone()[
                0
            ]
        )


def test_an_outcome_that_could_not_be_written_never_becomes_a_second_effect(
    refunds: Arranged, receiver: Sandbox, live: str, failing: str, sweep: None
) -> None:
    agent, broken = over_http(live, refunds.token), over_http(failing, refunds.token)
    operation_id, mine = refunds.operation_id(), nonce()
    intent = refunds.intent(business_reference=f"ref-{operation_id}", dispatch=True)

    # 1. The intent is durable before anything is sent: a fresh connection sees it.
    recorded = agent.put_intent(operation_id, intent, nonce=mine)
    assert recorded.status_code == 201 and recorded.json()["decision"]["dispatch_allowed"]
    with psycopg.connect(os.environ["DATABASE_URL"]) as fresh:
        row = fresh.execute(
            "SELECT state FROM ledger_invocation WHERE operation_id = %s", [operation_id]
        ).fetchone()
    assert row == ("dispatched",)

    # 2. The receiver makes the effect.
    reference = make_effect(receiver, operation_id, recorded.json()["permit"], intent["arguments"])

    # 3. and 4. The outcome's write fails: a distinct answer that forbids another dispatch.
    report = {**COMPLETED, "receiver_reference": reference}
    failed = broken.report(operation_id, 1, report, nonce=mine)
    assert failed.status_code == 503
    problem = failed.json()
    assert problem["code"] == "post-dispatch-evidence-failed"
    assert problem["retryable"] is False and problem["reconciliation_required"] is True
    assert problem["repeat_request"] is True and problem["effect_may_have_happened"] is True

    # 5. However often and by whomever it is asked, no second dispatch is permitted: neither while the lease runs …
    refuse_everybody(refunds, live, operation_id, intent)
    processes.wait_until(lambda: agent.get(operation_id).json()["state"] != "dispatched")
    # … nor once it has ended.
    assert agent.get(operation_id).json()["effect"] in ("unknown", "yes")
    refuse_everybody(refunds, live, operation_id, intent)

    # 6. It is reconciled by its stable identity, by a look-up.
    def settled() -> Any:
        body = agent.get(operation_id).json()
        return body if body["state"] == "completed" else None

    body: Any = processes.wait_until(settled, within_s=30)
    assert body["outcome"]["source"] == "lookup"
    assert body["outcome"]["receiver_reference"] == reference

    # 7. The evidence is complete, and there is one effect.
    assert body["evidence"] == "preserved" and body["dispatched"] == "yes" and body["effect"] == "yes"
    assert [e.source for e in refunds.evidence(operation_id)].count("lookup") >= 1
    late = agent.report(operation_id, 1, report, nonce=mine)
    assert late.status_code == 200 and late.json()["case"]["flags"] == []
    assert effects(receiver, operation_id) == 1


def refuse_everybody(workspace: Arranged, base_url: str, operation_id: str, intent: dict[str, Any]) -> None:
    """Sixteen askers, two runtimes, attempts 1 to 3, by both calls: nobody is permitted."""
    tokens = [workspace.token, workspace.second_token()]

    def ask(index: int) -> Any:
        asker = over_http(base_url, tokens[index % 2])
        if index % 4 == 0:
            return asker.put_intent(operation_id, intent, nonce=nonce())
        return asker.ask(operation_id, index % 4, nonce=nonce())

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(32)))
    for answer in answers:
        body = answer.json()
        assert answer.status_code in (200, 409), body
        assert body.get("permit") is None and body["decision"]["dispatch_allowed"] is False


# The four branches of the retry decision tree, each over HTTP.


def permitted(workspace: Arranged, agent: Agent) -> tuple[str, str]:
    operation_id, mine = workspace.operation_id(), nonce()
    intent = workspace.intent(
        business_reference=operation_id, arguments={"order": operation_id}, dispatch=True
    )
    answer = agent.put_intent(operation_id, intent, nonce=mine)
    assert answer.json()["permit"] is not None
    return operation_id, mine


def test_branch_one_a_checked_completion_is_resumed_and_never_retried(workspace: Arranged, live: str) -> None:
    agent = over_http(live, workspace.token)
    operation_id, mine = permitted(workspace, agent)
    agent.report(operation_id, 1, COMPLETED, nonce=mine)
    again = agent.ask(operation_id, 2, nonce=nonce())
    assert again.status_code == 409
    assert again.json()["code"] == "settled"
    assert again.json()["decision"]["action"] == "resume"
    assert again.json()["outcome"]["receiver_reference"] == "re_1"


def test_branch_two_a_checked_denial_is_retried_only_when_its_reason_is_gone(
    workspace: Arranged, live: str
) -> None:
    agent = over_http(live, workspace.token)
    declined, mine = permitted(workspace, agent)
    agent.report(declined, 1, DECLINED, nonce=mine)
    standing = agent.ask(declined, 2, nonce=nonce())
    assert (standing.status_code, standing.json()["code"]) == (409, "denied")
    assert standing.json()["decision"]["action"] == "stop"

    limited, mine = permitted(workspace, agent)
    rate_limit = {
        "outcome": "denied",
        "denial": {"reason": "rate_limited"},
        "evidence": {"source": "receiver_response", "http_status": 429},
    }
    agent.report(limited, 1, rate_limit, nonce=mine)
    clearing = agent.ask(limited, 2, nonce=nonce())
    assert (clearing.status_code, clearing.json()["code"]) == (409, "denied")
    assert clearing.json()["decision"]["action"] == "wait"
    assert int(clearing.headers["Retry-After"]) > 0

    refused, mine = permitted(workspace, agent)
    agent.report(refused, 1, {"outcome": "not_sent", "fault": "connection_refused"}, nonce=mine)
    cleared = agent.ask(refused, 2, nonce=nonce())
    assert cleared.status_code == 201
    assert cleared.json()["decision"]["action"] == "retry"
    assert cleared.json()["permit"]["attempt"] == 2


def test_branch_three_an_unknown_outcome_is_reconciled_first(workspace: Arranged, live: str) -> None:
    agent = over_http(live, workspace.token)
    operation_id, mine = permitted(workspace, agent)
    agent.report(operation_id, 1, UNKNOWN, nonce=mine)
    again = agent.ask(operation_id, 2, nonce=nonce())
    assert (again.status_code, again.json()["code"]) == (409, "reconciliation-required")
    assert again.json()["decision"]["action"] == "reconcile"
    held = agent.get(operation_id).json()
    assert held["reservation"] == "held" and held["state"] == "unknown"


def test_branch_four_without_an_entry_it_fails_closed_and_a_person_is_told(
    workspace: Arranged, live: str, sweep: None
) -> None:
    agent = over_http(live, workspace.token)
    operation_id = workspace.operation_id()
    for answer in (
        agent.ask(operation_id, 1, nonce=nonce()),
        agent.put_intent(operation_id, workspace.intent(expect="recorded")),
        agent.get(operation_id),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "no-ledger-entry")
        assert answer.json()["retryable"] is False
        assert answer.json()["decision"]["action"] == "stop"

    def case() -> Any:
        with tenancy.workspace(workspace.id), connection.cursor() as cursor:
            cursor.execute(
                "SELECT kind, escalated_at IS NOT NULL FROM reconciliation_case WHERE operation_id = %s",
                [operation_id],
            )
            return cursor.fetchone()

    assert processes.wait_until(case, within_s=15) == ("no_entry", True)

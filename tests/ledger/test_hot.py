"""The hot functions know the all-clear and nothing else: where they act, the table says dispatch, never the reverse."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from ledger import tenancy
from ledger.decisions import Action
from ledger.digests import arguments_digest, uuid7
from ledger.models import ParkedEvidence, Pause, Runtime, Workspace
from tests.arrange import Agent, Arranged, arrange, in_process, nonce

ARGUMENTS = {"same": "intent"}
DIGEST = arguments_digest(ARGUMENTS, None)
MANDATES = ("covering", "none", "revoked", "expired", "limited", "other capability", "other subject", "open")
PAUSES = ("none", "workspace", "capability", "receiver", "lifted", "over")
TWINS = ("none", "same arguments", "same reference", "same arguments, off")


@dataclass(frozen=True)
class World:
    """One combination of what a permit depends on."""

    mandate: str = "covering"
    pause: str = "none"
    twin: str = "none"
    approval: bool = False
    enabled: bool = True


def arranged(world: World) -> Arranged:
    workspace = arrange(mandate=False, capability=False)
    workspace.capability(
        approval={"required": world.approval, **({"approvals": 1} if world.approval else {})},
        enabled=world.enabled,
        duplicates="off" if world.twin.endswith("off") else "hold",
    )
    now = datetime.now(UTC)
    match world.mandate:
        case "covering":
            workspace.mandate("agent:*", "refund.*")
        case "revoked":
            workspace.mandate(revoked_at=now)
        case "expired":
            workspace.mandate(valid_until=now - timedelta(seconds=1))
        case "limited":
            workspace.mandate(limits=[{"per": "day", "count": 0}])
        case "other capability":
            workspace.mandate(capability="order.*")
        case "other subject":
            workspace.mandate(subject="agent:sales-*")
        case "open":
            Workspace.objects.filter(pk=workspace.id).update(mandates_open=True)
    with tenancy.workspace(workspace.id):
        paused: dict[str, Any] = {"workspace_id": workspace.id, "reason": "test", "paused_by": "test"}
        match world.pause:
            case "workspace":
                Pause.objects.create(**paused)
            case "capability":
                Pause.objects.create(**paused, capability="refund.create")
            case "receiver":
                Pause.objects.create(**paused, receiver_id=workspace.receiver_id)
            case "lifted":
                Pause.objects.create(**paused, lifted_at=now)
            case "over":
                Pause.objects.create(**paused, ends_at=now - timedelta(seconds=1))
    return workspace


def twin(workspace: Arranged, world: World, digest: str) -> None:
    """Another operation that is dispatched, put there past every rule."""
    if world.twin == "none":
        return
    reference = "order-1" if world.twin == "same reference" else None
    if not world.twin.startswith("same arguments"):
        digest = "jcs-sha256:other"
    with tenancy.workspace(workspace.id), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ledger_task (workspace_id, task_id) VALUES (%s, 'twin') RETURNING id", [workspace.id]
        )
        task = cursor.fetchone()[0]
        invocation = str(uuid7())
        cursor.execute(
            "INSERT INTO ledger_invocation (id, workspace_id, operation_id, task_id, capability_id, receiver_id,"
            " actor_subject, arguments_digest, idempotency_key, key_given, approvals_needed, state, standing, flags,"
            " version, attempt_count, intent_valid_until)"
            " VALUES (%s, %s, 'twin', %s, %s, %s, 'x', %s, 'twin', false, 0, 'unknown', 'none', '{}', 1, 0, now())",
            [
                invocation,
                workspace.id,
                task,
                workspace.known["refund.create"].pk,
                workspace.receiver_id,
                digest,
            ],
        )
        cursor.execute(
            "INSERT INTO ledger_reservation (invocation_id, workspace_id, operation_id, capability_name,"
            " business_reference, twin_digest) VALUES (%s, %s, 'twin', 'refund.create', %s, %s)",
            [invocation, workspace.id, reference, digest],
        )


def record_hot(workspace: Arranged, operation_id: str, *, permits: bool) -> bool:
    """Whether the SQL function acted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT * FROM ledger_record_intent(%s, %s, %s, %s, 'task', %s, 'agent:support-7', NULL, '{}',"
            " %s, 'order-1', %s, false, NULL, NULL, NULL, NULL, '{}', %s)",
            [
                workspace.token_id,
                workspace.secret_hash,
                uuid7(),
                operation_id,
                workspace.known["refund.create"].pk,
                DIGEST,
                operation_id,
                b"nonce" if permits else None,
            ],
        )
        return cursor.fetchone() is not None


WORLDS = [
    *(World(mandate=m, pause=p) for m, p in itertools.product(MANDATES, PAUSES)),
    *(World(twin=t, approval=a) for t, a in itertools.product(TWINS, (False, True))),
    *(World(enabled=False, mandate=m) for m in ("covering", "open")),
]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_where_the_hot_function_acts_the_table_says_dispatch(world: World, record: None) -> None:
    workspace = arranged(world)
    # What the table says of the same intent, recorded by the slow path and read from its facts.
    slow = workspace.operation_id()
    body = workspace.intent(arguments=ARGUMENTS, business_reference="order-1")
    assert in_process(workspace.token).put_intent(slow, body).status_code == 201
    twin(workspace, world, workspace.facts(slow).row["arguments_digest"])
    says_dispatch = workspace.facts(slow).decision.action is Action.DISPATCH

    # Approval is judged at intake: an intent that needs it never reaches the hot function.
    acted = not world.approval and record_hot(workspace, "hot-1", permits=True)
    assert says_dispatch or not acted
    if world.mandate == "limited":  # limits are not counted yet: neither path may pass them
        assert not says_dispatch and not acted
    # The common case must be common: a plain mandate, nothing in the way.
    if world.mandate in ("covering", "open") and world.pause in ("none", "lifted") and world.enabled:
        assert acted is (world.twin in ("none", "same arguments, off") and not world.approval)


@pytest.mark.parametrize("world", [w for w in WORLDS if not w.approval], ids=str)
def test_recording_alone_is_hot_only_where_a_permit_would_be(world: World, record: None) -> None:
    workspace = arranged(world)
    twin(workspace, world, DIGEST)
    recorded = record_hot(workspace, "hot-1", permits=False)
    assert recorded is record_hot(workspace, "hot-2", permits=True)


def test_a_hot_intent_answers_what_reading_it_says(workspace: Arranged, agent: Agent) -> None:
    agent.put_intent(workspace.operation_id(), workspace.intent())  # the process now knows the capability
    operation_id, mine = workspace.operation_id(), nonce()
    body = workspace.intent(
        arguments={"order": operation_id, "amount": "3.00", "currency": "EUR"},
        business_reference=operation_id,
        actor={"subject": "agent:support-7", "on_behalf_of": "user:alice"},
        purpose="because",
        checkpoint={"turn": 3},
        dispatch=True,
    )
    said = agent.put_intent(operation_id, body, nonce=mine).json()
    read = agent.get(operation_id).json()
    only_with_the_permit = {"permit", "decision"}
    assert {k: v for k, v in said.items() if k not in only_with_the_permit} == {
        k: v for k, v in read.items() if k not in only_with_the_permit
    }


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "slow"])
@pytest.mark.parametrize("dispatch", [True, False], ids=["dispatch", "record"])
def test_both_paths_leave_the_same_record(
    hot: bool, dispatch: bool, workspace: Arranged, agent: Agent
) -> None:
    if hot:
        agent.put_intent(workspace.operation_id(), workspace.intent(arguments={"warm": 1}))
    operation_id = workspace.operation_id()
    body = workspace.intent(arguments={"order": "1"}, dispatch=dispatch)
    agent.put_intent(operation_id, body, nonce=nonce() if dispatch else None)
    events = [
        (e.position, e.event, e.from_state, e.to_state, e.actor_name) for e in workspace.entries(operation_id)
    ]
    expected = [(1, "record", None, "intended", "support-agent")]
    if dispatch:
        expected.append((2, "dispatch", "intended", "dispatched", "support-agent"))
    assert events == expected


@pytest.mark.parametrize("scopes", [[], ["read"], ["permit"], ["intent"]])
def test_the_hot_function_needs_both_scopes(scopes: list[str], workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        Runtime.objects.filter(pk=workspace.runtime_id).update(scopes=scopes)
    assert record_hot(workspace, "hot-1", permits=True) is False
    assert record_hot(workspace, "hot-2", permits=False) is (scopes == ["intent"])


def test_what_was_parked_for_a_name_is_never_hot(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        ParkedEvidence.objects.create(
            workspace_id=workspace.id,
            operation_id="hot-1",
            kind="outcome",
            raw_sha256=b"",
            raw_size=0,
            recorded_by="test",
        )
    assert record_hot(workspace, "hot-1", permits=True) is False


def test_a_lease_ends_with_the_mandate(record: None) -> None:
    workspace = arrange(mandate=False)
    ends = datetime.now(UTC) + timedelta(seconds=5)
    workspace.mandate(valid_until=ends)
    for _ in range(2):  # the slow path first, then the hot one
        operation_id = workspace.operation_id()
        body = workspace.intent(arguments={"order": operation_id}, dispatch=True)
        answer = in_process(workspace.token).put_intent(operation_id, body, nonce=nonce()).json()
        assert answer["permit"]["lease_s"] <= 5
        assert datetime.fromisoformat(answer["permit"]["lease_until"]) == ends

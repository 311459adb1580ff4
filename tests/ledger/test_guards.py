"""The rules that the database keeps, whoever writes: tried as the tables' owner, past every service."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors as database

from ledger.digests import uuid7
from ledger.states import ATTEMPT_TRANSITIONS, TRANSITIONS, AttemptState, State
from tests.arrange import COMPLETED, Agent, Arranged, nonce


@pytest.fixture
def owner(record: None) -> Iterator[psycopg.Connection[Any]]:
    """A connection that no policy binds; what a test does with it is rolled back."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def app(record: None) -> Iterator[psycopg.Connection[Any]]:
    """A connection as web and workers have it, with no workspace named."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("SET ROLE counterfoil_app")
        yield connection
        connection.rollback()


def recorded(workspace: Arranged, agent: Agent, *, settled: bool = False) -> str:
    operation_id, mine = workspace.operation_id(), nonce()
    body = workspace.intent(arguments={"order": operation_id}, dispatch=settled)
    assert agent.put_intent(operation_id, body, nonce=mine).status_code == 201
    if settled:
        assert agent.report(operation_id, 1, COMPLETED, nonce=mine).status_code == 200
    return operation_id


# States move along the table.


def guards(owner: psycopg.Connection[Any], change: str) -> None:
    """Takes the triggers away, or puts them back, for this transaction."""
    owner.execute("SET CONSTRAINTS ALL IMMEDIATE")
    for table in ("ledger_invocation", "ledger_attempt"):
        owner.execute(f"ALTER TABLE {table} {change} TRIGGER USER")


def in_state(owner: psycopg.Connection[Any], template: str, state: State) -> UUID:
    """A copy of an operation, brought into ``state`` with the guards off."""
    name = f"guard-{uuid7()}"
    guards(owner, "DISABLE")
    row = owner.execute(
        "INSERT INTO ledger_invocation SELECT (jsonb_populate_record(i, jsonb_build_object('id', %s::text,"
        " 'operation_id', %s::text, 'idempotency_key', %s::text, 'state', %s::text))).*"
        " FROM ledger_invocation i WHERE operation_id = %s RETURNING id",
        [str(uuid7()), name, name, state, template],
    ).fetchone()
    guards(owner, "ENABLE")
    assert row is not None
    return row[0]


def with_evidence_and_permit(owner: psycopg.Connection[Any], invocation: UUID) -> None:
    owner.execute(
        "INSERT INTO ledger_evidence (workspace_id, invocation_id, source, authenticated, claim, stored_as, scope,"
        " raw_sha256, raw_size, recorded_by) SELECT workspace_id, id, 'lookup', true, '', '', '', '', 0, 'test'"
        " FROM ledger_invocation WHERE id = %s",
        [invocation],
    )
    owner.execute(
        "INSERT INTO ledger_attempt (workspace_id, invocation_id, number, state, nonce_hash, permitted_at, lease_until)"
        " SELECT workspace_id, id, 1, 'open', '', now(), now() FROM ledger_invocation WHERE id = %s",
        [invocation],
    )


ALLOWED = {(row.from_, row.to) for row in TRANSITIONS if row.from_ is not None and row.from_ is not row.to}


@pytest.mark.parametrize("before", State)
def test_the_database_moves_states_exactly_as_the_table_does(
    before: State, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    template = recorded(workspace, agent)
    for after in State:
        if after is before:
            continue
        with owner.transaction(force_rollback=True):
            invocation = in_state(owner, template, before)
            with_evidence_and_permit(owner, invocation)
            try:
                owner.execute("UPDATE ledger_invocation SET state = %s WHERE id = %s", [after, invocation])
                moved = True
            except database.IntegrityConstraintViolation as refused:
                assert refused.diag.constraint_name == "state_moves_along_the_table"
                moved = False
        assert moved is ((before, after) in ALLOWED), f"{before} → {after}"


@pytest.mark.parametrize("state", State)
def test_an_invocation_begins_where_the_table_begins(
    state: State, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    template = recorded(workspace, agent)
    begins = {row.to for row in TRANSITIONS if row.from_ is None}
    copy = (
        "INSERT INTO ledger_invocation SELECT (jsonb_populate_record(i, jsonb_build_object('id', %s::text,"
        " 'operation_id', 'begin', 'idempotency_key', 'begin', 'state', %s::text))).*"
        " FROM ledger_invocation i WHERE operation_id = %s"
    )
    if state in begins:
        owner.execute(copy, [str(uuid7()), state, template])
    else:
        with pytest.raises(database.IntegrityConstraintViolation):
            owner.execute(copy, [str(uuid7()), state, template])


@pytest.mark.parametrize("after", [State.COMPLETED, State.DENIED, State.DISPATCHED])
def test_unknown_is_left_only_with_evidence_or_a_permit(
    after: State, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    invocation = in_state(owner, recorded(workspace, agent), State.UNKNOWN)
    with pytest.raises(database.IntegrityConstraintViolation) as refused:
        owner.execute("UPDATE ledger_invocation SET state = %s WHERE id = %s", [after, invocation])
    assert refused.value.diag.constraint_name == "unknown_is_left_with_evidence_or_a_permit"


@pytest.mark.parametrize("before", AttemptState)
def test_the_database_moves_attempts_exactly_as_the_table_does(
    before: AttemptState, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    template = recorded(workspace, agent)
    for after in AttemptState:
        if after is before:
            continue
        with owner.transaction(force_rollback=True):
            invocation = in_state(owner, template, State.UNKNOWN)
            with_evidence_and_permit(owner, invocation)
            guards(owner, "DISABLE")
            owner.execute(
                "UPDATE ledger_attempt SET state = %s WHERE invocation_id = %s", [before, invocation]
            )
            guards(owner, "ENABLE")
            try:
                owner.execute(
                    "UPDATE ledger_attempt SET state = %s WHERE invocation_id = %s", [after, invocation]
                )
                moved = True
            except database.IntegrityConstraintViolation:
                moved = False
        assert moved is ((before, after) in ATTEMPT_TRANSITIONS), f"{before} → {after}"


# C13
@pytest.mark.parametrize("number", [0, 1, 3])
def test_attempt_numbers_rise_by_one(
    number: int, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    recorded(workspace, agent, settled=True)
    with pytest.raises(database.IntegrityConstraintViolation) as refused:
        owner.execute(
            "INSERT INTO ledger_attempt (workspace_id, invocation_id, number, state, nonce_hash, permitted_at,"
            " lease_until) SELECT workspace_id, invocation_id, %s, 'open', '', now(), now() FROM ledger_attempt"
            " WHERE workspace_id = %s",
            [number, workspace.id],
        )
    assert refused.value.diag.constraint_name == "attempt_numbers_rise_by_one"


def test_there_is_one_open_attempt_at_most(
    workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    invocation = in_state(owner, recorded(workspace, agent), State.UNKNOWN)
    with_evidence_and_permit(owner, invocation)
    with pytest.raises(database.UniqueViolation) as refused:
        owner.execute(
            "INSERT INTO ledger_attempt (workspace_id, invocation_id, number, state, nonce_hash, permitted_at,"
            " lease_until) SELECT workspace_id, invocation_id, 2, 'open', '', now(), now() FROM ledger_attempt"
            " WHERE invocation_id = %s",
            [invocation],
        )
    assert refused.value.diag.constraint_name == "one_open_attempt_per_invocation"


# What was said stays said.

APPEND_ONLY = ("ledger_entry", "ledger_evidence", "reconciliation_lookup", "reconciliation_resolution")


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("statement", ["TRUNCATE {} CASCADE", "DELETE FROM {}", "UPDATE {} SET id = id + 1"])
def test_append_only_tables_refuse_their_owner(
    table: str,
    statement: str,
    workspace: Arranged,
    agent: Agent,
    owner: psycopg.Connection[Any],
) -> None:
    if statement.startswith("TRUNCATE"):
        with pytest.raises(database.IntegrityConstraintViolation) as refused:
            owner.execute(statement.format(table))
        assert "append-only" in str(refused.value) or "names" in str(refused.value)
        return
    triggers = owner.execute(
        "SELECT tgtype FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname = 'append_only' AND tgenabled = 'O'",
        [table],
    ).fetchall()
    before_update_or_delete_of_each_row = 1 | 2 | 8 | 16
    assert triggers == [(before_update_or_delete_of_each_row,)]
    if table.startswith("ledger"):
        recorded(workspace, agent, settled=True)
        with pytest.raises(database.IntegrityConstraintViolation):
            owner.execute(statement.format(table))


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("statement", ["TRUNCATE {} CASCADE", "DELETE FROM {}", "UPDATE {} SET id = id + 1"])
def test_the_application_role_may_not_even_try(
    table: str, statement: str, app: psycopg.Connection[Any]
) -> None:
    with pytest.raises(database.InsufficientPrivilege):
        app.execute(statement.format(table))


@pytest.mark.parametrize("table", ["ledger_invocation", "ledger_attempt"])
@pytest.mark.parametrize("statement", ["TRUNCATE {} CASCADE", "DELETE FROM {}"])
def test_names_are_never_deleted(
    table: str, statement: str, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    recorded(workspace, agent, settled=True)
    with pytest.raises(database.IntegrityConstraintViolation):
        owner.execute(statement.format(table))


@pytest.mark.parametrize(
    "column, value",
    [
        ("operation_id", "'another'"),
        ("arguments_digest", "'jcs-sha256:00'"),
        ("arguments", "'{}'"),
        ("idempotency_key", "'another'"),
        ("actor_subject", "'agent:another'"),
        ("on_behalf_of", "'user:another'"),
        ("business_reference", "'another'"),
        ("version", "0"),
    ],
)
def test_what_was_intended_does_not_change(
    column: str, value: str, workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    operation_id = recorded(workspace, agent)
    with pytest.raises(database.IntegrityConstraintViolation) as refused:
        owner.execute(
            f"UPDATE ledger_invocation SET {column} = {value} WHERE operation_id = %s", [operation_id]
        )
    assert refused.value.diag.constraint_name == "intent_never_changes"


def test_retention_may_empty_a_body_and_nothing_else(
    workspace: Arranged, agent: Agent, owner: psycopg.Connection[Any]
) -> None:
    operation_id = recorded(workspace, agent, settled=True)
    mine = "WHERE workspace_id = %s"
    owner.execute(f"UPDATE ledger_entry SET detail = NULL {mine}", [workspace.id])
    owner.execute(f"UPDATE ledger_evidence SET raw = NULL, parsed = NULL {mine}", [workspace.id])
    owner.execute("UPDATE ledger_invocation SET arguments = NULL WHERE operation_id = %s", [operation_id])
    with pytest.raises(database.IntegrityConstraintViolation):
        owner.execute(f"UPDATE ledger_evidence SET raw = 'other' {mine}", [workspace.id])


# F43: the entry's hash is over its content, and anybody can compute it again.


def test_an_entrys_hash_is_recomputed_from_its_content(workspace: Arranged, agent: Agent) -> None:
    entries = workspace.entries(recorded(workspace, agent, settled=True))
    assert [entry.position for entry in entries] == [1, 2, 3]
    for entry in entries:
        detail_sha256 = None if entry.detail is None else hashlib.sha256(entry.detail.encode()).hexdigest()
        content = json.dumps(
            [
                "counterfoil-entry-v1",
                entry.workspace_id,
                str(entry.invocation_id),
                entry.position,
                entry.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                entry.actor_kind,
                entry.actor_name,
                entry.event,
                entry.from_state,
                entry.to_state,
                detail_sha256,
            ],
            ensure_ascii=False,
        )
        assert bytes(entry.content_hash) == hashlib.sha256(content.encode()).digest()


# C14, I13: one workspace's rows are no other's, even for a statement that forgot to ask.

# Read before a workspace is known: they lead to one.
SHARED = {"ledger_workspace", "ledger_membership"}


def test_every_table_of_a_workspace_has_a_policy(owner: psycopg.Connection[Any]) -> None:
    unguarded = {
        name
        for (name,) in owner.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relkind = 'r' AND a.attname = 'workspace_id' AND NOT a.attisdropped"
            " AND c.relnamespace = 'public'::regnamespace"
            " AND (NOT c.relrowsecurity OR NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid))"
        )
    }
    assert unguarded == {"ledger_membership"}


def test_the_application_role_owns_nothing(owner: psycopg.Connection[Any]) -> None:
    row = owner.execute(
        "SELECT rolsuper, rolbypassrls, rolcanlogin, (SELECT count(*) FROM pg_class WHERE relowner = r.oid)"
        " FROM pg_roles r WHERE rolname = 'counterfoil_app'"
    ).fetchone()
    assert row == (False, False, False, 0)


TABLES = [
    "ledger_runtime",
    "ledger_runtimetoken",
    "ledger_mandate",
    "ledger_receiver",
    "ledger_capability",
    "ledger_task",
    "ledger_invocation",
    "ledger_attempt",
    "ledger_evidence",
    "ledger_entry",
]


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_another_workspace_do_not_exist(
    table: str,
    workspace: Arranged,
    other_workspace: Arranged,
    agent: Agent,
    app: psycopg.Connection[Any],
) -> None:
    recorded(workspace, agent, settled=True)

    def seen() -> set[int]:
        return {row[0] for row in app.execute(f"SELECT DISTINCT workspace_id FROM {table}")}

    assert seen() == set()
    app.execute("SELECT set_config('counterfoil.workspace', %s, true)", [str(other_workspace.id)])
    assert seen() <= {other_workspace.id}
    app.execute("SELECT set_config('counterfoil.workspace', %s, true)", [str(workspace.id)])
    assert seen() == {workspace.id}


def test_a_row_for_another_workspace_is_refused(
    workspace: Arranged, other_workspace: Arranged, app: psycopg.Connection[Any]
) -> None:
    app.execute("SELECT set_config('counterfoil.workspace', %s, true)", [str(workspace.id)])
    with pytest.raises(database.InsufficientPrivilege):
        app.execute("INSERT INTO ledger_task (workspace_id, task_id) VALUES (%s, 't')", [other_workspace.id])


def test_the_workspace_of_a_call_does_not_outlive_it(
    workspace: Arranged, app: psycopg.Connection[Any]
) -> None:
    app.execute("SELECT * FROM ledger_read(%s, %s, 'x')", [workspace.token_id, workspace.secret_hash])
    app.commit()
    named = app.execute("SELECT current_setting('counterfoil.workspace', true)").fetchone()
    assert named in ((None,), ("",))

"""Who may call: a runtime's token, read anew at every request; a permit's token for its own outcome only."""

from __future__ import annotations

import string
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from ledger import tenancy, tokens
from ledger.keys import current
from ledger.models import ParkedEvidence, Runtime, RuntimeToken
from tests.arrange import COMPLETED, SCOPES, Agent, Arranged, in_process, nonce
from tests.ledger.api.steps import dispatch, ok, own_arguments, problem, record

Call = Callable[[Agent, str, Arranged], Any]

CALLS: dict[str, Call] = {
    "intent": lambda agent, name, workspace: agent.put_intent(name, workspace.intent()),
    "intent and permit": lambda agent, name, workspace: agent.put_intent(
        name, workspace.intent(dispatch=True), nonce=nonce()
    ),
    "read": lambda agent, name, workspace: agent.get(name),
    "wait": lambda agent, name, workspace: agent.get(name, "?wait=20"),
    "permit": lambda agent, name, workspace: agent.ask(name, 1, nonce=nonce()),
    "outcome": lambda agent, name, workspace: agent.report(name, 1, COMPLETED, nonce=nonce()),
    "withdrawal": lambda agent, name, workspace: agent.withdraw(name),
    "task": lambda agent, name, workspace: agent.call("GET", "/api/v1/tasks/task-1"),
    "batch": lambda agent, name, workspace: agent.call(
        "POST", "/api/v1/operations:batch", {"operations": [{"operation_id": name, **workspace.intent()}]}
    ),
    "reconcile": lambda agent, name, workspace: agent.call(
        "POST", f"/api/v1/operations/{name}/reconcile", {}
    ),
}
"""Every call of a runtime, on the operation of that name."""


def _flip(token: str, place: int) -> str:
    other = "a" if token[place] != "a" else "b"
    return token[:place] + other + token[place + 1 :]


def _never_minted() -> str:
    return tokens.mint("test", pepper=current().pepper).token


HEADERS: dict[str, Callable[[str], str | None]] = {
    "none": lambda token: None,
    "empty": lambda token: "",
    "no scheme": lambda token: token,
    "scheme only": lambda token: "Bearer",
    "scheme and space": lambda token: "Bearer  ",
    "basic": lambda token: f"Basic {token}",
    "token": lambda token: f"Token {token}",
    "two": lambda token: f"Bearer {token} {token}",
    "wrong checksum": lambda token: f"Bearer {_flip(token, -1)}",
    "wrong secret": lambda token: f"Bearer {_flip(token, -20)}",
    "cut": lambda token: f"Bearer {token[:-1]}",
    "longer": lambda token: f"Bearer {token}0",
    "in capitals": lambda token: f"Bearer {token.upper()}",
    "never minted": lambda token: f"Bearer {_never_minted()}",
    "a key of another service": lambda token: "Bearer sk_live_" + "x" * 40,
    "not ASCII": lambda token: "Bearer cfl_tëst",
    "quoted": lambda token: f'Bearer "{token}"',
    "very long": lambda token: "Bearer " + "x" * 20_000,
    "dots": lambda token: "Bearer a.b.c",
    "no signature": lambda token: "Bearer eyJhbGciOiJub25lIn0.e30.",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_nobody_is_let_in_by_half_a_token(
    agent: Agent, workspace: Arranged, call: Call, header: Callable[[str], str | None]
) -> None:
    text = header(workspace.token)

    class Stranger(Agent):
        def call(self, method: str, path: str, body: Any = None, **headers: Any) -> Any:
            return super().call(method, path, body, **{**headers, "authorization": text})

    stranger = Stranger(agent._send, "")

    answer = call(stranger, "op-1", workspace)

    body = problem(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="counterfoil"'
    assert workspace.token not in answer.content.decode()
    assert (body["repeat_request"], body["retryable"]) == (False, False)
    problem(agent.get("op-1"), 404, "no-ledger-entry")


def _expire(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        RuntimeToken.objects.filter(token_id=workspace.token_id).update(
            expires_at=datetime.now(UTC) - timedelta(seconds=1)
        )


def _revoke_token(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        RuntimeToken.objects.filter(token_id=workspace.token_id).update(revoked_at=datetime.now(UTC))


def _revoke_runtime(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        Runtime.objects.filter(pk=workspace.runtime_id).update(revoked_at=datetime.now(UTC))


@pytest.mark.parametrize("end", [_expire, _revoke_token, _revoke_runtime])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_token_that_ended_is_refused_at_the_next_request(
    agent: Agent, workspace: Arranged, call: Call, end: Callable[[Arranged], None]
) -> None:
    known = record(agent, workspace)  # the process knows the token and the capability from now on
    end(workspace)

    on_record = problem(call(agent, known, workspace), 401, "unauthenticated")
    nowhere = problem(call(agent, "op-none", workspace), 401, "unauthenticated")

    for body in (on_record, nowhere):
        body.pop("operation_id", None), body.pop("status_url", None)
    assert on_record == nowhere, "a stranger learns nothing of what is on record"
    assert workspace.row(known).version == 1


def test_a_token_that_has_not_expired_is_good(workspace: Arranged) -> None:
    token = workspace.second_token(expires_at=datetime.now(UTC) + timedelta(seconds=60))

    record(in_process(token), workspace)


def test_two_tokens_are_alive_while_one_replaces_the_other(agent: Agent, workspace: Arranged) -> None:
    minted = tokens.mint("test", pepper=current().pepper)
    with tenancy.workspace(workspace.id):
        RuntimeToken.objects.create(
            runtime_id=workspace.runtime_id,
            workspace_id=workspace.id,
            token_id=minted.token_id,
            secret_hash=minted.secret_hash,
        )
    held = dispatch(agent, workspace)
    _revoke_token(workspace)

    renewed = in_process(minted.token)

    assert ok(renewed.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))["state"] == "completed"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_schemes_case_does_not_matter(agent: Agent, workspace: Arranged, scheme: str) -> None:
    operation_id = record(agent, workspace)

    ok(agent.get(operation_id, authorization=f"{scheme} {workspace.token}"))
    ok(agent.get(operation_id, authorization=f"{scheme}   {workspace.token} "))


# A call needs these scopes; every other scope together is not enough.
NEEDED = {
    "intent": {"intent"},
    "intent and permit": {"intent", "permit"},
    "read": {"read"},
    "wait": {"read"},
    "permit": {"permit"},
    "outcome": {"outcome"},
    "withdrawal": {"intent"},
    "task": {"read"},
    "batch": {"intent"},
    "reconcile": {"reconcile"},
}


@pytest.mark.parametrize(
    ("name", "scope"), [(name, scope) for name, scopes in NEEDED.items() for scope in sorted(scopes)]
)
def test_each_call_needs_its_scope(agent: Agent, workspace: Arranged, name: str, scope: str) -> None:
    known = record(agent, workspace)
    others = in_process(workspace.second_token(scopes=[one for one in SCOPES if one != scope]))

    body = problem(CALLS[name](others, known, workspace), 403, "forbidden")

    assert scope in body["detail"]


def test_no_scope_decides() -> None:
    assert "decide" not in SCOPES


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"unknown": 1}', b"\x00" * 100, b"x" * 300_000])
def test_a_stranger_learns_nothing_of_what_is_wrong_with_a_request(
    agent: Agent, workspace: Arranged, raw: bytes
) -> None:
    stranger = in_process(_never_minted())
    for method, path in (
        ("PUT", "/api/v1/operations/op-1"),
        ("PUT", "/api/v1/operations/%00"),
        ("GET", "/api/v1/operations/%00"),
        ("GET", "/api/v1/operations/op-1?wait=x"),
        ("PUT", "/api/v1/operations/op-1/attempts/x"),
        ("PUT", "/api/v1/operations/op-1/attempts/1"),  # no nonce
        ("PUT", "/api/v1/operations/op-1/attempts/1/outcome"),
        ("PUT", "/api/v1/operations/op-1/attempts/x/outcome"),
        ("PUT", "/api/v1/operations/../withdrawal"),
        ("GET", "/api/v1/tasks/%00"),
        ("POST", "/api/v1/operations:batch"),
    ):
        problem(stranger.call(method, path, raw=raw), 401, "unauthenticated")


def test_a_stranger_parks_nothing(agent: Agent, workspace: Arranged) -> None:
    name = f"op-{workspace.name}"

    problem(in_process(_never_minted()).report(name, 1, COMPLETED), 401, "unauthenticated")

    with tenancy.workspace(workspace.id):
        assert not ParkedEvidence.objects.filter(operation_id=name).exists()


# A workspace is taken from the token, never from the body.
def test_no_field_names_a_workspace(agent: Agent, workspace: Arranged, other_workspace: Arranged) -> None:
    for field in ("workspace", "workspace_id", "runtime"):
        body = problem(
            agent.put_intent("op-1", workspace.intent(**{field: other_workspace.name})), 400, "malformed"
        )
        assert body["unknown_fields"] == [field]
    for header in ("x-workspace", "x-forwarded-user", "x-principal"):
        intent = workspace.intent(arguments=own_arguments())
        operation_id = workspace.operation_id()
        answer = agent.put_intent(operation_id, intent, **{header.replace("-", "_"): other_workspace.name})
        assert answer.status_code == 201
        assert workspace.row(operation_id).workspace_id == workspace.id


def test_a_persons_session_opens_no_call_of_a_runtime(workspace: Arranged) -> None:
    from django.test import Client

    person = workspace.person("admin", "operator")
    client = Client()
    client.force_login(person)

    assert client.get("/api/v1/operations/op-1").status_code == 401
    assert client.get("/api/v1/tasks/task-1").status_code == 401


def test_a_permit_signed_by_somebody_else_is_no_credential(
    agent: Agent, workspace: Arranged, tmp_path: Any
) -> None:
    from dataclasses import replace

    from ledger.keys import Keyring
    from ledger.permits import read, sign

    held = dispatch(agent, workspace)
    theirs = Keyring.load(tmp_path / "keys", create=True)
    forged = sign(replace(read(held.token, current()), attempt=1), theirs)

    problem(in_process(forged).report(held.operation_id, 1, COMPLETED), 401, "unauthenticated")


def test_the_public_keys_need_no_token(record: None) -> None:
    from django.test import Client

    answer = Client().get("/.well-known/counterfoil-keys.json")

    assert answer.status_code == 200
    assert all(key["kty"] == "OKP" and "d" not in key for key in answer.json()["keys"])


def test_no_secret_is_stored(workspace: Arranged) -> None:
    secret = workspace.token.rsplit("_", 1)[1][:32]
    assert set(secret) <= set(string.ascii_letters + string.digits)
    with tenancy.workspace(workspace.id), connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_jsonb(t)::text, encode(t.secret_hash, 'escape') FROM ledger_runtimetoken t"
            " WHERE t.workspace_id = %s",
            [workspace.id],
        )
        stored = " ".join(text for row in cursor.fetchall() for text in row)

    assert workspace.token_id in stored
    assert secret not in stored

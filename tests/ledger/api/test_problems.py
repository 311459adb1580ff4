"""Whatever is sent, the answer is typed: no page, no redirect, no error of ours."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.db import connection

from ledger import errors
from tests.arrange import COMPLETED, NOT_SENT, UNKNOWN, Agent, Arranged, in_process, nonce, over_http
from tests.corpora import corpora
from tests.ledger.api.steps import dispatch, ok, own_arguments, problem, record
from tests.live import free_port

METHODS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"]
ADDRESSES = {
    "/api/v1/operations/op-1": {"GET", "HEAD", "PUT"},
    "/api/v1/operations/op-1/attempts/1": {"PUT"},
    "/api/v1/operations/op-1/attempts/1/outcome": {"PUT"},
    "/api/v1/operations/op-1/withdrawal": {"PUT"},
    "/api/v1/tasks/task-1": {"GET", "HEAD"},
    "/api/v1/operations:batch": {"POST"},
    "/api/v1/operations/op-1/reconcile": {"POST"},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("path", "allowed"), ADDRESSES.items())
def test_a_method_an_address_does_not_know_is_answered_with_those_it_knows(
    agent: Agent, path: str, allowed: set[str], method: str
) -> None:
    answer = agent.call(method, path)

    if method in allowed:
        assert answer.status_code != 405
        return
    assert set(answer.headers["Allow"].split(", ")) == allowed
    if method == "HEAD":
        assert answer.status_code == 405
        return
    body = problem(answer, 405, "method-not-allowed")
    assert set(body["allow"]) == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/",
        "/api/v1/operations",
        "/api/v1/operations/",
        "/api/v1/operations/op-1/",
        "/api/v1/operations/op-1/attempts",
        "/api/v1/operations/op-1/attempts/",
        "/api/v1/operations/op-1/attempts/1/",
        "/api/v1/operations/op-1/attempts/1/outcome/",
        "/api/v1/operations/op-1/attempts/1/outcomes",
        "/api/v1/operations/op-1/withdraw",
        "/api/v1/operations:batches",
        "/api/v1/tasks",
        "/api/v1/tasks/",
        "/api/v1/admin/login/",
        "/api/v1/%00",
        "/api/v1/\n",
        "/api/v2/operations/op-1",
        "/api/",
        "/api/x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "OPTIONS"])
def test_there_is_nothing_at_any_other_address(agent: Agent, path: str, method: str) -> None:
    problem(agent.call(method, path), 404, "not-found")
    problem(agent.call(method, path, authorization=None), 404, "not-found")


@pytest.mark.parametrize(
    "header",
    [
        {"accept": "text/html"},
        {"accept": "application/xml;q=1, */*;q=0"},
        {"accept": "\x7f\x80;;;,,q=q"},
        {"accept": ""},
        {"accept_encoding": "br;q=2, identity;q=0"},
        {"accept_language": "x" * 10_000},
        {"content_type": "application/json; charset=nonsense"},
        {"content_type": "multipart/form-data; boundary="},
        {"content_type": ";;;=;=\x80"},
        {"cookie": "sessionid=\x80\xff; =; ;;"},
        {"cookie": "csrftoken=" + "x" * 8000},
        {"x_http_method_override": "DELETE"},
        {"x_forwarded_host": "evil.example.org"},
        {"x_forwarded_proto": "javascript"},
        {"if_none_match": "*"},
        {"if_modified_since": "yesterday"},
        {"range": "bytes=0-10"},
        {"permit_nonce": "\x80" * 20},
        {"permit_token": "a.b.c"},
        {"permit_token": "\x80"},
        {"host": "evil.example.org"},
        {"host": "[::"},
    ],
)
def test_no_header_is_an_error_of_ours(
    agent: Agent, workspace: Arranged, header: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    operation_id = record(agent, workspace)
    calls = [
        (
            "PUT",
            f"/api/v1/operations/{workspace.operation_id()}",
            workspace.intent(arguments=own_arguments()),
        ),
        ("GET", f"/api/v1/operations/{operation_id}?wait=0", None),
        ("PUT", f"/api/v1/operations/{operation_id}/attempts/1", None),
        ("PUT", f"/api/v1/operations/{operation_id}/attempts/1/outcome", COMPLETED),
        ("GET", "/api/v1/tasks/task-1?format=xml", None),
        ("POST", "/api/v1/operations:batch?format=html", {"operations": []}),
        ("PUT", f"/api/v1/operations/{operation_id}/withdrawal", None),
    ]
    for method, path, body in calls:
        answer = agent.call(method, path, body, **{"permit_nonce": nonce(), **header})
        assert answer.status_code < 500, (method, path, answer.content)
        assert answer.headers["Content-Type"] in ("application/json", "application/problem+json")
    assert [entry.message for entry in caplog.records if entry.levelno >= logging.ERROR] == []


NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**53 - 1,
    "",
    " ",
    "x" * 70_000,
    "\u202e\u2066evil\u2069",
    "<script>alert(1)</script>",
    "'; DROP TABLE ledger_invocation; --",
    "{{ 7*7 }} ${7*7} %s %(x)s {0}",
    "../../../etc/passwd",
    "\x7f\x80\x9f",
    "e\u0301",
    "\U0010ffff",
    [],
    [None],
    [[[[[[]]]]]],
    {},
    {"": ""},
    {"a": None},
    {"__class__": {"__init__": 1}},
    {"$ref": "#"},
    {"constructor": {"prototype": {"admin": True}}},
]
FIELDS = [
    "task_id",
    "capability",
    "arguments",
    "actor",
    "business_reference",
    "idempotency_key",
    "amount",
    "checkpoint",
    "purpose",
    "supersedes",
    "compensates",
    "dispatch",
    "expect",
    "",
    "\U0010ffff",
]


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_in_an_intent_is_an_error_of_ours(agent: Agent, workspace: Arranged, field: str) -> None:
    items = [
        {
            "operation_id": workspace.operation_id(),
            **workspace.intent(**{"arguments": own_arguments(), field: value}),
        }
        for value in NASTY
        if not (isinstance(value, str) and len(value) > 60_000)
    ]

    answers = ok(agent.call("POST", "/api/v1/operations:batch", {"operations": items}))["operations"]

    assert {answer["status"] for answer in answers} <= {200, 201, 400, 404, 409, 422}
    for item in items:
        name = item.pop("operation_id")
        assert agent.put_intent(name, item, nonce=nonce()).status_code < 500


@pytest.mark.parametrize(
    "field", ["outcome", "receiver_reference", "result", "evidence", "denial", "fault", "retry_after_s", ""]
)
def test_no_value_in_a_report_is_an_error_of_ours(agent: Agent, workspace: Arranged, field: str) -> None:
    for value in NASTY:
        held = dispatch(agent, workspace)
        answer = agent.report(held.operation_id, 1, {**UNKNOWN, field: value}, nonce=held.nonce)
        assert answer.status_code in (200, 422), value
        assert len(workspace.evidence(held.operation_id)) == 1, "and it is kept"


@pytest.mark.parametrize("part", ["source", "http_status", "body", "reason", "class", "clears_after_s"])
def test_no_value_inside_a_report_is_an_error_of_ours(agent: Agent, workspace: Arranged, part: str) -> None:
    whole = "evidence" if part in ("source", "http_status", "body") else "denial"
    for value in NASTY:
        held = dispatch(agent, workspace)
        report = {"outcome": "denied", whole: {part: value}}
        answer = agent.report(held.operation_id, 1, report, nonce=held.nonce)
        assert answer.status_code in (200, 422), value
        assert ok(agent.get(held.operation_id))["state"] in ("unknown", "denied")


RAW = [
    b"",
    b" ",
    b"\x00",
    b"\xff" * 100,
    b"nul",
    b"-",
    b"1e400",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'"\\ud800"',
    b'"\\u0000"',
    b"{}{}",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"a":1,"a":2}',
    b"{'a': 1}",
    b"{" + b'"k":1,' * 40_000 + b'"z":1}',
    b"/**/{}",
    b"<xml/>",
]


@pytest.mark.parametrize("raw", RAW, ids=[repr(raw[:12]) for raw in RAW])
@pytest.mark.parametrize(
    ("method", "path"), [(m, p) for p, allowed in ADDRESSES.items() for m in sorted(allowed)]
)
def test_no_bytes_are_an_error_of_ours(
    agent: Agent, method: str, path: str, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = agent.call(method, path, raw=raw, permit_nonce=nonce())

    assert answer.status_code < 500
    assert [entry.message for entry in caplog.records if entry.levelno >= logging.ERROR] == []


def test_no_naughty_string_is_an_error_of_ours(agent: Agent, workspace: Arranged) -> None:
    strings = [text for text in json.loads(corpora("blns.json").read_text("utf-8")) if "\x00" not in text]
    assert len(strings) > 400
    for start in range(0, len(strings), 50):
        items = []
        for text in strings[start : start + 50]:
            free = {"purpose": text, "checkpoint": {text: text}, "arguments": {text: [text], "n": text}}
            items.append({"operation_id": workspace.operation_id(), **workspace.intent(**free)})
            shaped = {"business_reference": text, "actor": {"subject": text, "on_behalf_of": text}}
            items.append({"operation_id": workspace.operation_id(), **workspace.intent(**shaped)})
        answers = ok(agent.call("POST", "/api/v1/operations:batch", {"operations": items}))["operations"]
        assert {answer["status"] for answer in answers[::2]} == {201}, "free text is taken as it is"
        assert {answer["status"] for answer in answers[1::2]} <= {201, 400}
        for item, answer in zip(items[::2], answers[::2], strict=True):
            row = workspace.row(answer["body"]["operation_id"])
            assert row.purpose == item["purpose"], "nothing is normalised"
            assert json.loads(row.arguments) == item["arguments"]
    for text in strings:
        name = quote(text.encode("utf-8", "replace"), safe="")
        for answer in (agent.get(name or "%20"), agent.call("GET", f"/api/v1/tasks/{name or '%20'}")):
            assert answer.status_code in (400, 404), text


def test_a_naughty_string_of_a_receiver_is_kept(agent: Agent, workspace: Arranged) -> None:
    strings = [text for text in json.loads(corpora("blns.json").read_text("utf-8")) if "\x00" not in text]
    held = dispatch(agent, workspace)
    report = {
        "outcome": "completed",
        "receiver_reference": "re_1",
        "result": strings,
        "evidence": {"body": strings},
    }

    body = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    assert body["outcome"]["result"] == strings


# What a problem tells the machine


# C15: no 409 can be read as "nothing was written, mint a new key"
def test_in_flight_unknown_and_conflict_are_told_apart(agent: Agent, workspace: Arranged) -> None:
    in_flight, unknown = dispatch(agent, workspace), dispatch(agent, workspace)
    ok(agent.report(unknown.operation_id, 1, UNKNOWN, nonce=unknown.nonce))

    told = {
        "attempt-in-flight": agent.ask(in_flight.operation_id, 1, nonce=nonce()),
        "reconciliation-required": agent.ask(unknown.operation_id, 2, nonce=nonce()),
        "intent-mismatch": agent.put_intent(unknown.operation_id, workspace.intent()),
    }

    for code, answer in told.items():
        body = problem(answer, 422 if code == "intent-mismatch" else 409, code)
        assert body["reuse_key"] is True
        assert body["retryable"] is False
        assert body["effect_may_have_happened"] is True
        assert body["operation_id"] in (in_flight.operation_id, unknown.operation_id)
        assert body["status_url"] == f"/api/v1/operations/{body['operation_id']}"
        assert body["invocation_id"]
        assert body["decision"]["dispatch_allowed"] is False
        assert body["type"].endswith(f"#{code}")
        assert body["title"] and body["detail"]
    assert {code: answer.json()["repeat_request"] for code, answer in told.items()} == {
        "attempt-in-flight": True,
        "reconciliation-required": False,
        "intent-mismatch": False,
    }


def test_only_one_refusal_of_a_key_tells_to_mint_another() -> None:
    assert [refusal.code for refusal in errors.ALL if not refusal.reuse_key] == ["key-in-use"]


# The database is away


@contextmanager
def _away() -> Iterator[None]:
    """No database listens where this process looks for it."""
    settings_dict = connection.settings_dict
    port = settings_dict["PORT"]
    connection.close()
    settings_dict["PORT"] = str(free_port())
    try:
        yield
    finally:
        connection.close()
        settings_dict["PORT"] = port


# F13, I14: fail closed
def test_without_the_database_nothing_is_permitted_and_everything_may_be_repeated(
    agent: Agent, workspace: Arranged
) -> None:
    held = dispatch(agent, workspace)
    minted, operation_id = nonce(), workspace.operation_id()
    calls = [
        lambda: agent.put_intent(
            operation_id, workspace.intent(arguments={"n": 1}, dispatch=True), nonce=minted
        ),
        lambda: agent.ask(operation_id, 1, nonce=minted),
        lambda: agent.get(operation_id),
        lambda: agent.call("GET", "/api/v1/tasks/task-1"),
        lambda: agent.call("POST", "/api/v1/operations:batch", {"operations": [{}]}),
        lambda: agent.withdraw(record(agent, workspace)),
    ]
    for call in calls[:5]:
        with _away():
            answer = call()
        body = problem(answer, 503, "unavailable")
        assert (body["repeat_request"], body["retryable"]) == (True, False)
        assert "permit" not in body
        assert call().status_code < 300, "the same request again, once it is back"
    # C02
    with _away():
        answer = agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce)
    body = problem(answer, 503, "post-dispatch-evidence-failed")
    assert (body["retryable"], body["repeat_request"], body["reconciliation_required"]) == (False, True, True)
    assert body["effect_may_have_happened"] is True
    problem(agent.ask(held.operation_id, 1, nonce=nonce()), 409, "attempt-in-flight")
    assert ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))["state"] == "completed"


# F12: an error says nothing about whether the statement took effect
def test_a_connection_that_broke_is_replaced_and_the_call_asked_again(
    agent: Agent, workspace: Arranged
) -> None:
    held = dispatch(agent, workspace)
    for call in (
        lambda: agent.get(held.operation_id),
        lambda: agent.ask(held.operation_id, 1, nonce=held.nonce),
        lambda: agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce),
        lambda: agent.put_intent("op-2", workspace.intent()),
    ):
        connection.ensure_connection()
        connection.connection.close()
        assert call().status_code in (200, 201)


# C48: nobody waits for ever
def test_statements_and_locks_are_bounded(record: None) -> None:
    with connection.cursor() as cursor:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SHOW {name}")
            assert cursor.fetchone()[0] not in ("0", None), name


# Bodies over the wire


def _exchange(live: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """One request as it is written; (status, headers, body) of the answer."""
    address = urlsplit(live)
    with socket.create_connection((address.hostname, address.port), timeout=15) as wire:
        wire.sendall(request)
        received = b""
        while chunk := wire.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, body


def _request(workspace: Arranged, method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join(
        [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {workspace.token}",
            "Content-Type: application/json",
            "Connection: close",
            *headers,
            "\r\n",
        ]
    ).encode("latin-1")


def _chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_body_may_come_in_chunks(live: str, workspace: Arranged, size: int) -> None:
    agent = over_http(live, workspace.token)
    head = _request(workspace, "PUT", "/api/v1/operations/op-1", "Transfer-Encoding: chunked")

    status, _, body = _exchange(live, head + _chunked(json.dumps(workspace.intent()).encode(), size))

    assert (status, json.loads(body)["operation_id"]) == (201, "op-1")
    assert ok(agent.put_intent("op-1", workspace.intent()))["replayed"] is True


def test_chunks_are_counted(live: str, workspace: Arranged) -> None:
    big = json.dumps(workspace.intent(arguments={"text": "x" * 300_000})).encode()
    head = _request(workspace, "PUT", "/api/v1/operations/op-1", "Transfer-Encoding: chunked")

    status, headers, body = _exchange(live, head + _chunked(big, 60_000))

    assert (status, headers["content-type"]) == (413, "application/problem+json")
    assert json.loads(body)["code"] == "too-large"


def test_an_outcome_in_chunks_is_kept_whatever_its_size(live: str, workspace: Arranged) -> None:
    agent = over_http(live, workspace.token)
    held = dispatch(agent, workspace)
    path = f"/api/v1/operations/{held.operation_id}/attempts/1/outcome"
    head = _request(workspace, "PUT", path, "Transfer-Encoding: chunked", f"Permit-Nonce: {held.nonce}")

    status, _, body = _exchange(live, head + _chunked(b'{"outcome": "completed"' + b" " * 9_000_000, 500_000))
    assert (status, json.loads(body)["recorded"]) == (422, True)
    assert workspace.evidence(held.operation_id)[0].raw_size > 8_000_000

    status, _, body = _exchange(live, head + _chunked(json.dumps(COMPLETED).encode(), 10))
    assert (status, json.loads(body)["state"]) == (200, "completed")


@pytest.mark.parametrize("declared", ["Content-Length: 10000000000", "Content-Length: 300000"])
def test_a_body_that_is_declared_too_large_is_not_waited_for(
    live: str, workspace: Arranged, declared: str
) -> None:
    head = _request(workspace, "PUT", "/api/v1/operations/op-1", declared)

    status, _, body = _exchange(live, head + b"x" * 300_000)

    assert (status, json.loads(body)["code"]) == (413, "too-large")


@pytest.mark.parametrize(
    "line", ["Content-Length: x", "Content-Length: -1", "Content-Length: 1, 2", "Content-Length: \xb2"]
)
def test_a_length_that_is_none_gets_no_error_of_ours(live: str, workspace: Arranged, line: str) -> None:
    status, _, _ = _exchange(live, _request(workspace, "PUT", "/api/v1/operations/op-1", line))

    assert status == 400


@pytest.mark.parametrize(
    "path",
    ["/api/v1/operations/..", "/api/v1/operations/%2e%2e", "/api/v1/operations/.", "/api/v1/operations/%2E"],
)
def test_dots_are_not_folded_away_by_the_server(live: str, workspace: Arranged, path: str) -> None:
    status, _, body = _exchange(live, _request(workspace, "GET", path))

    assert (status, json.loads(body)["code"]) == (400, "malformed")


def test_a_slash_in_a_name_reaches_no_other_operation(live: str, workspace: Arranged) -> None:
    agent = over_http(live, workspace.token)
    operation_id = record(agent, workspace)
    path = f"/api/v1/operations/{operation_id}%2Fwithdrawal"

    status, _, body = _exchange(live, _request(workspace, "GET", path))

    assert status in (404, 405)
    assert json.loads(body)["code"] in ("not-found", "method-not-allowed")
    assert ok(agent.get(operation_id))["state"] == "intended"


@pytest.mark.parametrize(
    "charset", ["utf-8", "hex", "idna", "punycode", "undefined", "utf-16", "nonsense", "%00"]
)
def test_no_charset_is_an_error_of_ours(live: str, workspace: Arranged, charset: str) -> None:
    operation_id = record(over_http(live, workspace.token), workspace)
    many = "&".join(f"f{number}" for number in range(3000))
    for query, expected in (("wait=0&x=%E9", 200), (many, 400)):
        request = _request(workspace, "GET", f"/api/v1/operations/{operation_id}?{query}")
        odd = request.replace(b"application/json", b"application/json; charset=" + charset.encode())
        status, _, body = _exchange(live, odd)
        assert (status, json.loads(body)["operation_id"]) == (expected, operation_id)


def test_a_connection_is_kept_after_a_refusal(live: str, workspace: Arranged) -> None:
    agent = over_http(live, workspace.token)

    for _ in range(3):
        problem(agent.call("PUT", "/api/v1/operations/op-1", raw=b"{"), 400, "malformed")
        problem(agent.get("op-1"), 404, "no-ledger-entry")
    ok(agent.put_intent("op-1", workspace.intent()), 201)


def test_in_process_and_over_http_answer_the_same(live: str, workspace: Arranged) -> None:
    operation_id = record(in_process(workspace.token), workspace)

    here, there = (
        in_process(workspace.token).get(operation_id),
        over_http(live, workspace.token).get(operation_id),
    )

    assert here.json() == there.json()
    for name in ("Content-Type", "Cache-Control", "Content-Length"):
        assert here.headers[name] == there.headers[name]

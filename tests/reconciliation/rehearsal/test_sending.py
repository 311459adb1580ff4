from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from reconciliation.rehearsal.sending import (
    LARGEST_REPLY,
    UNCLEAR_4XX,
    NoReply,
    Outcome,
    Reply,
    _fault_of_connecting,
    classify,
    send,
)

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that answers each connection with the bytes it was given, and then closes it."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def starter(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer_each() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    received = b""
                    # A whole request, or a TLS greeting: unread bytes would turn the farewell into a reset.
                    while not received.endswith(b"{}") and received[:1] in (b"", b"P"):
                        received += connection.recv(65536) or b"{}"
                    connection.sendall(answer)

        thread = threading.Thread(target=answer_each, daemon=True)
        thread.start()
        threads.append(thread)
        return f"http://127.0.0.1:{listener.getsockname()[1]}/x"

    yield starter
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(5)


def post(url: str, *, timeout_s: float = 0.5) -> Reply | NoReply:
    return send(url, b"{}", headers={}, timeout_s=timeout_s)


def test_a_refused_connection_provably_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert post(f"http://127.0.0.1:{port}/x") == NoReply("connection_refused", sent=False)


def test_a_name_that_does_not_resolve_provably_sent_nothing() -> None:
    assert post("http://nothing.invalid/x") == NoReply("dns_failure", sent=False)


def test_a_listener_that_speaks_no_tls_provably_got_nothing(serve: Serve) -> None:
    url = serve(b"HTTP/1.1 400 Bad Request\r\n\r\n").replace("http://", "https://")
    assert post(url) == NoReply("tls_failed", sent=False)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (socket.gaierror(-2, "unknown"), "dns_failure"),
        (ConnectionRefusedError(), "connection_refused"),
        (TimeoutError(), "connect_timeout"),
        (ssl.SSLCertVerificationError(), "tls_failed"),
        (OSError(113, "no route to host"), "connect_failed"),
        (ConnectionResetError(), "connect_failed"),
    ],
)
def test_what_fails_while_connecting_keeps_its_name(error: OSError, fault: str) -> None:
    assert _fault_of_connecting(error) == fault


UNREADABLE = [
    # closed without a byte
    (b"", "connection_closed"),
    # fewer bytes than promised
    (b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{", "reply_truncated"),
    (b"HTTP/1.1 402 Payment Required\r\nContent-Length: 100\r\n\r\n{", "reply_truncated"),
    (b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "reply_truncated"),
    # no HTTP
    (b"220 mail.example.org ESMTP\r\n", "reply_unreadable"),
    # longer than anybody reads
    (b"HTTP/1.1 201 Created\r\n\r\n" + b"x" * (LARGEST_REPLY + 1), "reply_too_large"),
]


@pytest.mark.parametrize(("answer", "fault"), UNREADABLE)
def test_an_answer_that_did_not_arrive_whole_proves_nothing(serve: Serve, answer: bytes, fault: str) -> None:
    reply = post(serve(answer))
    assert reply == NoReply(fault, sent=True)
    assert classify(reply).outcome is Outcome.UNKNOWN


def test_a_silent_receiver_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        assert post(url, timeout_s=0.2) == NoReply("timeout", sent=True)


@pytest.mark.parametrize("fault", ["timeout", "connection_reset", "reply_truncated"])
def test_no_answer_after_sending_is_unknown(fault: str) -> None:
    report = classify(NoReply(fault, sent=True))
    assert report.outcome is Outcome.UNKNOWN
    assert report.body == {"outcome": "unknown", "fault": fault}


def test_no_answer_before_sending_is_not_sent() -> None:
    report = classify(NoReply("connection_refused", sent=False))
    assert report.body == {"outcome": "not_sent", "fault": "connection_refused"}


EFFECT = {"id": "ef_1", "status": "succeeded"}

SUCCESSES_THAT_PROVE_NOTHING = [
    # accepted is not done
    (202, EFFECT),
    (204, None),
    # a status that is not final, or none
    (200, {"id": "ef_1", "status": "pending"}),
    (200, {"id": "ef_1"}),
    # nothing to find the effect by
    (200, {"status": "succeeded"}),
    (200, {"id": 7, "status": "succeeded"}),
    # no object, no JSON
    (200, [EFFECT]),
    (200, None),
]


@pytest.mark.parametrize(("status", "body"), SUCCESSES_THAT_PROVE_NOTHING)
def test_a_success_without_a_final_effect_in_it_is_unknown(status: int, body: object) -> None:
    report = classify(Reply(status, body, "as received"))
    assert (report.outcome, report.body["fault"]) == (Outcome.UNKNOWN, "reply_not_final")


@pytest.mark.parametrize("status", [200, 201])
def test_an_effect_in_the_answer_is_completed_with_reference_and_evidence(status: int) -> None:
    report = classify(Reply(status, EFFECT, "…"))
    assert report.body == {
        "outcome": "completed",
        "receiver_reference": "ef_1",
        "result": EFFECT,
        "evidence": {"source": "receiver_response", "http_status": status, "body": EFFECT},
    }


@pytest.mark.parametrize("status", range(300, 600))
def test_only_a_client_error_that_is_a_refusal_is_denied(status: int) -> None:
    report = classify(Reply(status, {"error": {"code": "card_declined"}}, "…"))
    if 400 <= status < 500 and status not in UNCLEAR_4XX:
        assert report.body["denial"] == {"reason": "card_declined"}
        assert report.outcome is Outcome.DENIED
    else:
        assert report.body["fault"] == f"http_{status}"
        assert report.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "body", [None, [], "no", {"error": "no"}, {"error": {"code": ""}}, {"error": {"code": 1}}]
)
def test_a_refusal_without_a_reason_is_named_by_its_status(body: object) -> None:
    report = classify(Reply(402, body, "raw"))
    assert report.body["denial"] == {"reason": "http_402"}
    assert report.body["evidence"]["body"] == ("raw" if body is None else body)


def test_when_to_come_again_is_passed_on() -> None:
    assert classify(Reply(503, {}, "", retry_after_s=7)).body["retry_after_s"] == 7

"""The guard: where it does not go, what it does not wait for, and what it makes of odd answers."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from reconciliation.reconcilers import egress
from reconciliation.reconcilers.egress import Answer, Cut, EgressRefused, Unreachable, fetch, why_refused
from tests.reconciliation.reconcilers.conftest import Authority, Receiver, json_reply, reply


def ask(url: str, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    settings = {"timeout_s": 5.0, "max_bytes": 100_000, "allow_private": True, **more}
    return fetch(url, headers or {}, **settings)


def nowhere(host: str) -> Sequence[str]:
    raise AssertionError(f"{host} was resolved although the URL is refused")


# -- addresses

NEVER = [
    ("169.254.169.254", "link_local_address"),  # the metadata service of most clouds
    ("169.254.0.1", "link_local_address"),
    ("fe80::1", "link_local_address"),
    ("fe80::1%eth0", "link_local_address"),
    ("febf::1", "link_local_address"),
    ("::ffff:169.254.169.254", "link_local_address"),  # IPv4-mapped: the kernel speaks IPv4
    ("::ffff:a9fe:a9fe", "link_local_address"),
    ("64:ff9b::a9fe:a9fe", "link_local_address"),  # NAT64: is_global says yes
    ("64:ff9b:1::a9fe:a9fe", "link_local_address"),  # NAT64, local use
    ("2002:a9fe:a9fe::1", "link_local_address"),  # 6to4
    ("2001:0:a9fe:a9fe::1", "link_local_address"),  # Teredo, the server
    ("2001:0:808:808:0:0:5601:5601", "link_local_address"),  # Teredo, the client (inverted)
    ("::169.254.169.254", "link_local_address"),  # IPv4-compatible
    ("::ffff:0:a9fe:a9fe", "link_local_address"),  # IPv4-translated
    ("2a00::5efe:a9fe:a9fe", "link_local_address"),  # ISATAP, global prefix
    ("2a00::200:5efe:a9fe:a9fe", "link_local_address"),
    ("224.0.0.1", "multicast_address"),
    ("239.255.255.250", "multicast_address"),
    ("255.255.255.255", "multicast_address"),
    ("ff02::1", "multicast_address"),
    ("64:ff9b::e000:1", "multicast_address"),
    ("100.100.100.200", "metadata_address"),
    ("168.63.129.16", "metadata_address"),  # global, and still a cloud's inside
    ("192.0.0.192", "metadata_address"),
    ("fd00:ec2::254", "metadata_address"),
    ("fd20:ce::254", "metadata_address"),
    ("64:ff9b::a83f:8110", "metadata_address"),
    ("localhost", "not_an_address"),
    ("127.1", "not_an_address"),
    ("", "not_an_address"),
]


@pytest.mark.parametrize("allow_private", [False, True])
@pytest.mark.parametrize(("address", "reason"), NEVER)
def test_some_addresses_are_never_asked(address: str, reason: str, allow_private: bool) -> None:
    assert why_refused(address, allow_private=allow_private) == reason


PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",  # carrier-grade NAT
    "192.0.0.8",
    "192.0.2.1",  # documentation
    "192.88.99.1",  # 6to4 relay
    "198.18.0.1",  # benchmarking
    "240.0.0.1",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "::8.8.8.8",  # withdrawn notation, whatever is inside
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b::6440:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:808:808::1",  # 6to4 is withdrawn even to a global address
    "2001:0:808:808::f7f7:f7f7",
    "2001:db8::1",
    "2001:10::1",
    "3fff::1",
    "2a00::5efe:a00:1",
    "fc00::1",
    "fdff::1",
    "fec0::1",
    "100::1",
    "5f00::1",
    "4000::1",  # not given out to anybody
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_globally_reachable_is_asked_only_where_private_addresses_are_allowed(
    address: str,
) -> None:
    assert why_refused(address, allow_private=False) == "private_address"
    assert why_refused(address, allow_private=True) is None


@pytest.mark.parametrize(
    "address",
    [
        "93.184.216.34",
        "8.8.8.8",
        "2606:4700::1111",
        "64:ff9b::808:808",
        "::ffff:8.8.8.8",
        "2a00::5efe:808:808",
    ],
)
def test_globally_reachable_addresses_are_asked(address: str) -> None:
    assert why_refused(address, allow_private=False) is None


# -- URLs and headers


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://pay.example.org/", "scheme"),
        ("ftp://pay.example.org/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://pay.example.org/", "scheme"),
        ("//pay.example.org/", "scheme"),
        ("pay.example.org", "scheme"),
        ("https://pay.example.org:8443/", "port"),
        ("https://pay.example.org:80/", "port"),
        ("https://pay.example.org:0/", "port"),
        ("https://pay.example.org:99999/", "bad_url"),
        ("https://pay.example.org:x/", "bad_url"),
        ("https://user@pay.example.org/", "userinfo"),
        ("https://user:pass@pay.example.org/", "userinfo"),
        ("https://@pay.example.org/", "userinfo"),
        ("https://pay.example.org@evil.example.net/", "userinfo"),
        ("https:///path", "bad_url"),
        ("https://", "bad_url"),
        ("", "bad_url"),
        ("https://pay.example.org/a b", "bad_url"),
        ("https://pay.example.org/\r\nHost: evil", "bad_url"),
        ("https://pay.example.org\\@evil.example.net/", "bad_url"),
        ("https://pay.example.org/\x00", "bad_url"),
        ("https://päy.example.org/", "bad_url"),
        ("https://pay%2eexample.org/", "bad_url"),
        ("https://.example.org/", "bad_url"),
        ("https://pay..example.org/", "bad_url"),
        ("https://pay.example.org./", "bad_url"),
        ("https://" + "a" * 64 + ".example.org/", "bad_url"),
        ("https://" + "a." * 127 + "org/", "bad_url"),
        ("https://[::1", "bad_url"),
        ("https://[zz::1]/", "bad_url"),
        ("https://[fe80::1%25eth0]/", "bad_url"),
        ("https://pay.example.org/" + "a" * 8_000, "bad_url"),
    ],
)
def test_a_url_that_is_not_plain_https_is_refused_before_its_name_is_resolved(url: str, reason: str) -> None:
    with pytest.raises(EgressRefused) as refused:
        ask(url, allow_private=False, resolve=nowhere)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "http://u@127.0.0.1/", "http://127.0.0.1:0/", "unix:/run/x"]
)
def test_allowing_private_addresses_opens_http_and_ports_but_nothing_else(url: str) -> None:
    with pytest.raises(EgressRefused):
        ask(url, resolve=nowhere)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer a\r\nX-Evil: 1"},
        {"Authorization": "Bearer a\x00"},
        {"Authorization": "Bearer €"},  # beyond Latin-1
        {"X Evil": "1"},
        {"": "1"},
        {"X-Long": "a" * 9_000},
        {"Host": "evil.example.net"},
        {"transfer-encoding": "chunked"},
        {"Content-Length": "5"},
        {"Connection": "keep-alive"},
        {"Accept-Encoding": "gzip"},
    ],
)
def test_a_header_that_would_change_the_request_is_refused(
    headers: dict[str, str], receiver: Receiver
) -> None:
    with pytest.raises(EgressRefused) as refused:
        ask(receiver.base_url, headers)
    assert refused.value.reason == "header"
    assert receiver.connections == 0


# -- names


@pytest.mark.parametrize(
    ("addresses", "allow_private", "reason"),
    [
        (["127.0.0.1"], False, "private_address"),
        (["93.184.216.34", "10.0.0.1"], False, "private_address"),  # one bad address among good ones
        (["10.0.0.1", "93.184.216.34"], False, "private_address"),
        (["::ffff:127.0.0.1"], False, "private_address"),
        (["64:ff9b::7f00:1"], False, "private_address"),
        (["169.254.169.254"], True, "link_local_address"),
        (["127.0.0.1", "169.254.169.254"], True, "link_local_address"),
        (["garbage"], True, "not_an_address"),
    ],
)
def test_a_name_is_refused_for_any_of_its_addresses_and_nothing_is_connected(
    addresses: list[str], allow_private: bool, reason: str, receiver: Receiver
) -> None:
    scheme = "http" if allow_private else "https"
    port = f":{receiver.port}" if allow_private else ""
    with pytest.raises(EgressRefused) as refused:
        ask(
            f"{scheme}://pay.receiver.test{port}/",
            allow_private=allow_private,
            resolve=lambda _host: addresses,
        )
    assert refused.value.reason == reason
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "10.1.2.3"]
)
def test_a_literal_address_is_judged_too(host: str) -> None:
    with pytest.raises(EgressRefused) as refused:
        ask(f"https://{host}/", allow_private=False, resolve=nowhere)
    assert refused.value.reason == "private_address"


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost"])
def test_other_spellings_of_an_inner_address_are_judged_by_what_they_resolve_to(host: str) -> None:
    with pytest.raises((EgressRefused, Unreachable)) as refused:
        ask(f"https://{host}/", allow_private=False)
    assert refused.value.reason in ("private_address", "dns_failure")


def test_a_name_that_changes_its_address_is_asked_where_it_was_judged(receiver: Receiver) -> None:
    resolved: list[str] = []

    def rebinding(host: str) -> list[str]:
        resolved.append(host)
        return ["127.0.0.1"] if len(resolved) == 1 else ["169.254.169.254"]

    receiver.says = [reply(b"first")]
    assert ask(f"http://pay.receiver.test:{receiver.port}/", resolve=rebinding).body == b"first"
    assert resolved == ["pay.receiver.test"]  # the second answer was never asked for
    assert receiver.header("Host") == f"pay.receiver.test:{receiver.port}"


def test_the_next_address_is_tried_when_one_does_not_answer(receiver: Receiver) -> None:
    found = ask(
        f"http://pay.receiver.test:{receiver.port}/", resolve=lambda _host: ["127.0.0.3", "127.0.0.1"]
    )
    assert found.status == 200


@pytest.mark.parametrize(
    "failing",
    [socket.gaierror("no such name"), UnicodeError("label too long"), ValueError("embedded null")],
)
def test_a_name_that_cannot_be_resolved_is_unreachable(failing: Exception) -> None:
    def resolve(host: str) -> list[str]:
        raise failing

    with pytest.raises(Unreachable) as refused:
        ask("https://pay.receiver.test/", allow_private=False, resolve=resolve)
    assert refused.value.reason == "dns_failure"


@pytest.mark.parametrize("addresses", [[], ["127.0.0.1"] * 1_000])
def test_no_addresses_and_far_too_many_are_a_failure_of_the_name(addresses: list[str]) -> None:
    with pytest.raises(Unreachable) as refused:
        ask("http://pay.receiver.test/", resolve=lambda _host: addresses)
    assert refused.value.reason == "dns_failure"


def test_a_resolver_that_hangs_does_not_outlast_the_deadline() -> None:
    let_go = threading.Event()

    def hanging(host: str) -> list[str]:
        let_go.wait(5)
        return ["127.0.0.1"]

    started = time.monotonic()
    with pytest.raises(Unreachable) as refused:
        ask("http://pay.receiver.test/", resolve=hanging, timeout_s=0.2)
    let_go.set()
    assert refused.value.reason == "timeout"
    assert time.monotonic() - started < 1


def test_hanging_resolvers_are_bounded_in_number() -> None:
    let_go, entered = threading.Event(), []

    def hanging(host: str) -> list[str]:
        entered.append(host)
        let_go.wait(5)
        return []

    for _ in range(egress.RESOLVING_MAX + 5):
        with pytest.raises(Unreachable):
            ask("http://pay.receiver.test/", resolve=hanging, timeout_s=0.01)
    assert len(entered) <= egress.RESOLVING_MAX
    let_go.set()
    for thread in threading.enumerate():
        if thread.name == "resolve":
            thread.join(2)


# -- what is sent


def test_the_request_is_one_plain_get(receiver: Receiver) -> None:
    ask(
        f"{receiver.base_url}/v1/refunds?reference=a%2Fb#dropped",
        {"Authorization": "Bearer k", "User-Agent": "x"},
    )
    head = receiver.requests[0]
    assert head.startswith("GET /v1/refunds?reference=a%2Fb HTTP/1.1\r\n")
    assert receiver.header("Host") == f"127.0.0.1:{receiver.port}"
    assert receiver.header("Authorization") == "Bearer k"
    assert receiver.header("User-Agent") == "x"
    assert receiver.header("Accept-Encoding") == "identity"
    assert head.lower().count("user-agent:") == head.lower().count("host:") == 1


def test_proxies_of_the_environment_are_ignored(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert ask(receiver.base_url).status == 200


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_is_not_followed(status: int, receiver: Receiver) -> None:
    receiver.says = [
        reply(status=status, Location="http://169.254.169.254/latest/meta-data"),
        reply(b"followed"),
    ]
    found = ask(receiver.base_url)
    assert (found.status, found.headers["location"]) == (status, "http://169.254.169.254/latest/meta-data")
    assert receiver.connections == 1


# -- TLS


def test_tls_is_verified_for_the_name_while_the_judged_address_is_connected(
    tls_receiver: Receiver, authority: Authority
) -> None:
    tls_receiver.says = [json_reply({"ok": True})]
    url = f"https://pay.receiver.test:{tls_receiver.port}/"
    found = ask(url, resolve=lambda _host: ["127.0.0.1"], tls=authority.client)
    assert found.body == b'{"ok": true}'
    assert tls_receiver.server_names == ["pay.receiver.test"]
    assert tls_receiver.header("Host") == f"pay.receiver.test:{tls_receiver.port}"


@pytest.mark.parametrize("host", ["other.receiver.test", "127.0.0.1"])
def test_a_certificate_of_another_name_is_refused(
    host: str, tls_receiver: Receiver, authority: Authority
) -> None:
    with pytest.raises(Unreachable) as refused:
        ask(f"https://{host}:{tls_receiver.port}/", resolve=lambda _host: ["127.0.0.1"], tls=authority.client)
    assert refused.value.reason == "tls_failed"
    assert tls_receiver.requests == []


def test_a_certificate_of_an_unknown_authority_is_refused(tls_receiver: Receiver) -> None:
    with pytest.raises(Unreachable) as refused:
        ask(f"https://pay.receiver.test:{tls_receiver.port}/", resolve=lambda _host: ["127.0.0.1"])
    assert refused.value.reason == "tls_failed"
    assert tls_receiver.requests == []


def test_a_server_that_speaks_no_tls_is_a_failure_of_tls(receiver: Receiver) -> None:
    receiver.says = [b"220 hello\r\n"]
    with pytest.raises(Unreachable) as refused:
        ask(f"https://127.0.0.1:{receiver.port}/", timeout_s=1)
    assert refused.value.reason in ("tls_failed", "timeout")


def test_a_handshake_that_never_ends_does_not_outlast_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        started = time.monotonic()
        with pytest.raises(Unreachable) as refused:
            ask(f"https://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.3)
    assert refused.value.reason == "timeout"
    assert time.monotonic() - started < 1.5


# -- time and size

# F27
Slow = Callable[[Receiver], Any]
SLOW_HEADS: list[tuple[str, Slow]] = [
    ("silent", lambda r: r.silence()),
    ("head dripping", lambda r: r.drip(b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.05)),
    ("head cut and held", lambda r: r.silence(b"HTTP/1.1 200 OK\r\nContent-Le")),
    ("interim answers without end", lambda r: r.drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05)),
]


@pytest.mark.parametrize(("name", "slow"), SLOW_HEADS, ids=[name for name, _ in SLOW_HEADS])
def test_a_receiver_that_never_begins_does_not_outlast_the_deadline(
    name: str, slow: Slow, receiver: Receiver
) -> None:
    receiver.says = [slow(receiver)]
    started = time.monotonic()
    with pytest.raises(Unreachable) as refused:
        ask(receiver.base_url, timeout_s=0.4)
    assert refused.value.reason == "timeout"
    assert time.monotonic() - started < 1


SLOW_BODIES: list[tuple[str, Slow]] = [
    ("announced and held", lambda r: r.silence(reply(b"abc", length=100))),
    ("dripping within its length", lambda r: r.drip(reply(b"abc", length=99_999), b"d", 0.05)),
    ("dripping without length", lambda r: r.drip(b"HTTP/1.1 200 OK\r\n\r\nabc", b"d", 0.05)),
    (
        "dripping chunks",
        lambda r: r.drip(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"1\r\nd\r\n", 0.05
        ),
    ),
]


@pytest.mark.parametrize(("name", "slow"), SLOW_BODIES, ids=[name for name, _ in SLOW_BODIES])
def test_a_receiver_that_drips_does_not_outlast_the_deadline_and_what_came_is_kept(
    name: str, slow: Slow, receiver: Receiver
) -> None:
    receiver.says = [slow(receiver)]
    started = time.monotonic()
    found = ask(receiver.base_url, timeout_s=0.4)
    assert time.monotonic() - started < 1
    assert (found.status, found.cut) == (200, Cut.TIMEOUT)
    assert found.body.startswith(b"abc")
    assert found.truncated
    assert 0.3 < found.elapsed_s < 1


def test_a_deadline_that_has_passed_sends_nothing(receiver: Receiver) -> None:
    with pytest.raises(Unreachable) as refused:
        ask(receiver.base_url, timeout_s=-1)
    assert refused.value.reason == "timeout"
    assert receiver.connections == 0


def endless(start: bytes, block: bytes) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(block)

    return script


@pytest.mark.parametrize(
    "start",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n"],
)
def test_a_body_without_end_is_cut_at_the_cap(start: bytes, receiver: Receiver) -> None:
    receiver.says = [endless(start, b"a" * 65_536)]
    found = ask(receiver.base_url, max_bytes=10_000)
    assert (len(found.body), found.cut) == (10_000, Cut.TOO_LARGE)


def test_a_body_of_exactly_the_cap_is_whole(receiver: Receiver) -> None:
    receiver.says = [reply(b"a" * 10_000)]
    assert ask(receiver.base_url, max_bytes=10_000).cut is None
    receiver.says = [reply(b"a" * 10_001)]
    assert ask(receiver.base_url, max_bytes=10_000).cut is Cut.TOO_LARGE


def test_chunks_that_cost_more_than_they_carry_are_cut(receiver: Receiver) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    receiver.says = [endless(head, (b"1;" + b"x" * 500 + b"\r\na\r\n") * 100)]
    found = ask(receiver.base_url, max_bytes=10_000)
    assert found.cut is Cut.TOO_LARGE
    assert len(found.body) < 1_000


def test_nothing_is_decompressed(receiver: Receiver) -> None:
    receiver.says = [reply(b"\x1f\x8b a bomb", Content_Encoding="gzip")]
    assert ask(receiver.base_url).body == b"\x1f\x8b a bomb"


@pytest.mark.parametrize(
    ("start", "block"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Header: a value\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1_000),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
        (b"HTTP/1.1 200 ", b"O" * 1_000),
    ],
)
def test_headers_without_end_are_cut(start: bytes, block: bytes, receiver: Receiver) -> None:
    receiver.says = [endless(start, block)]
    with pytest.raises(Unreachable) as refused:
        ask(receiver.base_url, timeout_s=3)
    assert refused.value.reason == "headers_too_large"


# -- odd answers


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (b"", "connection_closed"),
        (b"garbage\r\n\r\n", "bad_http"),
        (b"\x00\x01\x02\x03\r\n\r\n", "bad_http"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "bad_http"),
        (b"<html>no head</html>", "bad_http"),
        (b"HTTP/1.1 99999 OK\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 6_000 + b"\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nX\x00Y: 1\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", "bad_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "bad_http"),
    ],
)
def test_an_answer_that_is_no_http_is_unreachable(says: bytes, reason: str, receiver: Receiver) -> None:
    receiver.says = [says]
    with pytest.raises(Unreachable) as refused:
        ask(receiver.base_url)
    assert refused.value.reason == reason


def test_nobody_listening_is_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable) as refused:
        ask(f"http://127.0.0.1:{port}/")
    assert refused.value.reason == "connection_refused"


@pytest.mark.parametrize(
    ("says", "body"),
    [
        (reply(b"abc", length=10), b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", b""),
    ],
)
def test_a_body_cut_short_is_kept_and_said_to_be_cut(says: bytes, body: bytes, receiver: Receiver) -> None:
    receiver.says = [says]
    found = ask(receiver.base_url)
    assert (found.body, found.cut) == (body, Cut.TRUNCATED)


def reset(connection: socket.socket) -> None:
    connection.sendall(reply(b"abc", length=10))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


def test_a_connection_that_is_reset_in_the_body_leaves_a_cut_answer_or_none(receiver: Receiver) -> None:
    receiver.says = [reset]
    try:
        assert ask(receiver.base_url).cut is Cut.TRUNCATED
    except Unreachable as refused:
        assert refused.reason == "connection_closed"


# F33
@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe\x00", b'{"a": "\x00"}', b"[" * 20_000 + b"]" * 20_000, b'"\\ud800"', b"a" * 99_999],
)
def test_a_body_is_kept_byte_for_byte(body: bytes, receiver: Receiver) -> None:
    receiver.says = [reply(body, Content_Type="image/png")]
    found = ask(receiver.base_url)
    assert (found.body, found.cut) == (body, None)


@pytest.mark.parametrize(
    ("says", "status"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", 304),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", 200),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nmore", 101),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200),  # a version nobody has; the rest is clear
        (reply(status=599), 599),
    ],
)
def test_unusual_but_legal_answers_are_answers(says: bytes, status: int, receiver: Receiver) -> None:
    receiver.says = [says]
    try:
        assert ask(receiver.base_url, timeout_s=1).status == status
    except Unreachable as refused:
        assert (status, refused.reason) == (101, "bad_http")


def test_header_names_are_lower_case_and_repeats_are_joined(receiver: Receiver) -> None:
    receiver.says = [b"HTTP/1.1 200 OK\r\nX-Two: a\r\nx-two: b\r\nLatin: \xe9\r\nContent-Length: 0\r\n\r\n"]
    headers = ask(receiver.base_url).headers
    assert (headers["x-two"], headers["latin"]) == ("a, b", "é")


def mutations(seed: int) -> Iterator[bytes]:
    """Yield answers with a few random bytes changed, cut or repeated."""
    chance = random.Random(seed)
    whole = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nRetry-After: 5\r\n\r\n"
        b'10\r\n{"data": [1,2,3]\r\n1\r\n}\r\n0\r\n\r\n'
    )
    for _ in range(150):
        answer = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(answer))
            match chance.randrange(4):
                case 0:
                    answer[place] = chance.randrange(256)
                case 1:
                    del answer[place : place + chance.randint(1, 30)]
                case 2:
                    answer[place:place] = answer[place : place + chance.randint(1, 30)]
                case 3:
                    answer[place:place] = bytes(chance.randrange(256) for _ in range(3))
            if not answer:
                break
        yield bytes(answer)


def test_no_answer_however_garbled_raises_anything_else(receiver: Receiver) -> None:
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    receiver.says = list(mutations(seed))
    for _ in list(receiver.says):
        try:
            assert isinstance(ask(receiver.base_url, timeout_s=2), Answer)
        except Unreachable:
            continue


def test_no_socket_stays_open(receiver: Receiver) -> None:
    receiver.says = [reply(b"a" * 50_000), b"garbage", reply(length=5), b"", reply(status=302)]
    for _ in receiver.says:
        try:
            ask(receiver.base_url, max_bytes=10)
        except Unreachable:
            continue
    # ResourceWarning of an unclosed socket is an error in this suite; make the collector look now.
    import gc

    gc.collect()

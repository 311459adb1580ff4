"""The guard through which every look-up leaves: one GET, to an address that was judged, within a deadline
and a size.

What it keeps out, and how:

* **Other people's networks.** The name is resolved here, *every* address it has must be one that may be
asked, and
  the connection goes to that very address: a name that answers differently the second time is never asked a
  second time. Addresses that carry an IPv4 address inside (mapped, NAT64, 6to4, Teredo, ISATAP) are judged
  by both. A NAT64 gateway under a network's own prefix cannot be recognised from the address (RFC 6052,
  2.2): where one exists, its prefix belongs in the firewall.
* **Detours.** No redirect is followed (a 3xx is an answer), no proxy is taken from the environment, no user
name or
  password stands in a URL.
* **Slow and endless answers.** One deadline covers resolving, connecting, TLS, sending and reading,
whatever the
  receiver drips; header, body and bytes on the wire are capped.
* **Bombs.** Nothing is decompressed: ``Accept-Encoding: identity`` is sent, and an encoded body stays as it
is.

``https`` to port 443 unless ``allow_private``, which opens ``http``, every port and private addresses, but
never link-local ones (where clouds keep their metadata service), multicast or the metadata addresses
outside that range.

Source: OWASP SSRF Prevention cheat sheet; RFC 6890 and the IANA special-purpose registries; RFC 6052, 3056,
4380, 5214.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Final
from urllib.parse import urlsplit

import certifi
import httpcore

URL_LENGTH_MAX: Final = 8_000
"""Characters of a URL. RFC 9110 asks servers to take 8,000; a look-up's has a few hundred."""

HEADER_BYTES_MAX: Final = 64 * 1024
"""Bytes of status line and headers, interim answers included. Common servers send fewer than 8 KiB."""

WIRE_FACTOR: Final = 4
"""How many times ``max_bytes`` may cross the wire for one body: chunks of a few bytes cost more than they
carry.
"""

ADDRESSES_TRIED_MAX: Final = 4
"""Connections tried for one name. All its addresses are judged, but four dead ones are an outage."""

RESOLVING_MAX: Final = 32
"""Names being resolved at once in one process. A resolver that hangs may hold this many threads, not more."""

ADDRESSES_MAX: Final = 64
"""Addresses of one name. More is not a receiver."""

Resolver = Callable[[str], Sequence[str]]
"""Host name -> its addresses as text. May block and raise ``OSError``; it is called once per fetch."""


class EgressRefused(Exception):
    """The request was not sent: its URL, header or address is not allowed. ``reason`` is one word for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unreachable(Exception):
    """No answer's head arrived. ``reason``: timeout, dns_failure, connection_refused, connection_closed,
    tls_failed, bad_http, headers_too_large or network_error. Whether the receiver saw the request is open.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Cut(StrEnum):
    """Why a body is not whole."""

    TOO_LARGE = "too_large"  # longer than asked for
    TRUNCATED = "truncated"  # the receiver ended, or garbled, before the length that it announced
    TIMEOUT = "timeout"  # the deadline came first


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said. ``headers`` have lower-case names, repeated ones joined by a comma and a space.

    ``body`` is byte for byte what was sent (at most ``max_bytes``); ``cut`` says why it is not whole, None
    = whole.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: Cut | None
    elapsed_s: float

    @property
    def truncated(self) -> bool:
        """Whether the body is not whole."""
        return self.cut is not None


# -- addresses ---------------------------------------------------------------------------------------------

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_LINK_LOCAL: Final = _networks("169.254.0.0/16", "fe80::/10")
_METADATA: Final = _networks(
    "100.100.100.200/32",  # Alibaba Cloud
    "168.63.129.16/32",  # Azure's wire server: a global address that every machine there reaches
    "192.0.0.192/32",  # Oracle Cloud
    "fd00:ec2::/32",  # AWS, over IPv6
    "fd20:ce::/32",  # Google Cloud, over IPv6
)
_GLOBAL_V6: Final = _networks("2000::/3", "64:ff9b::/96")  # all that was given out; NAT64's well-known prefix
_NOT_GLOBAL: Final = _networks(
    # Missing from ``is_global`` in one or another Python that this runs on.
    "192.0.0.0/24",
    "192.88.99.0/24",  # 6to4 relays, withdrawn
    "240.0.0.0/4",
    "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
    "2002::/16",  # 6to4, withdrawn
    "2001:db8::/32",
    "3fff::/20",  # documentation
)
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_IPV4_AT_THE_END: Final = _networks("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def _within(address: IPAddress, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    return any(address in network for network in networks)


def _embedded(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield every IPv4 address that some gateway may take out of this one."""
    number = int(address)
    if _within(address, _IPV4_AT_THE_END):
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)


def why_refused(address: str, *, allow_private: bool) -> str | None:
    """Return why this address may not be asked, or None when it may.

    One of ``not_an_address``, ``link_local_address``, ``multicast_address``, ``metadata_address`` (all
    three whatever ``allow_private`` says) and ``private_address`` (everything else that is not globally
    reachable).
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "not_an_address"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed in _MAPPED:
        parsed = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)  # the kernel itself speaks IPv4 to it
    judged: list[IPAddress] = [parsed]
    if isinstance(parsed, ipaddress.IPv6Address):
        judged.extend(_embedded(parsed))
    for each in judged:
        if _within(each, _LINK_LOCAL):
            return "link_local_address"
        if each.is_multicast or each == ipaddress.IPv4Address("255.255.255.255"):
            return "multicast_address"
        if _within(each, _METADATA):
            return "metadata_address"
    if not allow_private and not all(map(_is_global, judged)):
        return "private_address"
    return None


def _is_global(address: IPAddress) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and not _within(address, _GLOBAL_V6):
        return False
    return address.is_global and not _within(address, _NOT_GLOBAL)


def system_addresses(host: str) -> Sequence[str]:
    """Return the addresses that the system's resolver has for the host, in its order of preference."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


# -- where to ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart. ``host`` is lower-case, without brackets; ``request`` is path and query as they
    are sent.
    """

    scheme: str
    host: str
    port: int
    request: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what credentials belong to."""
        return self.scheme, self.host, self.port

    @property
    def host_header(self) -> str:
        """Host and, unless it is the scheme's own, port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS: Final = {"https": 443, "http": 80}
_URL_CHARACTERS: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[0-9a-z_-]{1,63}(\.[0-9a-z_-]{1,63})*|[0-9a-f:.]*:[0-9a-f:.]*")


def target(url: str, *, allow_private: bool) -> Target:
    """Return the URL taken apart; raise ``EgressRefused``: bad_url, scheme, userinfo, port.

    Hosts are ASCII (write an international name in its ``xn--`` form) without a final dot. A fragment is
    dropped: it is never sent.
    """
    if len(url) > URL_LENGTH_MAX or not _URL_CHARACTERS.fullmatch(url) or "\\" in url:
        raise EgressRefused("bad_url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise EgressRefused("bad_url") from None
    if parts.scheme not in (_PORTS if allow_private else ("https",)):
        raise EgressRefused("scheme")
    if "@" in parts.netloc:
        raise EgressRefused("userinfo")
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise EgressRefused("bad_url")
    port = _PORTS[parts.scheme] if port is None else port
    if port == 0 or (port != 443 and not allow_private):
        raise EgressRefused("port")
    request = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, request)


_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\t -~\x80-\xff]{0,8000}")
_OURS: Final = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)


def why_header_refused(name: str, value: str) -> str | None:
    """Return why this header may not be sent, or None: a malformed name or value, or one that frames the
    request.
    """
    if not _HEADER_NAME.fullmatch(name):
        return "no header name"
    if name.lower() in _OURS:
        return "is set by the request itself"
    if not _HEADER_VALUE.fullmatch(value):
        return "holds a control or non-Latin character"
    return None


# -- the request -------------------------------------------------------------------------------------------


class _Deadline:
    """A moment on the monotonic clock. ``left`` raises ``TimeoutError`` once it has come."""

    def __init__(self, timeout_s: float) -> None:
        self.started = time.monotonic()
        self._ends = self.started + timeout_s

    def left(self) -> float:
        remaining = self._ends - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining

    def elapsed(self) -> float:
        return time.monotonic() - self.started


class _Flood(Exception):
    """More bytes came over the wire than this part of the answer may have."""


class _Wire(httpcore.NetworkStream):
    """A connected socket under one deadline and one allowance of bytes, whatever time-outs its user asks
    for.
    """

    def __init__(self, connection: socket.socket, deadline: _Deadline) -> None:
        self._connection = connection
        self._deadline = deadline
        self.allowance = HEADER_BYTES_MAX
        self.received = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self.received >= self.allowance:
            raise _Flood
        self._connection.settimeout(self._deadline.left())
        chunk = self._connection.recv(min(max_bytes, self.allowance - self.received))
        self.received += len(chunk)
        return chunk

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return  # the end of a request without body
        self._connection.settimeout(self._deadline.left())
        try:
            self._connection.sendall(buffer)
        except TimeoutError:
            raise
        except OSError as error:
            # httpcore then still reads: a server may answer and close before it has read everything.
            raise httpcore.WriteError from error

    def close(self) -> None:
        self._connection.close()


_resolving = threading.BoundedSemaphore(RESOLVING_MAX)


def _addresses(host: str, resolve: Resolver, deadline: _Deadline) -> list[str]:
    """Return the host's addresses within the deadline; a literal address is its own.

    The system's resolver knows no time-out, so it runs in a thread that may be left behind;
    ``RESOLVING_MAX`` bounds how many.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    if not _resolving.acquire(timeout=deadline.left()):
        raise TimeoutError
    outcome: SimpleQueue[Sequence[str] | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            outcome.put(resolve(host))
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
            outcome.put(error)
        finally:
            _resolving.release()

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        found = outcome.get(timeout=deadline.left())
    except Empty:
        raise TimeoutError from None
    if isinstance(found, Exception) or not found or len(found) > ADDRESSES_MAX:
        raise Unreachable("dns_failure")
    return list(found)


def _connect(addresses: Sequence[str], port: int, deadline: _Deadline) -> socket.socket:
    """Return a socket to the first address that accepts; each gets its share of the time that is left."""
    failure: OSError = ConnectionError()
    tried = addresses[:ADDRESSES_TRIED_MAX]
    for position, address in enumerate(tried):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(deadline.left() / (len(tried) - position))
            connection.connect((address, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure


@lru_cache(maxsize=1)
def _system_tls() -> ssl.SSLContext:
    """Return the context that verifies receivers: by ``SSL_CERT_FILE``/``SSL_CERT_DIR`` if set, else
    certifi's list.

    Cached because reading the list takes longer than a look-up.
    """
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def fetch(
    url: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    max_bytes: int,
    allow_private: bool,
    resolve: Resolver = system_addresses,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """GET the URL and return the answer, whatever its status.

    ``timeout_s`` is for everything together; ``max_bytes`` is for the body. ``resolve`` and ``tls`` stand
    in for the system's resolver and list of authorities. Raises ``EgressRefused`` (nothing was sent) or
    ``Unreachable``, and nothing else.
    """
    deadline = _Deadline(timeout_s)
    to = target(url, allow_private=allow_private)
    for name, value in headers.items():
        if why_header_refused(name, value):
            raise EgressRefused("header")
    wire: _Wire | None = None
    try:
        addresses = _addresses(to.host, resolve, deadline)
        for address in addresses:
            reason = why_refused(address, allow_private=allow_private)
            if reason:
                raise EgressRefused(reason)
        connection = _connect(addresses, to.port, deadline)
        if to.scheme == "https":
            connection = _secure(connection, to.host, tls or _system_tls(), deadline)
        wire = _Wire(connection, deadline)
        return _exchange(wire, to, headers, max_bytes, deadline)
    except TimeoutError:
        raise Unreachable("timeout") from None
    except ConnectionRefusedError:
        raise Unreachable("connection_refused") from None
    except OSError as error:
        closed = isinstance(error, ConnectionError)
        raise Unreachable("connection_closed" if closed else "network_error") from None
    finally:
        if wire is not None:
            wire.close()


def _secure(connection: socket.socket, host: str, tls: ssl.SSLContext, deadline: _Deadline) -> socket.socket:
    """Return the connection inside TLS, its certificate verified for the *name*, not for the address."""
    try:
        connection.settimeout(deadline.left())  # since Python 3.5 the bound of the whole handshake
        return tls.wrap_socket(connection, server_hostname=host)
    except TimeoutError:
        connection.close()
        raise
    except OSError:
        connection.close()
        raise Unreachable("tls_failed") from None


def _exchange(
    wire: _Wire, to: Target, headers: Mapping[str, str], max_bytes: int, deadline: _Deadline
) -> Answer:
    """Send the request and read its answer over a connection of its own (HTTP/1.1, not kept alive)."""
    lines = {"User-Agent": "counterfoil", "Accept": "application/json", "Cache-Control": "no-cache"}
    ours = {name.lower() for name in headers}
    sent = [("Host", to.host_header)]
    sent += [(name, value) for name, value in lines.items() if name.lower() not in ours]
    sent += [("Accept-Encoding", "identity"), ("Connection", "close"), *headers.items()]
    request = httpcore.Request(
        "GET",
        httpcore.URL(
            scheme=to.scheme.encode(), host=to.host.encode(), port=to.port, target=to.request.encode()
        ),
        headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in sent],
    )
    talk = httpcore.HTTP11Connection(request.url.origin, wire)
    try:
        response = talk.handle_request(request)
    except httpcore.LocalProtocolError:
        raise EgressRefused("bad_request") from None
    except httpcore.RemoteProtocolError:
        raise Unreachable("bad_http" if wire.received else "connection_closed") from None
    except _Flood:
        raise Unreachable("headers_too_large") from None
    wire.allowance = wire.received + WIRE_FACTOR * max_bytes + HEADER_BYTES_MAX
    body, cut = _read_body(response, max_bytes)
    return Answer(response.status, _joined(response.headers), body, cut, deadline.elapsed())


def _read_body(response: httpcore.Response, max_bytes: int) -> tuple[bytes, Cut | None]:
    """Return what came of the body and why it is not whole. What came before an end is kept: it is
    evidence.
    """
    body = bytearray()
    try:
        for chunk in response.iter_stream():
            body += chunk
            if len(body) > max_bytes:
                return bytes(body[:max_bytes]), Cut.TOO_LARGE
    except TimeoutError:
        return bytes(body), Cut.TIMEOUT
    except _Flood:
        return bytes(body), Cut.TOO_LARGE
    except (OSError, httpcore.RemoteProtocolError):
        return bytes(body), Cut.TRUNCATED
    return bytes(body), None


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined

"""A receiver on loopback that says whatever a test wants, byte for byte: the truth, a lie, or nothing."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Script = Callable[[socket.socket], None]


def reply(body: bytes = b"", status: int = 200, *, length: int | None = None, **headers: str) -> bytes:
    """Return a whole HTTP/1.1 answer; ``length`` announces another length than the body has."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_reply(value: Any, status: int = 200, **headers: str) -> bytes:
    """Return a whole HTTP/1.1 answer with this value as JSON."""
    return reply(json.dumps(value).encode(), status, Content_Type="application/json", **headers)


@dataclass
class Receiver:
    """Listens on loopback. Connection n is answered by ``says[n]``, the last one by all that follow.

    What it says is bytes, or a function that is given the connection. ``requests`` holds each request's head.
    """

    says: list[bytes | Script] = field(default_factory=lambda: [reply()])
    tls: ssl.SSLContext | None = None
    requests: list[str] = field(default_factory=list)
    connections: int = 0
    server_names: list[str | None] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Listen, and answer each connection in a thread of its own."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.threads: list[threading.Thread] = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def stop(self) -> None:
        """Stop listening and wait for every answer in progress."""
        self.stopping.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(timeout=5)

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            says = self.says[min(self.connections, len(self.says) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection, says))
            self.threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, says: bytes | Script) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(5)
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head:
                chunk = connection.recv(65_536)
                if not chunk:
                    return
                head += chunk
            self.requests.append(head.decode("latin-1"))
            if isinstance(says, bytes):
                connection.sendall(says)
            else:
                says(connection)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            connection.close()

    def drip(self, start: bytes, more: bytes, every_s: float) -> Script:
        """Return a script that sends ``start``, then ``more`` again and again, until the asker is gone."""

        def script(connection: socket.socket) -> None:
            connection.sendall(start)
            while not self.stopping.wait(every_s):
                connection.sendall(more)

        return script

    def silence(self, start: bytes = b"") -> Script:
        """Return a script that sends ``start`` and then holds the connection open without a word."""

        def script(connection: socket.socket) -> None:
            connection.sendall(start)
            connection.settimeout(None)
            while not self.stopping.is_set():
                connection.settimeout(0.05)
                try:
                    if not connection.recv(1):
                        return
                except TimeoutError:
                    continue

        return script

    @property
    def targets(self) -> list[str]:
        """What was asked for, in order: path and query of each request."""
        return [head.split(" ")[1] for head in self.requests]

    def header(self, name: str, request: int = -1) -> str | None:
        """Return one header of a request, None when it was not sent."""
        for line in self.requests[request].split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name.lower():
                return value
        return None


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver without TLS on 127.0.0.1."""
    started = Receiver()
    started.start()
    yield started
    started.stop()


@dataclass
class Authority:
    """A certificate authority of one test: what servers show, and what askers trust."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate for ``pay.receiver.test`` and 127.0.0.9, and the authority that signed it (itself)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pay.receiver.test")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = [x509.DNSName("pay.receiver.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.9"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return Authority(server=server, client=ssl.create_default_context(cafile=str(file)))


@pytest.fixture
def tls_receiver(authority: Authority) -> Iterator[Receiver]:
    """A receiver with TLS on 127.0.0.1; it notes the names that askers say in the handshake."""
    started = Receiver(tls=authority.server)
    authority.server.sni_callback = lambda _socket, name, _context: started.server_names.append(name)
    started.start()
    yield started
    started.stop()
    authority.server.sni_callback = None

"""A TCP proxy between a client and a server, mostly PostgreSQL, that can lose a message, lose its reply, or stop moving bytes.

There is no traffic shaping here: faults are told by what a client's message holds, so that a cut falls before or after
one statement, every time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import StrEnum
from urllib.parse import urlsplit, urlunsplit

READY_FOR_QUERY = b"Z\x00\x00\x00\x05"  # how the server's answer to a statement ends


class How(StrEnum):
    """What happens to the statement that a fault meets."""

    CUT_BEFORE = "cut_before"  # it never reaches the server, and the connection is lost
    CUT_AFTER = "cut_after"  # the server has done it, and the connection is lost before its reply
    SWALLOW = "swallow"  # it never reaches the server, and the connection stays open for ever
    SWALLOW_REPLY = "swallow_reply"  # the server has done it, and its reply never comes


class Proxy:
    """Listens on a port of its own for a server whose port may change. ``armed`` counts down with each fault."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.frozen = threading.Event()  # while set no byte moves in either direction; nothing is refused
        self.met = 0
        self._needle, self._how, self._armed = b"", How.CUT_BEFORE, 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, server_url: str) -> str:
        """The server's address by way of this proxy."""
        parts = urlsplit(server_url)
        credentials = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{self.port}"))

    def arm(self, needle: str, how: How, *, times: int = 1) -> None:
        """The next ``times`` messages that hold ``needle`` meet the fault."""
        with self._lock:
            self._needle, self._how, self._armed, self.met = needle.encode(), how, times, 0

    def disarm(self) -> None:
        self.arm("", How.CUT_BEFORE, times=0)

    def cut_all(self) -> None:
        """Every connection is lost."""
        with self._lock:
            lost, self._open = self._open, set()
        for one in lost:
            _end(one)

    def close(self) -> None:
        self._listener.close()
        self.frozen.clear()
        self.cut_all()

    def _fault(self, data: bytes) -> How | None:
        with self._lock:
            if self._armed <= 0 or self._needle not in data:
                return None
            self._armed -= 1
            self.met += 1
            return self._how

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        lost_reply: list[How] = []  # what happens to the reply that is due
        threading.Thread(target=self._replies, args=(server, client, lost_reply), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self._stand_still()
                match self._fault(data):
                    case How.CUT_BEFORE:
                        break
                    case How.SWALLOW:
                        continue
                    case (How.CUT_AFTER | How.SWALLOW_REPLY) as how:
                        lost_reply.append(how)
                server.sendall(data)
        _end(client)
        _end(server)

    def _replies(self, server: socket.socket, client: socket.socket, lost_reply: list[How]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                self._stand_still()
                if not lost_reply:
                    client.sendall(data)
                elif lost_reply[0] is How.CUT_AFTER and READY_FOR_QUERY in data:
                    break
        _end(client)
        _end(server)

    def _stand_still(self) -> None:
        while self.frozen.is_set():
            threading.Event().wait(0.02)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

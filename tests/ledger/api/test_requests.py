"""Reading a body from the wire: how much of it, and what of it stays in memory."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest

from ledger.api.requests import BODY_MAX, OUTCOME_READ_MAX, read_body


class Endless(io.RawIOBase):
    """A client that sends as long as anybody reads."""

    def read(self, size: int = -1) -> bytes:
        return b"x" * size


def request(stream: Any, length: int | None = None) -> WSGIRequest:
    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/", "SERVER_NAME": "x", "SERVER_PORT": "80"}
    if length is not None:
        environ["CONTENT_LENGTH"] = str(length)
    return WSGIRequest({**environ, "wsgi.input": stream})


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("size", "kept", "cut"),
    [
        (0, 0, False),
        (BODY_MAX, BODY_MAX, False),
        (OUTCOME_READ_MAX, None, False),
        (OUTCOME_READ_MAX + 1, None, True),
    ],
)
def test_a_body_is_read_up_to_its_cap_and_its_digest_covers_what_was_read(
    size: int, kept: int | None, cut: bool, declared: bool
) -> None:
    body = b"x" * size

    read = read_body(request(io.BytesIO(body), size if declared else None), OUTCOME_READ_MAX)

    assert (read.size, read.cut) == (min(size, OUTCOME_READ_MAX), cut)
    assert read.sha256 == hashlib.sha256(body[:OUTCOME_READ_MAX]).digest()
    assert body.startswith(read.raw)
    assert len(read.raw) == kept if kept is not None else len(read.raw) >= BODY_MAX


@pytest.mark.parametrize("length", [None, 10**15])
def test_a_body_without_end_is_not_held_in_memory(length: int | None) -> None:
    tracemalloc.start()
    try:
        read = read_body(request(Endless(), length), OUTCOME_READ_MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (read.size, read.cut) == (OUTCOME_READ_MAX, True)
    assert peak < 4 * BODY_MAX

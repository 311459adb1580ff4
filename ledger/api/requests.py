"""Reading a request: names from the path, the body under a cap, JSON by the one strict parser."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from django.core.exceptions import TooManyFieldsSent
from django.http import HttpRequest, QueryDict

from ledger import errors
from ledger.digests import JSON, parse
from ledger.intake import valid_name

BODY_MAX = 256 * 1024  # an intent's arguments are what a tool call carries, not a file
OUTCOME_READ_MAX = 8 * 1024 * 1024  # a larger report is cut here: its digest then covers what was read
# Containers around what may be as deep as arguments: a batch's list of intents, the evidence around a receiver's answer.
IN_INTENT, IN_BATCH, IN_OUTCOME = 1, 3, 2
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Read:
    """A body as it came. ``raw`` is all of it up to ``BODY_MAX``, else its beginning; ``sha256`` and ``size`` are of
    what was read; ``cut``: more was sent than is read."""

    raw: bytes
    cut: bool
    sha256: bytes
    size: int


def operation_name(name: str) -> str:
    """An operation ID from the path; raises Malformed."""
    if not valid_name(name):
        raise errors.Malformed(
            "", "an operation ID is 1 to 200 of A-Z a-z 0-9 . _ ~ : @ + = -, and neither . nor .."
        )
    return name


def attempt_number(text: str) -> int:
    """An attempt's number from the path; raises Malformed."""
    if not _NUMBER.fullmatch(text):
        raise errors.Malformed("", "an attempt's number is decimal, 1 to 9999, without a leading zero")
    return int(text)


def read_body(request: HttpRequest, most: int) -> Read:
    """At most ``most`` bytes of the body, declared or chunked, and whether there was more.

    The wire gives it once; a second try after a lost database finds it with the request.
    """
    kept: Read | None = getattr(request, "counterfoil_read", None)
    if kept is None:
        kept = _from_the_wire(request, most)
        request.counterfoil_read = kept  # type: ignore[attr-defined]
    return kept


def _from_the_wire(request: HttpRequest, most: int) -> Read:
    declared = request.META.get("CONTENT_LENGTH") or ""
    announced = int(declared) if declared.isascii() and declared.isdigit() else None
    stream = request if announced is not None else request.META.get("wsgi.input")
    kept: list[bytes] = []
    digest = hashlib.sha256()
    size = 0
    # Piece by piece: what nobody can read as JSON any more goes into the digest and is forgotten.
    while stream is not None and size < most:
        piece = stream.read(min(_CHUNK, most - size))
        if not piece:
            break
        digest.update(piece)
        if size <= BODY_MAX:
            kept.append(piece)
        size += len(piece)
    cut = announced > most if announced is not None else size == most and bool(stream and stream.read(1))
    return Read(b"".join(kept), cut, digest.digest(), size)


def json_body(request: HttpRequest, *, around: int = 0) -> JSON:
    """The parsed body, with ``around`` containers around what may be deep. Raises UnsupportedMediaType, TooLarge,
    Malformed."""
    if request.content_type != "application/json":
        raise errors.UnsupportedMediaType()
    read = read_body(request, BODY_MAX)
    if read.cut:
        raise errors.TooLarge(BODY_MAX)
    return parse(read.raw, max_bytes=BODY_MAX, around=around)


def no_fields(request: HttpRequest) -> None:
    """For calls that say everything in their address: no body, or an empty object. Raises TooLarge, Malformed."""
    read = read_body(request, BODY_MAX)
    if read.cut:
        raise errors.TooLarge(BODY_MAX)
    body = parse(read.raw, max_bytes=BODY_MAX) if read.raw.strip() else {}
    if not isinstance(body, dict):
        raise errors.Malformed("", "must be empty, or an object without fields")
    if body:
        unknown = sorted(body)
        raise errors.Malformed(
            f"/{unknown[0]}", "is not a field of this call", extra={"unknown_fields": unknown}
        )


def query_of(request: HttpRequest) -> QueryDict:
    """The query as UTF-8, whatever the headers say of the body. Raises Malformed."""
    try:
        return QueryDict(request.META.get("QUERY_STRING", ""), encoding="utf-8")
    except TooManyFieldsSent:
        raise errors.Malformed("", "the query has too many fields") from None


def wait_parameters(request: HttpRequest, longest_s: float) -> tuple[float, int | None]:
    """(seconds to wait, the version the caller has). Raises Malformed."""
    query = query_of(request)
    wait, since = query.get("wait"), query.get("since")
    try:
        seconds = 0.0 if wait is None else float(wait)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= longest_s:
        raise errors.Malformed("", f"wait is seconds from 0 to {longest_s:g}")
    if since is not None and not re.fullmatch(r"[0-9]{1,9}", since):
        raise errors.Malformed("", "since is the version you have")
    return seconds, None if since is None else int(since)

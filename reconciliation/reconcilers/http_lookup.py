"""The declarative look-up: a URL template, JSONPath mappings, and paging to the end. GET only.

``http_plan`` documents the configuration. What an *unclear* finding says in ``why``:

* the way there: ``timeout``, ``dns_failure``, ``connection_refused``, ``connection_closed``, ``tls_failed``,
  ``bad_http``, ``headers_too_large``, ``network_error``, ``refused_egress:<reason>``
* the answer: ``http_<status>``, ``too_large``, ``truncated``, ``encoded_body``, ``bad_body``
* what it says: ``unexpected_shape``, ``too_many_items``, ``wrong_namespace`` (none said counts as wrong),
  ``page_cap``, ``page_loop``, ``foreign_next``, ``inconsistent_pages``
* what was to be asked: ``credential_missing:<variable>``, ``credential_refused:<variable>``, ``reference_missing``,
  ``argument_missing``, ``arguments_aged_out``, ``unsafe_value``, ``bad_configuration``

A finding with items may have a ``why`` too: what made it incomplete (``cached``, ``as_of_missing``, or one of the above).
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urljoin

from ledger import matching
from ledger.contracts import Contract, Lookup
from ledger.matching import ABSENT, Path
from reconciliation.findings import (
    Difference,
    Finding,
    FindingKind,
    Item,
    ItemStatus,
    Question,
    ReceiverFacts,
)
from reconciliation.reconcilers import egress
from reconciliation.reconcilers.http_plan import (
    PLACEHOLDER,
    ConfigurationRefused,
    Plan,
    listed,
    plan,
    problems,
)

ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of one page. A page of 100 payment objects has about 300 KiB."""

PAGES_MAX: Final = 50
"""Pages of one look-up: 5,000 items at the common 100 a page. A longer list needs a narrower URL."""

ITEMS_MAX: Final = 10_000
"""Items of one look-up, over all its pages."""

RAW_BYTES_MAX: Final = 64 * 1024
"""Bytes of the answer that are kept with the finding."""

RETRY_AFTER_MAX_S: Final = 86_400.0
"""The longest a receiver may ask to be left alone: a day, as beyond that it cannot be told from a mistake."""

SECRET_LENGTH_MIN: Final = 8
"""Shorter credentials are not searched for in answers: they would be found everywhere."""

_MILLISECONDS_FROM: Final = 10**11
"""A Unix time this large is counted in milliseconds: in seconds it would lie in the year 5138."""

_VARIABLE: Final = re.compile(r"\$\{([^{}]*)\}")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_VARIABLES: Final = frozenset(
    {"COUNTERFOIL_SECRET_KEY", "COUNTERFOIL_KEYS", "DATABASE_URL", "REDIS_URL", "PGPASSWORD"}
)
"""Variables that hold this service's own secrets: no receiver is sent one."""


# -- what is sent -------------------------------------------------------------------------------------------------------


class _Unclear(Exception):
    """Why this look-up has no answer. ``final``: even what was already read must not be used."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.final = final


def url_for(template: str, question: Question) -> str:
    """Return the URL to ask. Raises ``_Unclear`` when a value is missing, or cannot stand where the template has it."""

    def value(found: re.Match[str]) -> str:
        return quote(_value(found.group(1), question), safe="")

    rest = PLACEHOLDER.sub(value, template.removeprefix("{base_url}"))
    if any(segment in (".", "..") for segment in rest.partition("?")[0].split("/")):
        raise _Unclear("unsafe_value")  # on the way, "/refunds/.." is another address
    return question.receiver.base_url.rstrip("/") + rest


def _value(name: str, question: Question) -> str:
    if name.startswith("arguments."):
        if question.arguments is None:
            raise _Unclear("arguments_aged_out")
        value = matching.at_pointer(question.arguments, name.removeprefix("arguments."))
        if value is ABSENT or value is None or value == "":
            raise _Unclear("argument_missing")
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise _Unclear("argument_missing")
        text = str(value)
    else:
        text = getattr(question, name) or ""
        if not text:
            raise _Unclear("reference_missing")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Unclear("unsafe_value") from None
    return text


def headers_for(
    receiver: ReceiverFacts, environment: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the receiver's headers with ``${NAME}`` resolved, and the secrets used, by variable.

    Raises ``_Unclear`` naming the variable, never a value.
    """
    secrets: dict[str, str] = {}

    def resolve(found: re.Match[str]) -> str:
        name = found.group(1)
        if not _VARIABLE_NAME.fullmatch(name) or name in _OWN_VARIABLES:
            raise _Unclear(f"credential_refused:{name}")
        value = environment.get(name, "").strip()
        if not value:
            raise _Unclear(f"credential_missing:{name}")
        secrets[name] = value
        return value

    return {name: _VARIABLE.sub(resolve, text) for name, text in receiver.headers.items()}, secrets


def validate_receiver(
    base_url: str, headers: Mapping[str, str], *, allow_private: bool
) -> list[tuple[str, str]]:
    """Return everything that keeps a receiver from being asked: (``base_url`` or ``headers.<name>``, why)."""
    found = []
    try:
        if "?" in base_url or "#" in base_url:
            raise egress.EgressRefused("bad_url")
        host = egress.target(base_url, allow_private=allow_private).host
        reason = egress.why_refused(host, allow_private=allow_private)
        if reason not in (None, "not_an_address"):
            found.append(("base_url", f"may not be asked: {reason}"))
    except egress.EgressRefused as error:
        found.append(("base_url", f"may not be asked: {error.reason}"))
    for name, text in headers.items():
        why = egress.why_header_refused(str(name), _VARIABLE.sub("", str(text)))
        if why:
            found.append((f"headers.{name}", why))
        for variable in _VARIABLE.findall(str(text)):
            if not _VARIABLE_NAME.fullmatch(variable):
                found.append((f"headers.{name}", f"{variable!r} is no name of a variable"))
            elif variable in _OWN_VARIABLES:
                found.append((f"headers.{name}", f"{variable} is this service's own"))
    return found


# -- what came back -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """What has been read so far: kept when reading fails, because it is evidence either way."""

    url: str = ""
    pages: int = 0
    raw: bytearray = field(default_factory=bytearray)
    raw_truncated: bool = False
    http_status: int | None = None
    retry_after_s: float | None = None
    nodes: list[Any] = field(default_factory=list)
    complete: bool = False
    as_of: datetime | None = None
    why_incomplete: str | None = None
    stored_error: bool = False

    def keep(self, answer: egress.Answer, secrets: Mapping[str, str]) -> None:
        self.pages += 1
        self.http_status = answer.status
        self.retry_after_s = retry_after_s(answer.headers)
        body = _without_secrets(answer.body, secrets)
        if self.raw:
            body = b"\n" + body
        room = RAW_BYTES_MAX - len(self.raw)
        self.raw += body[:room]
        self.raw_truncated = self.raw_truncated or len(body) > room or answer.truncated


def _without_secrets(body: bytes, secrets: Mapping[str, str]) -> bytes:
    """Return the body with every credential of ours replaced by its variable: some receivers echo what they got."""
    for name, value in secrets.items():
        if len(value) >= SECRET_LENGTH_MIN:
            body = body.replace(value.encode("latin-1", "replace"), f"[{name}]".encode())
    return body


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``, 0 to a day, or None. A date is counted from the answer's own ``Date``.

    Counting from the receiver's clock keeps the difference between two clocks out; without ``Date`` ours must do.
    Source: RFC 9110, 10.2.3.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(float(text), RETRY_AFTER_MAX_S)
    moment = _http_date(text)
    if moment is None:
        return None
    now = _http_date(headers.get("date", "")) or datetime.now(UTC)
    return min(max((moment - now).total_seconds(), 0.0), RETRY_AFTER_MAX_S)


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_time(value: Any) -> datetime | None:
    """Return the moment that a receiver wrote, or None.

    Understood: RFC 3339 with an offset, an HTTP date, and Unix time in seconds or (from 10^11 on) milliseconds.
    """
    number = None if isinstance(value, bool | str) else matching.as_decimal(value)
    try:
        if number is not None:
            seconds = number / 1000 if number >= _MILLISECONDS_FROM else number
            return datetime.fromtimestamp(float(seconds), UTC)
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError, OSError):
        pass
    return _http_date(value) if isinstance(value, str) else None


class HttpLookup:
    """Asks by a URL template and reads the answer by JSONPath; see the module's text for the configuration.

    ``resolve``, ``tls`` and ``environment`` stand in for the system's resolver, authorities and variables.
    """

    def __init__(
        self,
        *,
        resolve: egress.Resolver = egress.system_addresses,
        tls: ssl.SSLContext | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._resolve = resolve
        self._tls = tls
        self._environment = os.environ if environment is None else environment

    def validate(self, configuration: Mapping[str, Any], contract: Contract) -> list[tuple[str, str]]:
        """Return everything that keeps this configuration from working under the contract; empty = good."""
        return problems(configuration, contract)

    def look_up(self, question: Question) -> Finding:
        """Ask the receiver, page after page, within ``question.timeout_s``; return what it says. Never raises."""
        reading = _Reading()
        try:
            made = plan(question.configuration)
        except ConfigurationRefused as error:
            return Finding(kind=FindingKind.UNCLEAR, why="bad_configuration", scope=str(error))
        try:
            self._read(made, question, reading)
        except _Unclear as problem:
            return _unclear(made, question, reading, problem)
        except matching.TooManyNodes:
            return _unclear(made, question, reading, _Unclear("too_many_items", final=True))
        try:
            items = _items(made, question, reading.nodes)
        except _Unclear as problem:
            return _unclear(made, question, reading, problem)
        return _finding(made, question, reading, items, why=reading.why_incomplete)

    def _read(self, made: Plan, question: Question, reading: _Reading) -> None:
        """Read pages into ``reading`` until the end; raise ``_Unclear`` when one cannot be used."""
        ends = time.monotonic() + question.timeout_s
        reading.url = url = url_for(made.url, question)
        headers, secrets = headers_for(question.receiver, self._environment)
        seen = set()
        while True:
            seen.add(url)
            answer = self._fetch(url, headers, question, ends - time.monotonic())
            reading.keep(answer, secrets)
            if answer.status in made.absent_status and reading.pages == 1:
                _read_absence(made, answer, reading)
                return
            document = _document(answer)
            _read_page(made, answer, document, reading)
            following = _next_page(made, document, url)
            if following is None:
                return
            if following in seen:
                raise _Unclear("page_loop")
            if reading.pages >= PAGES_MAX:
                raise _Unclear("page_cap")
            url = following

    def _fetch(
        self, url: str, headers: Mapping[str, str], question: Question, left_s: float
    ) -> egress.Answer:
        receiver = question.receiver
        try:
            return egress.fetch(
                url,
                headers,
                timeout_s=left_s,
                max_bytes=ANSWER_BYTES_MAX,
                allow_private=receiver.allow_private_addresses,
                resolve=self._resolve,
                tls=self._tls,
            )
        except egress.EgressRefused as error:
            raise _Unclear(f"refused_egress:{error.reason}") from None
        except egress.Unreachable as error:
            raise _Unclear(error.reason) from None


def _document(answer: egress.Answer) -> Any:
    """Return the parsed body of a usable answer: status 200, whole, not encoded, JSON with one meaning."""
    if answer.status != 200:
        raise _Unclear(f"http_{answer.status}")
    if answer.cut is not None:
        raise _Unclear(answer.cut.value)
    if answer.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise _Unclear("encoded_body")
    try:
        return matching.read_json(answer.body)
    except matching.Unreadable:
        raise _Unclear("bad_body") from None


def _read_absence(made: Plan, answer: egress.Answer, reading: _Reading) -> None:
    """Read an answer that means "not found": complete by itself, but only from the right namespace and fresh."""
    if answer.cut is not None:
        raise _Unclear(answer.cut.value)
    try:
        document = matching.read_json(answer.body)
    except matching.Unreadable:
        document = None
    if made.namespace and not made.namespace.holds(document):
        raise _Unclear("wrong_namespace", final=True)
    reading.stored_error = made.stored_error is not None and made.stored_error.holds(document)
    reading.complete = True
    _judge_freshness(made, answer, document, reading)


def _read_page(made: Plan, answer: egress.Answer, document: Any, reading: _Reading) -> None:
    if made.namespace and not made.namespace.holds(document):
        raise _Unclear("wrong_namespace", final=True)
    if not made.items.has_place(document):
        raise _Unclear("unexpected_shape")
    nodes = made.items.all(document)
    if made.items.singular:
        nodes = [node for node in nodes if node is not None]  # {"refund": null}: asked for, and there is none
    reading.nodes += nodes
    if len(reading.nodes) > ITEMS_MAX:
        raise _Unclear("too_many_items")
    if made.stored_error is not None and made.stored_error.holds(document):
        reading.stored_error = True
    if made.complete is not None:
        reading.complete = made.complete.holds(document)
    else:
        reading.complete = made.next is not None
    _judge_freshness(made, answer, document, reading)


def _judge_freshness(made: Plan, answer: egress.Answer, document: Any, reading: _Reading) -> None:
    """Take ``as_of`` (the oldest of all pages); an answer that may be older than it seems is not complete."""
    if re.fullmatch(r"0*[1-9][0-9]*", answer.headers.get("age", "").strip()):
        reading.why_incomplete = "cached"
    if made.as_of_path is not None or made.as_of_header is not None:
        said = (
            made.as_of_path.one(document)
            if made.as_of_path is not None
            else answer.headers.get(made.as_of_header or "")
        )
        moment = read_time(said)
        if moment is None:
            reading.why_incomplete = "as_of_missing"
        elif reading.as_of is None or moment < reading.as_of:
            reading.as_of = moment
    if reading.why_incomplete is not None:
        reading.complete = False


def _next_page(made: Plan, document: Any, url: str) -> str | None:
    """Return the URL of the page that follows, of the same origin, or None at the end."""
    if made.next is None or (made.complete is not None and made.complete.holds(document)):
        return None
    said = made.next.one(document)
    if said is ABSENT or said is None or said == "":
        return None
    if not isinstance(said, str):
        raise _Unclear("unexpected_shape")
    try:
        following = urljoin(url, said)
        same = _origin(following) == _origin(url)
    except (ValueError, egress.EgressRefused):
        raise _Unclear("foreign_next") from None
    if not same:
        raise _Unclear("foreign_next")  # the receiver's credentials go to the receiver only
    return following


def _origin(url: str) -> tuple[str, str, int]:
    return egress.target(url, allow_private=True).origin


# -- items --------------------------------------------------------------------------------------------------------------


def _items(made: Plan, question: Question, nodes: list[Any]) -> tuple[Item, ...]:
    """Return the candidate effects, one for each reference; raise ``_Unclear`` when one has two contents."""
    intent = matching.intent_document(
        arguments=question.arguments,
        amount=question.amount,
        operation_id=question.operation_id,
        business_reference=question.business_reference,
        idempotency_key=question.idempotency_key,
    )
    if made.attributed is not None and not getattr(question, made.attributed[1]):
        raise _Unclear("reference_missing", final=True)
    items: dict[Any, Item] = {}
    contents: dict[Any, Any] = {}
    for position, node in enumerate(nodes):
        item = _item(made, question, node, intent)
        name = position if item.reference is None else item.reference
        if name in items and not _identical(contents[name], node):
            raise _Unclear("inconsistent_pages", final=True)
        items[name], contents[name] = item, node
    return tuple(items.values())


def _identical(one: Any, other: Any) -> bool:
    try:
        return matching.same(one, other)
    except RecursionError:
        return False


def _item(made: Plan, question: Question, node: Any, intent: Mapping[str, Any]) -> Item:
    status, raw_status = _status(made, node)
    attributed_to, ours = None, None
    if made.attributed is not None:
        path, name = made.attributed
        said = path.one(node)
        ours = said == getattr(question, name)
        attributed_to = None if said is ABSENT or said is None else matching.printable(said)
    denial_reason = None
    if status is ItemStatus.DENIED:
        denial_reason = _text(made.denial_reason, node) or raw_status
    differing = matching.differences(node, made.match, intent) if ours is not False else ()
    return Item(
        status=status,
        reference=_text(made.reference, node),
        raw_status=raw_status,
        attributed_to=attributed_to,
        ours=ours,
        differences=tuple(Difference(each.field, each.intended, each.found) for each in differing),
        denial_reason=denial_reason,
    )


def _status(made: Plan, node: Any) -> tuple[ItemStatus, str | None]:
    if made.status_path is None:
        return ItemStatus.COMPLETED, None
    said = made.status_path.one(node)
    if said is ABSENT:
        return ItemStatus.UNLISTED, None
    for status, literals in made.statuses.items():
        if listed(said, literals):
            return status, matching.printable(said)
    return ItemStatus.UNLISTED, matching.printable(said)


def _text(path: Path | None, node: Any) -> str | None:
    said = ABSENT if path is None else path.one(node)
    return None if said is ABSENT or said is None or said == "" else matching.printable(said)


# -- the finding ----------------------------------------------------------------------------------------------------------


def _finding(
    made: Plan, question: Question, reading: _Reading, items: tuple[Item, ...], *, why: str | None
) -> Finding:
    return Finding(
        kind=FindingKind.ITEMS,
        items=items,
        complete=reading.complete,
        authoritative=made.authoritative,
        as_of=reading.as_of,
        retry_after_s=reading.retry_after_s,
        stored_error=reading.stored_error,
        why=why,
        http_status=reading.http_status,
        raw=bytes(reading.raw),
        raw_truncated=reading.raw_truncated,
        scope=_scope(question, reading),
    )


def _unclear(made: Plan, question: Question, reading: _Reading, problem: _Unclear) -> Finding:
    """Return the finding of a reading that failed: unclear, unless the effect had already been seen."""
    if not problem.final and reading.nodes:
        try:
            items = _items(made, question, reading.nodes)
        except _Unclear:
            items = ()
        if any(_is_our_effect(item, question) for item in items):
            reading.complete = False
            return _finding(made, question, reading, items, why=problem.why)
    return Finding(
        kind=FindingKind.UNCLEAR,
        authoritative=made.authoritative,
        retry_after_s=reading.retry_after_s,
        why=problem.why,
        http_status=reading.http_status,
        raw=bytes(reading.raw),
        raw_truncated=reading.raw_truncated,
        scope=_scope(question, reading),
    )


def _is_our_effect(item: Item, question: Question) -> bool:
    ours = item.ours or (item.ours is None and question.lookup == Lookup.BY_KEY)
    return ours and item.status is ItemStatus.COMPLETED


def _scope(question: Question, reading: _Reading) -> str:
    if not reading.url:
        return f"{question.receiver.name}: nothing was sent"
    pages = "1 page" if reading.pages == 1 else f"{reading.pages} pages"
    return f"GET {reading.url} ({pages})"

"""The configuration of a declarative look-up: read, checked in full, and compiled.

The ``reconciler`` block (JSONPath = RFC 9535 without ``match``/``search``; *item* = a node selected by ``items``)::

    kind: http_lookup
    url: "{base_url}/refunds?reference={business_reference}"   # required; begins with {base_url}
    items: "$.data[*]"            # candidate effects in the answer; default "$": the answer is the one item
    status: {path: "$.status", completed: [succeeded], in_progress: [pending], denied: [failed]}   # required
    attributed: {path: "$.metadata.operation_id", equals: operation_id}   # or business_reference, idempotency_key
    reference: "$.id"             # the receiver's own name of the effect
    match: {"$.amount": {to: /arguments/amount, as: minor_units}, "$.currency": /arguments/currency}
    denial_reason: "$.failure_reason"                     # default: the status itself
    complete: {path: "$.has_more", equals: false}         # how a page says that nothing follows
    next: "$.next_url"                                    # where the next page is
    namespace: {path: "$.account", equals: acct_1}        # must hold on every page, absent answers included
    absent_status: [404]          # which answers mean "not found" at all; default none
    as_of: {path: "$.snapshot_at"}                        # or {header: X-Snapshot-At}: how fresh the answer is
    stored_error: {path: "$.response.status", equals: [500, 502]}
    authoritative: true           # false: an index that may prove presence but neither absence nor refusal

* ``url`` may hold ``{base_url}``, ``{business_reference}``, ``{operation_id}``, ``{idempotency_key}`` and
  ``{arguments./json/pointer}`` to a text, number or boolean. Values are percent-encoded; one that is missing or empty,
  or that would make a path segment of dots, is not sent: the finding is unclear.
* ``status: existence`` says that every listed item is a completed effect. Otherwise a status that is in none of the
  lists is *unlisted*, never final.
* ``match`` values are pointers, or ``{to, as: value | text | caseless | minor_units, currency?, digits?}``; see
  ``ledger.matching``. Decimals compare by value.
* An answer is **complete** when ``complete`` holds on its last page, or, where only ``next`` is configured, when no
  next page is named; an absent status is complete by itself. Neither configured = never complete. An answer out of a
  cache (``Age``), or whose configured ``as_of`` is missing, is not complete either: it may be older than the question.
* ``next`` is a URL or a relative reference; another origin is refused, ``PAGES_MAX`` pages are read.
* The receiver's clock in a ``Date`` header is not taken for ``as_of`` unless ``as_of: {header: Date}`` asks for it: it
  says when a front end spoke, not how old its replica is.
* The same ``reference`` twice is one effect (a list moves while it is paged); with two contents it is
  ``inconsistent_pages``.
* Where reading fails on a later page although a completed item of this operation was seen, that item is the finding:
  an effect that exists needs no complete list. ``why`` keeps what failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger import matching
from ledger.contracts import Contract, Lookup
from ledger.matching import Path, PathRefused
from reconciliation.findings import ItemStatus
from reconciliation.reconcilers import egress

NAMES: Final = ("operation_id", "business_reference", "idempotency_key")

NEVER_ABSENT: Final = frozenset({401, 403, 407, 408, 425, 429})
"""Client errors that speak of the asker or the moment, not of the effect."""

PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Expected:
    """A path that must select nodes, all equal to one of the literals."""

    path: Path
    literals: tuple[Any, ...]

    def holds(self, document: Any) -> bool:
        """Whether there is at least one node, and each equals a literal."""
        nodes = self.path.all(document)
        return bool(nodes) and all(listed(node, self.literals) for node in nodes)


@dataclass(frozen=True, slots=True)
class Plan:
    """A ``reconciler`` block, checked and compiled. ``status_path`` None: existence is completion."""

    url: str
    items: Path
    status_path: Path | None
    statuses: Mapping[ItemStatus, tuple[Any, ...]]
    attributed: tuple[Path, str] | None
    reference: Path | None
    match: tuple[matching.Comparison, ...]
    denial_reason: Path | None
    complete: Expected | None
    next: Path | None
    namespace: Expected | None
    absent_status: frozenset[int]
    as_of_path: Path | None
    as_of_header: str | None
    stored_error: Expected | None
    authoritative: bool


class ConfigurationRefused(ValueError):
    """The block cannot work. ``problems``: (path, why) for every fault."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {why}" for path, why in problems))
        self.problems = problems


class _Reader:
    """Takes a block apart and collects what is wrong with it, so that its author sees every fault at once."""

    def __init__(self, block: Mapping[str, Any], where: str = "reconciler") -> None:
        self.block = block
        self.where = where
        self.problems: list[tuple[str, str]] = []

    def wrong(self, key: str, why: str) -> None:
        self.problems.append((f"{self.where}.{key}", why))

    def only(self, key: str | None, mapping: Mapping[Any, Any], allowed: tuple[str, ...]) -> None:
        for name in mapping:
            if name not in allowed:
                self.wrong(f"{key}.{name}" if key else str(name), "unknown key")

    def path(self, key: str, text: Any, *, singular: bool = True) -> Path | None:
        if not isinstance(text, str):
            self.wrong(key, "must be a JSONPath")
            return None
        try:
            path = matching.compile_path(text)
        except PathRefused as error:
            self.wrong(key, error.why)
            return None
        if singular and not path.singular:
            self.wrong(key, "must select one node at most")
            return None
        return path

    def optional_path(self, key: str) -> Path | None:
        return self.path(key, self.block[key]) if key in self.block else None

    def mapping(self, key: str, allowed: tuple[str, ...]) -> Mapping[str, Any] | None:
        value = self.block.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.wrong(key, "must be a mapping")
            return None
        self.only(key, value, allowed)
        return value

    def expected(self, key: str, *, singular: bool = True, several: bool = False) -> Expected | None:
        mapping = self.mapping(key, ("path", "equals"))
        if mapping is None:
            return None
        path = self.path(f"{key}.path", mapping.get("path"), singular=singular)
        if "equals" not in mapping:
            self.wrong(f"{key}.equals", "is required")
            return None
        equals = mapping["equals"]
        literals = tuple(equals) if several and isinstance(equals, list | tuple) else (equals,)
        if not literals or not all(map(is_scalar, literals)):
            self.wrong(f"{key}.equals", "must be a text, number, boolean or null")
            return None
        return Expected(path, literals) if path else None


_KEYS: Final = (
    *("kind", "url", "items", "status", "attributed", "reference", "match", "denial_reason", "complete"),
    *("next", "namespace", "absent_status", "as_of", "stored_error", "authoritative"),
)


def plan(configuration: Mapping[str, Any]) -> Plan:
    """Return the block compiled; raise ``ConfigurationRefused`` with every fault found."""
    reader = _Reader(configuration)
    reader.only(None, configuration, _KEYS)
    url = _read_url(reader)
    items = reader.path("items", configuration.get("items", "$"), singular=False)
    status_path, statuses = _read_status(reader)
    as_of_path, as_of_header = _read_as_of(reader)
    authoritative = configuration.get("authoritative", True)
    if not isinstance(authoritative, bool):
        reader.wrong("authoritative", "must be true or false")
    attributed = _read_attributed(reader)
    reference, denial_reason = reader.optional_path("reference"), reader.optional_path("denial_reason")
    match, absent_status = _read_match(reader), _read_absent_status(reader)
    complete, following = reader.expected("complete"), reader.optional_path("next")
    namespace = reader.expected("namespace", singular=False)
    stored_error = reader.expected("stored_error", several=True)
    if reader.problems or items is None:
        raise ConfigurationRefused(reader.problems)
    return Plan(
        url=url,
        items=items,
        status_path=status_path,
        statuses=statuses,
        attributed=attributed,
        reference=reference,
        match=match,
        denial_reason=denial_reason,
        complete=complete,
        next=following,
        namespace=namespace,
        absent_status=absent_status,
        as_of_path=as_of_path,
        as_of_header=as_of_header,
        stored_error=stored_error,
        authoritative=authoritative,
    )


def problems(configuration: Mapping[str, Any], contract: Contract) -> list[tuple[str, str]]:
    """Return everything that keeps the block from working under the contract, as (path, why); empty = good."""
    try:
        made = plan(configuration)
    except ConfigurationRefused as error:
        return error.problems
    found = []
    asked_by = {name.partition(".")[0] for name in PLACEHOLDER.findall(made.url)[1:]}
    if contract.lookup is Lookup.BY_KEY and "idempotency_key" not in asked_by:
        found.append(("reconciler.url", "a look-up by_key needs {idempotency_key}"))
    if contract.lookup is Lookup.BY_REFERENCE and not asked_by:
        found.append(("reconciler.url", "a look-up by_reference needs {business_reference} or another name"))
    if contract.lookup is Lookup.BY_LIST and made.attributed is None:
        found.append(
            ("reconciler.attributed", "a look-up by_list needs it: nothing else says whose an item is")
        )
    return found


def _read_url(reader: _Reader) -> str:
    url = reader.block.get("url")
    if not isinstance(url, str) or not re.match(r"\{base_url\}($|[/?])", url):
        reader.wrong("url", "is required and begins with {base_url}, alone or followed by / or ?")
        return ""
    rest = PLACEHOLDER.sub("", url)
    if re.search(r"[^!-~]|[{}\\#]", rest):
        reader.wrong(
            "url", "holds a space, brace, backslash, '#' or non-ASCII character outside its placeholders"
        )
    for name in PLACEHOLDER.findall(url)[1:]:
        is_argument = name.startswith("arguments./") and matching.is_pointer(name.removeprefix("arguments."))
        if name not in NAMES and not is_argument:
            reader.wrong("url", f"unknown placeholder {{{name}}}")
    return url


def _read_status(reader: _Reader) -> tuple[Path | None, Mapping[ItemStatus, tuple[Any, ...]]]:
    value = reader.block.get("status")
    if value == "existence":
        return None, {}
    if not isinstance(value, Mapping):
        reader.wrong("status", "is required: {path, completed, in_progress?, denied?}, or the word existence")
        return None, {}
    kinds = (ItemStatus.COMPLETED, ItemStatus.IN_PROGRESS, ItemStatus.DENIED)
    reader.only("status", value, ("path", *kinds))
    path = reader.path("status.path", value.get("path"))
    statuses: dict[ItemStatus, tuple[Any, ...]] = {}
    for kind in kinds:
        literals = value.get(kind, [])
        if not isinstance(literals, list | tuple) or not all(map(is_scalar, literals)):
            reader.wrong(f"status.{kind}", "must be a list of texts, numbers or booleans")
            continue
        for literal in literals:
            if any(listed(literal, others) for others in statuses.values()):
                reader.wrong(f"status.{kind}", f"{literal!r} stands in two lists")
        statuses[kind] = tuple(literals)
    if statuses.get(ItemStatus.COMPLETED) == ():
        reader.wrong("status.completed", "is required: without it nothing can count as an effect")
    return path, statuses


def _read_attributed(reader: _Reader) -> tuple[Path, str] | None:
    mapping = reader.mapping("attributed", ("path", "equals"))
    if mapping is None:
        return None
    path = reader.path("attributed.path", mapping.get("path"))
    if mapping.get("equals") not in NAMES:
        reader.wrong("attributed.equals", f"must be one of {', '.join(NAMES)}")
        return None
    return (path, mapping["equals"]) if path else None


def _read_match(reader: _Reader) -> tuple[matching.Comparison, ...]:
    try:
        return matching.parse_match(reader.block.get("match", {}))
    except matching.MatchRefused as error:
        for path, why in error.problems:
            reader.wrong(f"match.{path}" if path else "match", why)
        return ()


def _read_absent_status(reader: _Reader) -> frozenset[int]:
    answers = reader.block.get("absent_status", [])
    if not isinstance(answers, list | tuple):
        reader.wrong("absent_status", "must be a list of status codes")
        return frozenset()
    for status in answers:
        usable = type(status) is int and (status == 204 or 400 <= status < 500) and status not in NEVER_ABSENT
        if not usable:
            reader.wrong("absent_status", f"{status!r} cannot mean that there is no effect")
    return frozenset(status for status in answers if type(status) is int)


def _read_as_of(reader: _Reader) -> tuple[Path | None, str | None]:
    mapping = reader.mapping("as_of", ("path", "header"))
    if mapping is None:
        return None, None
    if len(mapping) != 1:
        reader.wrong("as_of", "must have either path or header")
        return None, None
    if "path" in mapping:
        return reader.path("as_of.path", mapping["path"]), None
    header = mapping["header"]
    if not isinstance(header, str) or egress.why_header_refused(header, ""):
        reader.wrong("as_of.header", "must be the name of a header")
        return None, None
    return None, header.lower()


def is_scalar(value: Any) -> bool:
    """Whether the value is a text, number, boolean or null."""
    return value is None or isinstance(value, str | int | float | bool)


def listed(value: Any, literals: tuple[Any, ...]) -> bool:
    """Whether the value equals one of the literals, decimals by value."""
    return any(matching.same(literal, value) for literal in literals)

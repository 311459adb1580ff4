"""What a receiver's JSON says, and whether it is what was intended: JSONPath and decimals.

Serves two readers: the look-ups (``reconciliation.reconcilers``), and the services that compare a runtime's
reported receiver's answer with the intent. The *mapping* both use is the capability's ``reconciler`` block:
``match`` names, for each JSONPath in an item of the receiver's, the JSON Pointer of what was intended.

Source: RFC 9535 (JSONPath), RFC 6901 (JSON Pointer), ISO 4217 (minor units).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import Enum, StrEnum
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import Any, Final

from jsonpath import JSONPath, JSONPathEnvironment
from jsonpath.exceptions import JSONPathError
from jsonpath.filter import BaseExpression, FilterQuery, FunctionExtension
from jsonpath.segments import JSONPathRecursiveDescentSegment
from jsonpath.selectors import Filter, IndexSelector, NameSelector

PATH_LENGTH_MAX: Final = 500
"""Characters in one JSONPath. Real ones have fewer than 100; the parser is recursive."""

NODES_MAX: Final = 10_000
"""Nodes one path may select in one answer: a page of 100 items has 100; more is a wrong path or a hostile
receiver.
"""

PRINTED_MAX: Final = 200
"""Characters of a value that a difference shows. Enough to recognise it; the raw answer is kept beside it."""

MINOR_UNIT_DIGITS_DEFAULT: Final = 2
_NO_DIGITS: Final = (
    *("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG"),
    *("RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF"),
)
MINOR_UNIT_DIGITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(_NO_DIGITS, 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}
"""Digits after the point per currency (ISO 4217); every other currency has ``MINOR_UNIT_DIGITS_DEFAULT``.

Some receivers differ from the standard for a few currencies: a ``match`` entry then says ``digits`` itself.
"""


class Missing(Enum):
    """Marks that a path or pointer names nothing (``None`` is JSON's null, which is something)."""

    ABSENT = "absent"


ABSENT: Final = Missing.ABSENT


class Unreadable(ValueError):
    """The bytes are no JSON that has one meaning. ``why`` says so in a few words, without quoting them."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class PathRefused(ValueError):
    """The text is no JSONPath this service evaluates. ``why`` is for the author of the configuration."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class TooManyNodes(ValueError):
    """A path selected more than ``NODES_MAX`` nodes, or the answer is nested too deeply to walk."""


# -- reading -----------------------------------------------------------------------------------------------


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unreadable("a name stands twice in one object")
    return members


def _no_constant(name: str) -> Any:
    raise Unreadable(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=Decimal, parse_constant=_no_constant
)


def read_json(raw: bytes) -> Any:
    """Return the parsed answer of a receiver; numbers with a fraction or exponent become ``Decimal``.

    More lenient than the intake (any number, NUL, lone surrogates and depth are the receiver's own
    business), but an answer with two meanings is none: duplicate names, NaN and bad UTF-8 raise
    ``Unreadable``, as does what Python cannot hold (nesting beyond its recursion limit, integers beyond its
    digit limit).
    """
    try:
        return _DECODER.decode(raw.decode("utf-8-sig"))
    except Unreadable:
        raise
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8") from error
    except json.JSONDecodeError as error:
        raise Unreadable("not JSON") from error
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error
    except (ValueError, ArithmeticError, MemoryError) as error:
        raise Unreadable("a number beyond reading") from error


# -- paths -------------------------------------------------------------------------------------------------


class _Environment(JSONPathEnvironment):
    """Strict RFC 9535 in which a number in a filter equals the same decimal in the answer."""

    def compare(self, left: object, operator: str, right: object) -> bool:
        """Return the comparison, floats taken for the decimal that they print as."""
        if isinstance(left, float):
            left = Decimal(repr(left))
        if isinstance(right, float):
            right = Decimal(repr(right))
        return super().compare(left, operator, right)


_ENVIRONMENT: Final = _Environment(strict=True)


@dataclass(frozen=True, slots=True)
class Path:
    """A compiled JSONPath. ``keys`` are its names and indices when it can select one node at most, else None.

    ``stem`` is the longest leading part that selects one node at most: the place that must be there for "no
    items" to mean anything.
    """

    text: str
    keys: tuple[str | int, ...] | None
    stem: tuple[str | int, ...]
    _compiled: JSONPath

    @property
    def singular(self) -> bool:
        """Whether the path selects one node at most."""
        return self.keys is not None

    def one(self, document: Any) -> Any:
        """Return the node selected by a singular path, or ``ABSENT``."""
        if self.keys is None:
            raise TypeError(f"{self.text} may select several nodes")
        return _walk(document, self.keys)

    def all(self, document: Any) -> list[Any]:
        """Return every selected node in document order; raise ``TooManyNodes`` beyond ``NODES_MAX``."""
        if self.keys is not None:
            node = _walk(document, self.keys)
            return [] if node is ABSENT else [node]
        if not isinstance(document, dict | list):
            return []  # nothing is below a scalar; and the library would parse a text as JSON once more
        try:
            nodes = [match.obj for match in islice(self._compiled.finditer(document), NODES_MAX + 1)]
        except (JSONPathError, RecursionError) as error:
            raise TooManyNodes(self.text) from error
        if len(nodes) > NODES_MAX:
            raise TooManyNodes(self.text)
        return nodes

    def has_place(self, document: Any) -> bool:
        """Whether what the path looks into is there: its stem, and a list or object where it goes on from
        there.

        False means that the answer has another shape than the configuration expects, so that selecting
        nothing says nothing.
        """
        place = _walk(document, self.stem)
        if self.keys is not None:
            return place is not ABSENT
        return isinstance(place, dict | list)


def _walk(node: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        if isinstance(key, str):
            if not isinstance(node, dict) or key not in node:
                return ABSENT
        elif not isinstance(node, list) or not -len(node) <= key < len(node):
            return ABSENT
        node = node[key]
    return node


@lru_cache(maxsize=4096)
def compile_path(text: str) -> Path:
    """Return the compiled path; raise ``PathRefused``.

    Refused besides what RFC 9535 refuses: ``match`` and ``search`` (a regular expression over a stranger's
    text), and what makes the cost of one evaluation grow faster than the answer: a second ``..``, and
    inside a filter anything but paths to a single node.
    """
    if len(text) > PATH_LENGTH_MAX:
        raise PathRefused(f"longer than {PATH_LENGTH_MAX} characters")
    try:
        compiled = _ENVIRONMENT.compile(text)
    except (JSONPathError, RecursionError) as error:
        raise PathRefused(f"no JSONPath of RFC 9535: {_said(error)}") from error
    if not isinstance(compiled, JSONPath) or not text:
        raise PathRefused("no JSONPath of RFC 9535: not one path from $")
    if sum(isinstance(part, JSONPathRecursiveDescentSegment) for part in compiled.segments) > 1:
        raise PathRefused("more than one '..'")
    for expression in _filter_expressions(compiled):
        if isinstance(expression, FunctionExtension) and expression.name in ("match", "search"):
            raise PathRefused(f"the function {expression.name}() is not offered")
        if isinstance(expression, FilterQuery) and not _is_singular(expression.path):
            raise PathRefused("a filter may only look at single nodes")
    stem = tuple(_stem(compiled))
    return Path(text, stem if _is_singular(compiled) else None, stem, compiled)


def _said(error: Exception) -> str:
    """Return the error's own first words: as text, the library's errors point into a path that may be empty."""
    return str(error.args[0]) if error.args else type(error).__name__


def _is_singular(compiled: Any) -> bool:
    return isinstance(compiled, JSONPath) and compiled.singular_query()


def _stem(compiled: JSONPath) -> Iterator[str | int]:
    for segment in compiled.segments:
        if isinstance(segment, JSONPathRecursiveDescentSegment) or len(segment.selectors) != 1:
            return
        selector = segment.selectors[0]
        if isinstance(selector, NameSelector):
            yield selector.name
        elif isinstance(selector, IndexSelector):
            yield selector.index
        else:
            return


def _filter_expressions(compiled: JSONPath) -> Iterator[BaseExpression]:
    waiting: list[BaseExpression] = [
        selector.expression
        for segment in compiled.segments
        for selector in segment.selectors
        if isinstance(selector, Filter)
    ]
    while waiting:
        expression = waiting.pop()
        yield expression
        waiting.extend(expression.children())


def at_pointer(document: Any, pointer: str) -> Any:
    """Return what the JSON Pointer names, or ``ABSENT``. The empty pointer names the document itself."""
    if not pointer:
        return document
    node = document
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and _INDEX.fullmatch(name) and int(name) < len(node):
            node = node[int(name)]
        else:
            return ABSENT
    return node


_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_POINTER: Final = re.compile(r"(/([^~/]|~[01])*)*")


def is_pointer(text: object) -> bool:
    """Whether the text is a JSON Pointer (RFC 6901)."""
    return isinstance(text, str) and _POINTER.fullmatch(text) is not None


# -- comparing ---------------------------------------------------------------------------------------------

_PLAIN_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?")
_WIDE: Final = Context(prec=500)


def as_decimal(value: Any) -> Decimal | None:
    """Return the value as an exact decimal, or None when it is none.

    A JSON number always is; a text only in the plain form without sign ``+``, exponent or leading zero, so
    that ``"0012"`` stays a name and not twelve.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, str) and _PLAIN_DECIMAL.fullmatch(value):
        return Decimal(value)
    return None


def same(intended: Any, found: Any) -> bool:
    """Whether two JSON values say the same: decimals by value (``"120.00"`` and ``120``), all else strictly.

    A text that merely looks like a decimal is compared by value too; where ``1.10`` and ``1.1`` are
    different names (versions), a ``match`` entry says ``as: text``.
    """
    left, right = as_decimal(intended), as_decimal(found)
    if left is not None and right is not None:
        return left == right
    if type(intended) is not type(found):
        return False
    if isinstance(intended, dict):
        return intended.keys() == found.keys() and all(same(intended[k], found[k]) for k in intended)
    if isinstance(intended, list):
        return len(intended) == len(found) and all(map(same, intended, found))
    return bool(intended == found)


def minor_unit_digits(currency: str | None) -> int:
    """Return how many digits after the point the currency has; unknown and None have the default of two."""
    return MINOR_UNIT_DIGITS.get((currency or "").upper(), MINOR_UNIT_DIGITS_DEFAULT)


def in_minor_units(amount: Decimal, digits: int) -> Decimal:
    """Return the amount in the currency's smallest units, exactly: 120.00 with two digits is 12000."""
    return _WIDE.scaleb(amount, digits)


def printable(value: Any) -> str:
    """Return the value as text that any database column and page can hold, at most about ``PRINTED_MAX``
    long.

    Control characters, lone surrogates and NUL are escaped. What is cut carries the start of its SHA-256,
    so that two long texts with one beginning stay two.
    """
    if value is ABSENT:
        return "(absent)"
    if isinstance(value, Decimal):
        text = str(value)
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (RecursionError, ValueError):
            text = "(nested too deeply)"
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) <= PRINTED_MAX:
        return text
    return f"{text[:PRINTED_MAX]}… sha256:{sha256(text.encode()).hexdigest()[:16]}"


# -- the mapping -------------------------------------------------------------------------------------------


class As(StrEnum):
    """How one matched field is compared."""

    VALUE = "value"  # decimals by value, all else strictly: the default
    TEXT = "text"  # character for character: versions, codes
    CASELESS = "caseless"  # text without regard to case: "eur" and "EUR"
    MINOR_UNITS = "minor_units"  # found is the intended amount in the currency's smallest units


@dataclass(frozen=True, slots=True)
class Comparison:
    """One entry of ``match``: the field of the item, what was intended for it, and how they compare.

    ``pointer`` looks into the intent document of ``intent_document``. ``currency`` (a pointer or a code) and
    ``digits`` serve minor units only.
    """

    path: Path
    pointer: str
    how: As = As.VALUE
    currency: str | None = None
    digits: int | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field in which the receiver's item is not what was intended. ``intended`` and ``found`` are
    printable.

    ``pointer`` says which part of the intent ``intended`` was taken from: where that part is sensitive, the
    caller must not keep or show ``intended`` and ``found``.
    """

    field: str
    pointer: str
    intended: str
    found: str


class MatchRefused(ValueError):
    """The ``match`` mapping cannot work. ``problems``: (path below ``match``, why) for each entry."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {why}" for path, why in problems))
        self.problems = problems


def parse_match(mapping: Any) -> tuple[Comparison, ...]:
    """Return the comparisons of a ``match`` mapping, ``{JSONPath: pointer | {to, as?, currency?, digits?}}``.

    Raises ``MatchRefused`` with every problem at once.
    """
    if not isinstance(mapping, Mapping):
        raise MatchRefused([("", "must be a mapping of JSONPath to pointer")])
    comparisons, problems = [], []
    for text, entry in mapping.items():
        try:
            comparisons.append(_comparison(text, entry))
        except ValueError as error:
            problems.append((str(text), str(error)))
    if problems:
        raise MatchRefused(problems)
    return tuple(comparisons)


def _comparison(text: Any, entry: Any) -> Comparison:
    if not isinstance(text, str):
        raise ValueError("a JSONPath is text")
    path = compile_path(text)
    if not path.singular:
        raise ValueError("must select one node at most")
    if not isinstance(entry, Mapping):
        entry = {"to": entry}
    unknown = entry.keys() - {"to", "as", "currency", "digits"}
    if unknown:
        raise ValueError(f"unknown key {sorted(map(str, unknown))[0]}")
    pointer, how = entry.get("to"), entry.get("as", As.VALUE)
    if not isinstance(pointer, str) or not is_pointer(pointer) or not pointer:
        raise ValueError("'to' must be a JSON Pointer such as /arguments/amount")
    if pointer.split("/")[1] not in INTENT_NAMES:
        raise ValueError(f"'to' must begin with one of {', '.join('/' + name for name in INTENT_NAMES)}")
    if how not in list(As):
        raise ValueError(f"'as' must be one of {', '.join(As)}")
    currency, digits = entry.get("currency"), entry.get("digits")
    if how != As.MINOR_UNITS and (currency is not None or digits is not None):
        raise ValueError("'currency' and 'digits' belong to minor_units")
    if currency is not None and not (isinstance(currency, str) and _CURRENCY.fullmatch(currency)):
        raise ValueError("'currency' must be a code of three letters or a JSON Pointer")
    if digits is not None and (type(digits) is not int or not 0 <= digits <= 18):
        raise ValueError("'digits' must be a whole number from 0 to 18")
    return Comparison(path, pointer, As(how), currency, digits)


_CURRENCY: Final = re.compile(r"[A-Za-z]{3}|(/([^~/]|~[01])*)+")

INTENT_NAMES: Final = ("arguments", "amount", "operation_id", "business_reference", "idempotency_key")


def intent_document(
    *,
    arguments: Any,
    amount: Mapping[str, str] | None,
    operation_id: str | None = None,
    business_reference: str | None = None,
    idempotency_key: str | None = None,
) -> dict[str, Any]:
    """Return the document that pointers look into: ``{"arguments": …, "amount": {"value", "currency"}, …}``.

    What is None is left out.
    """
    names = {
        "arguments": arguments,
        "amount": None if amount is None else dict(amount),
        "operation_id": operation_id,
        "business_reference": business_reference,
        "idempotency_key": idempotency_key,
    }
    return {name: value for name, value in names.items() if value is not None}


def differences(
    item: Any, comparisons: Iterable[Comparison], intent: Mapping[str, Any]
) -> tuple[Mismatch, ...]:
    """Return every field in which the item is not what was intended, in the mapping's order.

    ``intent`` is an ``intent_document``. A field that neither side has agrees; one that a single side has
    differs. What was to be compared with arguments is left out once they are no longer kept (those of
    settled operations age out).
    """
    found_differences = []
    for comparison in comparisons:
        if "arguments" not in intent and comparison.pointer.startswith("/arguments"):
            continue
        intended = at_pointer(intent, comparison.pointer)
        found = comparison.path.one(item)
        agrees, wanted = _compare(comparison, intended, found, intent)
        if not agrees:
            found_differences.append(
                Mismatch(comparison.path.text, comparison.pointer, printable(wanted), printable(found))
            )
    return tuple(found_differences)


def _compare(
    comparison: Comparison, intended: Any, found: Any, intent: Mapping[str, Any]
) -> tuple[bool, Any]:
    """Return whether both agree, and what was expected of the receiver (already in minor units)."""
    if intended in (None, ABSENT) or found in (None, ABSENT):
        return intended in (None, ABSENT) and found in (None, ABSENT), intended
    if comparison.how is As.TEXT:
        return isinstance(found, str) and intended == found, intended
    if comparison.how is As.CASELESS:
        both_text = isinstance(intended, str) and isinstance(found, str)
        return both_text and intended.casefold() == found.casefold(), intended
    if comparison.how is As.MINOR_UNITS:
        amount = as_decimal(intended)
        if amount is None:
            return False, intended
        expected = in_minor_units(amount, _digits(comparison, intent))
        return as_decimal(found) == expected, format(expected, "f")
    try:
        return same(intended, found), intended
    except RecursionError:
        return False, intended


def _digits(comparison: Comparison, intent: Mapping[str, Any]) -> int:
    """Return the digits after the point: said outright, else by the entry's currency or the amount's."""
    if comparison.digits is not None:
        return comparison.digits
    currency: Any = comparison.currency
    if currency is None:
        currency = at_pointer(intent, "/amount/currency")
    elif currency.startswith("/"):
        currency = at_pointer(intent, currency)
    return minor_unit_digits(currency if isinstance(currency, str) else None)


def match_item(
    configuration: Mapping[str, Any],
    item: Any,
    arguments: Any,
    amount: Mapping[str, str] | None,
    *,
    operation_id: str | None = None,
    business_reference: str | None = None,
    idempotency_key: str | None = None,
) -> tuple[Mismatch, ...]:
    """Return how one item of the receiver's (parsed JSON) differs from the intent, by the ``reconciler``
    block.

    For a receiver's answer that a runtime reports as evidence. A block without ``match`` compares nothing.
    ``configuration`` was validated when it was provisioned; raises ``MatchRefused`` when it was not.
    """
    intent = intent_document(
        arguments=arguments,
        amount=amount,
        operation_id=operation_id,
        business_reference=business_reference,
        idempotency_key=idempotency_key,
    )
    return differences(item, parse_match(configuration.get("match", {})), intent)

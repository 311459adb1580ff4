"""One value of a provision file → what it means, or why it cannot be used. Each function takes one value, of any type.

Pure but for what checks e-mail addresses and JSON Schemas: no database, no clock, no environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ledger.intake import CURRENCY, DECIMAL
from ledger.matching import is_pointer

ENTRIES_MAX: Final = 2_000
"""Of one list. More is a generated file that went wrong; the ledger itself has no such limit."""

NAME_LENGTH_MAX: Final = 200
URL_LENGTH_MAX: Final = 2_000
EMAIL_LENGTH_MAX: Final = 150
"""What a Django user name can hold."""

SUMMARY_LENGTH_MAX: Final = 500
LABEL_LENGTH_MAX: Final = 300
CONDITIONS_MAX: Final = 100
"""Of one approval rule: what a person can still read."""

OPERATORS: Final = (">", ">=", "<", "<=", "==", "!=", "in", "contains", "exists")
"""Of a condition in ``approval.when``. Source: Agent Capability Contract v1, ``approval.when``."""

REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
"""``${NAME}`` in a header's value."""

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")

_WORKSPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME: Final = re.compile(r"[A-Za-z0-9._~:@+=/-]{1,200}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_ALIKE: Final = re.compile(r"[?\[\]{}\\^$]")
"""What stands for other characters elsewhere, in shells and regular expressions."""

_CREDENTIAL: Final = re.compile(r"(?i)(.*-)?(authorization|auth|cookie|token|secret|password|api-?key)")
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_PLACE_NAME: Final = re.compile(r"[^\s{}/][^{}]*")
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class Unusable(Exception):
    """Why one value cannot be used. ``below``: where, from the value down."""

    def __init__(self, why: str, below: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.below = below


def text(value: Any, longest: int = NAME_LENGTH_MAX) -> str:
    if not isinstance(value, str):
        raise Unusable("must be a text")
    if not 1 <= len(value) <= longest or value != value.strip() or _CONTROL.search(value):
        raise Unusable(f"must be 1 to {longest} characters, without control characters or outer white space")
    return value


def workspace(value: Any) -> str:
    if not _WORKSPACE.fullmatch(text(value)):
        raise Unusable("must be at most 100 letters, digits and . _ - and begin with a letter or digit")
    return str(value)


def name(value: Any) -> str:
    """Of a runtime, receiver or capability. Never ``*``, which stands for other characters in patterns."""
    if not _NAME.fullmatch(text(value)):
        raise Unusable("may hold letters, digits and . _ ~ : @ + = / - only")
    return str(value)


def variable(value: Any) -> str:
    # Somebody who put the secret itself here must not find it again in a log.
    if not isinstance(value, str) or not VARIABLE.fullmatch(value) or value.startswith("cfl_"):
        raise Unusable("must be the name of an environment variable, never the secret itself")
    return value


def email(value: Any) -> str:
    """The address in lower case, as accounts keep it."""
    address = text(value, EMAIL_LENGTH_MAX).lower()
    try:
        validate_email(address)
    except ValidationError:
        raise Unusable("is no e-mail address") from None
    return address


def pattern(value: Any) -> str:
    if _ALIKE.search(text(value)):
        raise Unusable("is matched character for character, and only * stands for others")
    return str(value)


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unusable("must be true or false")
    return value


def whole(low: int, high: int) -> Callable[[Any], int]:
    def reader(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Unusable(f"must be a whole number from {low} to {high}")
        return value

    return reader


def one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    def reader(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise Unusable(f"must be one of {', '.join(choices)}")
        return value

    return reader


def several(reader: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    """A list of these, at least one, each once."""

    def read(values: Any) -> tuple[str, ...]:
        if not isinstance(values, list) or not values or len(values) > ENTRIES_MAX:
            raise Unusable(f"must be a list of 1 to {ENTRIES_MAX}")
        found: list[str] = []
        for position, value in enumerate(values):
            try:
                found.append(reader(value))
            except Unusable as error:
                raise Unusable(error.why, f"[{position}]") from None
        if len(set(found)) < len(found):
            raise Unusable("holds the same twice")
        return tuple(found)

    return read


def moment(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Unusable("must be a moment with its zone, such as 2027-01-01T00:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise Unusable("is beyond what a calendar can hold") from None


def base_url(value: Any) -> str:
    url = text(value, URL_LENGTH_MAX)
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("https", "http"):
        raise Unusable("must begin with https://")
    return url


def headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Unusable("must map names of headers to texts")
    for header, content in value.items():
        if not isinstance(header, str) or not isinstance(content, str):
            raise Unusable("must be a text", f".{header}")
        if _CREDENTIAL.fullmatch(header) and not REFERENCE.search(content):
            why = "carries a credential: write ${NAME}, and keep it in the environment variable NAME"
            raise Unusable(why, f".{header}")
    if len({header.lower() for header in value}) < len(value):
        raise Unusable("names the same header twice")
    return dict(value)


def argument(value: Any) -> str:
    if not is_pointer(value) or not str(value).startswith("/arguments/"):
        raise Unusable("must be a JSON Pointer that begins with /arguments/")
    return str(value)


def currency(value: Any) -> str:
    if not isinstance(value, str) or not CURRENCY.fullmatch(value):
        raise Unusable("must be three capital letters (ISO 4217)")
    return value


def currency_or_argument(value: Any) -> str:
    return argument(value) if isinstance(value, str) and value.startswith("/") else currency(value)


def money(value: Any) -> str:
    if not isinstance(value, str) or not DECIMAL.fullmatch(value) or Decimal(value) <= 0:
        raise Unusable('must be a positive decimal in quotes, such as "1000.00"')
    return value


def pointers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Unusable("must be a list of JSON Pointers")
    for position, pointer in enumerate(value):
        if not isinstance(pointer, str) or (pointer and not is_pointer(pointer)):
            raise Unusable("must be a JSON Pointer into the arguments, such as /card/number", f"[{position}]")
        for other in value[:position]:
            if f"{pointer}/".startswith(f"{other}/") or f"{other}/".startswith(f"{pointer}/"):
                raise Unusable(
                    f"overlaps with {other or 'the whole'}, which is named before", f"[{position}]"
                )
    return tuple(value)


def summary(value: Any) -> str:
    template = text(value, SUMMARY_LENGTH_MAX)
    for place in _PLACE.findall(template):
        if not (is_pointer(place) and place) and not _PLACE_NAME.fullmatch(place):
            raise Unusable("{…} must hold the name of an argument, or a JSON Pointer into the arguments")
    if re.search(r"[{}]", _PLACE.sub("", template)):
        raise Unusable("has a brace that opens or closes nothing")
    return template


def conditions(value: Any) -> list[dict[str, Any]]:
    """``approval.when``: any one that holds asks for approval."""
    if not isinstance(value, list) or len(value) > CONDITIONS_MAX:
        raise Unusable(f"must be a list of at most {CONDITIONS_MAX} conditions")
    for position, condition in enumerate(value):
        at = f"[{position}]"
        if not isinstance(condition, dict):
            raise Unusable("must be a mapping", at)
        for key in condition:
            if key not in ("param", "op", "value", "label"):
                raise Unusable("unknown key; known are param, op, value, label", f"{at}.{key}")
        _condition(condition, at)
    return [_json(condition) for condition in value]


def _condition(condition: Mapping[str, Any], at: str) -> None:
    for key, reader in (("param", text), ("op", one_of(OPERATORS))):
        try:
            reader(condition.get(key))
        except Unusable as error:
            raise Unusable(error.why, f"{at}.{key}") from None
    operator, value = condition["op"], condition.get("value")
    if operator == "exists":
        if not isinstance(value, bool | None):
            raise Unusable("must be true or false, or left out", f"{at}.value")
    elif "value" not in condition:
        raise Unusable("is required", f"{at}.value")
    elif operator in (">", ">=", "<", "<=") and (
        isinstance(value, bool) or not isinstance(value, int | float)
    ):
        raise Unusable("must be a number", f"{at}.value")
    elif operator == "in" and not (isinstance(value, list) and value):
        raise Unusable("must be a list that is not empty", f"{at}.value")
    label = condition.get("label", "")
    if not isinstance(label, str) or len(label) > LABEL_LENGTH_MAX:
        raise Unusable(f"must be a text of at most {LABEL_LENGTH_MAX} characters", f"{at}.label")


def json_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unusable("must be a mapping")
    return {str(key): inner for key, inner in _json(value).items()}


def _json(value: Any, below: str = "") -> Any:
    """The value as it comes back from a JSON column: whole numbers as int. Raises for moments and numbers as keys."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise Unusable("the key must be a text: put it in quotes", f"{below}.{key}")
        return {key: _json(inner, f"{below}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner, f"{below}[{position}]") for position, inner in enumerate(value)]
    if isinstance(value, datetime):
        raise Unusable("is a moment: put it in quotes for a text", below)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def schema(value: Any) -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) that needs nothing from outside and can be followed to its end."""
    read = json_mapping(value)
    if read.get("$schema", _DIALECT) != _DIALECT:
        raise Unusable(f"must be {_DIALECT}, or left out", ".$schema")
    try:
        Draft202012Validator.check_schema(read, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        below = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        raise Unusable(f"is no JSON Schema: {error.message[:200]}", below) from None
    _follow_references(read)
    try:
        next(iter(Draft202012Validator(read).iter_errors({})), None)
    except RecursionError:
        raise Unusable("refers to itself without end") from None
    return read


def _follow_references(whole: Mapping[str, Any]) -> None:
    resource = Resource.from_contents(whole, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver("")

    def walk(value: Any, below: str) -> None:
        if isinstance(value, list):
            for position, inner in enumerate(value):
                walk(inner, f"{below}[{position}]")
        elif isinstance(value, dict):
            for key, inner in value.items():
                reference(key, inner, f"{below}.{key}")

    def reference(key: str, value: Any, below: str) -> None:
        if key == "$id" and isinstance(value, str):
            raise Unusable("leave it out: nothing refers to this schema by name", below)
        if key not in ("$ref", "$dynamicRef") or not isinstance(value, str):
            walk(value, below)
            return
        if not value.startswith("#"):
            raise Unusable("must begin with #: nothing is fetched", below)
        try:
            resolver.lookup(value)
        except Unresolvable:
            raise Unusable("leads nowhere", below) from None

    walk(whole, "")

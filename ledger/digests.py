"""From bytes to a value, from a value to its one canonical text, and from there to the digest that approvals bind.

One strict parser serves hash, display, rules and dispatch, so that no two of them can read one text differently.
What it accepts is I-JSON (RFC 7493) and narrower still; the rules are listed at `parse`. Nothing is
Unicode-normalised: what differs, differs.

Nothing here looks at the world except `uuid7` and `mint_key`, whose names carry time for the sake of index locality; no
rule reads it back.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import time
from decimal import Decimal
from itertools import accumulate
from typing import NoReturn, TypeAlias, cast
from uuid import UUID

import rfc8785

from ledger.errors import Malformed, TooLarge

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"

MAX_DEPTH = 32  # deep enough for any tool call seen in practice, far from every recursion limit
SAFE_INTEGER = 2**53 - 1  # beyond it neighbouring integers are one double: two texts would share a digest
SALT_BYTES = 16  # 128 bits, and always as many, so that salt and text cannot be told apart in two ways
DIGEST_PREFIX = "jcs-sha256:"  # names the algorithm, so that a later one can stand beside it


class NotCanonical(ValueError):
    """This value has no RFC 8785 text: it could not have come from `parse`."""


def parse(raw: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH, around: int = 0) -> JSON:
    """The value of a JSON text. Raises TooLarge, or Malformed with a JSON Pointer to the first fault.

    Refused are, besides what is no JSON: bytes that are not UTF-8, a byte order mark, a name twice in one object,
    NaN and Infinity, a lone surrogate or NUL in a name or string, containers nested deeper than `max_depth` (the
    outermost is 1; a body that carries what the limit is about may have `around` more), an integral number beyond
    ±(2^53−1) however it is spelled, and any number literal whose double does not print back to the same decimal value
    (`0.1` and `0.10` pass, `0.1000000000000000055` does not).

    Equal numbers become equal values of one type: `1.0`, `1e0` and `1` are all the int 1, `-0.0` is 0. So everything
    that is computed from a value is a function of its canonical text.

    Source: RFC 8259; RFC 7493 section 2; RFC 8785 section 3.2.2; RFC 6901 for the path.
    """
    if len(raw) > max_bytes:
        raise TooLarge(max_bytes)
    try:
        text = raw.decode("utf-8")
        if _nests_deeper(text, than=max_depth + around) or _SUSPICIOUS_ESCAPE.search(text):
            return _Reader(text, max_depth, around).document()
        value: JSON = _DECODER.decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError, _Fault):
        # Something is wrong: the slow reader knows where, and meets invalid bytes as lone surrogates.
        _Reader(raw.decode("utf-8", "surrogateescape"), max_depth, around).document()
        raise Malformed("", "the text could not be read") from None
    return value


def canonical(value: object) -> bytes:
    """The RFC 8785 text of a value, as UTF-8: names sorted by UTF-16 code units, no white space.

    Raises NotCanonical for what no such text exists for: NaN, infinity, integers beyond ±(2^53−1), lone surrogates,
    names that are not text, other types, cycles.
    """
    try:
        return rfc8785.dumps(cast(JSON, value))
    except RecursionError as too_deep:
        raise NotCanonical("nested too deeply, or within itself") from too_deep
    except (ValueError, TypeError) as wrong:
        # The package's own errors are ValueErrors. Three come out of it bare: UnicodeEncodeError for a lone surrogate in
        # a name, ValueError for an integer too long to be quoted, TypeError for a name that only looks like text.
        raise NotCanonical(str(wrong)) from wrong


def arguments_digest(value: object, salt: bytes | None) -> str:
    """`jcs-sha256:` and 64 hexadecimal digits: SHA-256 over `salt` (16 bytes, where there is one) and the canonical
    text. The salt keeps low-entropy arguments from being guessed; whoever has to compare finds it in the permit.

    Raises NotCanonical, and ValueError when a salt is not 16 bytes.
    """
    return text_digest(canonical(value), salt)


def text_digest(text: bytes, salt: bytes | None) -> str:
    """`arguments_digest` of a value whose canonical text is at hand. Raises ValueError when a salt is not 16 bytes."""
    if salt is not None and len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    return DIGEST_PREFIX + hashlib.sha256((salt or b"") + text).hexdigest()


def mint_salt() -> bytes:
    """A fresh salt for one operation of a sensitive capability."""
    return secrets.token_bytes(SALT_BYTES)


def pointer(value: JSON, path: str) -> JSON:
    """What stands at a JSON Pointer: `pointer({"a": [{"b": 7}]}, "/a/0/b")` is 7, `""` is the whole value.

    Raises KeyError where nothing stands there, ValueError where `path` is no JSON Pointer. Source: RFC 6901.
    """
    if path and not path.startswith("/"):
        raise ValueError(f"a JSON Pointer is empty or begins with a slash: {path!r}")
    if _BAD_TILDE.search(path):
        raise ValueError(f"a tilde in a JSON Pointer is written ~0: {path!r}")
    for token in path.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            raise KeyError(path)
    return value


def differences(one: JSON, other: JSON, *, limit: int = 20) -> list[str]:
    """JSON Pointers of up to `limit` places where two values differ, in document order; never the values themselves.

    A place that only one of them has counts, and hides what is below it. Equal values give an empty list.
    """
    found: list[str] = []
    _compare(one, other, "", found, limit)
    return found


def uuid7() -> UUID:
    """A new UUID version 7: 48 bits of milliseconds, 12 bits of their fraction, 62 random bits.

    Ordered by time to a quarter of a microsecond as far as this host's clock goes: good for locality in an index,
    never used to decide what came first. Source: RFC 9562 section 5.7, and 6.2 method 3.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (nanoseconds << 12) // 1_000_000
    return UUID(
        int=(milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | fraction << 64
        | 0b10 << 62
        | secrets.randbits(62)
    )


def mint_key() -> str:
    """A new idempotency key: `cf_` and a UUID version 7 in 26 characters of Crockford's base 32."""
    number = uuid7().int
    return "cf_" + "".join([_PAIRS[number >> shift & 1023] for shift in _PAIR_SHIFTS])


# Numbers

_UNSAFE = "an integer beyond ±(2^53−1) cannot be kept apart from its neighbours: send it as a string"


class _Fault(Exception):
    """The fast decoder met something that JSON allows and this ledger does not."""


def _integer(literal: str) -> int:
    """The value of an integer literal. Its length is looked at first: int() of 5,000 digits raises by itself."""
    if len(literal) > 17 or not -SAFE_INTEGER <= (number := int(literal)) <= SAFE_INTEGER:
        raise _Fault(_UNSAFE)
    return number


def _fraction(literal: str) -> int | float:
    """The value of a literal with a fraction or an exponent: an int where it is integral."""
    number = float(literal)
    if math.isinf(number):
        raise _Fault("this number is too large for a double: send it as a string")
    if number.is_integer() and abs(number) > SAFE_INTEGER:
        raise _Fault(_UNSAFE)
    if number == 0:
        # Asked of the text, because Decimal cannot hold every exponent that a literal can.
        same = not re.search("[1-9]", re.split("[eE]", literal)[0])
    else:
        same = repr(number) == literal or Decimal(repr(number)) == Decimal(literal)
    if not same:
        raise _Fault("this number has more digits than a double can keep: send it as a string")
    return int(number) if number.is_integer() else number


def _constant(literal: str) -> NoReturn:
    raise _Fault(f"{literal} is not JSON")


def _members(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Fault("a name stands twice in one object")
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)

# Surrogates and NUL can only come in as escapes once the bytes are known to be UTF-8. Most texts have neither; a proper
# pair (an emoji written in ASCII) is found here too, and the slow reader lets it pass.
_SUSPICIOUS_ESCAPE = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)")
_NO_BRACKETS = re.compile(r"[^\[\]{}]++")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def _nests_deeper(text: str, *, than: int) -> bool:
    """Whether containers nest deeper, without recursion. What is no JSON may get either answer."""
    if text.count("[") + text.count("{") <= than:
        return False
    # Without escaped backslashes and quotes, every second piece between quotes lies outside of strings.
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    brackets = _NO_BRACKETS.sub("", outside)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > than


# The slow reader

_SPACE = re.compile(r"[ \t\n\r]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][+-]?[0-9]++)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_WORDS: tuple[tuple[str, JSON], ...] = (("true", True), ("false", False), ("null", None))
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_CLIP = 60  # characters of one name that a path shows: an error has to stay small


class _Reader:
    """Reads the same language as the decoder, more slowly, and always knows where it stands."""

    def __init__(self, text: str, max_depth: int, around: int = 0) -> None:
        self.text, self.max_depth, self.around = text, max_depth, around
        self.at = 0
        self.path: list[str | int] = []

    def document(self) -> JSON:
        if self.text.startswith("\ufeff"):
            self.fail("the text begins with a byte order mark")
        value = self.value()
        if self.next() != "":
            self.fail("something follows the JSON text")
        return value

    def value(self) -> JSON:
        first = self.next()
        if first == "{":
            return self.object()
        if first == "[":
            return self.array()
        if first == '"':
            return self.string("a string")
        for word, value in _WORDS:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return value
        for word in _NO_NUMBERS:
            if self.text.startswith(word, self.at):
                self.fail(f"{word} is not JSON")
        return self.number()

    def object(self) -> dict[str, JSON]:
        members: dict[str, JSON] = {}
        self.open()
        if self.next() == "}":
            self.at += 1
            return members
        while True:
            if self.next() != '"':
                self.fail("a name in double quotes is expected")
            name = self.string("a name")
            self.path.append(name)
            if name in members:
                self.fail("this name stands twice in one object")
            self.expect(":")
            members[name] = self.value()
            self.path.pop()
            if self.next() != ",":
                break
            self.at += 1
        self.expect("}")
        return members

    def array(self) -> list[JSON]:
        items: list[JSON] = []
        self.open()
        if self.next() == "]":
            self.at += 1
            return items
        while True:
            self.path.append(len(items))
            items.append(self.value())
            self.path.pop()
            if self.next() != ",":
                break
            self.at += 1
        self.expect("]")
        return items

    def string(self, what: str) -> str:
        """What says which: a name has no path of its own yet, so a fault in it points to its object."""
        match = _STRING.match(self.text, self.at)
        if match is None:
            self.fail(f"{what} is not closed, or has a control character or an unknown escape in it")
        if "\\" in match[0]:
            text: str = json.loads(match[0])
        else:
            text = match[0][1:-1]
        if "\x00" in text:
            self.fail(f"{what} has NUL in it")
        if (surrogate := _SURROGATE.search(text)) is not None:
            if surrogate[0] in match[0]:
                self.fail(f"{what} is not UTF-8")
            self.fail(f"{what} has a lone surrogate in it")
        self.at = match.end()
        return text

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self.fail("the text ends too early" if self.at == len(self.text) else "this is no JSON value")
        try:
            number = _integer(match[0]) if match[1] is None and match[2] is None else _fraction(match[0])
        except _Fault as fault:
            self.fail(str(fault))
        self.at = match.end()
        return number

    def open(self) -> None:
        """Steps into a container. The path has one token for each container around this one."""
        if len(self.path) >= self.max_depth + self.around:
            self.fail(f"nested deeper than {self.max_depth}")
        self.at += 1

    def next(self) -> str:
        """The next character that is no white space, which is not consumed; "" at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def expect(self, character: str) -> None:
        if self.next() != character:
            self.fail(f"{character} is expected")
        self.at += 1

    def fail(self, why: str) -> NoReturn:
        raise Malformed("".join(f"/{_token(step)}" for step in self.path), f"{why} (character {self.at + 1})")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _token(step: str | int) -> str:
    """A reference token that can be printed anywhere: clipped, and without surrogates or control characters."""
    text = str(step)
    text = text if len(text) <= _CLIP else text[:_CLIP] + "…"
    text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return text.replace("~", "~0").replace("/", "~1")


# Pointers, comparison, names

_BAD_TILDE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _CROCKFORD for low in _CROCKFORD]
_PAIR_SHIFTS = range(120, -1, -10)


def _compare(one: JSON, other: JSON, path: str, found: list[str], limit: int) -> None:
    if len(found) >= limit:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            below = f"{path}/{_token(name)}"
            if name in one and name in other:
                _compare(one[name], other[name], below, found, limit)
            elif len(found) < limit:
                found.append(below)
    elif isinstance(one, list) and isinstance(other, list):
        for index in range(max(len(one), len(other))):
            below = f"{path}/{index}"
            if index < len(one) and index < len(other):
                _compare(one[index], other[index], below, found, limit)
            elif len(found) < limit:
                found.append(below)
    elif canonical(one) != canonical(other):
        found.append(path)

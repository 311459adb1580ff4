"""Reading a recording: one tool call a line, `{"task", "step", "tool", "arguments"}`.

Arguments are kept as the text they were written in: what a model wrote is what the service is asked to accept, so a
number that does not survive a parser must not be repaired on the way.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from json.decoder import scanstring  # type: ignore[attr-defined]  # present since 2.x, missing from the stubs
from pathlib import Path
from typing import Any

# Names must fit `[A-Za-z0-9._~:@+=-]{1,200}`; room is left for the step, an ordinal and the run's tag.
LONGEST_PART = 120
# A list of a hundred broken lines helps nobody.
COMPLAINTS_SHOWN = 10

_PLAIN = re.compile(r"[A-Za-z0-9._~-]")
_SPACE = re.compile(r"[ \t\n\r]*")


class Contract(StrEnum):
    """What the sandbox receiver promises about a call."""

    REPLAYS = "replays"  # deduplicates on Idempotency-Key with the original answer, and can be read
    READABLE = "readable"  # does not deduplicate; can be read by client reference and operation ID
    OPAQUE = "opaque"  # neither


class RecordingError(ValueError):
    """The recording cannot be read; the message names the file's lines and what is wrong with each."""


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded tool call. ``name`` is its identity: task, step and, where a step has several, which of them."""

    line: int
    task: str
    step: str
    tool: str
    arguments: str  # JSON text, as written
    name: str

    @property
    def task_name(self) -> str:
        """The task in the characters that an ID may have."""
        return spelled(self.task)

    @property
    def tool_name(self) -> str:
        """The tool in the characters that a capability's name may have."""
        return spelled(self.tool)

    def parsed_arguments(self) -> Any:
        """The arguments as Python reads them, for mappings only; None where Python cannot."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None


def spelled(text: str) -> str:
    """``text`` in the characters of an ID, one-to-one: others become ``=`` and hex, long ones end in a digest."""
    written = "".join(
        c if _PLAIN.match(c) else "".join(f"={byte:02X}" for byte in c.encode("utf-8", "surrogatepass"))
        for c in text
    )
    if len(written) <= LONGEST_PART:
        return written
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{written[: LONGEST_PART - 17]}~{digest}"


def read(path: Path, *, limit: int | None = None) -> list[Call]:
    """The calls of a recording, in order; at most ``limit`` of them. Blank lines are skipped.

    Two lines with the same task and step are two calls (a model may ask for several tools in one step), and so are two
    lines with the same arguments: nothing in them says that they are one.

    Raises RecordingError naming up to ten bad lines, or that there is no call at all; OSError when unreadable.
    """
    complaints: list[str] = []
    calls: list[Call] = []
    ordinals: Counter[tuple[str, str]] = Counter()
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not raw.strip():
            continue
        if limit is not None and len(calls) + len(complaints) >= limit:
            break
        try:
            task, step, tool, arguments = _fields(raw)
        except ValueError as error:
            complaints.append(f"line {number}: {error}")
            continue
        ordinals[task, step] += 1
        ordinal = ordinals[task, step]
        name = f"{spelled(task)}:{spelled(step)}" + (f"+{ordinal}" if ordinal > 1 else "")
        calls.append(Call(line=number, task=task, step=step, tool=tool, arguments=arguments, name=name))
    if complaints:
        more = len(complaints) - COMPLAINTS_SHOWN
        shown = complaints[:COMPLAINTS_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        raise RecordingError(f"{path}: " + "; ".join(shown))
    if not calls:
        raise RecordingError(f"{path}: no call in it")
    return calls


def _fields(raw: bytes) -> tuple[str, str, str, str]:
    """Task, step, tool and the arguments' text of one line. Raises ValueError with a sentence."""
    try:
        text = raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from error
    try:
        members = dict(_members(text))
    except RecursionError as error:
        raise ValueError("nested too deeply to be read") from error
    missing = [name for name in ("task", "step", "tool", "arguments") if name not in members]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    task, step, tool = (_identifier(name, members[name]) for name in ("task", "step", "tool"))
    return task, step, tool, _arguments(members["arguments"])


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Each member of a JSON object with its value's text as written. Raises ValueError."""
    decoder = json.JSONDecoder()

    def skip(index: int) -> int:
        match = _SPACE.match(text, index)
        return match.end() if match else index

    def expect(characters: str, index: int) -> str:
        if index >= len(text) or text[index] not in characters:
            raise ValueError(f"not a JSON object (column {index + 1})")
        return text[index]

    expect("{", 0)
    index = skip(1)
    if text[index : index + 1] == "}":
        return
    while True:
        expect('"', index)
        name, index = scanstring(text, index + 1)
        index = skip(index)
        expect(":", index)
        start = skip(index + 1)
        try:
            _, index = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a JSON object (column {error.pos + 1})") from error
        yield name, text[start:index]
        index = skip(index)
        if expect(",}", index) == "}":
            break
        index = skip(index + 1)
    if text[index + 1 :].strip():
        raise ValueError(f"something follows the JSON object (column {index + 2})")


def _identifier(name: str, text: str) -> str:
    value = json.loads(text)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError(f"{name} must be a string or a whole number, not {text[:40]}")
    return str(value)


def _arguments(text: str) -> str:
    """The arguments' own text: an object as it stands, or the JSON inside a string. Raises ValueError."""
    if text.startswith('"'):
        text = str(json.loads(text)).strip()
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"arguments are a string that is not JSON (column {error.pos + 1} of it)"
            ) from error
        except RecursionError as error:
            raise ValueError("arguments are nested too deeply to be read") from error
    if not text.startswith("{"):
        raise ValueError(f"arguments must be an object, not {text[:40]}")
    return text


@dataclass(frozen=True, slots=True)
class Mix:
    """Which share of the calls meets which contract."""

    shares: tuple[tuple[Contract, float], ...]

    @classmethod
    def parse(cls, text: str) -> Mix:
        """Read one contract's name, or ``replays=0.4,readable=0.4,opaque=0.2``: weights, of which one is positive.

        Raises ValueError saying which part cannot be read.
        """
        shares: dict[Contract, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, number = part.partition("=")
            try:
                contract, weight = Contract(name.strip()), float(number) if equals else 1.0
            except ValueError as error:
                known = ", ".join(Contract)
                raise ValueError(
                    f"{part!r} is not of the form contract=weight; contracts: {known}"
                ) from error
            if not 0 <= weight < float("inf") or contract in shares:
                raise ValueError(f"{part!r}: a contract is named once, with a weight of 0 or more")
            shares[contract] = weight
        if not any(shares.values()):
            raise ValueError("no contract has a positive weight")
        return cls(tuple((contract, weight) for contract, weight in shares.items() if weight))

    def contract_of(self, call: Call, *, seed: int) -> Contract:
        """The contract that a call meets. Calls of one tool with equal arguments meet the same receiver."""
        parsed = call.parsed_arguments()
        same = call.arguments if parsed is None else json.dumps(parsed, sort_keys=True)
        content = f"{seed}\0{call.tool}\0{same}".encode("utf-8", "surrogatepass")
        point = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64
        point *= sum(weight for _, weight in self.shares)
        for contract, weight in self.shares:
            if point < weight:
                return contract
            point -= weight
        return self.shares[-1][0]

    def __str__(self) -> str:
        return ",".join(f"{contract}={weight:g}" for contract, weight in self.shares)

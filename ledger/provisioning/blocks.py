"""One mapping of a provision file, read key by key, so that its author sees every fault at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ledger.provisioning.plan import Problem
from ledger.provisioning.values import Unusable

_Value = TypeVar("_Value")


class Report:
    """Everything found so far."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def wrong(self, path: str, why: str) -> None:
        self.problems.append(Problem(path, why))

    def missing(self, path: str, why: str) -> None:
        """Something that is needed and not there, unless it was there and has been reported as unusable."""
        if path not in (problem.path for problem in self.problems):
            self.wrong(path, why)

    def warn(self, path: str, why: str) -> None:
        self.warnings.append(Problem(path, why))


class Block:
    """One mapping of the document. Unknown keys are reported at once; ``take`` reads the known ones."""

    def __init__(self, value: Any, path: str, known: Sequence[str], report: Report) -> None:
        self.path = path
        self.report = report
        self.values: Mapping[str, Any] = value if isinstance(value, dict) else {}
        self.usable = isinstance(value, dict)
        if not self.usable:
            report.wrong(path, "must be a mapping")
        for key in self.values:
            if key not in known:
                report.wrong(self.at(key), f"unknown key; known are {', '.join(known)}")

    def at(self, key: object) -> str:
        return f"{self.path}.{key}" if self.path else str(key)

    def given(self, key: str) -> bool:
        """Whether the key holds something: a null is a key left out."""
        return self.values.get(key) is not None

    def take(self, key: str, reader: Callable[[Any], _Value], default: _Value) -> _Value:
        """The value of an optional key; its default where it is not given, or unusable (then that is reported)."""
        if not self.given(key):
            return default
        try:
            return reader(self.values[key])
        except Unusable as error:
            self.report.wrong(self.at(key) + error.below, error.why)
            return default

    def require(self, key: str, reader: Callable[[Any], _Value], stand_in: _Value) -> _Value:
        """The value of a required key; ``stand_in`` lets the reading of the rest go on without it."""
        if self.usable and not self.given(key):
            self.report.wrong(self.at(key), "is required")
        return self.take(key, reader, stand_in)

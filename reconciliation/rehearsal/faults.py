"""Which fault meets which request: a plan computed from a seed, held by the receiver and seen by nobody else.

Standard library only, no clock. The same seed, specification, call and arrival number always give the same fault, so
that four players who meet four receivers meet one plan.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Fault(StrEnum):
    """What the receiver does to a request instead of answering it at once and truthfully."""

    CUT = "cut"  # takes effect, then the connection is reset: the reply is lost
    LOST = "lost"  # the connection is reset before anything took effect
    SLOW = "slow"  # takes effect at once, answers ``slow_s`` later: longer than the runtime waits
    LATE = "late"  # the connection is reset, and the effect lands ``late_s`` later
    HIDDEN = "hidden"  # as ``cut``, and look-ups do not show the effect for ``hidden_s``
    SERVER_ERROR_AFTER = "5xx_after"  # takes effect, answers 500
    SERVER_ERROR_BEFORE = "5xx_before"  # answers 503, nothing took effect


DECLINE = "decline"  # the call is declined for good: 402, on every arrival that is answered
BLIND = "blind"  # a look-up is answered 503
SERVER_ERROR = "5xx"  # shorthand: half of it after, half of it before

RATES = (*(fault.value for fault in Fault), DECLINE, BLIND)
DURATIONS: Mapping[str, float] = MappingProxyType({"slow_s": 1.5, "late_s": 1.2, "hidden_s": 0.8})
# A minute is longer than anybody waits for a rehearsal, and the contract's bounds are derived from these.
LONGEST_S = 60.0

STANDARD = "cut=0.08,lost=0.06,slow=0.02,late=0.05,hidden=0.03,5xx_after=0.03,5xx_before=0.03,decline=0.05,blind=0.05"
NAMED: Mapping[str, str] = MappingProxyType({"standard": STANDARD, "none": ""})


class FaultSpecError(ValueError):
    """The fault specification cannot be read; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """How often each fault happens (0 to 1, per arrival; ``decline`` per call; ``blind`` per look-up), and how long."""

    rates: Mapping[str, float] = field(default_factory=dict)
    slow_s: float = DURATIONS["slow_s"]
    late_s: float = DURATIONS["late_s"]
    hidden_s: float = DURATIONS["hidden_s"]

    @classmethod
    def parse(cls, text: str) -> FaultSpec:
        """Read ``standard``, ``none``, or ``name=rate,…`` with optional ``slow_s=…,late_s=…,hidden_s=…``.

        Raises FaultSpecError when a part is not ``name=number``, a name is unknown or given twice, a rate is outside
        0 to 1, a duration outside 0 to 60 seconds, or the rates of the transport faults exceed 1 together.
        """
        rates: dict[str, float] = {}
        durations: dict[str, float] = {}
        seen: set[str] = set()
        for part in filter(None, (piece.strip() for piece in NAMED.get(text.strip(), text).split(","))):
            name, value = _named_number(part)
            if name in seen:
                raise FaultSpecError(f"{name!r} is given twice")
            seen.add(name)
            if name in DURATIONS:
                if not 0 <= value <= LONGEST_S:
                    raise FaultSpecError(
                        f"{name!r} must be between 0 and {LONGEST_S:g} seconds, not {value:g}"
                    )
                durations[name] = value
                continue
            if not 0 <= value <= 1:
                raise FaultSpecError(f"{name!r} must be a rate between 0 and 1, not {value:g}")
            if name == SERVER_ERROR:
                for half in (Fault.SERVER_ERROR_AFTER, Fault.SERVER_ERROR_BEFORE):
                    rates[half] = rates.get(half, 0.0) + value / 2
            elif name in RATES:
                rates[name] = rates.get(name, 0.0) + value
            else:
                known = ", ".join((*RATES, SERVER_ERROR, *DURATIONS))
                raise FaultSpecError(
                    f"no fault is called {name!r}; known: {known}, or one of {', '.join(NAMED)}"
                )
        together = sum(rates.get(fault, 0.0) for fault in Fault)
        if together > 1 + 1e-9:
            raise FaultSpecError(f"the faults of one request add up to {together:g}; they cannot exceed 1")
        return cls(rates=MappingProxyType(rates), **durations)

    def __str__(self) -> str:
        """The specification in the form that ``parse`` reads."""
        parts = [f"{name}={self.rates[name]:g}" for name in RATES if self.rates.get(name)]
        parts += [
            f"{name}={getattr(self, name):g}" for name in DURATIONS if getattr(self, name) != DURATIONS[name]
        ]
        return ",".join(parts) or "none"


def _named_number(part: str) -> tuple[str, float]:
    name, equals, number = part.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or math.isnan(value):
        raise FaultSpecError(f"{part!r} is not of the form name=number")
    return name.strip(), value


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of one run. Draws are independent: a declined call may lose its reply as well."""

    spec: FaultSpec
    seed: int = 0

    def fault_of(self, call: str, arrival: int) -> Fault | None:
        """The fault that meets the ``arrival``-th request (from 1) for one call; None: answered properly."""
        draw = self._draw("request", call, arrival)
        for fault in Fault:
            rate = self.spec.rates.get(fault, 0.0)
            if draw < rate:
                return fault
            draw -= rate
        return None

    def declines(self, call: str) -> bool:
        """Whether the receiver declines this call: a property of the call, so every arrival meets the same."""
        return self._draw("decline", call, 0) < self.spec.rates.get(DECLINE, 0.0)

    def blinds(self, question: str, asked: int) -> bool:
        """Whether the ``asked``-th look-up (from 1) of one question is answered 503."""
        return self._draw("lookup", question, asked) < self.spec.rates.get(BLIND, 0.0)

    def _draw(self, purpose: str, name: str, number: int) -> float:
        content = f"{self.seed}\0{purpose}\0{name}\0{number}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64

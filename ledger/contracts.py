"""What the receiver of a capability promises, read from a provision file or from the stored JSON.

Pure: standard library only, no clock, no database. A promise that is not made is not assumed: every default is the
careful one, and a claim becomes ``verified`` by two people, never by a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from ledger.decisions import MAX_ATTEMPTS, DenialClass


class Deduplicates(StrEnum):
    """By what the receiver recognises a repeat."""

    KEY = "key"
    REFERENCE = "reference"
    NONE = "none"


class KeyClaimed(StrEnum):
    """Whether the receiver takes the key before it makes the effect (a repeat in flight is refused) or after."""

    BEFORE_EFFECT = "before_effect"
    AFTER_EFFECT = "after_effect"
    UNKNOWN = "unknown"


class Replays(StrEnum):
    """What a repeat under the same key is answered with."""

    ORIGINAL = "original"  # the first answer, byte for byte
    CURRENT = "current"  # the effect as it is now
    SUCCESS_ONLY = "success_only"  # successes are kept; an error is tried again
    ERRORS_TOO = "errors_too"  # a stored error is answered for as long as the key lives
    NONE = "none"


class Lookup(StrEnum):
    """How the receiver can be asked what happened."""

    BY_REFERENCE = "by_reference"
    BY_KEY = "by_key"
    BY_LIST = "by_list"
    CALLBACK = "callback"
    NONE = "none"


class ContractError(ValueError):
    """One value of a contract that cannot work. ``path`` says where it stands, ``why`` what is wrong with it."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path}: {why}")


class ContractErrors(ContractError):
    """Every fault of one contract, in the order of the keys; reads as the first of them where one is expected."""

    def __init__(self, errors: tuple[ContractError, ...]) -> None:
        super().__init__(errors[0].path, errors[0].why)
        self.errors = errors
        self.args = ("; ".join(str(error) for error in errors),)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One answer that proves that the effect does not exist, and whether its reason stands.

    ``clears_after_s``: seconds from the answer until the reason is gone, for ``clears_at`` only.
    """

    status: int
    denial_class: DenialClass
    clears_after_s: float | None = None

    def as_json(self) -> str | dict[str, float]:
        """``"standing"``, ``"cleared"`` or ``{"clears_after_s": n}``."""
        if self.clears_after_s is not None:
            return {"clears_after_s": self.clears_after_s}
        return self.denial_class.value


NEVER_REFUSALS = frozenset({408, 409, 425})
"""Client errors after which the effect may exist all the same: timed out, in conflict with itself, too early."""

RATE_LIMIT_CLEARS_AFTER_S = 60
"""A rate limit passes by itself: one minute is the window most receivers count in."""

DEFAULT_REFUSALS: tuple[Refusal, ...] = (
    *(Refusal(status, DenialClass.STANDING) for status in (400, 401, 402, 403, 404, 405, 410, 413, 415, 422)),
    Refusal(429, DenialClass.CLEARS_AT, RATE_LIMIT_CLEARS_AFTER_S),
)

LONGEST_S = 10 * 366 * 86_400
"""Ten years: a longer span of seconds is a mistake, and sums of it must stay within what a calendar can hold."""

DEFAULT_VISIBILITY_LAG_S: float = 5
"""Long enough for a read replica that follows its primary; an index needs a larger number said out loud."""

DEFAULT_IN_FLIGHT_S: float = 60
"""The time-out most proxies and gateways have: what was sent has been answered or dropped by then."""

MOST_ATTEMPTS = 9_999
"""Attempt numbers have at most four digits."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The promises of one capability version's receiver.

    deduplicates            required. By what the receiver recognises a repeat.
    lookup                  required. How it can be asked.
    key_carrier             default none stated. Where the key travels, in words: ``"header Idempotency-Key"``.
    key_retained_s          default none stated: then no repeat is guaranteed to be recognised, at any time.
    key_claimed             default ``unknown``, treated like ``after_effect``.
    replays                 default ``none``.
    verified                default false. Two people verified the claims for this version.
    lookup_reaches_back_s   default none stated: by reference or list it forgets nothing; by key it remembers for
                            ``key_retained_s``, and where that is not stated either it can never prove absence.
    visibility_lag_s        default 5. How long an effect may exist before a look-up shows it.
    in_flight_s             default 60. From the last moment of sending to the last at which the effect can land.
    refusals                default ``DEFAULT_REFUSALS``; a given list replaces it.
    max_attempts            default 5. Permits of one operation while its outcome is unknown.
    """

    deduplicates: Deduplicates
    lookup: Lookup
    key_carrier: str | None = None
    key_retained_s: float | None = None
    key_claimed: KeyClaimed = KeyClaimed.UNKNOWN
    replays: Replays = Replays.NONE
    verified: bool = False
    lookup_reaches_back_s: float | None = None
    visibility_lag_s: float = DEFAULT_VISIBILITY_LAG_S
    in_flight_s: float = DEFAULT_IN_FLIGHT_S
    refusals: tuple[Refusal, ...] = DEFAULT_REFUSALS
    max_attempts: int = MAX_ATTEMPTS

    @classmethod
    def parse(
        cls, mapping: Mapping[str, Any], path: str = "contract", *, refuse_verified: bool = False
    ) -> Contract:
        """The contract that the mapping describes. Raises ContractErrors with every fault found, each with its path.

        ``refuse_verified``: for files, in which nobody may verify a claim; the stored contract carries the flag.
        """
        return _Reader(mapping, path).contract(refuse_verified=refuse_verified)

    def as_json(self) -> dict[str, Any]:
        """Every key, JSON-safe; ``parse`` makes the same contract of it again."""
        return {
            "deduplicates": self.deduplicates.value,
            "key_carrier": self.key_carrier,
            "key_retained_s": self.key_retained_s,
            "key_claimed": self.key_claimed.value,
            "replays": self.replays.value,
            "verified": self.verified,
            "lookup": self.lookup.value,
            "lookup_reaches_back_s": self.lookup_reaches_back_s,
            "visibility_lag_s": self.visibility_lag_s,
            "in_flight_s": self.in_flight_s,
            "refusals": {str(refusal.status): refusal.as_json() for refusal in self.refusals},
            "max_attempts": self.max_attempts,
        }

    def denial_class(self, refusal: int | str | None) -> tuple[DenialClass, float | None] | None:
        """The class of a refusal by HTTP status (a number or its digits), with ``clears_after_s`` for ``clears_at``.

        None: the contract does not list it, so it is no refusal at all when it is a status.
        """
        status = _status(refusal)
        for listed in self.refusals:
            if listed.status == status:
                return listed.denial_class, listed.clears_after_s
        return None

    @property
    def needs_reference(self) -> bool:
        """Whether an intent without a business reference could never be looked up or deduplicated."""
        return self.lookup is Lookup.BY_REFERENCE or self.deduplicates is Deduplicates.REFERENCE

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a look-up that we can make; a callback only comes by itself."""
        return self.lookup in (Lookup.BY_REFERENCE, Lookup.BY_KEY, Lookup.BY_LIST)

    @property
    def operator_only(self) -> bool:
        """Whether an unknown outcome can be settled by a person only, from the start."""
        return self.lookup is Lookup.NONE

    @property
    def replays_same_key(self) -> bool:
        """Whether the receiver claims to answer a repeat under the same key from its record."""
        return self.deduplicates is Deduplicates.KEY and self.replays is not Replays.NONE

    @property
    def key_claimed_before_effect(self) -> bool:
        """Whether a repeat is safe even while the first sending may still land."""
        return self.key_claimed is KeyClaimed.BEFORE_EFFECT

    @property
    def memory_s(self) -> float | None:
        """For how many seconds after the first permit a look-up's silence means anything; None: for ever."""
        if self.lookup is not Lookup.BY_KEY:
            return self.lookup_reaches_back_s
        stated = [span for span in (self.key_retained_s, self.lookup_reaches_back_s) if span is not None]
        return min(stated, default=0)

    def warnings(self, path: str = "contract") -> tuple[ContractError, ...]:
        """Values that nothing uses, and silences that cost something. None of them is an error."""
        warnings: list[ContractError] = []

        def warn(key: str, why: str) -> None:
            warnings.append(ContractError(f"{path}.{key}", why))

        by_key = self.deduplicates is Deduplicates.KEY
        if not by_key and self.lookup is not Lookup.BY_KEY and self.key_retained_s is not None:
            warn("key_retained_s", "nothing uses it: the receiver does not deduplicate by key")
        if not by_key and self.key_claimed is not KeyClaimed.UNKNOWN:
            warn("key_claimed", "nothing uses it: the receiver does not deduplicate by key")
        if not by_key and self.replays is not Replays.NONE:
            warn("replays", "nothing uses it: the receiver does not deduplicate by key")
        if self.replays_same_key and self.key_retained_s is None:
            warn("key_retained_s", "not stated: no repeat is ever guaranteed to be recognised")
        if not self.can_be_asked and self.lookup_reaches_back_s is not None:
            warn("lookup_reaches_back_s", "nothing uses it: there is no look-up")
        if self.lookup is Lookup.BY_KEY and self.memory_s == 0:
            warn(
                "lookup_reaches_back_s", "not stated, nor key_retained_s: absence can never be proved by key"
            )
        if self.lookup is Lookup.BY_LIST and self.lookup_reaches_back_s is None:
            warn("lookup_reaches_back_s", "not stated: the list is taken to forget nothing")
        return tuple(warnings)


REQUIRED = ("deduplicates", "lookup")

KEYS = (
    "deduplicates",
    "key_carrier",
    "key_retained_s",
    "key_claimed",
    "replays",
    "verified",
    "lookup",
    "lookup_reaches_back_s",
    "visibility_lag_s",
    "in_flight_s",
    "refusals",
    "max_attempts",
)

_Choice = TypeVar("_Choice", bound=StrEnum)
_Value = TypeVar("_Value")


class _Unusable(Exception):
    """Why one value cannot be used; the reader adds the path."""


class _Reader:
    """Reads one mapping, keeps every fault, and raises them together."""

    def __init__(self, mapping: Mapping[str, Any], path: str) -> None:
        if not isinstance(mapping, Mapping):
            raise ContractErrors((ContractError(path, "must be a mapping"),))
        self.mapping = mapping
        self.path = path
        self.errors: list[ContractError] = []

    def contract(self, *, refuse_verified: bool) -> Contract:
        for key in self.mapping:
            if key not in KEYS:
                self.fault(key, f"unknown key; known are {', '.join(KEYS)}")
        for key in REQUIRED:
            if key not in self.mapping:
                self.fault(key, "is required")
        contract = Contract(
            deduplicates=self.read("deduplicates", Deduplicates.NONE, self.choice(Deduplicates)),
            lookup=self.read("lookup", Lookup.NONE, self.choice(Lookup)),
            key_carrier=self.read("key_carrier", None, _optional(_text)),
            key_retained_s=self.read("key_retained_s", None, _optional(_positive)),
            key_claimed=self.read("key_claimed", KeyClaimed.UNKNOWN, self.choice(KeyClaimed)),
            replays=self.read("replays", Replays.NONE, self.choice(Replays)),
            verified=self.read("verified", False, _truth),
            lookup_reaches_back_s=self.read("lookup_reaches_back_s", None, _optional(_positive)),
            visibility_lag_s=self.read("visibility_lag_s", DEFAULT_VISIBILITY_LAG_S, _seconds),
            in_flight_s=self.read("in_flight_s", DEFAULT_IN_FLIGHT_S, _seconds),
            refusals=self.refusals(),
            max_attempts=self.read("max_attempts", MAX_ATTEMPTS, _attempts),
        )
        if refuse_verified and contract.verified:
            self.fault(
                "verified", "a file cannot verify a claim: two people do, for each version, in the console"
            )
        if self.errors:
            raise ContractErrors(tuple(self.errors))
        return contract

    def fault(self, key: object, why: str) -> None:
        self.errors.append(ContractError(f"{self.path}.{key}", why))

    def read(self, key: str, default: _Value, reader: Callable[[Any], _Value]) -> _Value:
        """The value at ``key``, or its default where it is not given or not usable (then a fault is kept)."""
        if key not in self.mapping:
            return default
        try:
            return reader(self.mapping[key])
        except _Unusable as error:
            self.fault(key, str(error))
            return default

    @staticmethod
    def choice(enum: type[_Choice]) -> Callable[[Any], _Choice]:
        def reader(value: Any) -> _Choice:
            # YAML 1.1 readers and careless hands turn the word "none" into null: it is not guessed at.
            if not isinstance(value, str) or value not in {member.value for member in enum}:
                raise _Unusable(f"must be one of {', '.join(member.value for member in enum)}")
            return enum(value)

        return reader

    def refusals(self) -> tuple[Refusal, ...]:
        if "refusals" not in self.mapping:
            return DEFAULT_REFUSALS
        listed = self.mapping["refusals"]
        if not isinstance(listed, Mapping):
            self.fault("refusals", "must map HTTP statuses to standing, cleared or {clears_after_s: n}")
            return DEFAULT_REFUSALS
        refusals: dict[int, Refusal] = {}
        for key, value in listed.items():
            try:
                refusal = _refusal(key, value)
                if refusal.status in refusals:
                    raise _Unusable("the status is listed twice")
                refusals[refusal.status] = refusal
            except _Unusable as error:
                self.fault(f"refusals.{key}", str(error))
        return tuple(refusals[status] for status in sorted(refusals))


def _refusal(key: Any, value: Any) -> Refusal:
    status = _status(key)
    if status is None:
        raise _Unusable("must be an HTTP status")
    if not 400 <= status <= 499 or status in NEVER_REFUSALS:
        raise _Unusable(f"{status} never proves that the effect does not exist")
    if isinstance(value, Mapping):
        if set(value) != {"clears_after_s"}:
            raise _Unusable("must hold clears_after_s and nothing else")
        return Refusal(status, DenialClass.CLEARS_AT, _positive(value["clears_after_s"]))
    if value not in (DenialClass.STANDING.value, DenialClass.CLEARED.value):
        raise _Unusable("must be standing, cleared or {clears_after_s: n}")
    return Refusal(status, DenialClass(value))


def _status(value: Any) -> int | None:
    """An HTTP status out of 402 or "402"; None for anything else, also for true."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        return int(value)
    return None


def _optional(reader: Callable[[Any], _Value]) -> Callable[[Any], _Value | None]:
    def read(value: Any) -> _Value | None:
        return None if value is None else reader(value)

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise _Unusable("must be a text of 1 to 200 characters")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unusable("must be true or false")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Unusable("must be a number of seconds")
    if not 0 <= value <= LONGEST_S:  # also refuses what is not a number, for which no comparison holds
        raise _Unusable(f"must be between 0 and {LONGEST_S} seconds")
    return value


def _positive(value: Any) -> float:
    seconds = _seconds(value)
    if seconds == 0:
        raise _Unusable("must be more than 0 seconds")
    return seconds


def _attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise _Unusable(f"must be a whole number from 1 to {MOST_ATTEMPTS}")
    return value

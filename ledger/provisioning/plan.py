"""What a provision file asks for, once every value of it has been read: frozen, and free of the database.

A section that the file leaves out (``members``, ``runtimes``, ``receivers``, ``capabilities``, ``mandates``) is None:
what the workspace has of it stays as it is. An empty list empties it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from ledger.contracts import Contract
from ledger.tokens import Presented

NO_END = datetime(9999, 12, 31, tzinfo=UTC)
"""The ``valid_until`` of a mandate that names none: the last day that a calendar can hold."""


class Problem(NamedTuple):
    """One thing that is wrong with a file: where it stands (``capabilities[0].contract.lookup``), and why."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class Refused(Exception):
    """The file cannot be used, and nothing of it was written. ``problems`` holds everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class ReceiverCheck(Protocol):
    """What keeps a receiver from being asked: (``base_url`` or ``headers.<name>``, why) for every fault."""

    def __call__(
        self, base_url: str, headers: Mapping[str, str], *, allow_private: bool
    ) -> list[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class Checks:
    """What only those who ask receivers can judge. The ledger does not know them: whoever starts it hands them in.

    ``reconciler`` gets a capability's ``reconciler`` block and its contract, and returns (path that begins with
    ``reconciler``, why) for every fault.
    """

    receiver: ReceiverCheck
    reconciler: Callable[[Mapping[str, Any], Contract], list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A person and their roles. ``password`` None: the file leaves it to the person."""

    path: str
    email: str
    roles: tuple[str, ...]
    password: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class RuntimePlan:
    """An agent runtime. ``token`` None: the file supplies none, one is minted where the runtime has none."""

    path: str
    name: str
    scopes: tuple[str, ...]
    capabilities: tuple[str, ...]
    subjects: tuple[str, ...]
    owner: str | None
    token: Presented | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReceiverPlan:
    """A system in which effects happen. Header values may hold ``${NAME}``."""

    path: str
    name: str
    base_url: str
    headers: Mapping[str, str]
    allow_private_addresses: bool
    callback_secret_env: str | None


@dataclass(frozen=True, slots=True)
class CapabilityPlan:
    """A capability as it shall be. ``approval`` is whole: every key of it, defaults written out."""

    path: str
    name: str
    receiver: str
    risk: str
    lease_s: int
    intent_valid_s: int
    duplicates: str
    amount: Mapping[str, str] | None
    summary: str
    arguments_schema: Mapping[str, Any] | None
    sensitive: tuple[str, ...]
    audit_sensitive: bool
    contract: Contract
    approval: Mapping[str, Any]
    reconciler: Mapping[str, Any] | None

    @property
    def matches_evidence(self) -> bool:
        """Whether what a runtime shows as evidence is compared with the arguments, as a look-up's items are."""
        block = self.reconciler or {}
        return block.get("kind") == "http_lookup" and bool(block.get("match"))


@dataclass(frozen=True, slots=True)
class MandatePlan:
    """Standing authority; subject and capability are patterns, and name the mandate."""

    path: str
    subject: str
    capability: str
    valid_until: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole file. ``mandates_open`` None: the file says nothing of mandates."""

    workspace: str
    members: tuple[MemberPlan, ...] | None
    runtimes: tuple[RuntimePlan, ...] | None
    receivers: tuple[ReceiverPlan, ...] | None
    capabilities: tuple[CapabilityPlan, ...] | None
    mandates: tuple[MandatePlan, ...] | None
    mandates_open: bool | None
    warnings: tuple[Problem, ...]

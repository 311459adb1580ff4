"""What a reconciler is asked and what it answers: plain frozen values, no clock, no network, no database.

A *question* names one operation and everything a receiver may be asked by. A *finding* is the receiver's raw answer
put into order; it proves nothing by itself (see ``verdicts.judge``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """What sort of answer came back."""

    ITEMS = "items"  # the answer was understood; ``items`` holds every candidate effect, perhaps none
    UNCLEAR = "unclear"  # time-out, unexpected status, unreadable body, cap hit, wrong namespace
    NO_LOOKUP = "no_lookup"  # the contract offers no way to ask


class ItemStatus(StrEnum):
    """What the contract's status mapping says of one candidate effect."""

    COMPLETED = "completed"
    IN_PROGRESS = "in_progress"
    DENIED = "denied"
    UNLISTED = "unlisted"  # a status the contract does not list: never final


@dataclass(frozen=True, slots=True)
class ReceiverFacts:
    """Where the receiver is. ``headers`` values may hold ``${NAME}``: resolved from the environment at the call."""

    name: str
    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    allow_private_addresses: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """Everything a reconciler may use to ask about one operation. It must never change anything at the receiver."""

    operation_id: str
    idempotency_key: str
    business_reference: str | None
    arguments: Any  # parsed JSON; None once aged out
    amount: Mapping[str, str] | None  # {"value": "120.00", "currency": "EUR"}
    receiver: ReceiverFacts
    lookup: str  # the contract's: by_reference | by_key | by_list | callback | none
    configuration: Mapping[str, Any]  # the capability's ``reconciler`` block
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which the receiver's record is not what was intended. Values are printable text."""

    field: str
    intended: str
    found: str


@dataclass(frozen=True, slots=True)
class Item:
    """One candidate effect in the receiver's answer."""

    status: ItemStatus
    reference: str | None = None
    raw_status: str | None = None
    attributed_to: str | None = None  # the value at ``attributed.path``; None when the item carries none
    ours: bool | None = None  # True/False by attribution; None where the contract configures no attribution
    differences: tuple[Difference, ...] = ()
    denial_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A look-up's raw answer.

    ``complete``: the answer is known to hold every candidate (paging followed to its end; not configured = False).
    ``authoritative``: the source may prove absence and refusal. ``as_of``: the receiver's own time of the answer,
    where it says one. ``stored_error``: under this key the receiver stored an error and will replay it.
    ``raw`` is what came back, byte for byte (capped), ``scope`` says in words what was asked.
    """

    kind: FindingKind
    items: tuple[Item, ...] = ()
    complete: bool = False
    authoritative: bool = True
    as_of: datetime | None = None
    retry_after_s: float | None = None
    stored_error: bool = False
    why: str | None = None  # for unclear: timeout, http_503, bad_body, truncated, wrong_namespace …
    http_status: int | None = None
    raw: bytes = b""
    raw_truncated: bool = False
    scope: str = ""
    callback: bool = False

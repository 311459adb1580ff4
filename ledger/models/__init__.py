"""The record, split by noun: who (tenancy), what may be called (contracts), what was intended and attempted (record)."""

from ledger.models.contracts import Capability, Receiver
from ledger.models.record import (
    Attempt,
    Entry,
    Evidence,
    EvidenceSource,
    Grant,
    Invocation,
    ParkedEvidence,
    Reservation,
    Task,
)
from ledger.models.tenancy import Mandate, Membership, Pause, Runtime, RuntimeToken, Workspace

__all__ = [
    "Attempt",
    "Capability",
    "Entry",
    "Evidence",
    "EvidenceSource",
    "Grant",
    "Invocation",
    "Mandate",
    "Membership",
    "ParkedEvidence",
    "Pause",
    "Receiver",
    "Reservation",
    "Runtime",
    "RuntimeToken",
    "Task",
    "Workspace",
]

"""Who may dispatch what, at this moment: facts in, one judgement out. Judged again at every permit.

Pure: standard library only, no clock, no database. The facts are plain values that the edge reads in one statement;
the order of reasons is the order of the checks below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ledger.decisions import Permission


class PermissionReason(StrEnum):
    """Why permission is lapsed, paused or pending."""

    REFUSED = "refused"
    REVOKED = "revoked"
    EXPIRED = "expired"
    NO_MANDATE = "no_mandate"
    MANDATE_REVOKED = "mandate_revoked"
    LIMIT_EXCEEDED = "limit_exceeded"
    AMOUNT_UNKNOWN = "amount_unknown"
    CAPABILITY_DISABLED = "capability_disabled"
    APPROVER_LOST_ROLE = "approver_lost_role"
    BINDING_CHANGED = "binding_changed"
    PAUSED = "paused"
    AWAITING_APPROVAL = "awaiting_approval"
    POSSIBLE_DUPLICATE = "possible_duplicate"


@dataclass(frozen=True, slots=True)
class MandateFact:
    """One mandate. ``subject`` and ``capability`` are patterns (see ``matches``). ``valid_until`` None: no end.

    ``limited``: it has limits; whether they leave room is the edge's to find out (``PermissionFacts.limit``).
    """

    subject: str
    capability: str
    valid_until: datetime | None = None
    revoked: bool = False
    limited: bool = False


@dataclass(frozen=True, slots=True)
class GrantFact:
    """What people decided, as approvals wrote it down.

    ``binding`` is the digest they decided on. ``needed`` and ``given`` count approvers. ``until`` None: no end.
    ``approver_lost_role``: without those who are no longer approvers fewer than ``needed`` remain.
    """

    binding: str
    needed: int
    given: int
    until: datetime | None = None
    revoked: bool = False
    refused: bool = False
    approver_lost_role: bool = False


@dataclass(frozen=True, slots=True)
class PermissionFacts:
    """Everything a permission depends on, at one moment of the database's clock.

    ``mandates`` may hold any of the workspace's; those that do not cover are ignored. ``mandates_open``: the workspace
    says that no mandate is needed. ``binding`` is the digest of the operation as it stands now. ``paused`` names what
    is paused. ``twins`` are unsettled operations with the same reference or digest, before the first permit, unless
    the capability does not hold duplicates or a person let them pass. ``limit`` is ``limit_exceeded`` or
    ``amount_unknown`` where the limits of the covering mandates leave no room for a first permit, else None.
    """

    now: datetime
    mandates_open: bool
    mandates: tuple[MandateFact, ...]
    subject: str
    capability: str
    capability_enabled: bool
    approval_required: bool
    binding: str
    grant: GrantFact | None = None
    paused: str | None = None
    twins: tuple[str, ...] = ()
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer. ``until``: when this permission ends by itself, None if it does not; None unless it was given."""

    permission: Permission
    reason: PermissionReason | None = None
    until: datetime | None = None


def matches(pattern: str, text: str) -> bool:
    """Whether the whole of ``text`` fits ``pattern``, in which ``*`` stands for any characters, also none.

    No other character is special and case counts. Linear, so that a pattern full of stars cannot hold a request up.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def covers(mandate: MandateFact, *, subject: str, capability: str) -> bool:
    """Whether the mandate speaks of this subject and capability; in force or not is another question."""
    return matches(mandate.subject, subject) and matches(mandate.capability, capability)


def in_force(
    mandates: Iterable[MandateFact], *, subject: str, capability: str, now: datetime
) -> tuple[MandateFact, ...]:
    """The mandates that cover and are neither revoked nor over: the limits of *all* of them apply."""
    return tuple(
        mandate
        for mandate in mandates
        if covers(mandate, subject=subject, capability=capability)
        and not mandate.revoked
        and not _over(mandate.valid_until, now)
    )


def judge(facts: PermissionFacts) -> Judgement:
    """Whether the operation may be dispatched now: lapsed before paused before pending, then the permission's end."""
    lapsed = _lapsed(facts)
    if lapsed is not None:
        return Judgement(Permission.LAPSED, lapsed)
    if facts.paused is not None:
        return Judgement(Permission.PAUSED, PermissionReason.PAUSED)
    if facts.approval_required and not _enough(facts.grant):
        return Judgement(Permission.PENDING, PermissionReason.AWAITING_APPROVAL)
    if facts.twins:
        return Judgement(Permission.PENDING, PermissionReason.POSSIBLE_DUPLICATE)
    permission = Permission.GRANTED if facts.approval_required else Permission.NOT_REQUIRED
    return Judgement(permission, None, _until(facts))


def _lapsed(facts: PermissionFacts) -> PermissionReason | None:
    if not facts.capability_enabled:
        return PermissionReason.CAPABILITY_DISABLED
    return _grant_lapsed(facts) or _mandate_lapsed(facts) or _limit_reached(facts)


def _grant_lapsed(facts: PermissionFacts) -> PermissionReason | None:
    """A decision on another binding says nothing about this operation: refusals of it included.

    A refusal counts also where no approval was required: a person said no. A grant that is not complete yet can
    neither run out nor lose its approvers: it is still asked for.
    """
    grant = facts.grant
    if grant is None:
        return None
    if grant.binding != facts.binding:
        return PermissionReason.BINDING_CHANGED if facts.approval_required else None
    if grant.refused:
        return PermissionReason.REFUSED
    if not facts.approval_required:
        return None
    if grant.revoked:
        return PermissionReason.REVOKED
    if not _enough(grant):
        return None
    if _over(grant.until, facts.now):
        return PermissionReason.EXPIRED
    if grant.approver_lost_role:
        return PermissionReason.APPROVER_LOST_ROLE
    return None


def _enough(grant: GrantFact | None) -> bool:
    """Whether enough people said yes: at least one, even if a rule says that none is needed."""
    return grant is not None and grant.given >= max(1, grant.needed)


def _mandate_lapsed(facts: PermissionFacts) -> PermissionReason | None:
    """An expired mandate covers nothing; a revoked one is named, because somebody took the authority away."""
    if facts.mandates_open or _in_force(facts):
        return None
    for mandate in facts.mandates:
        if mandate.revoked and covers(mandate, subject=facts.subject, capability=facts.capability):
            return PermissionReason.MANDATE_REVOKED
    return PermissionReason.NO_MANDATE


def _limit_reached(facts: PermissionFacts) -> PermissionReason | None:
    if facts.limit is None:
        return None
    return PermissionReason(facts.limit)


def _in_force(facts: PermissionFacts) -> tuple[MandateFact, ...]:
    return in_force(facts.mandates, subject=facts.subject, capability=facts.capability, now=facts.now)


def _until(facts: PermissionFacts) -> datetime | None:
    """The earlier of the last covering mandate's end and the grant's end."""
    ends: list[datetime] = []
    if not facts.mandates_open:
        mandate_ends = [mandate.valid_until for mandate in _in_force(facts)]
        known_ends = [end for end in mandate_ends if end is not None]
        if len(known_ends) == len(mandate_ends):
            ends.append(max(known_ends))
    if facts.approval_required and facts.grant is not None and facts.grant.until is not None:
        ends.append(facts.grant.until)
    return min(ends, default=None)


def _over(until: datetime | None, now: datetime) -> bool:
    return until is not None and until <= now

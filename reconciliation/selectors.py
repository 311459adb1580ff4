"""What the pages show: the operators' queue, one operation with everything known of it, the last sweep.

Every function opens the workspace's transaction itself and gives frozen values back. What is sensitive does not leave:
``arguments`` hold null where the capability hides a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Count, F, Min, Q, QuerySet

from ledger import selectors as ledger
from ledger import tenancy
from ledger.contracts import Contract
from ledger.facts import Facts, contract_of
from ledger.states import Standing, State
from ledger.wording import sentence
from reconciliation import verdicts
from reconciliation.circumstances import askable, bound_of, situation_of
from reconciliation.models import Case, CaseKind, Lookup, Resolution, SweepRun
from reconciliation.resolutions import Offer, offers

PAGE = 50  # rows that fit two screens; a queue is read from the top
PAGE_MAX = 200
TIMELINE_MAX = 300  # an operation that is asked hourly for a week has fewer
RESOLVED_DAYS = 7


class Tab(StrEnum):
    """The queue's tabs, in the page's order."""

    NEEDS_PERSON = "needs_person"
    RECONCILING = "reconciling"
    CALLBACK = "callback"
    DISCREPANCIES = "discrepancies"
    SNOOZED = "snoozed"
    RESOLVED = "resolved"


_OPEN = Q(closed_at=None)
_AWAKE = _OPEN & Q(waiting_until=None)
_CALLBACK = Q(last_reason=verdicts.VerdictReason.AWAITING_CALLBACK)
_DISPUTED = Q(kind=CaseKind.DISCREPANCY)
_TABS: Mapping[Tab, Q] = {
    Tab.NEEDS_PERSON: _AWAKE & ~_DISPUTED & Q(escalated_at__isnull=False),
    Tab.RECONCILING: _AWAKE & ~_DISPUTED & Q(escalated_at=None) & ~_CALLBACK,
    Tab.CALLBACK: _AWAKE & ~_DISPUTED & Q(escalated_at=None) & _CALLBACK,
    Tab.DISCREPANCIES: _AWAKE & _DISPUTED,
    Tab.SNOOZED: _OPEN & Q(waiting_until__isnull=False),
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One case in the queue. ``state`` None: the name is not on record."""

    case_id: int
    operation_id: str
    kind: str
    why: str
    state: State | None
    standing: Standing
    flags: tuple[str, ...]
    capability: str
    what: str  # the capability's sentence
    amount: Mapping[str, str] | None
    receiver: str
    risk: str
    dispatched_at: datetime | None  # the first permit's
    opened_at: datetime
    attempts: int
    lookups: int
    last_asked_at: datetime | None
    last_answer: str
    next_check_at: datetime | None  # None: nothing asks by itself
    key_expires_at: datetime | None  # when the receiver forgets the key; None: not stated, or no key
    escalated_at: datetime | None
    escalation: str | None
    waiting_until: datetime | None
    awaits_second_person: bool
    owner: str | None
    closed_at: datetime | None
    closed_by: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Queue:
    """One page of a tab. ``counts`` are of the open tabs, by the same conditions; ``next`` names the following page."""

    tab: Tab
    rows: tuple[QueueRow, ...]
    next: str | None
    counts: Mapping[Tab, int]
    oldest_waiting_at: datetime | None  # of those that need a person
    now: datetime
    last_sweep_at: datetime | None


def queue(workspace_id: int, tab: Tab | str, after: str | None = None, limit: int = PAGE) -> Queue:
    """One page of the tab, the longest open first (resolved: the latest first). ``after``: a page's ``next``.

    Raises ValueError for a tab or a place that there is not.
    """
    tab, limit = Tab(tab), max(1, min(limit, PAGE_MAX))
    with tenancy.workspace(workspace_id):
        rows = list(_page(workspace_id, tab, after)[: limit + 1])
        shown = tuple(_queue_row(case) for case in rows[:limit])
        open_cases = Case.objects.filter(_OPEN, workspace_id=workspace_id)
        needs_person = _TABS[Tab.NEEDS_PERSON]
        totals = open_cases.aggregate(
            oldest=Min("escalated_at", filter=needs_person),
            **{each.value: Count("id", filter=condition) for each, condition in _TABS.items()},
        )
        now, swept_at = _clock(), _last_sweep_at()
    return Queue(
        tab=tab,
        rows=shown,
        next=_place(rows[limit - 1], tab) if len(rows) > limit else None,
        counts={each: totals[each.value] for each in _TABS},
        oldest_waiting_at=totals["oldest"],
        now=now,
        last_sweep_at=swept_at,
    )


def _page(workspace_id: int, tab: Tab, after: str | None) -> QuerySet[Case]:
    cases = Case.objects.filter(workspace_id=workspace_id).select_related(
        "invocation__capability", "invocation__receiver", "owner"
    )
    place = None if after is None else after.rpartition("~")
    if place is not None and (not place[0] or not place[2].isdecimal()):
        raise ValueError(f"no place in the queue: {after}")
    at = None if place is None else datetime.fromisoformat(place[0])
    if tab is Tab.RESOLVED:
        cases = cases.filter(closed_at__gt=_clock() - timedelta(days=RESOLVED_DAYS))
        if place is not None:
            cases = cases.filter(Q(closed_at__lt=at) | Q(closed_at=at, id__lt=int(place[2])))
        return cases.order_by("-closed_at", "-id")
    cases = cases.filter(_TABS[tab])
    if place is not None:
        cases = cases.filter(Q(opened_at__gt=at) | Q(opened_at=at, id__gt=int(place[2])))
    return cases.order_by("opened_at", "id")


def _place(case: Case, tab: Tab) -> str:
    at = case.closed_at if tab is Tab.RESOLVED else case.opened_at
    assert at is not None
    return f"{at.isoformat()}~{case.pk}"


def _queue_row(case: Case) -> QueueRow:
    row = case.invocation
    contract = None if row is None else contract_of(row.capability.contract)
    return QueueRow(
        case_id=case.pk,
        operation_id=case.operation_id,
        kind=case.kind,
        why=case.why,
        state=None if row is None else State(row.state),
        standing=Standing.NONE if row is None else Standing(row.standing),
        flags=() if row is None else tuple(row.flags),
        capability="" if row is None else row.capability.name,
        what="" if row is None else _sentence(row),
        amount=None if row is None else _amount(row),
        receiver="" if row is None else row.receiver.name,
        risk="" if row is None else row.capability.risk,
        dispatched_at=None if row is None else row.first_permit_at,
        opened_at=case.opened_at,
        attempts=0 if row is None else row.attempt_count,
        lookups=case.lookups,
        last_asked_at=case.last_asked_at,
        last_answer=case.last_answer,
        next_check_at=case.next_check_at,
        key_expires_at=None
        if row is None or contract is None
        else _key_expires_at(row.first_permit_at, contract),
        escalated_at=case.escalated_at,
        escalation=case.escalation,
        waiting_until=case.waiting_until,
        awaits_second_person=case.proposal_id is not None,
        owner=None if case.owner is None else _person(case.owner),
        closed_at=case.closed_at,
        closed_by=case.closed_by,
        version=case.version,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the timeline. ``who`` is runtime, user, reconciler or system; ``by`` its name.

    ``detail`` is what the entry, look-up or decision holds, for whoever unfolds the line.
    """

    at: datetime
    kind: str  # entry | lookup | resolution | parked
    who: str
    by: str
    what: str  # the event, the finding → verdict, the decision
    sentence: str
    from_state: str | None = None
    to_state: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvidenceShown:
    """One thing that somebody can show. ``authenticated``: the receiver's own word, not somebody's account of it."""

    id: int
    at: datetime
    source: str
    authenticated: bool
    claim: str
    stored_as: str
    reference: str | None
    scope: str
    sha256: str
    size: int
    text: str | None  # what could be read of it; None: nothing, or aged out
    by: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One field in which the receiver's record is not what was intended."""

    field: str
    intended: str
    found: str


@dataclass(frozen=True, slots=True)
class LookupShown:
    """The last look-up: what was asked, what came back, what it proves."""

    asked_at: datetime
    answered_at: datetime
    finding: Mapping[str, Any]
    verdict: Mapping[str, Any]
    sentence: str
    scope: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """One person's decision that waits for a second person."""

    id: int
    kind: str
    remark: str
    evidence: str
    references: tuple[str, ...]
    compensated_by: str | None
    by: str
    by_id: int
    at: datetime


@dataclass(frozen=True, slots=True)
class CaseShown:
    """The case itself. ``version`` goes with every decision."""

    id: int
    kind: str
    why: str
    version: int
    opened_at: datetime
    lookups: int
    next_check_at: datetime | None
    being_asked: bool
    last_asked_at: datetime | None
    last_answer: str
    escalated_at: datetime | None
    escalation: str | None
    waiting_until: datetime | None
    owner: str | None
    owner_id: int | None
    closed_at: datetime | None
    closed_by: str | None
    changed_at: datetime  # when, by whom and how ``version`` last rose
    changed_by: str
    changed_what: str
    proposal: Proposal | None


@dataclass(frozen=True, slots=True)
class CasePage:
    """Everything the page of one operation shows. ``facts`` None: the name is not on record.

    ``offers`` are the decisions that an operator can take now (empty without an open case); ``bound``: after it nothing
    of the effect can still arrive; ``differences``: between what was intended and the last look-up's answer.
    """

    operation_id: str
    now: datetime
    facts: Facts | None
    case: CaseShown | None
    sentence: str
    arguments: Any
    arguments_kept: bool
    sensitive: tuple[str, ...]
    all_sensitive: bool
    purpose: str | None
    checkpoint: str | None
    can_be_asked: bool
    bound: datetime | None
    key_expires_at: datetime | None
    lookup: LookupShown | None
    differences: tuple[Compared, ...]
    offers: tuple[Offer, ...]
    evidence: tuple[EvidenceShown, ...]
    timeline: tuple[Line, ...]
    related: Mapping[str, tuple[str, ...]]  # supersedes, superseded_by, compensates, possible_duplicates
    match: Mapping[str, Any]  # what a look-up compares: the reconciler's ``match``
    waiting: int  # cases of the workspace that wait for a person

    @property
    def mark(self) -> str:
        """Changes with whatever the page shows: compare ``mark_of``."""
        return _mark(
            None if self.facts is None else self.facts.version,
            None if self.case is None else self.case.version,
        )


def mark_of(workspace_id: int, operation_id: str) -> str | None:
    """The page's ``mark`` as it is now, read cheaply; None for a name without record and case. Needs the workspace's
    transaction."""
    version = ledger.version_of(workspace_id, operation_id)
    cases = Case.objects.filter(workspace_id=workspace_id, operation_id=operation_id)
    order = (F("closed_at").desc(nulls_first=True), F("invocation_id").asc(nulls_last=True), "-id")
    case_version = cases.order_by(*order).values_list("version", flat=True).first()
    return None if version is None and case_version is None else _mark(version, case_version)


def _mark(version: int | None, case_version: int | None) -> str:
    return f"{version or 0}.{case_version or 0}"


def waiting(workspace_id: int) -> int:
    """How many cases wait for a person, discrepancies among them. Needs the workspace's transaction."""
    needed = _TABS[Tab.NEEDS_PERSON] | _TABS[Tab.DISCREPANCIES]
    return Case.objects.filter(needed, workspace_id=workspace_id).count()


def case_page(workspace_id: int, operation_id: str) -> CasePage | None:
    """The page of an operation, or of a name that is not on record but was spoken of; None: nobody ever named it."""
    with tenancy.workspace(workspace_id):
        found = ledger.recorded(workspace_id, operation_id)
        cases = list(
            Case.objects.select_related("owner", "proposal__decided_by")
            .filter(workspace_id=workspace_id, operation_id=operation_id)
            .order_by(F("closed_at").desc(nulls_first=True), F("invocation_id").asc(nulls_last=True), "-id")
        )
        case = cases[0] if cases else None
        parked = ledger.parked_of(workspace_id, operation_id)
        if found is None and case is None and not parked:
            return None
        return _build_page(workspace_id, operation_id, found, case, cases, parked)


def _build_page(
    workspace_id: int,
    operation_id: str,
    found: ledger.Recorded | None,
    case: Case | None,
    cases: Sequence[Case],
    parked: Sequence[Any],
) -> CasePage:
    facts, row = (None, None) if found is None else (found.facts, found.row)
    now = facts.now if facts is not None else _clock()
    lookups = list(Lookup.objects.filter(case__in=cases).order_by("-id")[:TIMELINE_MAX])
    shown = _lookup_shown(lookups[0]) if lookups else None
    resolutions = list(Resolution.objects.select_related("decided_by", "seconded_by").filter(case__in=cases))
    entries = [] if facts is None else ledger.entries_of(facts.invocation_id, limit=TIMELINE_MAX)
    lines = [
        *(_parked_line(one) for one in parked),
        *(_entry_line(one) for one in entries),
        *(_lookup_line(one) for one in lookups),
        *(_resolution_line(one) for one in resolutions),
    ]
    open_case = case is not None and case.closed_at is None
    return CasePage(
        operation_id=operation_id,
        now=now,
        facts=facts,
        case=None if case is None else _case_shown(case, now),
        sentence="" if found is None else found.sentence,
        arguments=None if row is None or row.arguments is None else json.loads(row.arguments),
        arguments_kept=row is not None and row.arguments is not None,
        sensitive=() if row is None else tuple(row.capability.sensitive),
        all_sensitive=row is not None and row.capability.audit_sensitive,
        purpose=None if row is None else row.purpose,
        checkpoint=None if row is None else row.checkpoint,
        can_be_asked=row is not None
        and askable(contract_of(row.capability.contract), row.capability.reconciler),
        bound=None if facts is None else bound_of(facts),
        key_expires_at=None
        if row is None or facts is None
        else _key_expires_at(row.first_permit_at, facts.contract),
        lookup=shown,
        differences=() if shown is None else _differences(shown),
        offers=offers(situation_of(facts, now)) if open_case else (),
        evidence=() if row is None else _evidence(row),
        timeline=tuple(sorted(lines, key=lambda line: line.at)),
        related=_related(facts),
        match={} if row is None else dict((row.capability.reconciler or {}).get("match") or {}),
        waiting=waiting(workspace_id),
    )


@dataclass(frozen=True, slots=True)
class LastSweep:
    """When somebody last looked at the rows, and what was done."""

    ended_at: datetime
    took_ms: int
    expired: int
    opened: int
    closed: int
    claimed: int
    age_s: float


def last_sweep() -> LastSweep | None:
    """The last sweep of whichever process; None: there was none yet."""
    run = SweepRun.objects.first()
    if run is None:
        return None
    return LastSweep(
        ended_at=run.ended_at,
        took_ms=run.took_ms,
        expired=run.expired,
        opened=run.opened,
        closed=run.closed,
        claimed=run.claimed,
        age_s=max(0.0, (_clock() - run.ended_at).total_seconds()),
    )


def _last_sweep_at() -> datetime | None:
    return SweepRun.objects.values_list("ended_at", flat=True).first()


def _clock() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def _person(user: Any) -> str:
    return str(user.email or user.get_username())


def _amount(row: Any) -> Mapping[str, str] | None:
    if row.amount_value is None:
        return None
    return {"value": row.amount_value, "currency": row.amount_currency}


def _sentence(row: Any) -> str:
    return sentence(
        row.capability.summary,
        capability=row.capability.name,
        arguments=None if row.arguments is None else json.loads(row.arguments),
        amount=_amount(row),
        sensitive=row.capability.sensitive,
        everything=row.capability.audit_sensitive,
    )


def _key_expires_at(first_permit_at: datetime | None, contract: Contract) -> datetime | None:
    if first_permit_at is None or contract.key_retained_s is None:
        return None
    return first_permit_at + timedelta(seconds=contract.key_retained_s)


def _case_shown(case: Case, now: datetime) -> CaseShown:
    held = case.leased_until is not None and case.leased_until > now
    return CaseShown(
        id=case.pk,
        kind=case.kind,
        why=case.why,
        version=case.version,
        opened_at=case.opened_at,
        lookups=case.lookups,
        next_check_at=case.next_check_at,
        being_asked=held and case.asking_at is not None,
        last_asked_at=case.last_asked_at,
        last_answer=case.last_answer,
        escalated_at=case.escalated_at,
        escalation=case.escalation,
        waiting_until=case.waiting_until,
        owner=None if case.owner is None else _person(case.owner),
        owner_id=case.owner_id,
        closed_at=case.closed_at,
        closed_by=case.closed_by,
        changed_at=case.changed_at,
        changed_by=case.changed_by,
        changed_what=case.changed_what,
        proposal=None if case.proposal is None else _proposal(case.proposal),
    )


def _proposal(proposed: Resolution) -> Proposal:
    return Proposal(
        id=proposed.pk,
        kind=proposed.kind,
        remark=proposed.remark,
        evidence=proposed.evidence,
        references=tuple(proposed.receiver_references),
        compensated_by=proposed.compensated_by,
        by=_person(proposed.decided_by),
        by_id=proposed.decided_by_id,
        at=proposed.decided_at,
    )


def _lookup_shown(lookup: Lookup) -> LookupShown:
    finding = lookup.detail.get("finding", {})
    return LookupShown(
        asked_at=lookup.asked_at,
        answered_at=lookup.answered_at,
        finding=finding,
        verdict=lookup.detail.get("verdict", {}),
        sentence=lookup.summary,
        scope=finding.get("scope", ""),
    )


def _differences(shown: LookupShown) -> tuple[Compared, ...]:
    found = dict.fromkeys(
        (one["field"], one["intended"], one["found"])
        for item in shown.finding.get("items", ())
        for one in item.get("differences", ())
    )
    return tuple(Compared(*one) for one in found)


def _evidence(row: Any) -> tuple[EvidenceShown, ...]:
    return tuple(
        EvidenceShown(
            id=one.pk,
            at=one.recorded_at,
            source=one.source,
            authenticated=one.authenticated,
            claim=one.claim,
            stored_as=one.stored_as,
            reference=one.receiver_reference,
            scope=one.scope,
            sha256=bytes(one.raw_sha256).hex(),
            size=one.raw_size,
            text=one.parsed,
            by=one.recorded_by,
        )
        for one in row.evidence.order_by("id")[:TIMELINE_MAX]
    )


def _entry_line(entry: Any) -> Line:
    detail = {} if entry.detail is None else json.loads(entry.detail)
    return Line(
        at=entry.at,
        kind="entry",
        who=entry.actor_kind,
        by=entry.actor_name,
        what=entry.event,
        sentence=str(detail.get("sentence", "")),
        from_state=entry.from_state,
        to_state=entry.to_state,
        detail=detail,
    )


def _lookup_line(lookup: Lookup) -> Line:
    return Line(
        at=lookup.answered_at,
        kind="lookup",
        who="reconciler",
        by=lookup.asked_by,
        what=f"{lookup.finding} → {lookup.verdict}",
        sentence=lookup.summary,
        detail=lookup.detail,
    )


def _resolution_line(resolution: Resolution) -> Line:
    what = resolution.kind if resolution.takes_effect else f"{resolution.kind}, proposed"
    return Line(
        at=resolution.decided_at,
        kind="resolution",
        who="user",
        by=_person(resolution.seconded_by or resolution.decided_by),
        what=what,
        sentence=resolution.remark,
        detail={
            "evidence": resolution.evidence,
            "references": resolution.receiver_references,
            "wait_until": resolution.wait_until and resolution.wait_until.isoformat(),
            "compensated_by": resolution.compensated_by,
            "decided_by": _person(resolution.decided_by),
            "seconded_by": resolution.seconded_by and _person(resolution.seconded_by),
        },
    )


def _parked_line(parked: Any) -> Line:
    return Line(
        at=parked.recorded_at,
        kind="parked",
        who="runtime",
        by=parked.recorded_by,
        what=f"{parked.kind}, parked",
        sentence="This arrived for a name or an attempt that was not on record.",
        detail={"attempt": parked.attempt_number, "sha256": bytes(parked.raw_sha256).hex()},
    )


def _related(facts: Facts | None) -> Mapping[str, tuple[str, ...]]:
    if facts is None:
        return {}
    row = facts.row
    related = {
        name: (row[name],) for name in ("supersedes", "superseded_by", "compensates") if row[name] is not None
    }
    if row["twins"]:
        related["possible_duplicates"] = tuple(row["twins"])
    return related

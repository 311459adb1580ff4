"""One look-up: claimed, asked without any transaction open, judged and recorded; and the same at once for a runtime."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import BoundedSemaphore
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import F

from ledger import errors, failpoints, tenancy
from ledger import selectors as ledger
from ledger.decisions import DenialClass
from ledger.facts import Facts, contract_of
from ledger.services import conclude, note_asked
from ledger.services.settlement import Conclusion
from ledger.services.writing import Actor, Locked, Shown, locked
from ledger.states import Standing, State
from reconciliation import verdicts
from reconciliation.circumstances import askable, attributed_by, circumstances
from reconciliation.findings import Finding, FindingKind, Item, Question, ReceiverFacts
from reconciliation.models import CLOCK, Case, Lookup, Resolution
from reconciliation.reconcilers.base import look_up as ask_receiver
from reconciliation.services.cases import (
    LOOK_UP_FAILED,
    NO_LEDGER_ENTRY,
    SWEEP,
    changed,
    clock,
    close,
    escalate,
    lock_case,
    make_discrepancy,
    open_locked,
)
from reconciliation.verdicts import Verdict, VerdictKind

UNANSWERED_MAX = 5
"""Look-ups begun in a row whose answer was never recorded: what kills its worker this often is handed to a person."""

AT_ONCE_S = 1.0
"""Look-ups of one case on a runtime's request are at least this far apart; in between the last answer is given."""

AT_ONCE_MAX: int = settings.LONG_CALLS_MAX
"""Requests of one web process that ask a receiver at the same time."""

POLL_S = 0.2
"""How often a request looks whether the look-up that somebody else has begun is recorded."""

ITEMS_KEPT = 50
"""Items of one answer that are kept in words beside the raw bytes, ours first: a page of a list."""

HIDDEN = "(hidden)"
STALE_FENCE = "stale_fence"


@dataclass(frozen=True, slots=True)
class Asked:
    """A look-up that was begun: the question, and what recording its answer needs.

    ``hidden``: compared fields whose values are kept nowhere in clear; None: all of them.
    """

    workspace_id: int
    case_id: int
    operation_id: str
    fence: int
    asked_at: datetime
    asked_by: str
    question: Question
    hidden: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one look-up came to. ``finding`` and ``verdict`` as the API shows them."""

    finding: Mapping[str, Any]
    verdict: Mapping[str, Any]
    facts: Facts


def look_up(
    workspace_id: int, case_id: int, fence: int, *, timeout_s: float | None = None
) -> Recorded | None:
    """Asks the receiver once about a claimed case and records what follows; None where the claim is no longer ours."""
    failpoints.reach("lookup.after_claim")
    asked = begin(workspace_id, case_id, fence, timeout_s=timeout_s)
    if asked is None:
        return None
    assert not connection.in_atomic_block  # nothing of ours waits for a receiver
    finding = ask_receiver(asked.question)
    failpoints.reach("lookup.after_answer")
    return record_finding(asked, finding)


def begin(workspace_id: int, case_id: int, fence: int, *, timeout_s: float | None = None) -> Asked | None:
    """The question of a claimed case, written down as being asked; None where the claim is over or was begun before.

    The lease runs anew from here: a claim may have waited in a queue. ``unanswered`` is counted before anything else
    can fail, so that what never succeeds comes to a person's eyes.
    """
    with tenancy.workspace(workspace_id):
        begun = Case.objects.filter(
            pk=case_id, fence=fence, leased_until__isnull=False, asking_at=None, closed_at=None
        ).update(
            asking_at=CLOCK,
            leased_until=CLOCK + timedelta(seconds=settings.CASE_LEASE_S),
            unanswered=F("unanswered") + 1,
        )
        if not begun:
            return None
        case = Case.objects.select_related("invocation__capability", "invocation__receiver").get(pk=case_id)
        row = case.invocation
        if row is None or case.unanswered > UNANSWERED_MAX:
            _hand_over(case)
            return None
    assert case.asking_at is not None
    capability = row.capability
    configuration = capability.reconciler or {}
    return Asked(
        workspace_id=workspace_id,
        case_id=case_id,
        operation_id=case.operation_id,
        fence=fence,
        asked_at=case.asking_at,
        asked_by=str(configuration.get("kind", "none")),
        question=Question(
            operation_id=row.operation_id,
            idempotency_key=row.idempotency_key,
            business_reference=row.business_reference,
            arguments=ledger.arguments_of(row),
            amount=None
            if row.amount_value is None
            else {"value": row.amount_value, "currency": row.amount_currency or ""},
            receiver=ReceiverFacts(
                name=row.receiver.name,
                base_url=row.receiver.base_url,
                headers=row.receiver.headers,
                allow_private_addresses=row.receiver.allow_private_addresses,
            ),
            lookup=contract_of(capability.contract).lookup,
            configuration=configuration,
            timeout_s=min(timeout_s or settings.RECEIVER_TIMEOUT_S, settings.RECEIVER_TIMEOUT_S),
        ),
        hidden=None if capability.audit_sensitive else _hidden(configuration, capability.sensitive),
    )


def _hand_over(case: Case) -> None:
    """Nothing can be asked about a missing name whose wait is over, nor goes on what kills its worker each time."""
    now = clock()
    if case.invocation_id is None:
        case.waiting_until = case.next_check_at = None
        escalate(case, NO_LEDGER_ENTRY, now)
    else:
        escalate(case, LOOK_UP_FAILED, now)
        case.last_answer = "The receiver was asked several times, and each time the answer was lost."
        case.next_check_at = now + timedelta(seconds=verdicts.ESCALATED_EVERY_S)
    case.leased_until, case.asking_at, case.unanswered = None, None, 0
    case.save()


def _hidden(configuration: Mapping[str, Any], sensitive: Collection[str]) -> frozenset[str]:
    """The compared fields that are compared with something sensitive."""
    hidden = set()
    for path, target in configuration.get("match", {}).items():
        pointer = target.get("to", "") if isinstance(target, Mapping) else str(target)
        inside = pointer.removeprefix("/arguments")
        if any(
            inside == one or inside.startswith(f"{one}/") or one.startswith(f"{inside}/") for one in sensitive
        ):
            hidden.add(path)
    return frozenset(hidden)


# What follows from an answer.


def record_finding(asked: Asked, finding: Finding) -> Recorded | None:
    """Judges the finding under the locks of case and operation and acts on it, in one transaction.

    None where the claim is no longer ours: another worker asks, or has asked, with a higher fence. Then the answer is
    kept as a look-up that changed nothing. A case that was closed meanwhile stays closed, and what was found is still
    evidence: it may contradict what closed it.
    """
    finding = _storable(finding, asked.hidden)
    failpoints.reach("lookup.before_write")
    with tenancy.workspace(asked.workspace_id):
        case = lock_case(asked.workspace_id, asked.case_id)
        # Whoever claimed after us has raised the fence; whoever recorded under our fence has ended the lease.
        if case.fence != asked.fence or case.leased_until is None:
            _keep_stale(case, asked, finding)
            return None
        with locked(asked.workspace_id, asked.operation_id, Actor("reconciler", asked.asked_by)) as unit:
            assert unit is not None  # names are never deleted
            recorded = _act(case, unit, asked, finding)
    failpoints.reach("lookup.after_write")
    return recorded


def _act(case: Case, unit: Locked, asked: Asked, finding: Finding) -> Recorded:
    verdict = _judge(case, unit, asked, finding)
    was_asked = finding.kind is not FindingKind.NO_LOOKUP
    evidence_id = None
    if was_asked:
        case.lookups += 1
        if finding.kind is FindingKind.ITEMS:  # an answer that was not understood told nobody anything
            note_asked(asked.workspace_id, asked.operation_id, asked.asked_at)
        evidence_id = conclude(unit, _conclusion(unit, verdict, finding))
        case.last_asked_at = asked.asked_at
    case.leased_until, case.asking_at, case.unanswered = None, None, 0
    case.last_answer, case.absent_sightings = verdict.explanation, list(verdict.sightings)
    _follow(case, unit, verdict)
    case.last_reason = verdict.reason
    case.save()
    shown = finding_json(finding, asked)
    if was_asked:
        _keep(asked, finding, verdict, shown, evidence_id)
    return Recorded(finding=shown, verdict=verdict_json(verdict), facts=unit.facts)


def _judge(case: Case, unit: Locked, asked: Asked, finding: Finding) -> Verdict:
    column = attributed_by(asked.question.configuration)
    others = verdicts.attributed(finding) - {getattr(asked.question, column)}
    accepted = Resolution.objects.filter(
        case__invocation_id=unit.row.pk, takes_effect=True, receiver_references__len__gt=0
    ).values_list("receiver_references", flat=True)
    around = circumstances(
        unit.facts,
        asked_at=asked.asked_at,
        since=case.opened_at,
        lookups=case.lookups + 1,
        sightings=tuple(case.absent_sightings),
        first_parked_at=None
        if unit.row.first_permit_at is not None
        else ledger.first_parked_at(asked.workspace_id, asked.operation_id),
        known_others=ledger.known_names(asked.workspace_id, column, others, other_than=asked.operation_id),
        accepted_references=frozenset(reference for one in accepted for reference in one),
    )
    return verdicts.judge(finding, around)


def _conclusion(unit: Locked, verdict: Verdict, finding: Finding) -> Conclusion:
    events = verdicts.settlement_event(unit.facts.recorded_state, verdict)
    clears_at = None
    if verdict.denial_class is DenialClass.CLEARS_AT:
        clears_at = verdict.as_of + timedelta(seconds=verdict.clears_after_s or 0)
    return Conclusion(
        source="lookup",
        claim=verdict.outcome or finding.kind,
        shown=Shown.of(finding.raw, _items_json(finding)),
        events=events,
        flags=(verdict.flag,) if verdict.flag else (),
        receiver_reference=verdict.references[0] if verdict.references else None,
        denial_reason=verdict.denial_reason,
        denial_class=verdict.denial_class,
        denial_clears_at=clears_at,
        authenticated=finding.authoritative and finding.kind is FindingKind.ITEMS,
        as_of=verdict.as_of,
        scope=finding.scope,
        unverifies=verdict.unverifies,
        detail={"verdict": verdict.kind, "reason": verdict.reason, "sentence": verdict.explanation},
    )


def _follow(case: Case, unit: Locked, verdict: Verdict) -> None:
    """What becomes of the case, by where the operation stands after the verdict."""
    facts, now = unit.facts, unit.now
    if case.closed_at is not None:
        if facts.standing is Standing.DISCREPANCY:
            open_locked(unit)
        return
    if facts.standing is Standing.DISCREPANCY:
        make_discrepancy(case, unit)
    elif facts.state in (State.UNKNOWN, State.DISPATCHED):
        _go_on(case, verdict, now)
    else:
        close(case, by="reconciler", what=f"settled as {facts.state}: {verdict.explanation}", now=now)


def _go_on(case: Case, verdict: Verdict, now: datetime) -> None:
    """Still unknown: asked again when the verdict says, handed to a person where it says so."""
    case.next_check_at = verdict.next_at
    if case.waiting_until is not None and case.waiting_until > now:
        # A person said that there is nothing to do before that time: the machine asks on and calls nobody.
        case.next_check_at = min(verdict.next_at or case.waiting_until, case.waiting_until)
        return
    case.waiting_until = None
    if verdict.kind is VerdictKind.ESCALATE:
        escalate(case, verdict.reason, now)
    elif verdict.reason != case.last_reason and case.last_reason:
        changed(case, by="reconciler", what=verdict.explanation, now=now)


def _keep(
    asked: Asked, finding: Finding, verdict: Verdict, shown: Mapping[str, Any], evidence_id: int | None
) -> None:
    Lookup.objects.create(
        workspace_id=asked.workspace_id,
        case_id=asked.case_id,
        fence=asked.fence,
        asked_by=asked.asked_by,
        asked_at=asked.asked_at,
        finding=finding.kind,
        summary=verdict.explanation,
        detail={"finding": shown, "verdict": verdict_json(verdict)},
        verdict=verdict.kind,
        reason=verdict.reason,
        evidence_id=evidence_id,
    )


def _keep_stale(case: Case, asked: Asked, finding: Finding) -> None:
    """An answer that came too late to count: kept beside the others, and nothing moves."""
    Lookup.objects.create(
        workspace_id=asked.workspace_id,
        case_id=case.pk,
        fence=asked.fence,
        asked_by=asked.asked_by,
        asked_at=asked.asked_at,
        finding=finding.kind,
        summary="This answer came after another worker had taken over, so it changed nothing.",
        detail={"finding": finding_json(finding, asked)},
        verdict="dropped",
        reason=STALE_FENCE,
    )


def _storable(finding: Finding, hidden: frozenset[str] | None) -> Finding:
    """The finding with texts that every column can hold, and without the values that are kept nowhere in clear."""
    return replace(
        finding,
        items=tuple(_storable_item(item, hidden) for item in finding.items),
        why=_text(finding.why),
        scope=_text(finding.scope) or "",
    )


def _storable_item(item: Item, hidden: frozenset[str] | None) -> Item:
    return replace(
        item,
        reference=_text(item.reference),
        raw_status=_text(item.raw_status),
        attributed_to=_text(item.attributed_to),
        denial_reason=_text(item.denial_reason),
        differences=tuple(
            replace(one, intended=HIDDEN, found=HIDDEN)
            if hidden is None or one.field in hidden
            else replace(one, intended=_text(one.intended) or "", found=_text(one.found) or "")
            for one in item.differences
        ),
    )


def _text(text: str | None) -> str | None:
    """What PostgreSQL refuses, NUL and lone surrogates, as the replacement character."""
    if text is None:
        return None
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def finding_json(finding: Finding, asked: Asked) -> dict[str, Any]:
    """The finding as the API shows it."""
    return {
        "kind": finding.kind,
        "items": _items_json(finding),
        "complete": finding.complete,
        "authoritative": finding.authoritative,
        "as_of": _z(finding.as_of),
        "asked_at": _z(asked.asked_at),
        "why": finding.why,
        "http_status": finding.http_status,
        "scope": finding.scope,
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as the API shows it."""
    return {**verdict.as_json(), "next_at": _z(verdict.next_at)}


def _z(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC with a Z, as everywhere in the API."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def _items_json(finding: Finding) -> list[dict[str, Any]]:
    ours_first = sorted(finding.items, key=lambda item: item.ours is not True)
    return [_item_json(item) for item in ours_first[:ITEMS_KEPT]]


def _item_json(item: Item) -> dict[str, Any]:
    return {
        "status": item.status,
        "reference": item.reference,
        "raw_status": item.raw_status,
        "attributed_to": item.attributed_to,
        "ours": item.ours,
        "denial_reason": item.denial_reason,
        "differences": [
            {"field": one.field, "intended": one.intended, "found": one.found} for one in item.differences
        ],
    }


# At once, for a runtime that is there and waits.


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The answer to a runtime. ``finding`` None: there was nothing to ask, or nobody's answer came in time.

    ``crowded``: the process asks for too many at once already; nothing was asked.
    """

    finding: Mapping[str, Any] | None
    verdict: Mapping[str, Any] | None
    facts: Facts
    crowded: bool = False


_room = BoundedSemaphore(AT_ONCE_MAX)


def reconcile_now(workspace_id: int, operation_id: str, *, timeout_s: float) -> Reconciled:
    """Asks the receiver now, within ``timeout_s``, whether or not any worker runs.

    Look-ups of one case coalesce: one is under way at a time, at most one begins per second, and whoever comes in
    between is given its answer. Raises NoLedgerEntry.
    """
    ends = time.monotonic() + timeout_s
    case_id = _askable_case(workspace_id, operation_id)
    if case_id is None:
        return _nothing_asked(workspace_id, operation_id)
    if not _room.acquire(blocking=False):
        return replace(_nothing_asked(workspace_id, operation_id), crowded=True)
    try:
        return _take_turns(workspace_id, operation_id, case_id, ends)
    finally:
        _room.release()


def _askable_case(workspace_id: int, operation_id: str) -> int | None:
    """The open case (opened now, if the sweep has not been there), where its receiver can be asked."""
    with locked(workspace_id, operation_id, SWEEP) as unit:
        if unit is None:
            raise errors.NoLedgerEntry()
        case = open_locked(unit)
        can_ask = askable(unit.facts.contract, unit.row.capability.reconciler)
        return case.pk if case is not None and can_ask else None


def _take_turns(workspace_id: int, operation_id: str, case_id: int, ends: float) -> Reconciled:
    came_at = clock()
    while True:
        turn = _turn(workspace_id, case_id, came_at)
        left = ends - time.monotonic()
        if turn.answer is not None:
            detail = turn.answer.detail
            return Reconciled(detail["finding"], detail["verdict"], _facts(workspace_id, operation_id))
        if turn.over:
            return _nothing_asked(workspace_id, operation_id)
        if turn.fence is not None:
            recorded = look_up(workspace_id, case_id, turn.fence, timeout_s=max(left, POLL_S))
            if recorded is not None:
                return Reconciled(recorded.finding, recorded.verdict, recorded.facts)
        if left <= POLL_S:
            return _nothing_asked(workspace_id, operation_id)
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Whose turn it is to ask: ours under ``fence``, somebody else's (all empty), or nobody's any more."""

    answer: Lookup | None = None
    fence: int | None = None
    over: bool = False


def _turn(workspace_id: int, case_id: int, came_at: datetime) -> _Turn:
    """The answer that is fresh enough, or a claim of ours, or somebody else's: then wait for their answer.

    A claim that waits in a queue, its worker down perhaps, is taken over, and so is one whose worker must be dead.
    """
    with tenancy.workspace(workspace_id):
        case = lock_case(workspace_id, case_id)
        now = clock()
        fresh = min(came_at, now - timedelta(seconds=AT_ONCE_S))
        answers = Lookup.objects.filter(case_id=case_id, answered_at__gt=fresh)
        answer = answers.exclude(reason=STALE_FENCE).order_by("-id").first()
        if answer is not None:
            return _Turn(answer=answer)
        if case.closed_at is not None:
            return _Turn(over=True)
        dead_before = now - timedelta(seconds=settings.LOOKUP_HARD_LIMIT_S)
        held = case.leased_until is not None and case.leased_until > now
        if held and case.asking_at is not None and case.asking_at > dead_before:
            return _Turn()
        case.fence += 1
        case.leased_until = now + timedelta(seconds=settings.CASE_LEASE_S)
        case.asking_at = None
        case.save(update_fields=["fence", "leased_until", "asking_at"])
        return _Turn(fence=case.fence)


def _nothing_asked(workspace_id: int, operation_id: str) -> Reconciled:
    return Reconciled(None, None, _facts(workspace_id, operation_id))


def _facts(workspace_id: int, operation_id: str) -> Facts:
    found = ledger.facts_of(workspace_id, [operation_id])
    if not found:
        raise errors.NoLedgerEntry()
    return found[0]

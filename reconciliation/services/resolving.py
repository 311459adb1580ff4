"""What people do with a case: decide, confirm another's decision, claim, note, wish to have the receiver asked again.

The rules are rows in ``reconciliation/resolutions.py``; here they are held against the record under its lock. Every
function begins at ``_operator``: the one place that says who may.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import F

from ledger import errors, failpoints, tenancy
from ledger import selectors as ledger
from ledger.decisions import DenialClass
from ledger.facts import Facts, contract_of
from ledger.services import annotate, conclude
from ledger.services.outcomes import park
from ledger.services.settlement import Conclusion
from ledger.services.writing import Actor, Locked, Shown, locked
from ledger.states import Event, Standing, State
from reconciliation.circumstances import askable, situation_of
from reconciliation.models import Case, CaseKind, Resolution
from reconciliation.resolutions import (
    TEXT_MAX,
    Fault,
    Given,
    Kind,
    NotPossibleNow,
    ResolutionRefused,
    Rule,
    Situation,
    faults,
    needs_second,
    offers,
    rule_for,
)
from reconciliation.services.cases import changed, clock, close
from reconciliation.verdicts import Flag

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a decision came to. ``awaits_second_person``: it was kept, and nothing is settled until it is confirmed.

    ``facts`` None: the name is not on record.
    """

    kind: Kind
    facts: Facts | None
    awaits_second_person: bool = False


@dataclass(frozen=True, slots=True)
class _Desk:
    """One case on a person's desk: everything locked, the situation read after the locks."""

    case: Case
    unit: Locked | None
    situation: Situation
    actor: Actor

    @property
    def facts(self) -> Facts | None:
        return None if self.unit is None else self.unit.facts

    @property
    def now(self) -> datetime:
        return self.situation.now


def resolve(
    workspace_id: int,
    operation_id: str,
    user: AbstractBaseUser | AnonymousUser,
    kind: Kind | str,
    *,
    version: int,
    remark: str,
    evidence: str = "",
    references: Sequence[str] = (),
    wait_until: datetime | None = None,
    compensated_by: str | None = None,
) -> Resolved:
    """Takes one person's decision on the case, as it was shown with ``version``.

    Where a second person is needed it becomes the case's proposal, in place of any before. Raises Forbidden (no
    operator), NoLedgerEntry (no case), AlreadyDecided (the world moved: ``extra`` says who changed what and when),
    NotPossibleNow (with what is), ResolutionRefused (what is missing). Then nothing was changed.
    """
    kind = Kind(kind)
    given = Given(remark, evidence, tuple(references), wait_until, compensated_by or None)
    with _desk(workspace_id, operation_id, user, version) as desk:
        rule = _rule(desk, kind, given)
        waits = needs_second(rule, desk.situation)
        resolution = _keep(desk, kind, given, version, decided_by_id=_id(user), takes_effect=not waits)
        if waits:
            _propose(desk, resolution)
        else:
            _take_effect(desk, rule, given, resolution)
        desk.case.save()
        failpoints.reach("decision.before_commit")
    failpoints.reach("decision.after_commit")
    return Resolved(kind, desk.facts, awaits_second_person=waits)


def confirm(
    workspace_id: int,
    operation_id: str,
    user: AbstractBaseUser | AnonymousUser,
    *,
    version: int,
    remark: str,
) -> Resolved:
    """Confirms the decision that another person proposed; it is judged again as the world is now, and takes effect.

    Raises as ``resolve`` does; whoever proposed cannot confirm.
    """
    with _desk(workspace_id, operation_id, user, version) as desk:
        proposed = desk.case.proposal
        if proposed is None:
            raise NotPossibleNow([Fault("", "Nothing waits for a second person here.")], _allowed(desk))
        if proposed.decided_by_id == _id(user):
            raise ResolutionRefused(
                [Fault("", "A second person must confirm: you proposed this decision yourself.")]
            )
        kind = Kind(proposed.kind)
        given = Given(
            remark,
            proposed.evidence,
            tuple(proposed.receiver_references),
            proposed.wait_until,
            proposed.compensated_by,
        )
        rule = _rule(desk, kind, given)
        resolution = _keep(
            desk,
            kind,
            given,
            version,
            decided_by_id=proposed.decided_by_id,
            seconded_by_id=_id(user),
            confirms=proposed,
        )
        _take_effect(desk, rule, given, resolution)
        desk.case.save()
        failpoints.reach("decision.before_commit")
    failpoints.reach("decision.after_commit")
    return Resolved(kind, desk.facts)


def claim_case(workspace_id: int, operation_id: str, user: AbstractBaseUser | AnonymousUser) -> None:
    """Makes the person the case's owner: others see who is on it. It keeps nobody from deciding."""
    actor = _operator(user, workspace_id)
    with _open(workspace_id, operation_id) as case:
        if case.owner_id != _id(user):
            case.owner_id = _id(user)
            case.save(update_fields=["owner"])
            annotate(workspace_id, operation_id, actor, "claim", {"case": case.pk})


def release_case(workspace_id: int, operation_id: str, user: AbstractBaseUser | AnonymousUser) -> None:
    """Leaves the case without an owner."""
    actor = _operator(user, workspace_id)
    with _open(workspace_id, operation_id) as case:
        if case.owner_id is not None:
            case.owner_id = None
            case.save(update_fields=["owner"])
            annotate(workspace_id, operation_id, actor, "release", {"case": case.pk})


def ask_again(workspace_id: int, operation_id: str, user: AbstractBaseUser | AnonymousUser) -> None:
    """Makes the case due now; the next sweep hands it out. Raises NotPossibleNow where nothing can be asked."""
    actor = _operator(user, workspace_id)
    with _open(workspace_id, operation_id) as case:
        capability = None if case.invocation is None else case.invocation.capability
        if capability is None or not askable(contract_of(capability.contract), capability.reconciler):
            raise NotPossibleNow([Fault("", "The receiver cannot be asked about this.")])
        case.next_check_at = clock()
        case.save(update_fields=["next_check_at"])
        annotate(workspace_id, operation_id, actor, "ask_again", {"case": case.pk})


def note(workspace_id: int, operation_id: str, user: AbstractBaseUser | AnonymousUser, text: str) -> None:
    """Adds a note to the operation's timeline. Raises ResolutionRefused for an empty or overlong one."""
    actor = _operator(user, workspace_id)
    if not text.strip() or len(text) > TEXT_MAX or "\0" in text:
        raise ResolutionRefused([Fault("note", f"A note has 1 to {TEXT_MAX} characters.")])
    with _open(workspace_id, operation_id) as case:
        annotate(workspace_id, operation_id, actor, "note", {"case": case.pk, "sentence": _clean(text)})


# Who may.


def _operator(user: AbstractBaseUser | AnonymousUser, workspace_id: int) -> Actor:
    """The person as the record names them. Raises Forbidden unless they are an operator of the workspace now."""
    if not user.is_active or user.pk is None or OPERATOR not in ledger.roles_of(_id(user), workspace_id):
        raise errors.Forbidden("Only an operator of this workspace may do this.")
    return Actor("user", str(getattr(user, "email", "") or user.get_username()))


def _id(user: AbstractBaseUser | AnonymousUser) -> int:
    return int(user.pk)  # type: ignore[arg-type]


# The desk.


@contextmanager
def _open(workspace_id: int, operation_id: str) -> Iterator[Case]:
    """The open case, locked. Raises NoLedgerEntry where there is none."""
    with tenancy.workspace(workspace_id):
        case = _find_case(workspace_id, operation_id)
        if case is None or case.closed_at is not None:
            raise errors.NoLedgerEntry("There is no open case of this name.")
        yield case


@contextmanager
def _desk(
    workspace_id: int, operation_id: str, user: AbstractBaseUser | AnonymousUser, version: int
) -> Iterator[_Desk]:
    actor = _operator(user, workspace_id)
    with tenancy.workspace(workspace_id):
        case = _find_case(workspace_id, operation_id)
        if case is None:
            raise errors.NoLedgerEntry("There is no case of this name.")
        with locked(workspace_id, operation_id, actor) as unit:
            missing = case.invocation_id is None
            facts = None if missing or unit is None else unit.facts
            now = clock() if facts is None else facts.now
            desk = _Desk(case, None if missing else unit, situation_of(facts, now), actor)
            _check_not_moved(desk, version)
            if missing and unit is not None:
                _check_still_missing(unit)
            yield desk


def _find_case(workspace_id: int, operation_id: str) -> Case | None:
    """The case that a decision is about, locked: the open one, of the operation rather than of its missing name;
    else the last, which may be of an abandoned operation."""
    return (
        Case.objects.select_for_update(of=("self",), no_key=True)
        .filter(workspace_id=workspace_id, operation_id=operation_id)
        .order_by(F("closed_at").desc(nulls_first=True), F("invocation_id").asc(nulls_last=True), "-id")
        .first()
    )


def _check_not_moved(desk: _Desk, version: int) -> None:
    case, facts = desk.case, desk.facts
    abandoned = facts is not None and facts.standing is Standing.ABANDONED
    if case.version != version or (case.closed_at is not None and not abandoned):
        raise _already(desk, by=case.changed_by, what=case.changed_what, at=case.changed_at)
    if facts is None:
        return
    settled = facts.state not in (State.UNKNOWN, State.DISPATCHED)
    if case.kind == CaseKind.UNKNOWN and settled:
        # The sweep has not been here yet: what moved the operation says it best.
        last = ledger.entries_of(facts.invocation_id, limit=1)[0]
        raise _already(desk, by=last.actor_name, what=f"{last.event}: now {facts.state}", at=last.at)


def _check_still_missing(unit: Locked) -> None:
    """A report of an attempt that is not on record, for an operation that is: only its own case can settle it."""
    if unit.facts.state in (State.UNKNOWN, State.DISPATCHED):
        raise NotPossibleNow([Fault("", "The operation is on record and unsettled: decide on that first.")])


def _already(desk: _Desk, *, by: str, what: str, at: datetime) -> errors.AlreadyDecided:
    return errors.AlreadyDecided(
        f"Nothing was changed: {by or 'somebody'} was first ({what or 'opened'}).",
        extra={
            "changed_by": by,
            "changed_what": what,
            "changed_at": at.isoformat(),
            "version": desk.case.version,
        },
        facts=desk.facts,
    )


def _allowed(desk: _Desk) -> tuple[Kind, ...]:
    return tuple(offer.kind for offer in offers(desk.situation) if offer.why_not is None)


def _rule(desk: _Desk, kind: Kind, given: Given) -> Rule:
    rule = rule_for(kind, desk.situation)
    if rule is None:
        where = "not on record" if desk.situation.state is None else desk.situation.state.value
        raise NotPossibleNow(
            [Fault("", f"This cannot be decided about an operation that is {where}.")], _allowed(desk)
        )
    found = list(faults(rule, desk.situation, given))
    if given.compensated_by:
        found.extend(_compensation_faults(desk, given.compensated_by))
    if found:
        raise ResolutionRefused(found, _allowed(desk))
    return rule


def _compensation_faults(desk: _Desk, name: str) -> list[Fault]:
    other = ledger.facts_of(desk.case.workspace_id, [name])
    if not other or name == desk.case.operation_id or other[0].state is not State.COMPLETED:
        return [Fault("compensated_by", "Must name another operation on record that is completed.")]
    return []


# What a decision does.


def _keep(
    desk: _Desk,
    kind: Kind,
    given: Given,
    version: int,
    *,
    decided_by_id: int,
    takes_effect: bool = True,
    seconded_by_id: int | None = None,
    confirms: Resolution | None = None,
) -> Resolution:
    return Resolution.objects.create(
        workspace_id=desk.case.workspace_id,
        case=desk.case,
        kind=kind,
        remark=_clean(given.remark),
        evidence=_clean(given.evidence),
        receiver_references=list(given.references),
        wait_until=given.wait_until,
        compensated_by=given.compensated_by,
        case_version=version,
        takes_effect=takes_effect,
        decided_by_id=decided_by_id,
        seconded_by_id=seconded_by_id,
        confirms=confirms,
    )


def _propose(desk: _Desk, resolution: Resolution) -> None:
    case = desk.case
    case.proposal = resolution
    changed(case, by=desk.actor.name, what=f"proposed: {resolution.kind}", now=desk.now)
    _write(desk, "propose", resolution)


def _take_effect(desk: _Desk, rule: Rule, given: Given, resolution: Resolution) -> None:
    case, now = desk.case, desk.now
    case.proposal = None
    if not rule.closes:
        assert given.wait_until is not None  # the one rule that leaves a case open is to wait
        case.waiting_until = given.wait_until
        case.next_check_at = min(case.next_check_at or given.wait_until, given.wait_until)
        case.escalated_at = case.escalation = None
        changed(case, by=desk.actor.name, what=f"wait until {given.wait_until.isoformat()}", now=now)
        _write(desk, "wait", resolution)
        return
    if desk.unit is None:
        _attest_missing(desk, resolution)
    else:
        conclude(desk.unit, _conclusion(desk, rule, resolution))
    close(case, by="operator", what=f"decided: {resolution.kind}", now=now, who=desk.actor.name)


def _conclusion(desk: _Desk, rule: Rule, resolution: Resolution) -> Conclusion:
    attested = _attestation(desk, resolution)
    references = [*resolution.receiver_references, *sorted(desk.situation.references)]
    denies = Event.DENY in rule.events
    return Conclusion(
        source="operator",
        claim=resolution.kind,
        shown=Shown.of(json.dumps(attested, ensure_ascii=False).encode(), attested),
        events=rule.events,
        flags=(Flag.DUPLICATE_EFFECT,) if Event.FLAG in rule.events else (),
        receiver_reference=references[0] if references else None,
        denial_reason="did_not_happen" if denies else None,
        denial_class=DenialClass.CLEARED if denies else None,
        scope="an operator's attestation",
        standing=rule.standing,
        detail={"decision": resolution.kind, "sentence": resolution.remark, **_link(resolution)},
    )


def _link(resolution: Resolution) -> dict[str, Any]:
    return {} if resolution.compensated_by is None else {"compensated_by": resolution.compensated_by}


def _proposer(resolution: Resolution) -> dict[str, Any]:
    if resolution.seconded_by_id is None:
        return {}
    return {"proposed_by": resolution.decided_by.email or resolution.decided_by.get_username()}


def _attestation(desk: _Desk, resolution: Resolution) -> dict[str, Any]:
    """A person's word, as it is kept: never the receiver's."""
    return {
        "decision": resolution.kind,
        "remark": resolution.remark,
        "evidence": resolution.evidence,
        "references": list(resolution.receiver_references),
        "by": desk.actor.name,
        "resolution": resolution.pk,
        **_proposer(resolution),
        **_link(resolution),
    }


def _attest_missing(desk: _Desk, resolution: Resolution) -> None:
    """Of a name that is not on record nothing moves; that the effect exists is parked, so that an intent under this
    name begins as unknown."""
    if resolution.kind == Kind.HAPPENED:
        raw = json.dumps(_attestation(desk, resolution), ensure_ascii=False).encode()
        park(desk.case.workspace_id, desk.case.operation_id, None, Shown.of(raw), desk.actor.name)
    _write(desk, "resolve", resolution)


def _write(desk: _Desk, event: str, resolution: Resolution) -> None:
    detail = {"decision": resolution.kind, "sentence": resolution.remark, "resolution": resolution.pk}
    if desk.unit is None:
        annotate(desk.case.workspace_id, desk.case.operation_id, desk.actor, event, detail)
    else:
        desk.unit.write(event, detail=detail)
        desk.unit.reread()


def _clean(text: str) -> str:
    """Lone surrogates, which no database column holds, as the replacement character."""
    return text.encode("utf-8", "replace").decode("utf-8")

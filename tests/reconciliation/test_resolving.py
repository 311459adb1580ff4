"""What people do with a case, through the services and on the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import DatabaseError, transaction

from ledger import errors, tenancy
from ledger.states import Standing
from reconciliation import services
from reconciliation.models import CLOCK, CaseKind, Lookup, Resolution
from reconciliation.resolutions import Kind, NotPossibleNow, ResolutionRefused
from tests.arrange import COMPLETED, Arranged, nonce
from tests.reconciliation.scene import Scene
from tests.reconciliation.test_sweep import at_once

REMARK = "Looked at it in the receiver's dashboard."
SAW = "Dashboard, list of 30 November: nothing for this order."


@pytest.fixture
def operator(workspace: Arranged) -> Any:
    return workspace.person("operator")


@pytest.fixture
def unknown(scene: Scene) -> str:
    """An unknown outcome with an open case, its bound long over."""
    operation_id = scene.unknown()
    scene.age(operation_id, 60)
    scene.sweep()
    return operation_id


def decide(scene: Scene, operation_id: str, user: Any, kind: str, **given: Any) -> services.Resolved:
    given.setdefault("remark", REMARK)
    if "version" not in given:
        given["version"] = scene.case(operation_id).version
    return services.resolve(scene.id, operation_id, user, kind, **given)


def resolutions(scene: Scene, operation_id: str) -> list[Resolution]:
    with tenancy.workspace(scene.id):
        return list(Resolution.objects.filter(case__operation_id=operation_id).order_by("id"))


def until(scene: Scene, operation_id: str, seconds: float = 600) -> Any:
    return scene.workspace.facts(operation_id).now + timedelta(seconds=seconds)


# Refusals first.


def everything(scene: Scene, operation_id: str, user: Any) -> dict[str, Callable[[], object]]:
    """Every door of the service, for one person."""
    return {
        "resolve": lambda: decide(scene, operation_id, user, "happened", references=["re_1"]),
        "confirm": lambda: services.confirm(
            scene.id, operation_id, user, version=scene.case(operation_id).version, remark=REMARK
        ),
        "claim": lambda: services.claim_case(scene.id, operation_id, user),
        "release": lambda: services.release_case(scene.id, operation_id, user),
        "ask_again": lambda: services.ask_again(scene.id, operation_id, user),
        "note": lambda: services.note(scene.id, operation_id, user, "hello"),
    }


# C20 C76
@pytest.mark.parametrize("door", ["resolve", "confirm", "claim", "release", "ask_again", "note"])
def test_only_operators_of_the_workspace_do_anything(
    scene: Scene, unknown: str, other_workspace: Arranged, door: str
) -> None:
    retired = scene.workspace.person("operator")
    retired.is_active = False
    retired.save()
    strangers = [
        scene.workspace.person("viewer", "approver", "auditor", "admin"),
        scene.workspace.person(),
        other_workspace.person("operator"),
        retired,
        AnonymousUser(),
    ]
    before, entries = scene.case(unknown), len(scene.workspace.entries(unknown))
    for stranger in strangers:
        with pytest.raises(errors.Forbidden):
            everything(scene, unknown, stranger)[door]()
    after = scene.case(unknown)
    assert (after.version, after.owner_id, after.closed_at) == (before.version, None, None)
    assert len(scene.workspace.entries(unknown)) == entries
    assert scene.state(unknown) == "unknown"


def test_a_role_that_was_taken_away_counts_at_once(scene: Scene, unknown: str, operator: Any) -> None:
    services.note(scene.id, unknown, operator, "still here")
    operator.membership_set.all().delete()
    with pytest.raises(errors.Forbidden):
        services.note(scene.id, unknown, operator, "and now?")


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        ("happened", {}, "references"),
        ("happened", {"references": ["re_1"], "remark": "ok"}, "remark"),
        ("did_not_happen", {}, "evidence"),
        ("wait", {}, "wait_until"),
        ("duplicate", {"references": ["re_1"]}, "references"),
        ("compensated", {}, "compensated_by"),
        ("compensated", {"compensated_by": "op-nobody-knows"}, "compensated_by"),
    ],
)
def test_a_decision_without_what_it_needs_changes_nothing(
    scene: Scene, unknown: str, operator: Any, kind: str, given: dict[str, Any], field: str
) -> None:
    before = scene.case(unknown)
    with pytest.raises(ResolutionRefused) as refused:
        decide(scene, unknown, operator, kind, **given)
    assert [fault.field for fault in refused.value.faults] == [field]
    assert scene.case(unknown).version == before.version
    assert resolutions(scene, unknown) == []
    assert scene.state(unknown) == "unknown"


# C75
def test_what_cannot_be_decided_now_is_refused_with_what_can(
    scene: Scene, unknown: str, operator: Any
) -> None:
    with pytest.raises(NotPossibleNow) as refused:
        decide(scene, unknown, operator, "diverged", references=["re_1"])
    assert Kind.HAPPENED in refused.value.allowed
    assert Kind.DIVERGED not in refused.value.allowed


def test_nobody_can_say_before_the_bound_that_it_did_not_happen(scene: Scene, operator: Any) -> None:
    scene.capability(contract={"in_flight_s": 600})
    operation_id = scene.unknown()
    scene.sweep()
    with pytest.raises(ResolutionRefused) as refused:
        decide(scene, operation_id, operator, "did_not_happen", evidence=SAW)
    assert "may still arrive" in str(refused.value)
    assert Kind.DID_NOT_HAPPEN not in refused.value.allowed
    assert scene.state(operation_id) == "unknown"


def test_a_name_without_a_case_cannot_be_decided_about(scene: Scene, operator: Any) -> None:
    settled, ask = scene.dispatched()
    scene.agent.report(settled, 1, COMPLETED, nonce=ask)
    for name in (settled, "op-never-heard-of"):
        with pytest.raises(errors.NoLedgerEntry):
            decide(scene, name, operator, "happened", references=["re_1"], version=1)


# C24 F39
def test_a_decision_on_a_stale_page_is_refused_naming_who_was_first(
    scene: Scene, unknown: str, operator: Any
) -> None:
    first = scene.workspace.person("operator")
    page = scene.case(unknown).version
    decide(scene, unknown, first, "happened", references=["re_1"], version=page)
    with pytest.raises(errors.AlreadyDecided) as late:
        decide(scene, unknown, operator, "did_not_happen", evidence=SAW, version=page)
    assert first.email in late.value.detail
    assert late.value.extra["changed_what"] == "decided: happened"
    assert scene.state(unknown) == "completed"
    assert [one.kind for one in resolutions(scene, unknown)] == ["happened"]


def test_a_page_from_before_the_escalation_is_stale(scene: Scene, unknown: str, operator: Any) -> None:
    page = scene.case(unknown).version
    scene.receiver.make("", asked_as=unknown)
    scene.ask(unknown)
    with pytest.raises(errors.AlreadyDecided) as late:
        decide(scene, unknown, operator, "happened", references=["re_1"], version=page)
    assert "unattributed_effect" in late.value.detail


# F40
def test_a_runtime_that_was_faster_is_named_although_no_sweep_has_been_there(
    scene: Scene, operator: Any
) -> None:
    operation_id, ask = scene.dispatched()
    scene.agent.report(operation_id, 1, {"outcome": "unknown", "fault": "timeout"}, nonce=ask)
    scene.sweep()
    page = scene.case(operation_id).version
    scene.agent.report(operation_id, 1, COMPLETED, nonce=ask)
    with pytest.raises(errors.AlreadyDecided) as late:
        decide(scene, operation_id, operator, "happened", references=["re_9"], version=page)
    assert "support-agent" in late.value.detail
    assert scene.workspace.facts(operation_id).row["receiver_reference"] == "re_1"


# C64 F39
@pytest.mark.parametrize(
    "kinds", [("happened", "happened"), ("happened", "did_not_happen"), ("did_not_happen", "did_not_happen")]
)
def test_of_two_decisions_at_once_one_counts(scene: Scene, unknown: str, kinds: tuple[str, str]) -> None:
    page = scene.case(unknown).version
    people = [scene.workspace.person("operator") for _ in kinds]
    turns = list(zip(people, kinds, strict=True))

    def one() -> str:
        user, kind = turns.pop()
        try:
            decide(scene, unknown, user, kind, references=["re_1"], evidence=SAW, version=page)
        except errors.AlreadyDecided:
            return "late"
        return kind

    answers = at_once(one, 2)
    assert answers.count("late") == 1
    (kept,) = resolutions(scene, unknown)
    assert kept.kind in answers
    assert scene.state(unknown) == {"happened": "completed", "did_not_happen": "denied"}[kept.kind]


# What each decision does.


def test_it_happened_completes_with_the_reference_and_an_attestation(
    scene: Scene, unknown: str, operator: Any
) -> None:
    resolved = decide(scene, unknown, operator, "happened", references=["re_77"])
    assert not resolved.awaits_second_person
    body = scene.agent.get(unknown).json()
    assert body["state"] == "completed"
    assert body["outcome"]["receiver_reference"] == "re_77"
    assert body["outcome"]["source"] == "operator"
    assert body["decision"]["action"] == "resume"
    kept = scene.workspace.evidence(unknown)[-1]
    assert (kept.source, kept.authenticated) == ("operator", False)  # a person's word, never the receiver's
    assert json.loads(bytes(kept.raw or b""))["remark"] == REMARK
    case = scene.case(unknown)
    assert (case.closed_by, case.changed_by) == ("operator", operator.email)
    entry = scene.workspace.entries(unknown)[-1]
    assert (entry.actor_kind, entry.actor_name, entry.event) == ("user", operator.email, "complete")


def test_it_did_not_happen_denies_every_lost_attempt_and_allows_a_retry(
    scene: Scene, unknown: str, operator: Any
) -> None:
    decide(scene, unknown, operator, "did_not_happen", evidence=SAW)
    body = scene.agent.get(unknown).json()
    assert (body["state"], body["denial"]["class"]) == ("denied", "cleared")
    assert [attempt["state"] for attempt in body["attempts"]] == ["denied"]
    assert scene.decision(unknown) == ("retry", "denial_cleared")
    assert scene.agent.ask(unknown, 2, nonce=nonce()).status_code == 201


def test_waiting_sets_the_case_aside_until_its_time_and_settles_nothing(scene: Scene, operator: Any) -> None:
    scene.capability(contract={"lookup": "none"}, reconciler=None)
    operation_id = scene.unknown()
    scene.sweep()
    assert scene.case(operation_id).escalation == "operator_only"
    end = until(scene, operation_id)
    decide(scene, operation_id, operator, "wait", wait_until=end)
    case = scene.case(operation_id)
    assert (case.escalated_at, case.waiting_until, case.next_check_at) == (None, end, end)
    assert scene.decision(operation_id) == ("reconcile", "outcome_unknown")
    # Its time comes.
    scene.change_case(
        operation_id, waiting_until=CLOCK - timedelta(seconds=1), next_check_at=CLOCK - timedelta(days=1)
    )
    claim = scene.claim(operation_id)
    services.look_up(claim.workspace_id, claim.case_id, claim.fence)
    case = scene.case(operation_id)
    assert (case.escalation, case.waiting_until) == ("operator_only", None)


def test_while_a_person_waits_the_machine_asks_on_and_calls_nobody(
    scene: Scene, unknown: str, operator: Any
) -> None:
    scene.receiver.make("", asked_as=unknown)
    scene.ask(unknown)
    assert scene.case(unknown).escalated_at is not None
    decide(scene, unknown, operator, "wait", wait_until=until(scene, unknown))
    recorded = scene.ask(unknown)
    assert recorded is not None
    assert recorded.verdict["kind"] == "escalate"
    case = scene.case(unknown)
    assert case.escalated_at is None
    assert case.next_check_at <= case.waiting_until


def test_a_duplicate_is_completed_flagged_and_cleared(scene: Scene, unknown: str, operator: Any) -> None:
    decide(scene, unknown, operator, "duplicate", references=["re_1", "re_2"])
    body = scene.agent.get(unknown).json()
    assert body["state"] == "completed"
    assert body["case"] == {"standing": "none", "flags": ["duplicate_effect"]}
    assert scene.decision(unknown) == ("resume", "effect_exists")


def test_a_discrepancy_found_by_the_machine_is_cleared_by_a_person_and_stays_cleared(
    scene: Scene, unknown: str, operator: Any
) -> None:
    references = [scene.receiver.make(unknown), scene.receiver.make(unknown)]
    scene.ask(unknown)
    assert scene.decision(unknown) == ("wait", "discrepancy")
    decide(scene, unknown, operator, "duplicate", references=references)
    body = scene.agent.get(unknown).json()
    assert body["case"] == {"standing": "none", "flags": ["duplicate_effect"]}
    assert scene.decision(unknown) == ("resume", "effect_exists")
    assert scene.case(unknown).closed_by == "operator"
    scene.sweep()
    assert len(scene.cases(unknown)) == 1


def test_a_diverged_effect_is_accepted_with_its_reference(scene: Scene, unknown: str, operator: Any) -> None:
    reference = scene.receiver.make(unknown, amount="119.00")
    scene.ask(unknown)
    decide(scene, unknown, operator, "diverged", references=[reference])
    body = scene.agent.get(unknown).json()
    assert body["case"] == {"standing": "none", "flags": ["diverged_effect"]}
    assert body["outcome"]["receiver_reference"] == reference


def test_a_compensation_is_a_completed_operation_and_is_linked(
    scene: Scene, unknown: str, operator: Any
) -> None:
    making_up, ask = scene.dispatched()
    with pytest.raises(ResolutionRefused):
        decide(scene, unknown, operator, "compensated", compensated_by=making_up)
    with pytest.raises(ResolutionRefused):
        decide(scene, unknown, operator, "compensated", compensated_by=unknown)
    scene.agent.report(making_up, 1, COMPLETED, nonce=ask)
    decide(scene, unknown, operator, "compensated", compensated_by=making_up)
    assert scene.state(unknown) == "completed"
    detail = json.loads(scene.workspace.entries(unknown)[-1].detail or "{}")
    assert detail["compensated_by"] == making_up


def test_a_disputed_operation_is_settled_by_a_person_only(scene: Scene, unknown: str, operator: Any) -> None:
    asked = scene.begun(unknown)
    decide(scene, unknown, operator, "did_not_happen", evidence=SAW)
    reference = scene.receiver.make(unknown)
    scene.answered_now(unknown, asked)
    assert scene.decision(unknown) == ("wait", "discrepancy")
    case = scene.case(unknown)
    assert (case.kind, case.closed_at) == (CaseKind.DISCREPANCY, None)
    decide(scene, unknown, operator, "happened", references=[reference])
    body = scene.agent.get(unknown).json()
    assert (body["state"], body["case"]["standing"]) == ("completed", "none")
    assert body["outcome"]["receiver_reference"] == reference


# The second person.


def test_giving_up_takes_two_people(scene: Scene, unknown: str, operator: Any) -> None:
    resolved = decide(scene, unknown, operator, "abandoned")
    assert resolved.awaits_second_person
    case = scene.case(unknown)
    assert case.proposal.kind == "abandoned"
    assert case.closed_at is None
    assert scene.decision(unknown) == ("reconcile", "outcome_unknown")
    with pytest.raises(ResolutionRefused, match="second person"):
        services.confirm(scene.id, unknown, operator, version=case.version, remark=REMARK)
    second = scene.workspace.person("operator")
    services.confirm(scene.id, unknown, second, version=case.version, remark="I checked it as well.")
    assert scene.decision(unknown) == ("stop", "abandoned")
    assert scene.state(unknown) == "unknown"  # never shown as failed
    proposed, confirmed = resolutions(scene, unknown)
    assert (proposed.takes_effect, confirmed.takes_effect) == (False, True)
    assert confirmed.confirms_id == proposed.pk
    assert (confirmed.decided_by_id, confirmed.seconded_by_id) == (operator.pk, second.pk)
    assert scene.case(unknown).closed_at is not None


def test_at_high_risk_it_did_not_happen_takes_two_people(scene: Scene, operator: Any) -> None:
    scene.capability(risk="high")
    operation_id = scene.unknown()
    scene.age(operation_id, 60)
    scene.sweep()
    resolved = decide(scene, operation_id, operator, "did_not_happen", evidence=SAW)
    assert resolved.awaits_second_person
    assert scene.state(operation_id) == "unknown"
    assert scene.agent.ask(operation_id, 2, nonce=nonce()).status_code == 409
    second = scene.workspace.person("operator")
    version = scene.case(operation_id).version
    services.confirm(scene.id, operation_id, second, version=version, remark="I checked it as well.")
    assert scene.state(operation_id) == "denied"
    attested = json.loads(bytes(scene.workspace.evidence(operation_id)[-1].raw or b""))
    assert attested["evidence"] == SAW
    assert attested["proposed_by"] == operator.email
    assert attested["by"] == second.email


def test_a_proposal_is_replaced_by_the_next_decision(scene: Scene, unknown: str, operator: Any) -> None:
    decide(scene, unknown, operator, "abandoned")
    second = scene.workspace.person("operator")
    decide(scene, unknown, second, "happened", references=["re_1"])
    assert scene.state(unknown) == "completed"
    with pytest.raises((errors.AlreadyDecided, NotPossibleNow)):
        services.confirm(
            scene.id, unknown, second, version=scene.case(unknown).version, remark="I checked it as well."
        )


def test_there_is_nothing_to_confirm_without_a_proposal(scene: Scene, unknown: str, operator: Any) -> None:
    with pytest.raises(NotPossibleNow):
        services.confirm(
            scene.id, unknown, operator, version=scene.case(unknown).version, remark="I checked it as well."
        )


def test_a_proposal_is_judged_again_when_it_is_confirmed(scene: Scene, unknown: str, operator: Any) -> None:
    decide(scene, unknown, operator, "abandoned")
    page = scene.case(unknown).version
    scene.receiver.make(unknown)
    scene.ask(unknown)
    second = scene.workspace.person("operator")
    with pytest.raises(errors.AlreadyDecided):
        services.confirm(scene.id, unknown, second, version=page, remark="I checked it as well.")
    assert scene.decision(unknown) == ("resume", "effect_exists")


def test_only_a_person_changes_what_was_abandoned(scene: Scene, unknown: str, operator: Any) -> None:
    decide(scene, unknown, operator, "abandoned")
    second = scene.workspace.person("operator")
    version = scene.case(unknown).version
    services.confirm(scene.id, unknown, second, version=version, remark="I checked it as well.")
    decide(scene, unknown, operator, "happened", references=["re_5"])
    assert scene.decision(unknown) == ("resume", "effect_exists")
    assert scene.workspace.facts(unknown).standing is Standing.NONE


# A name that is not on record.


@pytest.fixture
def missing(scene: Scene) -> str:
    operation_id = scene.workspace.operation_id()
    scene.agent.put_intent(operation_id, scene.workspace.intent(expect="recorded"))
    scene.sweep()
    return operation_id


def test_a_missing_name_that_happened_can_never_be_dispatched_freely(
    scene: Scene, missing: str, operator: Any
) -> None:
    decide(scene, missing, operator, "happened", references=["re_1"])
    assert scene.case(missing).closed_at is not None
    answer = scene.agent.put_intent(missing, scene.workspace.intent())
    assert answer.json()["state"] == "unknown"
    assert answer.json()["decision"]["action"] == "reconcile"


def test_a_missing_name_that_did_not_happen_can_be_recorded(
    scene: Scene, missing: str, operator: Any
) -> None:
    decide(scene, missing, operator, "did_not_happen", evidence=SAW)
    scene.sweep()
    assert len(scene.cases(missing)) == 1
    answer = scene.agent.put_intent(missing, scene.workspace.intent())
    assert answer.json()["decision"]["action"] == "dispatch"


def test_a_missing_name_is_waited_for_and_comes_back(scene: Scene, missing: str, operator: Any) -> None:
    with tenancy.workspace(scene.id):
        end = services.cases.clock() + timedelta(seconds=600)
    decide(scene, missing, operator, "wait", wait_until=end)
    assert scene.case(missing).escalated_at is None
    scene.change_case(missing, next_check_at=CLOCK - timedelta(days=1))
    claim = scene.claim(missing)
    assert services.look_up(claim.workspace_id, claim.case_id, claim.fence) is None
    case = scene.case(missing)
    assert (case.escalation, case.waiting_until, case.leased_until) == ("no_ledger_entry", None, None)


def test_a_missing_name_cannot_be_given_up(scene: Scene, missing: str, operator: Any) -> None:
    with pytest.raises(NotPossibleNow):
        decide(scene, missing, operator, "abandoned")


# The smaller things.


def test_a_claim_shows_who_is_on_it_and_keeps_nobody_from_deciding(
    scene: Scene, unknown: str, operator: Any
) -> None:
    other = scene.workspace.person("operator")
    before = scene.case(unknown).version
    services.claim_case(scene.id, unknown, operator)
    assert scene.case(unknown).owner_id == operator.pk
    services.claim_case(scene.id, unknown, other)
    assert scene.case(unknown).owner_id == other.pk
    assert scene.case(unknown).version == before
    decide(scene, unknown, operator, "happened", references=["re_1"], version=before)
    events = [entry.event for entry in scene.workspace.entries(unknown)]
    assert events.count("claim") == 2


def test_a_released_case_has_no_owner(scene: Scene, unknown: str, operator: Any) -> None:
    services.claim_case(scene.id, unknown, operator)
    services.release_case(scene.id, unknown, operator)
    assert scene.case(unknown).owner_id is None


def test_asking_again_makes_the_case_due(scene: Scene, unknown: str, operator: Any) -> None:
    scene.ask(unknown)
    scene.change_case(unknown, next_check_at=CLOCK + timedelta(hours=1))
    services.ask_again(scene.id, unknown, operator)
    now = scene.workspace.facts(unknown).now
    assert scene.case(unknown).next_check_at <= now


def test_what_cannot_be_asked_cannot_be_asked_again(scene: Scene, operator: Any) -> None:
    scene.capability(contract={"lookup": "none"}, reconciler=None)
    operation_id = scene.unknown()
    scene.sweep()
    with pytest.raises(NotPossibleNow):
        services.ask_again(scene.id, operation_id, operator)


def test_a_note_stands_in_the_timeline_and_changes_nothing(
    scene: Scene, unknown: str, missing: str, operator: Any
) -> None:
    before = scene.case(unknown).version
    for name in (unknown, missing):
        services.note(scene.id, name, operator, "Called the receiver: they look into it.")
    assert scene.workspace.entries(unknown)[-1].event == "note"
    assert scene.case(unknown).version == before
    with pytest.raises(ResolutionRefused):
        services.note(scene.id, unknown, operator, "  ")


def test_look_ups_and_decisions_are_never_changed_or_deleted(
    scene: Scene, unknown: str, operator: Any
) -> None:
    scene.ask(unknown)
    decide(scene, unknown, operator, "happened", references=["re_1"])
    for model in (Lookup, Resolution):
        with tenancy.workspace(scene.id):
            assert model.objects.filter(case__operation_id=unknown).exists()
        for statement in (
            lambda rows: rows.update(case_id=1),
            lambda rows: rows.delete(),
        ):
            with pytest.raises(DatabaseError), tenancy.workspace(scene.id), transaction.atomic():
                statement(model.objects.filter(case__operation_id=unknown))

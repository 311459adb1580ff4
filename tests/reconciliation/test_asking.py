"""One look-up from the claim to what follows, against a real receiver and the real record."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from ledger import tenancy
from ledger.models import Capability
from reconciliation import services
from reconciliation.findings import Difference, Finding, FindingKind, Item, ItemStatus
from reconciliation.models import CLOCK, Case, CaseKind
from reconciliation.reconcilers.base import look_up as ask_receiver
from reconciliation.services.asking import UNANSWERED_MAX
from reconciliation.verdicts import BUDGET_LOOKUPS, BUDGET_S
from tests.arrange import COMPLETED, OPAQUE, UNKNOWN, nonce
from tests.reconciliation.scene import RECONCILER, Scene

# What an answer settles.


def test_an_effect_that_the_receiver_shows_completes_the_operation(scene: Scene) -> None:
    operation_id = scene.unknown()
    reference = scene.receiver.make(operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["reason"] == "effect_found"
    body = scene.agent.get(operation_id).json()
    assert (body["state"], body["decision"]["action"]) == ("completed", "resume")
    assert body["outcome"]["receiver_reference"] == reference
    assert body["outcome"]["source"] == "lookup"
    case = scene.case(operation_id)
    assert (case.closed_by, case.leased_until, case.next_check_at) == ("reconciler", None, None)
    kept = scene.workspace.evidence(operation_id)[-1]
    assert (kept.source, kept.authenticated, kept.claim) == ("lookup", True, "completed")
    assert reference.encode() in bytes(kept.raw or b"")
    assert [lookup.evidence_id for lookup in scene.lookups(operation_id)] == [kept.pk]
    assert scene.workspace.entries(operation_id)[-1].actor_kind == "reconciler"


# C07
def test_absence_seen_twice_after_the_bound_denies_and_allows_a_retry(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    first = scene.ask(operation_id)
    assert first is not None
    assert (first.verdict["kind"], first.verdict["reason"]) == ("ask_again", "absence_unproven")
    assert scene.state(operation_id) == "unknown"
    assert scene.agent.ask(operation_id, 2, nonce=nonce()).status_code == 409
    scene.age(operation_id, 5)  # the first sighting, too
    second = scene.ask(operation_id)
    assert second is not None
    assert (second.verdict["kind"], second.verdict["reason"]) == ("settle", "absent")
    body = scene.agent.get(operation_id).json()
    assert (body["state"], body["effect"]) == ("denied", "no")
    assert body["denial"] == {"reason": "absent", "class": "cleared"}
    assert body["decision"]["action"] == "retry"
    assert body["decision"]["next_attempt"] == 2
    assert [attempt["state"] for attempt in body["attempts"]] == ["denied"]
    assert scene.agent.ask(operation_id, 2, nonce=nonce()).status_code == 201


# F29 F30
def test_absence_before_the_bound_proves_nothing_and_a_late_effect_is_found(scene: Scene) -> None:
    scene.capability(contract={"in_flight_s": 600})
    operation_id = scene.unknown()
    for _ in range(3):
        recorded = scene.ask(operation_id)
        assert recorded is not None
        assert recorded.verdict["reason"] == "absence_unproven"
    assert scene.case(operation_id).absent_sightings == []
    assert scene.decision(operation_id) == ("reconcile", "outcome_unknown")
    scene.receiver.make(operation_id)
    scene.ask(operation_id)
    assert scene.state(operation_id) == "completed"


def test_a_refusal_that_nothing_can_follow_denies_by_the_contract(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    scene.receiver.make(operation_id, status="failed", why="402")
    scene.ask(operation_id)
    body = scene.agent.get(operation_id).json()
    assert body["state"] == "denied"
    assert body["denial"] == {"reason": "402", "class": "standing"}
    assert scene.decision(operation_id) == ("stop", "denied")


def test_a_rate_limit_found_later_clears_at_its_time(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    scene.receiver.make(operation_id, status="failed", why="429")
    scene.ask(operation_id)
    assert scene.decision(operation_id) == ("wait", "denial_clears_at")
    assert scene.agent.get(operation_id).json()["denial"]["clears_at"] is not None


def test_two_effects_complete_it_as_a_discrepancy_and_void_the_verification(scene: Scene) -> None:
    scene.capability(
        contract={"deduplicates": "key", "replays": "original", "key_retained_s": 86_400}, verified=True
    )
    operation_id = scene.unknown()
    references = [scene.receiver.make(operation_id), scene.receiver.make(operation_id)]
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["references"] == references
    body = scene.agent.get(operation_id).json()
    assert body["state"] == "completed"
    assert body["case"] == {"standing": "discrepancy", "flags": ["duplicate_effect"]}
    assert scene.decision(operation_id) == ("wait", "discrepancy")
    case = scene.case(operation_id)
    assert (case.kind, case.escalation, case.closed_at) == (CaseKind.DISCREPANCY, "duplicate_effect", None)
    assert case.next_check_at is not None  # hourly
    with tenancy.workspace(scene.id):
        assert not Capability.objects.get(pk=scene.workspace.known["refund.create"].pk).verified


# F31
def test_another_amount_completes_it_as_a_discrepancy_with_the_difference(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id, amount="1200.00")
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["differences"] == [
        {"field": "$.amount", "intended": "120.00", "found": "1200.00"}
    ]
    assert scene.agent.get(operation_id).json()["case"]["flags"] == ["diverged_effect"]
    assert scene.decision(operation_id) == ("wait", "discrepancy")


def test_a_discrepancy_is_asked_about_again_and_moves_nothing(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id, amount="1200.00")
    scene.ask(operation_id)
    before = scene.case(operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["kind"] == "evidence_only"
    after = scene.case(operation_id)
    assert (after.closed_at, after.version, after.escalated_at) == (None, before.version, before.escalated_at)


# What it does not settle.


# C07 C11 F27 F28: every answer that proves nothing keeps it unknown, with a note of what was said
@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        # a server error, perhaps after applying the effect
        ((500, b"oops"), "unclear", "http_500"),
        # not allowed to look
        ((403, b"{}"), "unclear", "http_403"),
        # "not found", where the configuration does not say that this answer means absence
        ((404, b"{}"), "unclear", "http_404"),
        # no JSON
        ((200, b"<html>"), "unclear", "bad_body"),
        # a page of a list that goes on
        ((200, b'{"data": [], "has_more": true}'), "absence_unproven", ""),
        # still under way
        ((200, {"status": "pending"}), "in_progress", ""),
        # a status that the contract does not list
        ((200, {"status": "booked"}), "unlisted_status", ""),
    ],
)
def test_an_answer_that_proves_nothing_keeps_it_unknown(
    scene: Scene, answer: tuple[int, Any], reason: str, said: str
) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    status, body = answer
    if isinstance(body, dict):
        item = {"id": "re_9", "operation_id": operation_id, "amount": "120.00", **body}
        body = json.dumps({"data": [item], "has_more": False}).encode()
    scene.receiver.answer = lambda _: (status, body)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert (recorded.verdict["kind"], recorded.verdict["reason"]) == ("ask_again", reason)
    assert scene.decision(operation_id) == ("reconcile", "outcome_unknown")
    case = scene.case(operation_id)
    assert case.closed_at is None
    assert said in case.last_answer
    assert case.next_check_at is not None
    assert case.next_check_at > case.last_asked_at


# F27
def test_a_receiver_that_hangs_is_given_up_after_its_time(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.delay_s = 3
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    recorded = services.look_up(claim.workspace_id, claim.case_id, claim.fence, timeout_s=0.3)
    assert recorded is not None
    assert recorded.finding["why"] == "timeout"
    assert scene.state(operation_id) == "unknown"


def test_nobodys_effect_is_handed_to_a_person_at_once(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make("", asked_as=operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["reason"] == "unattributed_effect"
    case = scene.case(operation_id)
    assert (case.escalation, case.kind) == ("unattributed_effect", CaseKind.UNKNOWN)


def test_an_effect_of_another_operation_on_record_is_not_ours(scene: Scene) -> None:
    operation_id, other = scene.unknown(), scene.unknown()
    scene.age(operation_id, 10)
    scene.receiver.make(other, asked_as=operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["reason"] == "absence_unproven"  # the first sighting of none of ours


# The budget, and people.


def test_when_the_budget_is_used_a_person_is_called_and_the_receiver_asked_hourly(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.answer = lambda _: (500, b"oops")
    scene.ask(operation_id)
    scene.age(operation_id, BUDGET_S)
    scene.change_case(operation_id, lookups=BUDGET_LOOKUPS - 1)
    before = scene.case(operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert (recorded.verdict["kind"], recorded.verdict["reason"]) == ("escalate", "receiver_unreachable")
    case = scene.case(operation_id)
    assert case.escalation == "receiver_unreachable"
    assert case.escalated_at is not None
    assert case.version == before.version + 1
    assert timedelta(minutes=59) < case.next_check_at - case.last_asked_at < timedelta(minutes=61)
    # It goes on, and what is found late still settles it.
    scene.receiver.answer = lambda _: None
    scene.receiver.make(operation_id)
    scene.ask(operation_id)
    assert scene.state(operation_id) == "completed"
    assert scene.case(operation_id).closed_by == "reconciler"


# C31 C96
@pytest.mark.parametrize(
    "columns",
    [
        {"contract": OPAQUE, "reconciler": None},  # the receiver offers no look-up
        {"reconciler": None},  # it does, and nobody configured how
    ],
)
def test_what_cannot_be_asked_goes_straight_to_a_person(scene: Scene, columns: dict[str, Any]) -> None:
    scene.capability(**columns)
    operation_id = scene.unknown()
    scene.sweep()
    case = scene.case(operation_id)
    assert (case.escalation, case.next_check_at) == ("operator_only", None)
    assert scene.decision(operation_id) == ("reconcile", "outcome_unknown")
    assert scene.receiver.asked == []
    assert scene.workspace.entries(operation_id)[-1].event == "escalated"


def test_a_callback_is_waited_for_and_nothing_is_asked(scene: Scene) -> None:
    scene.capability(contract={"lookup": "callback"}, reconciler=None)
    operation_id = scene.unknown()
    scene.sweep()
    case = scene.case(operation_id)
    assert (case.escalated_at, case.last_reason) == (None, "awaiting_callback")
    assert scene.ask(operation_id) is not None
    assert scene.case(operation_id).escalated_at is None
    assert scene.lookups(operation_id) == []  # waiting is no look-up
    scene.age(operation_id, BUDGET_S)
    scene.ask(operation_id)
    assert scene.case(operation_id).escalation == "still_pending"


# Leases, fences, and workers that die.


# C13
def test_an_answer_under_an_old_fence_changes_nothing(scene: Scene) -> None:
    operation_id = scene.unknown()
    slow = scene.begun(operation_id)
    scene.change_case(operation_id, leased_until=CLOCK - timedelta(seconds=1))
    quick = scene.claim(operation_id)
    assert quick.fence > slow.fence
    scene.receiver.make(operation_id)
    before = scene.case(operation_id)
    evidence = len(scene.workspace.evidence(operation_id))
    assert services.record_finding(slow, ask_receiver(slow.question)) is None
    after = scene.case(operation_id)
    assert (after.lookups, after.version, after.leased_until) == (
        before.lookups,
        before.version,
        before.leased_until,
    )
    assert scene.state(operation_id) == "unknown"
    assert len(scene.workspace.evidence(operation_id)) == evidence
    assert [lookup.verdict for lookup in scene.lookups(operation_id)] == ["dropped"]
    assert services.look_up(quick.workspace_id, quick.case_id, quick.fence) is not None
    assert scene.state(operation_id) == "completed"


# F18
def test_a_job_that_is_delivered_twice_asks_once(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    first = services.look_up(claim.workspace_id, claim.case_id, claim.fence)
    again = services.look_up(claim.workspace_id, claim.case_id, claim.fence)
    assert first is not None
    assert again is None
    assert scene.receiver.questions_about(operation_id) == 1


def test_one_claim_is_begun_once_however_many_jobs_carry_it(scene: Scene) -> None:
    operation_id = scene.unknown()
    asked = scene.begun(operation_id)
    assert services.begin(scene.id, asked.case_id, asked.fence) is None


# F6 F8 C44
def test_a_claim_whose_worker_died_is_given_out_again_after_its_lease(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    dead = scene.claim(operation_id)
    assert not [claim for claim in services.claim(at_most=500) if claim.case_id == dead.case_id]
    scene.change_case(operation_id, leased_until=CLOCK - timedelta(seconds=1))
    assert scene.claim(operation_id).fence == dead.fence + 1


# F7
def test_an_answer_that_was_never_written_is_asked_for_again_and_concluded_once(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    lost = scene.begun(operation_id)
    ask_receiver(lost.question)  # and the worker dies with the answer in its hands
    scene.change_case(operation_id, leased_until=CLOCK - timedelta(seconds=1))
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert scene.receiver.questions_about(operation_id) == 2
    events = [entry.event for entry in scene.workspace.entries(operation_id)]
    assert events.count("complete") == 1


# C37
def test_what_kills_its_worker_each_time_comes_to_a_person_and_starves_nobody(scene: Scene) -> None:
    poison, healthy = scene.unknown(), scene.unknown()
    scene.receiver.make(healthy)
    for _ in range(UNANSWERED_MAX):
        scene.begun(poison)
    assert scene.case(poison).escalated_at is None
    scene.make_due(poison)
    claim = scene.claim(poison)
    assert services.look_up(claim.workspace_id, claim.case_id, claim.fence) is None
    case = scene.case(poison)
    assert (case.escalation, case.leased_until, case.unanswered) == ("look_up_failed", None, 0)
    assert case.next_check_at is not None
    assert scene.receiver.questions_about(poison) == 0
    scene.ask(healthy)
    assert scene.state(healthy) == "completed"


# C37
def test_an_operation_whose_look_up_always_fails_backs_off_and_never_counts_as_done(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.answer = lambda _: (500, b"oops")
    pauses = []
    for _ in range(6):
        scene.ask(operation_id)
        case = scene.case(operation_id)
        pauses.append((case.next_check_at - case.last_asked_at).total_seconds())
    assert pauses[5] > 2 * pauses[1]
    assert (case.lookups, case.closed_at) == (6, None)
    assert scene.state(operation_id) == "unknown"


def test_nothing_of_ours_is_locked_while_a_receiver_is_asked(scene: Scene) -> None:
    operation_id = scene.unknown()
    locked: list[bool] = []

    def answer(_: str) -> None:
        def look() -> None:
            try:
                with tenancy.workspace(scene.id):
                    Case.objects.select_for_update(nowait=True).get(pk=scene.case(operation_id).pk)
                    locked.append(False)
            finally:
                connection.close()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    scene.receiver.answer = answer
    scene.ask(operation_id)
    assert locked == [False]


def test_a_look_up_inside_a_transaction_is_refused(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    with pytest.raises(AssertionError), transaction.atomic():
        services.look_up(claim.workspace_id, claim.case_id, claim.fence)
    assert scene.receiver.questions_about(operation_id) == 0


# When the world moves meanwhile.


# C34
def test_a_runtime_and_a_look_up_that_agree_complete_once(scene: Scene) -> None:
    operation_id, ask = scene.dispatched()
    scene.agent.report(operation_id, 1, UNKNOWN, nonce=ask)
    reference = scene.receiver.make(operation_id)
    asked = scene.begun(operation_id)
    finding = ask_receiver(asked.question)
    scene.agent.report(operation_id, 1, {**COMPLETED, "receiver_reference": reference}, nonce=ask)
    recorded = services.record_finding(asked, finding)
    assert recorded is not None
    events = [entry.event for entry in scene.workspace.entries(operation_id)]
    assert events.count("complete") == 1
    assert scene.workspace.facts(operation_id).row["outcome_source"] == "runtime"
    assert scene.case(operation_id).closed_at is not None
    assert scene.decision(operation_id) == ("resume", "effect_exists")


def test_a_second_reference_beside_the_runtimes_is_a_discrepancy(scene: Scene) -> None:
    operation_id, ask = scene.dispatched()
    scene.agent.report(operation_id, 1, UNKNOWN, nonce=ask)
    scene.receiver.make(operation_id)
    asked = scene.begun(operation_id)
    finding = ask_receiver(asked.question)
    scene.agent.report(operation_id, 1, {**COMPLETED, "receiver_reference": "re_other"}, nonce=ask)
    services.record_finding(asked, finding)
    assert scene.decision(operation_id) == ("wait", "discrepancy")
    assert scene.case(operation_id).closed_at is None


def test_an_older_absence_does_not_dispute_what_a_runtime_completed_since(scene: Scene) -> None:
    operation_id, ask = scene.dispatched()
    scene.agent.report(operation_id, 1, UNKNOWN, nonce=ask)
    scene.age(operation_id, 10)
    scene.ask(operation_id)
    scene.age(operation_id, 10)
    asked = scene.begun(operation_id)
    finding = ask_receiver(asked.question)
    scene.agent.report(operation_id, 1, COMPLETED, nonce=ask)
    recorded = services.record_finding(asked, finding)
    assert recorded is not None
    assert recorded.verdict["reason"] == "absent"
    assert scene.state(operation_id) == "completed"
    assert scene.workspace.facts(operation_id).standing == "none"


# F40
def test_an_effect_found_after_a_person_ruled_it_out_is_a_discrepancy_with_a_case(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    asked = scene.begun(operation_id)
    operator = scene.workspace.person("operator")
    services.resolve(
        scene.id,
        operation_id,
        operator,
        "did_not_happen",
        version=scene.case(operation_id).version,
        remark="Looked through the receiver's list by hand.",
        evidence="dashboard, page 3: nothing for this order",
    )
    assert scene.state(operation_id) == "denied"
    scene.receiver.make(operation_id)
    recorded = scene.answered_now(operation_id, asked)
    assert recorded is not None
    assert scene.state(operation_id) == "unknown"
    assert scene.decision(operation_id) == ("wait", "discrepancy")
    first, second = scene.cases(operation_id)
    assert first.closed_at is not None
    assert (second.kind, second.closed_at) == (CaseKind.DISCREPANCY, None)
    assert second.escalation == "contradicted"


def test_late_evidence_about_an_abandoned_operation_is_kept_and_moves_nothing(scene: Scene) -> None:
    operation_id = scene.unknown()
    asked = scene.begun(operation_id)
    _abandon(scene, operation_id)
    scene.receiver.make(operation_id)
    recorded = services.record_finding(asked, ask_receiver(asked.question))
    assert recorded is not None
    assert recorded.verdict["kind"] == "evidence_only"
    assert scene.decision(operation_id) == ("stop", "abandoned")
    scene.sweep()
    assert len(scene.cases(operation_id)) == 1  # the case is not opened again
    assert scene.workspace.evidence(operation_id)[-1].claim == "completed"


def _abandon(scene: Scene, operation_id: str) -> None:
    first, second = scene.workspace.person("operator"), scene.workspace.person("operator")
    version = scene.case(operation_id).version
    remark = "The receiver is gone for good."
    services.resolve(scene.id, operation_id, first, "abandoned", version=version, remark=remark)
    version = scene.case(operation_id).version
    services.confirm(scene.id, operation_id, second, version=version, remark=remark)


def test_an_operation_that_is_unknown_again_after_a_retry_gets_a_case_of_its_own(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.age(operation_id, 10)
    scene.ask(operation_id)
    scene.age(operation_id, 10)
    scene.ask(operation_id)
    assert scene.state(operation_id) == "denied"
    ask = nonce()
    assert scene.agent.ask(operation_id, 2, nonce=ask).status_code == 201
    scene.agent.report(operation_id, 2, UNKNOWN, nonce=ask)
    scene.sweep()
    first, second = scene.cases(operation_id)
    assert (first.closed_by, second.closed_at, second.lookups) == ("reconciler", None, 0)


# What is kept.


def test_what_the_receiver_was_asked_unlocks_the_retry_of_a_receiver_that_replays(scene: Scene) -> None:
    replays = {"deduplicates": "key", "replays": "original", "key_retained_s": 86_400}
    scene.capability(contract={**replays, "key_claimed": "before_effect"}, verified=True)
    operation_id = scene.unknown()
    assert scene.decision(operation_id) == ("reconcile", "outcome_unknown")
    scene.receiver.answer = lambda _: (500, b"oops")
    scene.ask(operation_id)
    assert scene.decision(operation_id) == ("reconcile", "outcome_unknown")  # it was not told anything
    scene.receiver.answer = lambda _: None
    scene.ask(operation_id)
    assert scene.decision(operation_id) == ("retry", "receiver_replays")


def test_values_that_the_capability_hides_are_not_kept_with_the_look_up(scene: Scene) -> None:
    match = {"$.amount": "/arguments/amount", "$.status": "/arguments/order_id"}
    scene.capability(sensitive=["/amount"], reconciler={**RECONCILER, "match": match})
    operation_id = scene.unknown()
    scene.receiver.make(operation_id, amount="666.66")
    recorded = scene.ask(operation_id)
    assert recorded is not None
    hidden, shown = recorded.verdict["differences"]
    assert hidden == {"field": "$.amount", "intended": "(hidden)", "found": "(hidden)"}
    assert shown["intended"] == operation_id
    kept = json.dumps([lookup.detail for lookup in scene.lookups(operation_id)])
    assert "120.00" not in kept
    assert "666.66" not in kept


def test_arguments_that_are_sealed_are_compared_in_clear(scene: Scene) -> None:
    scene.capability(sensitive=["/amount"])
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    recorded = scene.ask(operation_id)
    assert recorded is not None
    assert recorded.verdict["reason"] == "effect_found"


# F33
@pytest.mark.parametrize("odd", ["\0", "\ud800", "a\u202eb", "x" * 5_000])
def test_odd_texts_of_a_receiver_are_recorded_all_the_same(scene: Scene, odd: str) -> None:
    operation_id = scene.unknown()
    asked = scene.begun(operation_id)
    item = Item(
        status=ItemStatus.COMPLETED,
        reference=f"re_{odd}",
        raw_status=odd,
        attributed_to=odd,
        ours=True,
        differences=(Difference("$.name", odd, odd),),
    )
    finding = Finding(
        FindingKind.ITEMS, items=(item,), raw=odd.encode("utf-8", "surrogatepass"), scope=odd, why=odd
    )
    assert services.record_finding(asked, finding) is not None
    assert scene.state(operation_id) == "completed"


def test_the_arguments_of_the_question_are_those_of_the_intent(scene: Scene) -> None:
    scene.capability(sensitive=["/order_id"])
    operation_id = scene.unknown(
        business_reference="order-991", amount={"value": "120.00", "currency": "EUR"}
    )
    question = scene.begun(operation_id).question
    assert question.arguments == {"order_id": operation_id, "amount": "120.00", "currency": "EUR"}
    assert question.business_reference == "order-991"
    assert question.amount == {"value": "120.00", "currency": "EUR"}
    assert question.idempotency_key == scene.workspace.facts(operation_id).row["idempotency_key"]


@pytest.mark.parametrize("which", ["sweep", "ask"])
def test_another_workspaces_case_cannot_be_looked_up(scene: Scene, other_workspace: Any, which: str) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    scene.make_due(operation_id)
    claim = scene.claim(operation_id)
    doors: dict[str, Callable[[], object]] = {
        "sweep": lambda: services.look_up(other_workspace.id, claim.case_id, claim.fence),
        "ask": lambda: services.begin(other_workspace.id, claim.case_id, claim.fence),
    }
    assert doors[which]() is None
    assert scene.receiver.questions_about(operation_id) == 0

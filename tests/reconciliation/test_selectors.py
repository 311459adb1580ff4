"""What the pages are given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ledger import tenancy
from reconciliation import services
from reconciliation.models import CLOCK, Case
from reconciliation.selectors import Tab, case_page, queue
from tests.arrange import OPAQUE, Arranged
from tests.reconciliation.scene import Scene


def names(scene: Scene, tab: Tab) -> list[str]:
    return [row.operation_id for row in queue(scene.id, tab).rows]


@pytest.fixture
def operator(workspace: Arranged) -> Any:
    return workspace.person("operator")


def test_each_case_stands_under_one_tab_and_is_counted_there(scene: Scene, operator: Any) -> None:
    reconciling, disputed, snoozed, resolved = (scene.unknown() for _ in range(4))
    missing = scene.workspace.operation_id()
    scene.agent.put_intent(missing, scene.workspace.intent(expect="recorded"))
    scene.capability("order.place", contract=OPAQUE, reconciler=None)
    person = scene.unknown(capability="order.place")
    scene.capability("mail.send", contract={"lookup": "callback"}, reconciler=None)
    callback = scene.unknown(capability="mail.send")
    scene.receiver.make(disputed, amount="1.00")
    scene.receiver.make(resolved)
    for operation_id in (disputed, resolved):
        scene.ask(operation_id)
    services.resolve(
        scene.id,
        snoozed,
        operator,
        "wait",
        version=scene.case(snoozed).version,
        remark="The receiver answers on Monday.",
        wait_until=scene.workspace.facts(snoozed).now + timedelta(days=2),
    )
    expected = {
        Tab.NEEDS_PERSON: {person, missing},
        Tab.RECONCILING: {reconciling},
        Tab.CALLBACK: {callback},
        Tab.DISCREPANCIES: {disputed},
        Tab.SNOOZED: {snoozed},
        Tab.RESOLVED: {resolved},
    }
    for tab, wanted in expected.items():
        assert set(names(scene, tab)) == wanted
    counts = queue(scene.id, Tab.RECONCILING).counts
    assert counts == {tab: len(wanted) for tab, wanted in expected.items() if tab is not Tab.RESOLVED}


def test_a_row_says_what_is_at_stake(scene: Scene) -> None:
    scene.capability(
        risk="high",
        summary="Refund {amount} to order {order_id}",
        contract={"deduplicates": "key", "key_retained_s": 3600, "replays": "original"},
    )
    operation_id = scene.unknown(amount={"value": "120.00", "currency": "EUR"})
    scene.receiver.answer = lambda _: (500, b"oops")
    scene.ask(operation_id)
    (row,) = queue(scene.id, Tab.RECONCILING).rows
    assert row.what == f"Refund EUR 120.00 to order {operation_id}"
    assert (row.receiver, row.risk, row.why, row.attempts) == ("acme-pay", "high", "timeout", 1)
    assert "http_500" in row.last_answer
    assert row.dispatched_at is not None
    assert row.key_expires_at == row.dispatched_at + timedelta(hours=1)
    assert row.next_check_at is not None


def test_pages_follow_each_other_without_gaps(scene: Scene) -> None:
    operations = [scene.unknown() for _ in range(5)]
    scene.sweep()
    seen: list[str] = []
    after = None
    while True:
        page = queue(scene.id, Tab.RECONCILING, after, limit=2)
        seen += [row.operation_id for row in page.rows]
        after = page.next
        if after is None:
            break
    assert sorted(seen) == sorted(operations)
    assert len(seen) == 5


@pytest.mark.parametrize("after", ["", "x", "2026-11-30~", "~3", "nonsense~3"])
def test_a_place_that_there_is_not_is_refused(scene: Scene, after: str) -> None:
    with pytest.raises(ValueError):
        queue(scene.id, Tab.RECONCILING, after)


def test_another_workspace_sees_nothing(scene: Scene, other_workspace: Arranged) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    assert queue(other_workspace.id, Tab.RECONCILING).rows == ()
    assert set(queue(other_workspace.id, Tab.RECONCILING).counts.values()) == {0}
    assert case_page(other_workspace.id, operation_id) is None


def test_the_page_of_an_unknown_shows_what_was_found_beside_what_was_intended(scene: Scene) -> None:
    operation_id = scene.unknown(purpose="the customer asked for it")
    scene.receiver.make(operation_id, amount="1200.00", status="pending")
    scene.ask(operation_id)
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.case is not None
    assert page.facts is not None
    assert [(one.field, one.intended, one.found) for one in page.differences] == [
        ("$.amount", "120.00", "1200.00")
    ]
    assert page.arguments["order_id"] == operation_id
    assert page.purpose == "the customer asked for it"
    assert page.lookup is not None
    assert page.lookup.verdict["reason"] == "in_progress"
    assert page.can_be_asked
    assert page.bound is not None
    kinds = [line.kind for line in page.timeline]
    assert kinds.count("lookup") == 1
    assert [line.at for line in page.timeline] == sorted(line.at for line in page.timeline)
    assert {offer.kind for offer in page.offers} >= {"happened", "did_not_happen", "wait", "abandoned"}
    assert page.evidence[-1].authenticated


def test_hidden_values_do_not_leave(scene: Scene) -> None:
    scene.capability(sensitive=["/order_id"], summary="Refund order {order_id}")
    operation_id = scene.unknown()
    scene.sweep()
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.arguments == {"order_id": None, "amount": "120.00", "currency": "EUR"}
    assert operation_id not in page.sentence
    (row,) = queue(scene.id, Tab.RECONCILING).rows
    assert operation_id not in row.what


def test_the_page_of_a_settled_operation_offers_nothing(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.receiver.make(operation_id)
    scene.ask(operation_id)
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.offers == ()
    assert page.case is not None
    assert page.case.closed_by == "reconciler"


def test_a_name_that_is_not_on_record_has_a_page_once_somebody_spoke_of_it(scene: Scene) -> None:
    operation_id = scene.workspace.operation_id()
    assert case_page(scene.id, operation_id) is None
    scene.agent.put_intent(operation_id, scene.workspace.intent(expect="recorded"))
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.case is None
    scene.sweep()
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.facts is None
    assert {offer.kind for offer in page.offers} == {"happened", "did_not_happen", "wait"}
    assert [line.kind for line in page.timeline] == ["parked"]


def test_a_proposal_is_shown_with_who_made_it(scene: Scene, operator: Any) -> None:
    operation_id = scene.unknown()
    scene.sweep()
    version = scene.case(operation_id).version
    services.resolve(
        scene.id, operation_id, operator, "abandoned", version=version, remark="The receiver is gone."
    )
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.case is not None
    assert page.case.proposal is not None
    assert (page.case.proposal.kind, page.case.proposal.by) == ("abandoned", operator.email)
    (row,) = queue(scene.id, Tab.RECONCILING).rows
    assert row.awaits_second_person


def test_the_queue_takes_the_same_few_queries_however_long_it_is(scene: Scene) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            queue(scene.id, Tab.RECONCILING)
        return len(captured)

    scene.unknown()
    scene.sweep()
    one = queries()
    for _ in range(4):
        scene.unknown()
    scene.sweep()
    assert queries() == one
    assert one <= 9


def test_the_queue_reads_open_cases_by_their_index(scene: Scene) -> None:
    with tenancy.workspace(scene.id), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cases = Case.objects.filter(workspace_id=scene.id, closed_at=None).order_by("opened_at", "id")[:51]
        plan = cases.explain()
    assert "open_cases" in plan
    assert "Sort" not in plan


def test_a_lease_that_ended_shows_no_look_up_under_way(scene: Scene) -> None:
    operation_id = scene.unknown()
    scene.begun(operation_id)
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.case is not None
    assert page.case.being_asked
    scene.change_case(operation_id, leased_until=CLOCK - timedelta(seconds=1))
    page = case_page(scene.id, operation_id)
    assert page is not None
    assert page.case is not None
    assert not page.case.being_asked

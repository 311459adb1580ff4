"""Sequences that try for a second effect: each step is allowed, and together they must not be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from ledger import tenancy
from ledger.services import settle
from ledger.services.outcomes import park
from ledger.services.settlement import Conclusion
from ledger.services.writing import Actor, Shown, lock_name
from ledger.states import Event, Standing
from tests.arrange import COMPLETED, DECLINED, NOT_SENT, UNKNOWN, Agent, Arranged, in_process, nonce
from tests.ledger.api.steps import ask, dispatch, ok, own_arguments, problem, record

ANOTHER = {**COMPLETED, "receiver_reference": "re_2"}


def _attempts(body: dict[str, Any]) -> list[str]:
    return [attempt["state"] for attempt in body["attempts"]]


# What was said not to have happened, and then is shown


@pytest.mark.parametrize("said", [NOT_SENT, DECLINED])
def test_an_effect_that_is_shown_after_all_stops_the_retry(
    agent: Agent, workspace: Arranged, said: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, said, nonce=held.nonce))

    problem(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce), 409, "evidence-conflict")

    body = ok(agent.get(held.operation_id))
    assert (body["state"], body["case"]["standing"]) == ("unknown", "discrepancy")
    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "discrepancy")


def test_an_effect_of_what_was_given_up_is_a_discrepancy(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    ok(agent.withdraw(held.operation_id))

    problem(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce), 409, "evidence-conflict")

    body = ok(agent.get(held.operation_id))
    assert (body["state"], body["case"]["standing"]) == ("unknown", "discrepancy")


@pytest.mark.parametrize("second", [None, UNKNOWN])
def test_an_effect_of_an_earlier_attempt_completes_whatever_was_said_of_it(
    agent: Agent, workspace: Arranged, second: dict[str, Any] | None
) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    again = ask(agent, held.operation_id, 2)
    if second is not None:
        ok(agent.report(held.operation_id, 2, second, nonce=again.nonce))

    problem(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce), 409, "evidence-conflict")

    body = ok(agent.get(held.operation_id))
    assert (body["state"], body["outcome"]["receiver_reference"]) == ("completed", "re_1")
    ok(agent.report(held.operation_id, 2, NOT_SENT, nonce=again.nonce))
    body = ok(agent.get(held.operation_id))
    assert (body["state"], _attempts(body)) == ("completed", ["not_sent", "not_sent"])
    problem(agent.ask(held.operation_id, 3, nonce=nonce()), 409, "settled")


def test_two_attempts_with_an_effect_each_are_a_duplicate(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    again = ask(agent, held.operation_id, 2)
    ok(agent.report(held.operation_id, 2, ANOTHER, nonce=again.nonce))

    problem(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce), 409, "evidence-conflict")

    body = ok(agent.get(held.operation_id))
    assert (body["state"], body["case"]) == (
        "completed",
        {"standing": "discrepancy", "flags": ["duplicate_effect"]},
    )


# Effects of attempts that nobody permitted


@pytest.mark.parametrize("first", [None, UNKNOWN])
def test_an_effect_without_a_permit_completes_what_is_unsettled(
    agent: Agent, workspace: Arranged, first: dict[str, Any] | None
) -> None:
    held = dispatch(agent, workspace)
    if first is not None:
        ok(agent.report(held.operation_id, 1, first, nonce=held.nonce))

    problem(agent.report(held.operation_id, 9, COMPLETED), 409, "stale-attempt")

    ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))
    assert ok(agent.get(held.operation_id))["state"] == "completed"
    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "settled")


def test_a_second_reference_without_a_permit_is_a_duplicate(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    for _ in range(2):
        problem(agent.report(held.operation_id, 2, ANOTHER), 409, "stale-attempt")

    assert len(workspace.evidence(held.operation_id)) == 2, "the same report again is not kept again"
    body = ok(agent.get(held.operation_id))
    assert body["case"] == {"standing": "discrepancy", "flags": ["duplicate_effect"]}


@pytest.mark.parametrize("warm", [False, True])
def test_an_intent_waits_for_evidence_that_is_being_parked(
    agent: Agent, workspace: Arranged, warm: bool
) -> None:
    operation_id = workspace.operation_id()
    if warm:  # from now on intents take the one-statement path
        record(agent, workspace)

    def put() -> dict[str, Any]:
        try:
            intent = workspace.intent(dispatch=True)
            return ok(in_process(workspace.token).put_intent(operation_id, intent, nonce=nonce()), 201)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with tenancy.workspace(workspace.id):
            lock_name(workspace.id, operation_id, parks=True)
            answer = pool.submit(put)
            with pytest.raises(TimeoutError):
                answer.result(0.5)
            park(workspace.id, operation_id, 1, Shown.of(b"{}"), "support-agent")
        body = answer.result(10)

    assert (body["state"], body["permit"]) == ("unknown", None)


def test_a_report_waits_for_an_intent_that_is_being_recorded(agent: Agent, workspace: Arranged) -> None:
    operation_id = workspace.operation_id()

    def report() -> dict[str, Any]:
        try:
            return problem(
                in_process(workspace.token).report(operation_id, 1, COMPLETED), 409, "stale-attempt"
            )
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with tenancy.workspace(workspace.id):
            ok(agent.put_intent(operation_id, workspace.intent()), 201)
            answer = pool.submit(report)
            with pytest.raises(TimeoutError):
                answer.result(0.5)
        assert answer.result(10)["recorded"] is True

    assert ok(agent.get(operation_id))["case"]["standing"] == "discrepancy"


# Relations


def test_a_denied_compensation_is_given_up_before_there_is_another(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))
    undo = dispatch(agent, workspace, compensates=held.operation_id)
    ok(agent.report(undo.operation_id, 1, NOT_SENT, nonce=undo.nonce))  # it may be retried
    other = workspace.intent(arguments=own_arguments(), compensates=held.operation_id)

    problem(agent.put_intent("op-undo-2", other), 409, "already-compensated")

    ok(agent.withdraw(undo.operation_id))
    ok(agent.put_intent("op-undo-2", other), 201)


def test_another_runtimes_operation_cannot_be_superseded(agent: Agent, workspace: Arranged) -> None:
    theirs = record(agent, workspace, actor={"subject": "agent:refunds-1"})
    stranger = in_process(workspace.second_token(subjects=["agent:mail-*"]))
    mine = workspace.intent(actor={"subject": "agent:mail-1"}, arguments=own_arguments(), supersedes=theirs)

    problem(stranger.put_intent("op-mine", mine), 409, "not-supersedable")

    assert ok(agent.get(theirs))["state"] == "intended"


@pytest.fixture
def disputed(agent: Agent, workspace: Arranged) -> tuple[str, str]:
    """(old, new): superseded, then shown to have an effect that nobody permitted."""
    old = record(agent, workspace)
    new = record(agent, workspace, supersedes=old)
    problem(agent.report(old, 1, COMPLETED), 409, "stale-attempt")
    assert ok(agent.get(old))["state"] == "unknown"
    return old, new


def decided(workspace: Arranged, operation_id: str, *events: Event) -> None:
    """A person's decision about it."""
    conclusion = Conclusion(
        source="operator",
        claim="decided",
        shown=Shown.of(b"{}"),
        events=events,
        receiver_reference="re_1",
        denial_reason="did_not_happen",
        denial_class="cleared",
        standing=Standing.NONE,
    )
    settle(workspace.id, operation_id, Actor("user", "olive@example.org"), conclusion)


def test_a_superseded_operation_is_never_dispatched_beside_its_successor(
    agent: Agent, workspace: Arranged, disputed: tuple[str, str]
) -> None:
    old, new = disputed

    decided(workspace, old, Event.DENY)

    problem(agent.ask(old, 1, nonce=nonce()), 409, "denied")
    ok(agent.ask(new, 1, nonce=nonce()), 201)


def test_a_successor_is_held_while_what_it_superseded_may_have_an_effect(
    agent: Agent, workspace: Arranged, disputed: tuple[str, str]
) -> None:
    old, new = disputed

    refused = problem(agent.ask(new, 1, nonce=nonce()), 409, "possible-duplicate")

    assert refused["possible_duplicates"] == [old]
    decided(workspace, old, Event.COMPLETE)
    problem(agent.ask(new, 1, nonce=nonce()), 409, "possible-duplicate")
    ok(agent.withdraw(new))


# Whose word it is


def test_a_reference_alone_is_the_runtimes_word_on_both_paths(agent: Agent, workspace: Arranged) -> None:
    alone = {"outcome": "completed", "receiver_reference": "re_1"}
    quick, late = dispatch(agent, workspace), dispatch(agent, workspace)
    workspace.end_lease(late.operation_id)

    for held in (quick, late):
        ok(agent.report(held.operation_id, 1, alone, nonce=held.nonce))
        assert [row.source for row in workspace.evidence(held.operation_id)] == ["runtime"]

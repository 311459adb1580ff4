"""The connection between web and database is lost around one statement: F11 and F12, and the second try that follows.

Whoever lost a connection cannot know whether its statement took effect. So the API asks once more on a fresh one, and
what it says must be true either way: the permit of the very nonce, never a second one, never none that is on record.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.arrange import COMPLETED, NOT_SENT, UNKNOWN, Agent, nonce
from tests.faults.own import Own
from tests.faults.proxy import How

pytestmark = pytest.mark.processes


@pytest.fixture
def agent(own: Own, service: str) -> Agent:
    return own.agent(service)


CUTS = [
    # statement, whether it was done, and what the caller is told after the second try
    pytest.param(How.CUT_BEFORE, 201, False, id="never arrived: done by the second try"),
    pytest.param(How.CUT_AFTER, 200, True, id="done, its reply lost: found by the second try"),
]


# F11 F12: one statement that records the intent and opens attempt 1
@pytest.mark.parametrize(("how", "status", "replayed"), CUTS)
def test_an_intent_with_its_permit_is_given_once_over_a_lost_connection(
    own: Own, agent: Agent, how: How, status: int, replayed: bool
) -> None:
    operation_id, mine = own.operation_id(), nonce()
    intent = own.intent(operation_id, dispatch=True)
    own.proxy.arm("ledger_record_intent", how)
    first = agent.put_intent(operation_id, intent, nonce=mine)
    assert own.proxy.met == 1
    assert (first.status_code, first.json().get("replayed")) == (status, replayed), first.text
    assert own.attempts(operation_id) == ["open"]
    check_given_once(own, agent, operation_id, intent, mine, first.json()["permit"])


# F11 F12: the same for the permit of an intent that is on record
@pytest.mark.parametrize(("how", "status", "replayed"), CUTS)
def test_a_permit_is_given_once_over_a_lost_connection(
    own: Own, agent: Agent, how: How, status: int, replayed: bool
) -> None:
    operation_id, mine = own.operation_id(), nonce()
    intent = own.intent(operation_id)
    assert agent.put_intent(operation_id, intent).status_code == 201
    own.proxy.arm("ledger_ask_permit", how)
    first = agent.ask(operation_id, 1, nonce=mine)
    assert own.proxy.met == 1
    assert (first.status_code, first.json()["replayed"]) == (status, replayed)
    check_given_once(own, agent, operation_id, intent, mine, first.json()["permit"])


# F11 F12: a second attempt goes the long way, a transaction of several statements that COMMIT ends
@pytest.mark.parametrize(("how", "status", "replayed"), CUTS)
def test_a_second_attempt_is_permitted_once_over_a_lost_commit(
    own: Own, agent: Agent, how: How, status: int, replayed: bool
) -> None:
    operation_id, mine = own.operation_id(), nonce()
    intent = own.intent(operation_id, dispatch=True)
    assert agent.put_intent(operation_id, intent, nonce=mine).status_code == 201
    assert agent.report(operation_id, 1, NOT_SENT, nonce=mine).status_code == 200
    second = nonce()
    own.proxy.arm("COMMIT", how)
    answer = agent.ask(operation_id, 2, nonce=second)
    assert own.proxy.met == 1
    assert (answer.status_code, answer.json()["replayed"]) == (status, replayed)
    permit = answer.json()["permit"]
    again = agent.ask(operation_id, 2, nonce=second)
    assert again.status_code == 200 and again.json()["permit"]["token"] == permit["token"]
    assert agent.ask(operation_id, 2, nonce=nonce()).json()["code"] == "attempt-in-flight"
    assert own.attempts(operation_id) == ["not_sent", "open"]
    assert agent.report(operation_id, 2, NOT_SENT, nonce=second).status_code == 200


def check_given_once(
    own: Own, agent: Agent, operation_id: str, intent: dict[str, Any], mine: str, permit: dict[str, Any]
) -> None:
    """The same nonce finds the same permit by both calls, another one waits, and one outcome ends it."""
    for again in (
        agent.ask(operation_id, 1, nonce=mine),
        agent.put_intent(operation_id, {**intent, "dispatch": True}, nonce=mine),
    ):
        assert again.status_code == 200 and again.json()["replayed"]
        assert again.json()["permit"]["token"] == permit["token"]
    other = agent.ask(operation_id, 1, nonce=nonce())
    assert (other.status_code, other.json()["code"]) == (409, "attempt-in-flight")
    reference = own.make_effect(operation_id, permit)
    done = agent.report(operation_id, 1, {**COMPLETED, "receiver_reference": reference}, nonce=mine)
    assert (done.status_code, done.json()["state"]) == (200, "completed")
    assert own.attempts(operation_id) == ["completed"]


# F5 F11 F12: each way an outcome is written, lost before and after
@pytest.mark.parametrize("how", [How.CUT_BEFORE, How.CUT_AFTER])
@pytest.mark.parametrize(
    ("needle", "report", "state"),
    [
        ("ledger_report_completed", COMPLETED, "completed"),  # one statement
        ("COMMIT", NOT_SENT, "denied"),  # a transaction
        ("COMMIT", UNKNOWN, "unknown"),
    ],
)
def test_an_outcome_is_written_once_over_a_lost_connection(
    own: Own, agent: Agent, needle: str, report: dict[str, Any], state: str, how: How
) -> None:
    operation_id, mine = own.operation_id(), nonce()
    permit = agent.put_intent(operation_id, own.intent(operation_id, dispatch=True), nonce=mine).json()[
        "permit"
    ]
    if state == "completed":
        report = {**report, "receiver_reference": own.make_effect(operation_id, permit)}
    own.proxy.arm(needle, how)
    answer = agent.report(operation_id, 1, report, nonce=mine)
    assert own.proxy.met == 1
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["stored_as"]) == (
        state, {"denied": "not_sent"}.get(state, state)
    )  # fmt: skip
    assert agent.report(operation_id, 1, report, nonce=mine).status_code == 200
    ends = "SELECT count(*) FROM ledger_evidence v JOIN ledger_invocation i ON i.id = v.invocation_id WHERE operation_id = %s"
    assert own.rows(ends, operation_id) == [(1,)]


# F11 F12 I14: lost again and again, the answer is typed, says that asking again is safe, and gives no permit
@pytest.mark.parametrize("how", [How.CUT_BEFORE, How.CUT_AFTER])
def test_a_database_that_keeps_losing_connections_is_unavailable(own: Own, agent: Agent, how: How) -> None:
    operation_id, mine = own.operation_id(), nonce()
    intent = own.intent(operation_id, dispatch=True)
    own.proxy.arm("ledger_", how, times=1000)  # every statement of ours
    lost = agent.put_intent(operation_id, intent, nonce=mine)
    asked = agent.ask(operation_id, 1, nonce=mine)
    read = agent.get(operation_id)
    reported = agent.report(operation_id, 1, UNKNOWN, nonce=mine)
    own.proxy.disarm()
    for answer in (lost, asked, read):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "unavailable"), problem
        assert problem["repeat_request"] and problem["retryable"] is False
        assert problem["effect_may_have_happened"] is not True
        assert "permit" not in problem
    problem = reported.json()
    assert (reported.status_code, problem["code"]) == (503, "post-dispatch-evidence-failed")
    assert problem["repeat_request"] and problem["reconciliation_required"]
    assert problem["retryable"] is False and problem["effect_may_have_happened"] is True
    # The repeat finds what was done, if it was, and does what was not.
    again = agent.put_intent(operation_id, intent, nonce=mine)
    assert again.status_code in (200, 201) and again.json()["permit"] is not None
    assert own.attempts(operation_id) == ["open"]
    assert agent.report(operation_id, 1, NOT_SENT, nonce=mine).status_code == 200

"""PUT …/attempts/{n}/outcome: what a report counts for, and that none is ever lost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger import services, tenancy
from ledger.keys import current
from ledger.models import Runtime
from ledger.permits import read, sign
from ledger.services.writing import SYSTEM
from ledger.states import Standing
from tests.arrange import (
    COMPLETED,
    DECLINED,
    NOT_SENT,
    OPAQUE,
    REPLAYS,
    UNKNOWN,
    Agent,
    Arranged,
    in_process,
    nonce,
)
from tests.ledger.api.steps import Dispatched, ask, dispatch, lost, ok, own_arguments, problem, record


def answered(status: int | None, **fields: Any) -> dict[str, Any]:
    """A refusal with the receiver's answer."""
    return {"outcome": "denied", "evidence": {"source": "receiver_response", "http_status": status}, **fields}


# What a report of the permit's holder counts for

COUNTS: list[tuple[dict[str, Any], str, str, str, str]] = [
    # (report, stored_as, the attempt's state, the operation's, dispatched)
    (COMPLETED, "completed", "completed", "completed", "yes"),
    # the receiver's reference is enough
    ({"outcome": "completed", "receiver_reference": "re_1"}, "completed", "completed", "completed", "yes"),
    # so is its answer
    (
        {"outcome": "completed", "evidence": {"http_status": 201}},
        "completed",
        "completed",
        "completed",
        "yes",
    ),
    ({"outcome": "completed", "evidence": {"body": {"id": 7}}}, "completed", "completed", "completed", "yes"),
    # an effect is never derived from the runtime's own success
    ({"outcome": "completed"}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "completed", "result": {"ok": True}}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "completed", "evidence": {}}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "completed", "evidence": {"body": None}}, "unknown", "lost", "unknown", "yes"),
    (
        {"outcome": "completed", "evidence": {"source": "receiver_response"}},
        "unknown",
        "lost",
        "unknown",
        "yes",
    ),
    # nor from an answer that says something else
    (
        {"outcome": "completed", "evidence": {"http_status": 500, "body": "oops"}},
        "unknown",
        "lost",
        "unknown",
        "yes",
    ),
    ({"outcome": "completed", "evidence": {"http_status": 302}}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "completed", "evidence": {"http_status": 404}}, "unknown", "lost", "unknown", "yes"),
    (DECLINED, "denied", "denied", "denied", "yes"),
    # C32: failed without an answer is not failed
    ({"outcome": "denied"}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "denied", "denial": {"reason": "card_declined"}}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "denied", "evidence": {"body": {"error": "declined"}}}, "unknown", "lost", "unknown", "yes"),
    (NOT_SENT, "not_sent", "not_sent", "denied", "no"),
    ({"outcome": "not_sent"}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "not_sent", "fault": "timeout"}, "unknown", "lost", "unknown", "yes"),
    (UNKNOWN, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "unknown"}, "unknown", "lost", "unknown", "yes"),
    ({"outcome": "unknown", "fault": "timeout", "retry_after_s": 30}, "unknown", "lost", "unknown", "yes"),
]


@pytest.mark.parametrize(("report", "stored_as", "attempt", "state", "dispatched"), COUNTS)
def test_a_report_counts_for_what_it_shows(
    agent: Agent,
    workspace: Arranged,
    report: dict[str, Any],
    stored_as: str,
    attempt: str,
    state: str,
    dispatched: str,
) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    assert body["stored_as"] == stored_as
    assert body["attempts"][0]["state"] == attempt
    assert body["state"] == state
    assert body["dispatched"] == dispatched
    assert body["effect"] == {"completed": "yes", "denied": "no", "unknown": "unknown"}[state]
    assert body["evidence"] == ("missing" if state == "unknown" else "preserved")
    assert body["reservation"] == ("held" if state == "unknown" else "released")
    assert body["reconciliation_required"] is (state == "unknown")
    assert body["permit"] is None
    kept = workspace.evidence(held.operation_id)
    assert [json.loads(bytes(row.raw)) for row in kept] == [report], "the report is kept as it came"
    assert ok(agent.get(held.operation_id))["state"] == state


LISTED = (400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 429)


@pytest.mark.parametrize("status", LISTED)
def test_a_refusal_that_the_contract_lists_denies(agent: Agent, workspace: Arranged, status: int) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, answered(status), nonce=held.nonce))

    assert (body["stored_as"], body["state"], body["effect"]) == ("denied", "denied", "no")
    assert body["denial"]["reason"] == f"http_{status}"
    assert body["denial"]["class"] == ("clears_at" if status == 429 else "standing")
    assert body["outcome"]["outcome"] == "denied"
    assert body["outcome"]["source"] == "runtime"


@pytest.mark.parametrize(
    "status", [None, 100, 200, 202, 301, 307, 406, 408, 409, 418, 425, 451, 500, 502, 503, 504, 999]
)
def test_any_other_answer_proves_no_refusal(agent: Agent, workspace: Arranged, status: int | None) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, answered(status), nonce=held.nonce))

    assert (body["stored_as"], body["state"], body["effect"]) == ("unknown", "unknown", "unknown")
    problem(agent.ask(held.operation_id, 2, nonce=nonce()), 409, "reconciliation-required")


def test_the_contracts_own_refusals_replace_the_usual_ones(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(contract={**OPAQUE, "refusals": {402: "cleared", 451: {"clears_after_s": 90}}})
    cleared, later, unlisted = (dispatch(agent, workspace) for _ in range(3))

    body = ok(agent.report(cleared.operation_id, 1, answered(402), nonce=cleared.nonce))
    assert (body["denial"]["class"], body["decision"]["action"]) == ("cleared", "retry")
    body = ok(agent.report(later.operation_id, 1, answered(451), nonce=later.nonce))
    assert _seconds_until(body["denial"]["clears_at"]) == pytest.approx(90, abs=5)
    body = ok(agent.report(unlisted.operation_id, 1, answered(404), nonce=unlisted.nonce))
    assert body["state"] == "unknown"


def _seconds_until(text: str) -> float:
    return (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize(
    ("status", "said", "denial_class", "clears_in_s"),
    [
        (429, {}, "clears_at", 60),  # the contract's own
        (429, {"retry_after_s": 300}, "clears_at", 300),  # the receiver asked for more
        (429, {"retry_after_s": 5}, "clears_at", 60),  # less is milder
        (429, {"denial": {"clears_after_s": 400}}, "clears_at", 400),
        (429, {"denial": {"class": "standing"}}, "standing", None),  # a runtime may be stricter
        (429, {"denial": {"class": "cleared"}}, "clears_at", 60),  # never milder
        (402, {"denial": {"class": "cleared"}}, "standing", None),
        (402, {"denial": {"class": "clears_at", "clears_after_s": 1}}, "standing", None),
    ],
)
def test_a_runtime_may_only_be_stricter_than_the_contract(
    agent: Agent,
    workspace: Arranged,
    status: int,
    said: dict[str, Any],
    denial_class: str,
    clears_in_s: float | None,
) -> None:
    held = dispatch(agent, workspace)

    denial = ok(agent.report(held.operation_id, 1, answered(status, **said), nonce=held.nonce))["denial"]

    assert denial["class"] == denial_class
    if clears_in_s is None:
        assert "clears_at" not in denial
    else:
        assert _seconds_until(denial["clears_at"]) == pytest.approx(clears_in_s, abs=5)


@pytest.mark.parametrize(
    "fault",
    ["never_attempted", "local_reject", "dns_failure", "connection_refused", "connect_timeout", "tls_failed"],
)
def test_nothing_was_sent_where_nothing_can_have_been(agent: Agent, workspace: Arranged, fault: str) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, {"outcome": "not_sent", "fault": fault}, nonce=held.nonce))

    assert (body["stored_as"], body["dispatched"], body["denial"]["reason"]) == ("not_sent", "no", fault)
    assert body["decision"] == {**body["decision"], "action": "retry", "reason": "denial_cleared"}


@pytest.mark.parametrize("fault", ["timeout", "read_timeout", "connection_reset", "cancelled", "DNS_FAILURE"])
def test_any_other_fault_may_have_sent_something(agent: Agent, workspace: Arranged, fault: str) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, {"outcome": "not_sent", "fault": fault}, nonce=held.nonce))

    assert (body["stored_as"], body["state"]) == ("unknown", "unknown")
    assert body["attempts"][0]["fault"] == fault


# Who says so

OTHERS = ["no nonce", "another nonce", "another runtime"]


def _other(agent: Agent, workspace: Arranged, who: str) -> tuple[Agent, str | None]:
    match who:
        case "no nonce":
            return agent, None
        case "another nonce":
            return agent, nonce()
    return in_process(workspace.second_token()), None


@pytest.mark.parametrize("who", OTHERS)
@pytest.mark.parametrize(
    "report",
    [
        {"outcome": "completed", "receiver_reference": "re_1"},  # a reference alone is hearsay
        {"outcome": "completed"},
        {"outcome": "completed", "receiver_reference": "re_1", "evidence": {"http_status": 500}},
        DECLINED,
        NOT_SENT,
        UNKNOWN,
    ],
)
def test_from_others_a_report_is_a_claim_and_the_attempt_stays_open(
    agent: Agent, workspace: Arranged, who: str, report: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    other, shown = _other(agent, workspace, who)

    body = ok(other.report(held.operation_id, 1, report, nonce=shown))

    assert body["stored_as"] == "claim"
    assert (body["state"], body["attempts"][0]["state"]) == ("dispatched", "open")
    assert body["decision"]["reason"] == "attempt_in_flight"
    assert [row.stored_as for row in workspace.evidence(held.operation_id)] == ["claim"]
    # The holder's permit stands, and so does its word.
    ok(agent.ask(held.operation_id, 1, nonce=held.nonce))
    assert ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))["state"] == "completed"


@pytest.mark.parametrize("who", OTHERS)
def test_from_others_the_receivers_answer_that_shows_the_effect_counts(
    agent: Agent, workspace: Arranged, who: str
) -> None:
    held = dispatch(agent, workspace)
    other, shown = _other(agent, workspace, who)

    body = ok(other.report(held.operation_id, 1, COMPLETED, nonce=shown))

    assert (body["stored_as"], body["state"]) == ("completed", "completed")
    problem(agent.ask(held.operation_id, 1, nonce=held.nonce), 409, "settled")


@pytest.mark.parametrize("report", [DECLINED, NOT_SENT, UNKNOWN])
def test_a_claim_repeated_by_the_holder_counts(
    agent: Agent, workspace: Arranged, report: dict[str, Any]
) -> None:
    held = lost(agent, workspace)
    assert ok(agent.report(held.operation_id, 1, report))["stored_as"] == "claim"

    body = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    assert body["stored_as"] == report["outcome"]
    assert body["state"] == ("unknown" if report is UNKNOWN else "denied")


def test_a_claim_repeated_writes_nothing_more(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    first = ok(agent.report(held.operation_id, 1, DECLINED))
    for _ in range(3):
        again = ok(agent.report(held.operation_id, 1, DECLINED))
        assert (again["version"], again["stored_as"]) == (first["version"], "claim")
    assert len(workspace.evidence(held.operation_id)) == 1


@pytest.mark.parametrize(
    ("narrow", "report"),
    [
        ({"scopes": ["intent", "permit", "read"]}, COMPLETED),
        ({"capabilities": ["order.*"]}, COMPLETED),
        ({"subjects": ["agent:billing-*"]}, COMPLETED),
    ],
)
def test_a_token_that_does_not_cover_the_operation_reports_nothing(
    agent: Agent, workspace: Arranged, narrow: dict[str, list[str]], report: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    other = in_process(workspace.second_token(**narrow))

    problem(other.report(held.operation_id, 1, report), 403, "forbidden")

    assert workspace.evidence(held.operation_id) == []


# The permit's own token


def _bearing(token: str) -> Agent:
    return in_process(token)


def _revoke(workspace: Arranged) -> None:
    with tenancy.workspace(workspace.id):
        Runtime.objects.filter(workspace_id=workspace.id).update(revoked_at=datetime.now(UTC))


@pytest.mark.parametrize("report", [COMPLETED, DECLINED, NOT_SENT, UNKNOWN])
def test_a_revoked_runtime_reports_with_the_permits_token(
    agent: Agent, workspace: Arranged, report: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    _revoke(workspace)
    problem(agent.report(held.operation_id, 1, report, nonce=held.nonce), 401, "unauthenticated")

    body = ok(_bearing(held.token).report(held.operation_id, 1, report))

    assert body["stored_as"] == report["outcome"]
    expected = {"completed": "completed", "unknown": "unknown"}.get(report["outcome"], "denied")
    assert body["state"] == expected


def test_the_permits_token_may_come_beside_a_runtimes(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, NOT_SENT, permit_token=held.token))

    assert body["stored_as"] == "not_sent"


def test_a_permit_still_reports_after_its_lease(agent: Agent, workspace: Arranged) -> None:
    held = lost(agent, workspace)

    assert ok(_bearing(held.token).report(held.operation_id, 1, COMPLETED))["state"] == "completed"


def test_a_permit_is_a_credential_for_its_own_attempt_only(agent: Agent, workspace: Arranged) -> None:
    held, other = dispatch(agent, workspace), dispatch(agent, workspace)
    stranger = _bearing(held.token)

    problem(stranger.report(other.operation_id, 1, COMPLETED), 403, "forbidden")
    problem(stranger.report("op-nobody-knows", 1, COMPLETED), 403, "forbidden")
    problem(stranger.report(held.operation_id, 2, COMPLETED), 403, "forbidden")
    problem(stranger.get(held.operation_id), 401, "unauthenticated")
    problem(stranger.ask(held.operation_id, 1, nonce=held.nonce), 401, "unauthenticated")
    # Beside a runtime's token it makes nobody the holder of another attempt.
    claimed = ok(agent.report(other.operation_id, 1, NOT_SENT, permit_token=held.token))
    assert claimed["stored_as"] == "claim"
    assert workspace.parked("op-nobody-knows") == []


def test_an_altered_permit_opens_nothing(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    head, payload, signature = held.token.split(".")
    for forged in (f"{head}.{payload}.{'A' * len(signature)}", f"{head}.{payload}.", f"..{signature}", ".."):
        problem(_bearing(forged).report(held.operation_id, 1, COMPLETED), 401, "unauthenticated")
    assert ok(agent.get(held.operation_id))["state"] == "dispatched"


# The same, the weaker, the opposite


# C02, I12
@pytest.mark.parametrize("report", [COMPLETED, DECLINED, NOT_SENT, UNKNOWN])
def test_the_same_report_again_changes_nothing(
    agent: Agent, workspace: Arranged, report: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    first = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    for _ in range(2):
        again = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))
        assert (again["version"], again["stored_as"]) == (first["version"], first["stored_as"])
    assert len(workspace.evidence(held.operation_id)) == 1


@pytest.mark.parametrize("settled", [COMPLETED, DECLINED, NOT_SENT])
@pytest.mark.parametrize("weaker", [UNKNOWN, {"outcome": "completed"}, {"outcome": "denied"}])
def test_a_weaker_report_is_kept_and_changes_nothing(
    agent: Agent, workspace: Arranged, settled: dict[str, Any], weaker: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    first = ok(agent.report(held.operation_id, 1, settled, nonce=held.nonce))

    body = ok(agent.report(held.operation_id, 1, weaker, nonce=held.nonce))

    assert body["stored_as"] == "unknown"
    assert (body["state"], body["outcome"]) == (first["state"], first["outcome"])
    assert body["attempts"][0]["state"] == first["attempts"][0]["state"]
    assert [row.claim for row in workspace.evidence(held.operation_id)] == [
        settled["outcome"],
        weaker["outcome"],
    ]


# C10: a late failure does not downgrade a success; the other way round: test_one_effect.py
@pytest.mark.parametrize("said", [DECLINED, NOT_SENT])
def test_the_opposite_of_whether_the_effect_exists_is_stored_and_refused(
    agent: Agent, workspace: Arranged, said: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)
    first = ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    versions = set()
    for _ in range(2):
        body = problem(agent.report(held.operation_id, 1, said, nonce=held.nonce), 409, "evidence-conflict")
        assert body["recorded"] is True
        assert body["effect_may_have_happened"] is True
        assert (body["retryable"], body["repeat_request"]) == (False, False)
        versions.add(workspace.row(held.operation_id).version)

    assert len(versions) == 1, "the same contradiction again writes nothing"
    after = ok(agent.get(held.operation_id))
    assert (after["state"], after["outcome"]) == ("completed", first["outcome"])
    assert [row.claim for row in workspace.evidence(held.operation_id)] == ["completed", said["outcome"]]
    assert workspace.entries(held.operation_id)[-1].event == "evidence_conflict"


def test_denied_and_not_sent_do_not_contradict_each_other(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, DECLINED, nonce=held.nonce))

    body = ok(agent.report(held.operation_id, 1, NOT_SENT, nonce=held.nonce))

    assert body["denial"]["reason"] == "card_declined", "what settled it stands"


def test_a_second_reference_is_a_duplicate(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    body = ok(
        agent.report(held.operation_id, 1, {**COMPLETED, "receiver_reference": "re_2"}, nonce=held.nonce)
    )

    assert body["state"] == "completed"
    assert body["case"] == {"standing": "discrepancy", "flags": ["duplicate_effect"]}
    assert body["decision"]["reason"] == "discrepancy"
    assert body["outcome"]["receiver_reference"] == "re_1"


# Late outcomes are evidence


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize(
    ("report", "state"),
    [(COMPLETED, "completed"), (DECLINED, "denied"), (NOT_SENT, "denied"), (UNKNOWN, "unknown")],
)
def test_a_late_outcome_still_counts(
    agent: Agent, workspace: Arranged, report: dict[str, Any], state: str, swept: bool
) -> None:
    held = lost(agent, workspace)
    if swept:
        services.expire_leases(limit=1000)

    body = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    assert (body["state"], body["stored_as"]) == (state, report["outcome"])


def _replaying(agent: Agent, workspace: Arranged) -> tuple[Dispatched, Dispatched]:
    """Attempt 1 is lost, attempt 2 in flight under the same key."""
    contract = {**REPLAYS, "lookup": "none"}
    workspace.capability(contract=contract, verified=True, lease_s=5)
    first = lost(agent, workspace)
    return first, ask(agent, first.operation_id, 2)


# C13: an old holder cannot end the new attempt
def test_an_old_holder_speaks_for_its_own_attempt_only(agent: Agent, workspace: Arranged) -> None:
    first, second = _replaying(agent, workspace)

    body = ok(agent.report(first.operation_id, 2, NOT_SENT, nonce=first.nonce))
    assert (body["stored_as"], body["attempts"][1]["state"]) == ("claim", "open")
    body = ok(agent.report(first.operation_id, 1, NOT_SENT, nonce=first.nonce))
    assert (body["stored_as"], body["state"]) == ("not_sent", "dispatched")
    assert [attempt["state"] for attempt in body["attempts"]] == ["not_sent", "open"]
    ok(agent.ask(first.operation_id, 2, nonce=second.nonce))


def test_evidence_of_an_earlier_attempt_completes_the_operation(agent: Agent, workspace: Arranged) -> None:
    first, second = _replaying(agent, workspace)

    body = ok(agent.report(first.operation_id, 1, COMPLETED, nonce=first.nonce))

    assert body["state"] == "completed"
    assert [attempt["state"] for attempt in body["attempts"]] == ["completed", "open"]
    problem(agent.ask(first.operation_id, 2, nonce=second.nonce), 409, "settled")
    # The open attempt's end changes the attempt only.
    body = ok(agent.report(first.operation_id, 2, NOT_SENT, nonce=second.nonce))
    assert (body["state"], body["attempts"][1]["state"]) == ("completed", "not_sent")


def test_a_denial_settles_its_attempt_only(agent: Agent, workspace: Arranged) -> None:
    first, second = _replaying(agent, workspace)

    body = ok(agent.report(first.operation_id, 2, DECLINED, nonce=second.nonce))
    assert (body["stored_as"], body["state"]) == ("denied", "unknown"), "attempt 1 may have made it"
    assert body["denial"] is None

    body = ok(agent.report(first.operation_id, 1, NOT_SENT, nonce=first.nonce))
    assert body["state"] == "denied"
    # That the first was never sent does not undo the second's refusal.
    assert body["denial"] == {"reason": "card_declined", "class": "standing"}
    problem(agent.ask(first.operation_id, 3, nonce=nonce()), 409, "denied")


@pytest.mark.parametrize("standing", [Standing.DISCREPANCY, Standing.ABANDONED])
def test_what_people_must_settle_is_not_settled_by_a_report(
    agent: Agent, workspace: Arranged, standing: Standing
) -> None:
    held = lost(agent, workspace)
    services.set_standing(workspace.id, held.operation_id, SYSTEM, standing)

    body = ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    assert body["attempts"][0]["state"] == "completed"
    assert (body["state"], body["case"]["standing"]) == ("unknown", standing)
    assert len(workspace.evidence(held.operation_id)) == 1


# For what is not on record


# F20, C43: the report came before its intent
@pytest.mark.parametrize("report", [COMPLETED, UNKNOWN, NOT_SENT])
def test_an_outcome_of_nothing_on_record_is_parked_and_met_by_its_intent(
    agent: Agent, workspace: Arranged, report: dict[str, Any]
) -> None:
    operation_id = workspace.operation_id()
    for _ in range(2):
        body = problem(agent.report(operation_id, 1, report, nonce=nonce()), 404, "no-ledger-entry")
        assert (body["recorded"], body["stored_as"]) == (True, "parked")
        assert body["effect_may_have_happened"] is True
    (parked,) = workspace.parked(operation_id)
    assert json.loads(bytes(parked.raw)) == report

    body = ok(agent.put_intent(operation_id, workspace.intent(dispatch=True), nonce=nonce()), 201)

    assert (body["state"], body["permit"], body["reservation"]) == ("unknown", None, "held")
    assert body["decision"]["reason"] == "outcome_unknown"
    assert body["dispatched"] == "unknown"
    problem(agent.ask(operation_id, 1, nonce=nonce()), 409, "reconciliation-required")
    assert [row.stored_as for row in workspace.evidence(operation_id)] == ["parked"]
    assert workspace.parked(operation_id)[0].matched_at is not None


def test_parked_evidence_that_was_cut_keeps_the_digest_of_all_of_it(
    agent: Agent, workspace: Arranged
) -> None:
    operation_id, raw = workspace.operation_id(), b"x" * 300_000
    problem(agent.report(operation_id, 1, raw=raw), 404, "no-ledger-entry")
    ok(agent.put_intent(operation_id, workspace.intent()), 201)

    (kept,) = workspace.evidence(operation_id)

    assert (bytes(kept.raw), kept.raw_size) == (raw[: 64 * 1024], len(raw))
    assert bytes(kept.raw_sha256) == hashlib.sha256(raw).digest()


def test_a_warm_process_meets_parked_evidence_too(agent: Agent, workspace: Arranged) -> None:
    record(agent, workspace)  # from now on intents take the one-statement path
    operation_id = workspace.operation_id()
    problem(agent.report(operation_id, 1, COMPLETED), 404, "no-ledger-entry")

    body = ok(agent.put_intent(operation_id, workspace.intent(dispatch=True), nonce=nonce()), 201)

    assert (body["state"], body["permit"]) == ("unknown", None)


@pytest.mark.parametrize("report", [UNKNOWN, DECLINED, {"outcome": "completed"}])
def test_an_outcome_of_an_attempt_not_on_record_is_parked(
    agent: Agent, workspace: Arranged, report: dict[str, Any]
) -> None:
    held = dispatch(agent, workspace)

    body = problem(agent.report(held.operation_id, 2, report, nonce=held.nonce), 409, "stale-attempt")

    assert (body["recorded"], body["stored_as"]) == (True, "parked")
    assert ok(agent.get(held.operation_id))["state"] == "dispatched"
    assert [row.attempt_number for row in workspace.parked(held.operation_id)] == [2]


@pytest.mark.parametrize("state", ["intended", "denied", "withdrawn"])
def test_an_effect_without_a_permit_is_a_discrepancy(agent: Agent, workspace: Arranged, state: str) -> None:
    if state == "denied":
        held = dispatch(agent, workspace)
        operation_id, number = held.operation_id, 2
        ok(agent.report(operation_id, 1, NOT_SENT, nonce=held.nonce))
    else:
        operation_id, number = record(agent, workspace), 1
    if state == "withdrawn":
        ok(agent.withdraw(operation_id))
    assert ok(agent.get(operation_id))["state"] == state

    for _ in range(2):
        body = problem(agent.report(operation_id, number, COMPLETED), 409, "stale-attempt")
        assert (body["recorded"], body["stored_as"]) == (True, "parked")

    after = ok(agent.get(operation_id))
    assert (after["state"], after["case"]["standing"]) == ("unknown", "discrepancy")
    assert after["decision"]["action"] == "wait"
    problem(agent.ask(operation_id, number, nonce=nonce()), 409, "discrepancy")
    disputes = [entry for entry in workspace.entries(operation_id) if entry.event == "dispute"]
    assert len(disputes) == 1


# F42: the backup that was restored has forgotten a dispatch; the permit proves it
@pytest.mark.parametrize(
    ("raw", "disputes"),
    [
        (json.dumps(UNKNOWN).encode(), True),
        (json.dumps({"outcome": "completed"}).encode(), True),
        (b"{", True),
        (json.dumps(NOT_SENT).encode(), False),
        (json.dumps(DECLINED).encode(), False),
    ],
)
def test_a_permit_the_record_has_forgotten_is_a_discrepancy(
    agent: Agent, workspace: Arranged, raw: bytes, disputes: bool
) -> None:
    operation_id = record(agent, workspace)
    known = ask(agent, record(agent, workspace), 1)
    statement = replace(read(known.token, current()), operation_id=operation_id)
    forgotten = sign(statement, current())

    body = problem(_bearing(forgotten).report(operation_id, 1, raw=raw), 409, "stale-attempt")

    assert (body["recorded"], body["stored_as"]) == (True, "parked")
    after = ok(agent.get(operation_id))
    assert (after["state"], after["case"]["standing"]) == (
        ("unknown", "discrepancy") if disputes else ("intended", "none")
    )
    if disputes:
        problem(agent.ask(operation_id, 1, nonce=nonce()), 409, "discrepancy")


# C14
def test_an_outcome_for_another_workspaces_operation_is_parked_in_ones_own(
    agent: Agent, workspace: Arranged, other_workspace: Arranged
) -> None:
    held = dispatch(agent, workspace)
    stranger = in_process(other_workspace.token)

    problem(stranger.report(held.operation_id, 1, COMPLETED, nonce=held.nonce), 404, "no-ledger-entry")

    assert ok(agent.get(held.operation_id))["state"] == "dispatched"
    assert workspace.evidence(held.operation_id) == []
    assert len(other_workspace.parked(held.operation_id)) == 1


# What cannot be read

UNREADABLE: list[tuple[bytes, str]] = [
    (b"", "nothing at all"),
    (b"{", "cut short"),
    (b"null", "no object"),
    (b"[]", "an array"),
    (b'"completed"', "a string"),
    (b"{}", "no outcome"),
    (b'{"outcome": "failed"}', "not a word of ours"),
    (b'{"outcome": ["completed"]}', "a list of one"),
    (b'{"outcome": "completed", "outcome": "denied"}', "a name twice"),
    (b'{"outcome": "completed", "sucess": true}', "an unknown field"),
    (b'{"outcome": "completed", "evidence": {"source": "memory"}}', "no such source"),
    (b'{"outcome": "completed", "evidence": {"http_status": "200"}}', "a status as text"),
    (b'{"outcome": "completed", "evidence": {"http_status": true}}', "a status that is true"),
    (b'{"outcome": "completed", "evidence": []}', "evidence that is a list"),
    (b'{"outcome": "denied", "denial": {"class": ["standing"]}}', "a class that is a list"),
    (b'{"outcome": "denied", "denial": {"class": "perhaps"}}', "no such class"),
    (b'{"outcome": "unknown", "retry_after_s": -1}', "before now"),
    (b'{"outcome": "unknown", "retry_after_s": 1e9}', "in thirty years"),
    (b'{"outcome": "completed", "receiver_reference": ""}', "an empty reference"),
    (b'{"outcome": "completed", "receiver_reference": 7}', "a reference that is a number"),
    (b'{"outcome": "completed", "result": NaN}', "C85: NaN"),
    (b'{"outcome": "completed", "result": 1e400}', "C18: overflow"),
    (b'{"outcome": "completed", "result": 9007199254740993}', "C18: beyond a double"),
    (b'{"outcome": "completed", "result": ' + b"7" * 5000 + b"}", "C85: 5000 digits"),
    (b'{"outcome": "completed", "result": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "C85: 100,000 deep"),
    (b'{"outcome": "completed", "result": "\\ud800"}', "C84: a lone surrogate"),
    (b'{"outcome": "completed", "\\ud800": 1}', "C84: a lone surrogate in a name"),
    (b'{"outcome": "completed", "result": "\\u0000"}', "NUL"),
    (b'{"outcome": "completed", "result": "\x00"}', "NUL, as it is"),
    (b'{"outcome": "completed", "result": "\xff\xfe"}', "not UTF-8"),
    (b"\xef\xbb\xbf{}", "a byte order mark"),
    (b"outcome=completed", "a form"),
    (b"\x1f\x8b\x08\x00", "compressed"),
]


# F33
@pytest.mark.parametrize(("raw", "why"), UNREADABLE, ids=[why for _, why in UNREADABLE])
def test_a_report_that_cannot_be_read_is_kept_and_the_attempt_unknown(
    agent: Agent, workspace: Arranged, raw: bytes, why: str
) -> None:
    held = dispatch(agent, workspace)

    for _ in range(2):
        body = problem(agent.report(held.operation_id, 1, raw=raw, nonce=held.nonce), 422, "malformed")
        assert (body["recorded"], body["stored_as"]) == (True, "unknown")
        assert body["reconciliation_required"] is True
        assert (body["retryable"], body["effect_may_have_happened"]) == (False, True)
        assert "path" in body
        assert ".." not in body["detail"]

    after = ok(agent.get(held.operation_id))
    assert (after["state"], after["attempts"][0]["fault"]) == ("unknown", "unreadable_report")
    (kept,) = workspace.evidence(held.operation_id)
    assert bytes(kept.raw) == raw[: 64 * 1024]
    assert bytes(kept.raw_sha256) == hashlib.sha256(raw).digest()
    assert kept.raw_size == len(raw)
    # A correct report is still accepted.
    assert ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))["state"] == "completed"


def test_unknown_fields_of_a_report_are_named(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    report = {**COMPLETED, "sucess": True, "foo": 1}
    body = problem(agent.report(held.operation_id, 1, report, nonce=held.nonce), 422, "malformed")

    assert body["unknown_fields"] == ["foo", "sucess"]


@pytest.mark.parametrize("size", [256 * 1024 + 1, 9 * 1024 * 1024])
def test_a_report_that_is_too_large_is_kept_in_part(agent: Agent, workspace: Arranged, size: int) -> None:
    held = dispatch(agent, workspace)
    head = b'{"outcome": "completed", "receiver_reference": "re_1", "result": "'
    raw = head + b"x" * (size - len(head) - 2) + b'"}'

    body = problem(agent.report(held.operation_id, 1, raw=raw, nonce=held.nonce), 422, "malformed")

    assert body["recorded"] is True
    (kept,) = workspace.evidence(held.operation_id)
    assert bytes(kept.raw) == raw[: 64 * 1024]
    read = raw[: 8 * 1024 * 1024]
    assert (kept.raw_size, bytes(kept.raw_sha256)) == (len(read), hashlib.sha256(read).digest())
    assert ok(agent.get(held.operation_id))["state"] == "unknown"


def test_a_large_report_within_the_limit_counts(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    report = {**COMPLETED, "result": "x" * (200 * 1024)}

    body = ok(agent.report(held.operation_id, 1, report, nonce=held.nonce))

    assert body["state"] == "completed"
    assert len(body["outcome"]["result"]) == 200 * 1024


def test_what_others_send_unreadably_ends_nothing(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)

    body = problem(agent.report(held.operation_id, 1, raw=b"{"), 422, "malformed")

    assert (body["recorded"], body["stored_as"]) == (True, "claim")
    assert ok(agent.get(held.operation_id))["state"] == "dispatched"
    # From the holder the same bytes are its last word about the attempt.
    problem(agent.report(held.operation_id, 1, raw=b"{", nonce=held.nonce), 422, "malformed")
    assert ok(agent.get(held.operation_id))["state"] == "unknown"


def test_what_is_settled_stays_settled_by_what_cannot_be_read(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    problem(agent.report(held.operation_id, 1, raw=b"{", nonce=held.nonce), 422, "malformed")

    assert ok(agent.get(held.operation_id))["state"] == "completed"


def test_what_cannot_be_read_of_nothing_on_record_is_parked(agent: Agent, workspace: Arranged) -> None:
    operation_id = workspace.operation_id()

    body = problem(agent.report(operation_id, 1, raw=b"\x00\xff{"), 404, "no-ledger-entry")

    assert body["recorded"] is True
    assert bytes(workspace.parked(operation_id)[0].raw) == b"\x00\xff{"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/xml", "\x7f;;=", "x; charset=hex"])
def test_a_report_is_read_whatever_it_is_called(
    agent: Agent, workspace: Arranged, content_type: str | None
) -> None:
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce, content_type=content_type))

    assert body["state"] == "completed"


# The receiver's answer beside what was intended

MATCH = {
    "kind": "http_lookup",
    "match": {
        "$.amount": {"to": "/arguments/amount", "as": "minor_units", "digits": 2},
        "$.currency": "/arguments/currency",
    },
}


def _shows(item: Any) -> dict[str, Any]:
    return {
        "outcome": "completed",
        "receiver_reference": "re_1",
        "evidence": {"source": "receiver_response", "http_status": 200, "body": item},
    }


@pytest.mark.parametrize(
    ("item", "flags"),
    [
        ({"amount": 12000, "currency": "EUR"}, []),
        ({"amount": "12000", "currency": "EUR", "id": "re_1"}, []),
        ({"id": "re_1"}, []),  # what it does not say is not another value
        ({"amount": 12000}, []),
        ({"amount": 1200, "currency": "EUR"}, ["diverged_effect"]),
        ({"amount": 12000, "currency": "USD"}, ["diverged_effect"]),
        ("12000 EUR", []),  # no object: nothing to compare
    ],
)
def test_evidence_is_compared_with_what_was_intended(
    agent: Agent, workspace: Arranged, item: Any, flags: list[str]
) -> None:
    workspace.capability(matches_evidence=True, reconciler=MATCH)
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, _shows(item), nonce=held.nonce))

    assert (body["state"], body["case"]["flags"]) == ("completed", flags)
    assert body["case"]["standing"] == ("discrepancy" if flags else "none")
    assert body["decision"]["action"] == ("wait" if flags else "resume")


@pytest.mark.parametrize(
    "item",
    [
        {"amount": {"nested": [1]}, "currency": ["EUR"]},
        {"amount": "1e999999", "currency": "EUR"},
        {"amount": "NaN", "currency": None},
        {"amount": True, "currency": 7},
        {"amount": "9" * 5000, "currency": "\U0001f4b6" * 1000},
        {"amount": [[[[[[[[12000]]]]]]]]},
    ],
)
def test_no_answer_of_a_receiver_makes_an_outcome_unrecordable(
    agent: Agent, workspace: Arranged, item: Any
) -> None:
    workspace.capability(matches_evidence=True, reconciler=MATCH)
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, _shows(item), nonce=held.nonce))

    assert (body["state"], body["case"]["flags"]) == ("completed", ["diverged_effect"])


def test_evidence_of_sensitive_arguments_is_compared_too(agent: Agent, workspace: Arranged) -> None:
    workspace.capability(matches_evidence=True, reconciler=MATCH, sensitive=["/amount"])
    held = dispatch(agent, workspace)

    body = ok(agent.report(held.operation_id, 1, _shows({"amount": 1, "currency": "EUR"}), nonce=held.nonce))

    assert body["case"]["flags"] == ["diverged_effect"]


# Evidence, as it is kept


def test_evidence_says_whose_word_it_is(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, UNKNOWN, nonce=held.nonce))
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    claim, answer = workspace.evidence(held.operation_id)

    assert (claim.source, claim.claim, claim.stored_as) == ("runtime", "unknown", "unknown")
    assert (answer.source, answer.claim, answer.receiver_reference) == (
        "receiver_response",
        "completed",
        "re_1",
    )
    assert not claim.authenticated and not answer.authenticated, "a runtime is not the receiver"
    assert json.loads(answer.parsed) == COMPLETED
    assert (answer.recorded_by, answer.attempt_number) == ("support-agent", 1)


@pytest.mark.parametrize("number", ["0", "01", "10000", "x"])
def test_an_attempt_number_that_cannot_exist_is_malformed(
    agent: Agent, workspace: Arranged, number: str
) -> None:
    problem(agent.report(record(agent, workspace), number, COMPLETED), 400, "malformed")


def test_the_entry_of_an_outcome_says_from_where_to_where(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace, arguments=own_arguments())
    ok(agent.report(held.operation_id, 1, COMPLETED, nonce=held.nonce))

    entry = workspace.entries(held.operation_id)[-1]

    assert (entry.event, entry.from_state, entry.to_state) == ("complete", "dispatched", "completed")
    assert (entry.actor_kind, entry.actor_name) == ("runtime", "support-agent")
    assert entry.position == workspace.row(held.operation_id).version


def test_a_report_of_a_retry_gives_the_time_to_wait(agent: Agent, workspace: Arranged) -> None:
    held = dispatch(agent, workspace)
    ok(agent.report(held.operation_id, 1, answered(429), nonce=held.nonce))

    body = ok(agent.get(held.operation_id))

    assert body["decision"]["retry_at"] == body["denial"]["clears_at"]
    workspace.change(held.operation_id, denial_clears_at=datetime.now(UTC) - timedelta(seconds=1))
    assert ok(agent.get(held.operation_id))["denial"]["class"] == "cleared"

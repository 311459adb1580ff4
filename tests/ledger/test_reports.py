"""What a report counts for, without a database: every claim against every answer a receiver can give."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.contracts import DEFAULT_REFUSALS, Contract
from ledger.decisions import STRICTNESS, DenialClass, stricter
from ledger.errors import Malformed
from ledger.reports import LONGEST_S, NOT_SENT_FAULTS, STORED_AS, Claim, Report, count, parse_report
from ledger.states import AttemptState
from tests.arrange import OPAQUE

CONTRACT = Contract.parse(OPAQUE)
LISTED = {refusal.status for refusal in DEFAULT_REFUSALS}


def _completed(**fields: Any) -> AttemptState:
    return count(parse_report({"outcome": "completed", **fields}), CONTRACT).attempt


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (None, ""),
        ([], ""),
        ("completed", ""),
        ({}, "/outcome"),
        ({"outcome": None}, "/outcome"),
        ({"outcome": "failed"}, "/outcome"),  # never a word of ours: it says nothing about the effect
        ({"outcome": "Completed"}, "/outcome"),
        ({"outcome": True}, "/outcome"),
        ({"outcome": ["completed"]}, "/outcome"),
        ({"outcome": "unknown", "state": 1}, "/state"),
        ({"outcome": "unknown", "evidence": []}, "/evidence"),
        ({"outcome": "unknown", "evidence": {"status": 200}}, "/evidence/status"),
        ({"outcome": "unknown", "evidence": {"source": "runtime"}}, "/evidence/source"),
        ({"outcome": "unknown", "evidence": {"source": None}}, "/evidence/source"),
        ({"outcome": "unknown", "evidence": {"source": ["receiver_response"]}}, "/evidence/source"),
        ({"outcome": "unknown", "evidence": {"http_status": True}}, "/evidence/http_status"),
        ({"outcome": "unknown", "evidence": {"http_status": "402"}}, "/evidence/http_status"),
        ({"outcome": "unknown", "evidence": {"http_status": 402.5}}, "/evidence/http_status"),
        ({"outcome": "unknown", "evidence": {"http_status": 99}}, "/evidence/http_status"),
        ({"outcome": "unknown", "evidence": {"http_status": 1000}}, "/evidence/http_status"),
        ({"outcome": "denied", "denial": "card_declined"}, "/denial"),
        ({"outcome": "denied", "denial": {"why": "x"}}, "/denial/why"),
        ({"outcome": "denied", "denial": {"reason": ""}}, "/denial/reason"),
        ({"outcome": "denied", "denial": {"reason": "x" * 201}}, "/denial/reason"),
        ({"outcome": "denied", "denial": {"class": "Standing"}}, "/denial/class"),
        ({"outcome": "denied", "denial": {"class": {}}}, "/denial/class"),
        ({"outcome": "denied", "denial": {"clears_after_s": True}}, "/denial/clears_after_s"),
        ({"outcome": "denied", "denial": {"clears_after_s": "60"}}, "/denial/clears_after_s"),
        ({"outcome": "unknown", "retry_after_s": -0.001}, "/retry_after_s"),
        ({"outcome": "unknown", "retry_after_s": LONGEST_S + 1}, "/retry_after_s"),
        ({"outcome": "unknown", "fault": "  "}, "/fault"),
        ({"outcome": "unknown", "fault": 504}, "/fault"),
        ({"outcome": "completed", "receiver_reference": "x" * 256}, "/receiver_reference"),
        ({"outcome": "completed", "receiver_reference": {"id": 1}}, "/receiver_reference"),
    ],
)
def test_a_report_that_could_be_misread_is_refused_with_its_path(body: object, path: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_report(body)

    assert refused.value.path == path


def test_null_is_the_same_as_left_out() -> None:
    fields = ("receiver_reference", "result", "evidence", "denial", "fault", "retry_after_s")

    assert parse_report({"outcome": "unknown", **dict.fromkeys(fields)}) == Report(Claim.UNKNOWN)


def test_an_answer_counts_by_its_status_alone() -> None:
    for status in range(100, 1000):
        denied = count(parse_report({"outcome": "denied", "evidence": {"http_status": status}}), CONTRACT)
        completed = _completed(evidence={"http_status": status, "body": {"id": "re_1"}})
        assert denied.attempt is (AttemptState.DENIED if status in LISTED else AttemptState.LOST), status
        assert completed is (AttemptState.COMPLETED if 200 <= status <= 299 else AttemptState.LOST), status


def test_a_contract_cannot_list_what_proves_nothing() -> None:
    assert LISTED.isdisjoint({408, 409, 425})
    assert all(400 <= status <= 499 for status in LISTED)


@pytest.mark.parametrize(
    ("fields", "attempt"),
    [
        ({}, AttemptState.LOST),
        ({"result": {"id": "re_1"}}, AttemptState.LOST),  # the runtime's own words
        ({"fault": "none"}, AttemptState.LOST),
        ({"evidence": {}}, AttemptState.LOST),
        ({"evidence": {"source": "receiver_response"}}, AttemptState.LOST),
        ({"evidence": {"body": None}}, AttemptState.LOST),
        ({"evidence": {"http_status": None}}, AttemptState.LOST),
        ({"evidence": {"body": ""}}, AttemptState.COMPLETED),  # an answer, and an empty one
        ({"evidence": {"http_status": 204}}, AttemptState.COMPLETED),
        ({"receiver_reference": "re_1"}, AttemptState.COMPLETED),
        # A reference is the receiver's own name for the effect, whatever the answer's status was.
        ({"receiver_reference": "re_1", "evidence": {"http_status": 409}}, AttemptState.COMPLETED),
    ],
)
def test_an_effect_is_never_derived_from_the_runtimes_own_success(
    fields: dict[str, Any], attempt: AttemptState
) -> None:
    assert _completed(**fields) is attempt


def test_nothing_was_sent_for_six_faults_only() -> None:
    for fault in [*NOT_SENT_FAULTS, None, "timeout", "unknown", "connection_reset", "Connection_Refused"]:
        counted = count(Report(Claim.NOT_SENT, fault=fault), CONTRACT)
        proven = fault in NOT_SENT_FAULTS
        assert counted.attempt is (AttemptState.NOT_SENT if proven else AttemptState.LOST)
        assert counted.denial_class is (DenialClass.CLEARED if proven else None)
    assert len(NOT_SENT_FAULTS) == 6


@pytest.mark.parametrize(
    "shown",
    [
        {"receiver_reference": "re_1"},
        {"evidence": {"http_status": 200}},
        {"evidence": {"http_status": 503}},  # whoever answers has been sent something
        {"evidence": {"body": {"id": "re_1"}}},
    ],
)
def test_nothing_was_sent_is_not_believed_beside_the_receivers_answer(shown: dict[str, Any]) -> None:
    report = parse_report({"outcome": "not_sent", "fault": "connection_refused", **shown})

    assert count(report, CONTRACT).attempt is AttemptState.LOST


def test_unknown_is_unknown_whatever_is_shown_beside_it() -> None:
    shown = {"outcome": "unknown", "receiver_reference": "re_1", "evidence": {"http_status": 402}}

    assert count(parse_report(shown), CONTRACT).attempt is AttemptState.LOST


@pytest.mark.parametrize("listed", DenialClass)
@pytest.mark.parametrize("said", [None, *DenialClass])
def test_a_runtime_is_at_most_stricter_than_the_contract(
    listed: DenialClass, said: DenialClass | None
) -> None:
    rule = {"clears_after_s": 60} if listed is DenialClass.CLEARS_AT else listed.value
    contract = Contract.parse({**OPAQUE, "refusals": {402: rule}})
    report = Report(Claim.DENIED, http_status=402, denial_class=said, clears_after_s=30)

    counted = count(report, contract)

    assert counted.denial_class is (listed if said is None else stricter(listed, said))
    assert STRICTNESS.index(counted.denial_class) >= STRICTNESS.index(listed)
    if counted.denial_class is DenialClass.CLEARS_AT:
        assert counted.clears_after_s == (60 if listed is DenialClass.CLEARS_AT else 30)


def test_the_longest_of_three_waits_counts() -> None:
    for contract_s, runtime_s, receiver_s in [
        (60, 0, 0),
        (60, 90, 0),
        (60, 0, 90),
        (60, 80, 90),
        (60, 90, 80),
    ]:
        contract = Contract.parse({**OPAQUE, "refusals": {429: {"clears_after_s": contract_s}}})
        report = Report(Claim.DENIED, http_status=429, clears_after_s=runtime_s, retry_after_s=receiver_s)
        assert count(report, contract).clears_after_s == max(contract_s, runtime_s, receiver_s)


def test_a_refusal_has_a_reason_even_where_nobody_gave_one() -> None:
    assert count(Report(Claim.DENIED, http_status=402), CONTRACT).reason == "http_402"
    assert count(Report(Claim.DENIED, http_status=402, reason="declined"), CONTRACT).reason == "declined"


def test_what_nobody_knows_is_never_stored_as_failed() -> None:
    assert STORED_AS == {
        AttemptState.COMPLETED: "completed",
        AttemptState.DENIED: "denied",
        AttemptState.NOT_SENT: "not_sent",
        AttemptState.LOST: "unknown",
    }

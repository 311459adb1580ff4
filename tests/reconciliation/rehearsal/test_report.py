from __future__ import annotations

import json

import pytest

from reconciliation.rehearsal.calls import Call, Contract
from reconciliation.rehearsal.players import Claim, Played, SettledBy
from reconciliation.rehearsal.report import COUNTERFOIL, SETTLEMENTS, call_rows, score, table
from reconciliation.rehearsal.truth import Truth


def played(number: int, claim: Claim, **more: object) -> Played:
    call = Call(line=number, task="t", step=str(number), tool="refund", arguments="{}", name=f"t:{number}")
    return Played(call, Contract.OPAQUE, claim, operation_id=call.name, **more)  # type: ignore[arg-type]


# claim, effects at the receiver -> duplicates, claimed and not there, there and denied
JUDGED = [
    (Claim.COMPLETED, 0, (0, 1, 0)),
    (Claim.COMPLETED, 1, (0, 0, 0)),
    (Claim.COMPLETED, 3, (2, 0, 0)),
    (Claim.DENIED, 0, (0, 0, 0)),
    (Claim.DENIED, 1, (0, 0, 1)),
    (Claim.DENIED, 2, (1, 0, 1)),
    # to say that it is not known contradicts nothing, but a second effect stays a second effect
    (Claim.UNKNOWN, 0, (0, 0, 0)),
    (Claim.UNKNOWN, 1, (0, 0, 0)),
    (Claim.UNKNOWN, 2, (1, 0, 0)),
    (Claim.NOT_DISPATCHED, 0, (0, 0, 0)),
    (Claim.NOT_DISPATCHED, 1, (0, 0, 1)),
    (Claim.REFUSED, 0, (0, 0, 0)),
    (Claim.REFUSED, 1, (0, 0, 1)),
]


def test_the_table_of_judgements_names_every_claim() -> None:
    assert {claim for claim, *_ in JUDGED} == set(Claim)


@pytest.mark.parametrize(("claim", "effects", "expected"), JUDGED)
def test_a_claim_is_judged_by_the_receivers_ledger(
    claim: Claim, effects: int, expected: tuple[int, int, int]
) -> None:
    judged = score("p", [played(1, claim)], {"t:1": Truth(effects=effects)})
    assert (judged.duplicates, judged.completed_without_effect, judged.effect_without_claim) == expected
    assert judged.effects == effects
    assert judged.clean is (expected == (0, 0, 0))


def test_a_call_that_never_arrived_has_no_effect() -> None:
    assert score("p", [played(1, Claim.COMPLETED)], {}).completed_without_effect == 1


def test_two_equal_calls_with_one_effect_each_are_no_duplicate() -> None:
    truths = {"t:1": Truth(effects=1), "t:2": Truth(effects=1)}
    assert score("p", [played(1, Claim.COMPLETED), played(2, Claim.COMPLETED)], truths).clean


def test_numbers_are_summed_over_the_calls() -> None:
    accounts = [
        played(1, Claim.COMPLETED, dispatches=2, blind_dispatches=1, settled_by=SettledBy.LOOKUP),
        played(2, Claim.UNKNOWN, dispatches=1, settled_by=SettledBy.PERSON_NEEDED),
        played(3, Claim.REFUSED, reason="malformed: /arguments/n does not round-trip"),
        played(4, Claim.REFUSED, reason="malformed: duplicate name"),
        played(5, Claim.REFUSED, reason="too-large: 300 KiB"),
    ]
    judged = score("p", accounts, {"t:1": Truth(effects=1)}).as_json()
    assert judged["dispatches"] == 3
    assert judged["dispatches_without_evidence"] == 1
    assert judged["unknowns"]["total"] == 2
    assert judged["unknowns"]["settled_by"] == {
        "runtime": 0,
        "lookup": 1,
        "callback": 0,
        "operator": 0,
        "person_needed": 1,
        "still_asked": 0,
    }
    assert judged["refused"] == {"total": 3, "by_code": {"malformed": 2, "too-large": 1}}
    assert judged["claims"]["refused"] == 3


def test_every_way_of_settling_has_its_line() -> None:
    assert {kind for kind, _ in SETTLEMENTS} == set(SettledBy)


def test_the_table_shows_the_zeros_that_matter_and_no_other() -> None:
    shown = table([score(COUNTERFOIL, [played(1, Claim.COMPLETED)], {"t:1": Truth(effects=1)})])
    assert "duplicate effects" in shown
    assert "effects lost" in shown
    assert "callback" not in shown
    widths = {len(line) for line in shown.splitlines()}
    assert len(widths) == 1


def test_rows_can_be_written_as_json() -> None:
    account = played(1, Claim.DENIED, settled_by=SettledBy.LOOKUP, flags=("duplicate_effect",))
    (row,) = json.loads(json.dumps(call_rows([account], {"t:1": Truth(effects=1, faults=("cut",))})))
    assert row["faults"] == ["cut"]
    assert row["unknown_settled_by"] == "lookup"
    assert (row["claim"], row["effects"]) == ("denied", 1)


def test_only_what_is_held_behind_an_unknown_one_counts_as_held() -> None:
    accounts = [
        played(1, Claim.NOT_DISPATCHED, reason="possible_duplicate"),
        played(2, Claim.NOT_DISPATCHED, reason="paused"),
        played(3, Claim.UNKNOWN, reason="outcome_unknown"),
    ]
    assert score("p", accounts, {}).held == 1

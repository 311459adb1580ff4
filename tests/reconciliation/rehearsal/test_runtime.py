from __future__ import annotations

from typing import Any

import pytest

from ledger.states import State
from reconciliation.rehearsal.players import Claim, SettledBy
from reconciliation.rehearsal.runtime import claim_of, escalated, settled_by
from reconciliation.verdicts import VerdictKind

LOST = [{"number": 1, "state": "lost"}]

CLAIMS: list[tuple[State, list[dict[str, Any]], Claim]] = [
    (State.INTENDED, [], Claim.NOT_DISPATCHED),
    (State.DISPATCHED, [{"number": 1, "state": "open"}], Claim.UNKNOWN),
    (State.COMPLETED, [{"number": 1, "state": "completed"}], Claim.COMPLETED),
    (State.UNKNOWN, LOST, Claim.UNKNOWN),
    (State.DENIED, [{"number": 1, "state": "denied"}], Claim.DENIED),
    # refused before any permit: nothing was sent
    (State.DENIED, [], Claim.NOT_DISPATCHED),
    (State.WITHDRAWN, [], Claim.NOT_DISPATCHED),
]


def test_the_table_of_claims_names_every_state() -> None:
    assert {state for state, *_ in CLAIMS} == set(State)


@pytest.mark.parametrize(("state", "attempts", "claim"), CLAIMS)
def test_a_claim_is_what_the_record_says(state: State, attempts: list[dict[str, Any]], claim: Claim) -> None:
    assert claim_of({"state": state, "attempts": attempts}) is claim


# I7
def test_unknown_is_never_claimed_as_denied() -> None:
    assert claim_of({"state": "unknown", "attempts": LOST}) is not Claim.DENIED


@pytest.mark.parametrize(
    ("outcome", "by"),
    [
        ({"source": "runtime"}, SettledBy.RUNTIME),
        ({"source": "lookup"}, SettledBy.LOOKUP),
        ({"source": "callback"}, SettledBy.CALLBACK),
        ({"source": "operator"}, SettledBy.OPERATOR),
        (None, SettledBy.RUNTIME),
    ],
)
def test_who_settled_it_is_read_from_the_outcome(outcome: dict[str, str] | None, by: SettledBy) -> None:
    assert settled_by({"outcome": outcome}) is by


@pytest.mark.parametrize("kind", VerdictKind)
def test_only_an_escalation_hands_over_to_a_person(kind: VerdictKind) -> None:
    assert escalated({"kind": kind.value}) is (kind is VerdictKind.ESCALATE)


def test_nothing_asked_is_no_escalation() -> None:
    assert not escalated(None)

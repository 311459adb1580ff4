"""An operation in words: nothing sensitive, nothing invented."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.decisions import Action, Decision, Reason
from ledger.states import Standing, State
from ledger.wording import SOURCES, Loudness, badge, leaves, sentence, told, told_to_agent

ARGUMENTS = {
    "order": {"id": "8841"},
    "amount": "80.00",
    "card": {"number": None},
    "tags": ["a/b"],
    "empty": {},
}


def say(template: str, **changes: Any) -> str:
    given: dict[str, Any] = {"capability": "refund.create", "arguments": ARGUMENTS, "amount": None} | changes
    return sentence(template, **given)


def test_a_hidden_value_is_in_no_sentence() -> None:
    assert say("Charge {/card/number}", sensitive=["/card"]) == "Charge ‹hidden›"
    assert say("Charge {/card/number}", everything=True) == "Charge ‹hidden›"
    assert "8841" not in say("", everything=True)
    assert "8841" not in say("", sensitive=["/order"])


def test_a_value_that_is_not_there_is_said_to_be_missing() -> None:
    assert say("To {customer}") == "To ‹missing›"
    assert say("To {customer}", arguments=None) == "To ‹missing›"


@pytest.mark.parametrize(
    ("template", "amount", "expected"),
    [
        ("Refund {amount}", {"value": "80.00", "currency": "EUR"}, "Refund EUR 80.00"),  # the recorded amount
        ("Refund {amount}", None, "Refund 80.00"),  # a member of that name
        ("Order {/order/id}", None, "Order 8841"),  # a pointer
        ("Tag {/tags/0}", None, "Tag a/b"),  # into a list
        ("{order} {order", None, "‹several values› {order"),  # an object, and a brace that opens nothing
        ("", {"value": "80.00", "currency": "EUR"}, "refund.create EUR 80.00"),  # no template
        ("", None, "refund.create: id 8841, amount 80.00, 0 a/b"),  # nor amount: the first plain values
    ],
)
def test_a_sentence_is_the_capabilitys_own(template: str, amount: Any, expected: str) -> None:
    assert say(template, amount=amount) == expected


def test_every_value_has_a_line_and_hidden_ones_no_text() -> None:
    lines = {leaf.pointer: leaf for leaf in leaves(ARGUMENTS, ["/card/number"])}
    assert set(lines) == {"/order/id", "/amount", "/card/number", "/tags/0", "/empty"}
    assert lines["/card/number"].hidden
    assert lines["/card/number"].text == ""
    assert lines["/empty"].text == "no members"


def test_names_that_look_like_paths_are_escaped() -> None:
    assert [leaf.pointer for leaf in leaves({"a/b": {"c~d": 1}})] == ["/a~1b/c~0d"]


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("standing", list(Standing))
def test_every_state_has_a_word_and_unknown_is_never_failed(state: State, standing: Standing) -> None:
    loudness, word = badge(state, standing)
    assert loudness in Loudness
    assert word
    assert "fail" not in word.lower()
    if standing is Standing.DISCREPANCY:
        assert loudness is Loudness.DISCREPANCY


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_a_decision_has_words_of_its_own(reason: Reason) -> None:
    said = told_to_agent(Decision(Action.STOP, reason, "mandate_revoked"))
    assert said.endswith(": mandate revoked")
    assert not said.startswith(reason.value.replace("_", " ") + ":")
    assert "fail" not in said


@pytest.mark.parametrize("source", list(SOURCES))
def test_an_end_names_its_source_once_and_in_words(source: str) -> None:
    one = told("deny", "denied", {"why": source, "source": "runtime"})
    assert one.rest == (SOURCES[source],)


def test_an_event_that_nobody_put_into_words_is_still_told() -> None:
    assert told("something_new", None, {"why": "because_of_it"}).headline == "Something new"

"""What people read of an operation: its sentence, its arguments line by line, words for states and faults. Pure.

Nothing here decides. A value that the capability calls sensitive never becomes text: its place is shown, not it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ledger.decisions import Decision, Reason
from ledger.digests import canonical
from ledger.states import AttemptState, Standing, State

LEAVES_MAX = 400
"""Lines of arguments on one page; real calls have fewer than 100. What is left out is counted in words."""

SHOWN_MAX = 2000
"""Characters of one value on a page. Longer ones are cut where the page says how much is missing."""

VALUES_MAX, VALUE_MAX = 3, 32
"""How much of the arguments stands in for a capability's missing summary: enough to tell two rows apart."""

STATES: Mapping[State, str] = {
    State.INTENDED: "Intended",
    State.DISPATCHED: "Dispatched",
    State.COMPLETED: "Completed",
    State.DENIED: "Denied",
    State.UNKNOWN: "Unknown",
    State.WITHDRAWN: "Withdrawn",
}

ATTEMPTS: Mapping[AttemptState, str] = {
    AttemptState.OPEN: "open",
    AttemptState.COMPLETED: "completed",
    AttemptState.DENIED: "denied",
    AttemptState.NOT_SENT: "not sent",
    AttemptState.LOST: "lost: outcome unknown",
}

STATE_SENTENCES: Mapping[State, str] = {
    State.INTENDED: "Recorded. Nothing has been dispatched.",
    State.DISPATCHED: "A permit was granted and its lease runs: the effect may be on its way.",
    State.COMPLETED: "The effect exists.",
    State.DENIED: "The effect does not exist.",
    State.UNKNOWN: "Dispatched, and whether the effect exists is not known. Nobody may dispatch it again.",
    State.WITHDRAWN: "Given up before anything was dispatched.",
}


class Loudness(StrEnum):
    """What a state is drawn as: one name for the icon, the word and the colour."""

    INTENDED = "intended"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    DENIED = "denied"
    UNKNOWN = "unknown"
    WITHDRAWN = "withdrawn"
    DISCREPANCY = "discrepancy"
    ABANDONED = "abandoned"
    NO_ENTRY = "no_entry"


def badge(state: State, standing: Standing) -> tuple[Loudness, str]:
    """How the state is drawn and the word beside it. A discrepancy outshouts every state but is never settled."""
    if standing is Standing.DISCREPANCY:
        return Loudness.DISCREPANCY, "Discrepancy"
    if standing is Standing.ABANDONED:
        return Loudness.ABANDONED, "Abandoned, outcome unknown"
    return Loudness(state.value), STATES[state]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One line of the arguments. ``type`` is JSON's word; ``hidden``: there is a value and it is not shown."""

    pointer: str
    type: str
    text: str
    hidden: bool = False

    @property
    def name(self) -> str:
        """The last step of the pointer."""
        return self.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")

    @property
    def names_a_value(self) -> bool:
        """Short enough, and telling enough, to stand for the whole in one line."""
        return self.type in ("text", "number") and 0 < len(self.text) <= VALUE_MAX


def leaves(arguments: Any, sensitive: Sequence[str] = (), *, everything: bool = False) -> Iterator[Leaf]:
    """Every value of the arguments with its JSON Pointer, containers only where they are empty."""
    stack: list[tuple[str, Any, bool]] = [("", arguments, everything)]
    while stack:
        pointer, value, hidden = stack.pop()
        hidden = hidden or pointer in sensitive
        if hidden and not (isinstance(value, dict | list) and value):
            yield Leaf(pointer, "hidden", "", hidden=True)
        elif isinstance(value, dict) and value:
            stack.extend(
                (f"{pointer}/{_escaped(name)}", member, hidden) for name, member in reversed(value.items())
            )
        elif isinstance(value, list) and value:
            stack.extend((f"{pointer}/{i}", value[i], hidden) for i in reversed(range(len(value))))
        else:
            yield Leaf(pointer, *_scalar(value))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _scalar(value: Any) -> tuple[str, str]:
    match value:
        case None:
            return "null", "null"
        case bool():
            return "boolean", "true" if value else "false"
        case int() | float():
            return "number", canonical(value).decode()
        case str():
            return "text", value
        case dict():
            return "object", "no members"
        case _:
            return "list", "no items"


_PLACE = re.compile(r"\{([^{}]*)\}")


def sentence(
    template: str,
    *,
    capability: str,
    arguments: Any,
    amount: Mapping[str, str] | None,
    sensitive: Sequence[str] = (),
    everything: bool = False,
) -> str:
    """The capability's ``summary`` filled in: ``{amount}`` is the recorded amount, any other name a member of the
    arguments or a pointer into them (``{/order/id}``). A hidden or missing value is said to be so.

    Without a template: the capability's name with its amount, or with the first plain values of the arguments.
    """
    if not template:
        if amount:
            return f"{capability} {_money(amount)}"
        plain = [
            leaf for leaf in leaves(arguments or {}, sensitive, everything=everything) if leaf.names_a_value
        ]
        said = ", ".join(f"{leaf.name} {leaf.text}" for leaf in plain[:VALUES_MAX])
        return f"{capability}: {said}" if said else capability

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        if name == "amount" and amount is not None:
            return _money(amount)
        pointer = name if name.startswith("/") else f"/{_escaped(name)}"
        if everything or any(pointer == hidden or pointer.startswith(f"{hidden}/") for hidden in sensitive):
            return "‹hidden›"
        found = _at(arguments, pointer)
        if isinstance(found, dict | list):
            return "‹several values›"
        return "‹missing›" if found is None else _scalar(found)[1]

    return _PLACE.sub(fill, template)


def _money(amount: Mapping[str, str]) -> str:
    return f"{amount['currency']} {amount['value']}"


def _at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


# What the agent is told.

DECISIONS: Mapping[Reason, str] = {
    Reason.NO_LEDGER_ENTRY: "nothing is on record under this name",
    Reason.ATTEMPT_IN_FLIGHT: "an attempt is under way",
    Reason.WITHDRAWN: "it was withdrawn",
    Reason.DISCREPANCY: "a person settles the discrepancy first",
    Reason.ABANDONED: "it was given up, and is not dispatched again",
    Reason.EFFECT_EXISTS: "the effect exists, and nothing more is dispatched",
    Reason.RECEIVER_REPLAYS: "under the same key the receiver repeats its answer, not the effect",
    Reason.OUTCOME_UNKNOWN: "the outcome is unknown, and nothing is dispatched until it is found out",
    Reason.DENIED: "it was denied, and the reason stands",
    Reason.NOT_PERMITTED: "permission is missing",
    Reason.PAUSED: "it is paused",
    Reason.AWAITING_APPROVAL: "approval is missing",
    Reason.POSSIBLE_DUPLICATE: "an equal operation is not settled yet",
    Reason.DENIAL_CLEARS_AT: "it was denied, for a reason that ends by itself",
    Reason.DENIAL_CLEARED: "there is no effect, and it may be dispatched again under the same key",
    Reason.INTENT_RECORDED: "nothing was dispatched yet, and it may be",
    Reason.NO_RULE: "no rule allows it",
}


def told_to_agent(decision: Decision) -> str:
    """Why the agent is told what it is told, for people."""
    said = DECISIONS[decision.reason]
    return f"{said}: {words(decision.detail)}" if decision.detail else said


# What happened, entry by entry.

FAULTS: Mapping[str, str] = {
    "lease_ended": "its lease ended without a report",
    "unreadable_report": "its report could not be read",
    "timeout": "the reply did not come in time",
    "connection_reset": "the connection broke after sending",
    "reported_unknown": "its holder does not know",
    "asked": "the runtime asked for it",
    "intent_valid_s": "it was never dispatched and grew too old",
}

FLAGS: Mapping[str, str] = {
    "duplicate_effect": "more than one effect",
    "diverged_effect": "another effect than was intended",
}

SOURCES: Mapping[str, str] = {
    "receiver_response": "receiver's answer, as the runtime reports it",
    "lookup": "look-up at the receiver",
    "callback": "signed callback of the receiver",
    "operator": "a person's word",
    "runtime": "the runtime's claim",
}

_EVENTS: Mapping[str, str] = {
    "record": "Intent recorded",
    "dispatch": "Permit granted",
    "refuse": "Permission refused",
    "withdraw": "Withdrawn",
    "complete": "Completed: the effect exists",
    "deny": "Denied: the effect does not exist",
    "lose": "Outcome unknown",
    "dispute": "Disputed: evidence contradicts the record",
    "flag": "Flagged as a discrepancy",
    "resolve": "Discrepancy settled",
    "evidence": "Evidence kept, nothing moves",
    "standing": "Standing changed",
    "unverify": "The receiver's promise to replay lost its verification",
    "attempt_lost": "Attempt lost, its lease ended",
    "claim": "Claim kept, it does not count",
    "evidence_conflict": "A report contradicts the evidence",
    "report": "Later report kept",
    "escalated": "Handed to a person",
    "release": "Case released",
    "ask_again": "Asked for another look-up",
    "note": "Note",
}


QUIET = frozenset(
    {"evidence", "claim", "report", "unverify", "standing", "escalated", "release", "ask_again", "note"}
)
"""Events that move nothing: drawn without the colour of a state."""


_HTTP = re.compile(r"http_(\d{3})")


def words(name: str) -> str:
    """A machine's name as words, where no better ones are known."""
    if status := _HTTP.fullmatch(name):
        return f"answered HTTP {status[1]}, which proves nothing"
    return FAULTS.get(name) or FLAGS.get(name) or name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Told:
    """One entry for people: what happened, what is said of it, and how it is drawn."""

    headline: str
    rest: tuple[str, ...]
    loudness: str


def told(event: str, to_state: str | None, detail: Mapping[str, Any]) -> Told:
    """An entry in words. ``detail`` may hold text that others wrote: what is returned is shown as untrusted."""
    if event == "claim" and "case" in detail:
        return Told("Case claimed", (), "quiet")
    if event == "evidence" and "verdict" in detail:
        return Told("Receiver asked", (), "quiet")
    rest = []
    if "attempt" in detail:
        rest.append(f"attempt {detail['attempt']}")
    why = str(detail.get("why") or "")
    if why:
        rest.append(SOURCES.get(why) or words(why))
    if detail.get("fault"):
        rest.append(words(str(detail["fault"])))
    if event == "dispatch" and detail.get("reason") not in (None, "intent_recorded"):
        rest.append(words(str(detail["reason"])))
    rest.extend(words(str(flag)) for flag in detail.get("flags") or ())
    rest.extend(words(str(detail[key])) for key in ("outcome", "said", "standing") if detail.get(key))
    if detail.get("superseded_by"):
        rest.append(f"superseded by {detail['superseded_by']}")
    if event == "escalated" and detail.get("reason"):
        rest.append(words(str(detail["reason"])))
    if event in ("complete", "deny") and detail.get("source") and why not in SOURCES:
        rest.append(SOURCES.get(str(detail["source"]), str(detail["source"])))
    if event in ("dispute", "flag") or (event == "standing" and detail.get("standing") == "discrepancy"):
        loudness = "discrepancy"
    elif event in QUIET:
        loudness = "quiet"
    else:
        loudness = to_state or "quiet"
    return Told(_EVENTS.get(event, words(event).capitalize()), tuple(rest), loudness)

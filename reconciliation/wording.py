"""What the page of one operation says: three answers, intended beside found, the timeline, the choices. Pure.

It works on the frozen values of ``selectors`` and decides nothing. Texts that others wrote stay apart from ours: a
template shows them as untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ledger import matching
from ledger.facts import Facts
from ledger.states import AttemptState, Standing, State
from ledger.wording import FLAGS, SOURCES, Loudness, badge, told, words
from reconciliation.findings import ItemStatus
from reconciliation.models import CaseKind
from reconciliation.resolutions import Kind, Need, Offer
from reconciliation.selectors import CasePage, Line, QueueRow
from reconciliation.verdicts import VerdictReason

RECORDS_SHOWN = 3
"""The receiver's records beside the intent; more are counted in words."""

REASONS: Mapping[str, str] = {
    VerdictReason.OPERATOR_ONLY: "the receiver cannot be asked",
    VerdictReason.UNATTRIBUTED_EFFECT: "an effect that nothing ties to an operation",
    VerdictReason.STILL_PENDING: "the receiver never finished",
    VerdictReason.ABSENCE_UNPROVABLE: "not found, which proves nothing any more",
    VerdictReason.REFUSAL_UNPROVEN: "a refusal that does not rule out an effect",
    VerdictReason.RECEIVER_UNREACHABLE: "the receiver gave no usable answer",
    VerdictReason.IN_PROGRESS: "the receiver is still working on it",
    VerdictReason.UNLISTED_STATUS: "a status that the contract does not list",
    VerdictReason.ABSENCE_UNPROVEN: "not found yet",
    VerdictReason.UNCLEAR: "no usable answer yet",
    VerdictReason.AWAITING_CALLBACK: "waiting for the receiver's callback",
    "lease_ended": "no report before the lease ended",
    "timeout": "reply lost after dispatch",
    "no_entry": "spoken of, and not on record",
    **FLAGS,
}


def reason(name: str | None) -> str:
    """A machine's reason in words."""
    return REASONS.get(name or "") or words(name or "")


_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?\+00:00")


def readable(text: str) -> str:
    """A machine's sentence with its times as people write them."""
    return _ISO_TIME.sub(r"\1 \2 UTC", text)


def row_badge(row: QueueRow) -> tuple[Loudness, str]:
    """How a case is drawn in the queue."""
    if row.state is None:
        return Loudness.NO_ENTRY, "No record"
    if row.kind == CaseKind.DISCREPANCY and row.closed_at is None:
        return Loudness.DISCREPANCY, "Discrepancy"
    return badge(row.state, row.standing)


def page_badge(page: CasePage) -> tuple[Loudness, str]:
    """How the operation is drawn at the head of its page."""
    if page.facts is None:
        return Loudness.NO_ENTRY, "No record"
    return badge(page.facts.state, page.facts.standing)


# The three answers.


@dataclass(frozen=True, slots=True)
class Answer:
    """``tone`` is yes, no, unknown or clash: the look. ``said`` may be others' words; ``at`` is when."""

    question: str
    tone: str
    word: str
    source: str
    said: str = ""
    at: datetime | str | None = None


def answers(page: CasePage) -> tuple[Answer, Answer, Answer]:
    """Was it dispatched, did it happen, is the evidence kept: each by itself, each with its source."""
    if page.facts is None:
        return (
            Answer("Was it dispatched?", "unknown", "Unknown", "there is no record of an intent or a permit"),
            Answer("Did it happen?", "unknown", "Unknown", "no record is no evidence that nothing happened"),
            Answer("Is the evidence kept?", "unknown", "Of what arrived", "see the timeline"),
        )
    return _dispatched(page.facts), _happened(page, page.facts), _kept(page, page.facts)


def _dispatched(facts: Facts) -> Answer:
    question = "Was it dispatched?"
    last = facts.attempts[-1] if facts.attempts else None
    if last is None:
        if facts.dispatched == "no":
            return Answer(question, "no", "No", "no permit was ever granted")
        return Answer(question, "unknown", "Unknown", "an effect is spoken of, and no permit is on record")
    source = f"attempt {last.number}, permit granted"
    match facts.dispatched:
        case "yes":
            return Answer(question, "yes", "Yes", source, at=last.permitted_at)
        case "no":
            return Answer(
                question, "no", "No", f"attempt {last.number} was reported as not sent", at=last.ended_at
            )
        case _ if last.at(facts.now) is AttemptState.OPEN:
            return Answer(
                question, "flight", "May be on its way", f"{source}, its lease runs", at=last.permitted_at
            )
    return Answer(
        question, "unknown", "Unknown", f"{source}, and nobody reported on it", at=last.permitted_at
    )


_FLAGGED: Mapping[str, str] = {
    "duplicate_effect": "Yes, more than once",
    "diverged_effect": "Yes, not as intended",
}
"""A discrepancy that was settled stays in the answer: accepted is not undone."""


def _happened(page: CasePage, facts: Facts) -> Answer:
    question = "Did it happen?"
    row = facts.row
    if facts.standing is Standing.DISCREPANCY:
        if "duplicate_effect" in row["flags"]:
            return Answer(
                question, "clash", "More than once, it seems", "", said=_last_answer(page), at=_asked(page)
            )
        if "diverged_effect" in row["flags"]:
            return Answer(question, "clash", "Not as intended", "", said=_last_answer(page), at=_asked(page))
        return Answer(question, "clash", "Contradicted", "", said=_last_answer(page), at=_asked(page))
    source = SOURCES.get(row["outcome_source"] or "", row["outcome_source"] or "")
    match facts.state:
        case State.COMPLETED:
            word = next((word for flag, word in _FLAGGED.items() if flag in row["flags"]), "Yes")
            return Answer(
                question, "yes", word, source, said=row["receiver_reference"] or "", at=row["settled_at"]
            )
        case State.DENIED:
            return Answer(
                question, "no", "No", source, said=words(row["denial_reason"] or ""), at=row["settled_at"]
            )
        case State.INTENDED | State.WITHDRAWN:
            return Answer(question, "no", "No", "nothing was dispatched")
        case State.DISPATCHED:
            return Answer(
                question,
                "flight",
                "Not known yet",
                "the outcome is reported, or the lease ends",
                at=facts.retry_at,
            )
    if facts.standing is Standing.ABANDONED:
        return Answer(question, "unknown", "Stays unknown", "two people gave it up as such")
    if _last_answer(page):
        return Answer(question, "unknown", "Unknown", "", said=_last_answer(page), at=_asked(page))
    return Answer(question, "unknown", "Unknown", "the receiver has not been asked yet")


def _last_answer(page: CasePage) -> str:
    return readable(page.case.last_answer) if page.case else ""


def _asked(page: CasePage) -> datetime | None:
    return page.case.last_asked_at if page.case else None


def _kept(page: CasePage, facts: Facts) -> Answer:
    question = "Is the evidence kept?"
    pieces = _counted([one.source for one in page.evidence])
    if facts.evidence == "preserved":
        return Answer(question, "yes", "Yes", pieces or "the settled outcome")
    if page.evidence:
        return Answer(question, "open", "It proves nothing yet", pieces)
    if facts.state in (State.INTENDED, State.WITHDRAWN):
        return Answer(question, "no", "There is none", "nothing was dispatched")
    return Answer(question, "unknown", "Missing", "nobody has shown anything")


_PIECES: Mapping[str, tuple[str, str]] = {
    "receiver_response": ("answer by way of the runtime", "answers by way of the runtime"),
    "lookup": ("look-up", "look-ups"),
    "callback": ("signed callback", "signed callbacks"),
    "operator": ("person's word", "people's words"),
    "runtime": ("claim", "claims"),
}


def _counted(sources: Sequence[str]) -> str:
    pieces = []
    for source in dict.fromkeys(sources):
        count = sources.count(source)
        one, many = _PIECES.get(source, (source, source))
        pieces.append(f"{count} {one if count == 1 else many}")
    return ", ".join(pieces)


# Intended beside found.


@dataclass(frozen=True, slots=True)
class Cell:
    """What one record of the receiver shows of one field. ``same``: as intended."""

    text: str
    same: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One field. ``hidden``: the capability calls it sensitive, so only whether it differs is shown."""

    field: str
    intended: str
    cells: tuple[Cell, ...]
    hidden: bool = False

    @property
    def differs(self) -> bool:
        return any(cell.differs for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The table: one column for each record the last look-up found. ``left_out``: records that are not shown."""

    heads: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    left_out: int
    fields: int


def comparison(page: CasePage) -> Comparison:
    """What was intended, field by field, beside what the last look-up found; without one, the intent alone."""
    items = list(page.lookup.finding.get("items", ())) if page.lookup else []
    shown = items[:RECORDS_SHOWN]
    rows = [
        ComparedRow(
            "status",
            "completed",
            tuple(_status_cell(item) for item in shown),
        ),
        ComparedRow(
            "operation",
            page.operation_id,
            tuple(_operation_cell(item) for item in shown),
        ),
        *_field_rows(page, shown),
    ]
    if not shown:
        rows = rows[2:]
    heads = tuple(item.get("reference") or f"record {i}, no reference" for i, item in enumerate(shown, 1))
    return Comparison(heads, tuple(rows), len(items) - len(shown), len(page.match))


def _status_cell(item: Mapping[str, Any]) -> Cell:
    status = item.get("status", "")
    text = item.get("raw_status") or words(status)
    return Cell(text, differs=status == ItemStatus.DENIED)


def _operation_cell(item: Mapping[str, Any]) -> Cell:
    if item.get("ours") is None and item.get("attributed_to") is None:
        return Cell("not said")
    if item.get("ours"):
        return Cell("this one", same=True)
    return Cell(item.get("attributed_to") or "not set", differs=True)


def _field_rows(page: CasePage, items: Sequence[Mapping[str, Any]]) -> list[ComparedRow]:
    facts = page.facts
    if facts is None:
        return []
    intent = matching.intent_document(
        arguments=page.arguments,
        amount=facts.row["amount"],
        operation_id=page.operation_id,
        business_reference=facts.row["business_reference"],
        idempotency_key=facts.row["idempotency_key"],
    )
    rows = []
    for path, to in page.match.items():
        pointer = to["to"] if isinstance(to, Mapping) else str(to)
        found = [_difference(item, path) for item in items]
        hidden = _is_hidden(page, pointer)
        intended = "" if hidden else matching.printable(matching.at_pointer(intent, pointer))
        stated = next((one for one in found if one is not None), None)
        if stated is not None and not hidden and stated["intended"] != intended:
            intended = f"{intended} ({stated['intended']} there)"  # in the receiver's unit
        cells = tuple(
            Cell("same", same=True)
            if one is None
            else Cell("differs" if hidden else one["found"], differs=True)
            for one in found
        )
        rows.append(ComparedRow(path.removeprefix("$."), intended, cells, hidden))
    return rows


def _difference(item: Mapping[str, Any], path: str) -> Mapping[str, str] | None:
    return next((one for one in item.get("differences", ()) if one["field"] == path), None)


def _is_hidden(page: CasePage, pointer: str) -> bool:
    if page.all_sensitive and pointer.startswith("/arguments"):
        return True
    return any(
        pointer == f"/arguments{hidden}" or pointer.startswith(f"/arguments{hidden}/")
        for hidden in page.sensitive
    )


# The timeline.


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the timeline. ``headline`` is ours; ``said`` and ``notes`` may be others' words."""

    at: datetime
    gap: timedelta | None  # since the step before; None where it is not worth a word
    loudness: str
    who: str
    by: str
    headline: str
    said: str
    notes: tuple[str, ...]
    evidence: tuple[Any, ...] = ()  # selectors.EvidenceShown, what the step kept


GAP_WORTH_SAYING = timedelta(seconds=5)


TOLD_BY_THE_DECISION = frozenset({"propose", "wait"})
"""Entries that say no more than the decision's own line."""


def steps(page: CasePage) -> tuple[Step, ...]:
    """The timeline by sequence, each step with the time since the one before and the evidence it kept.

    A look-up that was recorded stands in its entry; only one that came too late has a line of its own. What a runtime
    reported stands at the step that its report brought about, which is the next one of that runtime.
    """
    kept = {one.id: one for one in page.evidence}
    named = {line.detail.get("evidence") for line in page.timeline if line.kind == "entry"}
    reported = [one for one in page.evidence if one.id not in named]
    found = []
    before: datetime | None = None
    for line in page.timeline:
        if _is_told_elsewhere(line):
            continue
        gap = None if before is None else line.at - before
        step = _step(line, gap if gap and gap >= GAP_WORTH_SAYING else None, kept)
        if line.kind == "entry" and not step.evidence:
            its = tuple(one for one in reported if one.by == line.by and one.at <= line.at)
            reported = [one for one in reported if one not in its]
            step = replace(step, evidence=its)
        found.append(step)
        before = line.at
    return (*found, *(_kept_alone(one) for one in reported))


def _kept_alone(one: Any) -> Step:
    return Step(one.at, None, "quiet", one.source, one.by, "Evidence kept", "", (), (one,))


def _is_told_elsewhere(line: Line) -> bool:
    if line.kind == "entry":
        return line.what in TOLD_BY_THE_DECISION
    return line.kind == "lookup" and not line.what.endswith("dropped")


_RESOLUTIONS: Mapping[str, str] = {
    Kind.HAPPENED: "it happened",
    Kind.DID_NOT_HAPPEN: "it did not happen",
    Kind.WAIT: "still unknown, wait",
    Kind.DUPLICATE: "a duplicate was found",
    Kind.DIVERGED: "diverged, accepted",
    Kind.COMPENSATED: "compensated by another operation",
    Kind.ABANDONED: "stop, the outcome stays unknown",
}


def change(what: str) -> str:
    """How a case last changed: a machine's name at its end is put into words."""
    head, colon, tail = readable(what).rpartition(": ")
    return f"{head}{colon}{_RESOLUTIONS.get(tail) or REASONS.get(tail) or tail}"


def _step(line: Line, gap: timedelta | None, kept: Mapping[int, Any]) -> Step:
    match line.kind:
        case "entry":
            one = told(line.what, line.to_state, line.detail)
            notes = one.rest
            if line.what == "escalated":
                notes = (reason(line.detail.get("reason")),)
            its = kept.get(line.detail.get("evidence", -1))
            evidence = () if its is None else (its,)
            # The decision's own line has its remark.
            said = "" if "decision" in line.detail else readable(line.sentence)
            return Step(line.at, gap, one.loudness, line.who, line.by, one.headline, said, notes, evidence)
        case "lookup":
            return Step(line.at, gap, "quiet", line.who, line.by, "Receiver asked", line.sentence, ())
        case "resolution":
            kind, _, proposed = line.what.partition(", ")
            headline = f"{'Proposed' if proposed else 'Decided'}: {_RESOLUTIONS.get(kind, words(kind))}"
            notes = _said_with(line.detail)
            return Step(line.at, gap, "person", line.who, line.by, headline, line.sentence, notes)
    return Step(line.at, gap, "unknown", line.who, line.by, words(line.what).capitalize(), line.sentence, ())


def _said_with(detail: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if detail.get("evidence"):
        notes.append(f"evidence: {detail['evidence']}")
    notes.extend(f"reference {one}" for one in detail.get("references") or ())
    if detail.get("wait_until"):
        notes.append(readable(f"until {detail['wait_until']}"))
    if detail.get("compensated_by"):
        notes.append(f"operation {detail['compensated_by']}")
    if detail.get("seconded_by"):
        notes.append(f"first said by {detail['decided_by']}")
    return tuple(notes)


# The choices.

CHOICES: Mapping[str, tuple[str, str]] = {
    Kind.HAPPENED: ("It happened", "The receiver shows the effect: give its reference."),
    Kind.DID_NOT_HAPPEN: ("It did not happen", "You looked where the effect would be, and it is not there."),
    Kind.WAIT: ("Still unknown", "Wait until a time, then look again."),
    Kind.DUPLICATE: ("A duplicate was found", "The effect exists more than once: give every reference."),
    Kind.DIVERGED: (
        "It happened differently, and that is accepted",
        "The effect stays as the receiver shows it.",
    ),
    Kind.COMPENSATED: ("Compensated by another operation", "An operation of its own made up for it."),
    Kind.ABANDONED: (
        "Stop: the outcome stays unknown",
        "Nobody will find out, and nobody dispatches it again.",
    ),
}

NEEDS: Mapping[str, str] = {
    Need.REFERENCE: "receiver's reference",
    Need.REFERENCES: "the receiver's references",
    Need.EVIDENCE: "evidence",
    Need.UNTIL: "a time",
    Need.OPERATION: "the other operation",
}


_FIELDS: Mapping[str, str] = {
    Need.REFERENCE: "references",
    Need.REFERENCES: "references",
    Need.EVIDENCE: "evidence",
    Need.UNTIL: "until",
    Need.OPERATION: "operation",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One radio button of the decision form."""

    kind: str
    title: str
    meaning: str
    consequence: str
    needs: str
    fields: str  # the form's, separated by blanks: what a page shows once it is chosen
    second_person: bool
    why_not: str | None


def choices(offers: Sequence[Offer]) -> tuple[Choice, ...]:
    """The offers as a person reads them, in the table's order."""
    return tuple(
        Choice(
            kind=offer.kind.value,
            title=CHOICES[offer.kind][0],
            meaning=CHOICES[offer.kind][1],
            consequence=offer.consequence,
            needs=", ".join(NEEDS[need] for need in Need if need in offer.needs),
            fields=" ".join(sorted({_FIELDS[need] for need in offer.needs})),
            second_person=offer.second_person,
            why_not=offer.why_not,
        )
        for offer in offers
    )

"""What a reported outcome counts for: pure, over the report and the receiver's contract.

A runtime's own success proves nothing, a refusal counts only where the contract lists the answer, and "nothing was
sent" only where nothing can have been sent. Everything else is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ledger.contracts import Contract
from ledger.decisions import DenialClass, stricter
from ledger.errors import Malformed
from ledger.intake import fields_of
from ledger.states import AttemptState

NOT_SENT_FAULTS = frozenset(
    ["never_attempted", "local_reject", "dns_failure", "connection_refused", "connect_timeout", "tls_failed"]
)
REASON_MAX = 200
REFERENCE_MAX = 255
LONGEST_S = 30 * 86_400  # a denial or a retry further away than a month is a mistake


class Claim(StrEnum):
    """What the report says happened."""

    COMPLETED = "completed"
    DENIED = "denied"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Report:
    """One outcome report. ``has_receiver_evidence``: it shows something of the receiver's own answer."""

    claim: Claim
    receiver_reference: str | None = None
    result: Any = None
    has_receiver_evidence: bool = False
    http_status: int | None = None
    evidence_body: Any = None
    reason: str | None = None
    denial_class: DenialClass | None = None
    clears_after_s: float | None = None
    fault: str | None = None
    retry_after_s: float | None = None

    @property
    def shows_success(self) -> bool:
        """Whether it shows an answer of the receiver's that is no refusal, error or redirect."""
        return self.has_receiver_evidence and (self.http_status is None or 200 <= self.http_status <= 299)

    @property
    def shows_effect(self) -> bool:
        """Whether it shows more than the runtime's word for it that the effect exists."""
        return self.receiver_reference is not None or self.shows_success


@dataclass(frozen=True, slots=True)
class Counted:
    """What a report counts for. ``attempt`` lost: it settles nothing."""

    attempt: AttemptState
    why: str
    reason: str | None = None
    denial_class: DenialClass | None = None
    clears_after_s: float | None = None


OUTCOME_FIELDS = frozenset(
    ["outcome", "receiver_reference", "result", "evidence", "denial", "fault", "retry_after_s"]
)


def parse_report(body: object) -> Report:
    """The report in a request body. Raises Malformed with the path of the first fault."""
    fields = fields_of(body, "", OUTCOME_FIELDS)
    try:
        claim = Claim(str(fields.get("outcome")))
    except ValueError:
        raise Malformed("/outcome", "must be completed, denied, not_sent or unknown") from None
    evidence = _mapping(fields.get("evidence"), "/evidence", frozenset({"source", "http_status", "body"}))
    denial = _mapping(fields.get("denial"), "/denial", frozenset({"reason", "class", "clears_after_s"}))
    source = evidence.get("source", "receiver_response")
    if source != "receiver_response":
        raise Malformed("/evidence/source", 'a runtime can show a "receiver_response" only')
    status = evidence.get("http_status")
    if status is not None and (
        isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 999
    ):
        raise Malformed("/evidence/http_status", "must be a status code")
    try:
        denial_class = None if denial.get("class") is None else DenialClass(denial["class"])
    except ValueError:
        raise Malformed("/denial/class", "must be standing, clears_at or cleared") from None
    return Report(
        claim=claim,
        receiver_reference=_text(fields.get("receiver_reference"), "/receiver_reference", REFERENCE_MAX),
        result=fields.get("result"),
        has_receiver_evidence=status is not None or evidence.get("body") is not None,
        http_status=status,
        evidence_body=evidence.get("body"),
        reason=_text(denial.get("reason"), "/denial/reason", REASON_MAX),
        denial_class=denial_class,
        clears_after_s=_seconds(denial.get("clears_after_s"), "/denial/clears_after_s"),
        fault=_text(fields.get("fault"), "/fault", REASON_MAX),
        retry_after_s=_seconds(fields.get("retry_after_s"), "/retry_after_s"),
    )


def count(report: Report, contract: Contract) -> Counted:
    """What the report counts for under the contract."""
    match report.claim:
        case Claim.COMPLETED:
            if not report.shows_effect:
                return Counted(AttemptState.LOST, "completed_without_evidence")
            return Counted(AttemptState.COMPLETED, "receiver_response")
        case Claim.DENIED:
            listed = contract.denial_class(report.http_status)
            if report.http_status is None or listed is None:
                return Counted(AttemptState.LOST, "denial_not_listed_by_the_contract")
            denial_class, clears_after_s = listed
            if (
                report.denial_class is not None
                and stricter(denial_class, report.denial_class) is not denial_class
            ):
                denial_class, clears_after_s = report.denial_class, report.clears_after_s
            if denial_class is DenialClass.CLEARS_AT:
                clears_after_s = max(
                    clears_after_s or 0, report.clears_after_s or 0, report.retry_after_s or 0
                )
            reason = report.reason or f"http_{report.http_status}"
            return Counted(AttemptState.DENIED, "receiver_response", reason, denial_class, clears_after_s)
        case Claim.NOT_SENT:
            if report.fault not in NOT_SENT_FAULTS:
                return Counted(AttemptState.LOST, "fault_does_not_prove_that_nothing_was_sent")
            if report.has_receiver_evidence or report.receiver_reference is not None:
                return Counted(AttemptState.LOST, "an_answer_proves_that_something_was_sent")
            return Counted(AttemptState.NOT_SENT, "nothing_was_sent", report.fault, DenialClass.CLEARED)
        case Claim.UNKNOWN:
            return Counted(AttemptState.LOST, report.fault or "reported_unknown")


STORED_AS = {
    AttemptState.COMPLETED: "completed",
    AttemptState.DENIED: "denied",
    AttemptState.NOT_SENT: "not_sent",
    AttemptState.LOST: "unknown",
}


def _mapping(value: object, path: str, known: frozenset[str]) -> Mapping[str, Any]:
    return {} if value is None else fields_of(value, path, known)


def _text(value: object, path: str, longest: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise Malformed(path, f"must be text of 1 to {longest} characters")
    return value


def _seconds(value: object, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise Malformed(path, f"must be seconds from 0 to {LONGEST_S}")
    return float(value)

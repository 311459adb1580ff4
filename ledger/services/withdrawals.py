"""Giving up an operation that nothing was sent for, or that was denied."""

from __future__ import annotations

from ledger import errors
from ledger.facts import Facts
from ledger.services.permits import Answer, check_covers, refusal_for
from ledger.services.writing import SYSTEM, Caller, locked
from ledger.states import Event, State


def withdraw(caller: Caller, operation_id: str) -> Answer:
    """Gives up what is intended or denied; again: the same answer.

    Raises NoLedgerEntry, AttemptInFlight, ReconciliationRequired, Settled, Discrepancy, Abandoned, Forbidden.
    """
    with locked(caller.workspace_id, operation_id, caller.actor) as unit:
        if unit is None:
            raise errors.NoLedgerEntry()
        facts = unit.facts
        check_covers(caller, facts.capability, facts.row["actor_subject"])
        if facts.recorded_state is State.WITHDRAWN:
            return Answer(facts, replayed=True)
        if facts.standing == "none" and facts.recorded_state in (State.INTENDED, State.DENIED):
            unit.write(Event.WITHDRAW, detail={"why": "asked"}, actor=SYSTEM if facts.is_too_old else None)
            unit.reread()
            return Answer(unit.facts)
        refusal = _not_withdrawable(facts)
    raise refusal


def _not_withdrawable(facts: Facts) -> errors.Refusal:
    if facts.state is State.DISPATCHED:
        return errors.AttemptInFlight("Report the attempt as not_sent first.", facts=facts)
    if facts.state is State.UNKNOWN and facts.standing == "none":
        return errors.ReconciliationRequired(facts=facts)
    return refusal_for(facts)

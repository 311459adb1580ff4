"""The arithmetic of a rehearsal: what the players claim, beside what the receiver's ledger holds.

Pure: standard library only, no clock, no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .players import Claim, Played, SettledBy
from .truth import NOTHING, Truth

FORMAT = 1
COUNTERFOIL = "counterfoil"

SETTLEMENTS: tuple[tuple[SettledBy, str], ...] = (
    (SettledBy.RUNTIME, "settled by the runtime"),
    (SettledBy.LOOKUP, "settled by a look-up"),
    (SettledBy.CALLBACK, "settled by a callback"),
    (SettledBy.OPERATOR, "settled by an operator"),
    (SettledBy.PERSON_NEEDED, "a person is needed"),
    (SettledBy.STILL_ASKED, "still being asked at the end"),
)


@dataclass(frozen=True, slots=True)
class Score:
    """One player's result. ``lost`` and ``duplicates`` are what must be zero.

    ``settlements`` counts the calls whose outcome was unknown at some time, by who settled it; ``refusals`` the calls
    the service did not accept, by the reason's code; ``held`` those that were not dispatched because an equal call's
    outcome is unknown.
    """

    player: str
    calls: int
    effects: int
    duplicates: int
    completed_without_effect: int
    effect_without_claim: int
    dispatches: int
    blind_dispatches: int
    held: int = 0
    claims: Mapping[Claim, int] = field(default_factory=dict)
    settlements: Mapping[SettledBy, int] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Effects of which the player's claim is wrong: said to exist and do not, or exist and are denied."""
        return self.completed_without_effect + self.effect_without_claim

    @property
    def unknowns(self) -> int:
        return sum(self.settlements.values())

    @property
    def clean(self) -> bool:
        return not (self.duplicates or self.lost)

    def as_json(self) -> dict[str, Any]:
        return {
            "player": self.player,
            "calls": self.calls,
            "effects": self.effects,
            "duplicates": self.duplicates,
            "lost": {
                "completed_without_effect": self.completed_without_effect,
                "effect_without_claim": self.effect_without_claim,
            },
            "claims": {claim.value: self.claims.get(claim, 0) for claim in Claim},
            "unknowns": {
                "total": self.unknowns,
                "settled_by": {kind.value: self.settlements.get(kind, 0) for kind, _ in SETTLEMENTS},
            },
            "held_behind_an_unknown": self.held,
            "dispatches": self.dispatches,
            "dispatches_without_evidence": self.blind_dispatches,
            "refused": {"total": sum(self.refusals.values()), "by_code": dict(sorted(self.refusals.items()))},
        }


def score(player: str, accounts: Sequence[Played], truths: Mapping[str, Truth]) -> Score:
    """Judge a player's accounts by its receiver's ledger (by call name).

    An effect is lost when the claim contradicts it. *Unknown* contradicts nothing: it is said not to be known.
    """
    effects_of = {account.call.name: truths.get(account.call.name, NOTHING).effects for account in accounts}
    claimed = [(account.claim, effects_of[account.call.name]) for account in accounts]
    unclaimed = (Claim.DENIED, Claim.NOT_DISPATCHED, Claim.REFUSED)
    return Score(
        player=player,
        calls=len(accounts),
        effects=sum(effects_of.values()),
        duplicates=sum(max(0, effects - 1) for effects in effects_of.values()),
        completed_without_effect=sum(claim is Claim.COMPLETED and not effects for claim, effects in claimed),
        effect_without_claim=sum(claim in unclaimed and effects > 0 for claim, effects in claimed),
        dispatches=sum(account.dispatches for account in accounts),
        blind_dispatches=sum(account.blind_dispatches for account in accounts),
        held=sum(a.claim is Claim.NOT_DISPATCHED and a.reason == "possible_duplicate" for a in accounts),
        claims=Counter(claim for claim, _ in claimed),
        settlements=Counter(account.settled_by for account in accounts if account.settled_by is not None),
        refusals=Counter(
            (account.reason or "").split(":")[0] for account in accounts if account.claim is Claim.REFUSED
        ),
    )


def table(scores: Sequence[Score]) -> str:
    """The scores side by side, for a terminal. A line that is zero for everybody and says nothing is left out."""
    rows: list[tuple[str, list[int]]] = [
        ("calls", [s.calls for s in scores]),
        ("effects made", [s.effects for s in scores]),
        ("duplicate effects", [s.duplicates for s in scores]),
        ("effects lost", [s.lost for s in scores]),
        ("  claimed, and not there", [s.completed_without_effect for s in scores]),
        ("  there, and denied", [s.effect_without_claim for s in scores]),
        ("claims: completed", [s.claims.get(Claim.COMPLETED, 0) for s in scores]),
        ("  denied or given up", [s.claims.get(Claim.DENIED, 0) for s in scores]),
        ("  unknown", [s.claims.get(Claim.UNKNOWN, 0) for s in scores]),
        ("  not dispatched", [s.claims.get(Claim.NOT_DISPATCHED, 0) for s in scores]),
        ("    held behind an unknown one", [s.held for s in scores]),
        ("  refused at intake", [s.claims.get(Claim.REFUSED, 0) for s in scores]),
        ("outcomes once unknown", [s.unknowns for s in scores]),
        *((f"  {words}", [s.settlements.get(kind, 0) for s in scores]) for kind, words in SETTLEMENTS),
        ("dispatches", [s.dispatches for s in scores]),
        ("  without evidence or guarantee", [s.blind_dispatches for s in scores]),
    ]
    always = {"duplicate effects", "effects lost", "  without evidence or guarantee"}
    shown = [(words, numbers) for words, numbers in rows if any(numbers) or words in always]
    heads = [s.player.replace("_", " ") for s in scores]
    first = max(len(words) for words, _ in shown)
    widths = [max(len(head), 7) for head in heads]
    lines = [
        "  ".join([" " * first, *(head.rjust(width) for head, width in zip(heads, widths, strict=True))])
    ]
    for words, numbers in shown:
        cells = (str(number).rjust(width) for number, width in zip(numbers, widths, strict=True))
        lines.append("  ".join([words.ljust(first), *cells]))
    return "\n".join(lines)


def call_rows(accounts: Iterable[Played], truths: Mapping[str, Truth]) -> list[dict[str, Any]]:
    """One object a call: what was claimed, what is true, and which faults were met. For the report's JSON."""
    rows = []
    for account in accounts:
        truth = truths.get(account.call.name, NOTHING)
        rows.append(
            {
                "line": account.call.line,
                "call": account.call.name,
                "tool": account.call.tool,
                "contract": account.contract.value,
                "operation_id": account.operation_id,
                "claim": account.claim.value,
                "reason": account.reason,
                "flags": list(account.flags),
                "unknown_settled_by": account.settled_by.value if account.settled_by else None,
                "dispatches": account.dispatches,
                "effects": truth.effects,
                "declined": truth.declined,
                "faults": list(truth.faults),
            }
        )
    return rows

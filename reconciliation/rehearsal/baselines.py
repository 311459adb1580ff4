"""Three honest players without a ledger, as retry layers are usually built. None of them ever asks the receiver.

They see what the governed runtime sees, classify it alike, and differ in what they do when it is unclear.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from .calls import Contract
from .players import Claim, Errand, Played
from .sending import Outcome, classify

# The usual default of HTTP retry layers: one try and two more.
TRIES = 3
# Before the second try, doubled before the third; a receiver's Retry-After is honoured up to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0


class Policy(StrEnum):
    CACHED = "cached"
    STABLE_KEY = "stable_key"
    REVALIDATING = "revalidating"


class Authority(Protocol):
    """Answers whether a call is still permitted: what a revalidating player asks before each try."""

    def __call__(self, errand: Errand) -> bool: ...


def always(errand: Errand) -> bool:
    """The authority of a rehearsal, in which nobody's permission is withdrawn."""
    return True


@dataclass(frozen=True, slots=True)
class Retrying:
    """Tries again until an answer is clear or the tries are used up; then calls it failed."""

    policy: Policy
    permitted: Authority = always
    sleep: Callable[[float], None] = time.sleep

    def play(self, errand: Errand) -> Played:
        account = Played(errand.call, errand.contract, Claim.DENIED, operation_id=errand.call.name)
        key = _key_of(errand)
        unclear, asked_to_wait_s = False, 0
        for attempt in range(1, TRIES + 1):
            if self.policy is Policy.REVALIDATING and not self.permitted(errand):
                account.reason = "not_permitted"
                return account
            if attempt > 1:
                pause_s = max(FIRST_PAUSE_S * 2 ** (attempt - 2), asked_to_wait_s)
                self.sleep(min(pause_s, LONGEST_PAUSE_S))
                if self.policy is Policy.CACHED:
                    key = _key_of(errand)
            guaranteed = errand.contract is Contract.REPLAYS and self.policy is not Policy.CACHED
            account.dispatches += 1
            account.blind_dispatches += unclear and not guaranteed
            report = classify(errand.send(key=key, operation_id=errand.call.name, reference=errand.call.name))
            if report.outcome is Outcome.COMPLETED:
                account.claim = Claim.COMPLETED
                return account
            if report.outcome is Outcome.DENIED:
                account.reason = str(report.body["denial"]["reason"])
                return account
            unclear = unclear or report.outcome is Outcome.UNKNOWN
            asked_to_wait_s = report.body.get("retry_after_s", 0)
            account.reason = str(report.body["fault"])
        return account


def _key_of(errand: Errand) -> str:
    """A key of one's own. Random, so that a second run against the same receiver is not taken for the first."""
    return f"{errand.call.name}.{secrets.token_hex(8)}"

"""What every player has in common: a call to make, a receiver to send it to, and an account of what it did.

A player knows its calls and the receivers' addresses. It knows nothing of faults, of the receiver's ledger, or of the
other players.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from .calls import Call, Contract
from .sandbox import call_header
from .sending import NoReply, Reply, send


class Claim(StrEnum):
    """What a player holds to be true of a call when it has ended."""

    COMPLETED = "completed"  # the effect exists
    DENIED = "denied"  # it does not: refused by the receiver, or given up as failed
    UNKNOWN = "unknown"  # said to be unknown
    NOT_DISPATCHED = "not_dispatched"  # nothing was sent: held, or withdrawn
    REFUSED = "refused"  # the service did not accept the intent


class SettledBy(StrEnum):
    """Who said what an unknown outcome really was."""

    RUNTIME = "runtime"
    LOOKUP = "lookup"
    CALLBACK = "callback"
    OPERATOR = "operator"
    PERSON_NEEDED = "person_needed"  # nothing to ask, or asked to the end: it waits for somebody
    STILL_ASKED = "still_asked"  # the rehearsal ended first


@dataclass(slots=True)
class Played:
    """One call's account. ``settled_by``: None while its outcome has never been unknown."""

    call: Call
    contract: Contract
    claim: Claim
    operation_id: str | None = None
    dispatches: int = 0
    blind_dispatches: int = 0  # sent again with neither evidence nor a receiver's guarantee
    settled_by: SettledBy | None = None
    reason: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Errand:
    """One call on its way to one receiver."""

    call: Call
    contract: Contract
    base_url: str
    timeout_s: float

    def send(
        self, *, key: str, operation_id: str | None = None, reference: str | None = None
    ) -> Reply | NoReply:
        """Send it once, under an idempotency key, with the names the receiver may be asked by later."""
        envelope: dict[str, object] = {}
        if reference is not None:
            envelope["client_reference"] = reference
        if operation_id is not None:
            envelope["metadata"] = {"operation_id": operation_id}
        rest = json.dumps(envelope)[1:-1]
        content = f'{{"arguments": {self.call.arguments}{", " + rest if rest else ""}}}'
        return send(
            f"{self.base_url}/tools/{self.call.tool_name}",
            content.encode("utf-8", "surrogatepass"),
            headers={"Idempotency-Key": key, "Rehearsal-Call": call_header(self.call.name)},
            timeout_s=self.timeout_s,
        )


class Player(Protocol):
    """Plays one call to its end, or as far as it gets."""

    def play(self, errand: Errand) -> Played: ...


@dataclass(slots=True)
class Progress:
    """Counts what is done, from any thread."""

    show: Callable[[int], None]
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self) -> None:
        with self._lock:
            self.done += 1
            self.show(self.done)


def play_all(
    player: Player, errands: Iterable[Errand], *, threads: int, show: Callable[[int], None]
) -> list[Played]:
    """Play every errand: the calls of one task one after another, tasks side by side. Answers in the order given."""
    errands = list(errands)
    tasks: dict[str, list[Errand]] = {}
    for errand in errands:
        tasks.setdefault(errand.call.task, []).append(errand)
    progress = Progress(show)
    accounts: dict[str, Played] = {}

    stopped = threading.Event()

    def play_task(task: list[Errand]) -> None:
        for errand in task:
            if stopped.is_set():
                return
            accounts[errand.call.name] = player.play(errand)
            progress.step()

    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="player") as pool:
        futures = [pool.submit(play_task, task) for task in tasks.values()]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            # Calls under way are played to their end, so that what was dispatched is reported; no other begins.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [accounts[errand.call.name] for errand in errands]


def errands_for(
    calls: Iterable[Call],
    contracts: Mapping[str, Contract],
    base_url_of: Callable[[Contract], str],
    *,
    timeout_s: float,
) -> list[Errand]:
    """The calls, each with its contract (by call name) and that contract's receiver."""
    return [
        Errand(call, contracts[call.name], base_url_of(contracts[call.name]), timeout_s) for call in calls
    ]

"""A whole rehearsal: one recording, four players, a receiver each, and what came of it.

Needs a service's address and a way to provision a workspace there; knows nothing of Django.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TextIO

from . import truth
from .baselines import Policy, Retrying
from .calls import Call, Contract, Mix
from .faults import FaultSpec
from .players import Played, errands_for, play_all
from .receivers import Sandbox
from .report import COUNTERFOIL, FORMAT, Score, call_rows, score
from .runtime import Governed, Service
from .workspace import capability_of, document

# A round of following what was left behind: short, so that an operation held behind another does not keep a thread.
ROUND_S = 4.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a rehearsal is told. ``timeout_s``: how long a player waits for the receiver; must be below ``slow_s``."""

    recording: Path
    faults: FaultSpec
    seed: int
    mix: Mix
    workspace: str
    tag: str  # appended to task and operation IDs; empty in a workspace of its own
    folder: Path  # where the receivers' ledgers go
    threads: int = 8
    timeout_s: float = 1.0
    patience_s: float = 20.0
    settle_for_s: float = 120.0
    baselines: bool = True
    receiver: RunningReceiver | None = None


@dataclass(frozen=True, slots=True)
class RunningReceiver:
    """A sandbox receiver that somebody else started and will stop."""

    base_url: str
    ledger: Path

    def base_url_of(self, contract: Contract) -> str:
        return f"{self.base_url.rstrip('/')}/{contract}/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Screen(Protocol):
    """Where progress is shown."""

    def begin(self, label: str, total: int) -> None: ...
    def show(self, done: int) -> None: ...
    def end(self, remark: str = "") -> None: ...


@dataclass(slots=True)
class Bar:
    """A progress bar on a terminal; elsewhere a line at each quarter."""

    stream: TextIO
    _label: str = ""
    _total: int = 0
    _quarter: int = 0
    _began: float = 0.0

    WIDTH = 30

    def begin(self, label: str, total: int) -> None:
        self._label, self._total, self._quarter, self._began = label, total, 0, time.monotonic()
        self.show(0)

    def show(self, done: int) -> None:
        share = done / self._total if self._total else 1.0
        if self.stream.isatty():
            filled = int(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            self.stream.write(f"\r{self._label:<28} [{bar}] {done}/{self._total} {self._seconds}")
        elif int(share * 4) > self._quarter:
            self._quarter = int(share * 4)
            self.stream.write(f"{self._label}: {done}/{self._total} {self._seconds}\n")
        self.stream.flush()

    def end(self, remark: str = "") -> None:
        if self.stream.isatty():
            self.stream.write(f" {remark}\n" if remark else "\n")
        elif remark:
            self.stream.write(f"{self._label}: {remark}\n")
        self.stream.flush()

    @property
    def _seconds(self) -> str:
        return f"({time.monotonic() - self._began:.0f} s)"


@dataclass(frozen=True, slots=True)
class Result:
    """What a rehearsal came to. ``left``: operations that were neither settled nor handed to a person at the end."""

    options: Options
    scores: tuple[Score, ...]
    calls: Mapping[str, Sequence[Mapping[str, Any]]]
    started_at: datetime
    seconds: float
    settling_s: float
    left: int
    lookups: int
    service: str

    @property
    def clean(self) -> bool:
        """Whether the governed player made no duplicate and lost no effect."""
        return all(s.clean for s in self.scores if s.player == COUNTERFOIL)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "recording": str(self.options.recording),
            "service": self.service,
            "workspace": self.options.workspace,
            "seed": self.options.seed,
            "faults": str(self.options.faults),
            "contracts": str(self.options.mix),
            "started_at": self.started_at.isoformat(),
            "seconds": round(self.seconds, 1),
            "settling_s": round(self.settling_s, 1),
            "left_unsettled": self.left,
            "lookups": self.lookups,
            "clean": self.clean,
            "players": [s.as_json() for s in self.scores],
            "calls": self.calls,
        }


def rehearse(
    calls: Sequence[Call],
    options: Options,
    *,
    service_url: str,
    provision: Callable[[dict[str, Any]], str],
    screen: Screen,
    runtime: type[Governed] = Governed,
) -> Result:
    """Play the calls under the service, then under each baseline, and judge all of them by their receivers' ledgers.

    ``provision`` takes a provision document and returns the runtime's token. ``runtime`` is the governed player: another
    than ours can be put to the test. Raises ServiceFailed, SandboxFailed.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    contracts = {call.name: options.mix.contract_of(call, seed=options.seed) for call in calls}
    governed = _governed(
        calls,
        contracts,
        options,
        service_url=service_url,
        provision=provision,
        screen=screen,
        runtime=runtime,
    )
    scores = [governed.score]
    rows: dict[str, Sequence[Mapping[str, Any]]] = {COUNTERFOIL: governed.rows}
    for policy in Policy if options.baselines else ():
        ledger = options.folder / f"{policy}.sqlite"
        with Sandbox(ledger, faults=options.faults, seed=options.seed) as receiver:
            errands = errands_for(calls, contracts, receiver.base_url_of, timeout_s=options.timeout_s)
            screen.begin(policy.replace("_", " "), len(errands))
            accounts = play_all(Retrying(policy), errands, threads=options.threads, show=screen.show)
            screen.end()
        truths = truth.read(ledger)
        scores.append(score(policy, accounts, truths))
        rows[policy] = call_rows(accounts, truths)
    return Result(
        options=options,
        scores=tuple(scores),
        calls=rows,
        started_at=started_at,
        seconds=time.monotonic() - began,
        settling_s=governed.settling_s,
        left=governed.left,
        lookups=governed.lookups,
        service=service_url,
    )


@dataclass(frozen=True, slots=True)
class _Governed:
    score: Score
    rows: Sequence[Mapping[str, Any]]
    settling_s: float
    left: int
    lookups: int


def _governed(
    calls: Sequence[Call],
    contracts: Mapping[str, Contract],
    options: Options,
    *,
    service_url: str,
    provision: Callable[[dict[str, Any]], str],
    screen: Screen,
    runtime: type[Governed],
) -> _Governed:
    ledger = options.receiver.ledger if options.receiver else options.folder / f"{COUNTERFOIL}.sqlite"
    starting = options.receiver or Sandbox(ledger, faults=options.faults, seed=options.seed)
    with starting as receiver:
        token = provision(
            document(
                workspace=options.workspace,
                calls=calls,
                contracts=contracts,
                base_url_of=receiver.base_url_of,
                faults=options.faults,
                now=datetime.now(UTC),
            )
        )
        service = Service(service_url, token)
        try:
            player = runtime(
                service,
                {call.name: capability_of(call, contracts[call.name]) for call in calls},
                tag=options.tag,
                patience_s=options.patience_s,
            )
            errands = errands_for(calls, contracts, receiver.base_url_of, timeout_s=options.timeout_s)
            screen.begin(COUNTERFOIL, len(errands))
            accounts = play_all(player, errands, threads=options.threads, show=screen.show)
            screen.end()
            settling_s = _settle(player, options, screen)
            if options.receiver:
                # Nobody stops this receiver, which would land what is on its way: wait for it instead.
                time.sleep(options.faults.late_s + 1.0)
            _read_again(player, accounts, threads=options.threads)
        finally:
            service.close()
    truths = truth.read(ledger)
    return _Governed(
        score=score(COUNTERFOIL, accounts, truths),
        rows=call_rows(accounts, truths),
        settling_s=settling_s,
        left=player.left,
        lookups=truth.lookups(ledger),
    )


def _settle(player: Governed, options: Options, screen: Screen) -> float:
    """Follow what was left behind until all of it is settled or waits for a person; at most ``settle_for_s``.

    Returns the seconds that it took.
    """
    began = time.monotonic()
    deadline = began + options.settle_for_s
    total = player.left
    if not total:
        return 0.0
    screen.begin("settling what is unknown", total)
    with ThreadPoolExecutor(max_workers=options.threads, thread_name_prefix="settle") as pool:
        while (left := player.left_behind()) and time.monotonic() < deadline:
            until = min(deadline, time.monotonic() + ROUND_S)
            for _ in pool.map(partial(player.settle_one, until=until), left):
                screen.show(total - player.left)
    took = time.monotonic() - began
    screen.end(f"{player.left} left after {took:.0f} s" if player.left else f"all of it, in {took:.0f} s")
    return took


def _read_again(player: Governed, accounts: Sequence[Played], *, threads: int) -> None:
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="reread") as pool:
        list(pool.map(player.read_again, accounts))

"""The effectful calls that a real model made, played to the end against receivers that lose replies."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import provisioning
from reconciliation.rehearsal.baselines import Policy
from reconciliation.rehearsal.calls import Mix, read
from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.players import Claim, SettledBy
from reconciliation.rehearsal.rehearsal import Bar, Options, rehearse
from reconciliation.rehearsal.workspace import RUNTIME
from tests import live as processes
from tests.corpora import corpora

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def sweep(record: None) -> Iterator[None]:
    with processes.sweeping():
        yield


def provision(document: dict[str, Any]) -> str:
    result = provisioning.apply(document, environ=os.environ, rotate=frozenset({RUNTIME}))
    return result.runtimes[0]["token"]


# Source: sierra-research/tau-bench, historical trajectories of a model in the airline domain (MIT).
def test_250_real_calls_make_no_duplicate_lose_nothing_and_account_for_every_unknown(
    live: str, sweep: None, tmp_path: Path
) -> None:
    recording = corpora("tau-bench") / "airline-effectful-calls.jsonl"
    options: dict[str, Any] = {
        "recording": recording,
        "faults": FaultSpec.parse("standard"),
        "seed": 1,
        "mix": Mix.parse("replays=0.4,readable=0.4,opaque=0.2"),
        "workspace": f"rehearsal-{os.urandom(6).hex()}",
        "tag": "",
        "folder": tmp_path,
        "settle_for_s": 120,
        "baselines": True,
    }
    result = rehearse(
        read(recording, limit=None),
        Options(**options),
        service_url=live,
        provision=provision,
        screen=Bar(io.StringIO()),
    )
    governed, *baselines = result.scores
    assert result.clean and result.left == 0
    assert (governed.duplicates, governed.blind_dispatches) == (0, 0)
    assert governed.settlements[SettledBy.LOOKUP] > 0
    assert governed.settlements[SettledBy.PERSON_NEEDED] == governed.claims[Claim.UNKNOWN]
    # The faults were hard enough to tell: each of the other ways makes duplicates of the same calls.
    assert [score.player for score in baselines] == list(Policy)
    assert all(score.duplicates for score in baselines)

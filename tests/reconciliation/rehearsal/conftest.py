from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.receivers import Sandbox

Start = Callable[..., Sandbox]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts sandbox receivers, real processes with ledgers of their own, and stops them."""
    with ExitStack() as running:
        started = iter(range(1000))

        def starter(faults: str = "none", *, seed: int = 0) -> Sandbox:
            ledger = tmp_path / f"receiver-{next(started)}.sqlite"
            return running.enter_context(Sandbox(ledger, faults=FaultSpec.parse(faults), seed=seed))

        yield starter

"""A receiver that a test commands, and operations whose outcome is unknown to their runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reconciliation import services
from tests.arrange import Arranged
from tests.reconciliation.scene import Receiver, Scene


@pytest.fixture(scope="session")
def no_backlog(record: None) -> None:
    """What other tests left unknown has its cases already: one sweep opens so many and no more."""
    while services.sweep().opened:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on a port of its own, asked over real HTTP."""
    with Receiver.listening() as listening:
        yield listening


@pytest.fixture
def scene(no_backlog: None, workspace: Arranged, receiver: Receiver) -> Scene:
    """A workspace whose ``refund.create`` is looked up at the receiver; nothing can arrive late there."""
    made = Scene(workspace, receiver)
    made.capability()
    return made

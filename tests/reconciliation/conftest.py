"""A receiver that a test commands, and operations whose outcome is unknown to their runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.arrange import Arranged
from tests.reconciliation.scene import Receiver, Scene


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on a port of its own, asked over real HTTP."""
    with Receiver.listening() as listening:
        yield listening


@pytest.fixture
def scene(workspace: Arranged, receiver: Receiver) -> Scene:
    """A workspace whose ``refund.create`` is looked up at the receiver; nothing can arrive late there."""
    made = Scene(workspace, receiver)
    made.capability()
    return made

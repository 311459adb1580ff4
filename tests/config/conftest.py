from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _open_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-test-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the servers' user can reach, as a clone's usually is; pytest's own are closed to others."""
    yield from _open_folder()


@pytest.fixture(scope="module")
def shared_open_folder() -> Iterator[Path]:
    yield from _open_folder()

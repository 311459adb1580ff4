"""Data that nobody here wrote, kept outside the repository: the folder that CORPORA_DIR names.

jcs/input/*.json, jcs/output/*.json    RFC 8785 vectors (cyberphone/json-canonicalization, Apache-2.0)
blns.json                              the Big List of Naughty Strings (minimaxir, MIT)
acc/, tau-bench/                       contracts of the Agent Capability Contract; recorded tool calls
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def corpora(name: str) -> Path:
    """The file or folder `name` in CORPORA_DIR. Skips the test, aloud, where that is unset; a skip fails when CI=true."""
    folder = os.environ.get("CORPORA_DIR")
    if not folder:
        pytest.skip(f"CORPORA_DIR is unset: {name} is not at hand")
    path = Path(folder) / name
    if not path.exists():
        pytest.fail(f"CORPORA_DIR has no {name}")
    return path

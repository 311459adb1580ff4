"""What is installed is what was meant: the locks fit pyproject.toml, and name packages by content, never by place."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from config.environment import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    "requirements.lock": [],
    "requirements-dev.lock": PROJECT["dependency-groups"]["dev"],
    "requirements-hosts.lock": PROJECT["dependency-groups"]["hosts"],
}
PIN = re.compile(r"^([a-z0-9-]+)(?:\[[^\]]*\])?==([^ ;]+)", re.MULTILINE)


def pins(lock: str) -> dict[str, set[str]]:
    """Every version of every package of a lock (two where Python versions differ)."""
    found: dict[str, set[str]] = {}
    for name, version in PIN.findall((ROOT / lock).read_text()):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_satisfies_every_requirement_of_the_project(lock: str) -> None:
    pinned = pins(lock)
    for text in PROJECT["project"]["dependencies"] + LOCKS[lock]:
        wanted = Requirement(text)
        versions = pinned.get(canonicalize_name(wanted.name), set())
        assert versions, f"{text} is not in {lock}: make lock"
        assert any(wanted.specifier.contains(version) for version in versions), (
            f"{text}: {versions} in {lock}"
        )


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_is_named_by_hash_and_no_place_is_named(lock: str) -> None:
    text = (ROOT / lock).read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text.strip())

    assert [block.split("==")[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert re.findall(r"https?://|--index-url|--find-links|@ ", text) == []


def test_the_locks_agree_with_each_other() -> None:
    runtime = pins("requirements.lock")
    for lock in ("requirements-dev.lock", "requirements-hosts.lock"):
        other = pins(lock)
        assert {name: other.get(name) for name in runtime} == runtime

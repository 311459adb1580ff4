"""What the README claims, held against the code."""

from __future__ import annotations

import re

import pytest

from tests.readme import README, TABLES, with_tables

TEXT = README.read_text(encoding="utf-8")


def test_the_readmes_tables_are_the_codes() -> None:
    assert with_tables(TEXT) == TEXT, "run: .venv/bin/python -m tests.readme"


@pytest.mark.parametrize("name", sorted(TABLES))
def test_each_table_has_rows(name: str) -> None:
    assert len(TABLES[name]().splitlines()) > 5


def test_the_files_and_targets_that_the_readme_names_exist() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)`", TEXT)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for path in set(re.findall(r"`([a-z_/]+/[a-z_]+\.(?:py|yaml))`", TEXT)):
        assert (README.parent / path).exists(), path


def test_the_readme_makes_no_promise_that_nobody_can_keep() -> None:
    assert not re.search(r"exactly[- ]once|tamper-?proof|guarantees? no duplicates", TEXT, re.IGNORECASE)

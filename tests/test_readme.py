"""What the README claims, held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledger import provisioning, tokens
from ledger.contracts import KEYS, Contract, Deduplicates, KeyClaimed, Lookup, Replays
from ledger.provisioning import capabilities, checking
from reconciliation.reconcilers import http_lookup, http_plan
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


def test_every_link_inside_the_readme_has_its_heading() -> None:
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def provision_file() -> str:
    found = re.search(r"<!-- provision -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_provision_file_of_the_readme_is_accepted_without_a_warning() -> None:
    minted = tokens.mint("readme", pepper=b"p" * 32)
    environ = {
        "OLIVE_PASSWORD": "correct horse battery",
        "SUPPORT_AGENT_TOKEN": minted.token,
        "ACME_PAY_KEY": "a-key-of-acmes",
        "ACME_PAY_WHSEC": "whsec_c2VjcmV0",
    }
    document = provisioning.read(provision_file().encode(), name="README.md")
    plan = provisioning.check(document, environ, checks=provisioning.configured_checks())
    assert [str(warning) for warning in plan.warnings] == []


@pytest.mark.parametrize(
    "key",
    [
        *("members", "email", "roles", "password_env"),
        *("runtimes", "scopes", "capabilities", "subjects", "owner", "token_env"),
        *("receivers", "base_url", "headers", "allow_private_addresses", "callback_secret_env"),
        *(*capabilities._CAPABILITY_KEYS, *capabilities._APPROVAL_KEYS),
        *("mandates", "subject", "capability", "valid_until", "limits"),
        *checking.ROLES,
        *checking.SCOPES,
        *(key for key in KEYS if key != "verified"),
    ],
)
def test_the_provision_file_of_the_readme_names_every_key(key: str) -> None:
    assert re.search(rf"\b{key}\b", provision_file()), key


def test_the_readme_explains_every_key_and_word_of_a_contract() -> None:
    section = TEXT.split("### What a contract says")[1].split("\n## ")[0]
    words = [*KEYS, *(word.value for enum in (Deduplicates, KeyClaimed, Replays, Lookup) for word in enum)]
    assert [word for word in words if f"`{word}`" not in section] == []
    careful = Contract.parse({"deduplicates": "none", "lookup": "none"}).as_json()
    for key in ("key_claimed", "replays", "visibility_lag_s", "in_flight_s", "max_attempts"):
        assert re.search(rf"^\| `{key}` \| `?{careful[key]}`? \|", section, re.MULTILINE), key
    for status, said in careful["refusals"].items():
        assert status in section.split("`refusals` unsaid:")[1].split(";")[0], (status, said)


def test_the_readme_shows_every_key_of_a_look_up() -> None:
    assert [key for key in http_plan._KEYS if f"{key}:" not in TABLES["lookup"]()] == []


def test_the_readme_names_every_word_by_which_a_look_up_is_unclear() -> None:
    source = Path(http_lookup.__file__).read_text(encoding="utf-8")
    words = set(re.findall(r'_Unclear\(f?"([a-z_]+)[:"]', source))
    assert len(words) > 10
    assert [word for word in sorted(words) if not re.search(rf"`{word}[`:]", TABLES["why"]())] == []

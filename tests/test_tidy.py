"""The house: who imports whom, which files are pure, who writes. Read from the imports themselves."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
APPS = ("config", "ledger", "approvals", "reconciliation")

# Which of our packages a package may import.
MAY_IMPORT = {
    "config": {"config", "ledger", "approvals", "reconciliation"},
    "ledger": {"ledger"},
    "approvals": {"approvals", "ledger"},
    "reconciliation": {"reconciliation", "ledger"},
}

# Nothing but the standard library and each other.
PURE = {
    "ledger/states.py",
    "ledger/decisions.py",
    "ledger/contracts.py",
    "ledger/permissions.py",
    "reconciliation/findings.py",
    "reconciliation/verdicts.py",
}

# The rooms that other apps may enter in ``ledger``: pure files, errors, services, selectors and what they hand out.
OPEN_ROOMS = {
    "approvals": re.compile(
        r"ledger\.(states|decisions|contracts|permissions|digests|errors|facts|services|selectors)\b"
    ),
    "reconciliation": re.compile(
        r"ledger\.(states|decisions|contracts|permissions|digests|errors|facts|services|selectors"
        r"|matching|tenancy|failpoints|wording|provisioning|api|access)\b"
    ),
}

WRITES = re.compile(r"\.(create|bulk_create|update|bulk_update|get_or_create|update_or_create|delete|save)\(")


def _sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(p for p in (ROOT / folder).rglob("*.py") if "migrations" not in p.parts)


def _imports(path: Path) -> Iterator[str]:
    """Every module a file imports, also inside functions, as a dotted name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{origin}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", list(_sources(*APPS)), ids=lambda p: str(p.relative_to(ROOT)))
def test_apps_import_only_downwards(path: Path) -> None:
    app = path.relative_to(ROOT).parts[0]
    for name in _imports(path):
        top = name.split(".")[0]
        assert top not in APPS or top in MAY_IMPORT[app], f"{path} imports {name}"
        assert top != "tests", f"{path} imports {name}"


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_files_need_the_standard_library_only(name: str) -> None:
    for imported in _imports(ROOT / name):
        top = imported.split(".")[0]
        ours = imported.rsplit(".", 1)[0].replace(".", "/") + ".py"
        assert top in sys.stdlib_module_names or ours in PURE, f"{name} imports {imported}"


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_files_have_no_clock(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(
        r"\b(datetime\.now|time\.time|monotonic|utcnow|random|secrets|os\.environ|open)\(", text
    )


@pytest.mark.parametrize("app", sorted(OPEN_ROOMS))
def test_other_apps_enter_the_ledger_by_its_open_rooms(app: str) -> None:
    for path in _sources(app):
        for name in _imports(path):
            if name.startswith("ledger."):
                assert OPEN_ROOMS[app].match(name), f"{path.relative_to(ROOT)} imports {name}"


def test_only_services_and_provisioning_write() -> None:
    """Views, API, tasks, selectors and pure files change nothing by themselves."""
    doors = ("views", "api", "tasks", "selectors", "facts", "forms")
    for path in _sources("ledger", "approvals", "reconciliation"):
        inside = path.relative_to(ROOT).parts[1:]
        if any(part.removesuffix(".py") in doors for part in inside):
            code = re.sub(r"#.*|\"\"\".*?\"\"\"", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            found = [
                line.strip()
                for line in code.splitlines()
                if re.search(r"\.objects\b.*", line) and WRITES.search(line)
            ]
            assert not found, f"{path.relative_to(ROOT)} writes: {found}"


def test_no_module_is_named_for_nothing() -> None:
    vague = {"utils", "helpers", "manager", "managers", "core", "common", "data", "info", "misc"}
    named = {path.stem for path in _sources(*APPS)} | {path.parent.name for path in _sources(*APPS)}
    assert not named & vague


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine, no index host, no promise that nobody can keep."""
    never = re.compile(r"exactly[- ]once|tamper-?proof|--(extra-)?index-url|/simple/", re.IGNORECASE)
    kinds = {".py", ".md", ".html", ".css", ".js", ".sql", ".toml", ".yaml", ".txt", ".lock"}
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if path.suffix not in kinds or parts[0] in {"var", "tests"} or parts[0].startswith("."):
            continue
        found = never.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(ROOT)}: {found and found.group()}"

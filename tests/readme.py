"""The README's tables as the code has them: ``python -m tests.readme`` writes them in, tests/test_readme.py compares."""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def decision_table() -> str:
    """The rows of ledger/decisions.py in their order."""
    from ledger.decisions import RULES

    lines = ["| state | standing | permission | denial | replay | action | reason |", "|" + " --- |" * 7]
    for rule in RULES:
        states = "(no entry)" if rule.no_entry else _words(rule.states)
        if rule.states is not None and len(rule.states) > 2:
            from ledger.states import State

            states = "any but " + _words(frozenset(State) - rule.states)
        permission = _words(rule.permissions)
        if rule.permission_reason:
            permission += f": {rule.permission_reason.replace('_', ' ')}"
        cells = [
            states,
            rule.standing or "*",
            permission,
            (rule.denial or "*").replace("_", " "),
            "*" if rule.replay_guaranteed is None else "guaranteed",
            f"**{rule.action}**",
            f"`{rule.reason}`",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _words(members: frozenset[object] | None) -> str:
    return "*" if members is None else ", ".join(sorted(str(m).replace("_", " ") for m in members))


def problem_table() -> str:
    """Every refusal of the API, by status."""
    from ledger import errors

    lines = ["| status | code | title | what to do |", "| --- | --- | --- | --- |"]
    seen = set()
    for refusal in sorted(errors.ALL, key=lambda r: (r.status, r.code)):
        if (refusal.status, refusal.code) in seen:
            continue
        seen.add((refusal.status, refusal.code))
        lines.append(f"| {refusal.status} | `{refusal.code}` | {refusal.title} | {refusal.way_out} |")
    return "\n".join(lines)


def settings_table() -> str:
    """Every environment variable that is read."""
    from config.environment import VARIABLES

    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for variable in VARIABLES:
        default = "" if variable.default is None else f"`{variable.default}`" if variable.default else "empty"
        lines.append(f"| `{variable.name}` | {default} | {variable.meaning} |")
    return "\n".join(lines)


def permit_check() -> str:
    """The lines that tests/ledger/test_permits.py runs against real permits."""
    text = (README.parent / "tests/ledger/test_permits.py").read_text(encoding="utf-8")
    found = re.search(r"^CHECK = '''\n(.*?)'''$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return f"```python\n{found[1]}```"


def runtime_loop() -> str:
    """tests/loop.py, which tests/test_loop.py runs."""
    text = (README.parent / "tests/loop.py").read_text(encoding="utf-8")
    return f"```python\n{text[text.index('import secrets') :]}```"


def lookup_block() -> str:
    """The keys of an ``http_lookup`` block and their rules, as its reader documents them."""
    from reconciliation.reconcilers import http_plan

    _, _, block, rules = _documented(http_plan).split("\n\n", 3)
    return f"```yaml\n{textwrap.dedent(block)}\n```\n\n{rules}"


def unclear_words() -> str:
    """Every ``why`` of a look-up that proved nothing."""
    from reconciliation.reconcilers import http_lookup

    return _documented(http_lookup).split("\n\n", 2)[2].strip("\n")


def _documented(thing: object) -> str:
    """A docstring with Markdown's code marks."""
    return inspect.cleandoc(thing.__doc__ or "").replace("``", "`")


TABLES = {
    "permit": permit_check,
    "loop": runtime_loop,
    "lookup": lookup_block,
    "why": unclear_words,
    "decisions": decision_table,
    "problems": problem_table,
    "settings": settings_table,
}
_SPAN = "<!-- {name} -->\n.*?<!-- /{name} -->"


def with_tables(text: str) -> str:
    """The README's text with each table as the code has it now."""
    for name, table in TABLES.items():
        span = re.compile(_SPAN.format(name=name), re.DOTALL)
        assert span.search(text), f"README.md has no place for the table of {name}"
        new = f"<!-- {name} -->\n{table()}\n<!-- /{name} -->"
        text = span.sub(lambda _, new=new: new, text)
    return text


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")

"""The README's walk through one operation, pasted into a shell as it stands, against the real service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.live import ROOT
from tests.readme import README

pytestmark = pytest.mark.processes


def pasted() -> str:
    """The shell block of the walk."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"^## One operation, with curl$.*?^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def objects_in(text: str) -> list[dict[str, Any]]:
    """The JSON objects that were printed one after another, and nothing of what stands between them."""
    found, decoder, at = [], json.JSONDecoder(), text.find("{")
    while at >= 0:
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at = text.find("{", at)
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what the walk uses of a clone: refunds.yaml is written beside it, not into this one."""
    (tmp_path / "manage.py").symlink_to(ROOT / "manage.py")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def paste(clone: Path, live: str, *shell: str) -> str:
    env = {**os.environ, "PORT": str(urlsplit(live).port)}
    done = subprocess.run(
        [*shell], input=pasted(), cwd=clone, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_walk_says_what_its_comments_say_however_often_it_is_pasted(clone: Path, live: str) -> None:
    # `sh` too: nothing of the block needs bash.
    for shell in (("bash", "-u"), ("sh",)):
        said = paste(clone, live, *shell)
        permitted, lost, refused, late, read = objects_in(said)
        assert permitted["state"] == "dispatched" and permitted["permit"]["attempt"] == 1
        assert lost["state"] == "unknown" and lost["effect"] == "unknown"
        assert (refused["status"], refused["code"]) == (409, "reconciliation-required")
        assert late["state"] == "completed" and late["outcome"]["receiver_reference"] == "re_1"
        assert read["decision"]["action"] == "resume"


def test_the_walks_last_line_opens_its_operation_in_the_console(clone: Path, live: str) -> None:
    last = paste(clone, live, "bash").splitlines()[-1]
    address, email, password = re.fullmatch(r"Its timeline: (\S+)  sign in: (\S+)  (\S+)", last).groups()
    with httpx.Client(trust_env=False, follow_redirects=True) as browser:
        gate = browser.get(address)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', gate.text)[1]
        page = browser.post(
            gate.url,
            data={
                "login": email,
                "password": password,
                "csrfmiddlewaretoken": token,
                "next": urlsplit(address).path,
            },
            headers={"Referer": str(gate.url)},
        )
    assert page.status_code == 200
    assert urlsplit(str(page.url)).path == urlsplit(address).path
    assert "re_1" in page.text and "Completed" in page.text

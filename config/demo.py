"""What `make demo` does once the service answers: a workspace, three people, and a recorded run of an agent.

The recording is played through the service against a sandbox receiver that loses replies on purpose. What the look-ups
settle is settled while one watches; what no machine can tell is left in the console for a person.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from config.environment import ROOT
from config.watched import dying_with

WORKSPACE = "demo"
PEOPLE = ROOT / "config" / "demo.yaml"
RECORDING = ROOT / "reconciliation" / "rehearsal" / "recording.jsonl"
LOGINS = {
    "olive@example.org": "operator: settles what is unknown",
    "ada@example.org": "approver: decides on what waits for a person",
    "alan@example.org": "admin and auditor",
}
# Long enough for look-ups to settle what they can, short enough to watch.
SETTLE_FOR_S = 20


def demo(env: Mapping[str, str], base_url: str, say: Callable[[str], None]) -> None:
    """Prepares the demo on the running service and says where to look. ``env`` leads every command to its servers.

    A step that fails is told by its own words above, and the service goes on.
    """
    password = _password(Path(env["COUNTERFOIL_DATA"]))
    if not _manage("provision", str(PEOPLE), env={**env, "DEMO_PASSWORD": password}):
        say("demo: the workspace could not be provisioned (see above)")
        return
    say(f"\nconsole     {base_url}/")
    for email, does in LOGINS.items():
        say(f"login       {email:<20} {password}   {does}")
    say(f"\nplaying {RECORDING.relative_to(ROOT)} against a receiver that loses replies …")
    played = _manage(
        "rehearse",
        str(RECORDING),
        f"--workspace={WORKSPACE}",
        f"--settle-for={SETTLE_FOR_S}",
        env=env,
    )
    if not played:
        say("demo: the recording could not be played to its end (see above)")
    say(f"\nWhat only a person can settle waits at {base_url}/unknowns (Ctrl-C stops everything)")


def _password(data: Path) -> str:
    """One password for the three, made once for this data folder: anyone on this machine may reach the port."""
    path = data / "demo.json"
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"password": secrets.token_urlsafe(9)}, file)
    password: str = json.loads(path.read_text())["password"]
    return password


def _manage(*arguments: str, env: Mapping[str, str]) -> bool:
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    ends_with_us = dying_with(os.getpid(), 15)
    return (
        subprocess.run(
            command, env=dict(env), stdout=sys.stderr, preexec_fn=ends_with_us, check=False
        ).returncode
        == 0
    )

"""What `make demo` does once the service answers: a workspace, three people, and a recorded run of an agent.

The recording is played through the service against a sandbox receiver that loses replies on purpose. What the look-ups
settle is settled while one watches; what no machine can tell is left in the console for a person.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from config.environment import ROOT

WORKSPACE = "demo"
PEOPLE = ROOT / "config" / "demo.yaml"
RECORDING = ROOT / "reconciliation" / "rehearsal" / "recording.jsonl"
LOGINS = {
    "olive@example.org": "operator: settles what is unknown",
    "ada@example.org": "approver and operator: the second person, where two must agree",
    "alan@example.org": "admin and auditor",
}
# Long enough for look-ups to settle what they can, short enough to watch.
SETTLE_FOR_S = 20
# Under this seed a refund, a transfer, a deployment and a voucher are left for a person, the transfer with an equal one
# held behind it; eleven others are settled by look-ups.
SEED = 47


class Manage(Protocol):
    """Runs one management command beside the service, and ends it when the service ends."""

    def __call__(self, *arguments: str, **env: str) -> bool:
        """Whether it succeeded. ``env`` is added to what leads it to its servers."""


def demo(data: Path, base_url: str, manage: Manage, say: Callable[[str], None]) -> None:
    """Prepares the demo on the running service and says where to look.

    A step that fails is told by its own words above, and the service goes on.
    """
    password = _password(data)
    if not manage("provision", str(PEOPLE), DEMO_PASSWORD=password):
        say("demo: the workspace could not be provisioned (see above)")
        return
    say(f"\nconsole     {base_url}/")
    for email, does in LOGINS.items():
        say(f"login       {email:<20} {password}   {does}")
    say(f"\nplaying {RECORDING.relative_to(ROOT)} against a receiver that loses replies …")
    if not manage(
        "rehearse",
        str(RECORDING),
        f"--workspace={WORKSPACE}",
        f"--settle-for={SETTLE_FOR_S}",
        f"--seed={SEED}",
    ):
        say("demo: the recording was not played to a clean end (see above)")
    say(f"\nWhat only a person can settle waits at {base_url}/unknowns (Ctrl-C stops everything)")
    say(f"sign in as {next(iter(LOGINS))} with {password}")


def _password(data: Path) -> str:
    """One password for the three, made once for this data folder: anyone on this machine may reach the port."""
    path = data / "demo.json"
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"password": secrets.token_urlsafe(9)}, file)
    password: str = json.loads(path.read_text())["password"]
    return password

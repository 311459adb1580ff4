"""A whole rehearsal over the real service: web server, sweep, PostgreSQL, receivers, all processes of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ledger import provisioning
from reconciliation.management.commands.rehearse import Command, _provision
from reconciliation.rehearsal import truth
from reconciliation.rehearsal.baselines import Policy
from reconciliation.rehearsal.calls import Contract, Mix, read
from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.players import Claim, SettledBy
from reconciliation.rehearsal.rehearsal import Bar, Options, Result, rehearse
from reconciliation.rehearsal.report import COUNTERFOIL
from reconciliation.rehearsal.runtime import Followed, Governed
from reconciliation.rehearsal.workspace import RUNTIME, document
from tests import live as processes
from tests.live import ROOT

RECORDING = ROOT / "reconciliation" / "rehearsal" / "recording.jsonl"
HARD = "cut=0.2,lost=0.1,slow=0.05,late=0.1,hidden=0.1,5xx=0.1,decline=0.1,blind=0.1"


@pytest.fixture(scope="module")
def sweep(record: None) -> Iterator[None]:
    with processes.sweeping():
        yield


def provision(document: dict[str, Any]) -> str:
    result = provisioning.apply(document, environ=os.environ, rotate=frozenset({RUNTIME}))
    return result.runtimes[0]["token"]


def played(
    live: str, folder: Path, *, limit: int, runtime: type[Governed] = Governed, **chosen: Any
) -> Result:
    options: dict[str, Any] = {
        "recording": RECORDING,
        "faults": FaultSpec.parse(HARD),
        "seed": 4,
        "mix": Mix.parse("replays,readable,opaque"),
        "workspace": f"rehearsal-{os.urandom(6).hex()}",
        "tag": "",
        "folder": folder,
        "settle_for_s": 60,
        "baselines": False,
        **chosen,
    }
    return rehearse(
        read(options["recording"], limit=limit),
        Options(**options),
        service_url=live,
        provision=provision,
        screen=Bar(io.StringIO()),
        runtime=runtime,
    )


# C01, C07; I4, I5, I7
def test_a_hard_rehearsal_makes_no_duplicate_loses_nothing_and_accounts_for_every_unknown(
    live: str, sweep: None, tmp_path: Path
) -> None:
    result = played(live, tmp_path, limit=16, baselines=True)
    governed, *baselines = result.scores
    rows = result.calls[COUNTERFOIL]
    assert result.clean, rows
    assert result.left == 0
    assert governed.blind_dispatches == 0
    assert sum(bool(row["faults"]) for row in rows) >= 6
    assert governed.settlements[SettledBy.LOOKUP] >= 2
    assert governed.settlements[SettledBy.PERSON_NEEDED] == governed.claims[Claim.UNKNOWN]
    assert {row["contract"] for row in rows if row["claim"] == "unknown"} <= {"opaque"}
    # The receiver counts the same dispatches as the runtime, and the baselines fail where they must.
    arrivals = truth.read(tmp_path / f"{COUNTERFOIL}.sqlite").values()
    assert governed.dispatches == sum(one.arrivals for one in arrivals)
    assert [score.player for score in baselines] == list(Policy)
    assert all(score.duplicates and score.blind_dispatches for score in baselines)


class Hasty(Governed):
    """A runtime with a planted bug: what is unknown it sends again, decision or not."""

    def _use_permit(self, followed: Followed, **known: Any) -> None:
        super()._use_permit(followed, **known)
        if followed.body["state"] == "unknown":
            followed.errand.send(key="another", operation_id=followed.operation_id)


class Forgetful(Governed):
    """A runtime with a planted bug: it holds what is unknown to have failed."""

    def read_again(self, account: Any) -> None:
        super().read_again(account)
        if account.claim is Claim.UNKNOWN:
            account.claim = Claim.DENIED


@pytest.mark.parametrize("runtime", [Hasty, Forgetful])
def test_the_checker_bites_a_runtime_with_a_planted_bug(
    live: str, sweep: None, tmp_path: Path, runtime: type[Governed]
) -> None:
    result = played(
        live, tmp_path, limit=4, mix=Mix.parse("opaque"), faults=FaultSpec.parse("cut=1"), runtime=runtime
    )
    assert not result.clean
    (score,) = result.scores
    assert bool(score.duplicates) is (runtime is Hasty)
    assert bool(score.effect_without_claim) is (runtime is Forgetful)


def test_refused_arguments_are_counted_and_nothing_of_them_is_dispatched(
    live: str, sweep: None, tmp_path: Path
) -> None:
    recording = tmp_path / "calls.jsonl"
    recording.write_text(
        '{"task": "t", "step": 1, "tool": "pay", "arguments": {"n": 0.1000000000000000055511151231257827}}\n'
        '{"task": "t", "step": 2, "tool": "pay", "arguments": {"n": 0.1}}\n'
        '{"task": "t", "step": 3, "tool": "pay", "arguments": "{\\"a\\": 1, \\"a\\": 2}"}\n'
    )
    result = played(live, tmp_path, limit=3, recording=recording, faults=FaultSpec.parse("none"))
    (score,) = result.scores
    assert result.clean
    assert score.refusals == {"malformed": 2}
    assert (score.effects, score.dispatches) == (1, 1)


# The command, as people run it


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"task": "t", "step": 1, "tool": "x", "arguments": {}}\n{"task": "t"\n')
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["BROKEN"], 1, "line 2: not a JSON object"),
        (["missing.jsonl"], 1, "missing.jsonl: No such file"),
        ([str(RECORDING)], 1, "no service runs on"),
        ([str(RECORDING), "--service", "http://127.0.0.1:9"], 1, "no service answers on http://127.0.0.1:9"),
        ([str(RECORDING), "--faults", "cot=1"], 2, "no fault is called 'cot'"),
        ([str(RECORDING), "--contract", "lying"], 2, "contracts: replays, readable, opaque"),
        ([str(RECORDING), "--limit", "0"], 2, "not between 1 and"),
        ([str(RECORDING), "--seed", "one"], 2, "'one' is not a number"),
        ([str(RECORDING), "--receiver", "http://127.0.0.1:9"], 2, "belong together"),
        ([], 2, "CALLS.jsonl"),
    ],
)
def test_what_cannot_be_played_is_said_and_ends_with_its_code(
    arguments: list[str],
    code: int,
    words: str,
    broken: Path,
    settings: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings.DATA_FOLDER = broken.parent
    named = [str(broken) if argument == "BROKEN" else argument for argument in arguments]
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "rehearse", *named])
    assert ended.value.code == code
    assert words in capsys.readouterr().err


def test_the_command_prints_a_table_and_writes_a_report(live: str, sweep: None, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ended = subprocess.run(
        [
            *(sys.executable, "manage.py", "rehearse", RECORDING, "--service", live, "--report", report),
            *("--limit", "4", "--faults", "none", "--workspace", f"rehearsal-{os.urandom(6).hex()}"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "under Counterfoil: no duplicate effect, no effect lost." in ended.stdout
    assert "counterfoil: 4/4" in ended.stderr
    written = json.loads(report.read_text())
    assert written["clean"]
    assert [(player["player"], player["effects"]) for player in written["players"]] == [
        (player, 4) for player in (COUNTERFOIL, *Policy)
    ]
    assert all(row["operation_id"].startswith(f"{row['call']}@") for row in written["calls"][COUNTERFOIL])


FOREIGN: list[dict[str, Any]] = [
    # an agent's own runtime: it would be revoked
    {"runtimes": [{"name": "support", "scopes": ["intent"], "capabilities": ["*"], "subjects": ["*"]}]},
    # a capability: it would be disabled
    {
        "receivers": [{"name": "pay", "base_url": "https://pay.example.org"}],
        "capabilities": [
            {
                "name": "refund.create",
                "receiver": "pay",
                "contract": {"deduplicates": "none", "lookup": "none"},
                "approval": {"required": False},
            }
        ],
    },
    # a mandate: it would be revoked
    {"mandates": [{"subject": "agent:a", "capability": "*", "valid_until": "2099-01-01T00:00:00Z"}]},
    # mandates that are open: they would be closed
    {"mandates": "open"},
]


@pytest.mark.parametrize("sections", FOREIGN, ids=lambda sections: next(reversed(sections)))
def test_a_workspace_that_is_in_use_for_something_else_is_left_alone(
    live: str, tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str], sections: dict[str, Any]
) -> None:
    settings.DATA_FOLDER = tmp_path
    workspace = f"in-use-{os.urandom(6).hex()}"
    theirs = {"workspace": workspace, **sections}
    provisioning.apply(theirs, environ=os.environ)

    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(
            [
                "manage.py",
                "rehearse",
                str(RECORDING),
                "--service",
                live,
                "--limit=1",
                f"--workspace={workspace}",
            ]
        )

    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"workspace {workspace} is in use for something else" in said
    assert "Nothing was changed." in said
    assert provisioning.apply(theirs, environ=os.environ, dry_run=True).changes == ()


def test_a_workspace_of_people_or_of_an_earlier_rehearsal_is_used(record: None) -> None:
    workspace = f"rehearsal-{os.urandom(6).hex()}"
    people = [{"email": f"olive-{workspace}@example.org", "roles": ["operator"]}]
    provisioning.apply({"workspace": workspace, "members": people}, environ=os.environ)
    calls = read(RECORDING, limit=4)
    used: dict[str, Any] = {
        "workspace": workspace,
        "base_url_of": "http://127.0.0.1:9/{}".format,
        "faults": FaultSpec.parse("none"),
        "now": datetime.now(UTC),
    }
    # Other tools, other contracts, a token each time: the third time two tokens are alive already.
    for part, contract in ((calls[:2], "replays"), (calls[2:], "opaque"), (calls, "readable")):
        contracts = {call.name: Contract(contract) for call in part}
        assert _provision(document(calls=part, contracts=contracts, **used)).startswith("cfl_")


def test_a_second_rehearsal_in_one_workspace_plays_anew(live: str, sweep: None, tmp_path: Path) -> None:
    workspace = f"rehearsal-{os.urandom(6).hex()}"
    for run in ("first", "second"):
        folder = tmp_path / run
        folder.mkdir()
        result = played(
            live, folder, limit=3, faults=FaultSpec.parse("none"), workspace=workspace, tag=f"@{run}"
        )
        assert result.clean
        assert result.scores[0].effects == 3

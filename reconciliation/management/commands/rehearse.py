"""`manage.py rehearse CALLS.jsonl`: plays recorded tool calls through the running service, with faults, and reports."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ledger import provisioning
from reconciliation.rehearsal import calls, faults
from reconciliation.rehearsal.receivers import SandboxFailed
from reconciliation.rehearsal.rehearsal import Bar, Options, Result, RunningReceiver, rehearse
from reconciliation.rehearsal.report import table
from reconciliation.rehearsal.runtime import ServiceFailed
from reconciliation.rehearsal.workspace import RUNTIME, is_rehearsed

DEFAULT_MIX = "replays=0.4,readable=0.4,opaque=0.2"
# How long the service's health may take to answer before it counts as not running.
HEALTH_S = 5.0
# Lines of what a workspace would lose that are shown: enough to know it by.
LOST_SHOWN = 5

DESCRIPTION = """\
Plays recorded tool calls through the running service against a sandbox receiver that loses replies on purpose, and
compares what was claimed with what the receiver's own ledger holds. Beside it the same calls, under the same faults,
played by three retry layers that do without a ledger: cached (a new key for each try), stable key, and revalidating
(stable key, asks whether it still may; in a rehearsal nobody's authority is withdrawn, so it may).

CALLS.jsonl holds one call a line: {"task": "t-1", "step": 3, "tool": "refund", "arguments": {...}}, the arguments as an
object or as a JSON string. Two lines are two calls, also with equal arguments. Blank lines are skipped.

faults, per request unless said otherwise:
  cut         takes effect, then the connection is reset: the reply is lost
  lost        the connection is reset before anything took effect
  slow        takes effect, answers after slow_s: longer than a runtime waits
  late        the connection is reset, the effect lands late_s later
  hidden      as cut, and look-ups do not show the effect for hidden_s
  5xx_after   takes effect, answers 500      5xx_before  answers 503, nothing took effect      5xx  half of each
  decline     (per call) declined for good, 402
  blind       (per look-up) answered 503
"""
EPILOGUE = f"""\
standard faults: {faults.STANDARD}
durations: {", ".join(f"{name}={value:g}" for name, value in faults.DURATIONS.items())} (at most {faults.LONGEST_S:g})

exit code: 0 when Counterfoil made no duplicate effect and lost none; 1 when it did, or no service runs, or the
recording cannot be read; 2 for a wrong option.
"""

_T = TypeVar("_T")


def _read_by(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """An option's type whose ValueError is shown as the option's fault."""

    def read(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _between(low: float, high: float, kind: Callable[[str], float] = float) -> Callable[[str], Any]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not low <= value <= high:
            raise ValueError(f"{text} is not between {low:g} and {high:g}")
        return value

    return _read_by(parse)


class Command(BaseCommand):
    help = DESCRIPTION
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, epilog=EPILOGUE, **kwargs)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("recording", metavar="CALLS.jsonl", type=Path)
        parser.add_argument(
            "--faults",
            type=_read_by(faults.FaultSpec.parse),
            default="standard",
            metavar="SPEC",
            help="standard (default), none, or name=rate,… with slow_s=, late_s=, hidden_s=",
        )
        parser.add_argument(
            "--seed", type=_between(-(2**63), 2**63 - 1, int), default=1, help="of the fault plan (default 1)"
        )
        parser.add_argument(
            "--contract",
            type=_read_by(calls.Mix.parse),
            default=DEFAULT_MIX,
            metavar="MIX",
            help=f"one of {', '.join(calls.Contract)}, or weights (default {DEFAULT_MIX})",
        )
        parser.add_argument("--limit", type=_between(1, 10**6, int), help="play the first calls only")
        parser.add_argument(
            "--workspace",
            help="make this workspace, or use that of an earlier rehearsal (default: a new one, named by the time)",
        )
        parser.add_argument(
            "--report",
            type=Path,
            metavar="FILE",
            help="the JSON report (default: beside the receivers' ledgers)",
        )
        parser.add_argument(
            "--threads", type=_between(1, 32, int), default=8, help="tasks at a time (default 8)"
        )
        parser.add_argument(
            "--settle-for",
            type=_between(0, 3600),
            default=120.0,
            metavar="S",
            help="seconds to wait at the end until every unknown is settled or waits for a person (default 120)",
        )
        parser.add_argument(
            "--no-baselines", action="store_true", help="leave out the three players without a ledger"
        )
        parser.add_argument(
            "--service",
            metavar="URL",
            help="the service's address (default: the one that runs on this data folder)",
        )
        parser.add_argument(
            "--receiver",
            metavar="URL",
            help="a sandbox receiver that runs already, with the same faults and seed",
        )
        parser.add_argument(
            "--receiver-ledger", type=Path, metavar="FILE", help="that receiver's ledger, read at the end"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if (options["receiver"] is None) != (options["receiver_ledger"] is None):
            raise CommandError("--receiver and --receiver-ledger belong together.", returncode=2)
        try:
            recording = calls.read(options["recording"], limit=options["limit"])
        except calls.RecordingError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{options['recording']}: {error.strerror}") from error
        service_url = options["service"] or _running_service()
        if not _answers(service_url):
            raise CommandError(f"no service answers on {service_url}. Start one with `make run`.")
        now = datetime.now(UTC)
        run = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = settings.DATA_FOLDER / "rehearsals" / run
        folder.mkdir(parents=True)
        chosen = Options(
            recording=options["recording"],
            faults=options["faults"],
            seed=options["seed"],
            mix=options["contract"],
            workspace=options["workspace"] or f"rehearsal-{run}",
            tag=f"@{run}" if options["workspace"] else "",
            folder=folder,
            threads=options["threads"],
            settle_for_s=options["settle_for"],
            baselines=not options["no_baselines"],
            receiver=RunningReceiver(options["receiver"], options["receiver_ledger"].resolve())
            if options["receiver"]
            else None,
        )
        self.stderr.write(
            f"{len(recording)} calls · faults {chosen.faults} · seed {chosen.seed} · contracts {chosen.mix}\n"
            f"workspace {chosen.workspace} on {service_url}"
        )
        try:
            result = rehearse(
                recording, chosen, service_url=service_url, provision=_provision, screen=Bar(sys.stderr)
            )
        except (ServiceFailed, SandboxFailed) as error:
            raise CommandError(f"the rehearsal ended early: {error}") from error
        except KeyboardInterrupt:
            raise CommandError(
                f"interrupted; what was dispatched is on record in workspace {chosen.workspace}",
                returncode=130,
            ) from None
        report = options["report"] or folder / "report.json"
        report.write_text(json.dumps(result.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self._tell(result, report)
        if not result.clean:
            sys.exit(1)

    def _tell(self, result: Result, report: Path) -> None:
        governed = result.scores[0]
        self.stdout.write("\n" + table(result.scores) + "\n")
        for code, count in sorted(governed.refusals.items()):
            self.stdout.write(f"refused at intake, nothing dispatched: {count} × {code}")
        if result.left:
            self.stdout.write(
                f"{result.left} operations were neither settled nor handed to a person within {result.settling_s:.0f} s;"
                " the worker goes on asking."
            )
        self.stdout.write(
            f"settling took {result.settling_s:.0f} s, {result.lookups} look-ups; report: {report}"
        )
        verdict = (
            "no duplicate effect, no effect lost" if result.clean else "A DUPLICATE OR A LOSS: see the report"
        )
        self.stdout.write(f"under Counterfoil: {verdict}.")


def _running_service() -> str:
    """The address of the service that runs on this data folder. Raises CommandError when none does."""
    try:
        known = json.loads((settings.DATA_FOLDER / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not known.get("port"):
        raise CommandError(f"no service runs on {settings.DATA_FOLDER}. Start one with `make run`.")
    return f"http://127.0.0.1:{known['port']}"


def _answers(service_url: str) -> bool:
    try:
        return httpx.get(f"{service_url}/healthz", timeout=HEALTH_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _provision(document: dict[str, Any]) -> str:
    """Bring the workspace to the document's state and return the runtime's token, a new one: old ones are not kept.

    Raises CommandError, and changes nothing, where that would take away what no rehearsal has made.
    """
    try:
        would = provisioning.apply(document, environ=os.environ, rotate=frozenset({RUNTIME}), dry_run=True)
        lost = [str(change) for change in would.changes if _takes_from_others(change)]
        if lost:
            raise CommandError(_in_use(document["workspace"], lost))
        result = provisioning.apply(document, environ=os.environ, rotate=frozenset({RUNTIME}))
    except provisioning.Refused as refused:
        raise CommandError(f"the workspace could not be provisioned: {refused}") from refused
    return next(runtime["token"] for runtime in result.runtimes if runtime["name"] == RUNTIME)


def _takes_from_others(change: provisioning.Change) -> bool:
    """Whether something goes, or closes, that is no earlier rehearsal's: those leave capabilities and tokens only."""
    match change.mark, change.what:
        case "-", "capability":
            return not is_rehearsed(change.name)
        case "-", "token":
            return False
        case mark, what:
            return mark == "-" or what == "mandates"


def _in_use(workspace: str, lost: Sequence[str]) -> str:
    more = len(lost) - LOST_SHOWN
    shown = [*lost[:LOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return (
        f"workspace {workspace} is in use for something else; a rehearsal would take away:\n  "
        + "\n  ".join(shown)
        + "\nNothing was changed. Choose another name, or leave --workspace out for a new one."
    )

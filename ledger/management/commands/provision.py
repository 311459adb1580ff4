"""`manage.py provision FILE`: brings a workspace to the state of a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from ledger import provisioning
from ledger.keys import KeysMissing
from ledger.provisioning.applying import OVERLAP_S
from ledger.provisioning.reading import FILE_BYTES_MAX

FILE_FAULT = 2
NOTHING_RUNS = 1

DESCRIPTION = """\
Brings a workspace to the state of FILE, all of it or nothing: YAML 1.2, JSON where the name ends in .json, or - for
YAML on standard input. Everything is checked before anything is written, and all that is wrong is said at once, each
with its path. The differences are printed: + made, ~ changed, - taken away. A second run changes nothing.
"""
EPILOGUE = f"""\
the file (what stands after a colon is the default):

  workspace: acme                     # required
  members:
    - {{email, roles: [viewer], password_env}}       # roles: viewer, operator, approver, auditor, admin
  runtimes:
    - {{name, scopes: [intent, permit, outcome, reconcile, escalate, read], capabilities: ["*"], subjects: ["*"],
       owner, token_env}}
  receivers:
    - {{name, base_url, headers: {{}}, allow_private_addresses: false, callback_secret_env}}
  capabilities:
    - name: refund.create             # required
      receiver: acme-pay              # required
      risk: medium                    # low, medium, high
      lease_s: 60
      intent_valid_s: 86400
      duplicates: hold                # hold, flag, off
      amount: {{value: /arguments/amount, currency: EUR}}      # or a pointer to the currency
      summary: "Refund {{amount}} to order {{order_id}}"
      arguments_schema: {{...}}         # JSON Schema, draft 2020-12, self-contained
      sensitive: ["/card/number"]     # JSON Pointers into the arguments; "" seals all of them
      contract: {{deduplicates, lookup, ...}}   # these two are required; verified: true is refused here
      reconciler: {{kind, ...}}         # checked by the reconciler of that kind
      approval:                       # required; {{required: false}} asks nobody
        {{required: true unless when or above are given, when: [], above, approvals: 1, valid_s: 3600,
         step_up: true where the risk is high}}
  mandates:                           # or the word open, while trying things out
    - {{subject, capability, valid_until: no end, limits: []}}

* A section that is left out stays as it is; an empty list ([]) empties it. What is gone from a section: a capability is
  disabled, a runtime and its tokens are revoked, a mandate is revoked, a member loses the roles but not the account.
* A changed receiver, account (reconciler.namespace), schema, contract or rule makes a new version of a capability; the
  summary and the reconciler's settings change in place.
* Secrets stand in environment variables, the file names them. password_env sets that password at each run; leave it
  out, and people keep their own. A variable that web and worker read (in a header, callback_secret_env) is only
  warned about here.
* token_env supplies a runtime's token. Without it a token is minted for a runtime that has none, and shown once. Another
  token in the variable, or --rotate, makes that one the current; the one before ends {OVERLAP_S // 3600} hours later, older ones end
  at once.
* In patterns * stands for any characters, and the whole text must match.

exit code: 0 done, or nothing to do; 1 nothing runs, or it has no keys; 2 something is wrong with the file or an option.
"""


class Command(BaseCommand):
    help = DESCRIPTION
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, epilog=EPILOGUE, **kwargs)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE", help="the provision file, or - for standard input")
        parser.add_argument("--dry-run", action="store_true", help="print the difference, write nothing")
        parser.add_argument(
            "--json",
            action="store_true",
            help='print one JSON object and nothing else on standard output: {"runtimes": [{"name", "token"}], …}, '
            "a token only where it was minted now",
        )
        parser.add_argument(
            "--rotate",
            action="append",
            default=[],
            metavar="RUNTIME",
            help="mint a new token for this runtime; the one before ends a day later (may be given several times)",
        )

    def handle(
        self, *args: Any, file: str, dry_run: bool, json: bool, rotate: list[str], **options: Any
    ) -> None:
        try:
            document = provisioning.read(_bytes_of(file), name="standard input" if file == "-" else file)
            result = provisioning.apply(
                document, environ=os.environ, dry_run=dry_run, rotate=frozenset(rotate)
            )
        except provisioning.Refused as refused:
            for problem in refused.problems:
                self.stderr.write(str(problem))
            count = len(refused.problems)
            what = "1 thing is" if count == 1 else f"{count} things are"
            raise CommandError(
                f"{what} wrong with {file}; nothing was written.", returncode=FILE_FAULT
            ) from None
        except KeysMissing as missing:
            raise CommandError(str(missing), returncode=NOTHING_RUNS) from missing
        except (OperationalError, ProgrammingError) as error:
            why = str(error).strip().partition("\n")[0]
            raise CommandError(
                f"the database cannot be used ({why}); is it running and migrated?", returncode=NOTHING_RUNS
            ) from error
        for warning in result.warnings:
            self.stderr.write(f"warning: {warning}")
        if json:
            self._print_json(result)
        else:
            self._print(result)

    def _print(self, result: provisioning.Result) -> None:
        for change in result.changes:
            self.stdout.write(str(change))
        if not result.changes:
            self.stdout.write(f"workspace {result.workspace} is as the file says: nothing to change")
        elif result.dry_run:
            self.stdout.write("dry run: nothing was written")
        for runtime in result.runtimes:
            if "token" in runtime:
                self.stdout.write(f"token of {runtime['name']}, shown this once: {runtime['token']}")

    def _print_json(self, result: provisioning.Result) -> None:
        self.stdout.write(json.dumps(result.as_json(), indent=1, ensure_ascii=False))


def _bytes_of(file: str) -> bytes:
    """The file's bytes, at most one more than may be read. Raises CommandError."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        with Path(file).open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}.", returncode=FILE_FAULT) from error

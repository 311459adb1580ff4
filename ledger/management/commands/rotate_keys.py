"""Adds a signing and an encryption key, which are used from now on; or makes the key folder of a new service."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ledger import keys


class Command(BaseCommand):
    help = (
        "Adds a signing and an encryption key to the key folder (COUNTERFOIL_KEYS), or the one that is named, and prints "
        "their names. The newest key signs or encrypts; older ones stay, to verify permits and seals and to decrypt what they encrypted. Running processes notice within "
        "seconds. Back the folder up afterwards."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "which",
            nargs="?",
            choices=("signing", "encryption", "pepper"),
            help="signing: permits and seals; encryption: sensitive values; neither: both of them; pepper: refused, "
            "with the reason",
        )
        parser.add_argument(
            "--create",
            action="store_true",
            help="make the folder's first keys where there are none, then rotate nothing",
        )

    def handle(self, *args: Any, which: keys.Which | None, create: bool, **options: Any) -> None:
        folder = Path(settings.KEYS_FOLDER)
        if create and which is not None:
            raise CommandError("--create rotates nothing: it stands alone.")
        each: tuple[keys.Which, ...] = ("signing", "encryption") if which is None else (which,)
        try:
            if create:
                names = [keys.Keyring.load(folder, create=True).signing.kid]
            else:
                names = [keys.rotate(folder, one) for one in each]
        except (keys.KeysMissing, keys.PepperStays) as refused:
            raise CommandError(str(refused)) from refused
        self.stdout.write("\n".join(names))

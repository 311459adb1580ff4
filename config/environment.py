"""Every setting Counterfoil reads from the environment, in one table: name, default, meaning.

Standard library only, so that the launcher can read the same table before Django exists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class BadSetting(Exception):
    """A value in the environment cannot be used; the message names the variable and the way out."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable. ``default`` is None where an unset value has a meaning of its own."""

    name: str
    default: str | None
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "COUNTERFOIL_DATA", "var", "data folder: embedded servers, keys, `run.json`; one service at a time"
    ),
    Variable(
        "COUNTERFOIL_KEYS",
        None,
        "keys folder; unset: `keys` in the data folder. Back it up with the database",
    ),
    Variable(
        "DATABASE_URL", None, "a PostgreSQL (15 or newer) of your own; unset: the embedded one is started"
    ),
    Variable(
        "REDIS_URL", None, "a Redis (7 or newer) or Valkey of your own; unset: the embedded one is started"
    ),
    Variable("PORT", "8000", "the port on loopback that the web listens on"),
    Variable("COUNTERFOIL_BASE_URL", None, "the address people use; unset: `http://localhost:$PORT`"),
    Variable("COUNTERFOIL_HOSTS", "", "further host names to answer to, separated by commas"),
    Variable(
        "COUNTERFOIL_ENVIRONMENT", "development", "the name on the ribbon of every page and in every token"
    ),
    Variable(
        "COUNTERFOIL_DB_ROLE", "counterfoil_app", "the role web and workers act as; `owner`: the login role"
    ),
    Variable("COUNTERFOIL_SECRET_KEY", None, "signs sessions; unset: made once in the keys folder"),
    Variable("COUNTERFOIL_DEBUG", "false", "Django's debug pages: never where others can reach them"),
    Variable("COUNTERFOIL_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR"),
    Variable(
        "COUNTERFOIL_LOG_FORMAT",
        "text",
        "`text` for people or `json`, one object a line; always standard error",
    ),
    Variable("WEB_WORKERS", "2", "web processes (about 110 MB each)"),
    Variable("WEB_THREADS", "16", "threads per web process; each keeps one database connection"),
    Variable("WORKER_PROCESSES", "2", "worker processes that ask receivers and sweep"),
)

_DEFAULTS = {variable.name: variable.default for variable in VARIABLES}


def read(name: str, env: Mapping[str, str] | None = None) -> str:
    """The value of a variable of the table, its default when unset or empty, "" when it has none."""
    default = _DEFAULTS[name] or ""
    return (os.environ if env is None else env).get(name, "").strip() or default


def read_count(name: str, env: Mapping[str, str] | None = None, *, low: int = 1, high: int = 65535) -> int:
    """The value as a whole number between ``low`` and ``high``; raises BadSetting."""
    text = read(name, env)
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise BadSetting(f"{name} is {text!r}; it must be a whole number from {low} to {high}.")
    return int(text)


def read_flag(name: str, env: Mapping[str, str] | None = None) -> bool:
    """The value as a boolean: exactly ``true`` or ``false``; raises BadSetting."""
    text = read(name, env).lower()
    if text not in ("true", "false"):
        raise BadSetting(f"{name} is {text!r}; it must be true or false.")
    return text == "true"


def read_choice(name: str, choices: tuple[str, ...], env: Mapping[str, str] | None = None) -> str:
    """The value when it is one of ``choices``; raises BadSetting."""
    text = read(name, env)
    if text not in choices:
        raise BadSetting(f"{name} is {text!r}; it must be one of {', '.join(choices)}.")
    return text


def data_folder(env: Mapping[str, str] | None = None) -> Path:
    """The absolute data folder; a relative one counts from the project's folder."""
    return (ROOT / Path(read("COUNTERFOIL_DATA", env)).expanduser()).resolve()


def keys_folder(env: Mapping[str, str] | None = None) -> Path:
    """The absolute keys folder."""
    named = read("COUNTERFOIL_KEYS", env)
    return (ROOT / Path(named).expanduser()).resolve() if named else data_folder(env) / "keys"

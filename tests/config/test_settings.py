"""Settings are read once and refuse what they cannot use, in a sentence that names the variable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger import tokens
from tests.config.processes import clean_env, python

SHOW = """
import json
from config import settings
names = "ALLOWED_HOSTS BASE_URL CELERY_BROKER_URL DATABASES ENVIRONMENT KEYS_FOLDER".split()
names += ["SECRET_KEY", "SECURE_SSL_REDIRECT"]
print(json.dumps({name: getattr(settings, name) for name in names}, default=str))
"""


def load(folder: Path, **env: str) -> dict[str, object]:
    ran = python("-c", SHOW, env=clean_env(COUNTERFOIL_DATA=str(folder)) | env)
    assert ran.returncode == 0, ran.stderr
    loaded: dict[str, object] = json.loads(ran.stdout)
    return loaded


@pytest.mark.parametrize(
    ("env", "why"),
    [
        # not a number, and a number that is no port
        ({"PORT": "eight"}, "PORT is 'eight'; it must be a whole number from 1 to 65535."),
        ({"PORT": "65536"}, "PORT is '65536'"),
        # digits of other scripts are digits to int(), and a typing error here
        ({"WORKER_PROCESSES": "٢"}, "WORKER_PROCESSES is '٢'"),
        # yes is not true
        ({"COUNTERFOIL_DEBUG": "yes"}, "COUNTERFOIL_DEBUG is 'yes'; it must be true or false."),
        ({"COUNTERFOIL_LOG_FORMAT": "xml"}, "COUNTERFOIL_LOG_FORMAT is 'xml'; it must be one of text, json."),
        # another database than PostgreSQL, and one without a name
        ({"DATABASE_URL": "mysql://u:p@h/d"}, "DATABASE_URL must look like postgresql://"),
        ({"DATABASE_URL": "postgresql://u:p@h"}, "DATABASE_URL must look like postgresql://"),
        # redis-py and Celery spell a unix socket differently: one URL cannot serve both
        ({"REDIS_URL": "unix:///run/redis.sock"}, "REDIS_URL must look like redis://"),
        # a path would be lost in every link
        ({"COUNTERFOIL_BASE_URL": "https://example.org/counterfoil"}, "COUNTERFOIL_BASE_URL must look like"),
        ({"COUNTERFOIL_BASE_URL": "example.org"}, "COUNTERFOIL_BASE_URL must look like"),
        # it stands in every token between underscores
        ({"COUNTERFOIL_ENVIRONMENT": "eu_live"}, "COUNTERFOIL_ENVIRONMENT may hold lower-case letters"),
        # one more than a token has room for, a digit of another script, a space
        ({"COUNTERFOIL_ENVIRONMENT": "a" * 17}, "digits only, 16 at most."),
        ({"COUNTERFOIL_ENVIRONMENT": "live٢"}, "digits only, 16 at most."),
        ({"COUNTERFOIL_ENVIRONMENT": "live 2"}, "digits only, 16 at most."),
        # contradiction: debug pages show secrets, https means visitors
        (
            {"COUNTERFOIL_DEBUG": "true", "COUNTERFOIL_BASE_URL": "https://example.org"},
            "not together with an https",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, env: dict[str, str], why: str
) -> None:
    ran = python("-c", "import config.settings", env=clean_env(COUNTERFOIL_DATA=str(tmp_path)) | env)

    assert ran.returncode == 1
    assert why in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["a" * 16, "2", "eu2"])
def test_every_environment_that_is_accepted_fits_into_a_token(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, COUNTERFOIL_ENVIRONMENT=name)["ENVIRONMENT"] == name
    presented = tokens.parse(tokens.mint(name, pepper=b"pepper").token)
    assert presented is not None
    assert presented.env == name


def test_a_damaged_session_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "session").write_text("")
    ran = python("-c", "import config.settings", env=clean_env(COUNTERFOIL_DATA=str(tmp_path)))

    assert "keys/session is damaged" in ran.stderr.splitlines()[-1]


def test_the_session_secret_is_made_once(tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)

    assert first["SECRET_KEY"] == second["SECRET_KEY"] == (tmp_path / "keys" / "session").read_text()
    assert load(tmp_path / "other")["SECRET_KEY"] != first["SECRET_KEY"]


def test_a_database_address_keeps_its_options_and_its_escapes(tmp_path: Path) -> None:
    url = "postgresql://us%40er:p%2Fw@db.example.org:6543/na%20me?sslmode=verify-full"
    database = load(tmp_path, DATABASE_URL=url)["DATABASES"]["default"]  # type: ignore[index]

    assert [database[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")] == (
        ["na me", "us@er", "p/w", "db.example.org", "6543"]
    )
    assert database["OPTIONS"]["sslmode"] == "verify-full"
    assert database["OPTIONS"]["assume_role"] == "counterfoil_app"


def test_the_owner_assumes_no_role(tmp_path: Path) -> None:
    loaded = load(tmp_path, DATABASE_URL="postgresql:///name?host=/run/pg", COUNTERFOIL_DB_ROLE="owner")
    database = loaded["DATABASES"]["default"]  # type: ignore[index]

    assert database["HOST"] == "/run/pg"
    assert "assume_role" not in database["OPTIONS"]


def test_without_servers_nothing_of_a_strangers_is_found(tmp_path: Path) -> None:
    loaded = load(tmp_path)

    assert loaded["DATABASES"] == {"default": {"ENGINE": "django.db.backends.dummy"}}
    assert "redis-url-is-not-set.invalid" in str(loaded["CELERY_BROKER_URL"])


def test_an_https_address_turns_on_what_it_needs(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        COUNTERFOIL_BASE_URL="https://counterfoil.example.org/",
        COUNTERFOIL_HOSTS="a.example, b.example",
    )

    assert loaded["SECURE_SSL_REDIRECT"] is True
    assert loaded["BASE_URL"] == "https://counterfoil.example.org"
    assert loaded["ALLOWED_HOSTS"][3:] == ["counterfoil.example.org", "a.example", "b.example"]  # type: ignore[index]

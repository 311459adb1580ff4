"""Tests run on servers that were started and migrated before pytest: ``make test`` does both."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.db import connection

from tests import live as processes
from tests.arrange import Agent, Arranged, arrange, in_process


@pytest.fixture(scope="session")
def django_db_setup() -> None:
    """The database is there already; nothing is created, rolled back or flushed."""


@pytest.fixture(scope="session")
def record(django_db_blocker: object) -> Iterator[None]:
    """A database of the tests' own, or a skip that says how to have one."""
    if not os.environ.get("DATABASE_URL"):
        reason = "needs PostgreSQL: python -m config.embedded exec -- pytest …, or make test"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        yield
        connection.close()


@pytest.fixture
def workspace(record: None) -> Arranged:
    """A fresh workspace with a receiver, a runtime, a mandate for everything and ``refund.create``."""
    return arrange()


@pytest.fixture
def other_workspace(record: None) -> Arranged:
    return arrange()


@pytest.fixture
def agent(workspace: Arranged) -> Agent:
    """The workspace's runtime, through Django's own handler."""
    return in_process(workspace.token)


@pytest.fixture(scope="session")
def live(record: None) -> Iterator[str]:
    """The base URL of a real web server on the tests' database."""
    with processes.web() as base_url:
        yield base_url

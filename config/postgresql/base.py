"""Django's PostgreSQL backend, whose connections give up on a server that has stopped answering, and commit durably.

The server's own timeouts (settings.py) end what it still can end. A frozen server ends nothing: its kernel goes on
acknowledging packets and keepalives, libpq waits for ever, and a web process would lose a thread with every request.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg.errors import _WaitTimeout

CHECK_EVERY_S = 0.1  # how often psycopg looks up from the socket; its own default


# What is acknowledged is on disk. Some servers are set up to answer before that; stronger settings than "on" stay.
DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class Connection(psycopg.Connection[Any]):
    """A connection that is closed when one answer takes longer than ``answer_within_s``; None: it waits for ever."""

    answer_within_s: float | None = None

    def wait(
        self, gen: Generator[Any, Any, Any], interval: float = CHECK_EVERY_S, timeout: float | None = None
    ) -> Any:
        """What the operation returns. Raises OperationalError, the connection closed, when it takes too long."""
        if timeout is not None or self.answer_within_s is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_within_s)
        except _WaitTimeout:
            self.pgconn.finish()  # an answer that came later would be taken for that of another question
            raise psycopg.OperationalError(
                f"the database has not answered within {self.answer_within_s:g} s"
            ) from None


class DatabaseWrapper(base.DatabaseWrapper):
    """OPTIONS has one name of ours, ``answer_within_s``; without pools and isolation levels, which nothing here uses."""

    def get_connection_params(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        parameters.pop("answer_within_s", None)
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection = Connection.connect(**conn_params)
        connection.answer_within_s = self.settings_dict["OPTIONS"].get("answer_within_s")
        return connection

    def init_connection_state(self) -> None:
        super().init_connection_state()
        with self.connection.cursor() as cursor:
            cursor.execute(DURABLE)

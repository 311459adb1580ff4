"""One event is one line."""

from __future__ import annotations

import json
import logging

import pytest

from config.logs import Incidents, JSONLine, TextLine


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "ledger", "levelname": "INFO", "msg": message, "created": 1.5})
    vars(made).update(extra)
    return made


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n"])
def test_a_line_break_in_a_message_starts_no_line_of_its_own(break_: str) -> None:
    forged = f"PUT /v1/x{break_}1970-01-01T00:00:00.000Z INFO ledger approved"

    assert len(TextLine().format(record(forged)).splitlines()) == 1
    assert json.loads(JSONLine().format(record(forged)))["message"] == forged


def test_what_is_passed_as_extra_is_said() -> None:
    assert TextLine().format(record("swept", rows=3)) == "1970-01-01T00:00:01.500Z INFO ledger swept rows=3"
    assert json.loads(JSONLine().format(record("swept", rows=3))) == {
        "at": "1970-01-01T00:00:01.500Z",
        "level": "INFO",
        "logger": "ledger",
        "message": "swept",
        "rows": 3,
    }


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"status_code": 503}, False),  # a typed refusal is an answer
        ({"status_code": 500, "exc_info": (ValueError, ValueError("x"), None)}, True),
        ({}, True),
    ],
)
def test_only_exceptions_are_incidents(extra: dict[str, object], said: bool) -> None:
    assert Incidents().filter(record("answered", **extra)) is said

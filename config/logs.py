"""One line per event, for people or for machines. What is passed as ``extra`` follows as key=value or as JSON keys."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "request"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}


def _moment(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class Incidents(logging.Filter):
    """Django logs every 4xx and 5xx answer; a typed refusal is an answer, only an exception is an incident."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is not None or not hasattr(record, "status_code")


class TextLine(logging.Formatter):
    """``2026-11-30T12:00:00.000Z INFO ledger.services swept rows=3``"""

    def format(self, record: logging.LogRecord) -> str:
        words = [_moment(record), record.levelname, record.name, record.getMessage()]
        words += [f"{key}={value}" for key, value in _extra(record).items()]
        # A line break inside a message would let a client write log lines of its own.
        line = " ".join(words).replace("\r", "\\r").replace("\n", "\\n")
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JSONLine(logging.Formatter):
    """One JSON object: at, level, logger, message, whatever was passed as extra, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"at": _moment(record), "level": record.levelname, "logger": record.name}
        line |= {"message": record.getMessage()} | _extra(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)

"""A provision file's bytes → plain values. YAML 1.2, or JSON where the name ends in ``.json``.

Strict where a mistake would pass unseen: a key that stands twice, a second document, text that is not UTF-8.
Source: YAML 1.2.2, RFC 8259.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ledger import digests, errors
from ledger.provisioning.plan import Problem, Refused

FILE_BYTES_MAX = 1024 * 1024
"""A workspace of 500 capabilities has about 600 KiB; YAML is read at roughly 100 KiB a second."""

_OLD_YAML = re.compile(r"%YAML\s+(?!1\.2\b)")
_TWICE = re.compile(r'found duplicate key "([^"]*)"')


def read(text: bytes, *, name: str) -> dict[str, Any]:
    """The document in a file's bytes; ``name`` is how messages call it. Raises Refused, with the line where known."""
    if len(text) > FILE_BYTES_MAX:
        raise Refused([Problem(name, f"has {len(text)} bytes; {FILE_BYTES_MAX} are the most")])
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise Refused([Problem(f"{name}, line {line}", "is not UTF-8")]) from None
    document = _json(decoded, name) if name.lower().endswith(".json") else _yaml(decoded, name)
    if not isinstance(document, dict):
        raise Refused([Problem(name, "must be a mapping that begins with workspace")])
    return document


def _json(text: str, name: str) -> Any:
    try:
        json.loads(text)
        return digests.parse(text.encode(), max_bytes=FILE_BYTES_MAX)
    except json.JSONDecodeError as error:
        raise Refused([Problem(f"{name}, line {error.lineno}", error.msg)]) from None
    except errors.Refusal as error:
        raise Refused([Problem(name, str(error))]) from None
    except (RecursionError, ValueError):
        raise Refused([Problem(name, "is nested too deeply, or holds a number too long to read")]) from None


def _yaml(text: str, name: str) -> Any:
    if _OLD_YAML.match(text):
        raise Refused([Problem(f"{name}, line 1", "must be YAML 1.2")])
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = name if mark is None else f"{name}, line {mark.line + 1}"
        raise Refused([Problem(where, _said(error))]) from None
    except YAMLError as error:
        raise Refused([Problem(name, str(error).split("\n")[0])]) from None
    except RecursionError:
        raise Refused([Problem(name, "is nested too deeply")]) from None
    except (ValueError, OverflowError) as error:
        raise Refused([Problem(name, f"holds a value that cannot be read ({error})")]) from None


def _said(error: MarkedYAMLError) -> str:
    """The parser's words, without the values that it quotes beside a key."""
    twice = _TWICE.match(error.problem or "")
    return f"the key {twice[1]} stands twice" if twice else str(error.problem or error.context)

"""The SQL that migrations install: guards, policies and the hot functions."""

from pathlib import Path


def read(name: str) -> str:
    """The text of ``<name>.sql`` beside this file."""
    return (Path(__file__).parent / f"{name}.sql").read_text(encoding="utf-8")

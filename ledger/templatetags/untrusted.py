"""Text that others wrote (arguments, purposes, receivers' replies), shown so that nothing in it can hide or pose.

``{{ value|shown }}`` escapes everything, isolates the text's direction in ``<bdi>`` and puts a chip with the code
point in the place of each character that a reader could not see or that would move its neighbours: controls, format
and bidirectional marks, zero widths, odd spaces, private and unassigned code points, lone surrogates, and combining
marks beyond the third in a row. A word that mixes scripts (a Cyrillic letter among Latin ones) is marked as such.

Source: UAX #9 (bidirectional text), UAX #44 (general categories), UTS #39 (mixed scripts), CVE-2021-42574.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from django.template import Library
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from ledger.wording import SHOWN_MAX

register = Library()

MARKS_MAX = 3
"""Combining marks in a row that real writing systems need; more only climb over the lines around them."""

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BLANK = frozenset(
    [
        *(
            0x034F,
            0x115F,
            0x1160,
            0x17B4,
            0x17B5,
            0x2800,
            0x3164,
            0xFFA0,
        ),  # joiners and fillers without a shape
        *range(0x180B, 0x1810),  # variation selectors, these three
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    ]
)
_CONTROLS = {
    0x00: "NULL",
    0x07: "BELL",
    0x08: "BACKSPACE",
    0x09: "TAB",
    0x0A: "LINE FEED",
    0x0D: "CARRIAGE RETURN",
    0x1B: "ESCAPE",
    0x7F: "DELETE",
}
_MIXABLE = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Chip:
    """One character that is named instead of printed."""

    code: int

    @property
    def label(self) -> str:
        return f"U+{self.code:04X}"

    @property
    def name(self) -> str:
        return unicodedata.name(chr(self.code), _CONTROLS.get(self.code, "")) or "no name"


def parts(text: str) -> Iterator[str | Chip]:
    """Runs of plain text and chips, in order. A plain space is the only blank that stays text."""
    plain: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if _hides(character) or marks > MARKS_MAX:
            if plain:
                yield "".join(plain)
                plain.clear()
            yield Chip(ord(character))
        else:
            plain.append(character)
    if plain:
        yield "".join(plain)


def _hides(character: str) -> bool:
    if character == " ":
        return False
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or ord(character) in _BLANK


def mixed_scripts(text: str) -> tuple[str, ...]:
    """The look-alike scripts that stand together within one word of ``text``; empty where none does."""
    for word in _WORD.findall(text):
        scripts = {script for character in word for script in _MIXABLE if _is_of(character, script)}
        if len(scripts) > 1:
            return tuple(sorted(scripts))
    return ()


def _is_of(character: str, script: str) -> bool:
    if character.isascii():
        return script == "LATIN" and character.isalpha()
    return unicodedata.name(character, "").startswith(f"{script} ")


@register.filter
def shown(value: object, limit: int = SHOWN_MAX) -> SafeString:
    """The value as HTML that shows every character of it. A line feed is a chip and then a new line."""
    text = "" if value is None else str(value)
    kept = text[:limit]
    body = format_html_join("", "{}", ((_html(part),) for part in parts(kept)))
    scripts = mixed_scripts(kept)
    if scripts:
        named = " + ".join(script.capitalize() for script in scripts)
        body += format_html(
            '<span class="chip" title="letters of several scripts in one word">{}</span>', named
        )
    if len(text) > limit:
        body += format_html(' <span class="cut">… {} more characters</span>', f"{len(text) - limit:,}")
    return format_html("<bdi>{}</bdi>", body)


def _html(part: str | Chip) -> SafeString:
    if isinstance(part, str):
        return conditional_escape(part)
    chip = format_html('<span class="chip" title="{}">{}</span>', part.name, part.label)
    return mark_safe(chip + "\n") if part.code == 0x0A else chip  # noqa: S308 (both are escaped)

"""What others wrote can neither hide nor pose on a page."""

from __future__ import annotations

import json
import unicodedata
from html.parser import HTMLParser

import pytest

from ledger.templatetags.untrusted import MARKS_MAX, Chip, mixed_scripts, parts, shown
from tests.corpora import corpora


class Reader(HTMLParser):
    """What a browser would make of it: elements, attributes, and the text with chips read back."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._chip = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._chip = dict(attrs).get("class") == "chip"

    def handle_endtag(self, tag: str) -> None:
        self._chip = False

    def handle_data(self, data: str) -> None:
        if self._chip and data.startswith("U+"):
            data = chr(int(data[2:], 16))
        elif self._chip:
            data = ""
        elif self.text and self.text[-1] == "\n" and data.startswith("\n"):
            data = data[1:]  # the line break that follows the chip of a line feed
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def naughty() -> list[str]:
    return [*json.loads(corpora("blns.json").read_text(encoding="utf-8")), "\0", "a\ud800b", "\udfff"]


def test_no_naughty_string_becomes_markup() -> None:
    for text in naughty():
        html = shown(text)
        for tag, attributes in read(html).elements:
            assert tag in {"bdi", "span"}, (text, html)
            assert set(attributes) <= {"class", "title"}, (text, html)


def test_every_character_of_a_naughty_string_can_be_read_back() -> None:
    for text in naughty():
        if len(text) < 2000 and not mixed_scripts(text):
            assert "".join(read(shown(text)).text) == text


def test_nothing_that_hides_stays_text() -> None:
    for text in naughty():
        for part in parts(text):
            if isinstance(part, str):
                assert all(c == " " or unicodedata.category(c)[0] not in "CZ" for c in part), text


def test_what_is_shown_can_be_sent() -> None:
    for text in naughty():
        shown(text).encode("utf-8")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\u202eb", 0x202E),  # turns the rest around
        ("a\u2066b", 0x2066),  # isolate
        ("a\u200bb", 0x200B),  # zero width space
        ("a\u200db", 0x200D),  # joiner
        ("a\ufeffb", 0xFEFF),  # byte order mark
        ("a\u00adb", 0x00AD),  # soft hyphen
        ("a\u00a0b", 0x00A0),  # a blank that is no space
        ("a\u3164b", 0x3164),  # a letter without a shape
        ("a\u2800b", 0x2800),  # an empty Braille pattern
        ("a\ufe0fb", 0xFE0F),  # variation selector
        ("a\U000e0041b", 0xE0041),  # tag letter: smuggles ASCII
        ("a\ue000b", 0xE000),  # private use
        ("a\x00b", 0x0000),
        ("a\x1b[31mb", 0x001B),  # escape sequence
        ("a\tb", 0x0009),
        ("a\ud83d", 0xD83D),  # half a character
        ("a\u2028b", 0x2028),  # line separator
    ],
)
def test_a_hidden_character_is_named(text: str, code: int) -> None:
    assert Chip(code) in list(parts(text))
    assert f"U+{code:04X}" in shown(text)


def test_a_line_feed_is_named_and_breaks_the_line() -> None:
    assert '">U+000A</span>\n' in shown("one\ntwo")


def test_marks_cannot_climb_over_their_neighbours() -> None:
    marks = [part for part in parts("e" + "\u0301" * 40) if isinstance(part, Chip)]
    assert len(marks) == 40 - MARKS_MAX


def test_accents_and_scripts_of_real_languages_stay_text() -> None:
    for text in ("Zoë", "e\u0301te\u0301", "Ελλάδα", "Москва", "東京", "שלום", "नमस्ते", "ไทย"):
        assert list(parts(text)) == [text]


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("\u0430pproved", ("CYRILLIC", "LATIN")),  # а is not a
        ("p\u03bfrt", ("GREEK", "LATIN")),  # ο is not o
        ("approved", ()),
        ("Москва and Paris", ()),  # two words, each of one script
        ("µ-opioid", ()),
    ],
)
def test_look_alike_letters_are_marked(text: str, scripts: tuple[str, ...]) -> None:
    assert mixed_scripts(text) == scripts
    assert ("several scripts" in shown(text)) is bool(scripts)


def test_what_is_cut_is_counted() -> None:
    assert "… 1,500 more characters" in shown("x" * 1600, 100)

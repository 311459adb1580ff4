"""JSONPath, decimals and the comparison of a receiver's item with the intent."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.matching import (
    ABSENT,
    NODES_MAX,
    PRINTED_MAX,
    As,
    MatchRefused,
    PathRefused,
    TooManyNodes,
    Unreadable,
    at_pointer,
    compile_path,
    is_pointer,
    match_item,
    minor_unit_digits,
    parse_match,
    printable,
    read_json,
    same,
)

# -- reading


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b'{"a": 1', "not JSON"),  # cut off
        (b'{"a": 1} {"a": 2}', "not JSON"),  # two documents have two meanings
        (b'{"status": "failed", "status": "succeeded"}', "a name stands twice in one object"),
        (b'[{"a": {"b": 1, "b": 1}}]', "a name stands twice in one object"),  # at any depth, even when equal
        (b"[NaN]", "NaN is no JSON"),
        (b"[-Infinity]", "-Infinity is no JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 20_000 + b"]" * 20_000, "nested too deeply"),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "nested too deeply"),
        (b"1" * 5_000, "a number beyond reading"),
    ],
)
def test_an_answer_without_one_meaning_is_not_read(raw: bytes, why: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_json(raw)
    assert refused.value.why == why


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),  # a byte-order mark is allowed to be ignored
        (b'"\\u0000\\ud800"', "\x00\ud800"),  # the receiver's own business
        (b"9007199254740993", 9007199254740993),  # beyond a double
        (b"120.10", Decimal("120.10")),
        (b"1e400", Decimal("1e400")),
    ],
)
def test_odd_but_clear_answers_are_read_without_loss(raw: bytes, value: Any) -> None:
    assert read_json(raw) == value


# -- paths


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("data[*]", "no JSONPath"),  # no root
        ("$.a | $.b", "no JSONPath"),  # an extension of the library
        ("^.a", "no JSONPath"),
        ("$.a[?@.b =~ /c/]", "no JSONPath"),
        ("$.~a", "no JSONPath"),
        (" $.a", "no JSONPath"),
        ("", "no JSONPath"),
        ("$[?startswith(@.a, 'b')]", "no JSONPath"),  # not of RFC 9535
        ("$.a[?match(@.b, 'c')]", "match() is not offered"),
        ("$.a[?search(@.b, 'c')]", "search() is not offered"),
        ("$.a[?!(@.x == 1 || search(@.b, 'c'))]", "search() is not offered"),  # however deep
        ("$.a[?count(@.b) > 1 && match(@.b, 'c')]", "match() is not offered"),
        ("$..a..b", "more than one '..'"),
        ("$.a[?@..b]", "single nodes"),
        ("$.a[?$.b[*]]", "single nodes"),
        ("$.a[?count($.b[*]) > 1]", "single nodes"),
        ("$" + ".a" * 300, "longer than"),
        (
            "$.a[?" + "(" * 200 + "@.b" + ")" * 200 + "]",
            "",
        ),  # the parser is recursive: an answer, not a crash
    ],
)
def test_a_path_that_cannot_be_trusted_is_refused_with_the_reason(text: str, why: str) -> None:
    if not why:
        compile_path(text)
        return
    with pytest.raises(PathRefused) as refused:
        compile_path(text)
    assert why in refused.value.why


ORDERS = {"data": [{"id": "a", "n": 1}, {"id": "b", "n": 2.5}], "x": {"data": []}, "none": None}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("$", [ORDERS]),
        ("$.data[0].id", ["a"]),
        ("$['data'][-1]['id']", ["b"]),
        ("$.data[2]", []),
        ("$.data[-3]", []),
        ("$.data.id", []),  # a name selects nothing from a list
        ("$.x[0]", []),  # an index selects nothing from an object
        ("$.none", [None]),
        ("$.none.a", []),
        ("$.data[*].id", ["a", "b"]),
        ("$.data[?@.n == 2.5].id", ["b"]),
        ("$.data[?@.id == 'a' && length(@.id) == 1].n", [1]),
        ("$..id", ["a", "b"]),
        ("$.data[0,1].n", [1, 2.5]),
    ],
)
def test_a_path_selects_what_rfc_9535_says(text: str, nodes: list[Any]) -> None:
    assert compile_path(text).all(ORDERS) == nodes


def test_a_decimal_of_the_answer_equals_the_same_number_in_a_filter() -> None:
    assert compile_path("$[?@.rate == 0.1].id").all(read_json(b'[{"id": 1, "rate": 0.10}]')) == [1]


@pytest.mark.parametrize("document", ['{"data": [1]}', '"[1]"', "[1", 7, None])
def test_a_scalar_has_no_nodes_below_it_even_if_its_text_is_json(document: Any) -> None:
    assert compile_path("$[*]").all(document) == []
    assert compile_path("$.data[*]").all(document) == []


@pytest.mark.parametrize(
    ("text", "document", "there"),
    [
        ("$.data[*]", {"data": []}, True),
        ("$.data[*]", {"data": {}}, True),
        ("$.data[*]", {}, False),
        ("$.data[*]", {"data": None}, False),
        ("$.data[*]", {"error": "busy"}, False),
        ("$.data[*]", {"data": "none"}, False),
        ("$.a.data[?@.b == 1]", {"a": {"data": []}}, True),
        ("$.a.data[?@.b == 1]", {"a": {}}, False),
        ("$[*]", [], True),
        ("$[*]", "OK", False),
        ("$.refund", {"refund": None}, True),
        ("$.refund", {}, False),
        ("$", None, True),
    ],
)
def test_nothing_selected_means_something_only_where_the_place_is_there(
    text: str, document: Any, there: bool
) -> None:
    assert compile_path(text).has_place(document) is there


def test_more_nodes_than_a_look_up_can_use_are_an_error_not_a_long_wait() -> None:
    with pytest.raises(TooManyNodes):
        compile_path("$[*]").all([0] * (NODES_MAX + 1))
    assert len(compile_path("$[*]").all([0] * NODES_MAX)) == NODES_MAX


def test_an_answer_nested_beyond_walking_is_an_error() -> None:
    deep = read_json(b'{"a":' * 150 + b"1" + b"}" * 150)
    with pytest.raises(TooManyNodes):
        compile_path("$..b").all(deep)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", {"a/b": {"~": [5, 6]}}),
        ("/a~1b/~0/1", 6),
        ("/a~1b/~0/01", ABSENT),  # RFC 6901: no leading zero
        ("/a~1b/~0/-", ABSENT),
        ("/a~1b/~0/2", ABSENT),
        ("/a~1b/~0/1/x", ABSENT),
        ("/b", ABSENT),
    ],
)
def test_a_pointer_names_what_rfc_6901_says(pointer: str, value: Any) -> None:
    assert at_pointer({"a/b": {"~": [5, 6]}}, pointer) == value


@pytest.mark.parametrize("text", ["a", "/a~2", "/a~", "#/a", None, 7])
def test_what_is_no_pointer_is_not_taken_for_one(text: object) -> None:
    assert not is_pointer(text)


# -- comparing


@pytest.mark.parametrize(
    ("intended", "found", "agree"),
    [
        ("120.00", "120", True),  # decimals by value
        ("120.00", 120, True),
        ("120.00", Decimal("120.0"), True),
        (120.1, Decimal("120.10"), True),
        ("120.00", "120.01", False),
        ("-0.0", 0, True),
        ("0012", "12", False),  # a name with leading zeros is no number
        ("0012", 12, False),
        ("1e2", 100, False),  # nor is an exponent in a text
        ("+5", "5", False),
        ("٣", "3", False),  # only ASCII digits
        (True, 1, False),  # a boolean is no number
        (False, 0, False),
        (True, "true", False),
        (None, "null", False),
        (None, None, True),
        ("EUR", "eur", False),
        ("\u00e9", "e\u0301", False),  # nothing is normalised
        ({"a": "1.0"}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, 2], [2, 1], False),
        ([], {}, False),
        (9007199254740993, 9007199254740992, False),  # no double in between
        (1, Decimal("1e999999999"), False),  # a giant is compared, not expanded
    ],
)
def test_values_agree_by_what_they_say(intended: Any, found: Any, agree: bool) -> None:
    assert same(intended, found) is agree
    assert same(found, intended) is agree


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=3), st.integers(0, 6))
def test_zeros_at_the_end_never_matter(amount: Decimal, zeros: int) -> None:
    text = format(amount, "f")
    assert same(text, f"{text}{'0' * zeros}")
    assert not same(text, format(amount + Decimal("0.001"), "f"))


@pytest.mark.parametrize(
    ("currency", "digits"),
    [("EUR", 2), ("jpy", 0), ("KWD", 3), ("CLF", 4), ("XXX", 2), (None, 2)],
)
def test_minor_units_follow_the_currency_and_are_two_digits_by_default(
    currency: str | None, digits: int
) -> None:
    assert minor_unit_digits(currency) == digits


ARGUMENTS = {
    "amount": "120.00",
    "currency": "EUR",
    "order_id": "0012",
    "version": "1.10",
    "odd": "120.005",
    "yen": "JPY",
}
AMOUNT = {"value": "120.00", "currency": "EUR"}


@pytest.mark.parametrize(
    ("match", "item", "expected"),
    [
        # The example of the documentation: minor units by the amount's currency.
        ({"$.amount": {"to": "/arguments/amount", "as": "minor_units"}}, {"amount": 12000}, None),
        ({"$.amount": {"to": "/arguments/amount", "as": "minor_units"}}, {"amount": "12000"}, None),
        ({"$.amount": {"to": "/arguments/amount", "as": "minor_units"}}, {"amount": 12001}, "12001"),
        ({"$.amount": {"to": "/arguments/amount", "as": "minor_units"}}, {"amount": 120}, "120"),
        ({"$.amount": {"to": "/arguments/amount", "as": "minor_units"}}, {"amount": True}, "true"),
        # Half a cent cannot have been meant, and is not rounded into agreement.
        ({"$.amount": {"to": "/arguments/odd", "as": "minor_units"}}, {"amount": 12000}, "12000"),
        ({"$.amount": {"to": "/arguments/odd", "as": "minor_units"}}, {"amount": 12001}, "12001"),
        # The entry's own currency, as pointer or as code, and the number of digits outright.
        (
            {"$.amount": {"to": "/arguments/amount", "as": "minor_units", "currency": "/arguments/yen"}},
            {"amount": 120},
            None,
        ),
        (
            {"$.amount": {"to": "/arguments/amount", "as": "minor_units", "currency": "KWD"}},
            {"amount": 120000},
            None,
        ),
        ({"$.amount": {"to": "/arguments/amount", "as": "minor_units", "digits": 0}}, {"amount": 120}, None),
        # What is intended is no number.
        ({"$.amount": {"to": "/arguments/currency", "as": "minor_units"}}, {"amount": 120}, "120"),
        # Plain pointers.
        ({"$.c": "/arguments/currency"}, {"c": "EUR"}, None),
        ({"$.c": "/arguments/currency"}, {"c": "eur"}, "eur"),
        ({"$.c": {"to": "/arguments/currency", "as": "caseless"}}, {"c": "eur"}, None),
        ({"$.c": {"to": "/arguments/currency", "as": "caseless"}}, {"c": "usd"}, "usd"),
        ({"$.v": "/arguments/version"}, {"v": "1.1"}, None),
        ({"$.v": {"to": "/arguments/version", "as": "text"}}, {"v": "1.1"}, "1.1"),
        ({"$.v": {"to": "/arguments/version", "as": "text"}}, {"v": Decimal("1.10")}, "1.10"),
        ({"$.o": "/arguments/order_id"}, {"o": "12"}, "12"),
        ({"$.o": "/arguments/order_id"}, {}, "(absent)"),
        ({"$.o": "/arguments/order_id"}, {"o": None}, "null"),
        ({"$.o": "/arguments/nothing"}, {"o": "12"}, "12"),
        ({"$.o": "/arguments/nothing"}, {}, None),
        ({"$.o": "/arguments/nothing"}, {"o": None}, None),
        ({"$.a": "/amount/value"}, {"a": "120"}, None),
        ({"$.op": "/operation_id"}, {"op": "op-1"}, None),
        ({"$.o": "/arguments/order_id"}, "a text, no object", "(absent)"),
    ],
)
def test_an_item_differs_exactly_where_it_says_something_else(
    match: dict[str, Any], item: Any, expected: str | None
) -> None:
    mismatches = match_item({"match": match}, item, ARGUMENTS, AMOUNT, operation_id="op-1")
    assert [each.found for each in mismatches] == ([] if expected is None else [expected])


def test_a_mismatch_names_the_field_the_pointer_and_both_sides() -> None:
    rules = {"$.amount": {"to": "/arguments/amount", "as": "minor_units"}, "$.c": "/arguments/currency"}
    first, second = match_item({"match": rules}, {"amount": 9900, "c": "USD"}, ARGUMENTS, AMOUNT)
    assert (first.field, first.pointer, first.intended, first.found) == (
        "$.amount",
        "/arguments/amount",
        "12000",
        "9900",
    )
    assert (second.intended, second.found) == ("EUR", "USD")


def test_arguments_that_are_no_longer_kept_are_not_compared_but_the_amount_is() -> None:
    rules = {"$.c": "/arguments/currency", "$.a": "/amount/value"}
    assert [m.field for m in match_item({"match": rules}, {"c": "USD", "a": 5}, None, AMOUNT)] == ["$.a"]


def test_an_amount_that_was_never_said_differs_from_one_that_is_found() -> None:
    assert (
        match_item({"match": {"$.a": "/amount/value"}}, {"a": 5}, ARGUMENTS, None)[0].intended == "(absent)"
    )


def test_deeply_nested_values_are_different_rather_than_an_exception() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    (mismatch,) = match_item({"match": {"$.a": "/arguments/a"}}, {"a": deep}, {"a": deep}, None)
    assert mismatch.found == "(nested too deeply)"


@pytest.mark.parametrize(
    ("match", "path", "why"),
    [
        (["$.a"], "", "mapping"),
        ({"$.a": "arguments/amount"}, "$.a", "JSON Pointer"),
        ({"$.a": ""}, "$.a", "JSON Pointer"),
        ({"$.a": "/argument/amount"}, "$.a", "must begin with one of"),
        ({"$.a": {"as": "minor_units"}}, "$.a", "JSON Pointer"),
        ({"$.a": {"to": "/amount/value", "as": "cents"}}, "$.a", "'as' must be one of"),
        ({"$.a": {"to": "/amount/value", "as": ["text"]}}, "$.a", "'as' must be one of"),
        ({"$.a": {"to": "/amount/value", "exponent": 2}}, "$.a", "unknown key exponent"),
        ({"$.a": {"to": "/amount/value", "digits": 2}}, "$.a", "belong to minor_units"),
        ({"$.a": {"to": "/amount/value", "as": "minor_units", "digits": True}}, "$.a", "whole number"),
        ({"$.a": {"to": "/amount/value", "as": "minor_units", "digits": -1}}, "$.a", "whole number"),
        ({"$.a": {"to": "/amount/value", "as": "minor_units", "currency": "euro"}}, "$.a", "three letters"),
        ({"$.a[*]": "/amount/value"}, "$.a[*]", "one node"),
        ({"a": "/amount/value"}, "a", "no JSONPath"),
        ({7: "/amount/value"}, "7", "text"),
    ],
)
def test_a_match_that_cannot_work_is_refused_with_its_place(match: Any, path: str, why: str) -> None:
    with pytest.raises(MatchRefused) as refused:
        parse_match(match)
    assert refused.value.problems[0][0] == path
    assert why in refused.value.problems[0][1]


def test_every_way_of_comparing_can_be_configured() -> None:
    for how in As:
        assert parse_match({"$.a": {"to": "/amount/value", "as": how.value}})[0].how is how


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\x00b", "a\\x00b"),
        ("\ud800", "\\ud800"),
        ("‮abc", "\\u202eabc"),  # a text must not be shown backwards
        ("naïve · Ω", "naïve · Ω"),
        (None, "null"),
        (True, "true"),
        (Decimal("1.50"), "1.50"),
        ({"a": [1, "é", Decimal("0.5")]}, '{"a": [1, "é", "0.5"]}'),
    ],
)
def test_a_printed_value_can_be_stored_and_shown(value: Any, text: str) -> None:
    assert printable(value) == text
    printable(value).encode()


def test_two_long_values_with_one_beginning_are_printed_differently() -> None:
    one, other = printable("a" * 5_000), printable("a" * 5_001)
    assert one != other
    assert len(one) < PRINTED_MAX + 40


def test_paths_are_compiled_once() -> None:
    assert compile_path("$.once[*]") is compile_path("$.once[*]")


def test_a_hostile_answer_costs_time_in_proportion_to_its_size() -> None:
    rows = [{"a": {"b": [1] * 5}} for _ in range(2_000)]
    started = time.perf_counter()
    compile_path("$[?@.a.b[0] == 1 && count(@.a) > 0].a.b[4]").all(rows)
    assert time.perf_counter() - started < 2

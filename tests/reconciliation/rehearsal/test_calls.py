from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciliation.rehearsal.calls import Call, Contract, Mix, RecordingError, read, spelled

GOOD = '{"task": "t", "step": 1, "tool": "refund", "arguments": {"a": 1}}'


def recording(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "calls.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


MALFORMED = [
    # not an object at all
    ("[1, 2]", "not a JSON object (column 1)"),
    ("42", "not a JSON object (column 1)"),
    # cut off in the middle, at several places
    ("{", "not a JSON object"),
    ('{"task"', "not a JSON object"),
    ('{"task": "t", "step": 1', "not a JSON object"),
    ('{"task": "t", "step": 1, "tool": "x", "arguments": {"a": 1', "not a JSON object"),
    # two objects on one line
    (GOOD + GOOD, "something follows the JSON object"),
    # members that are missing, named
    ('{"task": "t", "tool": "x"}', "step, arguments missing"),
    ("{}", "task, step, tool, arguments missing"),
    # names that are none
    (
        '{"task": "", "step": 1, "tool": "x", "arguments": {}}',
        'task must be a string or a whole number, not ""',
    ),
    ('{"task": "t", "step": true, "tool": "x", "arguments": {}}', "step must be"),
    ('{"task": "t", "step": 1.5, "tool": "x", "arguments": {}}', "step must be"),
    ('{"task": "t", "step": 1, "tool": null, "arguments": {}}', "tool must be"),
    # arguments that are no object
    ('{"task": "t", "step": 1, "tool": "x", "arguments": [1]}', "arguments must be an object, not [1]"),
    ('{"task": "t", "step": 1, "tool": "x", "arguments": "[1]"}', "arguments must be an object"),
    ('{"task": "t", "step": 1, "tool": "x", "arguments": null}', "arguments must be an object"),
    # a string that would write further members into the request if it were pasted in
    (
        '{"task": "t", "step": 1, "tool": "x", "arguments": "{}, \\"dispatch\\": false"}',
        "arguments are a string that is not JSON (column 3 of it)",
    ),
    (
        '{"task": "t", "step": 1, "tool": "x", "arguments": "{oops}"}',
        "arguments are a string that is not JSON",
    ),
    # bytes that are no text
    (b'{"task": "\xff"}', "not UTF-8 (byte 10)"),
    # deeper than any parser goes
    (
        '{"task": "t", "step": 1, "tool": "x", "arguments": ' + '{"a":' * 50_000 + "}" * 50_000 + "}",
        "too deeply",
    ),
]


@pytest.mark.parametrize(("line", "complaint"), MALFORMED)
def test_a_malformed_line_is_refused_by_its_number(tmp_path: Path, line: str | bytes, complaint: str) -> None:
    with pytest.raises(RecordingError) as caught:
        read(recording(tmp_path, GOOD, "", line))
    assert "line 3: " in str(caught.value)
    assert complaint in str(caught.value)
    assert "line 1" not in str(caught.value)


def test_a_hundred_bad_lines_are_told_as_ten(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as caught:
        read(recording(tmp_path, *["nonsense"] * 100))
    assert str(caught.value).count("line ") == 10
    assert "and 90 more" in str(caught.value)


@pytest.mark.parametrize("lines", [(), ("",), (" ", "\r")])
def test_a_recording_without_calls_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(RecordingError, match="no call in it"):
        read(recording(tmp_path, *lines))


def test_arguments_are_read_alike_as_an_object_and_as_a_string(tmp_path: Path) -> None:
    plain = '{"order": "ö", "n": [1, 2]}'
    lines = [
        f'{{"task": "t", "step": 1, "tool": "x", "arguments": {plain}}}',
        json.dumps({"task": "t", "step": 2, "tool": "x", "arguments": plain}),
    ]
    first, second = read(recording(tmp_path, *lines))
    assert first.arguments == second.arguments == plain


@pytest.mark.parametrize(
    "number",
    [
        "0.1000000000000000055511151231257827",  # prints as 0.1: a parser would repair it
        "9007199254740993",  # beyond what a double can tell apart
        "1e400",  # infinite once parsed
        "1.0",  # equal to 1, and not the same text
    ],
)
def test_numbers_keep_the_text_they_were_written_in(tmp_path: Path, number: str) -> None:
    line = f'{{"task": "t", "step": 1, "tool": "x", "arguments": {{"n": {number}}}}}'
    (call,) = read(recording(tmp_path, line))
    assert call.arguments == f'{{"n": {number}}}'


def test_duplicate_names_in_arguments_are_kept_for_the_service_to_refuse(tmp_path: Path) -> None:
    (call,) = read(
        recording(
            tmp_path, '{"task": "t", "step": 1, "tool": "x", "arguments": {"amount": 10, "amount": 1000}}'
        )
    )
    assert call.arguments == '{"amount": 10, "amount": 1000}'


# C30
def test_equal_lines_are_calls_of_their_own(tmp_path: Path) -> None:
    names = [call.name for call in read(recording(tmp_path, GOOD, GOOD, GOOD))]
    assert names == ["t:1", "t:1+2", "t:1+3"]


def test_blank_lines_and_carriage_returns_do_not_shift_line_numbers(tmp_path: Path) -> None:
    calls = read(recording(tmp_path, "", GOOD + "\r", "", GOOD))
    assert [call.line for call in calls] == [2, 4]


def test_a_limit_leaves_later_lines_unread(tmp_path: Path) -> None:
    assert len(read(recording(tmp_path, GOOD, GOOD, "nonsense"), limit=2)) == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("airline-0-trial-0", "airline-0-trial-0"),
        ("functions.book flight", "functions.book=20flight"),
        ("a:1", "a=3A1"),  # or it could be taken for task a, step 1
        ("refund*", "refund=2A"),  # or a mandate's pattern would match by it
        ("ö", "=C3=B6"),
        ("\ud800", "=ED=A0=80"),  # JSON can spell it, UTF-8 cannot
    ],
)
def test_a_name_is_spelled_in_the_characters_of_an_id(text: str, name: str) -> None:
    assert spelled(text) == name


def test_long_names_that_differ_stay_different() -> None:
    first, second = spelled("x" * 500 + "a"), spelled("x" * 500 + "b")
    assert first != second
    assert len(first) == len(second) == 120


def call(arguments: str, *, tool: str = "x", step: str = "1") -> Call:
    return Call(line=1, task="t", step=step, tool=tool, arguments=arguments, name=f"t:{step}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lying=1",
        "replays=-1",
        "replays=lots",
        "replays=0",
        "replays=nan",
        "replays,replays",
        "opaque=inf",
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="contract"):
        Mix.parse(text)


def test_a_mix_gives_each_contract_about_its_share() -> None:
    mix = Mix.parse("replays=2,readable=1,opaque=1")
    given = [mix.contract_of(call(f'{{"n": {n}}}'), seed=7) for n in range(2000)]
    assert 900 < given.count(Contract.REPLAYS) < 1100
    assert 400 < given.count(Contract.OPAQUE) < 600


def test_equal_calls_of_one_tool_meet_the_same_receiver() -> None:
    mix = Mix.parse("replays,readable,opaque")
    for n in range(50):
        first = mix.contract_of(call(f'{{"a": {n}, "b": 2}}', step="1"), seed=3)
        assert mix.contract_of(call(f'{{"b":2,"a":{n}}}', step="9"), seed=3) is first


@pytest.mark.parametrize("contract", Contract)
def test_a_mix_of_one_contract_is_that_contract(contract: Contract) -> None:
    assert Mix.parse(contract).contract_of(call("{}"), seed=0) is contract


def test_the_shipped_recording_reads_and_holds_repeats() -> None:
    calls = read(Path(__file__).parents[3] / "reconciliation/rehearsal/recording.jsonl")
    assert 35 <= len(calls) <= 50
    said = [(call.task, call.tool, json.dumps(call.parsed_arguments(), sort_keys=True)) for call in calls]
    assert len(said) - len(set(said)) >= 4
    assert len({call.name for call in calls}) == len(calls)

"""Contracts: what is refused, with every fault at once; the careful defaults; there and back through JSON."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from ledger.contracts import (
    DEFAULT_REFUSALS,
    KEYS,
    LONGEST_S,
    Contract,
    ContractError,
    ContractErrors,
    Deduplicates,
    KeyClaimed,
    Lookup,
    Replays,
)
from ledger.decisions import DenialClass

LEAST: dict[str, Any] = {"deduplicates": "key", "lookup": "by_reference"}
FULL: dict[str, Any] = {
    "deduplicates": "key",
    "key_carrier": "header Idempotency-Key",
    "key_retained_s": 86_400,
    "key_claimed": "before_effect",
    "replays": "original",
    "verified": False,
    "lookup": "by_reference",
    "lookup_reaches_back_s": 7_776_000,
    "visibility_lag_s": 5,
    "in_flight_s": 30,
    "refusals": {402: "standing", "422": "cleared", 429: {"clears_after_s": 60}},
    "max_attempts": 3,
}


def _faults(mapping: Any, **options: Any) -> list[tuple[str, str]]:
    with pytest.raises(ContractErrors) as refused:
        Contract.parse(mapping, **options)
    return [(error.path, error.why) for error in refused.value.errors]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"deduplicates": "Key"}, "contract.deduplicates"),  # words are spelled as documented
    ({"deduplicates": None}, "contract.deduplicates"),  # what YAML 1.1 makes of "null"
    ({"lookup": True}, "contract.lookup"),
    ({"lookup": []}, "contract.lookup"),
    ({"lookup": "by_search"}, "contract.lookup"),
    ({"key_claimed": "sometimes"}, "contract.key_claimed"),
    ({"replays": "all"}, "contract.replays"),
    ({"key_carrier": ""}, "contract.key_carrier"),
    ({"key_carrier": " "}, "contract.key_carrier"),
    ({"key_carrier": 7}, "contract.key_carrier"),
    ({"key_carrier": "x" * 201}, "contract.key_carrier"),
    ({"key_retained_s": 0}, "contract.key_retained_s"),  # a key that is kept for no time deduplicates nothing
    ({"key_retained_s": "86400"}, "contract.key_retained_s"),
    ({"key_retained_s": True}, "contract.key_retained_s"),
    ({"key_retained_s": 1e400}, "contract.key_retained_s"),
    ({"lookup_reaches_back_s": -1}, "contract.lookup_reaches_back_s"),
    ({"lookup_reaches_back_s": 0}, "contract.lookup_reaches_back_s"),
    ({"visibility_lag_s": -0.1}, "contract.visibility_lag_s"),
    ({"visibility_lag_s": None}, "contract.visibility_lag_s"),
    ({"in_flight_s": float("nan")}, "contract.in_flight_s"),
    ({"in_flight_s": 10**400}, "contract.in_flight_s"),  # larger than any float
    ({"in_flight_s": LONGEST_S + 1}, "contract.in_flight_s"),
    ({"verified": "yes"}, "contract.verified"),
    ({"verified": 1}, "contract.verified"),
    ({"max_attempts": 0}, "contract.max_attempts"),
    ({"max_attempts": 10_000}, "contract.max_attempts"),
    ({"max_attempts": 2.0}, "contract.max_attempts"),
    ({"max_attempts": True}, "contract.max_attempts"),
    ({"refusals": [402]}, "contract.refusals"),
    ({"refusals": None}, "contract.refusals"),
    ({"refusals": {"declined": "standing"}}, "contract.refusals.declined"),
    ({"refusals": {True: "standing"}}, "contract.refusals.True"),
    ({"refusals": {402.0: "standing"}}, "contract.refusals.402.0"),
    ({"refusals": {"0402": "standing"}}, "contract.refusals.0402"),
    ({"refusals": {402: "clears_at"}}, "contract.refusals.402"),  # when is not said
    ({"refusals": {402: None}}, "contract.refusals.402"),
    ({"refusals": {402: ["standing"]}}, "contract.refusals.402"),
    ({"refusals": {429: {"clears_after_s": 0}}}, "contract.refusals.429"),
    ({"refusals": {429: {"clears_after_s": "60"}}}, "contract.refusals.429"),
    ({"refusals": {429: {"clears_after_s": 60, "then": 1}}}, "contract.refusals.429"),
    ({"refusals": {429: {}}}, "contract.refusals.429"),
    (
        {"refusals": {402: "standing", "402": "cleared"}},
        "contract.refusals.402",
    ),  # twice, differently spelled
    ({"retries": 3}, "contract.retries"),  # C59: a misspelt promise is not silently off
]


@pytest.mark.parametrize(("change", "path"), REFUSED, ids=str)
def test_a_value_that_cannot_work_is_refused_with_its_path(change: dict[str, Any], path: str) -> None:
    assert [fault[0] for fault in _faults({**LEAST, **change})] == [path]


# C32: an answer after which the effect may exist must never count as a denial
@pytest.mark.parametrize("status", [*range(100, 400, 50), 408, 409, 425, *range(500, 600, 33), 0, 999])
def test_an_answer_that_proves_nothing_cannot_be_listed_as_a_refusal(status: int) -> None:
    for key in (status, str(status)):
        assert len(_faults({**LEAST, "refusals": {key: "standing"}})) == 1


@pytest.mark.parametrize("mapping", [None, [], "contract", 7])
def test_a_contract_that_is_no_mapping_is_refused(mapping: Any) -> None:
    assert _faults(mapping, path="capabilities[2].contract") == [
        ("capabilities[2].contract", "must be a mapping")
    ]


def test_every_fault_is_told_at_once_under_the_given_path() -> None:
    mapping = {"lookup": "?", "in_flight_s": -1, "refusals": {500: "standing", 402: "?"}, "colour": "red"}
    assert [fault[0] for fault in _faults(mapping, path="capabilities[0].contract")] == [
        "capabilities[0].contract.colour",
        "capabilities[0].contract.deduplicates",
        "capabilities[0].contract.lookup",
        "capabilities[0].contract.in_flight_s",
        "capabilities[0].contract.refusals.500",
        "capabilities[0].contract.refusals.402",
    ]


def test_the_collected_faults_read_as_one_where_one_is_expected() -> None:
    with pytest.raises(ContractError) as refused:
        Contract.parse({"lookup": "none"})
    assert (refused.value.path, refused.value.why) == ("contract.deduplicates", "is required")
    assert "contract.deduplicates: is required" in str(refused.value)


def test_a_file_cannot_verify_a_claim_but_the_stored_contract_keeps_it() -> None:
    verified = {**FULL, "verified": True}
    assert [fault[0] for fault in _faults(verified, refuse_verified=True)] == ["contract.verified"]
    assert Contract.parse(verified).verified
    assert not Contract.parse({**FULL, "verified": False}, refuse_verified=True).verified


def test_what_is_not_promised_is_not_assumed() -> None:
    contract = Contract.parse(LEAST)
    assert contract == Contract(
        deduplicates=Deduplicates.KEY,
        lookup=Lookup.BY_REFERENCE,
        key_carrier=None,
        key_retained_s=None,
        key_claimed=KeyClaimed.UNKNOWN,
        replays=Replays.NONE,
        verified=False,
        lookup_reaches_back_s=None,
        visibility_lag_s=5,
        in_flight_s=60,
        refusals=DEFAULT_REFUSALS,
        max_attempts=5,
    )
    assert not contract.replays_same_key
    assert not contract.key_claimed_before_effect


def test_every_documented_key_is_read() -> None:
    contract = Contract.parse(FULL)
    assert set(FULL) == set(KEYS) == set(contract.as_json())
    for key in KEYS:
        assert (
            contract.as_json()[key] != Contract.parse(LEAST).as_json()[key]
            or key in LEAST
            or key
            in (
                "verified",
                "visibility_lag_s",
            )
        ), key


def test_a_contract_survives_json_unchanged() -> None:
    for mapping in (LEAST, FULL, {**FULL, "verified": True}, {**LEAST, "refusals": {}}):
        contract = Contract.parse(mapping)
        stored = json.loads(json.dumps(contract.as_json(), allow_nan=False))
        assert Contract.parse(stored) == contract
        assert Contract.parse(stored).as_json() == contract.as_json()


REFUSAL_CLASSES: list[tuple[dict[Any, Any] | None, Any, Any]] = [
    (None, 402, (DenialClass.STANDING, None)),
    (None, "402", (DenialClass.STANDING, None)),
    (None, 429, (DenialClass.CLEARS_AT, 60)),
    (None, 408, None),
    (None, 409, None),
    (None, 425, None),
    (None, 200, None),
    (None, 503, None),
    (None, None, None),
    (None, "card_declined", None),  # a word is not a status
    ({402: "standing"}, 422, None),  # a given list replaces the default
    ({}, 402, None),
    ({423: "cleared"}, 423, (DenialClass.CLEARED, None)),
    ({429: {"clears_after_s": 1.5}}, "429", (DenialClass.CLEARS_AT, 1.5)),
]


@pytest.mark.parametrize(("refusals", "asked", "expected"), REFUSAL_CLASSES)
def test_the_contract_says_whether_a_refusals_reason_stands(
    refusals: dict[Any, Any] | None, asked: Any, expected: Any
) -> None:
    mapping = LEAST if refusals is None else {**LEAST, "refusals": refusals}
    assert Contract.parse(mapping).denial_class(asked) == expected


def test_the_default_refusals_are_the_documented_ones() -> None:
    assert [refusal.status for refusal in DEFAULT_REFUSALS] == [
        400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 429,
    ]  # fmt: skip


@pytest.mark.parametrize("lookup", Lookup)
def test_what_a_look_up_needs_and_allows(lookup: Lookup) -> None:
    contract = Contract(Deduplicates.NONE, lookup)
    assert contract.needs_reference is (lookup is Lookup.BY_REFERENCE)
    assert contract.can_be_asked is (lookup in (Lookup.BY_REFERENCE, Lookup.BY_KEY, Lookup.BY_LIST))
    assert contract.operator_only is (lookup is Lookup.NONE)


def test_a_receiver_that_recognises_the_reference_needs_one() -> None:
    assert Contract(Deduplicates.REFERENCE, Lookup.NONE).needs_reference


@pytest.mark.parametrize(("deduplicates", "replays"), list(product(Deduplicates, Replays)))
def test_only_a_receiver_that_knows_the_key_can_replay(deduplicates: Deduplicates, replays: Replays) -> None:
    contract = Contract(deduplicates, Lookup.NONE, replays=replays)
    assert contract.replays_same_key is (deduplicates is Deduplicates.KEY and replays is not Replays.NONE)


MEMORIES: list[tuple[Lookup, float | None, float | None, float | None]] = [
    # look-up, key_retained_s, lookup_reaches_back_s, memory
    (Lookup.BY_REFERENCE, 60, None, None),  # a reference outlives the key
    (Lookup.BY_REFERENCE, 60, 900, 900),
    (Lookup.BY_LIST, None, 900, 900),
    (Lookup.BY_LIST, None, None, None),
    (Lookup.BY_KEY, 60, None, 60),  # C29
    (Lookup.BY_KEY, None, 900, 900),
    (Lookup.BY_KEY, 60, 900, 60),
    (Lookup.BY_KEY, 900, 60, 60),
    (Lookup.BY_KEY, None, None, 0),  # not stated: absence can never be proved
]


@pytest.mark.parametrize(("lookup", "retained", "reaches", "memory"), MEMORIES)
def test_a_look_up_remembers_as_long_as_the_contract_says(
    lookup: Lookup, retained: float | None, reaches: float | None, memory: float | None
) -> None:
    contract = Contract(Deduplicates.KEY, lookup, key_retained_s=retained, lookup_reaches_back_s=reaches)
    assert contract.memory_s == memory


WARNED: list[tuple[dict[str, Any], list[str]]] = [
    (FULL, []),
    ({"deduplicates": "reference", "lookup": "by_reference"}, []),
    ({"deduplicates": "none", "lookup": "none", "key_retained_s": 60}, ["key_retained_s"]),
    ({"deduplicates": "none", "lookup": "by_key", "key_retained_s": 60}, []),
    ({"deduplicates": "none", "lookup": "none", "replays": "original"}, ["replays"]),
    ({"deduplicates": "none", "lookup": "none", "key_claimed": "before_effect"}, ["key_claimed"]),
    ({"deduplicates": "none", "lookup": "none", "lookup_reaches_back_s": 9}, ["lookup_reaches_back_s"]),
    ({"deduplicates": "key", "lookup": "by_reference", "replays": "original"}, ["key_retained_s"]),
    ({"deduplicates": "key", "lookup": "by_key"}, ["lookup_reaches_back_s"]),
    ({"deduplicates": "key", "lookup": "by_list"}, ["lookup_reaches_back_s"]),
]


@pytest.mark.parametrize(("mapping", "keys"), WARNED, ids=str)
def test_values_that_nothing_uses_are_warned_about(mapping: dict[str, Any], keys: list[str]) -> None:
    warnings = Contract.parse(mapping).warnings("c")
    assert [warning.path for warning in warnings] == [f"c.{key}" for key in keys]

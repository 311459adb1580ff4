from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ledger.contracts import Contract as Promises
from ledger.contracts import Lookup
from reconciliation.rehearsal.calls import Call, Contract
from reconciliation.rehearsal.faults import FaultSpec
from reconciliation.rehearsal.workspace import capability_of, document, is_rehearsed

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def call(number: int, tool: str, arguments: str) -> Call:
    return Call(line=number, task="t", step=str(number), tool=tool, arguments=arguments, name=f"t:{number}")


def made(calls: list[Call], contracts: list[Contract], *, faults: str = "standard") -> dict:  # type: ignore[type-arg]
    return document(
        workspace="w",
        calls=calls,
        contracts={call.name: contract for call, contract in zip(calls, contracts, strict=True)},
        base_url_of=lambda contract: f"http://127.0.0.1:9/{contract}/v1",
        faults=FaultSpec.parse(faults),
        now=NOW,
    )


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("faults", ["standard", "none", "late=0.1,late_s=20", "hidden=0.1,hidden_s=33.3"])
def test_the_contract_promises_no_less_than_the_receiver_keeps(contract: Contract, faults: str) -> None:
    spec = FaultSpec.parse(faults)
    (capability,) = made([call(1, "x", "{}")], [contract], faults=faults)["capabilities"]
    promises = Promises.parse(capability["contract"])
    assert promises.in_flight_s >= spec.late_s + 1
    assert promises.visibility_lag_s >= spec.hidden_s
    assert (
        (promises.lookup is Lookup.NONE) == (contract is Contract.OPAQUE) == ("reconciler" not in capability)
    )
    assert not promises.verified


def test_each_tool_is_one_capability_for_each_contract_it_meets() -> None:
    calls = [call(1, "x", "{}"), call(2, "x", "{}"), call(3, "x", "{}"), call(4, "a b", "{}")]
    contracts = [Contract.REPLAYS, Contract.OPAQUE, Contract.REPLAYS, Contract.OPAQUE]
    workspace = made(calls, contracts)
    names = [capability["name"] for capability in workspace["capabilities"]]
    assert names == ["a=20b.opaque", "x.opaque", "x.replays"]
    assert all(map(is_rehearsed, names))
    assert not any(map(is_rehearsed, ["refund.create", "opaque", "refund.opaque.v2", "refund.Opaque", ""]))
    assert {capability_of(c, k) for c, k in zip(calls, contracts, strict=True)} == set(names)
    assert [receiver["name"] for receiver in workspace["receivers"]] == ["sandbox-opaque", "sandbox-replays"]


def test_only_text_that_every_call_has_is_compared() -> None:
    calls = [
        call(1, "x", '{"id": "1", "note": "a", "n": 1, "odd name": "x"}'),
        call(2, "x", '{"id": "2", "n": 2, "odd name": "y"}'),
    ]
    (capability,) = made(calls, [Contract.READABLE] * 2)["capabilities"]
    assert capability["reconciler"]["match"] == {"$.arguments.id": "/arguments/id"}


def test_the_document_is_json_and_its_mandate_outlives_the_rehearsal() -> None:
    workspace = json.loads(json.dumps(made([call(1, "x", "{}")], [Contract.REPLAYS])))
    assert workspace["mandates"][0]["valid_until"] == "2026-12-01T12:00:00Z"

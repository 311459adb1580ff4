from __future__ import annotations

import http.client
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from reconciliation.rehearsal import truth
from reconciliation.rehearsal.calls import Call, Contract
from reconciliation.rehearsal.faults import Fault, FaultSpec, Plan
from reconciliation.rehearsal.players import Errand
from reconciliation.rehearsal.receivers import REPOSITORY, Sandbox, SandboxFailed
from reconciliation.rehearsal.sending import NoReply, Reply

Start = Callable[..., Sandbox]
ASKABLE = [Contract.REPLAYS, Contract.READABLE]
TIMEOUT_S = 0.5


def errand(
    receiver: Sandbox, contract: Contract, *, name: str = "t:1", arguments: str = '{"a": 1}'
) -> Errand:
    call = Call(line=1, task="t", step="1", tool="refund", arguments=arguments, name=name)
    return Errand(call, contract, receiver.base_url_of(contract), TIMEOUT_S)


def send(receiver: Sandbox, contract: Contract, *, key: str = "k1", name: str = "t:1") -> Reply | NoReply:
    return errand(receiver, contract, name=name).send(key=key, operation_id=name, reference=f"ref-{name}")


def look(receiver: Sandbox, contract: Contract, **query: str) -> Any:
    return httpx.get(f"{receiver.base_url_of(contract)}/effects", params=query, trust_env=False)


def seen(receiver: Sandbox, contract: Contract, name: str = "t:1") -> list[str]:
    answer = look(receiver, contract, client_reference=f"ref-{name}")
    assert answer.status_code == 200
    return [item["status"] for item in answer.json()["data"]]


def effects(receiver: Sandbox, name: str = "t:1") -> int:
    receiver.stop()
    return truth.read(receiver.ledger).get(name, truth.NOTHING).effects


REFUSED = [
    # method, path, headers, body, status, code
    ("POST", "/replays/v1/tools/x", {}, b'{"arguments": {}}', 400, "key_required"),
    ("POST", "/readable/v1/tools/x", {}, b"{", 400, "bad_json"),
    ("POST", "/readable/v1/tools/x", {}, b"[" * 100_000, 400, "bad_json"),
    ("POST", "/readable/v1/tools/x", {}, b'{"arguments": "\xff"}', 400, "bad_json"),
    ("POST", "/readable/v1/tools/x", {}, b"[]", 400, "bad_body"),
    ("POST", "/readable/v1/tools/x", {}, b'{"arguments": "{}"}', 400, "bad_body"),
    ("POST", "/readable/v1/tools/x", {}, b'{"arguments": {}, "client_reference": 1}', 400, "bad_body"),
    (
        *("POST", "/readable/v1/tools/x", {}),
        *(b'{"arguments": {}, "metadata": {"operation_id": "\\ud800"}}', 400, "bad_body"),
    ),
    ("POST", "/readable/v1/tools/x", {"Content-Length": "2000000"}, b"", 413, "too_large"),
    ("POST", "/readable/v1/tools/x", {"Content-Length": "some"}, b"", 411, "length_required"),
    ("POST", "/lying/v1/tools/x", {}, b'{"arguments": {}}', 404, "no_such_endpoint"),
    ("POST", "/readable/v1/tools/", {}, b'{"arguments": {}}', 404, "no_such_endpoint"),
    ("POST", "/readable/v2/tools/x", {}, b'{"arguments": {}}', 404, "no_such_endpoint"),
    ("GET", "/readable/v1/nothing", {}, b"", 404, "no_such_endpoint"),
    ("GET", "/readable/v1/effects/by-name/x", {}, b"", 404, "no_such_endpoint"),
    ("GET", "/replays/v1/effects/by-key/none", {}, b"", 404, "not_found"),
    # an ignored filter would list effects that nobody asked about
    ("GET", "/readable/v1/effects?refrence=x", {}, b"", 400, "bad_query"),
    ("GET", "/readable/v1/effects?limit=0", {}, b"", 400, "bad_query"),
    ("GET", "/readable/v1/effects?limit=101", {}, b"", 400, "bad_query"),
    ("GET", "/opaque/v1/effects", {}, b"", 403, "cannot_be_asked"),
    ("GET", "/opaque/v1/effects/by-key/k", {}, b"", 403, "cannot_be_asked"),
]


def test_requests_that_make_no_sense_are_refused_and_change_nothing(start: Start) -> None:
    receiver = start()
    for method, path, headers, body, status, code in REFUSED:
        connection = http.client.HTTPConnection(receiver.base_url.removeprefix("http://"), timeout=5)
        connection.putrequest(method, path)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["error"]["code"]) == (status, code), (
            path,
            body[:40],
        )
        connection.close()
    receiver.stop()
    assert truth.read(receiver.ledger) == {}


# What the caller sees of each fault, and the effects there are when the answer (or its absence) is in, and in the end.
FAULTS: list[tuple[Fault, Callable[[Reply | NoReply], bool], int, int]] = [
    (Fault.CUT, lambda a: a == NoReply("connection_reset", sent=True), 1, 1),
    (Fault.LOST, lambda a: a == NoReply("connection_reset", sent=True), 0, 0),
    (Fault.SLOW, lambda a: a == NoReply("timeout", sent=True), 1, 1),
    (Fault.LATE, lambda a: a == NoReply("connection_reset", sent=True), 0, 1),
    (Fault.HIDDEN, lambda a: a == NoReply("connection_reset", sent=True), 1, 1),
    (Fault.SERVER_ERROR_AFTER, lambda a: isinstance(a, Reply) and a.status == 500, 1, 1),
    (Fault.SERVER_ERROR_BEFORE, lambda a: isinstance(a, Reply) and a.status == 503, 0, 0),
]


def test_the_fault_table_names_every_fault() -> None:
    assert {fault for fault, *_ in FAULTS} == set(Fault)


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize(("fault", "looks_right", "at_once", "in_the_end"), FAULTS)
def test_each_fault_hides_what_it_should(
    start: Start,
    contract: Contract,
    fault: Fault,
    looks_right: Callable[[Reply | NoReply], bool],
    at_once: int,
    in_the_end: int,
) -> None:
    receiver = start(f"{fault}=1,slow_s=0.8,late_s=0.4,hidden_s=0.4")
    answer = send(receiver, contract)
    assert looks_right(answer), answer
    if contract is not Contract.OPAQUE:
        assert len(seen(receiver, contract)) == (0 if fault is Fault.HIDDEN else at_once)
        time.sleep(0.6 if fault in (Fault.LATE, Fault.HIDDEN) else 0)
        assert len(seen(receiver, contract)) == in_the_end
    assert effects(receiver) == in_the_end
    assert truth.read(receiver.ledger)["t:1"].faults == (fault,)


def test_callers_cannot_tell_a_lost_request_from_a_lost_reply(start: Start) -> None:
    answers = [send(start(f"{fault}=1"), Contract.OPAQUE) for fault in (Fault.CUT, Fault.LOST, Fault.LATE)]
    assert answers[0] == answers[1] == answers[2]


def test_an_effect_on_its_way_lands_when_the_receiver_stops(start: Start) -> None:
    receiver = start("late=1,late_s=60")
    send(receiver, Contract.READABLE)
    assert effects(receiver) == 1


def test_a_proper_answer_carries_the_effect(start: Start) -> None:
    receiver = start()
    for contract in Contract:
        answer = send(receiver, contract, name=f"{contract}:1", key=f"key-{contract}")
        assert isinstance(answer, Reply)
        assert answer.status == 201
        assert answer.body | {"id": "", "created_at": ""} == {
            "id": "",
            "status": "succeeded",
            "tool": "refund",
            "arguments": {"a": 1},
            "client_reference": f"ref-{contract}:1",
            "idempotency_key": f"key-{contract}",
            "metadata": {"operation_id": f"{contract}:1"},
            "failure_reason": None,
            "created_at": "",
            "account": f"sandbox-{contract}",
        }


@pytest.mark.parametrize(
    ("contract", "made"), [(Contract.REPLAYS, 1), (Contract.READABLE, 3), (Contract.OPAQUE, 3)]
)
def test_only_a_receiver_that_replays_makes_one_effect_of_three_sends(
    start: Start, contract: Contract, made: int
) -> None:
    receiver = start()
    answers = [send(receiver, contract) for _ in range(3)]
    assert all(isinstance(answer, Reply) and answer.status == 201 for answer in answers)
    assert effects(receiver) == made


def test_a_repeated_key_is_answered_with_the_original_answer(start: Start) -> None:
    receiver = start()
    first, second = (send(receiver, Contract.REPLAYS) for _ in range(2))
    assert isinstance(first, Reply)
    assert isinstance(second, Reply)
    assert (first.status, first.body) == (second.status, second.body)


def test_a_repeated_key_with_another_body_is_refused(start: Start) -> None:
    receiver = start()
    errand(receiver, Contract.REPLAYS).send(key="k1")
    answer = errand(receiver, Contract.REPLAYS, arguments='{"a": 2}').send(key="k1")
    assert isinstance(answer, Reply)
    assert (answer.status, answer.body["error"]["code"]) == (422, "key_reused")
    assert effects(receiver) == 1


def test_a_key_whose_effect_is_on_its_way_is_in_progress(start: Start) -> None:
    receiver = start("late=0.5,late_s=0.6", seed=seed_where(["late", None]))
    assert send(receiver, Contract.REPLAYS) == NoReply("connection_reset", sent=True)
    answer = send(receiver, Contract.REPLAYS)
    assert isinstance(answer, Reply)
    assert (answer.status, answer.retry_after_s) == (409, 1)
    time.sleep(0.8)
    assert effects(receiver) == 1


def test_thirty_two_callers_with_one_key_make_one_effect(start: Start) -> None:
    receiver = start()
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: send(receiver, Contract.REPLAYS), range(32)))
    assert {answer.status for answer in answers if isinstance(answer, Reply)} == {201}
    assert len({answer.body["id"] for answer in answers if isinstance(answer, Reply)}) == 1
    assert effects(receiver) == 1


@pytest.mark.parametrize("contract", Contract)
def test_a_declined_call_is_declined_each_time_and_has_no_effect(start: Start, contract: Contract) -> None:
    receiver = start("decline=1")
    for _ in range(2):
        answer = send(receiver, contract)
        assert isinstance(answer, Reply)
        assert (answer.status, answer.body["error"]["code"]) == (402, "declined_by_receiver")
    assert effects(receiver) == 0


@pytest.mark.parametrize("contract", ASKABLE)
def test_a_refusal_whose_reply_was_lost_can_be_looked_up(start: Start, contract: Contract) -> None:
    receiver = start("decline=1,cut=1")
    assert send(receiver, contract) == NoReply("connection_reset", sent=True)
    assert seen(receiver, contract) == ["failed"]


@pytest.mark.parametrize("contract", ASKABLE)
def test_a_blind_look_up_is_answered_503(start: Start, contract: Contract) -> None:
    receiver = start("blind=1")
    send(receiver, contract)
    assert look(receiver, contract).status_code == 503
    by_key = f"{receiver.base_url_of(contract)}/effects/by-key/k1"
    assert httpx.get(by_key, trust_env=False).status_code == 503


@pytest.mark.parametrize("contract", ASKABLE)
def test_an_effect_is_found_by_key_by_reference_and_by_operation(start: Start, contract: Contract) -> None:
    receiver = start()
    answer = send(receiver, contract)
    send(receiver, contract, key="k2", name="t:2")
    assert isinstance(answer, Reply)
    for query in ({"client_reference": "ref-t:1"}, {"operation_id": "t:1"}, {"idempotency_key": "k1"}):
        assert look(receiver, contract, **query).json()["data"] == [answer.body], query
    by_key = httpx.get(f"{receiver.base_url_of(contract)}/effects/by-key/k1", trust_env=False)
    assert by_key.json() == answer.body


def test_one_contracts_effects_are_not_shown_by_another(start: Start) -> None:
    receiver = start()
    send(receiver, Contract.REPLAYS)
    send(receiver, Contract.OPAQUE, name="t:2")
    assert look(receiver, Contract.READABLE).json()["data"] == []


def test_pages_followed_to_the_end_hold_everything_once(start: Start) -> None:
    receiver = start()
    made = []
    for n in range(7):
        answer = send(receiver, Contract.READABLE, name=f"t:{n}")
        assert isinstance(answer, Reply)
        made.append(answer.body["id"])
    page = look(receiver, Contract.READABLE, limit="3", tool="refund").json()
    found = [item["id"] for item in page["data"]]
    while page["has_more"]:
        page = httpx.get(page["next_url"], trust_env=False).json()
        found += [item["id"] for item in page["data"]]
    assert found == made
    assert page["next_url"] is None


def test_the_header_that_names_a_call_changes_no_answer(start: Start) -> None:
    receiver = start()
    url = f"{receiver.base_url_of(Contract.REPLAYS)}/tools/refund"
    answers = [
        httpx.post(
            url,
            json={"arguments": {}},
            headers={"Idempotency-Key": "same", "Rehearsal-Call": name},
            trust_env=False,
        )
        for name in ("t%3A1", "t%3A2")
    ]
    assert answers[0].json() == answers[1].json()


def test_the_ledger_file_survives_a_killed_receiver(tmp_path: Path) -> None:
    ledger = tmp_path / "l.sqlite"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "reconciliation.rehearsal.sandbox",
            "--ledger",
            str(ledger),
            "--faults",
            "cut=1",
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    base_url = json.loads(process.stdout.readline())["base_url"]
    call = Call(line=1, task="t", step="1", tool="refund", arguments="{}", name="t:1")
    Errand(call, Contract.OPAQUE, f"{base_url}/opaque/v1", TIMEOUT_S).send(key="k")
    process.kill()
    process.wait()
    process.stdout.close()
    assert truth.read(ledger)["t:1"].effects == 1


def test_a_receiver_ends_with_its_starter(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "reconciliation.rehearsal.sandbox"),
            *("--ledger", str(tmp_path / "l.sqlite"), "--stop-on-eof"),
        ],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_receiver_that_cannot_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "l.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(SandboxFailed, match="code 1"):
        Sandbox(tmp_path / "l.sqlite", faults=FaultSpec.parse("none"), seed=0)


def test_truth_is_not_read_from_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        truth.read(tmp_path / "missing.sqlite")


def seed_where(wanted: list[str | None], *, call: str = "t:1") -> int:
    """A seed under which the arrivals of ``call`` meet exactly these faults, each at a rate of one half."""
    name = next(fault for fault in wanted if fault)
    spec = FaultSpec.parse(f"{name}=0.5")
    return next(
        seed
        for seed in range(10_000)
        if [Plan(spec, seed).fault_of(call, n) for n in range(1, len(wanted) + 1)] == wanted
    )

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from reconciliation.rehearsal import truth
from reconciliation.rehearsal.baselines import TRIES, Policy, Retrying
from reconciliation.rehearsal.calls import Call, Contract
from reconciliation.rehearsal.faults import Fault, FaultSpec, Plan
from reconciliation.rehearsal.players import Claim, Errand, Played, play_all
from reconciliation.rehearsal.receivers import Sandbox

Start = Callable[..., Sandbox]
# Pauses of a fifth: tries at 0, 0.1 and, where the receiver asks for a second, 0.3 s; a late effect lands in between.
TIMINGS = "slow_s=0.8,late_s=0.2"


def briefly(seconds: float) -> None:
    time.sleep(seconds / 5)


def errand(receiver: Sandbox, contract: Contract, *, task: str = "t", step: int = 1) -> Errand:
    call = Call(line=1, task=task, step=str(step), tool="refund", arguments="{}", name=f"{task}:{step}")
    return Errand(call, contract, receiver.base_url_of(contract), timeout_s=0.5)


def first_arrival_only(fault: Fault) -> int:
    """A seed under which the first arrival meets the fault and the two after it are answered properly."""
    spec = FaultSpec.parse(f"{fault}=0.4")
    wanted = [fault, None, None]
    return next(s for s in range(1000) if [Plan(spec, s).fault_of("t:1", n) for n in (1, 2, 3)] == wanted)


def once(start: Start, fault: Fault) -> Sandbox:
    return start(f"{fault}=0.4,{TIMINGS}", seed=first_arrival_only(fault))


R, L, O = Contract.REPLAYS, Contract.READABLE, Contract.OPAQUE  # noqa: E741
CACHED, STABLE, REVALIDATING = Policy
# The faults after which an effect exists, or will: on which contracts each policy makes a second one.
SECOND_EFFECT: dict[Policy, set[Contract]] = {CACHED: {R, L, O}, STABLE: {L, O}, REVALIDATING: {L, O}}
TOOK_EFFECT = [Fault.CUT, Fault.SLOW, Fault.LATE, Fault.SERVER_ERROR_AFTER]


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("fault", TOOK_EFFECT)
def test_a_retry_after_a_lost_reply_makes_a_second_effect_unless_the_receiver_replays(
    start: Start, policy: Policy, contract: Contract, fault: Fault
) -> None:
    receiver = once(start, fault)
    account = Retrying(policy, sleep=briefly).play(errand(receiver, contract))
    receiver.stop()
    doubled = contract in SECOND_EFFECT[policy]
    assert truth.read(receiver.ledger)["t:1"].effects == (2 if doubled else 1)
    assert account.claim is Claim.COMPLETED
    # While a late effect is on its way its key is in progress: a second, guaranteed try is answered with 409.
    assert account.dispatches == (3 if fault is Fault.LATE and not doubled else 2)
    assert account.blind_dispatches == (1 if doubled else 0)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.SERVER_ERROR_BEFORE])
def test_a_retry_that_happens_to_be_right_was_still_blind(start: Start, policy: Policy, fault: Fault) -> None:
    receiver = once(start, fault)
    account = Retrying(policy, sleep=briefly).play(errand(receiver, L))
    receiver.stop()
    assert truth.read(receiver.ledger)["t:1"].effects == 1
    assert (account.claim, account.blind_dispatches) == (Claim.COMPLETED, 1)


@pytest.mark.parametrize("policy", Policy)
def test_a_player_that_used_up_its_tries_denies_effects_that_exist(start: Start, policy: Policy) -> None:
    receiver = start("cut=1")
    account = Retrying(policy, sleep=briefly).play(errand(receiver, L))
    receiver.stop()
    assert truth.read(receiver.ledger)["t:1"].effects == account.dispatches == TRIES
    assert account.claim is Claim.DENIED


@pytest.mark.parametrize("policy", Policy)
def test_a_refusal_ends_it(start: Start, policy: Policy) -> None:
    receiver = start("decline=1")
    account = Retrying(policy, sleep=briefly).play(errand(receiver, R))
    assert (account.claim, account.reason, account.dispatches) == (Claim.DENIED, "declined_by_receiver", 1)


def test_only_the_revalidating_player_stops_when_its_authority_is_gone(start: Start) -> None:
    for policy in Policy:
        receiver = once(start, Fault.LOST)
        answers = iter([True, False])
        account = Retrying(policy, permitted=lambda _, answers=answers: next(answers), sleep=briefly).play(
            errand(receiver, L)
        )
        receiver.stop()
        stopped = policy is REVALIDATING
        assert account.claim is (Claim.DENIED if stopped else Claim.COMPLETED), policy
        assert truth.read(receiver.ledger)["t:1"].effects == (0 if stopped else 1), policy


class Recorder:
    """Notes when each call begins and ends."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def play(self, errand: Errand) -> Played:
        with self._lock:
            self.log.append(("begins", errand.call.name))
        time.sleep(0.01)
        with self._lock:
            self.log.append(("ends", errand.call.name))
        return Played(errand.call, errand.contract, Claim.COMPLETED)


def test_calls_of_one_task_follow_one_another_and_answers_keep_the_order(start: Start) -> None:
    receiver = start()
    errands = [errand(receiver, L, task=task, step=step) for step in range(5) for task in "abcd"]
    recorder, shown = Recorder(), []
    accounts = play_all(recorder, errands, threads=3, show=shown.append)
    assert [account.call for account in accounts] == [e.call for e in errands]
    assert shown == list(range(1, 21))
    for task in "abcd":
        mine = [entry for entry in recorder.log if entry[1].startswith(task)]
        assert mine == [(what, f"{task}:{step}") for step in range(5) for what in ("begins", "ends")]


def test_a_player_that_breaks_stops_the_rehearsal(start: Start) -> None:
    class Broken:
        def play(self, errand: Errand) -> Played:
            raise RuntimeError("out of paper")

    with pytest.raises(RuntimeError, match="out of paper"):
        play_all(Broken(), [errand(start(), L)], threads=2, show=lambda _: None)

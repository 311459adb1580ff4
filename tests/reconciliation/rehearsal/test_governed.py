"""The governed runtime against a real web server and a real receiver: what needs no look-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from reconciliation.rehearsal import truth
from reconciliation.rehearsal.calls import Call, Contract
from reconciliation.rehearsal.players import Claim, Errand, SettledBy
from reconciliation.rehearsal.receivers import Sandbox
from reconciliation.rehearsal.runtime import Governed, Service
from tests.arrange import OPAQUE, Arranged

Start = Callable[..., Sandbox]
CAPABILITY = "refund.opaque"


@pytest.fixture
def player(live: str, workspace: Arranged) -> Iterator[Governed]:
    workspace.capability(CAPABILITY, contract=OPAQUE, lease_s=10)
    service = Service(live, workspace.token)
    yield Governed(service, _OneCapability(), patience_s=4)
    service.close()


class _OneCapability(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return CAPABILITY


def errand(receiver: Sandbox, *, step: int = 1, arguments: str = '{"order": "o-1"}') -> Errand:
    call = Call(line=step, task="t", step=str(step), tool="refund", arguments=arguments, name=f"t:{step}")
    return Errand(call, Contract.OPAQUE, receiver.base_url_of(Contract.OPAQUE), timeout_s=1.0)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"n": 0.1000000000000000055511151231257827}', "malformed"),
        ('{"n": 9007199254740993}', "malformed"),
        ('{"n": 1e400}', "malformed"),
        ('{"amount": 10, "amount": 1000}', "malformed"),
        ('{"s": "\\ud800"}', "malformed"),
        ('{"s": "' + "x" * 300_000 + '"}', "too-large"),
    ],
)
# C18, C84, C85
def test_what_the_service_refuses_is_not_dispatched(
    start: Start, player: Governed, arguments: str, code: str
) -> None:
    receiver = start()
    account = player.play(errand(receiver, arguments=arguments))
    receiver.stop()
    assert (account.claim, account.dispatches) == (Claim.REFUSED, 0)
    assert str(account.reason).startswith(f"{code}: ")
    assert truth.read(receiver.ledger) == {}


def test_a_call_that_is_answered_is_completed_on_record(
    start: Start, player: Governed, workspace: Arranged
) -> None:
    receiver = start()
    account = player.play(errand(receiver))
    receiver.stop()
    assert (account.claim, account.dispatches, account.settled_by) == (Claim.COMPLETED, 1, None)
    assert truth.read(receiver.ledger)["t:1"].effects == 1
    assert workspace.row("t:1").receiver_reference == "ef_000001"


def test_a_declined_call_is_denied_with_its_reason(
    start: Start, player: Governed, workspace: Arranged
) -> None:
    account = player.play(errand(start("decline=1")))
    assert (account.claim, account.reason, account.dispatches) == (Claim.DENIED, "denied", 1)
    assert workspace.row("t:1").denial_reason == "declined_by_receiver"


@pytest.mark.parametrize("fault", ["cut", "lost", "late", "5xx_after", "5xx_before"])
# C01, C35
def test_an_unclear_outcome_is_not_sent_again_and_waits_for_a_person(
    start: Start, player: Governed, fault: str
) -> None:
    receiver = start(f"{fault}=1,late_s=0.2")
    account = player.play(errand(receiver))
    receiver.stop()
    assert (account.claim, account.dispatches) == (Claim.UNKNOWN, 1)
    assert account.settled_by is SettledBy.PERSON_NEEDED
    assert player.left == 0
    assert truth.read(receiver.ledger)["t:1"].arrivals == 1


# C30
def test_two_equal_calls_are_two_effects(start: Start, player: Governed) -> None:
    receiver = start()
    accounts = [player.play(errand(receiver, step=step)) for step in (1, 2)]
    receiver.stop()
    assert [account.claim for account in accounts] == [Claim.COMPLETED] * 2
    assert sum(t.effects for t in truth.read(receiver.ledger).values()) == 2


def test_an_equal_call_is_held_while_the_first_is_unknown(start: Start, player: Governed) -> None:
    receiver = start("cut=1")
    first, second = (player.play(errand(receiver, step=step)) for step in (1, 2))
    receiver.stop()
    assert first.claim is Claim.UNKNOWN
    assert (second.claim, second.reason, second.dispatches) == (
        Claim.NOT_DISPATCHED,
        "possible_duplicate",
        0,
    )
    assert "t:2" not in truth.read(receiver.ledger)


def test_a_receiver_that_is_down_is_tried_again_without_haste(start: Start, player: Governed) -> None:
    receiver = start()
    receiver.stop()
    began = time.monotonic()
    account = player.play(errand(receiver))
    assert time.monotonic() - began < 15
    assert account.claim is Claim.DENIED  # nothing was sent, and the record says so
    assert 2 <= account.dispatches <= 8
    assert account.blind_dispatches == 0
    assert player.left == 1

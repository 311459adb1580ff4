"""Many runtimes at once, doing anything in any order, on the same few operations: nothing breaks, nothing is lost."""

from __future__ import annotations

import itertools
import random
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ledger import tenancy
from ledger.models import Attempt, Entry, Invocation, Reservation
from ledger.services import expire_leases
from ledger.states import AttemptState, State, fold
from tests.arrange import (
    COMPLETED,
    DECLINED,
    NOT_SENT,
    REPLAYS,
    UNKNOWN,
    Agent,
    Arranged,
    nonce,
    over_http,
)

RUNTIMES = 6
STEPS = 40
NAMES = [f"op-{number}" for number in range(12)]


class Erratic:
    """A runtime that does not obey: it asks, reports, withdraws and supersedes whatever it likes."""

    def __init__(self, agent: Agent, workspace: Arranged, seed: str) -> None:
        self.agent, self.workspace = agent, workspace
        self.chance = random.Random(seed)
        self.nonces = [nonce() for _ in range(3)]
        self.answers: Counter[int] = Counter()
        self.permits: list[tuple[str, int, str]] = []
        self.errors: list[Any] = []

    def run(self) -> None:
        for _ in range(STEPS):
            answer = self.step()
            self.answers[answer.status_code] += 1
            body = answer.json()
            # A lock that is not had in time, on a machine that is too busy, is said so and may be asked again.
            if answer.status_code >= 500 and not body["repeat_request"]:
                self.errors.append(body)
            for one in body.get("operations", [body]):
                told = one.get("body", one)
                permit = told.get("permit")
                if permit is not None:
                    self.permits.append((told["operation_id"], permit["attempt"], permit["token"]))

    def step(self) -> Any:
        name, number = self.chance.choice(NAMES), self.chance.choice([1, 1, 1, 2, 2, 3])
        shown = self.chance.choice(self.nonces)
        match self.chance.choice(
            ["put", "put", "ask", "ask", "ask", "report", "report", "withdraw", "get", "batch", "task"]
        ):
            case "put":
                return self.agent.put_intent(name, self.intent(name), nonce=shown)
            case "ask":
                return self.agent.ask(name, number, nonce=shown)
            case "report":
                report = self.chance.choice([COMPLETED, DECLINED, NOT_SENT, NOT_SENT, NOT_SENT, UNKNOWN])
                if self.permits and self.chance.random() < 0.9:  # mostly on what it was permitted
                    name, number, token = self.chance.choice(self.permits[-4:])
                    return self.agent.report(name, number, report, permit_token=token)
                return self.agent.report(name, number, UNKNOWN, nonce=self.chance.choice([shown, None]))
            case "withdraw":
                return self.agent.withdraw(name)
            case "get":
                return self.agent.get(name)
            case "task":
                return self.agent.call("GET", "/api/v1/tasks/task-1")
        names = self.chance.sample(NAMES, 3)
        items = [{"operation_id": one, "permit_nonce": shown, **self.intent(one)} for one in names]
        return self.agent.call("POST", "/api/v1/operations:batch", {"operations": items})

    def intent(self, name: str) -> dict[str, Any]:
        # Some share arguments or a reference with another, and some supersede another.
        place = NAMES.index(name)
        return self.workspace.intent(
            arguments={"n": place % 7},
            business_reference=f"order-{place % 5}",
            supersedes=NAMES[place - 4] if place >= 8 else None,
            dispatch=self.chance.random() < 0.5,
        )


def test_whatever_runtimes_do_at_once_the_record_stays_whole(live: str, workspace: Arranged) -> None:
    workspace.capability(contract={**REPLAYS, "lookup": "none"}, verified=True, lease_s=2)
    seed = secrets.token_hex(8)
    print(f"seed {seed}")
    runtimes = [
        Erratic(over_http(live, workspace.token), workspace, f"{seed}/{number}") for number in range(RUNTIMES)
    ]

    with ThreadPoolExecutor(RUNTIMES) as pool:
        for running in [pool.submit(runtime.run) for runtime in runtimes]:
            running.result(timeout=120)
    expire_leases(limit=1000)

    assert [error for runtime in runtimes for error in runtime.errors] == []
    answers = sum((runtime.answers for runtime in runtimes), Counter[int]())
    assert answers.keys() <= {200, 201, 404, 409, 503}, answers
    assert answers[201] > 0
    # One permit per attempt, whoever holds it: the same token for every hand-out of it.
    tokens: dict[tuple[str, int], set[str]] = {}
    for name, number, token in (permit for runtime in runtimes for permit in runtime.permits):
        tokens.setdefault((name, number), set()).add(token)
    assert tokens
    assert all(len(given) == 1 for given in tokens.values()), "a permit is one statement"
    with tenancy.workspace(workspace.id):
        for row in Invocation.objects.filter(workspace_id=workspace.id):
            _is_whole(row, tokens)


def _is_whole(row: Invocation, tokens: dict[tuple[str, int], set[str]]) -> None:
    attempts = list(Attempt.objects.filter(invocation_id=row.id).order_by("number"))
    entries = list(Entry.objects.filter(invocation_id=row.id).order_by("position"))
    assert [one.number for one in attempts] == list(range(1, row.attempt_count + 1))
    assert {number for name, number in tokens if name == row.operation_id} <= {one.number for one in attempts}
    assert sum(one.state == AttemptState.OPEN for one in attempts) <= 1
    assert [entry.position for entry in entries] == list(range(1, row.version + 1)), (
        "no step without its entry"
    )
    steps = [(entry.from_state, entry.to_state) for entry in entries]
    assert all(after[0] == before[1] for before, after in itertools.pairwise(steps))
    assert steps[-1][1] == row.state
    states = [AttemptState(one.state) for one in attempts]
    shown_otherwise = any(entry.event == "complete" and "why" in entry.detail for entry in entries)
    if row.state == State.COMPLETED:
        assert AttemptState.COMPLETED in states or shown_otherwise
    elif row.standing == "none" and row.state not in (State.INTENDED, State.WITHDRAWN) and attempts:
        assert fold(states) == row.state
    if row.state == State.WITHDRAWN:
        assert AttemptState.LOST not in {one.state for one in attempts}
    held = Reservation.objects.filter(invocation_id=row.id).exists()
    assert held is (row.state in (State.DISPATCHED, State.UNKNOWN))

"""An honest runtime: plays calls through the service's REST API and obeys nothing but its decisions.

For each call:

1. the operation ID comes from the recording's task and step, never from the model or the arguments;
2. the intent is put with ``dispatch: true`` and a nonce that lives in this call's memory only;
3. with a permit in hand the request goes to the receiver, under the permit's idempotency key, within the lease;
4. the answer is classified and reported, under the same nonce;
5. while the outcome is unknown the receiver is asked through the service, and the service's word awaited;
6. what happens next is the decision's ``action``, whatever the runtime may believe.

A lost reply of the *service* is repeated with the same nonce: every call of the API is safe to repeat.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from .players import Claim, Errand, Played, SettledBy
from .sending import Outcome, Report, classify

SUBJECT = "agent:rehearsal"
# What one wait of the service may last (it caps at 20), and one look-up made at our request (it caps at 30).
WAIT_S, ASK_S = 5, 5
# Longest answer of the service: a wait, and something for a busy machine.
SERVICE_TIMEOUT_S = WAIT_S + 25.0
# Repeats of one call to the service whose reply was lost or which said to come again.
REPEATS = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 3.0

FINAL = frozenset({"resume", "stop"})


class ServiceFailed(RuntimeError):
    """The service could not be reached, or answered something its API does not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The service's answer: ``body`` is an operation's body, or a problem."""

    status: int
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        return self.status < 400


class Service:
    """The service's API, as far as a runtime needs it. Threads may share one."""

    def __init__(self, base_url: str, token: str) -> None:
        self._client = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=SERVICE_TIMEOUT_S,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=2.0),
            trust_env=False,
        )

    def close(self) -> None:
        self._client.close()

    def record_intent(self, operation_id: str, content: bytes, *, nonce: str) -> Answer:
        return self._call("PUT", self._path(operation_id), content=content, nonce=nonce)

    def read(self, operation_id: str, *, wait_s: int = 0, since: int | None = None) -> Answer:
        asked = {"wait": str(wait_s), "since": str(since)} if wait_s and since is not None else {}
        return self._call("GET", self._path(operation_id), query=asked)

    def ask_permit(self, operation_id: str, attempt: int, *, nonce: str) -> Answer:
        return self._call("PUT", self._path(operation_id, f"attempts/{attempt}"), content=b"{}", nonce=nonce)

    def report(self, operation_id: str, attempt: int, body: Mapping[str, Any], *, nonce: str) -> Answer:
        path = self._path(operation_id, f"attempts/{attempt}/outcome")
        return self._call("PUT", path, content=json.dumps(body).encode(), nonce=nonce)

    def reconcile(self, operation_id: str) -> Answer:
        content = json.dumps({"timeout_s": ASK_S}).encode()
        return self._call("POST", self._path(operation_id, "reconcile"), content=content)

    @staticmethod
    def _path(operation_id: str, rest: str = "") -> str:
        return f"/api/v1/operations/{quote(operation_id, safe=':@+=~')}" + (f"/{rest}" if rest else "")

    def _call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        nonce: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """One call, repeated while the reply is lost or the service says that repeating helps.

        Raises ServiceFailed when it does not help.
        """
        headers = {} if content is None else {"Content-Type": "application/json"}
        if nonce is not None:
            headers["Permit-Nonce"] = nonce
        trouble = ""
        for repeat in range(REPEATS):
            if repeat:
                time.sleep(min(FIRST_PAUSE_S * 2**repeat, LONGEST_PAUSE_S))
            try:
                response = self._client.request(method, path, content=content, headers=headers, params=query)
                body = response.json()
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
                continue
            except ValueError:
                trouble = f"status {response.status_code} with a body that is not JSON"
                continue
            if not isinstance(body, dict):
                raise ServiceFailed(f"{method} {path}: status {response.status_code} with no object")
            if response.status_code == 429 or response.status_code >= 500:
                # Whatever went wrong over there, every call is safe to repeat. An outcome that could not be written
                # is repeated too; it is the request to the receiver that is not sent again.
                trouble = f"status {response.status_code}: {body.get('code')} {body.get('detail') or ''}"
                continue
            return Answer(response.status_code, body)
        raise ServiceFailed(f"{method} {path}: {trouble} ({REPEATS} times)")


@dataclass(slots=True)
class Followed:
    """What this runtime knows of one operation. ``unknown``: its outcome is unknown now, as far as was seen."""

    errand: Errand
    operation_id: str
    body: Mapping[str, Any]
    account: Played
    unknown: bool = False
    person_needed: bool = False

    @property
    def decision(self) -> Mapping[str, Any]:
        decision: Mapping[str, Any] = self.body["decision"]
        return decision

    @property
    def action(self) -> str:
        return str(self.decision["action"])

    @property
    def reason(self) -> str:
        return str(self.decision["reason"])


@dataclass(slots=True)
class Governed:
    """Plays calls through the service.

    ``tag`` tells the operations of one run from those of another in the same workspace. ``patience_s`` is how long a
    call is followed before the task goes on to its next one; ``settle`` follows what was left behind.
    """

    service: Service
    capability_of: Mapping[str, str]  # by call name
    tag: str = ""
    patience_s: float = 20.0
    _left: dict[str, Followed] = field(default_factory=dict)
    _waiting_for_a_person: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def play(self, errand: Errand) -> Played:
        operation_id = f"{errand.call.name}{self.tag}"
        account = Played(errand.call, errand.contract, Claim.NOT_DISPATCHED, operation_id=operation_id)
        nonce = secrets.token_urlsafe(24)
        asked_at = time.monotonic()
        answer = self.service.record_intent(operation_id, self._intent(errand), nonce=nonce)
        if not answer.ok:
            account.claim = Claim.REFUSED
            account.reason = f"{answer.body.get('code')}: {answer.body.get('detail')}"
            return account
        followed = Followed(errand, operation_id, answer.body, account)
        self._note(followed)
        self._use_permit(followed, nonce=nonce, asked_at=asked_at, grounds="intent_recorded")
        if not self._follow(followed, until=time.monotonic() + self.patience_s):
            with self._lock:
                self._left[operation_id] = followed
        self._claim(followed)
        return account

    @property
    def left(self) -> int:
        """How many operations have been left behind without an end."""
        return len(self._left)

    def settle_one(self, operation_id: str, *, until: float) -> bool:
        """Follow an operation that was left behind. Returns whether it has come to its end, or to a person."""
        followed = self._left[operation_id]
        ended = self._follow(followed, until=until)
        self._claim(followed)
        if ended:
            with self._lock:
                self._left.pop(operation_id, None)
        return ended

    def left_behind(self) -> list[str]:
        with self._lock:
            return list(self._left)

    def read_again(self, account: Played) -> None:
        """Bring an account to what the record says now: it is the record that is checked, not a memory of it."""
        if account.claim is Claim.REFUSED or account.operation_id is None:
            return
        body = self._read(account.operation_id).body
        account.claim = claim_of(body)
        account.flags = tuple(body["case"]["flags"])
        if (
            account.settled_by in (SettledBy.PERSON_NEEDED, SettledBy.STILL_ASKED)
            and body["state"] != "unknown"
        ):
            account.settled_by = settled_by(body)

    def _intent(self, errand: Errand) -> bytes:
        operation_id = f"{errand.call.name}{self.tag}"
        rest = {
            "task_id": f"{errand.call.task_name}{self.tag}",
            "capability": self.capability_of[errand.call.name],
            "actor": {"subject": SUBJECT},
            "business_reference": operation_id,
            "checkpoint": {"line": errand.call.line},
            "dispatch": True,
        }
        # The arguments go in as they were written: parsing and printing them here could repair what must be refused.
        return f'{json.dumps(rest)[:-1]}, "arguments": {errand.call.arguments}}}'.encode(
            "utf-8", "surrogatepass"
        )

    def _read(self, operation_id: str, *, wait_s: int = 0, since: int | None = None) -> Answer:
        answer = self.service.read(operation_id, wait_s=wait_s, since=since)
        if not answer.ok:
            raise ServiceFailed(f"GET {operation_id}: {answer.status} {answer.body.get('code')}")
        return answer

    def _follow(self, followed: Followed, *, until: float) -> bool:
        """Do what the decisions say until one is final. False: ``until`` came first."""
        while followed.action not in FINAL:
            if self._waits_for_a_person(followed):
                return True
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            if followed.action in ("dispatch", "retry"):
                self._attempt(followed)
                continue
            if followed.action == "reconcile":
                self._reconcile(followed)
                if followed.person_needed or followed.action not in ("wait", "reconcile"):
                    continue
            self._await_change(followed, left_s=left_s)
        return True

    def _attempt(self, followed: Followed) -> None:
        """Ask for the next attempt's permit, and use it if it is given. Permitted is not hurried: pauses grow."""
        number, grounds = followed.decision["next_attempt"], followed.reason
        if number > 1:
            time.sleep(min(FIRST_PAUSE_S * 2 ** (number - 2), LONGEST_PAUSE_S))
        nonce = secrets.token_urlsafe(24)
        asked_at = time.monotonic()
        answer = self.service.ask_permit(followed.operation_id, number, nonce=nonce)
        if not answer.ok:
            self._look(followed, self._read(followed.operation_id).body)
            return
        self._look(followed, answer.body)
        self._use_permit(followed, nonce=nonce, asked_at=asked_at, grounds=grounds)

    def _use_permit(self, followed: Followed, *, nonce: str, asked_at: float, grounds: str) -> None:
        """Send what is permitted, once, and report how it went. Without a permit in the body nothing is sent."""
        permit = followed.body.get("permit")
        if not permit:
            return
        earlier = [a for a in followed.body["attempts"] if a["number"] < permit["attempt"]]
        if time.monotonic() - asked_at >= permit["lease_s"]:
            report = Report(Outcome.NOT_SENT, {"outcome": Outcome.NOT_SENT, "fault": "never_attempted"})
        else:
            followed.account.dispatches += 1
            proven = all(a["state"] in ("denied", "not_sent") for a in earlier)
            followed.account.blind_dispatches += not proven and grounds != "receiver_replays"
            report = classify(
                followed.errand.send(
                    key=permit["idempotency_key"],
                    operation_id=followed.operation_id,
                    reference=followed.body.get("business_reference"),
                )
            )
        answer = self.service.report(followed.operation_id, permit["attempt"], report.body, nonce=nonce)
        body = answer.body if answer.ok else self._read(followed.operation_id).body
        self._look(followed, body)

    def _reconcile(self, followed: Followed) -> None:
        answer = self.service.reconcile(followed.operation_id)
        if not answer.ok:
            self._look(followed, self._read(followed.operation_id).body)
            return
        self._look(followed, answer.body["operation"])
        if followed.action == "reconcile":
            followed.person_needed = followed.body["operator_only"] or escalated(answer.body["verdict"])

    def _await_change(self, followed: Followed, *, left_s: float) -> None:
        wait_s = max(1, min(WAIT_S, int(left_s)))
        began = time.monotonic()
        answer = self._read(followed.operation_id, wait_s=wait_s, since=followed.body["version"])
        same = answer.body["version"] == followed.body["version"]
        self._look(followed, answer.body)
        if same and time.monotonic() - began < FIRST_PAUSE_S:
            # The service may answer at once (too many are waiting); asking again without a pause would not help it.
            time.sleep(1.0)

    def _waits_for_a_person(self, followed: Followed) -> bool:
        """Whether nothing but a person moves this on: nothing to ask, or a twin for which that is so."""
        twins = {t if isinstance(t, str) else t["operation_id"] for t in followed.body["possible_duplicates"]}
        with self._lock:
            held = (
                followed.reason == "possible_duplicate"
                and bool(twins)
                and twins <= self._waiting_for_a_person
            )
            waits = held or (followed.action == "reconcile" and followed.person_needed)
            if waits:
                self._waiting_for_a_person.add(followed.operation_id)
        return waits

    def _look(self, followed: Followed, body: Mapping[str, Any]) -> None:
        followed.body = body
        self._note(followed)

    def _note(self, followed: Followed) -> None:
        """Note that an outcome is unknown, and by whom it was settled when it no longer is."""
        body, account = followed.body, followed.account
        if body["state"] == "unknown":
            followed.unknown = True
        elif followed.unknown:
            followed.unknown = False
            account.settled_by = settled_by(body)

    def _claim(self, followed: Followed) -> None:
        account = followed.account
        account.claim = claim_of(followed.body)
        account.reason = followed.reason
        account.flags = tuple(followed.body["case"]["flags"])
        if followed.unknown:
            person = followed.operation_id in self._waiting_for_a_person
            account.settled_by = SettledBy.PERSON_NEEDED if person else SettledBy.STILL_ASKED


def claim_of(body: Mapping[str, Any]) -> Claim:
    """What an operation's body holds to be true of the effect."""
    match body["state"]:
        case "completed":
            return Claim.COMPLETED
        case "denied":
            # Denied before any attempt means that nothing was sent, which is a different line of the report.
            return Claim.DENIED if body["attempts"] else Claim.NOT_DISPATCHED
        case "unknown" | "dispatched":
            return Claim.UNKNOWN
    return Claim.NOT_DISPATCHED


def settled_by(body: Mapping[str, Any]) -> SettledBy:
    """Who settled an operation's outcome, by its body."""
    source = (body.get("outcome") or {}).get("source")
    return SettledBy(source) if source in list(SettledBy) else SettledBy.RUNTIME


def escalated(verdict: Mapping[str, Any] | None) -> bool:
    """Whether a verdict hands the question to a person; None where nothing was asked."""
    return verdict is not None and verdict["kind"] == "escalate"

"""A runtime's loop. The README shows what follows these lines; tests/test_loop.py holds it to the record."""

import secrets
import time

import httpx


def perform(ledger: httpx.Client, operation_id: str, intent: dict, send, patience_s: float = 60) -> dict:
    """The operation, once its decision is final or patience is over. `send(permit)` makes one request to the
    receiver and returns what to report of it."""
    url, until = f"/api/v1/operations/{operation_id}", time.monotonic() + patience_s

    def call(method: str, path: str, nonce: str = "", body: dict | None = None) -> dict:
        headers = {"Permit-Nonce": nonce} if nonce else {}
        for pause_s in (0.2, 0.5, 1, 2, 5, 10):  # no answer, 429, 5xx: the same again, with the same nonce
            try:
                answer = ledger.request(method, path, json=body, headers=headers)
                if answer.status_code != 429 and answer.status_code < 500:
                    return answer.json()
            except httpx.TransportError:
                pass
            time.sleep(pause_s)
        raise RuntimeError("the ledger does not answer: dispatch nothing")

    nonce, asked_at = secrets.token_hex(16), time.monotonic()  # for this one ask, kept in memory only
    op = call("PUT", url, nonce, {**intent, "dispatch": True})
    while True:
        if permit := op.get("permit"):
            in_time = time.monotonic() - asked_at < permit["lease_s"]
            report = send(permit) if in_time else {"outcome": "not_sent", "fault": "never_attempted"}
            op = call("PUT", f"{url}/attempts/{permit['attempt']}/outcome", nonce, report)
        if "code" in op:  # a problem: a conflict is decided by the record, anything else is a mistake of ours
            if op["status"] != 409 or "decision" not in op:
                raise RuntimeError(f"{op['code']}: {op['detail']}")
            op = call("GET", url)
        action, attempt = op["decision"]["action"], op["decision"]["next_attempt"]
        if action in ("resume", "stop") or time.monotonic() > until:
            return op  # resume with op["outcome"]; stop; or come back later under the same operation ID
        if action in ("dispatch", "retry"):
            time.sleep(min(2**attempt / 20, 5))
            nonce, asked_at = secrets.token_hex(16), time.monotonic()
            op = call("PUT", f"{url}/attempts/{attempt}", nonce)
        else:  # wait or reconcile: a worker asks the receiver, or a person decides
            time.sleep(0.5)
            wait_s = max(0, min(20, until - time.monotonic()))
            op = call("GET", f"{url}?wait={wait_s:.0f}&since={op['version']}")


def sender(url: str, body: dict):
    """A `send` for a receiver that speaks JSON: one request on a connection of its own, and what its answer proves."""

    def send(permit: dict) -> dict:
        try:
            key = {"Idempotency-Key": permit["idempotency_key"]}
            answer = httpx.post(url, json=body, headers=key, timeout=10)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return {"outcome": "not_sent", "fault": "connection_refused"}
        except httpx.TransportError:
            return {"outcome": "unknown", "fault": "no_answer"}  # it may have arrived
        evidence = {"http_status": answer.status_code, "body": answer.text}
        if answer.is_success:
            return {"outcome": "completed", "receiver_reference": answer.json()["id"], "evidence": evidence}
        if answer.is_client_error:  # counts where the contract lists the status; anywhere else it is unknown
            return {"outcome": "denied", "evidence": evidence}
        return {"outcome": "unknown", "fault": f"http_{answer.status_code}", "evidence": evidence}

    return send

"""How a row differs from what a file asks for, and how that is told to people and to the audit trail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ledger.contracts import Contract
from ledger.models import Capability, Receiver
from ledger.provisioning.plan import NO_END, CapabilityPlan

SHOWN_LENGTH_MAX: Final = 60
"""Characters of a value that a difference shows; of a longer one only the name."""


def fixed(plan: CapabilityPlan, receiver: Receiver) -> dict[str, Any]:
    """What stands under an invocation for ever: a change of it is a new version."""
    return {
        "receiver": receiver,
        "risk": plan.risk,
        "lease_s": plan.lease_s,
        "intent_valid_s": plan.intent_valid_s,
        "max_attempts": plan.contract.max_attempts,
        "duplicates": plan.duplicates,
        "amount": plan.amount,
        "arguments_schema": plan.arguments_schema,
        "sensitive": list(plan.sensitive),
        "audit_sensitive": plan.audit_sensitive,
        "contract": plan.contract.as_json(),
        "approval": plan.approval,
    }


def free(plan: CapabilityPlan) -> dict[str, Any]:
    """What may change in place."""
    return {
        "summary": plan.summary,
        "reconciler": plan.reconciler,
        "matches_evidence": plan.matches_evidence,
    }


def differing(current: Capability, fixed: Mapping[str, Any], plan: CapabilityPlan) -> list[str]:
    """How the current version differs from the plan in what is fixed; empty: not at all."""
    told = []
    for name, value in fixed.items():
        before = getattr(current, name)
        if name == "contract":
            # Compared as contracts: a stored one lacks what a later release adds. Two people verified it, or not.
            before = {**Contract.parse(before).as_json(), "verified": value["verified"]}
            told += [
                told_change(f"contract.{key}", before[key], value[key])
                for key in value
                if not same(before[key], value[key])
            ]
        elif name != "max_attempts" and not same(before, value):
            told.append(told_change(name, before, value))
    if not same(_account_asked(current.reconciler), _account_asked(plan.reconciler)):
        told.append("reconciler.namespace")
    return told


def _account_asked(reconciler: Mapping[str, Any] | None) -> Any:
    """The account at the receiver that look-ups speak of. Asked of another one, every effect seems absent."""
    return (reconciler or {}).get("namespace")


def asks_alike(older: Capability, current: Capability) -> bool:
    return (
        older.receiver_id == current.receiver_id
        and older.contract.get("lookup") == current.contract.get("lookup")
        and same(_account_asked(older.reconciler), _account_asked(current.reconciler))
    )


def same(one: Any, other: Any) -> bool:
    """Whether two stored values are one: JSON by its text, so that ``true`` is not 1; the rest by equality."""
    if isinstance(one, dict | list | int | float) or isinstance(other, dict | list | int | float):
        return _spelled(one) == _spelled(other)
    return bool(one == other)


def _spelled(value: Any) -> str:
    """JSON text in which equal numbers are spelled alike."""

    def whole(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {key: whole(each) for key, each in inner.items()}
        if isinstance(inner, list):
            return [whole(each) for each in inner]
        return int(inner) if isinstance(inner, float) and inner.is_integer() else inner

    return json.dumps(whole(value), sort_keys=True)


def told_change(name: str, before: Any, after: Any) -> str:
    """``lease_s 60 → 90``; only the name where a value is long, structured or may hold what is not for a log."""
    shown = []
    for value in (before, after):
        if isinstance(value, datetime):
            value = moment_text(value)
        if isinstance(value, dict) or name == "headers" or len(text := _text(value)) > SHOWN_LENGTH_MAX:
            return name
        shown.append(text)
    return f"{name} {shown[0]} → {shown[1]}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "none" if value is None or value == "" else str(value)


def moment_text(moment: datetime) -> str:
    return "no end" if moment == NO_END else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

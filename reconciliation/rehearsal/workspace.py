"""The provision document of a rehearsal: a workspace in which every recorded tool is a capability.

Bounds are a few seconds, so that what is unknown settles while somebody watches; they are derived from the fault
specification's durations, because a contract that promises less than its receiver keeps is the one thing that no
ledger can make good.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .calls import Call, Contract
from .faults import FaultSpec
from .runtime import SUBJECT

RUNTIME = "rehearsal"
LEASE_S = 10
# Timers of a busy machine run late; the bounds promise what the receiver keeps even then.
MARGIN_S = 1.5
# The sandbox forgets no key while it runs; a day is longer than any rehearsal.
KEY_RETAINED_S = 86_400
# Comparing a handful of fields shows a diverged effect; comparing all of a long body shows nothing more.
FIELDS_COMPARED = 5

_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def capability_of(call: Call, contract: Contract) -> str:
    """The capability's name: the tool as the receiver of that contract offers it."""
    return f"{call.tool_name}.{contract}"


def is_rehearsed(capability: str) -> bool:
    """Whether a capability of this name is one that rehearsals make."""
    _, dot, contract = capability.rpartition(".")
    return bool(dot) and contract in set(Contract)


def document(
    *,
    workspace: str,
    calls: Iterable[Call],
    contracts: Mapping[str, Contract],
    base_url_of: Callable[[Contract], str],
    faults: FaultSpec,
    now: datetime,
) -> dict[str, Any]:
    """The document that ``manage.py provision`` reads, for these calls under these contracts (by call name)."""
    groups: dict[tuple[str, Contract], list[Call]] = {}
    for call in calls:
        contract = contracts[call.name]
        groups.setdefault((capability_of(call, contract), contract), []).append(call)
    used = sorted({contract for _, contract in groups})
    return {
        "workspace": workspace,
        "runtimes": [
            {
                "name": RUNTIME,
                "scopes": ["intent", "permit", "outcome", "reconcile", "read"],
                "capabilities": ["*"],
                "subjects": [SUBJECT],
            }
        ],
        "receivers": [
            {
                "name": f"sandbox-{contract}",
                "base_url": base_url_of(contract),
                "allow_private_addresses": True,
            }
            for contract in used
        ],
        "capabilities": [
            _capability(name, contract, group, faults) for (name, contract), group in sorted(groups.items())
        ],
        "mandates": [
            {
                "subject": SUBJECT,
                "capability": "*",
                "valid_until": (now.astimezone(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        ],
    }


def _capability(name: str, contract: Contract, calls: list[Call], faults: FaultSpec) -> dict[str, Any]:
    capability: dict[str, Any] = {
        "name": name,
        "receiver": f"sandbox-{contract}",
        "risk": "low",
        "lease_s": LEASE_S,
        "duplicates": "hold",
        "contract": _contract(contract, faults),
        "approval": {"required": False},
    }
    if contract is not Contract.OPAQUE:
        capability["reconciler"] = _reconciler(contract, calls)
    return capability


def _contract(contract: Contract, faults: FaultSpec) -> dict[str, Any]:
    bounds = {
        "in_flight_s": math.ceil(faults.late_s + MARGIN_S),
        "visibility_lag_s": math.ceil(faults.hidden_s),
    }
    match contract:
        case Contract.REPLAYS:
            return {
                **bounds,
                "deduplicates": "key",
                "key_carrier": "header Idempotency-Key",
                "key_retained_s": KEY_RETAINED_S,
                "key_claimed": "before_effect",
                "replays": "original",
                "lookup": "by_key",
            }
        case Contract.READABLE:
            return {**bounds, "deduplicates": "none", "lookup": "by_reference"}
        case Contract.OPAQUE:
            return {**bounds, "deduplicates": "none", "lookup": "none"}


def _reconciler(contract: Contract, calls: list[Call]) -> dict[str, Any]:
    asked_by = {
        Contract.REPLAYS: "idempotency_key={idempotency_key}",
        Contract.READABLE: "client_reference={business_reference}",
    }
    return {
        "kind": "http_lookup",
        "url": f"{{base_url}}/effects?{asked_by[contract]}",
        "items": "$.data[*]",
        "complete": {"path": "$.has_more", "equals": False},
        "next": "$.next_url",
        "attributed": {"path": "$.metadata.operation_id", "equals": "operation_id"},
        "reference": "$.id",
        "denial_reason": "$.failure_reason",
        "namespace": {"path": "$.account", "equals": f"sandbox-{contract}"},
        "status": {"path": "$.status", "completed": ["succeeded"], "denied": ["failed"]},
        "match": {f"$.arguments.{name}": f"/arguments/{name}" for name in _comparable(calls)},
    }


def _comparable(calls: list[Call]) -> list[str]:
    """Members of the arguments that are plain text in every one of these calls: what a look-up can compare."""
    common: set[str] | None = None
    for call in calls:
        arguments = call.parsed_arguments()
        members = arguments.items() if isinstance(arguments, dict) else ()
        texts = {name for name, value in members if isinstance(value, str) and _MEMBER.fullmatch(name)}
        common = texts if common is None else common & texts
    return sorted(common or ())[:FIELDS_COMPARED]

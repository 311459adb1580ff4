"""A capability of a provision file: its contract, its approval rule, and promises that nobody can make use of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ledger.contracts import Contract, ContractErrors, Deduplicates, Lookup
from ledger.decisions import REPLAY_MARGIN_S
from ledger.intake import CURRENCY
from ledger.provisioning import values
from ledger.provisioning.blocks import Block, Report
from ledger.provisioning.plan import CapabilityPlan, Checks

RISKS: Final = ("low", "medium", "high")
DUPLICATES: Final = ("hold", "flag", "off")

LEASE_LONGEST_S: Final = 86_400
"""A day: who has not begun to send by then is not sending."""

INTENT_LONGEST_S: Final = 366 * 86_400
APPROVERS_MOST: Final = 20
LOOKING_S: Final = 86_400
"""How long look-ups go on before a person is asked (the budget in the verdicts' table)."""

DEFAULT_LEASE_S: Final = 60
DEFAULT_INTENT_VALID_S: Final = 86_400
DEFAULT_APPROVAL_VALID_S: Final = 3_600

_CAPABILITY_KEYS: Final = (
    *("name", "receiver", "risk", "lease_s", "intent_valid_s", "duplicates", "amount", "summary"),
    *("arguments_schema", "sensitive", "contract", "reconciler", "approval"),
)
_UNREADABLE_CONTRACT: Final = Contract(deduplicates=Deduplicates.NONE, lookup=Lookup.NONE)


def capability(value: Any, path: str, checks: Checks, report: Report) -> CapabilityPlan:
    """The plan of one capability; what is wrong with it is reported in the order in which a file has it."""
    block = Block(value, path, _CAPABILITY_KEYS, report)
    name = block.require("name", values.name, "")
    receiver = block.require("receiver", values.name, "")
    risk = block.take("risk", values.one_of(RISKS), "medium")
    lease_s = block.take("lease_s", values.whole(1, LEASE_LONGEST_S), DEFAULT_LEASE_S)
    intent_valid_s = block.take("intent_valid_s", values.whole(1, INTENT_LONGEST_S), DEFAULT_INTENT_VALID_S)
    duplicates = block.take("duplicates", values.one_of(DUPLICATES), "hold")
    nothing: tuple[str, ...] = ()
    sensitive = block.take("sensitive", values.pointers, nothing)
    amount = _amount(block, sensitive)
    summary = block.take("summary", values.summary, "")
    arguments_schema = block.take("arguments_schema", values.schema, None)
    contract = _contract(block)
    reconciler = _reconciler(block, contract, checks)
    plan = CapabilityPlan(
        path=path,
        name=name,
        receiver=receiver,
        risk=risk,
        lease_s=lease_s,
        intent_valid_s=intent_valid_s,
        duplicates=duplicates,
        amount=amount,
        summary=summary,
        arguments_schema=arguments_schema,
        sensitive=() if "" in sensitive else sensitive,
        audit_sensitive="" in sensitive,
        contract=contract or _UNREADABLE_CONTRACT,
        approval=_approval(block, amount, risk),
        reconciler=reconciler,
    )
    if contract is not None:
        _weigh(plan, report)
    return plan


def _contract(block: Block) -> Contract | None:
    if not block.given("contract"):
        if block.usable:
            block.report.wrong(block.at("contract"), "is required")
        return None
    try:
        return Contract.parse(block.values["contract"], block.at("contract"), refuse_verified=True)
    except ContractErrors as found:
        for error in found.errors:
            block.report.wrong(error.path, error.why)
        return None


def _reconciler(block: Block, contract: Contract | None, checks: Checks) -> Mapping[str, Any] | None:
    value = block.take("reconciler", values.json_mapping, None)
    if value is not None:
        for below, why in checks.reconciler(value, contract or _UNREADABLE_CONTRACT):
            block.report.wrong(f"{block.path}.{below}", why)
    return value


def _weigh(plan: CapabilityPlan, report: Report) -> None:
    """Warns of promises that nothing uses, or that end before anybody could make use of them."""
    contract = plan.contract
    where = f"{plan.path}.contract"
    for warning in contract.warnings(where):
        report.warn(warning.path, warning.why)
    if contract.can_be_asked and plan.reconciler is None:
        report.warn(
            f"{where}.lookup", "nothing asks: without a reconciler each unknown outcome waits for a person"
        )
    if plan.reconciler is not None and not contract.can_be_asked:
        report.warn(
            f"{plan.path}.reconciler", f"nothing uses it: the contract says lookup: {contract.lookup}"
        )
    landing_s = plan.lease_s + contract.in_flight_s
    memory_s = contract.memory_s
    recovery_s = landing_s + contract.visibility_lag_s + LOOKING_S
    if contract.can_be_asked and memory_s and memory_s < recovery_s:
        report.warn(
            f"{where}.{'key_retained_s' if contract.lookup is Lookup.BY_KEY else 'lookup_reaches_back_s'}",
            f"the receiver remembers for {memory_s:g} s, and look-ups go on for {recovery_s:g} s: what is not settled "
            "by then waits for a person",
        )
    waits_s = plan.lease_s if contract.key_claimed_before_effect else landing_s
    needed_s = waits_s + landing_s + REPLAY_MARGIN_S
    if contract.replays_same_key and contract.key_retained_s and contract.key_retained_s <= needed_s:
        report.warn(
            f"{where}.key_retained_s",
            f"no repeat is ever guaranteed: after a lost reply a second sending ends up to {needed_s:g} s after the first "
            "permit",
        )


def _amount(block: Block, sensitive: Sequence[str]) -> Mapping[str, str] | None:
    if not block.given("amount"):
        return None
    inner = Block(block.values["amount"], block.at("amount"), ("value", "currency"), block.report)
    value = inner.require("value", values.argument, "")
    currency = inner.require("currency", values.currency_or_argument, "")
    for key, pointer in (("value", value), ("currency", currency)):
        below = pointer.removeprefix("/arguments")
        if pointer and any(below == hidden or below.startswith(f"{hidden}/") for hidden in sensitive):
            block.report.wrong(inner.at(key), "is sensitive: an amount stands on the record in clear")
    return {"value": value, "currency": currency}


_APPROVAL_KEYS: Final = ("required", "when", "above", "approvals", "valid_s", "step_up")


def _approval(block: Block, amount: Mapping[str, str] | None, risk: str) -> Mapping[str, Any]:
    """The whole rule. Never open by omission: no block is an error, and an empty one asks for approval."""
    if not block.given("approval") and block.usable:
        block.report.wrong(block.at("approval"), "is required; {required: false} asks nobody")
    rule = block.values["approval"] if block.given("approval") else {"required": False}
    inner = Block(rule, block.at("approval"), _APPROVAL_KEYS, block.report)
    never: list[dict[str, Any]] = []
    when = inner.take("when", values.conditions, never)
    above = _above(inner, amount)
    return {
        "required": inner.take("required", values.truth, not when and above is None),
        "when": when,
        "above": above,
        "approvals": inner.take("approvals", values.whole(1, APPROVERS_MOST), 1),
        "valid_s": inner.take("valid_s", values.whole(1, INTENT_LONGEST_S), DEFAULT_APPROVAL_VALID_S),
        "step_up": inner.take("step_up", values.truth, risk == "high"),
    }


def _above(inner: Block, amount: Mapping[str, str] | None) -> Mapping[str, Any] | None:
    """The threshold: ``{"amount": {"value": "1000.00", "currency": "EUR"}}``."""
    if not inner.given("above"):
        return None
    above = Block(inner.values["above"], inner.at("above"), ("amount",), inner.report)
    if above.usable and not above.given("amount"):
        inner.report.wrong(above.at("amount"), "is required")
        return {}
    limit = Block(above.values.get("amount"), above.at("amount"), ("value", "currency"), inner.report)
    value = limit.require("value", values.money, "")
    currency = limit.require("currency", values.currency, "")
    if amount is None:
        inner.report.wrong(inner.at("above"), "the capability does not say where its amount stands")
    elif currency and CURRENCY.fullmatch(amount["currency"]) and amount["currency"] != currency:
        inner.report.wrong(limit.at("currency"), f"the capability's amounts are in {amount['currency']}")
    return {"amount": {"value": value, "currency": currency}}

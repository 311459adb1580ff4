"""A document of plain values → a plan, or everything that is wrong with it, each fault with its path.

No database, no clock: the environment and the checks of those who ask receivers are arguments. The document's shape::

    workspace: acme                       # required
    members: [{email, roles: [viewer], password_env}]
    runtimes: [{name, scopes: all, capabilities: ["*"], subjects: ["*"], owner, token_env}]
    receivers: [{name, base_url, headers: {}, allow_private_addresses: false, callback_secret_env}]
    capabilities:
      - {name, receiver, risk: medium, lease_s: 60, intent_valid_s: 86400, duplicates: hold, amount, summary,
         arguments_schema, sensitive: [], contract: {…}, reconciler: {…}, approval: {…}}
    mandates: [{subject, capability, valid_until, limits: []}]      # or the word open

What stands after a colon is the default; what has none is optional, but for the names of things, a capability's
``receiver``, ``approval`` and ``contract``, and the ``base_url`` of a receiver that is asked.

* ``contract`` is ``ledger.contracts.Contract``'s, which also has its defaults; ``reconciler`` is the reconciler's own.
* ``approval``: {required, when: [], above, approvals: 1, valid_s: 3600, step_up}. ``required`` is true unless ``when``
  or ``above`` say when it is needed; ``step_up`` is true where the risk is high.
* ``sensitive`` holds JSON Pointers into the arguments; ``""``, the pointer to the whole, seals all of them.
* ``mandates``: one without ``valid_until`` has no end, and a warning.
* In patterns ``*`` stands for any characters, and the whole text must match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ledger import tokens
from ledger.contracts import Contract, ContractErrors, Deduplicates, Lookup
from ledger.decisions import REPLAY_MARGIN_S
from ledger.intake import CURRENCY, DECIMAL
from ledger.matching import is_pointer
from ledger.permissions import matches
from ledger.provisioning.plan import (
    NO_END,
    CapabilityPlan,
    Checks,
    MandatePlan,
    MemberPlan,
    Plan,
    Problem,
    ReceiverPlan,
    Refused,
    RuntimePlan,
)

ROLES: Final = ("viewer", "operator", "approver", "auditor", "admin")
SCOPES: Final = ("intent", "permit", "outcome", "reconcile", "escalate", "read")
RISKS: Final = ("low", "medium", "high")
DUPLICATES: Final = ("hold", "flag", "off")
OPERATORS: Final = (">", ">=", "<", "<=", "==", "!=", "in", "contains", "exists")
"""Of a condition in ``approval.when``. Source: Agent Capability Contract v1, ``approval.when``."""

ENTRIES_MAX: Final = 2_000
"""Of one list. More is a generated file that went wrong; the ledger itself has no such limit."""

DEPTH_MAX: Final = 64
"""Levels of nesting. A JSON Schema of an order has fewer than 20."""

VALUES_MAX: Final = 200_000
"""Values in one document, aliases counted each time: one kilobyte of YAML can stand for a billion of them."""

NAME_LENGTH_MAX: Final = 200
EMAIL_LENGTH_MAX: Final = 150
"""What a Django user name can hold."""

SUMMARY_LENGTH_MAX: Final = 500
LEASE_LONGEST_S: Final = 86_400
"""A day: who has not begun to send by then is not sending."""

INTENT_LONGEST_S: Final = 366 * 86_400
LOOKING_S: Final = 86_400
"""How long look-ups go on before a person is asked (the budget in the verdicts' table)."""

DEFAULT_LEASE_S: Final = 60
DEFAULT_INTENT_VALID_S: Final = 86_400
DEFAULT_APPROVAL_VALID_S: Final = 3_600

_WORKSPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME: Final = re.compile(r"[A-Za-z0-9._~:@+=/-]{1,200}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_ALIKE: Final = re.compile(r"[?\[\]{}\\^$]")
_CREDENTIAL: Final = re.compile(r"(?i)(.*-)?(authorization|auth|cookie|token|secret|password|api-?key)")
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_PLACE_NAME: Final = re.compile(r"[^\s{}/][^{}]*")

_Value = TypeVar("_Value")


class _Unusable(Exception):
    """Why one value cannot be used. ``below``: where, from the value down."""

    def __init__(self, why: str, below: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.below = below


class _Report:
    """Everything found so far."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def wrong(self, path: str, why: str) -> None:
        self.problems.append(Problem(path, why))

    def warn(self, path: str, why: str) -> None:
        self.warnings.append(Problem(path, why))


class _Block:
    """One mapping of the document. Unknown keys are reported at once; ``take`` reads the known ones."""

    def __init__(self, value: Any, path: str, known: Sequence[str], report: _Report) -> None:
        self.path = path
        self.report = report
        self.values: Mapping[str, Any] = value if isinstance(value, dict) else {}
        self.usable = isinstance(value, dict)
        if not self.usable:
            report.wrong(path, "must be a mapping")
        for key in self.values:
            if key not in known:
                report.wrong(self.at(key), f"unknown key; known are {', '.join(known)}")

    def at(self, key: object) -> str:
        return f"{self.path}.{key}" if self.path else str(key)

    def given(self, key: str) -> bool:
        """Whether the key holds something: a null is a key left out."""
        return self.values.get(key) is not None

    def take(self, key: str, reader: Callable[[Any], _Value], default: _Value) -> _Value:
        """The value of an optional key; its default where it is not given, or unusable (then that is reported)."""
        if not self.given(key):
            return default
        try:
            return reader(self.values[key])
        except _Unusable as error:
            self.report.wrong(self.at(key) + error.below, error.why)
            return default

    def require(self, key: str, reader: Callable[[Any], _Value], stand_in: _Value) -> _Value:
        """The value of a required key; ``stand_in`` lets the reading of the rest go on without it."""
        if self.usable and not self.given(key):
            self.report.wrong(self.at(key), "is required")
        return self.take(key, reader, stand_in)


# -- the whole document ----------------------------------------------------------------------------------------------


def check(document: Mapping[str, Any], environ: Mapping[str, str], *, checks: Checks) -> Plan:
    """The plan of a document. Raises Refused with every fault of it; nothing is read but the arguments."""
    report = _Report()
    _only_plain(document, report)
    if report.problems:
        raise Refused(report.problems)
    top = _Block(
        dict(document),
        "",
        ("workspace", "members", "runtimes", "receivers", "capabilities", "mandates"),
        report,
    )
    workspace = top.require("workspace", _name(_WORKSPACE, "letters, digits, '.', '_' and '-'"), "")
    members = _each(top, "members", lambda value, path: _member(value, path, environ, report))
    runtimes = _each(top, "runtimes", lambda value, path: _runtime(value, path, environ, report))
    receivers = _each(top, "receivers", lambda value, path: _receiver(value, path, environ, checks, report))
    capabilities = _each(top, "capabilities", lambda value, path: _capability(value, path, checks, report))
    mandates_open = top.values.get("mandates") == "open" if top.given("mandates") else None
    mandates = (
        None if mandates_open else _each(top, "mandates", lambda value, path: _mandate(value, path, report))
    )
    for named in (members, runtimes, receivers, capabilities, mandates):
        _once(named, report)
    _between(members, runtimes, receivers, capabilities, report)
    _unused_patterns(runtimes, capabilities, mandates, report)
    if report.problems:
        raise Refused(report.problems)
    return Plan(
        workspace=workspace,
        members=members,
        runtimes=runtimes,
        receivers=receivers,
        capabilities=capabilities,
        mandates=mandates,
        mandates_open=mandates_open,
        warnings=tuple(report.warnings),
    )


def _each(top: _Block, key: str, reader: Callable[[Any, str], _Value]) -> tuple[_Value, ...] | None:
    if not top.given(key):
        return None
    values = top.values[key]
    if not isinstance(values, list):
        also = ", or the word open" if key == "mandates" else ""
        top.report.wrong(key, f"must be a list{also}")
        return None
    if len(values) > ENTRIES_MAX:
        top.report.wrong(key, f"has {len(values)} entries; {ENTRIES_MAX} are the most")
        return None
    return tuple(reader(value, f"{key}[{position}]") for position, value in enumerate(values))


def _only_plain(document: object, report: _Report) -> None:
    """Reports what no JSON text can hold, but for moments with a zone, which YAML has, and numbers as keys."""
    left = VALUES_MAX

    def walk(value: object, path: str, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEPTH_MAX:
            raise _Unusable(
                f"nested deeper than {DEPTH_MAX} levels"
                if depth > DEPTH_MAX
                else f"holds more than {VALUES_MAX} values"
            )
        if isinstance(value, dict):
            for key, inner in value.items():
                if not _is_key(key):
                    report.wrong(path or "the file", "has a key that is no text")
                else:
                    walk(inner, f"{path}.{key}" if path else str(key), depth + 1)
        elif isinstance(value, list):
            for position, inner in enumerate(value):
                walk(inner, f"{path}[{position}]", depth + 1)
        elif why := _not_plain(value):
            report.wrong(path, why)

    try:
        walk(document, "", 0)
    except _Unusable as error:
        report.wrong("the file", error.why)


def _is_key(key: object) -> bool:
    if isinstance(key, str):
        return not _UNSTORABLE.search(key)
    return isinstance(key, int) and not isinstance(key, bool)


def _not_plain(value: object) -> str | None:
    if isinstance(value, str):
        return "holds a NUL or half of a surrogate pair" if _UNSTORABLE.search(value) else None
    if isinstance(value, float):
        return None if math.isfinite(value) else "is no finite number"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return None
    if isinstance(value, date):
        return (
            "is a date: write a moment with its zone (2027-01-01T00:00:00Z), or put it in quotes for a text"
        )
    return None if value is None or isinstance(value, bool | int) else "is no value that JSON has"


def _once(named: Sequence[Any] | None, report: _Report) -> None:
    """Reports the second entry of one name."""
    seen: dict[Any, str] = {}
    for entry in named or ():
        name: Any
        match entry:
            case MemberPlan(email=email):
                name, field = email, "email"
            case MandatePlan(subject=subject, capability=capability):
                name, field = (subject, capability) if subject and capability else "", "subject"
            case _:
                name, field = entry.name, "name"
        if name and name in seen:
            report.wrong(f"{entry.path}.{field}", f"stands at {seen[name]} already")
        seen.setdefault(name, entry.path)


def _between(
    members: Sequence[MemberPlan] | None,
    runtimes: Sequence[RuntimePlan] | None,
    receivers: Sequence[ReceiverPlan] | None,
    capabilities: Sequence[CapabilityPlan] | None,
    report: _Report,
) -> None:
    """Reports names that lead nowhere, as far as the file holds the section they lead to."""
    if members is not None:
        emails = {member.email for member in members}
        for runtime in runtimes or ():
            if runtime.owner and runtime.owner not in emails:
                report.wrong(f"{runtime.path}.owner", "is no member of this file")
        report.problems += unmeetable(
            [Rule(each.path, each.name, approvers_needed(each.approval)) for each in capabilities or ()],
            approvers=frozenset(member.email for member in members if "approver" in member.roles),
            askers=[Asker(each.name, each.owner, each.scopes, each.capabilities) for each in runtimes or ()],
        )
    if receivers is not None:
        by_name = {receiver.name: receiver for receiver in receivers}
        for capability in capabilities or ():
            receiver = by_name.get(capability.receiver)
            if capability.receiver and receiver is None:
                report.wrong(f"{capability.path}.receiver", "is no receiver of this file")
            if receiver and not receiver.base_url and capability.reconciler is not None:
                report.wrong(f"{receiver.path}.base_url", f"is required: {capability.name} asks it")


class Rule(NamedTuple):
    """An approval rule: where it stands, whose it is, and how many people it may come to ask for."""

    path: str
    capability: str
    needed: int


class Asker(NamedTuple):
    """A runtime as far as four eyes go: its owner does not approve what it asks for."""

    name: str
    owner: object
    scopes: Sequence[str]
    capabilities: Sequence[str]


def approvers_needed(rule: Mapping[str, Any]) -> int:
    """How many people the rule may come to ask for; 0: never anybody."""
    asks = rule.get("required") or rule.get("when") or rule.get("above") is not None
    return int(rule.get("approvals", 1)) if asks else 0


def unmeetable(rules: Sequence[Rule], *, approvers: Set[object], askers: Sequence[Asker]) -> list[Problem]:
    """The rules that these approvers cannot meet: too few, or too few beside the owner of a runtime that asks.

    ``approvers`` and the askers' ``owner`` name people in the same way, whichever it is.
    """
    problems = []
    for rule in rules:
        path = f"{rule.path}.approval.approvals"
        if len(approvers) < rule.needed:
            why = f"{rule.needed} must approve, and the members have {len(approvers)} approver(s)"
            problems.append(Problem(path, why))
            continue
        for asker in askers:
            asks = "intent" in asker.scopes and any(
                matches(each, rule.capability) for each in asker.capabilities
            )
            if rule.needed and asks and asker.owner in approvers and len(approvers) - 1 < rule.needed:
                why = (
                    f"{rule.needed} must approve, and nobody approves what their own runtime asks for: beside the owner "
                    f"of {asker.name} there are {len(approvers) - 1} approver(s)"
                )
                problems.append(Problem(path, why))
                break
    return problems


def _unused_patterns(
    runtimes: Sequence[RuntimePlan] | None,
    capabilities: Sequence[CapabilityPlan] | None,
    mandates: Sequence[MandatePlan] | None,
    report: _Report,
) -> None:
    if capabilities is None:
        return
    names = [capability.name for capability in capabilities]
    for runtime in runtimes or ():
        for position, pattern in enumerate(runtime.capabilities):
            if not any(matches(pattern, name) for name in names):
                report.warn(f"{runtime.path}.capabilities[{position}]", "matches no capability of this file")
    for mandate in mandates or ():
        if not any(matches(mandate.capability, name) for name in names):
            report.warn(f"{mandate.path}.capability", "matches no capability of this file")


# -- members, runtimes, receivers, mandates --------------------------------------------------------------------------


def _member(value: Any, path: str, environ: Mapping[str, str], report: _Report) -> MemberPlan:
    block = _Block(value, path, ("email", "roles", "password_env"), report)
    return MemberPlan(
        path=path,
        email=block.require("email", _email, ""),
        roles=block.take("roles", _several(_one_of(ROLES)), ("viewer",)),
        password=_from_environment(block, "password_env", environ),
    )


def _runtime(value: Any, path: str, environ: Mapping[str, str], report: _Report) -> RuntimePlan:
    block = _Block(value, path, ("name", "scopes", "capabilities", "subjects", "owner", "token_env"), report)
    token = _from_environment(block, "token_env", environ)
    presented = None if token is None else tokens.parse(token)
    if token is not None and presented is None:
        report.wrong(
            f"{path}.token_env",
            "the variable holds no runtime token (cfl_<env>_<id>_<secret>), or one that was mistyped",
        )
    return RuntimePlan(
        path=path,
        name=block.require("name", _a_name, ""),
        scopes=block.take("scopes", _several(_one_of(SCOPES)), SCOPES),
        capabilities=block.take("capabilities", _several(_pattern), ("*",)),
        subjects=block.take("subjects", _several(_pattern), ("*",)),
        owner=block.take("owner", _email, None),
        token=presented,
    )


def _from_environment(block: _Block, key: str, environ: Mapping[str, str]) -> str | None:
    """The value of the variable that the key names; None where none is named. An empty one counts as not set."""
    name = block.take(key, _variable, None)
    if name is None:
        return None
    if not environ.get(name):
        block.report.wrong(block.at(key), f"the environment variable {name} is not set")
        return None
    return environ[name]


def _receiver(
    value: Any, path: str, environ: Mapping[str, str], checks: Checks, report: _Report
) -> ReceiverPlan:
    known = ("name", "base_url", "headers", "allow_private_addresses", "callback_secret_env")
    block = _Block(value, path, known, report)
    private = block.take("allow_private_addresses", _truth, False)
    base_url = block.take("base_url", _base_url, "")
    nothing: dict[str, str] = {}
    headers = block.take("headers", _headers, nothing)
    if base_url and urlsplit(base_url).scheme == "http" and not private:
        report.wrong(f"{path}.base_url", "must be https, unless allow_private_addresses")
    elif base_url or headers:
        for below, why in checks.receiver(
            base_url or "https://receiver.invalid", headers, allow_private=private
        ):
            report.wrong(f"{path}.{below}", why)
    for name, text in headers.items():
        for variable in _REFERENCE.findall(text):
            if _VARIABLE.fullmatch(variable) and not environ.get(variable):
                report.warn(
                    f"{path}.headers.{name}", f"{variable} is not set here; web and worker need it in theirs"
                )
    secret = block.take("callback_secret_env", _variable, None)
    if secret is not None and not environ.get(secret):
        report.warn(f"{path}.callback_secret_env", f"{secret} is not set here; the web needs it in its own")
    return ReceiverPlan(
        path=path,
        name=block.require("name", _a_name, ""),
        base_url=base_url,
        headers=headers,
        allow_private_addresses=private,
        callback_secret_env=secret,
    )


def _mandate(value: Any, path: str, report: _Report) -> MandatePlan:
    block = _Block(value, path, ("subject", "capability", "valid_until", "limits"), report)
    if block.values.get("limits") not in (None, []):
        report.wrong(
            f"{path}.limits",
            "limits are not enforced yet, and a mandate that seems to have one would promise too much: leave "
            "them out, and bound it by valid_until",
        )
    if block.usable and not block.given("valid_until"):
        report.warn(f"{path}.valid_until", "is not stated: the mandate has no end")
    return MandatePlan(
        path=path,
        subject=block.require("subject", _pattern, ""),
        capability=block.require("capability", _pattern, ""),
        valid_until=block.take("valid_until", _moment, NO_END),
    )


# -- capabilities ----------------------------------------------------------------------------------------------------

_CAPABILITY_KEYS: Final = (
    *("name", "receiver", "risk", "lease_s", "intent_valid_s", "duplicates", "amount", "summary"),
    *("arguments_schema", "sensitive", "contract", "reconciler", "approval"),
)
_UNREADABLE_CONTRACT: Final = Contract(deduplicates=Deduplicates.NONE, lookup=Lookup.NONE)


def _capability(value: Any, path: str, checks: Checks, report: _Report) -> CapabilityPlan:
    block = _Block(value, path, _CAPABILITY_KEYS, report)
    risk = block.take("risk", _one_of(RISKS), "medium")
    lease_s = block.take("lease_s", _whole(1, LEASE_LONGEST_S), DEFAULT_LEASE_S)
    nothing: tuple[str, ...] = ()
    sensitive = block.take("sensitive", _pointers, nothing)
    amount = _amount(block, sensitive)
    contract = _contract(block)
    plan = CapabilityPlan(
        path=path,
        name=block.require("name", _a_name, ""),
        receiver=block.require("receiver", _a_name, ""),
        risk=risk,
        lease_s=lease_s,
        intent_valid_s=block.take("intent_valid_s", _whole(1, INTENT_LONGEST_S), DEFAULT_INTENT_VALID_S),
        duplicates=block.take("duplicates", _one_of(DUPLICATES), "hold"),
        amount=amount,
        summary=block.take("summary", _summary, ""),
        arguments_schema=block.take("arguments_schema", _schema, None),
        sensitive=() if "" in sensitive else sensitive,
        audit_sensitive="" in sensitive,
        contract=contract or _UNREADABLE_CONTRACT,
        approval=_approval(block, amount, risk),
        reconciler=_reconciler(block, contract, checks),
    )
    if contract is not None:
        _weigh(plan, report)
    return plan


def _contract(block: _Block) -> Contract | None:
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


def _reconciler(block: _Block, contract: Contract | None, checks: Checks) -> Mapping[str, Any] | None:
    value = block.take("reconciler", _json_mapping, None)
    if value is not None:
        for below, why in checks.reconciler(value, contract or _UNREADABLE_CONTRACT):
            block.report.wrong(f"{block.path}.{below}", why)
    return value


def _weigh(plan: CapabilityPlan, report: _Report) -> None:
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


def _amount(block: _Block, sensitive: Sequence[str]) -> Mapping[str, str] | None:
    if not block.given("amount"):
        return None
    inner = _Block(block.values["amount"], block.at("amount"), ("value", "currency"), block.report)
    value = inner.require("value", _argument, "")
    currency = inner.require("currency", _currency_or_argument, "")
    for key, pointer in (("value", value), ("currency", currency)):
        below = pointer.removeprefix("/arguments")
        if pointer and any(below == hidden or below.startswith(f"{hidden}/") for hidden in sensitive):
            block.report.wrong(inner.at(key), "is sensitive: an amount stands on the record in clear")
    return {"value": value, "currency": currency}


_APPROVAL_KEYS: Final = ("required", "when", "above", "approvals", "valid_s", "step_up")


def _approval(block: _Block, amount: Mapping[str, str] | None, risk: str) -> Mapping[str, Any]:
    """The whole rule. Never open by omission: no block is an error, and an empty one asks for approval."""
    if not block.given("approval") and block.usable:
        block.report.wrong(block.at("approval"), "is required; {required: false} asks nobody")
    rule = block.values["approval"] if block.given("approval") else {"required": False}
    inner = _Block(rule, block.at("approval"), _APPROVAL_KEYS, block.report)
    never: list[dict[str, Any]] = []
    when = inner.take("when", _conditions, never)
    above = _above(inner, amount)
    return {
        "required": inner.take("required", _truth, not when and above is None),
        "when": when,
        "above": above,
        "approvals": inner.take("approvals", _whole(1, 20), 1),
        "valid_s": inner.take("valid_s", _whole(1, INTENT_LONGEST_S), DEFAULT_APPROVAL_VALID_S),
        "step_up": inner.take("step_up", _truth, risk == "high"),
    }


def _above(inner: _Block, amount: Mapping[str, str] | None) -> Mapping[str, Any] | None:
    """The threshold: ``{"amount": {"value": "1000.00", "currency": "EUR"}}``."""
    if not inner.given("above"):
        return None
    above = _Block(inner.values["above"], inner.at("above"), ("amount",), inner.report)
    if above.usable and not above.given("amount"):
        inner.report.wrong(above.at("amount"), "is required")
        return {}
    limit = _Block(above.values.get("amount"), above.at("amount"), ("value", "currency"), inner.report)
    value = limit.require("value", _money, "")
    currency = limit.require("currency", _currency, "")
    if amount is None:
        inner.report.wrong(inner.at("above"), "the capability does not say where its amount stands")
    elif currency and CURRENCY.fullmatch(amount["currency"]) and amount["currency"] != currency:
        inner.report.wrong(limit.at("currency"), f"the capability's amounts are in {amount['currency']}")
    return {"amount": {"value": value, "currency": currency}}


# -- values ----------------------------------------------------------------------------------------------------------


def _text(value: Any, longest: int = NAME_LENGTH_MAX) -> str:
    if not isinstance(value, str):
        raise _Unusable("must be a text")
    if not 1 <= len(value) <= longest or value != value.strip() or _CONTROL.search(value):
        raise _Unusable(f"must be 1 to {longest} characters, without control characters or outer white space")
    return value


def _name(pattern: re.Pattern[str], characters: str) -> Callable[[Any], str]:
    def reader(value: Any) -> str:
        if not pattern.fullmatch(_text(value)):
            raise _Unusable(f"may hold {characters} only")
        return str(value)

    return reader


_a_name = _name(_NAME, "letters, digits and . _ ~ : @ + = / -")


def _variable(value: Any) -> str:
    # Somebody who put the secret itself here must not find it again in a log.
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value) or value.startswith("cfl_"):
        raise _Unusable("must be the name of an environment variable, never the secret itself")
    return value


def _email(value: Any) -> str:
    """The address in lower case, as accounts keep it."""
    text = _text(value, EMAIL_LENGTH_MAX).lower()
    try:
        validate_email(text)
    except ValidationError:
        raise _Unusable("is no e-mail address") from None
    return text


def _pattern(value: Any) -> str:
    text = _text(value)
    if _ALIKE.search(text):
        raise _Unusable("is matched character for character, and only * stands for others")
    return text


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unusable("must be true or false")
    return value


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def reader(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _Unusable(f"must be a whole number from {low} to {high}")
        return value

    return reader


def _one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    def reader(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _Unusable(f"must be one of {', '.join(choices)}")
        return value

    return reader


def _several(reader: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    """A list of these, at least one, each once."""

    def read(values: Any) -> tuple[str, ...]:
        if not isinstance(values, list) or not values or len(values) > ENTRIES_MAX:
            raise _Unusable(f"must be a list of 1 to {ENTRIES_MAX}")
        found: list[str] = []
        for position, value in enumerate(values):
            try:
                found.append(reader(value))
            except _Unusable as error:
                raise _Unusable(error.why, f"[{position}]") from None
        if len(set(found)) < len(found):
            raise _Unusable("holds the same twice")
        return tuple(found)

    return read


def _moment(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _Unusable("must be a moment with its zone, such as 2027-01-01T00:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise _Unusable("is beyond what a calendar can hold") from None


def _base_url(value: Any) -> str:
    text = _text(value, 2_000)
    try:
        scheme = urlsplit(text).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("https", "http"):
        raise _Unusable("must begin with https://")
    return text


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _Unusable("must map names of headers to texts")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise _Unusable("must be a text", f".{name}")
        if _CREDENTIAL.fullmatch(name) and not _REFERENCE.search(text):
            raise _Unusable(
                "carries a credential: write ${NAME}, and keep it in the environment variable NAME",
                f".{name}",
            )
    if len({name.lower() for name in value}) < len(value):
        raise _Unusable("names the same header twice")
    return dict(value)


def _argument(value: Any) -> str:
    if not is_pointer(value) or not str(value).startswith("/arguments/"):
        raise _Unusable("must be a JSON Pointer that begins with /arguments/")
    return str(value)


def _currency(value: Any) -> str:
    if not isinstance(value, str) or not CURRENCY.fullmatch(value):
        raise _Unusable("must be three capital letters (ISO 4217)")
    return value


def _currency_or_argument(value: Any) -> str:
    return _argument(value) if isinstance(value, str) and value.startswith("/") else _currency(value)


def _money(value: Any) -> str:
    if not isinstance(value, str) or not DECIMAL.fullmatch(value) or Decimal(value) <= 0:
        raise _Unusable('must be a positive decimal in quotes, such as "1000.00"')
    return value


def _pointers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Unusable("must be a list of JSON Pointers")
    for position, pointer in enumerate(value):
        if not isinstance(pointer, str) or (pointer and not is_pointer(pointer)):
            raise _Unusable(
                "must be a JSON Pointer into the arguments, such as /card/number", f"[{position}]"
            )
        for other in value[:position]:
            inside = pointer.startswith(f"{other}/") or other.startswith(f"{pointer}/")
            if isinstance(other, str) and (pointer == other or inside):
                raise _Unusable(
                    f"stands within what {value.index(other)} names, or around it", f"[{position}]"
                )
    return tuple(value)


def _summary(value: Any) -> str:
    text = _text(value, SUMMARY_LENGTH_MAX)
    for place in _PLACE.findall(text):
        if not (is_pointer(place) and place) and not _PLACE_NAME.fullmatch(place):
            raise _Unusable("{…} must hold the name of an argument, or a JSON Pointer into the arguments")
    if re.search(r"[{}]", _PLACE.sub("", text)):
        raise _Unusable("has a brace that opens or closes nothing")
    return text


def _conditions(value: Any) -> list[dict[str, Any]]:
    """``approval.when``: any one that holds asks for approval."""
    if not isinstance(value, list) or len(value) > 100:
        raise _Unusable("must be a list of at most 100 conditions")
    for position, condition in enumerate(value):
        at = f"[{position}]"
        if not isinstance(condition, dict):
            raise _Unusable("must be a mapping", at)
        for key in condition:
            if key not in ("param", "op", "value", "label"):
                raise _Unusable("unknown key; known are param, op, value, label", f"{at}.{key}")
        _condition(condition, at)
    return [_json(condition) for condition in value]


def _condition(condition: Mapping[str, Any], at: str) -> None:
    for key, reader in (("param", _text), ("op", _one_of(OPERATORS))):
        try:
            reader(condition.get(key))
        except _Unusable as error:
            raise _Unusable(error.why, f"{at}.{key}") from None
    operator, value = condition["op"], condition.get("value")
    if operator == "exists":
        if not isinstance(value, bool | None):
            raise _Unusable("must be true or false, or left out", f"{at}.value")
    elif "value" not in condition:
        raise _Unusable("is required", f"{at}.value")
    elif operator in (">", ">=", "<", "<=") and (
        isinstance(value, bool) or not isinstance(value, int | float)
    ):
        raise _Unusable("must be a number", f"{at}.value")
    elif operator == "in" and not (isinstance(value, list) and value):
        raise _Unusable("must be a list that is not empty", f"{at}.value")
    if not isinstance(condition.get("label", ""), str) or len(condition.get("label", "")) > 300:
        raise _Unusable("must be a text of at most 300 characters", f"{at}.label")


def _json_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Unusable("must be a mapping")
    return {str(key): inner for key, inner in _json(value).items()}


def _json(value: Any, below: str = "") -> Any:
    """The value as it comes back from a JSON column: whole numbers as int. Raises for moments and numbers as keys."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _Unusable("the key must be a text: put it in quotes", f"{below}.{key}")
        return {key: _json(inner, f"{below}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner, f"{below}[{position}]") for position, inner in enumerate(value)]
    if isinstance(value, datetime):
        raise _Unusable("is a moment: put it in quotes for a text", below)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _schema(value: Any) -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) that needs nothing from outside and can be followed to its end."""
    schema = _json_mapping(value)
    try:
        Draft202012Validator.check_schema(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        below = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        raise _Unusable(f"is no JSON Schema: {error.message[:200]}", below) from None
    except re.error as error:
        raise _Unusable(f"holds a pattern that is no regular expression ({error})") from None
    _references(schema)
    try:
        next(iter(Draft202012Validator(schema).iter_errors({})), None)
    except RecursionError:
        raise _Unusable("refers to itself without end") from None
    return schema


def _references(schema: Mapping[str, Any]) -> None:
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver("")

    def walk(value: Any, below: str) -> None:
        if isinstance(value, list):
            for position, inner in enumerate(value):
                walk(inner, f"{below}[{position}]")
        if not isinstance(value, dict):
            return
        for key, inner in value.items():
            if key in ("$ref", "$dynamicRef") and isinstance(inner, str):
                try:
                    if not inner.startswith("#"):
                        raise _Unusable("must begin with #: nothing is fetched", f"{below}.{key}")
                    resolver.lookup(inner)
                except Unresolvable:
                    raise _Unusable("leads nowhere", f"{below}.{key}") from None
            elif key in ("$id", "$schema") and isinstance(inner, str) and (below or key == "$id"):
                raise _Unusable("leave it out: nothing refers to this schema by name", f"{below}.{key}")
            else:
                walk(inner, f"{below}.{key}")

    walk(schema, "")

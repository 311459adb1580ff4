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
from datetime import date, datetime
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ledger import tokens
from ledger.permissions import matches
from ledger.provisioning import values
from ledger.provisioning.blocks import Block, Report
from ledger.provisioning.capabilities import capability
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
"""What a runtime's token may do. There is no scope that decides: people decide."""

DEPTH_MAX: Final = 64
"""Levels of nesting. A JSON Schema of an order has fewer than 20."""

VALUES_MAX: Final = 200_000
"""Values in one document, aliases counted each time: one kilobyte of YAML can stand for a billion of them."""

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

_Value = TypeVar("_Value")


# -- the whole document ----------------------------------------------------------------------------------------------


def check(document: Mapping[str, Any], environ: Mapping[str, str], *, checks: Checks) -> Plan:
    """The plan of a document. Raises Refused with every fault of it; nothing is read but the arguments."""
    report = Report()
    _only_plain(document, report)
    if report.problems:
        raise Refused(report.problems)
    top = Block(
        dict(document),
        "",
        ("workspace", "members", "runtimes", "receivers", "capabilities", "mandates"),
        report,
    )
    workspace = top.require("workspace", values.workspace, "")
    members = _each(top, "members", lambda value, path: _member(value, path, environ, report))
    runtimes = _each(top, "runtimes", lambda value, path: _runtime(value, path, environ, report))
    receivers = _each(top, "receivers", lambda value, path: _receiver(value, path, environ, checks, report))
    capabilities = _each(top, "capabilities", lambda value, path: capability(value, path, checks, report))
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


def _each(top: Block, key: str, reader: Callable[[Any, str], _Value]) -> tuple[_Value, ...] | None:
    if not top.given(key):
        return None
    entries = top.values[key]
    if not isinstance(entries, list):
        also = ", or the word open" if key == "mandates" else ""
        top.report.wrong(key, f"must be a list{also}")
        return None
    if len(entries) > values.ENTRIES_MAX:
        top.report.wrong(key, f"has {len(entries)} entries; {values.ENTRIES_MAX} are the most")
        return None
    return tuple(reader(value, f"{key}[{position}]") for position, value in enumerate(entries))


def _only_plain(document: object, report: Report) -> None:
    """Reports what no JSON text can hold, but for moments with a zone, which YAML has, and numbers as keys."""
    left = VALUES_MAX

    def walk(value: object, path: str, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEPTH_MAX:
            raise values.Unusable(
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
    except values.Unusable as error:
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


def _once(named: Sequence[Any] | None, report: Report) -> None:
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
    report: Report,
) -> None:
    """Reports names that lead nowhere, as far as the file holds the section they lead to.

    An entry whose own name could not be read may be the one that is meant: then nothing is said of the others.
    """
    if members is not None:
        emails = {member.email for member in members}
        for runtime in runtimes or ():
            if runtime.owner and runtime.owner not in emails and "" not in emails:
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
            if capability.receiver and receiver is None and "" not in by_name:
                report.wrong(f"{capability.path}.receiver", "is no receiver of this file")
            if receiver and not receiver.base_url and capability.reconciler is not None:
                report.missing(f"{receiver.path}.base_url", f"is required: {capability.name} asks it")


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
    report: Report,
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


def _member(value: Any, path: str, environ: Mapping[str, str], report: Report) -> MemberPlan:
    block = Block(value, path, ("email", "roles", "password_env"), report)
    return MemberPlan(
        path=path,
        email=block.require("email", values.email, ""),
        roles=block.take("roles", values.several(values.one_of(ROLES)), ("viewer",)),
        password=_from_environment(block, "password_env", environ),
    )


def _runtime(value: Any, path: str, environ: Mapping[str, str], report: Report) -> RuntimePlan:
    block = Block(value, path, ("name", "scopes", "capabilities", "subjects", "owner", "token_env"), report)
    token = _from_environment(block, "token_env", environ)
    presented = None if token is None else tokens.parse(token)
    if token is not None and presented is None:
        report.wrong(
            f"{path}.token_env",
            "the variable holds no runtime token (cfl_<env>_<id>_<secret>), or one that was mistyped",
        )
    return RuntimePlan(
        path=path,
        name=block.require("name", values.name, ""),
        scopes=block.take("scopes", values.several(values.one_of(SCOPES)), SCOPES),
        capabilities=block.take("capabilities", values.several(values.pattern), ("*",)),
        subjects=block.take("subjects", values.several(values.pattern), ("*",)),
        owner=block.take("owner", values.email, None),
        token=presented,
    )


def _from_environment(block: Block, key: str, environ: Mapping[str, str]) -> str | None:
    """The value of the variable that the key names; None where none is named. An empty one counts as not set."""
    name = block.take(key, values.variable, None)
    if name is None:
        return None
    if not environ.get(name):
        block.report.wrong(block.at(key), f"the environment variable {name} is not set")
        return None
    return environ[name]


def _receiver(
    value: Any, path: str, environ: Mapping[str, str], checks: Checks, report: Report
) -> ReceiverPlan:
    known = ("name", "base_url", "headers", "allow_private_addresses", "callback_secret_env")
    block = Block(value, path, known, report)
    private = block.take("allow_private_addresses", values.truth, False)
    base_url = block.take("base_url", values.base_url, "")
    nothing: dict[str, str] = {}
    headers = block.take("headers", values.headers, nothing)
    if base_url and urlsplit(base_url).scheme == "http" and not private:
        report.wrong(f"{path}.base_url", "must be https, unless allow_private_addresses")
    elif base_url or headers:
        for below, why in checks.receiver(
            base_url or "https://receiver.invalid", headers, allow_private=private
        ):
            report.wrong(f"{path}.{below}", why)
    for name, text in headers.items():
        for variable in values.REFERENCE.findall(text):
            if values.VARIABLE.fullmatch(variable) and not environ.get(variable):
                report.warn(
                    f"{path}.headers.{name}", f"{variable} is not set here; web and worker need it in theirs"
                )
    secret = block.take("callback_secret_env", values.variable, None)
    if secret is not None and not environ.get(secret):
        report.warn(f"{path}.callback_secret_env", f"{secret} is not set here; the web needs it in its own")
    return ReceiverPlan(
        path=path,
        name=block.require("name", values.name, ""),
        base_url=base_url,
        headers=headers,
        allow_private_addresses=private,
        callback_secret_env=secret,
    )


def _mandate(value: Any, path: str, report: Report) -> MandatePlan:
    block = Block(value, path, ("subject", "capability", "valid_until", "limits"), report)
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
        subject=block.require("subject", values.pattern, ""),
        capability=block.require("capability", values.pattern, ""),
        valid_until=block.take("valid_until", values.moment, NO_END),
    )

"""What a runtime says, read strictly: shapes first, then against the capability. No database, no clock.

``parse_*`` turn parsed JSON into frozen values and refuse unknown fields by name. ``prepare`` puts an intent to its
capability: schema, amount, reference, digest, sealing. All refusals are ``ledger.errors``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import orjson
from cryptography.fernet import MultiFernet
from jsonschema import Draft202012Validator

from ledger import digests
from ledger.contracts import Contract
from ledger.errors import Malformed, ReferenceRequired

NAME = re.compile(r"[A-Za-z0-9._~:@+=-]{1,200}")
DOTS = frozenset({".", ".."})  # a client's URL library would fold them away
TEXT_MAX = 200  # subjects, references: what a person can still compare by eye
KEY = re.compile(r"[\x21-\x7e]{1,255}")  # a header value everywhere
CHECKPOINT_MAX = 8 * 1024
PURPOSE_MAX = 4 * 1024  # a page of the agent's words is more than anybody reads
NONCE = re.compile(r"[\x21-\x7e]{16,200}")  # 16 characters: what cannot be guessed by the next process
DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,29})(\.[0-9]{1,18})?")
CURRENCY = re.compile(r"[A-Z]{3}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Amount:
    """Money: a decimal as it was spelled, and its currency (ISO 4217)."""

    value: str
    currency: str


@dataclass(frozen=True, slots=True)
class Intent:
    """What a runtime wants to do, before anybody judged it."""

    operation_id: str
    task_id: str
    capability: str
    arguments: dict[str, Any]
    subject: str
    on_behalf_of: str | None = None
    business_reference: str | None = None
    idempotency_key: str | None = None
    amount: Amount | None = None
    checkpoint: str | None = None  # canonical JSON
    purpose: str | None = None
    supersedes: str | None = None
    compensates: str | None = None
    dispatch: bool = False
    expect_recorded: bool = False


INTENT_FIELDS = frozenset(
    [
        "task_id",
        "capability",
        "arguments",
        "actor",
        "business_reference",
        "idempotency_key",
        "amount",
        "checkpoint",
        "purpose",
        "supersedes",
        "compensates",
        "dispatch",
        "expect",
    ]
)


def valid_name(name: str) -> bool:
    """Whether it may stand as an operation or task ID in a URL."""
    return NAME.fullmatch(name) is not None and name not in DOTS


def parse_intent(operation_id: str, body: object, *, also: frozenset[str] = frozenset()) -> Intent:
    """The intent in a request body. Raises Malformed with the JSON Pointer of the first fault; ``also`` names fields
    that the caller reads itself (a batch item's)."""
    fields = fields_of(body, "", INTENT_FIELDS | also)
    actor = fields_of(_required(fields, "actor"), "/actor", frozenset({"subject", "on_behalf_of"}))
    arguments = _required(fields, "arguments")
    if not isinstance(arguments, dict):
        raise Malformed("/arguments", "must be an object")
    expect = fields.get("expect")
    if expect not in (None, "recorded"):
        raise Malformed("/expect", 'may only be "recorded"')
    checkpoint = None
    if fields.get("checkpoint") is not None:
        checkpoint = digests.canonical(fields["checkpoint"])
        if len(checkpoint) > CHECKPOINT_MAX:
            raise Malformed("/checkpoint", f"may have {CHECKPOINT_MAX} bytes at most")
    dispatch = fields.get("dispatch", False)
    if not isinstance(dispatch, bool):
        raise Malformed("/dispatch", "must be true or false")
    key = fields.get("idempotency_key")
    if key is not None and (not isinstance(key, str) or not KEY.fullmatch(key)):
        raise Malformed("/idempotency_key", "must be 1 to 255 visible ASCII characters without spaces")
    return Intent(
        operation_id=operation_id,
        task_id=_name(_required(fields, "task_id"), "/task_id"),
        capability=_text(_required(fields, "capability"), "/capability"),
        arguments=arguments,
        subject=_text(_required(actor, "subject", "/actor"), "/actor/subject"),
        on_behalf_of=_optional_text(actor.get("on_behalf_of"), "/actor/on_behalf_of"),
        business_reference=_optional_text(fields.get("business_reference"), "/business_reference"),
        idempotency_key=key,
        amount=_amount(fields.get("amount")),
        checkpoint=None if checkpoint is None else checkpoint.decode(),
        purpose=_long_text(fields.get("purpose"), "/purpose"),
        supersedes=_optional_name(fields.get("supersedes"), "/supersedes"),
        compensates=_optional_name(fields.get("compensates"), "/compensates"),
        dispatch=dispatch,
        expect_recorded=expect == "recorded",
    )


def parse_nonce(nonce: object, *, where: str = "") -> str:
    """The Permit-Nonce of an ask; raises Malformed where it is missing or could be guessed.

    ``where``: the JSON Pointer of the field that carries it in place of the header.
    """
    name = "it" if where else "the header Permit-Nonce"
    if nonce is None:
        raise Malformed(where, f"{name} is missing: mint one for this ask and keep it in memory only")
    if not isinstance(nonce, str) or not NONCE.fullmatch(nonce):
        raise Malformed(where, f"{name} must be 16 to 200 visible ASCII characters, minted at random")
    return nonce


def nonce_hash(nonce: str) -> bytes:
    """What is stored of a nonce."""
    return hashlib.sha256(nonce.encode()).digest()


# An intent beside its capability.


@dataclass(frozen=True, slots=True)
class CapabilityFacts:
    """One capability version as intake needs it, read once and kept by the process until the version changes."""

    workspace_id: int
    workspace: str
    environment: str
    id: int
    receiver: str
    receiver_id: int
    sensitive: tuple[str, ...]
    audit_sensitive: bool
    amount: Mapping[str, str] | None
    arguments_schema: str | None  # JSON
    approval: Mapping[str, Any]
    contract: Contract
    as_row: Mapping[str, Any]  # the ``capability`` object of ledger_facts_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """An intent ready to be written."""

    intent: Intent
    capability: CapabilityFacts
    arguments: str  # canonical JSON; sensitive values stand as null
    sealed: bytes | None
    salt: bytes | None
    digest: str
    twin_digest: str | None
    amount: Amount | None
    key: str
    approvals_needed: int
    approval_reason: str | None


def prepare(intent: Intent, capability: CapabilityFacts, *, fernet: MultiFernet, pepper: bytes) -> Prepared:
    """The intent put to its capability. Raises Malformed (schema, amount, pointers) and ReferenceRequired."""
    if capability.arguments_schema is not None:
        _check_schema(intent.arguments, capability.arguments_schema)
    if capability.contract.needs_reference and intent.business_reference is None:
        raise ReferenceRequired()
    written = text = digests.canonical(intent.arguments)
    salt = sealed = twin_digest = None
    if capability.sensitive or capability.audit_sensitive:
        salt = digests.mint_salt()
        twin_digest = "hmac-sha256:" + hmac.new(pepper, written, hashlib.sha256).hexdigest()
        text, sealed = _seal(intent.arguments, capability, fernet)
    needed, reason = _approvals(capability.approval)
    return Prepared(
        intent=intent,
        capability=capability,
        arguments=text.decode(),
        sealed=sealed,
        salt=salt,
        digest=digests.text_digest(written, salt),
        twin_digest=twin_digest,
        amount=agreed_amount(intent, capability.amount),
        key=intent.idempotency_key or digests.mint_key(),
        approvals_needed=needed,
        approval_reason=reason,
    )


def _approvals(rule: Mapping[str, Any]) -> tuple[int, str | None]:
    """How many people must approve, and why. A rule with conditions is taken as met until it can be judged."""
    if rule.get("required"):
        return max(1, int(rule.get("approvals", 1))), "the capability requires approval"
    if rule.get("when") or rule.get("above"):
        return max(1, int(rule.get("approvals", 1))), "the capability's rule may require approval"
    return 0, None


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def _check_schema(arguments: dict[str, Any], schema: str) -> None:
    error = next(iter(_validator(schema).iter_errors(arguments)), None)
    if error is not None:
        path = "/arguments" + "".join(
            f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in error.path
        )
        # The validator's own message quotes values; what is sensitive must not travel in a problem.
        raise Malformed(path, f"does not fit the capability's schema ({error.validator})")


def _seal(arguments: dict[str, Any], capability: CapabilityFacts, fernet: MultiFernet) -> tuple[bytes, bytes]:
    """(canonical text with the sensitive values as null, encrypted {pointer: value})."""
    if capability.audit_sensitive or "" in capability.sensitive:
        hidden: dict[str, Any] = {"": arguments}
        return b"null", fernet.encrypt(orjson.dumps(hidden))
    shown = json.loads(digests.canonical(arguments))
    hidden = {}
    for path in capability.sensitive:
        try:
            hidden[path] = digests.pointer(arguments, path)
        except KeyError:
            continue  # an optional argument that is not there
        _put(shown, path, None)
    return digests.canonical(shown), fernet.encrypt(digests.canonical(hidden))


def unseal(arguments: str | None, sealed: bytes | None, fernet: MultiFernet) -> Any:
    """The arguments as they were sent; None once they have aged out."""
    if arguments is None:
        return None
    value = json.loads(arguments)
    if sealed is None:
        return value
    for path, hidden in json.loads(fernet.decrypt(sealed)).items():
        if path == "":
            return hidden
        _put(value, path, hidden)
    return value


def _put(document: Any, path: str, value: Any) -> None:
    """Places a value where a JSON Pointer that is not empty finds one."""
    parent_path, _, last = path.rpartition("/")
    parent = digests.pointer(document, parent_path)
    name = last.replace("~1", "/").replace("~0", "~")
    if isinstance(parent, dict):
        parent[name] = value
    elif isinstance(parent, list):
        parent[int(name)] = value


def agreed_amount(intent: Intent, where: Mapping[str, str] | None) -> Amount | None:
    """The amount the capability finds in the arguments; what the runtime says beside them must agree."""
    found = None if where is None else _found_amount(intent.arguments, where)
    said = intent.amount
    if said is None or found is None:
        return said or found
    if Decimal(said.value) != Decimal(found.value) or said.currency != found.currency:
        raise Malformed("/amount", "does not agree with the amount in the arguments")
    return found if found.value == said.value else said


def _found_amount(arguments: dict[str, Any], where: Mapping[str, str]) -> Amount | None:
    value = _at(arguments, where["value"])
    currency = where["currency"]
    if currency.startswith("/"):
        currency = _at(arguments, currency)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not isinstance(currency, str):
        return None
    try:
        spelled = value if isinstance(value, str) else f"{Decimal(repr(value)):f}"
        return Amount(spelled, currency) if DECIMAL.fullmatch(spelled) else None
    except InvalidOperation:
        return None


def _at(arguments: dict[str, Any], path: str) -> Any:
    """Capability pointers start at the intent: /arguments/amount."""
    try:
        return digests.pointer({"arguments": arguments}, path)
    except KeyError:
        return None


# Shapes.


def fields_of(value: object, path: str, known: frozenset[str]) -> dict[str, Any]:
    """The object at ``path`` of a body; raises Malformed where it is none, or has a field that is not ``known``."""
    if not isinstance(value, dict):
        raise Malformed(path, "must be an object")
    unknown = sorted(value.keys() - known)
    if unknown:
        raise Malformed(
            f"{path}/{unknown[0]}", "is not a field of this call", extra={"unknown_fields": unknown}
        )
    return value


def _required(fields: Mapping[str, Any], name: str, path: str = "") -> Any:
    if fields.get(name) is None:
        raise Malformed(f"{path}/{name}", "is required")
    return fields[name]


def _name(value: object, path: str) -> str:
    if not isinstance(value, str) or not valid_name(value):
        raise Malformed(path, "must be 1 to 200 of A-Z a-z 0-9 . _ ~ : @ + = -, and neither . nor ..")
    return value


def _optional_name(value: object, path: str) -> str | None:
    return None if value is None else _name(value, path)


def _text(value: object, path: str) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= TEXT_MAX
        or value != value.strip()
        or _CONTROL.search(value)
    ):
        raise Malformed(
            path, f"must be 1 to {TEXT_MAX} characters without control characters or outer white space"
        )
    return value


def _optional_text(value: object, path: str) -> str | None:
    return None if value is None else _text(value, path)


def _long_text(value: object, path: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value.encode()) > PURPOSE_MAX:
        raise Malformed(path, f"must be text of {PURPOSE_MAX} bytes at most")
    return value


def _amount(value: object) -> Amount | None:
    if value is None:
        return None
    fields = fields_of(value, "/amount", frozenset({"value", "currency"}))
    number = _required(fields, "value", "/amount")
    currency = _required(fields, "currency", "/amount")
    if not isinstance(number, str) or not DECIMAL.fullmatch(number):
        raise Malformed("/amount/value", 'must be a decimal as text, such as "120.00"')
    if not isinstance(currency, str) or not CURRENCY.fullmatch(currency):
        raise Malformed("/amount/currency", "must be three capital letters (ISO 4217)")
    return Amount(number, currency)

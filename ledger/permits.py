"""The permit's token: one signed statement, which a tool adapter or gateway checks without asking the ledger.

It is a JSON Web Token (RFC 7519) in compact form (RFC 7515), signed with Ed25519 (`EdDSA`, RFC 8037):

    header   {"alg": "EdDSA", "kid": …, "typ": "counterfoil-permit+jwt"}
    payload  {"arguments_digest": "jcs-sha256:…", "attempt": 1, "capability": "refund.create", "exp": 1796040060.25,
              "iat": 1796040000.25, "idempotency_key": "cf_…", "invocation_id": "0198…", "jti": "0198…/1",
              "operation_id": "op-7f3", "receiver": "acme-pay", "workspace": "acme"}

and `salt` (base64url) for sensitive capabilities, so that whoever holds the permit can compute the digest of the
arguments about to be sent. `iat` is when the permit was granted and `exp` the end of its lease, in seconds since 1970
with a fraction; `jti` names the attempt for ever. Header and payload are RFC 8785 texts: the same permit, asked for
again, is the same token.

Whoever checks a token compares receiver, idempotency key and arguments with the call in hand, refuses it from `exp`
on, and lets each `jti` pass once.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import InvalidSignature

from ledger.digests import JSON, canonical, parse
from ledger.errors import Malformed, TooLarge
from ledger.keys import Keyring

TYPE = "counterfoil-permit+jwt"
ALGORITHM = "EdDSA"
MAX_TOKEN = (
    8192  # characters: the longest names that intake lets in, in the widest script, make less than 6,000
)
_COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TEXTS = (
    "arguments_digest",
    "capability",
    "idempotency_key",
    "invocation_id",
    "jti",
    "operation_id",
    "receiver",
    "workspace",
)
_CLAIMS = frozenset((*_TEXTS, "attempt", "exp", "iat"))


class PermitInvalid(Exception):
    """This is no permit of this ledger. The message says what is wrong with it, for a log; never for its sender."""


@dataclass(frozen=True)
class PermitStatement:
    """What one permit says. Times are aware, to the microsecond; `salt` is what `digests.mint_salt` made, or None."""

    workspace: str
    operation_id: str
    invocation_id: str
    attempt: int
    idempotency_key: str
    arguments_digest: str
    salt: bytes | None
    capability: str
    receiver: str
    permitted_at: datetime
    lease_until: datetime


def sign(statement: PermitStatement, keyring: Keyring) -> str:
    """The token for a statement, by the newest key. The same statement and key give the same token."""
    key = keyring.signing
    claims: dict[str, object] = {
        "arguments_digest": statement.arguments_digest,
        "attempt": statement.attempt,
        "capability": statement.capability,
        "exp": _seconds(statement.lease_until),
        "iat": _seconds(statement.permitted_at),
        "idempotency_key": statement.idempotency_key,
        "invocation_id": statement.invocation_id,
        "jti": f"{statement.invocation_id}/{statement.attempt}",
        "operation_id": statement.operation_id,
        "receiver": statement.receiver,
        "workspace": statement.workspace,
    }
    if statement.salt is not None:
        claims["salt"] = _encoded(statement.salt)
    header = canonical({"alg": ALGORITHM, "kid": key.kid, "typ": TYPE})
    signed = f"{_encoded(header)}.{_encoded(canonical(claims))}"
    return f"{signed}.{_encoded(key.private.sign(signed.encode('ascii')))}"


def read(token: str, keyring: Keyring) -> PermitStatement:
    """The statement that this ledger signed. Raises PermitInvalid for anything else, whatever it is.

    Says nothing about time: the holder still reports with a token whose lease is over, so the caller compares
    `lease_until` with the database's clock where that matters. The algorithm is this one and no other, whatever the
    header says. A token has one spelling only: a second one of the same bytes would pass a gateway's memory of it.
    """
    match = _COMPACT.fullmatch(token) if len(token) <= MAX_TOKEN else None
    if match is None:
        raise PermitInvalid("not a token in compact form")
    header = _object(match[1])
    if header.keys() != {"alg", "kid", "typ"} or header["alg"] != ALGORITHM or header["typ"] != TYPE:
        raise PermitInvalid("the header is not a permit's")
    public = keyring.public(header["kid"]) if isinstance(header["kid"], str) else None
    if public is None:
        raise PermitInvalid("signed by a key that this ledger does not know")
    try:
        public.verify(_decoded(match[3]), token[: match.end(2)].encode("ascii"))
    except InvalidSignature as forged:
        raise PermitInvalid("the signature is not this ledger's") from forged
    return _statement(_object(match[2]))


def _statement(claims: dict[str, JSON]) -> PermitStatement:
    """From claims that were signed here. What was signed by another version of this file may still not fit."""
    texts = {name: claim for name in _TEXTS if isinstance(claim := claims.get(name), str)}
    attempt, salt = claims.get("attempt"), claims.get("salt")
    if (
        not _CLAIMS <= claims.keys() <= _CLAIMS | {"salt"}
        or len(texts) != len(_TEXTS)
        or not isinstance(attempt, int)
        or isinstance(attempt, bool)
        or not isinstance(salt, str | None)
        or ("salt" in claims and salt is None)
        or texts.pop("jti") != f"{texts['invocation_id']}/{attempt}"
    ):
        raise PermitInvalid("the claims are not a permit's")
    return PermitStatement(
        **texts,
        attempt=attempt,
        salt=None if salt is None else _decoded(salt),
        permitted_at=_time(claims["iat"]),
        lease_until=_time(claims["exp"]),
    )


def _object(part: str) -> dict[str, JSON]:
    try:
        value = parse(_decoded(part), max_bytes=MAX_TOKEN)
    except (Malformed, TooLarge) as unreadable:
        raise PermitInvalid("a part of the token is not JSON") from unreadable
    if not isinstance(value, dict):
        raise PermitInvalid("a part of the token is not an object")
    return value


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as damaged:
        raise PermitInvalid("a part of the token is not base64url") from damaged
    if _encoded(raw) != text:
        raise PermitInvalid("a part of the token is spelled in another way than it was signed")
    return raw


def _seconds(moment: datetime) -> float:
    """RFC 7519's NumericDate. A double keeps the microsecond until the year 2106 (2^32 seconds)."""
    return (moment - _EPOCH) // _MICROSECOND / 1_000_000


def _time(seconds: JSON) -> datetime:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise PermitInvalid("a time in the claims is no number")
    try:
        return _EPOCH + round(seconds * 1_000_000) * _MICROSECOND
    except OverflowError as absurd:
        raise PermitInvalid("a time in the claims lies beyond the calendar") from absurd

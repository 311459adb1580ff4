"""The permit's token: what it says, who can check it, and that nothing else passes for one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.digests import arguments_digest, canonical, mint_salt
from ledger.keys import Keyring, rotate
from ledger.permits import MAX_TOKEN, PermitInvalid, PermitStatement, read, sign

# What a tool adapter or gateway needs, with one package and the published keys. The README shows these very lines.
CHECK = '''
import base64, json, time
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def permitted(token: str, jwks: dict, now: float | None = None) -> dict:
    """What the permit says, if this ledger signed it and its lease runs; raises otherwise."""

    def decode(part: str) -> bytes:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    header, payload, signature = token.split(".")
    said = json.loads(decode(header))
    if (said["alg"], said["typ"]) != ("EdDSA", "counterfoil-permit+jwt"):
        raise ValueError("this is no permit")
    key = next(key for key in jwks["keys"] if key["kid"] == said["kid"])
    public = Ed25519PublicKey.from_public_bytes(decode(key["x"]))
    public.verify(decode(signature), f"{header}.{payload}".encode())
    permit = json.loads(decode(payload))
    if permit["exp"] <= (time.time() if now is None else now):
        raise ValueError("the lease is over")
    return permit  # now compare receiver, idempotency_key, arguments_digest; let each permit["jti"] pass once
'''

GRANTED = datetime(2026, 11, 30, 12, 0, 0, 250_001, tzinfo=UTC)
ARGUMENTS: dict[str, Any] = {"order_id": "order-991", "amount": "120.00"}

STATEMENT = PermitStatement(
    workspace="acme",
    operation_id="op-7f3",
    invocation_id="0198c0de-0000-7000-8000-000000000001",
    attempt=1,
    idempotency_key="cf_01JB2Q8Z7Q4T3M6W9X0Y1Z2A3B",
    arguments_digest=arguments_digest(ARGUMENTS, None),
    salt=None,
    capability="refund.create",
    receiver="acme-pay",
    permitted_at=GRANTED,
    lease_until=GRANTED + timedelta(seconds=60),
)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring.load(tmp_path_factory.mktemp("keys") / "keys", create=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    """The ring of another ledger."""
    return Keyring.load(tmp_path_factory.mktemp("other") / "keys", create=True)


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def forged(ring: Keyring, header: Any = None, claims: Any = None, *, signed: bool = True) -> str:
    """A token of any header and claims, signed by the ring's own key: what a mistaken release could have made."""
    head = (
        {"alg": "EdDSA", "kid": ring.signing.kid, "typ": "counterfoil-permit+jwt"}
        if header is None
        else header
    )
    said = json.loads(decoded(sign(STATEMENT, ring).split(".")[1])) if claims is None else claims
    text = f"{encoded(json.dumps(head).encode())}.{encoded(json.dumps(said).encode())}"
    signature = ring.signing.private.sign(text.encode()) if signed else b"\0" * 64
    return f"{text}.{encoded(signature)}"


def claims_with(ring: Keyring, **changes: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(decoded(sign(STATEMENT, ring).split(".")[1]))
    said.update(changes)
    return {name: claim for name, claim in said.items() if claim is not ...}


# What does not pass


def test_no_altered_character_passes(ring: Keyring) -> None:
    token = sign(STATEMENT, ring)
    for at, character in enumerate(token):
        altered = token[:at] + ("A" if character != "A" else "B") + token[at + 1 :]
        with pytest.raises(PermitInvalid):
            read(altered, ring)


def test_a_second_spelling_of_the_same_bytes_does_not_pass(ring: Keyring) -> None:
    """86 characters spell the 64 bytes of a signature with four bits to spare: 16 spellings, one of them ours."""
    token = sign(STATEMENT, ring)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    same = [
        token[:-1] + c
        for c in alphabet
        if decoded((token[:-1] + c).split(".")[2]) == decoded(token.split(".")[2])
    ]
    assert len(same) == 16
    passed = []
    for spelling in (*same, token + "=", token + "==", token.replace("-", "+").replace("_", "/") + "="):
        try:
            read(spelling, ring)
            passed.append(spelling)
        except PermitInvalid:
            pass
    assert passed == [token]


def test_the_permit_of_another_ledger_does_not_pass(ring: Keyring, other: Keyring) -> None:
    with pytest.raises(PermitInvalid, match="does not know"):
        read(sign(STATEMENT, other), ring)
    # Nor under the name of our own key.
    head = {"alg": "EdDSA", "kid": ring.signing.kid, "typ": "counterfoil-permit+jwt"}
    with pytest.raises(PermitInvalid, match="signature"):
        read(forged(other, head), ring)


HEADERS: list[Callable[[str], dict[str, Any]]] = [
    # The two classic forgeries: no signature at all, and our public key used as a shared secret.
    lambda kid: {"alg": "none", "kid": kid, "typ": "counterfoil-permit+jwt"},
    lambda kid: {"alg": "HS256", "kid": kid, "typ": "counterfoil-permit+jwt"},
    lambda kid: {"alg": "eddsa", "kid": kid, "typ": "counterfoil-permit+jwt"},
    lambda kid: {"alg": None, "kid": kid, "typ": "counterfoil-permit+jwt"},
    # Another statement that the same key signed, a seal for instance, is no permit.
    lambda kid: {"alg": "EdDSA", "kid": kid, "typ": "JWT"},
    lambda kid: {"alg": "EdDSA", "kid": kid, "typ": "counterfoil-seal"},
    lambda kid: {"alg": "EdDSA", "kid": kid},
    # A key that comes along, or is named by a place to fetch it from.
    lambda kid: {"alg": "EdDSA", "kid": kid, "typ": "counterfoil-permit+jwt", "jwk": {"kty": "OKP"}},
    lambda kid: {"alg": "EdDSA", "kid": kid, "typ": "counterfoil-permit+jwt", "jku": "https://evil.example"},
    lambda kid: {"alg": "EdDSA", "kid": kid, "typ": "counterfoil-permit+jwt", "crit": ["b64"], "b64": False},
    lambda kid: {"alg": "EdDSA", "kid": "../pepper", "typ": "counterfoil-permit+jwt"},
    lambda kid: {"alg": "EdDSA", "kid": None, "typ": "counterfoil-permit+jwt"},
    lambda kid: {"alg": "EdDSA", "kid": [kid], "typ": "counterfoil-permit+jwt"},
    lambda kid: {"alg": "EdDSA", "typ": "counterfoil-permit+jwt"},
    lambda kid: {},
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_is_not_a_permit_s_does_not_pass(ring: Keyring, header: Callable[[str], Any]) -> None:
    with pytest.raises(PermitInvalid):
        read(forged(ring, header(ring.signing.kid)), ring)


def test_an_hmac_with_the_public_key_does_not_pass(ring: Keyring) -> None:
    head = {"alg": "HS256", "kid": ring.signing.kid, "typ": "counterfoil-permit+jwt"}
    text = ".".join(forged(ring, head).split(".")[:2])
    secret = decoded(ring.public_jwks()["keys"][0]["x"])
    with pytest.raises(PermitInvalid):
        read(f"{text}.{encoded(hmac.digest(secret, text.encode(), hashlib.sha256))}", ring)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": "1"},
        {"attempt": True, "jti": f"{STATEMENT.invocation_id}/True"},
        {"attempt": None},
        {"attempt": 2},  # jti says 1
        {"attempt": 1.5},
        {"jti": "0198/1"},
        {"operation_id": None},
        {"operation_id": 7},
        {"workspace": ["acme"]},
        {"receiver": ...},
        {"exp": ...},
        {"exp": "2026-11-30T12:00:00Z"},
        {"exp": True},
        {"exp": None},
        {"exp": 9e15},
        {"iat": -9e15},
        {"salt": None},
        {"salt": 7},
        {"salt": "no base64!"},
        {"more": 1},
    ],
)
def test_claims_that_are_not_a_permit_s_do_not_pass_although_they_are_signed(
    ring: Keyring, changes: dict[str, Any]
) -> None:
    with pytest.raises(PermitInvalid):
        read(forged(ring, claims=claims_with(ring, **changes)), ring)


@pytest.mark.parametrize("claims", [[], "text", 7, {}])
def test_signed_claims_that_are_no_statement_do_not_pass(ring: Keyring, claims: Any) -> None:
    with pytest.raises(PermitInvalid):
        read(forged(ring, claims=claims), ring)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "e30.e30.e30",
        "é.é.é",
        "\ud800.a.b",
        "W1tbW1s.e30.AA",  # [[[[[ as a header
        "a" * 1_000_000,
        "a." * 500_000,
        "a" * 400_000 + ".b.c",
    ],
)
def test_what_is_no_token_is_refused_by_the_same_error(ring: Keyring, token: str) -> None:
    with pytest.raises(PermitInvalid):
        read(token, ring)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("abcXYZ019-_.=e{}é"), max_size=60))
def test_any_text_is_answered(ring: Keyring, text: str) -> None:
    with pytest.raises(PermitInvalid):
        read(text, ring)


# What does


def test_a_permit_is_read_as_what_was_signed(ring: Keyring) -> None:
    for salt in (None, mint_salt()):
        statement = replace(STATEMENT, salt=salt, arguments_digest=arguments_digest(ARGUMENTS, salt))
        assert read(sign(statement, ring), ring) == statement


@settings(max_examples=200, deadline=None)
@given(
    texts=st.tuples(
        *[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40)] * 7
    ),
    attempt=st.integers(1, 9999),
    salt=st.none() | st.binary(min_size=16, max_size=16),
    times=st.tuples(
        *[
            st.datetimes(datetime(1970, 1, 1), datetime(2106, 1, 1), timezones=st.just(UTC)),
        ]
        * 2
    ),
)
def test_every_statement_comes_back_to_the_microsecond(
    ring: Keyring,
    texts: tuple[str, ...],
    attempt: int,
    salt: bytes | None,
    times: tuple[datetime, datetime],
) -> None:
    names = [f.name for f in fields(PermitStatement) if f.type == "str"]
    statement = PermitStatement(
        **dict(zip(names, texts, strict=True)),
        attempt=attempt,
        salt=salt,
        permitted_at=times[0],
        lease_until=times[1],
    )
    assert read(sign(statement, ring), ring) == statement


def test_the_same_permit_is_the_same_token_and_any_difference_another(ring: Keyring) -> None:
    token = sign(STATEMENT, ring)
    assert sign(replace(STATEMENT), ring) == token
    for field in fields(PermitStatement):
        value = getattr(STATEMENT, field.name)
        changed: Any = {
            str: lambda value=value: value + "x",
            int: lambda value=value: value + 1,
            type(None): mint_salt,
            datetime: lambda value=value: value + timedelta(microseconds=1),
        }[type(value)]()
        assert sign(replace(STATEMENT, **{field.name: changed}), ring) != token, field.name


def test_a_moment_in_another_zone_is_the_same_moment(ring: Keyring) -> None:
    elsewhere = replace(
        STATEMENT, lease_until=STATEMENT.lease_until.astimezone(timezone(timedelta(hours=13)))
    )
    assert sign(elsewhere, ring) == sign(STATEMENT, ring)


def test_the_permit_of_a_key_that_was_rotated_away_is_still_read(tmp_path: Path) -> None:
    ring = Keyring.load(tmp_path, create=True)
    old = sign(STATEMENT, ring)
    rotate(tmp_path, "signing")
    fresh = Keyring.load(tmp_path)
    assert read(old, fresh) == STATEMENT
    # And a process that has not noticed the rotation reads the new one.
    new = sign(STATEMENT, fresh)
    assert new != old
    assert read(new, ring) == STATEMENT


def test_the_longest_names_make_a_token_that_is_still_read(ring: Keyring) -> None:
    wide = "😀" * 200
    statement = replace(
        STATEMENT,
        workspace="w" * 100,
        operation_id="o" * 200,
        idempotency_key="k" * 255,
        capability=wide,
        receiver=wide,
        salt=mint_salt(),
    )
    token = sign(statement, ring)
    assert len(token) < MAX_TOKEN
    assert read(token, ring) == statement


def test_a_token_is_read_after_its_lease_because_its_holder_still_has_to_report(ring: Keyring) -> None:
    past = replace(STATEMENT, lease_until=datetime(2001, 1, 1, tzinfo=UTC))
    assert read(sign(past, ring), ring) == past


def test_the_token_is_the_documented_one(ring: Keyring) -> None:
    header, payload, signature = sign(STATEMENT, ring).split(".")
    assert decoded(header) == canonical(
        {"alg": "EdDSA", "kid": ring.signing.kid, "typ": "counterfoil-permit+jwt"}
    )
    assert json.loads(decoded(payload)) == {
        "arguments_digest": STATEMENT.arguments_digest,
        "attempt": 1,
        "capability": "refund.create",
        "exp": 1796040060.250001,
        "iat": 1796040000.250001,
        "idempotency_key": STATEMENT.idempotency_key,
        "invocation_id": STATEMENT.invocation_id,
        "jti": f"{STATEMENT.invocation_id}/1",
        "operation_id": "op-7f3",
        "receiver": "acme-pay",
        "workspace": "acme",
    }
    assert len(decoded(signature)) == 64


# The check that others make


def check(token: str, jwks: dict[str, Any], now: float) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(CHECK, scope)
    permit: dict[str, Any] = scope["permitted"](token, jwks, now)
    return permit


def test_twenty_lines_and_the_published_keys_check_a_permit_offline(ring: Keyring) -> None:
    assert len([line for line in CHECK.splitlines() if line.strip()]) <= 20
    published = json.loads(json.dumps(ring.public_jwks()))
    salt = mint_salt()
    statement = replace(STATEMENT, salt=salt, arguments_digest=arguments_digest(ARGUMENTS, salt))
    now = STATEMENT.permitted_at.timestamp()
    permit = check(sign(statement, ring), published, now)
    # The adapter computes the digest of what it is about to send, without our code.
    text = json.dumps(ARGUMENTS, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert (
        permit["arguments_digest"]
        == "jcs-sha256:" + hashlib.sha256(decoded(permit["salt"]) + text).hexdigest()
    )
    assert (permit["receiver"], permit["jti"]) == ("acme-pay", f"{STATEMENT.invocation_id}/1")


def test_those_lines_refuse_the_altered_the_foreign_and_the_late(ring: Keyring, other: Keyring) -> None:
    published, token = ring.public_jwks(), sign(STATEMENT, ring)
    now = STATEMENT.permitted_at.timestamp()
    header, payload, signature = token.split(".")
    altered = encoded(decoded(payload).replace(b"acme-pay", b"evil-pay"))
    with pytest.raises(InvalidSignature):
        check(f"{header}.{altered}.{signature}", published, now)
    head = {"alg": "EdDSA", "kid": ring.signing.kid, "typ": "counterfoil-permit+jwt"}
    with pytest.raises(InvalidSignature):
        check(forged(other, head), published, now)
    with pytest.raises(ValueError, match="no permit"):
        check(
            forged(ring, {"alg": "none", "kid": ring.signing.kid, "typ": "counterfoil-permit+jwt"}),
            published,
            now,
        )
    with pytest.raises(ValueError, match="lease"):
        check(token, published, STATEMENT.lease_until.timestamp())
    assert check(token, published, STATEMENT.lease_until.timestamp() - 0.001)


def test_a_published_key_carries_nothing_private(ring: Keyring) -> None:
    (key,) = ring.public_jwks()["keys"]
    assert set(key) == {"kty", "crv", "use", "alg", "kid", "x"}
    assert (key["kty"], key["crv"], key["use"], key["alg"]) == ("OKP", "Ed25519", "sig", "EdDSA")

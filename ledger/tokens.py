"""Runtime tokens: how they look, how they are checked before any look-up, and what of them is stored.

    cfl_<env>_<id>_<secret><checksum>
        env       1–16 of a–z and 0–9: where the token belongs ("live", "demo"); for people and secret scanners
        id        12 base62 characters: public, the row is found by it
        secret    32 base62 characters, 190 bits: never stored
        checksum  6 base62 characters: CRC-32 of everything before it

The checksum proves nothing about authority. It lets a typing error be told from a revoked token, and a secret scanner
tell a token from noise, without asking a database. Stored is HMAC-SHA256 of the secret under the pepper of the key
folder: a copy of the database alone opens nothing. Source: GitHub Engineering, "Behind GitHub's new authentication
token formats" (2021), for prefix and checksum.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass, field

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_CHARS = 12
_SECRET_CHARS = 32  # 32 × log2(62) = 190 bits: more than the 128 that guessing could ever reach.
_CHECKSUM_CHARS = 6  # 62^6 > 2^32: a CRC-32 always fits.
_ENV = re.compile(r"[a-z0-9]{1,16}")
_TOKEN = re.compile(
    rf"cfl_(?P<env>{_ENV.pattern})_(?P<id>[0-9A-Za-z]{{{_ID_CHARS}}})"
    rf"_(?P<secret>[0-9A-Za-z]{{{_SECRET_CHARS}}})(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_CHARS}}})"
)


@dataclass(frozen=True)
class Minted:
    """A new token: `token` is shown once to a person, `token_id` and `secret_hash` are what a row keeps."""

    token: str = field(repr=False)
    token_id: str
    secret_hash: bytes = field(repr=False)


@dataclass(frozen=True)
class Presented:
    """A token somebody sent, well formed and nothing more: whether it opens anything the record says."""

    env: str
    token_id: str
    secret: str = field(repr=False)


def mint(env: str, *, pepper: bytes) -> Minted:
    """A fresh token for `env`. Raises ValueError when `env` is not 1–16 of a–z and 0–9."""
    if not _ENV.fullmatch(env):
        raise ValueError(f"a token's environment is 1 to 16 of a-z and 0-9, not {env!r}")
    token_id = _random(_ID_CHARS)
    secret = _random(_SECRET_CHARS)
    body = f"cfl_{env}_{token_id}_{secret}"
    return Minted(token=body + _checksum(body), token_id=token_id, secret_hash=hash_secret(secret, pepper))


def parse(token: str) -> Presented | None:
    """The parts of a well-formed token, or None. Total: any text, of any length, in any script, is answered."""
    match = _TOKEN.fullmatch(token)
    if match is None or _checksum(token[:-_CHECKSUM_CHARS]) != match["checksum"]:
        return None
    return Presented(env=match["env"], token_id=match["id"], secret=match["secret"])


def hash_secret(secret: str, pepper: bytes) -> bytes:
    """The 32 bytes that are stored for a secret: HMAC-SHA256 under the pepper.

    A fast hash is enough, because the secret is random and not a person's password.
    """
    return hmac.digest(pepper, secret.encode("ascii"), hashlib.sha256)


def _random(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))


def _checksum(body: str) -> str:
    """CRC-32 of the ASCII text, as base62 digits, most significant first, padded with zeros."""
    rest = zlib.crc32(body.encode("ascii"))
    digits = ""
    for _ in range(_CHECKSUM_CHARS):
        rest, digit = divmod(rest, 62)
        digits = _BASE62[digit] + digits
    return digits

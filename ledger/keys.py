"""The key folder (COUNTERFOIL_KEYS): what signs permits and seals, what encrypts sensitive values, and the pepper.

    signing/<kid>.pem     Ed25519; the newest signs, the public halves of all stay published
    encryption/<n>.key    Fernet; the newest encrypts, all of them decrypt
    pepper                keys the hashes of runtime tokens; never rotated

Folders have mode 0700 and files 0600. The ring is made once, under a lock, and never made again over what is left of
an old one: a new pepper would void every token, and a lost encryption key makes what it encrypted unreadable, so a
gap is an error that a person has to see. Back the folder up, apart from the database.

Whoever rotates does it in one process, and the others notice: `current` looks for new names every second, and a
reader that meets a name it does not know looks again at once.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings

LOG = logging.getLogger("counterfoil.keys")

LOOK_AGAIN_S = 1.0  # a rotation is noticed this soon; looking costs two directory listings
PEPPER_BYTES = 32
_UNFINISHED = ".unfinished"
_KID = re.compile(r"[0-9]{4,9}-[0-9a-f]{8}")
_NUMBER = re.compile(r"[0-9]{4,9}")
# What a file that is no key, or a key of another kind, makes the cryptography package raise.
_UNREADABLE = (OSError, ValueError, TypeError, UnsupportedAlgorithm)

Which = Literal["signing", "encryption", "pepper"]
Stamp = tuple[tuple[str, ...], tuple[str, ...]]


class KeysMissing(Exception):
    """The key folder cannot be used as it is; the message says what to do about it."""


class Undecryptable(Exception):
    """This was encrypted by no key of the ring, or was altered since."""


class PepperStays(Exception):
    """The pepper cannot be rotated."""

    def __init__(self) -> None:
        super().__init__(
            "The pepper cannot be rotated: every runtime token is stored as a hash under it, and nobody has the tokens "
            "to hash them again. If it leaked, revoke every token and mint new ones; without the database the pepper "
            "opens nothing."
        )


@dataclass(frozen=True)
class SigningKey:
    """One Ed25519 key and the name (`kid`) under which its public half is published."""

    kid: str
    private: Ed25519PrivateKey = field(repr=False)

    @cached_property
    def public(self) -> Ed25519PublicKey:
        return self.private.public_key()

    def jwk(self) -> dict[str, str]:
        """The public half. Source: RFC 8037 section 2, RFC 7517 section 4."""
        raw = self.public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        return {"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": self.kid, "x": x}


@dataclass(frozen=True)
class Keyring:
    """What the folder held when it was read. Oldest first; never empty."""

    folder: Path
    stamp: Stamp
    signing_keys: tuple[SigningKey, ...] = field(repr=False)
    fernets: tuple[Fernet, ...] = field(repr=False)
    pepper: bytes = field(repr=False)
    exposed: tuple[Path, ...]
    """Paths that group or others may read or write: told in the log, not refused, because mounted secrets often are."""

    @classmethod
    def load(cls, folder: Path, *, create: bool = False) -> Keyring:
        """The ring in `folder`; with `create`, made first where there is none at all.

        Any number of processes may create at once: one makes the ring, the others wait and read it. Raises
        KeysMissing when the ring is missing, incomplete, unfinished or unreadable.
        """
        try:
            try:
                return _read(folder)
            except KeysMissing:
                if not create:
                    raise
            _create(folder)
            return _read(folder)
        except _UNREADABLE as unreadable:
            raise KeysMissing(f"{folder} (COUNTERFOIL_KEYS) cannot be read: {unreadable}.") from unreadable

    @property
    def signing(self) -> SigningKey:
        """The key that signs: the newest."""
        return self.signing_keys[-1]

    @cached_property
    def fernet(self) -> MultiFernet:
        """Encrypts with the newest key, decrypts with any."""
        return MultiFernet(self.fernets[::-1])

    def public(self, kid: str) -> Ed25519PublicKey | None:
        """The public key of that name, or None. A key that came into the folder since is found too."""
        for key in self.signing_keys:
            if key.kid == kid:
                return key.public
        if not _KID.fullmatch(kid):
            return None
        try:
            return _read_signing(self.folder / "signing" / f"{kid}.pem").public
        except (KeysMissing, *_UNREADABLE):
            return None

    def public_jwks(self) -> dict[str, list[dict[str, str]]]:
        """The JSON Web Key Set that is published, newest first. Source: RFC 7517 section 5."""
        return {"keys": [key.jwk() for key in reversed(self.signing_keys)]}

    def encrypt(self, plain: bytes) -> bytes:
        return self.fernet.encrypt(plain)

    def decrypt(self, token: bytes) -> bytes:
        """What `encrypt` was given. Raises Undecryptable; a key that came into the folder since is tried too."""
        try:
            return self.fernet.decrypt(token)
        except InvalidToken:
            pass
        try:
            if _stamp(self.folder) != self.stamp:
                return _read(self.folder).fernet.decrypt(token)
        except (InvalidToken, KeysMissing, *_UNREADABLE):
            pass
        raise Undecryptable(f"no key in {self.folder}/encryption opens this")


def rotate(folder: Path, which: Which) -> str:
    """Adds a key, which signs or encrypts from now on, and returns its name. The old ones stay, to verify and decrypt.

    Raises KeysMissing where there is no complete ring to add to, PepperStays for the pepper.
    """
    if which == "pepper":
        raise PepperStays
    Keyring.load(folder)
    with _locked(folder):
        ring = _read(folder)
        if which == "signing":
            return _add_signing(folder, after=ring.signing.kid.partition("-")[0])
        return _add_encryption(folder, after=ring.stamp[1][-1])


def current() -> Keyring:
    """This process's ring of `settings.KEYS_FOLDER`, read again within a second of a rotation.

    A folder that breaks while the process runs is logged, and the ring that was read before is kept: its keys are no
    worse for it. Raises KeysMissing when there is none yet.
    """
    global _current
    now = time.monotonic()
    folder = Path(settings.KEYS_FOLDER)
    held = _current
    if held is not None and held.ring.folder == folder and now - held.looked_at < LOOK_AGAIN_S:
        return held.ring
    with _current_lock:
        ring = held.ring if held is not None and held.ring.folder == folder else None
        try:
            if ring is None or _stamp(folder) != ring.stamp:
                ring = Keyring.load(folder)
        except (KeysMissing, OSError) as broken:
            if ring is None:
                raise
            LOG.error("the key folder cannot be read any more, the keys read before are kept: %s", broken)
        _current = _Held(ring, now)
        return ring


@dataclass(frozen=True)
class _Held:
    ring: Keyring
    looked_at: float


_current: _Held | None = None
_current_lock = threading.Lock()


# Reading


def _read(folder: Path) -> Keyring:
    if (folder / _UNFINISHED).exists():
        raise KeysMissing(
            f"The keys in {folder} (COUNTERFOIL_KEYS) are being made, or their making was cut short: "
            "`manage.py rotate_keys --create` finishes it."
        )
    # The stamp comes first: a key that arrives in between is then noticed at the next look.
    stamp = _stamp(folder)
    missing = [name for name, held in zip(("signing", "encryption"), stamp, strict=True) if not held]
    missing += [] if (folder / "pepper").is_file() else ["pepper"]
    if len(missing) == 3:
        raise KeysMissing(
            f"There are no keys in {folder} (COUNTERFOIL_KEYS). `manage.py rotate_keys --create` makes them; for a "
            "service that ran before, restore the folder from its backup instead."
        )
    if missing:
        raise KeysMissing(
            f"{folder} (COUNTERFOIL_KEYS) has no {' and no '.join(missing)}. Restore it from its backup: new keys "
            "would not open what the old ones closed."
        )
    pepper = bytes.fromhex((folder / "pepper").read_text("ascii").strip())
    if len(pepper) != PEPPER_BYTES:
        raise KeysMissing(f"{folder / 'pepper'} is damaged: restore it from its backup.")
    ring = Keyring(
        folder=folder,
        stamp=stamp,
        signing_keys=tuple(_read_signing(folder / "signing" / f"{kid}.pem") for kid in stamp[0]),
        fernets=tuple(Fernet((folder / "encryption" / f"{n}.key").read_bytes().strip()) for n in stamp[1]),
        pepper=pepper,
        exposed=_exposed(folder, stamp),
    )
    for path in ring.exposed:
        LOG.warning("%s can be read or written by others than its owner: chmod go-rwx it", path)
    return ring


def _read_signing(path: Path) -> SigningKey:
    private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(private, Ed25519PrivateKey):
        raise KeysMissing(f"{path} is no Ed25519 key.")
    return SigningKey(path.stem, private)


def _stamp(folder: Path) -> Stamp:
    """The names of the keys, oldest first. Names are never used again, so equal stamps are equal rings."""
    return (
        _names(folder / "signing", ".pem", _KID),
        _names(folder / "encryption", ".key", _NUMBER),
    )


def _names(folder: Path, suffix: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    try:
        names = [name.removesuffix(suffix) for name in os.listdir(folder) if name.endswith(suffix)]
    except FileNotFoundError:
        return ()
    return tuple(
        sorted((n for n in names if pattern.fullmatch(n)), key=lambda n: (int(n.partition("-")[0]), n))
    )


def _exposed(folder: Path, stamp: Stamp) -> tuple[Path, ...]:
    paths = [
        folder,
        folder / "pepper",
        *(folder / "signing" / f"{kid}.pem" for kid in stamp[0]),
        *(folder / "encryption" / f"{number}.key" for number in stamp[1]),
    ]
    return tuple(path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077)


# Writing


def _create(folder: Path) -> None:
    """Makes a whole ring where there is none. A mark tells a ring cut short in the making (finish it) from one that
    lost a part (leave it alone)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        mark = folder / _UNFINISHED
        stamp = _stamp(folder)
        if any(stamp) or (folder / "pepper").exists():
            if not mark.exists():
                return
        elif not mark.exists():
            _write(mark, b"")
        if not stamp[0]:
            _add_signing(folder, after="0")
        if not stamp[1]:
            _add_encryption(folder, after="0")
        if not (folder / "pepper").exists():
            _write(folder / "pepper", secrets.token_hex(PEPPER_BYTES).encode())
        mark.unlink()
        _sync(folder)


def _add_signing(folder: Path, *, after: str) -> str:
    private = Ed25519PrivateKey.generate()
    raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    kid = f"{int(after) + 1:04d}-{hashlib.sha256(raw).hexdigest()[:8]}"
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / "signing" / f"{kid}.pem", pem)
    return kid


def _add_encryption(folder: Path, *, after: str) -> str:
    number = f"{int(after) + 1:04d}"
    _write(folder / "encryption" / f"{number}.key", Fernet.generate_key())
    return number


def _write(path: Path, content: bytes) -> None:
    """The file appears whole, with mode 0600, and is on the disk before this returns. Never over another file."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time. The lock dies with its process."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as unwritable:
        raise KeysMissing(f"{folder} (COUNTERFOIL_KEYS) cannot be written: {unwritable}.") from unwritable
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""The key folder: made once, never made over, rotated without anything going dark."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from django.core.management import CommandError, call_command

from ledger import keys
from ledger.keys import Keyring, KeysMissing, PepperStays, Undecryptable, rotate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete ring, in a folder that did not exist before."""
    Keyring.load(tmp_path / "not" / "yet" / "keys", create=True)
    return tmp_path / "not" / "yet" / "keys"


# Refusals


def test_a_folder_that_is_not_there_is_named_with_the_setting_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(KeysMissing, match=r"COUNTERFOIL_KEYS.*--create") as missing:
        Keyring.load(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(missing.value)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("lost", ["pepper", "signing", "encryption"])
@pytest.mark.parametrize("create", [False, True])
def test_a_ring_that_lost_a_part_is_refused_and_not_made_anew(folder: Path, lost: str, create: bool) -> None:
    path = folder / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(KeysMissing, match=rf"no {lost}.*backup"):
        Keyring.load(folder, create=create)
    assert not path.exists()


def write_no_pem(folder: Path) -> None:
    next(folder.glob("signing/*.pem")).write_text("not a key")


def write_another_kind_of_key(folder: Path) -> None:
    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    next(folder.glob("signing/*.pem")).write_bytes(pem)


def write_a_key_with_a_password(folder: Path) -> None:
    path = next(folder.glob("signing/*.pem"))
    private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )


DAMAGES: list[Callable[[Path], object]] = [
    write_no_pem,
    write_another_kind_of_key,
    write_a_key_with_a_password,
    lambda folder: next(folder.glob("signing/*.pem")).write_bytes(b""),
    lambda folder: next(folder.glob("encryption/*.key")).write_bytes(b""),
    lambda folder: next(folder.glob("encryption/*.key")).write_text("c2hvcnQ="),
    lambda folder: (folder / "pepper").write_bytes(b""),
    lambda folder: (folder / "pepper").write_text("00" * 31),
    lambda folder: (folder / "pepper").write_text("xy" * 32),
    lambda folder: (folder / "pepper").write_text("é" * 32),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("create", [False, True])
def test_a_damaged_file_is_refused_and_left_as_it_is(
    folder: Path, damage: Callable[[Path], object], create: bool
) -> None:
    damage(folder)
    before = contents(folder)
    with pytest.raises(KeysMissing):
        Keyring.load(folder, create=create)
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeysMissing, match="COUNTERFOIL_KEYS"):
        Keyring.load(tmp_path / "file" / "keys", create=True)


def test_the_pepper_cannot_be_rotated_and_the_reason_is_said(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(PepperStays, match="every runtime token"):
        rotate(folder, "pepper")
    assert contents(folder) == before


@pytest.mark.parametrize("which", ["signing", "encryption"])
def test_nothing_is_added_to_a_ring_that_is_missing_or_incomplete(tmp_path: Path, which: keys.Which) -> None:
    with pytest.raises(KeysMissing, match="no keys"):
        rotate(tmp_path / "nowhere", which)
    Keyring.load(tmp_path / "keys", create=True)
    (tmp_path / "keys" / "pepper").unlink()
    before = contents(tmp_path / "keys")
    with pytest.raises(KeysMissing, match="pepper"):
        rotate(tmp_path / "keys", which)
    assert contents(tmp_path / "keys") == before


# Making


def test_only_the_owner_can_read_what_is_made_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ring = Keyring.load(tmp_path / "keys", create=True)
        rotate(tmp_path / "keys", "signing")
        rotate(tmp_path / "keys", "encryption")
    finally:
        os.umask(before)
    for path in (tmp_path / "keys", *(tmp_path / "keys").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert ring.exposed == ()


def test_loading_again_changes_nothing_and_reads_the_same(folder: Path) -> None:
    before = contents(folder)
    rings = [Keyring.load(folder), Keyring.load(folder, create=True)]
    assert contents(folder) == before
    assert rings[0].pepper == rings[1].pepper
    assert rings[0].public_jwks() == rings[1].public_jwks()


def test_a_ring_is_made_beside_other_files_of_the_folder(tmp_path: Path) -> None:
    """The sessions' secret lives in the same folder and may have come first."""
    (tmp_path / "session").write_text("s" * 64)
    Keyring.load(tmp_path, create=True)
    assert (tmp_path / "session").read_text() == "s" * 64


@pytest.mark.parametrize("cut_after", [0, 1, 2, 3])
def test_a_making_that_was_cut_short_is_refused_until_it_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_after: int
) -> None:
    """The process dies after so many files: the mark, the signing key, the encryption key; before the mark is gone."""
    written = 0
    honest = os.link

    def dying(source: Path, target: Path) -> None:
        nonlocal written
        if written == cut_after:
            raise KeyboardInterrupt
        honest(source, target)
        written += 1

    monkeypatch.setattr(os, "link", dying)
    with pytest.raises(KeyboardInterrupt):
        Keyring.load(tmp_path / "keys", create=True)
    monkeypatch.undo()
    with pytest.raises(KeysMissing, match="--create" if cut_after == 0 else "cut short.*--create"):
        Keyring.load(tmp_path / "keys")
    ring = Keyring.load(tmp_path / "keys", create=True)
    assert len(ring.signing_keys) == len(ring.fernets) == 1
    assert not [path for path in (tmp_path / "keys").rglob(".*") if path.name != ".lock"]


def make(folder: Path, answers: multiprocessing.Queue[tuple[bytes, str]]) -> None:
    ring = Keyring.load(folder, create=True)
    answers.put((ring.pepper, ring.signing.kid))


def turn(folder: Path, which: keys.Which, answers: multiprocessing.Queue[str]) -> None:
    answers.put(rotate(folder, which))


def test_processes_that_make_a_ring_at_once_end_up_with_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    racers = [context.Process(target=make, args=(tmp_path / "keys", answers)) for _ in range(4)]
    for racer in racers:
        racer.start()
    rings = {answers.get(timeout=60) for _ in racers}
    for racer in racers:
        racer.join(60)
    assert len(rings) == 1
    assert len(Keyring.load(tmp_path / "keys").signing_keys) == 1


def test_processes_that_rotate_at_once_add_a_key_each_under_names_of_their_own(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    whiches: tuple[keys.Which, ...] = ("signing", "encryption", "signing", "encryption")
    racers = [context.Process(target=turn, args=(folder, which, answers)) for which in whiches]
    for racer in racers:
        racer.start()
    names = [answers.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(60)
    ring = Keyring.load(folder)
    assert len(set(names)) == 4
    assert [key.kid[:4] for key in ring.signing_keys] == ["0001", "0002", "0003"]
    assert [path.name for path in sorted((folder / "encryption").iterdir())] == [
        "0001.key",
        "0002.key",
        "0003.key",
    ]


# Rotating


def test_after_a_rotation_the_new_key_signs_and_the_old_one_stays_published(folder: Path) -> None:
    before = Keyring.load(folder)
    kid = rotate(folder, "signing")
    after = Keyring.load(folder)
    assert after.signing.kid == kid != before.signing.kid
    published = {key["kid"]: key for key in after.public_jwks()["keys"]}
    assert list(published) == [kid, before.signing.kid]
    assert published[before.signing.kid] == before.public_jwks()["keys"][0]


def test_after_a_rotation_the_new_key_encrypts_and_the_old_one_still_decrypts(folder: Path) -> None:
    before = Keyring.load(folder)
    old = before.encrypt(b"card number")
    rotate(folder, "encryption")
    after = Keyring.load(folder)
    assert after.decrypt(old) == after.fernet.decrypt(old) == b"card number"
    assert after.decrypt(after.encrypt(b"x")) == b"x"
    with pytest.raises(Undecryptable):
        # The ring of before, with its folder gone: what the new key encrypted is not opened by the old one.
        Keyring.decrypt(moved(before), after.encrypt(b"x"))


def moved(ring: Keyring) -> Keyring:
    return Keyring(
        folder=ring.folder / "gone",
        stamp=ring.stamp,
        signing_keys=ring.signing_keys,
        fernets=ring.fernets,
        pepper=ring.pepper,
        exposed=(),
    )


def test_a_process_that_has_not_noticed_a_rotation_reads_what_the_new_keys_made(folder: Path) -> None:
    stale = Keyring.load(folder)
    rotate(folder, "signing")
    rotate(folder, "encryption")
    fresh = Keyring.load(folder)
    assert stale.decrypt(fresh.encrypt(b"x")) == b"x"
    found = stale.public(fresh.signing.kid)
    assert found is not None
    assert found == fresh.signing.public


@pytest.mark.parametrize(
    "kid",
    ["", "nothing", "0002-00000000", "../signing/0001", "/etc/passwd", "0001\x00", "\ud800", "0" * 100_000],
)
def test_a_key_name_from_outside_is_never_used_as_a_path(folder: Path, kid: str) -> None:
    assert Keyring.load(folder).public(kid) is None


def test_a_key_outside_the_folder_is_not_reached_by_its_name(folder: Path) -> None:
    ring = Keyring.load(folder)
    shutil.copy(folder / "signing" / f"{ring.signing.kid}.pem", folder / "0009-00000000.pem")
    shutil.copy(folder / "signing" / f"{ring.signing.kid}.pem", folder / "signing" / "stray.pem")
    for kid in ("../0009-00000000", f"../signing/{ring.signing.kid}", f"./{ring.signing.kid}", "stray"):
        assert ring.public(kid) is None


def test_what_no_key_opens_is_told_so(folder: Path) -> None:
    ring = Keyring.load(folder)
    token = ring.encrypt(b"x")
    for altered in (b"", b"x", token[:-1], token[:-2] + bytes([token[-2] ^ 1]) + token[-1:]):
        with pytest.raises(Undecryptable):
            ring.decrypt(altered)


def test_the_tenth_thousandth_key_is_newer_than_the_one_before(folder: Path) -> None:
    for number in (9998, 9999):
        shutil.copy(next((folder / "encryption").glob("0001.key")), folder / "encryption" / f"{number}.key")
    assert [rotate(folder, "encryption"), rotate(folder, "encryption")] == ["10000", "10001"]
    assert Keyring.load(folder).stamp[1] == ("0001", "9998", "9999", "10000", "10001")


def test_files_that_are_no_keys_are_passed_over(folder: Path) -> None:
    for name in (
        "signing/notes.txt",
        "signing/0002.pem",
        "signing/.0002-00000000.pem.1.ab",
        "encryption/old.key",
    ):
        (folder / name).write_text("x")
    assert len(Keyring.load(folder).signing_keys) == 1


# The running process


@pytest.fixture
def running(folder: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process whose settings name the folder and that has read no keys yet."""
    settings.KEYS_FOLDER = folder
    monkeypatch.setattr(keys, "_current", None)
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0.05)
    return folder


def test_a_running_process_notices_a_rotation(running: Path) -> None:
    before = keys.current()
    assert keys.current() is before
    kid = rotate(running, "signing")
    time.sleep(0.06)
    assert keys.current().signing.kid == kid
    number = rotate(running, "encryption")
    time.sleep(0.06)
    assert keys.current().stamp[1][-1] == number


def test_a_running_process_keeps_its_keys_when_the_folder_breaks_and_says_so(
    running: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = keys.current()
    shutil.rmtree(running)
    time.sleep(0.06)
    assert keys.current() is before
    assert "cannot be read any more" in caplog.text


def test_a_process_without_keys_does_not_begin(running: Path) -> None:
    (running / "pepper").unlink()
    with pytest.raises(KeysMissing, match="pepper"):
        keys.current()


def test_a_file_that_others_may_read_is_told_and_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "pepper").chmod(0o640)
    folder.chmod(0o755)
    ring = Keyring.load(folder)
    assert ring.exposed == (folder, folder / "pepper")
    assert str(folder / "pepper") in caplog.text


def test_neither_pepper_nor_private_keys_are_shown_by_accident(folder: Path) -> None:
    ring = Keyring.load(folder)
    assert ring.pepper.hex() not in repr(ring)
    assert "Ed25519PrivateKey" not in repr(ring) + repr(ring.signing)


# The command


def run(*words: str) -> str:
    out = StringIO()
    call_command("rotate_keys", *words, stdout=out)
    return out.getvalue()


def test_the_command_prints_the_new_name_and_nothing_else(running: Path) -> None:
    assert run("signing") == Keyring.load(running).signing.kid + "\n"
    assert run("encryption") == "0002\n"


def test_the_command_alone_rotates_both_kinds_and_keeps_the_old_ones(running: Path) -> None:
    before = Keyring.load(running)
    signing, encryption = run().split()
    after = Keyring.load(running)
    assert [key.kid for key in after.signing_keys] == [*[key.kid for key in before.signing_keys], signing]
    assert after.stamp[1] == (*before.stamp[1], encryption)


def test_the_command_makes_a_new_folder_once(tmp_path: Path, settings: Any) -> None:
    settings.KEYS_FOLDER = tmp_path / "keys"
    first = run("--create")
    assert run("--create") == first == Keyring.load(tmp_path / "keys").signing.kid + "\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pepper",), "every runtime token"),
        (("both",), "invalid choice"),
        (("signing", "--create"), "stands alone"),
    ],
)
def test_the_command_refuses_with_the_reason(running: Path, words: tuple[str, ...], said: str) -> None:
    before = contents(running)
    with pytest.raises(CommandError, match=said):
        run(*words)
    assert contents(running) == before


def test_the_command_says_where_keys_are_missing(tmp_path: Path, settings: Any) -> None:
    settings.KEYS_FOLDER = tmp_path / "keys"
    with pytest.raises(CommandError, match="COUNTERFOIL_KEYS"):
        run("signing")

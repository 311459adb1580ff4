"""Runtime tokens: their form, their checksum, and what is stored of them."""

from __future__ import annotations

import hashlib
import hmac
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.tokens import Presented, hash_secret, mint, parse

PEPPER = bytes(range(32))


def example() -> str:
    return mint("demo", pepper=PEPPER).token


def test_one_changed_character_anywhere_makes_a_token_nobody_looks_up() -> None:
    token = example()
    for at in range(len(token)):
        for other in (string.ascii_letters + string.digits + "_-é")[:: 1 if at == len(token) - 1 else 5]:
            if other != token[at]:
                assert parse(token[:at] + other + token[at + 1 :]) is None, (token, at, other)


def test_two_neighbours_swapped_make_a_token_nobody_looks_up() -> None:
    token = example()
    for at in range(len(token) - 1):
        swapped = token[:at] + token[at + 1] + token[at] + token[at + 2 :]
        assert parse(swapped) is None or swapped == token


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "0",
        lambda token: token + "\n",
        lambda token: token + "é" * 10,
        lambda token: token + "\ud800",
        lambda token: " " + token,
        lambda token: "Bearer " + token,
        lambda token: token.upper(),
        lambda token: token.replace("cfl_", "cfx_"),
        lambda token: token.replace("demo", "DEMO"),
        lambda token: token.replace("demo", "de_mo"),
        lambda token: token.replace("demo", ""),
        lambda token: token.replace("_", "-"),
        lambda token: token + token,
        lambda token: "\x00" + token,
        lambda token: "\ud800" + token,
        lambda token: token[:20] + "٣" + token[21:],  # a digit of another script
        lambda token: "cfl_" + "a" * 1_000_000,
        lambda token: "_" * 1_000_000,
        lambda token: token * 15_000,
    ],
)
def test_what_is_no_token_is_answered_with_none(change: object) -> None:
    assert callable(change)
    assert parse(change(example())) is None


@given(st.text(st.characters()))
def test_any_text_is_answered(text: str) -> None:
    assert parse(text) is None
    assert parse(f"cfl_{text}") is None


@pytest.mark.parametrize("env", ["", "Live", "li_ve", "live ", "é", "a" * 17, "live\n"])
def test_an_environment_that_the_form_cannot_carry_is_refused(env: str) -> None:
    with pytest.raises(ValueError, match="environment"):
        mint(env, pepper=PEPPER)


@pytest.mark.parametrize("env", ["live", "demo", "1", "a" * 16])
def test_a_minted_token_is_read_as_what_it_was_minted_as(env: str) -> None:
    minted = mint(env, pepper=PEPPER)
    presented = parse(minted.token)
    assert presented is not None
    assert (presented.env, presented.token_id) == (env, minted.token_id)
    assert hash_secret(presented.secret, PEPPER) == minted.secret_hash
    assert re.fullmatch(f"cfl_{env}_[0-9A-Za-z]{{12}}_[0-9A-Za-z]{{38}}", minted.token)


def crc32(data: bytes) -> int:
    """The CRC of IEEE 802.3, bit by bit, from its definition."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0xEDB88320 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def test_the_checksum_is_the_crc_32_of_what_stands_before_it_in_base_62() -> None:
    digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    token = example()
    assert sum(digits.index(c) * 62 ** (5 - at) for at, c in enumerate(token[-6:])) == crc32(
        token[:-6].encode()
    )
    # A secret scanner of another language has to find this one good.
    zeros = "cfl_demo_" + "0" * 12 + "_" + "0" * 32
    assert parse(zeros + "2dsHM6") == Presented(env="demo", token_id="0" * 12, secret="0" * 32)


def test_stored_is_a_keyed_hash_and_another_pepper_gives_another() -> None:
    assert hash_secret("s" * 32, PEPPER) == hmac.new(PEPPER, b"s" * 32, hashlib.sha256).digest()
    assert hash_secret("s" * 32, PEPPER) != hash_secret("s" * 32, PEPPER[::-1])
    assert len({mint("demo", pepper=PEPPER).token_id for _ in range(1000)}) == 1000


def test_neither_token_nor_secret_is_shown_by_accident() -> None:
    minted = mint("demo", pepper=PEPPER)
    presented = parse(minted.token)
    assert presented is not None
    assert presented.secret not in repr(minted) + repr(presented)
    assert minted.token not in repr(minted)

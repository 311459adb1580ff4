"""What permission facts amount to: each reason alone, their order when several hold, and when a permission ends."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from ledger.decisions import Permission
from ledger.permissions import (
    GrantFact,
    Judgement,
    MandateFact,
    PermissionFacts,
    PermissionReason,
    in_force,
    judge,
    matches,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


MANDATE = MandateFact("agent:*", "refund.*", valid_until=later(3600))
GRANT = GrantFact(binding="b1", needed=2, given=2, until=later(600))
FREE = PermissionFacts(
    now=NOW,
    mandates_open=False,
    mandates=(MANDATE,),
    subject="agent:support-7",
    capability="refund.create",
    capability_enabled=True,
    approval_required=False,
    binding="b1",
)
APPROVED = replace(FREE, approval_required=True, grant=GRANT)


def _grant(**changes: Any) -> PermissionFacts:
    return replace(APPROVED, grant=replace(GRANT, **changes))


def _mandates(*mandates: MandateFact) -> PermissionFacts:
    return replace(FREE, mandates=mandates)


LAPSED: list[tuple[PermissionFacts, str]] = [
    (replace(FREE, capability_enabled=False), "capability_disabled"),
    (_grant(refused=True), "refused"),
    (_grant(refused=True, given=0), "refused"),  # one no is enough
    (replace(_grant(refused=True), approval_required=False), "refused"),  # nobody asked, somebody said no
    (_grant(revoked=True), "revoked"),  # C19
    (_grant(revoked=True, given=1), "revoked"),
    (_grant(until=NOW), "expired"),  # C21: in the moment of its end it is over
    (_grant(until=later(-1)), "expired"),
    (_grant(approver_lost_role=True), "approver_lost_role"),  # C19
    (_grant(binding="b2"), "binding_changed"),  # C05
    (_grant(binding="b2", given=0), "binding_changed"),
    (_grant(binding="b2", refused=True), "binding_changed"),  # a no to something else
    (_mandates(), "no_mandate"),
    (_mandates(replace(MANDATE, subject="agent:sales-*")), "no_mandate"),
    (_mandates(replace(MANDATE, capability="order.*")), "no_mandate"),
    (_mandates(replace(MANDATE, valid_until=NOW)), "no_mandate"),  # what is over covers nothing
    (_mandates(replace(MANDATE, revoked=True)), "mandate_revoked"),
    (_mandates(replace(MANDATE, valid_until=NOW), replace(MANDATE, revoked=True)), "mandate_revoked"),
    (_mandates(replace(MANDATE, subject="user:*", revoked=True)), "no_mandate"),  # revoked, but not ours
    (replace(FREE, limit="limit_exceeded"), "limit_exceeded"),
    (replace(FREE, limit="amount_unknown"), "amount_unknown"),
]


@pytest.mark.parametrize(("facts", "reason"), LAPSED)
def test_each_lack_of_authority_lapses_permission_by_its_name(facts: PermissionFacts, reason: str) -> None:
    assert judge(facts) == Judgement(Permission.LAPSED, PermissionReason(reason), None)


def test_every_lapsed_reason_of_the_design_can_be_given() -> None:
    waiting = {"paused", "awaiting_approval", "possible_duplicate"}
    assert {reason for _, reason in LAPSED} == set(PermissionReason) - waiting


PENDING: list[tuple[PermissionFacts, str]] = [
    (replace(APPROVED, grant=None), "awaiting_approval"),  # C59: required and nobody asked yet
    (_grant(given=1), "awaiting_approval"),
    (_grant(given=1, until=later(-1)), "awaiting_approval"),  # only what was given can expire
    (_grant(given=1, approver_lost_role=True), "awaiting_approval"),
    (_grant(given=0, needed=0), "awaiting_approval"),  # a rule that needs nobody is met by nobody
    (replace(FREE, twins=("op-2",)), "possible_duplicate"),  # C30
    (replace(APPROVED, twins=("op-2",)), "possible_duplicate"),
    (replace(APPROVED, grant=None, twins=("op-2",)), "awaiting_approval"),  # who approves sees the twin
]


@pytest.mark.parametrize(("facts", "reason"), PENDING)
def test_what_somebody_or_something_must_still_allow_is_pending(facts: PermissionFacts, reason: str) -> None:
    assert judge(facts) == Judgement(Permission.PENDING, PermissionReason(reason), None)


def test_a_pause_makes_permission_wait() -> None:
    assert judge(replace(FREE, paused="receiver")) == Judgement(
        Permission.PAUSED, PermissionReason.PAUSED, None
    )


@pytest.mark.parametrize(
    ("lapsed", "paused", "pending"), list(product([True, False], [True, False], [True, False]))
)
def test_lapsed_goes_before_paused_before_pending(lapsed: bool, paused: bool, pending: bool) -> None:
    facts = replace(
        APPROVED,
        mandates=() if lapsed else (MANDATE,),
        paused="workspace" if paused else None,
        grant=None if pending else GRANT,
    )
    expected = (
        Permission.LAPSED
        if lapsed
        else Permission.PAUSED
        if paused
        else Permission.PENDING
        if pending
        else Permission.GRANTED
    )
    assert judge(facts).permission is expected


# S14: what was allowed once is judged again
def test_permission_is_never_given_beside_any_lapsed_fact() -> None:
    for facts, _ in LAPSED:
        for paused, twins in product([None, "workspace"], [(), ("op-2",)]):
            assert judge(replace(facts, paused=paused, twins=twins)).permission is Permission.LAPSED


ENDS: list[tuple[PermissionFacts, Permission, datetime | None]] = [
    (FREE, Permission.NOT_REQUIRED, later(3600)),
    (APPROVED, Permission.GRANTED, later(600)),  # the approval ends first
    (_grant(until=later(7200)), Permission.GRANTED, later(3600)),  # the mandate ends first
    (_grant(until=None), Permission.GRANTED, later(3600)),
    (_grant(given=3), Permission.GRANTED, later(600)),  # more than needed
    (replace(FREE, mandates_open=True, mandates=()), Permission.NOT_REQUIRED, None),
    (replace(APPROVED, mandates_open=True, mandates=()), Permission.GRANTED, later(600)),
    (replace(FREE, grant=replace(GRANT, binding="b2")), Permission.NOT_REQUIRED, later(3600)),
    (replace(FREE, grant=replace(GRANT, revoked=True)), Permission.NOT_REQUIRED, later(3600)),
    (_mandates(MANDATE, replace(MANDATE, valid_until=later(9000))), Permission.NOT_REQUIRED, later(9000)),
    (_mandates(MANDATE, replace(MANDATE, valid_until=None)), Permission.NOT_REQUIRED, None),
    (_mandates(MANDATE, replace(MANDATE, revoked=True)), Permission.NOT_REQUIRED, later(3600)),
    (_mandates(replace(MANDATE, limited=True)), Permission.NOT_REQUIRED, later(3600)),  # with room left
    (
        _mandates(MANDATE, replace(MANDATE, subject="user:*", valid_until=later(9000))),
        Permission.NOT_REQUIRED,
        later(3600),  # another's mandate lends nothing
    ),
]


@pytest.mark.parametrize(("facts", "permission", "until"), ENDS)
def test_a_permission_ends_with_its_last_mandate_or_with_its_approval(
    facts: PermissionFacts, permission: Permission, until: datetime | None
) -> None:
    assert judge(facts) == Judgement(permission, None, until)


def test_an_unknown_word_for_a_reached_limit_is_an_error_and_no_permission() -> None:
    with pytest.raises(ValueError, match="tea_time"):
        judge(replace(FREE, limit="tea_time"))


def test_the_limits_of_all_covering_mandates_in_force_apply() -> None:
    limited = replace(MANDATE, subject="*", limited=True)
    mandates = (MANDATE, limited, replace(limited, revoked=True), replace(limited, valid_until=NOW))
    found = in_force(mandates, subject="agent:support-7", capability="refund.create", now=NOW)
    assert found == (MANDATE, limited)


PATTERNS: list[tuple[str, str, bool]] = [
    ("refund.create", "refund.create", True),
    ("refund.create", "refund.created", False),  # the whole string
    ("refund.create", "Refund.create", False),  # case counts
    ("refund.*", "refund.create", True),
    ("refund.*", "refund.", True),  # also none
    ("refund.*", "xrefund.create", False),
    ("*", "", True),
    ("*", "a\nb", True),  # any characters
    ("", "", True),
    ("", "a", False),
    ("a*b", "ab", True),
    ("a*a", "a", False),  # the two ends may not overlap
    ("a*b*c", "a-b-c", True),
    ("a*b*c", "a-c-b", False),
    ("*b*", "abc", True),
    ("*ab*ab*", "ab", False),
    ("a.c", "abc", False),  # a dot is a dot
    ("a[bc]", "ab", False),
    ("a?", "ab", False),
    ("**", "x", True),
]


@pytest.mark.parametrize(("pattern", "text", "fits"), PATTERNS)
def test_a_star_matches_any_characters_and_nothing_else_is_special(
    pattern: str, text: str, fits: bool
) -> None:
    assert matches(pattern, text) is fits


def test_matching_agrees_with_a_regular_expression_on_all_short_words() -> None:
    letters = "ab*"
    patterns = ["".join(word) for count in range(5) for word in product(letters, repeat=count)]
    texts = ["".join(word) for count in range(5) for word in product("ab", repeat=count)]
    for pattern in patterns:
        expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        for text in texts:
            assert matches(pattern, text) is bool(expression.fullmatch(text)), (pattern, text)


def test_a_pattern_full_of_stars_is_answered_at_once() -> None:
    assert not matches("*a" * 5000 + "b", "a" * 20_000)

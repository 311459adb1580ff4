"""Every refusal has a code, a status, a way out, and machine fields that an agent can act on."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from pathlib import Path

import pytest

from ledger import errors
from ledger.errors import ALL, Denied, Malformed, MalformedOutcome, Refusal, TooLarge

# Code and status of every problem, as documented; `malformed` is the one code with two.
DOCUMENTED = {
    ("no-ledger-entry", 404),
    ("attempt-in-flight", 409),
    ("reconciliation-required", 409),
    ("settled", 409),
    ("paused", 409),
    ("awaiting-approval", 409),
    ("possible-duplicate", 409),
    ("denied", 409),
    ("discrepancy", 409),
    ("withdrawn", 409),
    ("abandoned", 409),
    ("not-permitted", 403),
    ("stale-attempt", 409),
    ("intent-mismatch", 422),
    ("capability-unknown", 422),
    ("reference-required", 422),
    ("key-in-use", 422),
    ("not-supersedable", 409),
    ("already-compensated", 409),
    ("approval-expired", 410),
    ("already-decided", 409),
    ("malformed", 400),
    ("malformed", 422),
    ("method-not-allowed", 405),
    ("unsupported-media-type", 415),
    ("too-large", 413),
    ("unauthenticated", 401),
    ("forbidden", 403),
    ("rate-limited", 429),
    ("evidence-conflict", 409),
    ("unavailable", 503),
    ("post-dispatch-evidence-failed", 503),
    ("not-found", 404),
    ("internal-error", 500),
}


def raised(problem: type[Refusal]) -> Refusal:
    if issubclass(problem, Malformed):
        return problem("/a", "this is wrong")
    if issubclass(problem, TooLarge):
        return problem(100)
    return problem()


def test_the_problems_are_the_documented_ones() -> None:
    assert {(problem.code, problem.status) for problem in ALL} == DOCUMENTED
    assert len(ALL) == len(DOCUMENTED)


def test_no_class_of_the_file_is_left_out_of_the_list() -> None:
    here = {one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, Refusal)}
    assert here - {Refusal} == set(ALL)


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.__name__)
def test_a_problem_says_what_is_so_and_what_to_do(problem: type[Refusal]) -> None:
    assert problem.title.endswith(".")
    assert "\n" not in problem.title
    assert len(problem.title) < 80
    assert problem.way_out.endswith(".")
    assert len(problem.way_out) > 40
    assert "  " not in problem.way_out
    assert "Nothing was recorded" not in problem.way_out or problem.effect_may_have_happened is not True
    assert raised(problem).detail


# C15
@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.__name__)
def test_no_refusal_by_itself_says_that_the_effect_may_be_dispatched_again(problem: type[Refusal]) -> None:
    assert problem.retryable is False


# C02 C15
def test_where_the_outcome_has_to_be_found_out_the_effect_may_have_happened_and_no_new_key_is_minted() -> (
    None
):
    for problem in ALL:
        if problem.reconciliation_required:
            assert problem.effect_may_have_happened is True, problem
        if problem.effect_may_have_happened is not False:
            assert problem.reuse_key is True, problem


# C15
def test_only_what_comes_up_before_anything_is_on_record_rules_the_effect_out() -> None:
    ruled_out = {problem.code for problem in ALL if problem.effect_may_have_happened is False}
    assert ruled_out == {
        "capability-unknown",
        "reference-required",
        "key-in-use",
        "not-supersedable",
        "already-compensated",
    }


def test_repeating_the_same_request_is_of_use_where_time_or_others_change_the_answer() -> None:
    assert {problem.code for problem in ALL if problem.repeat_request} == {
        # A person, a lease or another operation changes it.
        "attempt-in-flight",
        "awaiting-approval",
        "discrepancy",
        "paused",
        "possible-duplicate",
        # The service changes it.
        "internal-error",
        "post-dispatch-evidence-failed",
        "rate-limited",
        "unavailable",
    }


def test_a_denial_can_be_asked_about_again_only_where_it_clears() -> None:
    assert Denied().repeat_request is False
    assert Denied(retry_after=30).repeat_request is True


@pytest.mark.parametrize(("given", "said"), [(None, None), (-5, 1), (0, 1), (1, 1), (90, 90)])
def test_retry_after_is_at_least_a_second(given: int | None, said: int | None) -> None:
    assert errors.Unavailable(retry_after=given).retry_after == said


def test_a_more_exact_detail_replaces_the_general_one_and_extras_are_kept() -> None:
    drift = errors.IntentMismatch(
        "The arguments differ.", extra={"drifted": ["arguments"]}, facts=("any", "thing")
    )
    assert (drift.detail, drift.extra, drift.facts) == (
        "The arguments differ.",
        {"drifted": ["arguments"]},
        ("any", "thing"),
    )
    assert str(drift) == "intent-mismatch: The arguments differ."
    assert errors.IntentMismatch().detail == errors.IntentMismatch.way_out
    assert errors.IntentMismatch().extra == {}


def test_what_is_malformed_is_named_by_its_place() -> None:
    assert Malformed("/a/0", "this is no number").detail == "/a/0: this is no number."
    assert Malformed("", "this is no JSON").detail == "this is no JSON."
    assert Malformed("/a", "x", extra={"more": 1}).extra == {"path": "/a", "more": 1}


# C32: what cannot be read is not evidence, and is never lost.
def test_a_report_that_cannot_be_read_is_recorded_and_means_that_the_effect_may_exist() -> None:
    report = MalformedOutcome("/outcome", "this is no outcome")
    assert report.extra == {"path": "/outcome", "recorded": True}
    assert (report.status, report.code, report.reconciliation_required) == (422, "malformed", True)


def test_titles_are_told_apart() -> None:
    assert [title for title, times in Counter(problem.title for problem in ALL).items() if times > 1] == []


def test_the_file_knows_no_framework() -> None:
    tree = ast.parse(Path(str(errors.__file__)).read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "inspect", "collections.abc", "typing"}

"""The API's own pages in a browser: everything from here, nothing refused by the policy, nothing complained of."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from ledger import errors
from tests.browser.conftest import PHONE, WIDE


def watch(visitor: Any) -> list[tuple[int, str]]:
    """(status, address) of every answer that the browser gets from now on, other hosts' as well."""
    seen: list[tuple[int, str]] = []
    visitor.page.on("response", lambda answer: seen.append((answer.status, answer.url)))
    visitor.page.on("requestfailed", lambda request: visitor.complaints.append(f"failed: {request.url}"))
    return seen


def check_from_here(visitor: Any, seen: list[tuple[int, str]]) -> None:
    assert seen
    host = urlsplit(visitor.base_url).netloc
    for status, url in seen:
        assert url.startswith("data:") or urlsplit(url).netloc == host, url
        assert status in (200, 304), f"{status} {url}"


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_the_calls_are_drawn_from_here_and_under_the_policy(visit: Any, width: int, scheme: str) -> None:
    with visit(width=width, scheme=scheme) as visitor:
        seen = watch(visitor)
        page = visitor.page

        visitor.go("/api/v1/docs")

        expect(page.get_by_role("heading", name="Counterfoil")).to_be_visible()
        expect(page).to_have_title("API · Counterfoil")
        calls = page.locator(".opblock")
        expect(calls).to_have_count(9)
        page.get_by_text("Record the intent").click()
        expect(page.get_by_role("link", name="intent-mismatch")).to_be_visible()
        page.get_by_text("Ask for the permit of one attempt").click()
        expect(page.get_by_text("Permit-Nonce").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        visitor.keep(f"docs-{width}-{scheme}")
        icon = page.request.get(visitor.base_url + str(page.locator("link[rel=icon]").get_attribute("href")))
        assert (icon.status, icon.headers["content-type"]) == (200, "image/svg+xml")
        check_from_here(visitor, seen)


def test_a_call_tried_on_the_page_gets_its_answer(visit: Any) -> None:
    with visit() as visitor:
        page = visitor.page
        visitor.go("/api/v1/docs")
        page.get_by_text("The keys that permits are signed with").click()
        page.get_by_role("button", name="Try it out").click()

        page.get_by_role("button", name="Execute").click()

        expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
        expect(page.locator(".live-responses-table")).to_contain_text("Ed25519")


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_the_problems_are_read_without_a_login(visit: Any, width: int, scheme: str) -> None:
    with visit(width=width, scheme=scheme, scripts=False) as visitor:
        seen = watch(visitor)
        page = visitor.page

        visitor.go("/api/v1/problems")

        expect(page.get_by_role("heading", name="Problems", exact=True)).to_be_visible()
        expect(page.locator("section")).to_have_count(len({refusal.code for refusal in errors.ALL}))
        page.get_by_role("link", name="attempt-in-flight").first.click()
        expect(page.locator("#attempt-in-flight")).to_be_in_viewport()
        page.locator("#attempt-in-flight summary").click()
        expect(page.locator("#attempt-in-flight pre")).to_contain_text('"retry_after": 58')
        visitor.keep(f"problems-{width}-{scheme}")
        visitor.check_fits()
        check_from_here(visitor, seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_problems_are_accessible(visit: Any, scheme: str) -> None:
    with visit(scheme=scheme) as visitor:
        visitor.go("/api/v1/problems")
        visitor.check_accessible()


def test_a_refusal_on_the_page_of_calls_leads_to_its_row(visit: Any) -> None:
    with visit() as visitor:
        page = visitor.page
        visitor.go("/api/v1/docs")
        page.get_by_text("Record the intent").click()

        with page.expect_popup() as opened:
            page.get_by_role("link", name="intent-mismatch").click()

        expect(opened.value).to_have_url(f"{visitor.base_url}/api/v1/problems#intent-mismatch")
        expect(opened.value.locator("#intent-mismatch")).to_be_in_viewport()

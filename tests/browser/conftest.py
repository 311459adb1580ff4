"""Chromium on a real web server, and people who sign in as people do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.scenes import PASSWORD, Scene, busy, scene

SCREENSHOTS = Path(__file__).parent / "screenshots"
PATIENCE_MS = 20_000  # on two busy cores a page can take seconds; a test that passes waits for nothing
expect.set_options(timeout=PATIENCE_MS)
WIDE, PHONE, NARROWEST = 1280, 390, 320


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The machine's Chromium; a skip that says so where there is none. It is gone before other tests run."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "needs Chromium: on Debian, apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's synchronous interface runs a loop in this thread; the scenes' queries run beside it, in turn.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no user namespace to hide in
        browser = playwright.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def acme(record: None) -> tuple[Scene, dict[str, str]]:
    """One busy workspace that tests look at and do not change."""
    from reconciliation import services

    made = scene(password=PASSWORD)
    names = busy(made)
    services.sweep(claimed_at_most=0)
    return made, names


class Visitor:
    """One person at one screen. Whatever the browser's console complains of ends the test."""

    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.base_url = base_url
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        # A refused form answers 4xx, which Chromium reports as if a file were missing.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def go(self, address: str) -> None:
        self.page.goto(f"{self.base_url}{address}")

    def sign_in(self, user: Any) -> None:
        self.go("/accounts/login/")
        self.page.get_by_label("E-mail address").fill(user.email)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/unknowns")

    def keep(self, name: str) -> None:
        """A screenshot of the whole page, for whoever wants to see what the tests saw."""
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def check_accessible(self) -> None:
        results = Axe().run(self.page)
        assert results.violations_count == 0, results.generate_report()

    def check_fits(self) -> None:
        """Nothing makes a person scroll sideways."""
        beyond = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert beyond <= 0, f"{beyond} px beyond the screen"


@pytest.fixture
def visit(chromium: Browser, live: str) -> Iterator[Any]:
    """``with visit(width=…, scheme=…, scripts=…) as visitor``: a browser of its own, on the running service."""

    @contextmanager
    def open_one(*, width: int = WIDE, scheme: Any = "light", scripts: bool = True) -> Iterator[Visitor]:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        visitor = Visitor(context.new_page(), live)
        try:
            yield visitor
            assert visitor.complaints == []
        finally:
            context.close()

    return open_one

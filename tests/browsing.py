"""A real browser that looks at the page, and notes everything that a page must not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

#: Milliseconds that a look at the page waits for what should be there; machines of tests are busy.
PATIENCE_MS = 30_000

#: As root, chromium has no sandbox; in a container /dev/shm is small.
_FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-quic", "--disable-component-update")

expect.set_options(timeout=PATIENCE_MS)


def installed_browser() -> str:
    """The path of Chromium. Without one the test is skipped, in CI it fails."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        assert "CI" not in os.environ, "the machine that runs CI needs chromium"
        pytest.skip("the page was not looked at: there is no chromium here")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium, without a window. No browser is downloaded: it is the one that is installed."""
    path = installed_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """One visitor with a storage of its own.

    `complaints` are errors and warnings of the page, of its scripts and of its content security policy; `requests` are
    the addresses that it asked for.
    """

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def open(self, *, query: str = "", path: str = "/") -> Page:
        """Go to the page, and wait until it has seen the service once."""
        self.page.goto(f"{self.origin}{path}" + (f"?q={quote(query)}" if query else ""))
        if path == "/":
            expect(self.page.locator("#connection")).to_have_attribute("data-kind", "ok")
        return self.page

    def search(self, query: str) -> None:
        """Ask by the form, and wait for the answer."""
        self.page.get_by_role("searchbox", name="Search memory").fill(query)
        with self.page.expect_response("**/v1/search"):
            self.page.keyboard.press("Enter")
        expect(self.page.locator("#found[aria-busy]")).to_have_count(0)

    def behaved(self) -> None:
        """Nothing was complained about, but what is expected; nobody else was asked for anything."""
        unexpected = [said for said in self.complaints if not any(part in said for part in self.expected)]
        assert unexpected == []
        assert {urlsplit(url).netloc for url in self.requests} == {urlsplit(self.origin).netloc}


@contextmanager
def visiting(
    browser: Browser, origin: object, *, language: str = "en-US", width: int = 1280, expected: tuple[str, ...] = ()
) -> Iterator[Visit]:
    """Visit a service until the end of the block; then look back at how the page behaved.

    Args:
        browser: what to visit with.
        origin: the service's address.
        language: of the browser.
        width: of the window, in pixels.
        expected: parts of complaints that belong to what the test does, such as a service that is away.
    """
    context = browser.new_context(locale=language, viewport={"width": width, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    visit = Visit(page, str(origin).rstrip("/"), expected=expected)

    def console(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            visit.complaints.append(message.text)

    page.on("console", console)
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("request", lambda request: visit.requests.append(request.url))
    try:
        yield visit
        visit.behaved()
    finally:
        context.close()

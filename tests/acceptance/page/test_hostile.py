"""Notes and file names by somebody who means ill are shown, and are nothing but text."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from memory.store.writer import Store
from schemas.documents import DocumentKey
from schemas.settings import Settings
from tests.browsing import visiting
from tests.serving import running
from tests.written_index import write_index

MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script><style>body{display:none}</style>'


@pytest.fixture
def hostile(settings: Settings, workspace: Path) -> Store:
    notes = {
        "2026-01-05-<img src=x onerror='window.hacked=3'>.md": f"gateway {MARKUP}\n",
        "2026-01-05-\u202egnp.md": "gateway \u202e reversed מרחבא من اليمين\n",
        f"2026-01-06-{'verylong' * 24}.md": f"gateway {'Donaudampfschiff' * 400}\n",
        "2026-01-07.md": "gateway \x00 \x1b[31m \ud7ff 👩‍👩‍👧 \u0301\u0301\u0301\n",
        "javascript:alert(1).md": "gateway javascript:window.hacked=4\n",
    }
    for name, text in notes.items():
        (workspace / "memory" / name).write_text(text, "utf-8")
    store = write_index(settings)
    store.add_dead_letter(DocumentKey("memory", f"memory/{MARKUP}.md"), reason=MARKUP, error_class=MARKUP)
    return store


def test_nothing_of_it_runs_and_all_of_it_can_be_read(settings: Settings, hostile: Store, browser: Browser) -> None:
    with running(settings) as service, visiting(browser, service.base_url, width=400) as visit:
        page = visit.open(query="gateway")
        expect(page.locator(".result")).to_have_count(5)
        expect(page.locator("#found")).to_contain_text(MARKUP)
        expect(page.locator("#letters")).to_contain_text(f"memory/{MARKUP}.md")
        expect(page.locator("#letters .reason")).to_have_text(MARKUP)
        # A sign that turns what follows around is shown instead of obeyed.
        expect(page.locator("#found")).to_contain_text("2026-01-05-⟨U+202E⟩gnp.md")
        for index in range(5):
            page.locator(".result .open").nth(index).click()
            expect(page.locator(".line.meant mark").first).to_have_text("gateway")
            assert page.evaluate("document.querySelector('#text').scrollWidth") <= 400
            page.keyboard.press("Escape")
        page.locator("[data-date='2026-01-05']").click()
        expect(page.get_by_role("dialog").locator(".parts li")).to_have_count(2)
        expect(page.locator(".line")).not_to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script, main style, aside img, dialog img").count() == 0


def test_what_is_asked_is_no_markup_either(settings: Settings, hostile: Store, browser: Browser) -> None:
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query=MARKUP)
        expect(page.locator(".answer")).to_be_visible()
        page.locator(".result .open").first.click()
        expect(page.locator(".line")).not_to_have_count(0)
        assert page.evaluate("window.hacked") is None


def test_the_policy_lets_no_script_write_markup(settings: Settings, hostile: Store, browser: Browser) -> None:
    with (
        running(settings) as service,
        visiting(browser, service.base_url, expected=("TrustedHTML", "inline style", "inline script")) as visit,
    ):
        page = visit.open()
        page.evaluate(
            """() => {
                const run = document.createElement('div');
                try { run.innerHTML = '<img src=x>'; window.wrote = true; } catch { window.wrote = false; }
            }"""
        )
        assert page.evaluate("window.wrote") is False

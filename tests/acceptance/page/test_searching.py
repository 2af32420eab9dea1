"""Searching on the page: what is marked, what is said about it, and reading on from there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, expect

from schemas.ports import Pending
from schemas.settings import Settings
from tests.browsing import Visit, visiting
from tests.quiet_board import QuietBoard
from tests.serving import running
from tests.written_index import write_index


def marks(visit: Visit) -> Sequence[str]:
    """What is marked in the results."""
    return visit.page.locator(".result mark").all_inner_texts()


def test_the_words_that_matched_are_marked_whatever_their_ending(visit: Visit) -> None:
    visit.open()

    visit.search("when are the deployments")
    assert set(marks(visit)) == {"Deployments", "deployment"}

    visit.search("cafe")
    assert marks(visit) == ["café"]


def test_chinese_is_marked_where_it_matched(visit: Visit) -> None:
    visit.open()

    visit.search("数据库迁移")

    assert marks(visit) == ["迁移数据库"]
    expect(visit.page.locator(".result .snippet").first).to_contain_text("我们决定周五迁移数据库。")


def test_a_part_of_another_word_is_not_marked(visit: Visit) -> None:
    visit.open()

    visit.search("build gateway salt bas gate serve")

    assert set(marks(visit)) == {"build", "gateway"}


def test_a_result_is_cited_with_its_scores_and_what_they_mean(visit: Visit) -> None:
    page = visit.open(query="dentist appointment")

    first = page.locator(".result").first
    expect(first.locator("h3")).to_contain_text("memory/2026-01-16-move.md")
    expect(first.locator("cite")).to_contain_text("memory/2026-01-16-move.md#L")
    for kind, name in (("total", "Score"), ("vector", "Meaning"), ("text", "Words")):
        score = first.locator(f".score.{kind}")
        expect(score).to_have_attribute("title", re.compile(f"^{name}.*0 to 1"))
        assert 0 <= float(score.locator("dd").inner_text()) <= 1
    expect(page.locator(".about")).to_contain_text("words and meaning")
    page.get_by_text("What the scores mean").click()
    expect(page.locator(".legend li")).to_have_count(3)


def test_a_click_opens_the_lines_around_it_and_reading_goes_on_to_both_ends(visit: Visit) -> None:
    page = visit.open(query="dentist appointment")

    page.locator(".result").first.locator(".snippet").click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".line.meant", has_text="The dentist appointment moved to nine.")).to_be_in_viewport()
    assert sheet.locator(".line.meant mark").first.inner_text() == "dentist"
    while (later := sheet.get_by_role("button", name="Read on")).count():
        shown = sheet.locator(".line").count()
        later.click()
        expect(sheet.locator(".line").nth(shown)).to_be_attached()
    expect(sheet).to_contain_text("This is the end.")
    while (earlier := sheet.get_by_role("button", name="Earlier lines")).count():
        shown = sheet.locator(".line").count()
        earlier.click()
        expect(sheet.locator(".line").nth(shown)).to_be_attached()
    texts = sheet.locator(".line .words").all_inner_texts()
    assert [texts[0], texts[1], texts[199], texts[-1]] == [
        "# The move",
        "Line 2 of the diary.",
        "The dentist appointment moved to nine.",
        "Line 400 of the diary.",
    ]
    assert len(texts) == 400
    sheet.get_by_role("button", name="Close").click()
    expect(sheet).to_be_hidden()
    expect(page.locator(".result .open").first).to_be_focused()


def test_what_was_asked_is_in_the_address(visit: Visit) -> None:
    page = visit.open()
    visit.search("Basalt & 数据库")

    page.reload()

    expect(page.get_by_role("searchbox", name="Search memory")).to_have_value("Basalt & 数据库")
    expect(page.locator(".result")).not_to_have_count(0)


def test_nothing_found_is_said(settings: Settings, workspace: Path, browser: Browser) -> None:
    (workspace / "MEMORY.md").write_text("Something.\n", "utf-8")
    write_index(settings).close()
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="zebra quagga")
        expect(page.locator("#found")).to_contain_text("Nothing found.")
        expect(page.get_by_role("status")).to_have_text("Nothing found.")


def test_without_an_index_the_page_says_so_and_what_to_do(settings: Settings, browser: Browser) -> None:
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="anything")
        expect(page.locator("#found")).to_contain_text("There is nothing to search yet.")
        expect(page.locator("#agents")).to_contain_text("No index yet")
        expect(page.locator("#timeline")).to_contain_text("No note has a date in its name yet")


def test_an_answer_that_is_behind_or_not_whole_says_how(settings: Settings, notes: Path, browser: Browser) -> None:
    class Behind(QuietBoard):
        def pending(self, agent: str) -> Pending | None:
            return Pending(documents=40, running=3, oldest_at=1.0)

    class Away(QuietBoard):
        def pending(self, agent: str) -> Pending | None:
            return None

    write_index(settings, vectors=False).close()
    with running(settings, Behind()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="Basalt")
        expect(page.locator("#found")).to_contain_text("40 changed documents are not in these results yet")
        expect(page.locator("#found")).to_contain_text("passages are found by words only")
        expect(page.locator(".about")).to_contain_text("words only")
        expect(page.locator(".result .score.vector").first).to_contain_text("–")
    with running(settings, Away()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="Basalt")
        expect(page.locator("#found .warn")).to_contain_text("the queue does not answer")
        expect(page.locator("#queue")).to_contain_text("The queue does not answer")
        expect(page.locator("#agents")).to_contain_text("Queue away")

"""Daily notes through time."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from playwright.sync_api import Browser, expect

from schemas.settings import Settings
from tests.browsing import Visit, visiting
from tests.serving import running
from tests.storing import document, key
from tests.written_index import write_index


def test_days_with_notes_stand_out_gaps_are_seen_and_a_day_can_be_read(visit: Visit) -> None:
    page = visit.open()
    line = page.get_by_role("region", name="Daily notes")

    expect(line).to_contain_text("2026: 3 days with notes")
    expect(line).to_contain_text("Longest gap: 13 days, Jan 21 – Feb 2.")
    days = line.locator("button.day")
    expect(days).to_have_count(3)
    expect(line.get_by_title("Saturday, January 17, 2026: no note")).to_be_visible()
    expect(line.get_by_role("button", name="Tuesday, January 20, 2026: 1 note, 1 passage")).to_be_visible()

    days.first.click()
    sheet = page.get_by_role("dialog", name="Friday, January 16, 2026")
    expect(sheet).to_contain_text("memory/2026-01-16-move.md")
    expect(sheet.locator(".line").first).to_contain_text("# The move")
    expect(sheet.get_by_role("button", name="Previous")).to_be_disabled()
    sheet.get_by_role("button", name="Next").click()
    expect(page.get_by_role("dialog", name="Tuesday, January 20, 2026")).to_contain_text("我们决定周五迁移数据库。")
    page.keyboard.press("Escape")
    expect(days.first).to_be_focused()


def test_arrow_keys_move_between_the_days(visit: Visit) -> None:
    page = visit.open()
    days = page.locator("button.day")
    expect(days).to_have_count(3)
    days.last.focus()

    for pressed, expected in (("ArrowLeft", 1), ("Home", 0), ("ArrowRight", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        page.keyboard.press(pressed)
        expect(days.nth(expected)).to_be_focused()
        expect(page.locator(".day[tabindex='0']")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Tuesday, January 20, 2026")


def test_several_notes_of_one_day_are_read_one_by_one(settings: Settings, workspace: Path, browser: Browser) -> None:
    for number in range(30):
        (workspace / "memory" / f"2026-03-01-{number:02}.md").write_text(f"Part {number}.\n", "utf-8")
    write_index(settings).close()
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        page.get_by_role("button", name="Sunday, March 1, 2026: 30 notes, 30 passages").click()
        sheet = page.get_by_role("dialog")
        expect(sheet.locator(".line").first).to_contain_text("Part 0.")
        expect(sheet.locator(".parts button")).to_have_count(21)
        sheet.get_by_role("button", name="Show all 30 notes of this day").click()
        sheet.get_by_role("button", name="memory/2026-03-01-29.md").click()
        expect(sheet.locator(".line").first).to_contain_text("Part 29.")


def test_ten_thousand_daily_notes_are_shown_a_year_at_a_time(settings: Settings, browser: Browser) -> None:
    first = date(1998, 3, 1)
    days = [first + timedelta(days=number) for number in range(10_000)]
    store = write_index(settings)
    store.write([document(key(f"memory/{day}.md"), f"note of {day}") for day in days])
    store.write([document(key("memory/0012-02-29.md"), "very old")])
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        expect(page.locator(".years button")).to_have_count(29)
        expect(page.locator("button[data-year='2025']")).to_have_attribute("aria-pressed", "true")
        assert page.locator("button.day").count() < 366
        page.locator("button[data-year='2024']").click()
        expect(page.locator("button.day")).to_have_count(366)
        expect(page.locator("#timeline")).to_contain_text("No day is missing.")
        expect(page.locator("button[data-year='2024']")).to_be_focused()
        page.locator("button[data-year='12']").click()
        expect(page.locator("[data-date='0012-02-29']")).to_be_visible()
    store.close()

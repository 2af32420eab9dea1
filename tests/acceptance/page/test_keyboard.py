"""The page without a mouse, and for those who hear it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browsing import Visit


def focused(page: Page) -> str:
    """The id of what has the focus, else its first class."""
    found: str = page.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]")
    return found


def from_the_top(page: Page) -> None:
    """Let the next press of the Tab key go to the first stop."""
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")


def test_a_search_is_made_walked_opened_and_closed_by_keys_alone(visit: Visit) -> None:
    page = visit.open()
    keys = page.keyboard
    query = page.get_by_role("searchbox", name="Search memory")
    expect(query).to_be_focused()
    keys.press("Tab")
    expect(query).not_to_be_focused()
    keys.press("/")
    expect(query).to_be_focused()
    expect(query).to_have_value("")

    keys.type("diary deployment")
    keys.press("Enter")
    results = page.locator(".result .open")
    expect(results).not_to_have_count(0)
    assert results.count() >= 3
    keys.press("ArrowDown")
    expect(results.nth(0)).to_be_focused()
    keys.press("j")
    expect(results.nth(1)).to_be_focused()
    keys.press("ArrowDown")
    expect(results.nth(2)).to_be_focused()
    keys.press("k")
    keys.press("ArrowUp")
    expect(results.nth(0)).to_be_focused()
    keys.press("k")
    expect(query).to_be_focused()
    keys.press("ArrowDown")

    keys.press("Enter")
    sheet = page.get_by_role("dialog")
    expect(sheet).to_be_visible()
    expect(sheet.locator(".line.meant")).not_to_have_count(0)
    first = sheet.locator("#reading").inner_text()
    keys.press("n")
    expect(sheet.locator("#reading")).not_to_have_text(first)
    keys.press("p")
    expect(sheet.locator("#reading")).to_have_text(first)
    keys.press("Escape")
    expect(sheet).to_be_hidden()
    expect(results.nth(0)).to_be_focused()

    keys.press("/")
    assert page.evaluate("getSelection().toString()") == "diary deployment"


def test_every_stop_of_the_tab_key_shows_the_focus_and_has_a_name(visit: Visit) -> None:
    page = visit.open(query="dentist")
    expect(page.locator(".result")).not_to_have_count(0)
    expect(page.locator(".day[tabindex='0']")).to_have_count(1)
    from_the_top(page)

    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
                const node = document.activeElement;
                const card = node.closest('.result');
                const style = getComputedStyle(node), frame = card ? getComputedStyle(card) : style;
                const name = node.getAttribute('aria-label') || node.labels?.[0]?.innerText || node.innerText;
                return [node.tagName, name, style.outlineStyle !== 'none' || frame.outlineStyle !== 'none'];
            }"""
        )
        if stop[0] == "BODY":
            break
        stops.append(stop)
    assert {tag for tag, _, _ in stops} >= {"A", "INPUT", "BUTTON", "SELECT", "SUMMARY"}
    assert [stop for stop in stops if not (stop[1] and stop[1].strip())] == []
    assert [stop for stop in stops if not stop[2]] == []
    assert len(stops) < 60, "the Tab key does not come to an end"


def test_skip_links_come_first_and_lead_on(visit: Visit) -> None:
    page = visit.open(query="dentist")
    expect(page.locator(".result")).not_to_have_count(0)
    from_the_top(page)

    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the results")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert focused(page) == "results"


def test_there_are_landmarks_and_answers_are_announced(visit: Visit) -> None:
    page = visit.open()

    for role in ("banner", "main", "complementary", "contentinfo", "search"):
        expect(page.get_by_role(role)).to_have_count(1)
    for name in ("Queue", "Dead letters", "Agents", "Daily notes"):
        expect(page.get_by_role("region", name=name)).to_have_count(1)
    visit.search("diary deployment")
    expect(page.get_by_role("status")).to_have_text(f"{page.locator('.result').count()} results")


def test_keys_that_are_typed_are_text(visit: Visit) -> None:
    page = visit.open()

    page.get_by_role("searchbox", name="Search memory").fill("")
    page.keyboard.type("j/k n p")

    expect(page.get_by_role("searchbox", name="Search memory")).to_have_value("j/k n p")

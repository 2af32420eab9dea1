"""Light and dark, English and Chinese: chosen by the browser, then by whoever looks, and remembered."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.browsing import Visit, visiting

#: What is called so in every language.
NAMES = {"recalld", "API", "main", "stub", "hashed-words-64", "MEMORY", "query", "min", "score", "provider", "MB"}


def background(page: Page) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def test_the_theme_follows_the_system_until_one_is_chosen_and_is_remembered(
    browser: Browser, service: httpx.Client
) -> None:
    with visiting(browser, service.base_url, dark=True) as visit:
        page = visit.open()
        dark = background(page)
        page.get_by_label("Colours").select_option("light")
        light = background(page)
        assert light != dark
        page.reload()
        assert background(page) == light
        expect(page.get_by_label("Colours")).to_have_value("light")
        page.goto(f"{visit.origin}/docs")
        assert background(page) == light
        page.get_by_label("Colours").select_option("system")
        page.reload()
        assert background(page) == dark
    with visiting(browser, service.base_url) as visit:
        assert background(visit.open()) == light


def test_the_language_is_the_browsers_until_one_is_chosen_and_is_remembered(
    browser: Browser, service: httpx.Client
) -> None:
    with visiting(browser, service.base_url, language="zh-CN") as visit:
        page = visit.open()
        assert page.locator("html").get_attribute("lang") == "zh-Hans"
        expect(page.get_by_role("button", name="搜索", exact=True)).to_be_visible()
        expect(page.get_by_role("searchbox", name="搜索记忆")).to_be_focused()
        assert page.title() == "recalld · 记忆"
        page.get_by_label("语言").select_option("en")
        expect(page.get_by_role("button", name="Search", exact=True)).to_be_visible()
        assert page.locator("html").get_attribute("lang") == "en"
        page.reload()
        expect(page.get_by_role("button", name="Search", exact=True)).to_be_visible()
        expect(page.get_by_label("Language")).to_have_value("en")


def test_every_visible_word_is_chinese_then(browser: Browser, service: httpx.Client) -> None:
    with visiting(browser, service.base_url, language="zh-TW") as visit:
        page = visit.open()
        page.get_by_role("searchbox", name="搜索记忆").fill("dentist 数据库")
        page.keyboard.press("Enter")
        expect(page.locator(".result")).not_to_have_count(0)
        expect(page.locator(".looked dl")).to_be_visible()
        expect(page.locator(".month")).to_have_count(12)
        page.get_by_text("得分的含义").click()
        page.locator(".result .open").first.click()
        expect(page.locator(".line.meant")).not_to_have_count(0)
        # Names, notes, keys of a keyboard and what is marked as English are as they are.
        visible = page.evaluate(
            """() => {
                const own = 'bdi, kbd, code, mark, [lang=en], .snippet, .words, script, noscript, title';
                const found = [];
                const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
                while (walk.nextNode()) {
                    const node = walk.currentNode;
                    if (!node.parentElement.closest(own) && node.parentElement.checkVisibility()) found.push(node.data);
                }
                for (const name of ['title', 'aria-label', 'placeholder']) {
                    for (const node of document.querySelectorAll(`[${name}]`)) {
                        if (!node.closest(own)) found.push(node.getAttribute(name));
                    }
                }
                return found;
            }"""
        )
        english = {word for text in visible for word in re.findall(r"[A-Za-z][A-Za-z0-9-]{2,}", text)}
        assert english <= NAMES


def test_both_languages_have_the_same_words(visit: Visit) -> None:
    page = visit.open()

    shapes = page.evaluate(
        """async () => {
            const { en } = await import('/page/words-en.js');
            const { zh } = await import('/page/words-zh.js');
            const shape = words => Object.fromEntries(Object.entries(words).map(([key, value]) =>
                [key, typeof value === 'object' ? Object.keys(value).join() : typeof value]));
            return [shape(en), shape(zh)];
        }"""
    )

    assert shapes[0] == shapes[1]
    used = page.evaluate(
        "[...document.querySelectorAll('*')].flatMap(n => Object.entries(n.dataset))"
        ".filter(([key]) => key === 't' || /^t[A-Z]/.test(key)).map(([, word]) => word)"
    )
    assert set(used) <= set(shapes[0])


def test_a_narrow_window_holds_everything(browser: Browser, service: httpx.Client) -> None:
    with visiting(browser, service.base_url, width=360) as visit:
        page = visit.open(query="dentist")
        expect(page.locator(".result")).not_to_have_count(0)
        expect(page.locator(".month")).to_have_count(12)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator(".result .open").first.click()
        expect(page.locator(".line.meant")).not_to_have_count(0)
        assert page.evaluate("document.querySelector('#text').scrollWidth") <= 360

"""The page as a person meets it: searching, reading, keys, languages, several agents, and what changes meanwhile."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from memory.store.writer import Store
from recalld.client import Client
from schemas.documents import DocumentKey
from schemas.ports import Pending
from schemas.settings import Settings
from tests.browsing import Visit, chromium, visiting
from tests.quiet_health import QuietHealth
from tests.serving import running
from tests.storing import document, key, vector
from tests.transcript_files import message_line
from tests.written_index import with_agent, with_agents, write_index

LONG_NOTE = "\n".join(
    ["# The move", *(f"Line {number} of the diary." for number in range(2, 200))]
    + ["The dentist appointment moved to nine.", "牙医的预约改到九点。"]
    + [f"Line {number} of the diary." for number in range(202, 401)]
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not longer than a file: while it is there, this thread can run no event loop of its own.
    with chromium() as found:
        yield found


def write_notes(workspace: Path) -> None:
    """A few notes in two languages, one of them long."""
    (workspace / "memory").mkdir(parents=True, exist_ok=True)
    (workspace / "MEMORY.md").write_text(
        "The build server is called Basalt.\nDeployments happen on Fridays.\n", "utf-8"
    )
    (workspace / "memory" / "2026-01-16-move.md").write_text(LONG_NOTE, "utf-8")
    (workspace / "memory" / "2026-01-20.md").write_text("我们决定周五迁移数据库。\nThe café was closed.\n", "utf-8")
    (workspace / "memory" / "2026-02-03.md").write_text("A deployment failed at the gateway.\n", "utf-8")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The service of a memory that stays as it is."""
    folder = tmp_path_factory.mktemp("page")
    write_notes(folder / "workspace")
    agent = {"id": "main", "workspace": folder / "workspace", "provider": "stub"}
    settings = Settings.model_validate({"home": folder / "home", "provider": "stub", "agents": [agent]})
    write_index(settings).close()
    with running(settings) as client:
        yield client


@pytest.fixture
def visit(browser: Browser, service: httpx.Client) -> Iterator[Visit]:
    """A visitor of that memory, in English."""
    with visiting(browser, service.base_url) as visitor:
        yield visitor


@pytest.fixture
def store(settings: Settings, workspace: Path) -> Iterator[Store]:
    """The index of a memory of the test's own, with the same notes."""
    write_notes(workspace)
    written = write_index(settings)
    yield written
    written.close()


# Searching and reading


@pytest.mark.parametrize(
    ("query", "marked"),
    [
        ("when are the deployments", {"Deployments", "deployment"}),
        ("cafe", {"café"}),
        ("数据库迁移", {"迁移数据库"}),
        ("is the build gateway salt bas gate serve", {"build", "gateway"}),
        ("deployed servers", {"Deployments", "deployment", "server"}),
    ],
)
def test_the_words_that_matched_are_marked_and_parts_of_others_are_not(
    visit: Visit, query: str, marked: set[str]
) -> None:
    visit.open()
    visit.search(query)
    assert set(visit.page.locator(".result mark").all_inner_texts()) == marked


def test_a_click_opens_the_lines_around_it_and_reading_goes_on_to_both_ends(visit: Visit) -> None:
    page = visit.open(query="dentist appointment")
    excerpt = page.locator(".snippet").first.inner_text()
    assert excerpt.startswith("… ")
    assert len(excerpt) < 300
    assert set(excerpt.split()) - {"…"} <= set(LONG_NOTE.split())

    page.locator(".result").first.locator(".snippet").click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".rendered .meant mark").first).to_have_text("dentist")
    sheet.get_by_role("button", name="As written").click()
    expect(sheet.locator(".line.meant", has_text="The dentist appointment moved to nine.")).to_be_in_viewport()
    assert sheet.locator(".line.meant mark").first.inner_text() == "dentist"
    while (later := sheet.get_by_role("button", name="Read on")).count():
        shown = sheet.locator(".line").count()
        later.click()
        expect(sheet.locator(".line").nth(shown)).to_be_attached()
    expect(sheet).to_contain_text("End of the document.")
    while (earlier := sheet.get_by_role("button", name="Earlier lines")).count():
        shown = sheet.locator(".line").count()
        earlier.click()
        expect(sheet.locator(".line").nth(shown)).to_be_attached()
    assert sheet.locator(".line .words").all_inner_texts() == LONG_NOTE.splitlines()
    sheet.get_by_role("button", name="Close").click()
    expect(sheet).to_be_hidden()
    expect(page.locator(".result .open").first).to_be_focused()


def test_results_can_be_narrowed_to_a_folder(settings: Settings, workspace: Path, browser: Browser) -> None:
    for folder in ("people", "recipes"):
        (workspace / "memory" / folder).mkdir()
        (workspace / "memory" / folder / "saffron.md").write_text(f"# {folder}\n\nsaffron for {folder}\n", "utf-8")
    write_index(settings).close()
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="saffron")
        expect(page.locator(".result")).to_have_count(2)
        page.locator("#folder").select_option("memory/recipes")
        expect(page.locator(".result")).to_have_count(1)
        expect(page.locator(".result h3")).to_have_text("recipes")
        page.locator("#folder").select_option("")
        expect(page.locator(".result")).to_have_count(2)


def test_results_can_be_narrowed_to_days(settings: Settings, workspace: Path, browser: Browser) -> None:
    for day in ("2026-10-14", "2026-11-18"):
        (workspace / "memory" / f"{day}.md").write_text(f"# {day}\n\nsaffron on {day}\n", "utf-8")
    write_index(settings).close()
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="saffron")
        expect(page.locator(".result")).to_have_count(2)
        for since, until, day in (("2026-11-01", "", "2026-11-18"), ("2026-10-01", "2026-10-14", "2026-10-14")):
            page.locator("#until").fill(until)
            page.locator("#since").fill(since)
            expect(page.get_by_role("heading", name=day)).to_be_visible()
            expect(page.locator(".result")).to_have_count(1)


@pytest.mark.long
def test_an_answer_that_is_empty_or_behind_says_how(settings: Settings, workspace: Path, browser: Browser) -> None:
    class Behind(QuietHealth):
        def pending(self, agent: str) -> Pending | None:
            return Pending(documents=40, running=3, oldest_at=1.0)

    class Away(QuietHealth):
        def pending(self, agent: str) -> Pending | None:
            return None

    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="anything")
        expect(page.locator("#found")).to_contain_text("Nothing to search yet.")
        expect(page.locator("#agents")).to_contain_text("No index yet")
    write_notes(workspace)
    write_index(settings, vectors=False).close()
    with running(settings, Behind()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="Basalt")
        expect(page.locator("#found")).to_contain_text("40 changed documents are not in these results yet")
        expect(page.locator("#found")).to_contain_text("can be found by words only")
        expect(page.locator(".about")).to_contain_text("words only")
        page.get_by_text("Why this result").first.click()
        expect(page.locator(".why").first).to_contain_text("Not by meaning.")
        expect(page.locator(".why").first).to_contain_text("By the words “basalt” (")
    with running(settings, Away()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="Basalt")
        expect(page.locator("#found .warn")).to_contain_text("the queue does not answer")
        expect(page.locator("#queue")).to_contain_text("The queue is not answering")
        expect(page.locator("#agents")).to_contain_text("Queue not answering")


# Without a mouse, and in two languages


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
    # Once there are results, letters are keys again.
    expect(query).not_to_be_focused()
    keys.press("j")
    expect(results.nth(0)).to_be_focused()
    keys.press("j")
    expect(results.nth(1)).to_be_focused()
    keys.press("ArrowDown")
    expect(results.nth(2)).to_be_focused()
    keys.press("k")
    keys.press("ArrowUp")
    expect(results.nth(0)).to_be_focused()
    keys.press("k")
    expect(results.nth(0)).to_be_focused()
    keys.press("Escape")
    expect(query).to_be_focused()
    keys.type("jk/")
    expect(query).to_have_value("jk/")
    query.fill("diary deployment")
    keys.press("ArrowDown")

    keys.press("Enter")
    sheet = page.get_by_role("dialog")
    expect(sheet).to_be_visible()
    expect(sheet.locator(".meant")).not_to_have_count(0)
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


#: What is called so in every language.
NAMES = {"recalld", "API", "main", "stub", "hashed-words-64", "MEMORY", "query", "min", "score", "provider", "MB"}


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
        expect(page.locator(".month")).to_have_count(3)
        page.locator("#tree summary").first.click()
        expect(page.locator("#tree .level").first).to_contain_text("memory")
        page.get_by_role("searchbox", name="搜索记忆").fill("dentist 数据库")
        page.keyboard.press("Enter")
        expect(page.locator(".result")).not_to_have_count(0)
        expect(page.locator(".looked dl")).to_be_visible()
        page.get_by_text("为何出现").first.click()
        page.locator(".result .open").first.click()
        expect(page.locator("#lines .meant")).not_to_have_count(0)
        # Names, notes, keys of a keyboard and what is marked as English are as they are.
        visible = page.evaluate(
            """() => {
                const own = 'bdi, kbd, code, mark, [lang=en], .snippet, .words, .rendered, script, noscript, title';
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


# Hostile notes


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
        # In a shell the path is one word.
        expect(page.locator("#letters code").first).to_have_text(
            f"recalld dead retry {shlex.quote(f'memory/{MARKUP}.md')}"
        )
        # A sign that turns what follows around is shown instead of obeyed.
        expect(page.locator("#found")).to_contain_text("2026-01-05-⟨U+202E⟩gnp.md")
        for index in range(5):
            page.locator(".result .open").nth(index).click()
            expect(page.locator("#lines .meant mark").first).to_have_text("gateway")
            assert page.evaluate("document.querySelector('#text').scrollWidth") <= 400
            page.keyboard.press("Escape")
        page.locator("#tohome").click()
        expect(page.locator("#latest .documents li")).to_have_count(5)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.evaluate("window.hacked") is None
        expect(page.locator("main img, main script, main style, aside img, dialog img")).to_have_count(0)


#: A note whose Markdown would run scripts, load pictures and hang a tab, if a page let it.
HOSTILE_MARKDOWN = """---
title: gateway
---
# The [gateway](https://example.org/gateway "title") [*script*](javascript:window.hacked=5) <https://example.org/auto>

![beacon](https://tracker.invalid/seen.png) ![inline](data:image/svg+xml,<svg/onload=alert(1)>) [note](other.md) [file](ftp://files.invalid/x)
<img src=https://tracker.invalid/x.png onerror="window.hacked=6"><a href="javascript:window.hacked=7">click</a>

| port | of |
|-----:|----|
| 7373 | `gateway` |

- [x] done
"""


def test_markdown_is_rendered_and_nothing_of_it_runs_or_loads(
    settings: Settings, workspace: Path, browser: Browser
) -> None:
    notes = workspace / "memory"
    (notes / "deep.md").write_text("gateway\n\n" + "> " * 5_000 + "basement\n", "utf-8")
    (notes / "hostile.md").write_text(HOSTILE_MARKDOWN, "utf-8")
    write_index(settings).close()
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open(query="gateway port hostile")
        page.locator(".result", has_text="hostile.md").locator(".open").click()
        note = page.locator(".rendered")
        expect(note.get_by_role("heading", level=3)).to_contain_text("The gateway")
        expect(note.get_by_role("cell", name="gateway")).to_be_visible()
        expect(note).to_contain_text("☑ done")
        links = note.get_by_role("link").evaluate_all("all => all.map((a) => [a.href, a.rel, a.target])")
        addresses = ("https://example.org/gateway", "https://example.org/auto", "https://tracker.invalid/seen.png")
        assert links == [[address, "noreferrer noopener", "_blank"] for address in addresses]
        expect(note).to_contain_text('<img src=https://tracker.invalid/x.png onerror="window.hacked=6">')
        expect(note.locator("img, script, svg, style, [style]")).to_have_count(0)
        assert page.evaluate("window.hacked") is None
        # Below so many quotes markdown-it would leave the text out.
        page.keyboard.press("Escape")
        page.locator(".result", has_text="deep.md").locator(".open").click()
        expect(page.locator(".line").nth(2)).to_contain_text("basement")


# The memory, before anything is searched


def in_february(visit: Visit) -> Page:
    """Open the page on a day of February 2026; time passes as ever."""
    visit.page.clock.install(time=datetime(2026, 2, 15, 12, tzinfo=UTC))
    return visit.open()


def test_the_page_opens_on_what_is_remembered_and_results_take_its_place_meanwhile(visit: Visit) -> None:
    page = in_february(visit)
    notes = page.get_by_role("region", name="Latest notes")
    expect(notes.get_by_role("listitem")).to_have_count(4)
    expect(notes).to_contain_text("The move")
    expect(page.get_by_role("region", name="Latest conversations")).to_have_count(0)
    expect(page.get_by_role("searchbox", name="Search memory")).to_be_focused()
    visit.search("dentist")
    expect(page.locator("#home")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(notes).to_be_visible()
    expect(page.locator("#results")).to_be_hidden()
    assert "?" not in page.url

    notes.get_by_role("button", name="The move").click()
    expect(page.get_by_role("dialog", name="The move").get_by_role("heading", name="The move").last).to_be_visible()
    page.keyboard.press("Escape")
    expect(notes.get_by_role("button", name="The move")).to_be_focused()


def test_a_calendar_of_three_months_shows_days_to_open_by_keys_and_by_finger(
    browser: Browser, service: httpx.Client
) -> None:
    with visiting(browser, service.base_url, width=360) as visit:
        page = in_february(visit)
        calendar = page.get_by_role("region", name="Calendar")
        days = calendar.locator("button.day")
        expect(days).to_have_count(3)
        assert calendar.locator("h3").all_inner_texts() == ["December 2025", "January 2026", "February 2026"]
        sizes = [day.bounding_box() for day in days.all()]
        assert all(size and size["width"] >= 24 and size["height"] >= 24 for size in sizes)
        days.last.focus()
        page.keyboard.press("ArrowUp")
        expect(
            calendar.get_by_role("button", name="Tuesday, January 20, 2026: 1 note, 0 conversations")
        ).to_be_focused()
        page.keyboard.press("Enter")
        expect(calendar.get_by_role("heading", name="Tuesday, January 20, 2026")).to_be_focused()
        calendar.locator("#day .open").click()
        expect(page.get_by_role("dialog")).to_contain_text("我们决定周五迁移数据库。")
        page.keyboard.press("Escape")
        calendar.get_by_role("button", name="Earlier").click()
        expect(calendar).to_contain_text("These months have no dated note and no conversation.")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_tree_opens_folder_by_folder(visit: Visit) -> None:
    page = visit.open()
    tree = page.get_by_role("region", name="All documents")
    tree.get_by_text("Notes").click()
    expect(tree.locator(".documents .open")).to_have_text(
        ["The build server is called Basalt. Deployments happen on Fridays."]
    )
    tree.locator("summary", has_text="memory").focus()
    page.keyboard.press("Enter")
    expect(tree.locator(".level .level .open")).to_have_count(3)
    tree.get_by_text("Conversations").click()
    expect(tree).to_contain_text("There is nothing here.")


def test_a_conversation_shows_its_turns_the_passage_and_the_command_that_resumes_it(
    settings: Settings, tmp_path: Path, browser: Browser
) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    words = [f"Turn {number} about <b>ports</b>" for number in range(1, 61)]
    words[49] = "The **gateway** listens on 7373"
    roles = ("user", "assistant")
    lines = [message_line("claude-code", roles[at % 2], text) for at, text in enumerate(words)]
    (sessions / "0a-1.jsonl").write_bytes(b"".join(lines))
    store = write_index(settings)
    talk = document(
        DocumentKey("sessions", "sessions/0a-1.jsonl"), "User: hello", "Assistant: The gateway listens on 7373"
    )
    passage = replace(talk.added[1], start_line=50, end_line=51)
    store.write([replace(talk, added=(talk.added[0], passage))])
    store.close()
    with (
        running(with_agent(settings, sessions=[str(sessions)])) as service,
        visiting(browser, service.base_url) as visit,
    ):
        page = visit.open()
        page.get_by_role("region", name="Latest conversations").get_by_role("button", name="hello").click()
        sheet = page.get_by_role("dialog")
        expect(sheet.locator(".turn")).to_have_count(40)
        expect(sheet.locator(".turn").first).to_contain_text("You")
        expect(sheet.locator(".turn").first).to_contain_text("Turn 1 about <b>ports</b>")
        expect(sheet.locator(".resume code")).to_have_text("cd /srv/u/unsaidword && claude --resume 0a-1")
        sheet.get_by_role("button", name="Later turns").click()
        expect(sheet.locator(".turn")).to_have_count(60)
        expect(sheet.get_by_role("button", name="Later turns")).to_be_hidden()
        page.keyboard.press("Escape")

        visit.search("gateway listens")
        page.locator(".result .open").first.click()
        expect(sheet.locator(".turn.meant")).to_have_count(2)
        expect(sheet.locator(".turn.meant").first).to_contain_text("Assistant")
        expect(sheet.locator(".turn.meant").first).to_be_in_viewport()
        expect(sheet.locator(".turn.meant strong mark")).to_have_text("gateway")
        sheet.get_by_role("button", name="Earlier turns").click()
        expect(sheet.locator(".turn").first).to_contain_text("Turn 4 ")


def test_one_agent_or_all_are_shown_by_a_switch(two: Settings, browser: Browser) -> None:
    trusting = two.model_copy(update={"auth": two.auth.model_copy(update={"trust_loopback": True})})
    with running(trusting) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        notes = page.get_by_role("region", name="Latest notes")
        expect(notes.get_by_role("listitem")).to_have_count(2)
        page.get_by_label("Show").select_option("bob")
        expect(notes.get_by_role("listitem")).to_have_count(1)
        expect(notes).to_contain_text("The password of bob")


def test_an_empty_memory_says_so(settings: Settings, browser: Browser) -> None:
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        expect(page.get_by_text("Nothing is remembered here yet.")).to_be_visible()
        expect(page.locator("#days")).to_be_hidden()


# Several agents


@pytest.fixture
def two(settings: Settings) -> Settings:
    both = with_agents(settings, "ada", "bob", note="2026-01-01")
    for agent in both.agents:
        write_index(both, agent.id).close()
    return both


def test_a_token_opens_its_own_agent_for_as_long_as_the_tab_is_open(two: Settings, browser: Browser) -> None:
    with running(two) as service, visiting(browser, service.base_url, expected=("401",)) as visit:
        page = visit.page
        page.goto(visit.origin)
        expect(page.locator("#tokenbox")).to_be_focused()
        expect(page.locator("#tokenbox")).to_contain_text("recalld open")
        expect(page.locator("#work")).to_be_hidden()
        expect(page.locator("#connection")).to_have_text("Locked")
        page.get_by_text("Open one agent with its token").click()
        token = page.get_by_label("Token", exact=True)
        expect(page.locator("#tokenwrong")).to_be_empty()
        token.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#tokenwrong")).to_have_text("this token is not known here")
        token.fill((two.home / "run" / "tokens" / "bob").read_text().strip())
        page.keyboard.press("Enter")

        expect(page.locator("#tokenbox")).to_be_hidden()
        expect(page.locator("#latest li")).to_have_count(1)
        visit.search("card")
        expect(page.locator(".result .snippet")).to_have_text("The password of bob is on the blue card.")
        expect(page.locator(".agent")).to_have_count(1)
        page.locator(".result .open").click()
        expect(page.get_by_role("dialog")).to_contain_text("The password of bob is on the blue card.")
        assert "ada" not in page.content()

        page.reload()
        expect(page.locator(".result .snippet")).to_have_text("The password of bob is on the blue card.")
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#tokenbox")).to_be_focused()
        assert page.evaluate("JSON.stringify(sessionStorage)") == "{}"


def test_the_owners_link_opens_once_and_searches_all_agents_or_one(two: Settings, browser: Browser) -> None:
    with running(two) as service, visiting(browser, service.base_url, expected=("401",)) as visit:
        page = visit.page
        owner = Client.at_home(two.home)
        assert owner is not None
        link = owner.page_link()
        page.goto(link)
        agent = page.locator("#agent")
        expect(agent.locator("option")).to_have_text(["All agents", "ada", "bob"])
        assert page.url == f"{visit.origin}/"
        expect(page.locator("#latest li")).to_have_count(2)
        agent.select_option("ada")
        expect(page.locator("#latest li")).to_have_count(1)
        agent.select_option("")
        visit.search("card")
        expect(page.locator(".result .snippet")).to_have_count(2)
        for name in ("ada", "bob"):
            page.locator(".result", has=page.locator(".whose", has_text=name)).locator(".open").click()
            expect(page.locator(".rendered")).to_have_text(f"The password of {name} is on the blue card.")
            page.keyboard.press("Escape")
        agent.select_option("ada")
        expect(page.locator(".result")).to_have_count(1)
        expect(page.locator(".result .snippet")).to_have_text("The password of ada is on the blue card.")
        page.reload()
        expect(agent).to_have_value("ada")
        assert page.evaluate("[document.cookie, JSON.stringify(localStorage), history.length < 5]") == ["", "{}", True]
        assert not any("open=" in url for url in visit.requests if "#" not in url)

        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#tokenbox")).to_be_focused()
        page.goto(link)
        expect(page.locator("#tokenwrong")).to_contain_text("run `recalld open` again")
        expect(page.locator("#work")).to_be_hidden()


def test_three_hundred_agents_are_paged_and_only_opened_ones_are_looked_at(
    settings: Settings, tmp_path: Path, browser: Browser
) -> None:
    class ScriptedHealth(QuietHealth):
        def pending(self, agent: str) -> Pending | None:
            number = int(agent[-3:])
            return Pending(number, 1, time.time() - number) if number % 20 == 7 else Pending()

    ids = [f"agent-{number:03}" for number in range(300)]
    agents = tuple(settings.agents[0].model_copy(update={"id": name, "workspace": tmp_path / name}) for name in ids)
    auth = settings.auth.model_copy(update={"trust_loopback": True})
    many = settings.model_copy(update={"agents": agents, "auth": auth})
    with running(many, ScriptedHealth()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        expect(page.locator(".agent")).to_have_count(12)
        expect(page.locator("#pages")).to_have_text("1–12 of 300")
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".agent").first).to_have_attribute("data-agent", "agent-012")
        expect(page.locator("#queue tbody tr")).to_have_count(8)
        expect(page.locator("#queue tbody tr").first).to_contain_text("agent-287")
        expect(page.locator("#queue")).to_contain_text("and 7 more agents")
        page.get_by_label(re.compile("Only agents that need attention")).check()
        expect(page.locator(".agent .condition").first).to_have_text("Behind")
        expect(page.locator(".agent")).to_have_count(12)
        expect(page.locator("#paging")).to_be_hidden()
        page.get_by_label("Find an agent").fill("287")
        expect(page.locator(".agent")).to_have_count(1)
        assert not [url for url in visit.requests if "/v1/status" in url]
        page.locator(".agent summary").click()
        expect(page.locator(".agent .looked dl")).to_be_visible()
        assert {url for url in visit.requests if "/v1/status" in url} == {f"{visit.origin}/v1/status?agent=agent-287"}
        page.get_by_label("Find an agent").fill("eve")
        expect(page.get_by_text("No agent has this name.")).to_be_visible()


# What changes meanwhile


@pytest.mark.long
def test_counts_days_the_queue_and_dead_letters_are_live(settings: Settings, store: Store, browser: Browser) -> None:
    class ScriptedHealth(QuietHealth):
        waiting = Pending()

        def pending(self, agent: str) -> Pending | None:
            return self.waiting

    health = ScriptedHealth()
    with running(settings, health) as service, visiting(browser, service.base_url) as visit:
        page = in_february(visit)
        expect(page.locator("button.day")).to_have_count(3)
        expect(page.locator("#queue")).to_contain_text("Nothing is waiting")
        expect(page.locator("#letters")).to_contain_text("No document failed.")
        expect(page.locator("details.fold[open]")).to_have_count(0)

        health.waiting = Pending(documents=5, running=2, oldest_at=time.time() - 130)
        failed = key("memory/2026-02-03.md")
        store.add_dead_letter(failed, reason="the file is too large", error_class="TooLarge")
        store.write([document(key("memory/2026-02-14.md"), "one", "two", vectors=[vector(1, 64), vector(2, 64)])])

        facts = page.locator("#agents .facts").first
        expect(facts).to_contain_text("Documents5")
        expect(page.locator("button.day")).to_have_count(4)
        expect(page.locator("#queue")).to_contain_text("3 waiting · 2 running · oldest 2 min")
        expect(page.locator("#letters .reason")).to_have_text("the file is too large")
        expect(page.locator("#letters")).to_contain_text("TooLarge · tried once")
        retry, drop = page.locator("#letters code").all_inner_texts()
        assert (retry, drop) == (f"recalld dead retry {failed.path}", f"recalld dead drop {failed.path}")
        expect(page.locator("details.fold[open]")).to_have_count(2)
        expect(page.locator("#agents .condition")).to_have_text("1 dead letter")
        expect(page.locator("#agents .facts").first).to_contain_text(re.compile(r"Behind since.*\(2 min\)"))
        page.locator("#letters .open").click()
        expect(page.locator("#lines")).to_contain_text("A deployment failed at the gateway.")
        page.keyboard.press("Escape")

        health.waiting = Pending()
        store.drop_dead_letter(failed)

        expect(page.locator("#queue")).to_contain_text("Nothing is waiting")
        expect(page.locator("#letters")).to_contain_text("No document failed.")
        expect(page.locator("#agents .condition")).to_have_text("Up to date")
        expect(page.locator("details.fold[open]")).to_have_count(0)


@pytest.mark.long
def test_a_service_that_restarts_is_said_and_the_page_goes_on_by_itself(
    settings: Settings, store: Store, browser: Browser
) -> None:
    with ExitStack() as visits:
        with running(settings) as service:
            port = service.base_url.port
            visit = visits.enter_context(visiting(browser, service.base_url, expected=("ERR_",)))
            page = visit.open(query="Basalt")
            expect(page.locator(".result")).not_to_have_count(0)
        expect(page.locator("#awaybox")).to_contain_text("recalld is not answering")
        expect(page.get_by_role("status")).to_contain_text("recalld is not answering")
        expect(page.locator(".result")).not_to_have_count(0)
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("#found .bad")).to_contain_text("recalld is not answering")

        with running(settings, port=port or 0):
            expect(page.locator("#awaybox")).to_be_hidden()
            expect(page.get_by_role("status")).to_have_text("recalld is answering again.")
            page.get_by_role("button", name="Search", exact=True).click()
            expect(page.locator(".result")).not_to_have_count(0)

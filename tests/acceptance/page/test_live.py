"""What moves is seen to move, without a reload; a service that goes and comes back is noticed."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from memory.store.writer import Store
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.ports import Pending, Usage
from schemas.settings import Settings
from schemas.status import EndpointCondition, EndpointStatus
from tests.browsing import visiting
from tests.daemon import Daemon
from tests.quiet_board import QuietBoard
from tests.serving import running
from tests.storing import document, vector


@pytest.mark.long
def test_a_note_that_is_saved_changes_the_counts_the_days_and_the_search(
    home: Path, workspace: Path, browser: Browser
) -> None:
    (workspace / "memory" / "2026-01-16.md").write_text("The heating was repaired.\n", "utf-8")
    with Daemon(home, workspace) as daemon, visiting(browser, f"http://127.0.0.1:{daemon.port()}") as visit:
        page = visit.open()
        facts = page.locator("#agents .facts").first
        expect(facts).to_contain_text("Documents1")
        expect(page.locator("button.day")).to_have_count(1)
        visit.search("网关 heating")
        expect(page.get_by_text("The memory has changed since this search.")).to_be_hidden()

        daemon.write("memory/2026-01-18.md", "网关重启了。\n")

        expect(facts).to_contain_text("Documents2")
        expect(page.locator("#agents .looked")).to_contain_text("2 documents, all indexed")
        expect(page.locator("button.day")).to_have_count(2)
        expect(page.locator("#timeline")).to_contain_text("Longest gap: 1 day")
        page.get_by_role("button", name="Search again").click()
        expect(page.locator(".result mark", has_text="网关")).to_be_visible()
        expect(page.get_by_text("The memory has changed since this search.")).to_be_hidden()


def test_counts_days_the_queue_and_dead_letters_are_live(settings: Settings, store: Store, browser: Browser) -> None:
    class HealthStore(QuietBoard):
        waiting = Pending()

        def pending(self, agent: str) -> Pending | None:
            return self.waiting

    board = HealthStore()
    with running(settings, board) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        expect(page.locator("#queue")).to_contain_text("Nothing waits")
        expect(page.locator("#letters")).to_contain_text("Every document could be indexed.")

        board.waiting = Pending(documents=5, running=2, oldest_at=time.time() - 130)
        key = DocumentKey("memory", "memory/2026-02-03.md")
        store.add_dead_letter(key, reason="the file is too large", error_class="TooLarge")
        written = DocumentKey("memory", "memory/2026-03-01.md")
        store.write([document(written, "one", "two", vectors=[vector(1, 64), vector(2, 64)])])

        facts = page.locator("#agents .facts").first
        expect(facts).to_contain_text("Documents5")
        expect(page.locator("button.day")).to_have_count(4)
        expect(page.locator("#queue")).to_contain_text("3 waiting · 2 running · oldest 2 min")
        expect(page.locator("#letters .reason")).to_have_text("the file is too large")
        expect(page.locator("#letters")).to_contain_text("TooLarge · tried once")
        expect(page.locator("#agents .condition")).to_have_text("1 dead letter")
        expect(page.locator("#agents .facts").first).to_contain_text(re.compile(r"Behind since.*\(2 min\)"))
        page.locator("#letters .open").click()
        expect(page.locator(".line").first).to_contain_text("A deployment failed at the gateway.")
        page.keyboard.press("Escape")

        board.waiting = Pending()
        store.drop_dead_letter(key)

        expect(page.locator("#queue")).to_contain_text("Nothing waits")
        expect(page.locator("#letters")).to_contain_text("Every document could be indexed.")
        expect(page.locator("#agents .condition")).to_have_text("Up to date")


def test_the_provider_its_endpoint_and_what_it_cost_are_shown(
    settings: Settings, store: Store, browser: Browser
) -> None:
    class HealthStore(QuietBoard):
        def endpoint(self, account: str, model: str) -> EndpointStatus | None:
            return EndpointStatus(EndpointCondition.STOPPED, time.time() + 40, "Incorrect API key provided")

        def usage(self, agent: str, *, day: object = None) -> tuple[Usage, ...]:
            return (Usage("openai", "text-embedding-3-small", 1200 if day is None else 14, 3, 9000, 2_400_000),)

        def conditions(self, agent: str) -> tuple[Condition, ...]:
            return (
                Condition(
                    ConditionCode.FOLDER_UNLISTABLE, "memory/secret.md", time.time(), {"error": "cannot be read"}
                ),
            )

    with running(settings, HealthStore()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        agent = page.locator("#agents")
        expect(agent).to_contain_text("Provider refuses")
        expect(agent).to_contain_text(re.compile("refuses · next try .*Incorrect API key provided"))
        expect(agent).to_contain_text("in all: 1,200 requests, 2,400,000 tokens, about $0.05, 3 failed")
        expect(agent).to_contain_text("today: 14 requests")
        expect(agent).to_contain_text("files: memory/secret.md cannot be listed: cannot be read")
        expect(agent).to_contain_text("stub · hashed-words-64")


def test_an_endpoint_that_has_not_answered_is_a_notice_first_and_a_trouble_in_the_end(
    settings: Settings, store: Store, browser: Browser
) -> None:
    class HealthStore(QuietBoard):
        seconds = 14.0

        def endpoint(self, account: str, model: str) -> EndpointStatus | None:
            reason = "openai at http://127.0.0.1:9/v1 has not answered a request"
            return EndpointStatus(EndpointCondition.WAITING, None, reason, time.time() - self.seconds)

    board = HealthStore()
    with running(settings, board) as service, visiting(browser, service.base_url) as visit:
        agent = visit.open().locator("#agents")
        expect(agent.locator(".condition")).to_have_text("Provider has not answered yet")
        expect(agent).to_contain_text(re.compile(r"no answer yet · \d+ s.* openai at http://127.0.0.1:9/v1 has not"))
        board.seconds = 600.0
        expect(agent.locator(".condition")).to_have_text("In trouble")
        expect(agent).to_contain_text("provider stub: openai at http://127.0.0.1:9/v1 has not answered a request; keyw")


def test_a_service_that_restarts_is_said_and_the_page_goes_on_by_itself(
    settings: Settings, store: Store, browser: Browser
) -> None:
    with ExitStack() as visits:
        with running(settings) as service:
            port = service.base_url.port
            visit = visits.enter_context(visiting(browser, service.base_url, expected=("ERR_",)))
            page = visit.open(query="Basalt")
            expect(page.locator(".result")).not_to_have_count(0)
        expect(page.locator("#awaybox")).to_contain_text("recalld does not answer")
        expect(page.get_by_role("status")).to_contain_text("recalld does not answer")
        expect(page.locator(".result")).not_to_have_count(0)
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("#found .bad")).to_contain_text("recalld does not answer")

        with running(settings, port=port or 0):
            expect(page.locator("#awaybox")).to_be_hidden()
            expect(page.get_by_role("status")).to_have_text("recalld answers again.")
            page.get_by_role("button", name="Search", exact=True).click()
            expect(page.locator(".result")).not_to_have_count(0)


def test_nobody_is_asked_while_nobody_looks(settings: Settings, store: Store, browser: Browser) -> None:
    with running(settings) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        page.clock.install()
        page.reload()
        expect(page.locator(".looked dl")).to_be_visible()
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        tell = "document.dispatchEvent(new Event('visibilitychange'))"
        page.evaluate(hide % "true" + tell)
        page.wait_for_load_state("networkidle")  # what was under way
        asked = len(visit.requests)
        page.clock.run_for(60_000)
        assert len(visit.requests) == asked
        with page.expect_request("**/v1/queue"):
            page.evaluate(hide % "false" + tell)

        page.add_init_script(hide % "true")
        page.reload()
        page.wait_for_load_state("networkidle")
        asked = len(visit.requests)
        page.clock.run_for(60_000)
        assert len(visit.requests) == asked

"""Several agents: each opens its own memory by its token, or all are there and hundreds stay manageable."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from schemas.ports import Pending
from schemas.settings import Settings
from tests.browsing import visiting
from tests.quiet_board import QuietBoard
from tests.serving import running
from tests.written_index import write_index


@pytest.fixture
def two(settings: Settings, tmp_path: Path) -> Settings:
    agents = []
    for name in ("ada", "bob"):
        folder = tmp_path / name
        (folder / "memory").mkdir(parents=True)
        (folder / "memory" / "2026-01-01.md").write_text(f"The card of {name} is blue.\n", "utf-8")
        agents.append(settings.agents[0].model_copy(update={"id": name, "workspace": folder}))
    both = settings.model_copy(update={"agents": tuple(agents)})
    for agent in both.agents:
        write_index(both, agent.id).close()
    return both


def trusting(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": settings.auth.model_copy(update={"trust_loopback": True})})


def test_a_token_opens_its_own_agent_for_as_long_as_the_tab_is_open(two: Settings, browser: Browser) -> None:
    with running(two) as service, visiting(browser, service.base_url, expected=("401",)) as visit:
        page = visit.page
        page.goto(visit.origin)
        token = page.get_by_label("Token")
        expect(token).to_be_focused()
        expect(page.locator("#work")).to_be_hidden()
        expect(page.locator("#connection")).to_have_text("Token needed")
        expect(page.locator("#tokenwrong")).to_be_empty()
        token.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#tokenwrong")).to_have_text("this token is not known here")
        token.fill((two.home / "run" / "tokens" / "bob").read_text().strip())
        page.keyboard.press("Enter")

        expect(page.locator("#tokenbox")).to_be_hidden()
        visit.search("card")
        expect(page.locator(".result .snippet")).to_have_text("The card of bob is blue.")
        expect(page.locator(".agent")).to_have_count(1)
        page.locator("button.day").click()
        expect(page.get_by_role("dialog")).to_contain_text("The card of bob is blue.")
        assert "ada" not in page.content()

        page.reload()
        expect(page.locator(".result .snippet")).to_have_text("The card of bob is blue.")
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Forget the token").click()
        expect(page.get_by_label("Token")).to_be_focused()
        assert page.evaluate("JSON.stringify(sessionStorage)") == "{}"


def test_where_all_are_trusted_the_agent_is_chosen(two: Settings, browser: Browser) -> None:
    with running(trusting(two)) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        visit.search("card")
        expect(page.locator(".result .snippet")).to_have_text("The card of ada is blue.")
        page.get_by_role("combobox", name="Agent").select_option("bob")
        expect(page.locator(".result .snippet")).to_have_text("The card of bob is blue.")
        page.reload()
        expect(page.locator(".result .snippet")).to_have_text("The card of bob is blue.")
        page.locator("[data-agent=ada] summary").click()
        page.locator("[data-agent=ada]").get_by_role("button", name="Search this memory").click()
        expect(page.locator(".result .snippet")).to_have_text("The card of ada is blue.")
        expect(page.get_by_role("searchbox", name="Search memory")).to_be_focused()


def test_three_hundred_agents_are_paged_and_found_and_only_what_is_opened_is_looked_at(
    settings: Settings, tmp_path: Path, browser: Browser
) -> None:
    class HealthStore(QuietBoard):
        def pending(self, agent: str) -> Pending | None:
            number = int(agent[-3:])
            return Pending(number, 1, time.time() - number) if number % 20 == 7 else Pending()

    ids = [f"agent-{number:03}" for number in range(300)]
    agents = tuple(settings.agents[0].model_copy(update={"id": name, "workspace": tmp_path / name}) for name in ids)
    many = trusting(settings.model_copy(update={"agents": agents}))
    with running(many, HealthStore()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        expect(page.locator(".agent")).to_have_count(12)
        expect(page.locator("#pages")).to_have_text("1–12 of 300")
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".agent").first).to_have_attribute("data-agent", "agent-012")
        expect(page.locator("#queue tbody tr")).to_have_count(8)
        expect(page.locator("#queue tbody tr").first).to_contain_text("agent-287")
        expect(page.locator("#queue")).to_contain_text("and 7 more agents")
        page.get_by_label(re.compile("Only those that need attention")).check()
        expect(page.locator(".agent .condition").first).to_have_text("Behind")
        expect(page.locator(".agent")).to_have_count(12)
        expect(page.locator("#paging")).to_be_hidden()
        page.get_by_label("Find an agent").fill("287")
        expect(page.locator(".agent")).to_have_count(1)
        assert not [url for url in visit.requests if "/v1/status" in url]
        page.locator(".agent summary").click()
        expect(page.locator(".agent .looked dl")).to_be_visible()
        assert {url for url in visit.requests if "/v1/status" in url} == {f"{visit.origin}/v1/status?agent=agent-287"}
        page.get_by_label("Find an agent").fill("nobody")
        expect(page.get_by_text("No agent is called so.")).to_be_visible()


def test_without_a_provider_nothing_is_said_to_be_made(settings: Settings, workspace: Path, browser: Browser) -> None:
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    agent = settings.agents[0].model_copy(update={"provider": "openai"})
    keyless = settings.model_copy(update={"provider": "openai", "agents": (agent,)})
    write_index(keyless).close()
    with running(keyless, QuietBoard()) as service, visiting(browser, service.base_url) as visit:
        page = visit.open()
        expect(page.locator(".agent .condition")).to_have_text("In trouble")
        expect(page.locator(".agent .looked dl")).to_be_visible()
        facts = page.locator(".agent")
        expect(facts).to_contain_text("1 document by keyword only: OPENAI_API_KEY is not set")
        expect(facts).to_contain_text("1 not to be had for now")
        expect(facts).not_to_contain_text("being made")
        expect(facts).not_to_contain_text("Chosen for")
        visit.search("heron")
        expect(page.locator(".result .snippet")).to_have_text("The heron stands in the reeds.")
        expect(page.locator("body")).not_to_contain_text("being made")

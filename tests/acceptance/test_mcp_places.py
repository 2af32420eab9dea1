"""`recalld mcp` on a machine with several agents: the place of the program chooses, or the owner has all of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ListRootsResult, Root
from pydantic import FileUrl

from recalld.local.mcp_stdio import agent_at
from schemas.settings import AgentSettings, Settings
from tests.daemon import clean_environment
from tests.mcp_clients import calling, child, connected, found, tools
from tests.serving import running
from tests.waiting import wait_until
from tests.written_index import with_agents, write_index

Work = Callable[[Client], Awaitable[Any]]


@pytest.fixture
def several(settings: Settings) -> Settings:
    """The agents acme, below it api, and zoo, whose notes are apart from the project of its transcripts."""
    several = with_agents(settings, "acme", "acme/api", "zoo", note="note")
    first, inner, apart = several.agents
    project = first.workspace.parent / "shop"
    (project / "src").mkdir(parents=True)
    sessions = (f"{settings.home}/claude/projects/{str(project).replace('/', '-').replace('_', '-')}",)
    inner, apart = inner.model_copy(update={"id": "api"}), apart.model_copy(update={"sessions": sessions})
    several = several.model_copy(update={"agents": (first, inner, apart)})
    tables = [
        f'[[agents]]\nid = "{agent.id}"\nworkspace = "{agent.workspace}"\nsessions = {list(agent.sessions)}\n'
        for agent in several.agents
    ]
    settings.home.mkdir(exist_ok=True)
    (settings.home / "recalld.toml").write_text('provider = "stub"\n' + "".join(tables), "utf-8")
    for agent in several.agents:
        write_index(several, agent.id).close()
    return several


def at(folder: Path, settings: Settings, work: Work, *arguments: str, roots: list[Path] | None = None) -> Any:
    """Return the result of the work of a program that runs in a folder, and has these folders open."""
    command = ["-P", "-m", "recalld", "--home", str(settings.home), "mcp", *arguments]
    server = child(sys.executable, *command, env=clean_environment({"XDG_CONFIG_HOME": "/nowhere"}), cwd=str(folder))
    if roots is None:
        return connected(server, work)

    async def open_folders(_: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl(root.as_uri())) for root in roots])

    async def run() -> Any:
        async with Client(server, mode="legacy", list_roots_callback=open_folders) as client:
            return await work(client)

    return asyncio.run(run())


async def snippets(client: Client) -> list[str]:
    answer = found(await calling("memory_search", query="password blue card", minScore=0)(client))
    return [answer["error"]] if "error" in answer else [result["snippet"] for result in answer["results"]]


def test_the_innermost_workspace_around_the_program_is_searched_and_no_other(several: Settings, tmp_path: Path):
    acme, api, zoo = (agent.workspace for agent in several.agents)
    shop = zoo.parent / "shop"
    agents = {acme: "acme", acme / "docs": "acme", api / "memory": "api", shop / "src": "zoo", acme.parent: None}
    assert {folder: agent_at(folder, several.agents) for folder in agents} == agents
    [snippet] = at(api / "memory", several, snippets)
    assert "acme/api" in snippet
    (tmp_path / "clone").mkdir()

    async def refused(client: Client) -> None:
        searched = found(await calling("memory_search", query="password blue card")(client))
        assert (searched["results"], searched["disabled"]) == ([], True)
        assert all(words in searched["error"] for words in ("acme, api, zoo", str(tmp_path / "clone"), "--all-agents"))
        read = found(await calling("memory_get", path="memory/note.md")(client))
        assert (read["text"], read["status"]) == ("", "error")

    at(tmp_path / "clone", several, refused)


def test_the_folders_that_a_program_has_open_count_more_than_its_own(several: Settings, tmp_path: Path):
    acme, _, zoo = (agent.workspace for agent in several.agents)
    assert "password of zoo" in at(acme, several, snippets, roots=[zoo])[0]
    assert "the agents are" in at(acme, several, snippets, roots=[tmp_path])[0]


def test_an_agent_that_joins_later_changes_no_connection(several: Settings):
    acme = several.agents[0].workspace
    file = several.home / "recalld.toml"
    both = file.read_text("utf-8")
    file.write_text(both.partition('[[agents]]\nid = "api"')[0], "utf-8")

    async def session(client: Client) -> None:
        before = await snippets(client)
        file.write_text(both, "utf-8")
        with running(several):
            assert await snippets(client) == before

    at(acme, several, session)


def test_the_owner_searches_all_agents_and_reads_what_a_result_names(several: Settings, tmp_path: Path):
    async def session(client: Client) -> None:
        assert all("agent" in tool.input_schema["properties"] for tool in await tools(client))
        answer = found(await calling("memory_search", query="password blue card", minScore=0)(client))
        assert {result["agent"] for result in answer["results"]} == {"acme", "api", "zoo"}
        for result in answer["results"]:
            assert result["path"] == "memory/note.md"
            read = found(await calling("memory_get", path=result["path"], agent=result["agent"])(client))
            assert read["text"].strip() in result["snippet"]
        several_have_it = found(await calling("memory_get", path="memory/note.md")(client))
        assert all(name in several_have_it["error"] for name in ("acme", "api", "zoo"))

    at(tmp_path, several, session, "--all-agents")
    with running(several) as service:
        wait_until(lambda: service.get("/readyz").status_code == 200)
        at(tmp_path, several, session, "--all-agents")


def test_a_program_without_a_service_learns_once_how_to_run_it(several: Settings):
    async def warnings(client: Client) -> list[str | None]:
        searches = [found(await calling("memory_search", query="password")(client)) for _ in range(2)]
        return [answer.get("warning") for answer in searches]

    first, second = at(several.agents[2].workspace, several, warnings)
    assert f"service install --home {several.home}" in first
    assert second is None
    with running(several):
        assert at(several.agents[2].workspace, several, warnings) == [None, None]


def test_worktrees_belong_to_their_repository_and_strangers_to_none(tmp_path: Path):
    repository, worktree, stranger = (tmp_path / name for name in ("repository", "worktree", "stranger"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(repository)]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(worktree)], check=True)
    agents = [AgentSettings(id=folder.name, workspace=folder) for folder in (repository, tmp_path / "else")]
    (worktree / "src").mkdir()
    (stranger / "entry").mkdir(parents=True)
    (stranger / ".git").write_bytes((worktree / ".git").read_bytes())
    assert [agent_at(folder, agents) for folder in (worktree / "src", stranger)] == ["repository", None]
    (stranger / ".git").write_text("gitdir: entry", "utf-8")
    (stranger / "entry" / "gitdir").write_text(str(stranger / ".git"), "utf-8")
    (stranger / "entry" / "commondir").write_text(str(repository / ".git"), "utf-8")
    assert agent_at(stranger, agents) is None


def test_the_user_s_own_folder_is_around_no_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    agents = [AgentSettings(id="home", workspace=tmp_path)]
    assert [agent_at(folder, agents) for folder in (tmp_path, tmp_path / "clone")] == ["home", None]


def test_of_one_project_s_agents_the_calling_program_s_is_taken(tmp_path: Path):
    agents = [
        AgentSettings(id=name, workspace=tmp_path, sessions=(f"{tmp_path}/.{name}/tmp/x/chats",))
        for name in ("claude", "gemini")
    ]
    programs = {"gemini-cli-mcp-client": "gemini", "claude-code": "claude", "Zed": "claude", "": "claude"}
    assert {program: agent_at(tmp_path, agents, program=program) for program in programs} == programs

"""Workspaces that --workspace names: whose they are, and which of their notes are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from recalld.invocation import Invocation
from schemas.errors import UserError


class Home:
    """A home and folders of notes beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self, workspace: str | None = None, agent: str | None = None) -> Invocation:
        named = str(self.folder / workspace) if workspace else None
        return Invocation(home=str(self.folder / "home"), workspace=named, agent=agent)

    def name(self, workspace: str, agent: str | None = None) -> str:
        """Return the agent of a workspace that a command names and remembers."""
        (self.folder / workspace).mkdir(exist_ok=True)
        call = self.call(workspace, agent)
        call.remember()
        return call.the_agent().id

    def configure(self, **agents: str) -> None:
        """Write settings that name agents and their workspaces."""
        (self.folder / "home").mkdir(exist_ok=True)
        tables = (f"[[agents]]\nid = '{name}'\nworkspace = '{self.folder / place}'\n" for name, place in agents.items())
        (self.folder / "home" / "recalld.toml").write_text("".join(tables))

    def agents(self) -> dict[str, str]:
        return {agent.id: agent.workspace.name for agent in self.call().settings.agents}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    return Home(tmp_path)


def test_a_folder_is_taken_whole_unless_it_has_the_names_of_a_memory(home: Home) -> None:
    home.name("notes")
    (home.folder / "notes" / "MEMORY.md").write_text("later\n")
    (home.folder / "tool" / "memory").mkdir(parents=True)
    home.name("tool")
    for call in (home.call(), home.call("notes"), home.call("tool")):
        assert [agent.extra_paths for agent in call.settings.agents] == [(".",), ()]
    assert home.call("notes").the_agent().id == "main"


def test_a_home_of_an_earlier_version_is_read_and_chooses_when_named(home: Home) -> None:
    (home.folder / "notes").mkdir()
    (home.folder / "home").mkdir()
    (home.folder / "home" / "agents.json").write_text(f'{{"agents": {{"main": "{home.folder / "notes"}"}}}}')
    assert home.call().the_agent().extra_paths == ()
    assert home.name("notes") == "main"
    assert home.call().the_agent().extra_paths == (".",)


def test_a_named_workspace_is_an_agent_beside_those_of_the_settings(home: Home) -> None:
    home.name("first")
    home.configure(research="papers", codex="codex")
    assert home.agents() == {"research": "papers", "codex": "codex", "main": "first"}
    names = [home.name(folder) for folder in ("papers", "first", "second", "codex")]
    assert names == ["research", "main", "second", "codex"]
    (home.folder / "elsewhere").mkdir()
    assert home.name("elsewhere/second") == "second-2"
    assert list(home.agents()) == ["research", "codex", "main", "second", "second-2"]


def test_a_remembered_agent_gives_its_name_to_one_of_the_settings(home: Home) -> None:
    home.name("sample")
    home.configure(main="openclaw")
    call = home.call()
    assert home.agents() == {"main": "openclaw", "sample": "sample"}
    [remark] = call.loaded.remarks
    assert "agent sample " in remark
    assert home.name("sample") == "sample"
    assert home.call().loaded.remarks == ()
    assert home.agents() == {"main": "openclaw", "sample": "sample"}
    home.configure(main="sample")
    assert home.agents() == {"main": "sample"}


def test_a_remembered_folder_that_is_gone_stops_nothing(home: Home) -> None:
    home.name("first")
    (home.folder / "first").rmdir()
    assert home.agents() == {"main": "first"}
    assert home.name("moved") == "main"
    home.configure(research="papers")
    (home.folder / "moved").rmdir()
    assert home.agents() == {"research": "papers"}
    assert "is left out" in home.call().loaded.remarks[0]
    (home.folder / "home" / "agents.json").write_text("{")
    assert home.agents() == {"research": "papers"}
    with pytest.raises(UserError, match="no agent"):
        home.call(agent="main").the_agent()

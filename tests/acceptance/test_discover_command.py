"""From a machine with agents to settings that work, with one command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.daemon import REPOSITORY, clean_environment
from tests.forked import command_line


class User:
    """Somebody with agents, who has never used recalld."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(".openclaw/workspace/MEMORY.md", "The gateway listens on port 18789.\n")
        self.write(".openclaw/agents/main/sessions/a.jsonl", '{"type":"session","id":"a"}\n')
        self.write(
            ".openclaw/openclaw.json",
            "{ agents: { defaults: { memorySearch: { provider: 'none', query: { maxResults: 9 },"
            " remote: { apiKey: 'sk-secret' }, multimodal: { enabled: true } } } } } // mine",
        )
        self.write("project/notes.txt", "x")
        self.write(".claude/projects/-p/a.jsonl", json.dumps({"cwd": str(folder / "project")}) + "\n")
        self.write(".codex/sessions/2026/02/03/rollout-a.jsonl", "{}\n")

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment({"HOME": str(self.folder), "PYTHONPATH": str(REPOSITORY)})
        for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCLAW_STATE_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            environment.pop(name, None)
        ended = subprocess.run(
            command_line(arguments, environment),
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "sk-secret" not in ended.stdout + ended.stderr
        return ended


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "user")


def test_everything_is_listed_with_how_to_go_on(user: User) -> None:
    listed = user.run("discover")
    assert listed.returncode == 0, listed.stderr
    for words in ("OpenClaw", "Claude Code", "Codex", "1 transcript", "--pick main --write", "multimodal"):
        assert words in listed.stdout
    machine = json.loads(user.run("discover", "--json").stdout)
    assert [one["name"] for one in machine["found"]] == ["main", "project", "codex"]
    assert machine["found"][0]["settings"] == {"provider": "none", "query": {"max_results": 9}}
    assert not (user.folder / ".config").exists()
    assert not (user.folder / ".local").exists()


def test_picked_ones_become_settings_that_every_command_finds(user: User) -> None:
    shown = user.run("discover", "--pick", "main", "codex")
    assert 'id = "main"' in shown.stdout
    assert "Nothing was written" in shown.stdout
    written = user.run("discover", "--pick", "main", "codex", "--write")
    assert written.returncode == 0, written.stderr
    file = user.folder / ".config" / "recalld" / "recalld.toml"
    assert file.read_text() in written.stdout
    assert "multimodal" in file.read_text()
    settings = json.loads(user.run("config", "show", "--json").stdout)
    assert settings["config"] == str(file)
    values = {key: one["value"] for key, one in settings["settings"].items()}
    assert values["agents.main.workspace"] == str(user.folder / ".openclaw" / "workspace")
    assert values["agents.main.sessions"] == [str(user.folder / ".openclaw/agents/main/sessions")]
    assert (values["agents.main.query.max_results"], values["agents.main.provider"]) == (9, "none")
    assert values["agents.codex.sessions"] == [str(user.folder / ".codex" / "sessions")]
    assert "agents.project.workspace" not in values

    indexed = user.run("index", "--agent", "main", "--json")
    assert indexed.returncode == 0, indexed.stderr
    assert "MEMORY.md" in user.run("search", "--agent", "main", "gateway port").stdout


@pytest.mark.long
def test_discover_write_disconnects_no_workspace_that_was_there(user: User) -> None:
    user.write("notes/bread.md", "The sourdough rises for twelve hours.\n")
    user.write("notes/.git/x.md", "hidden\n")
    user.write("notes/node_modules/x.md", "a package\n")
    assert user.run("index", "--workspace", "notes", "--json").returncode == 0
    assert user.run("discover", "--all", "--write").returncode == 0
    again = user.run("index", "--workspace", "notes", "--json")
    assert again.returncode == 0, again.stderr
    [report] = json.loads(again.stdout)["agents"]
    assert (report["agent"], report["files"]) == ("notes", 1), "OpenClaw's agent has the name main"
    assert user.run("status", "--workspace", "notes").returncode == 0
    assert "bread.md" in user.run("search", "--workspace", "notes", "sourdough").stdout
    assert "MEMORY.md" not in user.run("search", "--workspace", "notes", "gateway port").stdout
    assert user.run("index").returncode == 0
    assert "bread.md" not in user.run("search", "--agent", "main", "sourdough").stdout


@pytest.mark.long
def test_a_folder_is_discovered_by_its_path(user: User) -> None:
    user.write("notes/bread.md", "The sourdough rises for twelve hours.\n")
    assert user.run("index", "--workspace", "notes").returncode == 0
    written = user.run("discover", "~/notes", "--write")
    assert written.returncode == 0, written.stderr
    file = user.folder / ".config" / "recalld" / "recalld.toml"
    assert 'id = "main"' in file.read_text(), "the agent that has the folder keeps its name"
    assert 'extra_paths = ["."]' in file.read_text()
    assert json.loads(user.run("index", "--json").stdout)["agents"][0]["files"] == 1
    refused = user.run("discover", "./nowhere")
    assert (refused.returncode, str(user.folder / "nowhere") in refused.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["index", "--workspace", "."], ["discover", "~", "--write"]])
def test_the_home_folder_is_taken_on_confirmation_only(user: User, arguments: list[str]) -> None:
    user.write("a.md", "The sourdough rises for twelve hours.\n")
    refused = user.run(*arguments)
    assert refused.returncode == 2
    assert all(fact in refused.stderr for fact in ("home folder", "least 1 .md file (", "to embed"))
    assert not (user.folder / ".local").exists()
    assert not (user.folder / ".config").exists()
    assert user.run(*arguments, "--yes").returncode == 0


def test_a_settings_file_that_is_there_is_kept(user: User) -> None:
    assert user.run("discover", "--all", "--write=mine.toml").returncode == 0
    mine = user.folder / "mine.toml"
    mine.write_text(mine.read_text() + "# my own\n")
    refused = user.run("discover", "--all", "--write=mine.toml")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert mine.read_text().endswith("# my own\n")
    forced = user.run("discover", "--pick=main", "--write=mine.toml", "--force")
    assert forced.returncode == 0
    assert "my own" not in mine.read_text()
    (copy,) = user.folder.glob("mine.toml.before-recalld-*")
    assert copy.read_text().endswith("# my own\n")
    assert user.run("config", "show", "--config", "mine.toml").returncode == 0


def test_a_named_home_gets_its_own_settings(user: User) -> None:
    written = user.run("discover", "--all", "--write", "--json", "--home", "elsewhere")
    assert json.loads(written.stdout)["written"] == str(user.folder / "elsewhere" / "recalld.toml")
    assert "agents.project.workspace" in user.run("config", "show", "--home", "elsewhere").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--write"], "--pick"),
        (["--pick", "nobody"], "nobody (found: main, project, codex)"),
        (["--write", "main"], "ends in .toml"),
    ],
)
def test_wrong_usage_is_one_sentence(user: User, arguments: list[str], words: str) -> None:
    ended = user.run("discover", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["up", "index"])
def test_commands_without_settings_name_discover(user: User, command: str) -> None:
    ended = user.run(command)
    assert ended.returncode == 2
    assert "recalld discover" in ended.stderr
    assert ended.stderr.count("\n") == 1

"""`recalld connect`: programs get recalld, keep everything else, and give it back."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from recalld.cli import run
from recalld.settings.replacement import JsonSettings
from schemas.errors import UserError

#: A program's own command: it notes its arguments and puts the entry into its settings, or takes it out.
_PROGRAM = """\
#!{python}
import json, pathlib, sys
name, place, file = {name!r}, {place!r}, pathlib.Path({file!r})
with open({log!r}, "a") as log:
    log.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
words = sys.argv[sys.argv.index("recalld") + 1:]
words = words[words[:1] == ["--"]:]
if file.suffix == ".toml":
    entry = f"command = {{json.dumps(words[0])}}\\nargs = {{json.dumps(words[1:])}}\\n" if words else ""
    file.write_text(f"[mcp_servers.recalld]\\n{{entry}}" if entry else "")
    sys.exit()
tree = servers = json.loads(file.read_text()) if file.exists() else {{}}
for key in place.split("."):
    servers = servers.setdefault(key, {{}})
if sys.argv[2] in ("remove", "unset"):
    del servers["recalld"]
elif "recalld" in servers and name == "claude":
    sys.exit("MCP server recalld already exists in user config")
elif sys.argv[2] == "set":
    servers["recalld"] = json.loads(words[0])
else:
    servers["recalld"] = {{"type": "stdio", "command": words[0], "args": words[1:], "env": {{}}}}
file.write_text(json.dumps(tree, indent=2))
"""

#: A server that answers at once.
_SERVER = """\
#!/bin/sh
echo '{"jsonrpc": "2.0", "id": 1, "result": {}}'
echo '{"jsonrpc": "2.0", "id": 2, "result": {"tools": [{"name": "a_tool"}]}}'
"""


class Machine:
    """A user's folder with projects of Claude Code, and programs that are stand-ins."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.user, self.bin, self._capsys = folder / "user", folder / "bin", capsys
        self.log = folder / "calls"
        self.settings = self.user / ".config" / "recalld" / "recalld.toml"
        for place in (self.user, self.bin):
            place.mkdir()
        self.recalld = str(self.script("recalld", _SERVER))
        self.words = [self.recalld, "mcp"]
        self.program("claude", "mcpServers", ".claude.json")
        self.program("codex", "mcp_servers", ".codex/config.toml")
        self.program("openclaw", "mcp.servers", ".openclaw/openclaw.json")
        self.program("gemini", "mcpServers", ".gemini/settings.json")

    def program(self, name: str, place: str, file: str) -> None:
        words = {"python": sys.executable, "name": name, "place": place, "file": str(self.user / file)}
        self.script(name, _PROGRAM.format(log=str(self.log), **words))

    def script(self, name: str, text: str) -> Path:
        file = self.bin / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        file = self.user / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        file.chmod(mode)
        return file

    def project(self, name: str) -> Path:
        """A folder that Claude Code worked in."""
        folder = self.write(f"{name}/notes.txt", "").parent
        self.write(f".claude/projects/-{name}/a.jsonl", json.dumps({"cwd": str(folder)}) + "\n")
        return folder

    def connect(self, *arguments: str, code: int = 0) -> str:
        """Return the command's output, and what it says on standard error."""
        self._capsys.readouterr()
        ended = run(["connect", *arguments])
        printed, problems = self._capsys.readouterr()
        assert ended == code, printed + problems
        return printed + problems

    def files(self) -> dict[str, bytes]:
        """Content of every file below the user's folder, but of the copies."""
        files = (file for file in self.user.rglob("*") if file.is_file() and ".before-recalld-" not in file.name)
        return {str(file.relative_to(self.user)): file.read_bytes() for file in files}

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def json(self, path: str) -> Any:
        return json.loads((self.user / path).read_text())


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path, capsys)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCLAW_STATE_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("RECALLD_HOME", "RECALLD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(made.user))
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr("sys.argv", [made.recalld])
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(made.user)
    return made


def test_claude_code_is_connected_once_and_gets_its_projects(machine: Machine) -> None:
    machine.project("alpha")
    machine.write(".claude.json", '{"theme": "dark"}')
    machine.write(".claude/settings.json", '{\n    "model": "opus"\n}\n')
    before = machine.files()
    assert "--yes" in machine.connect("claude-code", code=2)
    assert machine.files() == before

    said = machine.connect("claude-code", "--yes")
    assert "answers with a_tool" in said
    assert machine.json(".claude.json")["mcpServers"]["recalld"]["command"] == machine.recalld
    assert "PreCompact" in machine.json(".claude/settings.json")["hooks"]
    assert [agent["id"] for agent in tomllib.loads(machine.settings.read_text())["agents"]] == ["alpha"]
    connected = machine.files()
    machine.connect("claude-code", "--yes")
    assert machine.files() == connected
    assert "connected: " in machine.connect()

    machine.project("beta")
    assert "agent beta" in machine.connect("claude-code", "--yes")
    assert machine.settings.read_bytes().startswith(connected[".config/recalld/recalld.toml"])
    assert [agent["id"] for agent in tomllib.loads(machine.settings.read_text())["agents"]] == ["alpha", "beta"]

    machine.write(".claude.json", json.dumps({**machine.json(".claude.json"), "theme": "light"}))
    machine.connect("--remove", "--yes")
    assert machine.json(".claude.json") == {"theme": "light", "mcpServers": {}}
    assert machine.files()[".claude/settings.json"] == before[".claude/settings.json"]
    assert not (machine.user / ".local/share/recalld/connections.json").exists()


@pytest.mark.parametrize(
    ("program", "added", "removed"),
    [
        ("codex", ["mcp", "add", "recalld", "--", "RECALLD", "mcp"], ["mcp", "remove", "recalld"]),
        (
            "gemini",
            ["mcp", "add", "-s", "user", "recalld", "RECALLD", "mcp"],
            ["mcp", "remove", "-s", "user", "recalld"],
        ),
        (
            "openclaw",
            ["mcp", "set", "recalld", '{"command": "RECALLD", "args": ["mcp"]}'],
            ["mcp", "unset", "recalld"],
        ),
    ],
)
def test_a_program_with_a_command_gets_and_loses_the_server_by_it(
    machine: Machine, program: str, added: list[str], removed: list[str]
) -> None:
    for file in (".codex/config.toml", ".gemini/settings.json", ".openclaw/openclaw.json"):
        machine.write(file, "" if file.endswith("toml") else "{}")
    machine.connect(program, "--yes", "--no-hooks")
    machine.connect(program, "--yes", "--no-hooks")
    machine.connect("--remove", program, "--yes")
    added = [word.replace("RECALLD", machine.recalld) for word in added]
    assert machine.calls() == [[program, *added], [program, *removed]]


@pytest.mark.parametrize(
    ("program", "file", "table", "entry"),
    [
        ("cursor", ".cursor/mcp.json", "mcpServers", {"command": "RECALLD", "args": ["mcp"]}),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers", {"command": "RECALLD", "args": ["mcp"]}),
        ("vscode", ".config/Code/User/mcp.json", "servers", {"type": "stdio", "command": "RECALLD", "args": ["mcp"]}),
        (
            "opencode",
            ".config/opencode/opencode.json",
            "mcp",
            {"type": "local", "command": ["RECALLD", "mcp"], "enabled": True},
        ),
    ],
)
def test_a_settings_file_keeps_link_mode_and_the_rest_and_a_new_one_goes_again(
    machine: Machine, program: str, file: str, table: str, entry: dict[str, Any]
) -> None:
    entry = json.loads(json.dumps(entry).replace("RECALLD", machine.recalld))
    machine.connect(program, "--yes")
    assert machine.json(file) == {table: {"recalld": entry}}
    machine.connect("--remove", "--yes")
    assert not (machine.user / file).exists()

    before = json.dumps({table: {"other": {"command": "x"}}, "a": 1.5}, indent=4) + "\n"
    real = machine.write("dotfiles/mcp.json", before, 0o640)
    (machine.user / file).symlink_to(real)
    machine.connect(program, "--yes")
    assert machine.json(file)[table] == {"other": {"command": "x"}, "recalld": entry}
    machine.connect("--remove", "--yes")
    assert ((machine.user / file).is_symlink(), real.read_text()) == (True, before)
    assert {path.stat().st_mode & 0o777 for path in real.parent.iterdir()} == {0o640}, "of the file and its copies"


@pytest.mark.parametrize(
    ("program", "file", "text"),
    [
        ("cursor", ".cursor/mcp.json", '{ // mine\n "mcpServers": {}}'),
        ("vscode", ".config/Code/User/mcp.json", '{"servers": []}'),
        ("opencode", ".config/opencode/opencode.jsonc", "{ /* mine */ }"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", '{"a": 1, "b": [2,]}'),
        ("openclaw", ".openclaw/openclaw.json", "{agents: {}, } // its command would drop this"),
        ("codex", ".codex/config.toml", "no toml"),
        ("gemini", ".gemini/settings.json", '{"mcpServers": '),
    ],
)
def test_a_file_that_would_lose_something_is_left_alone_and_the_block_is_shown(
    machine: Machine, program: str, file: str, text: str
) -> None:
    machine.write(file, text)
    before = machine.files()
    said = machine.connect(program, "--yes", "--no-hooks", code=1)
    assert machine.recalld in said.partition(f"{machine.user / file}:\n")[2]
    assert (machine.files(), machine.calls()) == (before, [])


def test_a_linked_file_that_openclaw_would_replace_is_left_alone(machine: Machine) -> None:
    real = machine.write("dotfiles/openclaw.json", "{}")
    machine.write(".openclaw/x", "")
    (machine.user / ".openclaw/openclaw.json").symlink_to(real)
    assert "is a link" in machine.connect("openclaw", "--yes", code=1)
    assert machine.calls() == []


def test_openclaw_is_to_name_an_agent_among_several(machine: Machine) -> None:
    agents = "".join(f"[[agents]]\nid = '{name}'\nworkspace = '{machine.user}/{name}'\n" for name in "ab")
    machine.write(".config/recalld/recalld.toml", agents)
    machine.write(".openclaw/openclaw.json", "{}")
    assert "--all-agents" in machine.connect("openclaw", "--yes")
    assert "--all-agents" not in machine.connect("openclaw", "--agent", "a", "--yes")
    assert machine.json(".openclaw/openclaw.json")["mcp"]["servers"]["recalld"]["args"] == ["mcp", "--agent", "a"]


def test_a_program_without_its_command_gets_the_lines_to_paste(machine: Machine) -> None:
    (machine.bin / "codex").unlink()
    said = machine.connect("codex", "--yes", "--no-hooks", code=1)
    lines = said.partition("[mcp_servers.recalld]\n")[2].splitlines()[:2]
    assert tomllib.loads("\n".join(lines)) == {"command": machine.recalld, "args": ["mcp"]}


def test_an_entry_by_another_hand_stays(machine: Machine) -> None:
    theirs = {"mcpServers": {"recalld": {"url": "http://127.0.0.1:7373/mcp"}}}
    machine.write(".cursor/mcp.json", json.dumps(theirs))
    assert "127.0.0.1:7373" in machine.connect("cursor", "--yes", code=1)
    assert machine.json(".cursor/mcp.json") == theirs
    machine.write(
        ".cursor/mcp.json", json.dumps({"mcpServers": {"recalld": {"command": machine.recalld, "args": ["mcp"]}}})
    )
    machine.connect("cursor", "--yes")
    machine.connect("--remove", "--yes")
    assert "recalld" in machine.json(".cursor/mcp.json")["mcpServers"]


def test_an_entry_or_hook_that_was_changed_since_stays_at_removal(machine: Machine) -> None:
    machine.connect("claude-code", "cursor", "--yes")
    for file in (".cursor/mcp.json", ".claude/settings.json"):
        machine.write(file, (machine.user / file).read_text().replace(machine.recalld, "/other/recalld"))
    machine.write(".claude.json", "{}")
    before = machine.files()
    said = machine.connect("--remove", "--yes")
    assert (said.count("changed since"), said.count("gone already")) == (2, 1)
    after = machine.files()
    assert set(before) - set(after) == {".local/share/recalld/connections.json"}
    assert all(before[name] == content for name, content in after.items())


def test_other_options_take_the_place_of_the_entry(machine: Machine, tmp_path: Path) -> None:
    mine = "provider = 'none' # mine\n"
    config = machine.write("mine.toml", mine)
    machine.project("alpha")
    options = ("--home", str(tmp_path / "home"), "--config", str(config))
    machine.connect("claude-code", "--yes", *options)
    assert machine.json(".claude.json")["mcpServers"]["recalld"]["args"] == ["mcp", *options]
    assert config.read_text().startswith(f"{mine}\n# Claude Code")
    machine.connect("claude-code", "--agent", "alpha", "--yes", *options)
    assert machine.json(".claude.json")["mcpServers"]["recalld"]["args"][-2:] == ["--agent", "alpha"]
    assert (tmp_path / "home" / "connections.json").stat().st_mode & 0o777 == 0o600


def test_agents_that_are_there_stay_and_none_comes_twice(machine: Machine) -> None:
    folders = [machine.project(name) for name in ("alpha", "beta", "gamma", "delta")]
    before = (
        f"# mine\r\nprovider = 'none'\r\n[[agents]]\r\nid = 'alpha' # other notes\r\nworkspace = '{machine.user}'\r\n"
        f"[[agents]]\r\nid = 'b'\r\nworkspace = '{folders[1]}'\r\n"
        f"[[agents]]\r\nid = 'c'\r\nworkspace = '{machine.user}'\r\n"
        f"sessions = ['{machine.user}/.claude/projects/-gamma']"
    )
    machine.settings.parent.mkdir(parents=True)
    machine.settings.write_bytes(before.encode())
    said = machine.connect("claude-code", "--yes").splitlines()
    [remark] = [line for line in said if f'sessions = ["{machine.user}/.claude/projects/-beta"]' in line]
    assert {"b", str(folders[1])} <= set(remark.split())
    after = machine.settings.read_bytes().decode()
    assert after.startswith(before)
    assert {agent["id"] for agent in tomllib.loads(after)["agents"]} == {"alpha", "b", "c", "alpha-2", "delta"}


def test_agents_that_cannot_be_added_are_shown(machine: Machine) -> None:
    machine.project("alpha")
    machine.write(".config/recalld/recalld.toml", "agents = []\n")
    assert '[[agents]]\nid = "alpha"' in machine.connect("claude-code", "--yes")
    assert machine.settings.read_text() == "agents = []\n"


def test_a_remembered_workspace_keeps_its_name(machine: Machine) -> None:
    folder = machine.project("alpha")
    machine.write(".local/share/recalld/agents.json", json.dumps({"agents": {"main": str(folder)}}))
    machine.connect("claude-code", "--yes")
    assert [agent["id"] for agent in tomllib.loads(machine.settings.read_text())["agents"]] == ["main"]


def test_hooks_of_another_recalld_stay(machine: Machine) -> None:
    theirs = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "/other/recalld hook claude-code"}]}]}}
    machine.write(".claude/settings.json", json.dumps(theirs))
    assert "which stay" in machine.connect("claude-code", "--yes")
    assert machine.json(".claude/settings.json") == theirs


def test_a_file_that_another_program_changes_meanwhile_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")
    settings = JsonSettings.read(file)
    file.write_text('{"new": 1}')
    with pytest.raises(UserError, match="meanwhile"):
        settings.replace({"a": 1})
    assert file.read_text() == '{"new": 1}'


def test_the_registered_command_is_the_real_server(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])
    machine.write(".cursor/mcp.json", "{}")
    assert "memory_get" in machine.connect("cursor", "--yes")
    (command,) = {entry["command"] for entry in machine.json(".cursor/mcp.json")["mcpServers"].values()}
    assert Path(command) == Path(sys.executable).with_name("recalld")


def test_a_server_that_does_not_answer_is_said_with_its_reason(machine: Machine) -> None:
    machine.script("recalld", "#!/bin/sh\necho 'recalld: no such home' >&2; exit 1")
    assert "no such home" in machine.connect("cursor", "--yes", code=1)
    machine.connect("--remove", "--yes")
    assert not (machine.user / ".cursor" / "mcp.json").exists()


def test_openclaw_with_one_agent_gets_that_agent_beside_all_others(machine: Machine) -> None:
    machine.write(".config/recalld/recalld.toml", f"[[agents]]\nid = 'notes'\nworkspace = '{machine.user}/notes'\n")
    machine.write(".openclaw/openclaw.json", "{}")
    machine.write(".openclaw/workspace/MEMORY.md", "# Memory\n")
    machine.connect("openclaw", "--yes")
    assert machine.json(".openclaw/openclaw.json")["mcp"]["servers"]["recalld"]["args"] == ["mcp", "--agent", "main"]
    assert "add --agent" not in machine.connect("openclaw", "--yes")


#: Content of a user's file of standing instructions.
_RULES = {
    "empty": b"",
    "no end": b"# Mine",
    "unix": b"# Mine\n\nBe kind.\n",
    "windows": b"\xef\xbb\xbf# M\r\n\r\nB\xff",
    "mac": b"a\r",
}


@pytest.mark.parametrize("mine", _RULES.values(), ids=_RULES)
def test_rules_come_once_are_renewed_and_leave_every_other_byte(machine: Machine, mine: bytes) -> None:
    real = machine.write("dotfiles/rules.md", "", 0o640)
    real.write_bytes(mine)
    for file in (".claude/CLAUDE.md", ".codex/AGENTS.md"):
        machine.write(f"{file}.other", "")
        (machine.user / file).symlink_to(real)
    programs = ("claude-code", "codex", "--yes", "--no-hooks")
    shown = machine.connect(*programs, "--rules", "user")
    block = real.read_bytes()[len(mine) :].decode().replace("\r", "").strip("\n")
    assert block in shown, "before anything is written"
    for words in ("memory_search", "memory_get", "memory/YYYY-MM-DD.md", f"{machine.recalld} remember"):
        assert words in block
    assert (b"\n" in real.read_bytes().replace(b"\r\n", b"")) is (b"\r\n" not in mine)
    written = real.read_bytes()
    assert "rules for" not in machine.connect(*programs, "--rules", "user")
    real.write_bytes(written.replace(b"durable", b"dull and durable"))
    machine.connect(*programs)
    assert real.read_bytes() == written, "the block is renewed"

    real.write_bytes(written.replace(b"durable", b"dull"))
    machine.connect("--remove", "--yes")
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (mine, 0o640)
    assert (machine.user / ".claude/CLAUDE.md").is_symlink()


def test_rules_in_a_project_stay_out_of_the_users_files_and_go_with_a_new_file(machine: Machine) -> None:
    machine.connect("claude-code", "cursor", "--yes", "--no-hooks", "--rules", "project")
    file = machine.user / "CLAUDE.md"
    assert b"memory_search" in file.read_bytes()
    assert not (machine.user / ".claude/CLAUDE.md").exists()
    file.write_bytes(b"Mine.\n" + file.read_bytes() + b"Mine, too.\n")
    machine.connect("--remove", "--yes")
    assert file.read_bytes() == b"Mine.\nMine, too.\n"
    file.unlink()
    machine.connect("claude-code", "--yes", "--no-hooks", "--rules", "project")
    machine.connect("--remove", "--yes")
    assert not file.exists()


def test_half_a_block_of_rules_is_left_alone_and_a_block_that_is_gone_stays_out(machine: Machine) -> None:
    machine.connect("claude-code", "--yes", "--no-hooks", "--rules", "user")
    file = machine.user / ".claude/CLAUDE.md"
    begin, rest = file.read_bytes().split(b"\n", 1)
    for halves in (rest, begin + b"\n" + rest + rest, rest + begin):
        file.write_bytes(halves)
        for command in (["claude-code", "--rules", "user"], ["claude-code"], ["--remove"]):
            assert "half a block" in machine.connect(*command, "--yes")
            assert file.read_bytes() == halves
    machine.connect("claude-code", "--yes", "--no-hooks")
    file.write_bytes(b"Mine.\n")
    assert "is gone already" in machine.connect("claude-code", "--yes", "--no-hooks")
    assert file.read_bytes() == b"Mine.\n"


@pytest.mark.parametrize(("answer", "file"), [("user", ".claude/CLAUDE.md"), ("project", "CLAUDE.md"), ("", None)])
def test_rules_need_an_answer_of_their_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, answer: str, file: str | None
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    machine.connect("claude-code", "--yes")
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    machine.connect("claude-code", "--rules", "none", "--yes")
    machine.connect("cursor", "--yes")
    assert not [path for path in machine.files() if path.endswith("CLAUDE.md")], "without an answer"
    assert "rules about memory" in machine.connect("claude-code", "--yes")
    assert [path for path in machine.files() if path.endswith("CLAUDE.md")] == ([file] if file else [])

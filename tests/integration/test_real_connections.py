"""The real programs, connected: a search from inside each answers, for a second project too, and nothing stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import npm
from tests.daemon import clean_environment
from tests.integration.test_real_claude import PACKAGE, model
from tests.waiting import wait_until

RECALLD = Path(sys.executable).with_name("recalld")

#: Name of our tool in Claude Code.
TOOL = "mcp__recalld__memory_search"


class User:
    """A user's folder with two projects, and a program on PATH."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.folder, programs = folder / "user", folder / "bin"
        for place in (self.folder / "one", self.folder / "two", programs):
            place.mkdir(parents=True)
        (self.folder / "one" / "MEMORY.md").write_text("The gateway listens on port 7171.\n", "utf-8")
        (self.folder / "two" / "MEMORY.md").write_text("The harbour crane is called Basalt.\n", "utf-8")
        self.settings = self.folder / ".config" / "recalld" / "recalld.toml"
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
        script.chmod(0o755)
        paths = [str(programs), str(Path(command[0]).parent), os.environ["PATH"]]
        own = {"HOME": str(self.folder), "PATH": os.pathsep.join(paths), "RECALLD_PROVIDER": "stub"}
        self.environment = {**clean_environment(), **own}

    def run(self, *command: str | Path, place: str = "", **variables: str) -> str:
        """Return the output of a command that must succeed."""
        process = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder / place,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def recalld(self, *arguments: str) -> str:
        return self.run(RECALLD, *arguments)


def first_search(request: dict[str, Any]) -> str | tuple[str, dict[str, Any]]:
    """Search with the user's words, and answer with the result."""
    blocks = request["messages"][-1]["content"]
    if isinstance(blocks, list) and (results := [block for block in blocks if block["type"] == "tool_result"]):
        return json.dumps(results[-1]["content"])
    tools = {tool["name"] for tool in request.get("tools", ())}
    return (TOOL, {"query": "gateway port and harbour crane"}) if TOOL in tools else "There is no memory."


@pytest.mark.long
def test_claude_code_answers_from_memory_in_one_project_and_in_the_next(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    programs = pytestconfig.cache.mkdir("claude-2.1.197") if pytestconfig.cache else tmp_path / "npm"
    user = User(tmp_path, "claude", [str(npm.installed(programs, PACKAGE, scripts=True) / ".bin/claude")])
    servers = {"other": {"type": "stdio", "command": "true", "args": []}}
    (user.folder / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    with model(first_search) as (address, _):
        variables = {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "sk-test",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "MCP_CONNECTION_NONBLOCKING": "0",
        }

        def ask(place: str) -> str:
            return user.run("claude", "-p", "Which port?", "--allowedTools", TOOL, place=place, **variables)

        assert "no memory" in ask("one")
        assert "memory_search" in user.recalld("connect", "claude-code", "--yes")
        user.recalld("up", "--detach", "--port", "0")
        try:
            wait_until(lambda: "7171" in ask("one"), timeout=120)
            ask("two")
            user.recalld("connect", "claude-code", "--yes")
            assert user.settings.read_text().count("[[agents]]") == 2
            wait_until(lambda: "Basalt" in ask("two"), timeout=120)
            assert "7171" in ask("one")
            user.recalld("stop")
            assert "7171" in ask("one")
            user.recalld("up", "--detach", "--port", "0")
            user.recalld("connect", "claude-code", "--all-agents", "--yes")
            assert "7171" in ask("two")
        finally:
            user.recalld("stop")

    user.recalld("connect", "--remove", "--yes")
    assert json.loads((user.folder / ".claude.json").read_text())["mcpServers"] == servers
    assert not (user.folder / ".claude" / "settings.json").exists()
    user.recalld("uninstall", "--yes")
    # Claude Code's own logs about its servers stay.
    assert {path.name for path in user.folder.rglob("*recalld*")} <= {"mcp-logs-recalld"}
    assert (user.folder / "one" / "MEMORY.md").exists()

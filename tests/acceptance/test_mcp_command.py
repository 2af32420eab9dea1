"""`recalld mcp` as an agent's program starts it, with the official client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from mcp import Client

from recalld.cli import run
from schemas.settings import Settings
from tests.daemon import REPOSITORY, clean_environment
from tests.mcp_clients import ERAS, calling, child, connected, found, refusal, tools, without_sdk
from tests.serving import running
from tests.written_index import write_index

T = TypeVar("T")

GROUP = "agent:main:telegram:group:7"

_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture
def notes(workspace: Path) -> Path:
    (workspace / "MEMORY.md").write_text("The build server is called Basalt.\n", "utf-8")
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    return workspace


@pytest.fixture
def config(tmp_path: Path, notes: Path) -> Path:
    file = tmp_path / "recalld.toml"
    file.write_text(f'provider = "stub"\n[[agents]]\nid = "main"\nworkspace = "{notes}"\n', "utf-8")
    return file


def arguments(config: Path, home: Path, *more: str) -> list[str]:
    return ["-m", "recalld", "--config", str(config), "--home", str(home), "mcp", *more]


def over_stdio(config: Path, home: Path, work: Callable[[Client], Awaitable[T]], *more: str, era: str = "auto") -> T:
    server = child(sys.executable, *arguments(config, home, *more), env=clean_environment(), cwd=str(REPOSITORY))
    return connected(server, work, era=era)


def piped(config: Path, home: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Return the output for a program that writes this and closes the pipe."""
    return subprocess.run(
        [sys.executable, *arguments(config, home)],
        input=text,
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("era", ERAS)
def test_without_a_service_it_reads_the_index_itself(settings: Settings, config: Path, era: str):
    write_index(settings)

    async def session(client: Client) -> None:
        listed = await tools(client)
        assert [tool.name for tool in listed] == ["memory_search", "memory_get"]
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
        for _ in range(2):
            answer = found(await calling("memory_search", query="dentist", maxResults=2)(client))
            assert answer["results"][0]["path"] == "memory/friday.md"
            assert answer["results"][0]["snippet"].endswith("memory/friday.md#L1")
            assert (answer["mode"], answer.get("degraded", [])) == ("hybrid", [])
        read = found(await calling("memory_get", path="MEMORY.md", from_=1, lines=1)(client))
        assert "Basalt" in read["text"]
        assert "agent" in refusal(await calling("memory_search", query="x", agent="main")(client))

    over_stdio(config, settings.home, session, era=era)


def test_a_service_that_starts_or_ends_meanwhile_is_used_while_it_runs(settings: Settings, config: Path):
    write_index(settings)
    config.write_text(config.read_text("utf-8").replace('"stub"', '"none"'), "utf-8")

    async def session(client: Client) -> None:
        async def mode() -> str:
            return str(found(await calling("memory_search", query="dentist")(client))["mode"])

        assert await mode() == "keyword"
        with running(settings):
            assert await mode() == "hybrid"
        assert await mode() == "keyword"

    over_stdio(config, settings.home, session)


@pytest.mark.long
def test_the_session_key_of_the_command_is_stronger_than_that_of_a_call(settings: Settings, config: Path):
    write_index(settings)

    def paths(*more: str, key: str) -> set[str]:
        call = calling("memory_search", meta={"recalld/sessionKey": key}, query="build server Basalt", minScore=0)
        return {hit["path"] for hit in found(over_stdio(config, settings.home, call, *more))["results"]}

    assert "MEMORY.md" in paths(key="agent:main:main")
    assert "MEMORY.md" not in paths(key=GROUP)
    assert "MEMORY.md" not in paths("--session-key", GROUP, key="agent:main:main")


def test_mistakes_in_the_settings_are_answers(tmp_path: Path, home: Path):
    config = tmp_path / "wrong.toml"
    config.write_text("chunking.tokens = -1\n", "utf-8")
    answer = found(over_stdio(config, home, calling("memory_search", query="dentist")))
    assert (answer["results"], answer["disabled"], answer["unavailable"]) == ([], True, True)
    assert "chunking.tokens" in answer["error"]
    assert answer["action"]
    read = found(over_stdio(config, home, calling("memory_get", path="MEMORY.md")))
    assert (read["text"], read["disabled"]) == ("", True)


@pytest.mark.long
def test_it_ends_when_its_input_ends_and_writes_nothing_but_the_protocol(config: Path, home: Path):
    for text in ("", json.dumps(_HELLO) + "\n", "no JSON\n{}\n" + json.dumps(_HELLO) + "\n"):
        ended = piped(config, home, text)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        for line in ended.stdout.splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"
        assert ('"serverInfo"' in ended.stdout) == ("initialize" in text)


def test_what_was_asked_before_the_input_ended_is_answered(settings: Settings, config: Path):
    write_index(settings)
    search = {"name": "memory_search", "arguments": {"query": "dentist"}}
    messages = [
        _HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        *({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": search} for number in range(2, 6)),
        {"jsonrpc": "2.0", "id": "last", "method": "tools/call", "params": {"name": "memory_get", "arguments": {}}},
    ]
    ended = piped(config, settings.home, "".join(json.dumps(message) + "\n" for message in messages))
    assert (ended.returncode, ended.stderr) == (0, "")
    answers = {answer["id"]: answer["result"] for answer in map(json.loads, ended.stdout.splitlines())}
    assert answers.keys() == {1, 2, 3, 4, 5, "last"}
    assert answers[5]["structuredContent"]["results"][0]["path"] == "memory/friday.md"
    assert answers["last"]["isError"]


def test_what_is_wrong_with_its_start_is_said_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert run(["mcp", "--session-key", " "]) == 2
    assert "--session-key" in capsys.readouterr().err
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdin", None)
        assert run(["mcp"]) == 1
    assert "closed" in capsys.readouterr().err
    without_sdk(monkeypatch)
    monkeypatch.delitem(sys.modules, "recalld.local.mcp_stdio", raising=False)
    assert run(["mcp"]) == 1
    assert "recalld[mcp]" in capsys.readouterr().err

"""The README's Python, run as it stands there against the sample workspace; only the port is the test's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.search.tools import TOOLS
from schemas.settings import Settings
from tests.chat_server import chat_server
from tests.daemon import REPOSITORY, clean_environment
from tests.serving import running, search
from tests.waiting import wait_until
from tests.written_index import write_index

README = (REPOSITORY / "README.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:7373"


@pytest.fixture
def service(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", workspace, dirs_exist_ok=True)
    write_index(settings)
    with running(settings) as client:
        wait_until(lambda: search(client, "warm")["mode"] == "hybrid")
        yield client


def snippet(words: str) -> str:
    """The one block of Python in the README that has these words."""
    [found] = [text for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if words in text]
    return str(found)


def run(code: str, service: httpx.Client, environment: Mapping[str, str] | None = None) -> str:
    """What it prints."""
    assert ADDRESS in code
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(ADDRESS, str(service.base_url).rstrip("/"))],
        cwd=REPOSITORY,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_python_snippet_is_run_by_a_test() -> None:
    for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        compile(text, "README.md", "exec")
        assert sum(words in text for words in ("with Client(", "AsyncClient", "openai")) == 1


def test_the_client_prints_what_it_found_and_read(service: httpx.Client) -> None:
    printed = run(snippet("with Client("), service)
    assert "8443" in printed
    assert (REPOSITORY / "deploy" / "sample-workspace" / "MEMORY.md").read_text("utf-8").splitlines()[0] in printed


def test_the_asynchronous_client_prints_where_it_found_both(service: httpx.Client) -> None:
    lines = run(snippet("AsyncClient"), service).splitlines()
    assert [line.split()[0] for line in lines] == ["hybrid", "hybrid"]
    assert all(".md" in line for line in lines)


def test_the_tool_loop_searches_reads_on_and_answers(service: httpx.Client) -> None:
    def told(messages: list[dict[str, Any]], number: int) -> dict[str, Any]:
        """The content of a tool's message, counted from the end."""
        message = messages[number]
        assert message["role"] == "tool"
        answer: dict[str, Any] = json.loads(message["content"])
        return answer

    def clumsy(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        assert [message["role"] for message in messages] == ["system", "user"]
        return [("memory_search", '{"query": "gateway'), ("memory_remember", "{}"), ("memory_search", '{"q": "x"}')]

    def searches(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        assert told(messages, -3) == {"error": "memory_search: the arguments are not valid JSON"}
        assert told(messages, -2)["error"].startswith("unknown tool memory_remember")
        assert told(messages, -1)["error"].startswith("memory_search: unknown argument q")
        assert [message["tool_call_id"] for message in messages[-3:]] == ["call_0_0", "call_0_1", "call_0_2"]
        return [("memory_search", '{"query": "gateway port 8443", "maxResults": 2}')]

    def reads_on(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        hit = next(hit for hit in told(messages, -1)["results"] if "8443" in hit["snippet"])
        assert hit["citation"]
        return [("memory_get", json.dumps({"path": hit["path"], "from": hit["startLine"], "lines": 40}))]

    def answers(messages: list[dict[str, Any]]) -> str:
        [line] = [line for line in told(messages, -1)["text"].splitlines() if "8443" in line][:1]
        return f"I remember: {line}"

    with chat_server([clumsy, searches, reads_on, answers]) as model:
        printed = run(snippet("openai"), service, {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "sk-none"})
    assert printed.startswith("I remember: ")
    assert "8443" in printed
    assert len(model.requests) == 4
    for request in model.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == list(TOOLS)


def test_the_tools_are_called_from_the_shell(service: httpx.Client) -> None:
    [text] = [text for text in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL) if "/v1/tools" in text]
    [body] = re.findall(r"-d '(.*)'", text)
    answer = service.post("/v1/tools", content=body, headers={"Content-Type": "application/json"}).json()
    assert any("8443" in result["snippet"] for result in answer["results"])

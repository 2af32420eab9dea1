"""Every door to an agent's memory, with one handle: for tests of what must hold at all of them.

The client library's own tests see to its doors; underneath are those of HTTP.
"""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import httpx

from memory.http.authorization import needs_tokens
from recalld.cli import run
from schemas.settings import Settings
from tests.daemon import REPOSITORY, clean_environment
from tests.mcp_clients import calling, found, over_http
from tests.serving import running
from tests.waiting import wait_until


class Door(ABC):
    """One way in, for whoever has `agent`'s token or started a program in its name."""

    def search(self, agent: str, query: str, session_key: str | None = None, **arguments: Any) -> dict[str, Any]:
        """The answer to a search."""
        return self._ask(agent, "memory_search", {"query": query, **arguments}, session_key)

    def get(self, agent: str, path: str, session_key: str | None = None, **arguments: Any) -> dict[str, Any]:
        """The answer to a read."""
        return self._ask(agent, "memory_get", {"path": path, **arguments}, session_key)

    @abstractmethod
    def _ask(self, agent: str, tool: str, arguments: dict[str, Any], session_key: str | None) -> dict[str, Any]: ...


class House:
    """A home with its configuration file, and what was opened in it."""

    def __init__(self, settings: Settings, config: Path) -> None:
        self.settings = settings
        self.config = config
        self._open = ExitStack()

    def headers(self, agent: str, session_key: str | None = None) -> dict[str, str]:
        """Return the headers of a caller with this agent's token."""
        token = (self.settings.home / "run" / "tokens" / agent).read_text().strip()
        key = {"X-Recalld-Session-Key": session_key} if session_key is not None else {}
        return {"Authorization": f"Bearer {token}", **key}

    def serve(self) -> httpx.Client:
        """Start the service and wait for its model; a client without a token."""
        client = self._open.enter_context(running(self.settings))
        tokens = needs_tokens(self.settings, host=self.settings.service.host)
        for agent in self.settings.agents:
            if agent.enabled:
                wait_until(partial(_by_meaning, client, agent.id, self.headers(agent.id) if tokens else {}))
        return client

    def until_closed(self, program: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """A program that ends with its input, when the house is closed."""
        return self._open.enter_context(program)

    def close(self) -> None:
        """End what was opened."""
        self._open.close()


def _by_meaning(client: httpx.Client, agent: str, headers: Mapping[str, str]) -> bool:
    answer = client.post("/v1/search", json={"query": "warm", "agent": agent}, headers=headers)
    return bool(answer.json()["mode"] == "hybrid")


@contextmanager
def opened(house: House, name: str) -> Iterator[Door]:
    """The door of that name, one of `DOORS`."""
    try:
        yield DOORS[name](house)
    finally:
        house.close()


class _Http(Door):
    """HTTP, by a path of its own for each tool or by the one for tool loops."""

    def __init__(self, house: House, *, tools: bool) -> None:
        self._house = house
        self._client = house.serve()
        self._tools = tools

    def _ask(self, agent: str, tool: str, arguments: dict[str, Any], session_key: str | None) -> dict[str, Any]:
        path = "/v1/tools" if self._tools else {"memory_search": "/v1/search", "memory_get": "/v1/get"}[tool]
        body = {"name": tool, "arguments": arguments} if self._tools else arguments
        headers = self._house.headers(agent)
        response = self._client.post(path, json={**body, "sessionKey": session_key}, headers=headers)
        assert response.status_code == 200, response.text
        return dict(response.json())


class _Mcp(Door):
    """MCP over HTTP; the session key comes with the connection, or with the call in its `_meta`."""

    def __init__(self, house: House, *, path: str = "/mcp", by_meta: bool = False) -> None:
        self._house = house
        self._address = str(house.serve().base_url).rstrip("/") + path
        self._by_meta = by_meta

    def _ask(self, agent: str, tool: str, arguments: dict[str, Any], session_key: str | None) -> dict[str, Any]:
        meta = {"recalld/sessionKey": session_key} if self._by_meta and session_key is not None else None
        headers = self._house.headers(agent, None if self._by_meta else session_key)
        call = calling(tool, meta=meta, **arguments)
        return found(over_http(self._address.format(agent=agent), call, headers=headers))


class _Stdio(Door):
    """One program for each agent, which lives as long as the house; the calls say which session asks."""

    def __init__(self, house: House, *, served: bool) -> None:
        self._house = house
        self._programs: dict[str, subprocess.Popen[str]] = {}
        if served:
            house.serve()
        # Here, not in the first test that asks: what a test starts ends with it.
        for agent in house.settings.agents:
            self._program(agent.id)

    def _ask(self, agent: str, tool: str, arguments: dict[str, Any], session_key: str | None) -> dict[str, Any]:
        meta = {"recalld/sessionKey": session_key} if session_key is not None else {}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        answer = self._call(self._program(agent), "tools/call", params)["result"]
        assert not answer.get("isError"), answer
        return dict(answer["structuredContent"])

    def _program(self, agent: str) -> subprocess.Popen[str]:
        if agent not in self._programs:
            options = ["--config", str(self._house.config), "--home", str(self._house.settings.home)]
            program = self._house.until_closed(
                subprocess.Popen(
                    [sys.executable, "-m", "recalld", *options, "mcp", "--agent", agent],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd=REPOSITORY,
                    env=clean_environment(),
                    text=True,
                )
            )
            self._programs[agent] = program
            client = {"name": "test", "version": "1"}
            self._call(
                program, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
            )
            self._send(program, {"method": "notifications/initialized"})
        return self._programs[agent]

    def _call(self, program: subprocess.Popen[str], method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._send(program, {"id": 1, "method": method, "params": params})
        assert program.stdout is not None
        return dict(json.loads(program.stdout.readline()))

    def _send(self, program: subprocess.Popen[str], message: dict[str, Any]) -> None:
        assert program.stdin is not None
        program.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        program.stdin.flush()


class _Shell(Door):
    def __init__(self, house: House, *, served: bool) -> None:
        self._house = house
        if served:
            house.serve()

    def _ask(self, agent: str, tool: str, arguments: dict[str, Any], session_key: str | None) -> dict[str, Any]:
        options = ["--config", str(self._house.config), "--home", str(self._house.settings.home), "--agent", agent]
        command = {"memory_search": "search", "memory_get": "get"}[tool]
        key = ["--session-key", session_key] if session_key is not None else []
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run([*options, command, "--json", *key, "--", *arguments.values()])
        assert code in {0, 1, 3}, err.getvalue()
        return dict(json.loads(out.getvalue()))


DOORS: dict[str, Callable[[House], Door]] = {
    "HTTP": lambda house: _Http(house, tools=False),
    "tools by HTTP": lambda house: _Http(house, tools=True),
    "MCP": _Mcp,
    "MCP of the agent": lambda house: _Mcp(house, path="/mcp/{agent}"),
    "MCP, key in _meta": lambda house: _Mcp(house, by_meta=True),
    "stdio": lambda house: _Stdio(house, served=True),
    "stdio without a service": lambda house: _Stdio(house, served=False),
    "shell": lambda house: _Shell(house, served=True),
    "shell without a service": lambda house: _Shell(house, served=False),
}

"""The official client of the Model Context Protocol, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent, Tool

T = TypeVar("T")

#: Programs of both kinds are about: those that begin with a handshake, and those that send requests only.
ERAS = ("legacy", "2026-07-28")


def connected(server: Any, work: Callable[[Client], Awaitable[T]], *, era: str = "auto") -> T:
    """Return the result of `work` with a client of a server: one in memory, or a child process."""

    async def run() -> T:
        async with Client(server, mode=era) as client:
            return await work(client)

    return asyncio.run(run())


def over_http(
    url: str, work: Callable[[Client], Awaitable[T]], *, era: str = "auto", headers: Mapping[str, str] | None = None
) -> T:
    """The same over streamable HTTP, every request with these headers."""

    async def run() -> T:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode=era) as client,
        ):
            return await work(client)

    return asyncio.run(run())


def tools(client: Client) -> Awaitable[list[Tool]]:
    """The tools that the server lists."""

    async def listed() -> list[Tool]:
        return (await client.list_tools()).tools

    return listed()


def calling(name: str, *, meta: Any = None, **arguments: Any) -> Callable[[Client], Awaitable[CallToolResult]]:
    """Work that calls one tool; `from_` stands for the argument `from`."""
    wire = {argument.rstrip("_"): value for argument, value in arguments.items()}
    return lambda client: client.call_tool(name, wire, meta=meta)


def found(result: CallToolResult) -> dict[str, Any]:
    """The answer of a call that succeeded, which is the same in both of its forms."""
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    [text] = result.content
    assert isinstance(text, TextContent)
    assert json.loads(text.text) == answer
    return answer


def refusal(result: CallToolResult) -> str:
    """The sentence of a call that was refused."""
    assert result.is_error
    assert result.structured_content is None
    [text] = result.content
    assert isinstance(text, TextContent)
    return text.text


class _Absent:
    """Finds no SDK, as where it is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "mcp":
            raise ModuleNotFoundError("No module named 'mcp'", name="mcp")


def without_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the SDK is not installed."""
    for module in list(sys.modules):
        if module.partition(".")[0] == "mcp" or module in {"memory.service.mcp_server", "memory.service.mcp_endpoint"}:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Absent(), *sys.meta_path])


def child(command: str, *arguments: str, env: Mapping[str, str], cwd: str) -> StdioServerParameters:
    """A server to be started as a child process."""
    return StdioServerParameters(command=command, args=list(arguments), env=dict(env), cwd=cwd)

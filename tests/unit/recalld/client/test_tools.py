"""The memory tools in a tool loop."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from memory.search.tools import TOOLS, unavailable
from recalld.client import AccessRefused, AsyncClient, Client, RequestRefused
from tests.raw_server import answer, raw_server


@pytest.mark.parametrize("client", [Client(), AsyncClient()])
def test_definitions_have_the_form_of_either_of_openais_interfaces(client: Client | AsyncClient) -> None:
    for tool, chat, flat in zip(TOOLS.values(), client.tools(), client.tools("responses"), strict=True):
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        assert chat == {"type": "function", "function": function}
        # Responses takes a schema for strict unless it is told otherwise, and refuses arguments that may be left out.
        assert flat == {"type": "function", "strict": False, **function}


def called(url: str, name: str, arguments: Any) -> str:
    """What a loop would put before the model."""
    with Client(url=url) as client:
        return client.call_tool(name, arguments)


def test_half_of_a_surrogate_pair_in_a_call_is_replaced() -> None:
    with raw_server([answer(b'{"text": ""}')]) as server:
        called(server.url, "memory_\udce9", '{"query": "\ud83d"}')
    body = json.loads(server.requests[0].partition(b"\r\n\r\n")[2])
    assert body == {"name": "memory_?", "arguments": '{"query": "?"}'}


@pytest.mark.parametrize("status", ["413 Too Large", "422 Unprocessable"])
def test_what_the_model_did_wrong_is_an_answer(status: str) -> None:
    with raw_server([answer(b'{"error": "too much"}', status=status)]) as server:
        assert json.loads(called(server.url, "memory_search", "{}")) == {"error": "too much"}


@pytest.mark.parametrize(
    ("status", "kind"), [("401 No", AccessRefused), ("400 No", RequestRefused), ("404 No", RequestRefused)]
)
def test_what_the_runtime_did_wrong_is_raised(status: str, kind: type[Exception]) -> None:
    said = answer(b'{"error": "say which agent"}', status=status)
    with raw_server([said]) as server, pytest.raises(kind, match="say which agent"):
        called(server.url, "memory_search", "{}")


@pytest.mark.parametrize(
    ("name", "arguments", "path"),
    [
        ("memory_search", '{"query": "x"}', None),
        ("memory_get", '{"path": "MEMORY.md"}', "MEMORY.md"),
        ("memory_get", {"path": "MEMORY.md"}, "MEMORY.md"),
        ("memory_get", '{"path": 7}', ""),
        ("memory_get", "{", ""),
        ("memory_get", "[" * 100_000, ""),
    ],
)
def test_without_a_service_the_model_reads_that_memory_is_unavailable(
    name: str, arguments: Any, path: str | None
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = json.loads(called(url, name, arguments))
    nothing = {"results": []} if path is None else {"path": path, "status": "error", "text": ""}
    assert said == {**nothing, **unavailable(said["error"], action=said["action"])}
    assert "no recalld service answers" in said["error"]

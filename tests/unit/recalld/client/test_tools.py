"""The memory tools in a tool loop."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from memory.search.searchable import unavailable
from memory.search.tool_definitions import TOOLS
from recalld.client import AsyncClient, Client


@pytest.mark.parametrize("client", [Client(), AsyncClient()])
def test_definitions_have_the_form_of_either_of_openais_interfaces(client: Client | AsyncClient) -> None:
    for tool, chat, flat in zip(TOOLS.values(), client.tools(), client.tools("responses"), strict=True):
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        assert chat == {"type": "function", "function": function}
        # Responses takes a schema for strict unless it is told otherwise, and refuses arguments that may be left out.
        assert flat == {"type": "function", "strict": False, **function}


def called(url: str, name: str, arguments: Any) -> str:
    """Return the text that a loop would put before the model."""
    with Client(url=url) as client:
        return client.call_tool(name, arguments)


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
    assert said["error"]

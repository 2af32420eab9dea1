"""The memory tools in the Model Context Protocol, with the official client in memory."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from memory.service.mcp_server import SESSION_KEY_META, build_server
from tests.mcp_clients import calling, connected, refusal


class Answering:
    """Answers every call with the same, and keeps what was called."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answer = answer

    async def __call__(self, *call: Any) -> dict[str, Any]:
        self.calls.append(call)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_a_failure_is_a_result_and_its_log_holds_nothing_of_the_memory():
    failing = Answering(RuntimeError("the secret note says 42"))
    with structlog.testing.capture_logs() as logs:
        result = connected(build_server(failing), calling("memory_search", query="where is the treasure"))

    assert "memory_search" in refusal(result)
    [line] = logs
    assert (line["event"], line["log_level"], line["failure"]) == ("tool_failed", "error", "RuntimeError")
    assert "test_mcp_server.py" in line["place"]
    assert "secret" not in str(line)
    assert "treasure" not in str(line)


@pytest.mark.parametrize("key", ["", "  ", 7, ["a"], {}])
def test_a_session_key_that_is_none_is_not_taken_for_the_owners_session(key: object):
    answering = Answering({"results": []})
    result = connected(build_server(answering), calling("memory_search", meta={SESSION_KEY_META: key}, query="x"))
    assert "recalld/sessionKey in" in refusal(result)
    assert answering.calls == []

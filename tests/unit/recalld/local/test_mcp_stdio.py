"""The server's input ends when its last request is answered, given up by the client, or takes too long."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from recalld.local import mcp_stdio
from recalld.local.mcp_stdio import answered_to_the_end

ASKED = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/list")
CANCELLED = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 1})
ANSWER = JSONRPCResponse(jsonrpc="2.0", id=1, result={})


def talk(*messages: JSONRPCMessage, answers: Sequence[JSONRPCMessage]) -> list[JSONRPCMessage]:
    """What the client gets of a server that answers once it has had all messages, and ends with its input."""
    got: list[JSONRPCMessage] = []

    async def server() -> None:
        client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](10)
        outgoing, replies = anyio.create_memory_object_stream[SessionMessage](10)
        for message in messages:
            client.send_nowait(SessionMessage(message))
        client.close()
        async with replies, answered_to_the_end(incoming, outgoing) as (asked, said), said:
            async with asked:
                for _ in messages:
                    await asked.receive()
                for answer in answers:
                    await said.send(SessionMessage(answer))
                with pytest.raises(anyio.EndOfStream):
                    await asked.receive()
            await said.aclose()
            got.extend([reply.message async for reply in replies])

    async def bounded() -> None:
        with anyio.fail_after(30):
            await server()

    anyio.run(bounded)
    return got


def test_the_input_ends_with_the_last_answer():
    assert talk(ASKED, answers=[ANSWER]) == [ANSWER]


def test_without_a_request_or_with_one_that_was_given_up_it_ends_at_once():
    assert talk(answers=[]) == []
    assert talk(ASKED, CANCELLED, answers=[]) == []


def test_an_answer_that_does_not_come_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mcp_stdio, "LAST_ANSWERS_SECONDS", 0.1)
    assert talk(ASKED, answers=[]) == []

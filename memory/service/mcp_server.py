"""The memory tools in the Model Context Protocol, whatever carries its messages. Needs the extra `mcp`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from memory.search.tools import TOOLS, ToolArgumentsRefused, ToolDefinition
from schemas.validation_messages import shown_name
from schemas.version import recalld_version

_log = structlog.get_logger(__name__)

#: Where a call may say which session asks, in its `_meta`. What the connection says comes first.
SESSION_KEY_META = "recalld/sessionKey"

_INSTRUCTIONS = (
    "This is the memory of the agent that is connected: its notes and what was said in earlier sessions. "
    "Search it with memory_search before answering about earlier work, decisions, dates, people, preferences or todos; "
    "then read only the lines that are needed with memory_get."
)


#: Answer to a request whose id is null, missing or of another type. The SDK takes it for a notification.
NO_ID = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": INVALID_REQUEST, "message": "the id of a request must be a string or an integer"},
}


def lacks_id(method: object, number: object) -> bool:
    """Return True for a request without a valid id. Notifications, which have none, are told by their method."""
    if not isinstance(method, str) or method.startswith("notifications/"):
        return False
    return not isinstance(number, str | int) or isinstance(number, bool)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, as it came.

    `session_key` is what the call itself brought in its `_meta`; `request` is the HTTP request that carried it, None
    where there is none.
    """

    name: str
    arguments: Mapping[str, Any]
    session_key: str | None
    request: Any


def build_server(answer: Callable[[ToolCall], Awaitable[dict[str, Any]]]) -> Server[Any]:
    """Build the server of `memory_search` and `memory_get`.

    `answer` gives a call's answer as a JSON object; a `ToolArgumentsRefused` of it becomes a result that the model
    can read and learn from, as does every other failure, which is logged without what was asked.
    """
    tools = [_described(tool) for tool in TOOLS.values()]
    schemas = {tool.name: tool.input_schema for tool in tools}

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name not in TOOLS:
            raise MCPError(
                INVALID_PARAMS, f"no tool is called {shown_name(params.name)!r}; there are {', '.join(TOOLS)}"
            )
        try:
            call = ToolCall(params.name, params.arguments or {}, _session_key(context.meta), context.request)
            found = await answer(call)
        except ToolArgumentsRefused as error:
            return _refused(str(error))
        except Exception as error:  # noqa: BLE001 - an agent goes on without its memory; the log keeps the kind and place
            _log.error("tool_failed", tool=params.name, failure=type(error).__name__, place=_place(error))
            return _refused(f"{params.name} failed; recalld's log says where")
        return CallToolResult(content=[_text(json.dumps(found, ensure_ascii=False))], structured_content=found)

    return Server(
        "recalld",
        title="recalld",
        version=recalld_version(),
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _described(tool: ToolDefinition) -> Tool:
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def _session_key(meta: Mapping[str, Any] | None) -> str | None:
    key = (meta or {}).get(SESSION_KEY_META)
    if key is None:
        return None
    # Taken for the owner's private session otherwise, which sees the most.
    if not isinstance(key, str) or not key.strip():
        raise ToolArgumentsRefused(f"{SESSION_KEY_META} in _meta must be a text that is not empty")
    return key.strip()


def _refused(sentence: str) -> CallToolResult:
    return CallToolResult(content=[_text(sentence)], is_error=True)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _place(error: Exception) -> str:
    """The innermost line: a traceback's last frame, without the values that a message may hold."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown"

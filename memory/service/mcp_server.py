"""Memory tools in the Model Context Protocol, over any transport. Needs the SDK `mcp`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from memory.search.tool_definitions import TOOLS, ToolArgumentsRefused
from schemas.service import Tool as ToolDefinition
from schemas.validation_messages import shown_name
from schemas.version import recalld_version

_log = structlog.get_logger(__name__)

#: Key of a call's `_meta` for its session. The session of the connection comes first.
SESSION_KEY_META = "recalld/sessionKey"

_INSTRUCTIONS = (
    "This is the memory of the agent that is connected: its notes and what was said in earlier sessions. "
    "Search it with memory_search before answering about earlier work, decisions, dates, people, preferences or todos; "
    "then read only the lines that are needed with memory_get."
)


#: (tool, arguments, session key of the call's `_meta`, context of the request) -> the answer.
Answer = Callable[[str, Mapping[str, Any], str | None, ServerRequestContext[Any]], Awaitable[dict[str, Any]]]


def build_server(answer: Answer, *, definitions: Mapping[str, ToolDefinition] = TOOLS) -> Server[Any]:
    """Build the server of `memory_search` and `memory_get`, with these `definitions`.

    `answer` returns a call's answer as a JSON object. A `ToolArgumentsRefused` and every other error become results
    that the model can read; the other errors are logged without the model's arguments.
    """
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    tools = [Tool(**dict(tool), annotations=read_only) for tool in definitions.values()]
    schemas = {tool.name: tool.input_schema for tool in tools}

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name not in TOOLS:
            raise MCPError(
                INVALID_PARAMS, f"no tool is called {shown_name(params.name)!r}; there are {', '.join(TOOLS)}"
            )
        try:
            body = await answer(params.name, params.arguments or {}, _session_key(context.meta), context)
        except ToolArgumentsRefused as error:
            return _refused(str(error))
        except Exception as error:  # noqa: BLE001 - an agent goes on without its memory; the log keeps the kind and place
            _log.error("tool_failed", tool=params.name, failure=type(error).__name__, place=_place(error))
            return _refused(f"{params.name} failed; recalld's log says where")
        return CallToolResult(content=[_text(json.dumps(body, ensure_ascii=False))], structured_content=body)

    return Server(
        "recalld",
        title="recalld",
        version=recalld_version(),
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _session_key(meta: Mapping[str, Any] | None) -> str | None:
    key = (meta or {}).get(SESSION_KEY_META)
    if key is None:
        return None
    # An empty key would stand for the owner's private session, which sees the most.
    if not isinstance(key, str) or not key.strip():
        raise ToolArgumentsRefused(f"{SESSION_KEY_META} in _meta must be a text that is not empty")
    return key.strip()


def _refused(sentence: str) -> CallToolResult:
    return CallToolResult(content=[_text(sentence)], is_error=True)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _place(error: Exception) -> str:
    """Return the innermost line of a traceback, without the values that a message may hold."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown"

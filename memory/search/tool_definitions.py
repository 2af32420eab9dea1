"""Memory as agents use it, by the tools `memory_search` and `memory_get`.

Servers (MCP, a runtime's own tool loop) list `TOOLS` and pass a model's calls to `call_tool`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from memory.search.searchable import SearchableMemory, injected, unavailable
from schemas.errors import UserError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.service import Tool
from schemas.validation_messages import problem_words, shown_name, shown_names

SEARCH = "memory_search"
GET = "memory_get"

_log = structlog.get_logger(__name__)


class ToolArgumentsRefused(UserError):
    """Refusal of a model's call: unknown tool, unknown or wrong arguments. The model reads the message."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


def _input_schema(request: type[BaseModel], **descriptions: str) -> dict[str, Any]:
    """Return the JSON schema of these arguments, which are fields of the request; the first one is required."""
    fields = request.model_json_schema(by_alias=True)["properties"]
    properties = {}
    for name, description in descriptions.items():
        [shape] = [schema for schema in fields[name].get("anyOf", [fields[name]]) if schema["type"] != "null"]
        shape = {key: value for key, value in shape.items() if key not in {"title", "default"}}
        properties[name] = {**shape, "description": description}
    return {
        "type": "object",
        "properties": properties,
        "required": [next(iter(properties))],
        "additionalProperties": False,
    }


_SEARCH = Tool(
    name=SEARCH,
    title="Search memory",
    description=(
        "Mandatory recall step. Call it before you answer anything that depends on earlier work, decisions, dates, "
        "people, preferences or todos: it looks through this agent's long-term memory, daily notes and past "
        "conversations, by meaning and by word, in any language. Returns the best passages with their path and "
        "lines; read more around one with memory_get, only as far as you need it. If nothing fits, say that you "
        "looked and found nothing. For broad questions, or when the first answer lacks something, add two or three "
        "phrasings in `queries`. If `disabled` is true, tell the user that memory is unavailable and why; if `stale` "
        "is, that the newest changes may be missing."
    ),
    input_schema=_input_schema(
        SearchRequest,
        query="What to recall: a question, or exact words, names, ids or error messages.",
        maxResults="How many passages at most.",
        minScore="Leave out passages whose score is lower.",
        since="Only memory from this time on: a date, 7d, 2w, yesterday, last week.",
        until="Only memory up to this time, the named day included.",
        corpus="Only notes (memory), only past conversations (sessions), or both (all, as without it). "
        "There is no wiki here: asking for it finds nothing, and the answer's `corpora` says so.",
        queries="At most four further phrasings of the question: sentences in words that the memory would use.",
    ),
)

_GET = Tool(
    name=GET,
    title="Read memory",
    description=(
        "Safe read of a few lines of one memory document. Use it after memory_search, with a path and lines from a "
        "result, so that only what you need enters the conversation. Reads documents of this agent's memory and "
        "nothing else; of a transcript it returns what was said on those lines. `nextFrom` says where to go on. "
        "`status` is ok, not_found (no such document), or error (it could not be read, see `error`)."
    ),
    input_schema=_input_schema(
        GetRequest,
        path="The document, as a result's `path` names it.",
        **{"from": "First line, counted from 1."},
        lines="How many lines.",
        corpus="This memory (memory, all). There is no wiki here: of it nothing is read.",
    ),
)

#: Name -> tool, in the order of lists. Both only read.
TOOLS: Mapping[str, Tool] = MappingProxyType({tool.name: tool for tool in (_SEARCH, _GET)})


def _naming_agents(tool: Tool, description: str) -> Tool:
    """Return the tool with an argument for the agent."""
    properties = {**tool.input_schema["properties"], "agent": {"type": "string", "description": description}}
    return tool.model_copy(update={"input_schema": {**tool.input_schema, "properties": properties}})


#: The same for the owner of several agents, whose results name their agents.
OWNERS_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        SEARCH: _naming_agents(_SEARCH, "Only this agent's memory. Without it, all agents of the user are searched."),
        GET: _naming_agents(_GET, "The agent whose document it is, as a result's `agent` names it."),
    }
)


async def call_tool(
    memory: SearchableMemory,
    name: str,
    arguments: Mapping[str, Any],
    *,
    session_key: str | None,
    tools: Mapping[str, Tool] = TOOLS,
) -> dict[str, Any]:
    """Return the answer to a model's call, ready for JSON, with names in camelCase.

    `session_key` comes from the server and never from the model; None is the owner's private session. Snippets end with
    their source if the session gets citations, and have at most `limits.max_injected_chars` together.

    Raises:
        ToolArgumentsRefused: the call is wrong, in one sentence for the model. It is the only error raised.
    """
    tool = tools.get(name)
    if tool is None:
        raise ToolArgumentsRefused(f"unknown tool {shown_name(name)}; valid are {', '.join(tools)}")
    request = _request(SearchRequest if name == SEARCH else GetRequest, tool, arguments, session_key)
    try:
        if isinstance(request, SearchRequest):
            return _injected_answer(await memory.searched(request), memory.limits.max_injected_chars)
        return _json(await asyncio.to_thread(memory.read_file, request))
    except Exception as error:  # noqa: BLE001 - an agent gets an answer; the log keeps the reason
        _log.exception("tool_failed", tool=name)
        lacking = unavailable(f"memory failed: {type(error).__name__}", action="look into the log")
        if isinstance(request, SearchRequest):
            return _json(SearchAnswer(**lacking))
        return _json(GetAnswer(path=request.path, status="error", **lacking))


def _injected_answer(answer: SearchAnswer, max_chars: int) -> dict[str, Any]:
    results = injected(answer.results, max_chars=max_chars)
    update: dict[str, Any] = {"results": results}
    left_out = len(answer.results) - len(results)
    if left_out:
        remarks = [answer.warning] if answer.warning else []
        remarks.append(
            f"{left_out} more {'result was' if left_out == 1 else 'results were'} left out: an answer has at most "
            f"{max_chars} characters; ask more precisely, or read on with memory_get"
        )
        update["warning"] = "; ".join(remarks)
    return _json(answer.model_copy(update=update))


def _request(
    model: type[SearchRequest | GetRequest],
    tool: Tool,
    arguments: Mapping[str, Any],
    session_key: str | None,
) -> SearchRequest | GetRequest:
    valid = tool.input_schema["properties"]
    if "from" in valid and "startLine" in arguments:  # as a result names it
        names = {name: "from" if name == "startLine" and "from" not in arguments else name for name in arguments}
        arguments = {names[name]: value for name, value in arguments.items() if names[name] != "startLine"}
    unknown = [str(name) for name in arguments if name not in valid]
    if unknown:
        raise ToolArgumentsRefused(
            f"{tool.name}: unknown argument {shown_names(unknown)}; valid are {', '.join(valid)}"
        )
    try:
        fields = {name: _within(value, valid[name]) for name, value in arguments.items()}
        return model.model_validate({**fields, "sessionKey": session_key})
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors(include_url=False, include_input=False)]
        raise ToolArgumentsRefused(f"{tool.name}: {problem_words(problems)}") from None


def _within(value: Any, shape: Mapping[str, Any]) -> Any:
    """Return a number of lines or results within the limits of its argument: a refusal costs the model a turn.

    A score beyond its limits is refused: what it was meant to be is unknown, and at the limit nothing is found.
    """
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not is_number or shape.get("type") != "integer":
        return value
    return min(max(math.floor(value), shape.get("minimum", -math.inf)), shape.get("maximum", math.inf))


def _json(answer: SearchAnswer | GetAnswer) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

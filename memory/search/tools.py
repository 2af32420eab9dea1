"""Memory as agents use it, by the tools `memory_search` and `memory_get`.

Servers (MCP, a runtime's own tool loop) list `TOOLS` and pass a model's calls to `call_tool`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from memory.search.ranking.terms import cut_at_or_before
from schemas.documents import SESSIONS_SOURCE
from schemas.errors import UserError
from schemas.search import Corpus, CorpusOutcome, GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.service import Tool
from schemas.settings import Limits
from schemas.validation_messages import problem_words, shown_name, shown_names

_NO_WIKI = "this memory has no wiki, so nothing was searched; leave out the corpus, or ask for memory or sessions"

_Answer = TypeVar("_Answer", SearchAnswer, GetAnswer)


class SearchableMemory(ABC):
    """One agent's memory as tools use it. Thread-safe. An unavailable memory is an answer, not an exception."""

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return Limits()

    @abstractmethod
    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer within `limits.timeout_ms`, with the results found by then."""

    def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer on a thread without an event loop."""
        return asyncio.run(self.searched(request))

    @abstractmethod
    def read_file(self, request: GetRequest) -> GetAnswer:
        """Read lines of a document of this agent; refuse any other path with one uniform answer."""


def unavailable(
    error: str,
    *,
    warning: str = "memory is unavailable",
    action: str = "see `recalld status` and `recalld config show`",
) -> dict[str, Any]:
    """Return the fields of an answer without memory, with its reason and the remedy for a person."""
    return {"disabled": True, "unavailable": True, "error": error, "warning": warning, "action": action}


def with_corpora(answer: _Answer, corpus: Corpus | None) -> _Answer:
    """Add the outcome of each corpus to an answer, if the request names all of them or the wiki."""
    if corpus not in ("all", "wiki"):
        return answer
    memory = CorpusOutcome(
        corpus="memory",
        outcome="unavailable" if answer.unavailable else "ok",
        error=answer.error if answer.unavailable else None,
    )
    wiki = CorpusOutcome(corpus="wiki", outcome="not-registered")
    update: dict[str, Any] = {"corpora": (memory, wiki)}
    if corpus == "wiki":
        update = {"corpora": (wiki,), "warning": answer.warning or _NO_WIKI}
    return answer.model_copy(update=update)


#: Least characters of a shortened snippet; a result with fewer is left out.
LEAST_CHARACTERS = 40


def footer(citation: str) -> str:
    """Return the end of a cited snippet. `citation`: path#L5-L9."""
    return f"\n\nSource: {citation}"


def injected(results: Iterable[SearchResult], *, max_chars: int) -> tuple[SearchResult, ...]:
    """Return the first results whose snippets, footers included, have at most `max_chars` characters together.

    Results with a citation end with it. The first snippet that does not fit is shortened between words, if at least
    `LEAST_CHARACTERS` of it can be shown; the results after it are left out. A citation is whole or absent: only the
    first result may go without, if there is no room for both. The passage's lines stay the same; the lines of a note's
    snippet are those of its shown part.
    """
    shortened_results: list[SearchResult] = []
    left = max_chars
    for result in results:
        snippet = result.snippet.strip("\r\n").rstrip()
        source = footer(result.citation) if result.citation else ""
        if not shortened_results and left - len(source) < min(len(snippet), LEAST_CHARACTERS):
            source = ""
        room = left - len(source)
        fits = len(snippet) <= room
        part = snippet if fits else _shortened(snippet, room)
        if shortened_results and not fits and len(part) < LEAST_CHARACTERS:
            break
        shortened_results.append(result.model_copy(update={"snippet": part + source, **_lines(result, part)}))
        left -= len(part) + len(source)
        if not fits:
            break
    return tuple(shortened_results)


def _lines(result: SearchResult, part: str) -> dict[str, int]:
    """Return the lines of the shown part of a note's snippet; those of a transcript do not change with it."""
    start = result.snippet_start_line
    if start is None or result.source == SESSIONS_SOURCE:
        return {}
    start += result.snippet.count("\n", 0, result.snippet.find(part))
    return {"snippet_start_line": start, "snippet_end_line": start + part.count("\n")}


def _shortened(snippet: str, room: int) -> str:
    """Return the start of a snippet that fits into `room` characters, cut between words."""
    return snippet[: cut_at_or_before(snippet, room, lowest=0)].rstrip() if room > 0 else ""


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
        "looked and found nothing. If `disabled` is true, tell the user that memory is unavailable and why; if `stale` "
        "is, that the newest changes may be missing."
    ),
    input_schema=_input_schema(
        SearchRequest,
        query="What to recall: a question, or exact words, names, ids or error messages.",
        maxResults="How many passages at most.",
        minScore="Leave out passages whose score is lower.",
        corpus="Only notes (memory), only past conversations (sessions), or both (all, as without it). "
        "There is no wiki here: asking for it finds nothing, and the answer's `corpora` says so.",
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


async def call_tool(
    memory: SearchableMemory, name: str, arguments: Mapping[str, Any], *, session_key: str | None
) -> dict[str, Any]:
    """Return the answer to a model's call, ready for JSON, with names in camelCase.

    `session_key` comes from the server and never from the model; None is the owner's private session. Snippets end with
    their source if the session gets citations, and have at most `limits.max_injected_chars` together.

    Raises:
        ToolArgumentsRefused: the call is wrong, in one sentence for the model. It is the only error raised.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise ToolArgumentsRefused(f"unknown tool {shown_name(name)}; valid are {', '.join(TOOLS)}")
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
        update["warning"] = (
            f"{left_out} more {'result was' if left_out == 1 else 'results were'} left out: an answer has at most "
            f"{max_chars} characters; ask more precisely, or read on with memory_get"
        )
    return _json(answer.model_copy(update=update))


def _request(
    model: type[SearchRequest | GetRequest],
    tool: Tool,
    arguments: Mapping[str, Any],
    session_key: str | None,
) -> SearchRequest | GetRequest:
    valid = tool.input_schema["properties"]
    unknown = [str(name) for name in arguments if name not in valid]
    if unknown:
        raise ToolArgumentsRefused(
            f"{tool.name}: unknown argument {shown_names(unknown)}; valid are {', '.join(valid)}"
        )
    try:
        return model.model_validate({**arguments, "sessionKey": session_key})
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors(include_url=False, include_input=False)]
        raise ToolArgumentsRefused(f"{tool.name}: {problem_words(problems)}") from None


def _json(answer: SearchAnswer | GetAnswer) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

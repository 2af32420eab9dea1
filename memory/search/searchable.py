"""Memory that can be searched and read, by recalld or another program, and the form of its answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextvars import ContextVar
from math import inf
from typing import Any, TypeVar

from memory.chunking.text_cuts import cut_at_or_before
from schemas.documents import SESSIONS_SOURCE
from schemas.search import Corpus, CorpusOutcome, GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import Limits

_NO_WIKI = "this memory has no wiki, so nothing was searched; leave out the corpus, or ask for memory or sessions"

#: Monotonic time by which searches of this context answer, even if `limits` of their agents allow more.
ANSWER_UNTIL: ContextVar[float] = ContextVar("recalld_answer_until", default=inf)

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

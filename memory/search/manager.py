"""Interface of an agent's memory for tools and services, whichever backend answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from memory.search.scope import allows, session_of
from schemas.search import Corpus, CorpusOutcome, GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings
from schemas.settings_sections import Limits
from schemas.status import AgentStatus, Availability

_NO_WIKI = "this memory has no wiki, so nothing was searched; leave out the corpus, or ask for memory or sessions"

_Answered = TypeVar("_Answered", SearchAnswer, GetAnswer)


class SearchableMemory(ABC):
    """One agent's memory as tools use it. Thread-safe. An unavailable memory is an answer, not an exception."""

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return Limits()

    @abstractmethod
    def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer within `limits.timeout_ms`, with the results found by then."""

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer of `search` on an event loop, if possible without a waiting thread."""
        return await asyncio.to_thread(self.search, request)

    @abstractmethod
    def read_file(self, request: GetRequest) -> GetAnswer:
        """Read lines of a document of this agent; refuse any other path with one uniform answer."""


def with_corpora(answer: _Answered, corpus: Corpus | None) -> _Answered:
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


class SearchManager(SearchableMemory):
    """An agent's memory with its status and its probes."""

    @abstractmethod
    def status(self, *, deep: bool = False) -> AgentStatus:
        """Compare disk, index and queue; `deep` also checks the index's integrity."""

    @abstractmethod
    def sync(self) -> str | None:
        """Request a comparison of files and index; return None, or the reason why that is not possible."""

    @abstractmethod
    def probe_embedding_availability(self) -> Availability:
        """Embed a word with the chosen provider."""

    @abstractmethod
    def probe_vector_availability(self) -> Availability:
        """Search the vectors of the index once."""

    @abstractmethod
    def close(self) -> None:
        """Close everything; running searches finish first."""


_WARNING = "memory is unavailable"
_ACTION = "see `recalld config show`"


class UnavailableMemory(SearchableMemory):
    """Memory that cannot be opened. Its answers give the `reason`, except to sessions out of scope."""

    def __init__(self, agent: AgentSettings, reason: str) -> None:
        self._agent = agent
        self._reason = reason

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._agent.limits

    def search(self, request: SearchRequest) -> SearchAnswer:
        """Return no result, and the reason."""
        if not self._allows(request.session_key):
            return SearchAnswer()
        answer = SearchAnswer(disabled=True, unavailable=True, error=self._reason, warning=_WARNING, action=_ACTION)
        return with_corpora(answer, request.corpus)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return no result, and the reason."""
        if not self._allows(request.session_key):
            return GetAnswer(path=request.path, status="not_found")
        answer = GetAnswer(
            path=request.path,
            status="error",
            disabled=True,
            unavailable=True,
            error=self._reason,
            warning=_WARNING,
            action=_ACTION,
        )
        return with_corpora(answer, request.corpus)

    def _allows(self, session_key: str | None) -> bool:
        return allows(self._agent.scope, session_of(session_key), agent=self._agent.id)

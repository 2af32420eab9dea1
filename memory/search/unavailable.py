"""A memory that is not there: switched off, or not to be opened."""

from __future__ import annotations

from memory.search.manager import SearchableMemory, with_corpora
from memory.search.scope import allows, session_of
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings
from schemas.settings_sections import Limits

_WARNING = "memory is unavailable"
_ACTION = "see `recalld config show`"


class AbsentMemory(SearchableMemory):
    """Says why there is no memory to those who may ask for it. Who is out of scope does not learn even that.

    `reason`: one sentence, as `memory.search.opening.get_search_manager` says it.
    """

    def __init__(self, agent: AgentSettings, reason: str) -> None:
        self._agent = agent
        self._reason = reason

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._agent.limits

    def search(self, request: SearchRequest) -> SearchAnswer:
        """Nothing, and the reason."""
        if not self._allows(request.session_key):
            return SearchAnswer()
        answer = SearchAnswer(disabled=True, unavailable=True, error=self._reason, warning=_WARNING, action=_ACTION)
        return with_corpora(answer, request.corpus)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Nothing, and the reason."""
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

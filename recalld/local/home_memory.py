"""One home's memory as its own commands see it: through the running service, else straight from the index."""

from __future__ import annotations

from typing import Any

from memory.search.manager import SearchableMemory
from recalld.invocation import Invocation
from recalld.local.fallback import Absence, ask
from schemas.errors import RecalldError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings_sections import Limits

_ACTION = "see `recalld status` and `recalld config show`"


class HomeMemory(SearchableMemory):
    """The memory of the agent that an invocation is about. What cannot be answered is said in the answer.

    The service is looked for at every call: it may start or end while the caller goes on.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation

    @property
    def limits(self) -> Limits:
        """The agent's, as far as settings can be read; the defaults otherwise."""
        try:
            return self._invocation.the_agent().limits
        except RecalldError:
            return Limits()

    def search(self, request: SearchRequest) -> SearchAnswer:
        """What `recalld search --json` prints."""
        asked = request.model_dump(exclude={"query", "agent"}, exclude_none=True)

        def directly(absence: Absence) -> dict[str, Any]:
            from recalld.local import answers

            return answers.search(self._invocation, {"query": request.query, **asked}, absence=absence)

        try:
            answer = ask(
                self._invocation,
                service=lambda client: client.search(request.query, agent=self._invocation.agent, **asked),
                otherwise=directly,
            )
        except RecalldError as error:
            return SearchAnswer(
                disabled=True, unavailable=True, error=str(error), warning="memory is unavailable", action=_ACTION
            )
        return SearchAnswer.model_validate(answer)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """What `recalld get --json` prints."""
        asked = request.model_dump(by_alias=False, exclude={"agent"}, exclude_none=True)

        def directly(_: Absence) -> dict[str, Any]:
            from recalld.local import answers

            return answers.get(self._invocation, asked)

        try:
            answer = ask(
                self._invocation,
                service=lambda client: client.get(
                    request.path,
                    start_line=request.from_,
                    lines=request.lines,
                    corpus=request.corpus,
                    agent=self._invocation.agent,
                    session_key=request.session_key,
                ),
                otherwise=directly,
            )
        except RecalldError as error:
            return GetAnswer(
                path=request.path,
                status="error",
                disabled=True,
                unavailable=True,
                error=str(error),
                warning="memory is unavailable",
                action=_ACTION,
            )
        return GetAnswer.model_validate(answer)

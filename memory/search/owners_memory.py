"""Memory of all agents of a home, for its owner: one search of all of them, and reads that find the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import structlog

from memory.search.phrasings import by_phrasings
from memory.search.searchable import ANSWER_UNTIL, SearchableMemory, unavailable, with_corpora
from memory.status.condition_texts import text_of
from schemas.conditions import Condition, ConditionCode, Param
from schemas.search import (
    AlsoIn,
    GetAnswer,
    GetRequest,
    Mode,
    PendingState,
    SearchAnswer,
    SearchRequest,
    SearchResult,
)
from schemas.settings import AgentSettings, Limits, MemorySettings, Settings

_log = structlog.get_logger(__name__)

#: Agents that are searched at a time.
AGENTS_AT_A_TIME = 8

#: Seconds after which the next agent's turn comes all the same: a search that takes longer waits for a provider or for
#: changes, and holds no thread.
TURN_SECONDS = 0.01

#: Share of the deadline that is reserved for joining the answers.
_JOIN_SHARE = 0.03

#: Agents that a sentence names; the others are counted.
MOST_NAMED = 5

#: Modes of searches; the first that an agent's search had is that of the whole.
_MODES: tuple[Mode, ...] = ("hybrid", "vector", "keyword")

_Key = TypeVar("_Key", bound=Hashable)


def enabled_agents(settings: Settings) -> tuple[AgentSettings, ...]:
    """Return the agents that the owner searches: those that are not switched off, or all if all are."""
    return tuple(agent for agent in settings.agents if agent.enabled) or settings.agents


class OwnersMemory(SearchableMemory):
    """Memory of several agents, for the owner of their home. Every result names its agent.

    Each agent is searched by its own settings, `scope` included. Without a session key a request comes from the owner's
    private session, to which no rule of any scope applies. With one, an agent answers if its rules let that session
    search; a key that names an agent (`agent:<id>:...`) reaches that agent alone.

    `settings` are those of the home: its `limits.timeout_ms` holds for the whole search, and so does
    `query.max_results`. Agents whose queries one provider embeds share one vector (`QueryVectors`).
    """

    def __init__(self, memories: Mapping[str, SearchableMemory], settings: MemorySettings) -> None:
        self._memories = memories
        self._settings = settings

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._settings.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the best results of all agents that answer before the deadline. `degraded` names the others."""
        return await by_phrasings(self._search_agents, request, max_results=self._settings.query.max_results)

    async def _search_agents(self, request: SearchRequest) -> SearchAnswer:
        started, seconds = time.monotonic(), self.limits.timeout_ms / 1000
        most = request.max_results or self._settings.query.max_results
        request = request.model_copy(update={"agent": None, "max_results": most})
        until = started + (1 - _JOIN_SHARE) * seconds
        answers = await self._answers(request, until)
        late = _failure(ConditionCode.SEARCH_LATE, seconds=seconds)
        ordered = {agent: answers.get(agent, late) for agent in self._memories}
        took_ms = round((time.monotonic() - started) * 1000, 2)
        return with_corpora(joined(ordered, max_results=most, took_ms=took_ms), request.corpus)

    async def _answers(self, request: SearchRequest, until: float) -> dict[str, SearchAnswer]:
        """Return the answers that come before `until` (monotonic time), by agent."""
        searches: dict[asyncio.Task[SearchAnswer], str] = {}
        running: set[asyncio.Task[SearchAnswer]] = set()
        token = ANSWER_UNTIL.set(until)
        try:
            for agent, memory in self._memories.items():
                search = asyncio.create_task(memory.searched(request))
                searches[search] = agent
                running.add(search)
                if len(running) >= AGENTS_AT_A_TIME:
                    await asyncio.wait(running, timeout=TURN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    running = {search for search in running if not search.done()}
            if running:
                await asyncio.wait(running, timeout=max(0.0, until - time.monotonic()))
            return {agent: _answer_of(search, agent) for search, agent in searches.items() if search.done()}
        finally:
            ANSWER_UNTIL.reset(token)
            for search in searches:
                search.cancel()

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Read lines of a document of the only agent that has it. Of several agents with it, the answer names them."""
        request = request.model_copy(update={"agent": None})
        answers = {agent: memory.read_file(request) for agent, memory in self._memories.items()}
        having = [agent for agent, answer in answers.items() if answer.status == "ok"]
        if len(having) > 1:
            error = f"{_names(having)} have a document of this path; say which agent"
            return GetAnswer(path=request.path, status="error", error=error)
        # A document that cannot be read is more than a path that names none.
        unreadable = [agent for agent, answer in answers.items() if answer.unavailable]
        for agent in (*having, *unreadable):
            return answers[agent].model_copy(update={"agent": agent})
        return next(iter(answers.values()), GetAnswer(path=request.path, status="not_found"))


def joined(answers: Mapping[str, SearchAnswer], *, max_results: int, took_ms: float = 0.0) -> SearchAnswer:
    """Join the answers of agents into one. Conditions of some of the agents name them.

    An unavailable memory limits the answer; if no memory is available, the whole answer is unavailable.
    """
    errors = {
        agent: answer.error or "it is switched off"
        for agent, answer in answers.items()
        if answer.unavailable or answer.disabled
    }
    if errors and len(errors) == len(answers):
        error = "; ".join(_told(answers, lambda answer: [answer.error or "it is switched off"]))
        return next(iter(answers.values())).model_copy(update={"error": error, "took_ms": took_ms})
    answers = {
        **answers,
        **{agent: _failure(ConditionCode.AGENT_NOT_SEARCHED, reason=e) for agent, e in errors.items()},
    }
    waits = [answer.pending.oldest_seconds for answer in answers.values() if answer.pending.oldest_seconds is not None]
    modes = {answer.mode for answer in answers.values()}
    return SearchAnswer(
        results=fused_results({agent: answer.results for agent, answer in answers.items()}, max_results=max_results),
        provider=_list(answer.provider for answer in answers.values()),
        model=_list(answer.model for answer in answers.values()),
        mode=next((mode for mode in _MODES if mode in modes), "none"),
        fallback=any(answer.fallback for answer in answers.values()),
        fallback_reason="; ".join(_told(answers, lambda answer: filter(None, [answer.fallback_reason]))) or None,
        citations=any(answer.citations for answer in answers.values()),
        degraded=tuple(_told(answers, lambda answer: answer.degraded)),
        conditions=tuple(
            condition if len(agents) == len(answers) else replace(condition, subject=_names(agents))
            for condition, agents in _grouped(answers, lambda answer: answer.conditions).items()
        ),
        pending=PendingState(
            documents=sum(answer.pending.documents for answer in answers.values()),
            oldest_seconds=max(waits, default=None),
            vectors=sum(answer.pending.vectors for answer in answers.values()),
        ),
        stale=True if any(answer.stale for answer in answers.values()) else None,
        warning="; ".join(_told(answers, lambda answer: filter(None, [answer.warning]))) or None,
        took_ms=took_ms,
    )


def fused_results(results: Mapping[str, Iterable[SearchResult]], *, max_results: int) -> tuple[SearchResult, ...]:
    """Fuse the results of agents, best first: by score, which is a confidence on one scale, then by place.

    The order of each agent's own results stays. Of equal texts the best is shown; `also_in` counts the others.
    """
    places = [(place, agent, result) for agent, list_ in results.items() for place, result in enumerate(list_)]
    by_text: dict[str, SearchResult] = {}
    for _, agent, result in sorted(places, key=lambda entry: (-entry[2].score, entry[0])):
        text = " ".join(result.snippet.split())
        better = by_text.get(text)
        if better is None:
            by_text[text] = result.model_copy(update={"agent": agent})
        elif better.agent != agent:
            also = better.also_in or AlsoIn(count=0, paths=())
            count = also.count + 1 + (result.also_in.count if result.also_in is not None else 0)
            by_text[text] = better.model_copy(update={"also_in": also.model_copy(update={"count": count})})
    return tuple(by_text.values())[:max_results]


def _answer_of(search: asyncio.Task[SearchAnswer], agent: str) -> SearchAnswer:
    """Return the answer of a search that is over."""
    if (error := search.exception()) is None:
        return search.result()
    _log.error("search_failed", agent=agent, exc_info=error)
    return SearchAnswer(**unavailable(f"the search failed: {type(error).__name__}", action="look into the log"))


def _failure(code: ConditionCode, **params: Param) -> SearchAnswer:
    condition = Condition(code, params=params)
    return SearchAnswer(degraded=(text_of(condition),), conditions=(condition,))


def _grouped(
    answers: Mapping[str, SearchAnswer], keys_of: Callable[[SearchAnswer], Iterable[_Key]]
) -> dict[_Key, list[str]]:
    """Return each key with the agents whose answers have it."""
    agents: dict[_Key, list[str]] = {}
    for agent, answer in answers.items():
        for key in keys_of(answer):
            agents.setdefault(key, []).append(agent)
    return agents


def _told(answers: Mapping[str, SearchAnswer], texts_of: Callable[[SearchAnswer], Iterable[str]]) -> Iterator[str]:
    """Yield the texts of answers, with the names of the agents that they are about, if those are not all."""
    for text, agents in _grouped(answers, texts_of).items():
        yield text if len(agents) == len(answers) else f"{_names(agents)}: {text}"


def _names(agents: list[str]) -> str:
    names, rest = agents[:MOST_NAMED], len(agents) - MOST_NAMED
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


def _list(names: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(filter(None, names))) or None

"""Agents, metrics, spans, threads and authorization of the query service, shared by its routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import structlog
from opentelemetry.trace import SpanKind

from memory.context.agent_context import AgentContext
from memory.context.injection import InjectedSessions
from memory.embedding.coordination import Coordinate
from memory.http.authorization import Authorizer, needs_tokens, read_metrics_token, read_tokens
from memory.search.tools import SearchableMemory, call_tool
from memory.service.agents import ServedAgents
from memory.service.metrics import ServiceMetrics
from memory.status.condition_texts import TEXTS
from memory.telemetry import tracing
from schemas.conditions import ConditionCode
from schemas.errors import RecalldError
from schemas.ports import EventInbox, PendingReader
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import Limits, Settings

_log = structlog.get_logger(__name__)

#: Requests that read files, indexes or the queue at a time; the others wait. A search holds no such thread.
REQUEST_THREADS = 64

#: Seconds between two background looks at what costs more with every agent.
LOOK_AROUND_SECONDS = 30.0


class QueryService:
    """Agents, numbers, threads and authorization of one service. See `create_app` for the arguments."""

    def __init__(
        self, settings: Settings, pending: PendingReader | None, *, inbox: EventInbox | None, coordinate: Coordinate
    ) -> None:
        self.agents = ServedAgents(settings, pending=pending, inbox=inbox, coordinate=coordinate)
        self.metrics = ServiceMetrics(self.agents)
        self._settings = settings
        self._injected = InjectedSessions()
        #: True if clients must send a token.
        self.guarded = needs_tokens(settings, host=settings.service.host)
        self.authorizer = Authorizer(
            self.agents.ids,
            read_tokens(settings.home, self.agents.ids) if self.guarded else None,
            read_metrics_token(settings.home) if self.guarded else None,
        )

    def memory(self, agent: str, *, traceparent: str | None = None) -> ServedMemory:
        """Return an agent's memory. `traceparent` is the client's span."""
        return ServedMemory(self.agents.memory(agent), self.metrics, agent=agent, traceparent=traceparent)

    def context(self, agent: str) -> AgentContext:
        """Return the context of an agent's conversations."""
        return AgentContext(self._settings, self._settings.agent(agent), self.agents.memory(agent), self._injected)

    async def call(
        self, agent: str, name: str, arguments: Mapping[str, Any], session_key: str | None
    ) -> dict[str, Any]:
        """Return a tool's answer as a JSON object.

        Raises:
            ToolArgumentsRefused: the arguments are wrong.
        """
        return await call_tool(self.memory(agent), name, arguments, session_key=session_key)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Load models and look around in the background until the end of the block, then close the agents."""
        threads = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="request")
        asyncio.get_running_loop().set_default_executor(threads)
        await asyncio.to_thread(self.agents.warm_up)
        looking = asyncio.create_task(self._look_around())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.to_thread(self.agents.close)

    async def _look_around(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.agents.look_around)
            except RecalldError as error:
                _log.warning("look_around_failed", error=str(error))
            await asyncio.sleep(LOOK_AROUND_SECONDS)


class ServedMemory(SearchableMemory):
    """Memory that counts and traces the answers of another one. `traceparent` is the client's span."""

    def __init__(
        self, memory: SearchableMemory, metrics: ServiceMetrics, *, agent: str, traceparent: str | None
    ) -> None:
        self._memory = memory
        self._metrics = metrics
        self._agent = agent
        self._traceparent = traceparent

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._memory.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the memory's answer."""
        started = time.perf_counter()
        with tracing.span("search", kind=SpanKind.SERVER, parent=self._traceparent, agent=self._agent) as span:
            answer = await self._memory.searched(request)
            outcome = _outcome(answer)
            span.set_attribute("recalld.mode", answer.mode)
            span.set_attribute("recalld.results", len(answer.results))
            span.set_attribute("recalld.outcome", outcome)
        self._metrics.search_seconds.labels(answer.mode).observe(time.perf_counter() - started)
        self._metrics.searches.labels(outcome).inc()
        for lacking in dict.fromkeys(TEXTS[ConditionCode(one.code)].lacks for one in answer.conditions):
            self._metrics.degradations.labels(lacking).inc()
        return answer

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return the memory's answer."""
        answer = self._memory.read_file(request)
        failed = "unavailable" if answer.unavailable else "missing" if answer.error else "ok"
        self._metrics.reads.labels("refused" if answer.refused else failed).inc()
        return answer


def _outcome(answer: SearchAnswer) -> str:
    if answer.unavailable:
        return "unavailable"
    if answer.degraded:
        return "degraded"
    return "found" if answer.results else "empty"

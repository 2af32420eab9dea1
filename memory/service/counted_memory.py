"""An agent's memory, and what metrics tell of its answers. Every door of the service goes through it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from memory import tracing
from memory.search.manager import SearchableMemory
from memory.service.degradations import without
from memory.service.metrics import ServiceMetrics
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings_sections import Limits


class CountedMemory(SearchableMemory):
    """Hands on, and counts."""

    def __init__(
        self, memory: SearchableMemory, metrics: ServiceMetrics, *, agent: str, traceparent: str | None = None
    ) -> None:
        self._memory = memory
        self._metrics = metrics
        self._agent = agent
        self._traceparent = traceparent

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._memory.limits

    def search(self, request: SearchRequest) -> SearchAnswer:
        """The memory's answer."""
        started = time.perf_counter()
        with self._span() as span:
            return self._counted(self._memory.search(request), started, span)

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """The memory's answer."""
        started = time.perf_counter()
        with self._span() as span:
            return self._counted(await self._memory.searched(request), started, span)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """The memory's answer."""
        answer = self._memory.read_file(request)
        failed = "unavailable" if answer.unavailable else "missing" if answer.error else "ok"
        outcome = "refused" if answer.refused else failed
        self._metrics.reads.labels(outcome).inc()
        return answer

    def _span(self) -> AbstractContextManager[tracing.Span]:
        return tracing.span("search", role="server", parent=self._traceparent, agent=self._agent)

    def _counted(self, answer: SearchAnswer, started: float, span: tracing.Span) -> SearchAnswer:
        span.set_attribute("recalld.mode", answer.mode)
        span.set_attribute("recalld.results", len(answer.results))
        span.set_attribute("recalld.outcome", _outcome(answer))
        self._metrics.search_seconds.labels(answer.mode).observe(time.perf_counter() - started)
        self._metrics.searches.labels(_outcome(answer)).inc()
        for what in without(answer):
            self._metrics.degradations.labels(what).inc()
        return answer


def _outcome(answer: SearchAnswer) -> str:
    if answer.unavailable:
        return "unavailable"
    if answer.degraded:
        return "degraded"
    return "found" if answer.results else "empty"

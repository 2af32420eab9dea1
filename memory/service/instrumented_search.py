"""An agent's memory with metrics and spans of its answers. Every search and read of the service goes through it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind

from memory.search.manager import SearchableMemory
from memory.service.metrics import ServiceMetrics
from memory.status.condition_texts import TEXTS
from memory.telemetry import tracing
from schemas.conditions import ConditionCode
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings_sections import Limits


class InstrumentedSearch(SearchableMemory):
    """Memory that counts and traces the answers of another one. `traceparent` is the client's span."""

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
        """Return the memory's answer."""
        with self._instrumented() as count:
            return count(self._memory.search(request))

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the memory's answer."""
        with self._instrumented() as count:
            return count(await self._memory.searched(request))

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return the memory's answer."""
        answer = self._memory.read_file(request)
        failed = "unavailable" if answer.unavailable else "missing" if answer.error else "ok"
        self._metrics.reads.labels("refused" if answer.refused else failed).inc()
        return answer

    @contextmanager
    def _instrumented(self) -> Iterator[Callable[[SearchAnswer], SearchAnswer]]:
        started = time.perf_counter()
        with tracing.span("search", kind=SpanKind.SERVER, parent=self._traceparent, agent=self._agent) as span:

            def count(answer: SearchAnswer) -> SearchAnswer:
                outcome = _outcome(answer)
                span.set_attribute("recalld.mode", answer.mode)
                span.set_attribute("recalld.results", len(answer.results))
                span.set_attribute("recalld.outcome", outcome)
                self._metrics.search_seconds.labels(answer.mode).observe(time.perf_counter() - started)
                self._metrics.searches.labels(outcome).inc()
                for lacking in dict.fromkeys(TEXTS[ConditionCode(one.code)].lacks for one in answer.conditions):
                    self._metrics.degradations.labels(lacking).inc()
                return answer

            yield count


def _outcome(answer: SearchAnswer) -> str:
    if answer.unavailable:
        return "unavailable"
    if answer.degraded:
        return "degraded"
    return "found" if answer.results else "empty"

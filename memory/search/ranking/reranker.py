"""Reranker: a model behind an HTTP API, as of Cohere, Jina, vLLM and TEI, orders the best candidates of a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from memory.embedding.rate_limit import RateLimiter
from memory.search.ranking.order import Scored
from schemas.conditions import Condition, ConditionCode
from schemas.errors import Transient
from schemas.settings import Rerank

#: Limiter of each endpoint, for the cool-down after failures in a row.
_limiter = lru_cache(lambda _: RateLimiter())


@dataclass(frozen=True, slots=True)
class Reranker:
    """Reranker for one search. A failure leaves the order as it is, and its condition in `lacks`."""

    settings: Rerank
    query: str = field(compare=False)
    redact: Callable[[str], str] = field(compare=False)
    seconds_left: Callable[[], float] = field(compare=False)
    lacks: list[Condition] = field(default_factory=list, compare=False)

    def reranked(self, hits: Sequence[Scored]) -> list[Scored]:
        """Return hits, best first, with the first candidates in the reranker's order."""
        best, limiter = hits[: self.settings.candidates], _limiter(self.settings)
        scores, reason = dict[int, float](), "failed a moment ago"
        if limiter.hold() is None:
            try:
                scores, reason = self._scores([self.redact(row.text) for _, row in best]), ""
            except Exception as error:  # noqa: BLE001 - the search goes on, and the condition has the reason
                reason = "did not answer in time" if type(error) is Transient else f"failed ({type(error).__name__})"
                if status := getattr(getattr(error, "response", None), "status_code", None):
                    reason = f"answered with status {status}"
            limiter.report(Transient(reason) if reason else None)
        if reason:
            self.lacks.append(Condition(ConditionCode.NOT_RERANKED, params={"reason": reason}))
        order = sorted(range(len(best)), key=lambda place: -scores.get(place, -math.inf))
        # Age and variety compare ranks, so that each place keeps its own.
        moved = [
            (replace(best[place][0], rank=fused.rank, rerank=scores.get(place)), best[place][1])
            for place, (fused, _) in zip(order, best, strict=True)
        ]
        return [*moved, *hits[len(best) :]]

    def _scores(self, texts: Sequence[str]) -> dict[int, float]:
        """Return the scores by place. Raise an exception of the request, or of an answer without usable scores."""
        from memory.embedding.providers.transport import post_json

        key = self.settings.api_key.get_secret_value() if self.settings.api_key is not None else "none"
        answer = post_json(
            f"{str(self.settings.base_url).rstrip('/')}/rerank",
            {"model": self.settings.model or "", "query": self.query, "documents": texts, "top_n": len(texts)},
            headers={"Authorization": f"Bearer {key}"},
            seconds=min(self.settings.timeout_ms / 1000, 0.9 * self.seconds_left()),  # the rest is for the snippets
            answer_bytes=2_000_000,  # some servers return the documents, too
        )
        scores = {entry["index"]: float(entry["relevance_score"]) for entry in answer["results"]}
        if sorted(scores) != list(range(len(texts))) or not all(map(math.isfinite, scores.values())):
            raise ValueError("the answer has no score for each index")
        return scores

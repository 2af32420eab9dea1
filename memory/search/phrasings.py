"""Several phrasings of one question: a search for each, all at once, and the fusion of their results by place."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from memory.search.ranking.fusion import Fused, descending
from memory.search.ranking.ranker import TOP
from schemas.search import SearchAnswer, SearchRequest, SearchResult

#: Results of each phrasing, at least: passages that several searches find may stand deep in each of them.
LEAST_RESULTS = 24


async def by_phrasings(
    search: Callable[[SearchRequest], Awaitable[SearchAnswer]], request: SearchRequest, *, max_results: int
) -> SearchAnswer:
    """Return the fused answer of a search for each phrasing, with mode and state of the most limited of them."""
    if not request.queries:
        return await search(request)
    texts = dict.fromkeys(filter(str.strip, (request.query, *request.queries))) or {"": None}
    most = request.max_results or max_results
    update = {"queries": None, "max_results": max(most, LEAST_RESULTS)}
    answers = await asyncio.gather(*(search(request.model_copy(update={**update, "query": text})) for text in texts))
    given = [answer for answer in answers if not answer.unavailable] or answers[:1]
    return max(given, key=lambda answer: len(answer.conditions)).model_copy(
        update={
            "results": fused_by_place([answer.results for answer in given], max_results=most),
            "conditions": tuple(dict.fromkeys(entry for answer in given for entry in answer.conditions)),
            "degraded": tuple(dict.fromkeys(entry for answer in given for entry in answer.degraded)),
            "warning": next((answer.warning for answer in answers if answer.warning), None),
        }
    )


def fused_by_place(lists: Sequence[Sequence[SearchResult]], *, max_results: int) -> tuple[SearchResult, ...]:
    """Fuse results, best first in each list, by the sum of `1 / (10 + place)`; ties by the order of the lists.

    A passage, and a text, is shown once: as the search found it that puts it first, with the highest of its scores.
    """
    passages: dict[object, list[tuple[int, SearchResult]]] = defaultdict(list)
    key_of_text: dict[str, object] = {}
    for results in lists:
        for place, result in enumerate(results, 1):
            key = result.agent, result.source, result.path, result.start_line, result.end_line
            passages[key_of_text.setdefault(" ".join(result.snippet.split()), key)].append((place, result))
    best = sorted(passages.values(), key=lambda places: -sum(1 / (10 + place) for place, _ in places))[:max_results]
    scores = [max(result.score for _, result in places) for places in best]
    falling = descending([Fused(0, rank=0.0, score=score, vector=None, text=None) for score in scores], TOP)
    hits = (min(places, key=lambda entry: entry[0])[1] for places in best)
    return tuple(hit.model_copy(update={"score": fused.score}) for hit, fused in zip(hits, falling, strict=True))

"""Search by keywords in this process, without validated settings, model or numpy.

Its answer is the one of the whole search manager with `provider = "none"`; a test compares them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memory.index.generations import Generations
from memory.search.passages import passages
from memory.search.ranking.terms import searched_query
from memory.search.retrieval import Found, Wanted, retrieve
from memory.status.condition_texts import text_of
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from recalld.settings.keyword_snapshot import KeywordAgent
from schemas.errors import RecalldError


def search_keywords(agent: KeywordAgent, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer; None where the whole manager has to answer.

    That is without a readable index, with an index of another redaction, and with copies of passages. The manager
    compares copies with the disk.
    """
    started = time.monotonic()
    asked = searched_query(request["query"], str)
    min_score = request.get("min_score")
    wanted = Wanted(
        query=asked.text,
        max_results=request.get("max_results") or agent.max_results,
        min_score=agent.min_score if min_score is None else min_score,
        sources=request.get("sources") or agent.sources,
        hybrid=agent.hybrid,
    )
    try:
        reader = Generations(Path(agent.index), StoreOptions(vector_enabled=False)).open_reader()
        if reader is None:
            return None
        try:
            if not _is_redacted_so(reader, agent):
                return None
            found = retrieve(reader, wanted, None)
            waiting = reader.counts().vectors_pending
        finally:
            reader.close()
    except RecalldError:
        return None
    if any(found.copies.get(row.id) for _, row in found.hits):
        return None
    lacks = [*found.lacks, *([asked.cut] if asked.cut is not None else [])]
    return {
        "results": _results(found, agent),
        "provider": "none",
        "mode": found.mode,
        "fallback": bool(found.lacks),
        "citations": agent.cited,
        "degraded": [text_of(one) for one in lacks],
        "conditions": [one.body() for one in lacks],
        "pending": {"documents": 0, "vectors": waiting},
        "tookMs": round((time.monotonic() - started) * 1000, 2),
    }


def _is_redacted_so(reader: StoreReader, agent: KeywordAgent) -> bool:
    identity = reader.meta("identity")
    return identity is not None and json.loads(identity).get("redaction") == json.loads(agent.redaction)


def _results(found: Found, agent: KeywordAgent) -> list[dict[str, Any]]:
    results = []
    for passage in passages(found, max_snippet_chars=agent.max_snippet_chars):
        result = {
            "path": passage.path,
            "startLine": passage.start_line,
            "endLine": passage.end_line,
            "score": passage.score,
            "textScore": passage.text_score,
            "snippet": passage.snippet,
            "snippetStartLine": passage.snippet_start_line,
            "snippetEndLine": passage.snippet_end_line,
            "source": passage.source,
            "citation": passage.citation if agent.cited else None,
        }
        results.append({name: value for name, value in result.items() if value is not None})
    return results

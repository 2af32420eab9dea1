"""What an answer of an agent's memory would be made of now: by which sides, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from memory.embedding.prices import price_of
from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.index.fingerprint import embedding_of
from memory.status.condition_texts import counted, text_of
from memory.store.reader import IndexCounts
from schemas.conditions import Condition, ConditionCode
from schemas.search import Mode
from schemas.settings import MemorySettings
from schemas.status import Availability, IndexState, TroubleState


def answering(
    index: IndexState, choice: ProviderChoice, *, vectors: Availability, text: Availability, by_text: bool
) -> tuple[Mode, tuple[str, ...]]:
    """The `mode` and the `degraded` that a search says now.

    `vectors` and `text` tell whether either side can be searched; `by_text` whether keywords are wanted
    (`query.hybrid.enabled`).
    """
    if index.generation is None:
        return "none", ()
    degraded: list[str] = []
    near = vectors.available and choice.provider is not None
    made_by = embedding_of(index.identity)
    if near and choice.provider is not None and made_by not in {choice.provider.identity, NO_VECTORS}:
        near = False
        degraded.append("the index holds vectors of another embedding model: keywords only")
    elif not vectors.available and choice.requested != "none":
        degraded.append(f"{vectors.reason}: keywords only")
    elif vectors.available and vectors.reason:
        degraded.append(vectors.reason)
    if not text.available:
        degraded.append(f"{text.reason}: vectors only")
        return ("vector" if near else "none"), tuple(degraded)
    if not near or not index.vectors_ready:
        return "keyword", tuple(degraded)
    return ("hybrid" if by_text else "vector"), tuple(degraded)


def no_vectors(
    agent: str, choice: ProviderChoice, *, files: int = 0, ready: int = 0, pending: int = 0
) -> Condition | None:
    """Return why an agent's documents are found by keyword only; None when they are embedded, or keywords were chosen.

    `files`, and the vectors that are `ready` and `pending`, are those of its index.
    """
    if choice.lacking is None:
        return None
    documents = counted(files, "document") if files else "new documents"
    if ready:
        documents = counted(pending, "chunk") if pending else "new documents"
    params = {"documents": documents, "reason": choice.lacking.reason, "remedy": choice.lacking.remedy}
    return Condition(ConditionCode.VECTORS_UNAVAILABLE, agent, params=params)


def no_prefixes(agent: str, memory: MemorySettings, choice: ProviderChoice, *, chunks: int) -> Condition | None:
    """Return what a rebuild with prefixes or task types would cost at most; None where the index has what it should."""
    if choice.rebuilt is None or not chunks:
        return None
    price = price_of(memory if choice.taken_over is None else MemorySettings(), choice.name, choice.rebuilt.model)
    dollars = (price or 0.0) * chunks * memory.chunking.tokens / 1e6
    cost = "free of charge" if price == 0 else f"at most ${max(0.01, dollars):,.2f}" if price else "price unknown"
    params: dict[str, str | int | float] = {
        "model": choice.rebuilt.model,
        "texts": counted(chunks, "text"),
        "cost": cost,
        "minutes": max(1, round(chunks / choice.rebuilt.limits.chunks_per_second / 60)),
    }
    code = ConditionCode.TASK_TYPES_MISSING if choice.name == "gemini" else ConditionCode.PREFIXES_MISSING
    return Condition(code, agent, params=params)


def lacking_troubles(
    agent: str, choice: ProviderChoice, index: IndexState | IndexCounts, *, now: float
) -> Iterator[TroubleState]:
    """The trouble of an agent that has no provider though keywords alone were not chosen."""
    lacking = no_vectors(agent, choice, files=index.files, ready=index.vectors_ready, pending=index.vectors_pending)
    if lacking is not None:
        yield trouble_of("embedding", lacking, now=now)


def trouble_of(part: str, condition: Condition, *, now: float) -> TroubleState:
    """Return a condition that was found just now as status shows it."""
    return TroubleState(part=part, message=text_of(condition), since=now, code=condition.code)


def sides_in_trouble(*, text: Availability, now: float) -> Iterator[TroubleState]:
    """Troubles of this process's SQLite: it has no FTS5."""
    if not text.available:
        yield TroubleState(part="keywords", message=str(text.reason), since=now)

"""Mode of a search made now, and the conditions that degrade it."""

from __future__ import annotations

from memory.embedding.providers.presets import price_of
from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.index.fingerprint import embedding_of
from memory.status.condition_texts import counted
from schemas.conditions import Condition, ConditionCode
from schemas.search import Mode
from schemas.settings import MemorySettings
from schemas.status import Availability, IndexState


def answering(
    index: IndexState, choice: ProviderChoice, *, vectors: Availability, text: Availability, by_text: bool
) -> tuple[Mode, tuple[Condition, ...]]:
    """Return the `mode` of a search now, and what it lacks.

    `vectors` and `text` tell whether either side can be searched; `by_text` whether keywords are wanted
    (`query.hybrid.enabled`).
    """
    if index.generation is None:
        return "none", ()
    lacks: list[Condition] = []
    near = vectors.available and choice.provider is not None
    made_by = embedding_of(index.identity)
    if near and choice.provider is not None and made_by not in {choice.provider.identity, NO_VECTORS}:
        near = False
        lacks.append(Condition(ConditionCode.OTHER_MODEL))
    elif not vectors.available and choice.requested != "none":
        lacks.append(Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": str(vectors.reason)}))
    if not text.available:
        lacks.append(Condition(ConditionCode.VECTORS_ONLY, params={"reason": str(text.reason)}))
        return ("vector" if near else "none"), tuple(lacks)
    if not near or not index.vectors_ready:
        return "keyword", tuple(lacks)
    return ("hybrid" if by_text else "vector"), tuple(lacks)


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

"""What age and variety need to know of candidates, read from the store and handed to the pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from memory.search.ranking.decay import age_in_days, factor
from memory.search.ranking.fusion import Fused
from memory.search.ranking.mmr import ByMeaning, ByWords, Similarity, varied
from memory.store.reader import ChunkRow, StoreReader


class MmrSettings(Protocol):
    """Whether and how much results should differ; `schemas.settings.Mmr` is one."""

    @property
    def enabled(self) -> bool: ...
    @property
    def lambda_(self) -> float: ...


class DecaySettings(Protocol):
    """Whether and how fast memory ages; `schemas.settings.TemporalDecay` is one."""

    @property
    def enabled(self) -> bool: ...
    @property
    def half_life_days(self) -> float: ...


def factors_of(
    reader: StoreReader, rows: Mapping[int, ChunkRow], *, half_life_days: float, now: float
) -> dict[int, float]:
    """What every chunk's relevance is multiplied with for its age. `now` is in Unix seconds."""
    said = reader.times_of(list(rows))
    return {
        id_: factor(age_in_days(row.key.path, said.get(id_), now=now), half_life_days=half_life_days)
        for id_, row in rows.items()
    }


def varied_hits(
    reader: StoreReader,
    hits: Sequence[tuple[Fused, ChunkRow]],
    *,
    share: float,
    limit: int,
    unrelated: float | None,
) -> list[tuple[Fused, ChunkRow]]:
    """Choose among candidates, best first, by `memory.search.ranking.mmr`.

    `unrelated` is the model's cosine of unrelated texts; None compares words, as where no vectors are in play.
    """
    texts = [row.text for _, row in hits]
    similarity: Similarity
    if unrelated is None:
        similarity = ByWords(texts)
    else:
        vectors = reader.vectors_of([row.id for _, row in hits])
        similarity = ByMeaning([vectors.get(row.id) for _, row in hits], texts, unrelated=unrelated)
    places = varied([item.rank for item, _ in hits], similarity, share=share, limit=limit)
    return [hits[place] for place in places]

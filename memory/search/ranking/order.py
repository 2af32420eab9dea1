"""Order of results by age and by variety, where the settings ask for them.

**Age.** A message is as old as its time, a dated note (`2026-01-16.md`, `standup-2026-01-16.md`) as old as its date in
whole days of local time, and everything else is evergreen. The factor multiplies `Fused.rank` before results are cut,
and the reported score at the end. `min_score` looks at the score before: an old chunk sinks, and is never lost for its
age alone.

**Variety.** Maximal marginal relevance (MMR): the next result is always the candidate with the highest
`lambda * relevance - (1 - lambda) * similarity`, where the similarity is that to the most similar result so far
(Carbonell and Goldstein, "The use of MMR", 1998). Both terms are on one scale: the best candidate's relevance is 1, a
similarity of 1 is the same text again, and 0 an unrelated one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from memory.chunking.dates import note_date
from memory.chunking.segmenting import index_text
from memory.chunking.stop_words import CHINESE_STOP_BIGRAMS, CHINESE_STOP_CHARACTERS, ENGLISH_STOP_WORDS
from memory.search.ranking.fusion import Fused
from memory.store.reader import ChunkRow, StoreReader, Vector
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

SECONDS_PER_DAY = 86_400.0

_TOKEN = re.compile(r"[^\W_]+")
_STOP_WORDS = ENGLISH_STOP_WORDS | CHINESE_STOP_BIGRAMS

#: Meaningful digits of a cosine: further digits depend on a row's place in its matrix.
_COSINE_DIGITS = 5

#: Hit with its scores.
Scored: TypeAlias = tuple[Fused, ChunkRow]

#: Place of a candidate -> similarity 0..1 of every candidate to it, in their order.
Similarity: TypeAlias = Callable[[int], Sequence[float]]


def aged(
    reader: StoreReader,
    hits: Sequence[Scored],
    copies: Mapping[int, Sequence[ChunkRow]],
    *,
    half_life_days: float,
    now: float,
) -> list[Scored]:
    """Multiply ranks and scores by the factor of their age; best first, ties by id. `now` is in Unix seconds.

    All copies of a text have the age of the youngest.
    """
    rows = {row.id: (row, *copies.get(row.id, ())) for _, row in hits}
    times = reader.times_of([row.id for group in rows.values() for row in group])

    def factor(row: ChunkRow) -> float:
        return age_factor(age_in_days(row.key.path, times.get(row.id), now=now), half_life_days=half_life_days)

    factors = {id_: max(map(factor, group)) for id_, group in rows.items()}
    aged_hits = [
        (replace(item, rank=item.rank * factors[item.id], score=item.score * factors[item.id]), row)
        for item, row in hits
    ]
    return sorted(aged_hits, key=lambda hit: (-hit[0].rank, hit[0].id))


def age_in_days(path: str, said_at: float | None, *, now: float) -> float | None:
    """Return the age of a chunk, at least 0; None for an evergreen one.

    `said_at` is the time of the message; None for notes, and for messages without a time.
    """
    if said_at is not None:
        return max(0.0, (now - said_at) / SECONDS_PER_DAY)
    day = note_date(path)
    if day is None:
        return None
    return float(max(0, (date.fromtimestamp(now) - day).days))


def age_factor(age_days: float | None, *, half_life_days: float) -> float:
    """Return `exp(-ln 2 * age / half-life)`: 1 for new and evergreen chunks, 0.5 after `half_life_days`."""
    return 1.0 if age_days is None else float(0.5 ** (age_days / half_life_days))


def varied_hits(
    reader: StoreReader,
    hits: Sequence[Scored],
    *,
    share: float,
    limit: int,
    unrelated: float | None,
) -> list[Scored]:
    """Choose among candidates, best first, by maximal marginal relevance.

    `unrelated` is the model's cosine of unrelated texts; None compares words, as for a search without vectors.
    """
    texts = [row.text for _, row in hits]
    if unrelated is None:
        similarity = similarity_by_words(texts)
    else:
        vectors = reader.vectors_of([row.id for _, row in hits])
        similarity = similarity_by_meaning([vectors.get(row.id) for _, row in hits], texts, unrelated=unrelated)
    places = varied([item.rank for item, _ in hits], similarity, share=share, limit=limit)
    return [hits[place] for place in places]


def varied(relevance: Sequence[float], similarity: Similarity, *, share: float, limit: int) -> list[int]:
    """Return the places of the chosen candidates, first choice first, at most `limit`.

    `share` is lambda, 0..1: 1 keeps the order, 0 looks at variety alone after the first. Equal choices go to the more
    relevant candidate, then to the first.
    """
    best = max(relevance, default=0.0)
    worth = [share * (value / best if best > 0 else 0.0) for value in relevance]
    nearest = [0.0] * len(worth)
    remaining = list(range(len(worth)))
    chosen: list[int] = []
    while remaining and len(chosen) < limit:
        # max() keeps the first of equals.
        place = max(remaining, key=lambda index: (worth[index] - (1 - share) * nearest[index], relevance[index]))
        chosen.append(place)
        remaining.remove(place)
        if remaining and share < 1:
            near = similarity(place)
            for index in remaining:
                nearest[index] = max(nearest[index], near[index])
    return chosen


def similarity_by_words(texts: Sequence[str]) -> Similarity:
    """Return the similarity by common words (Jaccard), in CJK by pairs of characters.

    Stop words do not count: any two texts of a language have them in common.
    """
    word_sets = [tokens(text) for text in texts]
    #: Word -> places of its texts: texts without a common word are never compared.
    holders: dict[str, list[int]] = {}
    for place, words in enumerate(word_sets):
        for word in words:
            holders.setdefault(word, []).append(place)

    def to(place: int) -> Sequence[float]:
        words = word_sets[place]
        common = Counter(chain.from_iterable(holders[word] for word in words))
        similar = [0.0] * len(word_sets)
        for neighbour, count in common.items():
            similar[neighbour] = count / (len(words) + len(word_sets[neighbour]) - count)
        return similar

    return to


def similarity_by_meaning(vectors: Sequence[Vector | None], texts: Sequence[str], *, unrelated: float) -> Similarity:
    """Return the similarity by cosine, from `unrelated` (0) to the same direction (1); by words without a vector.

    `vectors` and `texts` are of the same candidates; `unrelated` is the model's cosine of unrelated texts.
    """
    rows = {place: row for row, place in enumerate(place for place, vector in enumerate(vectors) if vector is not None)}
    present_vectors = [vector for vector in vectors if vector is not None]
    matrix = np.stack(present_vectors) if present_vectors else None
    by_words = similarity_by_words(texts) if len(present_vectors) < len(texts) else None

    def to(place: int) -> Sequence[float]:
        similar = [0.0] * len(rows) if by_words is None else list(by_words(place))
        row = rows.get(place)
        if row is None or matrix is None:
            return similar
        cosines = np.round(matrix @ matrix[row], _COSINE_DIGITS)
        near = np.clip((cosines - unrelated) / (1.0 - unrelated), 0.0, 1.0).tolist()
        for neighbour, value in zip(rows, near, strict=True):
            similar[neighbour] = value
        return similar

    return to


def tokens(text: str) -> frozenset[str]:
    """Return the distinct words of a text as the keyword index has them, without stop words."""
    words = set(_TOKEN.findall(index_text(text).casefold())) - _STOP_WORDS
    return frozenset(token for token in words if CHINESE_STOP_CHARACTERS.isdisjoint(token))

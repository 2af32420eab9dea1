"""Scores of the candidates of both sides before fusion, by chunk id.

* **words** = `bm25 + v * users + 0.3 * line`: BM25 of the chunk, of its users' words, and of its best sentence.
* **near** = `cosine + 0.7 * closest + 0.7 * v * users_closest`: cosine of the chunk's vector, the highest cosine of its
  sentences, and of its users' sentences. A chunk whose sentences have no vectors yet gets its cosine, and the mean
  distance from the cosine to the closest sentence of the others on top.

`v` is the weight of the users' words, 0 to 1. With an agent, the user states the facts and the assistant writes most of
the text; among people both say the same amount, and `v` is 0. A note has no roles: its scores for users are its own,
less by as much as those of the transcripts among the candidates.

The constants were set by hand, one set for all memories (`tests/benchmarks/RESULTS.md`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.store.reader import ChunkRow, SentenceSigns, Vector
from memory.transcripts.packing import messages_of
from schemas.documents import MEMORY_SOURCE
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

#: Weights of the best sentence's BM25, and of the sentences' cosines.
LINE, CLOSEST = 0.3, 0.7

#: Characters of assistants for one of users: up to the first, roles mean nothing, and from the second on, all.
_PEOPLE, _AGENTS = 1.5, 3.0

#: A sign keeps the direction of a dimension only. The mean of `query * sign` is less than the cosine by this factor.
_OF_SIGNS = math.sqrt(math.pi / 2)


@dataclass(frozen=True, slots=True)
class Closest:
    """Highest cosine of a chunk's sentences, and of its users' sentences; None for a chunk without a user's word."""

    of_all: float
    of_users: float | None


def voice_weight(rows: Iterable[ChunkRow]) -> float:
    """Return the weight `v` of the users' words among these chunks."""
    users = assistants = 0
    for row in rows:
        if row.key.source != MEMORY_SOURCE:
            for message in messages_of(row.text):
                if message.is_users:
                    users += len(message.text)
                else:
                    assistants += len(message.text)
    return min(1.0, max(0.0, (assistants / max(1, users) - _PEOPLE) / (_AGENTS - _PEOPLE)))


def sentence_cosines(vector: Vector, signs: Mapping[int, SentenceSigns]) -> dict[int, npt.NDArray[np.float32]]:
    """Return the cosines of each chunk's sentences to a query of unit length, without chunks that have no sentence."""
    by_id = {id_: of_chunk for id_, of_chunk in signs.items() if len(of_chunk.signs)}
    if not by_id:
        return {}
    # Sum by bytes: for each byte of a row, the part of the query with the signs of its 256 values.
    signs_of_bytes = 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) - 1.0
    padded = np.zeros(-(-vector.size // 8) * 8, dtype=np.float32)
    padded[: vector.size] = vector
    sums = (signs_of_bytes.astype(np.float32) @ padded.reshape(-1, 8).T).T
    rows = np.concatenate([of_chunk.signs for of_chunk in by_id.values()])
    places = rows + np.arange(0, sums.size, 256)
    cosines = sums.ravel().take(places).sum(axis=1) * (_OF_SIGNS / math.sqrt(vector.size))
    ends = np.cumsum([len(of_chunk.signs) for of_chunk in by_id.values()])
    return dict(zip(by_id, np.split(cosines, ends[:-1]), strict=True))


def closest_sentences(
    cosines: Mapping[int, npt.NDArray[np.float32]], signs: Mapping[int, SentenceSigns]
) -> dict[int, Closest]:
    """Return the highest cosines of each chunk's sentences, from those of all its sentences."""
    closest = {}
    for id_, of_sentences in cosines.items():
        users = of_sentences[signs[id_].is_users]
        closest[id_] = Closest(float(of_sentences.max()), float(users.max()) if users.size else None)
    return closest


def word_scores(
    bm25: Mapping[int, float],
    users: Mapping[int, float],
    lines: Mapping[int, float],
    *,
    voice: float,
    notes: Collection[int] = (),
) -> dict[int, float]:
    """Return `words` of each chunk that has a BM25. `users` are the scores of the users' words in transcripts.

    A note's share of users' words is that of all transcripts, so that neither kind pushes the other down.
    """
    whole = sum(score for id_, score in bm25.items() if id_ not in notes)
    share = sum(users.values()) / whole if whole > 0 else 0.0
    users = {**users, **{id_: share * bm25[id_] for id_ in notes if id_ in bm25}}
    return {id_: score + voice * users.get(id_, 0.0) + LINE * lines.get(id_, 0.0) for id_, score in bm25.items()}


def near_scores(
    cosines: Mapping[int, float], closest: Mapping[int, Closest], *, voice: float, notes: Collection[int] = ()
) -> dict[int, float]:
    """Return `near` of each chunk with a cosine. A chunk's missing scores are as far from it as those of others."""
    talks = {id_: of_chunk for id_, of_chunk in closest.items() if id_ not in notes}
    spoken = [of_chunk.of_users for of_chunk in talks.values() if of_chunk.of_users is not None]
    least = min(spoken, default=0.0)
    of_users = {id_: least if of_chunk.of_users is None else of_chunk.of_users for id_, of_chunk in talks.items()}
    distance = sum(talks[id_].of_all - of_users[id_] for id_ in talks) / max(1, len(talks))

    gaps = [of_chunk.of_all - cosines[id_] for id_, of_chunk in closest.items() if id_ in cosines]
    gap = sum(gaps) / max(1, len(gaps))

    def near(id_: int, cosine: float) -> float:
        of_all = closest[id_].of_all if id_ in closest else cosine + gap
        return cosine + CLOSEST * (of_all + voice * of_users.get(id_, of_all - distance))

    return {id_: near(id_, cosine) for id_, cosine in cosines.items()}

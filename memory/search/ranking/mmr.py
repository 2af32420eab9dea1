"""Maximal marginal relevance: results that do not all say the same, when that is wanted. Pure.

The next result is always the candidate with the highest `lambda * relevance - (1 - lambda) * similarity`, where the
similarity is the one to the most similar result so far (Carbonell and Goldstein, "The use of MMR", 1998).

Both terms are on one scale, so that lambda means the same for every model, query and formula of fusion: the best
candidate's relevance is 1; a similarity of 1 is the same text again, and 0 an unrelated one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from memory.chunking.segmenting import index_text
from memory.chunking.stop_words import CHINESE_STOP_BIGRAMS, CHINESE_STOP_CHARACTERS, ENGLISH_STOP_WORDS
from memory.store.lazy_module import LazyModule
from memory.store.reader import Vector

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

_TOKEN = re.compile(r"[^\W_]+")
_STOP_WORDS = ENGLISH_STOP_WORDS | CHINESE_STOP_BIGRAMS

#: Digits of a cosine that mean something: what comes after them depends on a row's place in its matrix.
_COSINE_DIGITS = 5


class Similarity(ABC):
    """How much candidates say the same."""

    @abstractmethod
    def to(self, place: int) -> Sequence[float]:
        """The similarity 0..1 of every candidate, in their order, to the one at `place`."""


class ByWords(Similarity):
    """The share of words that two texts have in common (Jaccard), in CJK of pairs of characters.

    Stop words do not count: any two texts of a language have them in common.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._tokens = [tokens(text) for text in texts]
        #: Where a word is: only texts that have one in common are ever compared.
        self._holders: dict[str, list[int]] = {}
        for place, found in enumerate(self._tokens):
            for token in found:
                self._holders.setdefault(token, []).append(place)

    def to(self, place: int) -> Sequence[float]:
        """See `Similarity.to`."""
        words = self._tokens[place]
        common = Counter(chain.from_iterable(self._holders[token] for token in words))
        similar = [0.0] * len(self._tokens)
        for other, count in common.items():
            similar[other] = count / (len(words) + len(self._tokens[other]) - count)
        return similar


class ByMeaning(Similarity):
    """The cosine of two vectors, from `unrelated` (0) to the same direction (1); by words where one has no vector.

    Args:
        vectors: unit vectors, shape (dimensions,), one a candidate; None where there is none.
        texts: as many texts.
        unrelated: the model's cosine of unrelated texts, below 1.
    """

    def __init__(self, vectors: Sequence[Vector | None], texts: Sequence[str], *, unrelated: float) -> None:
        self._unrelated = unrelated
        places = [place for place, vector in enumerate(vectors) if vector is not None]
        self._rows = {place: row for row, place in enumerate(places)}
        known = [vector for vector in vectors if vector is not None]
        self._matrix = np.stack(known) if known else None
        self._words = ByWords(texts) if len(known) < len(texts) else None

    def to(self, place: int) -> Sequence[float]:
        """See `Similarity.to`."""
        similar = [0.0] * len(self._rows) if self._words is None else list(self._words.to(place))
        row = self._rows.get(place)
        if row is None or self._matrix is None:
            return similar
        cosines = np.round(self._matrix @ self._matrix[row], _COSINE_DIGITS)
        near = np.clip((cosines - self._unrelated) / (1.0 - self._unrelated), 0.0, 1.0).tolist()
        for other, value in zip(self._rows, near, strict=True):
            similar[other] = value
        return similar


def tokens(text: str) -> frozenset[str]:
    """The distinct words of a text as the keyword index has them, without stop words."""
    found = set(_TOKEN.findall(index_text(text).casefold())) - _STOP_WORDS
    return frozenset(token for token in found if CHINESE_STOP_CHARACTERS.isdisjoint(token))


def varied(relevance: Sequence[float], similarity: Similarity, *, share: float, limit: int) -> list[int]:
    """The places of the chosen candidates, first choice first, at most `limit`.

    Args:
        relevance: at least 0, one a candidate. Of choices that are worth the same the more relevant one is taken,
            of equally relevant ones the first.
        similarity: of the same candidates.
        share: lambda, 0..1; 1 keeps the order, 0 looks at variety alone after the first.
        limit: results wanted.

    Looks at every candidate once for each result.
    """
    best = max(relevance, default=0.0)
    worth = [share * (value / best if best > 0 else 0.0) for value in relevance]
    nearest = [0.0] * len(worth)
    left = list(range(len(worth)))
    chosen: list[int] = []
    while left and len(chosen) < limit:
        # max() keeps the first of equals.
        place = max(left, key=lambda other: (worth[other] - (1 - share) * nearest[other], relevance[other]))
        chosen.append(place)
        left.remove(place)
        if left and share < 1:
            near = similarity.to(place)
            for other in left:
                nearest[other] = max(nearest[other], near[other])
    return chosen

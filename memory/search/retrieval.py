"""Retrieval from one generation: candidates of both sides, fused, without repetitions, best first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memory.search.ranking.exact_matches import file_names
from memory.search.ranking.fusion import Fused
from memory.search.ranking.overlap import comparable_texts, repeats
from memory.search.ranking.query import sought
from memory.search.ranking.ranker import Copies, Ranked, SearchParameters, ranked, with_falling_scores
from memory.status.condition_texts import text_of
from memory.store.errors import KeywordsUnavailable, VectorSearchUnavailable
from memory.store.reader import ChunkFilter, ChunkRow, Hit, StoreReader, Vector
from schemas.conditions import Condition, ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey

if TYPE_CHECKING:
    from schemas.search import Mode

#: Least and most candidates of one side, so that a list of one is the beginning of a list of six.
MIN_CANDIDATES, MAX_CANDIDATES = 60, 200

#: Candidates of one side that are searched for texts without a better copy, at most.
MOST_SEARCHED = 4_096

#: Chunks of a document that the query names, among which the best one is chosen, at most.
_MOST_OF_NAMED = 256


@dataclass(frozen=True, slots=True)
class QuerySide:
    """Vector side of a search: the provider's identity and model, and the query's vector.

    Without a vector, `lack` is the reason.
    """

    identity: str
    model: str
    vector: Vector | None
    lack: Condition | None = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Hits with their scores, best first; the mode of the search, and the conditions that limited it.

    `copies` maps a chunk's id to other chunks with the same text.
    """

    hits: tuple[tuple[Fused, ChunkRow], ...]
    terms: tuple[str, ...]
    mode: Mode
    lacks: tuple[Condition, ...]
    copies: Copies = field(default_factory=dict)


def by_keywords(reader: StoreReader, parameters: SearchParameters, *, needed: bool = False) -> Candidates:
    """Return the candidates by keywords.

    An index without keywords has none. Keywords that are switched off are searched only if they are `needed`.
    """
    candidates = Candidates(reader, parameters, reader.change_token())
    if reader.text_reason is None and (needed or parameters.hybrid.enabled):
        candidates.look(lambda count: reader.search_text(parameters.query, count, candidates.within))
    return candidates


def retrieve(
    reader: StoreReader,
    parameters: SearchParameters,
    side: QuerySide | None,
    words: Callable[[], Candidates | None] = lambda: None,
) -> Retrieval:
    """Search keywords and vectors, and fuse the candidates. `side` is None for a search by keywords alone.

    `words` waits for an earlier `by_keywords`, which counts if the index has not changed since.

    Raises the store's errors, except that the search goes on with one side if the other one cannot be searched.
    """
    near = _nearest(reader, parameters, side)
    by_words = words()
    if by_words is None or by_words.token != reader.change_token():
        by_words = by_keywords(reader, parameters, needed=side is None)
    vector = side.vector if side is not None and near.hits is not None else None
    lacks = [near.lack] if near.lack is not None else []
    has_keywords = reader.text_reason is None
    if not has_keywords and vector is None:
        raise KeywordsUnavailable(
            "; ".join([f"keywords cannot be searched: {reader.text_reason}", *map(text_of, lacks)])
        )
    if not has_keywords and parameters.hybrid.enabled:
        lacks.append(Condition(ConditionCode.VECTORS_ONLY, params={"reason": str(reader.text_reason)}))
    if by_words.hits is None and vector is None:
        # Without vectors the keywords are searched even if they are switched off: an answer is better than none.
        by_words = by_keywords(reader, parameters, needed=True)
    cosines, bm25 = near.scores(), by_words.scores()
    if vector is not None:
        # Each side also scores the candidates of the other one.
        cosines |= reader.vector_scores(vector, [id_ for id_ in bm25 if id_ not in cosines])
        bm25 = near.other_scores | bm25
    model = side.model if side is not None else ""
    ranking = ranked(
        reader, parameters, cosines, bm25, model=model, vector=vector, cached_rows=by_words.rows | near.rows
    )
    lacks += parameters.reranker.lacks if parameters.reranker is not None else ()
    hits, copies = _named_first(reader, parameters, ranking, vector)
    return Retrieval(
        hits=hits,
        terms=sought(parameters.query),
        mode="keyword" if has_keywords and not cosines else "vector" if by_words.hits is None else "hybrid",
        lacks=tuple(lacks),
        copies=copies,
    )


class Candidates:
    """Candidates of one side at one revision of the index (`token`, see `StoreReader.change_token`)."""

    def __init__(self, reader: StoreReader, parameters: SearchParameters, token: object = None) -> None:
        k = parameters.max_results * parameters.hybrid.candidate_multiplier
        #: Number of candidates of one side, without copies.
        self.count = min(max(k, MIN_CANDIDATES), max(parameters.max_results, MAX_CANDIDATES))
        self.within = ChunkFilter(parameters.sources, parameters.span)
        self.token = token
        #: Hits that are not withheld, copies included; None if this side was not searched, perhaps for a `lack`.
        self.hits: list[Hit] | None = None
        self.lack: Condition | None = None
        #: Scores that the other side gives the hits of this one.
        self.other_scores: dict[int, float] = {}
        #: Chunks that have been read, by id.
        self.rows: dict[int, ChunkRow] = {}
        self._reader = reader
        self._parameters = parameters

    def scores(self) -> dict[int, float]:
        """Return the score of each candidate."""
        return {hit.id: hit.score for hit in self.hits or ()}

    def look(self, search: Callable[[int], list[Hit]]) -> None:
        """Keep the best hits of a search. Further hits replace withheld documents and copies."""
        count = self.count
        while True:
            hits = search(count)
            permitted = self._permitted(hits)
            text_of_hit = comparable_texts([self.rows[hit.id] for hit in permitted], sought(self._parameters.query))
            texts = list(dict.fromkeys(text_of_hit[hit.id] for hit in permitted))
            is_exhausted = len(hits) < count or (count >= MOST_SEARCHED and len(permitted) >= self.count)
            if len(texts) >= self.count or is_exhausted:
                best_texts = set(texts[: self.count])
                self.hits = [hit for hit in permitted if text_of_hit[hit.id] in best_texts]
                return
            count *= 4

    def _permitted(self, hits: Sequence[Hit]) -> list[Hit]:
        self.rows |= self._reader.chunk_rows([hit.id for hit in hits if hit.id not in self.rows])
        hits = [hit for hit in hits if hit.id in self.rows]
        if self._parameters.withheld is None:
            return hits
        withheld = self._parameters.withheld(self._reader, {self.rows[hit.id].key for hit in hits})
        return [hit for hit in hits if self.rows[hit.id].key not in withheld]


def _nearest(reader: StoreReader, parameters: SearchParameters, side: QuerySide | None) -> Candidates:
    """Return the nearest chunks as candidates; none, and a condition in `lack`, without a vector or a search for it."""
    candidates = Candidates(reader, parameters)
    if side is None:
        return candidates
    if json.loads(reader.meta("identity") or "{}").get("embedding", side.identity) != side.identity:
        candidates.lack = Condition(ConditionCode.OTHER_MODEL)
        return candidates
    if (vector := side.vector) is None:
        candidates.lack = side.lack
        return candidates
    try:
        candidates.look(lambda count: reader.search_vectors(vector, count, candidates.within))
        if reader.text_reason is None and parameters.hybrid.enabled:
            candidates.other_scores = reader.text_scores(parameters.query, list(candidates.scores()))
    except VectorSearchUnavailable as error:
        candidates.lack = Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": str(error)})
    return candidates


def _named_first(reader: StoreReader, parameters: SearchParameters, ranked: Ranked, vector: Vector | None) -> Ranked:
    """Put a chunk of each document that the query names before all others."""
    # A named document may have passages of any time.
    ids = _named(reader, parameters, vector) if parameters.span is None else []
    if not ids:
        return ranked
    hits, copies = list(ranked[0]), dict(ranked[1])
    rows = reader.chunk_rows(ids)
    first: list[tuple[Fused, ChunkRow]] = []
    for row in (rows[id_] for id_ in ids if id_ in rows):
        equal_hit = next((hit for hit in hits if hit[1].text == row.text), None)
        fused = equal_hit[0] if equal_hit is not None else Fused(row.id, rank=0.0, score=1.0, vector=None, text=1.0)
        if equal_hit is not None and equal_hit[1].id != row.id:
            copies[row.id] = (equal_hit[1], *(copy for copy in copies.get(equal_hit[1].id, ()) if copy.id != row.id))
        first.append((replace(fused, id=row.id, score=1.0), row))
        hits = [hit for hit in hits if hit is not equal_hit and not repeats(hit[1], [row])]
    return tuple(with_falling_scores([*first, *hits])[: parameters.max_results]), copies


def _named(reader: StoreReader, parameters: SearchParameters, vector: Vector | None) -> list[int]:
    """Return the chunk of each named document that is nearest to the rest of the query, the best name first."""
    ranks: dict[DocumentKey, tuple[int, int, str, str]] = {}
    # Where single transcripts are searched, all others are withheld.
    sources = dict.fromkeys(name if name == MEMORY_SOURCE else SESSIONS_SOURCE for name in parameters.sources)
    for name in file_names(parameters.query):
        exact = [DocumentKey(source, name.path) for source in sources]
        exact = [file.key for file, _ in reader.beginnings(exact)]
        for key in exact or [key for place in name.places for key in reader.named(*place)]:
            if key.source in sources and (fits := name.fits(key.path)):
                ranks.setdefault(key, (-fits, key.path.count("/"), key.path, name.rest))
    withheld = parameters.withheld(reader, ranks.keys()) if parameters.withheld is not None and ranks else ()
    keys = sorted(ranks.keys() - set(withheld), key=ranks.__getitem__)[: parameters.max_results]
    chunks = []
    for key in keys:
        rest = ranks[key][-1]
        ids = [chunk.id for chunk in reader.chunks_of(key)[:_MOST_OF_NAMED]]
        rest = rest if len(ids) > 1 else ""
        about = reader.text_scores(rest, ids) if rest and reader.text_reason is None else {}
        if rest and not about and vector is not None:
            about = reader.vector_scores(vector, ids)
        # max() takes the first of equals.
        chunks += [max(ids, key=lambda id_: about.get(id_, 0.0))] if ids else []
    return chunks

"""Retrieval from one generation: candidates of both sides, fused, without repetitions, best first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memory.search.ranking.fusion import Fused
from memory.search.ranking.overlap import comparable_texts, repeats
from memory.search.ranking.ranker import Copies, Ranked, Wanted, parted, ranked
from memory.search.ranking.terms import file_names, sought
from memory.status.condition_texts import text_of
from memory.store.errors import KeywordsUnavailable, VectorSearchUnavailable
from memory.store.reader import ChunkRow, Hit, Vector
from memory.store.sqlite.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey

if TYPE_CHECKING:
    from schemas.search import Mode

#: Least and most candidates of one side, so that a list of one is the beginning of a list of six.
MIN_CANDIDATES, MAX_CANDIDATES = 24, 200

#: Candidates of one side that are searched for texts without a better copy, at most.
MOST_LOOKED = 4_096

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
class Found:
    """Hits with their scores, best first; the mode of the search, and the conditions that limited it.

    `copies` maps a chunk's id to other chunks with the same text.
    """

    hits: tuple[tuple[Fused, ChunkRow], ...]
    terms: tuple[str, ...]
    mode: Mode
    lacks: tuple[Condition, ...]
    copies: Copies = field(default_factory=dict)


def by_keywords(reader: StoreReader, wanted: Wanted, *, needed: bool = False) -> Candidates:
    """Return the candidates by keywords.

    None are looked for in an index without keywords, nor with keywords switched off unless they are `needed`.
    """
    candidates = Candidates(reader, wanted, reader.change_token())
    if reader.text_reason is None and (needed or wanted.hybrid.enabled):
        candidates.look(lambda count: reader.search_text(wanted.query, count, wanted.sources))
    return candidates


def retrieve(
    reader: StoreReader,
    wanted: Wanted,
    side: QuerySide | None,
    words: Callable[[], Candidates | None] = lambda: None,
) -> Found:
    """Search keywords and vectors, and fuse the candidates. `side` is None for a search by keywords alone.

    `words` waits for an earlier `by_keywords`, which counts if the index has not changed since.

    Raises the store's errors, except that the search goes on with one side if the other one cannot be searched.
    """
    near = _nearest(reader, wanted, side)
    by_words = words()
    if by_words is None or by_words.token != reader.change_token():
        by_words = by_keywords(reader, wanted, needed=side is None)
    vector = side.vector if side is not None and near.hits is not None else None
    lacks = [near.lack] if near.lack is not None else []
    worded = reader.text_reason is None
    if not worded and vector is None:
        raise KeywordsUnavailable(
            "; ".join([f"keywords cannot be searched: {reader.text_reason}", *map(text_of, lacks)])
        )
    if not worded and wanted.hybrid.enabled:
        lacks.append(Condition(ConditionCode.VECTORS_ONLY, params={"reason": str(reader.text_reason)}))
    if by_words.hits is None and vector is None:
        # Without vectors the keywords are searched even if they are switched off: an answer is better than none.
        by_words = by_keywords(reader, wanted, needed=True)
    cosines, bm25 = near.scores(), by_words.scores()
    if vector is not None:
        # Each side also scores the candidates of the other one.
        cosines |= reader.vector_scores(vector, [id_ for id_ in bm25 if id_ not in cosines])
        bm25 = near.others | bm25
    known = by_words.rows | near.rows
    ranking = ranked(reader, wanted, cosines, bm25, model=side.model if side is not None else "", known=known)
    hits, copies = _named_first(reader, wanted, ranking, vector)
    return Found(
        hits=hits,
        terms=sought(wanted.query),
        mode="keyword" if worded and not cosines else "vector" if by_words.hits is None else "hybrid",
        lacks=tuple(lacks),
        copies=copies,
    )


class Candidates:
    """Candidates of one side at one revision of the index (`token`, see `StoreReader.change_token`)."""

    def __init__(self, reader: StoreReader, wanted: Wanted, token: object = None) -> None:
        k = wanted.max_results * wanted.hybrid.candidate_multiplier
        #: Number of candidates of one side, without copies.
        self.count = min(max(k, MIN_CANDIDATES), max(wanted.max_results, MAX_CANDIDATES))
        self.token = token
        #: Hits that are not withheld, copies included; None if this side was not searched, perhaps for a `lack`.
        self.hits: list[Hit] | None = None
        self.lack: Condition | None = None
        #: Scores that the other side gives the hits of this one.
        self.others: dict[int, float] = {}
        #: Chunks that have been read, by id.
        self.rows: dict[int, ChunkRow] = {}
        self._reader = reader
        self._wanted = wanted

    def scores(self) -> dict[int, float]:
        """Return the score of each candidate."""
        return {hit.id: hit.score for hit in self.hits or ()}

    def look(self, search: Callable[[int], list[Hit]]) -> None:
        """Keep the best hits of a search. Further ones take the places of withheld ones and of copies."""
        count = self.count
        while True:
            hits = search(count)
            permitted = self._permitted(hits)
            text_of_hit = comparable_texts([self.rows[hit.id] for hit in permitted], sought(self._wanted.query))
            texts = list(dict.fromkeys(text_of_hit[hit.id] for hit in permitted))
            looked = len(hits) < count or (count >= MOST_LOOKED and len(permitted) >= self.count)
            if len(texts) >= self.count or looked:
                among = set(texts[: self.count])
                self.hits = [hit for hit in permitted if text_of_hit[hit.id] in among]
                return
            count *= 4

    def _permitted(self, hits: Sequence[Hit]) -> list[Hit]:
        self.rows |= self._reader.chunk_rows([hit.id for hit in hits if hit.id not in self.rows])
        hits = [hit for hit in hits if hit.id in self.rows]
        if self._wanted.withheld is None:
            return hits
        withheld = self._wanted.withheld(self._reader, {self.rows[hit.id].key for hit in hits})
        return [hit for hit in hits if self.rows[hit.id].key not in withheld]


def _nearest(reader: StoreReader, wanted: Wanted, side: QuerySide | None) -> Candidates:
    """Return the nearest chunks as candidates; none, and a condition in `lack`, without a vector or a search for it."""
    candidates = Candidates(reader, wanted)
    if side is None:
        return candidates
    if json.loads(reader.meta("identity") or "{}").get("embedding", side.identity) != side.identity:
        candidates.lack = Condition(ConditionCode.OTHER_MODEL)
        return candidates
    if (vector := side.vector) is None:
        candidates.lack = side.lack
        return candidates
    try:
        candidates.look(lambda count: reader.search_vectors(vector, count, wanted.sources))
        if reader.text_reason is None and wanted.hybrid.enabled:
            candidates.others = reader.text_scores(wanted.query, list(candidates.scores()))
    except VectorSearchUnavailable as error:
        candidates.lack = Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": str(error)})
    return candidates


def _named_first(reader: StoreReader, wanted: Wanted, ranked: Ranked, vector: Vector | None) -> Ranked:
    """Put a chunk of each document that the query names before all others."""
    ids = _named(reader, wanted, vector)
    if not ids:
        return ranked
    hits, copies = list(ranked[0]), dict(ranked[1])
    rows = reader.chunk_rows(ids)
    first: list[tuple[Fused, ChunkRow]] = []
    for row in (rows[id_] for id_ in ids if id_ in rows):
        same = next((hit for hit in hits if hit[1].text == row.text), None)
        found = same[0] if same is not None else Fused(row.id, rank=0.0, score=1.0, vector=None, text=1.0)
        if same is not None and same[1].id != row.id:
            copies[row.id] = (same[1], *(copy for copy in copies.get(same[1].id, ()) if copy.id != row.id))
        first.append((replace(found, id=row.id, score=1.0), row))
        hits = [hit for hit in hits if hit is not same and not repeats(hit[1], [row])]
    return tuple(parted([*first, *hits])[: wanted.max_results]), copies


def _named(reader: StoreReader, wanted: Wanted, vector: Vector | None) -> list[int]:
    """Return the chunk of each named document that is nearest to the rest of the query, the best name first."""
    found: dict[DocumentKey, tuple[int, int, str, str]] = {}
    # Where single transcripts are searched, all others are withheld.
    sources = dict.fromkeys(name if name == MEMORY_SOURCE else SESSIONS_SOURCE for name in wanted.sources)
    for name in file_names(wanted.query):
        exact = [DocumentKey(source, name.path) for source in sources]
        exact = [key for key in exact if reader.file(key) is not None]
        for key in exact or [key for place in name.places for key in reader.named(*place)]:
            if key.source in sources and (fits := name.fits(key.path)):
                found.setdefault(key, (-fits, key.path.count("/"), key.path, name.rest))
    withheld = wanted.withheld(reader, found.keys()) if wanted.withheld is not None and found else ()
    keys = sorted(found.keys() - set(withheld), key=found.__getitem__)[: wanted.max_results]
    chunks = []
    for key in keys:
        rest = found[key][-1]
        ids = [chunk.id for chunk in reader.chunks_of(key)[:_MOST_OF_NAMED]]
        rest = rest if len(ids) > 1 else ""
        about = reader.text_scores(rest, ids) if rest and reader.text_reason is None else {}
        if rest and not about and vector is not None:
            about = reader.vector_scores(vector, ids)
        # max() takes the first of equals.
        chunks += [max(ids, key=lambda id_: about.get(id_, 0.0))] if ids else []
    return chunks

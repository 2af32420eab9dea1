"""One search over one generation: candidates of both sides, fused, without repetitions, best first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memory.search.ranking.exact_match import file_names
from memory.search.ranking.fusion import Fused
from memory.search.ranking.overlap import repeats, said_by
from memory.search.ranking.ranker import Copies, HybridSettings, Ranked, parted, ranked
from memory.search.ranking.terms import sought
from memory.store.errors import KeywordsUnavailable, VectorSearchUnavailable
from memory.store.reader import ChunkRow, Hit, StoreReader, Vector
from schemas.documents import DocumentKey

if TYPE_CHECKING:
    from memory.search.query_vectors import PendingVector
    from schemas.search import Mode

#: Candidates of one side at least and at most, however few or many results are asked for: a list of one is the
#: beginning of a list of six.
MIN_CANDIDATES, MAX_CANDIDATES = 24, 200

#: Candidates of one side that are looked through for texts that are no copies of better ones.
MOST_LOOKED = 4_096

#: Chunks of a document that is named in the query among which the best one is looked for.
_MOST_OF_NAMED = 256

#: Share of the deadline that is kept for the store when waiting for the query's vector.
_STORE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one search asks for. `deadline` is a monotonic clock's time; `timeout_seconds` how far away it was.

    `withheld` says of which of some documents nothing may be found; None means that there are none. Equal ones say the
    same of the same index. `now` is in Unix seconds: what memory's age is measured from.
    """

    query: str
    max_results: int
    min_score: float
    sources: Sequence[str]
    hybrid: HybridSettings
    deadline: float
    timeout_seconds: float
    withheld: Callable[[StoreReader, Collection[DocumentKey]], Collection[DocumentKey]] | None = None
    now: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class QuerySide:
    """The vector side of a search: who embeds, and the vector on its way. `identity` is the provider's.

    `threads` run the keyword side meanwhile; None for an index so small that handing over takes longer.
    """

    identity: str
    model: str
    vector: PendingVector
    threads: Executor | None


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks and their scores, best first; how they were found and what was missing, in words.

    `copies` are other chunks that say the same as the one with that id.
    """

    hits: tuple[tuple[Fused, ChunkRow], ...]
    terms: tuple[str, ...]
    mode: Mode
    degraded: tuple[str, ...]
    copies: Copies = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Near:
    """The query's vector, and the cosines of the chunks nearest to it."""

    vector: Vector
    cosines: dict[int, float]


class Progress:
    """What a search has by now, for who cannot wait for its end. One thread searches, another one asks."""

    def __init__(self) -> None:
        #: What keywords alone find, once they have been looked up.
        self.by_words: Callable[[], Found] | None = None


def retrieve(reader: StoreReader, wanted: Wanted, side: QuerySide | None, progress: Progress | None = None) -> Found:
    """Search both tables and put the candidates together.

    Raises whatever the store raises, except that vectors which cannot be searched leave the keywords, and keywords
    which cannot be searched leave the vectors.
    """
    degraded: list[str] = []
    worded = reader.text_reason is None
    candidates = _Candidates(reader, wanted)
    # Without vectors the keywords are searched even when they are switched off: an answer is better than none.
    by_text = worded and (side is None or wanted.hybrid.enabled)

    def by_words(count: int) -> list[Hit]:
        return reader.search_text(wanted.query, count, wanted.sources)

    texts = _started(side, lambda: candidates.best(by_words)) if by_text else None
    if progress is not None and texts is not None:
        words = texts
        progress.by_words = lambda: _found_by_words(reader, wanted, candidates, words)
    near = _nearest(reader, wanted, side, candidates, degraded)
    if not worded and near is None:
        raise KeywordsUnavailable("; ".join([f"keywords cannot be searched: {reader.text_reason}", *degraded]))
    if not worded and wanted.hybrid.enabled:
        degraded.append(f"{reader.text_reason}: vectors only")
    if texts is None and near is None:
        by_text, texts = True, _started(None, lambda: candidates.best(by_words))
    asked: set[int] = set()
    bm25: dict[int, float] = {}
    if near is not None and texts is not None and not texts.done():
        # While the keyword side is still at work.
        asked = set(near.cosines)
        bm25 = reader.text_scores(wanted.query, list(asked))
    bm25 |= {hit.id: hit.score for hit in texts.result()} if texts is not None else {}
    cosines: dict[int, float] = {}
    if near is not None:
        # Each side scores the other side's candidates, too.
        cosines = near.cosines | reader.vector_scores(near.vector, [id_ for id_ in bm25 if id_ not in near.cosines])
        if by_text:
            bm25 |= reader.text_scores(wanted.query, [id_ for id_ in near.cosines if id_ not in bm25.keys() | asked])
    ranking = _ranked(reader, wanted, candidates, cosines, bm25, model=side.model if side is not None else "")
    hits, copies = _named_first(reader, wanted, ranking, near.vector if near is not None else None)
    return Found(
        hits=hits,
        terms=tuple(candidates.terms),
        mode=_mode(by_text=by_text, by_vector=bool(cosines) or not worded),
        degraded=tuple(degraded),
        copies=copies,
    )


def _found_by_words(reader: StoreReader, wanted: Wanted, candidates: _Candidates, texts: Future[list[Hit]]) -> Found:
    """Raise TimeoutError when even the keywords have not been looked up by the deadline."""
    bm25 = {hit.id: hit.score for hit in texts.result(max(0.0, wanted.deadline - time.monotonic()))}
    hits, copies = _named_first(reader, wanted, _ranked(reader, wanted, candidates, {}, bm25, model=""), None)
    return Found(hits=hits, terms=tuple(candidates.terms), mode="keyword", degraded=(), copies=copies)


class _Candidates:
    """Looks for the candidates of both sides. Reads each chunk once."""

    def __init__(self, reader: StoreReader, wanted: Wanted) -> None:
        k = wanted.max_results * wanted.hybrid.candidate_multiplier
        #: Texts of one side, copies aside.
        self.count = min(max(k, MIN_CANDIDATES), max(wanted.max_results, MAX_CANDIDATES))
        self.terms = sought(wanted.query)
        #: What was read, by id.
        self.rows: dict[int, ChunkRow] = {}
        self._reader = reader
        self._wanted = wanted

    def best(self, search: Callable[[int], list[Hit]]) -> list[Hit]:
        """Return the best hits of a side that are not withheld, copies included.

        Others move up, as if neither the withheld ones nor the copies were there.
        """
        count = self.count
        while True:
            hits = search(count)
            permitted = self._permitted(hits)
            said = said_by([self.rows[hit.id] for hit in permitted], self.terms)
            texts = list(dict.fromkeys(said[hit.id] for hit in permitted))
            looked = len(hits) < count or (count >= MOST_LOOKED and len(permitted) >= self.count)
            if len(texts) >= self.count or looked:
                among = set(texts[: self.count])
                return [hit for hit in permitted if said[hit.id] in among]
            count *= 4

    def _permitted(self, hits: Sequence[Hit]) -> list[Hit]:
        self.rows |= self._reader.chunk_rows([hit.id for hit in hits if hit.id not in self.rows])
        hits = [hit for hit in hits if hit.id in self.rows]
        if self._wanted.withheld is None:
            return hits
        withheld = self._wanted.withheld(self._reader, {self.rows[hit.id].key for hit in hits})
        return [hit for hit in hits if self.rows[hit.id].key not in withheld]


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
    """Return a chunk of each document that the query names, the best name first: the one that the rest is about."""
    found: dict[DocumentKey, tuple[int, int, str, str]] = {}
    for name in file_names(wanted.query):
        exact = [DocumentKey(source, name.path) for source in wanted.sources]
        exact = [key for key in exact if reader.file(key) is not None]
        for key in exact or [key for place in name.places for key in reader.named(*place)]:
            if key.source in wanted.sources and (fits := name.fits(key.path)):
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
        # Of equals max() takes the first.
        chunks += [max(ids, key=lambda id_: about.get(id_, 0.0))] if ids else []
    return chunks


def _query_vector(reader: StoreReader, wanted: Wanted, side: QuerySide | None, degraded: list[str]) -> Vector | None:
    if side is None:
        return None
    embedded_by = embedding_identity(reader)
    if embedded_by is not None and embedded_by != side.identity:
        degraded.append(
            "the index holds vectors of another embedding model and is waiting to be rebuilt: keywords only"
        )
        return None
    from memory.search.query_vectors import Unavailable  # only here: a search by keywords starts without it

    reserve = _STORE_SHARE * wanted.timeout_seconds
    vector = side.vector.wait(wanted.deadline - reserve - time.monotonic())
    if isinstance(vector, Unavailable):
        degraded.append(f"{vector.reason}: keywords only")
        return None
    return vector


def _started(side: QuerySide | None, work: Callable[[], list[Hit]]) -> Future[list[Hit]]:
    """Begin the keyword search, beside the vector side when there is one: both leave the interpreter's lock."""
    if side is not None and side.threads is not None:
        return side.threads.submit(work)
    done: Future[list[Hit]] = Future()
    done.set_result(work())
    return done


def _nearest(
    reader: StoreReader, wanted: Wanted, side: QuerySide | None, candidates: _Candidates, degraded: list[str]
) -> _Near | None:
    """The nearest chunks; None, with the reason in words, when there is no vector or no looking for it."""
    vector = _query_vector(reader, wanted, side, degraded)
    if vector is None:
        return None
    try:
        hits = candidates.best(lambda count: reader.search_vectors(vector, count, wanted.sources))
        return _Near(vector, {hit.id: hit.score for hit in hits})
    except VectorSearchUnavailable as error:
        degraded.append(f"{error}: keywords only")
        return None


def _ranked(
    reader: StoreReader,
    wanted: Wanted,
    candidates: _Candidates,
    cosines: dict[int, float],
    bm25: dict[int, float],
    *,
    model: str,
) -> Ranked:
    return ranked(
        reader,
        cosines,
        bm25,
        wanted.query,
        hybrid=wanted.hybrid,
        model=model,
        max_results=wanted.max_results,
        min_score=wanted.min_score,
        now=wanted.now,
        known=candidates.rows,
    )


def _mode(*, by_text: bool, by_vector: bool) -> Mode:
    if by_text and by_vector:
        return "hybrid"
    return "vector" if by_vector else "keyword"


def embedding_identity(reader: StoreReader) -> str | None:
    """Identity of the provider whose vectors the index holds; None when the index does not say."""
    description = reader.meta("identity")
    if description is None:
        return None
    try:
        facts = json.loads(description)
    except ValueError:
        return None
    identity = facts.get("embedding") if isinstance(facts, dict) else None
    return identity if isinstance(identity, str) else None

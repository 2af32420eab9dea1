"""Ranking of one search: fuse both sides, drop repetitions, score, age, vary and cut the hits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, TypeAlias

from memory.chunking.dates import dates_in
from memory.chunking.folding import fold
from memory.chunking.segmenting import index_title
from memory.search.ranking.changes import STATING, changes_first
from memory.search.ranking.confidence import CROWD, Evidence, calibration_of, scores
from memory.search.ranking.coverage import rare_words, word_matcher
from memory.search.ranking.echoes import weakened, without_echoes
from memory.search.ranking.exact_matches import exact_pieces
from memory.search.ranking.features import (
    closest_sentences,
    near_scores,
    sentence_cosines,
    voice_weight,
    word_scores,
)
from memory.search.ranking.fusion import Fused, descending, fuse_minmax, fuse_weighted
from memory.search.ranking.languages import languages_with
from memory.search.ranking.order import Scored, aged, varied_hits
from memory.search.ranking.overlap import comparable_texts, repeats
from memory.search.ranking.query import sought
from memory.search.ranking.reranker import Reranker
from memory.search.ranking.times import DATED, recent_first, times_in
from memory.store.reader import ChunkRow, Span, StoreReader, TermCounts, Vector
from schemas.documents import MEMORY_SOURCE, DocumentKey

if TYPE_CHECKING:
    from schemas.settings import Hybrid


#: Lift of a place with all exact pieces of the query. A rank is at most 1, so a place with half of them leads, too.
EXACT = 2.0

#: Lift of a name's prominence, and factor of the rank, for a query that is nothing but a name.
STANDING, MEANING = 1.0, 0.1

#: Lift of a heading with an exact piece of a query of several words.
HEADED = 0.5

#: Places of a list that are scored together, however few results are wanted.
TOP = 10


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Parameters of one search.

    `withheld` returns the documents among some that the session must not find; None if it may find all. Equal ones
    return the same for the same index. `now`, in Unix seconds, is the time of the asking, from which age
    counts. Days are those of the `zone`, by default that of the process. Only memory of the `span` is searched.
    """

    query: str
    max_results: int
    min_score: float
    sources: Sequence[str]
    hybrid: Hybrid
    withheld: Callable[[StoreReader, Collection[DocumentKey]], Collection[DocumentKey]] | None = None
    now: float = field(default_factory=time.time)
    zone: tzinfo | None = None
    span: Span | None = None
    reranker: Reranker | None = None


@dataclass(frozen=True, slots=True, order=True)
class _QueryMatch:
    """Parts of a query in a chunk: share of its exact pieces, a day, share of its weight, best sentence, and lift."""

    exact: float = 0.0
    dated: bool = False
    coverage: float = 0.0
    line: float = 0.0
    lift: float = 0.0


_NO_MATCH = _QueryMatch()

#: Chunk id -> other chunks that say the same, the best first.
Copies: TypeAlias = Mapping[int, tuple[ChunkRow, ...]]

#: Hits, best first, and the copies of their texts.
Ranked: TypeAlias = tuple[tuple[Scored, ...], Copies]


def ranked(
    reader: StoreReader,
    parameters: SearchParameters,
    cosines: Mapping[int, float],
    bm25: Mapping[int, float],
    *,
    model: str,
    vector: Vector | None = None,
    cached_rows: Mapping[int, ChunkRow] | None = None,
) -> Ranked:
    """Return the hits of a search, best first, at most `max_results`, and the copies of each.

    `cosines` and `bm25` map chunk ids to scores; without `cosines` keywords alone rank. With the query's `vector`,
    closest sentences count, too. `cached_rows` are candidates that the caller has read. `min_score` is compared before
    age counts. It never drops a chunk whose vector is to come, with an exact piece of the query, or with a rare word of
    a list of words; nor one of the first `TOP` above a kept chunk.
    """
    hybrid, query, max_results = parameters.hybrid, parameters.query, parameters.max_results
    rows = dict(cached_rows or ())
    rows |= reader.chunk_rows([id_ for id_ in cosines.keys() | bm25.keys() if id_ not in rows])
    rows = {id_: rows[id_] for id_ in sorted(cosines.keys() | bm25.keys()) if id_ in rows}
    reference = hybrid.fusion == "weighted" and bool(cosines)
    counts = reader.term_counts(query if reader.text_reason is None else "")
    matches = {} if reference else _query_matches(query, counts, {id_: row for id_, row in rows.items() if id_ in bm25})
    remainders = without_echoes(query, {} if reference else rows)
    matches |= _query_matches(query, counts, {id_: row for id_, row in remainders.rows.items() if id_ in bm25})
    copies = _copies(reader, rows, sought(query), matches)
    coverage = {id_: match.coverage for id_, match in matches.items()}
    times = times_in(query, now=parameters.now, zone=parameters.zone)
    said_at = reader.times_of(list(rows)) if times.spans or times.goes_on else {}
    lifts = _folded(times.lifts(rows, said_at, coverage), copies)
    voice = 0.0 if reference else voice_weight(row for id_, row in rows.items() if id_ not in remainders.rows)
    signs = reader.sentence_signs(list(cosines)) if vector is not None and cosines and not reference else {}
    of_sentences = sentence_cosines(vector, signs) if vector is not None else {}
    closest = closest_sentences(of_sentences, signs)
    notes = {id_ for id_, row in rows.items() if row.key.source == MEMORY_SOURCE}
    near = near_scores(cosines, closest, voice=voice, notes=notes)
    words = _words(reader, query, bm25, matches, voice=voice, notes=notes)
    cosines, near = weakened(cosines, remainders.near), weakened(near, remainders.near)
    bm25, words = weakened(bm25, remainders.words), weakened(words, remainders.words)
    cosines, bm25, near, words = (_folded(scores, copies) for scores in (cosines, bm25, near, words))
    if reference:
        fused = fuse_weighted(cosines, bm25, vector_weight=hybrid.vector_weight, text_weight=hybrid.text_weight)
        # A keyword hit holds a word of the question, and stays whatever its score.
        fused = [item for item in fused if item.text is not None or item.score >= parameters.min_score]
    else:
        fused = fuse_minmax(
            near,
            words,
            coverage,
            cosines=cosines,
            lift=lifts | {id_: max(match.lift, lifts.get(id_, 0.0)) for id_, match in matches.items()},
            vector_weight=hybrid.minmax.vector_weight,
            text_weight=hybrid.minmax.text_weight,
            scale=MEANING if exact_pieces(query).looked_up else 1.0,
        )
        fused = recent_first(fused, said_at) if times.goes_on else fused
    reordered = hybrid.temporal_decay.enabled or hybrid.mmr.enabled
    # Age and variety choose from as many candidates as each side returns.
    count = max_results * hybrid.candidate_multiplier if reordered else max_results
    reranker = parameters.reranker
    limit = max(count, TOP, reranker.settings.candidates if reranker is not None else 0)
    in_time = not (reference or reordered or times.is_dated)
    hits = _distinct(fused, rows, max(limit, STATING) if in_time else limit)
    if in_time:
        texts = {id_: row.text for id_, row in remainders.rows.items()}
        statements = changes_first(
            reader, query, counts, hits[:STATING], of_sentences, signs, texts, now=parameters.now
        )
        hits = [*statements, *hits[STATING:]][:limit]
    if reranker is not None and hits:
        hits = with_falling_scores(reranker.reranked(hits))
    if not reference:
        evident = [
            max(near_by.of_all, cosines.get(id_, 0.0)) for id_, near_by in closest.items() if id_ not in remainders.rows
        ]
        highest = max(evident, default=None)
        hits = with_falling_scores(
            _scored(reader, parameters, counts, hits, cosines, matches, vector=vector, closest=highest, model=model)
        )
    if not reordered:
        return tuple(hits[:max_results]), copies
    if hybrid.temporal_decay.enabled:
        hits = aged(reader, hits, copies, half_life_days=hybrid.temporal_decay.half_life_days, now=parameters.now)
    if hybrid.mmr.enabled:
        unrelated = calibration_of(model).unrelated if cosines else None
        hits = varied_hits(reader, hits, share=hybrid.mmr.lambda_, limit=max_results, unrelated=unrelated)
    hits = hits[:max_results]
    # Variety decides the order; a score stays the confidence in its place.
    by_relevance = descending(sorted((item for item, _ in hits), key=lambda item: (-item.rank, item.id)), TOP)
    reported = {item.id: item for item in by_relevance}
    return tuple((reported[item.id], row) for item, row in hits), copies


def _words(
    reader: StoreReader,
    query: str,
    bm25: Mapping[int, float],
    matches: Mapping[int, _QueryMatch],
    *,
    voice: float,
    notes: Collection[int],
) -> dict[int, float]:
    """Return the keyword scores of the candidates: their BM25, their users' words and their best sentences."""
    talks = [id_ for id_ in bm25 if id_ not in notes] if voice else []
    lines = {id_: match.line for id_, match in matches.items()}
    return word_scores(bm25, reader.user_scores(query, talks), lines, voice=voice, notes=notes)


def _copies(
    reader: StoreReader, rows: Mapping[int, ChunkRow], terms: Sequence[str], matches: Mapping[int, _QueryMatch]
) -> Copies:
    """Return chunk id -> its copies, the best first.

    The shown copy holds most of the query, as by its note's name. Among equal copies it is the newest.
    """
    groups: dict[str, list[ChunkRow]] = {}
    for id_, text in comparable_texts(rows.values(), terms).items():
        groups.setdefault(text, []).append(rows[id_])
    several = [group for group in groups.values() if len(group) > 1]
    files = {key: reader.file(key) for key in {row.key for group in several for row in group}}
    written = {key: file.stat.mtime_ns for key, file in files.items() if file is not None}
    copies = {}
    for group in several:
        group.sort(
            key=lambda row: (matches.get(row.id, _NO_MATCH), written.get(row.key, 0), row.key.path, -row.id),
            reverse=True,
        )
        copies[group[0].id] = tuple(group[1:])
    return copies


def _folded(scores: Mapping[int, float], copies: Copies) -> dict[int, float]:
    """Return the scores without copies: each chunk has the best score among its copies."""
    stands_for = {row.id: id_ for id_, duplicates in copies.items() for row in duplicates}
    folded: dict[int, float] = {}
    for id_, score in scores.items():
        first = stands_for.get(id_, id_)
        folded[first] = max(score, folded.get(first, score))
    return folded


def with_falling_scores(hits: Sequence[Scored]) -> list[Scored]:
    """Lower each score that is not below the one above by a hundredth, so that scores fall with the order."""
    lowered: list[Scored] = []
    for item, row in hits:
        above = lowered[-1][0].score if lowered else 2.0
        # Equal cosines of two stores differ by the rounding of float32.
        is_below = item.score < above * (1 - 1e-6)
        lowered.append((item if is_below else replace(item, score=0.99 * above), row))
    return lowered


def _query_matches(query: str, counts: TermCounts, rows: Mapping[int, ChunkRow]) -> dict[int, _QueryMatch]:
    matcher, exact, days = word_matcher(query, counts), exact_pieces(query), tuple(dates_in(query))
    matches = {}
    for id_, row in rows.items():
        # The index has the chunk with the note's name.
        title = index_title(row.key.source, row.key.path)
        text = f"{title}\n{row.text}" if title else row.text
        folded = fold(text)
        share, dated = exact.share(folded), any(day in folded for day in days)
        lift = EXACT * share + (STANDING * exact.standing(folded) if exact.looked_up else HEADED * exact.headed(folded))
        words = matcher(text, folded)
        matches[id_] = _QueryMatch(share, dated, words.coverage, words.line, max(lift, DATED * dated))
    return matches


def _scored(
    reader: StoreReader,
    parameters: SearchParameters,
    counts: TermCounts,
    hits: Sequence[Scored],
    cosines: Mapping[int, float],
    matches: Mapping[int, _QueryMatch],
    *,
    vector: Vector | None,
    closest: float | None,
    model: str,
) -> list[Scored]:
    """Put scores on hits and drop the tail that is below `min_score`."""
    query, min_score = parameters.query, parameters.min_score
    nearest = sorted(cosines.values(), reverse=True)[:CROWD]
    relation, places = languages_with(query), []
    for item, row in hits:
        match = matches.get(item.id, _NO_MATCH)
        is_exact = match.exact > 0 or match.dated
        places.append(Evidence(cosines.get(item.id), match.coverage, is_exact, relation(row.text)))
    confidences = scores(
        places,
        crowd=sum(nearest) / len(nearest) if nearest else 0.0,
        chunks=counts.chunks,
        calibration=calibration_of(model),
        closest=closest,
        has_exact_match=any(match.exact > 0 for match in matches.values()) or not exact_pieces(query).pieces,
    )
    scored = [replace(item, score=score) for (item, _), score in zip(hits, confidences, strict=True)]
    # In a list of words every word is meant.
    low = [item.id for item in scored if item.score < min_score]
    words = rare_words(query, counts) if low and reader.text_reason is None else ()
    holding = reader.text_scores(" ".join(words), low) if words else {}
    # The model reads the query and not these chunks: few common words are chance.
    unread = reader.unread_among(low) if low and vector is not None else set()
    return [
        (item, row)
        for item, (_, row), place in zip(descending(scored, TOP), hits, places, strict=True)
        if item.score >= min_score
        or place.exact
        or item.id in holding
        or (place.cosine is None and item.id not in unread)
    ]


def _distinct(fused: Sequence[Fused], rows: Mapping[int, ChunkRow], limit: int) -> list[Scored]:
    """Return the best `limit` that do not repeat a better one, without chunks that a commit has removed meanwhile."""
    hits: list[Scored] = []
    for item in fused:
        if len(hits) == limit:
            break
        row = rows.get(item.id)
        if row is not None and not repeats(row, [better_row for _, better_row in hits]):
            hits.append((item, row))
    return hits

"""Exact search by BM25 that does not score every chunk with a common word.

FTS5 counts the hits of a term quickly (40 ns each) and scores them slowly (600 ns each: every one costs a look-up in
the table of sizes). A word in a third of all chunks takes most of the time and decides least, since its inverse
document frequency is close to 0.

In a large index, chunks with one of the query's rarer terms are scored first, with all terms. A chunk with common terms
only cannot score more than the sum of their highest contributions (the upper bound of the WAND algorithm, Broder et al.
2003). If k better ones were found, it can be skipped and the result is exact. Otherwise the next term counts as a rare
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from memory.store.reader import ChunkFilter, Hit
from memory.store.sqlite.rows import IS_WITHIN, OVER_FETCH, as_json, bindings_of, covers_all, fetch, meta_value, passing

#: Number of chunks from which rare terms are searched first.
LARGE_INDEX = 5_000

#: Smallest number of hits of common terms that is worth skipping.
WORTH_LEAVING = 2_000

#: FTS5's bm25 multiplies a term's inverse document frequency by at most k1 + 1; its k1 is 1.2.
_HIGHEST_FACTOR = 2.2

#: Expected score of the k-th best chunk, in inverse document frequencies of the rarest term with enough chunks.
#: Measured on 100,000 chunks with words distributed as in a language: 1.3 to 2 are the fastest.
_BEST_OVER_AVERAGE = 1.6

# An upper bound of the number of chunks, without a scan.
SELECT_HIGHEST_ID = "SELECT max(rowid) FROM chunks"

# FTS5's bm25 is negative, lower is better. `ORDER BY rank` sorts whole rows of positions and takes twice as long as
# sorting the numbers here.
SELECT_BEST = """
SELECT rowid, -score FROM (
    SELECT rowid, bm25(chunks_fts) AS score FROM chunks_fts WHERE chunks_fts MATCH ?
    ORDER BY score, rowid LIMIT ?
)
"""

# For a filter that few of the best hits pass: all matches that do, the best first.
SELECT_TEXT_WITHIN = f"""
SELECT rowid, -score FROM (
    SELECT rowid, bm25(chunks_fts) AS score FROM chunks_fts
    WHERE chunks_fts MATCH ?5 AND EXISTS (
        SELECT 1 FROM chunks AS c JOIN files AS f ON f.id = c.file_id
        WHERE c.id = chunks_fts.rowid AND {IS_WITHIN}
    )
    ORDER BY score, rowid LIMIT ?6
)
"""  # noqa: S608 - constants

# The plus keeps FTS5 from running the whole query once for every id. SQLite checks the ids before it scores.
SELECT_SCORES = """
SELECT rowid, -bm25({0}) FROM {0} WHERE {0} MATCH ? AND +rowid IN (SELECT value FROM json_each(?))
"""


@dataclass(frozen=True, slots=True)
class _Term:
    """Quoted term, the number of chunks with it, and its inverse document frequency as in FTS5."""

    expression: str
    count: int
    idf: float


def best_texts(
    connection: apsw.Connection,
    terms: Sequence[str],
    k: int,
    frequencies: TermFrequencies,
    within: ChunkFilter | None = None,
) -> list[Hit]:
    """Return the k chunks that pass a filter with the highest BM25 for any of the terms, best first, then by id.

    `terms` are quoted FTS5 expressions.
    """
    if within is None or covers_all(connection, within):
        return _best(connection, terms, k, frequencies)
    candidates = _best(connection, terms, k * OVER_FETCH, frequencies)
    hits = passing(connection, candidates, within)
    if len(hits) >= k or len(candidates) < k * OVER_FETCH:
        return hits[:k]
    rows = fetch(connection, SELECT_TEXT_WITHIN, (*bindings_of(connection, within), _any(terms), k))
    return [Hit(int(row[0]), float(row[1])) for row in rows]


def _best(connection: apsw.Connection, terms: Sequence[str], k: int, frequencies: TermFrequencies) -> list[Hit]:
    chunks = fetch(connection, SELECT_HIGHEST_ID)[0][0] or 0
    if chunks < LARGE_INDEX or len(terms) < 2:
        hits = _select(connection, _any(terms), k)
    else:
        counts = zip(terms, frequencies.of(connection, terms), strict=True)
        # An upper bound of the number of chunks gives one of the frequency, too.
        rarest_first = [_Term(word, n, max(math.log((chunks - n + 0.5) / (n + 0.5)), 1e-6)) for word, n in counts]
        hits = _by_rare_terms(connection, sorted(rarest_first, key=lambda term: term.count), k)
    ranked = sorted(hits.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(id_, score) for id_, score in ranked[:k]]


def scores(connection: apsw.Connection, terms: Sequence[str], ids: Sequence[int], table: str) -> dict[int, float]:
    """Return the BM25 of these chunks in `chunks_fts` or `chunks_said`, without chunks that hold none of the terms."""
    return dict(fetch(connection, SELECT_SCORES.format(table), (_any(terms), as_json(ids))))


def _by_rare_terms(connection: apsw.Connection, terms: Sequence[_Term], k: int) -> dict[int, float]:
    """Return ids and scores, among them the k best."""
    cut = _first_cut(terms, k)
    while sum(term.count for term in terms[cut:]) >= WORTH_LEAVING:
        rare = _any([term.expression for term in terms[:cut]])
        common = _any([term.expression for term in terms[cut:]])
        # A chunk without any common term is in the first part, where others have less than their score. FTS5 takes
        # long to leave out chunks with common terms, above all with prefixes.
        hits = _select(connection, rare, k) | _select(connection, f"({rare}) AND ({common})", k)
        best = sorted(hits.values(), reverse=True)[:k]
        reached = best[-1] if len(best) == k else 0.0
        if _bound(terms[cut:]) <= reached:
            return hits
        cut += 1
        while _bound(terms[cut:]) > reached > 0:
            cut += 1
    return _select(connection, _any([term.expression for term in terms]), k)


def _first_cut(terms: Sequence[_Term], k: int) -> int:
    """Return the number of the rarest terms that will probably decide.

    A chunk of average length with one occurrence of a term scores about its inverse document frequency. The best k
    chunks also hold another term, or one several times. The guess is right if the omitted terms cannot make up for
    that. A wrong guess costs time, not exactness.
    """
    reached: float | None = None
    for cut in range(1, len(terms)):
        if reached is None and sum(term.count for term in terms[:cut]) >= 2 * k:
            reached = terms[cut - 1].idf * _BEST_OVER_AVERAGE
        if reached is not None and _bound(terms[cut:]) <= reached:
            return cut
    return len(terms)


def _bound(terms: Sequence[_Term]) -> float:
    """Return the highest score of a chunk with these terms only."""
    return sum(_HIGHEST_FACTOR * term.idf for term in terms)


def _select(connection: apsw.Connection, expression: str, k: int) -> dict[int, float]:
    return dict(fetch(connection, SELECT_BEST, (expression, k)))


def _any(terms: Sequence[str]) -> str:
    return " OR ".join(terms)


#: Number of remembered terms above which all are forgotten.
REMEMBERED = 8192

# Stands for all chunks: no quoted expression is empty.
_EVERY = ""

# FTS5's record of averages, which its bm25() reads too; it begins with the number of rows
# (https://sqlite.org/src/file/ext/fts5/fts5_index.c, FTS5_AVERAGES_ROWID). Counting them would be a scan.
SELECT_AVERAGES = "SELECT block FROM chunks_fts_data WHERE id = 1"
COUNT_MATCHES = "SELECT count(*) FROM chunks_fts WHERE chunks_fts MATCH ?"


class TermFrequencies:
    """Frequencies of terms in one generation, remembered until the next commit. Thread-safe."""

    def __init__(self) -> None:
        # Number of a commit, and the frequencies as of it, by expression.
        self._cached: tuple[str | None, dict[str, int]] = (None, {})

    def chunks(self, connection: apsw.Connection) -> int:
        """Return the number of chunks."""
        counts = self._of_commit(connection)
        if _EVERY not in counts:
            rows = fetch(connection, SELECT_AVERAGES)
            counts[_EVERY] = _first_varint(rows[0][0]) if rows else 0
        return counts[_EVERY]

    def of(self, connection: apsw.Connection, expressions: Sequence[str]) -> list[int]:
        """Return the number of chunks with each of these quoted FTS5 expressions."""
        counts = self._of_commit(connection)
        for expression in expressions:
            if expression not in counts:
                counts[expression] = int(fetch(connection, COUNT_MATCHES, (expression,))[0][0])
        return [counts[expression] for expression in expressions]

    def _of_commit(self, connection: apsw.Connection) -> dict[str, int]:
        """Return the statistics of the last commit that the connection sees."""
        commit = meta_value(connection, "transactions")
        cached_commit, counts = self._cached
        if commit != cached_commit or len(counts) > REMEMBERED:
            self._cached = commit, (counts := {})
        return counts


def _first_varint(record: bytes) -> int:
    """Decode SQLite's variable-length integer: seven bits a byte, the highest bit of all but the last byte is set."""
    value = 0
    for byte in record[:8]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    return value

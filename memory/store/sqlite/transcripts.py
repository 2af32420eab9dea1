"""Writing one slice of a transcript into a SQLite generation, as part of whatever transaction is open."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import apsw

from memory.store.reader import TranscriptMark, Vector, VectorState
from memory.store.sqlite.chunks import ChunkRows
from memory.store.sqlite.rows import as_json, fetch, fetch_one
from memory.store.writer import NewChunk, TranscriptWrite

REPLACE_MARK = 'INSERT OR REPLACE INTO transcripts (file_id, "offset", lines, digest, state) VALUES (?, ?, ?, ?, ?)'
DELETE_MARK = "DELETE FROM transcripts WHERE file_id = ?"

# -1 - ordinal has as many bytes as the ordinal (but for the first two), so SQLite overwrites rows in their places.
MAKE_STALE = "UPDATE chunks SET ordinal = -1 - ordinal WHERE file_id = ? AND ordinal >= ?"

# The last ones first: what is left is the beginning.
MAKE_SOME_STALE = """
UPDATE chunks SET ordinal = -1 - ordinal
WHERE id IN (SELECT id FROM chunks WHERE file_id = ? AND ordinal >= ? ORDER BY ordinal DESC LIMIT ?)
"""

SELECT_HAS_STALE = "SELECT 1 FROM chunks WHERE file_id = ? AND ordinal < 0 LIMIT 1"
SELECT_STALE = "SELECT id, vector_state FROM chunks WHERE file_id = ? AND ordinal < 0"

SELECT_STALE_BUT = """
SELECT id, vector_state FROM chunks
WHERE file_id = ? AND ordinal < 0 AND id NOT IN (SELECT value FROM json_each(?)) LIMIT ?
"""

# By hash, whatever the planner thinks: as many look-ups as the slice has texts, however many chunks are stale.
# The earliest of several with the same text comes first.
SELECT_STALE_BY_HASH = """
SELECT c.text_hash, c.id, c.vector_state
FROM json_each(?) AS wanted CROSS JOIN chunks AS c INDEXED BY chunks_by_hash ON c.text_hash = wanted.value
WHERE c.file_id = ? AND c.ordinal < 0
ORDER BY c.ordinal DESC, c.id
"""

# A refusal that is there stays, unless a vector comes.
TAKE_OVER = """
UPDATE chunks SET ordinal = ?, start_line = ?, end_line = ?, said_at = ?, vector_state = ?,
    refusal = CASE WHEN ? = 'refused' THEN coalesce(refusal, ?) END
WHERE id = ?
"""


#: Nothing of the file is known: it is read from its start.
NOWHERE = TranscriptMark(0, 0, "", "")


def forget_mark(connection: apsw.Connection, file_id: int) -> None:
    """A document that is deleted takes its mark along."""
    connection.execute(DELETE_MARK, (file_id,))


def set_mark(connection: apsw.Connection, file_id: int, mark: TranscriptMark) -> None:
    """Say how far a transcript has been read."""
    connection.execute(REPLACE_MARK, (file_id, mark.offset, mark.lines, mark.digest, mark.state))


def write_chunks(connection: apsw.Connection, rows: ChunkRows, file_id: int, change: TranscriptWrite) -> bool:
    """Do to the document's chunks what the slice says; returns whether it brought a refusal."""
    rows.flush_file(file_id)  # an earlier slice in the same transaction
    if change.keep is not None:
        connection.execute(MAKE_STALE, (file_id, change.keep))
    added, refusal = _take_over(connection, rows, file_id, change.added)
    rows.add(file_id, change.key, added)
    if change.final:
        rows.remove(file_id, fetch(connection, SELECT_STALE, (file_id,)))
    return refusal or any(chunk.refused is not None for chunk in added)


def make_stale(connection: apsw.Connection, file_id: int, *, from_ordinal: int, limit: int) -> int:
    """Make chunks stale, `limit` of them at most; how many that were."""
    connection.execute(MAKE_SOME_STALE, (file_id, from_ordinal, limit))
    return connection.changes()


def surplus(
    connection: apsw.Connection, file_id: int, chunks: Iterable[NewChunk], *, limit: int
) -> list[tuple[int, str]]:
    """Stale chunks that nobody will want once these came: id and vector state of `limit` of them at most."""
    stale = _stale_by_hash(connection, file_id, chunks)
    wanted = [stale[chunk.text_hash].popleft()[0] for chunk in chunks if stale.get(chunk.text_hash)]
    return fetch(connection, SELECT_STALE_BUT, (file_id, as_json(wanted), limit))


def _take_over(
    connection: apsw.Connection, rows: ChunkRows, file_id: int, chunks: Iterable[NewChunk]
) -> tuple[list[NewChunk], bool]:
    """Give chunks the stale rows of their texts; returns the chunks that found none, and whether one was refused."""
    stale = _stale_by_hash(connection, file_id, chunks)
    left: list[NewChunk] = []
    vectors: list[tuple[int, Vector]] = []
    refusal = False
    for chunk in chunks:
        if not (candidates := stale.get(chunk.text_hash)):
            left.append(chunk)
            continue
        chunk_id, state = candidates.popleft()
        if state is not VectorState.READY and chunk.vector is not None and rows.keeps_vectors:
            state = VectorState.READY
            vectors.append((chunk_id, chunk.vector))
        elif state is VectorState.PENDING and chunk.refused is not None:
            state = VectorState.REFUSED
            refusal = True
        place = (chunk.ordinal, chunk.start_line, chunk.end_line, chunk.said_at)
        connection.execute(TAKE_OVER, (*place, state, state, chunk.refused, chunk_id))
    rows.join(file_id, vectors)
    return left, refusal


def _stale_by_hash(
    connection: apsw.Connection, file_id: int, chunks: Iterable[NewChunk]
) -> dict[str, deque[tuple[int, VectorState]]]:
    found: dict[str, deque[tuple[int, VectorState]]] = {}
    # Nearly always there is none, or the one that was open.
    if fetch_one(connection, SELECT_HAS_STALE, (file_id,)) is None:
        return found
    wanted = as_json({chunk.text_hash for chunk in chunks})
    for text_hash, chunk_id, state in fetch(connection, SELECT_STALE_BY_HASH, (wanted, file_id)):
        found.setdefault(text_hash, deque()).append((chunk_id, VectorState(state)))
    return found

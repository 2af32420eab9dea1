"""Keeping one SQLite generation small and quick, in steps of a few milliseconds that may be interrupted.

What replaced texts leave behind, and what it costs (30,000 chunks of 384 dimensions, half of them replaced):

* Vectors go into the last block only, so deleted vectors leave holes that every search reads: half as much time again,
  a third more of the file. `compact_vectors` moves what is left in the emptiest blocks to the end.
* FTS5 gathers segments and merges them as it is written to; searches by several words take a third longer over many of
  them. `merge_keywords` merges the rest.

Nothing that is found changes, and no commit is counted: what was kept of an answer, or of the vectors, stays true.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from memory.store.sqlite import vec0_tables
from memory.store.sqlite.rows import fetch, meta_value
from memory.store.sqlite.schema import SET_META

#: Vectors that are moved in one transaction: 20 ms or so.
MOVED_A_STEP = 128

#: Share of places without a vector at which compaction is worth it.
WORTH_COMPACTING = 0.25

#: A block with a larger share of its places in use is left alone.
FULL_ENOUGH = 0.75

#: Pages of the keyword index that are written in one transaction, about 4 kB each.
MERGED_PAGES_A_STEP = 64

#: Chunks that came or went since the last merge, of all there are and at least, from which another one is worth it.
WORTH_MERGING = 0.1
WORTH_MERGING_CHUNKS = 1_000

#: How many chunks had ever been added and deleted when the keywords were merged last.
MERGED_AT = "keywords_merged_at"

# FTS5 merges by itself where a tenth of a segment is deleted, inside of the transaction that deletes: of 200,000 chunks
# in transactions of 1,000 that took 56 s, 5 s of it in a single one, instead of 4 s and 0.2 s. Here it has the time.
SELECT_MERGES_DELETIONS = "SELECT 1 FROM chunks_fts_config WHERE k = 'deletemerge' AND v = 0"
LEAVE_DELETIONS = "INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('deletemerge', 0)"

SELECT_CHUNKS_EVER = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0)"
COUNT_CHUNKS = "SELECT count(*) FROM chunks"

# A negative number merges segments of different sizes, too (https://sqlite.org/fts5.html#the_merge_command).
MERGE = "INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('merge', ?)"

#: What SQLite counts as changes of a merge that found nothing to do.
_NOTHING_MERGED = 2


def is_worth_compacting(connection: apsw.Connection) -> bool:
    """Whether so many vectors are gone that searches notice."""
    blocks = vec0_tables.fillings(connection)
    places = sum(block.places for block in blocks)
    used = sum(block.used for block in blocks)
    return len(blocks) > 1 and places - used >= WORTH_COMPACTING * places and _emptiest(blocks) is not None


def compact_vectors(connection: apsw.Connection) -> bool:
    """One step, in the transaction that is open; False when there is nothing (more) to do."""
    emptiest = _emptiest(vec0_tables.fillings(connection))
    dimensions = meta_value(connection, "dimensions")
    if emptiest is None or dimensions is None:
        return False
    ids = vec0_tables.ids_in(connection, emptiest)[:MOVED_A_STEP]
    vectors = vec0_tables.vectors_of(connection, ids, int(dimensions))
    vec0_tables.delete_vectors(connection, ids)
    vec0_tables.insert_vectors(connection, [(id_, vectors[id_]) for id_ in ids])
    return True


def is_worth_merging(connection: apsw.Connection) -> bool:
    """Whether so many chunks were added and deleted since the last merge that searches notice."""
    [(now,)] = fetch(connection, COUNT_CHUNKS)
    changed = _changes_ever(connection) - int(meta_value(connection, MERGED_AT) or 0)
    return changed >= max(WORTH_MERGING_CHUNKS, int(WORTH_MERGING * int(now)))


def leave_deletions(connection: apsw.Connection) -> None:
    """Let FTS5 merge what was deleted when it is told to, from now on."""
    if not fetch(connection, SELECT_MERGES_DELETIONS):
        connection.execute(LEAVE_DELETIONS)


def merge_keywords(connection: apsw.Connection) -> bool:
    """One step, in the transaction that is open; False, and remembered, when there is nothing (more) to do."""
    before = connection.total_changes()
    connection.execute(MERGE, (-MERGED_PAGES_A_STEP,))
    if connection.total_changes() - before >= _NOTHING_MERGED:
        return True
    connection.execute(SET_META, (MERGED_AT, str(_changes_ever(connection))))
    return False


def _changes_ever(connection: apsw.Connection) -> int:
    """How many chunks were ever added, and how many of them deleted, together."""
    [(ever,)] = fetch(connection, SELECT_CHUNKS_EVER)
    [(now,)] = fetch(connection, COUNT_CHUNKS)
    return 2 * int(ever) - int(now)


def _emptiest(blocks: Sequence[vec0_tables.Filling]) -> int | None:
    """The block to be moved next. Never the last one: that is where vectors are moved to."""
    movable = [block for block in blocks[:-1] if block.used <= FULL_ENOUGH * block.places]
    return min(movable, key=lambda block: block.used).number if movable else None

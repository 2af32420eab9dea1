"""Maintenance of one SQLite generation.

Replaced texts leave traces. With 30,000 chunks of 384 dimensions, half of them replaced, they cost:

* Vectors go into the last block only, so deleted vectors leave holes that every search reads: half as much time again,
  a third more of the file. `compact_vectors` moves the rest of the emptiest blocks to the end.
* FTS5 gathers segments and merges them during writes; searches by several words take a third longer over many of them.
  `merge_keywords` merges the rest.

A deleted text's row is overwritten in the transaction that deletes it (`secure_delete`). Its words stay in FTS5's
segments until these merge: FTS5's own `secure-delete` has no effect on a contentless table.

Maintenance works in interruptible steps of a few milliseconds. It changes no search result and counts no commit, so
that cached answers and vectors stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from memory.store.sqlite import vectors
from memory.store.sqlite.rows import fetch, meta_value
from memory.store.sqlite.schema import SET_META

#: Vectors moved in one transaction, about 20 ms.
MOVED_A_STEP = 128

#: Smallest share of empty places for a compaction.
WORTH_COMPACTING = 0.25

#: Largest share of places in use of a block that is moved.
FULL_ENOUGH = 0.75

#: Pages of the keyword index written in one transaction, about 4 kB each.
MERGED_PAGES_A_STEP = 64

#: Smallest share and number of chunks added and deleted since the last merge for another one.
WORTH_MERGING = 0.1
WORTH_MERGING_CHUNKS = 1_000

#: Entry of `meta`: number of all chunks ever added and deleted at the last merge of the keywords.
MERGED_AT = "keywords_merged_at"

#: Entries of `meta`: number of chunks ever deleted whose words are overwritten on the disk, and Unix time of the first
#: deletion since.
ERASED = "erased"
UNERASED_SINCE = "unerased_since"

#: Seconds after the first deletion until its words are overwritten. Each time rewrites the keyword index.
ERASE_AFTER_SECONDS = 900.0

SELECT_CHUNKS_EVER = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0)"
COUNT_CHUNKS = "SELECT count(*) FROM chunks"
COUNT_DELETED = f"SELECT ({SELECT_CHUNKS_EVER}) - ({COUNT_CHUNKS})"
FORGET_META = "DELETE FROM meta WHERE name = ?"

# A negative number merges segments of different sizes, too (https://sqlite.org/fts5.html#the_merge_command).
MERGE = "INSERT INTO {0} ({0}, rank) VALUES ('merge', ?)"

#: SQLite counts fewer changes than this for a merge that had nothing to do.
_NOTHING_MERGED = 2


def is_worth_compacting(connection: apsw.Connection) -> bool:
    """Return True if enough vectors are deleted to slow down searches."""
    blocks = vectors.fillings(connection)
    places = sum(block.places for block in blocks)
    used = sum(block.used for block in blocks)
    return len(blocks) > 1 and places - used >= WORTH_COMPACTING * places and _emptiest(blocks) is not None


def compact_vectors(connection: apsw.Connection) -> bool:
    """Move some vectors in the open transaction; return False if there is nothing left to move."""
    emptiest = _emptiest(vectors.fillings(connection))
    dimensions = meta_value(connection, "dimensions")
    if emptiest is None or dimensions is None:
        return False
    ids = vectors.ids_in(connection, emptiest)[:MOVED_A_STEP]
    moved = vectors.vectors_of(connection, ids, int(dimensions))
    vectors.delete_vectors(connection, ids)
    vectors.insert_vectors(connection, [(id_, moved[id_]) for id_ in ids])
    return True


def is_worth_merging(connection: apsw.Connection) -> bool:
    """Return True if enough chunks were added and deleted since the last merge to slow down searches."""
    [(now,)] = fetch(connection, COUNT_CHUNKS)
    changed = _changes_ever(connection) - int(meta_value(connection, MERGED_AT) or 0)
    return changed >= max(WORTH_MERGING_CHUNKS, int(WORTH_MERGING * int(now)))


def merge_keywords(connection: apsw.Connection) -> bool:
    """Merge some pages in the open transaction; return False, and record the merge, if nothing is left to merge."""
    for table in ("chunks_fts", "chunks_said"):
        before = connection.total_changes()
        connection.execute(MERGE.format(table), (-MERGED_PAGES_A_STEP,))
        if connection.total_changes() - before >= _NOTHING_MERGED:
            return True
    connection.execute(SET_META, (MERGED_AT, str(_changes_ever(connection))))
    return False


def is_due_to_erase(connection: apsw.Connection, *, now: float) -> bool:
    """Return True if words of deleted chunks are on the disk for long enough to be overwritten."""
    since = meta_value(connection, UNERASED_SINCE)
    # A time far ahead is of a clock that was set back since.
    return since is not None and abs(now - float(since)) >= ERASE_AFTER_SECONDS


def chunks_deleted(connection: apsw.Connection) -> int:
    """Return the number of chunks ever deleted."""
    return int(fetch(connection, COUNT_DELETED)[0][0])


def note_erased(connection: apsw.Connection, deleted: int, *, now: float) -> None:
    """Record in the open transaction that the words of the first `deleted` chunks are overwritten."""
    connection.execute(SET_META, (ERASED, str(deleted)))
    if chunks_deleted(connection) == deleted:
        connection.execute(FORGET_META, (UNERASED_SINCE,))
    else:
        connection.execute(SET_META, (UNERASED_SINCE, repr(now)))


def _changes_ever(connection: apsw.Connection) -> int:
    """Return the number of chunks ever added plus the number ever deleted."""
    [(ever,)] = fetch(connection, SELECT_CHUNKS_EVER)
    [(now,)] = fetch(connection, COUNT_CHUNKS)
    return 2 * int(ever) - int(now)


def _emptiest(blocks: Sequence[vectors.Filling]) -> int | None:
    """Return the number of the block to move next, None without one. Moved vectors go to the last block, which
    stays."""
    movable = [block for block in blocks[:-1] if block.used <= FULL_ENOUGH * block.places]
    return min(movable, key=lambda block: block.used).number if movable else None

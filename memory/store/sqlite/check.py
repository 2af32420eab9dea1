"""Check of the tables of one SQLite generation."""

from __future__ import annotations

import time
from collections.abc import Iterator

import apsw

from memory.store.errors import CheckUnfinished
from memory.store.reader import Flaw
from memory.store.rows import flaws_of, users_words
from memory.store.sqlite import vectors
from memory.store.sqlite.connection import missing_keywords
from memory.store.sqlite.rows import USERS_WORDS_DUE, fetch, fetch_one, has_sentences, meta_value
from schemas.documents import SESSIONS_SOURCE

#: Time limit of a check in seconds; a million chunks take about ten.
CHECK_SECONDS = 120.0

#: Steps of SQLite between two checks of the time limit.
_STEPS = 10_000

# FTS5 checks its own structure, too.
MAX_INTEGRITY_MESSAGES = 20

SELECT_CHUNK_IDS = "SELECT id FROM chunks"
SELECT_READY_IDS = "SELECT id FROM chunks WHERE vector_state = 'ready'"
SELECT_FTS_IDS = "SELECT rowid FROM chunks_fts"

# The table behind it, readable without FTS5.
SELECT_FTS_IDS_PAST_FTS5 = "SELECT id FROM chunks_fts_docsize"

SELECT_TALKS = f"""
SELECT c.id, c.text FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE f.source = '{SESSIONS_SOURCE}' AND c.id > ifnull((SELECT value FROM meta WHERE name = '{USERS_WORDS_DUE}') + 0, 0)
"""  # noqa: S608 - a constant
SELECT_ORPHANED_SENTENCES = "SELECT rowid FROM sentences WHERE text_hash NOT IN (SELECT text_hash FROM chunks)"

SELECT_ORPHANS = "SELECT id FROM chunks WHERE file_id NOT IN (SELECT id FROM files)"
SELECT_ORPHANED_POSITIONS = "SELECT file_id FROM transcripts WHERE file_id NOT IN (SELECT id FROM files)"
SELECT_STRAY_STALE = "SELECT id FROM chunks WHERE ordinal < 0 AND file_id NOT IN (SELECT file_id FROM transcripts)"
SELECT_HAS_VECTORS = "SELECT 1 FROM sqlite_schema WHERE name = 'chunks_vec'"


def findings(connection: apsw.Connection, *, seconds: float = CHECK_SECONDS) -> list[Flaw]:
    """Check all tables in one snapshot; return one sentence per finding.

    Raises:
        CheckUnfinished: the check exceeded its time limit. During a check, the write-ahead log keeps growing.
    """
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    connection.execute("BEGIN")
    try:
        # Keywords first: reading chunks_fts makes FTS5 see other processes' commits. Its part of the integrity check
        # does not (SQLite 3.54): it would compare with an earlier state and call a sound index damaged.
        keywords = list(_keywords(connection))
        return [*map(Flaw, _integrity(connection)), *keywords, *_vectors(connection), *_files(connection)]
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return [Flaw(f"the database is damaged: {error}")]
    except apsw.InterruptError:
        raise CheckUnfinished(f"the index was not looked at whole: that takes longer than {seconds:.0f} s") from None
    finally:
        connection.set_progress_handler(None)
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _integrity(connection: apsw.Connection) -> Iterator[str]:
    for (message,) in fetch(connection, f"PRAGMA integrity_check({MAX_INTEGRITY_MESSAGES:d})"):
        # SQLite cannot check a table whose module is missing.
        if message != "ok" and not any(f"no such module: {module}" in message for module in ("vec0", "fts5")):
            yield f"integrity_check: {' '.join(message.split())}"


def _keywords(connection: apsw.Connection) -> Iterator[Flaw]:
    chunks = _ids(connection, SELECT_CHUNK_IDS)
    statement = SELECT_FTS_IDS if missing_keywords(connection) is None else SELECT_FTS_IDS_PAST_FTS5
    indexed = _ids(connection, statement)
    yield from flaws_of("chunks without a row in chunks_fts", chunks - indexed)
    yield from flaws_of("rows of chunks_fts without a chunk", indexed - chunks)
    if has_sentences(connection):
        talks = {chunk_id for chunk_id, text in connection.execute(SELECT_TALKS) if users_words(text)}
        indexed = _ids(connection, statement.replace("chunks_fts", "chunks_said"))
        yield from flaws_of("chunks with users' words and without a row in chunks_said", talks - indexed)
        yield from flaws_of("rows of chunks_said without a chunk with users' words", indexed - talks)
        yield from flaws_of("rows of sentences without a chunk", _ids(connection, SELECT_ORPHANED_SENTENCES))


def _vectors(connection: apsw.Connection) -> Iterator[Flaw]:
    ready = _ids(connection, SELECT_READY_IDS)
    exists = fetch_one(connection, SELECT_HAS_VECTORS) is not None
    if exists != (meta_value(connection, "dimensions") is not None):
        yield Flaw("chunks_vec and the dimensions in meta do not agree")
    if not exists:
        yield from flaws_of("ready chunks without a row in chunks_vec", ready)
        return
    in_blocks, listed = vectors.stored_ids(connection)
    yield from flaws_of("ready chunks without a row in chunks_vec", ready - in_blocks)
    yield from flaws_of("rows of chunks_vec without a ready chunk", in_blocks - ready)
    yield from flaws_of("rows of chunks_vec that it does not agree on itself", in_blocks ^ listed)


def _files(connection: apsw.Connection) -> Iterator[Flaw]:
    yield from flaws_of("chunks without a file", _ids(connection, SELECT_ORPHANS))
    yield from flaws_of("marks of transcripts without a file", _ids(connection, SELECT_ORPHANED_POSITIONS))
    yield from flaws_of("stale chunks of documents that are no transcripts", _ids(connection, SELECT_STRAY_STALE))


def _ids(connection: apsw.Connection, statement: str) -> set[int]:
    return {int(row[0]) for row in fetch(connection, statement)}

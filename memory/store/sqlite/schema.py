"""Tables of one SQLite generation, and their migrations.

`chunks_vec` is not among the migrations: the transaction with the first vectors makes it, because it needs their number
of dimensions (`memory.store.sqlite.vectors`).
"""

from __future__ import annotations

from memory.chunking.segmenting import FTS5_TOKENIZER

#: Mark of recalld's files ("rcld"), so that another application's database is never taken for an index.
APPLICATION_ID = 0x72636C64

#: Bytes. Vectors are kept in blobs of up to 1.5 MB; with SQLite's default of 4096 inserting is 30 times slower.
PAGE_SIZE = 16_384

#: The name of a document's file, ASCII letters in lower case, of a Codex rollout without its time
#: (`StoreReader.named`). Its folders are what is left when all letters of the name are taken from the end of the path.
FILE_NAME = (
    "lower(substr(path, length(rtrim(path, replace(path, '/', ''))) + 1"
    " + 28 * (path GLOB '*/rollout-????-??-??T??-??-??-*')))"
)

SELECT_META = "SELECT value FROM meta WHERE name = ?"
SET_META = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

_FIRST_TABLES = f"""
-- Facts about the generation: fingerprint, identity, dimensions. `transactions` counts commits, `deletions` documents
-- that were deleted, `last_commit_at` is Unix time.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('transactions', '0'), ('deletions', '0');

-- `revision` is the number of the transaction that wrote the document last: it never repeats, not even for a document
-- that went and came back. `notes` is a JSON array.
CREATE TABLE files (
    id           INTEGER PRIMARY KEY,
    source       TEXT NOT NULL,
    path         TEXT NOT NULL,
    size         INTEGER NOT NULL,
    mtime_ns     INTEGER NOT NULL,
    inode        INTEGER NOT NULL,
    content_hash TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    indexed_at   REAL NOT NULL,
    notes        TEXT NOT NULL,
    UNIQUE (source, path)
) STRICT;

-- AUTOINCREMENT: an id that a reader still holds must never belong to another chunk.
-- The text comes last, so that a scan of the small columns does not read its overflow pages.
CREATE TABLE chunks (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    file_id      INTEGER NOT NULL,
    ordinal      INTEGER NOT NULL,
    start_line   INTEGER NOT NULL,
    end_line     INTEGER NOT NULL,
    vector_state TEXT NOT NULL CHECK (vector_state IN ('ready', 'pending', 'refused')),
    text_hash    TEXT NOT NULL,
    refusal      TEXT,
    text         TEXT NOT NULL
) STRICT;
CREATE INDEX chunks_by_file ON chunks (file_id, ordinal);
CREATE INDEX chunks_by_hash ON chunks (text_hash);
-- Partial: the next chunks to embed, and the counts of status, without a scan of all chunks.
CREATE INDEX chunks_pending ON chunks (id) WHERE vector_state = 'pending';
CREATE INDEX chunks_refused ON chunks (id) WHERE vector_state = 'refused';

-- Contentless: the text is in `chunks` already. FTS5 indexes its `memory.chunking.segmenting.index_text`.
CREATE VIRTUAL TABLE chunks_fts USING fts5 (
    text, content = '', contentless_delete = 1, tokenize = '{FTS5_TOKENIZER}'
);

CREATE TABLE dead_letters (
    source      TEXT NOT NULL,
    path        TEXT NOT NULL,
    reason      TEXT NOT NULL,
    error_class TEXT NOT NULL,
    attempts    INTEGER NOT NULL,
    first_at    REAL NOT NULL,
    last_at     REAL NOT NULL,
    PRIMARY KEY (source, path)
) STRICT, WITHOUT ROWID;
"""  # noqa: S608 - a constant

_TRANSCRIPTS = """
-- Marks: see `memory.store.reader.TranscriptMark`. Chunks with a negative ordinal are stale: they were at -1 - ordinal.
CREATE TABLE transcripts (
    file_id INTEGER PRIMARY KEY,
    "offset" INTEGER NOT NULL,
    lines   INTEGER NOT NULL,
    digest  TEXT NOT NULL,
    state   TEXT NOT NULL
) STRICT;
-- Unix time of the last message in a chunk of a transcript. It comes after the text, so searches must not read it.
ALTER TABLE chunks ADD COLUMN said_at REAL;
-- By file: each commit of a document with a dead letter reads its refused chunks among up to 500,000 others.
DROP INDEX chunks_refused;
CREATE INDEX chunks_refused ON chunks (file_id, ordinal) WHERE vector_state = 'refused';
"""

_CHANGE_TIMES = """
-- NULL in rows that were not written since. `touches`: see `memory.store.reader.IndexedFile`.
ALTER TABLE files ADD COLUMN ctime_ns INTEGER;
ALTER TABLE files ADD COLUMN touches INTEGER NOT NULL DEFAULT 0;
-- A worker of the version before, which still has the index open, writes a file's other times only.
CREATE TRIGGER files_forget_outdated_ctime AFTER UPDATE OF size, mtime_ns, inode ON files
WHEN new.ctime_ns > 0 AND new.ctime_ns = old.ctime_ns
  AND (new.mtime_ns <> old.mtime_ns OR new.size <> old.size OR new.inode <> old.inode)
BEGIN UPDATE files SET ctime_ns = NULL WHERE id = new.id; END;
"""

_FILE_NAMES = f"""
CREATE INDEX files_by_name ON files ({FILE_NAME});
-- Earlier versions indexed Thai, Lao, Burmese and Khmer without pairs. An index with such text is rebuilt from its own
-- vectors, since its fingerprint no longer matches; other indexes stay as they are.
UPDATE meta SET value = value || ' without pairs of Thai, Lao, Burmese and Khmer' WHERE name = 'fingerprint' AND (
    EXISTS (SELECT 1 FROM chunks WHERE text GLOB '*[ก-ฺเ-໎က-ဿក-៓]*')
    OR EXISTS (SELECT 1 FROM files WHERE path GLOB '*[ก-ฺเ-໎က-ဿក-៓]*')
);
"""  # noqa: S608 - a constant

#: Names and SQL of the steps of the schema. The number of a step is its place, starting at 1.
MIGRATIONS = (
    ("first tables", _FIRST_TABLES),
    ("transcripts", _TRANSCRIPTS),
    ("change times of files", _CHANGE_TIMES),
    ("names of files", _FILE_NAMES),
)

#: First schema with transcripts. A reader may open an older one before any writer does.
TRANSCRIPTS_SCHEMA_NUMBER = 2

#: First schema with change times of files.
CTIME_SCHEMA_NUMBER = 3

#: First schema with an index on file names.
NAMES_SCHEMA_NUMBER = 4

#: `PRAGMA user_version` of an index with all migrations.
SCHEMA_NUMBER = len(MIGRATIONS)

#: Oldest schema that a reader can use without migrating it.
OLDEST_READABLE_SCHEMA_NUMBER = 1

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
-- that went and came back. `ctime_ns` NULL is unknown. `notes` is a JSON array. `touches`: see
-- `memory.store.reader.IndexedFile`.
CREATE TABLE files (
    id           INTEGER PRIMARY KEY,
    source       TEXT NOT NULL,
    path         TEXT NOT NULL,
    size         INTEGER NOT NULL,
    mtime_ns     INTEGER NOT NULL,
    inode        INTEGER NOT NULL,
    ctime_ns     INTEGER,
    content_hash TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    indexed_at   REAL NOT NULL,
    notes        TEXT NOT NULL,
    touches      INTEGER NOT NULL DEFAULT 0,
    UNIQUE (source, path)
) STRICT;
CREATE INDEX files_by_name ON files ({FILE_NAME});

-- AUTOINCREMENT: an id that a reader still holds must never belong to another chunk.
-- A chunk with a negative ordinal is stale: it was at -1 - ordinal. `said_at` is the Unix time of the last message in
-- a chunk of a transcript. The text comes after the columns that searches read, because of its overflow pages.
CREATE TABLE chunks (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    file_id      INTEGER NOT NULL,
    ordinal      INTEGER NOT NULL,
    start_line   INTEGER NOT NULL,
    end_line     INTEGER NOT NULL,
    vector_state TEXT NOT NULL CHECK (vector_state IN ('ready', 'pending', 'refused')),
    text_hash    TEXT NOT NULL,
    refusal      TEXT,
    text         TEXT NOT NULL,
    said_at      REAL
) STRICT;
CREATE INDEX chunks_by_file ON chunks (file_id, ordinal);
CREATE INDEX chunks_by_hash ON chunks (text_hash);
-- Partial: the next chunks to embed, and the counts of status, without a scan of all chunks.
CREATE INDEX chunks_pending ON chunks (id) WHERE vector_state = 'pending';
-- By file: each commit of a document with a dead letter reads its refused chunks among up to 500,000 others.
CREATE INDEX chunks_refused ON chunks (file_id, ordinal) WHERE vector_state = 'refused';

-- Contentless: the text is in `chunks` already. FTS5 indexes its `memory.chunking.segmenting.index_text`.
CREATE VIRTUAL TABLE chunks_fts USING fts5 (
    text, content = '', contentless_delete = 1, tokenize = '{FTS5_TOKENIZER}'
);
-- FTS5 merges a segment inside the transaction that deletes a tenth of it. For 200,000 chunks in transactions of 1,000
-- that took 56 s, up to 5 s in one of them, instead of 4 s and 0.2 s. Maintenance merges without a hurry.
INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('deletemerge', 0);

-- Positions: see `memory.store.reader.TranscriptPosition`.
CREATE TABLE transcripts (
    file_id  INTEGER PRIMARY KEY,
    "offset" INTEGER NOT NULL,
    lines    INTEGER NOT NULL,
    digest   TEXT NOT NULL,
    state    TEXT NOT NULL
) STRICT;

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

_SENTENCES = f"""
-- Users' words of transcripts (`memory.store.sqlite.keywords.users_words`), like `chunks_fts`.
CREATE VIRTUAL TABLE chunks_said USING fts5 (text, content = '', contentless_delete = 1, tokenize = '{FTS5_TOKENIZER}');
INSERT INTO chunks_said (chunks_said, rank) VALUES ('deletemerge', 0);
-- Sentences of chunks: equal texts share a row. `users` has a byte for each sentence, 1 for a user's; `signs` has a bit
-- for each dimension of its vector, 1 above 0. A text without sentences has empty blobs.
CREATE TABLE sentences (text_hash TEXT PRIMARY KEY, users BLOB NOT NULL, signs BLOB NOT NULL) STRICT;
-- The highest id of a chunk without its users' words. Without this entry, all chunks have them.
INSERT INTO meta (name, value)
SELECT 'users_words_due', CAST(seq AS TEXT) FROM sqlite_sequence WHERE name = 'chunks' AND seq > 0;
"""  # noqa: S608 - a constant

_UNREAD = """
-- An unread chunk's `refusal` is its script. This is SQLite's documented way to change a CHECK, without writing the
-- rows again (https://www.sqlite.org/lang_altertable.html#otheralter).
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''refused'')', '''refused'', ''unread'')') WHERE name = 'chunks';
PRAGMA writable_schema = RESET;
CREATE INDEX IF NOT EXISTS chunks_unread ON chunks (refusal, file_id) WHERE vector_state = 'unread';
"""

_HELD = """
-- As above: the rows stay as they are.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''unread'')', '''unread'', ''held'')') WHERE name = 'chunks';
PRAGMA writable_schema = RESET;
CREATE INDEX IF NOT EXISTS chunks_held ON chunks (id) WHERE vector_state = 'held';
"""

#: Names and SQL of the steps of the schema, numbered from `FIRST_SCHEMA_NUMBER` on.
MIGRATIONS = (
    ("first tables", _FIRST_TABLES),
    ("users' words and sentences", _SENTENCES),
    ("unread chunks", _UNREAD),
    ("held chunks", _HELD),
)

#: Number of the first tables. Development versions used the smaller ones.
FIRST_SCHEMA_NUMBER = 4

#: `PRAGMA user_version` of an index with all migrations.
SCHEMA_NUMBER = FIRST_SCHEMA_NUMBER + len(MIGRATIONS) - 1

"""The tables of the batch jobs and what is asked of them."""

from __future__ import annotations

# Times are Unix seconds. `job_id` is the provider's, NULL until it is known. `texts` is how many texts were sent;
# `total`, `completed` and `failed` are what the provider says; `taken` vectors came back and were kept.
TABLES = """
CREATE TABLE identities (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    reference TEXT NOT NULL UNIQUE,
    job_id TEXT,
    identity INTEGER NOT NULL,
    account TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    agent TEXT NOT NULL,
    state TEXT NOT NULL,
    made_at REAL NOT NULL,
    tried_at REAL NOT NULL,
    looked_at REAL NOT NULL,
    look_at REAL NOT NULL, -- when to look again
    stopped_at REAL, -- when it was asked to stop
    ended_at REAL,
    attempts INTEGER NOT NULL DEFAULT 0, -- calls that failed since the last one that did not
    texts INTEGER NOT NULL,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    taken INTEGER NOT NULL DEFAULT 0,
    stop_reason TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT ''
) STRICT;
-- What is at the provider: a text is in one job of an identity at most.
CREATE TABLE texts (
    identity INTEGER NOT NULL, hash TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (identity, hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX texts_by_job ON texts (job);
-- What came back without a vector: it goes the normal way and into no job again.
CREATE TABLE inline_texts (
    identity INTEGER NOT NULL, hash TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (identity, hash)
) STRICT, WITHOUT ROWID;
-- Jobs in a row that failed, and until when there are to be no more.
CREATE TABLE health (
    identity INTEGER PRIMARY KEY, failures INTEGER NOT NULL, until REAL NOT NULL, reason TEXT NOT NULL
) STRICT;
"""

_JOB_COLUMNS = """
    j.reference, j.job_id, i.identity, j.account, j.provider, j.model, j.agent, j.state, j.made_at, j.tried_at,
    j.looked_at, j.look_at, j.stopped_at, j.ended_at, j.attempts, j.texts,
    (SELECT count(*) FROM texts AS t WHERE t.job = j.id), j.total, j.completed, j.failed, j.taken,
    j.stop_reason, j.message
"""
#: The place of the state among them.
STATE_COLUMN = 7

SELECT_JOBS = f"SELECT {_JOB_COLUMNS} FROM jobs AS j JOIN identities AS i ON i.id = j.identity ORDER BY j.id"  # noqa: S608 - constants
SELECT_JOB = f"""
SELECT {_JOB_COLUMNS} FROM jobs AS j JOIN identities AS i ON i.id = j.identity WHERE j.reference = ?
"""  # noqa: S608 - constants

_OPEN_STATES = "('submitting', 'running', 'stopping')"
COUNT_OPEN = f"SELECT count(*) FROM jobs WHERE identity = ? AND account = ? AND state IN {_OPEN_STATES}"  # noqa: S608 - constants
INSERT_JOB = """
INSERT INTO jobs (
    reference, identity, account, provider, model, agent, state, made_at, tried_at, looked_at, look_at, texts
) VALUES (?, ?, ?, ?, ?, ?, 'submitting', ?, ?, 0, 0, 0) RETURNING id
"""
INSERT_TEXT = "INSERT INTO texts (identity, hash, job) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# The plus keeps SQLite from going through all of a job's texts by its index.
DELETE_TEXT = "DELETE FROM texts WHERE identity = ? AND hash = ? AND +job = ?"
INLINE_THE_REST = """
INSERT INTO inline_texts (identity, hash, at) SELECT identity, hash, ? FROM texts WHERE job = ? ON CONFLICT DO NOTHING
"""
SET_HEALTH = """
INSERT INTO health (identity, failures, until, reason) VALUES (?, ?, ?, ?)
ON CONFLICT (identity) DO UPDATE SET failures = excluded.failures, until = excluded.until, reason = excluded.reason
"""

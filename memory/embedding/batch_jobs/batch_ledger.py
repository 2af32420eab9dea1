"""Ledger of batch jobs and their texts, kept on disk: after a crash no text is paid for twice.

A job is noted before it is submitted and a text leaves it after its vector was kept:

    note (submitting) -> submitted (running) [-> stopping] -> settle ... -> end (done, failed, ...)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

import apsw
import structlog

from memory.embedding.batch_jobs.batch_api import JobProgress
from memory.store.durable_sqlite import DurableSqlite, Kind, locked
from schemas.errors import RecalldError

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
    attempts INTEGER NOT NULL DEFAULT 0, -- failed calls in a row
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


log = structlog.get_logger(__name__)

T = TypeVar("T")

_KIND = Kind("the list of batch jobs", TABLES, version=1)


def ledger_path(home: Path) -> Path:
    """Return the path of a home's ledger."""
    return home / "cache" / "batch_jobs.sqlite"


def texts_in_jobs(home: Path, agent: str, *, looked_within_seconds: float) -> int:
    """Return the number of an agent's texts in jobs that a worker looks after; 0 without a ledger.

    Never raises: status goes on without the number.
    """
    path = ledger_path(home)
    if not path.exists():
        return 0
    try:
        with BatchLedger(path) as ledger:
            return ledger.texts_of(agent, looked_within_seconds=looked_within_seconds)
    except RecalldError as error:
        log.debug("batch_ledger_unreadable", error=str(error))
        return 0


class Stage(StrEnum):
    """Stage of a job. `SUBMITTING`: noted, perhaps at the provider. `LOST`: the provider can not be asked any more."""

    SUBMITTING = "submitting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    LOST = "lost"


OPEN = (Stage.SUBMITTING, Stage.RUNNING, Stage.STOPPING)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job. Times are Unix seconds.

    `reference` is our name of it, `job_id` the provider's (None until known). `texts` were sent, `left` of them are
    still in it; `total`, `completed` and `failed` are what the provider says; `taken` vectors were kept.
    `stop_reason` is a `StopReason`, "" without a wish to stop; `message` what went wrong, "" when nothing did.
    """

    reference: str
    job_id: str | None
    identity: str
    account: str
    provider: str
    model: str
    agent: str
    stage: Stage
    made_at: float
    tried_at: float
    looked_at: float
    look_at: float
    stopped_at: float | None
    ended_at: float | None
    attempts: int
    texts: int
    left: int
    total: int
    completed: int
    failed: int
    taken: int
    stop_reason: str
    message: str

    @property
    def open(self) -> bool:
        """Return True if results may still come."""
        return self.stage in OPEN


@dataclass(frozen=True, slots=True)
class Origin:
    """Owner of a new job: the agent, the provider's identity and the account."""

    agent: str
    identity: str
    account: str
    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class Suspension:
    """Until when (Unix seconds) an identity's texts go the normal way only, and why."""

    until: float
    reason: str


class BatchLedger:
    """The jobs of one home. Safe for several processes; one instance is for one thread.

    Raises, from every method: StoreFull, StoreBusy, StoreUnreadable.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._file = DurableSqlite(path, _KIND)
        self._file.guarded(self._file.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @contextmanager
    def working_on(self, agent: str) -> Iterator[bool]:
        """Lock an agent's jobs for as long as the block runs; yield False if another worker holds them."""
        # Agents' ids are safe in file names.
        with locked(self._path.with_name(f"{self._path.name}.{agent}.lock"), wait=False) as granted:
            yield granted

    # A job's life

    def note(self, origin: Origin, hashes: Sequence[str], *, most_open: int) -> tuple[str, list[str]] | None:
        """Note a job that is about to be submitted; returns its reference and which of the texts are in it.

        Texts that are in a job already are left out. None when `most_open` jobs are open, or nothing is left.
        """

        def note(writer: apsw.Connection) -> tuple[str, list[str]] | None:
            identity = self._number(writer, origin.identity)
            if _one(writer, COUNT_OPEN, identity, origin.account) >= most_open:
                return None
            taken = []
            reference, now = secrets.token_hex(8), self._clock()
            values = (reference, identity, origin.account, origin.provider, origin.model, origin.agent, now, now)
            job = _one(writer, INSERT_JOB, *values)
            for text_hash in hashes:
                writer.execute(INSERT_TEXT, (identity, text_hash, job))
                if writer.changes():
                    taken.append(text_hash)
            if not taken:
                writer.execute("DELETE FROM jobs WHERE id = ?", (job,))
                return None
            writer.execute("UPDATE jobs SET texts = ? WHERE id = ?", (len(taken), job))
            return reference, taken

        return self._transaction(note)

    def leave_out(self, reference: str, hashes: Collection[str]) -> None:
        """Take texts out of a job before it is submitted: they did not fit."""
        self._take_out(reference, hashes, "texts = texts - ?", len(hashes))

    def submitted(self, reference: str, job_id: str, *, look_at: float) -> None:
        """Note that the provider has a job."""
        self._set(reference, "job_id = ?, state = 'running', attempts = 0, look_at = ?", job_id, look_at)

    def tried(self, reference: str, message: str, *, look_at: float) -> None:
        """Note that a call about a job failed, and when to try again."""
        now = self._clock()
        self._set(reference, "attempts = attempts + 1, tried_at = ?, message = ?, look_at = ?", now, message, look_at)

    def postpone(self, reference: str, *, look_at: float) -> None:
        """Note when to look at a job, and nothing else."""
        self._set(reference, "look_at = ?", look_at)

    def looked(self, reference: str, progress: JobProgress, *, look_at: float) -> None:
        """Note how far a job is, and when to look again."""
        counts = (progress.total, progress.completed, progress.failed, progress.message)
        self._set(
            reference,
            "looked_at = ?, look_at = ?, attempts = 0, total = ?, completed = ?, failed = ?, message = ?",
            *(self._clock(), look_at, *counts),
        )

    def stop(self, reference: str, reason: str) -> bool:
        """Note that a job is to stop, for the worker that follows it; return False if it is over, or stopping."""
        now = self._clock()

        def stop(writer: apsw.Connection) -> bool:
            writer.execute(
                "UPDATE jobs SET stop_reason = ?, stopped_at = ?, look_at = 0"
                " WHERE reference = ? AND state IN ('submitting', 'running') AND stopped_at IS NULL",
                (reason, now, reference),
            )
            return writer.changes() > 0

        return self._transaction(stop)

    def stopping(self, reference: str, *, look_at: float) -> None:
        """Note that the provider was asked to stop a job."""
        self._set(reference, "state = 'stopping', attempts = 0, look_at = ?", look_at)

    def settle(self, reference: str, hashes: Collection[str], *, taken: int) -> None:
        """Note that texts are out of a job for good, so many of them with a vector that was kept."""
        self._take_out(reference, hashes, "taken = taken + ?", taken)

    def end(self, reference: str, stage: Stage, message: str = "", *, again: bool = False) -> int:
        """Note that a job is over; returns how many texts were left in it.

        They go the normal way, unless they may be put into a job `again`.
        """
        now = self._clock()

        def end(writer: apsw.Connection) -> int:
            row = writer.execute("SELECT id FROM jobs WHERE reference = ?", (reference,)).fetchone()
            if row is None:
                return 0
            if not again:
                writer.execute(INLINE_THE_REST, (now, row[0]))
            writer.execute("DELETE FROM texts WHERE job = ?", (row[0],))
            left = writer.changes()
            writer.execute(
                "UPDATE jobs SET state = ?, ended_at = ?, message = ? WHERE id = ?", (stage.value, now, message, row[0])
            )
            return left

        return self._transaction(end)

    # What is known

    def jobs(self) -> list[BatchJob]:
        """All jobs, those that are over included until they are cleared away, the oldest first."""
        return self._read(lambda reader: [_job(row) for row in reader.execute(SELECT_JOBS)])

    def job(self, reference: str) -> BatchJob | None:
        """One job."""
        rows = self._read(lambda reader: list(reader.execute(SELECT_JOB, (reference,))))
        return _job(rows[0]) if rows else None

    def hashes_in(self, reference: str) -> set[str]:
        """The texts that are still in a job."""
        query = "SELECT hash FROM texts WHERE job = (SELECT id FROM jobs WHERE reference = ?)"
        return self._read(lambda reader: {str(row[0]) for row in reader.execute(query, (reference,))})

    def everything(self) -> set[tuple[str, str]]:
        """Return all texts that are in a job, as (identity, text hash)."""
        query = "SELECT i.identity, t.hash FROM texts AS t JOIN identities AS i ON i.id = t.identity"
        return self._read(lambda reader: {(str(row[0]), str(row[1])) for row in reader.execute(query)})

    def hashes(self, identity: str) -> set[str]:
        """The texts of an identity that are in any job."""
        query = "SELECT hash FROM texts WHERE identity = (SELECT id FROM identities WHERE identity = ?)"
        return self._read(lambda reader: {str(row[0]) for row in reader.execute(query, (identity,))})

    def texts_of(self, agent: str, *, looked_within_seconds: float) -> int:
        """Return the number of an agent's texts in jobs that were made, or looked at, in the last so many seconds."""
        query = """
        SELECT count(*) FROM texts
        WHERE job IN (SELECT id FROM jobs WHERE agent = ? AND max(looked_at, tried_at) >= ?)
        """
        since = self._clock() - looked_within_seconds
        return self._read(lambda reader: _one(reader, query, agent, since))

    def change_token(self) -> object:
        """A value that differs when other texts are in jobs. Cheap."""
        query = "SELECT (SELECT count(*) FROM texts), (SELECT max(id) FROM jobs), (SELECT count(*) FROM inline_texts)"
        return self._read(lambda reader: next(iter(reader.execute(query))))

    def inline_hashes(self, identity: str) -> set[str]:
        """The texts of an identity that are to be in no job."""
        query = "SELECT hash FROM inline_texts WHERE identity = (SELECT id FROM identities WHERE identity = ?)"
        return self._read(lambda reader: {str(row[0]) for row in reader.execute(query, (identity,))})

    # Failures in a row

    def failed(self, identity: str, reason: str, *, most: int, pause_seconds: float) -> int:
        """Note that a job failed; the `most`th in a row suspends the identity. Returns how many in a row that is."""

        def failed(writer: apsw.Connection) -> int:
            number = self._number(writer, identity)
            row = writer.execute("SELECT failures FROM health WHERE identity = ?", (number,)).fetchone()
            failures = (int(row[0]) if row else 0) + 1
            until = self._clock() + pause_seconds if failures >= most else 0.0
            writer.execute(SET_HEALTH, (number, failures, until, reason))
            return failures

        return self._transaction(failed)

    def succeeded(self, identity: str) -> None:
        """Note that a job brought vectors: the row of failures is over."""
        query = "DELETE FROM health WHERE identity = (SELECT id FROM identities WHERE identity = ?)"
        self._transaction(lambda writer: writer.execute(query, (identity,)))

    def suspension(self, identity: str) -> Suspension | None:
        """Until when there are to be no jobs for an identity; None when there may be some."""
        query = """
        SELECT until, reason FROM health
        WHERE identity = (SELECT id FROM identities WHERE identity = ?) AND until > ?
        """
        now = self._clock()
        rows = self._read(lambda reader: list(reader.execute(query, (identity, now))))
        return Suspension(float(rows[0][0]), str(rows[0][1])) if rows else None

    def clear_away(self, *, older_than_seconds: float) -> None:
        """Forget jobs that ended, and texts that came back without a vector, so long ago."""
        before = self._clock() - older_than_seconds

        def clear(writer: apsw.Connection) -> None:
            writer.execute("DELETE FROM jobs WHERE ended_at < ?", (before,))
            writer.execute("DELETE FROM inline_texts WHERE at < ?", (before,))

        self._transaction(clear)

    # The file

    def _take_out(self, reference: str, hashes: Collection[str], assignment: str, value: int) -> None:
        def take_out(writer: apsw.Connection) -> None:
            row = writer.execute("SELECT id, identity FROM jobs WHERE reference = ?", (reference,)).fetchone()
            if row is not None:
                writer.executemany(DELETE_TEXT, [(row[1], text_hash, row[0]) for text_hash in hashes])
                writer.execute(f"UPDATE jobs SET {assignment} WHERE id = ?", (value, row[0]))  # noqa: S608 - our own constants

        self._transaction(take_out)

    def _set(self, reference: str, assignments: str, *values: Any) -> None:
        statement = f"UPDATE jobs SET {assignments} WHERE reference = ?"  # noqa: S608 - our own constants
        self._transaction(lambda writer: writer.execute(statement, (*values, reference)))

    def _number(self, writer: apsw.Connection, identity: str) -> int:
        writer.execute("INSERT INTO identities (identity) VALUES (?) ON CONFLICT DO NOTHING", (identity,))
        return _one(writer, "SELECT id FROM identities WHERE identity = ?", identity)

    def _transaction(self, work: Callable[[apsw.Connection], T]) -> T:
        return self._file.guarded(lambda: self._file.transaction(work))

    def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        return self._file.guarded(lambda: work(self._file.connection()))


def _job(row: Sequence[Any]) -> BatchJob:
    values: list[Any] = list(row)
    values[STATE_COLUMN] = Stage(values[STATE_COLUMN])
    return BatchJob(*values)


def _one(connection: apsw.Connection, statement: str, *values: Any) -> int:
    row = connection.execute(statement, values).fetchone()
    return int(row[0]) if row is not None else 0

"""Ledger of batch jobs and their texts, kept on disk: after a crash no text is paid for twice.

A job is noted before it is submitted, and a text leaves it after its vector was kept. The texts that are left in a job
at its end are embedded the normal way and go into no job again.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

import apsw
import structlog

from memory.embedding.batch_jobs.ledger_reader import OPEN_STATES, VERSION, ledger_path
from memory.embedding.providers.provider import EmbeddingProvider
from memory.store.durable_sqlite import DurableSqlite, Kind, locked
from schemas.conditions import StopReason
from schemas.errors import RecalldError

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Stage(StrEnum):
    """Stage of a job. `SUBMITTING`: noted, perhaps at the provider. `LOST`: given up, and its end is not known."""

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
    """One job, as its row in the ledger. Times are Unix seconds.

    `reference` is our name of it, `job_id` the provider's (None until known). `texts` were sent; `completed` and
    `failed` are the provider's counts; `taken` vectors were kept. `stop_reason` is a `StopReason`, "" without a
    wish to stop; `message` describes the last failure, "" without one. `missing_looks` in a row, from `missing_since`
    on, did not find the job or its results at the provider.
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
    completed: int
    failed: int
    taken: int
    stop_reason: str
    message: str
    missing_since: float | None = None
    missing_looks: int = 0

    @property
    def open(self) -> bool:
        """Return True if results may still come."""
        return self.stage in OPEN

    @property
    def followed(self) -> bool:
        """Return True if the provider is asked about the job: it is open, or may be found again."""
        return self.open or self.stage is Stage.LOST

    @property
    def came_to_nothing(self) -> bool:
        """Return True if the job is over because its provider failed or was too slow."""
        missing = self.stage is Stage.LOST and self.missing_looks > 0
        too_long = not self.open and self.stop_reason == StopReason.TOO_LONG
        return missing or too_long or self.stage in (Stage.FAILED, Stage.EXPIRED)


# Times are Unix seconds. `job_id` is the provider's, NULL until it is known. `texts` is the number of sent texts;
# `completed` and `failed` are the provider's counts; `taken` vectors came back and were kept.
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
    tried_at REAL NOT NULL, -- last submission, or call that failed; 0 before the first submission
    looked_at REAL NOT NULL,
    look_at REAL NOT NULL, -- when to look again
    stopped_at REAL, -- when it was to stop, then when its provider took that
    ended_at REAL,
    attempts INTEGER NOT NULL DEFAULT 0, -- failed calls in a row
    texts INTEGER NOT NULL,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    taken INTEGER NOT NULL DEFAULT 0,
    stop_reason TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '',
    missing_since REAL,
    missing_looks INTEGER NOT NULL DEFAULT 0
) STRICT;
-- Texts without a vector: at the provider while their job is open, for the normal way when it is over.
CREATE TABLE texts (
    identity INTEGER NOT NULL, hash TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (identity, hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX texts_by_job ON texts (job);
"""

#: Columns of jobs whose name is not that of `BatchJob`'s field.
_COLUMNS = {"identity": "i.identity", "stage": "state"}

#: Fields that a job's worker writes. `taken` is counted as vectors are kept.
_SAVED = (
    *("job_id", "stage", "tried_at", "looked_at", "look_at", "ended_at", "attempts"),
    *("texts", "completed", "failed", "message", "missing_since", "missing_looks"),
)

SELECT_JOBS = f"""
SELECT {", ".join(_COLUMNS.get(column.name, column.name) for column in fields(BatchJob))}
FROM jobs AS j JOIN identities AS i ON i.id = j.identity WHERE ? IN ('', j.reference) ORDER BY j.id
"""  # noqa: S608 - names of fields
COUNT_OPEN = f"SELECT count(*) FROM jobs WHERE identity = ? AND account = ? AND state IN {OPEN_STATES}"  # noqa: S608 - constants
INSERT_JOB = """
INSERT INTO jobs (
    reference, identity, account, provider, model, agent, state, made_at, tried_at, looked_at, look_at, texts
) VALUES (?, ?, ?, ?, ?, ?, 'submitting', ?, 0, 0, 0, 0) RETURNING id
"""
INSERT_TEXT = "INSERT INTO texts (identity, hash, job) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# Another process may ask for a stop at any time. An ended job stays ended, unless a lost one is found.
SAVE_JOB = f"""
UPDATE jobs SET {", ".join(f"{_COLUMNS.get(name, name)} = :{name}" for name in _SAVED)},
    stopped_at = coalesce(max(stopped_at, :stopped_at), stopped_at, :stopped_at),
    stop_reason = CASE stop_reason WHEN '' THEN :stop_reason ELSE stop_reason END
WHERE reference = :reference AND (ended_at IS NULL OR state = 'lost')
"""  # noqa: S608 - names of fields
STOP_JOB = """
UPDATE jobs SET stop_reason = ?, stopped_at = ?, look_at = 0
WHERE reference = ? AND state IN ('submitting', 'running') AND stopped_at IS NULL
"""
# By the beginning of a job: a lost one ends again each time that it is looked for and found.
CLEAR_JOBS = "DELETE FROM jobs WHERE ended_at IS NOT NULL AND made_at < ?"
CLEAR_TEXTS = "DELETE FROM texts WHERE job IN (SELECT id FROM jobs WHERE ended_at IS NOT NULL AND made_at < ?)"
# The plus keeps SQLite from going through all of a job's texts by its index.
DELETE_TEXT = "DELETE FROM texts WHERE identity = ? AND hash = ? AND +job = ?"
TEXTS = """
SELECT t.hash, i.identity FROM texts AS t JOIN identities AS i ON i.id = t.identity JOIN jobs AS j ON j.id = t.job WHERE
"""
OPEN_TEXTS = f"{TEXTS} j.state IN {OPEN_STATES}"

_KIND = Kind("the list of batch jobs", TABLES, version=VERSION)


def batch_jobs_of(home: Path) -> list[BatchJob]:
    """Return all jobs of a home; none without a ledger. Raises like `BatchLedger`."""
    if not ledger_path(home).exists():
        return []
    with BatchLedger(ledger_path(home)) as ledger:
        return ledger.jobs()


def sent_in_jobs(home: Path, identity: str, hashes: Sequence[str]) -> set[str]:
    """Return those of some texts that open jobs hold; none without a ledger, or if it cannot be read."""
    if not ledger_path(home).exists():
        return set()
    try:
        with BatchLedger(ledger_path(home)) as ledger:
            return ledger.sent(identity, hashes)
    except RecalldError as error:
        log.debug("batch_ledger_unreadable", error=str(error))
        return set()


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
        self._file.close()

    @contextmanager
    def working_on(self, agent: str) -> Iterator[bool]:
        """Lock an agent's jobs for as long as the block runs; yield False if another worker holds them."""
        # Agents' ids are safe in file names.
        with locked(self._path.with_name(f"{self._path.name}.{agent}.lock"), wait=False) as granted:
            yield granted

    # A job's life

    def note(self, agent: str, provider: EmbeddingProvider, hashes: Sequence[str], *, most_open: int) -> set[str]:
        """Note a job of an agent to be submitted to a provider; return the texts in it.

        Texts that are in a job already are left out. None is noted when `most_open` jobs are open, or nothing is left.
        """

        def note(writer: apsw.Connection) -> set[str]:
            writer.execute("INSERT INTO identities (identity) VALUES (?) ON CONFLICT DO NOTHING", (provider.identity,))
            identity = _number(writer, "SELECT id FROM identities WHERE identity = ?", provider.identity)
            if _number(writer, COUNT_OPEN, identity, provider.account) >= most_open:
                return set()
            values = (identity, provider.account, provider.name, provider.model, agent, self._clock())
            job = _number(writer, INSERT_JOB, secrets.token_hex(8), *values)
            noted = set()
            for text_hash in hashes:
                writer.execute(INSERT_TEXT, (identity, text_hash, job))
                if writer.changes():
                    noted.add(text_hash)
            if noted:
                writer.execute("UPDATE jobs SET texts = ? WHERE id = ?", (len(noted), job))
            else:
                writer.execute("DELETE FROM jobs WHERE id = ?", (job,))
            return noted

        return self._transaction(note)

    def save(self, job: BatchJob, *, without: Collection[str] = ()) -> None:
        """Write a job, and take texts out of it.

        A wish to stop that another process wrote meanwhile stays. `taken` is written by `settle` alone.
        """

        def save(writer: apsw.Connection) -> None:
            writer.execute(SAVE_JOB, asdict(job))
            _take_out(writer, job.reference, without)

        self._transaction(save)

    def settle(self, reference: str, hashes: Collection[str]) -> None:
        """Take texts out of a job whose vectors were kept."""

        def settle(writer: apsw.Connection) -> None:
            _take_out(writer, reference, hashes)
            writer.execute("UPDATE jobs SET taken = taken + ? WHERE reference = ?", (len(hashes), reference))

        self._transaction(settle)

    def stop(self, reference: str, reason: str) -> bool:
        """Note that a job is to stop, for the worker that polls it; return False if it is over, or stopping."""
        now = self._clock()

        def stop(writer: apsw.Connection) -> bool:
            writer.execute(STOP_JOB, (reason, now, reference))
            return writer.changes() > 0

        return self._transaction(stop)

    def clear_away(self, *, older_than_seconds: float) -> None:
        """Forget jobs that are over and were made so long ago, and the texts that were left in them."""
        before = self._clock() - older_than_seconds

        def clear(writer: apsw.Connection) -> None:
            writer.execute(CLEAR_TEXTS, (before,))
            writer.execute(CLEAR_JOBS, (before,))

        self._transaction(clear)

    # Queries

    def jobs(self) -> list[BatchJob]:
        """Return all jobs, the oldest first. Ended jobs are among them until they are cleared away."""
        return self._jobs("")

    def job(self, reference: str) -> BatchJob | None:
        """Return the job with this reference, None without one."""
        return next(iter(self._jobs(reference)), None)

    def hashes_in(self, reference: str) -> set[str]:
        """Return the texts that are in a job, or were left in it."""
        return self._hashes(f"{TEXTS} j.reference = ?", reference)

    def hashes(self, identity: str) -> set[str]:
        """Return the texts of an identity that are in open jobs."""
        return self._hashes(f"{OPEN_TEXTS} AND i.identity = ?", identity)

    def sent(self, identity: str, hashes: Sequence[str]) -> set[str]:
        """Return those of some texts that are in open jobs."""
        among = "AND i.identity = ? AND t.hash IN (SELECT value FROM json_each(?))"
        return self._hashes(f"{OPEN_TEXTS} {among}", identity, json.dumps(list(hashes)))

    def known_hashes(self, identity: str) -> set[str]:
        """Return the texts of an identity that go into no new job: in one now, or one ended without their vectors."""
        return self._hashes(f"{TEXTS} i.identity = ?", identity)

    def everything(self) -> set[tuple[str, str]]:
        """Return all texts that are in open jobs, as (identity, text hash)."""
        return {(identity, text_hash) for text_hash, identity in self._read(OPEN_TEXTS)}

    # The file

    def _jobs(self, reference: str) -> list[BatchJob]:
        jobs = [BatchJob(*row) for row in self._read(SELECT_JOBS, reference)]
        return [replace(job, stage=Stage(job.stage)) for job in jobs]

    def _hashes(self, query: str, *values: str) -> set[str]:
        return {text_hash for text_hash, _ in self._read(query, *values)}

    def _transaction(self, work: Callable[[apsw.Connection], T]) -> T:
        return self._file.guarded(lambda: self._file.transaction(work))

    def _read(self, query: str, *values: str | float) -> list[tuple[Any, ...]]:
        return self._file.guarded(lambda: self._file.connection().execute(query, values).fetchall())


def _take_out(writer: apsw.Connection, reference: str, hashes: Collection[str]) -> None:
    row = writer.execute("SELECT id, identity FROM jobs WHERE reference = ?", (reference,)).fetchone()
    if row is not None and hashes:
        writer.executemany(DELETE_TEXT, [(row[1], text_hash, row[0]) for text_hash in hashes])


def _number(connection: apsw.Connection, statement: str, *values: Any) -> int:
    return int(next(connection.execute(statement, values))[0])

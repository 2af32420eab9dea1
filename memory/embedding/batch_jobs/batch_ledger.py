"""Ledger of batch jobs and their texts, kept on disk: after a crash no text is paid for twice.

A job is noted before it is submitted, and a text leaves it after its vector was kept. The texts that are left in a job
at its end go into another one, twice at most. Then they wait for `recalld jobs resume`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

import structlog

from memory.embedding.batch_jobs.ledger_reader import OPEN_STATES, VERSION, has_ledger, ledger_path
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.table_writer import durable_tables
from memory.store.durable_sqlite import Kind
from memory.store.durable_tables import DurableTables, Rows, Run
from schemas.agents import Scope
from schemas.conditions import StopReason
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Settings

log = structlog.get_logger(__name__)


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

#: Jobs that a text goes into by itself, one after the other.
MOST_JOBS = 3

#: Reasons to stop a job at whose end its texts leave the ledger.
FREEING = (StopReason.OTHER_VECTORS, StopReason.SWITCHED_OFF, StopReason.AGENT_GONE)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job, as its row in the ledger. Times are Unix seconds.

    `reference` is our name of it ("-2" at its end: second job of its texts), `job_id` the provider's (None until
    known). `texts` were sent; `completed` and `failed` are the provider's counts; `taken` vectors were kept.
    `stop_reason` is a `StopReason`, "" without one; `message` describes the last failure, "" without one.
    `missing_looks` in a row, from `missing_since` on, did not find the job or its results at the provider.
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

    @property
    def number(self) -> int:
        """Return the place of the job among those of its texts; 0 after `recalld jobs resume`."""
        return 0 if self.stop_reason == StopReason.RESUMED else int(self.reference.partition("-")[2] or 1)

    @property
    def rest(self) -> Literal["none", "next_job", "waits"]:
        """Return the fate of the texts that the job left. Those of a lost job may come late, so they wait."""
        if self.open or self.stop_reason in FREEING or self.taken >= self.texts:
            return "none"
        is_last = self.stage is Stage.LOST or self.stop_reason == StopReason.CANCELLED or self.number >= MOST_JOBS
        return "waits" if is_last else "next_job"


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
-- Texts without a vector: at the provider while their job is open, for another job when it is over.
CREATE TABLE texts (
    identity INTEGER NOT NULL, hash TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (identity, hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX texts_by_job ON texts (job);
"""

#: Columns of jobs whose name is not that of `BatchJob`'s field.
_COLUMNS = {"identity": "{name}", "stage": "state"}

#: Fields that a job's worker writes. `taken` is counted as vectors are kept.
_SAVED = (
    *("job_id", "stage", "tried_at", "looked_at", "look_at", "ended_at", "attempts"),
    *("texts", "completed", "failed", "message", "missing_since", "missing_looks"),
)

SELECT_JOBS = f"""
SELECT {", ".join(_COLUMNS.get(column.name, column.name) for column in fields(BatchJob))}
FROM {{jobs}} AS r WHERE {{mine}} AND :reference IN ('', reference) ORDER BY id
"""  # noqa: S608 - names of fields
COUNT_OPEN = f"""
SELECT count(*) FROM {{jobs}}
WHERE {{mine}} AND identity = {{identity}} AND account = :account AND state IN {OPEN_STATES}
"""  # noqa: S608 - constants
INSERT_JOB = """
INSERT INTO {jobs} (
    {tenant}reference, identity, account, provider, model, agent, state, made_at, tried_at, looked_at, look_at, texts
) VALUES ({in_tenant}:reference, {identity}, :account, :provider, :model, :agent, 'submitting', :now, 0, 0, 0, 0)
RETURNING id
"""
INSERT_TEXTS = """
INSERT INTO {texts} ({tenant}identity, hash, job) SELECT {in_tenant}{identity}, value, :job FROM {hashes} AS h
WHERE TRUE ON CONFLICT DO NOTHING RETURNING hash
"""
# Another process may ask for a stop at any time. An ended job stays ended, unless a lost one is found.
SAVE_JOB = f"""
UPDATE {{jobs}} SET {", ".join(f"{_COLUMNS.get(name, name)} = :{name}" for name in _SAVED)},
    stopped_at = CASE WHEN :stopped_at > coalesce(stopped_at, 0) THEN :stopped_at ELSE stopped_at END,
    stop_reason = CASE stop_reason WHEN '' THEN :stop_reason ELSE stop_reason END
WHERE {{mine}} AND reference = :reference AND (ended_at IS NULL OR state = 'lost')
"""  # noqa: S608 - names of fields
ADD_TAKEN = "UPDATE {jobs} SET taken = taken + :count WHERE {mine} AND reference = :reference"
STOP_JOB = """
UPDATE {jobs} SET stop_reason = :reason, stopped_at = :now, look_at = 0
WHERE {mine} AND reference = :reference AND state IN ('submitting', 'running') AND stopped_at IS NULL RETURNING id
"""
_WITH_TEXTS = "id IN (SELECT job FROM {texts} WHERE {mine})"
RESUME_JOBS = f"""
UPDATE {{jobs}} SET stop_reason = '{StopReason.RESUMED}', state = CASE state WHEN 'lost' THEN 'failed' ELSE state END
WHERE {{mine}} AND agent = :agent AND (ended_at IS NOT NULL OR stop_reason = '{StopReason.CANCELLED}') AND {_WITH_TEXTS}
RETURNING id
"""  # noqa: S608 - constants
# By the beginning of a job: a lost one ends again each time that it is looked for and found.
END_SEARCH = "UPDATE {jobs} SET state = 'failed' WHERE {mine} AND state = 'lost' AND made_at < :before"
CLEAR_JOBS = f"""
DELETE FROM {{jobs}} WHERE {{mine}} AND ended_at IS NOT NULL AND made_at < :before AND NOT {_WITH_TEXTS}
"""  # noqa: S608 - constants
# The plus, here and below, keeps a database from going through all of a job's texts by its index.
DELETE_TEXTS = """
DELETE FROM {texts} WHERE {mine} AND hash {in_hashes}
    AND identity = (SELECT identity FROM {jobs} WHERE {mine} AND reference = :reference)
    AND +job = (SELECT id FROM {jobs} WHERE {mine} AND reference = :reference)
"""
TEXTS = "SELECT hash, {name} FROM {texts} AS r WHERE {mine} AND "
_OF_JOB = "job = (SELECT id FROM {jobs} WHERE {mine} AND reference = :reference)"
_OF_IDENTITY = "identity = {identity}"
_IS_OPEN = f"job IN (SELECT id FROM {{jobs}} WHERE {{mine}} AND state IN {OPEN_STATES})"  # noqa: S608 - constants
TAKE_TEXTS = f"DELETE FROM {{texts}} WHERE {{mine}} AND {_OF_IDENTITY} AND hash {{in_hashes}} AND NOT +{_IS_OPEN}"  # noqa: S608

KIND = Kind("the list of batch jobs", TABLES, version=VERSION)


def batch_jobs_of(settings: Settings, *agents: str) -> list[BatchJob]:
    """Return all jobs of a home, or of these agents' tenants; none without a ledger. Raises like `BatchLedger`."""
    jobs: list[BatchJob] = []
    for tenant in dict.fromkeys(Scope.of(agent).tenant for agent in agents if has_ledger(settings)):
        with BatchLedger.of(settings, tenant) as ledger:
            jobs += ledger.jobs()
    return jobs


def sent_in_jobs(settings: Settings, tenant: str, identity: str, hashes: Sequence[str]) -> set[str]:
    """Return those of some texts that jobs hold or left; none without a ledger, or if it cannot be read."""
    if not has_ledger(settings):
        return set()
    try:
        with BatchLedger.of(settings, tenant) as ledger:
            return ledger.sent(identity, hashes)
    except RecalldError as error:
        log.debug("batch_ledger_unreadable", error=str(error))
        return set()


def choice_path(home: Path, agent: str) -> Path:
    """Return the path of a file that exists while an agent's backlog goes through the Batch API by a command.

    The slash of a fleet's agent makes a folder of its tenant.
    """
    return ledger_path(home).with_name("batch_jobs") / f"{agent}.chosen"


def with_batch_jobs(agent: AgentSettings) -> AgentSettings:
    """Return an agent's settings with batch jobs enabled."""
    batch = agent.remote.batch.model_copy(update={"enabled": True})
    return agent.model_copy(update={"remote": agent.remote.model_copy(update={"batch": batch})})


class BatchLedger:
    """The jobs of one home, or of a fleet's tenant. Safe for several processes; one instance is for one thread.

    Raises, from every method: StoreFull, StoreBusy, StoreAway, StoreUnreadable.
    """

    def __init__(self, tables: DurableTables, *, clock: Callable[[], float] = time.time) -> None:
        self._tables = tables
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings, tenant: str) -> Self:
        """Return the ledger of a home, made if it is missing, or of a fleet's tenant."""
        return cls(durable_tables(settings, tenant, ledger_path(settings.home), KIND))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def working_on(self, agent: str) -> AbstractContextManager[bool]:
        """Lock an agent's jobs for as long as the block runs; yield False if another worker holds them."""
        return self._tables.lock(agent)

    # A job's life

    def note(
        self, agent: str, provider: EmbeddingProvider, hashes: Sequence[str], *, most_open: int, number: int = 1
    ) -> set[str]:
        """Note a job of an agent to be submitted to a provider; return the texts in it.

        Texts of open jobs are left out, and those that ended jobs left are taken over. None is noted when `most_open`
        jobs are open, or nothing is left. `number` counts the jobs of the same texts.
        """
        row = {
            "reference": secrets.token_hex(8) + (f"-{number}" if number > 1 else ""),
            "agent": agent,
            "now": self._clock(),
            "hashes": sorted(hashes),
            "identity": provider.identity,
            "account": provider.account,
            "provider": provider.name,
            "model": provider.model,
        }

        def note(run: Run) -> set[str]:
            # Of two processes with texts of one identity, the second sees the job of the first.
            run("{lock_identity}", row)
            if run(COUNT_OPEN, row)[0][0] >= most_open:
                return set()
            run(TAKE_TEXTS, row)
            [(job,)] = run(INSERT_JOB, row)
            noted = {text_hash for (text_hash,) in run(INSERT_TEXTS, row | {"job": job})}
            if noted:
                run("UPDATE {jobs} SET texts = :count WHERE {mine} AND id = :job", {"count": len(noted), "job": job})
            else:
                run("DELETE FROM {jobs} WHERE {mine} AND id = :job", {"job": job})
            return noted

        return self._tables.transaction(note)

    def save(self, job: BatchJob, *, without: Collection[str] = ()) -> None:
        """Write a job, and take texts out of it.

        A wish to stop that another process wrote meanwhile stays. `taken` is written by `settle` alone.
        """
        self._change(SAVE_JOB, DELETE_TEXTS, hashes=sorted(without), **asdict(job))

    def settle(self, reference: str, hashes: Collection[str]) -> None:
        """Take texts out of a job whose vectors were kept."""
        self._change(DELETE_TEXTS, ADD_TAKEN, reference=reference, hashes=sorted(hashes), count=len(hashes))

    def stop(self, reference: str, reason: str) -> bool:
        """Note that a job is to stop, for the worker that polls it; return False if it is over, or stopping."""
        return bool(self._change(STOP_JOB, reference=reference, reason=reason, now=self._clock()))

    def resume(self, agent: str) -> int:
        """Let the texts that an agent's jobs left go into another job; return the number of these jobs."""
        return len(self._change(RESUME_JOBS, agent=agent))

    def clear_away(self, *, older_than_seconds: float) -> None:
        """Forget jobs without texts that are over and were made so long ago; look no longer for lost ones."""
        self._change(END_SEARCH, CLEAR_JOBS, before=self._clock() - older_than_seconds)

    # Queries

    def jobs(self) -> list[BatchJob]:
        """Return all jobs, the oldest first. Ended jobs are among them until they are cleared away."""
        return self._jobs("")

    def job(self, reference: str) -> BatchJob | None:
        """Return the job with this reference, None without one."""
        return next(iter(self._jobs(reference)), None)

    def hashes_in(self, reference: str) -> set[str]:
        """Return the texts that are in a job, or were left in it."""
        return self._hashes(_OF_JOB, reference=reference)

    def hashes(self, identity: str) -> set[str]:
        """Return the texts of an identity that are in open jobs."""
        return self._hashes(f"{_OF_IDENTITY} AND {_IS_OPEN}", identity=identity)

    def sent(self, identity: str, hashes: Sequence[str]) -> set[str]:
        """Return those of some texts that are in jobs, or were left in them."""
        return self._hashes(f"{_OF_IDENTITY} AND hash {{in_hashes}}", identity=identity, hashes=sorted(hashes))

    def everything(self) -> set[tuple[str, str]]:
        """Return all texts that are in open jobs, as (identity, text hash)."""
        return {(identity, text_hash) for text_hash, identity in self._tables.read(TEXTS + _IS_OPEN, {})}

    def _jobs(self, reference: str) -> list[BatchJob]:
        jobs = [BatchJob(*row) for row in self._tables.read(SELECT_JOBS, {"reference": reference})]
        return [replace(job, stage=Stage(job.stage)) for job in jobs]

    def _hashes(self, condition: str, **row: str | list[str]) -> set[str]:
        return {text_hash for text_hash, _ in self._tables.read(TEXTS + condition, row)}

    def _change(self, *statements: str, **row: Any) -> Rows:
        """Run statements with the same values in one transaction; return the rows of the last."""
        return self._tables.transaction(lambda run: [run(statement, row) for statement in statements][-1])

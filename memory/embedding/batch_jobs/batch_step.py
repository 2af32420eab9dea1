"""One step of a batch job: it is submitted, polled, its results are kept, or it is given up.

`step` returns the job as it is afterwards, and its caller writes that to the ledger. A step that a crash interrupts is
done again: a job that may have been submitted is looked for by its reference first, and results are kept twice at most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from memory.embedding.batch_jobs.batch_api import BatchApi, BatchLine, BatchUnavailable
from memory.embedding.batch_jobs.batch_ledger import BatchJob, Stage
from memory.store.errors import StoreBusy, StoreFull, Superseded
from schemas.conditions import StopReason
from schemas.errors import Permanent, RecalldError, Terminal, Transient, backoff

#: Attempts to submit a job before it counts as failed.
MOST_ATTEMPTS = 3

#: Seconds that a provider may take to stop a job (both document up to 10 minutes).
STOPPING_SECONDS = 660.0

#: Looks without a job or its results before they count as gone.
MISSING_LOOKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTiming:
    """Times of batch jobs in seconds."""

    #: A job that is not full waits for documents that are still being read.
    gathering: float = 60.0
    #: A job that a crashed process submitted is in the provider's list by then.
    unseen: float = 3.0
    #: From the first to the last look without a job or its results before they count as gone. A gateway that restarts
    #: says so as well.
    missing: float = 600.0
    #: Between two looks for a job that was given up: its results may come late.
    late: float = 60.0
    #: Bounds of the pause after a failed call.
    shortest_pause: float = 0.5
    longest_pause: float = 300.0


#: Times outside of tests.
BATCH_TIMING = BatchTiming()


class JobDesk(Protocol):
    """Owner of a job's texts and vectors. Its methods raise the errors of `memory.store.errors`."""

    def texts(self, job: BatchJob) -> Iterator[tuple[str, str]]:
        """Yield (text hash, text) of the job's texts that still lack vectors, the oldest first."""

    def submitting(self, job: BatchJob, hashes: Collection[str]) -> None:
        """Write the job to the ledger, with these texts alone."""

    def collect(self, job: BatchJob, lines: Iterator[BatchLine]) -> int | None:
        """Keep vectors, and return how many were usable; None if time ran out before the last line."""


@dataclass(frozen=True, slots=True)
class JobRules:
    """Bounds of a step in seconds, and the present reason to stop a job of its kind, if there is one."""

    poll_seconds: float
    timeout_seconds: float
    stop: StopReason | None = None
    timing: BatchTiming = BATCH_TIMING


def step(
    job: BatchJob, api: BatchApi | None, desk: JobDesk, rules: JobRules, *, now: float, steady: float = math.inf
) -> BatchJob:
    """Return an open or lost job after its next calls. `api` is None if the settings do not lead to its provider.

    `steady` is the Unix time of a clock that is never set: a job is overdue by both. An attempt ahead counts as now.
    """
    job = replace(job, tried_at=min(job.tried_at, now))
    overdue = min(now, steady) - job.made_at > rules.timeout_seconds
    if api is None:
        message = f"it is at {job.provider}, which the settings do not lead to any more"
        if job.open and not overdue:
            return _postpone(job, message, rules, now)
        return _end(job, Stage.LOST, message, rules, now)
    reason = rules.stop or (StopReason.TOO_LONG if overdue else None)
    if reason is not None and job.open and not job.stop_reason:
        job = replace(job, stop_reason=reason.value, stopped_at=now)
    try:
        if job.stage is Stage.LOST:
            return _find_lost(job, api, rules, now)
        if job.job_id is None:
            return _submit(job, api, desk, rules, now)
        return _poll(job, job.job_id, api, desk, rules, now)
    except (StoreFull, StoreBusy, Superseded):
        raise
    except (BatchUnavailable, Transient, Terminal, Permanent) as error:
        if job.stage is Stage.LOST:
            return _end(job, Stage.LOST, job.message, rules, now)
        if not job.tried_at and isinstance(error, BatchUnavailable | Permanent):
            return _end(job, Stage.FAILED, str(error), rules, now)
        if _stops_for_long(job, now):
            return _end(job, Stage.LOST, f"the provider does not tell its state: {error}", rules, now)
        if job.job_id is None and isinstance(error, BatchUnavailable):
            return _count_miss(job, str(error), rules, now)
        return _postpone(job, str(error), rules, now, error)


def _submit(job: BatchJob, api: BatchApi, desk: JobDesk, rules: JobRules, now: float) -> BatchJob:
    if job.tried_at:  # the provider may have it
        if now < job.tried_at + rules.timing.unseen:
            return replace(job, look_at=job.tried_at + rules.timing.unseen)
        job_id = api.find(job.reference)
        if job_id is not None:
            return replace(job, job_id=job_id, stage=Stage.RUNNING, attempts=0, look_at=now)
    if job.stop_reason:
        return _end(job, Stage.CANCELLED, "", rules, now)
    if job.attempts >= MOST_ATTEMPTS:
        return _end(job, Stage.FAILED, job.message, rules, now)
    file = api.write(desk.texts(job))
    with file.content:
        if not file.ids:
            return _end(job, Stage.CANCELLED, "nothing waits for its vectors any more", rules, now)
        job = replace(job, tried_at=now, texts=len(file.ids))
        desk.submitting(job, file.ids)
        job_id = api.submit(file, reference=job.reference)
    return replace(job, job_id=job_id, stage=Stage.RUNNING, attempts=0, look_at=now + rules.poll_seconds)


def _poll(job: BatchJob, job_id: str, api: BatchApi, desk: JobDesk, rules: JobRules, now: float) -> BatchJob:
    is_stopping = False
    if job.stop_reason and job.stage is Stage.RUNNING:
        with suppress(Transient):  # it is asked again at the next look
            is_stopping = api.cancel(job_id)
    answer = api.look(job_id)
    if answer is None:
        missing_job = _count_miss(job, "the provider does not have it", rules, now)
        if not missing_job.open:
            api.cancel(job_id)  # it may run all the same
        return missing_job
    polled = replace(job, message=answer.message, completed=answer.completed, failed=answer.failed)
    look_at = now + rules.poll_seconds
    polled = replace(polled, looked_at=now, look_at=look_at, attempts=0, missing_since=None, missing_looks=0)
    if answer.stage is not Stage.RUNNING:
        try:
            usable = desk.collect(polled, api.results(answer, texts=job.texts))
        except BatchUnavailable as error:
            return _count_miss(job, str(error), rules, now)
        if usable is None:
            return replace(polled, look_at=now)
        if answer.stage is Stage.DONE and job.taken + usable == 0:
            return _end(polled, Stage.FAILED, answer.message or "no line of its results holds a vector", rules, now)
        return _end(polled, answer.stage, answer.message, rules, now)
    if answer.unknown_state:
        message = f"the provider reports a state that recalld does not know: {answer.unknown_state}"
        polled = _postpone(replace(polled, attempts=job.attempts, completed=job.completed), message, rules, now)
    if is_stopping:
        return replace(polled, stage=Stage.STOPPING, stopped_at=now)
    if _stops_for_long(job, now):
        return _end(polled, Stage.LOST, "the provider did not stop it", rules, now)
    return polled


def _find_lost(job: BatchJob, api: BatchApi, rules: JobRules, now: float) -> BatchJob:
    """Return a lost job, open again if its provider has it after all: its results come late."""
    job_id = job.job_id or api.find(job.reference)
    answer = api.look(job_id) if job_id is not None else None
    unstopped = answer is not None and answer.stage is Stage.RUNNING and job.stop_reason
    if job_id is not None and unstopped:
        api.cancel(job_id)
    if answer is None or unstopped:
        return _end(job, Stage.LOST, job.message, rules, now)
    return replace(job, job_id=job_id, stage=Stage.RUNNING, ended_at=None, look_at=now, attempts=0)


def _count_miss(job: BatchJob, message: str, rules: JobRules, now: float) -> BatchJob:
    """Return a job after a look that did not find it or its results: lost if it was not there for long."""
    since = min(now, now if job.missing_since is None else job.missing_since)
    job = replace(job, missing_since=since, missing_looks=job.missing_looks + 1)
    if job.missing_looks >= MISSING_LOOKS and now - since >= rules.timing.missing:
        return _end(job, Stage.LOST, message, rules, now)
    return _postpone(job, message, rules, now)


def _end(job: BatchJob, stage: Stage, message: str, rules: JobRules, now: float) -> BatchJob:
    look_at = now + rules.timing.late if stage is Stage.LOST else job.look_at
    return replace(job, stage=stage, message=message, ended_at=job.ended_at or now, look_at=look_at)


def _postpone(job: BatchJob, message: str, rules: JobRules, now: float, error: RecalldError | None = None) -> BatchJob:
    """Return a job after a failed call, with exponential backoff or the pause that the provider asks for."""
    retry_after = error.retry_after if isinstance(error, Transient) else None
    first = max(rules.poll_seconds, rules.timing.shortest_pause)
    pause = backoff(job.attempts + 1, first=first, longest=rules.timing.longest_pause)
    look_at = now + max(pause, retry_after or 0.0)
    return replace(job, attempts=job.attempts + 1, tried_at=now, message=message, look_at=look_at)


def _stops_for_long(job: BatchJob, now: float) -> bool:
    return job.stopped_at is not None and now - job.stopped_at > STOPPING_SECONDS

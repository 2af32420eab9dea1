"""Batch job from its submission to its end: polled, stopped when it takes too long, its vectors stored."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.batch_jobs.batch_api import BatchApi, BatchLine, BatchUnavailable, JobState
from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Stage
from memory.embedding.coordination import believed
from memory.embedding.vectors import round_rows
from memory.index.commit_batch import MAX_CHUNKS_PER_COMMIT
from memory.index.indexer import Indexer, dimensions_of
from memory.status.condition_texts import stop_text
from memory.store.errors import StoreBusy, StoreFull, Superseded
from memory.store.reader import Vector
from schemas.conditions import StopReason
from schemas.errors import Permanent, RecalldError, Terminal, Transient
from schemas.ports import Usage
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Failed jobs in a row after which no job is made, and the seconds of that suspension.
MOST_FAILURES = 2
SUSPENSION_SECONDS = 86_400.0

#: Attempts to submit a job before it counts as failed.
MOST_ATTEMPTS = 3

#: Seconds after which a job that a crashed process submitted is in the provider's list.
UNSEEN_SECONDS = 3.0

#: Seconds that a provider may take to stop a job (both document up to 10 minutes).
STOPPING_SECONDS = 660.0

#: Maximum pause in seconds between two failed calls.
LONGEST_PAUSE_SECONDS = 300.0

#: Seconds of one turn spent on storing results; the next turn stores the rest.
TAKING_SECONDS = 240.0

_STAGES = {
    JobState.DONE: Stage.DONE,
    JobState.FAILED: Stage.FAILED,
    JobState.EXPIRED: Stage.EXPIRED,
    JobState.CANCELLED: Stage.CANCELLED,
    JobState.RUNNING: Stage.LOST,
}


class JobFollower:
    """Follower of the batch jobs of one agent's indexer. The caller holds the lock of the jobs' agent.

    Every method raises the errors of `memory.store.errors`. Stored vectors stay, and the next look continues.
    """

    def __init__(self, runtime: Runtime, indexer: Indexer, ledger: BatchLedger, api: BatchApi | None) -> None:
        self._runtime = runtime
        self._indexer = indexer
        self._ledger = ledger
        self._api = api
        self._settings = indexer.agent.remote.batch
        self._supply = indexer.supply
        self._poll_seconds = self._settings.poll_interval_ms / 1000

    def send(self, job: BatchJob) -> None:
        """Submit a job that is in the ledger."""
        if self._api is None:
            return
        hashes = self._ledger.hashes_in(job.reference)
        try:
            file = self._api.write(self._texts(hashes))
            with file.content:
                # Texts that are not pending need no vector. Texts that do not fit go into another job.
                self._ledger.leave_out(job.reference, hashes.difference(file.ids))
                if not file.ids:
                    self._ledger.end(
                        job.reference, Stage.CANCELLED, "nothing waits for its vectors any more", again=True
                    )
                    return
                job_id = self._api.submit(file, reference=job.reference)
        except (StoreFull, StoreBusy, Superseded):
            raise
        except Transient as error:
            self._failed_call(job, error)
            return
        except (Permanent, Terminal, BatchUnavailable) as error:
            self._not_taken(job, error)
            return
        self._ledger.submitted(job.reference, job_id, look_at=time.time() + self._poll_seconds)
        log.info("batch_job_submitted", reference=job.reference, job=job_id, texts=len(file.ids))

    def follow(self, job: BatchJob) -> None:
        """Look at an open job that is due: find, store, stop or end it."""
        if self._api is None or not self._reachable(job):
            self._cannot_ask(job)
            return
        reason = self._reason_to_stop(job)
        if reason and job.stopped_at is None:
            self._ledger.stop(job.reference, reason.value)
            job = self._ledger.job(job.reference) or job
            log.info("batch_job_stopped", reference=job.reference, reason=reason.value)
        try:
            if job.job_id is None:
                self._find(self._api, job)
            else:
                self._look(self._api, job, job.job_id)
        except (StoreFull, StoreBusy, Superseded):
            raise
        except BatchUnavailable as error:
            self._not_taken(job, error)
        except (Transient, Terminal, Permanent) as error:
            self._failed_call(job, error)
            if self._too_long_stopping(job):
                self._end(job, Stage.LOST, f"the provider does not tell its state: {error}")

    # Polling

    def _find(self, api: BatchApi, job: BatchJob) -> None:
        """Find a job whose submission was interrupted."""
        due = job.tried_at + UNSEEN_SECONDS
        if time.time() < due:
            self._ledger.postpone(job.reference, look_at=due)
            return
        found = api.find(job.reference)
        if found is not None:
            self._ledger.submitted(job.reference, found, look_at=time.time())
            log.info("batch_job_found", reference=job.reference, job=found)
        elif job.stopped_at is not None:
            self._ledger.end(job.reference, Stage.CANCELLED, stop_text(job.stop_reason), again=self._may_go_again(job))
        elif job.attempts >= MOST_ATTEMPTS:
            self._end(job, Stage.FAILED, job.message)
        else:
            self.send(job)

    def _look(self, api: BatchApi, job: BatchJob, job_id: str) -> None:
        if job.stopped_at is not None and job.stage is not Stage.STOPPING:
            api.cancel(job_id)
            self._ledger.stopping(job.reference, look_at=time.time())
        progress = api.look(job_id)
        self._ledger.looked(job.reference, progress, look_at=time.time() + self._poll_seconds)
        if progress.state is JobState.RUNNING:
            if self._too_long_stopping(job):
                self._end(job, Stage.LOST, "the provider did not stop it")
            return
        if not self._take(api, job, job_id):
            self._ledger.postpone(job.reference, look_at=time.time())
            return
        self._end(job, _STAGES[progress.state], progress.message)
        api.clean_up(job_id)

    def _failed_call(self, job: BatchJob, error: RecalldError) -> None:
        asked = error.retry_after if isinstance(error, Transient) else None
        pause = min(LONGEST_PAUSE_SECONDS, max(self._poll_seconds, 0.5) * 2 ** min(job.attempts, 10))
        self._ledger.tried(job.reference, str(error), look_at=time.time() + max(pause, asked or 0.0))
        log.warning("batch_job_call_failed", reference=job.reference, error=str(error))

    def _cannot_ask(self, job: BatchJob) -> None:
        """Postpone a job of another account or provider: the settings may come back."""
        message = f"it is at {job.provider}, which the settings do not lead to any more"
        if self._overdue(job):
            self._ledger.end(job.reference, Stage.LOST, message, again=True)
        else:
            self._ledger.tried(job.reference, message, look_at=time.time() + min(60.0, max(self._poll_seconds, 1.0)))

    # Deciding

    def _reachable(self, job: BatchJob) -> bool:
        provider = self._supply.choice.provider
        return provider is not None and provider.account == job.account and provider.name == job.provider

    def _reason_to_stop(self, job: BatchJob) -> StopReason | None:
        if job.identity != self._supply.identity:
            return StopReason.OTHER_VECTORS
        if not self._settings.enabled:
            return StopReason.SWITCHED_OFF
        if job.agent != self._indexer.agent.id:
            return StopReason.AGENT_GONE
        return StopReason.TOO_LONG if self._overdue(job) else None

    def _overdue(self, job: BatchJob) -> bool:
        return time.time() - job.made_at > self._settings.timeout_minutes * 60

    def _too_long_stopping(self, job: BatchJob) -> bool:
        return job.stopped_at is not None and time.time() - job.stopped_at > STOPPING_SECONDS

    def _may_go_again(self, job: BatchJob) -> bool:
        """Return True if a stopped job's texts may go into another job: not if a user or a timeout stopped it."""
        return job.identity != self._supply.identity or not self._settings.enabled

    def _not_taken(self, job: BatchJob, error: RecalldError) -> None:
        """End a job that the provider refused."""
        self._end(job, Stage.FAILED, str(error), most=1 if isinstance(error, BatchUnavailable) else MOST_FAILURES)

    def _end(self, job: BatchJob, stage: Stage, message: str, *, most: int = MOST_FAILURES) -> None:
        """Record the end of a job. `most` failures in a row suspend jobs for a day."""
        current = self._ledger.job(job.reference) or job
        nothing_came = stage is Stage.DONE and current.taken == 0
        said = (
            message
            or stop_text(current.stop_reason)
            or ("no line of its results holds a vector" if nothing_came else "")
        )
        asked_for = bool(current.stop_reason) and current.stop_reason != StopReason.TOO_LONG
        failed = not asked_for and (stage is not Stage.DONE or nothing_came)
        left = self._ledger.end(job.reference, stage, said, again=bool(asked_for and self._may_go_again(current)))
        self._record(job, requests=1, failed=int(failed))
        log.info("batch_job_ended", reference=job.reference, stage=stage.value, taken=current.taken, left=left)
        if failed:
            last = f"{stage.value}: {said}" if said else stage.value
            reason = (
                said
                if most == 1
                else f"two batch jobs in a row came to nothing at {job.provider} (the last one {last})"
            )
            row = self._ledger.failed(job.identity, reason, most=most, pause_seconds=SUSPENSION_SECONDS)
            log.warning("batch_job_failed", reference=job.reference, stage=stage.value, reason=said, in_a_row=row)
        elif current.taken:
            self._ledger.succeeded(job.identity)

    # Storing

    def _texts(self, hashes: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield (text hash, text) of the texts that still wait, the oldest first."""
        store = self._indexer.target()
        chunks: dict[str, int] = {}
        for chunk, text_hash in store.pending_hashes().items():
            if text_hash in hashes:
                chunks.setdefault(text_hash, chunk)
        for group in grouped(iter(chunks.items()), MAX_CHUNKS_PER_COMMIT):
            rows = store.chunk_rows([chunk for _, chunk in group])
            yield from ((text_hash, rows[chunk].text) for text_hash, chunk in group if chunk in rows)

    def _take(self, api: BatchApi, job: BatchJob, job_id: str) -> bool:
        """Store the results of a job. Return False if the time was not enough for all."""
        deadline = time.monotonic() + TAKING_SECONDS
        left = self._ledger.hashes_in(job.reference)
        if not left:
            return True
        ids = ids_by_hash(self._indexer.target().pending_hashes())
        begun = time.monotonic()
        for lines in grouped(api.results(job_id, texts=job.texts), MAX_CHUNKS_PER_COMMIT):
            ours = {line.custom_id: line for line in lines if line.custom_id in left}
            left.difference_update(ours)
            if ours:
                self._keep(job, ours, ids, begun)
            if time.monotonic() > deadline:
                return False
            begun = time.monotonic()
        return True

    def _keep(
        self, job: BatchJob, lines: Mapping[str, BatchLine], ids: Mapping[str, Sequence[int]], begun: float
    ) -> None:
        """Commit some results: the cache first, then the index, then the ledger. Each step may be repeated."""
        vectors = self._usable(job, lines)
        tokens = self._tokens(lines, vectors, ids)
        if self._supply.cache is not None:
            self._supply.cache.put_many(job.identity, vectors)
        if job.identity == self._supply.identity and vectors:
            joined = self._indexer.target().write_vectors(
                {chunk: (text_hash, row) for text_hash, row in vectors.items() for chunk in ids.get(text_hash, ())}
            )
            self._runtime.board.record_vectors(self._indexer.agent.id, count=joined, seconds=time.monotonic() - begun)
        self._record(job, inputs=len(vectors), tokens=tokens)
        self._ledger.settle(job.reference, vectors.keys(), taken=len(vectors))
        refused = lines.keys() - vectors.keys()
        if refused:
            # They stay in the job until it ends. Then they are embedded the normal way.
            reasons = Counter(lines[text_hash].reason or "its vector is of no use" for text_hash in refused)
            [(reason, _)] = reasons.most_common(1)
            log.warning("batch_lines_failed", reference=job.reference, lines=len(refused), reason=reason)

    def _usable(self, job: BatchJob, lines: Mapping[str, BatchLine]) -> dict[str, Vector]:
        """Return the finite, non-zero vectors of the right width, rounded as in the cache."""
        found = {text_hash: line.vector for text_hash, line in lines.items() if line.vector is not None}
        width = dimensions_of(self._indexer.target()) if job.identity == self._supply.identity else None
        if width is None:
            widths = Counter(vector.shape[0] for vector in found.values())
            width = widths.most_common(1)[0][0] if widths else 0
        fitting = {text_hash: vector for text_hash, vector in found.items() if vector.shape == (width,) and width}
        if not fitting:
            return {}
        rows, unusable = round_rows(np.stack(list(fitting.values())), expected=len(fitting), dimensions=width)
        return {text_hash: row for text_hash, row, bad in zip(fitting, rows, unusable, strict=True) if not bad}

    def _tokens(
        self, lines: Mapping[str, BatchLine], vectors: Mapping[str, Vector], ids: Mapping[str, Sequence[int]]
    ) -> int:
        """Return the tokens that the provider counted, or an estimate where its count is missing or implausible."""
        chunks = {text_hash: ids[text_hash][0] for text_hash in vectors if text_hash in ids}
        rows = self._indexer.target().chunk_rows(list(chunks.values()))
        total = 0
        for text_hash in vectors:
            row = rows.get(chunks[text_hash]) if text_hash in chunks else None
            estimated = estimate_tokens(row.text) if row is not None else 0.0
            told = believed(lines[text_hash].tokens, estimated)
            total += round(estimated) if told is None else told
        return total

    def _record(self, job: BatchJob, *, requests: int = 0, failed: int = 0, inputs: int = 0, tokens: int = 0) -> None:
        if self._supply.coordination is None:
            return
        usage = Usage(job.provider, job.model, requests=requests, failed=failed, inputs=inputs, tokens=tokens)
        self._supply.coordination.usage.record_usage(usage, agents={job.agent: usage})


def ids_by_hash(pending: Mapping[int, str]) -> dict[str, list[int]]:
    """Return text hash -> chunks, from chunk -> text hash."""
    found: dict[str, list[int]] = {}
    for chunk, text_hash in pending.items():
        found.setdefault(text_hash, []).append(chunk)
    return found


def grouped(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yield lists of up to `size` items."""
    while group := list(islice(items, size)):
        yield group

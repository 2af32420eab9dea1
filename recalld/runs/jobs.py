"""Batch jobs and queue, as one answer and as lines; cancellation of a batch job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click
import redis

from memory.embedding.batch_jobs.batch_api import batch_api_of
from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Stage, batch_jobs_of, ledger_path
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import duration, stop_text
from memory.status.private_broker import frozen_pid
from recalld.invocation import Invocation
from recalld.up.lock import anybody_runs
from recalld.wiring import open_broker
from schemas.conditions import StopReason
from schemas.errors import BrokerUnavailable, RecalldError, UserError
from schemas.settings import Settings
from workers.queue.connection import refusal
from workers.queue.job_queue import queued_jobs
from workers.queue.names import POLL_BATCH_JOBS
from workers.queue.private_server import AWAY

#: Seconds for which a batch job that is over is still shown to a person.
_SHOWN_SECONDS = 86_400.0

NOTHING_FOUND = 3


def jobs_answer(invocation: Invocation) -> dict[str, Any]:
    """Return batch jobs and queue. Times are Unix seconds; `queue` is None if not known, for the `queueProblem`."""
    settings = invocation.settings
    ids = [agent.id for agent in invocation.agents()]
    # Without --agent also those of agents that are not configured any more.
    jobs = [_shown(job) for job in batch_jobs_of(settings.home) if invocation.agent is None or job.agent in ids]
    queue, problem = None, None
    try:
        queue = _queue(settings, ids)
    except redis.RedisError as error:
        problem = _problem(settings, error)
    return {"batchJobs": jobs, "queue": queue, "queueProblem": problem}


def jobs_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Return the answer for a terminal, without the problem of the queue, which the command raises."""
    now = time.time()
    jobs = [job for job in answer["batchJobs"] if job["endedAt"] is None or now - job["endedAt"] < _SHOWN_SECONDS]
    yield click.style("batch jobs", bold=True) + ("" if jobs else ": none")
    for job in jobs:
        yield f"  {job['reference']}  {job['agent']}  {job['provider']} {job['model']}  {_state_of(job, now)}"
        if job["message"]:
            yield f"    {job['message']}"
    if answer["queue"] is None:
        known = "not known" if answer["queueProblem"] else "nothing runs; `recalld up` starts everything"
        yield click.style("queue", bold=True) + f": {known}"
        return
    yield click.style("queue", bold=True) + ("" if any(map(_busy, answer["queue"])) else ": empty")
    for agent in filter(_busy, answer["queue"]):
        waiting = agent["live"] + agent["backfill"]
        yield f"  {agent['agent']}: {waiting:,} notes wait, {agent['running']:,} are being indexed"
        for work in agent["work"]:
            when = f", again in {duration(max(0.0, work['dueAt'] - now))}" if work["dueAt"] is not None else ""
            yield f"    {work['what']}: {work['state']}{when}"


def cancel_job(invocation: Invocation, reference: str) -> str:
    """Cancel a batch job; return the sentence to show.

    Raises:
        UserError: there is no such job, or it is over.
    """
    settings = invocation.settings
    job = next((one for one in batch_jobs_of(settings.home) if one.reference == reference), None)
    if job is None:
        raise UserError(f"no batch job is called {reference}: `recalld jobs` lists them", exit_code=NOTHING_FOUND)
    if not job.open:
        raise UserError(f"the batch job {reference} is over ({job.stage.value})")
    with BatchLedger(ledger_path(settings.home)) as ledger:
        if not ledger.stop(reference, StopReason.CANCELLED.value):
            return f"{reference} is being stopped already"
        asked = _ask_provider(settings, job)
        if asked is None:
            ledger.save(replace(job, stage=Stage.STOPPING, look_at=0.0))
    # Without the broker, the next worker that starts polls the job.
    with open_broker(settings) as broker, suppress(BrokerUnavailable):
        broker.queue.request(POLL_BATCH_JOBS, job.agent)
    return (
        f"{reference}: {asked or f'{job.provider} was asked to stop it'}; what it did is kept, its other texts are "
        "embedded the normal way as soon as workers run"
    )


def _ask_provider(settings: Settings, job: BatchJob) -> str | None:
    """Ask the provider at once to stop a job. Return the reason why a worker has to do it; None if done."""
    agent = next((one for one in settings.agents if one.id == job.agent), None)
    provider = provider_of(settings, agent).provider if agent is not None else None
    api = batch_api_of(provider) if provider is not None and provider.account == job.account else None
    if provider is None or api is None or job.job_id is None:
        return "the next look at it stops it"
    try:
        api.cancel(job.job_id)
    except RecalldError as error:
        return f"{job.provider} did not take it now ({error}) and is asked again"
    finally:
        provider.close()
    return None


def _shown(job: BatchJob) -> dict[str, Any]:
    return {
        "reference": job.reference,
        "jobId": job.job_id,
        "agent": job.agent,
        "provider": job.provider,
        "model": job.model,
        "state": job.stage.value,
        "texts": job.texts,
        "completed": job.completed,
        "failed": job.failed,
        "taken": job.taken,
        "madeAt": job.made_at,
        "lookedAt": job.looked_at or None,
        "endedAt": job.ended_at,
        "message": job.message or stop_text(job.stop_reason),
    }


def _problem(settings: Settings, error: redis.RedisError) -> str | None:
    """Return why the queue cannot be asked and what to do; None for a private broker while nothing runs."""
    if settings.broker.url is not None:
        return refusal(error) or AWAY
    frozen = frozen_pid(settings.home)
    if frozen is not None:
        return f"the private broker is stopped; `kill -CONT {frozen}` lets it go on"
    if not anybody_runs(settings.home):
        return None
    return (
        f"recalld runs and its private broker does not answer: look into {settings.home / 'broker' / 'valkey.log'}; "
        "`recalld up` starts it again when it is gone"
    )


def _queue(settings: Settings, agents: list[str]) -> list[dict[str, Any]]:
    """Return what waits and runs, by agent. Raises `redis.RedisError`."""
    with open_broker(settings) as broker:
        messages = queued_jobs(broker.client, broker.keys)
        waiting = {agent: broker.queue.marks.waiting(agent) for agent in agents}
    return [
        {
            "agent": agent,
            "live": waiting[agent].live,
            "backfill": waiting[agent].backfill,
            "running": waiting[agent].running,
            "work": [
                {"what": job.work, "state": job.state.value, "dueAt": job.due_at}
                for job in messages
                if job.agent == agent
            ],
        }
        for agent in agents
    ]


def _busy(agent: Mapping[str, Any]) -> bool:
    return bool(agent["live"] or agent["backfill"] or agent["running"] or agent["work"])


def _state_of(job: Mapping[str, Any], now: float) -> str:
    age = duration(max(0.0, now - job["madeAt"]))
    if job["endedAt"] is not None:
        return f"{job['state']}: {job['taken']:,} of {job['texts']:,} texts have their vectors ({age} ago)"
    if job["state"] == Stage.SUBMITTING.value:
        return f"{job['texts']:,} texts are being submitted (for {age})"
    return f"{job['state']}: {job['completed']:,} of {job['texts']:,} texts done (for {age})"

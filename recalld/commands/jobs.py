"""`recalld jobs`: batch jobs at embedding providers, and the queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import Any

import click

from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Stage, batch_jobs_of
from memory.status.condition_texts import counted, duration, since, stop_text
from memory.status.run_files import frozen_pid
from recalld import logs
from recalld.invocation import NOTHING_FOUND, CommandGroup, Invocation, examples, json_option, pass_invocation, to_type
from recalld.terminal_text import fields, print_answer
from recalld.up.lock import broker_away
from recalld.wiring import open_broker
from schemas.agents import Scope
from schemas.errors import BrokerUnavailable, UserError
from schemas.settings import Settings
from workers.queue.connection import BrokerAway
from workers.queue.job_queue import queued_jobs

#: Seconds for which a batch job that is over is still shown to a person.
_SHOWN_SECONDS = 86_400.0


@click.group(
    "jobs", cls=CommandGroup, invoke_without_command=True, epilog=examples("recalld jobs", "recalld jobs --json")
)
@json_option
@click.pass_context
def jobs(ctx: click.Context, *, as_json: bool) -> None:
    """List the batch jobs at embedding providers, and the queue's waiting and running work.

    Leaves with exit code 1 when the broker does not answer although it should.
    """
    if ctx.invoked_subcommand is not None:
        return
    logs.configure_logs(level=40)
    invocation = ctx.ensure_object(Invocation)
    settings, ids = invocation.settings, [agent.id for agent in invocation.agents(lambda _: ())]
    jobs = [_body(job) for job in _batch_jobs(invocation)]
    queue, problem = None, None
    try:
        queue = _queue(settings, ids, all_agents=invocation.fleet is not None and invocation.agent is None)
    except BrokerAway as error:
        problem = _problem(settings, error)
    answer = {"batchJobs": jobs, "queue": queue, "queueProblem": problem}
    print_answer(answer, map(to_type, chain(_job_lines(jobs), _queue_lines(queue, problem))), as_json=as_json)
    if problem is not None:
        raise UserError(problem)


@jobs.command("cancel", epilog=examples("recalld jobs cancel 3f2a9c"))
@click.argument("reference")
@pass_invocation
def cancel(invocation: Invocation, *, reference: str) -> None:
    """Cancel the batch job REFERENCE at its provider.

    What it did by then is kept and not paid for again. Its other texts, and those of later jobs, wait for `recalld jobs
    resume`. Leaves with exit code 3 when there is no such job.
    """
    job = next((candidate for candidate in _batch_jobs(invocation) if candidate.reference == reference), None)
    if job is None:
        raise UserError(f"no batch job is called {reference}: `recalld jobs` lists them", exit_code=NOTHING_FOUND)
    if not job.open:
        raise UserError(f"the batch job {reference} is over ({job.stage.value})")
    from recalld.runs.backfill import stop_job

    resume_command = invocation.command("jobs resume", agent=job.agent)
    click.echo(f"{stop_job(invocation, job)}; its other texts wait; `{resume_command}` sends them in another batch job")


@jobs.command("resume", epilog=examples("recalld jobs resume"))
@pass_invocation
def resume(invocation: Invocation) -> None:
    """Send the texts that batch jobs left without vectors in another batch job.

    They wait after `recalld jobs cancel`, and after three jobs that did not bring their vectors.
    """
    settings = invocation.settings
    for agent in dict.fromkeys(job.agent for job in _batch_jobs(invocation)):
        with BatchLedger.of(settings, Scope.of(agent).tenant) as ledger, open_broker(settings) as broker:
            count = ledger.resume(agent)
            with suppress(BrokerUnavailable):  # the next worker that starts looks by itself
                broker.queue.request_vectors(agent)
        click.echo(f"{agent}: {counted(count, 'batch job')} resumed; their texts go on as soon as workers run")


def _batch_jobs(invocation: Invocation) -> list[BatchJob]:
    """Return the batch jobs of the call's agents; without --agent also of agents that are not configured any more."""
    ids, fleet = [agent.id for agent in invocation.agents(lambda _: ())], invocation.fleet
    if invocation.agent is not None:
        return [job for job in batch_jobs_of(invocation.settings, *ids) if job.agent in ids]
    tenants = (Scope(tenant, "").agent_id for tenant in fleet.budgets()) if fleet is not None else ()
    return batch_jobs_of(invocation.settings, *ids, *tenants)


def _body(job: BatchJob) -> dict[str, Any]:
    columns = ("reference", "job_id", "agent", "provider", "model", "texts", "completed", "failed", "taken", "made_at")
    return {
        **fields(job, *columns, "ended_at"),
        "state": job.stage.value,
        "rest": job.rest,
        "lookedAt": job.looked_at or None,
        "message": job.message or stop_text(job.stop_reason),
    }


def _queue(settings: Settings, agents: list[str], *, all_agents: bool) -> list[dict[str, Any]]:
    """Return the waiting and running work of these agents, or of all that have some. Raises BrokerAway."""
    with open_broker(settings) as broker:
        jobs = queued_jobs(broker.client, broker.keys)
        if all_agents:
            agents = sorted({*agents, *(job.agent for job in jobs), *broker.queue.pending_set.agents()})
        work: dict[str, list[dict[str, Any]]] = {agent: [] for agent in agents}
        for job in jobs:
            if job.agent in work:
                work[job.agent].append({"what": job.work, "state": job.state.value, "dueAt": job.due_at})
        return [
            {"agent": agent, **asdict(broker.queue.pending_set.waiting(agent)), "work": work[agent]} for agent in agents
        ]


def _problem(settings: Settings, error: BrokerAway) -> str | None:
    """Return the reason why the queue cannot be read, with its remedy; None for a private broker while nothing runs."""
    is_private, frozen = settings.broker.url is None, frozen_pid(settings.home)
    if is_private and frozen is not None:
        return f"the private broker is suspended; resume it with `kill -CONT {frozen}`"
    away = broker_away(settings)
    return (None if is_private else error.refusal) or (away and "; ".join(away))


def _job_lines(jobs: list[dict[str, Any]]) -> Iterator[str]:
    now = time.time()
    recent_jobs = [job for job in jobs if job["endedAt"] is None or now - job["endedAt"] < _SHOWN_SECONDS]
    yield click.style("batch jobs", bold=True) + ("" if recent_jobs else ": none")
    for job in recent_jobs:
        age = since(job["madeAt"])
        if job["endedAt"] is not None:
            state = f"{job['state']}: {job['taken']:,} of {job['texts']:,} texts have their vectors ({age} ago)"
            rests = {
                "waits": "; the rest waits for `recalld jobs resume`",
                "next_job": "; the rest goes into another job",
            }
            state += rests.get(job["rest"], "")
        elif job["state"] == Stage.SUBMITTING.value:
            state = f"{job['texts']:,} texts are being submitted (for {age})"
        else:
            progress = f"{job['completed']:,} of {job['texts']:,} texts done at the provider"
            state = f"{job['state']}: {progress}, {job['taken']:,} read (for {age})"
        yield f"  {job['reference']}  {job['agent']}  {job['provider']} {job['model']}  {state}"
        if job["message"]:
            yield f"    {job['message']}"


def _queue_lines(queue: list[dict[str, Any]] | None, problem: str | None) -> Iterator[str]:
    busy = [agent for agent in queue or () if agent["live"] or agent["backfill"] or agent["running"] or agent["work"]]
    away = "not known" if problem else "nothing runs; `recalld up` starts everything"
    yield click.style("queue", bold=True) + ("" if busy else f": {away if queue is None else 'empty'}")
    for agent in busy:
        waiting = agent["live"] + agent["backfill"]
        yield f"  {agent['agent']}: {waiting:,} notes wait, {agent['running']:,} are being indexed"
        for work in agent["work"]:
            left = max(0.0, work["dueAt"] - time.time()) if work["dueAt"] is not None else None
            yield f"    {work['what']}: {work['state']}" + (f", again in {duration(left)}" if left is not None else "")

"""What `recalld index` and `recalld rebuild` share: reconcile, run workers unless somebody does, wait, report."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import click

from memory.agent_files import AgentFiles
from producers.reconciling import reconcile
from recalld.broker_life import running_broker
from recalld.child import stop_event
from recalld.configuration import check_workspace
from recalld.invocation import Invocation
from recalld.up_lock import daemon_pid
from recalld.waiting_for_index import IndexWait, Outcome
from recalld.wiring import BrokerSide, building_in, fingerprint_of, indexed_by, open_broker
from schemas.settings import AgentSettings, Settings
from workers.run import run_workers


def run_index(invocation: Invocation, *, fresh: bool, as_json: bool) -> int:
    """Bring the agents' indexes up to date and wait; with `fresh`, build new generations. Returns the exit code."""
    from recalld.logs import configure_logs

    settings, agents = invocation.settings, invocation.agents()
    for agent in agents:
        check_workspace(agent)
    invocation.remember()
    configure_logs(level=40)
    stop = stop_event(supervised=False)
    begun = time.monotonic()
    with running_broker(settings):
        broker = open_broker(settings)
        wait = IndexWait(settings, agents, broker)
        try:
            _mark(settings, agents, broker, fresh=fresh)
            if wait.anything_to_do():
                with _workers(settings):
                    outcomes = wait.until_done(stop)
            else:
                outcomes = wait.outcomes()
        finally:
            wait.close()
            broker.client.close()
    return _report(outcomes, seconds=time.monotonic() - begun, interrupted=stop.is_set(), as_json=as_json)


@contextmanager
def _workers(settings: Settings) -> Iterator[None]:
    """Workers for as long as the block runs, in this process, unless a daemon of this home has some."""
    if daemon_pid(settings.home) is not None:
        yield
        return
    stop, failed = threading.Event(), []

    def work() -> None:
        try:
            run_workers(settings, stop)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=work, name="workers")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _mark(settings: Settings, agents: Sequence[AgentSettings], broker: BrokerSide, *, fresh: bool) -> None:
    for agent in agents:
        if fresh:
            from memory.generation_writing import GenerationWriter
            from memory.store.options import StoreOptions

            identity = fingerprint_of(settings, agent)
            writer = GenerationWriter(settings.indexes_path / agent.id, StoreOptions.of(settings.store))
            writer.start_rebuild(identity.digest, identity.description)
            writer.close()
        reconcile(
            agent,
            AgentFiles(agent),
            partial(indexed_by(settings), agent),
            broker.queue,
            building=partial(building_in(settings), agent),
        )


def _report(outcomes: Sequence[Outcome], *, seconds: float, interrupted: bool, as_json: bool) -> int:
    failed = interrupted or any(one.failed or one.stopped for one in outcomes)
    if as_json:
        body = {
            "ok": not failed,
            "seconds": round(seconds, 3),
            "agents": [
                {
                    "agent": one.agent,
                    "files": one.counts.files,
                    "chunks": one.counts.chunks,
                    "vectorsReady": one.counts.vectors_ready,
                    "vectorsPending": one.counts.vectors_pending,
                    "failed": list(one.failed),
                    "stopped": one.stopped,
                }
                for one in outcomes
            ],
        }
        click.echo(json.dumps(body, ensure_ascii=False))
    else:
        for one in outcomes:
            counts = one.counts
            click.echo(
                f"{one.agent}: {counts.files:,} notes, {counts.chunks:,} chunks, "
                f"{counts.vectors_ready:,} with vectors ({seconds:.1f} s)"
            )
            for line in one.failed:
                click.echo(f"  not indexed: {line}", err=True)
            if one.stopped:
                click.echo(f"  {counts.vectors_pending:,} chunks wait for their vectors: {one.stopped}", err=True)
    if interrupted:
        click.echo("stopped; what was done is kept, the same command goes on", err=True)
        return 130
    return 1 if failed else 0

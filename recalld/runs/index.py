"""`recalld index` and `recalld rebuild`: reconcile, run workers unless a daemon has some, wait, report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import click

from memory.documents.agent_files import AgentFiles
from memory.status.condition_texts import text_of
from memory.store.errors import NoRoom, NotOwner
from producers.reconciling import reconcile
from recalld.invocation import Invocation, to_type
from recalld.runs.cost import Spending
from recalld.runs.wait import IndexWait, Outcome, exit_code
from recalld.settings.load import check_workspace
from recalld.terminal_text import printable_json, printable_name
from recalld.up.lifecycle import running_broker, stop_event
from recalld.up.lock import daemon_pid
from recalld.wiring import (
    BrokerSide,
    answering_for,
    building_in,
    fingerprint_of,
    indexed_by,
    open_broker,
)
from schemas.errors import UserError
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings
from workers.queue.home_lock import HomeLock
from workers.run import run_workers


def run_index(invocation: Invocation, *, fresh: bool, as_json: bool, force: bool = False) -> int:
    """Bring the agents' indexes up to date and wait; with `fresh`, build new generations. Return the exit code.

    An unfinished build for the same settings goes on, unless `force` begins it anew.
    """
    from recalld.logs import configure_logs

    settings, agents = invocation.settings, invocation.agents()
    for agent in agents:
        check_workspace(agent)
    invocation.remember()
    configure_logs(level=40)
    with running(settings, agents) as run:
        # First of all: documents that workers of another home take would be missing here in the end.
        HomeLock(run.broker.client, run.broker.keys, settings).take(run.stop)
        _mark(settings, agents, run.broker, fresh=fresh, force=force)
        run.wait.marked()
        outcomes = run.wait.compared(run.finish())
        spent = {agent.id: run.spending.of(agent.id) for agent in agents}
    seconds, interrupted = run.seconds, run.stop.is_set()
    if as_json:
        _report_json(outcomes, spent, seconds=seconds, interrupted=interrupted)
    else:
        sentences = {agent: [run.spending.sentence(agent, usage) for usage in spent[agent]] for agent in spent}
        _report(outcomes, sentences, seconds=seconds, interrupted=interrupted)
    return 130 if interrupted else exit_code(outcomes)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command that indexes: its broker, its wait and its spending. `stop` is set by Ctrl-C."""

    settings: Settings
    broker: BrokerSide
    wait: IndexWait
    spending: Spending
    stop: threading.Event
    begun: float

    @property
    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.begun

    def finish(self, *, feed: Callable[[], int] = lambda: 0) -> list[Outcome]:
        """Wait until all is done, with workers where work is left. `feed` as in `IndexWait.until_done`.

        Raises:
            UserError: the workers are gone, or refused.
        """
        held_back = feed()
        self.wait.ask_again()
        if not held_back and not self.wait.anything_to_do():
            return self.wait.outcomes()
        with _workers(self.settings) as works:
            return self.wait.until_done(self.stop, works=works, feed=feed)


@contextmanager
def running(settings: Settings, agents: Sequence[AgentSettings]) -> Iterator[Run]:
    """Begin a run, with a broker for its duration unless one answers already."""
    stop, begun = stop_event(supervised=False), time.monotonic()
    with running_broker(settings), open_broker(settings) as broker:
        wait = IndexWait(settings, agents, broker)
        try:
            yield Run(settings, broker, wait, Spending(broker.board, agents), stop, begun)
        finally:
            wait.close()


@contextmanager
def _workers(settings: Settings) -> Iterator[Callable[[], bool]]:
    """Run workers in this process during the block, unless a daemon of this home has some.

    Yields a function that returns True while there are workers, and raises `UserError` when they are refused.
    """
    if daemon_pid(settings.home) is not None:
        yield lambda: daemon_pid(settings.home) is not None
        return
    stop = threading.Event()
    refused: list[UserError] = []

    def work() -> None:
        try:
            run_workers(settings, stop, role="index")
        except UserError as error:
            refused.append(error)

    def works() -> bool:
        if refused:
            raise refused[0]
        return thread.is_alive()

    thread = threading.Thread(target=work, name="workers")
    thread.start()
    try:
        yield works
    finally:
        stop.set()
        thread.join()


def _mark(settings: Settings, agents: Sequence[AgentSettings], broker: BrokerSide, *, fresh: bool, force: bool) -> None:
    for agent in agents:
        if fresh:
            _begin(settings, agent, force=force)
        reconcile(
            agent,
            AgentFiles.of(settings, agent),
            partial(indexed_by(settings), agent),
            broker.queue,
            answering=partial(answering_for(settings), agent),
            building=partial(building_in(settings), agent),
        )


def _begin(settings: Settings, agent: AgentSettings, *, force: bool) -> None:
    """Begin a new generation.

    Raises:
        UserError: there is no room for it, or workers with other settings own the indexes.
    """
    from memory.index.generation_writer import GenerationWriter, HomeOwner

    owner = HomeOwner(settings.home)
    writer = GenerationWriter.at(settings, agent.id, owner=owner)
    try:
        identity = fingerprint_of(settings, agent, rebuild=True)
        writer.begin(identity.digest, identity.description, force=force)
    except NotOwner as error:
        raise UserError(str(error)) from error
    except NoRoom as error:
        raise UserError(f"{error}; `recalld rebuild --force` tries all the same") from error
    finally:
        writer.close()
        owner.close()


def _report_json(
    outcomes: Sequence[Outcome], spent: Mapping[str, Sequence[Usage]], *, seconds: float, interrupted: bool
) -> None:
    body = {
        "ok": not (interrupted or exit_code(outcomes)),
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
                "code": one.condition.code if one.condition is not None else None,
                "advice": one.advice.code if one.advice is not None else None,
                "inBatchJobs": one.in_jobs,
                "spent": [asdict(usage) for usage in spent[one.agent]],
            }
            for one in outcomes
        ],
    }
    click.echo(printable_json(body))


def _report(
    outcomes: Sequence[Outcome], spent: Mapping[str, Sequence[str]], *, seconds: float, interrupted: bool
) -> None:
    for one in outcomes:
        counts, typed = one.counts, partial(to_type, agent=one.agent if len(outcomes) > 1 else None)
        click.echo(
            f"{one.agent}: {counts.files:,} documents, {counts.chunks:,} chunks, "
            f"{counts.vectors_ready:,} with vectors ({seconds:.1f} s)"
        )
        for line in spent[one.agent]:
            click.echo(f"  spent: {line}")
        for line in one.failed:
            click.echo(f"  failed: {printable_name(line)}", err=True)
        if one.failed:
            said = "  `recalld dead show PATH` says more, `recalld dead retry PATH` tries again"
            click.echo(typed(said), err=True)
        if one.in_jobs:
            click.echo(typed(f"  {one.in_jobs_sentence}"))
        if one.sentence:
            click.echo(typed(f"  {one.sentence}"), err=True)
        if one.advice is not None:
            click.echo(typed(f"  {text_of(one.advice)}"))
    if interrupted:
        click.echo("stopped; what was done is kept, the same command goes on", err=True)

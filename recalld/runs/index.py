"""`recalld index` and `recalld rebuild`: compare, index what differs, wait, report.

`recalld index` needs no broker and no worker while the home is at rest and little differs: this process compares, and
indexes with the functions that the actors call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

import click

from memory.embedding.batch_jobs.batch_ledger import batch_jobs_of
from memory.status.run_files import note_finished, note_unfinished, server_pid, was_unfinished
from recalld.invocation import Invocation
from recalld.runs.outcome import AgentIndex, Report
from recalld.settings.load import check_workspace
from recalld.terminal_text import printable_json
from recalld.up.lock import anybody_runs
from recalld.wiring import Differences, compare, fingerprint_of
from schemas.documents import DocumentKey, Lane
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings

#: Documents that are indexed without workers; more of them are worth the start of workers.
MOST_DOCUMENTS = 20

#: Seconds after which the rest is left to workers, which show progress.
IN_PROCESS_SECONDS = 3.0

#: Seconds in which workers that own the indexes and have the same settings begin a generation by themselves.
OWNER_SECONDS = 10.0


def run_index(
    invocation: Invocation, *, fresh: bool, as_json: bool, force: bool = False, forget_missing: bool = False
) -> int:
    """Bring the agents' indexes up to date and wait; with `fresh`, build new generations. Return the exit code.

    An unfinished build for the same settings goes on, unless `force` begins it anew. `forget_missing`: the notes of
    missing folders do not stay for their day.
    """
    from memory.documents.agent_files import AgentFiles
    from producers.reconciler import forget_missing_folders
    from recalld.logs import configure_logs

    settings, agents = invocation.settings, invocation.agents()
    for agent in agents:
        if not forget_missing:
            check_workspace(agent)
    invocation.remember()
    configure_logs(level=40)
    for agent in agents if forget_missing else ():
        forget_missing_folders(AgentFiles.of(settings, agent))
    report = None if fresh else _in_process(settings, agents)
    if report is None:
        from recalld.runs.run import running

        with running(settings, agents) as run:
            for agent in agents if fresh else ():
                _begin(settings, agent, force=force)
            run.compare()
            report = run.finish()
    if as_json:
        click.echo(printable_json(report.body()))
    else:
        report.print_lines()
    return report.exit_code


def _begin(settings: Settings, agent: AgentSettings, *, force: bool) -> None:
    """Begin a new generation.

    Raises:
        UserError: there is no room for it, or workers with other settings own the indexes.
    """
    from memory.index.generation_writer import GenerationWriter, HomeOwner
    from memory.store.errors import NoRoom, NotOwner

    until = time.monotonic() + OWNER_SECONDS
    identity, before = fingerprint_of(settings, agent, rebuild=True), fingerprint_of(settings, agent).digest
    with (
        closing(HomeOwner(settings.home)) as owner,
        closing(GenerationWriter.at(settings, agent.id, owner=owner)) as writer,
    ):
        while True:
            try:
                return writer.begin(identity.digest, identity.description, force=force, instead_of=before)
            except NoRoom as error:
                raise UserError(f"{error}; `recalld rebuild --force` tries all the same") from error
            except NotOwner as error:
                if time.monotonic() > until:
                    raise UserError(str(error)) from error
                time.sleep(0.1)


# Without broker and workers


def _in_process(settings: Settings, agents: Sequence[AgentSettings]) -> Report | None:
    """Return the report of a run in this process; None where broker and workers are needed.

    An error is theirs, too: they meet it again, retry it or report it.
    """
    begun = time.monotonic()
    if not _at_rest(settings):
        return None
    indexes = [AgentIndex(settings, agent) for agent in agents]
    try:
        found = [_differences(index) for index in indexes]
        if any(documents is None for documents in found):
            return None
        if any(found):
            # After a crash in here, workers take the documents: they count crashes.
            note_unfinished(settings.home)
            for index, documents in zip(indexes, found, strict=True):
                if documents and not _indexed(index, documents):
                    return None
            note_finished(settings.home)
        return Report([index.outcome() for index in indexes], time.monotonic() - begun)
    except (RecalldError, OSError):
        return None
    finally:
        for index in indexes:
            index.close()


def _at_rest(settings: Settings) -> bool:
    """Return True if no process works for this home, and the last run left nothing undone."""
    home = settings.home
    if settings.broker.url is not None or anybody_runs(home) or server_pid(home) is not None or was_unfinished(home):
        return False
    return not any(job.open for job in batch_jobs_of(home))


def _differences(index: AgentIndex) -> list[DocumentKey] | None:
    """Return the documents that differ; None where workers are needed.

    That is with a generation to build, with missing vectors, with a provider that is away or to be paid, and with more
    than a few documents.
    """
    choice, reader = index.choice, index.reader()
    if index.generations.next() is not None or choice.error is not None or reader is None:
        return None
    if reader.meta("fingerprint") != fingerprint_of(index.settings, index.agent).digest:
        return None
    found = Differences()
    compare(index.settings, index.agent, found)
    # What is paid is counted in the broker, and its limits are shared there.
    is_remote = choice.taken_over is not None or (choice.provider is not None and bool(choice.provider.account))
    most = 0 if is_remote else MOST_DOCUMENTS
    return None if found.needs_workers or len(found.documents) > most else found.documents


def _indexed(index: AgentIndex, documents: Sequence[DocumentKey]) -> bool:
    """Index documents and fill in their vectors. Return False if something is left."""
    from memory.documents.agent_files import AgentFiles
    from memory.embedding.cache import EmbeddingCache
    from memory.embedding.supply import EmbeddingSupply
    from memory.index.generation_writer import GenerationWriter, HomeOwner
    from memory.index.indexer import Indexer
    from memory.index.vector_fill import fill_vectors

    deadline = time.monotonic() + IN_PROCESS_SECONDS
    settings, agent, cache = index.settings, index.agent, None
    with ExitStack() as opened:
        if settings.cache.enabled:
            path = settings.home / "cache" / "embeddings.sqlite"
            path.parent.mkdir(parents=True, exist_ok=True)
            cache = opened.enter_context(closing(EmbeddingCache(path, max_entries=settings.cache.max_entries)))
        owner = opened.enter_context(closing(HomeOwner(settings.home)))
        generations = opened.enter_context(closing(GenerationWriter.at(settings, agent.id, owner=owner)))
        supply = EmbeddingSupply(index.choice, cache, home=settings.home)
        opened.callback(supply.close, timeout_seconds=0.0)
        indexer = Indexer(agent, files=AgentFiles.of(settings, agent), generations=generations, supply=supply)
        done: list[DocumentKey] = []
        report = indexer.index(
            documents, lane=Lane.LIVE, on_done=done.extend, out_of_time=lambda: time.monotonic() > deadline
        )
        if report.again is not None or report.left or len(set(done)) < len(documents):
            return False
        filled = fill_vectors(
            indexer.target(),
            supply,
            agent=agent.id,
            seconds=max(0.0, deadline - time.monotonic()),
            held=indexer.held_vectors,
            on_ready=lambda _count, _seconds: None,
        )
        return not filled.left

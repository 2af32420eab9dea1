"""One run of a command that indexes: compare, index the differences, wait, report.

`recalld index` needs no broker and no worker while the home is at rest and little differs: the process indexes with the
functions that the actors call, and sends a provider one request at most. All other work is queued, and `by_workers`
waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import click

from memory.documents.agent_files import AgentFiles
from memory.embedding.batch_jobs.batch_ledger import batch_jobs_of, sent_in_jobs
from memory.index.provider import settle_address
from memory.status.condition_texts import part_of, text_of
from memory.status.run_files import note_finished, note_unfinished, server_pid, was_unfinished
from producers.reconciler import AgentComparison
from recalld.invocation import Invocation, to_type
from recalld.runs.outcome import Outcome, Report, RunIndex, spent_line
from recalld.settings.load import check_workspace
from recalld.terminal_text import printable_json, printable_name, remark
from recalld.up.lock import has_processes
from recalld.wiring import AgentIndex, CommandRequests, EndpointProbes, compare
from schemas.agents import Scope
from schemas.documents import DocumentKey, Lane
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings

if TYPE_CHECKING:
    from memory.embedding.providers.provider import EmbeddingProvider
    from memory.index.generation_writer import IndexOwner
    from recalld.runs.consent import Question

#: Index of an agent, and the documents that differ from it.
Work: TypeAlias = tuple[RunIndex, Sequence[DocumentKey]]

#: Documents that are indexed without workers; more of them are worth the start of workers.
MOST_DOCUMENTS = 20

#: Seconds after which the rest is left to workers, which show progress.
IN_PROCESS_SECONDS = 3.0

#: Seconds for an answer under way when the rest is left to workers. A later answer is paid again.
ANSWER_SECONDS = 10.0

#: Seconds in which a command that indexes by itself ends, or leaves the rest to workers.
COMMAND_SECONDS = 45.0

#: Seconds in which workers that own the indexes and have the same settings begin a generation by themselves.
OWNER_SECONDS = 10.0


def run_index(
    invocation: Invocation,
    *,
    fresh: bool,
    as_json: bool,
    max_tokens: int | None = None,
    max_dollars: float | None = None,
    force: bool = False,
    forget_missing: bool = False,
) -> int:
    """Bring the agents' indexes up to date and wait; with `fresh`, build new generations. Return the exit code.

    An unfinished build for the same settings goes on, unless `force` begins it anew. `forget_missing`: the notes of
    missing folders do not stay for their day. The user consents to `max_tokens` and `max_dollars` at most.
    """
    from producers.reconciler import forget_missing_folders
    from recalld.logs import configure_logs
    from recalld.runs.consent import Allowance, with_consent
    from recalld.runs.estimate import confirm_workspace

    settings, agents = invocation.settings, invocation.agents()
    for agent in settings.agents:
        if agent in agents and not forget_missing:
            check_workspace(agent)
    confirm_workspace(invocation)
    invocation.remember()
    for sentence in invocation.loaded.remarks:
        remark(printable_name(sentence))
    configure_logs(level=40)
    for agent in agents if forget_missing else ():
        forget_missing_folders(AgentFiles.of(settings, agent))
    with Run(settings, agents) as run:
        allowance = Allowance(invocation.yes, max_tokens, max_dollars)
        report = with_consent(run, partial(run.rebuild, force=force) if fresh else run.index, allowance=allowance)
    if as_json:
        click.echo(printable_json(report.body()))
    else:
        report.print_lines()
    return report.exit_code


@dataclass(frozen=True, slots=True)
class Forecast:
    """Work of a run as far as it is known before: the bytes of its documents, in their order, and the chunks in them.

    These `chunks` include those that wait for a vector already. The index has `finished` chunks of further documents of
    the same backfill. The last run embedded `rate` texts a second.
    """

    sizes: Sequence[int] = ()
    chunks: int = 0
    finished: int = 0
    rate: float | None = None


#: Forecast of a run whose documents were not read before.
NO_FORECAST = Forecast()


class Run:
    """One run for some agents; a `patient` one waits as long as a provider asks. As a context it closes its readers.

    The user may answer a `question` while it runs. It leaves the rest to a later run when `is_enough` returns True.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Sequence[AgentSettings],
        *,
        patient: bool = False,
        question: Question | None = None,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings = settings
        self.question = question
        self.is_enough = is_enough
        self.patient = patient
        self.indexes = [RunIndex(settings, agent) for agent in agents]
        #: Requests that this process itself sends to providers.
        self.requests = CommandRequests(settings)
        self._probes: EndpointProbes | None = None
        self._began_at = time.monotonic()

    def __enter__(self) -> Run:
        for index in self.indexes:
            try:
                settle_address(self.settings, index.agent, self.requests)
            except (RecalldError, OSError) as error:
                problem = f"{index.agent.id}: {index.choice.explanation}: {error}"
                click.echo(f"recalld: {to_type(printable_name(problem))}", err=True)
        return self

    def __exit__(self, *_: object) -> None:
        for index in self.indexes:
            index.close()

    def index(self) -> Report:
        """Index the documents that differ, in this process if they are few, else by workers."""
        at_rest = _is_at_rest(self.settings)
        comparisons = self._compare()
        if at_rest and _is_little(self, comparisons):
            if any(comparison.documents for comparison in comparisons):
                self._say_unreachable()
            if _index_in_process(self, comparisons) or self.is_enough():
                return self.report([index.outcome() for index in self.indexes])
            comparisons = self._compare()
        return self.by_workers(lambda: comparisons)

    def rebuild(self, *, force: bool) -> Report:
        """Build new generations by workers; with `force`, begin unfinished ones anew."""

        def begin() -> Sequence[AgentComparison]:
            for index in self.indexes:
                _begin(self.settings, index.agent, force=force)
            return self._compare()

        return self.by_workers(begin)

    def by_workers(
        self, compared: Callable[[], Sequence[AgentComparison]], *, forecast: Forecast = NO_FORECAST
    ) -> Report:
        """Enqueue the differences and wait; see `index_by_workers`."""
        self._say_unreachable()
        from recalld.runs.by_workers import index_by_workers  # a run in this process does not wait for these modules

        return index_by_workers(self, compared, forecast=forecast)

    def _say_unreachable(self) -> None:
        """Print the endpoints that do not answer, once. The run goes on: keywords are indexed."""
        if self._probes is None:
            self._probes = EndpointProbes(self.settings, [index.agent for index in self.indexes])
            for condition in self._probes.unreachable(waits=True):
                click.echo(f"recalld: {part_of(condition)}: {to_type(printable_name(text_of(condition)))}", err=True)

    def report(self, outcomes: Sequence[Outcome], *, interrupted: bool = False, detached: bool = False) -> Report:
        """Return the report of the outcomes, one an agent, with the cost of this process's own requests."""
        agents = [index.agent for index in self.indexes]
        spent = [[spent_line(agent, usage) for usage in self.requests.spent_by(agent.id)] for agent in agents]
        outcomes = [
            replace(outcome, spent=[*own_spent, *outcome.spent])
            for own_spent, outcome in zip(spent, outcomes, strict=True)
        ]
        seconds = time.monotonic() - self._began_at
        return Report(outcomes, seconds, interrupted=interrupted, detached=detached)

    def _compare(self) -> list[AgentComparison]:
        return [compare(self.settings, index.agent) for index in self.indexes]


def _begin(settings: Settings, agent: AgentSettings, *, force: bool) -> None:
    """Begin a new generation.

    Raises:
        UserError: there is no room for it, or workers with other settings own the indexes.
    """
    from memory.index.generation_writer import GenerationWriter, IndexOwner
    from memory.store.errors import NoRoom, NotOwner

    until = time.monotonic() + OWNER_SECONDS
    identity, before = (AgentIndex(settings, agent, rebuild=anew).fingerprint for anew in (True, False))
    with (
        closing(IndexOwner.of(settings)) as owner,
        closing(GenerationWriter.at(settings, agent.id, owner=owner)) as writer,
    ):
        while True:
            try:
                return writer.begin(identity, force=force, instead_of=before)
            except NoRoom as error:
                raise UserError(f"{error}; `recalld rebuild --force` tries all the same") from error
            except NotOwner as error:
                if time.monotonic() > until:
                    raise UserError(str(error)) from error
                time.sleep(0.1)


# Without broker and workers


def _is_at_rest(settings: Settings) -> bool:
    """Return True if no process works for this home, and the last run left nothing undone."""
    home = settings.home
    if settings.broker.url is not None or has_processes(home) or server_pid(home) is not None:
        return False
    if was_unfinished(home):
        from memory.index.generation_writer import IndexOwner

        with closing(IndexOwner.of(settings)) as owner:
            _is_owned(owner)
    ids = (agent.id for agent in settings.agents)
    return not was_unfinished(home) and not any(job.open for job in batch_jobs_of(settings, *ids))


def _is_little(run: Run, comparisons: Sequence[AgentComparison]) -> bool:
    """Return True if no agent needs workers. An index that cannot be read needs them: they report it."""
    try:
        return not any(map(_needs_workers, run.indexes, comparisons))
    except (RecalldError, OSError):
        return False


def _needs_workers(index: RunIndex, comparison: AgentComparison) -> bool:
    """Return True for a generation to build, missing vectors, a provider that is away, and many documents."""
    reader = index.reader()
    return (
        comparison.building
        or (comparison.vectors_pending > 0 and index.choice.provider is not None)
        or len(comparison.documents) > MOST_DOCUMENTS
        or index.choice.error is not None
        or reader is None
        or reader.meta("fingerprint") != index.fingerprint.digest
        or index.lacking_sentences() > 0
    )


def _index_in_process(run: Run, comparisons: Sequence[AgentComparison]) -> bool:
    """Index the documents that differ. Return False if some are left, or if workers have to index them.

    An error is one reason: workers meet it again, and retry or report it.
    """
    pairs = zip(run.indexes, comparisons, strict=True)
    work = [
        (index, comparison.documents)
        for index, comparison in pairs
        if comparison.documents or index.lacks_users_words()
    ]
    try:
        return not work or _index_all(run, work)
    except (RecalldError, OSError):
        return False


def _index_all(run: Run, work: Sequence[Work]) -> bool:
    from memory.index.generation_writer import IndexOwner

    settings = run.settings
    with ExitStack() as opened:
        owner = opened.enter_context(closing(IndexOwner.of(settings)))
        providers = (index.choice.provider for index, _ in work)
        provider = next((provider for provider in providers if provider is not None and provider.account), None)
        if provider is not None and not (_is_one_request(provider, work) and _is_owned(owner)):
            return False
        # After a crash in here, workers take the documents: they count crashes.
        note_unfinished(settings.home)
        if not all(_index_agent(index, documents, owner, run.requests) for index, documents in work):
            return False
        note_finished(settings.home)
        return True


def _is_one_request(provider: EmbeddingProvider, work: Sequence[Work]) -> bool:
    """Return True if one request is enough for a provider that is paid, and nothing is to be shared with workers.

    They share the limits a minute. Without a cache they would pay again for what this process leaves.
    """
    from memory.embedding.batcher import LIVE_INPUTS, LIVE_TOKENS
    from memory.embedding.cache_reader import EmbeddingCacheReader
    from memory.index.estimate import estimate

    limits, [(index, documents), *more_work] = provider.limits, work
    is_shared = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
    if more_work or not index.settings.cache.enabled or is_shared:
        return False
    cache = EmbeddingCacheReader.of(index.settings, Scope.of(index.agent.id).tenant)
    files = AgentFiles.of(index.settings, index.agent)
    cost = estimate(index.settings, index.agent, documents, files=files, cache=cache)
    return cost.to_embed <= min(limits.inputs, LIVE_INPUTS) and cost.tokens <= min(limits.tokens, LIVE_TOKENS)


def _is_owned(owner: IndexOwner) -> bool:
    """Return True if this process owns the indexes, perhaps after another command that indexes by itself.

    Embeddings that the other command bought are not bought again.
    """
    until = time.monotonic() + COMMAND_SECONDS
    while not (owns := owner.owns()) and time.monotonic() < until:
        time.sleep(0.1)
    return owns


def _index_agent(
    index: RunIndex, documents: Sequence[DocumentKey], owner: IndexOwner, requests: CommandRequests
) -> bool:
    """Index documents and fill in their vectors. Return False if something is left."""
    from memory.embedding.cache import EmbeddingCache
    from memory.embedding.supply import EmbeddingSupply
    from memory.index.completion import fill_sentences, fill_vectors
    from memory.index.generation_writer import GenerationWriter
    from memory.index.indexer import Indexer

    deadline = time.monotonic() + IN_PROCESS_SECONDS
    settings, agent = index.settings, index.agent
    provider, identity, tenant = index.choice.provider, index.choice.identity, Scope.of(agent.id).tenant
    with ExitStack() as opened:
        cache = EmbeddingCache.of(settings, tenant)
        if cache is not None:
            opened.callback(cache.close)
        generations = opened.enter_context(closing(GenerationWriter.at(settings, agent.id, owner=owner)))
        sent = partial(sent_in_jobs, settings, tenant)
        supply = EmbeddingSupply(provider, cache, identity=identity, coordinate=requests, sent=sent)
        # A model on this machine would only compute in the way of workers.
        seconds = ANSWER_SECONDS if provider is not None and provider.account else 0.0
        opened.callback(supply.close, timeout_seconds=seconds)
        indexer = Indexer(agent, files=AgentFiles.of(settings, agent), generations=generations, supply=supply)
        done: list[DocumentKey] = []
        report = indexer.index(
            documents, lane=Lane.LIVE, on_done=done.extend, out_of_time=lambda: time.monotonic() > deadline
        )
        if report.again is not None or report.unfinished or len(set(done)) < len(documents):
            return False
        if fill_vectors(indexer, seconds=max(0.0, deadline - time.monotonic())).left:
            return False
        return not fill_sentences(indexer, seconds=max(0.0, deadline - time.monotonic()))

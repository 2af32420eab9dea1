"""Waiting until what a command queued is indexed and has its vectors, with progress on the way.

Beside a busy `recalld up` the queue is never empty: the wait is for the documents that were marked before it began, and
for the vectors of the chunks that were there when these were indexed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from memory.index.fingerprint import embedding_of
from memory.index.generations import Generations
from memory.index.identity import name_in
from memory.index.provider_fallback import provider_of
from memory.status.answering import no_prefixes, no_vectors
from memory.status.condition_texts import counted, text_of, waiting_chunks
from memory.store.reader import IndexCounts, StoreReader
from recalld.missing_documents import missing_sentence
from recalld.progress_bar import Progress, ProgressBar
from recalld.status_view import duration
from recalld.waiting_for_jobs import JobsWait
from recalld.wiring import BrokerSide, generations_of
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.ports import EndpointCondition, EndpointState, Trouble
from schemas.settings import AgentSettings, Settings
from workers.queue.names import NO_KEYWORDS, NO_SPACE, NO_VECTORS, OLDER_SETTINGS

#: Seconds between two looks at the queue.
_LOOK_SECONDS = 0.1

#: Seconds of a passing failure, from the start of the command on, that are waited out.
_PATIENCE_SECONDS = 30.0

#: Seconds from the start of the command on after which workers that say that they are not able to work are believed.
_UNABLE_SECONDS = 5.0

#: Times `workers.stalled_after_seconds` without progress of its own after which a command leaves, though others get on.
_LONGEST_STILL = 5.0

#: Agents whose work the progress line names.
_NAMED_AGENTS = 3

#: Seconds that a provider may ask to wait before the command leaves it to the next one.
_LONGEST_COOL_DOWN_SECONDS = 300.0


@dataclass(slots=True)
class Outcome:
    """How waiting ended for one agent. `stopped` says why vectors, or anything, will not come; None when they did.

    `condition` is the same as a code, where it has one. `in_jobs`: all missing vectors are those of batch jobs, which
    the command does not wait for.
    """

    agent: str
    counts: IndexCounts
    failed: tuple[str, ...] = ()
    stopped: str | None = None
    in_jobs: bool = False
    condition: Condition | None = None
    advice: Condition | None = None

    @property
    def sentence(self) -> str | None:
        """Return the reason for what did not come, for people; None when all came."""
        return text_of(self.condition) if self.condition is not None else self.stopped


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 0 when all was done, 4 when it was, but by keyword only as no provider can be had, else 1."""
    codes = {one.condition.code if one.condition is not None else None for one in outcomes if one.stopped}
    if any(one.failed for one in outcomes) or codes - {ConditionCode.VECTORS_UNAVAILABLE}:
        return 1
    return 4 if codes else 0


class IndexWait:
    """Looks at queue and index of some agents until nothing is left of what the command queued."""

    def __init__(self, settings: Settings, agents: Sequence[AgentSettings], broker: BrokerSide) -> None:
        self._settings = settings
        self._agents = agents
        self._broker = broker
        #: Where progress is shown.
        self.bar = ProgressBar()
        self._generations = {agent.id: generations_of(settings, agent) for agent in agents}
        self._readers: dict[str, tuple[str, StoreReader]] = {}
        self._most_documents = 0
        self._jobs = JobsWait(settings, agents)
        self._begun = self._marked_at = time.time()
        # Agent -> generation and last chunk that were there when its documents were indexed.
        self._last_chunks: dict[str, tuple[str, int]] = {}
        self._still = _Still(broker, settings.workers.stalled_after_seconds)

    def marked(self) -> None:
        """Say that the command queued documents just now: they are waited for."""
        self._marked_at = time.time()

    def ask_again(self) -> None:
        """Let providers be asked now: what an earlier run met may be over, and this one finds out by itself.

        Raises:
            BrokerUnavailable: the queue does not answer.
        """
        for agent in self._agents:
            provider = provider_of(self._settings, agent).provider
            if provider is not None and provider.account:
                self._broker.board.ask_again(provider.account, provider.model)
            if self.counts(agent).vectors_pending:
                self._broker.queue.request_vectors_now(agent.id)

    def anything_to_do(self) -> bool:
        """Whether documents, vectors or a generation are under way."""
        return any(self._left(agent) or not self._settled(agent) for agent in self._agents)

    def outcomes(self) -> list[Outcome]:
        """How things stand now."""
        return [self._outcome(agent) for agent in self._agents]

    def compared(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes; `stopped` where files are missing in an index and nothing is queued for them."""
        for agent, outcome in zip(self._agents, outcomes, strict=True):
            if outcome.stopped is None and not self._is_behind(agent):
                outcome.stopped = missing_sentence(self._settings, agent, self._reader(agent), before=self._begun)
        return [*outcomes]

    def until_done(
        self, stop: threading.Event, *, works: Callable[[], bool], feed: Callable[[], int] = lambda: 0
    ) -> list[Outcome]:
        """Wait, show progress on standard error, and say how it ended.

        `works` tells whether there are workers still; `feed` is called at every look, to queue more, and returns
        how many documents it holds back.

        Raises:
            UserError: the workers are gone.
        """
        bar = self.bar
        while not stop.wait(_LOOK_SECONDS):
            if not works():
                bar.end()
                raise UserError("recalld up ended meanwhile; what was done is kept, run this command again to go on")
            held_back = feed()
            left = {agent.id: self._left(agent) for agent in self._agents}
            documents = held_back + sum(left.values())
            self._most_documents = max(self._most_documents, documents)
            for agent in self._agents:
                bar.warn([one for one in self._broker.board.troubles(agent.id) if self._is_news(one)])
            if bar.due():
                bar.show(self._progress(documents))
            if all(self._unable(agent) or (not held_back and self._is_done(agent)) for agent in self._agents):
                break
            cools = any(self._cools_down(agent) for agent in self._agents)
            if self._still.too_long(
                self._stand(held_back, left),
                at_least_seconds=_LONGEST_COOL_DOWN_SECONDS if cools else 0.0,
                only_builds=not documents and self._only_builds(),
            ):
                break
        bar.end()
        return self.outcomes()

    def _progress(self, documents: int) -> Progress:
        """How far it is, with so many documents still to do."""
        counts = [self.counts(agent) for agent in self._agents]
        readers = filter(None, map(self._reader, self._agents))
        return Progress(
            documents=self._most_documents - documents,
            of_documents=self._most_documents,
            counts=IndexCounts(
                files=sum(one.files for one in counts),
                chunks=sum(one.chunks for one in counts),
                vectors_ready=sum(one.vectors_ready for one in counts),
                vectors_pending=sum(one.vectors_pending for one in counts),
            ),
            failed=sum(len(reader.dead_letters()) for reader in readers),
            jobs=self._jobs.progress(),
            waits_for=self._waits_for(),
        )

    def close(self) -> None:
        """Close the readers."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _left(self, agent: AgentSettings) -> int:
        """Return how many documents wait since before the command queued its own, or are among these."""
        marked = self._broker.board.marked_before(agent.id, self._marked_at)
        if marked is None:
            return 1  # a broker that is away for a moment is no reason to say that all is done
        if marked.count > len(marked.some):
            return marked.count
        return sum(not self._was_indexed(agent, key) for key in marked.some)

    def _was_indexed(self, agent: AgentSettings, key: DocumentKey) -> bool:
        """Return True if a document that waits was indexed since: it changes faster than it is indexed."""
        reader = self._reader(agent)
        known = reader.file(key) if reader is not None else None
        return known is not None and known.stat.mtime_ns / 1e9 > self._marked_at

    def _is_behind(self, agent: AgentSettings) -> bool:
        """Return True if anything waits in the queue, also of what changed since the command began."""
        pending = self._broker.board.pending(agent.id)
        return pending is None or pending.documents > 0

    def _is_done(self, agent: AgentSettings) -> bool:
        return self._left(agent) == 0 and (self._settled(agent) or self._left_to_jobs(agent))

    def _settled(self, agent: AgentSettings) -> bool:
        if self._generations[agent.id].next() is not None:
            return self._stopped(agent) is not None
        return self._oldest_chunk(agent) is None or self._stopped(agent) is not None

    def _oldest_chunk(self, agent: AgentSettings) -> int | None:
        """Return the first chunk that waits for its vector, of those that the command waits for; None without any."""
        reader = self._reader(agent)
        if reader is None or not self.counts(agent).vectors_pending:
            return None
        oldest = next((chunk.id for chunk in reader.pending_chunks(1)), None)
        if oldest is None or self._left(agent):
            return oldest  # which chunks are waited for is known when its documents are indexed
        generation = self._readers[agent.id][0]
        if self._last_chunks.get(agent.id, ("", 0))[0] != generation:
            self._last_chunks[agent.id] = (generation, max(reader.pending_hashes(), default=0))
        return oldest if oldest <= self._last_chunks[agent.id][1] else None

    def _only_builds(self) -> bool:
        return all(
            self._generations[agent.id].next() is not None
            for agent in self._agents
            if not self._unable(agent) and self._oldest_chunk(agent) is None
        )

    def _stand(self, held_back: int, left: Mapping[str, int]) -> object:
        """Return what differs when the command's own work gets on; None while a batch job may take long."""
        if self._jobs.progress():
            return None
        own = [(self._oldest_chunk(agent), self._generations[agent.id].next()) for agent in self._agents]
        return held_back, left, own

    def _cools_down(self, agent: AgentSettings) -> bool:
        state = self._endpoint(agent)
        return state is not None and state.condition is EndpointCondition.COOLING_DOWN

    def _waits_for(self) -> str:
        """Return what keeps the command, in words: "ada: 28 documents; bob: 3 vectors of openai"."""
        kept = {agent.id: self._kept_by(agent) for agent in self._agents}
        named = [(agent, what) for agent, what in kept.items() if what]
        several = len(self._agents) > 1
        parts = [f"{agent}: {what}" if several else what for agent, what in named[:_NAMED_AGENTS]]
        parts += [f"{counted(len(named) - _NAMED_AGENTS, 'more agent')}"] if len(named) > _NAMED_AGENTS else []
        return "; ".join(parts)

    def _kept_by(self, agent: AgentSettings) -> str:
        """Return what is to come of one agent's work; "" when it is done."""
        documents = self._left(agent)
        if documents:
            return counted(documents, "document")
        if self._oldest_chunk(agent) is not None:
            state, name = self._endpoint(agent), provider_of(self._settings, agent).name
            until = state.until if state is not None else None
            wait = f", which is asked again in {duration(max(1.0, until - time.time()))}" if until is not None else ""
            return f"{counted(self.counts(agent).vectors_pending, 'vector')} of {name}{wait}"
        return "the new index to be whole" if self._generations[agent.id].next() is not None else ""

    def _left_to_jobs(self, agent: AgentSettings) -> bool:
        return self._jobs.are_all_that_is_left(agent, self._reader(agent))

    def _wants_vectors(self, agent: AgentSettings) -> bool:
        reader = self._reader(agent)
        return reader is not None and '"embedding":"none"' not in (reader.meta("identity") or "")

    def _stopped(self, agent: AgentSettings) -> str | None:
        """Why the provider will give no vectors soon; None while it does, or may in a moment."""
        for trouble in self._broker.board.troubles(agent.id):
            if not self._is_news(trouble):
                continue
            if trouble.part == NO_VECTORS and self._is_established(trouble):
                return trouble.message
            if trouble.part.startswith("provider ") and self._lasts(agent, trouble):
                return trouble.message
        return None

    def _unable(self, agent: AgentSettings) -> str | None:
        """Why these workers will index nothing, however long one waits; None when they may."""
        for trouble in self._broker.board.troubles(agent.id):
            if trouble.part in {NO_KEYWORDS, NO_SPACE, OLDER_SETTINGS} and self._is_established(trouble):
                return trouble.message
        return None

    def _is_established(self, trouble: Trouble) -> bool:
        """Return True if this run met the trouble, and it did not pass in a moment."""
        return self._is_news(trouble) and time.time() - max(trouble.since, self._begun) > _UNABLE_SECONDS

    def _is_news(self, trouble: Trouble) -> bool:
        """Return True if the trouble was met since the command began: what an earlier run met may be over."""
        return trouble.at >= self._begun

    def _lasts(self, agent: AgentSettings, trouble: Trouble) -> bool:
        """Return True if a provider's trouble is worth no more waiting."""
        state = self._endpoint(agent)
        now = time.time()
        if state is not None and state.until is not None:
            if state.condition is EndpointCondition.STOPPED:
                return True
            if state.condition is EndpointCondition.COOLING_DOWN:
                return state.until - now > _LONGEST_COOL_DOWN_SECONDS
        return now - max(trouble.since, self._begun) > _PATIENCE_SECONDS

    def _endpoint(self, agent: AgentSettings) -> EndpointState | None:
        provider = provider_of(self._settings, agent).provider
        return self._broker.board.endpoint(provider.account, provider.model) if provider is not None else None

    def _reader(self, agent: AgentSettings) -> StoreReader | None:
        """The generation that is being written: the one under construction, else the answering one."""
        generations: Generations = self._generations[agent.id]
        name = generations.next() or generations.current()
        if name is None:
            return None
        known = self._readers.get(agent.id)
        if known is None or known[0] != name:
            if known is not None:
                known[1].close()
            reader = generations.open_named(name)
            if reader is None:
                self._readers.pop(agent.id, None)
                return None
            self._readers[agent.id] = (name, reader)
        return self._readers[agent.id][1]

    def counts(self, agent: AgentSettings) -> IndexCounts:
        """What the index holds; where only keywords are wanted, no vector is missing."""
        reader = self._reader(agent)
        counts = reader.counts() if reader is not None else IndexCounts()
        return counts if self._wants_vectors(agent) else replace(counts, vectors_pending=0)

    def _made_otherwise(self, agent: AgentSettings, reader: StoreReader | None) -> str | None:
        """What to say when the workers have other settings or keys than this process; None when they have not."""
        provider = provider_of(self._settings, agent).provider
        if provider is None or reader is None:
            return None
        made_with = embedding_of(reader.meta("identity"))
        if made_with == provider.identity:
            return None
        return (
            f"the workers of `recalld up` embed with another provider or model ({name_in(made_with)}) than this "
            f"command would ({provider.name}): start it again with the same settings and keys"
        )

    def _outcome(self, agent: AgentSettings) -> Outcome:
        reader = self._reader(agent)
        failed = tuple(f"{letter.key.path}: {letter.reason}" for letter in reader.dead_letters()) if reader else ()
        condition = self._condition(agent)
        stopped = self._unable(agent)
        if stopped is None and condition is not None:
            vectors_wait = condition.code is ConditionCode.VECTORS_WAIT
            stopped = str(condition.params["reason"]) if vectors_wait else text_of(condition)
        elif stopped is not None:
            condition = None
        stopped = stopped or self._made_otherwise(agent, reader)
        counts = self.counts(agent)
        advice = no_prefixes(agent.id, agent, provider_of(self._settings, agent), chunks=counts.chunks)
        in_jobs = self._left_to_jobs(agent)
        return Outcome(agent.id, counts, failed, stopped, in_jobs=in_jobs, condition=condition, advice=advice)

    def _condition(self, agent: AgentSettings) -> Condition | None:
        """Return why vectors, or anything that the command waited for, did not come; None when all came."""
        counts, choice = self.counts(agent), provider_of(self._settings, agent)
        pending = counts.vectors_pending
        builds = self._generations[agent.id].next() is not None
        if not builds and (pending or not self._wants_vectors(agent)):
            ready = counts.vectors_ready if pending else 0
            lacking = no_vectors(agent.id, choice, files=counts.files, ready=ready, pending=pending)
            if lacking is not None:
                return lacking
        reason = (self._stopped(agent) or choice.error) if pending else None
        if reason is not None:
            params: dict[str, str | int | float] = {"chunks": waiting_chunks(pending), "reason": reason}
            return Condition(ConditionCode.VECTORS_WAIT, agent.id, params=params)
        still, what = self._still.seconds, self._kept_by(agent)
        if still is None or not what:
            return None
        params = {"what": what, "minutes": max(1, round(still / 60))}
        return Condition(ConditionCode.INDEXING_STILL, agent.id, since=time.time() - still, params=params)


class _Still:
    """Says when a command has waited for long enough. `seconds` is how long nothing got on, None before that."""

    def __init__(self, broker: BrokerSide, limit_seconds: float) -> None:
        self._broker = broker
        self._limit = limit_seconds
        self._stand: object = None
        self._since = time.monotonic()
        self.seconds: float | None = None

    def too_long(self, stand: object, *, at_least_seconds: float, only_builds: bool) -> bool:
        """Return True if `stand` (None: it may take long) is what it was for too long.

        Work of others may be ahead: as long as workers finish any, there is more patience. `only_builds`: what is
        missing is that a new index is whole, which it never is while documents change all the time.
        """
        if stand is None or stand != self._stand:
            self._stand, self._since = stand, time.monotonic()
            return False
        still = time.monotonic() - self._since
        if still < max(self._limit, at_least_seconds):
            return False
        patient = not only_builds and still < _LONGEST_STILL * self._limit
        if patient and self._broker.board.stalled_seconds() < self._limit:
            return False
        self.seconds = still
        return True

"""Waiting until the queue is empty and every chunk has its vector, with progress on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memory.fingerprint import embedding_of
from memory.generations import Generations
from memory.made_with import name_in
from memory.store.reader import IndexCounts, StoreReader
from memory.taking_over import provider_of
from recalld.missing_documents import missing_sentence
from recalld.progress_bar import Progress, ProgressBar
from recalld.waiting_for_jobs import JobsWait
from recalld.wiring import BrokerSide, generations_of
from schemas.errors import UserError
from schemas.ports import EndpointCondition, Trouble
from schemas.settings import AgentSettings, Settings
from workers.names import NO_KEYWORDS, NO_SPACE, NO_VECTORS, OLDER_SETTINGS

#: Seconds between two looks at the queue.
_LOOK_SECONDS = 0.1

#: Seconds of a passing failure, from the start of the command on, that are waited out.
_PATIENCE_SECONDS = 30.0

#: Seconds from the start of the command on after which workers that say that they are not able to work are believed.
_UNABLE_SECONDS = 5.0

#: Seconds that a provider may ask to wait before the command leaves it to the next one.
_LONGEST_COOL_DOWN_SECONDS = 300.0


@dataclass(slots=True)
class Outcome:
    """How waiting ended for one agent. `stopped` says why vectors, or anything, will not come; None when they did.

    `in_jobs` tells that the vectors that are missing are those of batch jobs, which nobody was to wait for.
    """

    agent: str
    counts: IndexCounts
    failed: tuple[str, ...] = ()
    stopped: str | None = None
    in_jobs: bool = False


class IndexWait:
    """Looks at queue and index of some agents until nothing is left to do."""

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
        self._begun = time.time()

    def anything_to_do(self) -> bool:
        """Whether documents, vectors or a generation are under way."""
        return any(self._pending(agent) or not self._settled(agent) for agent in self._agents)

    def outcomes(self) -> list[Outcome]:
        """How things stand now."""
        return [self._outcome(agent) for agent in self._agents]

    def compared(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes; `stopped` where files are missing in an index and nothing is queued for them."""
        for agent, outcome in zip(self._agents, outcomes, strict=True):
            if outcome.stopped is None and self._pending(agent) == 0:
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
            documents = held_back + sum(self._pending(agent) for agent in self._agents)
            self._most_documents = max(self._most_documents, documents)
            for agent in self._agents:
                # What an earlier run met may be over.
                bar.warn([one for one in self._broker.board.troubles(agent.id) if one.since >= self._begun])
            if bar.due():
                bar.show(self._progress(documents))
            if all(self._unable(agent) or (not held_back and self._is_done(agent)) for agent in self._agents):
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
        )

    def close(self) -> None:
        """Close the readers."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _pending(self, agent: AgentSettings) -> int:
        pending = self._broker.board.pending(agent.id)
        # A broker that is away for a moment is no reason to say that all is done.
        return pending.documents if pending is not None else 1

    def _is_done(self, agent: AgentSettings) -> bool:
        return self._pending(agent) == 0 and (self._settled(agent) or self._left_to_jobs(agent))

    def _settled(self, agent: AgentSettings) -> bool:
        if self._generations[agent.id].next() is not None:
            return self._stopped(agent) is not None
        return self.counts(agent).vectors_pending == 0 or self._stopped(agent) is not None

    def _left_to_jobs(self, agent: AgentSettings) -> bool:
        return self._jobs.are_all_that_is_left(agent, self._reader(agent))

    def _wants_vectors(self, agent: AgentSettings) -> bool:
        reader = self._reader(agent)
        return reader is not None and '"embedding":"none"' not in (reader.meta("identity") or "")

    def _stopped(self, agent: AgentSettings) -> str | None:
        """Why the provider will give no vectors soon; None while it does, or may in a moment."""
        for trouble in self._broker.board.troubles(agent.id):
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
        """Whether a trouble is none of an earlier run: that one is over with the first job that succeeds."""
        return time.time() - max(trouble.since, self._begun) > _UNABLE_SECONDS

    def _lasts(self, agent: AgentSettings, trouble: Trouble) -> bool:
        """Whether a provider's trouble, perhaps one of an earlier run, is worth no more waiting."""
        provider = provider_of(self._settings, agent).provider
        state = self._broker.board.endpoint(provider.account, provider.model) if provider is not None else None
        now = time.time()
        if state is not None and state.until is not None:
            if state.condition is EndpointCondition.STOPPED:
                return True
            if state.condition is EndpointCondition.COOLING_DOWN:
                return state.until - now > _LONGEST_COOL_DOWN_SECONDS
        return now - max(trouble.since, self._begun) > _PATIENCE_SECONDS

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
        counts = self.counts(agent)
        stopped = self._unable(agent)
        if counts.vectors_pending and stopped is None:
            stopped = self._stopped(agent) or provider_of(self._settings, agent).error
        stopped = stopped or self._made_otherwise(agent, reader)
        return Outcome(agent.id, counts, failed, stopped, in_jobs=self._left_to_jobs(agent))

"""Search manager of an agent over recalld's own index. It only reads; workers index."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import structlog

from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import ProviderChoice
from memory.index.generations import Generations
from memory.index.provider_fallback import takeover_token
from memory.index.readers import SharedReader
from memory.redaction import ASKING, REWRITING, PatternTooCostly, redactor_for
from memory.search.engine import AgentSearch, Deadline, late_redactor, search
from memory.search.freshness import Freshness, GuardedPendingReader
from memory.search.get import page, remembered_page, transcript_page
from memory.search.resources import QueryEmbedder, SearchResources
from memory.search.scope import Session, allows, resolve_for, session_of
from memory.search.tools import SearchableMemory, unavailable, with_corpora
from memory.status.agent import agent_status
from memory.status.index import StatusSources
from memory.store.errors import StoreCorrupt
from memory.store.reader import StoreReader
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.errors import BrokerUnavailable, Permanent, RecalldError, Transient
from schemas.ports import Event, EventInbox, PendingReader
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Limits, Settings
from schemas.status import AgentStatus, Availability

_log = structlog.get_logger(__name__)

_NOT_A_DOCUMENT = (
    "not found: path must name a document of this memory: MEMORY.md, USER.md, memory/**/*.md, an extra path, "
    "or what a search found"
)


class UnavailableMemory(SearchableMemory):
    """Memory that cannot be opened. Its answers give the `reason`, except to sessions out of scope."""

    def __init__(self, agent: AgentSettings, reason: str) -> None:
        self._agent = agent
        self._lack = unavailable(reason, action="see `recalld config show`")

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._agent.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return no result, and the reason."""
        if not _allows(self._agent, session_of(request.session_key)):
            return SearchAnswer()
        return with_corpora(SearchAnswer(**self._lack), request.corpus)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return no result, and the reason."""
        if not _allows(self._agent, session_of(request.session_key)):
            return GetAnswer(path=request.path, status="not_found")
        return with_corpora(GetAnswer(path=request.path, status="error", **self._lack), request.corpus)


def _allows(agent: AgentSettings, session: Session) -> bool:
    return allows(agent.scope, session, agent=agent.id)


class SearchManager(SearchableMemory):
    """Memory of one agent's folder of generations, with its status and its probes.

    `pending` reads the queue and `inbox` takes the request of `sync`; both may be absent.
    """

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        *,
        resources: SearchResources | None = None,
        pending: PendingReader | None = None,
        inbox: EventInbox | None = None,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._own = resources is None
        self._resources = resources or SearchResources(settings)
        self._pending = pending
        self._inbox = inbox
        self._chosen = (takeover_token(settings, agent), self._resources.embedder(agent))
        self._files = AgentFiles.of(settings, agent)
        self.generations = Generations.of(settings, agent.id, shelf=self._resources.shelf)
        self._reader = SharedReader(self.generations, open_readers=self._resources.open_readers)
        freshness = Freshness(settings, agent, pending=pending, inbox=inbox, threads=self._resources.asking)
        self._searched = AgentSearch(
            agent=agent,
            files=self._files,
            resources=self._resources,
            reader=self._reader,
            freshness=freshness,
            embedder=lambda: self._embedder,
        )

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return self._agent.limits

    @property
    def _embedder(self) -> QueryEmbedder:
        """Return the embedder in use, which changes when a fallback takes over or gives way."""
        token = takeover_token(self._settings, self._agent)
        if token != self._chosen[0]:
            self._chosen = (token, self._resources.embedder(self._agent))
        return self._chosen[1]

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer within the deadline, whatever hangs."""
        answer = await self._found(request)
        return with_corpora(answer, request.corpus) if request.corpus is not None else answer

    async def _found(self, request: SearchRequest) -> SearchAnswer:
        deadline = Deadline(started=time.monotonic(), seconds=self._agent.limits.timeout_ms / 1000)
        if not _allows(self._agent, session_of(request.session_key)) or request.corpus == "wiki":
            return SearchAnswer()
        if request.corpus is not None and not request.searched(self._agent.sources):
            return SearchAnswer(
                warning="nothing was searched: the corpus is none of the sources; leave one of them out"
            )
        if request.corpus == SESSIONS_SOURCE and SESSIONS_SOURCE not in self._agent.sources:
            action = 'ask for the corpus memory, or add "sessions" to the setting sources'
            warning = "no transcript was searched"
            lacking = unavailable("transcripts are no part of this memory", warning=warning, action=action)
            return SearchAnswer(**lacking)
        try:
            return await search(self._searched, request, deadline)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log keeps the reason
            return self._failed(error, deadline)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Read lines of a document of this agent; refuse any other path with one uniform answer."""
        return with_corpora(self._read(request), request.corpus)

    def _read(self, request: GetRequest) -> GetAnswer:
        session = session_of(request.session_key)
        if not _allows(self._agent, session) or request.corpus == "wiki":
            return GetAnswer(path=request.path, status="not_found")
        try:
            key = resolve_for(session, self._files, request.path)
            redact = redactor_for(self._agent, key.source, budget=ASKING)
            if key.is_transcript:
                return transcript_page(self._files, key, first=request.from_, count=request.lines, redact=redact)
            source = self._files.read(key)
            return page(key.path, redact(source.text), first=request.from_, count=request.lines)
        except DocumentRefused:
            _log.warning("read_refused", agent=self._agent.id)
            return GetAnswer(path=request.path, status="not_found", refused=True, error=_NOT_A_DOCUMENT)
        except DocumentGone:
            kept = self._remembered(key, request) if key.is_transcript else None
            gone = "not found: there is no such document (any more)"
            return kept or GetAnswer(path=request.path, status="not_found", error=gone)
        except (Permanent, Transient) as error:
            return GetAnswer(path=request.path, status="error", unavailable=True, error=str(error))

    def _remembered(self, key: DocumentKey, request: GetRequest) -> GetAnswer | None:
        """Return a page of a transcript whose file is gone and which the index still has."""
        try:
            with self._reader.lease() as reader:
                if reader is None:
                    return None
                kept = remembered_page(reader, key, first=request.from_, count=request.lines)
                redact = late_redactor(reader, self._agent)
                if kept is None or redact is None:
                    return kept
                return kept.model_copy(update={"text": redact(key.source, kept.text)})
        except RecalldError as error:
            return GetAnswer(path=request.path, status="error", unavailable=True, error=str(error))

    def status(self, *, deep: bool = False) -> AgentStatus:
        """Compare disk, index and queue; `deep` also checks the index's integrity."""
        embedder = self._embedder
        return agent_status(
            self._settings,
            self._agent,
            StatusSources(
                files=self._files,
                generations=self.generations,
                lease=self._reader.visit,
                pending=self._pending or GuardedPendingReader(None),
                queue_expected=self._pending is not None,
                choice=embedder.chosen,
                queries=embedder.choice,
                provider_failure=embedder.vectors.failure() if embedder.vectors is not None else None,
            ),
            deep=deep,
        )

    def sync(self) -> str | None:
        """Request a comparison of files and index; return None, or the reason why that is not possible."""
        if self._inbox is None:
            return "nothing that watches the files is connected; run `recalld index`"
        try:
            self._inbox.put(Event(kind="reconcile", agent=self._agent.id))
        except BrokerUnavailable as error:
            return str(error)
        return None

    def probe_embedding_availability(self) -> Availability:
        """Embed a word with the chosen provider."""
        choice, vectors = self._embedder.choice, self._embedder.vectors
        if vectors is None:
            return Availability(available=False, reason=choice.error or choice.reason or "provider = none")
        outcome = vectors.probe(self._agent.limits.timeout_ms / 1000, agent=self._agent.id)
        return Availability(available=outcome is None, reason=outcome.reason if outcome is not None else None)

    def probe_vector_availability(self) -> Availability:
        """Search the vectors of the index once."""
        return self.status().vector_search

    @property
    def chosen(self) -> ProviderChoice:
        """Return the choice of an embedding provider by the settings."""
        return self._embedder.chosen

    @property
    def provider(self) -> EmbeddingProvider | None:
        """Return the embedding provider of the settings, None with keywords only."""
        return self._embedder.chosen.provider

    def reading(self) -> AbstractContextManager[StoreReader | None]:
        """Lend the answering generation for the block, None if there is none; see `SharedReader.visit`."""
        return self._reader.visit()

    def close(self) -> None:
        """Close everything but shared resources; running reads finish first."""
        self._reader.close()
        if self._own:
            self._resources.close()

    def _failed(self, error: Exception, deadline: Deadline) -> SearchAnswer:
        """Return the answer of a search that raised."""
        lack = unavailable(str(error), warning="memory search is unavailable", action="run `recalld status`")
        if isinstance(error, StoreCorrupt):
            lack["action"] = "wait until the index is rebuilt, or run `recalld rebuild`"
        elif isinstance(error, PatternTooCostly):
            lack |= {"error": error.of_question, "action": f"ask in other words, or {REWRITING}"}
            lack |= {"warning": "this question was not searched for", "disabled": None}
        elif not isinstance(error, RecalldError):
            _log.error("search_failed", agent=self._agent.id, exc_info=error)
            lack |= {"error": f"the search failed: {type(error).__name__}", "action": "look into the log"}
        took_ms = round((time.monotonic() - deadline.started) * 1000, 2)
        return SearchAnswer(provider=self._chosen[1].choice.name, took_ms=took_ms, **lack)


def get_search_manager(
    settings: Settings,
    agent_id: str,
    *,
    resources: SearchResources | None = None,
    pending: PendingReader | None = None,
    inbox: EventInbox | None = None,
) -> tuple[SearchManager | None, str | None]:
    """Return an agent's manager, or None and the reason in one sentence.

    `resources` are those that the managers of a process share, and that the caller closes. `pending` reads the queue,
    and `inbox` takes the request of `sync`.
    """
    try:
        agent = settings.agent(agent_id)
    except KeyError as error:
        return None, str(error.args[0])
    if not agent.enabled:
        return None, f"the memory of agent {agent_id!r} is switched off (enabled = false)"
    try:
        return SearchManager(settings, agent, resources=resources, pending=pending, inbox=inbox), None
    except RecalldError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the other agents are answered; the log keeps the reason
        _log.exception("search_manager_failed", agent=agent_id)
        return None, f"the memory of agent {agent_id!r} cannot be opened: {type(error).__name__}"

"""Context of one agent's conversations: the memory in its prompts, its cost, and the times to flush and prune."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta

from memory.chunking.chunker import estimate_tokens, text_hash
from memory.chunking.curated import CURATED_FILES, CuratedBlock, CuratedFile, repository_of
from memory.context.bootstrap import bootstrap_files
from memory.context.flush import flush_plan
from memory.context.injection import (
    InjectedBlock,
    InjectedSessions,
    confidence,
    daily_note_block,
    injected_text,
    passage_blocks,
    prompt_results,
    sessions_of,
    standing_blocks,
    triggered_blocks,
    without_hidden_lines,
)
from memory.context.pruning import prune
from memory.documents.agent_files import AgentFiles
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.redaction import ASKING, PatternTooCostly, redaction_facts, redactor_for
from memory.search.answers import passages_of
from memory.search.manager import SearchManager
from memory.search.query_vectors import QueryVectors
from memory.search.ranking.query import SEARCHED_CHARACTERS, searched_query, sought
from memory.search.ranking.ranker import SearchParameters, ranked
from memory.search.retrieval import Retrieval
from memory.search.scope import Session, allows, resolve_for, session_of
from memory.search.searchable import SearchableMemory
from memory.search.tool_definitions import TOOLS
from memory.store.reader import StoreReader, Vector
from schemas.agents import Scope
from schemas.context import (
    ContextReport,
    FlushAnswer,
    FlushRequest,
    IndexedDocument,
    PromptAnswer,
    PromptRequest,
    PruneAnswer,
    PruneRequest,
    SessionKindOfPrompt,
    ToolCost,
)
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.search import SearchResult
from schemas.settings import AgentSettings, Settings

#: Bytes of a token, for the estimate of an indexed document.
_TOKEN_BYTES = 4


class AgentContext:
    """Context of one agent's conversations.

    `sessions` remembers the blocks of earlier prompts; all agents share it. `reading` lends the answering index.
    """

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        memory: SearchableMemory,
        sessions: InjectedSessions,
        *,
        reading: Callable[[], AbstractContextManager[StoreReader | None]],
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._memory = memory
        self._sessions = sessions
        self._reading = reading
        self._files = AgentFiles.of(settings, agent)

    async def before_prompt(self, request: PromptRequest) -> PromptAnswer:
        """Return the text for a prompt: standing instructions, lines with triggers, and the passages found in time."""
        started = time.monotonic()
        settings = self._agent.context.injection
        if not settings.enabled or not self._agent.enabled:
            return PromptAnswer(disabled=True)
        session = session_of(request.session_key)
        if not allows(self._agent.scope, session, agent=self._agent.id):
            return PromptAnswer()
        repositories = {name for project in request.projects if (name := repository_of(project)) is not None}
        files = await asyncio.to_thread(self._curated, session)
        curated = [block for file in files.values() for block in file.blocks if block.directives.are_for(repositories)]
        if request.begins:
            self._sessions.begin(self._agent.id, request.session)
        blocks = standing_blocks(curated, settings)
        if request.session or request.begins:
            notes = self._sessions.notes(self._agent.id, request.session, lambda: self._daily_notes(session))
            blocks += await notes
        if request.prompt.strip():
            search = prompt_results(self._memory, request.prompt, settings, session_key=request.session_key)
            results, cosines = await asyncio.gather(search, self._cosines(curated, request.prompt))
            blocks += triggered_blocks(curated, request.prompt, cosines=cosines)
            blocks += await asyncio.to_thread(self._passages, request, results, files, [block.text for block in blocks])
        texts = {block.source: block.text for block in blocks if not block.is_indexed}
        given = [block for block in curated if texts.get(block.source) == block.text]
        if request.session:
            fresh = self._sessions.fresh(self._agent.id, request.session, blocks)
            blocks = blocks if request.repeats else fresh
        blocks = without_hidden_lines(blocks, files, repositories, given=given)
        return PromptAnswer(
            text=injected_text(blocks),
            blocks=tuple(block.size for block in blocks),
            took_ms=round((time.monotonic() - started) * 1000, 2),
        )

    def report(
        self,
        *,
        session_key: str | None = None,
        kind: SessionKindOfPrompt = "chat",
        bare_reset: bool = False,
        texts: bool = False,
    ) -> ContextReport:
        """Return the files in a session's prompt and the indexed documents; the files' `texts` only on request."""
        session = session_of(session_key)
        if not allows(self._agent.scope, session, agent=self._agent.id):
            return ContextReport()
        context = self._agent.context
        files = bootstrap_files(
            self._agent.workspace,
            context.bootstrap,
            redact=redactor_for(self._agent, MEMORY_SOURCE, budget=ASKING),
            kind=kind,
            private=session.is_private,
            today=datetime.now(context.zone).date() if bare_reset else None,
        )
        error = None
        indexed: tuple[IndexedDocument, ...] = ()
        try:
            with self._reading() as reader:
                indexed = tuple(_indexed(reader)) if reader is not None and session.is_owner else ()
        except RecalldError as failed:
            error = str(failed)
        files_now = self._curated(session).values()
        curated = [block for file in files_now for block in file.blocks if block.directives.are_for(())]
        standing = standing_blocks(curated, context.injection) if context.injection.enabled else []
        return ContextReport(
            files=tuple(file if texts else file.model_copy(update={"text": None}) for file in files),
            standing=tuple(block.size for block in standing),
            daily_notes=tuple(block.size for block in self._daily_notes(session)),
            tools=tuple(_tools()),
            indexed=indexed,
            error=error,
        )

    def flush(self, request: FlushRequest) -> FlushAnswer:
        """Return the plan of a flush, or the code of the reason why none is due."""
        if request.is_writable is None:
            request = request.model_copy(update={"is_writable": os.access(self._agent.workspace, os.W_OK)})
        context = self._agent.context
        return flush_plan(request, context.flush, now=datetime.now(context.zone).astimezone(context.zone))

    def prune(self, request: PruneRequest) -> PruneAnswer:
        """Return the messages of a model call without old results of tools."""
        now = request.now if request.now is not None else time.time()
        return prune(request, self._agent.context.pruning, now=now)

    def _curated(self, session: Session) -> dict[str, CuratedFile]:
        """Return the curated files for a session by path, without secrets. Each revision is read once."""
        files = {}
        for name in CURATED_FILES:
            # A file may be absent, withheld from the session, or unreadable: then status says so.
            with suppress(RecalldError):
                key = resolve_for(session, self._files, name)
                source = self._files.read(key)
                revision = (source.content_hash, redaction_facts(self._agent))
                cached = self._sessions.curated.get((self._agent.id, key.path))
                if cached is None or cached[0] != revision:
                    try:
                        text = redactor_for(self._agent, MEMORY_SOURCE, budget=ASKING)(source.text)
                    except PatternTooCostly:
                        text = ""  # no prompt tries it again
                    cached = revision, CuratedFile.of(text, path=key.path)
                    self._sessions.curated[self._agent.id, key.path] = cached
                files[key.path] = cached[1]
        return files

    def _daily_notes(self, session: Session) -> list[InjectedBlock]:
        """Return today's and yesterday's note without secrets; none if the setting is off, or others may listen."""
        context, blocks = self._agent.context, list[InjectedBlock]()
        if not (context.injection.enabled and context.injection.daily_notes and session.is_private):
            return blocks
        today = datetime.now(context.zone).date()
        redact = redactor_for(self._agent, MEMORY_SOURCE, budget=ASKING)
        for day in (today, today - timedelta(days=1)):
            with suppress(RecalldError):  # absent, withheld or unreadable
                key = resolve_for(session, self._files, f"memory/{day.isoformat()}.md")
                text = redact(self._files.read(key).text)
                blocks.append(daily_note_block(text, key.path, max_chars=context.injection.daily_note_max_chars))
        return [block for block in blocks if block.text]

    def _passages(
        self, request: PromptRequest, results: Sequence[SearchResult], files: Collection[str], given: Iterable[str]
    ) -> list[InjectedBlock]:
        """Return the passages for a prompt among the results of a search. `files`: curated files for the session."""
        settings = self._agent.context.injection
        # What was said in this session stands above the prompt, until it is compacted. Its note repeats that.
        current_session = request.session if self._sessions.holds_all(self._agent.id, request.session) else ""
        confident = [result for result in results if confidence(result) >= settings.min_score]
        if results and not any(result.path in CURATED_FILES for result in confident):
            confident += self._curated_results(request.prompt[:SEARCHED_CHARACTERS], files)
        hits = [(result, sessions_of(result, self._files)) for result in confident]
        return passage_blocks(hits, settings, excluded_session=current_session, given=given)

    def _curated_results(self, query: str, paths: Iterable[str]) -> Iterator[SearchResult]:
        """Yield the passage of curated files with most of a query's words, which a search may rank behind others."""
        parameters = SearchParameters(query, 1, 0.0, (MEMORY_SOURCE,), self._agent.query.hybrid)
        with suppress(RecalldError), self._reading() as reader:
            if reader is not None and reader.text_reason is None:
                ids = [chunk.id for path in paths for chunk in reader.chunks_of(DocumentKey(MEMORY_SOURCE, path))]
                hits, copies = ranked(reader, parameters, {}, reader.text_scores(query, ids), model="")
                retrieval = Retrieval(hits, sought(query), "keyword", (), copies)
                for passage in passages_of(retrieval, max_snippet_chars=self._agent.limits.max_snippet_chars):
                    yield passage[0]

    async def _cosines(self, curated: Sequence[CuratedBlock], prompt: str) -> dict[str, float]:
        """Return the cosines of a prompt with the meanings of lines, if the prompt's vector comes in time.

        The search of the prompt requests the same vector, so it is paid for once.
        """
        seconds = self._agent.context.injection.timeout_ms / 1000
        meanings = [block.meaning for block in curated if block.meaning is not None]
        with suppress(TimeoutError, RecalldError):
            async with asyncio.timeout(seconds):
                request = await asyncio.to_thread(self._request_vectors, meanings, prompt, seconds)
                if request is not None:
                    lines, vectors, future = request
                    vector = await vectors.result(future, seconds)
                    return {meaning: float(line @ vector) for meaning, line in lines.items()}
        return {}

    def _request_vectors(
        self, meanings: Sequence[str], prompt: str, seconds: float
    ) -> tuple[dict[str, Vector], QueryVectors, Future[Vector]] | None:
        """Return the lines' vectors, which workers left in the embedding cache, and the prompt's, if there are any.

        Only a provider with an account has them: cosines of models on this machine are for ranking.
        """
        vectors = self._memory.embedder.vectors if meanings and isinstance(self._memory, SearchManager) else None
        if vectors is None or not vectors.provider.account:
            return None
        identity = vectors.provider.identity
        cache = EmbeddingCacheReader.of(self._settings, Scope.of(self._agent.id).tenant)

        def cached(missing: Sequence[str]) -> dict[str, Vector]:
            hashes = {text_hash(meaning): meaning for meaning in missing}
            return {hashes[digest]: vector for digest, vector in cache.get_many(identity, list(hashes)).items()}

        lines = self._sessions.line_vectors(identity, meanings, cached)
        if not lines:
            return None
        query = searched_query(prompt, redactor_for(self._agent, MEMORY_SOURCE, SESSIONS_SOURCE, budget=ASKING))
        return lines, vectors, vectors.begin(query.text, seconds=seconds, agent=self._agent.id)


def _tools() -> Iterator[ToolCost]:
    for tool in TOOLS.values():
        text = json.dumps(tool.model_dump(by_alias=True), ensure_ascii=False)
        yield ToolCost(name=tool.name, characters=len(text), tokens=round(estimate_tokens(text)))


def _indexed(reader: StoreReader) -> Iterator[IndexedDocument]:
    chunks = {source: reader.chunks_by_path(source) for source in (MEMORY_SOURCE, SESSIONS_SOURCE)}
    for file in reader.files():
        size, count = file.stat.size, chunks[file.key.source].get(file.key.path, 0)
        tokens = size // _TOKEN_BYTES
        if file.key.is_transcript:  # most of its bytes are no words
            rows = reader.chunk_rows([chunk.id for chunk in reader.chunks_of(file.key)])
            tokens = round(sum(estimate_tokens(row.text) for row in rows.values()))
        yield IndexedDocument(path=file.key.path, source=file.key.source, bytes=size, chunks=count, tokens=tokens)

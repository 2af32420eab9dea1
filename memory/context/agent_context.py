"""Context of one agent's conversations: what its prompts get, what they cost, and when to flush and prune."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime

from memory.chunking.chunker import estimate_tokens
from memory.context.bootstrap import ContextFile, bootstrap_files
from memory.context.flush import FlushPlan, FlushSession, flush_plan
from memory.context.injection import (
    CuratedFile,
    InjectedBlock,
    InjectedSessions,
    found_blocks,
    injected_text,
    standing_blocks,
    triggered_blocks,
)
from memory.context.pruning import PruningState, prune
from memory.documents.agent_files import AgentFiles
from memory.redaction import ASKING, redactor_for
from memory.search.scope import Session, allows, resolve_for, session_of
from memory.search.tools import TOOLS, SearchableMemory
from memory.store.reader import StoreReader
from schemas.context import (
    BootstrapFile,
    ContextReport,
    FlushAnswer,
    FlushRequest,
    IndexedDocument,
    PromptAnswer,
    PromptBlock,
    PromptRequest,
    PruneAnswer,
    PruneRequest,
    SessionKindOfPrompt,
    ToolCost,
)
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Settings

#: Curated files, by the names under which they are read.
CURATED_FILES = ("MEMORY.md", "USER.md")

#: Bytes of a token, for the estimate of an indexed document.
_TOKEN_BYTES = 4


class AgentContext:
    """Context of one agent's conversations.

    `sessions` remembers what prompts hold; all agents share it. `reading` lends the answering index.
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
        self._agent = agent
        self._memory = memory
        self._sessions = sessions
        self._reading = reading
        self._files = AgentFiles.of(settings, agent)

    async def before_prompt(self, request: PromptRequest) -> PromptAnswer:
        """Return the text for a prompt: standing instructions, lines with triggers, and what a search finds in time."""
        started = time.monotonic()
        settings = self._agent.context.injection
        if not settings.enabled or not self._agent.enabled:
            return PromptAnswer(disabled=True)
        session = session_of(request.session_key)
        if not allows(self._agent.scope, session, agent=self._agent.id):
            return PromptAnswer()
        curated = await asyncio.to_thread(self._curated, session)
        blocks = standing_blocks(curated, settings, projects=request.projects)
        if request.prompt.strip():
            blocks += triggered_blocks(curated, request.prompt, projects=request.projects)
            blocks += await found_blocks(self._memory, request.prompt, settings, session_key=request.session_key)
        if request.begins:
            self._sessions.begin(self._agent.id, request.session)
        if request.session:
            blocks = self._sessions.fresh(self._agent.id, request.session, blocks)
        return PromptAnswer(
            text=injected_text(blocks),
            blocks=tuple(map(_block, blocks)),
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
        """Return what a session's prompt gets and what is indexed; the files' `texts` only if asked for."""
        session = session_of(session_key)
        if not allows(self._agent.scope, session, agent=self._agent.id):
            return ContextReport()
        context = self._agent.context
        today = datetime.now(context.zone).date() if bare_reset else None
        files = bootstrap_files(
            self._agent.workspace,
            context.bootstrap,
            redact=redactor_for(self._agent, MEMORY_SOURCE, budget=ASKING),
            kind=kind,
            private=session.is_private,
            today=today,
        )
        error = None
        indexed: tuple[IndexedDocument, ...] = ()
        try:
            with self._reading() as reader:
                indexed = tuple(_indexed(reader)) if reader is not None and session.is_owner else ()
        except RecalldError as failed:
            error = str(failed)
        standing = standing_blocks(self._curated(session), context.injection) if context.injection.enabled else []
        return ContextReport(
            files=tuple(_file(file, with_text=texts) for file in files),
            standing=tuple(map(_block, standing)),
            tools=tuple(_tools()),
            indexed=indexed,
            error=error,
        )

    def flush(self, request: FlushRequest) -> FlushAnswer:
        """Return the plan of a flush, if one is due."""
        writable = os.access(self._agent.workspace, os.W_OK) if request.is_writable is None else request.is_writable
        fields = request.model_dump(exclude={"agent", "is_writable"})
        session = FlushSession(**fields, is_writable=writable)
        context = self._agent.context
        plan = flush_plan(session, context.flush, now=datetime.now(context.zone).astimezone(context.zone))
        if not isinstance(plan, FlushPlan):
            return FlushAnswer(due=False, skip=plan.value)
        return FlushAnswer(
            due=True,
            system_prompt=plan.system_prompt,
            prompt=plan.prompt,
            path=plan.path,
            silent_token=plan.silent_token,
            model=plan.model,
            cycle=plan.cycle,
        )

    def prune(self, request: PruneRequest) -> PruneAnswer:
        """Return the messages of a model call without old results of tools."""
        pruned = prune(
            request.messages,
            self._agent.context.pruning,
            now=request.now if request.now is not None else time.time(),
            state=PruningState(request.touched_at, request.decisions),
            window_tokens=request.window_tokens,
        )
        return PruneAnswer(
            messages=tuple(dict(message) for message in pruned.messages),
            touched_at=pruned.state.touched_at,
            decisions=dict(pruned.state.decisions),
            characters_before=pruned.characters[0],
            characters_after=pruned.characters[1],
        )

    def _curated(self, session: Session) -> list[CuratedFile]:
        """Return the curated files that the session may read, without secrets."""
        redact = redactor_for(self._agent, MEMORY_SOURCE, budget=ASKING)
        found = []
        for name in CURATED_FILES:
            try:
                key = resolve_for(session, self._files, name)
                found.append(CuratedFile(key.path, redact(self._files.read(key).text)))
            except RecalldError:
                continue  # absent, withheld from the session, or unreadable: then status says so
        return found


def _block(block: InjectedBlock) -> PromptBlock:
    return PromptBlock(
        kind=block.kind, source=block.source, characters=len(block.text), tokens=round(estimate_tokens(block.text))
    )


def _file(file: ContextFile, *, with_text: bool) -> BootstrapFile:
    return BootstrapFile(
        path=file.path,
        characters=file.characters,
        shown=len(file.text),
        tokens=file.tokens,
        truncated=file.is_truncated,
        problem=file.problem,
        text=file.text if with_text else None,
    )


def _tools() -> Iterator[ToolCost]:
    for tool in TOOLS.values():
        text = json.dumps(tool.model_dump(by_alias=True), ensure_ascii=False)
        yield ToolCost(name=tool.name, characters=len(text), tokens=round(estimate_tokens(text)))


def _indexed(reader: StoreReader) -> Iterator[IndexedDocument]:
    chunks = {source: reader.chunks_by_path(source) for source in (MEMORY_SOURCE, SESSIONS_SOURCE)}
    for file in reader.files():
        size, count = file.stat.size, chunks[file.key.source].get(file.key.path, 0)
        yield IndexedDocument(
            path=file.key.path, source=file.key.source, bytes=size, chunks=count, tokens=size // _TOKEN_BYTES
        )

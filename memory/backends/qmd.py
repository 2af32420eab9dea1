"""Search by QMD, a local search program for Markdown (npm: @tobilu/qmd), kept up to date in the background.

QMD gets collections of the agent's notes where they lie, and of its transcripts as Markdown without secrets. Each agent
has a configuration and an index of its own below <home>/qmd.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from memory.backends.backend import Backend
from memory.backends.qmd_command import QmdCommand, QmdFailed, QmdHit, documents_of, program_of, read_hits
from memory.documents.agent_files import AgentFiles
from memory.redaction import ASKING, redactor_for
from memory.search.get import LONGEST_LINE_BYTES, message_texts
from memory.search.manager import SearchManager
from memory.search.scope import Session, is_cited, resolve_for, session_of
from memory.search.tools import injected
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.sections import Qmd
from schemas.settings import AgentSettings, ExtraPath, Limits, Settings
from schemas.status import Availability, BackendStatus

_log = structlog.get_logger(__name__)

#: Attempts of the first update, and seconds before the second one; each further pause is twice as long.
_BOOT_ATTEMPTS, _BOOT_PAUSE_SECONDS = 3, 0.5

#: Seconds before an embedding that failed is tried again, at first and at most.
_EMBED_BACKOFF_SECONDS, _EMBED_MOST_SECONDS = 60.0, 3600.0

#: Hits that are asked for beside the wanted ones: some may be withheld from the session.
_SPARE_HITS = 10

#: Lines of an exported transcript above that of the file's first line.
_EXPORT_HEADING_LINES = 2


@dataclass(frozen=True, slots=True)
class _Collection:
    """Folder of files that match a pattern; `source` is theirs."""

    path: str
    pattern: str
    source: str = MEMORY_SOURCE


class QmdBackend(Backend):
    """Search of one agent's memory by QMD. Its index is updated by a thread, one process at a time."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        self._settings = settings
        self._agent = agent
        self._qmd: Qmd = agent.qmd
        self._files = AgentFiles.of(settings, agent)
        self._folder = settings.home / "qmd" / agent.id
        self._command = QmdCommand(self._qmd.command, self._folder, agent.workspace)
        self._collections = self._wanted_collections()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._status = BackendStatus(
            backend="qmd", provider="qmd", model="qmd", search_mode=self._qmd.search_mode, vectors=self._vectors()
        )
        self._documents: SearchManager | None = None
        threading.Thread(target=self._keep_up, name=f"qmd-{agent.id}", daemon=True).start()

    @classmethod
    def of(cls, settings: Settings, agent: AgentSettings) -> Self:
        """Return the backend of an agent; it begins to update its index.

        Raises:
            QmdFailed: the command is not installed.
        """
        program_of(agent.qmd.command)
        return cls(settings, agent)

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return self._agent.limits

    # Searching and reading

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return what QMD finds and the session may see.

        Raises:
            QmdFailed: the search fails, or takes longer than `qmd.limits.timeout_ms`.
        """
        return await asyncio.to_thread(self._search, request)

    def _search(self, request: SearchRequest) -> SearchAnswer:
        started = time.monotonic()
        limits = self._qmd.limits
        redact = redactor_for(self._agent, MEMORY_SOURCE, SESSIONS_SOURCE, budget=ASKING)
        query = " ".join(redact(request.query).split())
        wanted = request.max_results or limits.max_results
        hits: list[QmdHit] = []
        if query:
            options = ("--json", "-n", str(wanted + _SPARE_HITS), "--", query)
            printed = self._command.run(self._qmd.search_mode, *options, timeout_seconds=limits.timeout_ms / 1000)
            hits = read_hits(printed)
        session = session_of(request.session_key)
        cited = is_cited(self._agent.citations, session)
        sources = request.searched(self._agent.sources)
        results = (self._result(hit, session, cited=cited) for hit in hits if hit.score >= (request.min_score or 0.0))
        found = [result for result in results if result is not None and result.source in sources]
        return SearchAnswer(
            results=injected(found[:wanted], max_chars=limits.max_injected_chars),
            provider="qmd",
            model="qmd",
            mode="keyword" if self._qmd.search_mode == "search" else "hybrid",
            citations=cited,
            took_ms=round((time.monotonic() - started) * 1000, 2),
        )

    def _result(self, hit: QmdHit, session: Session, *, cited: bool) -> SearchResult | None:
        """Return a hit as a result; None if it is of no document, or the session must not see it."""
        key = self._key_of(hit.collection, hit.path)
        if key is None:
            return None
        try:
            resolve_for(session, self._files, key.path)
        except RecalldError:
            return None
        heading = _EXPORT_HEADING_LINES if key.is_transcript else 0
        start, end = max(1, hit.start - heading), max(1, hit.end - heading)
        last = f"-L{end}" if end > start else ""
        return SearchResult(
            path=key.path,
            start_line=start,
            end_line=end,
            score=round(max(0.0, min(1.0, hit.score)), 4),
            snippet=redactor_for(self._agent, key.source, budget=ASKING)(hit.text)[
                : self._qmd.limits.max_snippet_chars
            ],
            source=key.source,
            citation=f"{key.path}#L{start}{last}" if cited else None,
        )

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Read lines of a document; `qmd/<collection>/<path>` names one, too."""
        prefix, _, rest = request.path.partition("/")
        collection, _, path = rest.partition("/")
        if prefix == "qmd" and (key := self._key_of(collection, path)) is not None:
            request = request.model_copy(update={"path": key.path})
        if self._documents is None:
            without_provider = {"provider": "none", "fallback": "none"}
            self._documents = SearchManager(self._settings, self._agent.model_copy(update=without_provider))
        return self._documents.read_file(request)

    def _key_of(self, collection: str, path: str) -> DocumentKey | None:
        """Return the document of a file in a collection."""
        known = self._collections.get(collection)
        if known is None:
            return None
        if known.source == SESSIONS_SOURCE:
            return DocumentKey(SESSIONS_SOURCE, f"{SESSIONS_SOURCE}/{path.removesuffix('.md')}")
        return self._files.key_of(os.path.join(known.path, path))  # noqa: PTH118 - text, not yet a path

    # State

    def status(self) -> BackendStatus:
        """Return the state after the last update."""
        return self._status

    def sync(self) -> str | None:
        """Request an update, unless one came within the debounce time."""
        self._wake.set()
        return None

    def probe_embedding_availability(self) -> Availability:
        """Return whether the search mode embeds queries."""
        return self._vectors()

    def probe_vector_availability(self) -> Availability:
        """Return whether the search mode uses vectors."""
        return self._vectors()

    def close(self) -> None:
        """End the updates, and what runs for them."""
        self._closed.set()
        self._wake.set()
        self._command.stop()
        if self._documents is not None:
            self._documents.close()

    def _vectors(self) -> Availability:
        if self._qmd.search_mode == "search":
            return Availability(available=False, reason='qmd.search_mode = "search" uses keywords only')
        return Availability(available=True)

    # Updates

    def _wanted_collections(self) -> dict[str, _Collection]:
        workspace, agent = str(self._agent.workspace), self._agent.id
        collections = {
            f"memory-root-{agent}": _Collection(workspace, "{MEMORY,memory,USER}.md"),
            f"memory-dir-{agent}": _Collection(f"{workspace}/memory", "**/*.md"),
        }
        for number, extra in enumerate(self._agent.extra_paths, start=1):
            path = Path(workspace, extra.path if isinstance(extra, ExtraPath) else extra)
            place = (
                _Collection(str(path.parent), path.name) if path.suffix == ".md" else _Collection(str(path), "**/*.md")
            )
            collections[f"extra-{number}-{agent}"] = place
        if SESSIONS_SOURCE in self._agent.sources and self._qmd.sessions.enabled:
            collections[f"sessions-{agent}"] = _Collection(str(self._folder / "sessions"), "**/*.md", SESSIONS_SOURCE)
        return collections

    def _keep_up(self) -> None:
        """Update the index at the start, every few minutes and on request; embed now and then."""
        settings = self._qmd.update
        pause, embed_at, failures = 0.0, 0.0, 0
        for attempt in range(_BOOT_ATTEMPTS if settings.on_boot else 0):
            busy = self._step(self._update)
            if busy is None or not busy or self._closed.wait(_BOOT_PAUSE_SECONDS * 2**attempt):
                break
        while not self._closed.is_set():
            if self._qmd.search_mode != "search" and time.monotonic() >= embed_at:
                failures = failures + 1 if self._step(self._embed) is not None else 0
                backoff = min(_EMBED_BACKOFF_SECONDS * 2 ** max(0, failures - 1), _EMBED_MOST_SECONDS)
                embed_at = time.monotonic() + (backoff if failures else settings.embed_interval_minutes * 60)
            pause = settings.interval_minutes * 60
            if self._qmd.search_mode != "search":
                pause = min(pause, max(0.0, embed_at - time.monotonic()))
            updated_at = time.monotonic()
            if self._wake.wait(pause):
                self._wake.clear()
                # A request within the debounce time waits for its end, and takes later ones along.
                self._closed.wait(max(0.0, updated_at + settings.debounce_seconds - time.monotonic()))
            if not self._closed.is_set():
                self._step(self._update)

    def _step(self, step: Callable[[], None]) -> bool | None:
        """Carry out a step; return None if it worked, else whether it may work in a moment."""
        try:
            step()
        except (QmdFailed, RecalldError, OSError) as error:
            self._status = self._status.model_copy(update={"problem": str(error)})
            _log.warning("qmd_not_updated", agent=self._agent.id, reason=str(error))
            return getattr(error, "is_busy", False) is True
        except Exception as error:  # noqa: BLE001 - the thread goes on, and the status has the reason
            self._status = self._status.model_copy(update={"problem": f"{type(error).__name__}: {error}"})
            _log.exception("qmd_not_updated", agent=self._agent.id)
            return False
        return None

    def _update(self) -> None:
        with self._turn() as is_ours:
            if not is_ours:
                return  # another process updates
            self._configure()
            self._export_transcripts()
            settings = self._qmd.update
            self._command.run("update", timeout_seconds=settings.timeout_seconds)
            printed = self._command.run("status", timeout_seconds=settings.command_timeout_seconds)
        files, _ = documents_of(printed.splitlines())
        told = {"problem": None, "files": files, "chunks": files, "updated_at": time.time()}
        self._status = self._status.model_copy(update=told)

    def _embed(self) -> None:
        with self._turn() as is_ours:
            if is_ours:
                self._command.run("embed", timeout_seconds=self._qmd.update.embed_timeout_seconds)

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Yield True if no other process updates this agent's index."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "update.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def _configure(self) -> None:
        """Write QMD's list of collections; JSON is YAML, too. Folders that are not there yet are left out."""
        wanted = {
            name: {"path": one.path, "pattern": one.pattern}
            for name, one in self._collections.items()
            if Path(one.path).is_dir() or one.source == SESSIONS_SOURCE
        }
        digest = json.dumps(wanted, sort_keys=True)
        written = self._folder / "collections.json"
        with suppress(OSError):
            if written.read_text("utf-8") == digest and self._command.configuration.exists():
                return
        self._command.configuration.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._command.configuration.write_text(json.dumps({"collections": wanted}), "utf-8")
        written.write_text(digest, "utf-8")

    def _export_transcripts(self) -> None:
        """Write transcripts that changed as Markdown, a line for each of theirs; remove those that are gone or old."""
        folder = self._folder / "sessions"
        if not any(one.source == SESSIONS_SOURCE for one in self._collections.values()):
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        days = self._qmd.sessions.retention_days
        oldest = time.time() - days * 86_400 if days is not None else 0.0
        kept: set[Path] = set()
        for key, stat in self._files.scan().documents.items():
            if not key.is_transcript or stat.mtime_ns / 1e9 < oldest or self._closed.is_set():
                continue
            file = folder / f"{key.path.removeprefix(f'{SESSIONS_SOURCE}/')}.md"
            kept.add(file)
            if file.exists() and file.stat().st_mtime_ns == stat.mtime_ns:
                continue
            with suppress(RecalldError), self._files.opened(key, settled=False) as opened:
                text_of = message_texts(opened.format, redactor_for(self._agent, SESSIONS_SOURCE))
                lines = [text_of(line, True) for line in opened.lines(longest=LONGEST_LINE_BYTES)]  # noqa: FBT003
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                text = "\n".join([f"# Session {file.stem}", "", *lines, ""])
                file.write_text(text, "utf-8", errors="replace")
                os.utime(file, ns=(stat.mtime_ns, stat.mtime_ns))
        if not self._closed.is_set():
            for file in folder.rglob("*.md"):
                if file not in kept:
                    file.unlink(missing_ok=True)

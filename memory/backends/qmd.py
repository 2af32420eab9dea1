"""Search by QMD, a local search program for Markdown (npm: @tobilu/qmd), kept up to date in the background.

QMD gets collections of the agent's notes where they lie, and of its transcripts as Markdown without secrets. Each agent
has a configuration and an index of its own below <home>/qmd.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from memory.backends.backend import FAILURE, Backend, reason_of
from memory.backends.qmd_command import QmdCommand, QmdFailed, QmdHit, count_of, program_of, read_hits
from memory.documents.agent_files import AgentFiles
from memory.redaction import redactor_for
from memory.search.freshness import DEFAULT_WAIT_MS, Moment, pending_state
from memory.search.get import LONGEST_LINE_BYTES, message_texts
from memory.search.ranking.query import searched_query
from memory.search.scope import session_of, withheld_from
from memory.status.condition_texts import text_of
from schemas.conditions import Condition, ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError, backoff
from schemas.ports import Pending
from schemas.search import SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, ExtraPath, Qmd, Settings
from schemas.status import Availability, BackendStatus

_log = structlog.get_logger(__name__)

#: Seconds before a step that failed is tried again; each further pause is twice as long.
_RETRY_SECONDS = 10.0

#: Hits that are requested in addition: some may be withheld from the session.
_SPARE_HITS, _SPARE_HITS_OF_GUESTS = 10, 100

#: Share of a search's time that it may wait for an update, and seconds between two looks for its end.
_WAIT_SHARE, _POLL_SECONDS = 0.2, 0.02

#: A process takes no NUL, and a document of several typed queries has line ends.
_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f]+")

#: Seconds between two cleanups of a changed index, which holds deleted text until then.
CLEANUP_SECONDS = 1_800.0

_KEYWORDS_ONLY = 'qmd.search_mode = "search" uses keywords only'

#: Lines of an exported transcript above that of the file's first line.
_EXPORT_HEADING_LINES = 2


@dataclass(slots=True)
class _Step:
    """Step that is carried out every `interval` seconds, and sooner after a failure; `at` is the next time."""

    run: Callable[[], None]
    interval: float
    at: float
    failures: int = 0
    problem: str | None = None

    def done(self, problem: str | None) -> None:
        """Set the time of the next run, and keep the problem of this one."""
        self.problem, self.failures = problem, self.failures + 1 if problem else 0
        pause = backoff(self.failures, first=_RETRY_SECONDS, longest=self.interval) if problem else self.interval
        self.at = time.monotonic() + pause


class QmdBackend(Backend):
    """Search of one agent's memory by QMD. Its index is updated by a thread, one process at a time.

    Raises:
        QmdFailed: the command is not installed, or the section [qmd] of the settings is wrong.
    """

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        if agent.qmd.problem is not None:
            raise QmdFailed(agent.qmd.problem)
        program_of(agent.qmd.command)
        self._agent = agent
        self._qmd: Qmd = agent.qmd
        self._files = AgentFiles.of(settings, agent)
        folder = settings.home / "qmd" / agent.id
        self._exports = folder / "sessions"
        self._command = QmdCommand(self._qmd.command, folder, agent.workspace)
        self._collections = self._wanted_collections()
        self._cleaned_up_at = 0
        #: Collections of the last configuration: QMD refuses a search in another one.
        self._configured: tuple[str, ...] = ()
        #: Documents as the last update found them, and the Unix time at which it began.
        self._taken: tuple[dict[DocumentKey, FileStat], float] = ({}, time.time())
        #: Monotonic time from which on a requested update begins.
        self._due = time.monotonic()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._embeds = self._qmd.search_mode != "search"
        self._vectors = _off("its notes are not embedded yet" if self._embeds else _KEYWORDS_ONLY)
        self._status = BackendStatus(
            backend="qmd", provider="qmd", model="qmd", search_mode=self._qmd.search_mode, vectors=self._vectors
        )
        threading.Thread(target=self._keep_up, name=f"qmd-{agent.id}", daemon=True).start()

    # Searching

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return all that QMD finds, after waiting for an update that changed documents need.

        Raises:
            QmdFailed: the search fails, or takes longer than `qmd.limits.timeout_ms`.
        """
        started = time.monotonic()
        wait_ms = DEFAULT_WAIT_MS if request.wait_ms is None else request.wait_ms
        until = started + min(wait_ms, _WAIT_SHARE * self._agent.limits.timeout_ms) / 1000
        while True:
            last_update, pending = self._taken, await asyncio.to_thread(self._pending)
            if self._due >= until or not Moment(pending).waits(request.wait_ms, until):
                return await asyncio.to_thread(self._search, request, pending, started)
            while last_update is self._taken and time.monotonic() < until:
                await asyncio.sleep(_POLL_SECONDS)

    def _pending(self) -> Pending:
        """Return the documents that changed since the last update began, and request an update if there are any.

        A transcript that still grows does not count.
        """
        (indexed, since), documents = self._taken, self._documents_now()
        grows_from = time.time() - self._agent.sync.sessions.quiet_seconds
        times = {key: stat.mtime_ns / 1e9 for key, stat in documents.items() if indexed.get(key) != stat}
        changed_at = [max(since, at) for key, at in times.items() if not key.is_transcript or at < grows_from]
        changed_at += [since] * len(indexed.keys() - documents.keys())
        if changed_at:
            self.sync()
        return Pending(documents=len(changed_at), oldest_at=min(changed_at, default=None))

    def _search(self, request: SearchRequest, pending: Pending, started: float) -> SearchAnswer:
        limits, session = self._qmd.limits, session_of(request.session_key)
        searched = searched_query(_CONTROL.sub(" ", request.query), str)
        # A word and a colon would be the type of the query.
        query = searched.text.replace(":", " ", 1) if self._qmd.search_mode == "query" else searched.text
        max_results = request.max_results or limits.max_results
        hits: list[QmdHit] = []
        sources, withheld = set(request.searched(self._agent.sources)), withheld_from(session, self._files)
        if withheld is not None and withheld.transcripts == frozenset():
            sources.discard(SESSIONS_SOURCE)
        collections = [f"--collection={name}" for name in self._configured if _source_of(name) in sources]
        if query and collections:
            spare = _SPARE_HITS if session.is_owner else _SPARE_HITS_OF_GUESTS
            options = ("--json", "-n", str(max_results + spare), *collections, "--", query)
            printed = self._command.run(self._qmd.search_mode, *options, timeout_seconds=limits.timeout_ms / 1000)
            hits = read_hits(printed)
        lacking = [searched.cut] if searched.cut is not None else []
        if (problem := self._status.problem) is not None:
            lacking.append(Condition(ConditionCode.BACKEND_FAILS, self._agent.id, params={"reason": problem}))
        return SearchAnswer(
            results=tuple(result for hit in hits if (result := self._result(hit)) is not None),
            provider="qmd",
            model="qmd",
            mode="keyword" if self._qmd.search_mode == "search" else "hybrid",
            degraded=tuple(map(text_of, lacking)),
            conditions=tuple(lacking),
            pending=pending_state(pending, vectors=0),
            stale=True if pending.documents else None,
            took_ms=round((time.monotonic() - started) * 1000, 2),
        )

    def _result(self, hit: QmdHit) -> SearchResult | None:
        """Return a hit as a result; None if it is of no document."""
        key = self._key_of(hit)
        if key is None:
            return None
        start, text = hit.passage
        start = max(1, start - (_EXPORT_HEADING_LINES if key.is_transcript else 0))
        return SearchResult(
            path=key.path,
            start_line=start,
            end_line=start + text.count("\n"),
            score=round(max(0.0, min(1.0, hit.score)), 4),
            snippet=text,
            source=key.source,
        )

    def _key_of(self, hit: QmdHit) -> DocumentKey | None:
        """Return the document of a hit."""
        collection, path = hit.place
        settings = self._collections.get(collection)
        if settings is None:
            return None
        if settings["path"] == str(self._exports):
            return DocumentKey(SESSIONS_SOURCE, f"{SESSIONS_SOURCE}/{path.removesuffix('.md')}")
        return self._files.key_of(os.path.join(settings["path"], path))  # noqa: PTH118 - text, not yet a path

    # State

    def status(self) -> BackendStatus:
        """Return the state after the last update."""
        return self._status

    def sync(self) -> str | None:
        """Request an update, unless one came within the debounce time."""
        self._wake.set()
        return None

    def probe_embedding_availability(self) -> Availability:
        """Let QMD embed a word and search for it."""
        if not self._embeds:
            return self._vectors
        options, limits = [f"--collection={name}" for name in self._configured], self._qmd.limits
        arguments = ("vsearch", "--json", "-n", "1", *options, "--", "memory")
        return self._probed(lambda: read_hits(self._command.run(*arguments, timeout_seconds=limits.timeout_ms / 1000)))

    def probe_vector_availability(self) -> Availability:
        """Ask QMD how many chunks it has embedded."""
        if not self._embeds or not self._vectors.available:
            return self._vectors
        return self._probed(self._embedded_chunks)

    def _embedded_chunks(self) -> None:
        seconds = self._qmd.update.command_timeout_seconds
        if not count_of("Vectors", self._command.run("status", timeout_seconds=seconds)):
            raise QmdFailed("qmd status counts no embedded chunk")

    def _probed(self, probe: Callable[[], object]) -> Availability:
        try:
            probe()
        except QmdFailed as error:
            return _off(reason_of(error, self._agent))
        return Availability(available=True)

    def close(self) -> None:
        """End the updates and their processes."""
        self._closed.set()
        self._wake.set()
        self._command.stop()

    # Updates

    def _wanted_collections(self) -> dict[str, dict[str, str]]:
        """Return folder and pattern of each collection, in the words of QMD's configuration."""
        agent, workspace, notes = self._agent.id, str(self._agent.workspace), "**/*.md"
        places = {
            f"memory-root-{agent}": (workspace, "{MEMORY,memory,USER}.md"),
            f"memory-dir-{agent}": (f"{workspace}/memory", notes),
        }
        for number, extra in enumerate(self._agent.extra_paths, start=1):
            path = Path(workspace, extra.path if isinstance(extra, ExtraPath) else extra)
            is_file = path.suffix == ".md"
            places[f"extra-{number}-{agent}"] = (str(path.parent), path.name) if is_file else (str(path), notes)
        if SESSIONS_SOURCE in self._agent.sources and self._qmd.sessions.enabled:
            places[f"sessions-{agent}"] = (str(self._exports), notes)
        return {name: {"path": path, "pattern": pattern} for name, (path, pattern) in places.items()}

    def _keep_up(self) -> None:
        """Update the index at the start, every few minutes and on request; embed now and then."""
        settings, now = self._qmd.update, time.monotonic()
        interval = settings.interval_minutes * 60
        steps = [update := _Step(self._update, interval, now if settings.on_boot else now + interval)]
        steps.append(_Step(self._clean_up, CLEANUP_SECONDS, now))
        embed = _Step(self._embed, settings.embed_interval_minutes * 60, now)
        if self._embeds:
            steps.append(embed)
        self._note_failure("")  # of an earlier process
        while not self._closed.is_set():
            step = min(steps, key=lambda step: step.at)
            if self._wake.wait(max(0.0, step.at - time.monotonic())):
                self._wake.clear()
                # A request within the debounce time waits for its end, and takes later ones along.
                update.at = min(update.at, self._due)
                continue
            step.done(self._carried_out(step))
            if self._closed.is_set():
                return  # its process was ended, too
            if step is update:
                self._due = time.monotonic() + settings.debounce_seconds
            if step is embed:
                self._vectors = _off(step.problem) if step.problem is not None else Availability(available=True)
            problem = next((step.problem for step in steps if step.problem is not None), None)
            self._status = self._status.model_copy(update={"problem": problem, "vectors": self._vectors})
            self._note_failure(problem or "")

    def _note_failure(self, problem: str) -> None:
        with suppress(OSError):  # the disk may be full
            (self._exports.parent / FAILURE).write_text(problem, "utf-8")

    def _carried_out(self, step: _Step) -> str | None:
        """Carry out a step unless another process does; return the reason of a failure."""
        try:
            for folder in (self._exports.parent, self._exports):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._exports.parent / "update.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Folders that are not there yet are left out. JSON is YAML, too.
                present = {name: entry for name, entry in self._collections.items() if Path(entry["path"]).is_dir()}
                self._command.configure(json.dumps({"collections": present}))
                self._configured = tuple(present)
                step.run()
        except BlockingIOError:
            return step.problem
        except Exception as error:  # noqa: BLE001 - the thread goes on, and the status has the reason
            is_known = isinstance(error, (RecalldError, OSError))
            reason = str(error) if is_known else f"{type(error).__name__}: {error}"
            _log.warning("qmd_not_updated", agent=self._agent.id, reason=reason, exc_info=not is_known)
            return reason
        return None

    def _update(self) -> None:
        began, documents, settings = time.time(), self._documents_now(), self._qmd.update
        self._export_transcripts(documents)
        self._command.run("update", timeout_seconds=settings.timeout_seconds)
        self._taken = documents, began
        files = count_of("Total", self._command.run("status", timeout_seconds=settings.command_timeout_seconds))
        self._status = self._status.model_copy(update={"files": files, "chunks": files, "updated_at": began})

    def _clean_up(self) -> None:
        """Remove deleted text from QMD's index, if it changed."""
        index = self._exports.parent / "cache" / "qmd" / "index.sqlite"
        if index.exists() and index.stat().st_mtime_ns != self._cleaned_up_at:
            self._command.run("cleanup", timeout_seconds=self._qmd.update.timeout_seconds)
            self._cleaned_up_at = index.stat().st_mtime_ns

    def _embed(self) -> None:
        self._command.run("embed", timeout_seconds=self._qmd.update.embed_timeout_seconds)

    def _documents_now(self) -> dict[DocumentKey, FileStat]:
        """Return the documents on the disk that QMD gets: transcripts only if they are exported and not too old."""
        sessions, documents = self._qmd.sessions, self._files.scan().documents.items()
        oldest = time.time() - (sessions.retention_days or math.inf) * 86_400 if sessions.enabled else math.inf
        return {key: stat for key, stat in documents if not key.is_transcript or stat.mtime_ns / 1e9 >= oldest}

    def _export_transcripts(self, documents: dict[DocumentKey, FileStat]) -> None:
        """Write changed transcripts as Markdown, line by line; remove the exports of vanished and old transcripts."""
        folder = self._exports
        exported: set[Path] = set()
        for key, stat in documents.items():
            if not key.is_transcript or self._closed.is_set():
                continue
            file = folder / f"{key.path.removeprefix(f'{SESSIONS_SOURCE}/')}.md"
            exported.add(file)
            if file.exists() and file.stat().st_mtime_ns == stat.mtime_ns:
                continue
            with suppress(RecalldError), self._files.opened(key, settled=False) as opened:
                text_of = message_texts(opened.format, redactor_for(self._agent, SESSIONS_SOURCE))
                lines = [text_of(line, True) for line in opened.lines(longest=LONGEST_LINE_BYTES)]  # noqa: FBT003
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.write_text("\n".join([f"# Session {file.stem}", "", *lines, ""]), "utf-8", errors="replace")
                os.utime(file, ns=(stat.mtime_ns, stat.mtime_ns))
        if not self._closed.is_set():
            for file in folder.rglob("*.md"):
                if file not in exported:
                    file.unlink(missing_ok=True)


def _off(reason: str) -> Availability:
    return Availability(available=False, reason=reason)


def _source_of(collection: str) -> str:
    return SESSIONS_SOURCE if collection.startswith("sessions-") else MEMORY_SOURCE

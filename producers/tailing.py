"""The thread that looks at growing transcripts and decides when they are handed over.

A transcript is handed over at once when enough was appended (`sync.sessions`), when it was cut or written anew,
when its agent compacted the conversation, and when somebody asks for it; else when nothing was written for the
quiet time. What is known of each is only kept to decide that: it may be forgotten at any time, and after a restart the
comparison of files and index finds what was not handed over.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import structlog

from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused, OpenTranscript
from memory.documents.session_roots import archived_path
from memory.status.pulses import Pulse, unwatched
from memory.store.reader import StoreReader
from producers.debouncing import Debouncer
from producers.growth import Due, Growth
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError
from schemas.settings_sections import SyncSessions

log = structlog.get_logger(__name__)

#: Seconds between two looks, so that a transcript that is written all the time is not looked at all the time.
LOOK_SECONDS = 0.05

#: A transcript that never rests is handed over after this many quiet times: indexing what was appended costs little.
BOUND_FACTOR = 3

#: Transcripts that something is known of; of the others, the index knows.
MAX_KNOWN = 10_000

#: Transcripts looked at before those that are due are handed over.
LOOKS_AT_A_TIME = 500

Indexed = Callable[[str], StoreReader | None]
HandingOver = Callable[[str, Mapping[DocumentKey, FileStat | None]], None]


class Tailer:
    """See the module. All methods are thread-safe.

    `sync` gives an agent's thresholds and `indexed` opens the index that its files must agree with (None when
    there is none). `hand_over` gets what is due, with its stat, None for one that is gone and to be forgotten.
    """

    def __init__(
        self,
        files: Mapping[str, AgentFiles],
        *,
        sync: Callable[[str], SyncSessions],
        indexed: Indexed,
        hand_over: HandingOver,
        clock: Callable[[], float] = time.monotonic,
        pulse: Pulse | None = None,
    ) -> None:
        self._pulse = pulse or unwatched()
        self._files = files
        self._sync = sync
        self._indexed = indexed
        self._hand_over = hand_over
        self._clock = clock
        self._changed = threading.Condition()
        self._debouncer = Debouncer(lambda agent: sync(agent).quiet_seconds, bound_factor=BOUND_FACTOR)
        # What is to be looked at, and whether any change is enough.
        self._waiting: dict[tuple[str, DocumentKey], bool] = {}
        self._urgent = False
        self._looking = False
        self._stopping = False
        # Of the thread alone.
        self._known: OrderedDict[tuple[str, DocumentKey], Growth] = OrderedDict()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._pulse.belongs_to(self._thread)

    def touch(self, agent: str, key: DocumentKey) -> None:
        """A transcript may have grown: hand it over when its thresholds or its quiet time say so."""
        with self._changed:
            self._debouncer.touch(agent, key, now=self._clock())
            self._waiting.setdefault((agent, key), False)
            self._changed.notify_all()

    def force(self, agent: str, key: DocumentKey) -> None:
        """Hand a transcript over now, unless it is as it was when it was handed over last."""
        with self._changed:
            self._waiting[agent, key] = True
            self._urgent = True
            self._changed.notify_all()

    def flush(self, agent: str | None = None) -> None:
        """Hand over now what waits for its quiet time, of one agent or of all."""
        with self._changed:
            self._force_all(self._debouncer.flush(agent))
            self._urgent = True
            self._changed.notify_all()

    def settle(self, timeout_seconds: float) -> bool:
        """Wait until every transcript that was to be looked at before was; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._looking), timeout_seconds)

    def waiting(self) -> int:
        """How many transcripts wait to be looked at or for their quiet time."""
        with self._changed:
            return len(self._waiting) + len(self._debouncer)

    def stop(self) -> None:
        """Hand over what waits and end the thread."""
        with self._changed:
            self._force_all(self._debouncer.flush())
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _force_all(self, due: Mapping[str, list[DocumentKey]]) -> None:
        for agent, keys in due.items():
            for key in keys:
                self._waiting[agent, key] = True

    def _run(self) -> None:
        while True:
            with self._changed:
                now = self._clock()
                self._force_all(self._debouncer.take_due(now=now))
                looks, self._waiting = self._waiting, {}
                self._urgent = False
                self._looking = bool(looks)
                stopping = self._stopping
                if not looks and not stopping:
                    next_due = self._debouncer.next_due()
                    # The pause is real time even when the clock is a test's.
                    self._changed.wait(None if next_due is None else max(0.001, next_due - now))
                    continue
            entries = iter(looks.items())
            while some := dict(itertools.islice(entries, LOOKS_AT_A_TIME)):
                with self._pulse.at("looks at transcripts"):
                    self._look_safely(some)
            with self._changed:
                self._looking = False
                self._changed.notify_all()
            if stopping:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._urgent, LOOK_SECONDS)

    def _look_safely(self, looks: Mapping[tuple[str, DocumentKey], bool]) -> None:
        """Look at these. A mistake here must not end the thread: then all of them are handed over."""
        by_agent: dict[str, dict[DocumentKey, bool]] = {}
        for (agent, key), forced in looks.items():
            by_agent.setdefault(agent, {})[key] = forced
        for agent, keys in by_agent.items():
            due: Mapping[DocumentKey, FileStat | None]
            try:
                due = dict(self._due(agent, keys))
            except Exception:
                log.exception("tailing_failed", agent=agent)
                due = dict.fromkeys(keys)
            if due:
                self._hand_over(agent, due)

    def _due(self, agent: str, keys: Mapping[DocumentKey, bool]) -> Iterator[tuple[DocumentKey, FileStat | None]]:
        self._meet(agent, keys)
        files, sync = self._files[agent], self._sync(agent)
        for key, forced in keys.items():
            growth = self._known[agent, key]
            try:
                with files.transcripts.opened(key, settled=False) as opened:
                    if _when(key, growth, opened, sync, forced=forced) is Due.NOW:
                        growth.handed_over(opened.stat, None if opened.compressed else opened.block)
                        yield key, opened.stat
            except DocumentGone:
                del self._known[agent, key]
                if files.forgets(key):
                    yield key, None
            except DocumentRefused:
                del self._known[agent, key]
            except Exception as error:  # noqa: BLE001 - whoever reads it meets the same, and records it
                log.warning("transcript_not_looked_at", agent=agent, error=type(error).__name__)
                if forced:
                    yield key, None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _meet(self, agent: str, keys: Mapping[DocumentKey, bool]) -> None:
        """See to it that something is known of these: what the index holds of them, at first sight."""
        strangers = []
        for key in keys:
            if (agent, key) in self._known:
                self._known.move_to_end((agent, key))
            else:
                strangers.append(key)
                self._known[agent, key] = Growth(None, 0)
        if not strangers:
            return
        try:
            reader = self._indexed(agent)
            if reader is None:
                return
            with closing(reader):
                for key in strangers:
                    self._known[agent, key] = _indexed_growth(reader, key)
        except RecalldError as error:
            # Then all of them counts as new, and is handed over the sooner.
            log.warning("index_not_looked_at", agent=agent, error=str(error))


def _indexed_growth(reader: StoreReader, key: DocumentKey) -> Growth:
    file = reader.file(key)
    if file is None:
        return Growth(None, 0)
    mark = reader.transcript(key)
    return Growth(file.stat, min(mark.offset, file.stat.size) if mark is not None else file.stat.size)


def _when(key: DocumentKey, growth: Growth, opened: OpenTranscript, sync: SyncSessions, *, forced: bool) -> Due:
    if growth.base is not None and growth.base.agrees_with(opened.stat):
        return Due.NOT
    if forced or opened.compressed or archived_path(key.path) is not None:
        return Due.NOW  # the latter two do not grow: they are whole when they come
    return growth.look(opened.stat, opened.block, sync)

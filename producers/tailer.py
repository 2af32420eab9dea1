"""Looks at growing transcripts: which of them are due before their quiet time is over.

A transcript is due at once when enough was appended (`sync.sessions`), when it was truncated or rewritten, when its
agent compacted the conversation, and on request; else after the quiet time. The recorded growth may be forgotten at any
time: after a restart, the comparison of files and index finds what was not handed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

import structlog

from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused, OpenTranscript
from memory.documents.comparison import forgets
from memory.documents.roots import archived_path
from memory.store.reader import StoreReader
from memory.transcripts.interpreter import is_compaction_line
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, SyncSessions

log = structlog.get_logger(__name__)

#: Bytes of one read.
BLOCK_BYTES = 64 * 1024

#: A transcript with a longer unfinished line is due.
LONGEST_LINE_BYTES = 4 * 1024 * 1024

#: `read(offset, size)` gives up to `size` bytes of the file.
Read = Callable[[int, int], bytes]

#: Transcripts whose growth is kept; the growth of others is read from the index.
MAX_KNOWN = 10_000


class Due(Enum):
    """Time of a transcript's hand-over."""

    NOT = "nothing was written since"
    QUIET = "when nothing was written for the quiet time"
    NOW = "at once"


@dataclass(slots=True)
class Growth:
    """Growth of a transcript since it was handed over.

    `base`: its stat then, None before the first hand-over. `lines`: whole lines appended since. `counted_to`: byte at
    which the next line begins.
    """

    base: FileStat | None
    counted_to: int
    lines: int = 0

    def look(self, stat: FileStat, read: Read, sync: SyncSessions) -> Due:
        """Compare a plain file with its recorded growth, and read the appended lines if they decide.

        A line that records a compaction makes the transcript due, if the settings say so. Bytes that an earlier look
        has read are not read again, except for the unfinished last line.
        """
        if self.base is not None and self.base.agrees_with(stat):
            return Due.NOT
        size = self.base.size if self.base is not None else 0
        if self.base is not None and (stat.inode != self.base.inode or stat.size < max(size, self.counted_to)):
            return Due.NOW  # truncated or rewritten
        if stat.size - size >= sync.delta_bytes or sync.delta_messages == 0:
            return Due.NOW
        compacted = self._count(stat.size, read)
        if self.lines >= sync.delta_messages or (compacted and sync.post_compaction_force):
            return Due.NOW
        return Due.NOW if stat.size - self.counted_to > LONGEST_LINE_BYTES else Due.QUIET

    def handed_over(self, stat: FileStat, read: Read | None) -> None:
        """Record a hand-over with this stat; `read` is None where lines are not counted."""
        self.base, self.lines = stat, 0
        self.counted_to = stat.size
        if read is not None:
            start = max(0, stat.size - BLOCK_BYTES)
            self.counted_to = start + read(start, stat.size - start).rfind(b"\n") + 1 if stat.size else 0

    def _count(self, end: int, read: Read) -> bool:
        """Count the whole lines up to `end`. Return True if one of them records a compaction."""
        compacted = False
        position, rest = self.counted_to, b""
        while position < end and len(rest) <= LONGEST_LINE_BYTES:
            block = read(position, min(BLOCK_BYTES, end - position))
            if not block:
                break
            position += len(block)
            *lines, rest = (rest + block).split(b"\n")
            self.lines += len(lines)
            compacted = compacted or any(map(is_compaction_line, lines))
        self.counted_to = position - len(rest)
        return compacted


class Tailer:
    """Judge of growing transcripts. For one thread.

    `indexed` opens the index that an agent's files must agree with (None without an index).
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSettings],
        files: Mapping[str, AgentFiles],
        indexed: Callable[[AgentSettings], StoreReader | None],
    ) -> None:
        self._agents = agents
        self._files = files
        self._indexed = indexed
        self._known: OrderedDict[tuple[str, DocumentKey], Growth] = OrderedDict()

    def due(self, agent: str, keys: Mapping[DocumentKey, bool]) -> dict[DocumentKey, FileStat | None]:
        """Return the due ones of these transcripts with their stats, None for a vanished one to forget.

        Of one with True any change is enough. After an unexpected error all of them are due. Never raises.
        """
        try:
            return dict(self._due(agent, keys))
        except Exception:
            log.exception("tailing_failed", agent=agent)
            return dict.fromkeys(keys)

    def _due(self, agent: str, keys: Mapping[DocumentKey, bool]) -> Iterator[tuple[DocumentKey, FileStat | None]]:
        self._meet(agent, keys)
        files, sync = self._files[agent], self._agents[agent].sync.sessions
        for key, forced in keys.items():
            growth = self._known[agent, key]
            try:
                with files.opened(key, settled=False) as opened:
                    if _when(key, growth, opened, sync, forced=forced) is Due.NOW:
                        growth.handed_over(opened.stat, None if opened.compressed else opened.block)
                        yield key, opened.stat
            except DocumentGone:
                del self._known[agent, key]
                if forgets(files, key):
                    yield key, None
            except DocumentRefused:
                del self._known[agent, key]
            except Exception as error:  # noqa: BLE001 - the worker that reads it records the error
                log.warning("transcript_not_looked_at", agent=agent, error=type(error).__name__)
                if forced:
                    yield key, None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _meet(self, agent: str, keys: Mapping[DocumentKey, bool]) -> None:
        """Make sure that the growth of these is known: at first sight, read it from the index."""
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
            reader = self._indexed(self._agents[agent])
            if reader is None:
                return
            with closing(reader):
                for key in strangers:
                    self._known[agent, key] = _indexed_growth(reader, key)
        except RecalldError as error:
            # Without the index, everything in them counts as new.
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

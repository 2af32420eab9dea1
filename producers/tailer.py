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

import structlog

from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused
from memory.documents.comparison import forgets
from memory.documents.roots import archived_path
from memory.store.sqlite.reader import StoreReader
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


@dataclass(slots=True)
class Growth:
    """Growth of a transcript since it was handed over.

    `base`: its stat then, None before the first hand-over. `lines`: whole lines appended since. `counted_to`: byte at
    which the next line begins.
    """

    base: FileStat | None
    counted_to: int
    lines: int = 0

    def is_due(self, stat: FileStat, read: Read, sync: SyncSessions, *, whole: bool = False) -> bool:
        """Return True if a transcript in this state is due before its quiet time; a `whole` one is after any change.

        The appended lines of another one are read if they decide. A line that records a compaction makes it due, if the
        settings say so. Bytes that an earlier look has read are not read again, except for the unfinished last line.
        """
        if self.base is not None and self.base.agrees_with(stat):
            return False
        size = self.base.size if self.base is not None else 0
        if self.base is not None and (stat.inode != self.base.inode or stat.size < max(size, self.counted_to)):
            return True  # truncated or rewritten
        if whole or stat.size - size >= sync.delta_bytes or sync.delta_messages == 0:
            return True
        compacted = self._count(stat.size, read)
        if self.lines >= sync.delta_messages or (compacted and sync.post_compaction_force):
            return True
        return stat.size - self.counted_to > LONGEST_LINE_BYTES

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
                    # Compressed ones and archives do not grow.
                    is_whole = forced or opened.compressed or archived_path(key.path) is not None
                    if growth.is_due(opened.stat, opened.block, sync, whole=is_whole):
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
        strangers = [key for key in keys if (agent, key) not in self._known]
        for key in keys:
            self._known.setdefault((agent, key), Growth(None, 0))
            self._known.move_to_end((agent, key))
        try:
            reader = self._indexed(self._agents[agent]) if strangers else None
            if reader is None:
                return
            with closing(reader):
                for key in strangers:
                    if (file := reader.file(key)) is not None:
                        mark, size = reader.transcript(key), file.stat.size
                        counted_to = min(mark.offset, size) if mark is not None else size
                        self._known[agent, key] = Growth(file.stat, counted_to)
        except RecalldError as error:
            # Without the index, everything in them counts as new.
            log.warning("index_not_looked_at", agent=agent, error=str(error))

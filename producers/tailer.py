"""Growth of transcripts, which makes some of them due before their quiet time is over.

A transcript is due at once when enough was appended (`sync.sessions`), when it was truncated or rewritten, when its
agent compacted the conversation, and on request; else after the quiet time. The recorded growth may be forgotten at any
time: after a restart, the comparison of files and index finds changes that were not handed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import structlog

from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused
from memory.documents.comparison import forgets
from memory.documents.content import OpenTranscript
from memory.documents.roots import archived_path
from memory.store.reader import StoreReader
from memory.transcripts.interpreter import is_compaction_line
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, SyncSessions

log = structlog.get_logger(__name__)

#: A transcript with a longer unfinished line is due.
LONGEST_LINE_BYTES = 4 * 1024 * 1024

#: Largest number of transcripts whose growth is recorded; the growth of others is read from the index.
MAX_TRANSCRIPTS = 10_000


@dataclass(slots=True)
class Growth:
    """Growth of a transcript since it was handed over.

    `base`: stat at the last hand-over, None before the first. `lines`: whole lines appended since, of `bytes` bytes.
    `counted_to`: position at which the next line begins.
    """

    base: FileStat | None
    counted_to: int
    lines: int = 0
    bytes: int = 0

    def is_due(self, opened: OpenTranscript, sync: SyncSessions, *, at_any_change: bool = False) -> bool:
        """Return True if a transcript in this state is due before its quiet time is over.

        `at_any_change`: the appended lines do not matter. Otherwise they are read if they decide. A line that records a
        compaction makes the transcript due if the settings say so. No line is read twice, except for the unfinished
        last one.
        """
        stat = opened.stat
        if self.base is not None and self.base.agrees_with(stat):
            return False
        size = self.base.size if self.base is not None else 0
        if self.base is not None and (stat.inode != self.base.inode or stat.size < max(size, self.counted_to)):
            return True  # truncated or rewritten
        if at_any_change or stat.size - size >= sync.delta_bytes or sync.delta_messages == 0:
            return True
        compacted = self._count(opened)
        if self.lines >= sync.delta_messages or self.bytes >= sync.delta_bytes:
            return True
        if compacted and sync.post_compaction_force:
            return True
        return stat.size - self.counted_to > LONGEST_LINE_BYTES

    def handed_over(self, opened: OpenTranscript) -> None:
        """Record a hand-over of a transcript as it is."""
        self.base, self.lines, self.bytes = opened.stat, 0, 0
        self.counted_to = opened.next_position()

    def _count(self, opened: OpenTranscript) -> bool:
        """Count the appended lines that have ended. Return True if one of them records a compaction."""
        compacted = False
        for line in opened.lines(self.counted_to, longest=LONGEST_LINE_BYTES):
            if not line.has_line_end:
                break
            self.lines += 1
            self.bytes += line.size
            self.counted_to = line.end
            compacted = compacted or (line.data is not None and is_compaction_line(line.data))
        return compacted


class Tailer:
    """Finder of due transcripts. For one thread.

    `indexed` opens the index that an agent's files must agree with, None without an index.
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
        self._growth: OrderedDict[tuple[str, DocumentKey], Growth] = OrderedDict()

    def due(self, agent: str, keys: Mapping[DocumentKey, bool]) -> dict[DocumentKey, FileStat | None]:
        """Return the due ones of these transcripts with their stats; the stat None tells to forget a vanished one.

        True for a key: any change makes the transcript due. After an unexpected error all of them are due. Never
        raises.
        """
        try:
            return dict(self._due(agent, keys))
        except Exception:
            log.exception("tailing_failed", agent=agent)
            return dict.fromkeys(keys)

    def _due(self, agent: str, keys: Mapping[DocumentKey, bool]) -> Iterator[tuple[DocumentKey, FileStat | None]]:
        self._load_growth(agent, keys)
        files, sync = self._files[agent], self._agents[agent].sync.sessions
        for key, forced in keys.items():
            growth = self._growth[agent, key]
            try:
                with files.opened(key, settled=False) as opened:
                    at_any_change = forced or not opened.grows or archived_path(key.path) is not None
                    if growth.is_due(opened, sync, at_any_change=at_any_change):
                        growth.handed_over(opened)
                        yield key, opened.stat
            except DocumentGone:
                del self._growth[agent, key]
                if forgets(files, key):
                    yield key, None
            except DocumentRefused:
                del self._growth[agent, key]
            except Exception as error:  # noqa: BLE001 - the worker that reads it records the error
                log.warning("transcript_not_looked_at", agent=agent, error=type(error).__name__)
                if forced:
                    yield key, None
        while len(self._growth) > MAX_TRANSCRIPTS:
            self._growth.popitem(last=False)

    def _load_growth(self, agent: str, keys: Mapping[DocumentKey, bool]) -> None:
        """Make sure that the growth of these transcripts is recorded. Read it from the index if it is not."""
        unrecorded = [key for key in keys if (agent, key) not in self._growth]
        for key in keys:
            self._growth.setdefault((agent, key), Growth(None, 0))
            self._growth.move_to_end((agent, key))
        try:
            reader = self._indexed(self._agents[agent]) if unrecorded else None
            if reader is None:
                return
            with closing(reader):
                for key in unrecorded:
                    if (file := reader.file(key)) is not None:
                        position, size = reader.transcript(key), file.stat.size
                        counted_to = min(position.offset, size) if position is not None else size
                        self._growth[agent, key] = Growth(file.stat, counted_to)
        except RecalldError as error:
            # Without the index, all of their lines count as new.
            log.warning("index_not_looked_at", agent=agent, error=str(error))

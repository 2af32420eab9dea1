"""Whether a transcript has grown enough to be handed over, by its stat and the bytes that were appended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from memory.transcripts.interpreter import is_compaction_line
from schemas.documents import FileStat
from schemas.settings_sections import SyncSessions

#: Bytes of one read.
BLOCK_BYTES = 64 * 1024

#: A line that is longer is not waited for: its transcript is due.
LONGEST_LINE_BYTES = 4 * 1024 * 1024

#: `read(offset, size)` gives up to `size` bytes of the file.
Read = Callable[[int, int], bytes]


class Due(Enum):
    """When a transcript is to be handed over."""

    NOT = "nothing was written since"
    QUIET = "when nothing was written for the quiet time"
    NOW = "at once"


@dataclass(slots=True)
class Growth:
    """What is known of a transcript since it was handed over.

    `base`: its stat then, None when nobody has read it. `lines` whole lines were appended since and counted;
    the next one begins at byte `counted_to`.
    """

    base: FileStat | None
    counted_to: int
    lines: int = 0

    def look(self, stat: FileStat, read: Read, sync: SyncSessions) -> Due:
        """Compare the (plain) file with what is known of it, and read what was appended if that decides.

        A line in which the agent's program says that it compacted the conversation makes the transcript due, if
        the settings say so. Reads nothing that an earlier look has read, the last unfinished line aside.
        """
        if self.base is not None and self.base.agrees_with(stat):
            return Due.NOT
        size = self.base.size if self.base is not None else 0
        if self.base is not None and (stat.inode != self.base.inode or stat.size < max(size, self.counted_to)):
            return Due.NOW  # cut or written anew
        if stat.size - size >= sync.delta_bytes or sync.delta_messages == 0:
            return Due.NOW
        compacted = self._count(stat.size, read)
        if self.lines >= sync.delta_messages or (compacted and sync.post_compaction_force):
            return Due.NOW
        return Due.NOW if stat.size - self.counted_to > LONGEST_LINE_BYTES else Due.QUIET

    def handed_over(self, stat: FileStat, read: Read | None) -> None:
        """The transcript was handed over with this stat; `read` is None where its lines are not counted."""
        self.base, self.lines = stat, 0
        self.counted_to = stat.size
        if read is not None:
            start = max(0, stat.size - BLOCK_BYTES)
            self.counted_to = start + read(start, stat.size - start).rfind(b"\n") + 1 if stat.size else 0

    def _count(self, end: int, read: Read) -> bool:
        """Count the whole lines up to `end`; whether one of them tells of a compaction."""
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

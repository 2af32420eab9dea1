"""Names and file states of documents, the same in every package and every message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

#: `source` of every note, and of every transcript.
MEMORY_SOURCE, SESSIONS_SOURCE = "memory", "sessions"


class Lane(StrEnum):
    """Queue of a document's job."""

    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, order=True)
class DocumentKey:
    """Name of one document of one agent.

    `source` is "memory" or "sessions". `path` is POSIX style: relative to the workspace for what lies
    inside it ("memory/2026-11-20.md"), absolute for documents of extra paths outside of it.
    """

    source: str
    path: str

    @property
    def is_transcript(self) -> bool:
        """Return True for a transcript, False for a note."""
        return self.source == SESSIONS_SOURCE

    def encode(self) -> str:
        """Return one string, for the broker's hashes; NUL separates, as no path holds it."""
        return f"{self.source}\0{self.path}"

    @classmethod
    def decode(cls, text: str) -> DocumentKey:
        """Return the key of a string made by `encode`."""
        source, _, path = text.partition("\0")
        return cls(source, path)


@dataclass(frozen=True, slots=True)
class FileStat:
    """File state of a document. A document whose state agrees with that in the index is unchanged and not read.

    Times fit 64 bits (`memory.documents.scan.file_stat`). `mtime_ns` is a fingerprint, compared for equality, never a
    clock: a program may set it to any value. `ctime_ns` is the last change of the file or its inode. It reveals an
    edit that keeps the size and sets `mtime_ns` back. 0 means unknown: the file system has no such time, or changes it
    by itself.
    """

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int = 0

    def agrees_with(self, now: FileStat) -> bool:
        """Return True if a file in the state `now` shows no change since this state."""
        if self.size != now.size or self.mtime_ns != now.mtime_ns or self.inode != now.inode:
            return False
        return self.ctime_ns == now.ctime_ns or not self.ctime_ns or not now.ctime_ns

    def without_ctime(self) -> FileStat:
        """Return the state with an unknown change time."""
        return replace(self, ctime_ns=0)

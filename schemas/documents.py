"""Names of documents, as every room and every message spells them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

#: `source` of every note, and of every transcript.
MEMORY_SOURCE, SESSIONS_SOURCE = "memory", "sessions"


class Lane(StrEnum):
    """Which queue carries a document's job."""

    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, order=True)
class DocumentKey:
    """One document of one agent.

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
        """Return one string, for the broker's hashes. A NUL separates its parts: paths cannot hold one."""
        return f"{self.source}\0{self.path}"

    @classmethod
    def decode(cls, text: str) -> DocumentKey:
        """Return the key that `encode` made a string of."""
        source, _, path = text.partition("\0")
        return cls(source, path)


@dataclass(frozen=True, slots=True)
class FileStat:
    """What `stat` says of a document. If what the index remembers agrees with it: unchanged, do not read.

    Times fit 64 bits (`memory.documents.scan.file_stat`). `mtime_ns` is a fingerprint, compared for equality, never a
    clock: a program may set it to any value. `ctime_ns`, when the file or its inode changed last, is what an edit
    cannot keep that keeps the size and sets the time back. 0 says nothing (a file system without it, or one on which it
    moves by itself); a negative one, that it was at most that much without the sign when the document was indexed.
    """

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int = 0

    def agrees_with(self, now: FileStat) -> bool:
        """Whether a file that is like `now` is, as far as can be told, still the one that was like this."""
        if self.size != now.size or self.mtime_ns != now.mtime_ns or self.inode != now.inode:
            return False
        if self.ctime_ns < 0:
            return now.ctime_ns <= -self.ctime_ns
        return self.ctime_ns == now.ctime_ns or not self.ctime_ns or not now.ctime_ns

    def without_ctime(self) -> FileStat:
        """The same, with nothing said of the change time."""
        return replace(self, ctime_ns=0)

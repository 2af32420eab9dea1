"""A transcript that is open for reading: what it was when it was opened, and its lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.documents.session_roots import COMPRESSED
from memory.documents.walk import file_stat
from schemas.documents import FileStat
from schemas.errors import Permanent, Transient

if TYPE_CHECKING:
    from memory.transcripts.lines import RawLine


@dataclass(frozen=True, slots=True)
class OpenTranscript:
    """Bytes beyond `stat.size` do not count: they came later.

    `compressed`: a Zstandard stream. `format` names how its folder is to be read, None when that is to be found
    out. `name` is what messages call it.
    """

    stat: FileStat
    compressed: bool
    format: str | None
    name: str
    descriptor: int

    @property
    def file_name(self) -> str:
        """What messages call the very file: a document's name does not tell that it is compressed."""
        return self.name + COMPRESSED if self.compressed else self.name

    def lines(self, offset: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        """The lines from byte `offset` on; of a compressed transcript, of its decompressed bytes.

        A line of more than `longest` bytes (by default of those that indexing takes) comes without its content.

        Raises:
            Transient: it was cut or written anew meanwhile.
            Permanent: a compressed one is damaged.
            OSError: it cannot be read; where it was opened, that becomes a `DocumentUnreadable`.
        """
        # A search never reads a transcript, and need not load what decompresses one.
        from memory.transcripts.lines import read_lines

        end = None if self.compressed else self.stat.size
        try:
            yield from read_lines(
                self.descriptor,
                offset=offset,
                end=end,
                compressed=self.compressed,
                longest=longest,
            )
        except Permanent:
            self._check()
            raise
        self._check()

    def changed(self) -> bool:
        """Whether something was written to it since it was opened."""
        return not self._is_like(file_stat(os.fstat(self.descriptor)))

    def block(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the file as it is stored."""
        return os.pread(self.descriptor, size, offset)

    def _check(self) -> None:
        """Growth is fine, and in a compressed transcript nothing is."""
        now = file_stat(os.fstat(self.descriptor))
        if now.size < self.stat.size or (self.compressed and not self._is_like(now)):
            raise Transient(f"{self.name} was written anew while it was read; it is read again later", retry_after=1.0)

    def _is_like(self, now: FileStat) -> bool:
        """A change time that moved alone does not count here: the one of before the reading is remembered, so that
        the next look meets it."""
        return self.stat.without_ctime().agrees_with(now)

"""Content of a document: a note's decoded text, or the lines of an open transcript."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.documents.roots import COMPRESSED
from memory.documents.safe_open import DocumentRefused, settled_stat
from memory.documents.scan import file_stat
from schemas.documents import FileStat
from schemas.errors import Permanent, Transient

if TYPE_CHECKING:
    from memory.transcripts.lines import RawLine

#: Larger files are refused: no note is, and a worker's memory is finite.
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024

_REPLACEMENT = "\ufffd"

#: Byte order marks of UTF-16, which some editors still write.
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class SourceText:
    """Text of a note as it was read.

    `text`: as `decode` returns it. `stat`: of the descriptor that was read. `content_hash`: SHA-256 of the bytes, in
    hex. `notes`: replacements in the text.
    """

    text: str
    stat: FileStat
    content_hash: str
    notes: tuple[str, ...]


def decode(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return a file's text without a byte order mark and NULs, and one phrase for each kind of replacement.

    UTF-16 if the bytes start with its byte order mark, else UTF-8; never fails. Invalid sequences and NULs become
    U+FFFD. Line ends stay as they are.
    """
    notes: list[str] = []
    encoding, name = ("utf-16", "UTF-16") if data.startswith(_UTF16_MARKS) else ("utf-8-sig", "UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode(encoding, errors="replace")
        notes.append(f"invalid {name} was replaced")
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
        notes.append("NUL characters were replaced")
    return text, tuple(notes)


def read_steadily(descriptor: int, name: str) -> tuple[bytes, FileStat | None]:
    """Return the bytes of an open file and its stat; no stat if it changed meanwhile."""
    before = settled_stat(descriptor)
    if before.st_size > MAX_DOCUMENT_BYTES:
        raise DocumentRefused(
            f"{name} has {before.st_size / 1e6:.0f} MB, more than the {MAX_DOCUMENT_BYTES / 1e6:.0f} MB of a note"
        )
    parts: list[bytes] = []
    left = before.st_size + 1  # one more than there should be, to see that it is the end
    while left > 0 and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    data = b"".join(parts)
    stat = file_stat(before)
    # The change time is that of before the reading: the next look meets an edit that sets the write time back, and a
    # file system whose change times move by themselves does not make a note unreadable.
    steady = stat.without_ctime().agrees_with(file_stat(os.fstat(descriptor))) and len(data) == stat.size
    return data, stat if steady else None


@dataclass(frozen=True, slots=True)
class OpenTranscript:
    """Transcript that is open for reading, without the bytes beyond `stat.size`: they came later.

    `compressed`: a Zstandard stream. `format`: what the user named for its folder, None if it is to be found out.
    `name`: for messages.
    """

    stat: FileStat
    compressed: bool
    format: str | None
    name: str
    descriptor: int

    @property
    def file_name(self) -> str:
        """Return the name of the very file, for messages: that of a document does not tell that it is compressed."""
        return self.name + COMPRESSED if self.compressed else self.name

    def lines(self, offset: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        """Yield the lines from byte `offset` on; of a compressed transcript, of its decompressed bytes.

        A line of more than `longest` bytes (by default of those that indexing takes) comes without its content.

        Raises:
            Transient: it was cut or written anew meanwhile.
            Permanent: a compressed one is damaged.
            OSError: it cannot be read; where it was opened, that becomes a `DocumentUnreadable`.
        """
        # A search does not read transcripts, and need not load the decompressor.
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
        """Return True if something was written to it since it was opened."""
        return not self._is_like(file_stat(os.fstat(self.descriptor)))

    def block(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of the file as it is stored."""
        return os.pread(self.descriptor, size, offset)

    def _check(self) -> None:
        """Raise `Transient` if the transcript was cut or, compressed, changed at all. It may have grown."""
        now = file_stat(os.fstat(self.descriptor))
        if now.size < self.stat.size or (self.compressed and not self._is_like(now)):
            raise Transient(f"{self.name} was written anew while it was read; it is read again later", retry_after=1.0)

    def _is_like(self, now: FileStat) -> bool:
        """Return True unless more than the change time moved.

        The index remembers the change time of before the reading, so that the next look meets the new one.
        """
        return self.stat.without_ctime().agrees_with(now)

"""Content of a document, opened safely: a note's decoded text, or the lines of an open transcript.

Every component below a configured folder is opened relative to the component above it and never through a symbolic
link, so that neither a link nor a link put in place at the last moment leads outside. The folder itself was configured
by its owner and may be reached through links.

    RecalldError
    +-- DocumentGone           not there (any more), or no longer a document of this agent
    Permanent
    +-- DocumentRefused        outside, a link, not a regular file, not Markdown, too large
    +-- DocumentUnreadable     permission denied, I/O error
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.documents.roots import COMPRESSED
from memory.documents.scan import EARLIEST_NS, file_stat
from schemas.documents import FileStat
from schemas.errors import OutOfMemory, Permanent, RecalldError, Transient

if TYPE_CHECKING:
    from memory.store.reader import IndexedFile, TranscriptPosition
    from memory.transcripts.lines import RawLine

#: Larger files are refused: no note is, and a worker's memory is finite.
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024

#: Bytes at the end of a transcript among which its last line end is looked for.
_TAIL_BYTES = 64 * 1024

#: Write time that no file has: the document counts as changed until its last part is committed.
UNFINISHED_NS = EARLIEST_NS - 1

#: The same for a file that was written to while it was read. Its lines may be of two contents, so the next run compares
#: all of them and not only the last one.
WRITTEN_MEANWHILE_NS = EARLIEST_NS - 2

_REPLACEMENT = "\ufffd"

#: Byte order marks of UTF-16, which some editors still write.
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# O_PATH (Linux) asks for no permission to list a folder, only for the one to pass through it.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY

# O_NONBLOCK: opening a pipe without a writer must not wait.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

#: File systems stamp writes by the kernel's tick (at most 10 ms). A file written more recently could change once
#: more and keep its size and times, and the index would never notice; so it is read once it is older.
_TICK_SECONDS = 0.02

_ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG))
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EAGAIN))


class DocumentGone(RecalldError):
    """Document that is not there (any more), or is no longer a document of this agent."""


class DocumentRefused(Permanent):
    """Path that is not, or must not be, a document: outside, a link, not a regular file, too large."""


class DocumentUnreadable(Permanent):
    """Document that the system does not let recalld read."""


@contextmanager
def opened_below(folder: str, parts: Sequence[str], *, name: str) -> Iterator[int]:
    """Yield a descriptor of the regular file `folder`/`parts`; closed afterwards.

    `name`: for messages.

    Raises:
        DocumentGone, DocumentRefused, DocumentUnreadable: see there.
        Transient: out of descriptors or memory.
    """
    with _translated(name):
        parent = _open_parent(folder, parts)
        try:
            try:
                descriptor = os.open(parts[-1], _FILE, dir_fd=parent)
            except OSError as error:
                # A socket cannot be opened at all.
                if error.errno == errno.ENXIO:
                    raise DocumentRefused(f"{name} is not a regular file") from error
                raise
        finally:
            os.close(parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DocumentRefused(f"{name} is not a regular file")
        with _translated(name):
            yield descriptor
    finally:
        os.close(descriptor)


def stat_below(folder: str, parts: Sequence[str], *, name: str) -> os.stat_result | None:
    """Return the stat of the regular file `folder`/`parts`; None if there is none or the way leads through a link.

    Raises:
        DocumentUnreadable, Transient: the system does not say whether it is there.
    """
    try:
        with _translated(name):
            parent = _open_parent(folder, parts)
            try:
                result = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(parent)
    except (DocumentGone, DocumentRefused):
        return None
    return result if stat.S_ISREG(result.st_mode) else None


def settled_stat(descriptor: int) -> os.stat_result:
    """Return the stat of an open file. A later write cannot leave it the same.

    May wait some milliseconds for a file that was written just now.
    """
    result = os.fstat(descriptor)
    age = time.time() - max(result.st_mtime_ns, result.st_ctime_ns) / 1e9
    if 0 <= age < _TICK_SECONDS:
        time.sleep(_TICK_SECONDS - age)
        result = os.fstat(descriptor)
    return result


def _open_parent(folder: str, parts: Sequence[str]) -> int:
    descriptor = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError:
                # Systems say the same of a file and of a link that was not to be followed.
                if stat.S_ISLNK(os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from None
                raise
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _ABSENT:
            raise DocumentGone(f"{name} is not there") from error
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise DocumentRefused(f"{name} is, or lies behind, a symbolic link, which is never followed") from error
        if error.errno == errno.ENOMEM:
            raise OutOfMemory(f"{name} cannot be opened now: {reason}") from error
        if error.errno in _EXHAUSTED:
            raise Transient(f"{name} cannot be opened now: {reason}", retry_after=1.0) from error
        raise DocumentUnreadable(f"{name} cannot be read: {reason}; check its permissions") from error


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
class OpenTranscript(ABC):
    """Transcript that is open for reading, without the lines beyond `stat.size`: they came later.

    `format`: as the user named it for its folder, None if it is to be found out. `name`: for messages.
    """

    stat: FileStat
    format: str | None
    name: str

    @property
    def file_name(self) -> str:
        """Return the name of the very file, for messages."""
        return self.name

    @property
    @abstractmethod
    def grows(self) -> bool:
        """Return True if its lines stay as they are when more are appended."""

    @abstractmethod
    def lines(self, position: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        """Yield the lines from a position on, at which a line starts.

        A line of more than `longest` bytes (by default of those that indexing takes) comes without its content.

        Raises:
            Transient: it was cut or written anew meanwhile.
            Permanent: it is damaged.
            OSError: it cannot be read; where it was opened, that becomes a `DocumentUnreadable`.
        """

    @abstractmethod
    def next_position(self) -> int:
        """Return the start of the last line if that has no end yet, else the position of the next line."""

    @abstractmethod
    def changed(self) -> bool:
        """Return True if something was written to it since it was opened."""


@dataclass(frozen=True, slots=True)
class OpenFile(OpenTranscript):
    """Open file with the lines of a transcript; positions are bytes. `compressed`: a Zstandard stream.

    The positions of a compressed file are those of its decompressed bytes.
    """

    compressed: bool
    descriptor: int

    @property
    def file_name(self) -> str:
        return self.name + COMPRESSED if self.compressed else self.name

    @property
    def grows(self) -> bool:
        return not self.compressed

    def lines(self, position: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        # A search does not read transcripts, and need not load the decompressor.
        from memory.transcripts.lines import read_lines

        end = None if self.compressed else self.stat.size
        try:
            yield from read_lines(
                self.descriptor,
                offset=position,
                end=end,
                compressed=self.compressed,
                longest=longest,
            )
        except Permanent:
            self._check()
            raise
        self._check()

    def next_position(self) -> int:
        size = self.stat.size
        if self.compressed or not size:
            return size
        start = max(0, size - _TAIL_BYTES)
        return start + os.pread(self.descriptor, size - start, start).rfind(b"\n") + 1

    def changed(self) -> bool:
        return not self._is_like(file_stat(os.fstat(self.descriptor)))

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


def lines_after(
    opened: OpenTranscript,
    position: TranscriptPosition,
    indexed: IndexedFile | None,
    *,
    last_length: int,
    last_digest: str,
) -> tuple[RawLine | None, Iterator[RawLine]]:
    """Return the last line before a position, and the lines after it; None if the lines before it are others.

    Of a file that only grew since it was `indexed`, the last line alone is compared. It starts `last_length` before the
    position and has the digest `last_digest`.
    """
    from memory.transcripts.folding import NO_LINES_DIGEST, digest_with

    stat, before = opened.stat, indexed.stat if indexed is not None else None
    only_grew = (
        before is not None
        and before.inode == stat.inode
        and before.mtime_ns != WRITTEN_MEANWHILE_NS
        and (stat.size > before.size or before.mtime_ns == UNFINISHED_NS)
    )
    line: RawLine | None = None
    if only_grew and opened.grows:
        lines = opened.lines(position.offset - last_length)
        line = next(lines, None)
        return (line if line is not None and line.digest.hex() == last_digest else None), lines
    # Compares digests, parses none.
    lines, digest = opened.lines(), NO_LINES_DIGEST
    for _ in range(position.lines):
        line = next(lines, None)
        if line is None or not line.has_line_end:
            return None, lines
        digest = digest_with(digest, line)
    return (line if digest == position.digest else None), lines

"""A transcript's way into the index: what was appended, in slices that are committed one after the other.

A slice goes on exactly where the one before it ended, and the index knows where that was (`TranscriptMark`), so that
a run may stop after any of them. A file that only grew is read from there; one that was put in another's place
(compressed, rotated, written anew) is compared by its running hash first, and read from its start when it differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from memory.documents.agent_files import AgentFiles
from memory.documents.content import OpenTranscript
from memory.documents.scan import EARLIEST_NS
from memory.embedding.providers.provider import EmbeddingProvider
from memory.index.difference import CutChunk, byte_limit
from memory.redaction import redactor_for
from memory.store.reader import StoreReader, TranscriptMark
from memory.store.writer import TranscriptWrite
from memory.transcripts.folding import NO_LINES_DIGEST, TranscriptFold, digest_with
from memory.transcripts.lines import RawLine, TranscriptDamaged
from memory.transcripts.packing import FoldedChunk
from schemas.documents import DocumentKey, FileStat
from schemas.settings import MemorySettings

#: New chunks in one slice.
SLICE_CHUNKS = 500

#: Bytes of the file in one slice, so that a transcript that says little is not read again from far behind.
SLICE_BYTES = 64 * 1024 * 1024

#: Lines in one slice: even empty ones take microseconds each.
SLICE_LINES = 100_000


#: A write time that no file has: a document counts as changed until its last slice is in.
_UNFINISHED = EARLIEST_NS - 1

#: The same, for a file that was written to while it was read: its lines may be of two contents, so that the next run
#: compares all of them, not the last one alone.
_WRITTEN_MEANWHILE = EARLIEST_NS - 2


@dataclass(frozen=True, slots=True)
class TranscriptSlice:
    """One step: `write` without its chunks, the chunks that it adds, and the number of messages that it read.

    `resumable`: a run that ends after it is spared what came before. One inside a line is not.
    """

    write: TranscriptWrite
    chunks: tuple[CutChunk, ...]
    messages: int = 0
    resumable: bool = True


@dataclass(frozen=True, slots=True)
class _Position:
    """What a mark's state holds: how the fold goes on, and the last line, to know the file again by."""

    fold: str
    last_size: int
    last_digest: str

    def encode(self) -> str:
        return json.dumps([self.fold, self.last_size, self.last_digest], ensure_ascii=False)

    @property
    def format(self) -> str | None:
        """The name of the format in which the file was read; None when no line was of one."""
        kept: dict[str, str | None] = json.loads(self.fold)
        return kept.get("format")

    @classmethod
    def decode(cls, state: str) -> _Position | None:
        """None for a document that was taken over from another generation, whose file was not there."""
        return cls(*json.loads(state)) if state else None


def slices_of(
    key: DocumentKey,
    *,
    files: AgentFiles,
    store: StoreReader | None,
    memory: MemorySettings,
    provider: EmbeddingProvider | None,
) -> Iterator[TranscriptSlice]:
    """Yield what brings a transcript in the index up to date; the last slice is the one with `write.final`.

    `store` is what the first slice goes on from, None for an index that knows nothing yet.

    Raises:
        DocumentGone, DocumentRefused, DocumentUnreadable, TranscriptDamaged: see there; slices before stay good.
        Transient: it is being replaced, or the system is out of descriptors.
    """
    with files.transcripts.opened(key) as opened:
        yield from _Slicing(key, opened, store, memory, provider).run()


def stat_of_the_same(key: DocumentKey, *, files: AgentFiles, store: StoreReader) -> FileStat | None:
    """The stat of a transcript that holds exactly what the index has of it; None when there is more to do.

    Reads it whole if its size is that of before, and not at all otherwise. Raises like `slices_of`.
    """
    known, mark = store.file(key), store.transcript(key)
    if known is None or mark is None or not mark.lines or known.stat.size != mark.offset:
        return None  # such as a last line without its end, which the mark says nothing of
    if known.stat.mtime_ns in (_UNFINISHED, _WRITTEN_MEANWHILE):
        return None
    with files.transcripts.opened(key) as opened:
        if opened.compressed or opened.stat.size != known.stat.size:
            return None
        rest = _after_the_same(opened, mark)
        if rest is None or next(rest, None) is not None or opened.changed():
            return None
        return opened.stat


def longest_beginning(
    key: DocumentKey, marks: Mapping[DocumentKey, TranscriptMark], *, files: AgentFiles
) -> DocumentKey | None:
    """Return the document with the most lines that a transcript begins with, each of them the same; None without one.

    Reads as many lines as `marks` say. Raises like `slices_of`, but for a transcript that is damaged.
    """
    names = {mark.digest: name for name, mark in marks.items() if mark.lines}
    most = max((mark.lines for mark in marks.values()), default=0)
    found: DocumentKey | None = None
    digest = NO_LINES_DIGEST
    with files.transcripts.opened(key) as opened, suppress(TranscriptDamaged):
        for line in islice(opened.lines(), most):
            if not line.ended:
                break
            digest = digest_with(digest, line)
            found = names.get(digest, found)
    return found


def is_read_otherwise(key: DocumentKey, *, files: AgentFiles, store: StoreReader) -> bool:
    """Whether the index read a transcript in another format than the one that a person named since then."""
    named = files.transcripts.named_format(key)
    mark = store.transcript(key) if named is not None else None
    position = _Position.decode(mark.state) if mark is not None else None
    return position is not None and position.format != named


class _Slicing:
    """One run over one open transcript."""

    def __init__(
        self,
        key: DocumentKey,
        opened: OpenTranscript,
        store: StoreReader | None,
        memory: MemorySettings,
        provider: EmbeddingProvider | None,
    ) -> None:
        self._key = key
        self._opened = opened
        self._memory = memory
        self._limits = byte_limit(provider)
        self._redact = redactor_for(memory, "sessions")
        # What the index holds, and what a slice that ends inside a line leaves there.
        self._stored = store.transcript(key) if store is not None else None
        self._standing = self._stored
        known = store.file(key) if store is not None and self._stored is not None else None
        self._known = known
        self._last = ("", 0)  # digest and size of the last line
        self._messages = 0  # up to the last slice
        self._keep: int | None = 0
        self._closed: list[FoldedChunk] = []

    def run(self) -> Iterator[TranscriptSlice]:
        try:
            fold, lines = self._begin()
        except TranscriptDamaged as damage:  # before the mark: what the index has stays
            raise self._named(damage) from damage.__cause__
        self._keep, self._messages = fold.closed, fold.messages
        tail: RawLine | None = None
        begun_at, begun_lines = fold.offset, fold.lines
        try:
            for line in lines:
                if not line.ended:
                    tail = line
                    break
                fold.feed(line)
                self._last = line.digest.hex(), line.size
                self._closed += fold.take()
                if (
                    len(self._closed) >= SLICE_CHUNKS
                    or fold.offset - begun_at >= SLICE_BYTES
                    or fold.lines - begun_lines >= SLICE_LINES
                ):
                    yield from self._full_slices()
                    yield self._slice(fold, self._closed, stat=self._unfinished(fold.offset), final=False)
                    begun_at, begun_lines, self._closed = fold.offset, fold.lines, []
        except TranscriptDamaged as damage:
            # What was said before the damage stays, and is found; a mended file goes on after it.
            if fold.offset > begun_at:
                self._closed += fold.open()
                yield from self._full_slices()
                yield self._slice(fold, self._closed, stat=self._unfinished(fold.offset), final=False)
            raise self._named(damage) from damage.__cause__
        self._closed += fold.open(tail)
        yield from self._full_slices()
        read = self._opened.stat
        if self._known is not None and self._known.content_hash == fold.digest:
            read = self._known.stat_when_the_same(read)
        stat = replace(read, mtime_ns=_WRITTEN_MEANWHILE) if self._opened.changed() else read
        yield self._slice(fold, self._closed, stat=stat, final=True, tail=tail)

    def _named(self, damage: TranscriptDamaged) -> TranscriptDamaged:
        return damage.of(self._opened.file_name, indexed=self._stored is not None)

    def _begin(self) -> tuple[TranscriptFold, Iterator[RawLine]]:
        """The fold to go on with, and the lines that it has not seen."""
        mark = self._stored
        position = _Position.decode(mark.state) if mark is not None else None
        # A generation that other settings or another version wrote may hold a state that nobody can go on from.
        fold = self._fold(position.fold) if position is not None else None
        if fold is not None and self._opened.format not in (None, fold.format):
            fold = None  # a person said since then how it is to be read
        if mark is not None and position is not None and fold is not None:
            lines = self._lines_after(mark, position)
            if lines is not None:
                self._last = position.last_digest, position.last_size
                return fold, lines
        self._standing = None
        return self._new_fold(None), self._opened.lines()

    def _lines_after(self, mark: TranscriptMark, position: _Position) -> Iterator[RawLine] | None:
        """What follows the mark, if the file still begins with what the index has seen."""
        stat = self._opened.stat
        known = self._known.stat if self._known is not None else None
        if not mark.lines:
            return self._opened.lines()
        if not self._opened.compressed and stat.size < mark.offset:
            return None
        only_grew = (
            known is not None
            and known.inode == stat.inode
            and known.mtime_ns != _WRITTEN_MEANWHILE
            and (stat.size > known.size or known.mtime_ns == _UNFINISHED)
        )
        if self._opened.compressed or not only_grew:
            return _after_the_same(self._opened, mark)
        lines = self._opened.lines(mark.offset - position.last_size)
        last = next(lines, None)
        return lines if last is not None and last.digest.hex() == position.last_digest else None

    def _fold(self, state: str) -> TranscriptFold | None:
        try:
            return self._new_fold(state)
        except ValueError:
            return None

    def _new_fold(self, state: str | None) -> TranscriptFold:
        chunking = self._memory.chunking
        return TranscriptFold(
            tokens=chunking.tokens,
            overlap=chunking.overlap,
            max_bytes=self._limits,
            redact=self._redact,
            format=self._opened.format,
            state=state,
        )

    def _full_slices(self) -> Iterator[TranscriptSlice]:
        """All but the last slice of chunks that one line brought: they stand at the mark before that line."""
        while len(self._closed) > SLICE_CHUNKS:
            mark = self._standing or TranscriptMark(0, 0, "", "")
            write = self._write(mark, stat=self._unfinished(mark.offset), final=False, notes=())
            yield TranscriptSlice(write, _cut(self._closed[:SLICE_CHUNKS]), resumable=False)
            self._closed = self._closed[SLICE_CHUNKS:]

    def _slice(
        self,
        fold: TranscriptFold,
        chunks: Sequence[FoldedChunk],
        *,
        stat: FileStat,
        final: bool,
        tail: RawLine | None = None,
    ) -> TranscriptSlice:
        position = _Position(fold.state(), self._last[1], self._last[0])
        mark = TranscriptMark(fold.offset, fold.lines, fold.digest, position.encode())
        before, self._messages = self._messages, fold.messages
        write = self._write(mark, stat=stat, final=final, notes=fold.notes(tail))
        return TranscriptSlice(write, _cut(chunks), fold.messages - before)

    def _write(self, mark: TranscriptMark, *, stat: FileStat, final: bool, notes: tuple[str, ...]) -> TranscriptWrite:
        write = TranscriptWrite(
            key=self._key,
            continues=self._stored,
            mark=mark,
            stat=stat,
            keep=self._keep,
            added=(),
            final=final,
            notes=notes,
        )
        self._stored = self._standing = mark
        self._keep = None
        return write

    def _unfinished(self, offset: int) -> FileStat:
        """Return a stat that no file has."""
        time = _WRITTEN_MEANWHILE if self._opened.changed() else _UNFINISHED
        return FileStat(size=offset, mtime_ns=time, inode=self._opened.stat.inode)


def _after_the_same(opened: OpenTranscript, mark: TranscriptMark) -> Iterator[RawLine] | None:
    """What follows the mark, None when something else is before it; lines are compared, not looked into."""
    lines = opened.lines()
    digest = NO_LINES_DIGEST
    for _ in range(mark.lines):
        line = next(lines, None)
        if line is None or not line.ended:
            return None
        digest = digest_with(digest, line)
    return lines if digest == mark.digest else None


def _cut(chunks: Sequence[FoldedChunk]) -> tuple[CutChunk, ...]:
    return tuple(
        CutChunk(chunk.ordinal, chunk.start_line, chunk.end_line, chunk.text, chunk.text_hash, chunk.said_at)
        for chunk in chunks
    )

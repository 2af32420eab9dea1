"""Slices of a transcript on its way into the index: the appended lines, in commits that follow each other.

A slice continues where the one before it ended. The index stores its `TranscriptPosition`, so that a run may stop
after any slice. A file that only grew is read from there. A replaced file (compressed, rotated, rewritten) is first
compared by its running hash, and read from its start if it differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from memory.chunking.chunker import Chunk
from memory.documents.agent_files import AgentFiles
from memory.documents.content import UNFINISHED_NS, WRITTEN_MEANWHILE_NS, OpenTranscript, lines_after
from memory.embedding.providers.provider import EmbeddingProvider
from memory.index.changes import Plan, UnmatchedChunks, byte_limit
from memory.redaction import redactor_for
from memory.store.reader import NOWHERE, StoreReader, TranscriptPosition
from memory.store.writer import DocumentWrite
from memory.transcripts.folding import NO_LINES_DIGEST, TranscriptFold, digest_with
from memory.transcripts.lines import RawLine, TranscriptDamaged
from schemas.documents import DocumentKey, FileStat
from schemas.settings import MemorySettings

#: New chunks in one slice.
SLICE_CHUNKS = 500

#: Bytes of the file in one slice, so that a transcript with few messages still makes progress.
SLICE_BYTES = 64 * 1024 * 1024

#: Lines in one slice: even an empty line takes microseconds.
SLICE_LINES = 100_000


@dataclass(frozen=True, slots=True)
class _State:
    """Contents of a position's state: the state of the fold, and the last line, which identifies the file.

    The last line starts at the position's offset less `last_length`.
    """

    fold: str
    last_length: int
    last_digest: str

    def encode(self) -> str:
        return json.dumps([self.fold, self.last_length, self.last_digest], ensure_ascii=False)

    @property
    def format(self) -> str | None:
        """Return the name of the file's format, None if no line had one."""
        fold: dict[str, str | None] = json.loads(self.fold)
        return fold.get("format")

    @classmethod
    def decode(cls, state: str) -> _State | None:
        """Return the decoded state; None for a document copied from another generation without its file."""
        return cls(*json.loads(state)) if state else None


def slices_of(
    key: DocumentKey,
    *,
    files: AgentFiles,
    store: StoreReader | None,
    revision: int,
    memory: MemorySettings,
    provider: EmbeddingProvider | None,
) -> Iterator[Plan]:
    """Yield the slices that bring a transcript up to date; the last one has `write.complete`.

    The first slice continues from `store`, where the transcript has this `revision`; None if the index lacks it.

    Raises:
        DocumentGone, DocumentRefused, DocumentUnreadable, TranscriptDamaged: see there; earlier slices stay valid.
        Transient: the file is being replaced, or the system is out of descriptors.
    """
    with files.opened(key) as opened:
        yield from _Slicing(key, opened, store, revision, memory, provider).run()


def longest_beginning(
    key: DocumentKey, positions: Mapping[DocumentKey, TranscriptPosition], *, files: AgentFiles
) -> DocumentKey | None:
    """Return the document with the most lines that are the beginning of this transcript; None without one.

    Reads as many lines as `positions` cover. Raises like `slices_of`, except for a damaged transcript.
    """
    names = {position.digest: name for name, position in positions.items() if position.lines}
    most = max((position.lines for position in positions.values()), default=0)
    longest: DocumentKey | None = None
    digest = NO_LINES_DIGEST
    with files.opened(key) as opened, suppress(TranscriptDamaged):
        for line in islice(opened.lines(), most):
            if not line.has_line_end:
                break
            digest = digest_with(digest, line)
            longest = names.get(digest, longest)
    return longest


def has_other_format(key: DocumentKey, *, files: AgentFiles, store: StoreReader) -> bool:
    """Return True if the user has named another format since the index read a transcript."""
    format_name = files.transcripts_of(key).format_of(key)
    position = store.transcript(key) if format_name is not None else None
    return position is not None and bool(position.state) and format_at(position) != format_name


def format_at(position: TranscriptPosition | None) -> str | None:
    """Return the format of a transcript as of a position in it; None if it is not known there."""
    state = _State.decode(position.state) if position is not None else None
    return state.format if state is not None else None


class _Slicing:
    """Run over one open transcript."""

    def __init__(
        self,
        key: DocumentKey,
        opened: OpenTranscript,
        store: StoreReader | None,
        revision: int,
        memory: MemorySettings,
        provider: EmbeddingProvider | None,
    ) -> None:
        self._key = key
        self._opened = opened
        self._memory = memory
        self._limits = byte_limit(provider)
        self._redact = redactor_for(memory, "sessions")
        self._store = store
        # Position in the index, and position that a slice ending inside a line leaves there.
        self._revision = revision
        self._stored = store.transcript(key) if store is not None else None
        self._standing = self._stored
        self._indexed = store.file(key) if store is not None and self._stored is not None else None
        self._last = ("", 0)  # digest and length of the last line
        self._messages = 0  # up to the last slice
        self._closed: list[Chunk] = []

    def run(self) -> Iterator[Plan]:
        try:
            fold, lines = self._begin()
        except TranscriptDamaged as damage:  # before the position: the indexed part stays
            raise self._named(damage) from damage.__cause__
        rows = self._store.chunks_of(self._key, first=fold.closed) if self._store is not None else []
        self._chunks = UnmatchedChunks(rows, stale=True)
        self._stale_from = fold.closed if any(row.ordinal >= 0 for row in rows) else None
        self._messages = fold.messages
        tail: RawLine | None = None
        begun_lines, read_bytes = fold.lines, 0
        try:
            for line in lines:
                if not line.has_line_end:
                    tail = line
                    break
                fold.feed(line)
                self._follow(line)
                self._closed += fold.take()
                read_bytes += line.size
                if (
                    len(self._closed) >= SLICE_CHUNKS
                    or read_bytes >= SLICE_BYTES
                    or fold.lines - begun_lines >= SLICE_LINES
                ):
                    yield from self._slices(fold, final=False)
                    begun_lines, read_bytes = fold.lines, 0
        except TranscriptDamaged as damage:
            # Messages before the damage are indexed; a repaired file continues after them.
            if fold.lines > begun_lines:
                self._closed += fold.open()
                yield from self._slices(fold, final=False)
            raise self._named(damage) from damage.__cause__
        self._closed += fold.open(tail)
        yield from self._slices(fold, final=True, tail=tail)

    def _named(self, damage: TranscriptDamaged) -> TranscriptDamaged:
        return damage.of(self._opened.file_name, indexed=self._stored is not None)

    def _begin(self) -> tuple[TranscriptFold, Iterator[RawLine]]:
        """Return the fold to continue, and the lines that it has not read."""
        position = self._stored
        state = _State.decode(position.state) if position is not None else None
        # Other settings or another version may have written a state that this fold cannot continue.
        fold = self._fold(state.fold) if state is not None else None
        if fold is not None and self._opened.format not in (None, fold.format):
            fold = None  # the user has named another format since then
        if position is not None and state is not None and fold is not None:
            if not position.lines:
                return fold, self._opened.lines()
            last, lines = self._lines_from_last(position, state)
            if last is not None:
                self._follow(last)
                # The transcript may have moved to where positions are others.
                fold.offset = last.end
                return fold, lines
        self._standing = None
        return self._new_fold(None), self._opened.lines()

    def _follow(self, line: RawLine) -> None:
        """Remember the last line that the fold took in."""
        self._last = line.digest.hex(), line.end - line.start

    def _lines_from_last(self, position: TranscriptPosition, state: _State) -> tuple[RawLine | None, Iterator[RawLine]]:
        """Return the last indexed line and those after it; None if the file does not begin with the indexed lines."""
        return lines_after(
            self._opened, position, self._indexed, last_length=state.last_length, last_digest=state.last_digest
        )

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
            max_message_chars=self._memory.limits.max_message_chars,
            redact=self._redact,
            format=self._opened.format,
            state=state,
        )

    def _slices(self, fold: TranscriptFold, *, final: bool, tail: RawLine | None = None) -> Iterator[Plan]:
        """Yield slices up to the fold's place. All but the last one end inside a line: their position is before it."""
        while len(self._closed) > SLICE_CHUNKS:
            before = self._standing or NOWHERE
            yield self._slice(before, self._unfinished(before.offset), resumable=False)
        state = _State(fold.state(), self._last[1], self._last[0])
        position = TranscriptPosition(fold.offset, fold.lines, fold.digest, state.encode())
        stat = self._read(fold) if final else self._unfinished(fold.offset)
        messages, self._messages = fold.messages - self._messages, fold.messages
        yield self._slice(position, stat, final=final, notes=fold.notes(tail), messages=messages, resumable=not final)

    def _slice(
        self,
        position: TranscriptPosition,
        stat: FileStat,
        *,
        final: bool = False,
        notes: tuple[str, ...] = (),
        messages: int = 0,
        resumable: bool,
    ) -> Plan:
        added, moved = self._chunks.take_over(self._closed[:SLICE_CHUNKS])
        self._closed = self._closed[SLICE_CHUNKS:]
        write = DocumentWrite(
            self._key,
            self._stored if self._stored is not None else self._revision,
            stat,
            position.digest,
            added=added,
            moved=moved,
            removed=self._chunks.remaining_ids() if final else (),
            notes=notes,
            position=position,
            stale_from=self._stale_from,
            complete=final,
        )
        self._stored = self._standing = position
        self._stale_from = None
        return Plan(write, messages, resumable)

    def _read(self, fold: TranscriptFold) -> FileStat:
        """Return the stat of the file that was read to its end."""
        read = self._opened.stat
        if self._indexed is not None and self._indexed.content_hash == fold.digest:
            read = self._indexed.stat_when_the_same(read)
        return replace(read, mtime_ns=WRITTEN_MEANWHILE_NS) if self._opened.changed() else read

    def _unfinished(self, offset: int) -> FileStat:
        """Return a stat that no file has."""
        time = WRITTEN_MEANWHILE_NS if self._opened.changed() else UNFINISHED_NS
        return FileStat(size=offset, mtime_ns=time, inode=self._opened.stat.inode)

"""A transcript becomes chunks line by line: a left fold whose state can be kept between two appends.

Law: for any way of cutting a transcript into appends, going on from the kept state gives the chunks, notes, digest
and offset of folding it whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from memory.transcripts.interpreting import Broken, Interpreter, Overfull, Unknown
from memory.transcripts.line_reading import DIGEST_BYTES, RawLine
from memory.transcripts.packing import FoldedChunk, Packer, label
from memory.transcripts.skipped_lines import SkippedLines
from memory.transcripts.transcript_format import Compacted, Said

#: Raised when the same lines would give other chunks; part of the index fingerprint.
TRANSCRIPT_VERSION = 2

#: The running digest of no lines.
NO_LINES_DIGEST = bytes(DIGEST_BYTES).hex()


def digest_with(digest: str, line: RawLine) -> str:
    """The running digest of a transcript with one more line."""
    return hashlib.blake2b(bytes.fromhex(digest) + line.digest, digest_size=DIGEST_BYTES).hexdigest()


class TranscriptFold:
    """What the lines of one transcript give, fed in order from its first one.

    Attributes:
        offset: bytes fed, which is where the next line starts.
        lines: lines fed.
        digest: running digest of the lines fed, in hex; see `digest_with`.
        messages: messages among them that are in chunks.
        compactions: marks of a compaction among them.
    """

    def __init__(
        self,
        *,
        tokens: int,
        overlap: int,
        max_bytes: int,
        redact: Callable[[str], str],
        format: str | None = None,  # noqa: A002 - the word of the settings and of the command line
        state: str | None = None,
    ) -> None:
        """Begin a transcript, or go on from a `state` that was made with the same bounds.

        Args:
            tokens, overlap, max_bytes: of a chunk; see `memory.chunking.chunker.chunk_text`.
            redact: applied to the text of each message before anything is kept of it; idempotent.
            format: the format's name; None: that of the first line that can only be of one.
            state: what `state()` gave.

        Raises:
            KeyError: there is no format of that name.
            ValueError: the state is of another version, or none.
        """
        self._packer = Packer(tokens=tokens, overlap=overlap, max_bytes=max_bytes)
        self._skipped = SkippedLines()
        self.offset = 0
        self.lines = 0
        self.digest = NO_LINES_DIGEST
        self.messages = 0
        self.compactions = 0
        kept: dict[str, Any] = _parsed(state) if state is not None else {}
        self._interpreter = Interpreter(kept.get("format") or format, kept.get("facts"), redact=redact)
        if kept:
            self.offset, self.lines, self.digest = kept["offset"], kept["lines"], kept["digest"]
            self.messages, self.compactions = kept["messages"], kept["compactions"]
            self._packer.restore(kept["packer"])
            self._skipped.restore(kept["skipped"])

    @property
    def closed(self) -> int:
        """Chunks that never change."""
        return self._packer.closed

    @property
    def format(self) -> str | None:
        """The name of the transcript's format, None before a line was recognised."""
        return self._interpreter.format.name if self._interpreter.format else None

    def feed(self, line: RawLine) -> None:
        """Take in the next line, which must have ended.

        Raises:
            ValueError: the line has no end yet; it may go on.
        """
        if not line.ended:
            raise ValueError("only lines that have ended can be fed; show the last one to open()")
        self.lines += 1
        self.offset += line.size
        self.digest = digest_with(self.digest, line)
        if line.data is None:
            self._skipped.too_long(self.lines)
        else:
            self._read(line.data)

    def feed_all(self, lines: Iterable[RawLine]) -> RawLine | None:
        """Feed the lines; a last one without its end is not fed but returned, for `open`."""
        for line in lines:
            if not line.ended:
                return line
            self.feed(line)
        return None

    def take(self) -> list[FoldedChunk]:
        """The chunks closed since the last call."""
        return self._packer.take()

    def open(self, tail: RawLine | None = None) -> list[FoldedChunk]:
        """What would follow the closed chunks if the file ended here. Changes nothing.

        `tail` is a last line without its end. It is used if it is whole, a JSON object; else it waits for its end.
        """
        if tail is None or tail.data is None:
            return self._packer.open()
        fold = self._copy()
        fold.lines += 1
        fold._read(tail.data)
        return [*fold._packer.take(), *fold._packer.open()]

    def state(self) -> str:
        """What a fold needs to go on from here, as JSON: facts, counts and the text of the open chunk."""
        return json.dumps(
            {
                "version": TRANSCRIPT_VERSION,
                "format": self.format,
                "facts": self._interpreter.facts,
                "offset": self.offset,
                "lines": self.lines,
                "digest": self.digest,
                "messages": self.messages,
                "compactions": self.compactions,
                "skipped": self._skipped.state(),
                "packer": self._packer.state(),
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    def notes(self, tail: RawLine | None = None) -> tuple[str, ...]:
        """A sentence for each kind of line that was skipped, and for a `tail` that waits for its end; for status."""
        notes = self._skipped.notes()
        if tail is not None and (tail.data is None or self._interpreter.copy().read(tail.data) == Broken()):
            notes = (
                *notes,
                f"what follows line {self.lines} is no whole message and has no line end; it is read with it",
            )
        if self.format is None and self._skipped.any_unknown:
            notes = ("no line is of a known format (openclaw, claude-code, codex, plain)", *notes)
        return notes

    def _read(self, data: bytes) -> None:
        reading = self._interpreter.read(data)
        if isinstance(reading, Said):
            self.messages += 1
            self._packer.add(self.lines, reading.said_at, label(reading.speaker, reading.said_at), reading.text)
        elif isinstance(reading, Compacted):
            self.compactions += 1
        elif isinstance(reading, Unknown):
            self._skipped.unknown(reading.kind)
        elif isinstance(reading, Broken):
            self._skipped.broken(self.lines)
        elif isinstance(reading, Overfull):
            self._skipped.too_long(self.lines)

    def _copy(self) -> TranscriptFold:
        copied = object.__new__(TranscriptFold)
        copied._packer = self._packer.copy()
        copied._skipped = SkippedLines()
        copied._interpreter = self._interpreter.copy()
        copied.lines, copied.messages, copied.compactions = self.lines, self.messages, self.compactions
        return copied


def _parsed(state: str) -> dict[str, Any]:
    kept: Any = json.loads(state)
    if not isinstance(kept, dict) or kept.get("version") != TRANSCRIPT_VERSION:
        raise ValueError("the state is not one of this version's; fold the transcript from its start")
    return kept

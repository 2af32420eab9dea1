"""Fold of a transcript's lines into chunks, whose state is kept between two appends.

Law: folding a transcript in any number of appends gives the chunks, notes, digest and offset of folding it whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from memory.chunking.chunker import Chunk
from memory.transcripts.interpreter import FORMATS, Interpreter, Unknown, parsed
from memory.transcripts.lines import DIGEST_BYTES, RawLine
from memory.transcripts.packing import Packer, label, without_middle
from memory.transcripts.transcript_format import Message, Wordless

#: Counted up when the same lines would give other chunks; part of the index fingerprint.
TRANSCRIPT_VERSION = 3

#: The running digest of no lines.
NO_LINES_DIGEST = bytes(DIGEST_BYTES).hex()


def digest_with(digest: str, line: RawLine) -> str:
    """Return the running digest of a transcript with one more line."""
    return hashlib.blake2b(bytes.fromhex(digest) + line.digest, digest_size=DIGEST_BYTES).hexdigest()


class TranscriptFold:
    """Chunks and counts of one transcript, whose lines are fed in order from its first one.

    Attributes:
        offset: position in the transcript behind the last line fed.
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
        max_message_chars: int,
        redact: Callable[[str], str],
        format: str | None = None,  # noqa: A002 - the word of the settings and of the command line
        state: str | None = None,
    ) -> None:
        """Begin a transcript, or continue from a `state` that was made with the same bounds.

        Args:
            tokens, overlap, max_bytes: of a chunk; see `memory.chunking.chunker.chunk_text`.
            max_message_chars: of one message; the middle of a longer one is left out.
            redact: applied to the text of each message before any other use; idempotent.
            format: the format's name; None: that of the first line that only one format recognises.
            state: the result of `state()`.

        Raises:
            KeyError: there is no format of that name.
            ValueError: the state is of another version, or is no state.
        """
        self._again = partial(
            TranscriptFold,
            tokens=tokens,
            overlap=overlap,
            max_bytes=max_bytes,
            max_message_chars=max_message_chars,
            redact=redact,
            format=format,
        )
        self._max_message_chars = max_message_chars
        parsed: dict[str, Any] = _parsed(state) if state is not None else {}
        self.offset: int = parsed.get("offset", 0)
        self.lines: int = parsed.get("lines", 0)
        self.digest: str = parsed.get("digest", NO_LINES_DIGEST)
        self.messages: int = parsed.get("messages", 0)
        self.compactions: int = parsed.get("compactions", 0)
        self._interpreter = Interpreter(parsed.get("format") or format, parsed.get("facts"), redact=redact)
        self._interpreter.version = parsed.get("program_version", "")
        self._packer = Packer(tokens=tokens, overlap=overlap, max_bytes=max_bytes, state=parsed.get("packer"))
        self._skipped = SkippedLines(parsed.get("skipped"))
        self._cut: list[int] = parsed.get("cut", [0, 0])

    @property
    def closed(self) -> int:
        """Return the number of chunks that never change."""
        return self._packer.closed

    @property
    def format(self) -> str | None:
        """Return the name of the transcript's format, None before a line was recognised."""
        return self._interpreter.format.name if self._interpreter.format else None

    def feed(self, line: RawLine) -> None:
        """Take in the next line, which must have ended.

        Raises:
            ValueError: the line has no end yet; it may go on.
        """
        if not line.has_line_end:
            raise ValueError("only lines that have ended can be fed; show the last one to open()")
        self.lines += 1
        self.offset = line.end
        self.digest = digest_with(self.digest, line)
        if line.data is None:
            self._skipped.add(_TOO_LONG, self.lines)
        else:
            self._read(line.data)

    def take(self) -> list[Chunk]:
        """Return the chunks closed since the last call."""
        return self._packer.take()

    def open(self, tail: RawLine | None = None) -> list[Chunk]:
        """Return the chunks that would follow the closed ones if the file ended here. Changes nothing.

        `tail` is a last line without a line end. It is used if it is a whole JSON object; else it waits for its end.
        """
        if tail is None or tail.data is None:
            return self._packer.open()
        fold = self._again(state=self.state())
        fold.lines += 1
        fold._read(tail.data)
        return [*fold.take(), *fold.open()]

    def state(self) -> str:
        """Return the state to continue from, as JSON: facts, counts and the text of the open chunk."""
        return json.dumps(
            {
                "version": TRANSCRIPT_VERSION,
                "format": self.format,
                "facts": self._interpreter.facts,
                "program_version": self._interpreter.version,
                "offset": self.offset,
                "lines": self.lines,
                "digest": self.digest,
                "messages": self.messages,
                "compactions": self.compactions,
                "skipped": self._skipped.state(),
                "cut": self._cut,
                "packer": self._packer.state(),
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    def notes(self, tail: RawLine | None = None) -> tuple[str, ...]:
        """Return notes on skipped lines and cut messages, and on a `tail` that waits for its end; see `readable`."""
        notes = self._skipped.notes()
        if self._cut[0]:
            notes = (*notes, _CUT + json.dumps(self._cut))
        if tail is not None and (tail.data is None or parsed(tail.data) is Wordless.BROKEN):
            waiting = f"what follows line {self.lines} is no whole message and has no line end; it is read with it"
            notes = (*notes, waiting)
        unknown = self._skipped.unknown
        writer = f"{self.format} {self._interpreter.version}".rstrip() if self.format is not None else ""
        return (*notes, UnknownLines(writer, unknown).note()) if unknown else notes

    def _read(self, data: bytes) -> None:
        reading = self._interpreter.read(data)
        if isinstance(reading, Message):
            self.messages += 1
            # The text has masks in place of its secrets already: a cut tears none of them.
            text, characters = without_middle(reading.text, most=self._max_message_chars)
            self._cut = [self._cut[0] + bool(characters), self._cut[1] + characters]
            self._packer.add(self.lines, reading.said_at, label(reading.speaker, reading.said_at), text)
        elif reading is Wordless.COMPACTED:
            self.compactions += 1
        elif isinstance(reading, Unknown):
            self._skipped.add_unknown(reading.kind)
        elif reading is Wordless.BROKEN:
            self._skipped.add(_BROKEN, self.lines)
        elif reading is Wordless.OVERFULL:
            self._skipped.add(_TOO_LONG, self.lines)


def _parsed(state: str) -> dict[str, Any]:
    parsed: Any = json.loads(state)
    if not isinstance(parsed, dict) or parsed.get("version") != TRANSCRIPT_VERSION:
        raise ValueError("the state is not one of this version's; fold the transcript from its start")
    return parsed


#: Numbers of skipped lines that are kept, the first ones.
_NUMBERS = 10

#: Types of unknown lines that are kept by name.
_KINDS = 20

#: Form of a type's name; a name of another form is not repeated in a note.
_NAME = re.compile(r"[A-Za-z][\w./:-]{0,39}", re.ASCII)

_OTHERS = "*"

_BROKEN, _TOO_LONG = "not JSON", "too long to be read"


class SkippedLines:
    """Counts of lines that are not JSON, too long, or of an unknown type. `unknown` counts each such type by name."""

    def __init__(self, state: list[Any] | None = None) -> None:
        self.unknown: dict[str, int]
        self._counts: dict[str, tuple[int, list[int]]]
        broken, first_broken, too_long, first_too_long, self.unknown = state or (0, [], 0, [], {})
        self._counts = {_BROKEN: (broken, first_broken), _TOO_LONG: (too_long, first_too_long)}

    def add(self, reason: str, number: int) -> None:
        """Count a line that was not read; `number` is 1-based."""
        count, numbers = self._counts[reason]
        self._counts[reason] = count + 1, [*numbers, number][:_NUMBERS]

    def add_unknown(self, kind: str) -> None:
        """Count a line of an unknown type."""
        name = kind if _NAME.fullmatch(kind) else ""
        if name not in self.unknown and len(self.unknown) >= _KINDS:
            name = _OTHERS
        self.unknown[name] = self.unknown.get(name, 0) + 1

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on lines that are not JSON, and one on lines that are too long."""
        notes = []
        for reason, (count, numbers) in self._counts.items():
            if count == 1:
                notes.append(f"1 line is {reason} and was skipped (line {numbers[0]})")
            elif count:
                first = "first: " if count > len(numbers) else ""
                listed = ", ".join(map(str, numbers))
                notes.append(f"{count} lines are {reason} and were skipped ({first}lines {listed})")
        return tuple(notes)

    def state(self) -> list[Any]:
        """Return the counts as JSON values."""
        return [*self._counts[_BROKEN], *self._counts[_TOO_LONG], self.unknown]


#: Beginning of the note on lines of unknown types, above its JSON.
_UNKNOWN_LINES = "unknown_lines "

#: Types that a sentence names, those of most lines.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class UnknownLines:
    """Numbers of lines by their unknown type, in the `files` of one `writer`: a program and its version.

    Without a writer, no line of the file is of a known format: nothing is read of it.
    """

    writer: str
    types: Mapping[str, int]
    files: int = 1

    @classmethod
    def of(cls, note: str) -> UnknownLines | None:
        """Return the content of a file's note, None for a note on anything else."""
        return cls(*json.loads(note.removeprefix(_UNKNOWN_LINES))) if note.startswith(_UNKNOWN_LINES) else None

    def note(self) -> str:
        """Return the note of one file."""
        return _UNKNOWN_LINES + json.dumps([self.writer, self.types], separators=(",", ":"))

    def __add__(self, more: UnknownLines) -> UnknownLines:
        """Return the numbers of both, which are of the same writer."""
        return UnknownLines(self.writer, Counter(self.types) + Counter(more.types), self.files + more.files)

    def __str__(self) -> str:
        total = sum(self.types.values())
        if not self.writer:
            formats = ", ".join(FORMATS)
            return f"nothing is read of it: no line of {total:,} is of a known format ({formats})"
        names = {"": "without a type", _OTHERS: "others"}
        largest = [f"{names.get(kind, kind)} {count:,}" for kind, count in Counter(self.types).most_common(_NAMED)]
        rest = [f"and {len(self.types) - _NAMED} more types"] if len(self.types) > _NAMED else []
        lines = "1 line of an unknown type was" if total == 1 else f"{total:,} lines of unknown types were"
        place = f" in {self.files:,} files" if self.files > 1 else ""
        return f"{self.writer}: {lines} skipped{place} ({', '.join([*largest, *rest])})"


#: Beginning of the note on messages whose middle is left out, above its JSON.
_CUT = "cut_messages "


def cut_messages(note: str) -> tuple[int, int]:
    """Return the numbers of cut messages and of their left out characters in a file's note, 0 in any other note."""
    messages, characters = json.loads(note.removeprefix(_CUT)) if note.startswith(_CUT) else (0, 0)
    return messages, characters


def cut_sentence(messages: int, characters: int) -> str:
    """Return the sentence on these numbers, "" without any."""
    cut = "1 long message" if messages == 1 else f"{messages:,} long messages"
    return f"{characters:,} characters of {cut} left out (limits.max_message_chars)" if messages else ""


def readable(note: str) -> str:
    """Return the sentence of a file's note."""
    return str(UnknownLines.of(note) or cut_sentence(*cut_messages(note)) or note)

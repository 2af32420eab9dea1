"""Interpreter of a transcript's lines: from bytes to messages, in any known format."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_core import from_json

from memory.transcripts.claude_code import ClaudeCodeFormat
from memory.transcripts.codex import CodexFormat
from memory.transcripts.copilot import CopilotFormat
from memory.transcripts.cursor import CursorFormat
from memory.transcripts.gemini_cli import GeminiFormat
from memory.transcripts.openclaw import OpenClawFormat
from memory.transcripts.qwen_code import QwenFormat
from memory.transcripts.transcript_format import (
    AGENT,
    ASSISTANT,
    QUEUE,
    SUBAGENT,
    USER,
    Entry,
    Facts,
    Message,
    QueuedMessage,
    TranscriptFormat,
    Wordless,
    clean,
    kind_of,
    text_digest,
    texts_of,
    time_of,
    without_context,
)

_SPEAKERS = {"user": USER, "human": USER, "assistant": ASSISTANT, "model": ASSISTANT, "ai": ASSISTANT}

#: Characters of a speaker's name at most: more would be no name.
_NAME_CHARACTERS = 40


class PlainFormat(TranscriptFormat):
    """One message a line, {"role", "content", "timestamp"} and perhaps {"name"}, as chat APIs and most exports have it.

    `content` is a string or a list of blocks of type "text"; `timestamp` is ISO 8601 or a Unix time in seconds or
    milliseconds; `name` is the speaker's. Roles other than user and assistant (system, tool) say nothing.
    """

    name = "plain"

    def recognises(self, entry: Entry) -> bool:
        return isinstance(entry.get("role"), str) and isinstance(entry.get("content"), (str, list))

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:  # noqa: ARG002 - nothing to remember
        role = entry.get("role")
        if not isinstance(role, str):
            return None
        speaker = _SPEAKERS.get(role.lower())
        if speaker is None:
            return Wordless.KNOWN
        name = entry.get("name")
        if isinstance(name, str) and name.strip():
            speaker = " ".join(clean(name).split())[:_NAME_CHARACTERS].rstrip()
        text = "\n".join(texts_of(entry.get("content")))
        return Message(speaker, text, time_of(entry.get("timestamp")))


#: By name, in the order in which they look at a line: the most specific first.
FORMATS: Mapping[str, TranscriptFormat] = {
    reader.name: reader
    for reader in (
        OpenClawFormat(),
        QwenFormat(),
        ClaudeCodeFormat(),
        CodexFormat(),
        GeminiFormat(),
        CopilotFormat(),
        CursorFormat(),
        PlainFormat(),
    )
}


def recognised_format(entry: Entry) -> TranscriptFormat | None:
    """Return the only format that this line can be of, None without one."""
    return next((candidate for candidate in FORMATS.values() if candidate.recognises(entry)), None)


@dataclass(frozen=True, slots=True)
class Unknown:
    """JSON object of a type that its format does not know, or before any format is recognised."""

    kind: str


Reading: TypeAlias = Message | Unknown | Wordless

#: Commas and brackets in one line at most. An empty list takes 3 bytes there and 64 in memory.
MAX_SEPARATORS = 2_000_000
_SEPARATORS = (b",", b"[", b"{")

_REPLACEMENT = "\ufffd"

#: Tolerates raw control characters in strings, as some writers leave them.
_DECODER = json.JSONDecoder(strict=False)

#: For numbers of thousands of digits, which Python does not turn into integers.
_ROUNDING_DECODER = json.JSONDecoder(strict=False, parse_int=float)

#: A string, also one without an end: else each of its escaped quotes would look for it again.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)

#: Speakers that recalld names; other names are the transcript's.
_ROLES = frozenset((USER, ASSISTANT, AGENT, SUBAGENT))


class Interpreter:
    """Reader of the lines of one file, in order. The first line that a format recognises settles the format."""

    def __init__(self, name: str | None, facts: Facts | None = None, *, redact: Callable[[str], str] = str) -> None:
        """Begin a file, or go on with the `facts` of its lines so far.

        Args:
            name: the format's name, None when it is to be recognised.
            facts: the `facts` of another interpreter of this file.
            redact: applied to each text before any other use.

        Raises:
            KeyError: there is no format of that name.
        """
        self.format: TranscriptFormat | None = FORMATS[name] if name is not None else None
        self.facts: Facts = dict(facts or {})
        #: First two numbers of the program's version, as far as a line named it.
        self.version = ""
        self._redact = redact

    def needs(self, data: bytes) -> bool:
        """Return True if a line has to be read for the sake of later lines, which depend on it."""
        return self.format is None or self.format.needs(data, self.facts)

    def read(self, data: bytes) -> Reading:
        """Return the message in a line. The message's text is clean, without secrets and not empty."""
        entry = parsed(data)
        if isinstance(entry, Wordless):
            return entry
        if self.format is None:
            self.format = recognised_format(entry)
            if self.format is None:
                return Unknown(kind_of(entry))
        version = self.format.version(entry)
        if isinstance(version, str) and (match := _VERSION.match(version)):
            self.version = match[0]
        reading = self.format.read(entry, self.facts)
        if reading is None:
            return Unknown(self.format.kind(entry))
        if isinstance(reading, QueuedMessage):
            redacted = self._redacted(reading.message)
            self.facts.setdefault(QUEUE, []).append(
                [redacted.text, redacted.said_at, text_digest(reading.message.text)]
            )
            return Wordless.KNOWN
        if isinstance(reading, Message):
            redacted = self._redacted(reading)
            return redacted if redacted.text and not redacted.text.isspace() else Wordless.KNOWN
        return reading

    def _redacted(self, message: Message) -> Message:
        text = clean(without_context(message.text))
        speaker = message.speaker if message.speaker in _ROLES else self._redact(message.speaker)
        return Message(speaker, self._redact(text) if text else "", message.said_at)


def parsed(data: bytes) -> Entry | Wordless:
    """Return the JSON object in a line, or the kind of the line without one."""
    if not data or data.isspace():
        return Wordless.BLANK
    if len(data) > MAX_SEPARATORS and _is_overfull(data):
        return Wordless.OVERFULL
    entry = parse(data)
    return Wordless.BROKEN if entry is None else entry


def is_compaction_line(line: bytes) -> bool:
    """Return True if the line is a program's mark of a compaction, not a conversation about compactions."""
    names_it = b"compact" in line or b"compression" in line
    return names_it and Interpreter(None).read(line) is Wordless.COMPACTED


def parse(data: bytes) -> Entry | None:
    """Return the JSON object in a line, None without one.

    Invalid UTF-8 becomes U+FFFD. A byte order mark and the NULs that a crash leaves around a line are dropped.
    """
    entry: Any
    try:
        entry = from_json(data)  # in half the time, but it refuses control characters and lone surrogates
    except ValueError:
        entry = _parse_leniently(data)
    return entry if isinstance(entry, dict) else None


def _parse_leniently(data: bytes) -> Any:
    if data[:1] != b"{":
        data = data.removeprefix(BOM_UTF8).strip(b"\0 \t\r")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", errors="replace")
    if "\0" in text:
        text = text.rstrip("\0").replace("\0", _REPLACEMENT)
    try:
        try:
            return _DECODER.decode(text)
        except json.JSONDecodeError:
            return None
        except ValueError:
            return _ROUNDING_DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _is_overfull(data: bytes) -> bool:
    """Return True if a line has too many commas and brackets outside of strings."""
    if sum(map(data.count, _SEPARATORS)) <= MAX_SEPARATORS:
        return False
    breaks = start = 0
    for string in _STRING.finditer(data):
        breaks += sum(data.count(separator, start, string.start()) for separator in _SEPARATORS)
        start = string.end()
        if breaks > MAX_SEPARATORS:
            return True
    return breaks + sum(data.count(separator, start) for separator in _SEPARATORS) > MAX_SEPARATORS

"""Packing of messages into chunks, one message at a time: the same messages always give the same chunks.

* A chunk takes whole messages up to its target size; they are joined with one "\\n".
* A message that would not fit a chunk of its own is cut. Its first part fills up the chunk under way if that is
  less than half full, so that a short question stays with the start of its long answer. Each part names speaker
  and time.
* A chunk begins with the last whole messages of the one before, as far as they are worth no more than the overlap.
* Closed chunks never change. The open one may grow. Of a message that was cut, it holds the last part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from memory.chunking.chunker import SLACK_TOKENS, Chunk, Piece, chunk_text, text_hash
from memory.chunking.lines import weigh
from memory.chunking.sentences import sentences_of
from memory.transcripts.transcript_format import AGENT, ASSISTANT, SUBAGENT, USER

#: Weight of the line end between two messages, in eighths of tokens (see `memory.chunking.lines.weigh`).
_JOINT = 2

#: `chunk_text` may exceed its target by this weight.
_SLACK = SLACK_TOKENS * 8

#: Least weight that a message can be cut to: 16 tokens are the smallest target of `chunk_text`.
_LEAST = 16 * 8 + _SLACK

#: The smallest `max_bytes` of `chunk_text`.
_LEAST_BYTES = 160


@dataclass(frozen=True, slots=True)
class Part:
    """Message, or the chunk's part of a message that was cut, as it stands in the chunk."""

    line: int
    said_at: float | None
    text: str
    weight: int


def label(speaker: str, said_at: float | None) -> str:
    """Return `[2026-02-03 09:00] User: `, in UTC; without a time `User: `."""
    if said_at is None:
        return f"{speaker}: "
    return f"[{datetime.fromtimestamp(said_at, UTC).isoformat(' ')[:16]}] {speaker}: "


def without_middle(text: str, *, most: int) -> tuple[str, int]:
    """Return beginning and end of a text of more than `most` characters, and the number of those left out.

    A line between the two says how many are left out. A shorter text stays as it is.
    """
    if len(text) <= most:
        return text, 0
    half, left_out = most // 2, len(text) - most // 2 * 2
    return f"{text[:half]}\n[{left_out:,} characters of this message are left out]\n{text[-half:]}", left_out


# Line ends before them make them four times as fast as anchors.
_TIMED_LABEL = re.compile(r"\n\[\d{4}-\d\d-\d\d \d\d:\d\d\] ([^\n:]{1,80}): ")
_LABEL = re.compile(rf"\n({USER}|{ASSISTANT}|{AGENT}|{SUBAGENT}): ")

#: Label of a message in the note of a session.
QUOTED_LABEL = re.compile(rf"^\*\*({USER}|{ASSISTANT})\*\*: ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PackedMessage:
    """Text of one message in a chunk, without its label. `is_users` is False for an assistant's message."""

    is_users: bool
    text: str


# A search looks at the messages of its candidates several times.
@lru_cache(maxsize=512)
def messages_of(chunk: str) -> tuple[PackedMessage, ...]:
    """Return the messages in the text of a transcript's chunk. A text before the first label counts as an assistant's.

    In a chunk that begins with a time, labels without one are words of a message.
    """
    chunk = f"\n{chunk}"
    labels = list((_TIMED_LABEL if _TIMED_LABEL.match(chunk) else _LABEL).finditer(chunk))
    ends = [*(match.start() + 1 for match in labels), len(chunk)]
    messages = [PackedMessage(is_users=False, text=chunk[1 : ends[0]])] if ends[0] > 1 else []
    for match, end in zip(labels, ends[1:], strict=True):
        messages.append(PackedMessage(is_users=match[1] not in (ASSISTANT, SUBAGENT), text=chunk[match.end() : end]))
    return tuple(messages)


def packed_sentences(chunk: str, *, is_transcript: bool) -> list[tuple[str, bool]]:
    """Return the sentences of a chunk in their order, each with True for a user's. A note is its user's words."""
    messages = messages_of(chunk) if is_transcript else [PackedMessage(is_users=True, text=chunk)]
    return [(sentence, message.is_users) for message in messages for sentence in sentences_of(message.text)]


_LABELLED = re.compile(r"^(\[\d{4}-\d\d-\d\d \d\d:\d\d\]) ([^\n]*)", re.MULTILINE)


def beginnings(texts: Iterable[str]) -> list[str]:
    """Return speaker and first line of each message with a time in these chunks, each once."""
    return [line for _, line in dict.fromkeys(labelled for text in texts for labelled in _LABELLED.findall(text))]


class Packer:
    """Packer of messages: the chunk under way, and the chunks closed since the last `take`.

    `tokens`, `overlap` and `max_bytes` are those of `chunk_text`; no chunk exceeds them. With the `state` of another
    packer it continues where that one stopped, with nothing to take yet.
    """

    def __init__(self, *, tokens: int, overlap: int, max_bytes: int, state: dict[str, Any] | None = None) -> None:
        # A byte weighs at least 2, so that half the weight bounds the bytes.
        self._budget = min(tokens * 8, max_bytes * 2)
        self._overlap = min(overlap * 8, self._budget // 2)
        #: Chunks that never change, the taken ones included.
        self.closed: int = state["closed"] if state else 0
        self._taken: list[Chunk] = []
        self._parts: list[Part] = []
        self._weight = 0
        for line, said_at, text in state["parts"] if state else ():
            self._append(_part(line, said_at, text))

    def add(self, line: int, said_at: float | None, label: str, text: str) -> None:
        """Add the message `text` (not empty) of JSONL line `line`; `label` holds its speaker and time."""
        weight = weigh(label) + weigh(text)
        if weight > self._budget:
            self._add_cut(line, said_at, label, text)
            return
        if self._weight_before_next + weight > self._budget:
            self._begin_next(repeat=min(self._overlap, self._budget - weight - _JOINT))
        self._append(Part(line, said_at, label + text, weight))

    def take(self) -> list[Chunk]:
        """Return the chunks closed since the last call."""
        chunks, self._taken = self._taken, []
        return chunks

    def open(self) -> list[Chunk]:
        """Return the chunk under way, if there is one."""
        return [self._chunk()] if self._parts else []

    def state(self) -> dict[str, Any]:
        """Return the state to continue from, as JSON values: the text of at most one chunk."""
        return {"closed": self.closed, "parts": [[part.line, part.said_at, part.text] for part in self._parts]}

    @property
    def _weight_before_next(self) -> int:
        return self._weight + _JOINT if self._parts else 0

    def _append(self, part: Part) -> None:
        self._weight = self._weight_before_next + part.weight
        self._parts.append(part)

    def _begin_next(self, *, repeat: int) -> None:
        """Close the chunk under way; the next one begins with its last messages, of at most that weight."""
        if not self._parts:
            return
        self._taken.append(self._chunk())
        self.closed += 1
        parts, self._parts, self._weight = self._parts, [], 0
        first = len(parts)
        weight = 0
        while first > 1 and (weight := weight + parts[first - 1].weight) <= repeat:
            first -= 1
            weight += _JOINT
        for part in parts[first:]:
            self._append(part)

    def _add_cut(self, line: int, said_at: float | None, label: str, text: str) -> None:
        room = self._budget - weigh(label)
        if room < max(_LEAST, self._budget // 2):
            # Such small chunks have no room for the speaker in each part.
            label, text, room = "", label + text, self._budget
        least = max(_LEAST, room // 4)
        if self._weight * 2 > self._budget or room - self._weight_before_next < least:
            self._begin_next(repeat=min(self._overlap, room - least - _JOINT))
        first = room - self._weight_before_next
        beginning = self._cut(text[:first], first)
        self._append(_part(line, said_at, label + beginning[0].text))
        for piece in self._cut(text[beginning[1].start :], room):
            if not piece.text.isspace():
                self._begin_next(repeat=0)
                self._append(_part(line, said_at, label + piece.text))

    def _cut(self, text: str, room: int) -> list[Piece]:
        tokens = (room - _SLACK) // 8
        overlap = min(self._overlap // 8, tokens // 2)
        return chunk_text(text, tokens=tokens, overlap=overlap, max_bytes=max(_LEAST_BYTES, room // 2))

    def _chunk(self) -> Chunk:
        parts = self._parts
        text = "\n".join([part.text for part in parts])
        said_at = next((part.said_at for part in reversed(parts) if part.said_at is not None), None)
        return Chunk(self.closed, parts[0].line, parts[-1].line, text, text_hash(text), said_at)


def _part(line: int, said_at: float | None, text: str) -> Part:
    return Part(line, said_at, text, weigh(text))

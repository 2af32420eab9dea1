"""Note of a session that ended: its last words, without secrets, for a file of the workspace's memory. Pure."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from memory.documents.note_facts import NoteFacts, named_transcripts
from memory.documents.roots import archived_path
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.lines import RawLine
from memory.transcripts.transcript_format import ASSISTANT, USER, Message, Wordless, tagged, text_digest

#: Bytes at the end of a transcript that are searched for the last messages.
TAIL_BYTES = 8 * 1024 * 1024

#: Characters of one message that a note holds.
MESSAGE_CHARACTERS = 8_000

#: Characters of a conversation that a model reads to name it, and of the name.
SLUG_INPUT_CHARACTERS = 2_000
SLUG_CHARACTERS = 30

_SLUG_PROMPT = (
    "Name this conversation with one to three English words, in lower case, joined by hyphens. Answer the name only."
)


class LastWords(NamedTuple):
    """Messages of one conversation. `follows_another`: it is not the first one of its transcript."""

    messages: list[Message]
    follows_another: bool


def last_words(
    lines: Iterable[RawLine],
    *,
    redact: Callable[[str], str],
    format: str | None = None,  # noqa: A002
    until: float = math.inf,
) -> LastWords:
    """Return messages of user and assistant in a transcript, oldest first, without commands such as /new.

    Only the lines of the last `TAIL_BYTES` are read, and above them the lines that the format needs. A transcript may
    have several conversations: the latest counts, without those that began after the Unix time `until`.
    `format`: its name, None to recognise it.
    """
    interpreter = Interpreter(format, redact=redact)
    tail: deque[bytes] = deque()
    size = 0
    for line in lines:
        if line.data is None:
            continue
        tail.append(line.data)
        size += len(line.data)
        while size > TAIL_BYTES and len(tail) > 1:
            above = tail.popleft()
            size -= len(above)
            if interpreter.needs(above):
                interpreter.read(above)
    conversations: list[list[Message]] = [[]]
    for reading in map(interpreter.read, tail):
        if reading is Wordless.RESET:
            conversations.append([])
        elif isinstance(reading, Message) and reading.speaker in (USER, ASSISTANT) and not _is_command(reading):
            conversations[-1].append(reading)
    spoken = [messages for messages in conversations if messages] or [[]]
    begun = [messages for messages in spoken[1:] if (messages[0].said_at or 0.0) <= until]
    return LastWords([spoken[0], *begun][-1], follows_another=bool(begun))


def _is_command(message: Message) -> bool:
    return message.text.lstrip().startswith("/")


def session_note(messages: Sequence[Message], *, at: datetime, facts: NoteFacts | None = None) -> str:
    """Return the text of a session's note; without facts, the text that it gets at a later end of its session.

    `at`: the end, in the user's zone.
    """
    time = f"{at:%Y-%m-%d %H:%M %Z}".rstrip()
    above = [f"\n## Until {time}"] if facts is None else [f"# Session of {time}", str(facts), "## Last messages"]
    return "\n\n".join([*above, *map(_quoted, messages)]) + "\n"


def unnoted(
    words: LastWords, facts: NoteFacts, notes: Mapping[str, str], last_digest: str
) -> tuple[str | None, Sequence[Message]]:
    """Return the path of a conversation's note, None if it has none, and the messages that are to be noted.

    `notes`: notes with the line of its session, by path. `last_digest`: digest of the last message ever noted.
    Another session may have begun anew under its name, and a person may have edited a note: without a message of that
    digest, a note of this conversation quotes a message, or most of them if the transcript has another conversation. If
    there is one and no note, a person deleted the note.
    """
    messages = words.messages
    digested = [number for number, message in enumerate(messages, 1) if digest_of(message) == last_digest]
    # A transcript that became an archive is the same.
    paths = {facts.transcript, archived_path(facts.transcript)}
    quoted = {
        path: [number for number, message in enumerate(messages, 1) if _quoted(message) in text]
        for path, text in notes.items()
        if paths.intersection(named_transcripts(text) or paths)
    }
    most = len(messages) // 2 if words.follows_another else 0
    path = max(quoted, key=lambda path: len(quoted[path]), default=None)
    if path is None or not (digested or len(quoted[path]) > most):
        return None, () if digested else messages
    return path, messages[(digested or quoted[path])[-1] :]


def digest_of(message: Message) -> str:
    """Return the digest of a message and its time."""
    return text_digest(f"{message.said_at} {message.text}")


def note_name(at: datetime, slug: str = "") -> str:
    """Return the name of a note without its ending: day, time, and the name that a model gave the conversation."""
    return f"{at:%Y-%m-%d-%H%M}" + (f"-{slug}" if slug else "")


def slug_prompt(messages: Sequence[Message]) -> str:
    """Return the prompt that asks a chat model to name a conversation."""
    words = "\n".join(f"{message.speaker}: {message.text}" for message in messages)
    return tagged(f"{_SLUG_PROMPT}\n\n{words[:SLUG_INPUT_CHARACTERS]}", kind="session-note")


def slug_of(answer: str) -> str:
    """Return a model's answer as a part of a file name: a to z, digits and hyphens; empty if nothing of it is left."""
    words = re.sub(r"[^a-z0-9]+", "-", answer.lower()).strip("-")
    whole_words = words[: SLUG_CHARACTERS + 1].rpartition("-")[0] if len(words) > SLUG_CHARACTERS else words
    return whole_words or words[:SLUG_CHARACTERS]


def _quoted(message: Message) -> str:
    text = message.text.strip()
    rest = f" [... {len(text)} characters in all]" if len(text) > MESSAGE_CHARACTERS else ""
    return f"**{message.speaker}**: {text[:MESSAGE_CHARACTERS]}{rest}"

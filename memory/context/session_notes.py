"""Note of a session that ended: its last words, without secrets, for a file of the workspace's memory. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from memory.context.marks import marked
from memory.documents.note_facts import NoteFacts
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.lines import RawLine
from memory.transcripts.transcript_format import ASSISTANT, USER, Said

#: Bytes at the end of a transcript in which the last messages are looked for.
TAIL_BYTES = 8 * 1024 * 1024

#: Characters of one message that a note holds.
MESSAGE_CHARACTERS = 8_000

#: Characters of a conversation that a model reads to name it, and of the name.
SLUG_INPUT_CHARACTERS = 2_000
SLUG_CHARACTERS = 30

_SLUG_PROMPT = (
    "Name this conversation with one to three English words, in lower case, joined by hyphens. Answer the name only."
)


def last_words(
    lines: Iterable[RawLine],
    *,
    messages: int,
    redact: Callable[[str], str],
    format: str | None = None,  # noqa: A002
) -> list[Said]:
    """Return the last messages of user and assistant in a transcript, oldest first, without commands such as /new.

    Only the lines of the last `TAIL_BYTES` are read, and above them those that the format needs. `format`: its name,
    None to recognise it.
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
    said = (one for one in map(interpreter.read, tail) if isinstance(one, Said) and one.speaker in (USER, ASSISTANT))
    return list(deque((one for one in said if not one.text.lstrip().startswith("/")), messages))


def session_note(said: Sequence[Said], *, at: datetime, session: str, program: str, transcript: str) -> str:
    """Return the text of a session's note. `at`: its end, in the user's zone; `transcript`: its path in the memory."""
    heading = f"# Session of {at:%Y-%m-%d %H:%M %Z}".rstrip()
    facts = NoteFacts(session, program, transcript)
    return "\n\n".join([heading, str(facts), "## Last messages", *map(_quoted, said)]) + "\n"


def note_name(at: datetime, slug: str = "") -> str:
    """Return the name of a note without its ending: day, time, and the name that a model gave the conversation."""
    return f"{at:%Y-%m-%d-%H%M}" + (f"-{slug}" if slug else "")


def slug_prompt(said: Sequence[Said]) -> str:
    """Return the prompt that asks a chat model to name a conversation."""
    words = "\n".join(f"{one.speaker}: {one.text}" for one in said)
    return marked(f"{_SLUG_PROMPT}\n\n{words[:SLUG_INPUT_CHARACTERS]}", kind="session-note")


def slug_of(answer: str) -> str:
    """Return a model's answer as a part of a file name: a to z, digits and hyphens; empty if nothing of it is left."""
    words = re.sub(r"[^a-z0-9]+", "-", answer.lower()).strip("-")
    whole = words[: SLUG_CHARACTERS + 1].rpartition("-")[0] if len(words) > SLUG_CHARACTERS else words
    return whole or words[:SLUG_CHARACTERS]


def _quoted(said: Said) -> str:
    text = said.text.strip()
    rest = f" [... {len(text)} characters in all]" if len(text) > MESSAGE_CHARACTERS else ""
    return f"**{said.speaker}**: {text[:MESSAGE_CHARACTERS]}{rest}"

"""Turns of a conversation for the owner, with speaker, time and line, in pages of bounded size."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator

from memory.documents.agent_files import DocumentGone, DocumentRefused, OpenTranscript
from memory.redaction import ASKING, redactor_for
from memory.search.get import LONGEST_LINE_BYTES, NOT_A_DOCUMENT, indexed_page, late_redactor
from memory.search.manager import SearchManager
from memory.transcripts.transcript_format import time_of
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.service import Turn, TurnsAnswer

#: Characters of one turn, and of a page of turns.
_TURN_CHARACTERS, _PAGE_CHARACTERS = 20_000, 100_000

#: Beginning of a message in a chunk (`memory.transcripts.packing.label`).
_LABEL = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d)\] ([^\n:]{1,60}): ", re.MULTILINE)


def turns(manager: SearchManager, path: str, *, line: int, before: int, count: int) -> TurnsAnswer:
    """Return `count` turns from a line of a transcript on, and up to `before` turns above it, without secrets.

    A transcript whose file is gone is read from the index. There its turns have the line of the passage.
    """
    try:
        key = manager.files.resolve(path)
        if not key.is_transcript:
            return TurnsAnswer(path=path, error="this document is a note; POST /v1/get reads it")
        with manager.reading() as reader:
            title = manager.titled(reader, [key], look=True).get(key) if reader is not None else None
        try:
            redact = redactor_for(manager.agent, key.source, budget=ASKING)
            with manager.files.opened(key, settled=False) as opened:
                answer = _page(key, _messages(opened, redact), line=line, before=before, count=count)
        except DocumentGone:
            answer = _from_index(manager, key, line=line, count=before + count)
    except (DocumentRefused, DocumentGone):
        return TurnsAnswer(path=path, error=NOT_A_DOCUMENT)
    except RecalldError as error:
        return TurnsAnswer(path=path, error=str(error))
    facts = {"title": title.text, "resume": title.resume} if title is not None else {}
    return answer.model_copy(update=facts)


def _messages(opened: OpenTranscript, redact: Callable[[str], str]) -> Iterator[Turn]:
    # Most processes never open a transcript.
    from memory.transcripts.interpreter import Interpreter
    from memory.transcripts.transcript_format import Message

    interpreter = Interpreter(opened.format, redact=redact)
    for number, raw in enumerate(opened.lines(longest=LONGEST_LINE_BYTES), 1):
        message = interpreter.read(raw.data) if raw.data is not None else None
        if isinstance(message, Message):
            text = message.text[:_TURN_CHARACTERS] + ("…" if len(message.text) > _TURN_CHARACTERS else "")
            yield Turn(line=number, speaker=message.speaker, at=message.said_at, text=text)


def _page(key: DocumentKey, messages: Iterator[Turn], *, line: int, before: int, count: int) -> TurnsAnswer:
    above: deque[Turn] = deque(maxlen=before)
    below: list[Turn] = []
    earlier, room, next_from = False, _PAGE_CHARACTERS, None
    for turn in messages:
        if turn.line < line:
            earlier = earlier or len(above) == before
            above.append(turn)
        elif len(below) == count or room < 0:
            next_from = turn.line
            break
        else:
            below.append(turn)
            room -= len(turn.text)
    return TurnsAnswer(path=key.path, turns=(*above, *below), earlier=earlier, next_from=next_from)


def _from_index(manager: SearchManager, key: DocumentKey, *, line: int, count: int) -> TurnsAnswer:
    with manager.reading() as reader:
        page = indexed_page(reader, key, first=line, count=count) if reader is not None else None
        if reader is None or page is None:
            raise DocumentGone(NOT_A_DOCUMENT)
        redact = late_redactor(reader, manager.agent)
        parts = _LABEL.split(page.text if redact is None else redact(key.source, page.text))
    labelled = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    labelled_turns = [
        Turn(line=page.from_, speaker=who, at=time_of(at), text=text.strip("\n")) for at, who, text in labelled
    ]
    unlabelled = [Turn(line=page.from_, speaker="", text=parts[0].strip("\n"))] if parts[0].strip() else []
    return TurnsAnswer(
        path=key.path,
        turns=(*unlabelled, *labelled_turns),
        earlier=page.from_ > 1,
        next_from=page.next_from,
        warning=page.warning,
    )

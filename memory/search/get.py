"""Pages of documents, as `memory_get` shows them: lines of a note, or the messages on lines of a transcript."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import structlog

from memory.chunking.text_cuts import cut_at_or_before
from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused
from memory.index.fingerprint import redaction_of
from memory.index.readers import SharedReader
from memory.redaction import ASKING, redaction_facts, redactor_for
from memory.search.scope import resolve_for, session_of
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey
from schemas.errors import Permanent, RecalldError, Transient
from schemas.search import GetAnswer, GetRequest
from schemas.settings import AgentSettings, MemorySettings

if TYPE_CHECKING:
    from memory.transcripts.lines import RawLine

_log = structlog.get_logger(__name__)

#: Lines of an answer to a request without a number of lines.
DEFAULT_LINES = 120

#: Characters of one answer at most; whole lines, except a first line that is longer alone.
MAX_CHARACTERS = 12_000

#: Bytes of a transcript's line that is shown, at most: parsing takes many times its size in memory.
LONGEST_LINE_BYTES = 4 * 1024 * 1024

#: Citation of events of a session in a database (`memory.search.answers`).
_CITED = re.compile(r"(?P<session>session:[^#]+)#(?P<start>\d{1,15})(?:-(?P<end>\d{1,15}))?", re.ASCII)

Line = TypeVar("Line")


def lines_of(text: str) -> list[str]:
    """Return the lines as the index numbers them: ended by LF or CR LF, the last one with or without an end."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


#: One answer for absent and for forbidden documents, so that a session does not learn which documents exist.
NOT_A_DOCUMENT = (
    "not found: path must name a document of this memory: MEMORY.md, USER.md, memory/**/*.md, an extra path, "
    "or what a search found"
)


def read(agent: AgentSettings, files: AgentFiles, index: SharedReader, request: GetRequest) -> GetAnswer:
    """Read lines of a document of this agent, for a session in scope; refuse any other path with one uniform answer.

    A transcript whose file is gone is read from the `index`, if that has it. A line of the page is a line of the file,
    so that a citation can be opened.
    """
    path, first, count = request.path, request.from_, request.lines
    if (cited := _CITED.fullmatch(path)) is not None:
        path, start, end = cited["session"], int(cited["start"]), int(cited["end"] or cited["start"])
        first, count = first or start, count or (max(1, end - start + 1) if first is None else None)
    try:
        key = resolve_for(session_of(request.session_key), files, path, indexed=index)
        redact = redactor_for(agent, key.source, budget=ASKING)
        if not key.is_transcript:
            lines = lines_of(redact(files.read(key).text))
            return page(key.path, lines, first=first, count=count, text_of=lambda line, _: line)
        with files.opened(key) as opened:
            text_of = message_texts(opened.format, redact)
            messages = opened.lines(longest=LONGEST_LINE_BYTES)
            return page(key.path, messages, first=first, count=count, text_of=text_of)
    except DocumentRefused:
        _log.warning("read_refused", agent=agent.id)
        return GetAnswer(path=request.path, status="not_found", refused=True, error=NOT_A_DOCUMENT)
    except DocumentGone:
        return (_from_index(agent, index, key, first=first, count=count) if key.is_transcript else None) or GetAnswer(
            path=request.path, status="not_found", error=NOT_A_DOCUMENT
        )
    except (Permanent, Transient) as error:
        return GetAnswer(path=request.path, status="error", unavailable=True, error=str(error))


def _from_index(
    agent: AgentSettings, index: SharedReader, key: DocumentKey, *, first: int | None, count: int | None
) -> GetAnswer | None:
    try:
        with index.lease() as reader:
            answer = indexed_page(reader, key, first=first, count=count) if reader else None
            if reader is None or answer is None or (redact := late_redactor(reader, agent)) is None:
                return answer
            return answer.model_copy(update={"text": redact(key.source, answer.text)})
    except RecalldError as error:
        return GetAnswer(path=key.path, status="error", unavailable=True, error=str(error))


def message_texts(format: str | None, redact: Callable[[str], str]) -> Callable[[RawLine, bool], str]:  # noqa: A002
    """Return the `text_of` of a transcript in this format; None recognizes it.

    A line without a message is empty. A line above a page is parsed only if the format needs it.
    """
    # Most processes never open a transcript.
    from memory.transcripts.interpreter import Interpreter
    from memory.transcripts.packing import label
    from memory.transcripts.transcript_format import Message

    interpreter = Interpreter(format, redact=redact)

    def text_of(line: RawLine, is_shown: bool) -> str:  # noqa: FBT001 - called by `page` only
        if line.data is None:
            return f"({line.size / 1e6:.0f} MB in one line, too long to be shown)"
        message = interpreter.read(line.data) if is_shown or interpreter.needs(line.data) else None
        if not isinstance(message, Message):
            return ""
        return label(message.speaker, message.said_at) + " ".join(message.text.split())

    return text_of


def page(
    path: str,
    lines: Iterable[Line],
    *,
    first: int | None,
    count: int | None,
    text_of: Callable[[Line, bool], str],
) -> GetAnswer:
    """Cut a page of `count` lines (120 if None) out of a document, from its line `first` on (1-based).

    `text_of` maps a line on the page (True) to its text, and gets to see the lines above (False). Pages joined with
    line feeds are the document again. `truncated` is True if the document goes on; `nextFrom` is then the next line. A
    single line longer than a page is cut, with a `warning`.
    """
    start = max(1, first or 1)
    end = start + max(1, count or DEFAULT_LINES)
    texts: list[str] = []
    room, number, warning = MAX_CHARACTERS, 0, None
    for number, line in enumerate(lines, 1):
        if number >= end or room < 0:
            continue  # only counted
        text = text_of(line, number >= start)
        if number < start:
            continue
        room -= len(text) + (1 if texts else 0)
        if room >= 0:
            texts.append(text)
        elif not texts:
            texts.append(text[: cut_at_or_before(text, MAX_CHARACTERS, lowest=0)])
            warning = f"line {start} has {len(text)} characters; the first {len(texts[0])} are shown"
    following = start + len(texts)
    goes_on = bool(texts) and following <= number
    return GetAnswer(
        path=path,
        text="\n".join(texts),
        from_=start,
        lines=len(texts),
        total_lines=number,
        truncated=goes_on or warning is not None,
        next_from=following if goes_on else None,
        warning=warning,
    )


def indexed_page(reader: StoreReader, key: DocumentKey, *, first: int | None, count: int | None) -> GetAnswer | None:
    """Return these lines of a transcript whose file is gone, from the index; None if the index does not have it.

    The text is that of the chunks with these lines, without the overlap of neighbouring chunks.
    """
    stored = [chunk for chunk in reader.chunks_of(key) if chunk.ordinal >= 0]
    if not stored:
        return None
    total = max(chunk.end_line for chunk in stored)
    start = max(1, first or 1)
    last = start + max(1, count or DEFAULT_LINES) - 1
    chunks = [chunk for chunk in stored if chunk.start_line <= last and chunk.end_line >= start]
    rows = reader.chunk_rows([chunk.id for chunk in chunks])
    text, last_shown = "", 0
    for chunk in chunks:
        addition = _beyond(text, rows[chunk.id].text)
        if last_shown and len(text) + len(addition) > MAX_CHARACTERS:
            break
        text = f"{text}\n{addition}" if text and addition else text + addition
        last_shown = chunk.end_line
    goes_on = 0 < last_shown < total
    return GetAnswer(
        path=key.path,
        text=text,
        from_=start,
        lines=max(0, min(last_shown, last) - start + 1) if last_shown else 0,
        total_lines=total,
        truncated=goes_on,
        next_from=last_shown + 1 if goes_on else None,
        warning="the file is gone; these lines come from the index",
    )


def _beyond(before: str, text: str) -> str:
    """Return the text without those of its first lines that `before` ends with."""
    end = len(text)
    while end > 0:
        head = text[:end]
        if before == head or before.endswith(f"\n{head}"):
            return text[end + 1 :]
        end = text.rfind("\n", 0, end)
    return text


def late_redactor(reader: StoreReader, memory: MemorySettings) -> Callable[[str, str], str] | None:
    """Return the redactor (source, text) of texts from an index that was made with other rules of redaction.

    None if the index was made with the rules of the settings. One redactor shares its time limit among all texts (see
    `redactor_for`), and raises like that one: nothing may be shown then.
    """
    description = reader.meta("identity")
    if description is not None and redaction_of(description) == redaction_facts(memory):
        return None
    redactor = cache(lambda source: redactor_for(memory, source, budget=ASKING))
    return lambda source, text: redactor(source)(text)

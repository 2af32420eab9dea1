"""A page of a transcript, as `memory_get` shows it: what was said on lines of the JSONL file, redacted."""

from __future__ import annotations

from collections.abc import Callable

from memory.documents.agent_files import AgentFiles
from memory.search.reading import DEFAULT_LINES, MAX_CHARACTERS
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey
from schemas.search import GetAnswer

#: Bytes of a line that is shown; parsing one costs many times its size in memory, and a page holds far less.
LONGEST_LINE_BYTES = 4 * 1024 * 1024


def transcript_page(
    files: AgentFiles, key: DocumentKey, *, first: int | None, count: int | None, redact: Callable[[str], str]
) -> GetAnswer:
    """Cut a page out of a transcript, like `memory.search.reading.page` out of a note.

    Line n of the text stands for line `from` + n of the file, so that a citation can be opened; it is empty where
    nobody said anything.

    Raises:
        DocumentGone, DocumentRefused, DocumentUnreadable, TranscriptDamaged, Transient: like `AgentFiles.read`.
    """
    # Most processes never open a transcript.
    from memory.transcripts.rendering import render_lines

    start = max(1, first or 1)
    with files.opened_transcript(key) as opened:
        shown = render_lines(
            opened.lines(longest=LONGEST_LINE_BYTES),
            first=start,
            count=max(1, count or DEFAULT_LINES),
            format=opened.format,
            redact=redact,
        )
    following = start + len(shown.lines)
    goes_on = bool(shown.lines) and following <= shown.total
    warning = None
    if shown.cut_from is not None:
        warning = f"line {start} has {shown.cut_from} characters; the first {len(shown.lines[0])} are shown"
    return GetAnswer(
        path=key.path,
        text="\n".join(shown.lines),
        from_=start,
        lines=len(shown.lines),
        total_lines=shown.total,
        truncated=goes_on or warning is not None,
        next_from=following if goes_on else None,
        warning=warning,
    )


def remembered_page(reader: StoreReader, key: DocumentKey, *, first: int | None, count: int | None) -> GetAnswer | None:
    """What the index kept of these lines of a transcript whose file is gone; None when it knows nothing of it.

    The text is that of the chunks that hold the lines, without what a chunk repeats of the one before it.
    """
    stored = [chunk for chunk in reader.chunks_of(key) if chunk.ordinal >= 0]
    if not stored:
        return None
    total = max(chunk.end_line for chunk in stored)
    start = max(1, first or 1)
    last = start + max(1, count or DEFAULT_LINES) - 1
    wanted = [chunk for chunk in stored if chunk.start_line <= last and chunk.end_line >= start]
    rows = reader.chunk_rows([chunk.id for chunk in wanted])
    text, shown = "", 0
    for chunk in wanted:
        own = _beyond(text, rows[chunk.id].text)
        if shown and len(text) + len(own) > MAX_CHARACTERS:
            break
        text = f"{text}\n{own}" if text and own else text + own
        shown = chunk.end_line
    goes_on = 0 < shown < total
    return GetAnswer(
        path=key.path,
        text=text,
        from_=start,
        lines=max(0, min(shown, last) - start + 1) if shown else 0,
        total_lines=total,
        truncated=goes_on,
        next_from=shown + 1 if goes_on else None,
        warning="the file is gone; this is what the index kept of these lines",
    )


def _beyond(before: str, text: str) -> str:
    """The text without its first lines, as far as `before` ends with them."""
    end = len(text)
    while end > 0:
        head = text[:end]
        if before == head or before.endswith(f"\n{head}"):
            return text[end + 1 :]
        end = text.rfind("\n", 0, end)
    return text

"""Pages of documents, as `memory_get` shows them: lines of a note, or the messages on lines of a transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memory.documents.agent_files import AgentFiles
from memory.search.ranking.terms import cut_at_or_before
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey
from schemas.search import GetAnswer

#: Lines of an answer to a request without a number of lines.
DEFAULT_LINES = 120

#: Characters of one answer at most; whole lines, except a first line that is longer alone.
MAX_CHARACTERS = 12_000


def lines_of(text: str) -> list[str]:
    """Return the lines as the index numbers them: ended by LF or CR LF, the last one with or without an end."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def page(path: str, text: str, *, first: int | None, count: int | None) -> GetAnswer:
    """Cut a page of `count` lines (120 if None) out of a document, from its line `first` on (1-based).

    Pages joined with line feeds are the document again. `truncated` is True if the document goes on; `nextFrom` is
    then the next line. A single line longer than a page is cut, with a `warning`.
    """
    lines = lines_of(text)
    start = max(1, first or 1)
    shown: list[str] = []
    room = MAX_CHARACTERS
    cut_from = None
    for line in lines[start - 1 : start - 1 + max(1, count or DEFAULT_LINES)]:
        room -= len(line) + (1 if shown else 0)
        if room < 0 and shown:
            break
        shown.append(line)
        if room < 0:
            shown, cut_from = [line[: cut_at_or_before(line, MAX_CHARACTERS, lowest=0)]], len(line)
            break
    return _answer(path, start, shown, total=len(lines), cut_from=cut_from)


def _answer(path: str, start: int, shown: Sequence[str], *, total: int, cut_from: int | None) -> GetAnswer:
    """Return a page; `cut_from` is None, or the characters of its only line, if that is longer than a page."""
    following = start + len(shown)
    goes_on = bool(shown) and following <= total
    warning = None
    if cut_from is not None:
        warning = f"line {start} has {cut_from} characters; the first {len(shown[0])} are shown"
    return GetAnswer(
        path=path,
        text="\n".join(shown),
        from_=start,
        lines=len(shown),
        total_lines=total,
        truncated=goes_on or warning is not None,
        next_from=following if goes_on else None,
        warning=warning,
    )


#: Bytes of a line that is shown, at most: parsing takes many times its size in memory, and a page holds far less.
LONGEST_LINE_BYTES = 4 * 1024 * 1024


def transcript_page(
    files: AgentFiles, key: DocumentKey, *, first: int | None, count: int | None, redact: Callable[[str], str]
) -> GetAnswer:
    """Cut a page out of a transcript, like `page` out of a note. Raises like `AgentFiles.read`.

    Line n of the text stands for line `from` + n of the file, so that a citation can be opened; a line without a
    message is empty.
    """
    # Most processes never open a transcript.
    from memory.transcripts.rendering import render_lines

    start = max(1, first or 1)
    with files.opened(key) as opened:
        shown = render_lines(
            opened.lines(longest=LONGEST_LINE_BYTES),
            first=start,
            count=max(1, count or DEFAULT_LINES),
            format=opened.format,
            redact=redact,
        )
    return _answer(key.path, start, shown.lines, total=shown.total, cut_from=shown.cut_from)


def remembered_page(reader: StoreReader, key: DocumentKey, *, first: int | None, count: int | None) -> GetAnswer | None:
    """Return these lines of a transcript whose file is gone, from the index; None if the index does not have it.

    The text is that of the chunks with these lines, without the overlap of neighbouring chunks.
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

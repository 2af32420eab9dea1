"""A page of a transcript, as `memory_get` shows it: what was said on lines of the JSONL file, redacted."""

from __future__ import annotations

from collections.abc import Callable

from memory.agent_files import AgentFiles
from memory.search.reading import DEFAULT_LINES
from schemas.documents import DocumentKey
from schemas.search import GetAnswer


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
            opened.lines(), first=start, count=max(1, count or DEFAULT_LINES), format=opened.format, redact=redact
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

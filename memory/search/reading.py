"""Lines of a document, page by page. Pure."""

from __future__ import annotations

from memory.search.ranking.boundaries import cut_at_or_before
from schemas.search import GetAnswer

#: Lines of an answer when nobody said how many.
DEFAULT_LINES = 120

#: Characters of one answer at most; whole lines, except a first line that is longer alone.
MAX_CHARACTERS = 12_000


def lines_of(text: str) -> list[str]:
    """The lines as the index numbers them: ended by LF or CR LF, the last one with or without an end."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def page(path: str, text: str, *, first: int | None, count: int | None) -> GetAnswer:
    """Cut a page out of a document.

    Args:
        path: what the answer calls the document.
        text: the whole document.
        first: 1-based line to start with; None means 1.
        count: lines wanted; None means 120.

    Pages joined with line feeds are the document again, however they are cut. `truncated` says that
    the document goes on; `nextFrom` is then the next line. A single line longer than a page is cut, and
    `warning` says so.
    """
    lines = lines_of(text)
    start = max(1, first or 1)
    wanted = lines[start - 1 : start - 1 + max(1, count or DEFAULT_LINES)]
    shown: list[str] = []
    characters = 0
    warning = None
    for line in wanted:
        characters += len(line) + (1 if shown else 0)
        if characters > MAX_CHARACTERS:
            if not shown:
                shown.append(line[: cut_at_or_before(line, MAX_CHARACTERS, lowest=0)])
                warning = f"line {start} has {len(line)} characters; the first {len(shown[0])} are shown"
            break
        shown.append(line)
    following = start + len(shown)
    goes_on = bool(shown) and following <= len(lines)
    return GetAnswer(
        path=path,
        text="\n".join(shown),
        from_=start,
        lines=len(shown),
        total_lines=len(lines),
        truncated=goes_on or warning is not None,
        next_from=following if goes_on else None,
        warning=warning,
    )

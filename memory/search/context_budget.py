"""What of an answer goes into a model's context: snippets that end with their source, together within a bound. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from memory.search.ranking.boundaries import cut_at_or_before
from schemas.documents import SESSIONS_SOURCE
from schemas.search import SearchResult

#: A shortened snippet with fewer characters than this says nothing; its result is left out.
LEAST_CHARACTERS = 40


def footer(citation: str) -> str:
    """What a cited snippet ends with. `citation`: path#L5-L9."""
    return f"\n\nSource: {citation}"


def injected(results: Iterable[SearchResult], *, max_chars: int) -> tuple[SearchResult, ...]:
    """The first results whose snippets, footers included, have at most `max_chars` characters together.

    Results with a citation end with it. The last snippet that does not fit is shortened between words, if at least
    `LEAST_CHARACTERS` of it can be shown; what follows is left out. A citation is whole or absent: only the very
    first result may go without, where the bound leaves no room for both. The passage's lines stay as they are, those
    of a note's snippet are those of what is shown of it.
    """
    kept: list[SearchResult] = []
    left = max_chars
    for result in results:
        snippet = result.snippet.strip("\r\n").rstrip()
        source = footer(result.citation) if result.citation else ""
        if not kept and left - len(source) < min(len(snippet), LEAST_CHARACTERS):
            source = ""
        room = left - len(source)
        fits = len(snippet) <= room
        shown = snippet if fits else _shortened(snippet, room)
        if kept and not fits and len(shown) < LEAST_CHARACTERS:
            break
        kept.append(result.model_copy(update={"snippet": shown + source, **_lines(result, shown)}))
        left -= len(shown) + len(source)
        if not fits:
            break
    return tuple(kept)


def _lines(result: SearchResult, shown: str) -> dict[str, int]:
    """The lines of what is shown of a note's snippet; those of a transcript do not change with it."""
    start = result.snippet_start_line
    if start is None or result.source == SESSIONS_SOURCE:
        return {}
    start += result.snippet.count("\n", 0, result.snippet.find(shown))
    return {"snippet_start_line": start, "snippet_end_line": start + shown.count("\n")}


def _shortened(snippet: str, room: int) -> str:
    """As much of a longer snippet as fits into `room` characters without cutting a word that would fit."""
    return snippet[: cut_at_or_before(snippet, room, lowest=0)].rstrip() if room > 0 else ""

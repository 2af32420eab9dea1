"""Request and answer of a search and of a read, as they travel over HTTP, MCP and the shell.

Field names are camelCase on the wire, as in the reference system.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from schemas.conditions import Condition

Mode = Literal["hybrid", "vector", "keyword", "none"]

#: Scope of a search: notes, transcripts, both, or a wiki, which no memory of recalld has.
Corpus = Literal["memory", "wiki", "all", "sessions"]


class Wire(BaseModel):
    """Value on the wire: frozen, with camelCase names. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


def _whole(value: object) -> object:
    """Return the text with a replacement character for each half of a surrogate pair.

    They come from escapes in JSON, from programs that cut a text by UTF-16 units, and from a shell's bytes that are not
    UTF-8. No memory holds one.
    """
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class SearchRequest(Wire):
    """Request for a search. For a very long query, only its beginning is searched, and the answer says so.

    `queries` are further phrasings of the query: each is searched for, and the results are fused by place. `corpus`
    narrows `sources`: a corpus that is not among them finds nothing. `since` and `until` are dates, times or words
    ("7d", "last week") as of the asking, in the `timezone` (IANA name), by default the service's.
    """

    query: Annotated[str, BeforeValidator(_whole)]
    queries: Annotated[tuple[Annotated[str, BeforeValidator(_whole)], ...], Field(max_length=4)] | None = None
    agent: str | None = None
    max_results: Annotated[int, Field(ge=1, le=100)] | None = None
    min_score: Annotated[float, Field(ge=0, le=1)] | None = None
    sources: tuple[Literal["memory", "sessions"], ...] | None = None
    corpus: Corpus | None = None
    since: Annotated[str, Field(max_length=64)] | None = None
    until: Annotated[str, Field(max_length=64)] | None = None
    timezone: Annotated[str, Field(max_length=64)] | None = None
    session_key: str | None = None
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] | None = None

    def searched(self, configured: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sources that this request searches, by default those of the agent's settings."""
        if self.corpus in ("memory", "sessions"):
            return (self.corpus,) if self.sources is None or self.corpus in self.sources else ()
        return self.sources if self.sources is not None else configured


class AlsoIn(Wire):
    """Other documents that hold the text of a result: their number, and the paths of the newest."""

    count: int
    paths: tuple[str, ...]


class SearchResult(Wire):
    """One passage of memory and the part of it that matched. Lines are 1-based and inclusive.

    `startLine` to `endLine` are the passage, which `citation` names. `snippetStartLine` to `snippetEndLine` lie within
    it and hold the shown text. In a transcript they equal those of the passage: its lines are messages, and the place
    of each message within a passage is unknown. `rerankScore` is on the reranker's own scale. `alsoIn` is there when
    other documents hold the same text: copies are one result. `title` is the heading of the note, or project, day and
    first words of the conversation. `resume` is the command that resumes the conversation in its program, for the
    owner's private session alone. `agent` is there when several agents were searched; `alsoIn` names no documents of
    other agents.
    """

    agent: str | None = None
    path: str
    start_line: int
    end_line: int
    score: float
    vector_score: float | None = None
    text_score: float | None = None
    rerank_score: float | None = None
    snippet: str
    snippet_start_line: int | None = None
    snippet_end_line: int | None = None
    source: str
    citation: str | None = None
    also_in: AlsoIn | None = None
    title: str | None = None
    resume: str | None = None


class PendingState(Wire):
    """Backlog of the index behind an answer."""

    documents: int = 0
    oldest_seconds: float | None = None
    vectors: int = 0


class CorpusOutcome(Wire):
    """Outcome of one corpus of a request for all of them, or for the wiki. `memory` is notes and transcripts."""

    corpus: Literal["memory", "wiki"]
    outcome: Literal["ok", "unavailable", "not-registered"]
    error: str | None = None


class SearchAnswer(Wire):
    """Results, best first, and the conditions of the search.

    `degraded` lists the missing parts of the search in words, `conditions` lists them as codes. `stale`: changed
    documents are not indexed yet, `pending` has their number. An unavailable memory is an answer, too: no results,
    `disabled` or `unavailable`, `error` and `action`.
    """

    results: tuple[SearchResult, ...] = ()
    provider: str | None = None
    model: str | None = None
    mode: Mode = "none"
    fallback: bool = False
    fallback_reason: str | None = None
    citations: bool = False
    degraded: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    pending: PendingState = PendingState()
    took_ms: float = 0.0
    corpora: tuple[CorpusOutcome, ...] | None = None
    stale: bool | None = None
    disabled: bool | None = None
    unavailable: bool | None = None
    error: str | None = None
    warning: str | None = None
    action: str | None = None


class GetRequest(Wire):
    """Request for lines of a document. `startLine` is another name of `from`."""

    path: Annotated[str, Field(min_length=1, max_length=4096), BeforeValidator(_whole)]
    from_: Annotated[int | None, Field(ge=1, alias="from")] = None
    lines: Annotated[int, Field(ge=1, le=100_000)] | None = None
    corpus: Literal["memory", "wiki", "all"] | None = None
    agent: str | None = None
    session_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _start_line(cls, data: object) -> object:
        if isinstance(data, dict) and "startLine" in data:
            data = dict(data)
            start = data.pop("startLine")
            data.setdefault("from", start)
        return data


class GetAnswer(Wire):
    """Lines of a document. `lines` is the number of lines in `text`; `nextFrom` is the line to continue from.

    `status` is "not_found" for a path that names no document; its `error` begins with "not found". It is "error" for a
    document that cannot be shown, which is `unavailable`, with `error`. A memory that cannot be read is `unavailable`
    with `action`, and `disabled`. `agent` is there when the request named none of several.
    """

    agent: str | None = None
    path: str
    status: Literal["ok", "not_found", "error"] = "ok"
    text: str = ""
    from_: Annotated[int, Field(alias="from")] = 1
    lines: int = 0
    total_lines: int = 0
    truncated: bool = False
    next_from: int | None = None
    #: For metrics, not on the wire: this session may not read the path, even if there is a file.
    refused: Annotated[bool, Field(exclude=True)] = False
    corpora: tuple[CorpusOutcome, ...] | None = None
    disabled: bool | None = None
    unavailable: bool | None = None
    error: str | None = None
    warning: str | None = None
    action: str | None = None

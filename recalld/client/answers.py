"""The answers of a search and of a read: JSON objects, as dictionaries with known keys.

What stands in a `...Always` class is in every answer; the rest only where there is something to say.
"""

from __future__ import annotations

from typing import Literal, TypedDict

Mode = Literal["hybrid", "vector", "keyword", "none"]
ReadStatus = Literal["ok", "not_found", "error"]


class PendingStateAlways(TypedDict):
    documents: int
    vectors: int


class PendingState(PendingStateAlways, total=False):
    """How far an answer may be behind the files: changed documents, and texts that still lack their vector."""

    oldestSeconds: float


class AlsoIn(TypedDict):
    """Other documents that hold the text of a result: how many, and the paths of the newest."""

    count: int
    paths: list[str]


class SearchResultAlways(TypedDict):
    path: str
    startLine: int
    endLine: int
    score: float
    snippet: str
    source: str


class SearchResult(SearchResultAlways, total=False):
    """One passage. Its line numbers count from 1 and are inclusive; `score` is from 0 to 1.

    `startLine` to `endLine` are all of the passage, `snippetStartLine` to `snippetEndLine` what is shown of it.
    `alsoIn` is there when other documents hold the same text.
    """

    vectorScore: float
    textScore: float
    snippetStartLine: int
    snippetEndLine: int
    citation: str
    alsoIn: AlsoIn


class CorpusOutcomeAlways(TypedDict):
    corpus: Literal["memory", "wiki"]
    outcome: Literal["ok", "unavailable", "not-registered"]


class CorpusOutcome(CorpusOutcomeAlways, total=False):
    """Outcome of one corpus of a request for all of them, or for the wiki. `memory` is notes and transcripts."""

    error: str


class SearchAnswerAlways(TypedDict):
    results: list[SearchResult]
    mode: Mode
    fallback: bool
    citations: bool
    degraded: list[str]
    pending: PendingState
    tookMs: float


class SearchAnswer(SearchAnswerAlways, total=False):
    """Results, best first, and how they were found.

    `degraded` says in words what was missing; `stale`: changed documents are not indexed yet. A memory that cannot
    answer is an answer, too: no results, `disabled` or `unavailable`, `error` and `action`.
    """

    provider: str
    model: str
    fallbackReason: str
    corpora: list[CorpusOutcome]
    stale: bool
    disabled: bool
    unavailable: bool
    error: str
    warning: str
    action: str


#: `from` is a word of the language, so this one is written as a call.
GetAnswerAlways = TypedDict(
    "GetAnswerAlways",
    {
        "path": str,
        "status": ReadStatus,
        "text": str,
        "from": int,
        "lines": int,
        "totalLines": int,
        "truncated": bool,
    },
)


class GetAnswer(GetAnswerAlways, total=False):
    """Lines of a document: `lines` of them from line `from` on. `nextFrom`: where to read on, when it was truncated."""

    nextFrom: int
    corpora: list[CorpusOutcome]
    disabled: bool
    unavailable: bool
    error: str
    warning: str
    action: str

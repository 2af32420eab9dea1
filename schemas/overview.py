"""Answers for the page besides search, get and status: the queue, dead letters, days, terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from schemas.status import DeadLetter, EndpointStatus, QueueState, TroubleState


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Counts(_Wire):
    """Counts of an index. `lastCommitAt` is Unix time, absent before the first commit."""

    files: int = 0
    chunks: int = 0
    vectors_ready: int = 0
    vectors_pending: int = 0
    vectors_refused: int = 0
    last_commit_at: float | None = None


class AgentQueue(_Wire):
    """Queue and counts of one agent. Only `GET /v1/status` compares the disk.

    `counts` is absent without an index, and while the service has not `looked` (there may be thousands of agents).
    `error` is the reason why the memory cannot be read or is switched off.
    `revision` differs after every commit: while it is the same, all counts, dead letters and days are the same.
    """

    agent: str
    queue: QueueState
    looked: bool = True
    counts: Counts | None = None
    dead_letters: int = 0
    revision: str = ""
    provider: str | None = None
    model: str | None = None
    endpoint: EndpointStatus | None = None
    troubles: tuple[TroubleState, ...] = ()
    error: str | None = None


class QueueAnswer(_Wire):
    """Queues of all agents that the caller may see, as of Unix time `at`."""

    at: float
    version: str
    agents: tuple[AgentQueue, ...]


class AgentDeadLetter(DeadLetter):
    """Dead letter with its agent."""

    agent: str


class DeadLettersAnswer(_Wire):
    """Newest dead letters of all agents that the caller may see, and the number of all."""

    total: int = 0
    dead_letters: tuple[AgentDeadLetter, ...] = ()


class DatedNote(_Wire):
    """Note whose file name begins with its date."""

    path: str
    chunks: int


class Day(_Wire):
    """Day that has notes. `date` is ISO 8601."""

    date: str
    chunks: int
    notes: tuple[DatedNote, ...]


class Year(_Wire):
    """Counts of one year."""

    year: int
    days: int
    notes: int
    chunks: int


class TimelineAnswer(_Wire):
    """Dated notes: all years that have notes, ascending, and the days with notes of one year."""

    agent: str
    years: tuple[Year, ...] = ()
    year: int | None = None
    days: tuple[Day, ...] = ()
    error: str | None = None


class TermsRequest(_Wire):
    """Query whose terms the page marks."""

    query: Annotated[str, Field(max_length=20_000)]


class TermsAnswer(_Wire):
    """Terms of a query as search compares them: lower case and narrow, words without endings, pairs of CJK."""

    terms: tuple[str, ...] = ()

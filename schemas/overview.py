"""What a page that shows memory asks for, besides search, get and status: the queue, dead letters, days, terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from schemas.ports import EndpointStatus
from schemas.status import DeadLetter, QueueState, TroubleState


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Counts(_Wire):
    """What an index holds. `lastCommitAt` is Unix time, absent before the first commit."""

    files: int = 0
    chunks: int = 0
    vectors_ready: int = 0
    vectors_pending: int = 0
    vectors_refused: int = 0
    last_commit_at: float | None = None


class AgentQueue(_Wire):
    """What moves about one agent. The disk is not looked at: `GET /v1/status` compares it.

    `counts` is absent as long as there is no index, and as long as it was not `looked` at (among thousands of agents);
    `error` says why its memory cannot be read or is switched off.
    `revision` differs after every commit: as long as it is the same, no count, dead letter or day has changed.
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
    """All agents that the caller may see, as of Unix time `at`."""

    at: float
    version: str
    agents: tuple[AgentQueue, ...]


class AgentDeadLetter(DeadLetter):
    """A document that could not be indexed, and whose it is."""

    agent: str


class DeadLettersAnswer(_Wire):
    """The newest dead letters of all agents that the caller may see, and how many there are."""

    total: int = 0
    dead_letters: tuple[AgentDeadLetter, ...] = ()


class DatedNote(_Wire):
    """One note whose file name begins with its date."""

    path: str
    chunks: int


class Day(_Wire):
    """A day that has notes. `date` is ISO 8601."""

    date: str
    chunks: int
    notes: tuple[DatedNote, ...]


class Year(_Wire):
    """How much there is of one year."""

    year: int
    days: int
    notes: int
    chunks: int


class TimelineAnswer(_Wire):
    """Dated notes: all years that have any, ascending, and the days of one of them. Other days have none."""

    agent: str
    years: tuple[Year, ...] = ()
    year: int | None = None
    days: tuple[Day, ...] = ()
    error: str | None = None


class TermsRequest(_Wire):
    """A query."""

    query: Annotated[str, Field(max_length=20_000)]


class TermsAnswer(_Wire):
    """What is looked for in texts for a query: lower case and narrow; words without their endings, pairs of CJK."""

    terms: tuple[str, ...] = ()

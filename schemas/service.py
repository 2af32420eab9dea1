"""Messages of the query service besides search, get and status.

They are about itself, its tools, and refused requests. Answers for the page are the queue, dead letters, days, terms.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from schemas.search import Wire
from schemas.status import Counts, DeadLetter, EndpointStatus, FleetState, QueueState, TroubleState


class Refusal(Wire):
    """Reason why a request was not answered, in one sentence."""

    error: str


class PageLink(Wire):
    """Path of the page; for the owner of several agents with a token that opens it once, within a minute."""

    path: str


class SessionRequest(Wire):
    """Token of a link to the page."""

    link: Annotated[str, Field(max_length=200)]


class SessionAnswer(Wire):
    """Token that the page sends from now on."""

    token: str


class Health(Wire):
    """Answer of a process that runs."""

    status: Literal["ok"]


class Readiness(Wire):
    """Readiness to answer searches; `error` is the reason of "not ready"."""

    status: Literal["ready", "not ready"]
    error: str | None = None


class ToolRequest(Wire):
    """Tool call of a model, as a tool loop sends it.

    The model gives `name` and `arguments`, the latter as JSON in a text or as an object. The loop gives `agent` and
    `sessionKey`. Without a session key the session is the owner's private one.
    An empty session key is refused.
    """

    name: str
    arguments: str | dict[str, Any] = ""
    agent: str | None = None
    session_key: (
        Annotated[
            str,
            StringConstraints(strip_whitespace=True, min_length=1),
            Field(json_schema_extra={"pattern": r"\S"}),  # the length alone would describe a blank key, too
        ]
        | None
    ) = None


class Tool(Wire):
    """Tool as a model sees it. `inputSchema` is the JSON schema of its arguments."""

    name: str
    title: str
    description: str
    input_schema: dict[str, Any]


class ToolList(Wire):
    """Tools, in the order of their use."""

    tools: Annotated[tuple[Tool, ...], Field(description="Named as in the Model Context Protocol.")]


class AgentQueue(Wire):
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


class QueueAnswer(Wire):
    """Queues of all agents that the caller may see, as of Unix time `at`. The `owner` may search all at once.

    Of a fleet, `agents` is a page, and `fleet` has the sums over all.
    """

    at: float
    version: str
    owner: bool = False
    agents: tuple[AgentQueue, ...]
    fleet: FleetState | None = None


class AgentDeadLetter(DeadLetter):
    """Dead letter with its agent."""

    agent: str


class DeadLettersAnswer(Wire):
    """Newest dead letters of all agents that the caller may see, and the number of all."""

    total: int = 0
    dead_letters: tuple[AgentDeadLetter, ...] = ()


class DatedNote(Wire):
    """Note whose file name begins with its date."""

    path: str
    chunks: int


class Day(Wire):
    """Day that has notes. `date` is ISO 8601."""

    date: str
    chunks: int
    notes: tuple[DatedNote, ...]


class Year(Wire):
    """Counts of one year."""

    year: int
    days: int
    notes: int
    chunks: int


class TimelineAnswer(Wire):
    """Dated notes: all years that have notes, ascending, and the days with notes of one year."""

    agent: str
    years: tuple[Year, ...] = ()
    year: int | None = None
    days: tuple[Day, ...] = ()
    error: str | None = None


class MemoryDocument(Wire):
    """Document of an agent. `changedAt` is the Unix time of its last change; see `SearchResult` for the title.

    `words` are the first words of a note below its title.
    """

    agent: str
    source: str
    path: str
    changed_at: float
    title: str | None = None
    words: str | None = None
    resume: str | None = None


class MemoryFolder(Wire):
    """Folder of documents, by its path with a slash at the end, and the number of all documents below it."""

    path: str
    documents: int


class DocumentsAnswer(Wire):
    """Documents, and the folders beside them in a tree. `next` is the offset of the next page."""

    folders: tuple[MemoryFolder, ...] = ()
    documents: tuple[MemoryDocument, ...] = ()
    next: int | None = None


class DayCount(Wire):
    """Day with the number of notes that have it in their names, and of conversations that changed last on it."""

    date: str
    notes: int = 0
    conversations: int = 0


class DaysAnswer(Wire):
    """Days that have notes or conversations, ascending."""

    days: tuple[DayCount, ...] = ()


class Turn(Wire):
    """Message of a conversation on a `line` of its transcript, `at` Unix time."""

    line: int
    speaker: str
    at: float | None = None
    text: str


class TurnsAnswer(Wire):
    """Turns of a conversation. `earlier`: there are more above; `nextFrom` is the line of the next one below."""

    path: str
    title: str | None = None
    resume: str | None = None
    turns: tuple[Turn, ...] = ()
    earlier: bool = False
    next_from: int | None = None
    warning: str | None = None
    error: str | None = None


class TermsRequest(Wire):
    """Query whose terms the page marks."""

    query: Annotated[str, Field(max_length=20_000)]


class TermsAnswer(Wire):
    """Terms of a query as search compares them: lower case and narrow, words without endings, pairs of CJK.

    `forms` are those terms that are the beginnings of a word's forms.
    """

    terms: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()

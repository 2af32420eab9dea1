"""Interface of backends: other programs that search an agent's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod

from memory.redaction import ASKING, redactor_for
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE
from schemas.errors import RecalldError
from schemas.search import SearchAnswer, SearchRequest
from schemas.settings import AgentSettings
from schemas.status import Availability, BackendStatus

#: recalld's own index.
BUILTIN = "builtin"

#: Characters of a backend's text that are read: far more than are shown, so that a secret at the end is whole.
READ_CHARACTERS = 100_000

#: Characters of a reason that answers, status and logs show.
_REASON_CHARACTERS = 300

#: File in an agent's folder with the reason for which its backend's last update failed, empty if it did not.
FAILURE = "failure"


class BackendFailed(RecalldError):
    """A backend cannot answer. The message says why; recalld's own index answers from then on."""


class QueryRejected(BackendFailed):
    """A backend cannot answer this one query. The message says why; recalld's own index answers this search only."""


class Backend(ABC):
    """Search of one agent's documents by another program. Thread-safe.

    recalld's own index answers when `searched` raises, is unavailable, finds nothing or takes too long. Each call runs
    on a thread of its own and may block. Each `searched` runs on an event loop of its own: a client bound to an earlier
    loop fails. recalld reads the documents itself, and shows no result of anything else.
    """

    @abstractmethod
    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer, best results first. Raise `QueryRejected` for a query that is at fault."""

    @abstractmethod
    def status(self) -> BackendStatus:
        """Return the backend's state, without waiting for it."""

    @abstractmethod
    def sync(self) -> str | None:
        """Request an update of the backend's index; return None, or the reason why that is not possible."""

    @abstractmethod
    def probe_embedding_availability(self) -> Availability:
        """Return whether the backend embeds queries."""

    @abstractmethod
    def probe_vector_availability(self) -> Availability:
        """Return whether the backend searches vectors."""

    @abstractmethod
    def close(self) -> None:
        """End everything that runs for the backend, without waiting for it."""


def reason_of(error: BaseException | str, agent: AgentSettings) -> str:
    """Return the text of a backend's error as one short line without secrets, or the name of the error."""
    try:
        text = redactor_for(agent, MEMORY_SOURCE, SESSIONS_SOURCE, budget=ASKING)(str(error)[:READ_CHARACTERS])
    except BaseException:  # noqa: BLE001 - an error that has no text, or whose text needs too costly patterns
        text = ""
    return " ".join(text.encode("utf-8", "replace").decode().split())[:_REASON_CHARACTERS] or type(error).__name__

"""Construction of what commands share: the broker and its ports, the readers of indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.documents.agent_files import AgentFiles
from memory.index.fingerprint import Fingerprint, wanted_fingerprint
from memory.index.generations import Generations
from memory.index.provider_fallback import provider_of
from memory.store.sqlite.reader import StoreReader
from producers.reconciler import Indexes, reconcile
from schemas.documents import DocumentKey, Lane
from schemas.ports import JobQueue
from schemas.settings import AgentSettings, Settings

if TYPE_CHECKING:
    import redis

    from workers.health.health_store import HealthStore
    from workers.queue.job_queue import BrokerJobQueue, EventQueue
    from workers.queue.names import Keys


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """Broker as producers and commands see it; as a context it is closed at the end."""

    client: redis.Redis
    keys: Keys
    queue: BrokerJobQueue
    board: HealthStore
    inbox: EventQueue

    def __enter__(self) -> BrokerSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def open_broker(settings: Settings, *, answer_seconds: float | None = None, reads_only: bool = False) -> BrokerSide:
    """Open the broker's ports, without connecting. A call waits at most `answer_seconds` for an answer.

    With `reads_only` nothing is written to the home, which may be read-only.
    """
    # Here: a command that needs no broker must not wait for these modules.
    from workers.health.health_store import HealthStore
    from workers.queue.connection import PATIENT_SECONDS, connect, namespace
    from workers.queue.job_queue import BrokerJobQueue, EventQueue
    from workers.queue.names import Keys

    client = connect(settings, answer_seconds=PATIENT_SECONDS if answer_seconds is None else answer_seconds)
    keys = Keys(namespace(settings, reads_only=reads_only))
    return BrokerSide(
        client=client,
        keys=keys,
        queue=BrokerJobQueue(client, keys),
        board=HealthStore(client, keys),
        inbox=EventQueue(client, keys),
    )


def generations_of(settings: Settings, agent: AgentSettings) -> Generations:
    """Return the agent's generations, for reading."""
    return Generations.of(settings, agent.id)


@contextmanager
def closed(reader: StoreReader | None) -> Iterator[StoreReader | None]:
    """Close a reader, if there is one, at the end of the block."""
    try:
        yield reader
    finally:
        if reader is not None:
            reader.close()


def fingerprint_of(settings: Settings, agent: AgentSettings, *, rebuild: bool = False) -> Fingerprint:
    """Return the identity that an agent's index should have; with `rebuild`, that of a new index."""
    choice = provider_of(settings, agent)
    choice = choice.for_rebuild() if rebuild else choice
    return wanted_fingerprint(agent, choice, generations_of(settings, agent))


def indexes_of(settings: Settings) -> Indexes:
    """Return the functions by which `reconcile` opens the indexes of agents."""
    return Indexes(
        indexed=lambda agent: generations_of(settings, agent).target_reader(fingerprint_of(settings, agent).digest),
        answering=lambda agent: generations_of(settings, agent).open_reader(),
        building=lambda agent: generations_of(settings, agent).next() is not None,
    )


def compare(settings: Settings, agent: AgentSettings, queue: JobQueue, *, records_folders: bool = True) -> None:
    """Enqueue the documents that differ between an agent's disk and index."""
    files = AgentFiles.of(settings, agent)
    reconcile(agent, files, indexes_of(settings), queue, records_folders=records_folders)


class Differences:
    """Queue of a comparison that only collects documents that differ. `needs_workers`: vectors or a build wait, too."""

    def __init__(self) -> None:
        self.documents: list[DocumentKey] = []
        self.needs_workers = False

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:  # noqa: ARG002
        """See `JobQueue`."""
        self.documents += documents

    def request_vectors(self, agent: str) -> None:  # noqa: ARG002 - the port's signature
        """See `JobQueue`."""
        self.needs_workers = True

    request_completion = request_vectors

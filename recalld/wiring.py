"""Construction of what commands share: the broker and its ports, the readers of indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.index.fingerprint import Fingerprint, wanted_fingerprint
from memory.index.generations import Generations
from memory.index.provider_fallback import provider_of
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from recalld.up.lifecycle import last_act
from schemas.settings import AgentSettings, Settings
from workers.health.health_store import HealthStore
from workers.queue.connection import PATIENT_SECONDS, connect, namespace
from workers.queue.job_queue import BrokerJobQueue, EventQueue
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer

if TYPE_CHECKING:
    import redis


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """Broker as producers and commands see it. The caller of `open_broker` closes `client`."""

    client: redis.Redis
    keys: Keys
    queue: BrokerJobQueue
    board: HealthStore
    inbox: EventQueue


def open_broker(settings: Settings, *, answer_seconds: float = PATIENT_SECONDS) -> BrokerSide:
    """Open the broker's ports, without connecting. A call waits at most `answer_seconds` for an answer."""
    client = connect(settings, answer_seconds=answer_seconds)
    keys = Keys(namespace(settings))
    return BrokerSide(
        client=client,
        keys=keys,
        queue=BrokerJobQueue(client, keys),
        board=HealthStore(client, keys),
        inbox=EventQueue(client, keys),
    )


def generations_of(settings: Settings, agent: AgentSettings) -> Generations:
    """Return the agent's generations, for reading."""
    return Generations(settings.indexes_path / agent.id, StoreOptions.of(settings.store))


def fingerprint_of(settings: Settings, agent: AgentSettings, *, rebuild: bool = False) -> Fingerprint:
    """Return the identity that an agent's index should have; with `rebuild`, that of a new index."""
    choice = provider_of(settings, agent)
    choice = choice.for_rebuild() if rebuild else choice
    return wanted_fingerprint(agent, choice, generations_of(settings, agent))


def indexed_by(settings: Settings) -> Callable[[AgentSettings], StoreReader | None]:
    """Return the function by which `reconcile` opens the generation that is compared with the disk."""
    return lambda agent: generations_of(settings, agent).target_reader(fingerprint_of(settings, agent).digest)


def answering_for(settings: Settings) -> Callable[[AgentSettings], StoreReader | None]:
    """Return the function by which `reconcile` opens the generation that searches see."""
    return lambda agent: generations_of(settings, agent).open_reader()


def building_in(settings: Settings) -> Callable[[AgentSettings], bool]:
    """Return the function by which `reconcile` learns that a generation is under construction."""
    return lambda agent: generations_of(settings, agent).next() is not None


@contextmanager
def running_broker(settings: Settings, *, supervised: bool = False) -> Iterator[BrokerServer]:
    """Run a broker during the block, unless one answers already.

    A supervised process leaves the broker to its supervisor.
    """
    server = BrokerServer(settings)
    if supervised:
        yield server
        return
    server.ensure()
    try:
        with last_act(server.stop):
            yield server
    finally:
        server.stop()

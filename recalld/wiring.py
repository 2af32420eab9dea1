"""Hands the rooms to each other: what a command needs of the broker, the queue and the index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.index.fingerprint import Fingerprint, wanted_fingerprint
from memory.index.generations import Generations
from memory.index.provider_fallback import provider_of
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from schemas.settings import AgentSettings, Settings
from workers.health.board import Board
from workers.queue.connection import PATIENT_SECONDS, connect, namespace
from workers.queue.event_queue import BrokerInbox
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import Keys

if TYPE_CHECKING:
    import redis


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """The broker as producers and commands see it. `client` is closed by whoever opened this."""

    client: redis.Redis
    keys: Keys
    queue: BrokerJobQueue
    board: Board
    inbox: BrokerInbox


def open_broker(settings: Settings, *, answer_seconds: float = PATIENT_SECONDS) -> BrokerSide:
    """Open the broker's ports; each call waits so long for an answer at most. Does not connect yet."""
    client = connect(settings, answer_seconds=answer_seconds)
    keys = Keys(namespace(settings))
    return BrokerSide(
        client=client,
        keys=keys,
        queue=BrokerJobQueue(client, keys),
        board=Board(client, keys),
        inbox=BrokerInbox(client, keys),
    )


def generations_of(settings: Settings, agent: AgentSettings) -> Generations:
    """The agent's generations, for reading."""
    return Generations(settings.indexes_path / agent.id, StoreOptions.of(settings.store))


def fingerprint_of(settings: Settings, agent: AgentSettings, *, rebuild: bool = False) -> Fingerprint:
    """The identity that an agent's index should have; with `rebuild`, that of one built anew on purpose."""
    choice = provider_of(settings, agent)
    choice = choice.for_rebuild() if rebuild else choice
    return wanted_fingerprint(agent, choice, generations_of(settings, agent))


def indexed_by(settings: Settings) -> Callable[[AgentSettings], StoreReader | None]:
    """For `reconcile`: the generation of an agent that disk has to be compared with."""
    return lambda agent: generations_of(settings, agent).target_reader(fingerprint_of(settings, agent).digest)


def answering_for(settings: Settings) -> Callable[[AgentSettings], StoreReader | None]:
    """For `reconcile`: the generation of an agent that searches see."""
    return lambda agent: generations_of(settings, agent).open_reader()


def building_in(settings: Settings) -> Callable[[AgentSettings], bool]:
    """For `reconcile`: whether a generation of an agent is under construction."""
    return lambda agent: generations_of(settings, agent).next() is not None

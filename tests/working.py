"""Workers in a thread of this process, and a look at what they did."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Self

from starlette.responses import Response

from memory.store.reader import StoreReader
from memory.telemetry.server import readiness
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from schemas.status import IndexCounts
from tests.waiting import wait_until
from tests.written_index import reading
from workers.health.health_store import HealthStore
from workers.queue.connection import connect, namespace
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import Keys
from workers.queue.pending import Waiting
from workers.run import run_workers
from workers.runtime import TIMING, Timing


def key(path: str) -> DocumentKey:
    """A document of the memory folder."""
    return DocumentKey("memory", path)


def ready(health: HealthStore, *, problems: Sequence[str] = ()) -> Response:
    """Return the answer of `/readyz`."""
    return readiness(health.broker, health.stalled_seconds, stalled_after_seconds=60, problems=lambda: problems)()


def asking(settings: Settings, url: str, *, key: str = "a-secret-key", **more: object) -> Settings:
    """One agent whose vectors come from the server at `url`."""
    provider = {"provider": "openai", "remote": {"base_url": url, "api_key": key}}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, **provider}
    return Settings.model_validate({"home": settings.home, "agents": [agent], **provider, **more})


class Workers:
    """`run_workers` while used as a context manager; `start` and `stop` it again as often as needed."""

    def __init__(self, settings: Settings, *, timing: Timing = TIMING) -> None:
        self.settings = settings
        self.timing = timing
        self.client = connect(settings)
        self.keys = Keys(namespace(settings))
        self.queue = BrokerJobQueue(self.client, self.keys)
        self.health = HealthStore(self.client, self.keys)
        self.asked_to_stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()

    def start(self) -> None:
        """Start them and wait until they say that they are ready."""
        self.asked_to_stop.clear()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=run_workers,
            args=(self.settings, self.asked_to_stop),
            kwargs={"on_ready": ready.set, "timing": self.timing},
        )
        self._thread.start()
        assert ready.wait(120)

    def stop(self) -> None:
        """Ask them to stop and wait until they have."""
        self.asked_to_stop.set()
        if self._thread is not None:
            # Less than the two minutes that a request or a pattern may take.
            self._thread.join(100)
            assert not self._thread.is_alive()

    def write(self, path: str, text: str, *, agent: str = "main") -> None:
        """Write a note of an agent's workspace."""
        file = self.settings.agent(agent).workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def note(self, path: str, text: str, *, agent: str = "main", lane: Lane = Lane.LIVE) -> None:
        """Write a note, and say that it changed."""
        self.write(path, text, agent=agent)
        self.mark(path, agent=agent, lane=lane)

    def index(self, path: str, text: str) -> None:
        """Write a note, and wait until it is indexed."""
        self.note(path, text)
        wait_until(self.complete)

    def mark(self, *paths: str, agent: str = "main", lane: Lane = Lane.LIVE) -> None:
        """Say that documents changed."""
        self.queue.mark_changed(agent, [key(path) for path in paths], lane=lane)

    def waiting(self, agent: str = "main") -> Waiting:
        return self.queue.pending_set.waiting(agent)

    def settled(self, agent: str = "main") -> bool:
        """Return True if every mark is over."""
        return self.queue.pending_set.pending(agent).documents == 0

    def conditions(self, agent: str = "main") -> dict[ConditionCode, Condition]:
        """Return the reported conditions that are not over, by code."""
        return {one.code: one for one in self.health.conditions(agent)}

    def counts(self, agent: str = "main") -> IndexCounts:
        with self.reading(agent) as reader:
            return reader.counts() if reader is not None else IndexCounts()

    def finds(self, word: str, agent: str = "main") -> bool:
        """Return True if a keyword search finds the word."""
        with self.reading(agent) as reader:
            return reader is not None and bool(reader.search_text(word, 5))

    def complete(self, agent: str = "main") -> bool:
        """Return True if every mark is over and every chunk has its vector."""
        # In this order: what was committed when the last mark ended is in the counts.
        if not self.settled(agent):
            return False
        counts = self.counts(agent)
        return counts.vectors_pending == 0 and counts.vectors_ready == counts.chunks > 0

    def reading(self, agent: str) -> AbstractContextManager[StoreReader | None]:
        """The generation that answers, None when there is none."""
        return reading(self.settings.home, agent)

"""The query service in a thread of this process, and a client of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from memory.embedding.coordination import Coordinate, alone
from memory.http.server import Bounds
from memory.service.run import serve
from schemas.ports import PendingReader
from schemas.settings import Settings
from tests.quiet_health import QuietHealth
from tests.waiting import wait_until
from tests.written_index import write_index


@contextmanager
def running(
    settings: Settings,
    health: PendingReader | None = None,
    *,
    coordinate: Coordinate = alone,
    port: int = 0,
    bounds: Bounds | None = None,
) -> Iterator[httpx.Client]:
    """The service on a port, by default a free one, and a client of it."""
    settings = settings.model_copy(update={"service": settings.service.model_copy(update={"port": port})})
    ready, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            serve(
                settings, health or QuietHealth(), coordinate=coordinate, on_ready=ready.set, stop=stop, bounds=bounds
            )
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="service")
    thread.start()
    try:
        assert ready.wait(120)
        if failures:
            raise failures[0]
        where = json.loads((settings.home / "run" / "service.json").read_text())
        assert where["pid"] == os.getpid()
        with httpx.Client(base_url=f"http://127.0.0.1:{where['port']}", timeout=60) as client:
            yield client
    finally:
        stop.set()
        thread.join(120)
        assert not thread.is_alive()
        assert not (settings.home / "run" / "service.json").exists()


def search(client: httpx.Client, query: str, **more: object) -> dict[str, Any]:
    """The answer of one search."""
    response = client.post("/v1/search", json={"query": query, **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@contextmanager
def indexed_and_running(settings: Settings) -> Iterator[httpx.Client]:
    """Index the agent's documents and serve them until the end of the block; queries are embedded from the start."""
    write_index(settings).close()
    with running(settings) as client:
        wait_until(lambda: search(client, "warm")["mode"] == "hybrid")
        yield client

"""A search backend in a package of its own, as a user installs one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from memory.backends.backend import Backend
from schemas.search import SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Settings
from schemas.status import Availability, BackendStatus

#: Agent -> the work of its backend's searches, which may block.
SEARCHES: dict[str, Callable[[SearchRequest], SearchAnswer]] = {}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package that has the backend `other`."""
    package = folder / "other_backend-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other-backend\nVersion: 1.0\n", "utf-8")
    (package / "entry_points.txt").write_text("[recalld.backends]\nother = tests.other_backend:OtherBackend\n", "utf-8")
    monkeypatch.syspath_prepend(folder)


class OtherBackend(Backend):
    """A backend that does the work in `SEARCHES`."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        self._agent = agent.id

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Block, as a coroutine should not."""
        return SEARCHES[self._agent](request)

    def status(self) -> BackendStatus:
        """Return nothing special."""
        return BackendStatus(backend="other")

    def sync(self) -> str | None:
        """Do nothing."""
        return None

    def probe_embedding_availability(self) -> Availability:
        """Return yes."""
        return Availability(available=True)

    def probe_vector_availability(self) -> Availability:
        """Return yes."""
        return Availability(available=True)

    def close(self) -> None:
        """Do nothing."""

"""A browser for the tests of a file, and a memory with something in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from memory.store.writer import Store
from schemas.settings import Settings
from tests.browsing import Visit, chromium, visiting
from tests.serving import running
from tests.written_index import write_index

LONG_NOTE = "\n".join(
    ["# The move", *(f"Line {number} of the diary." for number in range(2, 200))]
    + ["The dentist appointment moved to nine.", "牙医的预约改到九点。"]
    + [f"Line {number} of the diary." for number in range(202, 401)]
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not longer than a file: while it is there, this thread can run no event loop of its own.
    with chromium() as found:
        yield found


@pytest.fixture
def notes(workspace: Path) -> Path:
    """A few notes in two languages, one of them long."""
    (workspace / "MEMORY.md").write_text(
        "The build server is called Basalt.\nDeployments happen on Fridays.\n", "utf-8"
    )
    (workspace / "memory" / "2026-01-16-move.md").write_text(LONG_NOTE, "utf-8")
    (workspace / "memory" / "2026-01-20.md").write_text("我们决定周五迁移数据库。\nThe café was closed.\n", "utf-8")
    (workspace / "memory" / "2026-02-03.md").write_text("A deployment failed at the gateway.\n", "utf-8")
    return workspace


@pytest.fixture
def store(settings: Settings, notes: Path) -> Iterator[Store]:
    """The index of the notes."""
    written = write_index(settings)
    yield written
    written.close()


@pytest.fixture
def service(settings: Settings, store: Store) -> Iterator[httpx.Client]:
    with running(settings) as client:
        yield client


@pytest.fixture
def visit(browser: Browser, service: httpx.Client) -> Iterator[Visit]:
    """Somebody who looks at that memory, in English."""
    with visiting(browser, service.base_url) as visitor:
        yield visitor

"""Status tells the truth."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memory.embedding.selection import ProviderChoice, choose_provider
from memory.embedding.stub import StubProvider
from memory.progress import vector_progress
from memory.reporting import build_status
from schemas.documents import DocumentKey
from schemas.ports import Pending, Trouble, VectorProgress
from schemas.settings import Settings
from schemas.status import AgentStatus, IndexState
from tests.written_index import write_index


class Board:
    def __init__(self, pending: Pending | None, troubles: tuple[Trouble, ...] = ()) -> None:
        self._pending, self._troubles = pending, troubles

    def pending(self, agent: str) -> Pending | None:
        return self._pending

    def vector_progress(self, agent: str) -> VectorProgress:
        return VectorProgress(rate=2.0, at=time.time())

    def troubles(self, agent: str):
        return self._troubles


Look = Callable[..., AgentStatus]
QUIET = Pending()


@pytest.fixture
def look(settings: Settings) -> Look:
    def look(pending: Pending | None = QUIET, *, troubles=(), deep: bool = False) -> AgentStatus:
        [agent] = build_status(settings, Board(pending, troubles), deep=deep).agents
        return agent

    return look


@pytest.fixture
def note(workspace: Path) -> Path:
    path = workspace / "memory" / "note.md"
    path.write_text("one note\n", "utf-8")
    return path


def test_an_empty_workspace_without_an_index_is_ok(look: Look):
    status = look()

    assert status.ok
    assert (status.disk.files, status.index.chunks, status.index.generation) == (0, 0, None)


def test_an_index_that_holds_what_the_disk_holds_is_ok(settings: Settings, look: Look, note: Path):
    write_index(settings)
    status = look(deep=True)

    assert status.ok
    assert (status.disk.files, status.index.files, status.index.vectors_ready) == (1, 1, 1)
    assert status.integrity == ()
    assert status.index.identity_matches
    assert status.vector_search.available
    assert status.text_search.available


def test_a_note_that_is_not_indexed_and_not_queued_is_not_ok(look: Look, note: Path):
    assert look().disk.missing == 1
    assert not look().ok


def test_a_note_whose_job_waits_is_ok_for_a_minute(look: Look, note: Path):
    assert look(Pending(documents=1, oldest_at=time.time() - 2)).ok
    assert not look(Pending(documents=1, oldest_at=time.time() - 70)).ok


def test_an_edit_that_nobody_noticed_is_stale(settings: Settings, look: Look, note: Path):
    write_index(settings)
    note.write_text("one note, edited\n", "utf-8")

    assert look().disk.stale == 1
    assert not look().ok
    assert look(Pending(documents=1, oldest_at=time.time())).ok


def test_a_deleted_note_that_is_still_indexed_has_vanished(settings: Settings, look: Look, note: Path):
    write_index(settings)
    note.unlink()

    assert look().disk.vanished == 1
    assert not look().ok


def test_a_queue_that_does_not_answer_is_said(settings: Settings, look: Look, note: Path):
    write_index(settings)
    status = look(None)

    assert not status.queue.reachable
    assert status.ok


def test_troubles_and_dead_letters_are_not_ok(settings: Settings, look: Look, note: Path):
    store = write_index(settings)
    assert not look(troubles=(Trouble("watch", "no more watches", 1.0),)).ok

    store.add_dead_letter(DocumentKey("memory", "memory/bad.md"), reason="cannot be read", error_class="Permanent")
    status = look()
    assert [letter.path for letter in status.dead_letters] == ["memory/bad.md"]
    assert not status.ok


def test_settings_that_ask_for_another_index_are_said(settings: Settings, note: Path):
    write_index(settings)
    agent = settings.agents[0].model_copy(update={"provider": "none"})
    [status] = build_status(settings.model_copy(update={"agents": (agent,)}), Board(Pending())).agents

    assert not status.index.identity_matches
    assert not status.ok


def test_a_provider_that_cannot_be_had_is_a_trouble(settings: Settings, note: Path):
    write_index(settings)
    agent = settings.agents[0].model_copy(update={"provider": "openai"})
    [status] = build_status(settings.model_copy(update={"agents": (agent,)}), Board(Pending())).agents

    assert not status.ok
    assert [trouble.part for trouble in status.troubles] == ["embedding"]
    assert status.provider_reason
    assert not status.vector_search.available


def test_a_missing_workspace_is_said(settings: Settings, workspace: Path, look: Look):
    (workspace / "memory").rmdir()
    workspace.rmdir()

    status = look()
    assert not status.ok
    assert [trouble.part for trouble in status.troubles] == ["files"]


def test_notes_of_documents_are_listed(settings: Settings, workspace: Path, look: Look):
    (workspace / "memory" / "odd.md").write_bytes(b"broken \xff byte\n")
    write_index(settings)

    [note] = look().notes
    assert note.startswith("memory/odd.md: ")


def test_the_watcher_is_quoted_while_it_lives(settings: Settings, home: Path, look: Look):
    (home / "run").mkdir(parents=True)
    state = {"mode": "polling", "reason": "no more inotify watches", "overflows": 2, "pid": os.getpid()}
    (home / "run" / "watch.json").write_text(json.dumps({"main": state}))
    assert look().watch == "polling: no more inotify watches (2 queue overflows)"

    (home / "run" / "watch.json").write_text(json.dumps({"main": state | {"pid": 2**22 + 1}}))
    assert look().watch is None


def test_vectors_that_take_long_come_with_advice(settings: Settings):
    now = time.time()
    agent = settings.agents[0].model_copy(
        update={"provider": "local", "local": settings.local.model_copy(update={"model_path": "multilingual-e5-small"})}
    )
    choice = ProviderChoice(StubProvider(), requested="local", name="local", reason=None, error=None)
    index = IndexState(chunks=10_000, vectors_pending=5000, last_commit_at=now)

    slow, stuck = vector_progress(index, VectorProgress(rate=2.0, at=now), agent, choice, now)
    assert (slow.rate, slow.eta_seconds, stuck) == (2.0, 2500.0, False)
    assert slow.advice is not None
    assert "Keyword search" in slow.advice
    assert "bundled" in slow.advice
    assert "OPENAI_API_KEY" in slow.advice

    fast, _ = vector_progress(index, VectorProgress(rate=50.0, at=now), agent, choice, now)
    assert fast.advice is None


def test_vectors_that_wait_while_none_comes_in_are_stuck(settings: Settings):
    agent = settings.agents[0]
    choice = choose_provider(agent, settings.credentials)
    index = IndexState(chunks=10, vectors_pending=5, last_commit_at=1.0)

    assert vector_progress(index, VectorProgress(rate=2.0, at=2.0), agent, choice, time.time())[1]
    assert not vector_progress(index, VectorProgress(rate=2.0, at=time.time()), agent, choice, time.time())[1]

"""Status tells the truth."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.providers.stub import StubProvider
from memory.status.home import build_status, home_sizes, whole_status
from memory.status.vectors import vector_progress
from memory.store.writer import DocumentWrite
from memory.transcripts.folding import UnknownLines
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey, FileStat
from schemas.ports import Pending, Usage, VectorProgress
from schemas.settings import Settings
from schemas.status import AgentStatus, EndpointCondition, EndpointStatus, IndexState
from tests.quiet_health import QuietHealth
from tests.written_index import with_agent, write_index


class ScriptedHealth(QuietHealth):
    def __init__(self, pending: Pending | None, troubles: tuple[Condition, ...] = ()) -> None:
        self._pending, self._troubles = pending, troubles
        self.state: EndpointStatus | None = None
        self.spent: dict[tuple[str, bool], list[Usage]] = {}

    def pending(self, agent: str) -> Pending | None:
        return self._pending

    def vector_progress(self, agent: str) -> VectorProgress:
        return VectorProgress(rate=2.0, at=time.time())

    def conditions(self, agent: str):
        return self._troubles

    def usage(self, agent: str, *, day: date | None = None):
        return self.spent.get((agent, day is not None), [])

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        return self.state


Look = Callable[..., AgentStatus]
QUIET = Pending()


@pytest.fixture
def look(settings: Settings) -> Look:
    def look(pending: Pending | None = QUIET, *, troubles=(), deep: bool = False) -> AgentStatus:
        [agent] = build_status(settings, ScriptedHealth(pending, troubles), deep=deep).agents
        return agent

    return look


@pytest.fixture
def note(workspace: Path) -> Path:
    path = workspace / "memory" / "note.md"
    path.write_text("one note\n", "utf-8")
    return path


def test_an_index_that_holds_what_the_disk_holds_is_ok(settings: Settings, look: Look, note: Path):
    write_index(settings)
    status = look(deep=True)
    assert (status.ok, status.integrity, status.index.identity_matches) == (True, (), True)
    assert (status.disk.files, status.index.files, status.index.vectors_ready) == (1, 1, 1)
    assert (status.vectors.sentences_ready, status.vectors.sentences_wanted) == (0, 1), "which is no trouble"
    assert (status.vector_search.available, status.text_search.available) == (True, True)


def test_a_note_that_is_not_indexed_and_not_queued_is_not_ok(look: Look, note: Path):
    assert look().disk.missing == 1
    assert not look().ok
    assert look(Pending(documents=1, oldest_at=time.time() - 2)).ok, "its job waits"
    assert not look(Pending(documents=1, oldest_at=time.time() - 70)).ok, "for too long"


def test_a_queue_that_does_not_answer_is_said(settings: Settings, look: Look, note: Path):
    write_index(settings)
    status = look(None)

    assert not status.queue.reachable
    assert status.ok


def test_conditions_and_dead_letters_are_not_ok_and_notes_of_documents_are(
    settings: Settings, look: Look, workspace: Path
):
    (workspace / "memory" / "odd.md").write_bytes(b"broken \xff byte\n")
    store = write_index(settings)
    assert look().ok
    assert [note.partition(": ")[0] for note in look().notes] == ["memory/odd.md"]
    polls = Condition(ConditionCode.WATCH_POLLS, since=1.0, params={"reason": "no more watches"})
    assert not look(troubles=(polls,)).ok
    store.add_dead_letter(DocumentKey("memory", "memory/bad.md"), reason="cannot be read", error_class="Permanent")
    status = look()
    assert ([letter.path for letter in status.dead_letters], status.ok) == (["memory/bad.md"], False)


def test_lines_of_unknown_types_are_one_note_for_each_version_of_a_program(settings: Settings, look: Look):
    store = write_index(settings)
    for name, notes in {
        "a": (UnknownLines("codex 0.171", {"halo": 2, "ring": 1}).note(), "1 line is not JSON"),
        "b": (UnknownLines("codex 0.171", {"ring": 4}).note(),),
        "c": (UnknownLines("codex 0.172", {"ring": 1}).note(),),
    }.items():
        key = DocumentKey("sessions", f"{name}.jsonl")
        store.write([DocumentWrite(key, store.revision(key), FileStat(1, 1, 1), name, notes=notes)])
    assert [re.findall(r"^[^:]+|\d+ (?:lines?|files)|(?:ring|halo) \d", note) for note in look().notes] == [
        ["a.jsonl", "1 line"],
        ["codex 0.171", "7 lines", "2 files", "ring 5", "halo 2"],
        ["codex 0.172", "1 line", "ring 1"],
    ]


@pytest.mark.parametrize(("provider", "part"), [("none", "index"), ("openai", "embedding")])
def test_settings_that_ask_for_another_index_or_provider_than_there_is_are_a_trouble(
    settings: Settings, note: Path, provider: str, part: str
):
    write_index(settings)
    [status] = build_status(with_agent(settings, provider=provider), ScriptedHealth(Pending())).agents
    assert (status.ok, [trouble.part for trouble in status.troubles]) == (False, [part])
    assert status.provider_reason


def test_the_watcher_is_quoted_while_it_lives(settings: Settings, home: Path, look: Look):
    (home / "run").mkdir(parents=True)
    state = {"mode": "polling", "reason": "no watches", "overflows": 2, "pid": os.getpid()}
    (home / "run" / "watch.json").write_text(json.dumps({"main": state}))
    assert str(look().watch).startswith("polling: no watches (2 ")

    (home / "run" / "watch.json").write_text(json.dumps({"main": state | {"pid": 2**22 + 1}}))
    assert look().watch is None


NOW = 1_000_000.0


def foreseen(
    settings: Settings, waiting: int, *, rate: float, seconds_ago: float, committed_ago: float = 60.0, **options: Any
) -> tuple[float | None, float | None, float | None]:
    """Rate, time left, and the age of the last vector if none comes in any more."""
    index = IndexState(chunks=10_000, vectors_pending=waiting, last_commit_at=NOW - committed_ago)
    progress = VectorProgress(rate=rate, at=NOW - seconds_ago)
    state, stuck = vector_progress(index, progress, settings.agents[0], StubProvider(), NOW, **options)
    return state.rate, state.eta_seconds, None if stuck is None else NOW - stuck


@pytest.mark.parametrize(
    ("waiting", "measured", "found"),
    [
        (100, {"rate": 10.0, "seconds_ago": 8.0}, (10.0, 10.0, None)),
        (5000, {"rate": 2.0, "seconds_ago": 0.0}, (2.0, 2500.0, None)),
        # What was measured before says nothing while nothing comes in.
        (2, {"rate": 97.8, "seconds_ago": 31.0}, (None, None, None)),
        # Texts that have just come may well be embedded as fast as others were.
        (2, {"rate": 97.8, "seconds_ago": 31.0, "committed_ago": 1.0}, (97.8, 0.0, None)),
        (100, {"rate": 10.0, "seconds_ago": 8.0, "held_back": True}, (None, None, None)),
        # One vector that was to come within a tenth of a second, eight seconds ago.
        (1, {"rate": 10.0, "seconds_ago": 8.0}, (None, None, None)),
    ],
)
def test_an_estimate_holds_only_while_vectors_come_in(
    settings: Settings, waiting: int, measured: dict[str, Any], found: tuple[float | None, ...]
):
    assert foreseen(settings, waiting, **measured) == found


def test_vectors_that_wait_while_none_comes_in_are_stuck(settings: Settings):
    late = {"rate": 2.0, "seconds_ago": 600.0, "committed_ago": 700.0}
    assert foreseen(settings, 5, **late)[2] == 600.0
    assert foreseen(settings, 5, rate=2.0, seconds_ago=0.0)[2] is None
    assert foreseen(settings, 5, in_batch_jobs=4, **late) == (None, None, None), "they wait in a batch job"


def test_what_embedding_cost_is_said_by_provider_and_model_with_its_price(settings: Settings):
    health = ScriptedHealth(QUIET)
    health.spent["main", False] = [
        Usage("openai", "text-embedding-3-small", requests=68, failed=2, inputs=9000, tokens=5_000_000),
        Usage("openai", "nobody-s-model", requests=1, inputs=1, tokens=10),
    ]
    health.spent["main", True] = [Usage("openai", "text-embedding-3-small", requests=8, inputs=90, tokens=500_000)]
    [status] = build_status(settings, health).agents

    known, unknown = status.usage
    assert (known.provider, known.model) == ("openai", "text-embedding-3-small")
    total = known.total
    assert (total.requests, total.failed, total.inputs, total.tokens) == (68, 2, 9000, 5_000_000)
    assert total.dollars == pytest.approx(0.10)
    assert (known.today.requests, known.today.tokens, known.today.dollars) == (8, 500_000, pytest.approx(0.01))
    assert unknown.total.dollars is None
    assert unknown.today.requests == 0


def test_what_all_agents_cost_together_is_only_for_who_sees_them_all(settings: Settings, tmp_path: Path):
    health = ScriptedHealth(QUIET)
    health.spent["*", False] = [Usage("openai", "text-embedding-3-small", requests=3)]
    second = settings.agents[0].model_copy(update={"id": "second", "workspace": tmp_path})
    both = settings.model_copy(update={"agents": (settings.agents[0], second)})

    whole = build_status(both, health)
    assert [usage.total.requests for usage in whole.usage] == [3]
    assert whole_status(both, whole.agents[:1], health, sizes=home_sizes(both, health)).usage == ()
    assert build_status(settings, health).usage == (), "with one agent, its own usage is the total"


def test_an_endpoint_that_refuses_is_a_trouble(settings: Settings):
    health = ScriptedHealth(QUIET)
    health.state = EndpointStatus(EndpointCondition.STOPPED, None, "the key is refused")
    [agent] = build_status(settings, health).agents
    codes = [trouble.code for trouble in agent.troubles]
    assert (agent.ok, codes) == (False, [ConditionCode.PROVIDER_REFUSES, ConditionCode.NO_DOCUMENTS])
    assert agent.endpoint == health.state


def test_a_transcript_of_no_known_format_is_no_indexed_file_and_has_a_note(settings: Settings, look: Look) -> None:
    store = write_index(settings)
    key, notes = DocumentKey("sessions", "foreign.jsonl"), (UnknownLines("", {"glyph": 3}).note(),)
    store.write([DocumentWrite(key, store.revision(key), FileStat(1, 1, 1), "foreign", notes=notes)])
    status = look()
    assert (status.index.files, status.index.unread) == (status.disk.kept + status.disk.files, 1)
    assert [note.partition(": ")[0] for note in status.notes] == ["foreign.jsonl"]

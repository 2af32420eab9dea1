"""Status is green while changes settle, and red only with a condition that says why."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import compare
from memory.index.generations import Generations
from memory.index.readers import SharedReader
from memory.status.agent import agent_status
from memory.status.index import StatusSources
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.ports import Pending
from schemas.settings import AgentSettings, Settings, Sync
from schemas.status import AgentStatus, DiskState
from tests.examples import examples
from tests.quiet_health import QuietHealth
from tests.written_index import write_index

HELD = Pending(held_back=True)


class ScriptedHealth(QuietHealth):
    def __init__(self, pending: Pending | None, conditions: Sequence[Condition] = ()) -> None:
        self._pending, self._conditions = pending, conditions

    def pending(self, agent: str) -> Pending | None:
        return self._pending

    def conditions(self, agent: str) -> Sequence[Condition]:
        return self._conditions


def look(settings: Settings, health: ScriptedHealth, *, queue_expected: bool = True, deep: bool = False) -> AgentStatus:
    agent = settings.agents[0]
    generations = Generations.of(settings, agent.id)
    reader = SharedReader(generations)
    sources = StatusSources(
        files=AgentFiles.of(settings, agent),
        generations=generations,
        lease=reader.lease,
        pending=health,
        queue_expected=queue_expected,
    )
    try:
        return agent_status(settings, agent, sources, deep=deep)
    finally:
        reader.close()


def watch(home: Path, mode: str = "events") -> None:
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / "run" / "watch.json").write_text(json.dumps({"main": {"mode": mode, "pid": os.getpid()}}))


def differing(disk: DiskState) -> tuple[int, int, int, int]:
    return disk.settling, disk.missing, disk.stale, disk.vanished


@pytest.mark.parametrize("pending", [HELD, Pending()], ids=["held back", "a moment before producers see it"])
def test_status_is_green_while_notes_are_written_and_deleted(
    settings: Settings, home: Path, workspace: Path, pending: Pending
):
    memory = workspace / "memory"
    for name in ("typed", "deleted"):
        (memory / f"{name}.md").write_text("a note\n", "utf-8")
    write_index(settings).close()
    (memory / "typed.md").write_text("a note, and one more line\n", "utf-8")
    (memory / "deleted.md").unlink()
    (memory / "new.md").write_text("a new note\n", "utf-8")

    unwatched = look(settings, ScriptedHealth(pending))
    assert (unwatched.ok, differing(unwatched.disk)) == (False, (0, 1, 1, 1))
    assert [trouble.code for trouble in unwatched.troubles] == [ConditionCode.DOCUMENTS_UNQUEUED]
    watch(home)
    status = look(settings, ScriptedHealth(pending))
    assert (status.ok, differing(status.disk), status.troubles) == (True, (3, 0, 0, 0), ())


SYNC = Sync(watch_debounce_ms=1000)


def seen(agent: AgentSettings, *, seconds_later: float, held_back: bool = True) -> tuple[int, int, int, int]:
    files = AgentFiles(agent)
    now = time.time() + seconds_later
    return differing(compare(files, None).disk_state(files, sync=SYNC, now=now, watched=True, held_back=held_back))


def test_a_note_missing_for_long_is_no_longer_excused_while_others_are_typed(workspace: Path):
    agent = AgentSettings(id="main", workspace=workspace)
    for name in ("missing", "typed"):
        (workspace / "memory" / f"{name}.md").write_text("a note\n", "utf-8")
    assert seen(agent, seconds_later=14) == (2, 0, 0, 0)
    later = time.time() + 25
    os.utime(workspace / "memory" / "typed.md", (later, later))
    assert seen(agent, seconds_later=25) == (1, 1, 0, 0)
    assert seen(agent, seconds_later=14, held_back=False) == (0, 2, 0, 0), "producers know of no change"


def test_a_note_that_was_moved_here_with_its_old_time_settles(workspace: Path):
    path = workspace / "memory" / "moved.md"
    path.write_text("a note\n", "utf-8")
    os.utime(path, (1_000_000, 1_000_000))
    assert seen(AgentSettings(id="main", workspace=workspace), seconds_later=0) == (1, 0, 0, 0)


@hypothesis_settings(max_examples=examples(60))
@given(
    files=st.lists(st.sampled_from(["same", "edited", "new", "deleted", "failed"]), max_size=4),
    pending=st.none()
    | st.builds(Pending, st.integers(0, 2), oldest_at=st.none() | st.just(1.0), held_back=st.booleans()),
    mode=st.none() | st.sampled_from(["events", "off"]),
    reported=st.lists(st.sampled_from([Condition(ConditionCode.WATCH_POLLS, params={"reason": "full"})]), max_size=1),
    index=st.sampled_from(["absent", "whole", "without vectors", "damaged"]),
    queue_expected=st.booleans(),
    deep=st.booleans(),
)
def test_status_is_not_ok_exactly_if_a_condition_says_why(
    files: list[str],
    pending: Pending | None,
    mode: str | None,
    reported: list[Condition],
    index: str,
    queue_expected: bool,
    deep: bool,
):
    with tempfile.TemporaryDirectory() as folder:
        home, workspace = Path(folder, "home"), Path(folder, "workspace")
        (workspace / "memory").mkdir(parents=True)
        agent = AgentSettings.model_validate({"id": "main", "workspace": workspace, "provider": "stub"})
        settings = Settings(home=home, agents=(agent,))
        paths = [workspace / "memory" / f"{number}.md" for number in range(len(files))]
        for path, change in zip(paths, files, strict=True):
            if change != "new":
                path.write_text("a note\n", "utf-8")
        if index != "absent":
            store = write_index(settings, vectors=index != "without vectors")
            for path in (path for path, change in zip(paths, files, strict=True) if change == "failed"):
                key = DocumentKey("memory", f"memory/{path.name}")
                store.add_dead_letter(key, reason="cannot be read", error_class="Permanent")
            store.close()
        if index == "damaged":
            [path] = settings.indexes_path.rglob("*.sqlite")
            path.write_bytes(b"no index" * 4096)
        for path, change in zip(paths, files, strict=True):
            if change == "deleted":
                path.unlink()
            elif change in {"edited", "new"}:
                path.write_text("another note\n", "utf-8")
        if mode is not None:
            watch(home, mode)

        status = look(settings, ScriptedHealth(pending, reported), queue_expected=queue_expected, deep=deep)

        assert status.ok is not bool(status.troubles)
        lost = status.disk.missing + status.disk.stale + status.disk.vanished
        failed = bool(status.dead_letters or status.integrity or reported)
        stuck = lost > status.queue.pending + len(status.dead_letters) or (pending is None and queue_expected)
        assert not (status.ok and (failed or stuck or index == "damaged"))
        if index == "damaged":
            assert ConditionCode.INDEX_UNREADABLE in {trouble.code for trouble in status.troubles}

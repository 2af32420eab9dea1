from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.documents.notes import KEPT_SECONDS, read_record
from memory.store.errors import OtherFormat, StoreCorrupt
from memory.store.reader import StoreReader
from producers.reconciler import (
    COMPARISON_RETRY_SECONDS,
    LIVE_DOCUMENTS,
    AgentComparison,
    Indexes,
    ReconcileSchedule,
    compare_agent,
    forget_missing_folders,
    reconcile,
)
from schemas.conditions import Condition, ConditionCode
from schemas.documents import Lane
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Sync, SyncSessions
from tests.recording import RecordingQueue, RememberedFiles, as_reader

TODAY = date(2026, 11, 21)


class Bench:
    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        (workspace / "memory").mkdir(parents=True)
        self.agent = AgentSettings(id="main", workspace=workspace)
        self.record = workspace.parent / "folders.json"
        self.files = AgentFiles(self.agent, folders=self.record)
        self.queue = RecordingQueue()
        self.index: RememberedFiles | None = RememberedFiles({})
        self.answering: RememberedFiles | None = None
        self.building = self.asks = False
        self.errors: dict[str, RecalldError | None] = {}

    def write(self, path: str, text: str = "text") -> None:
        target = self.workspace / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def remember(self) -> None:
        """The index knows what is on disk now."""
        self.index = RememberedFiles(dict(self.files.scan().documents))

    def opened(self, which: str, index: RememberedFiles | None) -> StoreReader | None:
        if (error := self.errors.get(which)) is not None:
            raise error
        return as_reader(index)

    def indexes(self) -> Indexes:
        return Indexes(
            indexed=lambda _: self.opened("indexed", self.index),
            answering=lambda _: self.opened("answering", self.answering),
            building=lambda _: self.building,
            asks=lambda _: self.asks,
        )

    def reconcile(self) -> AgentComparison:
        return reconcile(self.agent, self.files, self.indexes(), self.queue, today=TODAY)

    def lanes(self) -> dict[str, Lane]:
        return {key.path: lane for _, keys, lane in self.queue.calls for key in keys}

    def give_sessions(self, **sync: bool) -> Path:
        """Give the agent a session folder."""
        folder = self.workspace.parent / "sessions"
        folder.mkdir(exist_ok=True)
        sessions = Sync(sessions=SyncSessions.model_validate(sync))
        self.agent = self.agent.model_copy(update={"sessions": (str(folder),), "sync": sessions})
        self.files = AgentFiles(self.agent, imports=self.workspace.parent / "imports.json")
        return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "workspace")


def test_new_changed_and_vanished_documents_are_marked_the_most_important_first(bench: Bench) -> None:
    bench.write("memory/gone.md")
    bench.write("memory/same.md")
    bench.write("memory/2026-11-21.md", "morning")
    bench.remember()
    (bench.workspace / "memory/gone.md").unlink()
    bench.write("memory/2026-11-21.md", "morning and noon")
    bench.write("MEMORY.md")
    report = bench.reconcile()
    assert (report.new, report.changed, report.vanished) == (1, 1, 1)
    assert report.on_disk == 3
    assert bench.queue.marked("main") == ["MEMORY.md", "memory/2026-11-21.md", "memory/gone.md"]
    assert {*bench.lanes().values()} == {Lane.LIVE}


def test_a_comparison_alone_enqueues_nothing(bench: Bench) -> None:
    bench.write("MEMORY.md")
    bench.building = True
    comparison = compare_agent(bench.agent, bench.files, bench.indexes(), today=TODAY)
    assert [key.path for key in comparison.documents] == ["MEMORY.md"]
    assert (bench.queue.calls, bench.queue.completions) == ([], [])
    comparison.enqueue(bench.queue)
    assert (bench.queue.marked("main"), bench.queue.completions) == (["MEMORY.md"], ["main"])


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("notes", [5, LIVE_DOCUMENTS + 5])
def test_an_edit_does_not_wait_behind_a_generation_that_is_built_anew(bench: Bench, *, notes: int, begun: bool) -> None:
    for number in range(notes):
        bench.write(f"memory/{number:03d}.md")
    bench.remember()
    bench.answering, bench.index, bench.building = bench.index, RememberedFiles({}) if begun else None, begun
    bench.write("memory/003.md", "edited while nobody watched")
    bench.write("memory/new.md")
    (bench.workspace / "memory/004.md").unlink()
    report = bench.reconcile()
    found = bench.lanes()
    assert {path for path, lane in found.items() if lane is Lane.LIVE} == {
        "memory/003.md",
        "memory/004.md",
        "memory/new.md",
    }
    assert len(found) == notes + 1, "and all the rest is built, however little it is, behind what other agents edit"
    assert (report.new, report.changed, report.vanished) == (notes, 0, 1)


@pytest.mark.parametrize(
    ("which", "error"),
    [("answering", OtherFormat("written by another recalld")), ("indexed", StoreCorrupt("damaged"))],
)
def test_a_damaged_index_and_an_answering_one_of_another_format_count_as_none(
    bench: Bench, which: str, error: RecalldError
) -> None:
    bench.write("memory/a.md")
    bench.index, bench.errors = None, {which: error}
    assert (bench.reconcile().new, bench.lanes()) == (1, {"memory/a.md": Lane.LIVE})


def test_documents_where_the_disk_could_not_be_listed_are_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write("memory/locked/kept.md")
    bench.write("memory/locked/deep/kept.md")
    bench.write("memory/locked-not/gone.md")
    bench.remember()
    (bench.workspace / "memory/locked-not/gone.md").unlink()
    scan = bench.files.scan()
    locked = str(bench.workspace / "memory/locked")
    hidden = type(scan)(
        documents={key: stat for key, stat in scan.documents.items() if "/locked/" not in key.path},
        problems=(Condition(ConditionCode.FOLDER_UNLISTABLE, locked, params={"error": "permission denied"}),),
        unlisted=(locked,),
    )
    monkeypatch.setattr(bench.files, "scan", lambda **_: hidden)
    report = bench.reconcile()
    assert bench.queue.marked("main") == ["memory/locked-not/gone.md"]
    assert report.vanished == 1
    assert report.problems == hidden.problems


def test_a_workspace_that_became_an_empty_mount_point_loses_no_note(bench: Bench) -> None:
    for number in range(1000):
        bench.write(f"memory/{number}.md")
    bench.remember()
    disk = bench.workspace.rename(bench.workspace.with_name("disk"))
    bench.workspace.mkdir()
    (bench.workspace / "lost+found").mkdir()
    report = bench.reconcile()
    assert bench.queue.marked("main") == []
    assert report.vanished == 0
    [problem] = report.problems
    assert (problem.code, problem.params["notes"]) == (ConditionCode.FOLDER_EMPTIED, 1000)
    (bench.workspace / "lost+found").rmdir()
    bench.workspace.rmdir()
    disk.rename(bench.workspace)
    assert (bench.reconcile().problems, bench.reconcile().documents) == ((), [])


def use_extra(bench: Bench, folder: Path) -> None:
    """Make the folder one of the agent's extra paths."""
    bench.agent = bench.agent.model_copy(update={"extra_paths": (str(folder),)})
    bench.files = AgentFiles(bench.agent, folders=bench.record)


@pytest.fixture(params=["memory", "extra"])
def folder(bench: Bench, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with notes that the index knows, beside a MEMORY.md, compared once."""
    path = bench.workspace / "memory" if request.param == "memory" else tmp_path / "extra"
    use_extra(bench, tmp_path / "extra")
    bench.write("MEMORY.md")
    (tmp_path / "extra").mkdir()
    for number in range(3):
        (path / "below").mkdir(parents=True, exist_ok=True)
        (path / f"{number}.md").write_text("text")
    (path / "below" / "deep.md").write_text("text")
    bench.remember()
    assert bench.reconcile().documents == []
    return path


@pytest.mark.parametrize("comes_back", ["never", "empty"])
def test_notes_of_a_folder_that_is_gone_or_an_empty_mount_stay_for_a_day(
    bench: Bench, folder: Path, comes_back: str
) -> None:
    folder.rename(folder.with_name("aside"))
    if comes_back == "empty":
        folder.mkdir()
    [problem] = bench.reconcile().problems
    assert (problem.code, problem.subject) == (ConditionCode.FOLDER_EMPTIED, str(folder))
    assert problem.params["notes"] == 4
    assert bench.reconcile().documents == []
    make_earlier(bench, KEPT_SECONDS - 60)
    assert bench.reconcile().documents == []
    make_earlier(bench, 61)
    report = bench.reconcile()
    assert (report.vanished, ConditionCode.FOLDER_EMPTIED in [one.code for one in report.problems]) == (4, False)


def test_notes_of_a_former_workspace_are_forgotten_at_once(bench: Bench, tmp_path: Path) -> None:
    bench.write("MEMORY.md")
    bench.write("memory/a.md")
    bench.remember()
    bench.reconcile()
    other = tmp_path / "other"
    other.mkdir()
    (other / "USER.md").write_text("text")
    bench.agent = AgentSettings(id="main", workspace=other)
    bench.files = AgentFiles(bench.agent, folders=bench.record)
    assert bench.reconcile().vanished == 2


def make_earlier(bench: Bench, seconds: float) -> None:
    """Let the folders of the record be missing for longer."""
    record = {
        path: entry._replace(missing_since=entry.missing_since - seconds) if entry.missing_since else entry
        for path, entry in read_record(bench.record).items()
    }
    bench.record.write_text(json.dumps(record))


def test_a_folder_that_is_missing_since_tomorrow_is_missing_since_now(bench: Bench, folder: Path) -> None:
    """The clock was set back."""
    folder.rename(folder.with_name("aside"))
    bench.reconcile()
    make_earlier(bench, -365 * 86_400)
    bench.reconcile()
    make_earlier(bench, KEPT_SECONDS + 1)
    assert bench.reconcile().vanished == 4


def test_notes_of_a_missing_folder_are_forgotten_on_demand(bench: Bench, folder: Path) -> None:
    folder.rename(folder.with_name("aside"))
    assert bench.reconcile().vanished == 0
    forget_missing_folders(bench.files)
    assert bench.reconcile().vanished == 4
    # The next folder of that name begins anew.
    folder.mkdir()
    (folder / "0.md").write_text("text")
    assert bench.reconcile().vanished == 3
    folder.rename(folder.with_name("aside as well"))
    assert bench.reconcile().vanished == 0


@pytest.mark.parametrize("deleted", ["everything", "a folder below", "all but another folder"])
def test_notes_deleted_in_a_folder_that_is_still_there_are_forgotten_at_once(
    bench: Bench, folder: Path, deleted: str
) -> None:
    if deleted == "all but another folder":
        folder.rename(folder.with_name("aside"))
        folder.mkdir()
        (folder / "new.md").write_text("text")
    else:
        shutil.rmtree(folder / "below")
    if deleted == "everything":
        for note in folder.iterdir():
            note.unlink()
    report = bench.reconcile()
    assert report.vanished == (1 if deleted == "a folder below" else 4)
    assert ConditionCode.FOLDER_EMPTIED not in [one.code for one in report.problems]


# Transcripts -------------------------------------------------------------------------------------------


def write_at(path: Path, seconds: int) -> Path:
    path.write_text("{}\n")
    os.utime(path, (seconds, seconds))
    return path


def test_transcripts_are_marked_after_the_notes_and_the_latest_first(bench: Bench) -> None:
    folder = bench.give_sessions()
    bench.write("memory/a.md")
    for name, seconds in (("a", 100), ("b", 300), ("c", 200)):
        write_at(folder / f"{name}.jsonl", seconds)
    report = bench.reconcile()
    assert bench.queue.marked("main") == ["memory/a.md", "sessions/b.jsonl", "sessions/c.jsonl", "sessions/a.jsonl"]
    assert (report.new, {*bench.lanes().values()}) == (4, {Lane.LIVE})


@pytest.mark.parametrize("forget", [False, True])
def test_vanished_transcripts_are_marked_only_if_they_are_to_be_forgotten(bench: Bench, forget: bool) -> None:
    folder = bench.give_sessions(forget_deleted=forget)
    write_at(folder / "a.jsonl", 100)
    bench.write("memory/a.md")
    bench.remember()
    (folder / "a.jsonl").unlink()
    (bench.workspace / "memory/a.md").unlink()
    report = bench.reconcile()
    assert bench.queue.marked("main") == ["memory/a.md", *(["sessions/a.jsonl"] if forget else [])]
    assert report.vanished == (2 if forget else 1)


def test_a_session_folder_that_is_not_there_loses_nothing(bench: Bench) -> None:
    folder = bench.give_sessions(forget_deleted=True)
    write_at(folder / "a.jsonl", 100)
    bench.remember()
    folder.rename(folder.parent / "aside")
    report = bench.reconcile()
    assert report.documents == []
    assert len(report.problems) == 1


def drain(schedule: ReconcileSchedule, now: float) -> list[tuple[str, str]]:
    taken = []
    while (due := schedule.take(now=now)) is not None:
        taken.append(due)
    return taken


def test_after_the_first_one_a_comparison_comes_every_interval() -> None:
    schedule = ReconcileSchedule({"amy": 60.0}, now=0.0)
    for at in (0.0, 60.0, 120.0):
        assert drain(schedule, at - 0.1) == []
        assert [agent for agent, _ in drain(schedule, at)] == ["amy"]
        schedule.done("amy", now=at)


def test_a_request_during_a_comparison_is_not_lost_when_it_is_done() -> None:
    schedule = ReconcileSchedule({"amy": 60.0}, now=0.0)
    drain(schedule, 0.0)
    schedule.request(["amy"], "overflow", now=0.5)
    schedule.done("amy", now=1.0)
    assert drain(schedule, 1.0) == [("amy", "overflow")]


def test_a_failed_comparison_is_tried_again_later_each_time() -> None:
    schedule = ReconcileSchedule({"amy": None}, now=0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        assert drain(schedule, now)
        pauses.append(schedule.failed("amy", now=now))
        assert drain(schedule, now + pauses[-1] - 0.01) == []
        now += pauses[-1]
    assert pauses[0] == COMPARISON_RETRY_SECONDS[0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == COMPARISON_RETRY_SECONDS[1]


def test_a_first_index_and_large_new_documents_are_backfilled_where_they_cost_money(bench: Bench) -> None:
    bench.asks = True
    bench.write("memory/a.md")
    bench.reconcile()
    assert bench.lanes() == {"memory/a.md": Lane.BACKFILL}
    bench.remember()
    bench.write("memory/b.md")
    bench.reconcile()
    assert bench.lanes()["memory/b.md"] is Lane.LIVE
    bench.write("memory/c.md", "words " * 900_000)
    bench.reconcile()
    assert bench.lanes()["memory/c.md"] is Lane.BACKFILL

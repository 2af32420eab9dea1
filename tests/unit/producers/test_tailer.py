from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.store.errors import StoreCorrupt
from memory.store.reader import StoreReader
from producers import tailer
from producers.tailer import Tailer
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Sync, SyncSessions
from tests.recording import RememberedFiles, as_reader
from tests.waiting import wait_until

LINE = b'{"role":"user","content":"hello"}\n'
TIME = "2026-02-03T09-00-00.000Z"


def key(name: str) -> DocumentKey:
    return DocumentKey("sessions", f"sessions/{name}")


class Bench:
    """A tailer, transcripts on disk, and what was handed over."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "sessions"
        self.folder.mkdir()
        (root / "ws").mkdir()
        self.now = 100.0
        self.handed: list[tuple[str, dict[DocumentKey, FileStat | None]]] = []
        self.index: RememberedFiles | None = RememberedFiles({})
        self.index_error: RecalldError | None = None
        self.opened_indexes = 0
        self.markers = itertools.count()
        self.sync = SyncSessions(quiet_seconds=5)
        self.root = root
        self.files = {name: self.files_of(name) for name in ("main", "other")}
        self.tailer = Tailer(
            self.files,
            sync=lambda _: self.sync,
            indexed=self.indexed,
            hand_over=self.take,
            clock=lambda: self.now,
        )

    def files_of(self, name: str, *, forget: bool = False) -> AgentFiles:
        sync = Sync(sessions=SyncSessions(forget_deleted=forget))
        settings = AgentSettings(id=name, workspace=self.root / "ws", sessions=(str(self.folder),), sync=sync)
        return AgentFiles(settings)

    def indexed(self, agent: str) -> StoreReader | None:
        self.opened_indexes += 1
        if self.index_error is not None:
            raise self.index_error
        return as_reader(self.index)

    def take(self, agent: str, keys: Mapping[DocumentKey, FileStat | None]) -> None:
        self.handed.append((agent, dict(keys)))

    def write(self, name: str, data: bytes = LINE) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as out:
            out.write(data)
        return path

    def remember(self) -> None:
        """The index holds what is on disk now."""
        self.index = RememberedFiles(dict(self.files["main"].scan().documents))

    def touched(self, name: str, data: bytes = LINE, agent: str = "main") -> None:
        self.write(name, data)
        self.tailer.touch(agent, key(name))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tailer.flush("nobody")  # wakes the thread, which looks at the clock

    def names(self, agent: str = "main") -> list[str]:
        """What was handed over so far; everything that was said before has been looked at."""
        marker = f"marker-{next(self.markers)}.jsonl"
        self.write(marker)
        self.tailer.force(agent, key(marker))
        wait_until(lambda: any(key(marker) in keys for _, keys in self.handed))
        paths = [one.path.removeprefix("sessions/") for owner, keys in self.handed if owner == agent for one in keys]
        return [path for path in paths if not path.startswith("marker")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(tailer, "LOOK_SECONDS", 0.001)
    bench = Bench(tmp_path)
    bench.tailer.start()
    yield bench
    bench.tailer.stop()


def test_every_write_begins_the_quiet_time_anew_but_not_for_ever(bench: Bench) -> None:
    for _ in range(4):
        bench.touched("a.jsonl")
        bench.pass_time(3)
    assert bench.names() == []
    bench.touched("a.jsonl")
    bench.pass_time(3)
    assert bench.names() == ["a.jsonl"]


def test_growth_counts_from_what_the_index_holds(bench: Bench) -> None:
    bench.write("a.jsonl", LINE * 5000)
    bench.remember()
    bench.touched("a.jsonl", LINE * 49)
    assert bench.names() == []
    bench.touched("a.jsonl", LINE)
    assert bench.names() == ["a.jsonl"]


def test_an_event_without_a_change_hands_nothing_over(bench: Bench) -> None:
    bench.write("a.jsonl")
    bench.remember()
    bench.tailer.touch("main", key("a.jsonl"))
    bench.tailer.force("main", key("a.jsonl"))
    bench.pass_time(100)
    assert bench.names() == []


@pytest.mark.parametrize("change", ["cut", "replaced", "compressed"])
def test_a_transcript_that_was_cut_or_replaced_does_not_wait(bench: Bench, change: str) -> None:
    path = bench.write("a.jsonl", LINE * 10)
    bench.remember()
    if change == "cut":
        os.truncate(path, 5)
    elif change == "replaced":
        bench.write("new", LINE * 11).rename(path)
    else:
        bench.write("a.jsonl.zst", b"whatever")
        path.unlink()
    bench.tailer.touch("main", key("a.jsonl"))
    assert bench.names() == ["a.jsonl"]


@pytest.mark.parametrize("name", ["a.jsonl.zst", f"a.jsonl.reset.{TIME}", f"a.jsonl.deleted.{TIME}.zst"])
def test_a_compressed_transcript_or_an_archive_is_whole_when_it_comes(bench: Bench, name: str) -> None:
    bench.write(name)
    document = name.removesuffix(".zst")
    bench.tailer.touch("main", key(document))
    assert bench.names() == [document]


def test_who_asks_does_not_wait_for_the_next_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailer, "LOOK_SECONDS", 600)
    bench.touched("a.jsonl", LINE * 50)
    wait_until(lambda: bench.handed)
    bench.touched("b.jsonl")
    bench.tailer.flush("main")
    wait_until(lambda: len(bench.handed) == 2)
    assert bench.names() == ["a.jsonl", "b.jsonl"]


def test_a_transcript_that_vanished_keeps_its_memory_unless_it_is_to_be_forgotten(bench: Bench) -> None:
    path = bench.write("a.jsonl")
    bench.remember()
    path.unlink()
    bench.tailer.touch("main", key("a.jsonl"))
    bench.pass_time(100)
    assert bench.names() == []
    bench.files["main"] = bench.files_of("main", forget=True)
    bench.tailer.touch("main", key("a.jsonl"))
    assert bench.names() == ["a.jsonl"]


def test_a_session_that_was_archived_is_handed_over_under_both_names(bench: Bench) -> None:
    path = bench.write("a.jsonl")
    bench.remember()
    path.rename(path.with_name(f"a.jsonl.reset.{TIME}"))
    bench.tailer.touch("main", key("a.jsonl"))
    bench.tailer.touch("main", key(f"a.jsonl.reset.{TIME}"))
    assert sorted(bench.names()) == ["a.jsonl", f"a.jsonl.reset.{TIME}"]
    stats = {one: stat for _, keys in bench.handed for one, stat in keys.items()}
    assert stats[key("a.jsonl")] is None


def test_a_transcript_that_cannot_be_read_is_handed_over_so_that_its_job_says_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write("locked.jsonl")
    opening = os.open

    def guarded(name: str, *arguments: int, **options: int) -> int:
        if str(name).startswith("locked"):
            raise PermissionError(13, "Permission denied")
        return opening(name, *arguments, **options)

    monkeypatch.setattr(os, "open", guarded)
    bench.tailer.touch("main", key("locked.jsonl"))
    assert bench.names() == []
    bench.pass_time(6)
    assert bench.names() == ["locked.jsonl"]


@pytest.mark.parametrize("error", [StoreCorrupt("broken"), RecalldError("no such generation"), None])
def test_without_an_index_a_transcript_counts_from_its_beginning(bench: Bench, error: RecalldError | None) -> None:
    bench.write("a.jsonl", LINE * 49)
    bench.remember()
    bench.index_error = error
    if error is None:
        bench.index = None
    bench.touched("a.jsonl")
    assert bench.names() == ["a.jsonl"]


def test_what_is_known_is_bounded_and_what_was_forgotten_is_looked_up_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailer, "MAX_KNOWN", 10)
    bench.write("a.jsonl", LINE * 1000)
    bench.remember()
    bench.touched("a.jsonl")
    for number in range(30):
        bench.touched(f"{number}.jsonl")
    assert bench.names() == []
    assert len(bench.tailer._known) <= 10
    opened = bench.opened_indexes
    bench.touched("a.jsonl")
    assert bench.names() == []
    assert bench.opened_indexes > opened


def test_a_known_transcript_costs_no_look_into_the_index(bench: Bench) -> None:
    bench.touched("a.jsonl")
    bench.names()
    wait_until(lambda: bench.tailer.waiting() == 1)  # its quiet time
    opened = bench.opened_indexes
    for _ in range(3):
        bench.touched("a.jsonl")
    bench.pass_time(6)
    wait_until(lambda: any(key("a.jsonl") in keys for _, keys in bench.handed))
    assert bench.opened_indexes == opened


def test_a_mistake_loses_no_event(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*arguments: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(bench.tailer, "_meet", mistaken)
        bench.touched("a.jsonl")
        wait_until(lambda: bench.handed)
    assert bench.handed == [("main", {key("a.jsonl"): None})]
    bench.touched("b.jsonl", LINE * 50)
    assert bench.names() == ["a.jsonl", "b.jsonl"]

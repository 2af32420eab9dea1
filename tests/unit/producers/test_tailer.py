from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles
from memory.store.errors import StoreCorrupt
from memory.store.reader import StoreReader
from producers import tailer as module
from producers.dispatcher import Dispatcher
from producers.tailer import BLOCK_BYTES, Growth, Tailer
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Sync, SyncSessions
from tests.recording import RecordingConditions, RecordingQueue, RememberedFiles, as_reader
from tests.transcript_files import compaction_line
from tests.waiting import wait_until

SYNC = SyncSessions()
BOUNDLESS = SyncSessions(delta_bytes=10**9, delta_messages=10**9)
LINE = b'{"role":"user","content":"hello"}\n'
TIME = "2026-02-03T09-00-00.000Z"


def key(name: str) -> DocumentKey:
    return DocumentKey("sessions", f"sessions/{name}")


class Bench:
    """A tailer behind its dispatcher, transcripts on disk, and what was marked."""

    def __init__(self, root: Path, sync: SyncSessions) -> None:
        self.folder = root / "sessions"
        self.folder.mkdir()
        (root / "ws").mkdir()
        self.now = 100.0
        self.queue = RecordingQueue()
        self.index: RememberedFiles | None = RememberedFiles({})
        self.index_error: RecalldError | None = None
        self.opened_indexes = 0
        self.markers = itertools.count()
        agent = AgentSettings(id="main", workspace=root / "ws", sessions=(str(self.folder),), sync=Sync(sessions=sync))
        self.files = AgentFiles(agent)
        self.tailer = Tailer({"main": agent}, {"main": self.files}, self.indexed)
        self.dispatcher = Dispatcher(
            {"main": agent},
            self.queue,
            RecordingConditions(),
            self.tailer,
            on_recovered=lambda: None,
            clock=lambda: self.now,
        )

    def indexed(self, _: AgentSettings) -> StoreReader | None:
        self.opened_indexes += 1
        if self.index_error is not None:
            raise self.index_error
        return as_reader(self.index)

    def write(self, name: str, data: bytes = LINE) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as out:
            out.write(data)
        return path

    def remember(self) -> None:
        """The index holds what is on disk now."""
        self.index = RememberedFiles(dict(self.files.scan().documents))

    def touch(self, name: str, data: bytes = b"") -> None:
        if data:
            self.write(name, data)
        self.dispatcher.touch("main", key(name))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.dispatcher.flush()  # wakes the thread, which looks at the clock

    def names(self) -> list[str]:
        """Return the documents marked so far, after all earlier events."""
        marker = f"marker-{next(self.markers)}.jsonl"
        self.write(marker)
        self.dispatcher.force("main", key(marker))
        wait_until(lambda: key(marker).path in self.queue.marked("main"))
        paths = [path.removeprefix("sessions/") for path in self.queue.marked("main")]
        return [path for path in paths if not path.startswith("marker")]


@pytest.fixture
def sync() -> SyncSessions:
    return SyncSessions(quiet_seconds=5)


@pytest.fixture
def bench(tmp_path: Path, sync: SyncSessions) -> Iterator[Bench]:
    bench = Bench(tmp_path, sync)
    bench.dispatcher.start()
    yield bench
    bench.dispatcher.stop()


def test_every_write_begins_the_quiet_time_anew_but_not_for_ever(bench: Bench) -> None:
    for _ in range(4):
        bench.touch("a.jsonl", LINE)
        bench.pass_time(3)
    assert bench.names() == []
    bench.pass_time(3)
    assert bench.names() == ["a.jsonl"]


def test_growth_counts_from_what_the_index_holds(bench: Bench) -> None:
    bench.write("a.jsonl", LINE * 5000)
    bench.remember()
    bench.touch("a.jsonl", LINE * 49)
    assert bench.names() == []
    bench.touch("a.jsonl", LINE)
    assert bench.names() == ["a.jsonl"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", f"a.jsonl.reset.{TIME}", f"a.jsonl.deleted.{TIME}.zst"])
def test_a_transcript_that_was_compressed_and_an_archive_are_whole_when_they_come(bench: Bench, name: str) -> None:
    document = name.removesuffix(".zst")
    if name == "a.jsonl":
        path = bench.write(name, LINE * 10)
        bench.remember()
        path.unlink()
        name += ".zst"
    bench.write(name, b"whatever")
    bench.touch(document)
    assert bench.names() == [document]


@pytest.mark.parametrize("sync", [SyncSessions(quiet_seconds=5, forget_deleted=forget) for forget in (True, False)])
def test_a_transcript_that_vanished_keeps_its_memory_unless_it_is_to_be_forgotten(
    bench: Bench, sync: SyncSessions
) -> None:
    path = bench.write("a.jsonl")
    bench.remember()
    path.unlink()
    bench.touch("a.jsonl")
    bench.pass_time(100)
    assert bench.names() == ["a.jsonl"] * sync.forget_deleted


def test_a_transcript_that_cannot_be_read_is_marked_so_that_its_job_says_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write("locked.jsonl")
    opening = os.open

    def guarded(name: str, *arguments: int, **options: int) -> int:
        if str(name).startswith("locked"):
            raise PermissionError(13, "Permission denied")
        return opening(name, *arguments, **options)

    monkeypatch.setattr(os, "open", guarded)
    bench.touch("locked.jsonl")
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
    bench.touch("a.jsonl", LINE)
    assert bench.names() == ["a.jsonl"]


def test_only_a_transcript_whose_growth_is_not_known_any_more_costs_a_look_into_the_index(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    bench.write("a.jsonl", LINE * 1000)
    bench.remember()
    for names, opened in ((["a"], 1), (["a"], 1), (map(str, range(12)), 2), (["a"], 3)):
        looks = {key(f"{name}.jsonl"): False for name in names}
        for one in looks:
            bench.write(one.path.removeprefix("sessions/"))
        assert bench.tailer.due("main", looks) == {}
        assert bench.opened_indexes == opened


def test_a_mistake_loses_no_event(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.delattr(bench.tailer, "_files")
        bench.touch("a.jsonl", LINE)
        wait_until(lambda: bench.queue.calls)
    bench.touch("b.jsonl", LINE * 50)
    assert bench.names() == ["a.jsonl", "b.jsonl"]


# Growth ------------------------------------------------------------------------------------------------


class File:
    """A file in memory that remembers what was read of it."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []
        self.inode = 7
        self.written = 0
        self.changed = 1

    @property
    def stat(self) -> FileStat:
        return FileStat(len(self.data), self.written, self.inode, self.changed)

    def append(self, data: bytes) -> None:
        self.data += data
        self.written += 1

    def read(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        assert size <= BLOCK_BYTES
        return self.data[offset : offset + size]

    def look(self, growth: Growth, sync: SyncSessions = SYNC) -> bool:
        return growth.is_due(self.stat, self.read, sync)

    def look_after(self, growth: Growth, data: bytes, sync: SyncSessions) -> bool:
        if data:
            self.append(data)
        return self.look(growth, sync)

    def handed_over(self) -> Growth:
        growth = Growth(None, 0)
        growth.handed_over(self.stat, self.read)
        self.reads.clear()
        return growth


def test_a_transcript_that_was_changed_in_place_waits_for_its_quiet_time_and_is_not_read_here() -> None:
    file = File(LINE)
    growth = file.handed_over()
    file.changed += 1
    assert not file.look(growth)
    assert file.reads == []


def test_only_what_was_appended_is_read_and_only_once() -> None:
    file = File(LINE * 1000)
    growth = file.handed_over()
    for count in (1, 2, 3):
        file.append(LINE * count)
        file.look(growth)
    ends = [len(LINE) * (1000 + lines) for lines in (0, 1, 3, 6)]
    assert file.reads == [(start, end - start) for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    ("appended", "sync", "due"),
    [
        pytest.param([b""], SYNC, False, id="nothing is not due"),
        pytest.param([b"x" * 99_999], SYNC, False, id="a few bytes wait"),
        pytest.param([b"x" * 100_000], SYNC, True, id="many bytes do not"),
        pytest.param([LINE] * 49, SYNC, False, id="a few lines wait"),
        pytest.param([LINE] * 50, SYNC, True, id="many lines do not, however they come"),
        pytest.param([LINE[:-1]], SyncSessions(delta_messages=1), False, id="a line without its end does not count"),
        pytest.param([LINE[:-1], b"\n"], SyncSessions(delta_messages=1), True, id="until its end is there"),
        pytest.param([b"x"], SyncSessions(delta_bytes=0), True, id="no bytes are needed"),
        pytest.param([b"x"], SyncSessions(delta_messages=0), True, id="no lines are needed"),
    ],
)
def test_what_was_appended_is_due_at_the_thresholds(appended: list[bytes], sync: SyncSessions, due: bool) -> None:
    file = File(LINE)
    growth = file.handed_over()
    looks = [file.look_after(growth, data, sync) for data in appended]
    assert looks[-1] is due
    assert True not in looks[:-1]


def test_what_nobody_has_read_counts_from_its_beginning() -> None:
    assert not File(LINE).look(Growth(None, 0))
    assert File(LINE * 50).look(Growth(None, 0))
    large = File(b"x" * 200_000)
    assert large.look(Growth(None, 0))
    assert large.reads == []


@pytest.mark.parametrize("change", ["cut", "emptied", "replaced", "cut to less than was counted"])
def test_a_transcript_that_was_cut_or_written_anew_is_due_at_once(change: str) -> None:
    file = File(LINE * 5)
    growth = file.handed_over()
    if change == "cut to less than was counted":
        file.append(LINE * 3)
        assert not file.look(growth)
    file.written += 1
    if change == "replaced":
        file.inode = 8
    else:
        file.data = {"cut": LINE * 4, "emptied": b""}.get(change, LINE * 6)
    assert file.look(growth)


@pytest.mark.parametrize("name", ["openclaw", "claude-code", "codex"])
@pytest.mark.parametrize(("force", "due"), [(True, True), (False, False)])
def test_a_compaction_makes_it_due_at_once_unless_the_settings_say_no(name: str, due: bool, *, force: bool) -> None:
    line, sync = compaction_line(name), SyncSessions(post_compaction_force=force)
    file = File(LINE + line[:10])
    growth = file.handed_over()
    assert not file.look_after(growth, line[10:30], sync)
    assert file.look_after(growth, line[30:], sync) is due


def test_a_line_without_end_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 200_000)
    sync = SyncSessions(delta_bytes=10**9)
    file = File(LINE)
    growth = file.handed_over()
    file.append(b"x" * 150_000)
    assert not file.look(growth, sync)
    file.append(b"x" * 10_000_000)
    file.reads.clear()
    assert file.look(growth, sync)
    assert sum(size for _, size in file.reads) < 400_000


def test_a_file_that_is_cut_while_it_is_read_ends_the_look() -> None:
    file = File(LINE)
    growth = file.handed_over()
    file.append(LINE * 10)
    stat = file.stat
    file.data = file.data[: len(LINE) * 3]
    assert not growth.is_due(stat, file.read, SYNC)
    assert growth.lines == 2


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b" ") + b"\n"), max_size=30),
    cuts=st.lists(st.integers(min_value=0, max_value=900), max_size=8),
)
def test_however_the_bytes_come_every_line_is_counted_once(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(lines)
    file = File()
    growth = Growth(file.stat, 0)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(places):
        file.append(data[start:end])
        file.look(growth, BOUNDLESS)
    assert growth.lines == len(lines)

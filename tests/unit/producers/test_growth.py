from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers import tailer as module
from producers.tailer import BLOCK_BYTES, Due, Growth
from schemas.documents import FileStat
from schemas.settings import SyncSessions
from tests.transcript_files import compaction_line

SYNC = SyncSessions()
LINE = b'{"role":"user","content":"hello"}\n'


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

    def look(self, growth: Growth, sync: SyncSessions = SYNC) -> Due:
        return growth.look(self.stat, self.read, sync)

    def handed_over(self) -> Growth:
        growth = Growth(None, 0)
        growth.handed_over(self.stat, self.read)
        self.reads.clear()
        return growth


def test_a_transcript_that_was_changed_in_place_waits_for_its_quiet_time_and_is_not_read_here() -> None:
    file = File(LINE)
    growth = file.handed_over()
    file.changed += 1
    assert file.look(growth) is Due.QUIET
    assert file.reads == []


def test_only_what_was_appended_is_read_and_only_once() -> None:
    file = File(LINE * 1000)
    growth = file.handed_over()
    for count in (1, 2, 3):
        file.append(LINE * count)
        file.look(growth)
    ends = [len(LINE) * (1000 + lines) for lines in (0, 1, 3, 6)]
    assert file.reads == [(start, end - start) for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(("grown", "due"), [(99_999, Due.QUIET), (100_000, Due.NOW)])
def test_enough_bytes_make_it_due_at_once(grown: int, due: Due) -> None:
    file = File(LINE)
    growth = file.handed_over()
    file.append(b"x" * grown)
    assert file.look(growth) is due


@pytest.mark.parametrize(("lines", "due"), [(49, Due.QUIET), (50, Due.NOW)])
def test_enough_lines_make_it_due_at_once_however_they_come(lines: int, due: Due) -> None:
    file = File(LINE)
    growth = file.handed_over()
    for _ in range(lines - 1):
        file.append(LINE)
        assert file.look(growth) is Due.QUIET
    file.append(LINE)
    assert file.look(growth) is due


def test_a_line_counts_once_its_end_is_there() -> None:
    file = File(LINE)
    growth = file.handed_over()
    sync = SyncSessions(delta_messages=1)
    file.append(LINE[:-1])
    assert file.look(growth, sync) is Due.QUIET
    file.append(b"\n")
    assert file.look(growth, sync) is Due.NOW


@pytest.mark.parametrize("sync", [SyncSessions(delta_bytes=0), SyncSessions(delta_messages=0)])
def test_a_threshold_of_nothing_makes_any_change_due_at_once(sync: SyncSessions) -> None:
    file = File(LINE)
    growth = file.handed_over()
    assert file.look(growth, sync) is Due.NOT
    file.append(b"x")
    assert file.look(growth, sync) is Due.NOW


def test_what_nobody_has_read_counts_from_its_beginning() -> None:
    assert File(LINE).look(Growth(None, 0)) is Due.QUIET
    assert File(LINE * 50).look(Growth(None, 0)) is Due.NOW
    large = File(b"x" * 200_000)
    assert large.look(Growth(None, 0)) is Due.NOW
    assert large.reads == []


@pytest.mark.parametrize("change", ["cut", "emptied", "replaced", "cut to less than was counted"])
def test_a_transcript_that_was_cut_or_written_anew_is_due_at_once(change: str) -> None:
    file = File(LINE * 5)
    growth = file.handed_over()
    if change == "cut to less than was counted":
        file.append(LINE * 3)
        assert file.look(growth) is Due.QUIET
    file.written += 1
    if change == "replaced":
        file.inode = 8
    else:
        file.data = {"cut": LINE * 4, "emptied": b""}.get(change, LINE * 6)
    assert file.look(growth) is Due.NOW


@pytest.mark.parametrize("name", ["openclaw", "claude-code", "codex"])
def test_a_compaction_makes_it_due_at_once_unless_the_settings_say_no(name: str) -> None:
    for force, due in ((True, Due.NOW), (False, Due.QUIET)):
        file = File(LINE)
        growth = file.handed_over()
        line = compaction_line(name)
        file.append(line[: len(line) // 2])
        assert file.look(growth) is Due.QUIET
        file.append(line[len(line) // 2 :])
        assert file.look(growth, SyncSessions(post_compaction_force=force)) is due


def test_a_compaction_is_seen_in_a_line_that_was_begun_before_the_transcript_was_handed_over() -> None:
    line = compaction_line("codex")
    file = File(LINE + line[:20])
    growth = file.handed_over()
    file.append(line[20:])
    assert file.look(growth) is Due.NOW


def test_a_line_without_end_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 200_000)
    sync = SyncSessions(delta_bytes=10**9)
    file = File(LINE)
    growth = file.handed_over()
    file.append(b"x" * 150_000)
    assert file.look(growth, sync) is Due.QUIET
    file.append(b"x" * 10_000_000)
    file.reads.clear()
    assert file.look(growth, sync) is Due.NOW
    assert sum(size for _, size in file.reads) < 400_000


def test_a_file_that_is_cut_while_it_is_read_ends_the_look() -> None:
    file = File(LINE)
    growth = file.handed_over()
    file.append(LINE * 10)
    stat = file.stat
    file.data = file.data[: len(LINE) * 3]
    assert growth.look(stat, file.read, SYNC) is Due.QUIET
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
        file.look(growth, replace_limits(SYNC))
    assert growth.lines == len(lines)


def replace_limits(sync: SyncSessions) -> SyncSessions:
    """Thresholds that nothing here reaches."""
    return sync.model_copy(update={"delta_bytes": 10**9, "delta_messages": 10**9})

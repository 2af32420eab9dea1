"""Growth of a transcript: what is read of it, and when it is due."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles
from memory.documents.content import OpenTranscript
from memory.transcripts.lines import RawLine, lines_in
from producers.tailer import Growth, Tailer
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings, SyncSessions
from tests.openclaw_database import OpenClawDatabase
from tests.recording import RememberedFiles, as_reader
from tests.transcript_files import compaction_line

SYNC = SyncSessions()
BOUNDLESS = SyncSessions(delta_bytes=10**9, delta_messages=10**9)
LINE = b'{"role":"user","content":"hello"}\n'


@dataclass(frozen=True)
class OpenedFile(OpenTranscript):
    """A transcript in memory, as it was when it was opened."""

    file: File
    grows: ClassVar[bool] = True  # type: ignore[misc]

    def lines(self, position: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        data = self.file.data[position : self.stat.size]
        self.file.reads.append((position, len(data)))
        yield from lines_in(iter([data] if data else []), start=position, longest=longest)

    def next_position(self) -> int:
        return self.file.data.rfind(b"\n") + 1

    def changed(self) -> bool:
        return False


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

    def opened(self) -> OpenedFile:
        return OpenedFile(self.stat, None, "a.jsonl", self)

    def look(self, growth: Growth, sync: SyncSessions = SYNC) -> bool:
        return growth.is_due(self.opened(), sync)

    def look_after(self, growth: Growth, data: bytes, sync: SyncSessions) -> bool:
        if data:
            self.append(data)
        return self.look(growth, sync)

    def handed_over(self) -> Growth:
        growth = Growth(None, 0)
        growth.handed_over(self.opened())
        return growth


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


# Transcripts of an agent, against what the index holds of them


@pytest.mark.parametrize(
    ("name", "indexed", "more", "forced", "due"),
    [
        pytest.param("a.jsonl", 5000, 49, False, False, id="growth counts from what the index holds"),
        pytest.param("a.jsonl", 5000, 50, False, True, id="until it is enough"),
        pytest.param("a.jsonl", 5000, 1, True, True, id="or any of it after a quiet time"),
        pytest.param("a.jsonl", None, 50, False, True, id="without an index from its beginning"),
        pytest.param("a.jsonl.zst", None, 1, False, True, id="a compressed one is whole when it comes"),
        pytest.param("a.jsonl.reset.2026-02-03T09-00-00.000Z", None, 1, False, True, id="and so is an archive"),
        pytest.param("gone.jsonl", None, 0, True, False, id="a vanished transcript keeps its memory"),
    ],
)
def test_a_transcript_is_due(
    tmp_path: Path, name: str, indexed: int | None, more: int, forced: bool, due: bool
) -> None:
    agent = AgentSettings(id="main", workspace=tmp_path, sessions=(str(tmp_path),))
    files = AgentFiles(agent)
    index = None
    with (tmp_path / name).open("ab") as file:
        if indexed is not None:
            file.write(LINE * indexed)
            file.flush()
            index = RememberedFiles(dict(files.scan().documents))
        file.write(LINE * more)
    if not more:
        (tmp_path / name).unlink()
    key = DocumentKey("sessions", f"sessions/{name.removesuffix('.zst')}")
    found = Tailer({"main": agent}, {"main": files}, lambda _: as_reader(index)).due("main", {key: forced})
    assert list(found) == [key] * due


@pytest.mark.parametrize(
    ("appended", "due"),
    [
        pytest.param([LINE] * 49, False, id="a few events wait"),
        pytest.param([LINE] * 50, True, id="many events do not"),
        pytest.param([LINE.replace(b"hello", b"x" * 100_000)], True, id="nor do many bytes"),
        pytest.param([compaction_line("openclaw")], True, id="nor does a compaction"),
    ],
)
def test_a_session_in_a_database_is_due_at_the_same_thresholds(
    tmp_path: Path, appended: list[bytes], due: bool
) -> None:
    database = OpenClawDatabase(tmp_path / "agents" / "main")
    database.add("a", [LINE] * 100)
    agent = AgentSettings(id="main", workspace=tmp_path, sessions=(str(database.agent / "sessions"),))
    files = AgentFiles(agent)
    index = RememberedFiles(dict(files.scan().documents))
    tailer = Tailer({"main": agent}, {"main": files}, lambda _: as_reader(index))
    key = DocumentKey("sessions", "sessions/a.jsonl")
    assert tailer.due("main", {key: False}) == {}
    database.append("a", appended)
    assert list(tailer.due("main", {key: False})) == [key] * due
    assert tailer.due("main", {key: True}) == ({} if due else {key: files.stat(key)})
    database.close()

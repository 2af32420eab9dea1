"""Changes that leave a file its size and modification time, and changes that leave it its content. On real files."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from memory.documents import content, notes, sessions, sources
from memory.documents.comparison import compare
from memory.documents.content import OpenFile
from memory.embedding.providers.stub import StubProvider
from memory.index.completion import lacking_documents
from memory.index.indexer import IndexReport
from memory.store.options import StoreOptions
from memory.store.reader import MOST_TOUCHES
from memory.store.sqlite.writer import open_for_writing
from producers.reconciler import Indexes, reconcile
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.status import DiskState
from tests import indexing
from tests.indexing import FAST
from tests.recording import RecordingQueue


class CountingProvider(StubProvider):
    """A stub that remembers every text that it was paid for."""

    def __init__(self) -> None:
        super().__init__(limits=FAST)
        self.paid: list[str] = []

    def embed_documents(self, texts, **kwargs):  # type: ignore[no-untyped-def]
        self.paid.extend(texts)
        return super().embed_documents(texts, **kwargs)


class World(indexing.World):
    """One agent with a note and a transcript, both indexed."""

    NOTE = DocumentKey("memory", "memory/a.md")
    TALK = DocumentKey("sessions", "sessions/a.jsonl")
    settings: ClassVar = {"chunking": {"tokens": 32, "overlap": 0}}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.note, self.talk = self.workspace / "memory/a.md", self.sessions / "a.jsonl"
        self.note.write_text("The gateway listens on 18789.\n")
        self.talk.write_bytes(b"".join(map(message, ("first words", "second words", "third words"))))
        self.provider = CountingProvider()
        self.main = self.indexer(self.provider)
        self.files = self.main.files

    def index(self, *keys: DocumentKey) -> IndexReport:
        return self.main.index(keys or (self.NOTE, self.TALK), lane=Lane.LIVE, on_done=lambda _: None)

    def known(self, key: DocumentKey) -> FileStat:
        file = self.main.target().file(key)
        assert file is not None
        return file.stat

    def found(self, word: str) -> int:
        return len(self.main.target().search_text(word, 9))

    def stale(self) -> list[DocumentKey]:
        """Return the difference on which all comparisons of files and index must agree."""
        found = lacking_documents(self.main)
        queue, indexes = RecordingQueue(), Indexes(lambda _: self.main.generations.open_reader())
        report = reconcile(self.agent(), self.files, indexes, queue)
        disk = self.disk_state()
        assert sorted(queue.marked("main")) == sorted(key.path for key in found)
        assert (report.changed + report.new, disk.stale + disk.missing) == (len(found), len(found))
        return sorted(found)

    def disk_state(self, *, watched: bool = False) -> DiskState:
        found = compare(self.files, self.main.target())
        return found.disk_state(self.files, sync=self.agent().sync, now=time.time(), watched=watched)


def message(text: str) -> bytes:
    return b'{"type":"message","message":{"role":"user","content":"%s"}}\n' % text.encode()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        made.index()
        made.provider.paid.clear()
        yield made


def words_changed(path: Path) -> bytes:
    """The file's bytes with one word of the same length in place of another."""
    data = path.read_bytes()
    changed = data.replace(b"gateway", b"hideout").replace(b"second", b"hidden")
    assert len(changed) == len(data)
    assert changed != data
    return changed


def in_place(path: Path) -> None:
    """As a synchronising tool does that sets the time back."""
    was, data = path.stat(), words_changed(path)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (was.st_size, was.st_mtime_ns, was.st_ino)


def by_rename(path: Path) -> None:
    """As `rsync -t` does."""
    other = path.with_name(".new")
    other.write_bytes(words_changed(path))
    shutil.copystat(path, other)
    other.replace(path)


def by_copy(path: Path) -> None:
    """As `cp -p` over a file does; the same as a deleted file's inode that a new file gets."""
    other = path.with_name(".new")
    other.write_bytes(words_changed(path))
    shutil.copystat(path, other)
    shutil.copy2(other, path)
    other.unlink()


EDITS = [in_place, by_rename, by_copy]


def chmod(path: Path) -> None:
    path.chmod(0o600 if path.stat().st_mode & 0o077 else 0o644)


def link(path: Path) -> None:
    os.link(path, path.with_name(f".link-{path.stat().st_nlink}"))


def restore(path: Path) -> None:
    """As from a backup: another file with the same bytes and time."""
    other = path.with_name(".restored")
    shutil.copy2(path, other)
    other.replace(path)


@pytest.mark.parametrize("change", [chmod, link, restore])
def test_a_change_that_keeps_the_content_costs_one_reading_and_no_more(
    world: World, change: Callable[[Path], None]
) -> None:
    chunks = [world.main.target().chunks_of(key) for key in (world.NOTE, world.TALK)]
    change(world.note)
    change(world.talk)
    assert world.stale() == [world.NOTE, world.TALK]
    with counted_readings() as read:
        report = world.index()
        assert len(read) == 2
        assert (report.unchanged + report.documents, report.added, report.removed) == (2, 0, 0)
        assert world.stale() == []
        assert world.index().unchanged == 2
        assert len(read) == 2
    assert [world.main.target().chunks_of(key) for key in (world.NOTE, world.TALK)] == chunks
    assert world.provider.paid == []


# File systems with other change times ---------------------------------------------------------------


def test_documents_with_an_unknown_change_time_are_read_when_something_else_changed(world: World) -> None:
    forget_ctimes(world)
    assert world.stale() == []
    restore(world.note)
    assert world.stale() == [world.NOTE]
    world.index()
    assert world.known(world.NOTE).ctime_ns == world.note.stat().st_ctime_ns


def test_change_times_that_move_by_themselves_do_not_have_documents_read_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(10**18)
    on_every_file_system(monkeypatch, lambda _: next(ticks))
    with counted_readings() as read:
        for _ in range(MOST_TOUCHES + 1):
            assert world.stale() == [world.NOTE, world.TALK]
            assert world.index().again is None
        assert world.stale() == []
        assert world.index().unchanged == 2
        assert len(read) == 2 * (MOST_TOUCHES + 1)
    assert world.provider.paid == []
    world.note.write_text("The hideout listens on 18789.\n")
    with world.talk.open("ab") as file:
        file.write(message("fourth words"))
    assert world.stale() == [world.NOTE, world.TALK]
    world.index()
    assert (world.found("hideout"), world.found("fourth")) == (1, 1)


def forget_ctimes(world: World) -> None:
    path = next((world.folder / "indexes" / "main").glob("*.sqlite"))
    connection = open_for_writing(path, StoreOptions())
    connection.execute("UPDATE files SET ctime_ns = NULL")
    connection.close()


def on_every_file_system(monkeypatch: pytest.MonkeyPatch, ctime_ns: Callable[[os.stat_result], int]) -> None:
    """Let files say another change time than the disk does."""

    def file_stat(result: os.stat_result) -> FileStat:
        return FileStat(result.st_size, result.st_mtime_ns, result.st_ino, ctime_ns(result))

    for module in (content, notes, sessions, sources):
        monkeypatch.setattr(module, "file_stat", file_stat)


@contextmanager
def counted_readings() -> Iterator[list[int]]:
    """From which byte on each document was read, inside."""
    read: list[int] = []
    lines, steadily = OpenFile.lines, notes.read_steadily

    def counted_lines(self: OpenFile, offset: int = 0, **options: int | None):  # type: ignore[no-untyped-def]
        read.append(offset)
        return lines(self, offset, **options)

    def counted_reading(descriptor: int, name: str):  # type: ignore[no-untyped-def]
        read.append(0)
        return steadily(descriptor, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenFile, "lines", counted_lines)
        patch.setattr(notes, "read_steadily", counted_reading)
        yield read


#: Nanoseconds: before and after what 64 bits hold, and what archives without times set.
ANY_TIMES = [-(2**63), 0, 2**63]


@pytest.mark.parametrize(("edit", "at_ns"), [*((edit, None) for edit in EDITS), *((in_place, at) for at in ANY_TIMES)])
def test_an_edit_that_keeps_size_and_time_is_noticed_by_all_who_compare_and_indexed(
    world: World, edit: Callable[[Path], None], at_ns: int | None
) -> None:
    if at_ns is not None:
        for path in (world.note, world.talk):
            os.utime(path, ns=(at_ns, at_ns))
        world.index()
    assert world.stale() == []
    edit(world.note)
    edit(world.talk)
    assert world.stale() == [world.NOTE, world.TALK]
    report = world.index()
    assert (report.documents, report.unchanged, report.failed) == (2, 0, 0)
    assert [world.found(word) for word in ("gateway", "hideout", "second", "hidden")] == [0, 1, 0, 1]
    assert world.stale() == []
    assert world.main.target().check() == []

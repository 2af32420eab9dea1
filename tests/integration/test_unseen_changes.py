"""Changes that leave a file its size and modification time, and changes that leave it its content. On real files."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memory.documents import agent_files, content
from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import difference
from memory.documents.content import OpenTranscript
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.selection import ProviderChoice
from memory.embedding.supply import EmbeddingSupply
from memory.index.completion import differences
from memory.index.generation_writer import GenerationWriter
from memory.index.indexer import Indexer, IndexReport
from memory.store.options import StoreOptions
from memory.store.reader import MOST_TOUCHES
from memory.store.sqlite.connection import open_for_writing
from producers.reconciler import Indexes, reconcile
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.settings import AgentSettings
from schemas.status import DiskState
from tests.recording import RecordingQueue

FAST = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)


class CountingProvider(StubProvider):
    """A stub that remembers every text that it was paid for."""

    def __init__(self) -> None:
        super().__init__(limits=FAST)
        self.paid: list[str] = []

    def embed_documents(self, texts, **kwargs):  # type: ignore[no-untyped-def]
        self.paid.extend(texts)
        return super().embed_documents(texts, **kwargs)


class World:
    """One agent with a note and a transcript, both indexed."""

    NOTE = DocumentKey("memory", "memory/a.md")
    TALK = DocumentKey("sessions", "sessions/a.jsonl")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.sessions = folder / "sessions"
        self.sessions.mkdir()
        self.note = self.workspace / "memory/a.md"
        self.note.parent.mkdir(parents=True)
        self.note.write_text("The gateway listens on 18789.\n")
        self.talk = self.sessions / "a.jsonl"
        self.talk.write_bytes(b"".join(map(message, ("first words", "second words", "third words"))))
        self.agent = AgentSettings.model_validate(
            {
                "id": "main",
                "workspace": self.workspace,
                "sessions": [str(self.sessions)],
                "provider": "stub",
                "chunking": {"tokens": 32, "overlap": 0},
            }
        )
        self.files = AgentFiles(self.agent)
        self.cache = EmbeddingCache(folder / "embeddings.sqlite")
        self.provider = CountingProvider()
        self.indexer = Indexer(
            self.agent,
            files=self.files,
            generations=GenerationWriter(folder / "index", StoreOptions()),
            supply=EmbeddingSupply(ProviderChoice(self.provider, "stub", "stub", None, None), self.cache),
        )

    def index(self, *keys: DocumentKey) -> IndexReport:
        return self.indexer.index(keys or (self.NOTE, self.TALK), lane=Lane.LIVE, on_done=lambda _: None)

    def known(self, key: DocumentKey) -> FileStat:
        file = self.indexer.target().file(key)
        assert file is not None
        return file.stat

    def found(self, word: str) -> int:
        return len(self.indexer.target().search_text(word, 9))

    def stale(self) -> list[DocumentKey]:
        """What differs, on which everybody who compares files and index must agree."""
        found = differences(self.indexer)
        queue, indexes = RecordingQueue(), Indexes(lambda _: self.indexer.generations.open_reader())
        report = reconcile(self.agent, self.files, indexes, queue)
        disk = self.disk_state()
        assert sorted(queue.marked("main")) == sorted(key.path for key in found)
        assert (report.changed + report.new, disk.stale + disk.missing) == (len(found), len(found))
        return sorted(found)

    def disk_state(self, *, watched: bool = False) -> DiskState:
        found = difference(self.files, self.indexer.target())
        return found.disk_state(sessions=self.agent.sync.sessions, now=time.time(), watched=watched)

    def close(self) -> None:
        self.indexer.supply.close()
        self.indexer.generations.close()
        self.cache.close()


def message(text: str) -> bytes:
    return b'{"type":"message","message":{"role":"user","content":"%s"}}\n' % text.encode()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.index()
    made.provider.paid.clear()
    yield made
    made.close()


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
    chunks = [world.indexer.target().chunks_of(key) for key in (world.NOTE, world.TALK)]
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
    assert [world.indexer.target().chunks_of(key) for key in (world.NOTE, world.TALK)] == chunks
    assert world.provider.paid == []


def test_of_a_transcript_that_grew_only_what_was_appended_is_read(world: World) -> None:
    size = world.talk.stat().st_size
    last = message("third words")
    for more in ("fourth words", "fifth words"):
        with world.talk.open("ab") as file:
            file.write(message(more))
        with counted_readings() as read:
            world.index(world.TALK)
        assert read == [size - len(last)]
        size += len(message(more))
        last = message(more)
    assert world.found("fifth") == 1


def test_an_edit_while_a_note_is_read_is_met_by_the_next_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.note.write_text("The gateway listens on 18790.\n")
    os_read = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = os_read(descriptor, size)
        if b"gateway" in data:
            in_place(world.note)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(content.os, "read", read)
        world.index(world.NOTE)
    assert world.found("gateway") == 1
    assert world.stale() == [world.NOTE]
    world.index(world.NOTE)
    assert (world.found("gateway"), world.found("hideout"), world.stale()) == (0, 1, [])


def test_two_folders_that_change_places_bring_their_notes_along(world: World) -> None:
    keys = [DocumentKey("memory", f"memory/{name}/n.md") for name in ("one", "two")]
    for key, word in zip(keys, ("apples", "orange"), strict=True):
        path = world.workspace / key.path
        path.parent.mkdir()
        path.write_text(f"Only {word} here.\n")
        os.utime(path, ns=(0, 10**18))
    world.index(*keys)
    one, two = (world.workspace / key.path for key in keys)
    one.parent.rename(world.workspace / "aside")
    two.parent.rename(one.parent)
    (world.workspace / "aside").rename(two.parent)
    assert world.stale() == keys
    world.index(*keys)
    [hit] = world.indexer.target().search_text("apples", 9)
    assert world.indexer.target().chunk_rows([hit.id])[hit.id].key == keys[1]


def test_another_folder_in_the_place_of_a_configured_one_is_noticed(world: World) -> None:
    other = world.folder / "other"
    shutil.copytree(world.workspace, other)  # with its times, as a mirror on another disk has them
    in_place(other / "memory/a.md")
    os.utime(other / "memory/a.md", ns=(0, world.note.stat().st_mtime_ns))
    world.workspace.rename(world.folder / "was")
    world.workspace.symlink_to(other)  # as mounting over it does
    assert world.stale() == [world.NOTE]
    world.index()
    assert (world.found("gateway"), world.found("hideout")) == (0, 1)


# Permissions -----------------------------------------------------------------------------------------


def test_a_note_that_may_not_be_read_any_more_is_told_of_and_heals_when_it_may(world: World) -> None:
    world.note.chmod(0)
    assert world.stale() == [world.NOTE]
    with as_anybody():
        assert world.index(world.NOTE).failed == 1
    [letter] = world.indexer.target().dead_letters()
    assert (letter.key, letter.error_class) == (world.NOTE, "DocumentUnreadable")
    assert world.found("gateway") == 1
    world.note.chmod(0o644)
    with as_anybody():
        assert world.index(world.NOTE).unchanged == 1
    assert world.indexer.target().dead_letters() == []
    assert (world.stale(), world.provider.paid) == ([], [])


# Indexes of before, and file systems with other change times ----------------------------------------


def test_an_index_from_before_change_times_were_kept_reads_only_what_was_changed_since(world: World) -> None:
    forget_ctimes(world)
    with counted_readings() as read:
        assert world.stale() == []
        assert world.index().unchanged == 2
        assert read == []
        in_place(world.note)
        chmod(world.talk)
        assert world.stale() == [world.NOTE, world.TALK]
        world.index()
        assert len(read) == 2
    assert (world.found("hideout"), world.stale()) == (1, [])
    assert world.known(world.NOTE).ctime_ns == world.note.stat().st_ctime_ns
    assert world.known(world.TALK).ctime_ns == world.talk.stat().st_ctime_ns


def test_what_a_worker_of_the_version_before_writes_into_an_open_index_is_not_stale(world: World) -> None:
    world.note.write_text("The hideout listens on 18789.\n")
    now = world.note.stat()
    assert world.stale() == [world.NOTE]
    connection = open_for_writing(next((world.folder / "index").glob("*.sqlite")), StoreOptions())
    connection.execute(
        "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, indexed_at = ? WHERE path = ?",
        (now.st_size, now.st_mtime_ns, now.st_ino, time.time(), world.NOTE.path),
    )
    connection.close()
    assert world.stale() == []


def test_without_change_times_sizes_and_times_decide(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    on_every_file_system(monkeypatch, lambda _: 0)
    assert world.stale() == []
    world.note.write_text("The hideout listens on 18789.\n")
    assert world.stale() == [world.NOTE]
    world.index()
    assert (world.found("hideout"), world.stale()) == (1, [])


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
    path = next((world.folder / "index").glob("*.sqlite"))
    connection = open_for_writing(path, StoreOptions())
    connection.execute("UPDATE files SET ctime_ns = NULL")
    connection.close()


def on_every_file_system(monkeypatch: pytest.MonkeyPatch, ctime_ns: Callable[[os.stat_result], int]) -> None:
    """Let files say another change time than the disk does."""

    def file_stat(result: os.stat_result) -> FileStat:
        return FileStat(result.st_size, result.st_mtime_ns, result.st_ino, ctime_ns(result))

    for module in (content, agent_files):
        monkeypatch.setattr(module, "file_stat", file_stat)


@contextmanager
def counted_readings() -> Iterator[list[int]]:
    """From which byte on each document was read, inside."""
    read: list[int] = []
    lines, steadily = OpenTranscript.lines, agent_files.read_steadily

    def counted_lines(self: OpenTranscript, offset: int = 0, **options: int | None):  # type: ignore[no-untyped-def]
        read.append(offset)
        return lines(self, offset, **options)

    def counted_reading(descriptor: int, name: str):  # type: ignore[no-untyped-def]
        read.append(0)
        return steadily(descriptor, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenTranscript, "lines", counted_lines)
        patch.setattr(agent_files, "read_steadily", counted_reading)
        yield read


@contextmanager
def as_anybody() -> Iterator[None]:
    """Let permissions count for root, too: this thread goes without the capabilities to pass over them.

    See capabilities(7): CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, before) == 0
    without = (ctypes.c_uint32 * 6)(*before)
    without[0] &= ~0b110
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


#: Nanoseconds: before and after what 64 bits hold, and what archives without times set.
ANY_TIMES = [-(2**63), -1, 0, 1, 2**63 - 1, 2**63, 10_413_792_000 * 10**9, 15_000_000_000 * 10**9]


@pytest.mark.parametrize("at_ns", ANY_TIMES)
def test_a_file_is_indexed_and_known_again_whatever_its_times_say(world: World, at_ns: int) -> None:
    for path in (world.note, world.talk):
        path.write_bytes(words_changed(path))
        os.utime(path, ns=(at_ns, at_ns))
    assert world.stale() == [world.NOTE, world.TALK]
    state = world.disk_state(watched=True)
    assert (state.stale, state.growing) == (2, 0)
    assert world.index().failed == 0
    assert (world.found("hideout"), world.found("hidden"), world.stale()) == (1, 1, [])
    assert world.disk_state(watched=True) == DiskState(files=2)
    assert world.index().unchanged == 2
    with world.talk.open("ab") as file:
        file.write(message("fourth words"))
    os.utime(world.talk, ns=(at_ns, at_ns))
    world.index()
    assert (world.found("hidden"), world.found("fourth"), world.stale()) == (1, 1, [])


@pytest.mark.parametrize("at_ns", [None, *ANY_TIMES])
@pytest.mark.parametrize("edit", EDITS)
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
    assert world.indexer.target().check() == []

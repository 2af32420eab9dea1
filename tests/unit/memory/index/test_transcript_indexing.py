"""Transcripts on their way into the index: appended, rewritten, compressed, renamed, gone, interrupted."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.embedding.providers.stub import StubProvider
from memory.index import completion
from memory.index import transcript_slices as transcript_slicing
from memory.index.completion import complete_generation, lacking_documents, missing_transcripts
from memory.index.indexer import Indexer, IndexReport
from memory.store.writer import DocumentChange, WriteOutcome
from schemas.documents import DocumentKey, Lane
from tests import indexing
from tests.examples import examples
from tests.indexing import FAST

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

RESET = ".reset.2026-02-04T10-00-00.000Z"
DELETED = ".deleted.2026-02-04T10-00-00.000Z"
WORDS = [f"word{number}" for number in range(300)]


class World(indexing.World):
    """One agent with a folder of transcripts, and what its `main` indexer paid for."""

    settings: ClassVar[dict[str, Any]] = {"chunking": {"tokens": 64, "overlap": 16}}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.provider, self._paid = StubProvider(limits=FAST), 0
        self.main = self.indexer(self.provider)

    def write(self, data: bytes, name: str = "a.jsonl") -> DocumentKey:  # type: ignore[override]
        """A file of its own, in place of what was there."""
        draft = self.sessions / f".{name}"
        draft.write_bytes(data)
        draft.replace(self.sessions / name)
        return DocumentKey("sessions", f"sessions/{name}")

    def append(self, data: bytes) -> None:
        with (self.sessions / "a.jsonl").open("ab") as file:
            file.write(data)

    def indexed(self, data: bytes, name: str = "a.jsonl") -> DocumentKey:
        key = self.write(data, name)
        index(self.main, key)
        self._paid = self.provider.inputs
        return key

    def newly_paid(self) -> int:
        """Texts paid for since `indexed`."""
        return self.provider.inputs - self._paid

    def fresh(self, key: DocumentKey) -> Indexer:
        """An index of the file as it is, made at once."""
        made = self.indexer(name="fresh")
        index(made, key)
        return made

    def finds(self, word: str) -> bool:
        return len(self.main.target().search_text(word, 5)) == 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def line(number: int, text: str | None = None) -> bytes:
    chance = random.Random(number)
    said = text if text is not None else " ".join(chance.choices(WORDS, k=chance.randrange(3, 40)))
    role = "assistant" if number % 2 else "user"
    stamp = f"2026-02-03T{9 + number // 60 % 12:02}:{number % 60:02}:00Z"
    return json.dumps({"role": role, "content": said, "timestamp": stamp}).encode() + b"\n"


def lines(count: int, *, first: int = 0) -> bytes:
    return b"".join(line(number) for number in range(first, first + count))


def index(indexer: Indexer, *keys: DocumentKey, out_of_time: Callable[[], bool] = lambda: False) -> IndexReport:
    done: list[DocumentKey] = []
    report = indexer.index(keys, lane=Lane.LIVE, on_done=done.extend, out_of_time=out_of_time)
    assert report.unfinished or report.again or set(done) == set(keys)
    return report


def content(indexer: Indexer, key: DocumentKey) -> list[tuple[int, int, int, str]]:
    """Ordinal, lines and text of a document's chunks."""
    store = indexer.target()
    stored = store.chunks_of(key)
    rows = store.chunk_rows([chunk.id for chunk in stored])
    assert store.check() == []
    return [(chunk.ordinal, chunk.start_line, chunk.end_line, rows[chunk.id].text) for chunk in stored]


def texts(indexer: Indexer, key: DocumentKey) -> list[str]:
    return [text for *_, text in content(indexer, key)]


def ids(indexer: Indexer, key: DocumentKey) -> list[int]:
    return [chunk.id for chunk in indexer.target().chunks_of(key)]


def notes_of(indexer: Indexer, key: DocumentKey) -> tuple[str, ...]:
    known = indexer.target().file(key)
    assert known is not None
    return known.notes


def begin_rebuild(indexer: Indexer) -> None:
    identity = indexer.fingerprint()
    indexer.generations.begin(identity, force=True)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), count=st.integers(1, 60))
def test_any_way_of_cutting_a_transcript_into_appends_gives_the_index_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, count: int
) -> None:
    whole = lines(count)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    with World(tmp_path_factory.mktemp("appends")) as world:
        grown, once = world.indexer(name="grown"), world.indexer(name="once")
        key = world.write(b"")
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            world.append(whole[start:end])
            index(grown, key)
        index(once, key)
        assert content(grown, key) == content(once, key)
        assert grown.target().transcript(key) == once.target().transcript(key)


def test_what_is_appended_leaves_earlier_chunks_their_ids_and_pays_only_for_itself(world: World) -> None:
    key = world.indexed(lines(200))
    before = ids(world.main, key)
    assert len(before) > 10
    world.append(line(200))
    report = index(world.main, key)
    assert ids(world.main, key)[: len(before) - 1] == before[:-1]
    assert (world.newly_paid() <= 2, report.added <= 2) == (True, True)


def test_an_incomplete_last_line_waits_for_its_end(world: World) -> None:
    torn = line(5, "the quick zebra")
    key = world.indexed(line(0, "first") + torn[:20])
    assert not world.finds("zebra")
    assert "no line end" in notes_of(world.main, key)[0]
    world.append(torn[20:])
    index(world.main, key)
    assert world.finds("zebra")
    assert notes_of(world.main, key) == ()


@pytest.mark.parametrize(
    ("name", "data", "paid"),
    [
        ("a.jsonl", lines(119) + line(500, "a different end"), 2),
        ("a.jsonl", lines(37), 1),
        ("a.jsonl", b"", 0),
        ("a.jsonl.zst", compress(lines(120)), 0),
    ],
    ids=["another end", "truncated", "emptied", "compressed"],
)
def test_a_transcript_that_was_written_anew_keeps_the_chunks_that_are_still_there(
    world: World, name: str, data: bytes, paid: int
) -> None:
    key = world.indexed(lines(120))
    before = dict(zip(texts(world.main, key), ids(world.main, key), strict=True))
    (world.sessions / "a.jsonl").unlink()
    world.write(data, name)
    index(world.main, key)
    assert world.newly_paid() <= paid
    assert content(world.main, key) == content(world.fresh(key), key)
    after = dict(zip(texts(world.main, key), ids(world.main, key), strict=True))
    assert all(before[text] == after[text] for text in before.keys() & after.keys())
    assert lacking_documents(world.main) == []


def test_a_vanished_transcript_keeps_its_memory_unless_the_settings_say_otherwise(world: World) -> None:
    key = world.indexed(line(0, "remember the zebra"))
    (world.sessions / "a.jsonl").unlink()
    index(world.main, key)
    assert world.finds("zebra")
    assert lacking_documents(world.main) == []
    forgetful = world.indexer(sync={"sessions": {"forget_deleted": True}})
    assert lacking_documents(forgetful) == [key]
    index(forgetful, key)
    assert not world.finds("zebra")


@pytest.mark.parametrize("cut", ["empty", "in its first frame", "after what was read"])
def test_what_is_kept_of_a_vanished_transcript_outlives_its_cut_compressed_self(world: World, cut: str) -> None:
    key = world.indexed(lines(40))
    (world.sessions / "a.jsonl").unlink()
    before = texts(world.main, key)
    one, two = compress(lines(20)), compress(lines(40, first=20))
    damaged = {"empty": b"", "in its first frame": one[:-9], "after what was read": one + two[:-9]}
    world.write(damaged[cut], "a.jsonl.zst")
    assert index(world.main, key).failed == 1
    assert texts(world.main, key) == before != []
    [letter] = world.main.target().dead_letters()
    assert letter.error_class == "TranscriptDamaged"
    assert letter.reason.startswith("sessions/a.jsonl.zst: ")
    world.write(one + two, "a.jsonl.zst")
    assert index(world.main, key).failed == 0
    assert not world.main.target().dead_letters()
    assert len(texts(world.main, key)) > len(before)


@pytest.mark.parametrize("written", ["empty", "cut", "whole"])
@pytest.mark.parametrize("name", ["a.jsonl.zst", f"a.jsonl{RESET}", f"a.jsonl{RESET}.zst", f"a.jsonl{DELETED}.zst"])
def test_a_session_outlives_its_archive_unless_that_is_whole(world: World, name: str, written: str) -> None:
    key = world.indexed(lines(40))
    before = texts(world.main, key)
    archive = DocumentKey("sessions", f"sessions/{name.removesuffix('.zst')}")
    keys = list(dict.fromkeys((archive, key)))
    whole = compress(lines(40)) if name.endswith(".zst") else lines(40)
    # As long as it is open, no other file gets its inode.
    with (world.sessions / "a.jsonl").open("rb"):
        world.write({"empty": b"", "cut": whole[: len(whole) // 2], "whole": whole}[written], name)
        index(world.main, *keys)
        (world.sessions / "a.jsonl").unlink()
        for order in (keys, keys[::-1]):
            index(world.main, *order)
    assert set(before) <= {text for one in keys for text in texts(world.main, one)}
    assert lacking_documents(world.main) == []
    world.write(whole, name)
    index(world.main, *keys)
    assert texts(world.main, archive) == before
    assert archive == key or world.main.target().file(key) is None
    assert (lacking_documents(world.main), world.main.target().dead_letters(), world.newly_paid()) == ([], [], 0)


def test_a_transcript_that_got_the_inode_of_another_one_keeps_off_its_memory(world: World) -> None:
    key = world.indexed(lines(40))
    before = content(world.main, key)
    path = world.sessions / "a.jsonl"
    path.write_bytes(lines(60, first=100))
    path.rename(world.sessions / f"a.jsonl{RESET}")
    archive = DocumentKey("sessions", f"sessions/a.jsonl{RESET}")
    index(world.main, archive, key)
    assert content(world.main, key) == before
    assert not set(texts(world.main, archive)) & {text for *_, text in before}


@pytest.mark.parametrize("by", ["rename", "copy", "compression"])
def test_a_transcript_that_moved_is_followed(world: World, by: str) -> None:
    key = world.indexed(lines(40))
    before = ids(world.main, key)
    path = world.sessions / "a.jsonl"
    world.append(lines(25, first=40))
    name = "archived/2026/rollout.jsonl"
    (world.sessions / name).parent.mkdir(parents=True)
    if by == "rename":
        path.rename(world.sessions / name)
    else:
        data, end = (path.read_bytes(), "") if by == "copy" else (compress(path.read_bytes()), ".zst")
        (world.sessions / f"{name}{end}").write_bytes(data)
        path.unlink()
    moved = DocumentKey("sessions", f"sessions/{name}")
    assert lacking_documents(world.main) == [moved]
    index(world.main, key, moved)
    assert world.main.target().file(key) is None
    assert ids(world.main, moved)[: len(before) - 1] == before[:-1]
    assert lacking_documents(world.main) == []


def test_a_copy_of_a_transcript_is_one_of_its_own(world: World) -> None:
    key = world.indexed(lines(40))
    (world.sessions / "b.jsonl").hardlink_to(world.sessions / "a.jsonl")
    copy = DocumentKey("sessions", "sessions/b.jsonl")
    index(world.main, copy, key)
    assert content(world.main, copy) == content(world.main, key) != []
    assert lacking_documents(world.main) == []


def test_a_transcript_whose_folder_is_not_mounted_has_not_moved(world: World) -> None:
    other = world.folder / "other"
    other.mkdir()
    indexer = world.indexer(sessions=[str(world.sessions), str(other)])
    key = world.write(lines(40))
    index(indexer, key)
    before = content(indexer, key)
    (other / "b.jsonl").write_bytes(lines(40))
    world.sessions.rename(world.folder / "unmounted")
    copy = DocumentKey("sessions", "sessions/b.jsonl")
    index(indexer, copy)
    assert content(indexer, copy) == content(indexer, key) == before


def test_a_rebuild_keeps_what_vanished_transcripts_said(world: World) -> None:
    there = world.write(lines(60, first=100), "there.jsonl")
    gone = world.indexed(lines(60), "gone.jsonl")
    index(world.main, there)
    before, paid = texts(world.main, gone), world.provider.inputs
    times = [world.main.target().times_of([number]) for number in ids(world.main, gone)]
    (world.sessions / "gone.jsonl").unlink()
    begin_rebuild(world.main)
    index(world.main, there)
    assert lacking_documents(world.main) == []
    assert complete_generation(world.main)
    assert texts(world.main, gone) == before
    after = [world.main.target().times_of([number]) for number in ids(world.main, gone)]
    assert [list(time.values()) for time in after] == [list(time.values()) for time in times] != []
    assert (world.provider.inputs, world.main.target().counts().vectors_pending) == (paid, 0)


def test_a_rebuild_does_not_take_over_a_vanished_session_that_its_archive_holds(world: World) -> None:
    key, archive = world.indexed(lines(60)), world.write(lines(60), f"a.jsonl{RESET}")
    index(world.main, archive)
    before, paid = texts(world.main, archive), world.provider.inputs
    begin_rebuild(world.main)
    (world.sessions / "a.jsonl").unlink()
    index(world.main, archive)
    assert complete_generation(world.main)
    assert (world.main.target().file(key), texts(world.main, archive)) == (None, before)
    assert (lacking_documents(world.main), world.provider.inputs) == ([], paid)


def test_a_rebuild_lists_no_folder_for_each_transcript_that_it_lacks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [world.write(lines(1, first=number), f"{number}.jsonl") for number in range(9)]
    index(world.main, *keys)
    begin_rebuild(world.main)
    listed: list[object] = []
    really = os.scandir

    def scandir(place: str) -> object:
        listed.append(place)
        return really(place)

    monkeypatch.setattr(os, "scandir", scandir)
    assert sorted(missing_transcripts(world.main)) == sorted(keys)
    assert len(listed) < len(keys)


def test_a_rebuild_does_not_take_over_what_the_settings_leave_out_by_then(world: World) -> None:
    kept, out = world.write(lines(6), "kept.jsonl"), world.write(lines(6, first=100), "out.jsonl")
    index(world.indexer(), kept, out)
    indexer = world.indexer(exclude=["out.jsonl"])
    begin_rebuild(indexer)
    index(indexer, kept)
    assert lacking_documents(indexer) == []
    assert complete_generation(indexer)
    assert [file.key for file in indexer.target().files()] == [kept]


def test_a_rebuild_that_dies_while_it_carries_over_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "MAX_CHUNKS_PER_COMMIT", 3)
    gone = world.indexed(lines(60), "gone.jsonl")
    before = content(world.main, gone)
    assert len(before) > 6
    (world.sessions / "gone.jsonl").unlink()
    begin_rebuild(world.main)
    building, write, left = world.main.target(), world.main.target().write, iter(range(2))

    def dying(changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return write(changes)

    with monkeypatch.context() as patched:
        patched.setattr(building, "write", dying)
        with pytest.raises(KeyboardInterrupt):
            complete_generation(world.main)
    assert complete_generation(world.main)
    assert content(world.main, gone) == before


def test_a_run_that_is_out_of_time_goes_on_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_slicing, "SLICE_CHUNKS", 5)
    key = world.write(lines(100))
    turns, offset = 0, 0
    while (report := index(world.main, key, out_of_time=lambda: True)).unfinished:
        position = world.main.target().transcript(key)
        assert position is not None
        assert position.offset > offset, "a turn brought nothing"
        offset, turns = position.offset, turns + 1
    assert (report.documents, turns > 3) == (1, True)
    assert content(world.main, key) == content(world.fresh(key), key)


def test_a_line_that_is_no_json_costs_only_itself_and_is_counted(world: World) -> None:
    key = world.indexed(line(0, "before") + b"{broken\n" + line(1, "after the zebra"))
    assert world.finds("zebra")
    assert any("line 2" in note for note in notes_of(world.main, key))

"""Transcripts on their way into the index: appended, rewritten, compressed, renamed, gone, interrupted."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.embedding.providers.stub import StubProvider
from memory.index import changes as planned_groups
from memory.index import completion
from memory.index import transcript_slices as transcript_slicing
from memory.index.completion import complete_generation, differences
from memory.index.estimate import estimate
from memory.index.indexer import Indexer, IndexReport
from memory.store.reader import TranscriptMark
from memory.store.writer import DocumentChange, DocumentWrite, WriteOutcome
from memory.transcripts import lines as line_reading
from schemas.documents import DocumentKey, FileStat, Lane
from tests import indexing
from tests.indexing import FAST

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

RESET = ".reset.2026-02-04T10-00-00.000Z"
DELETED = ".deleted.2026-02-04T10-00-00.000Z"
WORDS = [f"word{number}" for number in range(300)]


class CountingProvider(StubProvider):
    """A stub that remembers every text that it was paid for."""

    def __init__(self) -> None:
        super().__init__(limits=FAST)
        self.paid: list[str] = []

    def embed_documents(self, texts, **kwargs):  # type: ignore[no-untyped-def]
        self.paid.extend(texts)
        return super().embed_documents(texts, **kwargs)


class World(indexing.World):
    """One agent with a folder of transcripts."""

    settings: ClassVar[dict[str, Any]] = {"chunking": {"tokens": 64, "overlap": 16}}

    def write(self, data: bytes, name: str = "a.jsonl") -> DocumentKey:  # type: ignore[override]
        """A file of its own, in place of what was there."""
        draft = self.sessions / f".{name}"
        draft.write_bytes(data)
        draft.replace(self.sessions / name)
        return DocumentKey("sessions", f"sessions/{name}")

    def append(self, data: bytes, name: str = "a.jsonl") -> DocumentKey:
        with (self.sessions / name).open("ab") as file:
            file.write(data)
        return DocumentKey("sessions", f"sessions/{name}")


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
    assert report.left or report.again or set(done) == set(keys)
    return report


def content(indexer: Indexer, key: DocumentKey) -> list[tuple[int, int, int, str]]:
    """Ordinal, lines and text of a document's chunks."""
    store = indexer.target()
    stored = store.chunks_of(key)
    rows = store.chunk_rows([chunk.id for chunk in stored])
    assert store.check() == []
    return [(chunk.ordinal, chunk.start_line, chunk.end_line, rows[chunk.id].text) for chunk in stored]


def ids(indexer: Indexer, key: DocumentKey) -> list[int]:
    return [chunk.id for chunk in indexer.target().chunks_of(key)]


def notes_of(indexer: Indexer, key: DocumentKey) -> tuple[str, ...]:
    known = indexer.target().file(key)
    assert known is not None
    return known.notes


def begin_rebuild(indexer: Indexer) -> None:
    identity = indexer.fingerprint()
    indexer.generations.begin(identity.digest, identity.description, force=True)


class Dying:
    """Writes of a store, of which `left` more succeed."""

    def __init__(self, indexer: Indexer, monkeypatch: pytest.MonkeyPatch, left: int = 0) -> None:
        self.left, self._write = left, indexer.target().write
        monkeypatch.setattr(indexer.target(), "write", self)

    def __call__(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return self._write(changes)


def estimated(world: World, indexer: Indexer, key: DocumentKey) -> tuple[int, int, int]:
    found = estimate(
        indexer.agent,
        [key],
        files=indexer.files,
        generations=indexer.generations,
        choice=indexer.supply.choice,
        cache=world.cache,
    )
    return found.messages, found.chunks, found.to_embed


def test_a_transcript_is_found_by_what_was_said_and_cites_its_own_lines(world: World) -> None:
    indexer = world.indexer()
    key = world.write(line(0, "where is the vpn note?") + line(1, "In memory/net.md, under wireguard."))
    report = index(indexer, key)
    [(ordinal, first, last, text)] = content(indexer, key)
    assert (report.documents, ordinal, first, last) == (1, 0, 1, 2)
    assert "User: where is the vpn note?" in text
    assert "2026-02-03 09:00" in text
    assert len(indexer.target().search_text("wireguard", 5)) == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(200))
    index(indexer, key)
    before, paid = ids(indexer, key), len(provider.paid)
    assert len(before) > 10
    world.append(line(200))
    report = index(indexer, key)
    assert ids(indexer, key)[: len(before) - 1] == before[:-1]
    assert len(provider.paid) - paid <= 2
    assert report.added <= 2


def test_an_incomplete_last_line_waits_for_its_end(world: World) -> None:
    indexer = world.indexer()
    torn = line(5, "the quick zebra")
    key = world.write(line(0, "first") + torn[:20])
    index(indexer, key)
    assert indexer.target().search_text("zebra", 5) == []
    assert "no line end" in notes_of(indexer, key)[0]
    world.append(torn[20:])
    index(indexer, key)
    assert len(indexer.target().search_text("zebra", 5)) == 1
    assert notes_of(indexer, key) == ()


def test_a_last_line_without_its_line_end_is_found_once(world: World) -> None:
    indexer = world.indexer()
    key = world.write(line(0, "first") + line(1, "the zebra").rstrip(b"\n"))
    index(indexer, key)
    assert len(indexer.target().search_text("zebra", 5)) == 1
    world.append(b"\n" + line(2, "third"))
    index(indexer, key)
    assert len(indexer.target().search_text("zebra", 5)) == 1
    assert content(indexer, key)[-1][2] == 3


def test_a_rewritten_transcript_keeps_the_chunks_that_are_still_there(world: World) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(120))
    index(indexer, key)
    before = {text: number for number, (*_, text) in zip(ids(indexer, key), content(indexer, key), strict=True)}
    paid = len(provider.paid)
    world.write(lines(119) + line(500, "a different end"))
    index(indexer, key)
    after = {text: number for number, (*_, text) in zip(ids(indexer, key), content(indexer, key), strict=True)}
    same = before.keys() & after.keys()
    assert len(same) >= len(before) - 2
    assert all(before[text] == after[text] for text in same)
    assert len(provider.paid) - paid <= 2


@pytest.mark.parametrize("left", [0, 1, 37])
def test_a_truncated_transcript_loses_what_it_lost(world: World, left: int) -> None:
    indexer, fresh = world.indexer(), world.indexer(name="fresh")
    key = world.write(lines(80))
    index(indexer, key)
    with (world.sessions / "a.jsonl").open("r+b") as file:
        file.truncate(len(lines(left)))
    index(indexer, key)
    index(fresh, key)
    assert content(indexer, key) == content(fresh, key)


def test_lines_that_were_changed_in_place_are_noticed(world: World) -> None:
    indexer = world.indexer()
    key = world.write(line(0, "the old fox") + line(1, "unchanged"))
    index(indexer, key)
    with (world.sessions / "a.jsonl").open("r+b") as file:
        file.write(line(0, "the new fox"))
    os.utime(world.sessions / "a.jsonl", ns=(1, 1))
    index(indexer, key)
    assert indexer.target().search_text("old", 5) == []
    assert len(indexer.target().search_text("new", 5)) == 1


def test_a_compressed_transcript_that_was_never_seen_is_indexed(world: World) -> None:
    indexer, plain = world.indexer(), world.indexer(name="plain")
    world.write(compress(lines(50)), "a.jsonl.zst")
    key = DocumentKey("sessions", "sessions/a.jsonl")
    index(indexer, key)
    world.write(lines(50))
    index(plain, key)
    assert content(indexer, key) == content(plain, key) != []


def test_a_vanished_transcript_keeps_its_memory_unless_the_settings_say_otherwise(world: World) -> None:
    indexer = world.indexer()
    key = world.write(line(0, "remember the zebra"))
    index(indexer, key)
    (world.sessions / "a.jsonl").unlink()
    index(indexer, key)
    assert len(indexer.target().search_text("zebra", 5)) == 1
    assert differences(indexer) == []
    forgetful = world.indexer(sync={"sessions": {"forget_deleted": True}})
    assert differences(forgetful) == [key]
    index(forgetful, key)
    assert forgetful.target().search_text("zebra", 5) == []


@pytest.mark.parametrize("cut", ["empty", "in its first frame", "after what was read"])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_what_is_kept_of_a_vanished_transcript_outlives_its_cut_compressed_self(
    world: World, cut: str, *, rebuilt: bool
) -> None:
    indexer = world.indexer()
    key = world.write(lines(40))
    index(indexer, key)
    (world.sessions / "a.jsonl").unlink()
    if rebuilt:
        begin_rebuild(indexer)
        assert complete_generation(indexer)
    before = [text for *_, text in content(indexer, key)]
    frames = [compress(lines(20)), compress(lines(40, first=20))]
    whole = {
        "empty": b"",
        "in its first frame": frames[0][:-9],
        "after what was read": frames[0] + frames[1][:-9],
    }
    world.write(whole[cut], "a.jsonl.zst")
    report = index(indexer, key)
    assert [text for *_, text in content(indexer, key)] == before != []
    assert report.failed == 1
    [letter] = indexer.target().dead_letters()
    assert letter.error_class == "TranscriptDamaged"
    assert letter.reason.startswith("sessions/a.jsonl.zst: the compressed transcript ends too early; what was read")
    world.write(b"".join(frames), "a.jsonl.zst")
    assert index(indexer, key).failed == 0
    assert not indexer.target().dead_letters()
    assert len(content(indexer, key)) > len(before)


@pytest.mark.parametrize("looked", ["at each step", "at the end"])
@pytest.mark.parametrize("first", ["write", "delete"])
@pytest.mark.parametrize("written", ["empty", "cut", "whole"])
@pytest.mark.parametrize("name", ["a.jsonl.zst", f"a.jsonl{RESET}", f"a.jsonl{RESET}.zst", f"a.jsonl{DELETED}.zst"])
def test_a_session_outlives_its_archive_unless_that_is_whole(
    world: World, name: str, written: str, first: str, looked: str
) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(40))
    index(indexer, key)
    before, paid = [text for *_, text in content(indexer, key)], len(provider.paid)
    archive = DocumentKey("sessions", f"sessions/{name.removesuffix('.zst')}")
    keys = list(dict.fromkeys((archive, key)))
    whole = compress(lines(40)) if name.endswith(".zst") else lines(40)
    data = {"empty": b"", "cut": whole[: len(whole) // 2], "whole": whole}[written]
    path = world.sessions / "a.jsonl"
    # As long as it is open, no other file gets its inode.
    with path.open("rb"):
        steps: list[Callable[[], object]] = [lambda: world.write(data, name), path.unlink]
        for step in steps if first == "write" else reversed(steps):
            step()
            if looked == "at each step":
                index(indexer, *keys)
        for order in (keys, keys[::-1]):
            index(indexer, *order)
    texts = [text for one in keys for *_, text in content(indexer, one)]
    assert set(before) <= set(texts)
    assert differences(indexer) == []
    world.write(whole, name)
    index(indexer, *keys)
    assert [text for *_, text in content(indexer, archive)] == before
    assert archive == key or indexer.target().file(key) is None
    assert (differences(indexer), indexer.target().dead_letters(), len(provider.paid)) == ([], [], paid)


def test_a_session_that_went_on_before_it_was_archived_is_forgotten_once_its_archive_is_there(world: World) -> None:
    indexer = world.indexer()
    key = world.write(lines(40))
    index(indexer, key)
    (world.sessions / "a.jsonl").unlink()
    # Taken over from another index, so that nothing tells which lines were read.
    begin_rebuild(indexer)
    assert complete_generation(indexer)
    archive = world.write(compress(lines(45)), f"a.jsonl{RESET}.zst")
    archive = DocumentKey(archive.source, archive.path.removesuffix(".zst"))
    assert index(indexer, archive, key).deleted == 1
    assert indexer.target().file(key) is None
    assert content(indexer, archive) != []


def test_a_transcript_that_got_the_inode_of_another_one_keeps_off_its_memory(world: World) -> None:
    indexer = world.indexer()
    key = world.write(lines(40))
    index(indexer, key)
    before = content(indexer, key)
    path = world.sessions / "a.jsonl"
    path.write_bytes(lines(60, first=100))
    path.rename(world.sessions / f"a.jsonl{RESET}")
    archive = DocumentKey("sessions", f"sessions/a.jsonl{RESET}")
    index(indexer, archive, key)
    assert content(indexer, key) == before
    assert not {text for *_, text in content(indexer, archive)} & {text for *_, text in before}


@pytest.mark.parametrize("by", ["rename", "copy", "compression"])
@pytest.mark.parametrize("more", [0, 25])
def test_a_transcript_that_moved_is_followed(world: World, by: str, more: int) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(40))
    index(indexer, key)
    before, paid = ids(indexer, key), len(provider.paid)
    path = world.sessions / "a.jsonl"
    world.append(lines(more, first=40))
    name = "archived/2026/rollout.jsonl"
    (world.sessions / name).parent.mkdir(parents=True)
    if by == "rename":
        path.rename(world.sessions / name)
    else:
        data, end = (path.read_bytes(), "") if by == "copy" else (compress(path.read_bytes()), ".zst")
        (world.sessions / f"{name}{end}").write_bytes(data)
        path.unlink()
    moved = DocumentKey("sessions", f"sessions/{name}")
    assert differences(indexer) == [moved]
    index(indexer, key, moved)
    assert indexer.target().file(key) is None
    assert ids(indexer, moved)[: len(before) - 1] == before[:-1]
    assert (len(provider.paid) > paid) == bool(more)
    assert differences(indexer) == []


@pytest.mark.parametrize("by", [Path.hardlink_to, lambda new, old: new.write_bytes(old.read_bytes())])
def test_a_copy_of_a_transcript_is_one_of_its_own(world: World, by: Callable[[Path, Path], object]) -> None:
    indexer = world.indexer()
    key = world.write(lines(40))
    index(indexer, key)
    by(world.sessions / "b.jsonl", world.sessions / "a.jsonl")
    copy = DocumentKey("sessions", "sessions/b.jsonl")
    index(indexer, copy, key)
    assert content(indexer, copy) == content(indexer, key) != []
    assert differences(indexer) == []


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


def test_an_empty_transcript_that_somebody_compressed_is_an_emptied_one(world: World) -> None:
    indexer = world.indexer()
    key = world.write(lines(40))
    index(indexer, key)
    (world.sessions / "a.jsonl").unlink()
    world.write(compress(b""), "a.jsonl.zst")
    assert index(indexer, key).failed == 0
    assert content(indexer, key) == []


@pytest.mark.parametrize("plain", [True, False])
def test_of_a_transcript_and_its_compressed_self_an_empty_one_counts_like_any_other(
    world: World, *, plain: bool
) -> None:
    indexer = world.indexer()
    key = world.write(b"" if plain else lines(40))
    world.write(compress(lines(40)) if plain else b"", "a.jsonl.zst")
    assert index(indexer, key).failed == 0
    assert (content(indexer, key) == []) == plain
    (world.sessions / "a.jsonl").unlink()
    assert index(indexer, key).failed == (0 if plain else 1)
    assert content(indexer, key) != []


@pytest.mark.parametrize("odd", ["folder", "pipe", "link"])
def test_what_is_kept_of_a_vanished_transcript_outlives_an_odd_thing_of_its_name(world: World, odd: str) -> None:
    indexer = world.indexer()
    key = world.write(lines(40))
    index(indexer, key)
    before = content(indexer, key)
    (world.sessions / "a.jsonl").unlink()
    for name in ("a.jsonl", "a.jsonl.zst"):
        path = world.sessions / name
        if odd == "folder":
            path.mkdir()
        elif odd == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("elsewhere")
        index(indexer, key)
        assert content(indexer, key) == before != []


def test_a_rebuild_keeps_what_vanished_transcripts_said(world: World) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    gone, there = world.write(lines(60), "gone.jsonl"), world.write(lines(60, first=100), "there.jsonl")
    index(indexer, gone, there)
    before, paid = content(indexer, gone), len(provider.paid)
    times = [indexer.target().times_of([number]) for number in ids(indexer, gone)]
    (world.sessions / "gone.jsonl").unlink()
    begin_rebuild(indexer)
    index(indexer, there)
    assert differences(indexer) == []
    assert complete_generation(indexer)
    assert [text for *_, text in content(indexer, gone)] == [text for *_, text in before]
    after = [indexer.target().times_of([number]) for number in ids(indexer, gone)]
    assert [list(time.values()) for time in after] == [list(time.values()) for time in times] != []
    assert len(provider.paid) == paid
    assert indexer.target().counts().vectors_pending == 0


def test_a_rebuild_leaves_out_what_is_no_transcript_by_its_name_any_more(world: World) -> None:
    indexer = world.indexer()
    index(indexer, world.write(lines(6)))
    trajectory = DocumentKey("sessions", "sessions/a.trajectory.jsonl")
    stat = FileStat(size=9, mtime_ns=1, inode=1, ctime_ns=1)
    mark = TranscriptMark(0, 0, "", "")
    notes = ("no line is of a known format",)
    written = DocumentWrite(trajectory, 0, stat, mark.digest, mark=mark, notes=notes)
    indexer.target().write([written])
    begin_rebuild(indexer)
    index(indexer, DocumentKey("sessions", "sessions/a.jsonl"))
    assert complete_generation(indexer)
    assert [file.key.path for file in indexer.target().files()] == ["sessions/a.jsonl"]


def test_a_rebuild_does_not_take_over_what_the_settings_leave_out_by_then(world: World) -> None:
    kept, out = world.write(lines(6), "kept.jsonl"), world.write(lines(6, first=100), "out.jsonl")
    index(world.indexer(), kept, out)
    indexer = world.indexer(exclude=["out.jsonl"])
    begin_rebuild(indexer)
    index(indexer, kept)
    assert differences(indexer) == []
    assert complete_generation(indexer)
    assert [file.key for file in indexer.target().files()] == [kept]


def test_a_rebuild_that_dies_while_it_carries_over_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "MAX_CHUNKS_PER_COMMIT", 3)
    indexer = world.indexer()
    gone = world.write(lines(60), "gone.jsonl")
    index(indexer, gone)
    before = content(indexer, gone)
    assert len(before) > 6
    (world.sessions / "gone.jsonl").unlink()
    begin_rebuild(indexer)
    dying = Dying(indexer, monkeypatch, left=2)
    with pytest.raises(KeyboardInterrupt):
        complete_generation(indexer)
    dying.left = 1_000
    assert complete_generation(indexer)
    assert content(indexer, gone) == before


def test_a_run_that_is_out_of_time_goes_on_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_slicing, "SLICE_CHUNKS", 5)
    indexer, once = world.indexer(), world.indexer(name="once")
    key = world.write(lines(300))
    turns, offset = 0, 0
    while (report := index(indexer, key, out_of_time=lambda: True)).left:
        mark = indexer.target().transcript(key)
        assert mark is not None
        assert mark.offset > offset, "a turn brought nothing"
        offset, turns = mark.offset, turns + 1
    assert report.documents == 1
    assert turns > 3
    index(once, key)
    assert content(indexer, key) == content(once, key)


def test_a_run_that_dies_between_two_slices_loses_and_doubles_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_slicing, "SLICE_CHUNKS", 4)
    monkeypatch.setattr(planned_groups, "MAX_CHUNKS_PER_COMMIT", 4)
    dying, once = world.indexer(), world.indexer(name="once")
    key = world.write(lines(100))
    index(dying, key)
    # Rewritten, so that stale chunks are about when it dies.
    world.write(lines(150, first=1))
    writes = Dying(dying, monkeypatch)
    for writes.left in (1, 2, 3, 1, 5):
        with pytest.raises(KeyboardInterrupt):
            index(dying, key)
        assert dying.target().check() == []
    writes.left = 1_000
    index(dying, key)
    index(once, key)
    assert content(dying, key) == content(once, key)


def test_two_that_index_the_same_transcript_do_not_double_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, once = world.indexer(), world.indexer(), world.indexer(name="once")
    key = world.write(lines(40))
    index(one, key)
    world.append(lines(40, first=40))
    slices = transcript_slicing.slices_of

    def interrupted(*args: object, **named: object) -> Iterator[transcript_slicing.TranscriptSlice]:
        # While one has read, the other commits.
        found = list(slices(*args, **named))  # type: ignore[arg-type]
        monkeypatch.setattr("memory.index.planner.slices_of", slices)
        index(two, key)
        yield from found

    monkeypatch.setattr("memory.index.planner.slices_of", interrupted)
    index(one, key)
    index(once, key)
    assert content(one, key) == content(once, key)


def test_a_transcript_that_is_written_anew_in_its_place_while_it_is_read_is_read_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_reading, "_BLOCK_BYTES", 500)
    indexer, once = world.indexer(), world.indexer(name="once")
    old = b"".join(line(number, f"old text {number:03}") for number in range(40))
    new = old.replace(b"old", b"new")
    key = world.write(old)
    read = os.pread
    reads: list[int] = []

    def rewritten_meanwhile(descriptor: int, size: int, offset: int) -> bytes:
        if len(reads) == 2:
            (world.sessions / "a.jsonl").write_bytes(new)
        reads.append(offset)
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", rewritten_meanwhile)
    index(indexer, key)
    world.append(line(40, "and one more"))
    index(indexer, key)
    index(once, key)
    assert len(reads) > 4
    assert "old" not in "".join(row[3] for row in content(once, key))
    assert content(indexer, key) == content(once, key)


def test_a_great_many_lines_that_say_nothing_are_taken_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_slicing, "SLICE_LINES", 100)
    indexer = world.indexer()
    key = world.write(b"\n" * 1000 + line(1, "after all of them"))
    turns = 0
    while index(indexer, key, out_of_time=lambda: True).left:
        turns += 1
    assert turns >= 10
    assert "after all of them" in content(indexer, key)[-1][3]


def test_a_short_damaged_transcript_is_found_by_what_was_read_and_goes_on_when_it_is_mended(world: World) -> None:
    indexer, once = world.indexer(), world.indexer(name="once")
    whole = lines(40)
    parts = [compress(whole[: len(whole) // 2]), compress(whole[len(whole) // 2 :])]
    world.write(parts[0] + parts[1][:-9], "a.jsonl.zst")
    key = DocumentKey("sessions", "sessions/a.jsonl")
    for _ in range(2):
        assert index(indexer, key).failed == 1
    read = content(indexer, key)
    assert read
    assert read[-1][2] >= 19
    world.write(b"".join(parts), "a.jsonl.zst")
    assert index(indexer, key).failed == 0
    assert not indexer.target().dead_letters()
    index(once, key)
    assert content(indexer, key) == content(once, key)


def test_an_estimate_counts_no_chunk_that_will_be_replaced_or_is_there(world: World) -> None:
    # Too slow to be waited for: every chunk stays without its vector.
    indexer = world.indexer(StubProvider(limits=replace(FAST, chunks_per_second=0.01)))
    key = world.write(lines(30))
    index(indexer, key)
    assert len(indexer.target().pending_hashes()) == len(ids(indexer, key)) > 2
    world.append(line(30, "and one more"))

    before = len(ids(indexer, key))
    grown = estimated(world, indexer, key)[1:]
    index(indexer, key)
    after = len(ids(indexer, key))
    assert before <= after <= before + 1
    assert grown == (after, after)
    # Written anew, those chunks are taken over whose words are the same.
    world.write(line(0, "it began otherwise") + lines(29, first=1) + line(30, "and one more"))
    rewritten = estimated(world, indexer, key)[1:]
    report = index(indexer, key)
    assert rewritten == (len(ids(indexer, key)),) * 2
    assert report.added > 0


def test_an_estimate_counts_what_indexing_then_does(world: World) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(100))

    messages, chunks, to_embed = estimated(world, indexer, key)
    report = index(indexer, key)
    assert (messages, chunks, to_embed) == (100, report.added, len(provider.paid))
    world.append(lines(3, first=100))
    paid = len(provider.paid)
    messages, _, to_embed = estimated(world, indexer, key)
    index(indexer, key)
    assert (messages, to_embed) == (3, len(provider.paid) - paid)


def test_secrets_reach_neither_the_index_nor_the_provider(world: World) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    secret = "ghp_" + "".join(random.Random(3).choices("abcdefghijklmnopqrstuvwxyzABCDEF0123456789", k=36))
    key = world.write(line(0, f"the key is {secret}, keep it") + line(1, "noted"))
    index(indexer, key)
    assert secret not in "".join(text for *_, text in content(indexer, key)) + "".join(provider.paid)
    assert "the key is" in content(indexer, key)[0][3]


def test_a_transcript_in_whose_place_its_compressed_self_comes_changes_nothing(world: World) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(120))
    index(indexer, key)
    before, paid = ids(indexer, key), len(provider.paid)
    (world.sessions / "a.jsonl").unlink()
    world.write(compress(lines(120)), "a.jsonl.zst")
    index(indexer, key)
    assert (ids(indexer, key), len(provider.paid)) == (before, paid)
    assert differences(indexer) == []


def test_an_archived_transcript_takes_its_chunks_along(world: World) -> None:
    provider = CountingProvider()
    indexer = world.indexer(provider)
    key = world.write(lines(120))
    index(indexer, key)
    before, paid = ids(indexer, key), len(provider.paid)
    archive = f"a.jsonl{RESET}"
    (world.sessions / "a.jsonl").rename(world.sessions / archive)
    renamed = DocumentKey("sessions", f"sessions/{archive}")
    index(indexer, renamed, key)
    assert (ids(indexer, renamed), len(provider.paid)) == (before, paid)
    assert indexer.target().file(key) is None


def test_a_line_that_is_no_json_costs_only_itself_and_is_counted(world: World) -> None:
    indexer = world.indexer()
    key = world.write(line(0, "before") + b"{broken\n" + line(1, "after the zebra"))
    index(indexer, key)
    assert len(indexer.target().search_text("zebra", 5)) == 1
    known = indexer.target().file(key)
    assert known is not None
    assert any("line 2" in note for note in known.notes)


def test_a_damaged_compressed_transcript_is_a_dead_letter_and_keeps_what_was_read(world: World) -> None:
    indexer = world.indexer()
    data = compress(lines(3000))
    world.write(data[: len(data) // 2], "a.jsonl.zst")
    key = DocumentKey("sessions", "sessions/a.jsonl")
    report = index(indexer, key)
    assert report.failed == 1
    [letter] = indexer.target().dead_letters()
    assert letter.key == key
    assert "zst" in letter.reason or "compress" in letter.reason

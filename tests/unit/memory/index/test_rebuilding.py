"""A new generation for changed settings: what it costs, what it needs, and what becomes of the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from memory.embedding.providers.stub import StubProvider
from memory.index.completion import complete_generation, fill_vectors, hidden_notes, release_refused
from memory.index.file_generation_writer import HomeOwner
from memory.index.indexer import Indexer, IndexReport
from memory.store.errors import NotOwner, Superseded
from memory.store.writer import DocumentWrite
from recalld.wiring import closed
from schemas.documents import DocumentKey, Lane
from tests import indexing
from tests.indexing import FAST
from tests.storing import chunk, vectors_of

NOTES = {
    "MEMORY.md": "The gateway is called Basalt.\n",
    "memory/2026-11-20.md": "# Friday\n\nThe code word of the vault is HERON-4711, 我们决定周五迁移数据库。\n",
}


class World(indexing.World):
    """One provider and no cache: what the old generation does not give is paid for."""

    settings: ClassVar[dict[str, Any]] = {}
    cached = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.indexes = folder / "indexes" / "main"
        self.provider = StubProvider(limits=FAST)
        for path, text in NOTES.items():
            self.write(path, text)

    def indexer(self, **settings: Any) -> Indexer:
        return super().indexer(self.provider, **settings)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def index(indexer: Indexer, *paths: str) -> IndexReport:
    keys = [DocumentKey("memory", path) for path in paths or NOTES]
    report = indexer.index(keys, lane=Lane.LIVE, on_done=lambda _: None)
    # On a busy machine vectors come later than their documents.
    fill_vectors(indexer, seconds=60)
    return report


def finds(indexer: Indexer, words: str) -> bool:
    with closed(indexer.generations.open_reader()) as reader:
        return bool(reader and reader.search_text(words, 5))


def redaction(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"redaction": {"patterns": ["DOVE-[0-9]+"]}}


def segmenter(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("memory.index.fingerprint.SEGMENTER_VERSION", "another")
    return {}


def rules(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("memory.redaction.redactor.REDACTION_VERSION", -1)
    return {}


def overlap(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"chunking": {"tokens": 400, "overlap": 40}}


@pytest.mark.parametrize("change", [redaction, rules, segmenter, overlap])
def test_a_change_that_leaves_texts_as_they_are_pays_nothing_even_without_a_cache(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[World, pytest.MonkeyPatch], dict[str, Any]]
) -> None:
    index(world.indexer())
    paid = world.provider.inputs
    assert paid == len(NOTES)
    changed = world.indexer(**change(world, monkeypatch))
    old = changed.generations.current()
    index(changed)
    assert changed.generations.current() == old, "the old one answers until the new one is whole"
    assert complete_generation(changed)
    assert changed.generations.current() != old
    counts = changed.target().counts()
    assert (counts.files, counts.vectors_ready, counts.vectors_pending) == (2, 2, 0)
    assert world.provider.inputs == paid
    assert finds(changed, "迁移")


def test_a_new_index_asks_for_refused_texts_once_and_at_another_account_only(world: World) -> None:
    world.provider.account = "one"
    index(world.indexer())
    changed = world.indexer(chunking={"tokens": 400, "overlap": 40})
    index(changed)
    store, key = changed.target(), DocumentKey("memory", "MEMORY.md")
    known = store.file(key)
    assert known is not None
    refused = chunk("An odd line.", 1, refused="too long")
    store.write(
        [DocumentWrite(key, store.revision(key), known.stat, known.content_hash, (refused,), vectors_of([refused]))]
    )
    assert complete_generation(changed)
    assert release_refused(changed) == 0
    assert len(changed.target().dead_letters()) == 1
    world.provider.account = "another"
    assert (release_refused(changed), release_refused(changed)) == (1, 0)
    assert not changed.target().dead_letters()


def test_new_redaction_rules_leave_no_file_behind_that_holds_the_text_unmasked(world: World) -> None:
    plain = world.indexer()
    index(plain)
    damaged = world.indexes / "20200101T000000-0-0000.sqlite.corrupt-1577836800"
    damaged.write_bytes(b"HERON-4711")
    reader = plain.generations.open_reader()
    assert reader is not None
    masked = world.indexer(redaction={"patterns": ["HERON-[0-9]+"]})
    index(masked)
    assert b"HERON-4711" in _content(world.indexes)
    assert complete_generation(masked)
    assert b"HERON-4711" not in _content(world.indexes)
    assert len(reader.search_text("4711", 5)) == 1, "who is in the middle of a query finishes"
    reader.close()
    assert not finds(masked, "4711")
    assert finds(masked, "vault")


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_job_wrote_that_a_new_generation_does_not_have_is_not_said_to_be_done(
    world: World, *, whole: bool
) -> None:
    old = world.indexer()
    index(old)

    def keys() -> Iterator[DocumentKey]:
        changed = world.indexer(chunking={"tokens": 64, "overlap": 0})
        index(changed)
        assert not whole or complete_generation(changed)
        yield world.write("MEMORY.md", "The gateway is called Granite.\n")

    done: list[DocumentKey] = []
    with pytest.raises(Superseded):
        old.index(keys(), lane=Lane.LIVE, on_done=done.extend)
    assert not done


def test_only_the_owner_replaces_an_index_and_other_workers_obey(world: World, tmp_path: Path) -> None:
    first, second = HomeOwner(tmp_path), HomeOwner(tmp_path)
    settings = {"chunking": {"tokens": 64, "overlap": 0}}
    index(world.indexer(owner=second))
    assert first.owns()
    other = world.indexer(owner=second, **settings)
    done: list[DocumentKey] = []
    with pytest.raises(NotOwner, match="start both again with the same ones"):
        other.index([world.write("MEMORY.md", "The gateway is called Granite.\n")], lane=Lane.LIVE, on_done=done.extend)
    assert (done, other.generations.next()) == ([], None)

    mine = world.indexer(owner=first, **settings)
    index(mine)
    assert finds(mine, "granite")
    index(other)
    with pytest.raises(NotOwner):
        complete_generation(other)
    assert complete_generation(mine)
    index(other)

    first.close()
    assert second.owns()
    index(world.indexer(owner=second))
    assert complete_generation(world.indexer(owner=second))
    second.close()


def _content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_settings_changed_without_a_workspace_leave_the_old_index_answering(world: World) -> None:
    index(world.indexer())
    disk = world.workspace.rename(world.workspace.with_name("disk"))
    for mounted in (False, True):  # the folder is gone, and then it is an empty mount point
        if mounted:
            world.workspace.mkdir()
        changed = world.indexer(chunking={"tokens": 200, "overlap": 20})
        changed.target()
        assert not complete_generation(changed)
        assert sorted(key.path for key in hidden_notes(changed)) == sorted(NOTES)
        assert finds(changed, "Basalt")
    world.workspace.rmdir()
    disk.rename(world.workspace)
    assert hidden_notes(changed) == []
    index(changed)
    assert complete_generation(changed)
    assert finds(changed, "Basalt")

"""However much of a document changes: no transaction is long, no search waits for one, and no crash leaves half."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import apsw
import pytest

from memory.index import changes as planned_groups
from memory.index import completion
from memory.index import transcript_slices as transcript_slicing
from memory.index.completion import fill_vectors
from memory.index.indexer import Indexer
from memory.store import document_transaction as transactions
from memory.store.options import StoreOptions
from memory.store.sqlite.transaction import WriteTransaction
from memory.store.sqlite.writer import SqliteStore
from schemas.documents import DocumentKey, Lane
from tests import indexing

#: Chunks that a transaction may change and add here, so that small documents are large ones.
MOST, ADDED = 20, 10

NOTE = DocumentKey("memory", "memory/large.md")
SMALL = [DocumentKey("memory", f"memory/{number}.md") for number in range(12)]
TALK = DocumentKey("sessions", "sessions/talk.jsonl")
EVERYTHING = [NOTE, TALK, *SMALL]


class World(indexing.World):
    """One agent with a large note, a long transcript and some small notes."""

    settings: ClassVar[dict[str, Any]] = {
        "chunking": {"tokens": 32, "overlap": 0},
        "sync": {"sessions": {"forget_deleted": True}},
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        note(self, "old", 90)
        talk(self, "old", 90)
        for number in range(12):
            self.write(
                f"memory/{number}.md", "".join(f"# Part {part}\n\n{number} heron {part}\n\n" for part in range(6))
            )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(transactions, "MOST_CHANGED", MOST)
    monkeypatch.setattr(transactions, "MOST_ADDED", ADDED)
    for module in (planned_groups, completion):
        monkeypatch.setattr(module, "MAX_CHUNKS_PER_COMMIT", ADDED)
    monkeypatch.setattr(transcript_slicing, "SLICE_CHUNKS", ADDED)
    with World(tmp_path) as made:
        yield made


def note(world: World, word: str, parts: int) -> None:
    world.write(NOTE.path, "".join(f"# Part {n}\n\n{f'{word}{n} ' * 10}\n\n" for n in range(parts)))


def talk(world: World, word: str, parts: int) -> None:
    lines = [
        json.dumps({"role": "user", "content": f"{word}{n} " * 20, "timestamp": f"2026-02-03T09:{n % 60:02}:00Z"})
        for n in range(parts)
    ]
    draft = world.folder / "draft"
    draft.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    draft.replace(world.sessions / "talk.jsonl")


def index(indexer: Indexer) -> None:
    report = indexer.index(EVERYTHING, lane=Lane.LIVE, on_done=lambda _: None)
    assert report.again is None
    fill_vectors(indexer, seconds=60)


def rewrite(world: World) -> None:
    note(world, "new", 95)
    talk(world, "new", 95)


def delete(world: World) -> None:
    (world.folder / "workspace" / NOTE.path).unlink()
    (world.sessions / "talk.jsonl").unlink()
    for key in SMALL:
        (world.folder / "workspace" / key.path).unlink()


def empty_the_small(world: World) -> None:
    for key in SMALL:
        world.write(key.path, "heron\n")


CHANGES = [rewrite, delete, empty_the_small]


class Watch:
    """Record of transactions: chunks changed in each, and the answer of another connection's search inside of it."""

    def __init__(self) -> None:
        self.changed: list[Counter[str]] = []
        self.at_commit: Callable[[SqliteStore], None] = lambda _store: None

    def attach(self, store: SqliteStore) -> None:
        counter: Counter[str] = Counter()
        rows: set[tuple[int, int]] = set()

        def changed(kind: int, _database: str, table: str, row: int) -> None:
            if table == "chunks" and (kind, row) not in rows:
                rows.add((kind, row))
                counter["changed"] += 1
                counter["added"] += kind == apsw.SQLITE_INSERT

        def committing() -> bool:
            if counter:
                self.changed.append(Counter(counter))
                counter.clear()
                rows.clear()
                self.at_commit(store)
            return False

        store._writer.set_update_hook(changed)
        store._writer.set_commit_hook(committing)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    begin = SqliteStore.__init__

    def watched(store: SqliteStore, path: Path, options: StoreOptions) -> None:
        begin(store, path, options)
        made.attach(store)

    monkeypatch.setattr(SqliteStore, "__init__", watched)
    return made


@pytest.mark.parametrize("change", CHANGES)
def test_no_transaction_changes_more_than_a_bounded_number_of_chunks(
    world: World, watch: Watch, change: Callable[[World], None]
) -> None:
    indexer = world.indexer()
    index(indexer)
    assert indexer.target().counts().chunks > 8 * MOST
    change(world)
    index(indexer)
    assert max(one["changed"] for one in watch.changed) <= MOST
    assert max(one["added"] for one in watch.changed) <= ADDED
    assert content(indexer) == content(fresh(world))
    assert indexer.target().check() == []


def test_a_search_waits_for_no_transaction_and_finds_every_document_in_a_version(world: World, watch: Watch) -> None:
    indexer = world.indexer()
    index(indexer)
    found: list[list[bool]] = []

    def look(store: SqliteStore) -> None:
        # In the thread that writes, with its transaction open: whoever waited for it would wait for ever.
        found.append([bool(store.search_text(word, 5)) for word in ("old0", "new0", "old89", "new89")])

    watch.at_commit = look
    rewrite(world)
    index(indexer)
    assert len(found) > 8
    assert all(old or new for old, new, *_ in found)
    assert all(old or new for *_, old, new in found)


class Killed(BaseException):
    """The process died here."""


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_crash_at_any_transaction_the_next_look_at_the_files_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[World], None]
) -> None:
    index(world.indexer())
    change(world)
    finish = WriteTransaction.finish
    kills = 0
    for lives in range(200):
        left = iter(range(lives))

        def dying(transaction: WriteTransaction, left: Iterator[int] = left) -> None:
            finish(transaction)
            if next(left, None) is None:
                raise Killed

        indexer = world.indexer()
        with monkeypatch.context() as patched:
            patched.setattr(WriteTransaction, "finish", dying)
            try:
                index(indexer)
            except Killed:
                kills += 1
                assert indexer.target().check() == []
            else:
                break
    assert kills > 1
    assert content(world.indexer()) == content(fresh(world))
    assert world.indexer().target().check() == []


def fresh(world: World) -> Indexer:
    """An index of the files as they are, made at once."""
    made = world.indexer(name="fresh")
    index(made)
    return made


def content(indexer: Indexer) -> dict[str, list[tuple[int, int, int, str, str]]]:
    """Ordinal, lines, text and vector state of every document's chunks."""
    store = indexer.target()
    found = {}
    for file in store.files():
        chunks = store.chunks_of(file.key)
        rows = store.chunk_rows([chunk.id for chunk in chunks])
        found[file.key.path] = [
            (chunk.ordinal, chunk.start_line, chunk.end_line, rows[chunk.id].text, chunk.vector_state.value)
            for chunk in chunks
        ]
    return found

"""Any sequence of changes, written into every store: all hold the same, and what was said last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memory.index.changes import UnmatchedChunks
from memory.store.options import StoreOptions
from memory.store.postgres.connection import Database
from memory.store.reader import SentenceSigns, TranscriptPosition, VectorState
from memory.store.writer import DocumentDelete, DocumentWrite, Refusal, WriteOutcome
from schemas.documents import DocumentKey
from tests.examples import examples
from tests.postgres_store import postgres_store
from tests.storing import STAT, TemporaryStore, VectorChunk, chunk, key, piece, position, text_hash, vector, vectors_of

NOTES = (key("MEMORY.md"), key("memory/笔记.md"))
TALKS = (key("sessions/a.jsonl", source="sessions"), key("sessions/b.jsonl", source="sessions"))
TEXTS = ("gateway", "数据库迁移", "deploy", "User: C++ and 网关")

HASHES = [text_hash(text) for text in TEXTS]

#: Texts of a document, and the state that each has if it is new.
#: States of a chunk in every store.
STATES = [state for state in VectorState if state is not VectorState.HELD]
SAID = st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(STATES)), max_size=5)


@pytest.fixture(scope="module", autouse=True)
def _database(fleet_database: Database) -> None:
    StoreMachine.database = fleet_database


class StoreMachine(RuleBasedStateMachine):
    """`current` is what each document says; a transcript that is not `finished` has stale chunks besides."""

    database: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        without_sqlite_vec = TemporaryStore(StoreOptions(extension_path=Path("/nowhere/vec0.so")))
        self.stores = TemporaryStore(), without_sqlite_vec, postgres_store(self.database)
        self.current: dict[DocumentKey, list[str]] = {}
        self.finished: set[DocumentKey] = set()
        self.read: dict[DocumentKey, int] = {}
        self.parts = 0

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    @rule(name=st.sampled_from(NOTES), said=SAID)
    def write_note(self, name: DocumentKey, said: list[tuple[str, VectorState]]) -> None:
        for store in self.stores:
            stored = UnmatchedChunks(store.chunks_of(name))
            cut = _cut(said, 0)
            added, moved = stored.take_over(cut)
            change = DocumentWrite(
                name,
                store.revision(name),
                STAT,
                text_hash(str(said)),
                added=added,
                vectors=vectors_of(cut),
                moved=moved,
                removed=stored.remaining_ids(),
            )
            assert store.write([change]) == [WriteOutcome.COMMITTED]
        self.current[name] = [text for text, _ in said]
        self.finished.add(name)

    @rule(name=st.sampled_from(TALKS), parts=st.lists(SAID, min_size=1, max_size=3), kept=st.integers(0, 9))
    def write_parts(self, name: DocumentKey, parts: list[list[tuple[str, VectorState]]], kept: int) -> None:
        """Some parts of one transcript in one call, the last one complete or not."""
        before = self.current.get(name, [])[:kept]
        complete = kept % 2 == 0
        for store in self.stores:
            stored = UnmatchedChunks(store.chunks_of(name, first=len(before)), stale=True)
            expected: int | TranscriptPosition = store.transcript(name) or store.revision(name)
            changes = []
            ordinal = len(before)
            for number, said in enumerate(parts, start=self.parts):
                cut = _cut(said, ordinal)
                added, moved = stored.take_over(cut)
                last = complete and said is parts[-1]
                part = piece(
                    *added,
                    continues=None,
                    to=position(number),
                    stale_from=len(before) if number == self.parts else None,
                    moved=moved,
                    removed=stored.remaining_ids() if last else (),
                    final=last,
                    of=name,
                )
                changes.append(replace(part, expected=expected))
                expected, ordinal = position(number), ordinal + len(said)
            assert store.write(changes) == [WriteOutcome.COMMITTED] * len(changes)
        self.parts += len(parts)
        self.current[name] = before + [text for said in parts for text, _ in said]
        self.finished = self.finished | {name} if complete else self.finished - {name}

    @rule(name=st.sampled_from(TALKS))
    def write_late(self, name: DocumentKey) -> None:
        late = piece(
            chunk("late"), continues=TranscriptPosition(1, 1, "of nothing", ""), to=position(1), stale_from=0, of=name
        )
        for store in self.stores:
            assert store.write([late]) == [WriteOutcome.CONFLICT]

    @rule(name=st.sampled_from(NOTES + TALKS))
    def delete(self, name: DocumentKey) -> None:
        for store in self.stores:
            assert store.write([DocumentDelete(name, store.revision(name))]) == [WriteOutcome.COMMITTED]
        self._deleted(name)

    def _deleted(self, name: DocumentKey) -> None:
        self.current.pop(name, None)
        self.finished.discard(name)

    @rule(name=st.sampled_from(NOTES + TALKS))
    def read_source(self, name: DocumentKey) -> None:
        """Take a revision, for a commit much later."""
        self.read[name] = self.stores[0].revision(name)

    @precondition(lambda self: self.read)
    @rule(data=st.data())
    def delete_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.read)))
        expected = self.read.pop(name)
        same = self.stores[0].revision(name) == expected
        for store in self.stores:
            outcome = store.write([DocumentDelete(name, expected)])
            assert outcome == [WriteOutcome.COMMITTED if same else WriteOutcome.CONFLICT]
        if same:
            self._deleted(name)

    @rule()
    def rename(self) -> None:
        old, new = TALKS
        expected = old in self.current and new not in self.current
        for store in self.stores:
            assert store.rename_document(old, new) is expected
        if expected:
            self.current[new] = self.current.pop(old)
            if old in self.finished:
                self.finished = self.finished - {old} | {new}

    @rule(refuse=st.booleans(), limit=st.integers(1, 4))
    def join_vectors(self, refuse: bool, limit: int) -> None:
        for store in self.stores:
            given = {
                number: (digest, Refusal("no") if refuse else vector(HASHES.index(digest)))
                for number, digest in store.pending_hashes(limit).items()
            }
            assert store.write_vectors(given) == len(given)

    @rule(count=st.integers(1, 4))
    def add_sentences(self, count: int) -> None:
        sentences = SentenceSigns(np.zeros((3, 2), dtype=np.uint8), np.ones(3, dtype=np.bool_))
        for store in self.stores:
            store.add_sentences(dict.fromkeys(HASHES[:count], sentences))

    @rule(name=st.sampled_from(NOTES + TALKS))
    def retry(self, name: DocumentKey) -> None:
        for store in self.stores:
            refused = [one for one in store.chunks_of(name) if one.vector_state is VectorState.REFUSED]
            assert store.retry_dead_letter(name) == len(refused)

    @rule()
    def fail_in_the_middle(self) -> None:
        """A write that cannot go through leaves everything as it was."""
        broken = key("memory/broken.md")
        added = (chunk("gateway"), chunk("x", 1, vector=vector(1, 3)))
        for store in self.stores if self.stores[0].meta("dimensions") else ():
            change = DocumentWrite(broken, store.revision(broken), STAT, "h", added=added, vectors=vectors_of(added))
            try:
                store.write([change])
            except ValueError:
                continue
            raise AssertionError("a vector of three dimensions was taken")

    @rule()
    def reopen(self) -> None:
        self.stores[0].reopen()

    @invariant()
    def hold_together(self) -> None:
        assert [store.check() for store in self.stores] == [[], [], []]

    @invariant()
    def say_what_was_said_last(self) -> None:
        store = self.stores[0]
        assert {file.key for file in store.files()} == set(self.current)
        for name, said in self.current.items():
            stored = store.chunks_of(name)
            rows = store.chunk_rows([one.id for one in stored])
            current = [one for one in stored if one.ordinal >= 0]
            assert [rows[one.id].text for one in current] == said
            assert [one.ordinal for one in current] == list(range(len(said)))
            assert name not in self.finished or stored == current

    @invariant()
    def say_the_same(self) -> None:
        one, *others = self.stores
        for other in others:
            for name in NOTES + TALKS:
                assert one.chunks_of(name) == other.chunks_of(name)
                assert one.transcript(name) == other.transcript(name)
                assert one.revision(name) == other.revision(name)
                mine, theirs = one.file(name), other.file(name)
                assert (mine and replace(mine, indexed_at=0)) == (theirs and replace(theirs, indexed_at=0))
        letters = [{(one.key, one.reason, one.attempts) for one in store.dead_letters()} for store in self.stores]
        assert letters[0] == letters[1] == letters[2]

    @invariant()
    def have_a_letter_of_every_document_with_a_refused_chunk(self) -> None:
        store = self.stores[0]
        assert {letter.key for letter in store.dead_letters()} == {
            name
            for name in self.current
            if any(one.vector_state is VectorState.REFUSED for one in store.chunks_of(name))
        }

    @invariant()
    def find_what_they_hold(self) -> None:
        for store in self.stores:
            held = [one for name in self.current for one in store.chunks_of(name)]
            for text in TEXTS[:3]:
                found = {hit.id for hit in store.search_text(text, 200)}
                assert found == {one.id for one in held if one.text_hash == text_hash(text)}
            ready = {one.id: one.text_hash for one in held if one.vector_state is VectorState.READY}
            hits = store.search_vectors(vector(0), 200)
            assert {hit.id for hit in hits} == set(ready)
            assert {ready[hit.id] for hit in hits if hit.score > 0.99} <= {text_hash(TEXTS[0])}


def _cut(said: list[tuple[str, VectorState]], first: int) -> list[VectorChunk]:
    """Return the chunks of a new version; a repeated text has the outcome of its last repeat."""
    return [
        chunk(
            text,
            ordinal,
            vector=vector(TEXTS.index(text)) if state is VectorState.READY else None,
            refused="no" if state is VectorState.REFUSED else None,
        )
        for ordinal, (text, state) in enumerate(said, start=first)
    ]


TestStoreLaws = StoreMachine.TestCase
TestStoreLaws.settings = settings(
    max_examples=examples(15), stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

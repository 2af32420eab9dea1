"""Any sequence of slices, written with sqlite-vec and without: both stores hold the same, and what was said last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from memory.store.options import StoreOptions
from memory.store.reader import TranscriptMark, VectorState
from memory.store.writer import DocumentDelete, NewChunk, Refusal, Store, TranscriptWrite, WriteOutcome
from schemas.documents import DocumentKey
from tests.storing import TemporaryStore, chunk, key, mark, piece, vector

NAMES = (key("sessions/a.jsonl", source="sessions"), key("sessions/b.jsonl", source="sessions"))
TEXTS = ("gateway", "数据库迁移", "deploy", "一二三")

SAID = st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(list(VectorState))), max_size=5)


class TranscriptMachine(RuleBasedStateMachine):
    """`current` is what the new version says so far; there may be stale chunks besides until a final slice."""

    def __init__(self) -> None:
        super().__init__()
        self.sqlite = TemporaryStore()
        self.plain = TemporaryStore(StoreOptions(extension_path=Path("/nowhere/vec0.so")))
        self.current: dict[DocumentKey, list[str]] = {}
        self.finished: set[DocumentKey] = set()
        self.slices = 0

    def teardown(self) -> None:
        for store in self.stores():
            store.close()

    @rule(name=st.sampled_from(NAMES), parts=st.lists(st.tuples(SAID, st.integers(0, 9), st.booleans()), max_size=3))
    def write(self, name: DocumentKey, parts: list[tuple[list[tuple[str, VectorState]], int, bool]]) -> None:
        """Some slices of one transcript in one call."""
        changes: list[TranscriptWrite] = []
        before = self.sqlite.transcript(name)
        for texts, keep, final in parts:
            self.slices += 1
            kept = self.current.get(name, [])[:keep]
            self.current[name] = kept + [text for text, _ in texts]
            added = [_chunk(text, len(kept) + place, state) for place, (text, state) in enumerate(texts)]
            to = mark(self.slices)
            changes.append(piece(*added, continues=before, to=to, keep=keep, final=final, of=name))
            before = to
            self.finished = self.finished | {name} if final else self.finished - {name}
        for store in self.stores():
            assert store.write(changes) == [WriteOutcome.COMMITTED] * len(changes)

    @rule(name=st.sampled_from(NAMES))
    def write_late(self, name: DocumentKey) -> None:
        late = piece(chunk("late"), continues=TranscriptMark(1, 1, "of nothing", ""), to=mark(1), keep=0, of=name)
        for store in self.stores():
            assert store.write([late]) == [WriteOutcome.CONFLICT]

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: DocumentKey) -> None:
        for store in self.stores():
            assert store.write([DocumentDelete(name, store.revision(name))]) == [WriteOutcome.COMMITTED]
        self.current.pop(name, None)
        self.finished.discard(name)

    @rule()
    def rename(self) -> None:
        old, new = NAMES
        expected = old in self.current and new not in self.current
        for store in self.stores():
            assert store.rename_document(old, new) is expected
        if expected:
            self.current[new] = self.current.pop(old)
            if old in self.finished:
                self.finished = self.finished - {old} | {new}

    @rule(refuse=st.booleans(), limit=st.integers(1, 4))
    def join_vectors(self, refuse: bool, limit: int) -> None:
        for store in self.stores():
            pending = store.pending_chunks(limit)
            given = {
                one.id: (one.text_hash, Refusal("no") if refuse else vector(TEXTS.index(one.text))) for one in pending
            }
            assert store.write_vectors(given) == len(pending)

    @rule(name=st.sampled_from(NAMES))
    def retry(self, name: DocumentKey) -> None:
        assert self.sqlite.retry_dead_letter(name) == self.plain.retry_dead_letter(name)

    @rule()
    def reopen(self) -> None:
        self.sqlite.reopen()

    def stores(self) -> tuple[Store, Store]:
        return self.sqlite, self.plain

    @invariant()
    def hold_together(self) -> None:
        assert self.sqlite.check() == self.plain.check() == []

    @invariant()
    def say_what_was_said_last(self) -> None:
        for name in NAMES:
            stored = self.sqlite.chunks_of(name)
            rows = self.sqlite.chunk_rows([one.id for one in stored])
            current = [rows[one.id].text for one in stored if one.ordinal >= 0]
            assert current == self.current.get(name, [])
            assert [one.ordinal for one in stored if one.ordinal >= 0] == list(range(len(current)))
            if name in self.finished:
                assert len(stored) == len(current)

    @invariant()
    def say_the_same(self) -> None:
        for name in NAMES:
            assert self.sqlite.chunks_of(name) == self.plain.chunks_of(name)
            assert self.sqlite.transcript(name) == self.plain.transcript(name)
            assert self.sqlite.revision(name) == self.plain.revision(name)
            mine, theirs = (store.file(name) for store in self.stores())
            assert (mine and replace(mine, indexed_at=0)) == (theirs and replace(theirs, indexed_at=0))
        letters = [{(one.key, one.reason, one.attempts) for one in store.dead_letters()} for store in self.stores()]
        assert letters[0] == letters[1]

    @invariant()
    def find_the_same(self) -> None:
        for text in TEXTS:
            found = [{hit.id for hit in store.search_text(text, 200)} for store in self.stores()]
            assert found[0] == found[1]
            rows = self.sqlite.chunk_rows(list(found[0]))
            assert {row.text for row in rows.values()} <= {text}
            said_last = sum(texts.count(text) for texts in self.current.values())
            assert len(rows) >= said_last
            assert len(rows) == said_last or self.finished != set(self.current)
        near = [{hit.id for hit in store.search_vectors(vector(0), 200)} for store in self.stores()]
        assert near[0] == near[1]


def _chunk(text: str, ordinal: int, state: VectorState) -> NewChunk:
    return chunk(
        text,
        ordinal,
        vector=vector(TEXTS.index(text)) if state is VectorState.READY else None,
        refused="no" if state is VectorState.REFUSED else None,
    )


TestTranscriptLaws = TranscriptMachine.TestCase
TestTranscriptLaws.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

"""Any sequence of writes, deletes and joining vectors, against a model of a few lines."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memory.store.reader import VectorState
from memory.store.writer import DocumentDelete, DocumentWrite, KeptChunk, Refusal, WriteOutcome
from tests.storing import STAT, TemporaryStore, chunk, key, text_hash, vector

PATHS = ("MEMORY.md", "memory/a.md", "memory/笔记.md")
TEXTS = ("gateway", "数据库迁移", "deploy", "C++ and 网关", "one more")

# What a new chunk comes with: a vector, nothing yet, or a refusal.
STATES = st.sampled_from(list(VectorState))


@dataclass
class ModelChunk:
    """What the model knows of one chunk."""

    id: int
    text: str
    state: VectorState


class StoreMachine(RuleBasedStateMachine):
    """A model of a few lines beside SQLite."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, list[ModelChunk]] = {}
        self.stale: dict[str, int] = {}
        self.store = TemporaryStore()

    def teardown(self) -> None:
        self.store.close()

    @rule(
        path=st.sampled_from(PATHS),
        added=st.lists(st.tuples(st.sampled_from(TEXTS), STATES), max_size=4),
        keep=st.lists(st.booleans(), min_size=8, max_size=8),
    )
    def write(self, path: str, added: list[tuple[str, VectorState]], keep: list[bool]) -> None:
        before = self.model.get(path, [])
        kept = [one for one, stays in zip(before, keep * 9, strict=False) if stays]
        removed = tuple(one.id for one in before if one not in kept)
        change = DocumentWrite(
            key=key(path),
            expected_revision=self.store.revision(key(path)),
            stat=STAT,
            content_hash=text_hash(str(added)),
            added=tuple(
                chunk(
                    text,
                    len(kept) + place,
                    vector=vector(TEXTS.index(text)) if state is VectorState.READY else None,
                    refused="no" if state is VectorState.REFUSED else None,
                )
                for place, (text, state) in enumerate(added)
            ),
            moved=tuple(KeptChunk(one.id, place, place + 1, place + 1) for place, one in enumerate(kept)),
            removed=removed,
        )
        assert self.store.write([change]) == [WriteOutcome.COMMITTED]
        ids = [stored.id for stored in self.store.chunks_of(key(path))]
        new = [ModelChunk(ids[len(kept) + place], text, state) for place, (text, state) in enumerate(added)]
        self.model[path] = [*kept, *new]

    @rule(path=st.sampled_from(PATHS))
    def delete(self, path: str) -> None:
        change = DocumentDelete(key(path), self.store.revision(key(path)))
        assert self.store.write([change]) == [WriteOutcome.COMMITTED]
        self.model.pop(path, None)

    @rule(path=st.sampled_from(PATHS))
    def read_source(self, path: str) -> None:
        """Somebody takes a revision, and will commit much later."""
        self.stale[path] = self.store.revision(key(path))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def commit_late(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.stale)))
        expected = self.stale.pop(path)
        current = self.store.revision(key(path))
        outcome = self.store.write([DocumentDelete(key(path), expected)])
        assert outcome == [WriteOutcome.COMMITTED if expected == current else WriteOutcome.CONFLICT]
        if expected == current:
            self.model.pop(path, None)

    @rule(refuse=st.booleans(), limit=st.integers(1, 4))
    def join_vectors(self, refuse: bool, limit: int) -> None:
        pending = self.store.pending_chunks(limit)
        given = {one.id: (one.text_hash, Refusal("no") if refuse else vector(TEXTS.index(one.text))) for one in pending}
        assert self.store.write_vectors(given) == len(pending)
        for one in self.chunks():
            if one.id in given:
                one.state = VectorState.REFUSED if refuse else VectorState.READY

    @rule(path=st.sampled_from(PATHS))
    def retry(self, path: str) -> None:
        refused = [one for one in self.model.get(path, []) if one.state is VectorState.REFUSED]
        assert self.store.retry_dead_letter(key(path)) == len(refused)
        for one in refused:
            one.state = VectorState.PENDING

    @rule()
    def fail_in_the_middle(self) -> None:
        """A write that cannot go through leaves everything as it was."""
        if self.store.meta("dimensions") is None:
            return
        broken = key("memory/broken.md")
        added = (chunk("gateway"), chunk("x", 1, vector=vector(1, 3)))
        change = DocumentWrite(broken, self.store.revision(broken), STAT, "h", added=added)
        try:
            self.store.write([change])
        except ValueError:
            return
        raise AssertionError("a vector of three dimensions was taken")

    def chunks(self) -> list[ModelChunk]:
        return [one for held in self.model.values() for one in held]

    @invariant()
    def holds_together(self) -> None:
        assert self.store.check() == []

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for path in PATHS:
            stored = self.store.chunks_of(key(path))
            assert [(one.id, one.vector_state) for one in stored] == [
                (one.id, one.state) for one in self.model.get(path, [])
            ]
            assert (self.store.file(key(path)) is not None) == (path in self.model)
        rows = self.store.chunk_rows([one.id for one in self.chunks()])
        assert {number: row.text for number, row in rows.items()} == {one.id: one.text for one in self.chunks()}

    @invariant()
    def has_a_letter_of_every_document_with_a_refused_chunk(self) -> None:
        refused = {path for path, held in self.model.items() if any(one.state is VectorState.REFUSED for one in held)}
        assert {letter.key.path for letter in self.store.dead_letters()} == refused

    @invariant()
    def finds_what_the_model_holds(self) -> None:
        for text in TEXTS[:3]:
            found = {hit.id for hit in self.store.search_text(text, 200)}
            assert found == {one.id for one in self.chunks() if one.text == text}
        ready = {one.id for one in self.chunks() if one.state is VectorState.READY}
        hits = self.store.search_vectors(vector(0), 200)
        assert {hit.id for hit in hits} == ready
        assert {hit.id for hit in hits if hit.score > 0.99} == {
            one.id for one in self.chunks() if one.id in ready and one.text == TEXTS[0]
        }


TestSqliteLaws = StoreMachine.TestCase
TestSqliteLaws.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

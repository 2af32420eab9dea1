"""Vectors held in memory answer exactly like a scan of all blocks, after any commit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.file_generations import FileGenerations
from memory.index.fingerprint import Fingerprint
from memory.index.readers import SharedReader
from memory.store.options import StoreOptions
from memory.store.reader import ChunkFilter, Vector, VectorState
from memory.store.sqlite import vectors as sqlite_vectors
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.vectors import ResidentVectors, VectorShelf
from memory.store.writer import DocumentDelete, DocumentWrite, MovedChunk
from tests.examples import examples
from tests.storing import STAT, chunk, document, key, vectors_of

DOCUMENTS = [key("MEMORY.md"), key("memory/a.md"), key("memory/b.md")]
QUERIES = 2


def exact_vector(seed: int) -> Vector:
    """A unit vector of quarters: products are exact in any order of summation, and equal vectors score equally."""
    signs = np.random.default_rng(seed).choice([-0.25, 0.25], 16)
    return np.asarray(signs, dtype=np.float32)


@pytest.fixture(autouse=True, scope="module")
def blocks_of_eight_rows() -> Iterator[None]:
    """So that a few vectors are several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_vectors, "MAX_BLOCK_BYTES", 8 * 16 * 4)
        yield


def resident_of(reader: object) -> ResidentVectors:
    assert isinstance(reader, SqliteReader)
    assert reader._resident is not None
    return reader._resident


class ResidentVectorsMachine(RuleBasedStateMachine):
    """Writes over connections of its own; the reader under test stays open, as a service's does."""

    #: Bytes of vectors from which on they are rounded.
    exact_bytes = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.shelf = VectorShelf(hot_at_search=1, exact_bytes=self.exact_bytes)
        self.writer = FileGenerationWriter(self.folder, StoreOptions())
        self.generation = 0
        (self.store,) = self.writer.open_writer(Fingerprint("0", "{}"))
        self.shared = SharedReader(FileGenerations(self.folder, StoreOptions(), shelf=self.shelf))
        self.seed = 0

    def teardown(self) -> None:
        self.shared.close()
        self.writer.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(count=st.integers(0, 60))
    def begin(self, count: int) -> None:
        self.write(0, ["ready"] * count, keep=[True] * 8)

    @rule(
        place=st.integers(0, len(DOCUMENTS) - 1),
        states=st.lists(st.sampled_from(["ready", "ready", "pending"]), max_size=6),
        keep=st.lists(st.booleans(), min_size=8, max_size=8),
    )
    def write(self, place: int, states: list[str], keep: list[bool]) -> None:
        """An edit: some chunks stay, some go, some are new."""
        before = self.store.chunks_of(DOCUMENTS[place])
        kept = [one for one, stays in zip(before, keep * 99, strict=False) if stays]
        added = tuple(self.fresh(len(kept) + number, state) for number, state in enumerate(states))
        self.commit(
            DocumentWrite(
                key=DOCUMENTS[place],
                expected=self.store.revision(DOCUMENTS[place]),
                stat=STAT,
                content_hash="x",
                added=added,
                vectors=vectors_of(added),
                moved=tuple(MovedChunk(one.id, number, number + 1, number + 1) for number, one in enumerate(kept)),
                removed=tuple(one.id for one in before if one not in kept),
            )
        )

    @rule(place=st.integers(0, len(DOCUMENTS) - 1))
    def delete(self, place: int) -> None:
        self.commit(DocumentDelete(DOCUMENTS[place], self.store.revision(DOCUMENTS[place])))

    @rule(place=st.integers(0, len(DOCUMENTS) - 1))
    def delete_and_write_in_one_transaction(self, place: int) -> None:
        """So that rows of deleted vectors are another chunk's before anybody has looked."""
        known = self.store.revision(DOCUMENTS[place])
        other = DOCUMENTS[place - 1]
        added = tuple(self.fresh(100 + number, "ready") for number in range(5))
        self.store.write(
            [
                DocumentDelete(DOCUMENTS[place], known),
                DocumentWrite(other, self.store.revision(other), STAT, "x", added=added, vectors=vectors_of(added)),
            ]
        )

    @rule(count=st.integers(1, 9))
    def fill_vectors(self, count: int) -> None:
        waiting = self.store.pending_hashes(count)
        self.store.write_vectors({number: (text_hash, exact_vector(number)) for number, text_hash in waiting.items()})

    @rule(count=st.integers(0, 40))
    def build_a_new_generation(self, count: int) -> None:
        """Its chunks have the ids that the old one's had, and other vectors."""
        self.generation += 1
        self.writer.open_writer(Fingerprint(str(self.generation), "{}"))
        stores = self.writer.open_stores()
        vectors = [exact_vector(self.seed + number + 1_000) for number in range(count)]
        stores[-1].write([document(DOCUMENTS[0], *[f"{number}" for number in range(count)], vectors=vectors)])
        assert self.writer.complete(str(self.generation))
        (self.store,) = self.writer.open_writer(Fingerprint(str(self.generation), "{}"))

    @invariant()
    def held_vectors_answer_like_a_scan(self) -> None:
        scan = FileGenerations(self.folder, StoreOptions()).open_reader()
        assert scan is not None
        with self.shared.lease() as reader:
            assert reader is not None
            for query in map(exact_vector, range(QUERIES)):
                for within in (None, ChunkFilter(("memory",)), ChunkFilter(("sessions",))):
                    for k in (3, 500):
                        assert reader.search_vectors(query, k, within) == scan.search_vectors(query, k, within)
            view = resident_of(reader).view
            # What was compared came from memory.
            if scan.meta("dimensions") is not None:
                assert view is not None
                assert str(view.transaction) == scan.meta("transactions")
                assert view.ids.size == scan.counts().vectors_ready
                assert view.is_rounded == (view.ids.size * (16 * 4 + 20) >= self.exact_bytes)
        scan.close()

    def commit(self, change: DocumentWrite | DocumentDelete) -> None:
        assert self.store.write([change]) == ["committed"]

    def fresh(self, ordinal: int, state: str):
        self.seed += 1
        # Some vectors are there twice: equal scores are in the order of their ids.
        vector = exact_vector(self.seed % 40) if state == VectorState.READY else None
        return chunk(f"text {self.seed}", ordinal, vector=vector)


class RoundedVectorsMachine(ResidentVectorsMachine):
    """More than 23 vectors are rounded."""

    exact_bytes = 2_000


TestResidentVectors = ResidentVectorsMachine.TestCase
TestRoundedVectors = RoundedVectorsMachine.TestCase
TestResidentVectors.settings = TestRoundedVectors.settings = settings(
    max_examples=examples(8), stateful_step_count=25, deadline=None
)


@pytest.mark.parametrize("spread", [1.0, 0.001], ids=["everywhere", "all alike"])
def test_rounded_vectors_give_the_results_of_a_scan(tmp_path: Path, spread: float) -> None:
    numbers = np.random.default_rng(5)
    # A dimension with large numbers, as some models have, and half of them close to the query.
    centre = np.where(np.arange(64) == 7, 4.0, 0.1)
    matrix = (centre + spread * numbers.standard_normal((12_000, 64))).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    writer = FileGenerationWriter(tmp_path, StoreOptions())
    (store,) = writer.open_writer(Fingerprint("0", "{}"))
    for start in range(0, len(matrix), 1_000):
        names = [str(number) for number in range(start, start + 1_000)]
        store.write([document(key(f"memory/{start}.md"), *names, vectors=list(matrix[start : start + 1_000]))])
    shelf = VectorShelf(hot_at_search=1, exact_bytes=0)
    rounded, scan = FileGenerations(tmp_path, StoreOptions(), shelf=shelf).open_reader(), writer.open_reader()
    assert rounded is not None
    assert scan is not None
    for query in matrix[::3_000]:
        for k in (1, 60, 240, 9_000):
            ours, exact = rounded.search_vectors(query, k), scan.search_vectors(query, k)
            assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in exact], abs=1e-6)
            # Sums in another order may put equal ones in another order.
            far = {hit.id for hit in exact if hit.score > exact[-1].score + 1e-6}
            assert far <= {hit.id for hit in ours}
    view = resident_of(rounded).view
    assert view is not None
    assert view.is_rounded
    for reader in (rounded, scan, writer):
        reader.close()


def test_the_vectors_searched_longest_ago_make_room_unless_they_are_in_use() -> None:
    now = 0.0
    shelf = VectorShelf(max_bytes=100, hot_at_search=1, resident_seconds=10, clock=lambda: now)
    first, second, third = (ResidentVectors(shelf) for _ in range(3))
    assert all(shelf.is_hot(held) and shelf.reserve(held, 50) for held in (first, second))
    now = 5.0
    assert shelf.is_hot(third)
    assert not shelf.reserve(third, 50)
    shelf.is_hot(first)
    now = 12.0
    assert shelf.is_hot(third)
    assert shelf.reserve(third, 50), "the second one rests longest"
    assert not shelf.reserve(second, 50), "and the others are in use"

"""Costs and gains of maintenance, and its effect on searches, beside that of a large document that changes.

Run: python -m tests.benchmarks.bench_maintenance [--chunks 100000] [--dimensions 384]

An index of so many chunks, in notes of 100, loses half of each and gets as many new ones for a tenth of it. Searches by
vector and by two words are timed on another connection: before, while maintenance runs in its steps, and after. The
floor is what the same searches take in an index that was written with what is left, once. Then a transcript of
`--long` chunks is rewritten and ended: the longest single transaction, and searches meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from memory.store.dead_letters import FORGOTTEN
from memory.store.options import StoreOptions
from memory.store.reader import TranscriptMark
from memory.store.sqlite.reader import StoreReader
from memory.store.sqlite.writer import Store, create_generation
from memory.store.writer import DocumentWrite, NewChunk
from schemas.documents import DocumentKey, FileStat

STAT = FileStat(size=1, mtime_ns=1, inode=1)
PER_NOTE = 100
WORDS = [f"word{number}" for number in range(5_000)]
TALK = DocumentKey("sessions", "sessions/long.jsonl")


class Texts:
    """Chunks of random words with random unit vectors, every one another."""

    def __init__(self, dimensions: int) -> None:
        self._chance = random.Random(7)
        self._numbers = np.random.default_rng(7)
        self._dimensions = dimensions
        self._made = itertools.count()

    def vector(self) -> np.ndarray:
        raw = self._numbers.standard_normal(self._dimensions).astype(np.float32)
        return np.asarray(raw / np.linalg.norm(raw), dtype=np.float32)

    def chunk(self, ordinal: int, *, vector: bool = True) -> NewChunk:
        number = next(self._made)
        text = f"chunk {number} " + " ".join(self._chance.choices(WORDS, k=60))
        made = self.vector() if vector else None
        return NewChunk(ordinal, ordinal + 1, ordinal + 1, text, f"{number:032x}", vector=made)

    def query(self) -> str:
        return " ".join(self._chance.choices(WORDS, k=2))


def new_store(path: Path) -> Store:
    create_generation(path, StoreOptions(), fingerprint="bench", description="{}")
    return Store(path, StoreOptions())


def note(store: Store, number: int, added: list[NewChunk], removed: tuple[int, ...] = ()) -> None:
    key = DocumentKey("memory", f"memory/{number}.md")
    store.write([DocumentWrite(key, store.revision(key), STAT, str(time.time()), tuple(added), (), removed)])


class Search:
    """One search of each side, timed."""

    def __init__(self, reader: StoreReader, texts: Texts) -> None:
        self._reader = reader
        self._texts = texts

    def __call__(self) -> float:
        vector, query = self._texts.vector(), self._texts.query()
        begun = time.perf_counter()
        self._reader.search_vectors(vector, 24)
        self._reader.search_text(query, 24)
        return (time.perf_counter() - begun) * 1000


def figures(name: str, times: list[float]) -> None:
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    print(f"{name:<44} p50 {statistics.median(times):7.1f} ms  p99 {p99:7.1f} ms  ({len(times)} searches)", flush=True)


@contextmanager
def searching(search: Search) -> Iterator[list[float]]:
    """Searches one after the other while the block runs."""
    times: list[float] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            times.append(search())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()


def megabytes(path: Path) -> float:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6


def maintenance(folder: Path, chunks: int, dimensions: int, searches: int) -> None:
    texts = Texts(dimensions)
    path = folder / "index.sqlite"
    store = new_store(path)
    notes = chunks // PER_NOTE
    for number in range(notes):
        note(store, number, [texts.chunk(place) for place in range(PER_NOTE)])
    reader = StoreReader(path, StoreOptions())
    search = Search(reader, texts)
    [search() for _ in range(5)]
    figures("whole", [search() for _ in range(searches)])
    print(f"{'':<44} {megabytes(path):,.0f} MB")
    for number in range(notes):
        ids = [chunk.id for chunk in store.chunks_of(DocumentKey("memory", f"memory/{number}.md"))]
        added = [texts.chunk(PER_NOTE + place) for place in range(PER_NOTE // 10)]
        note(store, number, added, removed=tuple(ids[::2]))
    figures("half of it deleted, a tenth new", [search() for _ in range(searches)])
    print(f"{'':<44} {megabytes(path):,.0f} MB")
    steps: list[float] = []

    last = time.perf_counter()

    def go_on() -> bool:
        nonlocal last
        now = time.perf_counter()
        steps.append((now - last) * 1000)
        last = now
        return True

    cpu, begun = time.thread_time(), time.perf_counter()
    with searching(search) as times:
        done = store.maintain(go_on=go_on, now=0.0)
    seconds, cpu = time.perf_counter() - begun, time.thread_time() - cpu
    figures("while maintenance runs", times)
    steps = sorted(steps[1:])
    print(
        f"maintenance: {seconds:.1f} s wall beside searches, {cpu:.1f} s CPU; {done.vector_steps} steps of vectors, "
        f"{done.keyword_steps} of keywords, {done.log_bytes / 1e6:.0f} MB of log; "
        f"a step p50 {statistics.median(steps):.0f} ms, longest {steps[-1]:.0f} ms; "
        + ", ".join(f"{of} {took:.1f} s" for of, took in done.seconds.items())
    )
    figures("after", [search() for _ in range(searches)])
    print(f"{'':<44} {megabytes(path):,.0f} MB")
    reader.close()
    floor(folder, store, searches, texts)
    store.close()


def floor(folder: Path, store: Store, searches: int, texts: Texts) -> None:
    """The same number of chunks, written once."""
    path = folder / "floor.sqlite"
    fresh = new_store(path)
    count = store.counts().chunks
    for number in range(count // PER_NOTE):
        note(fresh, number, [texts.chunk(place) for place in range(PER_NOTE)])
    fresh.maintain(go_on=lambda: True, now=0.0)
    reader = StoreReader(path, StoreOptions())
    search = Search(reader, texts)
    [search() for _ in range(5)]
    figures("floor: as many, written once", [search() for _ in range(searches)])
    print(f"{'':<44} {megabytes(path):,.0f} MB")
    reader.close()
    fresh.close()


def large_changes(folder: Path, chunks: int, searches: int) -> None:
    """A transcript of so many chunks (without vectors): read anew, its first slice and its last."""
    texts = Texts(8)
    path = folder / "long.sqlite"
    store = new_store(path)
    mark = None
    for start in range(0, chunks, 500):
        added = tuple(texts.chunk(start + place, vector=False) for place in range(500))
        mark = _write(store, mark, TranscriptMark(start + 500, start + 500, f"{start}", "[]"), added, keep=None)
    reader = StoreReader(path, StoreOptions())

    class Words(Search):
        def __call__(self) -> float:
            begun = time.perf_counter()
            reader.search_text(texts.query(), 24)
            return (time.perf_counter() - begun) * 1000

    search = Words(reader, texts)
    figures(f"a transcript of {chunks:,} chunks: quiet", [search() for _ in range(searches)])
    first = tuple(texts.chunk(place, vector=False) for place in range(500))

    def begin() -> None:
        nonlocal mark
        mark = _write(store, mark, TranscriptMark(1, 1, "new", "[]"), first, keep=0)

    def end() -> None:
        _write(store, mark, TranscriptMark(2, 2, "end", "[]"), (), keep=None, final=True)

    changes: list[tuple[str, Callable[[], None]]] = [
        ("made stale, first slice anew", begin),
        ("the last slice: what is stale goes", end),
    ]
    for name, change in changes:
        longest = _longest(store)
        begun = time.perf_counter()
        with searching(search) as times:
            change()
        seconds = time.perf_counter() - begun
        figures(name, times)
        print(f"{'':<44} {seconds:.1f} s in all, longest transaction {longest():.0f} ms")
    reader.close()
    store.close()


def _write(
    store: Store,
    continues: TranscriptMark | None,
    to: TranscriptMark,
    added: tuple[NewChunk, ...],
    *,
    keep: int | None,
    final: bool = False,
) -> TranscriptMark:
    stat = STAT if final else FORGOTTEN
    removed = tuple(chunk.id for chunk in store.chunks_of(TALK) if chunk.ordinal < 0) if final else ()
    change = DocumentWrite(TALK, continues or 0, stat, to.digest, added=added, removed=removed, mark=to)
    store.write([replace(change, stale_from=keep, complete=final)])
    return to


def _longest(store: Store) -> Callable[[], float]:
    """Time transactions from their first change to their commit, from now on; call it for the longest, in ms."""
    begun: list[float] = []
    took = [0.0]

    def changing(*_: object) -> None:
        if not begun:
            begun.append(time.perf_counter())

    def committing() -> bool:
        if begun:
            took[0] = max(took[0], (time.perf_counter() - begun.pop()) * 1000)
        return False

    store._writer.set_update_hook(changing)
    store._writer.set_commit_hook(committing)
    return lambda: took[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--long", type=int, default=200_000)
    parser.add_argument("--searches", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        maintenance(Path(folder), arguments.chunks, arguments.dimensions, arguments.searches)
        large_changes(Path(folder), arguments.long, arguments.searches)


if __name__ == "__main__":
    main()

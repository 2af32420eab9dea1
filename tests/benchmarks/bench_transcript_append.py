"""Costs of an append to a transcript for the store, by its length. No embedding, no files.

    python -m tests.benchmarks.bench_transcript_append [--chunks 200 20000 200000] [--appends 100]

Writes one transcript of each size into an index of its own (generated text, random unit vectors), then appends to it as
a live session does: the open chunk grows, and one more follows. Prints p50 and p99 of one such transaction, and what
writing the whole transcript took, slice by slice. Then the transcript is read anew with every text in its place, and
with none: what a rewritten file costs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from memory.chunking.chunker import text_hash
from memory.store.options import StoreOptions
from memory.store.reader import TranscriptMark
from memory.store.sqlite.writer import Store, create_generation
from memory.store.writer import DocumentWrite, NewChunk, WriteOutcome
from schemas.documents import DocumentKey, FileStat
from tests.benchmarks.bench_search import WORDS

KEY = DocumentKey("sessions", "sessions/long.jsonl")
WORDS_PER_CHUNK = 200
CHUNKS_PER_SLICE = 512


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[200, 20_000, 200_000])
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--appends", type=int, default=100)
    arguments = parser.parse_args()
    for chunks in arguments.chunks:
        with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
            measure(Path(folder), chunks=chunks, dimensions=arguments.dimensions, appends=arguments.appends)


def measure(folder: Path, *, chunks: int, dimensions: int, appends: int) -> None:
    path = folder / "index.sqlite"
    create_generation(path, StoreOptions(), fingerprint="", description="")
    store = Store(path, StoreOptions())
    made = chunks_of(dimensions, text="first")
    filled = write_whole(store, itertools.islice(made, chunks))

    times = []
    for number in range(appends):
        added = [chunk_at(chunk, chunks - 1 + number + place) for place, chunk in enumerate(itertools.islice(made, 2))]
        begun = time.perf_counter()
        write(store, added, keep=chunks - 1 + number)
        times.append((time.perf_counter() - begun) * 1000)
    append = f"p50 {statistics.median(times):.2f} ms, p99 {statistics.quantiles(times, n=100)[98]:.2f} ms"

    same = write_whole(store, itertools.islice(chunks_of(dimensions, text="first"), chunks - 1))
    other = write_whole(store, itertools.islice(chunks_of(dimensions, text="other"), chunks - 1))
    store.close()
    print(
        f"{chunks:>8,} chunks: append {append}; whole {sum(filled):.1f} s; "
        f"read anew, the same {sum(same):.1f} s (longest transaction {max(same):.1f} s), "
        f"all other {sum(other):.1f} s (longest {max(other):.1f} s)"
    )


def write_whole(store: Store, chunks: Iterator[NewChunk]) -> list[float]:
    """Write a transcript slice by slice; returns the seconds of each slice, making the text left out."""
    seconds = []
    keep: int | None = 0
    pending = list(itertools.islice(chunks, CHUNKS_PER_SLICE))
    while pending:
        following = list(itertools.islice(chunks, CHUNKS_PER_SLICE))
        begun = time.perf_counter()
        write(store, pending, keep=keep, final=not following)
        seconds.append(time.perf_counter() - begun)
        pending, keep = following, None
    return seconds


def write(store: Store, added: list[NewChunk], *, keep: int | None, final: bool = True) -> None:
    before = store.transcript(KEY)
    lines = before.lines + 1 if before is not None else 1
    mark = TranscriptMark(offset=lines, lines=lines, digest=f"{lines:032x}", state="{}" * 100)
    stale = store.chunks_of(KEY, first=keep) if keep is not None else []
    change = DocumentWrite(
        KEY,
        before or 0,
        FileStat(1, 1, 1),
        mark.digest,
        added=tuple(added),
        removed=tuple(chunk.id for chunk in stale),
        mark=mark,
        complete=final,
    )
    assert store.write([change]) == [WriteOutcome.COMMITTED]


def chunks_of(dimensions: int, *, text: str) -> Iterator[NewChunk]:
    """Chunks without end, always the same ones for a text to begin with."""
    words = random.Random(7)
    rng = np.random.default_rng(7)
    for number in itertools.count():
        vector = rng.standard_normal(dimensions).astype(np.float32)
        vector /= np.linalg.norm(vector)
        said = f"{text} {number} " + " ".join(words.choices(WORDS, k=WORDS_PER_CHUNK))
        yield NewChunk(number, number + 1, number + 1, said, text_hash(said), vector, said_at=float(number))


def chunk_at(chunk: NewChunk, ordinal: int) -> NewChunk:
    return NewChunk(ordinal, ordinal + 1, ordinal + 1, chunk.text, chunk.text_hash, chunk.vector, said_at=chunk.said_at)


if __name__ == "__main__":
    main()

"""Search latency through HTTP, query embedding excluded (the stub provider costs microseconds).

    python -m tests.benchmarks.bench_search [--chunks 2000 100000] [--dimensions 384] [--queries 300]

Fills an index with generated text and random unit vectors, starts `recalld serve` and asks different questions one
after the other over one connection. Prints p50, p95 and p99 of the client's time, the first search of all, and the
floor: the same vector scan alone, in process. Then it asks the same questions again, which are answered from the cache.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import numpy as np

from memory.chunking.chunker import Chunk, text_hash
from memory.embedding.selection import choose_provider
from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.fingerprint import fingerprint
from memory.store.options import StoreOptions
from memory.store.writer import DocumentWrite
from recalld.settings.load import load
from schemas.documents import DocumentKey, FileStat
from schemas.settings import Settings
from tests.benchmarks.frame import CUMULATIVE_WEIGHTS, WORDS, Home, Service, options, percentile

CHUNKS_PER_NOTE = 10
WORDS_PER_CHUNK = 200

#: The commonest words of a language are stop words, which no question depends on.
COMMONEST_ASKED = 30


def main() -> None:
    """Measure every size."""
    parser = options(__doc__)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2_000, 100_000])
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=300)
    arguments = parser.parse_args()
    for chunks in arguments.chunks:
        with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name:
            measure(Path(name), chunks=chunks, dimensions=arguments.dimensions, queries=arguments.queries)


def measure(folder: Path, *, chunks: int, dimensions: int, queries: int) -> None:
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    provider = f'provider = "stub"\noutput_dimensionality = {dimensions}\n'
    home = Home(folder, f'{provider}[[agents]]\nid = "main"\nworkspace = "{workspace}"\n')
    settings = load(config=str(home.config), home=str(home.path)).settings
    numbers = np.random.default_rng(7)
    fill(settings, chunks, dimensions, numbers)
    scan = scan_alone(settings, dimensions, numbers)
    words = random.Random(11)
    questions = [question(words) for _ in range(queries + 20)]
    assert len(set(questions)) == len(questions)
    with home.running("serve", "--port", "0"):
        service = home.service()
        # The first ones open the index and read its vectors into memory.
        first, *_ = ask(service, questions[:20])
        times = ask(service, questions[20:])
        assert cached(service) == 0
        again = ask(service, questions[20:])
        assert cached(service) == queries
    print(
        f"{chunks:>8,} chunks x {dimensions}: p50 {percentile(times, 50):.1f} ms, "
        f"p95 {percentile(times, 95):.1f} ms, p99 {percentile(times, 99):.1f} ms "
        f"over {queries} searches, the first one {first:.1f} ms; vector scan alone p50 {scan:.1f} ms; the same "
        f"questions again p50 {percentile(again, 50):.2f} ms, p99 {percentile(again, 99):.2f} ms"
    )


def fill(settings: Settings, chunks: int, dimensions: int, numbers: np.random.Generator) -> None:
    agent = settings.agents[0]
    provider = choose_provider(agent, settings.credentials).provider
    assert provider is not None
    identity = fingerprint(agent, provider.identity)
    generations = FileGenerationWriter(settings.indexes_path / agent.id, StoreOptions())
    (store,) = generations.open_writer(identity)
    words = random.Random(7)
    changes = []
    for note in range(chunks // CHUNKS_PER_NOTE):
        vectors = numbers.standard_normal((CHUNKS_PER_NOTE, dimensions)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        added, vectors_by_hash = [], {}
        for place, vector in enumerate(vectors):
            text = f"note {note} " + " ".join(words.choices(WORDS, cum_weights=CUMULATIVE_WEIGHTS, k=WORDS_PER_CHUNK))
            added.append(Chunk(place, place * 10 + 1, place * 10 + 10, text, text_hash(text)))
            vectors_by_hash[text_hash(text)] = vector
        key = DocumentKey("memory", f"memory/{note:06d}.md")
        stat, revision = FileStat(1, 1, note), store.revision(key)
        changes.append(DocumentWrite(key, revision, stat, str(note), tuple(added), vectors_by_hash))
    for start in range(0, len(changes), 50):
        # An unknown document's revision counts deletions, and there are none.
        store.write(changes[start : start + 50])
    generations.close()


def scan_alone(settings: Settings, dimensions: int, numbers: np.random.Generator) -> float:
    reader = FileGenerationWriter(settings.indexes_path / "main", StoreOptions()).open_reader()
    assert reader is not None
    times = []
    for _ in range(30):
        vector = numbers.standard_normal(dimensions).astype(np.float32)
        vector /= np.linalg.norm(vector)
        begun = time.perf_counter()
        reader.search_vectors(vector, 24)
        times.append((time.perf_counter() - begun) * 1000)
    reader.close()
    return percentile(times, 50)


def ask(service: Service, questions: list[str]) -> list[float]:
    """Return the milliseconds of each."""
    times = []
    for query in questions:
        begun = time.perf_counter()
        answer = service.ask("/v1/search", {"query": query, "minScore": 0})
        times.append((time.perf_counter() - begun) * 1000)
        assert answer["mode"] == "hybrid", answer
        assert answer["results"], answer
    return times


def cached(service: Service) -> int:
    """Return the number of searches that were answered from the cache."""
    text = service.read("/metrics").decode()
    return int(float(text.partition('recalld_cached_answers_total{outcome="hit"} ')[2].split()[0]))


def question(words: random.Random) -> str:
    """Five words from common to rare: ranks are drawn evenly on a logarithmic scale."""
    ranks = (COMMONEST_ASKED * (len(WORDS) / COMMONEST_ASKED) ** words.random() for _ in range(5))
    return " ".join(WORDS[int(rank)] for rank in ranks)


if __name__ == "__main__":
    main()

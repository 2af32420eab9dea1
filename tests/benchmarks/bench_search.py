"""Search latency through HTTP, query embedding excluded (the stub provider costs microseconds).

    python tests/benchmarks/bench_search.py [--chunks 2000 100000] [--dimensions 384] [--queries 300]

Fills an index with generated text and random unit vectors, starts `recalld serve` and asks different questions one
after the other over one connection. Prints p50 and p99 of the client's time, and the floor: the same vector scan alone,
in process. Then it asks the same questions again, which are answered from the cache as long as nothing is committed.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from memory.chunking.chunker import text_hash
from memory.embedding.selection import choose_provider
from memory.index.fingerprint import fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.store.options import StoreOptions
from memory.store.writer import DocumentWrite, NewChunk
from schemas.documents import DocumentKey, FileStat
from schemas.settings import Settings
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
CHUNKS_PER_NOTE = 10
WORDS_PER_CHUNK = 200

# 20,000 made-up words whose frequencies fall like those of a natural language (Zipf's law).
_PARTS = ["ka", "mo", "ti", "ra", "su", "ler", "din", "par", "vos", "en", "ix", "um", "bel"]
WORDS = ["".join(parts) for parts in itertools.islice(itertools.product(_PARTS, repeat=4), 20_000)]
_CUMULATIVE = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(WORDS))))

#: The commonest words of a language are stop words, which nobody's question depends on.
COMMONEST_ASKED = 30


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2_000, 100_000])
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=300)
    arguments = parser.parse_args()
    for chunks in arguments.chunks:
        with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
            measure(Path(folder), chunks=chunks, dimensions=arguments.dimensions, queries=arguments.queries)


def measure(folder: Path, *, chunks: int, dimensions: int, queries: int) -> None:
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    config = folder / "recalld.toml"
    config.write_text(
        f'provider = "stub"\noutput_dimensionality = {dimensions}\n'
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\n',
        encoding="utf-8",
    )
    settings = Settings.model_validate(
        {
            "home": folder / "home",
            "agents": [
                {"id": "main", "workspace": workspace, "provider": "stub", "output_dimensionality": dimensions},
            ],
        }
    )
    rng = np.random.default_rng(7)
    fill(settings, chunks=chunks, dimensions=dimensions, rng=rng)
    scan = scan_alone(settings, dimensions=dimensions, rng=rng)
    service = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "recalld",
            "--config",
            str(config),
            "--home",
            str(settings.home),
            "serve",
            "--port",
            "0",
        ],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = wait_until(lambda: listening(settings.home), timeout=30)
        # The first ones open the index and read its vectors into memory.
        words = random.Random(11)
        questions = [question(words) for _ in range(queries + 20)]
        assert len(set(questions)) == len(questions)
        times = ask(port, questions)[20:]
        assert cached(port) == 0
        again = ask(port, questions[20:])
        assert cached(port) == queries
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=30)
    print(
        f"{chunks:>8,} chunks x {dimensions}: p50 {percentile(times, 50):.1f} ms, p99 {percentile(times, 99):.1f} ms "
        f"over {queries} searches; vector scan alone p50 {scan:.1f} ms; the same questions again p50 "
        f"{percentile(again, 50):.2f} ms, p99 {percentile(again, 99):.2f} ms"
    )


def fill(settings: Settings, *, chunks: int, dimensions: int, rng: np.random.Generator) -> None:
    agent = settings.agents[0]
    provider = choose_provider(agent, settings.credentials).provider
    assert provider is not None
    identity = fingerprint(agent, provider.identity)
    generations = GenerationWriter(settings.indexes_path / agent.id, StoreOptions())
    (store,) = generations.open_writer(identity.digest, identity.description)
    words = random.Random(7)
    notes = []
    for note in range(chunks // CHUNKS_PER_NOTE):
        vectors = rng.standard_normal((CHUNKS_PER_NOTE, dimensions)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        added = []
        for ordinal in range(CHUNKS_PER_NOTE):
            text = f"note {note} " + " ".join(words.choices(WORDS, cum_weights=_CUMULATIVE, k=WORDS_PER_CHUNK))
            added.append(
                NewChunk(ordinal, ordinal * 10 + 1, ordinal * 10 + 10, text, text_hash(text), vectors[ordinal])
            )
        key = DocumentKey("memory", f"memory/{note:06d}.md")
        revision = store.revision(key)
        notes.append(DocumentWrite(key, revision, FileStat(1, 1, note), str(note), added=tuple(added)))
    for start in range(0, len(notes), 50):
        # An unknown document's revision counts deletions, and there are none.
        store.write(notes[start : start + 50])
    generations.close()


def scan_alone(settings: Settings, *, dimensions: int, rng: np.random.Generator) -> float:
    reader = GenerationWriter(settings.indexes_path / "main", StoreOptions()).open_reader()
    assert reader is not None
    times = []
    for _ in range(30):
        vector = rng.standard_normal(dimensions).astype(np.float32)
        vector /= np.linalg.norm(vector)
        begun = time.perf_counter()
        reader.search_vectors(vector, 24)
        times.append((time.perf_counter() - begun) * 1000)
    reader.close()
    return percentile(times, 50)


def ask(port: int, questions: list[str]) -> list[float]:
    """Milliseconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for asked in questions:
        body = json.dumps({"query": asked, "minScore": 0})
        begun = time.perf_counter()
        connection.request("POST", "/v1/search", body, {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())
        times.append((time.perf_counter() - begun) * 1000)
        assert answer["mode"] == "hybrid", answer
        assert answer["results"], answer
    return times


def cached(port: int) -> int:
    """Return the number of searches that were answered from the cache."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return int(float(text.partition('recalld_cached_answers_total{outcome="hit"} ')[2].split()[0]))


def question(words: random.Random) -> str:
    """Five words from common to rare: ranks are drawn evenly on a logarithmic scale."""
    ranks = (COMMONEST_ASKED * (len(WORDS) / COMMONEST_ASKED) ** words.random() for _ in range(5))
    return " ".join(WORDS[int(rank)] for rank in ranks)


def listening(home: Path) -> int | None:
    try:
        return int(json.loads((home / "run" / "service.json").read_text("utf-8"))["port"])
    except (OSError, ValueError):
        return None


def percentile(times: list[float], share: int) -> float:
    return statistics.quantiles(times, n=100)[share - 1]


if __name__ == "__main__":
    main()

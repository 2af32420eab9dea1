"""The first search of an agent in a service that runs already: what opening its index costs.

    python -m tests.benchmarks.bench_first_search [--chunks 2000 100000] [--turns 20]

One process, warmed up with another agent's index. Every turn makes the agent's manager anew and searches twice, each
time for something else, once with the index in the operating system's cache and once after asking it to forget the
files (`posix_fadvise`; a virtual machine's disk may still have them in memory). "open" is opening the database, loading
sqlite-vec, and what a search asks before it searches. The vectors of 100,000 chunks are 150 MB, which a first search
reads whole.
"""

from __future__ import annotations

import os

# One BLAS thread, as in every process of recalld; before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.benchmarks.bench_search import fill, question

DIMENSIONS = 384


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2_000, 100_000])
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    words = random.Random(3)
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        other = filled(Path(folder) / "other", chunks=500)
        resources = SearchResources(other, model_wait_seconds=10)
        first, _ = searched(other, resources, words)
        assert first > 0
        for chunks in arguments.chunks:
            settings = filled(Path(folder) / str(chunks), chunks=chunks)
            for forget in (False, True):
                measure(settings, resources, words, chunks=chunks, turns=arguments.turns, forget=forget)
        resources.close()


def filled(folder: Path, *, chunks: int) -> Settings:
    agent = {"id": "main", "workspace": folder, "provider": "stub", "output_dimensionality": DIMENSIONS}
    settings = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    fill(settings, chunks=chunks, dimensions=DIMENSIONS, rng=np.random.default_rng(7))
    return settings


def measure(
    settings: Settings, resources: SearchResources, words: random.Random, *, chunks: int, turns: int, forget: bool
) -> None:
    opening, first, second = [], [], []
    for _ in range(turns):
        for times, work in ((opening, opened), (first, searched)):
            if forget:
                forget_files(settings.indexes_path)
            took, again = work(settings, resources, words)
            times.append(took)
            second.extend(again)
    print(
        f"{chunks:>8,} chunks x {DIMENSIONS}, files {'forgotten' if forget else 'in the cache'}: "
        f"open {shown(opening)}, first search {shown(first)}, second search {shown(second)}"
    )


def opened(settings: Settings, resources: SearchResources, _: random.Random) -> tuple[float, list[float]]:
    """Milliseconds until a search could begin."""
    manager = SearchManager(settings, settings.agents[0], resources=resources)

    def open_and_look() -> None:
        with manager.reader.lease() as reader:
            assert reader is not None
            reader.vectors_pending()

    took = milliseconds(open_and_look)
    manager.close()
    return took, []


def searched(settings: Settings, resources: SearchResources, words: random.Random) -> tuple[float, list[float]]:
    """Milliseconds of a first search and of the next one; making the manager is part of the first."""
    begun = time.perf_counter()
    manager = SearchManager(settings, settings.agents[0], resources=resources)
    made = (time.perf_counter() - begun) * 1000

    def search() -> None:
        answer = manager.search(SearchRequest(query=question(words), min_score=0))
        assert answer.mode == "hybrid", answer
        assert answer.results, answer

    first, second = milliseconds(search), milliseconds(search)
    manager.close()
    return made + first, [second]


def milliseconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def forget_files(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def shown(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} ms (at most {max(times):.1f})"


if __name__ == "__main__":
    main()

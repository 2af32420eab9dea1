"""Whatever is asked, it is answered, and soon: 20,000 queries that nobody should send, over a real service."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.selection import choose_provider
from memory.index.fingerprint import fingerprint
from memory.search.ranking.terms import SEARCHED_CHARACTERS
from memory.store.writer import DocumentWrite, NewChunk
from schemas.documents import DocumentKey, FileStat
from schemas.settings import Settings
from tests.daemon import REPOSITORY, clean_environment
from tests.hostile_queries import HAN, hostile_queries
from tests.waiting import wait_until
from tests.written_index import writer_of

QUERIES = 20_000
NOTES, CHUNKS_A_NOTE = 200, 12
DIMENSIONS = 512

#: A core for the questions, and one for the answers.
CONNECTIONS = 2

#: No answer may take so many times what an ordinary question takes in the same run.
SLOW = 40

#: Words of an invented English and of Chinese, the commonest first.
ENGLISH = ["".join(parts) for parts in itertools.product(("ga", "mor", "ti", "sen", "lu", "ex", "ba"), repeat=4)]
CHINESE = ["".join(pair) for pair in itertools.product(HAN, repeat=2)]

_CUMULATIVE = list(itertools.accumulate(1 / (rank + 3) for rank in range(max(len(ENGLISH), len(CHINESE)))))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a service with the model that comes with it."""
    folder = tmp_path_factory.mktemp("hostile")
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    config = folder / "recalld.toml"
    config.write_text(f'provider = "local"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n', "utf-8")
    agent = {"id": "main", "workspace": workspace, "provider": "local"}
    fill(Settings.model_validate({"home": folder / "home", "provider": "local", "agents": [agent]}))
    command = ["--config", str(config), "--home", str(folder / "home"), "serve", "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "recalld", *command], cwd=REPOSITORY, env=clean_environment(), stderr=subprocess.DEVNULL
    ) as process:
        try:
            port = wait_until(lambda: listening(folder / "home"))
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                wait_until(lambda: ask(connection, "warm up")[0]["mode"] == "hybrid")
            yield port
            assert process.poll() is None, "the service is still there"
        finally:
            process.terminate()


def fill(settings: Settings) -> None:
    """An index in English and Chinese. Its vectors are any: what queries become is what is tried here."""
    provider = choose_provider(settings.agents[0], settings.credentials).provider
    assert provider is not None
    identity = fingerprint(settings.agents[0], provider.identity)
    (store,) = writer_of(settings).open_writer(identity.digest, identity.description)
    source, numbers = random.Random(5), np.random.default_rng(5)
    for note in range(NOTES):
        vectors = numbers.standard_normal((CHUNKS_A_NOTE, DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        added = []
        for ordinal in range(CHUNKS_A_NOTE):
            text = prose(source, note % 2 == 0)
            line = ordinal * 9 + 1
            added.append(NewChunk(ordinal, line, line + text.count("\n"), text, text_hash(text), vectors[ordinal]))
        key = DocumentKey("memory", f"memory/{note:04}.md")
        store.write([DocumentWrite(key, 0, FileStat(1, 1, note + 1), str(note), added=tuple(added))])
    store.close()


def prose(source: random.Random, english: bool) -> str:
    """A chunk of some 400 tokens, its words as unevenly common as those of a language (Zipf's law)."""
    words, joint, count = (ENGLISH, " ", 200) if english else (CHINESE, "", 200)
    chosen = source.choices(words, cum_weights=_CUMULATIVE[: len(words)], k=count)
    return "\n".join(joint.join(chosen[start : start + 25]) for start in range(0, count, 25))


def listening(home: Path) -> int | None:
    try:
        return int(json.loads((home / "run" / "service.json").read_text("utf-8"))["port"])
    except (OSError, ValueError):
        return None


def ask(connection: http.client.HTTPConnection, query: str) -> tuple[Mapping[str, Any], float]:
    """The answer, and milliseconds until all of it was here."""
    body = json.dumps({"query": query, "minScore": 0})
    begun = time.perf_counter()
    connection.request("POST", "/v1/search", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    took = (time.perf_counter() - begun) * 1000
    assert response.status == 200, (response.status, data[:300], query[:300])
    return json.loads(data), took


@pytest.mark.long
def test_no_query_is_an_error_or_slow(service: int, capsys: pytest.CaptureFixture[str]):
    words = [*ENGLISH[:60], *CHINESE[:60]]
    queries = list(hostile_queries(QUERIES, seed=1, words=words))
    source = random.Random(9)
    ordinary = [" ".join(source.choices(words, k=5)) + f" {place}" for place in range(QUERIES // 50)]

    def take_turns(first: int) -> list[tuple[str, float, str]]:
        """Ask every second query, and ordinary questions in between, which tell how fast this machine is just now."""
        taken = []
        with closing(http.client.HTTPConnection("127.0.0.1", service, timeout=60)) as connection:
            for place in range(first, QUERIES, CONNECTIONS):
                if place // CONNECTIONS % 50 == 0:
                    question = ordinary.pop()
                    taken.append(("ordinary questions", ask(connection, question)[1], question))
                kind, query = queries[place]
                answer, took = ask(connection, query)
                assert answer.keys().isdisjoint({"error", "unavailable", "disabled"}), (answer, query[:300])
                assert ("were searched" in str(answer["degraded"])) == (len(query.strip()) > SEARCHED_CHARACTERS)
                taken.append((kind, took, query))
        return taken

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        taken = [one for part in threads.map(take_turns, range(CONNECTIONS)) for one in part]

    times: dict[str, list[float]] = defaultdict(list)
    for kind, took, _ in taken:
        times[kind].append(took)
    allowed = SLOW * statistics.median(times["ordinary questions"])
    everything = [took for kind, took, _ in taken if kind != "ordinary questions"]
    lines = [figures("all hostile queries", everything), *map(figures, times, times.values())]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, ""]))
    # What was slow because of the machine is not slow again.
    slow = [(kind, query) for kind, took, query in taken if took > allowed]
    assert len(slow) <= QUERIES / 100
    with closing(http.client.HTTPConnection("127.0.0.1", service, timeout=60)) as connection:
        for kind, query in slow:
            again = min(ask(connection, f"{number} {query}")[1] for number in range(3))
            assert again <= allowed, (kind, again, allowed, query[:300])


def figures(what: str, taken: list[float]) -> str:
    p99 = statistics.quantiles(taken, n=100)[98]
    return f"{what}: {len(taken):,}, p50 {statistics.median(taken):.1f}, p99 {p99:.1f}, max {max(taken):.1f} ms"

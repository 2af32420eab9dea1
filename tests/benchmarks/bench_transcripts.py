"""Transcripts through the real command: cold, and one message appended to each of them.

Run: python -m tests.benchmarks.bench_transcripts [--files 50] [--megabytes 2] [--larger 20]

Cold is `recalld index` as a child, its embeddings from an HTTP server on the same machine. Appending is measured in
this process, through the indexer and the stub provider: processor seconds of everything it does for a file, beside
those of opening the file, reading what is new and one SQLite commit (the floor). `--larger`: the same for files of
so many megabytes, since the cost must not depend on their size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apsw

from memory.documents.agent_files import AgentFiles
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.selection import ProviderChoice
from memory.embedding.supply import EmbeddingSupply
from memory.index.generation_writer import GenerationWriter
from memory.index.indexer import Indexer
from memory.store.options import StoreOptions
from schemas.documents import DocumentKey, Lane
from schemas.settings import AgentSettings
from tests.benchmarks.bench_transcript_folding import realistic
from tests.embedding_server import EmbeddingServer

#: Rounds of appending, of which the median counts.
ROUNDS = 5


def write_transcripts(folder: Path, files: int, megabytes: float) -> list[DocumentKey]:
    folder.mkdir(parents=True)
    keys = []
    for number in range(files):
        with (folder / f"{number:04}.jsonl").open("wb") as file:
            file.writelines(realistic(megabytes, seed=number))
        keys.append(DocumentKey("sessions", f"sessions/{number:04}.jsonl"))
    return keys


def cold(folder: Path, files: int, megabytes: float) -> None:
    write_transcripts(folder / "sessions", files, megabytes)
    (folder / "workspace").mkdir()
    with EmbeddingServer(dimensions=384) as server:
        (folder / "recalld.toml").write_text(
            f'provider = "openai"\n[remote]\nbase_url = "{server.url}"\napi_key = "bench"\n'
            f'[[agents]]\nid = "main"\nworkspace = "{folder / "workspace"}"\nsessions = ["{folder / "sessions"}"]\n',
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "recalld", "index", "--json", "--home", str(folder / "home")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--config", str(folder / "recalld.toml")], capture_output=True, text=True, check=True
        )
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        [agent] = json.loads(done.stdout)["agents"]
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"cold, {files} files of {megabytes:g} MB: {seconds:.1f} s ({processor:.1f} s CPU of our own), "
            f"{agent['chunks']:,} chunks, {agent['vectorsReady']:,} with vectors, {server.requests} requests, "
            f"{server.inputs:,} inputs = {server.distinct:,} distinct, peak {after.ru_maxrss / 1000:.0f} MB"
        )


def append(folder: Path, files: int, megabytes: float) -> None:
    keys = write_transcripts(folder / "sessions", files, megabytes)
    (folder / "workspace").mkdir()
    agent = AgentSettings.model_validate(
        {"id": "main", "workspace": folder / "workspace", "sessions": [str(folder / "sessions")], "provider": "stub"}
    )
    limits = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)
    cache = EmbeddingCache(folder / "embeddings.sqlite")
    indexer = Indexer(
        agent,
        files=AgentFiles(agent),
        generations=GenerationWriter(folder / "indexes", StoreOptions()),
        supply=EmbeddingSupply(ProviderChoice(StubProvider(limits=limits), "stub", "stub", None, None), cache),
    )
    index(indexer, keys)
    together, alone = [], []
    for number in range(ROUNDS):
        for lane, times in ((keys, together), ([[key] for key in keys], alone)):
            grow(folder / "sessions", keys, number)
            began = time.process_time()
            for group in [lane] if times is together else lane:
                index(indexer, group)
            times.append((time.process_time() - began) / files * 1000)
    floor = floor_of(folder, keys)
    print(
        f"one message appended to each of {files} files of {megabytes:g} MB: "
        f"{statistics.median(together):.1f} ms CPU a file in one job, "
        f"{statistics.median(alone):.1f} ms each in its own; "
        f"floor (open, read the end, one commit) {floor:.1f} ms"
    )
    indexer.supply.close()
    indexer.generations.close()
    cache.close()


def index(indexer: Indexer, keys: list[DocumentKey]) -> None:
    indexer.index(keys, lane=Lane.LIVE, on_done=lambda _keys: None)


def grow(folder: Path, keys: list[DocumentKey], seed: int) -> None:
    for number, _ in enumerate(keys):
        with (folder / f"{number:04}.jsonl").open("ab") as file:
            file.write(next(itertools.islice(realistic(1, seed=1000 + seed * 100 + number), 0, None)))


def floor_of(folder: Path, keys: list[DocumentKey]) -> float:
    connection = apsw.Connection(str(folder / "floor.sqlite"))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
    began = time.process_time()
    for number, _ in enumerate(keys):
        descriptor = os.open(folder / "sessions" / f"{number:04}.jsonl", os.O_RDONLY)
        text = os.pread(descriptor, 4096, max(0, os.fstat(descriptor).st_size - 4096))
        os.close(descriptor)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (text) VALUES (?)", (text.decode("utf-8", "replace"),))
        connection.execute("COMMIT")
    spent = time.process_time() - began
    connection.close()
    return spent / len(keys) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--larger", type=float, default=20.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        cold(Path(folder, "cold"), chosen.files, chosen.megabytes)
        append(Path(folder, "append"), chosen.files, chosen.megabytes)
        append(Path(folder, "larger"), max(1, chosen.files // 5), chosen.larger)


if __name__ == "__main__":
    main()

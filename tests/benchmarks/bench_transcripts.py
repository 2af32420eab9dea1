"""Transcripts through the real command: cold, and one message appended to each of them.

    python -m tests.benchmarks.bench_transcripts [--files 50] [--megabytes 2] [--larger 20]

Cold is `recalld index` as a child, its embeddings from an endpoint in this process. Appending is measured in this
process, through the indexer and the stub provider: processor seconds of everything it does for a file. `--larger`: the
same for files of so many megabytes, since the cost must not depend on their size.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

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
from tests.benchmarks.bench_backfill import write_transcripts
from tests.benchmarks.frame import Home, InstantServer, options
from tests.transcript_files import FORMATS, message_line

#: Rounds of appending, of which the median counts.
ROUNDS = 5

#: An eighth of a transcript was said by user and assistant.
SHARE = 0.125


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--larger", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name:
        cold(Path(name, "cold"), arguments.files, arguments.megabytes)
        append(Path(name, "append"), arguments.files, arguments.megabytes)
        append(Path(name, "larger"), max(1, arguments.files // 5), arguments.larger)


def cold(folder: Path, files: int, megabytes: float) -> None:
    sessions, workspace = folder / "sessions", folder / "workspace"
    write_transcripts(sessions, files * megabytes, megabytes, share=SHARE)
    workspace.mkdir()
    agent = f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{sessions}"]\n'
    with InstantServer(384) as server:
        run = Home(folder, server.settings + agent).run("index", "--json")
        [state] = run.json["agents"]
        print(
            f"cold, {files} files of {megabytes:g} MB: {run.wall:.1f} s ({run.cpu:.1f} s CPU of our own), "
            f"{state['chunks']:,} chunks, {server.sent()}, peak {run.peak_mb:.0f} MB"
        )


def append(folder: Path, files: int, megabytes: float) -> None:
    sessions, workspace = folder / "sessions", folder / "workspace"
    write_transcripts(sessions, files * megabytes, megabytes, share=SHARE)
    workspace.mkdir()
    agent = AgentSettings(id="main", workspace=workspace, sessions=(str(sessions),), provider="stub")
    limits = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)
    cache = EmbeddingCache(folder / "embeddings.sqlite")
    indexer = Indexer(
        agent,
        files=AgentFiles(agent),
        generations=GenerationWriter(folder / "indexes", StoreOptions()),
        supply=EmbeddingSupply(ProviderChoice(StubProvider(limits=limits), requested="stub"), cache),
    )
    keys = list(AgentFiles(agent).scan().documents)
    index(indexer, keys)
    together, alone = [], []
    for number in range(ROUNDS):
        grow(sessions, number)
        together.append(index(indexer, keys) / files)
        grow(sessions, number + ROUNDS)
        alone.append(sum(index(indexer, [key]) for key in keys) / files)
    print(
        f"one message appended to each of {files} files of {megabytes:g} MB: "
        f"{statistics.median(together):.1f} ms CPU a file in one job, {statistics.median(alone):.1f} ms each in its own"
    )
    indexer.supply.close()
    indexer.generations.close()
    cache.close()


def index(indexer: Indexer, keys: list[DocumentKey]) -> float:
    """Index these documents; return the milliseconds of processor time."""
    begun = time.process_time()
    indexer.index(keys, lane=Lane.LIVE, on_done=lambda _keys: None)
    return (time.process_time() - begun) * 1000


def grow(sessions: Path, number: int) -> None:
    """Append a message to every transcript, in its format."""
    for path in sessions.rglob("*.jsonl"):
        with path.open("ab") as file:
            file.write(message_line(FORMATS[int(path.stem) % 4], "user", f"deploy the gateway, attempt {number}"))


if __name__ == "__main__":
    main()

"""Work of a fleet: commits of its store, workers, the door, and a storm of one agent beside many others.

    python -m tests.benchmarks.bench_fleet_work commits | workers | door | storm [--workers 1 2 4] [--agents N]

All servers run on the same machine, an endpoint of embeddings (512 dimensions, 30 ms a request) too. `commits`: 500
chunks a transaction in both stores, and a plain INSERT. `workers`: processes of a fleet, and one of a home with SQLite.
`door`: small notes and parts of almost 1 MB from eight machines. `storm`: notes of many agents, quiet and while one
agent has 20,000 documents, some of them poison. Milliseconds in brackets are of processors.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from memory.chunking.chunker import Chunk, text_hash
from memory.index.generations import Generations
from memory.store.options import StoreOptions
from memory.store.postgres.connection import BinaryArray
from memory.store.postgres.writer import PostgresStore, create_generation
from memory.store.sqlite.writer import SqliteStore
from memory.store.sqlite.writer import create_generation as create_file
from memory.store.writer import DocumentWrite
from schemas.agents import Scope
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.settings import Settings
from tests.benchmarks.fleet_frame import Fleet, Sender
from tests.benchmarks.frame import Meter, notes, options, peak_mb, percentile, text_of
from tests.waiting import wait_until

#: Megabytes of notes that workers index. Documents of the storm's agent, and the number of them for one that is poison;
#: notes of the other agents, and those a second.
MEGABYTES, STORM, POISON, NOTES, NOTES_A_SECOND = 8.0, 20_000, 200, 180, 6

SEARCHABLE = """
SELECT tenant || '/' || agent || '/' || path, extract(epoch FROM max(pg_xact_commit_timestamp(c.xmin)))::float8
FROM recalld.chunks AS c JOIN recalld.files AS f USING (tenant, agent, generation)
WHERE f.id = c.file_id AND c.vector_state = 'ready' GROUP BY tenant, agent, path
"""
NAMES = "attrelid = 'recalld.chunks'::regclass AND attnum > 0 AND attname NOT IN ('agent', 'embedding')"
COLUMNS = f"SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE {NAMES}"
DISK = "SELECT sum(pg_total_relation_size(relid))::float8 FROM pg_partition_tree('recalld.chunks')"


def commits(fleet: Fleet) -> None:
    source, rows = random.Random(7), np.random.default_rng(1).standard_normal((500, 512)).astype(np.float16)
    writes: list[DocumentWrite] = []
    for number in range(16):
        texts = [text_of(source, 120) for _ in range(500)]
        chunks = tuple(Chunk(place, place, place, text, text_hash(text)) for place, text in enumerate(texts))
        vectors = {chunk.text_hash: row.astype(np.float32) for chunk, row in zip(chunks, rows, strict=True)}
        key = DocumentKey("memory", f"memory/{number}.md")
        writes.append(DocumentWrite(key, 0, FileStat(1, 1, 1), str(number), added=chunks, vectors=vectors))

    def measure(name: str, step: Callable[[int], object]) -> None:
        for number in range(len(writes)):
            if number == 3:  # the first ones warm up
                meter = Meter([fleet.postgres])
            step(number)
        wall, client, server = meter.read(1000 / (len(writes) - 3))
        print(f"{name}: {wall:.0f} ms ({client:.0f} ms here, {server:.0f} ms in PostgreSQL)")

    scope, file = Scope.of(*fleet.add("commits", 1)), fleet.folder / "index.sqlite"
    create_file(file, StoreOptions(), fingerprint="f", description="{}")
    sqlite = SqliteStore(file, StoreOptions())
    measure("SQLite", lambda number: sqlite.write([writes[number]]))
    generation = create_generation(fleet.database, scope, fingerprint="f", description="{}")
    store = PostgresStore(fleet.database, scope, generation)
    measure("PostgreSQL", lambda number: store.write([writes[number]]))
    disk, columns = fleet.ask(DISK)[0][0], str(fleet.ask(COLUMNS)[0][0])
    print(f"bytes a chunk on the disk: {file.stat().st_size / 8_000:,.0f} in SQLite, {disk / 8_000:,.0f} in PostgreSQL")
    stored = fleet.ask(f"SELECT {columns}, halfvec_send(embedding) FROM recalld.chunks ORDER BY id")
    names = f"(agent, {columns}, embedding) VALUES ('plain', {'%s, ' * len(columns.split(','))}%s::halfvec)"

    def insert(number: int) -> None:
        rows = [(*row, BinaryArray(vector)) for *row, vector in stored[number * 500 : number * 500 + 500]]
        with fleet.database.transaction(scope) as connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO recalld.chunks {names}".encode(), rows)

    measure("plain INSERT of the rows", insert)


def workers(fleet: Fleet, number_of_agents: int, numbers: Sequence[int]) -> None:
    texts = [notes(MEGABYTES / number_of_agents, share_of_chinese=0.05, seed=seed) for seed in range(number_of_agents)]
    agents = [{"id": f"a{number}", "workspace": str(fleet.folder / f"w{number}")} for number in range(number_of_agents)]
    for agent, documents in zip(agents, texts, strict=True):
        (memory := Path(agent["workspace"], "memory")).mkdir(parents=True)
        for number, text in enumerate(documents):
            (memory / f"{number:05}.md").write_text(text, "utf-8")
    tables = "".join(f'[[agents]]\nid = "{agent["id"]}"\nworkspace = "{agent["workspace"]}"\n' for agent in agents)
    settings = fleet.settings_of(fleet.folder / "sqlite" / "home", agents=agents)
    numbers_of_notes = {agent["id"]: len(text) for agent, text in zip(agents, texts, strict=True)}
    index(fleet, "SQLite, workers: 1", ["sqlite"], settings, numbers_of_notes, tables)
    for number in numbers:
        ids = fleet.add(f"team{number}", number_of_agents)
        numbers_of_notes = {agent: len(fleet.arrive(agent, text)) for agent, text in zip(ids, texts, strict=True)}
        homes = [f"worker{number}-{place}" for place in range(number)]
        index(fleet, f"PostgreSQL, workers: {number}", homes, fleet.settings, numbers_of_notes)


def index(
    fleet: Fleet, name: str, homes: list[str], settings: Settings, sizes: dict[str, int], agents: str = ""
) -> None:
    """Start a worker in each home, and print how fast they index; the first agent's documents warm them up."""
    queue = fleet.queue(settings)

    def chunks(names: Sequence[str]) -> int:
        """Return the number of the agents' chunks if all documents are indexed with vectors."""
        readers = [Generations.of(settings, each).open_reader() for each in names] if queue.is_idle() else []
        counts = [reader.counts() for reader in readers if reader is not None]
        return sum(each.chunks for each in counts) if all(each.chunks == each.vectors_ready for each in counts) else 0

    first, *others = sizes
    with ExitStack() as stack:
        pids = [fleet.start(stack, home, "workers_started", "work", agents=agents)[0] for home in homes]
        for names in ([first], others):
            meter = Meter(pids, [fleet.postgres])
            fleet.endpoint.reset()
            for each in names:
                keys = [DocumentKey("memory", f"memory/{number:05}.md") for number in range(sizes[each])]
                queue.mark_changed(each, keys, lane=Lane.BACKFILL)
            total = wait_until(lambda names=names: chunks(names), timeout=280)  # type: ignore[misc]
        wall, *cpu = meter.read()
        costs = ", ".join(f"{1000 * each / total:.2f}" for each in cpu)
        print(
            f"{name}: {total / wall:,.0f} chunks/s, {total:,} in {wall:.1f} s ({costs} ms a chunk in endpoint, workers "
            f"and PostgreSQL); {fleet.endpoint.sent()}; MB {peak_mb(*pids)}; connections {fleet.connections()}"
        )


def door(fleet: Fleet) -> None:
    agents, source = fleet.add("door", 8), random.Random(5)
    small, large = text_of(source, 50).encode(), text_of(source, 380_000).encode()
    with ExitStack() as stack:
        pid, url = fleet.start(stack, "door", "takes content at", "ingest", "--port", "0")
        senders = [Sender(fleet, url, "door", f"laptop{number}") for number in range(8)]
        for name, each, content in (("warm", 10, small), ("small notes", 250, small), ("parts of 1 MB", 4, large)):

            def send(place: int, name: str = name, each: int = each, content: bytes = content) -> None:
                for number in range(each):
                    senders[place].send(agents[place], f"memory/{name} {number}.md", content)

            meter = Meter([pid], [fleet.postgres])
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(send, range(8)))
            wall, *cpu = meter.read()
            costs = ", ".join(f"{125 * seconds / each:.1f}" for seconds in cpu)
            print(
                f"{name}, {8 * each / wall:.1f} a second ({costs} ms each in senders, door "
                f"and PostgreSQL); MB {peak_mb(pid)}; connections {fleet.connections()}",
            )


def storm(fleet: Fleet, number_of_agents: int) -> None:
    source, teams = random.Random(3), {f"team{number}": number_of_agents // 10 for number in range(10)}
    stormy, *calm = [agent for team, number in teams.items() for agent in fleet.add(team, number)]
    queue = fleet.queue(fleet.settings)
    fleet.endpoint.poison = "poisonous"
    with ExitStack() as stack:
        pids = [fleet.start(stack, f"storm{each}", "workers_started", "work")[0] for each in range(2)]
        pid, url = fleet.start(stack, "door", "takes content at", "ingest", "--port", "0")
        senders = {team: Sender(fleet, url, team, "laptop") for team in teams}
        meter = Meter()
        for agent in calm:
            queue.mark_changed(agent, fleet.arrive(agent, [text_of(source, 50)]), lane=Lane.BACKFILL)
        wait_until(queue.is_idle, timeout=280, pause=0.5)
        print(f"{len(calm):,} agents got their first note in {meter.read()[0]:.1f} s")

        def send(name: str) -> None:
            sent, begun = {}, time.monotonic()
            meter = Meter(pids, [pid], [fleet.postgres])
            for number in range(NOTES):
                threading.Event().wait(max(0.0, begun + number / NOTES_A_SECOND - time.monotonic()))
                agent, path = source.choice(calm), f"memory/{name}-{number}.md"
                sent[f"{agent}/{path}"] = time.time()
                senders[agent.partition("/")[0]].send(agent, path, f"{number} {text_of(source, 50)}".encode())
            costs = ", ".join(f"{seconds:.0f}" for seconds in meter.read())
            waiting = queue.pending_set.pending(stormy).documents
            times = wait_until(
                lambda: times if sent.keys() <= (times := dict(fleet.ask(SEARCHABLE))).keys() else None, pause=2.0
            )
            delays = [1000 * (times[note] - at) for note, at in sent.items()] if times else []
            figures = ", ".join(f"{percentile(delays, share):.0f}" for share in (50, 90, 99))
            print(f"{name}: p50, p90, p99 {figures} ms; {waiting:,} documents of the storm wait; s {costs}")

        send("quiet")
        texts = [f"{place} {text_of(source, 50)} {'poisonous' * (place % POISON == 7)}" for place in range(STORM)]
        keys = fleet.arrive(stormy, texts)
        for start in range(0, STORM, 500):
            queue.mark_changed(stormy, keys[start : start + 500], lane=Lane.LIVE)
        print(f"{queue.pending_set.pending(stormy).documents:,} documents of the storm wait")
        send("storm")
        print(f"MB of workers and door {peak_mb(*pids, pid)}; connections {fleet.connections()}")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("part", choices=["commits", "workers", "door", "storm"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--agents", type=int, help="by default 16 for workers, 1,000 for a storm")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name, ExitStack() as stack:
        fleet = Fleet(Path(name), stack)
        parts: dict[str, Callable[[], None]] = {
            "commits": lambda: commits(fleet),
            "workers": lambda: workers(fleet, arguments.agents or 16, arguments.workers),
            "door": lambda: door(fleet),
            "storm": lambda: storm(fleet, arguments.agents or 1_000),
        }
        parts[arguments.part]()


if __name__ == "__main__":
    main()

"""Searches of a fleet: thousands of agents of 200 chunks, and a large one, in PostgreSQL.

    python -m tests.benchmarks.bench_fleet_search DIRECTORY [--agents 10000] [--large 50000]

DIRECTORY keeps the server's data for the next run: 18 GB, made in some minutes, without fsync. The writer fills the
large agent with passages of English sentences with made-up names. SQL copies 200 of them to each other agent, ten at a
time, so that the rows of an agent lie apart as those of daily notes do. Questions: three to eight words of a passage.

Printed: bytes of a chunk on the disk; floors; p50, p99, the first time and the CPU of each process, for hybrid searches
without embedding and HTTP (`retrieve`) and their calls of the store, and for searches through `recalld serve`; the
memory of that. Each search is of another agent, unless it says "again".
"""

from __future__ import annotations

import os
import queue
import random
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psycopg

from memory.index.fingerprint import fingerprint
from memory.index.provider import provider_of
from memory.search.ranking.ranker import SearchParameters
from memory.search.retrieval import QuerySide, retrieve
from memory.status.run_files import socket_path
from memory.store.postgres.administration import Administration
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import FleetDirectory
from memory.store.postgres.reader import PostgresReader
from memory.store.postgres.writer import PostgresStore, create_generation
from memory.store.reader import StoreReader
from recalld.settings.load import load
from schemas.agents import Scope
from schemas.settings import Settings
from tests.benchmarks.fleet_agents import DIMENSIONS, LARGE, bytes_a_chunk, copy_agents, unit, write_large
from tests.benchmarks.frame import Home, Service, cpu_seconds, family, options, percentile
from tests.postgres_server import MIGRATED, READER, WRITER, PostgresServer
from workers.queue.private_server import BrokerServer

SEARCHES = 500
_LARGE = "SELECT generation FROM recalld.generations WHERE tenant = %s AND agent = %s"
_OF = "FROM recalld.chunks WHERE generation = %s"
COSINES = f"SELECT id, embedding::vector <=> (SELECT embedding::vector {_OF} LIMIT 1) {_OF}"
FLOORS = {"SELECT 1": "SELECT %s", "words of an agent": f"SELECT id, words {_OF}", "its cosines": COSINES}


class TimedReader:
    """Reader whose calls are timed: `seconds` in all."""

    def __init__(self, reader: PostgresReader) -> None:
        self._reader, self.seconds = reader, 0.0

    def __getattr__(self, name: str) -> Any:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            answer = getattr(self._reader, name)(*arguments)
            self.seconds += time.perf_counter() - begun
            return answer

        return timed if callable(getattr(self._reader, name)) else getattr(self._reader, name)


class Bench:
    """Searches with random questions, and their measurement. `pids`: processes whose CPU counts."""

    def __init__(self, database: Database, home: Home, texts: Sequence[str] = (), generation: str = "") -> None:
        self._database, self._numbers, self.draw = database, np.random.default_rng(11), random.Random(11)
        self._generation, self._words = generation, [re.findall(r"[A-Za-z]{3,}", text) for text in texts]
        settings = load(config=str(home.config), home=str(home.path)).settings
        self._agent = FleetDirectory(settings, database).agent(LARGE.agent_id)
        provider = provider_of(settings, self._agent).provider
        assert provider is not None
        self._provider, self.identity = provider, fingerprint(self._agent, provider.identity)
        self.pids: dict[str, Callable[[], list[int]]] = {"client": lambda: [os.getpid()]}

    def question(self) -> str:
        return " ".join(self.draw.sample(self.draw.choice(self._words), self.draw.randint(3, 8)))

    def search(self, scope: Scope) -> float:
        """Make a hybrid search, and return its seconds in the store."""
        query, sources = self._agent.query, self._agent.sources
        parameters = SearchParameters(self.question(), query.max_results, query.min_score, sources, query.hybrid)
        side = QuerySide(self._provider.identity, self._provider.model, unit(self._numbers))
        begun = time.perf_counter()
        with PostgresReader(self._database, scope, self._generation_of(scope)).snapshot() as reader:
            timed, opened = TimedReader(reader), time.perf_counter()
            assert retrieve(cast(StoreReader, timed), parameters, side).mode == "hybrid"
            ranked = time.perf_counter()
        return timed.seconds + (opened - begun) + (time.perf_counter() - ranked)

    def floor(self, query: str, scope: Scope) -> None:
        """Run a statement in a transaction of its own."""
        with self._database.transaction(scope, read_only=True) as connection:
            bindings = [self._generation_of(scope)] * query.count("%s")
            connection.execute(query.encode(), bindings, binary=True).fetchall()

    def measure(self, name: str, call: Callable[[Scope], Any], scopes: Sequence[Scope], *, clients: int = 1) -> None:
        """Make the call for each scope, and print its figures."""

        def timed(scope: Scope) -> tuple[float, float]:
            begun = time.perf_counter()
            part = call(scope)
            return (time.perf_counter() - begun) * 1000, (part or 0.0) * 1000

        before, begun = self._cpu(), time.perf_counter()
        with ThreadPoolExecutor(clients) as threads:
            times, parts = map(list, zip(*threads.map(timed, scopes), strict=True))
        seconds = time.perf_counter() - begun
        cpu = (f"{role} {1000 * (spent - before[role]) / len(scopes):.1f}" for role, spent in self._cpu().items())
        for label, several in ((name, times), ("  in the store", parts)):
            if any(several):
                line = f"p50 {percentile(several, 50):.1f} ms, p99 {percentile(several, 99):.1f}"
                print(f"{label}: {line}, first {several[0]:.1f}")
        print(f"  {len(scopes) / seconds:.0f} a second; CPU {', '.join(cpu)}", flush=True)

    def _generation_of(self, scope: Scope) -> str:
        """Return the name that `copy_agents` gives."""
        return self._generation + scope.agent.partition("-")[2]

    def _cpu(self) -> dict[str, float]:
        return {role: sum(map(cpu_seconds, pids())) for role, pids in self.pids.items()}


def measure(bench: Bench, home: Home, token: str, agents: int) -> None:
    def scopes(count: int) -> list[Scope]:
        return [Scope(LARGE.tenant, f"agent-{at}") for at in bench.draw.sample(range(1, agents + 1), count)]

    again = scopes(SEARCHES // 10)
    for name, query in FLOORS.items():
        bench.measure(f"floor: {name}", partial(bench.floor, query), scopes(SEARCHES))
    for name, searched in (("", scopes(SEARCHES)), (", 50 agents", again), (", these again", again * 5)):
        bench.measure(f"retrieve{name}", bench.search, searched)
    bench.measure("retrieve, large", bench.search, [LARGE] * 100)
    bench.measure("floor: its cosines", partial(bench.floor, COSINES), [LARGE] * 30)
    with home.running("serve", "--port", "0") as serve:
        bench.pids["serve"] = lambda: [serve.pid]
        connections, port = queue.SimpleQueue[Service](), home.service().port
        for _ in range(4):
            connections.put(Service(port, token=token))

        def ask(scope: Scope) -> None:
            service, body = connections.get(), {"query": bench.question(), "agent": scope.agent, "minScore": 0}
            assert service.ask("/v1/search", body)["mode"] == "hybrid"
            connections.put(service)

        bench.measure("HTTP, large", ask, [LARGE] * 100)
        for clients in (1, 4):
            bench.measure(f"HTTP, {clients} at a time", ask, scopes(SEARCHES), clients=clients)
            bench.measure(f"HTTP, {clients} at a time, 50 agents again", ask, again * 5, clients=clients)
        bench.measure("HTTP, 3,000 agents", ask, scopes(min(agents, 3_000)), clients=2)
        print(re.findall(r"Vm(?:HWM|RSS):.*", Path(f"/proc/{serve.pid}/status").read_text("ascii")))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=50_000)
    arguments = parser.parse_args()
    folder, is_new = arguments.directory, not arguments.directory.exists()
    if is_new:
        PostgresServer.migrated(folder)
    postgres = PostgresServer(folder, shared_buffers="2GB", max_wal_size="8GB")
    broker = BrokerServer(Settings(home=folder / "queue"))
    postgres.start()
    try:
        broker.ensure()
        url, writer = postgres.url(MIGRATED, READER), Database(postgres.url(MIGRATED, WRITER))
        lines = f'provider = "stub"\noutput_dimensionality = {DIMENSIONS}\nstore.url = "{url}"\n'
        home = Home(folder / "replica", f'{lines}broker.url = "unix://{socket_path(folder / "queue")}"\n')
        fleet = Administration(writer, actor="benchmark")
        with psycopg.connect(postgres.url(MIGRATED), autocommit=True, cursor_factory=psycopg.ClientCursor) as superuser:
            if is_new:
                fleet.add_tenant(LARGE.tenant)
                fleet.add_agent(LARGE.tenant, LARGE.agent)
                digest, description = astuple(Bench(writer, home).identity)
                generation = create_generation(writer, LARGE, fingerprint=digest, description=description)
                write_large(PostgresStore(writer, LARGE, generation), arguments.large)
                copy_agents(superuser, agents=arguments.agents, large=arguments.large)
            [(generation,)] = superuser.execute(_LARGE, astuple(LARGE))
            texts = [text for (text,) in superuser.execute(f"SELECT text {_OF} AND id <= 2000".encode(), [generation])]
            print(f"{bytes_a_chunk(superuser):,.0f} bytes a chunk on the disk", flush=True)
        bench = Bench(Database(url), home, texts, generation)
        postmaster = int((folder / "data/postmaster.pid").read_text().split()[0])
        bench.pids["PostgreSQL"] = lambda: family(postmaster)
        token = fleet.add_token(LARGE.tenant, f"at-{time.time():.0f}", rights=["search"])
        measure(bench, home, token, arguments.agents)
    finally:
        broker.stop()
        postgres.kill()


if __name__ == "__main__":
    main()

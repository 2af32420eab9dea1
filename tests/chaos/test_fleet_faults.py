"""Faults of a fleet's servers and hosts while machines send notes: nothing that was taken is lost, or paid twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from memory.index.generations import Generations
from memory.status.run_files import socket_path
from memory.store.postgres.administration import Administration
from memory.store.postgres.arrivals import running_digest
from memory.store.postgres.connection import Database
from memory.store.reader import StoreReader
from memory.transcripts.lines import packed
from schemas.settings import Settings
from tests.chaos.kill_points import Plan
from tests.daemon import started
from tests.embedding_server import EmbeddingServer, Failure
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until
from workers.queue.connection import connect
from workers.queue.private_server import BrokerServer

pytestmark = pytest.mark.long

AGENT = "acme/anna"

#: A matter of minutes, in a product whose servers die once a year.
IMPATIENCE = {
    "workers.maintenance:SWEEP_SECONDS": 1.0,
    "workers.queue.broker:HEARTBEAT_TIMEOUT_MS": 4_000,
    "workers.failure_policy:BACKOFF_MAX_SECONDS": 4.0,
    "workers.claims:KEPT_SECONDS": 20,
}

#: Seconds after which what should come has not.
PATIENCE = 240.0


class Link:
    """TCP link to a server. While it is cut, connections stay open and bytes stay where they are."""

    def __init__(self, family: socket.AddressFamily, address: str | tuple[str, int]) -> None:
        self.whole = threading.Event()
        self.whole.set()
        self._to = family, address
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port: int = self._sockets[0].getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._sockets[0].accept()[0], socket.socket(self._to[0])
                self._sockets += [near, far]
                far.connect(self._to[1])
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65_536):
                self.whole.wait()
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


class Machine(threading.Thread):
    """Machine that sends note after note until it is stopped; `words` are in notes that the door acknowledged."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(daemon=True)
        self.words: list[str] = []
        self.stopped = threading.Event()
        self._name = name
        headers = {"Authorization": f"Bearer {fleet.token(name)}", "Content-Type": "application/zstd"}
        self._client = httpx.Client(base_url=fleet.door, headers=headers, timeout=30)

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            word = f"{self._name}{len(self.words)}"
            while not self.send(f"memory/{word}.md", word) and not self.stopped.wait(0.1):
                pass

    def stop(self) -> None:
        self.stopped.set()
        if self.is_alive():
            self.join()
        self._client.close()

    def sends(self, number: int) -> None:
        """Wait until so many more notes were taken."""
        enough = len(self.words) + number
        wait_until(lambda: len(self.words) >= enough, what="notes that the door takes")

    def send(self, path: str, word: str) -> bool:
        content = f"The {word} stands in the reeds.\n".encode()
        note = {"source": "memory", "path": path, "machine": f"{self._name:0<16}"}
        try:
            answer = self._client.post(
                "/v1/ingest/part", params={**note, "digest": running_digest("", content)}, content=packed(content)
            )
        except httpx.HTTPError:
            return False
        self.words += [word] if answer.status_code == 200 else []
        return answer.status_code == 200


class Fleet:
    """PostgreSQL, Valkey and an endpoint of embeddings, with a door and workers as processes."""

    def __init__(self, folder: Path, postgres: PostgresServer, stack: ExitStack) -> None:
        self._folder, self.postgres, self._stack = folder, postgres, stack
        self.store = postgres.urls().writer
        self.queue = Settings(home=folder / "queue")
        self.valkey = BrokerServer(self.queue)
        stack.callback(self.valkey.stop)
        self.valkey.ensure()
        self.embedding = stack.enter_context(EmbeddingServer(latency=0.02))
        self._plan = Plan(folder / "plan", (), constants=IMPATIENCE)
        self._administration = Administration(Database(self.store), actor="root")
        self._administration.add_tenant("acme")
        self._generations = Generations.of(
            Settings.model_validate({"home": folder / "reader", "store": {"url": self.store}}), AGENT
        )

    @property
    def door(self) -> str:
        """URL of the door, which is started first."""
        log = self._folder / "door.log"
        if not log.exists():
            self.start("door", "ingest", "--port", "0")
        return wait_until(lambda: re.findall(r"takes content at (\S+)", log.read_text()))[0]

    def token(self, machine: str) -> str:
        return self._administration.add_token("acme", machine, rights=["ingest"], agents=["anna"])

    def start(
        self, name: str, *command: str, store: str = "", broker: str = "", plan: Plan | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process with a home of its own, and wait until it is ready."""
        environment = {
            "RECALLD_HOME": str(self._folder / name),
            "RECALLD_STORE__URL": store or self.store,
            "RECALLD_BROKER__URL": broker or f"unix://{socket_path(self.queue.home)}",
            "RECALLD_PROVIDER": "openai",
            "RECALLD_REMOTE__BASE_URL": self.embedding.url,
            "RECALLD_REMOTE__API_KEY": "chaos",
            **(plan or self._plan).environment(),
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            process = started(*command, "--supervised", environment=environment, **pipes)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", (self._folder / f"{name}.log").read_text()
        return process

    def machines(self, number: int) -> list[Machine]:
        """Start machines that send."""
        machines = [Machine(self, f"laptop{letter}") for letter in "abcdef"[:number]]
        for machine in machines:
            self._stack.callback(machine.stop)
            machine.start()
        return machines

    def reader(self) -> StoreReader | None:
        return self._generations.open_reader()

    def finds(self, word: str) -> bool:
        reader = self.reader()
        return reader is not None and bool(reader.search_text(word, 1))

    def settle(self, machines: list[Machine]) -> StoreReader:
        """Stop the machines, and wait until every note that was acknowledged is indexed with its vector."""
        for machine in machines:
            machine.stop()
        words = {word for machine in machines for word in machine.words}
        reader = wait_until(self.reader, timeout=PATIENCE)

        def is_settled() -> bool:
            nonlocal words
            words = {word for word in words if not reader.search_text(word, 1)}
            counts = reader.counts()
            return not words and counts.vectors_ready == counts.chunks

        wait_until(is_settled, timeout=PATIENCE, what="notes that were acknowledged")
        return reader


@pytest.fixture
def fleet(tmp_path: Path, own_server: PostgresServer) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, own_server, stack)


def expect_renewed_claims(fleet: Fleet) -> None:
    """Wait until workers have renewed their claims on vectors that the store did not take."""
    kept = IMPATIENCE["workers.claims:KEPT_SECONDS"]
    with connect(fleet.queue) as client:
        claims = wait_until(lambda: list(client.scan_iter("*:claim:*")), what="claims on vectors without a store")
        for claim in claims:
            client.expire(claim, 10_000)
        wait_until(lambda: any(0 <= client.ttl(claim) <= kept for claim in claims), what="renewed claims")
        for claim in claims:  # a claim on what an earlier outage held up is not renewed: the store has it
            client.expire(claim, int(kept), lt=True)


def test_postgresql_killed_under_load_loses_nothing_and_nothing_is_paid_twice(fleet: Fleet) -> None:
    machines = fleet.machines(3)
    for name in ("one", "two"):
        fleet.start(name, "work")
    for _ in range(2):
        for machine in machines:
            machine.sends(10)
        fleet.embedding.open.clear()
        wait_until(lambda: fleet.embedding.in_flight)
        fleet.postgres.kill()
        fleet.embedding.open.set()
        wait_until(lambda: not fleet.embedding.in_flight, what="answers that came while the store was away")
        expect_renewed_claims(fleet)
        fleet.postgres.start()
    assert fleet.settle(machines).check() == []
    assert fleet.embedding.paid_twice == set()


def test_valkey_killed_and_emptied_leaves_nothing_pending_behind(fleet: Fleet) -> None:
    machines = fleet.machines(3)
    fleet.start("one", "work")
    wait_until(lambda: fleet.reader() is not None)
    fleet.embedding.open.clear()
    wait_until(lambda: fleet.embedding.in_flight)
    with connect(fleet.queue) as client:
        pid = int(client.info("server")["process_id"])
    for machine in machines:
        machine.stopped.set()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not fleet.valkey.answers())
    shutil.rmtree(fleet.queue.home / "broker" / "appendonlydir")
    fleet.embedding.open.set()
    fleet.valkey.ensure()
    assert fleet.settle(machines).check() == []
    assert fleet.embedding.paid_twice == set()


def test_a_worker_host_that_was_cut_off_changes_nothing_when_it_is_back(fleet: Fleet, tmp_path: Path) -> None:
    store = Link(socket.AF_INET, ("127.0.0.1", fleet.postgres.port))
    queue = Link(socket.AF_UNIX, str(socket_path(fleet.queue.home)))
    machine, over = Machine(fleet, "laptop"), threading.Event()
    fleet.embedding.fail_next(Failure(held_until=over))
    away = fleet.start(
        "away",
        "work",
        store=fleet.store.replace(f":{fleet.postgres.port}", f":{store.port}"),
        broker=f"redis://127.0.0.1:{queue.port}",
    )
    try:
        for number, word in enumerate(("heron", "egret", "bittern")):
            assert machine.send(f"memory/{number}.md", word)
        wait_until(lambda: fleet.embedding.in_flight)
        in_flight = {text for request in fleet.embedding.log for text in request.inputs}
        for link in (store, queue):
            link.whole.clear()
        assert machine.send("memory/0.md", "crane")
        machine.words.remove("heron")
        fleet.start("other", "work")
        fleet.settle([machine])
        over.set()
        for link in (store, queue):
            link.whole.set()
        wait_until(lambda: not fleet.embedding.in_flight)
        assert away.stdin is not None
        away.stdin.close()
        assert away.wait(PATIENCE) == 0
        assert fleet.settle([machine]).check() == []
        assert not fleet.finds("heron"), "its late commit was refused"
        assert fleet.embedding.paid_twice <= in_flight
    finally:
        over.set()
        for link in (store, queue):
            link.whole.set()
            link.close()

"""Rolling upgrade of a fleet under load: no search fails, no job is lost, nothing is paid twice."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from memory.store.postgres.administration import Administration
from memory.store.postgres.connection import Database
from memory.store.postgres.migration import migrate
from memory.store.postgres.schema import MIGRATIONS, SCHEMA_NUMBER, Migration
from tests.chaos.kill_points import Plan
from tests.chaos.test_fleet_faults import IMPATIENCE, PATIENCE, Fleet, Machine
from tests.ports import free_port
from tests.postgres_server import MIGRATOR, READER, WRITER, PostgresServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: A step of the next version, which adds what the present one does not know.
COLOURS = Migration(
    "colours",
    "ALTER TABLE recalld.documents ADD COLUMN colour text; ALTER TABLE recalld.chunks ADD COLUMN colour text;",
    works_with=SCHEMA_NUMBER,
)

#: Settings of the next version's code, which refuses tables without that step.
NEXT_VERSION = {**IMPATIENCE, "memory.store.postgres.connection:SCHEMA_NUMBER": SCHEMA_NUMBER + 1}


class Client(threading.Thread):
    """Client that searches, never twice for one question, by a load balancer that knows which replicas are ready."""

    def __init__(self, ports: list[int], machine: Machine, token: str) -> None:
        super().__init__(daemon=True)
        self.answers: dict[int, int] = dict.fromkeys(ports, 0)
        self.failures: list[str] = []
        self.stopped = threading.Event()
        self._balanced = list(ports)
        self._turn = threading.Lock()
        self._machine = machine
        self._client = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def run(self) -> None:
        for number in itertools.count():
            if self.stopped.wait(0.02):
                return
            with self._turn:
                self._search(
                    self._balanced[number % len(self._balanced)], f"where is {self._machine.words[-1]} {number}"
                )

    def stop(self) -> None:
        self.stopped.set()
        self.join()
        self._client.close()

    @contextmanager
    def without(self, port: int) -> Iterator[None]:
        """Take a replica out of the balance until it says that it is ready."""
        with self._turn:
            self._balanced.remove(port)
        yield
        wait_until(lambda: self._is_ready(port))
        with self._turn:
            self._balanced.append(port)
            before = self.answers[port]
        wait_until(lambda: self.answers[port] > before or self.failures, what=f"an answer of {port}")

    def _is_ready(self, port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _search(self, port: int, query: str) -> None:
        if not self._is_ready(port):
            self.failures.append(f"{port} is not ready")
            return
        try:
            response = self._client.post(f"http://127.0.0.1:{port}/v1/search", json={"query": query})
        except httpx.HTTPError as error:
            self.failures.append(f"{port}: {error!r}")
            return
        if response.status_code != 200 or "unavailable" in response.json():
            self.failures.append(f"{port}: {response.status_code} {response.text}")
        self.answers[port] += 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def fleet(tmp_path: Path, own_server: PostgresServer, stack: ExitStack) -> Fleet:
    return Fleet(tmp_path, own_server, stack)


def test_a_rolling_upgrade_under_load_fails_no_search_and_loses_no_job(
    fleet: Fleet, stack: ExitStack, tmp_path: Path
) -> None:
    replicas, door = [free_port(), free_port()], free_port()
    reader = fleet.store.replace(WRITER, READER)
    commands = {
        "one": ("work",),
        "two": ("work",),
        "door": ("ingest", "--port", str(door)),
        **{f"replica{port}": ("serve", "--port", str(port)) for port in replicas},
    }

    def start(name: str, plan: Plan | None = None) -> subprocess.Popen[bytes]:
        return fleet.start(name, *commands[name], store=reader if "replica" in name else "", plan=plan)

    processes = {name: start(name) for name in commands}
    machines = fleet.machines(2)
    wait_until(lambda: machines[0].words and fleet.finds(machines[0].words[0]), timeout=PATIENCE)
    token = Administration(Database(fleet.store), actor="root").add_token(
        "acme", "bot", rights=["search"], agents=["anna"]
    )
    client = Client(replicas, machines[0], token)
    client.start()
    stack.callback(client.stop)
    wait_until(lambda: all(client.answers.values()), what="answers of both replicas")

    def roll(plan: Plan | None) -> None:
        """Restart process after process."""
        for name in commands:
            port = int(name.removeprefix("replica")) if "replica" in name else None
            with client.without(port) if port is not None else ExitStack():
                processes[name].send_signal(signal.SIGTERM)
                assert processes[name].wait(PATIENCE) == 0
                processes[name] = start(name, plan)
            machines[1].sends(2)

    with_colours = (*MIGRATIONS, COLOURS)
    assert migrate(fleet.store.replace(WRITER, MIGRATOR), migrations=with_colours, lock_seconds=60.0) == ["colours"]
    roll(None)
    roll(Plan(tmp_path / "next", (), constants=NEXT_VERSION))
    client.stop()
    assert client.failures == []
    assert fleet.settle(machines).check() == []
    assert fleet.embedding.paid_twice == set()

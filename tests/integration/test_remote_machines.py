"""A laptop that shares no disk with its fleet: real PostgreSQL and Valkey, door, workers and query service."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from memory.store.postgres.administration import Administration
from memory.transcripts.lines import packed, unpacked
from producers.door import Door
from recalld.wiring import open_broker
from schemas.settings import Settings
from tests.daemon import recalld, started
from tests.postgres_server import Urls
from tests.secret_samples import PASSWORD
from tests.serving import running
from tests.waiting import wait_until
from tests.working import Workers

WORDS = [first + second for first in "ba ke li mo nu ra".split() for second in "dar fen gol hup jin".split()]  # noqa: SIM905


class Proxy:
    """Way to the door that breaks after a number of bytes. It counts the bytes that the laptop sends."""

    def __init__(self, target: int) -> None:
        self.sent = 0
        self.breaks_at: int | None = None
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def is_broken(self) -> bool:
        return self.breaks_at is not None and self.sent >= self.breaks_at

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                thread = threading.Thread(target=self._serve, args=(self._server.accept()[0],))
                self._threads.append(thread)
                thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as far:
            back = threading.Thread(target=self._pump, args=(far, near))
            back.start()
            self._pump(near, far, counts=True)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket, *, counts: bool = False) -> None:
        with suppress(OSError):
            while not self.is_broken and (data := source.recv(65_536)):
                self.sent += len(data) * counts
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Fleet:
    """A fleet of the tenant acme with the agent anna, and an access token for its laptop."""

    def __init__(self, settings: Settings, urls: Urls, client: httpx.Client, admin: Administration) -> None:
        self.settings, self.urls, self.admin, self._client = settings, urls, admin, client
        self.token = admin.add_token("acme", "laptop", rights=["ingest"], agents=["anna"])
        secret = admin.add_token("acme", "reader", rights=["search"], agents=["anna"])
        self._headers = {"Authorization": f"Bearer {secret}"}

    def found(self, word: str) -> str | None:
        """Return the path of the passage that a search for a word finds, which holds it."""
        body = {"query": word, "minScore": 0}
        answer = self._client.post("/v1/search", json=body, headers=self._headers)
        assert answer.status_code == 200, answer.text
        return next((result["path"] for result in answer.json()["results"] if word in result["snippet"]), None)

    def tables_hold(self, text: str) -> list[str]:
        """Return the tables with a row that holds a text, read past all policies, frames of content unpacked."""
        holding = []
        with psycopg.connect(self.urls.superuser) as connection:
            tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname !~ '^pg_|^sql_'"
            for (table,) in connection.execute(tables).fetchall():
                rows = connection.execute(f"SELECT t::text FROM {table} AS t".encode()).fetchall()
                holding += [table] * any(text in row or text.encode().hex() in row for (row,) in rows)
            for (frame,) in connection.execute("SELECT content FROM recalld.document_parts").fetchall():
                content = unpacked(frame, most=10**8)
                assert content is not None
                holding += ["content"] * (text.encode() in content)
        return holding

    def documents(self) -> dict[str, int]:
        """Return the size of every document that is whole, as sent."""
        query = "SELECT path, size FROM recalld.documents WHERE version > 0"
        with psycopg.connect(self.urls.superuser) as connection:
            return dict(connection.execute(query).fetchall())


@pytest.fixture
def fleet(fleet: Administration, fleet_urls: Urls, redis_url: str, tmp_path: Path) -> Iterator[Fleet]:
    def of(place: str, url: str) -> Settings:
        broker = {"url": redis_url, "namespace": "fleet"}
        values = {"home": tmp_path / place, "provider": "stub", "store": {"url": url}, "broker": broker}
        return Settings.model_validate({**values, "ingest": {"port": 0}, "limits": {"timeout_ms": 8000}})

    workers, reading = of("workers", fleet_urls.writer), of("query", fleet_urls.reader)
    with Workers(workers), running(reading) as client:
        yield Fleet(of("door", fleet_urls.writer), fleet_urls, client, fleet)


@contextmanager
def a_door(fleet: Fleet, port: int = 0) -> Iterator[Door]:
    ingest = fleet.settings.ingest.model_copy(update={"port": port})
    with (
        open_broker(fleet.settings) as broker,
        Door(fleet.settings.model_copy(update={"ingest": ingest}), broker.queue) as door,
    ):
        yield door


class Laptop:
    """`recalld watch --remote` of one agent, as a process."""

    def __init__(self, root: Path, fleet: Fleet, url: str) -> None:
        self.home, self.notes, self.talks = root / "laptop", root / "notes", root / "talks"
        (self.notes / "memory").mkdir(parents=True)
        self.talks.mkdir()
        self.url, self._variables = url, {"RECALLD_TOKEN": fleet.token}
        self.home.mkdir()
        sync = "[sync]\nwatch_debounce_ms = 100\n[sync.sessions]\nquiet_seconds = 0.2\n"
        agent = f'[[agents]]\nid = "main"\nworkspace = "{self.notes}"\nsessions = ["{self.talks}"]\n'
        (self.home / "recalld.toml").write_text('provider = "openai"\n' + sync + agent)  # without a key
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.home / "said").open("ab") as said:
            watching = {"home": self.home, "environment": self._variables}
            self._process = started("watch", "--remote", self.url, **watching, stderr=said)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return recalld(*arguments, home=self.home, environment=self._variables)

    def status(self) -> dict[str, Any]:
        (agent,) = json.loads(self.run("status", "--json").stdout)["agents"]
        return {**agent, "codes": {trouble["code"] for trouble in agent["troubles"]}}

    def said(self) -> str:
        return (self.home / "said").read_text()

    def note(self, name: str, text: str) -> int:
        return (self.notes / "memory" / name).write_text(text)

    def talk(self, name: str, *texts: str) -> int:
        lines = [json.dumps({"role": "user", "content": text}) + "\n" for text in texts]
        with (self.talks / name).open("a") as file:
            file.writelines(lines)
        return sum(map(len, lines))


@pytest.fixture
def laptops(tmp_path: Path, fleet: Fleet) -> Iterator[Callable[[str], Laptop]]:
    with ExitStack() as stack:

        def laptop(url: str) -> Laptop:
            laptop = Laptop(tmp_path, fleet, url)
            stack.callback(laptop.kill)
            return laptop

        yield laptop


def test_a_laptop_is_found_at_the_fleet_edited_and_deleted_and_keeps_its_secrets(
    fleet: Fleet, laptops: Callable[[str], Laptop]
):
    with a_door(fleet) as door:
        laptop = laptops(door.url)
        laptop.note("gateway.md", f"# Gateway\nThe gateway listens on Mondays.\npassword = {PASSWORD}\n")
        laptop.talk("a.jsonl", "The reactor is in Bergen.", f"my password is: {PASSWORD}")
        laptop.start()
        wait_until(lambda: fleet.found("gateway") == "memory/gateway.md", what="note")
        talk = wait_until(lambda: fleet.found("reactor"), what="transcript")
        machine = (laptop.home / "machine-id").read_text()
        assert talk == f"sessions/{machine}/a.jsonl"
        assert f"sends main to {door.url}" in laptop.said()
        assert not (laptop.home / "broker").exists()
        laptop.talk("a.jsonl", "The turbine is in Oslo.")
        wait_until(lambda: fleet.found("turbine") == talk, what="appended line")
        laptop.note("gateway.md", "# Harbour\nThe harbour opens on Tuesdays.\n")
        wait_until(lambda: fleet.found("harbour") == "memory/gateway.md", what="edit")
        assert fleet.found("gateway") is None
        (laptop.notes / "memory" / "gateway.md").unlink()
        wait_until(lambda: fleet.found("harbour") is None, what="deletion")
        (laptop.talks / "a.jsonl").unlink()
        assert fleet.tables_hold(PASSWORD) == []
        assert "content" in fleet.tables_hold("reactor")


@pytest.mark.long
def test_what_a_laptop_wrote_offline_arrives_once_although_it_is_killed_in_between(
    fleet: Fleet, laptops: Callable[[str], Laptop]
):
    with a_door(fleet) as door:
        port = door.port
    source = random.Random(38)
    with ExitStack() as stack:
        proxy = Proxy(port)
        stack.callback(proxy.close)
        laptop = laptops(proxy.url)

        def words(count: int) -> str:
            return " ".join(source.choices(WORDS, k=count))

        laptop.start()
        wait_until(lambda: "changes are sent once it takes them" in laptop.said(), what="the door is away")
        sizes = {
            f"memory/{number}.md": laptop.note(f"{number}.md", f"# {number}\n{words(50)}\n") for number in range(50)
        }
        machine = (laptop.home / "machine-id").read_text()
        for name, count in (("a", 14_000), ("b", 2_000), ("c", 2_000)):
            texts = [words(200) for _ in range(count)]
            sizes[f"sessions/{machine}/{name}.jsonl"] = laptop.talk(f"{name}.jsonl", *texts)
        laptop.kill()
        least = sum(len(packed(file.read_bytes())) for file in (*laptop.notes.rglob("*.md"), *laptop.talks.iterdir()))
        proxy.sent, proxy.breaks_at = 0, least // 2
        stack.enter_context(a_door(fleet, port))
        laptop.start()
        wait_until(lambda: proxy.is_broken, what="half of it is sent")
        laptop.kill()
        proxy.breaks_at = None
        laptop.start()
        wait_until(lambda: fleet.documents() == sizes, what="all documents")
        assert proxy.sent < 1.2 * least
        laptop.kill()
        before = proxy.sent
        laptop.start()
        wait_until(lambda: laptop.said().count("sends main to ") == 4, what="started again")
        laptop.note("50.md", "the last one")
        wait_until(lambda: "memory/50.md" in fleet.documents(), what="a later note")
        assert proxy.sent - before < 5_000, "nothing is sent twice"


@pytest.mark.long
def test_status_on_a_laptop_compares_with_what_was_sent_and_names_what_stops_sending(
    fleet: Fleet, laptops: Callable[[str], Laptop]
):
    with a_door(fleet) as door:
        laptop = laptops(door.url)
        laptop.note("a.md", "The heron stands in the reeds.\n")
        laptop.start()
        wait_until(lambda: laptop.status()["index"]["files"] == 1, what="a note is sent")
        agent = laptop.status()
        assert (agent["ok"], agent["disk"]["missing"], agent["index"]["sentTo"]) == (True, 0, door.url)
        assert "1 on disk, 1 sent" in laptop.run("status").stdout
        findings = json.loads(laptop.run("doctor", "--json").stdout)["findings"]
        assert {finding["check"] for finding in findings} & {"broker", "processes", "provider"} == set()

    def kept(documents: int) -> float | None:
        """Return the beginning of the condition that this many documents wait; None without it."""
        troubles = {trouble["code"]: trouble for trouble in laptop.status()["troubles"]}
        is_kept = "changes_kept" in troubles and troubles["changes_kept"]["params"]["documents"] == documents
        return troubles["changes_kept"]["since"] if is_kept else None

    laptop.note("b.md", "The bittern booms at night.\n")
    since = wait_until(lambda: kept(1), what="the door is away")
    laptop.note("c.md", "The egret is white.\n")
    assert wait_until(lambda: kept(2), what="two notes wait") == since
    with a_door(fleet, door.port):
        wait_until(lambda: (agent := laptop.status())["ok"] and agent["index"]["files"] == 3, what="all is sent")
    fleet.admin.revoke("acme", "laptop")
    laptop.note("d.md", "The stork nests on the roof.\n")
    with a_door(fleet, door.port):
        wait_until(lambda: {"door_refuses", "documents_unsent"} <= laptop.status()["codes"], what="refusal")
    laptop.kill()
    assert laptop.status()["codes"] == {"documents_unsent"}, "its process is gone"

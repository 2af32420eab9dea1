"""Frame of a fleet's benchmarks: its servers, processes and documents, and machines that send some."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psycopg

from memory.status.run_files import socket_path
from memory.store.postgres.administration import Administration
from memory.store.postgres.arrivals import running_digest
from memory.store.postgres.connection import Database
from memory.transcripts.lines import packed
from schemas.agents import Scope
from schemas.documents import DocumentKey
from schemas.settings import Settings
from tests.benchmarks.frame import Home, InstantServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until
from workers.queue.connection import connect, namespace
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer

_NEW = "FROM unnest(%(paths)s::text[], %(sizes)s::int[], %(frames)s::bytea[]) AS new (path, size, frame)"
_KEY = "SELECT %(tenant)s, %(agent)s, 'memory', path, 'm', 1"
_ARRIVE = f"""
WITH held AS (
    INSERT INTO recalld.documents (tenant, agent, source, path, machine, version, size, stored, arrived_ns)
    {_KEY}, size, size, 1 {_NEW}
)
INSERT INTO recalld.document_parts
    (tenant, agent, source, path, machine, version, "offset", length, digest, place, stored, content)
{_KEY}, 0, size, '', 0, size, frame {_NEW}
"""


class Fleet:
    """PostgreSQL, Valkey and an endpoint of embeddings, which run until the stack closes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        PostgresServer.migrated(folder / "postgres")
        # As in use, the server plans by the statistics of its tables.
        postgres = PostgresServer(folder / "postgres", autovacuum="on", track_commit_timestamp="on")
        stack.callback(postgres.kill)
        postgres.start()
        self.postgres = int((folder / "postgres/data/postmaster.pid").read_text().split()[0])
        urls = postgres.urls()
        self.endpoint = stack.enter_context(InstantServer(512))
        self.endpoint.latency = 0.03
        valkey = BrokerServer(Settings(home=folder / "queue"))
        stack.callback(valkey.stop)
        valkey.ensure()
        self.broker = {"url": f"unix://{socket_path(folder / 'queue')}"}
        self.settings = self.settings_of(folder / "bench", store={"url": urls.writer})
        self.lines = f'broker.url = "{self.broker["url"]}"\n{self.endpoint.settings}service.port = 0\n'
        self.store = f'store.url = "{urls.writer}"\n'
        self.database = Database(urls.writer)
        stack.callback(self.database.close)
        self.superuser = stack.enter_context(psycopg.connect(urls.superuser, autocommit=True))
        self.administration = Administration(self.database, actor="benchmark")

    def queue(self, settings: Settings) -> BrokerJobQueue:
        """Return the queue of a home or of the fleet."""
        return BrokerJobQueue(connect(settings), Keys(namespace(settings)))

    def settings_of(self, home: Path, **more: object) -> Settings:
        return Settings.model_validate({"home": home, "broker": self.broker, **more})

    def start(self, stack: ExitStack, name: str, ready: str, *command: str, agents: str = "") -> tuple[int, str]:
        """Start a process in a home; return its id and the word after `ready` in its log."""
        home = Home(self.folder / name, self.lines + (agents or self.store))
        process = stack.enter_context(home.running(*command))
        printed = home.folder / "printed"
        return process.pid, wait_until(lambda: re.findall(rf"{ready}\W+(\S+)", printed.read_text("utf-8")))[0]

    def add(self, tenant: str, agents: int) -> list[str]:
        """Add a tenant with agents, and return their ids."""
        self.administration.add_tenant(tenant)
        for number in range(agents):
            self.administration.add_agent(tenant, f"a{number}")
        return [f"{tenant}/a{number}" for number in range(agents)]

    def arrive(self, agent: str, texts: Sequence[str]) -> list[DocumentKey]:
        """Put notes into the store as the door does, all at once and without a mark."""
        contents = [text.encode() for text in texts]
        rows = {"paths": [f"memory/{number:05}.md" for number in range(len(texts))], "sizes": [*map(len, contents)]}
        scope = Scope.of(agent)
        names = {"tenant": scope.tenant, "agent": scope.agent, "frames": [*map(packed, contents)], **rows}
        with self.database.transaction(scope) as connection:
            connection.execute(_ARRIVE.encode(), names)
        return [DocumentKey("memory", path) for path in rows["paths"]]

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, of all tenants."""
        return self.superuser.execute(statement.encode()).fetchall()

    def connections(self) -> int:
        """Return the number of all processes' connections to PostgreSQL."""
        return int(self.ask("SELECT count(*) FROM pg_stat_activity WHERE usename = 'worker1'")[0][0])


class Sender:
    """Machine that sends notes to the door over one connection."""

    def __init__(self, fleet: Fleet, url: str, tenant: str, name: str) -> None:
        token = fleet.administration.add_token(tenant, name, rights=["ingest"])
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/zstd"}
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
        self._note = {"source": "memory", "machine": f"{name:0<16}"}
        self._used_at = 0.0

    def send(self, agent: str, path: str, content: bytes) -> None:
        if time.monotonic() - self._used_at > 2.0:
            self._connection.close()  # the door closes idle connections; the next request opens it again
        query = urlencode({**self._note, "agent": agent, "path": path, "digest": running_digest("", content)})
        self._connection.request("POST", f"/v1/ingest/part?{query}", packed(content), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        self._used_at = time.monotonic()
        assert answer.status == 200, body

"""Clients that are slow, silent or boundless, at every door that listens: they are sent away, and others are served.

Whatever one of them does is tried at the query service and at the hooks' server, which share what bounds them, and,
where it can be done there at all, at the small listener of workers and of `up`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.responses import JSONResponse

from memory.http.server import Bounds
from memory.telemetry.server import TelemetryServer
from producers.hook_server import HookServer
from schemas.ports import Event
from schemas.settings import Settings
from tests.hostile_client import Answer, HostileClient, crowd, held, request, said
from tests.recording import RecordingConditions
from tests.serving import running
from tests.waiting import wait_until

BOUNDS = Bounds(connections=40, head_seconds=0.5, body_seconds=0.5, answer_seconds=0.5, leaving_seconds=1.0)

#: Clients that come at once: many times what is held.
CROWD = 200

HOOK = b'{"hook_event_name": "SessionStart"}'


@dataclass(frozen=True)
class Door:
    """A server, with a request that it answers with `status`, and one with a body."""

    port: int
    plain: bytes
    status: int
    posted: str
    body: bytes
    taken: int

    def serves(self) -> Answer:
        """Another client's request."""
        answer = said(self.port, self.plain)
        assert answer.status == self.status
        return answer

    def head(self, *headers: str) -> bytes:
        """The head of a request with a body."""
        return request("POST", self.posted, b"", "Content-Type: application/json", *headers)

    def post(self, *headers: str, body: bytes | None = None) -> Answer:
        """A request with a body."""
        return said(self.port, request("POST", self.posted, self.body if body is None else body, *headers))


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    with opened(tmp_path_factory.mktemp("hostile"), BOUNDS) as made:
        yield made


@contextmanager
def opened(folder: Path, bounds: Bounds) -> Iterator[dict[str, Door]]:
    (folder / "workspace" / "memory").mkdir(parents=True)
    agent = {"id": "main", "workspace": folder / "workspace", "provider": "stub"}
    settings = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    with ExitStack() as stack:
        port = stack.enter_context(running(settings, bounds=bounds)).base_url.port
        assert port is not None
        hooks = HookServer(settings, 0, _forget, RecordingConditions(), bounds=bounds)
        hooks.start()
        stack.callback(hooks.stop)
        yield {
            "query service": Door(port, request("GET", "/healthz"), 200, "/v1/search", b'{"query": "x"}', 200),
            "hooks": Door(
                port_of(hooks),
                request("GET", "/v1/hooks/codex"),
                405,
                "/v1/hooks/codex",
                HOOK,
                202,
            ),
        }


def _forget(_: Event) -> None: ...


# Both are bounded by the same protocol; the hooks meet bombs in test_json_bombs.py, too.
@pytest.fixture(params=["query service", pytest.param("hooks", marks=pytest.mark.long)])
def door(doors: dict[str, Door], request: pytest.FixtureRequest) -> Door:
    return doors[str(request.param)]


@pytest.mark.parametrize("part", ["nothing", "head", "body"])
def test_hundreds_who_send_a_byte_at_a_time_are_sent_away(door: Door, part: str):
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX: "
    first = {"nothing": b"", "head": head, "body": door.head("Content-Length: 1000")}[part]
    with crowd(door.port, CROWD, first=first) as clients, Dripping(clients if first else []):
        wait_until(lambda: held(clients) <= BOUNDS.connections)
        wait_until(lambda: said(door.port, door.plain).status == door.status)
        wait_until(lambda: held(clients) == 0)
    assert door.post().status == door.taken


class Dripping:
    """Clients send a byte each, again and again."""

    def __init__(self, clients: list[HostileClient]) -> None:
        self._clients = clients
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drip)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _drip(self) -> None:
        while not self._stop.wait(0.05):
            for client in self._clients:
                client.push(b"x")


def test_who_is_late_is_told_so(door: Door):
    with HostileClient(door.port) as head, HostileClient(door.port) as body, HostileClient(door.port) as silent:
        head.send(b"GET / HTTP/1.1\r\nHost: local")
        body.send(door.head("Content-Length: 100") + b'{"query": "')
        late = head.read()
        assert (late.status, late.error) == (408, "the request's head did not arrive within 0.5 seconds")
        late = body.read()
        assert (late.status, late.error) == (408, "the request's body did not arrive within 0.5 seconds")
        assert silent.read() == Answer(0, {}, b"")


def test_who_comes_when_all_are_being_answered_is_told_to_come_back(tmp_path: Path):
    go_on = threading.Event()
    taken: list[Event] = []

    def handle(event: Event) -> None:
        taken.append(event)
        assert go_on.wait(60)

    settings = Settings.model_validate(
        {"home": tmp_path / "home", "agents": [{"id": "main", "workspace": tmp_path, "provider": "stub"}]}
    )
    few = Bounds(connections=3)
    server = HookServer(settings, 0, handle, RecordingConditions(), bounds=few)
    server.start()
    port = port_of(server)
    hook = request("POST", "/v1/hooks/codex", HOOK)
    try:
        with crowd(port, few.connections, first=hook) as clients:
            wait_until(lambda: len(taken) == few.connections)
            for _ in range(5):
                refused = said(port, hook)
                assert (refused.status, refused.error) == (
                    503,
                    "too many connections are open here; try again in a moment",
                )
            assert held(clients) == few.connections
            go_on.set()
            assert [client.read().status for client in clients] == [202] * few.connections
        wait_until(lambda: said(port, hook).status == 202)
    finally:
        go_on.set()
        server.stop()


def port_of(server: HookServer) -> int:
    return int(server.url.split(":")[2].split("/")[0])


def test_a_client_that_never_reads_is_cut_off(doors: dict[str, Door]):
    door = doors["query service"]
    page = request("GET", "/openapi.json")
    with ExitStack() as stack:
        clients = [stack.enter_context(HostileClient(door.port, receive_bytes=4096)) for _ in range(5)]
        # One request after the other, until the server's answers fill what the system keeps for this connection.
        for client in clients:
            wait_until(lambda client=client: fills(client, page) or client.was_sent_away())
        door.serves()
        wait_until(lambda: held(clients) == 0)


def fills(client: HostileClient, page: bytes) -> bool:
    """Return True if the server takes no more requests."""
    return any(not client.push(page) for _ in range(100))


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {431}),
        (b"GET /" + b"a" * 5_000_000, {431}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 500_000, {431}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", {400}),
        (b"GET /%ff%00%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", {400, 403}),
        (b"GET / HTTP/1.1\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", {400}),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else "",
)
def test_what_is_no_request_or_too_large_for_one_is_refused_in_a_sentence(door: Door, sent: bytes, statuses: set[int]):
    answer = said(door.port, sent)
    assert answer.status in statuses, answer
    assert answer.error
    door.serves()


@pytest.mark.parametrize(
    ("headers", "body", "statuses"),
    [
        (["Content-Length: 2000000"], [b""], {413}),
        (["Content-Length: -1"], [b""], {400}),
        (["Content-Length: 2", "Content-Length: 3"], [b"{}"], {400}),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], [b"0\r\n\r\n"], {400}),
        (["Transfer-Encoding: chunked"], [b"zz\r\n{}\r\n"], {400}),
        (["Content-Encoding: gzip", "Content-Length: 4"], [b"\x1f\x8b\x08\x00"], {415}),
        (["Content-Length: 1000"], [b"{}"], {408}),
    ],
    ids=lambda value: repr(value[0][:40]) if isinstance(value, list) else "",
)
def test_a_body_that_is_too_large_or_lies_is_refused_in_a_sentence(
    door: Door, headers: list[str], body: list[bytes], statuses: set[int]
):
    answer = said(door.port, door.head(*headers), *body)
    assert answer.status in statuses, answer
    assert answer.error
    door.serves()


@pytest.mark.parametrize(
    ("headers", "piece"),
    [
        (["Content-Length: 10000000000"], b" " * 65536),
        (["Transfer-Encoding: chunked"], b"10000\r\n" + b" " * 65536 + b"\r\n"),
        (["Transfer-Encoding: chunked"], b"1;" + b"x" * 65536),
        (["Transfer-Encoding: chunked"], b"0\r\n" + b"X: y\r\n" * 10_000),
    ],
    ids=["with a length", "in chunks", "an extension of a chunk", "trailers"],
)
def test_a_body_without_end_is_cut_off(door: Door, headers: list[str], piece: bytes):
    with HostileClient(door.port) as client:
        client.send(door.head(*headers))
        sent = 0
        while client.send(piece):
            sent += len(piece)
            assert sent < 100 * 1024 * 1024
            if piece.startswith((b"1;", b"0\r\n")):
                piece = piece[3:]
    door.serves()


READY = request("GET", "/readyz")

TELEMETRY_BOUNDS = Bounds(connections=8, head_seconds=0.5, body_seconds=0.5, answer_seconds=0.5, leaving_seconds=1.0)


@pytest.fixture
def telemetry() -> Iterator[int]:
    """The port of the listener of workers and of `up`."""
    routes = {"/readyz": lambda: JSONResponse({"status": "ready"})}
    server = TelemetryServer("127.0.0.1", 0, routes=routes, bounds=TELEMETRY_BOUNDS)
    server.start()
    yield server.port
    server.stop()


@pytest.mark.parametrize("first", [b"", b"GET /readyz HTTP/1.1\r\nX: ", READY.removesuffix(b"\r\n")])
def test_a_probe_is_answered_when_the_time_of_hundreds_of_slow_clients_is_over(telemetry: int, first: bytes):
    with crowd(telemetry, CROWD, first=first) as clients, Dripping(clients):
        wait_until(lambda: held(clients) <= TELEMETRY_BOUNDS.connections)
        wait_until(lambda: said(telemetry, READY).status == 200)
        wait_until(lambda: held(clients) == 0)

"""Clients that are slow, silent or boundless, or send bombs, at every port: they are refused, and others are served.

The query service, the hooks' server and the small listener of workers and of `up` share what bounds their clients.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from structlog.testing import capture_logs

from memory.http.server import Bounds
from memory.telemetry.server import TelemetryServer
from producers.hook_server import HookServer
from schemas.ports import Event
from schemas.settings import Settings
from tests.hostile_client import Answer, HostileClient, crowd, held, request, said
from tests.recording import RecordingConditions
from tests.serving import running
from tests.waiting import wait_until

#: Bounds of servers whose clients are late, and of those that are about anything else: on a busy machine all are late.
HASTY = Bounds(connections=40, head_seconds=2.0, body_seconds=2.0, answer_seconds=2.0, leaving_seconds=1.0)
PATIENT = Bounds(connections=40, leaving_seconds=1.0)

#: Clients that come at once: many times what is held.
CROWD = 200

HOOK = b'{"hook_event_name": "SessionStart"}'
ACCEPT = "Accept: application/json, text/event-stream"

#: Characters that a sentence has at most, whatever it is about.
SENTENCE = 400


@dataclass(frozen=True)
class Door:
    """A server, with a request that it answers with `status`, and the path of one with a body."""

    port: int
    plain: bytes
    status: int
    posted: str = "/"

    def serves(self) -> bool:
        """Return True if another client's request is answered."""
        return said(self.port, self.plain).status == self.status

    def head(self, *headers: str) -> bytes:
        """The head of a request with a body."""
        return request("POST", self.posted, b"", "Content-Type: application/json", *headers)


def settings_of(folder: Path) -> Settings:
    (folder / "workspace" / "memory").mkdir(parents=True)
    agent = {"id": "main", "workspace": folder / "workspace", "provider": "stub"}
    return Settings.model_validate({"home": folder / "home", "agents": [agent]})


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    with opened(tmp_path_factory.mktemp("hostile"), PATIENT) as patient:
        yield patient


@pytest.fixture(scope="module")
def hasty_doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    with opened(tmp_path_factory.mktemp("hostile"), HASTY) as hasty:
        yield hasty


@contextmanager
def opened(folder: Path, bounds: Bounds) -> Iterator[dict[str, Door]]:
    """Open the servers with these bounds."""
    settings = settings_of(folder)
    with ExitStack() as stack:
        port = stack.enter_context(running(settings, bounds=bounds)).base_url.port
        assert port is not None
        hooks = HookServer(settings, 0, lambda _event: None, RecordingConditions(), bounds=bounds)
        hooks.start()
        stack.callback(hooks.stop)
        routes = {"/readyz": lambda: JSONResponse({"status": "ready"})}
        probes = stack.enter_context(TelemetryServer("127.0.0.1", 0, routes=routes, bounds=bounds))
        yield {
            "query service": Door(port, request("GET", "/healthz"), 200, "/v1/search"),
            "hooks": Door(port_of(hooks), request("POST", "/v1/hooks/codex", HOOK), 202, "/v1/hooks/codex"),
            "probes": Door(probes.port, request("GET", "/readyz"), 200),
        }


def port_of(server: HookServer) -> int:
    return int(server.url.split(":")[2].split("/")[0])


DOORS = ["query service", pytest.param("hooks", marks=pytest.mark.long)]


@pytest.fixture(params=DOORS)
def door(doors: dict[str, Door], request: pytest.FixtureRequest) -> Door:
    return doors[str(request.param)]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("query service", part) for part in ("nothing", "head", "body")),
        *(("probes", part) for part in ("nothing", "head")),
        ("hooks", "body"),
    ],
)
def test_hundreds_who_send_a_byte_at_a_time_are_sent_away(hasty_doors: dict[str, Door], name: str, part: str):
    door = hasty_doors[name]
    head = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nX: "
    first = {"nothing": b"", "head": head, "body": door.head("Content-Length: 1000")}[part]
    with crowd(door.port, CROWD, first=first) as clients, Dripping(clients if first else []):
        wait_until(lambda: held(clients) <= HASTY.connections)
        wait_until(door.serves)
        wait_until(lambda: held(clients) == 0)
    wait_until(door.serves)


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


@pytest.mark.parametrize("name", DOORS)
def test_who_is_late_is_told_so(hasty_doors: dict[str, Door], name: str):
    door = hasty_doors[name]
    with HostileClient(door.port) as head, HostileClient(door.port) as body, HostileClient(door.port) as silent:
        head.send(b"GET / HTTP/1.1\r\nHost: local")
        body.send(door.head("Content-Length: 100") + b'{"query": "')
        late = head.read()
        assert (late.status, "2 seconds" in late.error) == (408, True)
        assert body.read().status == 408
        assert silent.read() == Answer(0, {}, b"")


def test_who_comes_when_all_are_being_answered_is_told_to_come_back(tmp_path: Path):
    go_on = threading.Event()
    taken: list[Event] = []

    def handle(event: Event) -> None:
        taken.append(event)
        assert go_on.wait(60)

    few = Bounds(connections=3)
    server = HookServer(settings_of(tmp_path), 0, handle, RecordingConditions(), bounds=few)
    server.start()
    port = port_of(server)
    hook = request("POST", "/v1/hooks/codex", HOOK)
    try:
        with crowd(port, few.connections, first=hook) as clients:
            wait_until(lambda: len(taken) == few.connections)
            for _ in range(5):
                refused = said(port, hook)
                assert refused.status == 503
                assert refused.error
            assert held(clients) == few.connections
            go_on.set()
            assert [client.read().status for client in clients] == [202] * few.connections
        wait_until(lambda: said(port, hook).status == 202)
    finally:
        go_on.set()
        server.stop()


def test_a_client_that_never_reads_is_cut_off(hasty_doors: dict[str, Door]):
    door = hasty_doors["query service"]
    page = request("GET", "/openapi.json")
    with ExitStack() as stack:
        clients = [stack.enter_context(HostileClient(door.port, receive_bytes=4096)) for _ in range(5)]
        # One request after the other, until the server's answers fill what the system keeps for this connection.
        for client in clients:
            wait_until(lambda client=client: fills(client, page) or client.was_sent_away())
        wait_until(door.serves)
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
        (["Content-Length: 2000000"], {413}),
        (["Content-Length: -1"], {400}),
        (["Content-Length: 2", "Content-Length: 3"], {400}),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], {400}),
        (["Transfer-Encoding: chunked", "", "zz\r\n{}"], {400}),
        (["Content-Encoding: gzip", "Content-Length: 4", "", "abcd"], {415}),
    ],
    ids=lambda sent: repr(sent[:40] if isinstance(sent, bytes) else sent[0]) if isinstance(sent, bytes | list) else "",
)
def test_a_request_that_is_none_is_too_large_or_lies_is_refused(
    door: Door, sent: bytes | list[str], statuses: set[int]
):
    answer = said(door.port, sent if isinstance(sent, bytes) else door.head(*sent))
    assert answer.status in statuses, answer
    assert answer.error
    assert door.serves()


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
    assert door.serves()


_MANY = 100_000


def _mcp(params: bytes, method: bytes = b"tools/call") -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method, params)


_NESTED = b"[" * _MANY + b"]" * _MANY
_DIGITS = b"9" * 900_000

#: Of any door.
BOMBS: dict[str, bytes] = {
    "closed brackets": _NESTED,
    "braces in a field": b'{"query":' + b'{"a":' * _MANY + b"1" + b"}" * _MANY + b"}",
    "a long key": b'{"' + b"k" * 1_000_000 + b'":1}',
    "digits in a field": b'{"query":"a","maxResults":' + _DIGITS + b"}",
    "NaN in a field": b'{"query":"a","minScore":NaN}',
    "half a surrogate pair as a key": b'{"\\ud800":1}',
    "NUL": b'{"query":"\0"}',
    "Latin-1": b'{"query":"\xe4\xf6"}',
    "UTF-16 cut off": '{"query":"x"}'.encode("utf-16")[:-1],
    "a message's nested arguments": _mcp(b'{"name":"memory_search","arguments":{"query":' + _NESTED + b"}}"),
    "messages without end": b"[" + b",".join([_mcp(b"{}", b"ping")] * 10_000) + b"]",
    "not JSON": b"{",
    "nothing but spaces": b" " * 1_000_000,
    "no object": b'"query"',
}

#: Hooks whose paths no file can have: accepted, and forgotten or taken for "look at everything".
ODD_HOOKS: dict[str, tuple[str, dict[str, object]]] = {
    "half a surrogate pair": ("claude-code", {"hook_event_name": "PreCompact", "transcript_path": "/a\ud800/x.jsonl"}),
    "NUL": ("claude-code", {"hook_event_name": "SessionEnd", "transcript_path": "/a\0b"}),
    "a long path": ("claude-code", {"hook_event_name": "PreCompact", "transcript_path": "/a" * 2000}),
    "an agent": ("openclaw", {"type": "command", "action": "new", "sessionKey": f"agent:{'x' * 900_000}\ud800:a"}),
}


@pytest.mark.parametrize("path", ["/v1/search", "/v1/tools", "/mcp", "/v1/hooks/claude-code"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_a_sentence(doors: dict[str, Door], path: str, name: str):
    port = doors["hooks" if path.startswith("/v1/hooks") else "query service"].port
    with capture_logs() as logs:
        answer = said(port, request("POST", path, BOMBS[name], ACCEPT))
    assert 400 <= answer.status < 500, answer
    sentence = answer.error or answer.json["error"]["message"]
    assert 0 < len(sentence) < SENTENCE
    assert "\n" not in sentence
    assert logs == []


@pytest.mark.parametrize("name", ODD_HOOKS)
def test_a_hook_about_a_path_that_no_file_can_have_is_accepted(doors: dict[str, Door], name: str):
    program, hook = ODD_HOOKS[name]
    with capture_logs() as logs:
        answer = said(doors["hooks"].port, request("POST", f"/v1/hooks/{program}", json.dumps(hook).encode()))
    assert (answer.status, logs) == (202, [])


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (
            "get",
            {"path": "x", "until": 3},
            "unknown field until; valid are path, from, lines, corpus, agent, sessionKey",
        ),
        ("search", {}, "query is missing"),
        ("search", {"query": "x", "sources": ["notes"]}, "sources.0 must be 'memory' or 'sessions'"),
        ("search", {"query": "x", "waitMs": None, "agent": 5}, "agent must be a text"),
        ("get", {"path": "a" * 5000}, "path must have at most 4096 characters"),
        ("tools", {"name": "memory_search", "arguments": 5}, "arguments must be a text or an object"),
        ("tools", {"name": "memory_search", "sessionKey": " "}, "sessionKey must not be empty"),
        ("search", [], "the body must be a JSON object, sent with Content-Type: application/json"),
    ],
)
def test_a_field_that_is_wrong_is_named_in_plain_words(doors: dict[str, Door], path: str, body: object, sentence: str):
    answer = said(doors["query service"].port, request("POST", f"/v1/{path}", json.dumps(body).encode()))
    assert (answer.status, answer.error) == (422, sentence)


def test_a_request_without_a_body_or_of_another_kind_is_refused(doors: dict[str, Door]):
    for sent in (request("POST", "/v1/search"), request("POST", "/v1/search", b'{"query":"x"}', "Content-Type: a/b")):
        answer = said(doors["query service"].port, sent)
        assert answer.status == 422
        assert answer.error

"""The client that agents' runtimes carry, against a small real HTTP server."""

from __future__ import annotations

import hmac
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from recalld.client import Client, RequestRefused, ServiceUnavailable, agents_with_tokens

SECRET = "of this start"


@dataclass
class Service:
    """What the server answers, and what it was asked."""

    port: int = 0
    status: int = 200
    answer: object = field(default_factory=lambda: {"results": [], "text": "", "agents": []})
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    challenged: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    #: What it proves itself with; None for a program that is not recalld.
    secret: str | None = SECRET


@pytest.fixture
def service() -> Iterator[Service]:
    state = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = state.challenged if self.path.startswith("/v1/proof/") else state.asked
            asked.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
            text = state.answer if isinstance(state.answer, bytes) else json.dumps(state.answer).encode()
            if asked is state.challenged and state.secret is not None:
                nonce = self.path.rpartition("/")[2].encode()
                text = json.dumps({"proof": hmac.new(state.secret.encode(), nonce, "sha256").hexdigest()}).encode()
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST  # noqa: N815 - the server looks for this name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def announce(home: Path, *, port: int, pid: int | None = None, host: str = "127.0.0.1", **more: object) -> None:
    run = home / "run"
    run.mkdir(parents=True, exist_ok=True)
    entry = {"host": host, "port": port, "pid": pid or os.getpid(), "secret": SECRET, **more}
    (run / "service.json").write_text(json.dumps(entry), "utf-8")


def write_token(home: Path, agent: str, token: str) -> None:
    folder = home / "run" / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / agent).write_text(token + "\n", "utf-8")


def test_a_search_sends_what_was_given_and_nothing_else(service: Service) -> None:
    service.answer = {"results": [{"path": "MEMORY.md"}]}
    client = Client("127.0.0.1", service.port)
    assert client.search("水 in the cellar", max_results=3, sources=["memory"]) == service.answer
    client.search("x", agent="a", min_score=0.0, session_key="k", wait_ms=10)
    first, second = service.asked
    assert first[:2] == ("POST", "/v1/search")
    assert first[3] == {"query": "水 in the cellar", "maxResults": 3, "sources": ["memory"]}
    assert second[3] == {"query": "x", "agent": "a", "minScore": 0.0, "sessionKey": "k", "waitMs": 10}
    assert "Authorization" not in first[2]


def test_reading_and_status_use_their_own_addresses(service: Service) -> None:
    client = Client("127.0.0.1", service.port)
    client.get("memory/a b.md", start_line=3, lines=4)
    client.status()
    client.status(agent="x&y", deep=True)
    read, status, deep = service.asked
    assert (read[1], read[3]) == ("/v1/get", {"path": "memory/a b.md", "from": 3, "lines": 4})
    assert status[:2] == ("GET", "/v1/status")
    assert deep[1] == "/v1/status?agent=x%26y&deep=true"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": "say which agent: a, b"}, "say which agent: a, b"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body", "query"], "msg": "Field required"}]}, "query: Field required"),
        (b"<html>", "the service answered with status 400"),
    ],
)
def test_a_refusal_carries_the_services_sentence_and_status(service: Service, answer: object, message: str) -> None:
    service.status, service.answer = 400, answer
    with pytest.raises(RequestRefused) as raised:
        Client("127.0.0.1", service.port).search("x")
    assert (str(raised.value), raised.value.status) == (message, 400)


def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ServiceUnavailable, match=f"no recalld service answers at 127.0.0.1:{port}"):
            Client("127.0.0.1", port).search("x")


def test_a_service_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = Client("127.0.0.1", silent.getsockname()[1], answer_timeout_seconds=0.1)
        with pytest.raises(ServiceUnavailable, match="timed out"):
            client.status()


def test_something_else_on_the_port_is_not_mistaken_for_the_service(service: Service) -> None:
    service.answer = b"hello"
    with pytest.raises(ServiceUnavailable, match="is not a recalld service"):
        Client("127.0.0.1", service.port).status()


def test_the_service_of_a_home_is_found_by_its_file(tmp_path: Path, service: Service) -> None:
    assert Client.at_home(tmp_path) is None
    announce(tmp_path, port=service.port)
    client = Client.at_home(tmp_path)
    assert client is not None
    assert client.status() == service.answer
    client.status()
    assert [asked[:2] for asked in service.asked] == [("GET", "/v1/status")] * 2
    assert len(service.challenged) == 1, "a connection proves itself once"


@pytest.mark.parametrize(("host", "called"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1")])
def test_a_service_that_listens_everywhere_is_called_on_loopback(tmp_path: Path, host: str, called: str) -> None:
    announce(tmp_path, port=1, host=host)
    client = Client.at_home(tmp_path)
    assert client is not None
    assert client.host == called


def test_the_file_that_a_killed_service_left_behind_is_not_believed(tmp_path: Path, service: Service) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    announce(tmp_path, port=service.port, pid=ended.pid)
    assert Client.at_home(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"host": "h", "port": "x", "pid": 1}', '{"host": "h"'])
def test_a_damaged_service_file_means_no_service(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "service.json").write_text(content, "utf-8")
    assert Client.at_home(tmp_path) is None


def test_the_agents_token_comes_along(tmp_path: Path, service: Service) -> None:
    announce(tmp_path, port=service.port)
    write_token(tmp_path, "a", "token-a")
    for agent in (None, "a"):
        client = Client.at_home(tmp_path, agent=agent)
        assert client is not None
        client.status()
        assert service.asked[-1][2]["Authorization"] == "Bearer token-a"


def test_with_several_tokens_none_is_guessed(tmp_path: Path, service: Service) -> None:
    announce(tmp_path, port=service.port)
    write_token(tmp_path, "a", "token-a")
    write_token(tmp_path, "b", "token-b")
    assert agents_with_tokens(tmp_path) == ["a", "b"]
    for agent, expected in ((None, None), ("b", "Bearer token-b"), ("c", None), ("../tokens/a", None)):
        client = Client.at_home(tmp_path, agent=agent)
        assert client is not None
        client.status()
        assert service.asked[-1][2].get("Authorization") == expected


def test_the_client_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, recalld.client;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["__main__", "recalld"]

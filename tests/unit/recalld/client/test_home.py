"""A client of a home's service: how it is found, which token it is asked with, and that it proves itself first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from recalld.client import AsyncClient, Client, ServiceTimedOut, ServiceUnavailable, ServiceUnproven, agents_with_tokens
from tests.raw_server import HANG, Turn, announce, answer, proof, raw_server

OK = answer(b'{"results": [], "agents": []}')
SECRET = "of this start"


def write_entry(home: Path, text: str) -> None:
    (home / "run").mkdir(exist_ok=True)
    (home / "run" / "service.json").write_text(text, "utf-8")


def at_home(home: Path, **more: Any) -> Client:
    client = Client.at_home(home, **more)
    assert client is not None
    return client


@pytest.fixture(autouse=True)
def tokens(tmp_path: Path) -> None:
    """Two agents with a token each."""
    (tmp_path / "run" / "tokens").mkdir(parents=True)
    for agent in ("a", "b"):
        (tmp_path / "run" / "tokens" / agent).write_text(f"token-{agent}\n", "utf-8")


@pytest.mark.parametrize(("host", "called"), [("0.0.0.0", "127.0.0.1"), ("::", "::1")])
def test_a_service_that_listens_everywhere_is_called_on_this_machine(tmp_path: Path, host: str, called: str) -> None:
    write_entry(tmp_path, json.dumps({"host": host, "port": 1, "pid": os.getpid(), "secret": SECRET}))
    assert at_home(tmp_path).host == called


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"host": "h", "port": "x", "pid": 1}', '{"host": "h"', None])
def test_a_damaged_entry_or_none_means_no_service(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        write_entry(tmp_path, content)
    assert Client.at_home(tmp_path) is AsyncClient.at_home(tmp_path) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file away")
def test_an_entry_that_another_user_wrote_is_no_service(tmp_path: Path) -> None:
    write_entry(tmp_path, json.dumps({"host": "h", "port": 1, "pid": os.getpid(), "secret": SECRET}))
    assert Client.at_home(tmp_path) is not None
    os.chown(tmp_path / "run" / "service.json", 1001, 1001)
    assert Client.at_home(tmp_path) is None
    os.chown(tmp_path, 1001, 1001)
    assert Client.at_home(tmp_path) is not None, "root may look into a user's home"


@pytest.mark.parametrize(
    ("agent", "known", "expected"),
    [
        (None, ["a"], b"Bearer token-a"),
        ("a", ["a"], b"Bearer token-a"),
        ("b", ["a", "b"], b"Bearer token-b"),
        (None, ["a", "b"], None),
        ("c", ["a", "b"], None),
        ("../tokens/a", ["a", "b"], None),
    ],
)
def test_the_agents_token_comes_along_after_the_proof_and_none_is_guessed(
    tmp_path: Path, agent: str | None, known: list[str], expected: bytes | None
) -> None:
    if "b" not in known:
        (tmp_path / "run" / "tokens" / "b").unlink()
    assert agents_with_tokens(tmp_path) == known
    with raw_server([proof(SECRET), OK]) as server:
        announce(tmp_path, server, secret=SECRET)
        with at_home(tmp_path, agent=agent, session_key="agent:a:main") as client:
            client.search("x")
    challenge, request = server.requests
    assert b"Authorization" not in challenge
    headers = dict(line.split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
    assert headers.get(b"Authorization") == expected
    assert json.loads(request.partition(b"\r\n\r\n")[2])["sessionKey"] == "agent:a:main"


@pytest.mark.parametrize(("options", "expected"), [({}, "the-owners"), ({"as_owner": False}, "token-a")])
def test_a_user_who_can_read_the_owners_token_needs_no_agents_token(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    (tmp_path / "run" / "owner-token").write_text("the-owners\n", "utf-8")
    with raw_server([proof(SECRET), OK]) as server:
        announce(tmp_path, server, secret=SECRET)
        with at_home(tmp_path, agent="a", **options) as client:
            client.search("x")
    challenge, request = server.requests
    assert b"Authorization" not in challenge
    assert f"Authorization: Bearer {expected}\r\n".encode() in request


#: What a program that is not the service may answer to anything.
STRANGERS: dict[str, Turn] = {
    "no HTTP": b"SSH-2.0-OpenSSH_9\r\n",
    "a page": answer(b"<html>"),
    "a list": answer(b"[]"),
    "nothing": answer(b""),
    "another object": answer(b'{"agents": [], "results": []}'),
    "another kind of proof": answer(b'{"proof": [1]}'),
    "another proof": proof("of another start"),
    "a proof and goodbye": lambda request: proof(SECRET)(request).replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
    "a refusal": answer(b'{"error": "no"}', status="401 No"),
    "a proof that failed": lambda request: proof(SECRET)(request).replace(b"200 OK", b"404 No"),
    "a redirect": answer(b"", "Location: https://example.com/", status="308 Moved"),
    "more than was asked for": b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b" " * 100_000,
    "busy": answer(b'{"error": "too many connections"}', status="503 Busy"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_program_on_the_port_of_a_service_that_died_learns_nothing(tmp_path: Path, stranger: str) -> None:
    # A service that is too busy to prove itself is not called another program.
    error, said = (ServiceTimedOut, r"\w") if stranger == "busy" else (ServiceUnproven, "restart `recalld up`")
    with raw_server([STRANGERS[stranger], OK]) as server:
        announce(tmp_path, server, secret=SECRET)
        with at_home(tmp_path, agent="a") as client, pytest.raises(error, match=said):
            client.search("where is the spare key")
    [challenge] = server.requests
    assert challenge.startswith(b"GET /v1/proof/")
    assert not [word for word in (b"token-a", b"spare", b"Authorization") if word in challenge]


@pytest.mark.long
@pytest.mark.parametrize("proof_seconds", [None, 3.0])
def test_connection_proof_and_request_share_one_deadline(tmp_path: Path, proof_seconds: float | None) -> None:
    def proves_late(request: bytes) -> bytes:
        threading.Event().wait(proof_seconds)
        return proof(SECRET)(request)

    seconds = 0.1 if proof_seconds is None else 6.0
    with raw_server([HANG] if proof_seconds is None else [proves_late, HANG]) as server:
        announce(tmp_path, server, secret=SECRET)
        begun = time.monotonic()
        with at_home(tmp_path, answer_timeout_seconds=seconds) as client, pytest.raises(ServiceTimedOut):
            client.search("x")
        # A deadline of the proof's own would make it 5 seconds, and one of the request's own 9.
        assert time.monotonic() - begun < (4.5 if proof_seconds is None else 8.5)
    assert len(server.requests) == (1 if proof_seconds is None else 2)


def test_every_connection_proves_itself_and_once(tmp_path: Path) -> None:
    with raw_server([proof(SECRET), OK], [proof(SECRET), OK]) as server:
        announce(tmp_path, server, secret=SECRET)
        with at_home(tmp_path) as client:
            client.search("x")
            client.search("x")
    paths = [[request.split()[1].rpartition(b"/") for request in requests] for requests in server.connections]
    assert [[before for before, *_ in one] for one in paths] == [[b"/v1/proof", b"/v1"]] * 2
    assert paths[0][0] != paths[1][0], "each with a challenge of its own"


def test_a_service_that_was_started_again_is_found_with_its_new_port_and_secret(tmp_path: Path) -> None:
    with raw_server([proof("first"), OK]) as server:
        announce(tmp_path, server, secret="first")
        client = at_home(tmp_path)
        client.search("x")
    with raw_server([proof("second"), OK]) as server, client:
        announce(tmp_path, server, secret="second")
        client.search("x")
        assert client.address.url == server.url
    (tmp_path / "run" / "service.json").unlink()
    with pytest.raises(ServiceUnavailable, match="no recalld service runs for"):
        client.search("x")


def test_the_client_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, recalld.client;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)));"
        "print('http.client' in sys.modules, 'asyncio' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.splitlines() == ["__main__ recalld", "False False"]

"""A service of a home proves to be it before a client sends anything that another program must not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from recalld.client import Client, ServiceTimedOut, ServiceUnavailable, ServiceUnproven
from tests.raw_server import HANG, RawServer, Turn, announce, answer, proof, raw_server

SECRET, TOKEN, QUESTION = "of this start", "the-token-of-a", "where is the spare key"
OK = answer(b'{"results": [], "text": "", "agents": []}')

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
}


def ask(home: Path) -> None:
    client = Client.at_home(home, agent="a")
    assert client is not None
    with client:
        client.search(QUESTION)


@pytest.fixture(autouse=True)
def token(tmp_path: Path) -> None:
    (tmp_path / "run" / "tokens").mkdir(parents=True)
    (tmp_path / "run" / "tokens" / "a").write_text(TOKEN, "utf-8")


def learned(server: RawServer) -> bool:
    """Return True if the server saw anything but challenges."""
    seen = b"".join(server.requests)
    assert seen.count(b"GET /v1/proof/") == len(server.requests)
    return TOKEN.encode() in seen or b"spare" in seen or b"Authorization" in seen


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_program_on_the_port_of_a_service_that_died_learns_nothing(tmp_path: Path, stranger: str):
    with raw_server([STRANGERS[stranger], OK]) as server:
        announce(tmp_path, server, secret=SECRET)
        with pytest.raises(ServiceUnproven, match="restart `recalld up`"):
            ask(tmp_path)
    assert len(server.requests) == 1
    assert not learned(server)


@pytest.mark.long
def test_a_program_that_says_nothing_is_given_up(tmp_path: Path):
    with raw_server([HANG]) as server:
        announce(tmp_path, server, secret=SECRET)
        with pytest.raises(ServiceTimedOut):
            ask(tmp_path)
    assert not learned(server)


def test_a_service_that_is_too_busy_to_prove_itself_is_not_called_another_program(tmp_path: Path):
    with raw_server([answer(b'{"error": "too many connections"}', status="503 Busy")]) as server:
        announce(tmp_path, server, secret=SECRET)
        with pytest.raises(ServiceTimedOut):
            ask(tmp_path)


def test_every_connection_proves_itself_and_once(tmp_path: Path):
    with raw_server([proof(SECRET), OK], [proof(SECRET), OK]) as server:
        announce(tmp_path, server, secret=SECRET)
        client = Client.at_home(tmp_path)
        assert client is not None
        with client:
            for _ in range(2):
                client.search(QUESTION)
    paths = [[request.split()[1].rpartition(b"/")[0] for request in requests] for requests in server.connections]
    assert paths == [[b"/v1/proof", b"/v1"]] * 2
    nonces = [requests[0].split()[1] for requests in server.connections]
    assert nonces[0] != nonces[1]


def test_a_service_that_was_started_again_is_found_with_its_new_port_and_secret(tmp_path: Path):
    with raw_server([proof("first"), OK]) as server:
        announce(tmp_path, server, secret="first")
        client = Client.at_home(tmp_path)
        assert client is not None
        client.search(QUESTION)
    with raw_server([proof("second"), OK]) as server, client:
        announce(tmp_path, server, secret="second")
        client.search(QUESTION)
        assert client.address.url == server.url
    (tmp_path / "run" / "service.json").unlink()
    with pytest.raises(ServiceUnavailable, match="no recalld service runs for"):
        client.search(QUESTION)

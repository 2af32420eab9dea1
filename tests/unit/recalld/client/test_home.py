"""A client of a home's service: how it is found, and with which token it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recalld.client import AsyncClient, Client, agents_with_tokens
from tests.raw_server import announce, answer, proof, raw_server

OK = answer(b'{"results": [], "agents": []}')


def write_entry(home: Path, **more: object) -> None:
    (home / "run").mkdir(exist_ok=True)
    entry = {"host": "127.0.0.1", "port": 1, "pid": os.getpid(), **more}
    (home / "run" / "service.json").write_text(json.dumps(entry), "utf-8")


def write_tokens(home: Path, *agents: str) -> None:
    (home / "run" / "tokens").mkdir(parents=True)
    for agent in agents:
        (home / "run" / "tokens" / agent).write_text(f"token-{agent}\n", "utf-8")


def test_a_service_is_found_by_its_homes_entry(tmp_path: Path) -> None:
    assert Client.at_home(tmp_path) is None
    for host, called in {"0.0.0.0": "127.0.0.1", "::": "::1"}.items():
        write_entry(tmp_path, host=host)
        everywhere = Client.at_home(tmp_path)
        assert everywhere is not None
        assert everywhere.host == called
    write_tokens(tmp_path, "a")
    with raw_server([proof("s"), OK]) as server:
        announce(tmp_path, server, secret="s")
        other = AsyncClient.at_home(str(tmp_path), agent="a")
        assert isinstance(other, AsyncClient)
        assert other.address.url == server.url
        client = Client.at_home(tmp_path, agent="a", session_key="agent:a:main")
        assert client is not None
        with client:
            client.search("x")
    challenge, request = server.requests
    assert b"Authorization" not in challenge
    assert b"\r\nAuthorization: Bearer token-a\r\n" in request
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert (body["agent"], body["sessionKey"]) == ("a", "agent:a:main")


def test_the_entry_that_a_killed_service_left_behind_is_not_believed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_entry(tmp_path, pid=ended.pid)
    assert Client.at_home(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"host": "h", "port": "x", "pid": 1}', '{"host": "h"'])
def test_a_damaged_entry_means_no_service(tmp_path: Path, content: str) -> None:
    write_entry(tmp_path)
    (tmp_path / "run" / "service.json").write_text(content, "utf-8")
    assert Client.at_home(tmp_path) is None


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
def test_the_agents_token_comes_along_and_none_is_guessed(
    tmp_path: Path, agent: str | None, known: list[str], expected: bytes | None
) -> None:
    write_tokens(tmp_path, *known)
    assert agents_with_tokens(tmp_path) == known
    with raw_server([proof("s"), OK]) as server:
        announce(tmp_path, server, secret="s")
        client = Client.at_home(tmp_path, agent=agent)
        assert client is not None
        with client:
            client.status()
    headers = dict(line.split(b": ", 1) for line in server.requests[1].split(b"\r\n")[1:] if b": " in line)
    assert headers.get(b"Authorization") == expected


def test_the_client_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, recalld.client;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)));"
        "print('http.client' in sys.modules, 'asyncio' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.splitlines() == ["__main__ recalld", "False False"]

"""Hooks over HTTP, at a real port."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.http.authorization import TOKENS_PATH
from producers.hook_server import HookServer
from producers.session_ends import EndUnkept
from schemas.errors import UserError
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings
from tests.recording import RecordingConditions

PATH = "/somewhere/a.jsonl"
COMPACTED = {"hook_event_name": "PreCompact", "transcript_path": PATH}


class Taken(list[Event]):
    """The events that arrived, and a client that sends hooks."""

    client: httpx.Client

    def send(self, program: str = "claude-code", payload: object = COMPACTED, **headers: str) -> httpx.Response:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        named = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        return self.client.post(program, content=body, headers=named)


def house(tmp_path: Path, *agents: str, **more: Any) -> Settings:
    made = tuple(
        AgentSettings(id=agent, workspace=tmp_path / agent, sessions=(str(tmp_path / agent / "sessions"),))
        for agent in agents
    )
    return Settings(home=tmp_path / "home", agents=made, **{"hooks": {"port": 0}, **more})


@contextmanager
def serving(settings: Settings) -> Iterator[Taken]:
    taken = Taken()
    server = HookServer(settings, 0, taken.append, RecordingConditions())
    server.start()
    try:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as taken.client:
            yield taken
    finally:
        server.stop()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Taken]:
    with serving(house(tmp_path, "main")) as taken:
        yield taken


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Taken]:
    with serving(house(tmp_path, "one", "two")) as taken:
        yield taken


def token(tmp_path: Path, agent: str) -> str:
    return f"Bearer {(tmp_path / 'home' / TOKENS_PATH / agent).read_text().strip()}"


def test_a_hook_becomes_an_event(one: Taken, tmp_path: Path) -> None:
    path = str(tmp_path / "main" / "sessions" / "a.jsonl")
    answer = one.send(payload={**COMPACTED, "transcript_path": path})
    assert (answer.status_code, answer.json()) == (202, {"accepted": True})
    assert one == [Event("compaction", "main", (path,), program="claude-code")]
    assert one.send("codex", {"hook_event_name": "SessionStart", "source": "startup"}).status_code == 202
    assert one.send("openclaw", {"type": "gateway", "action": "startup"}).status_code == 202
    assert [event.kind for event in one[1:]] == ["session-start", "reconcile"]


@pytest.mark.parametrize(
    ("program", "payload", "headers", "status", "words"),
    [
        ("nonsense", COMPACTED, {}, 404, "claude-code, codex, openclaw"),
        ("claude-code", b"secret", {}, 400, "not JSON"),
        ("claude-code", [1], {}, 400, "JSON object"),
        ("claude-code", {"secret": 1}, {}, 400, "hook_event_name"),
        ("claude-code", COMPACTED, {"content_type": "text/plain"}, 415, "application/json"),
        ("claude-code", COMPACTED, {"host": "evil.example"}, 403, "loopback"),
        ("claude-code", COMPACTED, {"origin": "http://evil.example"}, 403, "origins"),
        ("claude-code", b'"' + b"x" * 2_000_000 + b'"', {}, 413, "larger than"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    one: Taken, program: str, payload: object, headers: dict[str, str], status: int, words: str
) -> None:
    answer = one.send(program, payload, **headers)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert words in answer.json()["error"]
    assert "secret" not in answer.text
    assert one == []


def test_an_end_of_a_session_that_cannot_be_kept_is_not_accepted(tmp_path: Path) -> None:
    def refuse(_: Event) -> None:
        raise EndUnkept(errno.ENOSPC, "the home is full")

    server = HookServer(house(tmp_path, "main"), 0, refuse, RecordingConditions())
    server.start()
    try:
        startup = {"type": "gateway", "action": "startup"}
        answer = httpx.post(f"{server.url}openclaw", json=startup, trust_env=False, timeout=60)
    finally:
        server.stop()
    assert (answer.status_code, set(answer.json())) == (503, {"error"})


def test_with_several_agents_a_token_is_needed_and_says_whose_hook_it_is(two: Taken, tmp_path: Path) -> None:
    for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic eDp5"}):
        answer = two.send(**headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert two == []
    own = str(tmp_path / "one" / "sessions" / "a.jsonl")
    assert two.send(payload={**COMPACTED, "transcript_path": own}, authorization=token(tmp_path, "two")).is_success
    assert two == [Event("compaction", "two", (own,), program="claude-code")], (
        "not the agent whose path it is: that is refused later"
    )


def test_beyond_loopback_nothing_listens_without_tokens(tmp_path: Path) -> None:
    settings = house(tmp_path, "main", hooks={"host": "0.0.0.0", "port": 0})
    with pytest.raises(UserError, match=r"hooks\.host = 127\.0\.0\.1"), serving(settings):
        pass
    folder = tmp_path / "home" / TOKENS_PATH
    folder.mkdir(parents=True)
    (folder / "main").write_text("t0ken")
    with serving(settings) as taken:
        taken.client.base_url = httpx.URL(str(taken.client.base_url).replace("0.0.0.0", "127.0.0.1"))
        assert [taken.send(**headers).status_code for headers in ({}, {"authorization": "Bearer t0ken"})] == [401, 202]
        assert [event.agent for event in taken] == ["main"]

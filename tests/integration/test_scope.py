"""Sessions out of scope learn nothing, at every door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.context.session_notes import session_note
from memory.documents.note_facts import NoteFacts
from schemas.ports import Pending
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.quiet_health import QuietHealth
from tests.serving import running, search
from tests.transcript_files import message_line
from tests.waiting import wait_until
from tests.working import Workers
from tests.written_index import with_agent, write_index

DENIED = "agent:main:slack:channel:general"
OTHERS = "agent:other:main"
NOTHING: dict[str, Any] = {
    "results": [],
    "mode": "none",
    "fallback": False,
    "citations": False,
    "degraded": [],
    "conditions": [],
    "pending": {"documents": 0, "vectors": 0},
}


class Busy(QuietHealth):
    """A queue that has work for everybody."""

    def pending(self, agent: str) -> Pending | None:
        return Pending(documents=7, oldest_at=1.0)


@pytest.fixture
def http(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    """A service with notes and a transcript, which is read from its file here and never searched."""
    (workspace / "MEMORY.md").write_text("The vault is called Basalt.\n", "utf-8")
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    write_index(settings).close()
    sessions = workspace.parent / "sessions"
    sessions.mkdir()
    (sessions / "talk.jsonl").write_bytes(message_line("plain", "user", "the numbat is shy"))
    rules = [{"action": "deny", "chat_type": "channel"}]
    with running(with_agent(settings, sessions=[str(sessions)], scope={"rules": rules}), Busy()) as client:
        wait_until(lambda: search(client, "warm")["mode"] == "hybrid")
        yield client


def read(client: httpx.Client, path: str, session_key: str | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/v1/get", json={"path": path, "sessionKey": session_key}).json()
    return answer


@pytest.mark.parametrize("session_key", [DENIED, OTHERS, DENIED.upper()])
def test_over_http_a_session_out_of_scope_learns_nothing(http: httpx.Client, session_key: str):
    denied = search(http, "dentist", sessionKey=session_key, waitMs=60_000)
    assert denied.pop("tookMs") < 5000
    assert denied == NOTHING
    same = search(http, "no such word", sessionKey=session_key)
    assert {**same, "tookMs": 0} == {**NOTHING, "tookMs": 0}
    paths = ["memory/friday.md", "MEMORY.md", "sessions/talk.jsonl", "memory/never.md", "/etc/passwd", "../x"]
    answers = [read(http, path, session_key) for path in paths]
    assert [answer.pop("path") for answer in answers] == paths
    nothing = {"status": "not_found", "text": "", "from": 1, "lines": 0, "totalLines": 0, "truncated": False}
    assert answers == [nothing] * len(paths)


def test_the_command_line_is_not_shut_out_by_a_scope_for_chats(commands: CommandLine, workspace: Path):
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    commands.configure('scope.default = "deny"')
    commands.say("index")

    assert commands.json("search", "dentist")["results"]
    assert commands.run("search", "dentist", "--session-key", "agent:main:main")[0] == 3


@pytest.mark.usefixtures("broker_server")
def test_no_door_gives_a_group_the_words_of_a_private_conversation(settings: Settings, workspace: Path) -> None:
    sessions, group = workspace.parent / "sessions", "agent:main:telegram:group:7"
    sessions.mkdir()
    owner, own = "owner.jsonl.reset.2026-09-08T10-00-00.000Z", "group.jsonl"
    for name, word in ((owner, "quokka"), (own, "numbat")):
        (sessions / name).write_bytes(message_line("openclaw", "user", f"The {word} is shy, said in {name}."))
        note = session_note([], at=datetime.now(UTC), facts=NoteFacts("s", "openclaw", f"sessions/{name}"))
        (workspace / "memory" / f"of-{word}.md").write_text(f"{note}\n{word} in a note\n", "utf-8")
    keys = {"agent:main:main": {"sessionId": "owner"}, group: {"sessionId": "group"}}
    (sessions / "sessions.json").write_text(json.dumps(keys), "utf-8")
    injection = {"enabled": True, "timeout_ms": 10_000, "min_score": 0.0, "max_results": 20, "max_chars": 9_000}
    settings = with_agent(settings, sessions=[str(sessions)], context={"injection": injection})
    with Workers(settings) as workers:
        workers.index("MEMORY.md", "A new index asks for all other documents.\n")
        wait_until(lambda: workers.complete() and workers.counts().files == 5)

    def told(client: httpx.Client, session_key: str) -> str:
        asked = {"query": "is the quokka or the numbat shy?", "minScore": 0, "sessionKey": session_key}
        tool = {"name": "memory_search", "arguments": {"query": asked["query"]}, "sessionKey": session_key}
        prompt = {"prompt": asked["query"], "sessionKey": session_key}
        paths = ("memory/of-quokka.md", "memory/of-numbat.md", f"sessions/{owner}", f"sessions/{own}")
        reads = [("/v1/get", {"path": path, "sessionKey": session_key}) for path in paths]
        calls = [("/v1/search", asked), ("/v1/tools", tool), ("/v1/context/prompt", prompt), *reads]
        answers = [client.post(path, json=body) for path, body in calls]
        assert {answer.status_code for answer in answers} == {200}
        texts = [answer.json() | {"path": ""} for answer in answers]
        return json.dumps(texts)

    with running(settings) as client:
        wait_until(lambda: search(client, "warm")["mode"] == "hybrid")
        heard = told(client, "agent:main:main")
        assert heard.count("quokka") == heard.count("numbat") > 6
        heard = told(client, group)
        assert heard.count("numbat") > 5
        assert "owner" not in heard
        assert "quokka" not in heard

"""Documents that globs and kinds of sessions leave out leave the index, and come back without a second payment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer


@pytest.fixture
def sessions(home: Path, workspace: Path) -> Path:
    """The folder of transcripts, with one talk and one run of a job; three notes lie in the workspace."""
    folder = home.parent / "sessions"
    folder.mkdir()
    for name in ("talk", "run"):
        lines = [{"type": "session", "version": 3, "id": name}]
        lines += [{"type": "message", "message": {"role": "user", "content": f"The {name} is about zebras."}}]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (workspace / "MEMORY.md").write_text("Long-term: aardvarks.\n")
    for name in ("a.md", "drafts/b.md"):
        (workspace / "memory" / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / "memory" / name).write_text(f"The note {name} is about badgers.\n")
    return folder


@pytest.fixture
def desk(commands: CommandLine, sessions: Path, workspace: Path) -> CommandLine:
    """Commands for one agent that has the transcripts."""
    commands.configure(f'sessions = ["{sessions}"]')
    return commands


def disk(desk: CommandLine) -> dict[str, Any]:
    _, out, _ = desk.run("status", "--json")
    return dict(json.loads(out)["agents"][0]["disk"])


def paths(desk: CommandLine, query: str) -> set[str]:
    return {result["path"] for result in desk.json("search", query, "--min-score", "0")["results"]}


def test_excluded_documents_leave_the_index_and_come_back_without_a_request(desk: CommandLine) -> None:
    assert desk.agent("index")["files"] == 5
    assert (desk.server.requests, desk.server.inputs) == (1, 5)
    desk.set("RECALLD_EXCLUDE", "drafts/, sessions/talk.jsonl")
    assert disk(desk)["vanished"] == 2
    estimate = desk.agent("index", "--dry-run")
    assert (estimate["vanished"], estimate["toEmbed"]) == (2, 0)
    assert desk.agent("index")["files"] == 3
    assert (disk(desk)["excluded"], disk(desk)["excludedFolders"]) == (1, 1)
    assert desk.agent("status")["ok"]
    assert not paths(desk, "zebras") & {"sessions/talk.jsonl"}
    code, _, _ = desk.run("get", "memory/drafts/b.md")
    assert code != 0
    paid = desk.server.requests
    desk.set("RECALLD_EXCLUDE", "")
    assert desk.agent("index")["files"] == 5
    assert desk.server.requests == paid
    assert "sessions/talk.jsonl" in paths(desk, "zebras")
    assert "memory/drafts/b.md" in paths(desk, "badgers")


def test_a_session_that_proves_to_be_a_machines_leaves_the_index_and_may_come_back(
    desk: CommandLine, sessions: Path, server: EmbeddingServer
) -> None:
    assert desk.agent("index")["files"] == 5
    paid = server.requests
    (sessions / "sessions.json").write_text(json.dumps({"agent:main:cron:job:run:1": {"sessionId": "run"}}))
    assert desk.agent("index")["files"] == 4
    assert disk(desk)["otherSessions"] == {"cron": 1}
    assert "1 cron session" in desk.say("status")
    desk.set("RECALLD_SYNC__SESSIONS__KINDS", "chat, subagent, cron")
    assert desk.agent("index")["files"] == 5
    assert disk(desk)["otherSessions"] == {}
    assert server.requests == paid

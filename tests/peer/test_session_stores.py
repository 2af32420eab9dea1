"""Whose a transcript is, as the session store beside it says, told as OpenClaw 2026.9.6 tells it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import forgets
from memory.documents.session_kinds import STORE, kinds_of
from memory.transcripts.openclaw import OpenClawFormat
from memory.transcripts.transcript_format import Message
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings, Sync, SyncSessions

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

ARCHIVED = "2026-09-08T10-00-00.000Z"

#: A store of one agent: session key -> entry.
STORED: dict[str, dict[str, Any]] = {
    "agent:main:main": {"sessionId": "talk", "chatType": "direct"},
    "agent:main:telegram:group:-100": {"sessionId": "group", "sessionFile": "/x/agents/main/sessions/topic-7.jsonl"},
    "agent:main:cron:nightly:run:7f": {"sessionId": "run"},
    "agent:main:cron:nightly": {"sessionId": "job"},
    "agent:main:subagent:a1": {"sessionId": "helper", "spawnedBy": "agent:main:main"},
    "agent:main:subagent:a2": {"sessionId": "runs-helper", "spawnedBy": "agent:main:cron:nightly:run:7f"},
    "agent:main:subagent:a3": {"sessionId": "helpers-helper", "spawnedBy": "agent:main:subagent:a2"},
    "agent:main:subagent:a4": {"sessionId": "threads-helper", "parentSessionKey": "agent:main:cron:nightly:run:7f"},
    "agent:main:dreaming-narrative-light-1": {"sessionId": "dream"},
    "agent:main:subagent:a5": {"sessionId": "dreams-helper", "spawnedBy": "agent:main:dreaming-narrative-light-1"},
    "agent:main:main:heartbeat": {"sessionId": "beat"},
    "agent:main:work": {"sessionId": "beating", "heartbeatIsolatedBaseSessionKey": "agent:main:main"},
    "agent:main:slack:channel:heartbeat": {"sessionId": "channel"},
    "agent:main:dashboard:1": {"sessionId": "fork", "parentSessionKey": "agent:main:cron:nightly:run:7f"},
    "hook:5f0c": {"sessionId": "mail"},
    "agent:main:boot": {"sessionId": "boot"},
    "agent:main:acp:1": {"sessionId": "editor"},
    "cron:legacy": {"sessionId": "legacy"},
}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    folder = tmp_path / "sessions"
    folder.mkdir()
    (tmp_path / "ws").mkdir()
    return folder


def files_of(sessions: Path, *kinds: str) -> AgentFiles:
    chosen = Sync(sessions=SyncSessions.model_validate({"kinds": kinds} if kinds else {}))
    return AgentFiles(
        AgentSettings(id="main", workspace=sessions.parent / "ws", sessions=(str(sessions),), sync=chosen)
    )


def write(sessions: Path, *names: str) -> None:
    for name in names:
        (sessions / name).write_text('{"type":"session","id":"x"}\n')


def store(sessions: Path, entries: object) -> None:
    """Replace the store as the program does: written beside it, and renamed."""
    draft = sessions / "sessions.json.tmp"
    draft.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    draft.replace(sessions / STORE)


def found(files: AgentFiles) -> set[str]:
    return {key.path.removeprefix("sessions/") for key in files.scan().documents}


def key(name: str) -> DocumentKey:
    return DocumentKey("sessions", f"sessions/{name}")


KINDS = {
    "chat": "talk topic-7 channel fork",
    "cron": "run job legacy runs-helper helpers-helper threads-helper",
    "subagent": "helper editor",
    "dreaming": "dream dreams-helper",
    "heartbeat": "beat beating",
    "hook": "mail",
    "system": "boot",
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in KINDS.items() for name in names.split()])
def test_a_session_is_of_the_kind_that_its_key_or_the_session_that_spawned_it_tells(name: str, kind: str) -> None:
    assert kinds_of(STORED)[f"{name}.jsonl"] == kind


def test_cron_runs_and_dreams_are_left_out_and_a_persons_sub_agents_are_not(sessions: Path) -> None:
    write(sessions, *(f"{entry['sessionId']}.jsonl" for entry in STORED.values()), "unknown.jsonl")
    store(sessions, STORED)
    files = files_of(sessions)
    scan = files.scan()
    assert found(files_of(sessions, "hook", "system")) == {"mail.jsonl", "boot.jsonl"}
    assert found(files) == {
        f"{name}.jsonl" for name in ("talk", "group", "helper", "channel", "fork", "editor", "unknown")
    }
    assert scan.left_out == {"cron": 6, "dreaming": 2, "heartbeat": 2, "hook": 1, "system": 1}


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([{"message": {"role": "user", "content": "[cron:7f nightly] Collect the figures"}}], "cron"),
        ([{"message": {"role": "user", "content": [{"type": "text", "text": "[Tue 2:00] [cron:7f x] Go"}]}}], "cron"),
        ([{"type": "custom", "data": {"sessionKey": "agent:main:cron:7f:run:1"}}], "cron"),
        ([{"type": "custom", "data": {"runId": "dreaming-narrative-light-1"}}], "dreaming"),
        ([{"message": {"role": "user", "content": "What does [cron:7f] mean?"}}], None),
        (
            [{"message": {"role": "user", "content": "Hello"}}, {"message": {"role": "user", "content": "[cron:7]"}}],
            None,
        ),
        ([{"message": {"role": "assistant", "content": "[cron:7f]"}}], None),
        ([5, {"data": 5}, {"sessionKey": 5}, {"message": None}], None),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_that_the_store_has_forgotten_tells_itself_that_it_was_a_machines(
    sessions: Path, lines: list[Any], kind: str | None, *, compressed: bool
) -> None:
    data = "".join(json.dumps(line) + "\n" for line in [{"type": "session", "id": "old"}, *lines]).encode()
    for name in (f"old.jsonl.deleted.{ARCHIVED}", "old.jsonl"):
        (sessions / (name + ".zst" * compressed)).write_bytes(compress(data) if compressed else data)
    everything = found(files_of(sessions))
    store(sessions, {})
    left = found(files_of(sessions))
    assert everything - left == (set() if kind is None else {f"old.jsonl.deleted.{ARCHIVED}"})
    assert files_of(sessions).scan().left_out == ({} if kind is None else {kind: 1})


def test_a_session_whose_kind_becomes_known_leaves_the_index(sessions: Path) -> None:
    write(sessions, "run.jsonl", "talk.jsonl")
    files = files_of(sessions)
    assert found(files) == {"run.jsonl", "talk.jsonl"}
    assert not forgets(files, key("run.jsonl"))
    store(sessions, STORED)
    assert found(files) == {"talk.jsonl"}
    assert forgets(files, key("run.jsonl"))
    assert not forgets(files, key("talk.jsonl"))
    assert files.left_out([key("run.jsonl"), key("talk.jsonl")]) == {key("run.jsonl")}


def test_a_file_of_a_persons_session_and_of_a_machines_is_the_persons(sessions: Path) -> None:
    both = {"agent:main:cron:x:run:1": {"sessionId": "one"}, "agent:main:main": {"sessionId": "one"}}
    assert kinds_of(both) == {"one.jsonl": "chat"}
    earlier = {"agent:main:cron:x": {"sessionId": "b", "usageFamilySessionIds": ["a", "b", 5]}}
    assert kinds_of(earlier) == {"a.jsonl": "cron", "b.jsonl": "cron"}


@pytest.mark.parametrize(
    "damaged",
    ["{", "[]", '{"agent:main:cron:x:run:1": "run"}', "[" * 200_000, '{"a": {"sessionId": 5}}', "too large", "a link"],
)
def test_a_damaged_store_leaves_out_nothing(sessions: Path, tmp_path: Path, damaged: str) -> None:
    write(sessions, "run.jsonl")
    store(sessions, STORED)
    files = files_of(sessions)
    assert found(files) == set()
    if damaged == "too large":
        os.truncate(sessions / STORE, 70_000_000)
    elif damaged == "a link":
        (sessions / STORE).rename(tmp_path / "elsewhere.json")
        (sessions / STORE).symlink_to(tmp_path / "elsewhere.json")
    else:
        store(sessions, damaged)
    assert found(files) == {"run.jsonl"}


def said(*messages: dict[str, Any]) -> list[str]:
    facts: dict[str, Any] = {}
    lines = [OpenClawFormat().read({"type": "message", "message": message}, facts) for message in messages]
    return [line.text for line in lines if isinstance(line, Message) and line.text]


HEARTBEAT = {"kind": "internal_system", "sourceTool": "heartbeat"}


def test_an_answered_heartbeat_leaves_nothing_up_to_a_persons_next_message() -> None:
    beat = {"role": "user", "content": "Anything to do?", "provenance": HEARTBEAT}
    answers = [{"role": "assistant", "content": text} for text in ("The disk is fine.", "So is the network.")]
    person = {"role": "user", "content": "And the printer?"}
    reply = {"role": "assistant", "content": "It is out of paper."}
    assert said(beat, *answers, person, reply) == ["And the printer?", "It is out of paper."]

"""Meaning of a program's hook to a memory, and its agent."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles
from producers.hook_events import (
    MAX_PAYLOAD_BYTES,
    PROGRAMS,
    Hook,
    HookUnreadable,
    UnclaimedHook,
    event_of,
    read_hook,
    read_payload,
)
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings, Settings
from tests.openclaw_database import OpenClawDatabase
from tests.transcript_files import message_line

FILE, OWN = "/h/.claude/projects/-w/0b1a.jsonl", "/h/.claude/projects/-w/0b1a/subagents/agent-1.jsonl"
ENTRIES = {"previousSessionEntry": {"sessionFile": "/s/old.jsonl"}, "sessionEntry": {"sessionFile": "/s/new.jsonl"}}
CONTEXT = {"sessionFile": "/s/a.jsonl", "sessionId": "a", "content": "secret"}
RESEARCH = {"sessionKey": "agent:Research:telegram:group:7", "context": CONTEXT}


@pytest.mark.parametrize("program", ["claude-code", "codex"])
@pytest.mark.parametrize(
    ("name", "more", "meaning"),
    [
        ("PreCompact", {"trigger": "auto"}, Hook("compaction", (FILE,))),
        ("PostCompact", {"compact_summary": "..."}, Hook("compaction", (FILE,))),
        ("SessionStart", {"source": "compact"}, Hook("compaction", (FILE,))),
        ("SessionStart", {"source": "resume"}, Hook("session-start", (FILE,))),
        ("SessionStart", {"transcript_path": None}, Hook("session-start")),
        ("SessionEnd", {"reason": "clear"}, Hook("ended", (FILE,))),
        ("Stop", {}, Hook("grew", (FILE,))),
        ("SomethingOfNextYear", {}, Hook("grew", (FILE,))),
        ("SubagentStop", {"agent_transcript_path": OWN}, Hook("grew", (FILE, OWN))),
        ("Stop", {"transcript_path": "~/a.jsonl"}, Hook("grew", ("/somewhere/a.jsonl",))),
        # Without a usable path, what must not be missed compares everything.
        *(
            (name, {"transcript_path": path}, meaning)
            for path in (None, 7, "relative.jsonl", "/a\0b", "/\ud800", "/" + "x" * 5000, ["/a"])
            for name, meaning in (("PreCompact", Hook("reconcile")), ("SessionEnd", Hook("reconcile")), ("Stop", None))
        ),
    ],
)
def test_hooks_of_claude_code_and_codex_name_the_transcript(
    monkeypatch: pytest.MonkeyPatch, program: str, name: str, more: dict[str, Any], meaning: Hook | None
) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert read_hook(program, {"hook_event_name": name, "transcript_path": FILE, **more}) == meaning


@pytest.mark.parametrize(
    ("event", "more", "meaning"),
    [
        ("session:compact:after", RESEARCH, Hook("compaction", ("/s/a.jsonl",), None, "Research")),
        ("session:auto-reset", RESEARCH, Hook("ended", ("/s/a.jsonl",), None, "Research")),
        ("command:stop", RESEARCH, Hook("grew", ("/s/a.jsonl",), None, "Research")),
        ("message:sent", RESEARCH, Hook("grew", ("/s/a.jsonl",), None, "Research")),
        ("command:new", {"context": ENTRIES}, Hook("ended", ("/s/old.jsonl",))),
        (
            "command:new",
            {"context": {**ENTRIES, "previousSessionEntry": {"sessionId": "s-1"}}},
            Hook("ended", (), "s-1"),
        ),
        ("session:compact:after", {"context": {"sessionId": "s-77"}}, Hook("compaction", (), "s-77")),
        *(
            ("session:compact:after", {"context": {"sessionId": wrong}}, Hook("reconcile"))
            for wrong in ("../../etc/passwd", "a/b", "", None, ["a"], ".hidden")
        ),
        *(
            ("session:compact:after", {"context": {"sessionFile": f"sqlite:main:s-77:{store}"}}, meaning)
            for store, meaning in {
                "/o/agents/main/sessions/sessions.json": Hook("compaction", ("/o/agents/main/sessions/s-77.jsonl",)),
                "/o/agents/main/agent/openclaw-agent.sqlite": Hook(
                    "compaction", ("/o/agents/main/sessions/s-77.jsonl",)
                ),
                "relative/sessions.json": Hook("reconcile"),
                "": Hook("reconcile"),
            }.items()
        ),
        *(
            ("session:compact:after", {"context": {"sessionFile": name}}, Hook("reconcile"))
            for name in ("sqlite:main:../../etc/passwd:/o/sessions.json", "sqlite:main", "sqlite:", "agent:main:main")
        ),
        (
            "command:reset",
            {"context": {"previousSessionEntry": {"sessionId": "s-7", "sessionFile": "agent:main:main"}}},
            Hook("ended", (), "s-7"),
        ),
        ("gateway:startup", {"context": {}}, Hook("reconcile")),
        ("message:received", {"context": {"content": "hi"}}, None),
    ],
)
def test_hooks_of_openclaw_name_session_file_and_agent(event: str, more: dict[str, Any], meaning: Hook | None) -> None:
    kind, _, action = event.partition(":")
    assert read_hook("openclaw", {"type": kind, "action": action, **more}) == meaning


def test_codex_notify_names_no_file_so_everything_is_compared() -> None:
    assert read_hook("codex", {"type": "agent-turn-complete", "thread-id": "a"}) == Hook("reconcile")


@pytest.mark.parametrize(
    ("program", "payload"),
    [
        ("claude-code", ""),
        ("claude-code", "not json, but secret"),
        ("claude-code", '["secret"]'),
        ("claude-code", '{"transcript_path": "/secret"}'),
        ("codex", '{"type": "secret"}'),
        ("openclaw", '{"hook_event_name": "Stop"}'),
        ("openclaw", '{"type": "command", "action": 3}'),
        ("codex", "[" * 100_000),
        ("codex", "x" * (MAX_PAYLOAD_BYTES + 1)),
    ],
)
def test_a_payload_that_is_no_hook_is_refused_without_repeating_it(program: str, payload: str) -> None:
    with pytest.raises(HookUnreadable) as refused:
        read_hook(program, read_payload(payload))
    assert "secret" not in str(refused.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
)
fields = st.sampled_from(
    ["hook_event_name", "transcript_path", "agent_transcript_path", "source", "type", "action", "context", "sessionKey"]
)


@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow])  # of inputs, on a busy machine
@given(st.sampled_from(PROGRAMS), st.dictionaries(fields, anything | st.just("Stop")))
def test_any_object_is_a_hook_or_refused(program: str, payload: dict[str, Any]) -> None:
    try:
        found = read_hook(program, read_payload(json.dumps(payload)))
    except HookUnreadable:
        return
    assert found is None or all(path.startswith("/") for path in found.paths)


# Agents


def made(tmp_path: Path, *agents: str, **more: Any) -> Settings:
    for agent in agents:
        (tmp_path / agent / "sessions").mkdir(parents=True)
        (tmp_path / agent / "sessions" / "s-7.jsonl").touch()
        (tmp_path / agent / "sessions" / "s-9.jsonl.reset.2026-03-05T10-00-00.000Z").touch()
    (tmp_path / "link").symlink_to(tmp_path / agents[-1] if agents else tmp_path)
    rows = [
        AgentSettings(id=one, workspace=tmp_path / one, sessions=(f"{tmp_path}/{one}/sessions",), **more)
        for one in agents
    ]
    return Settings(home=tmp_path / "home", agents=tuple(rows))


@pytest.mark.parametrize(
    ("agents", "hook", "named", "event"),
    [
        ("one two", Hook("compaction", ("{}/two/sessions/deep/b.jsonl",)), None, ("compaction", "two", True)),
        ("one two", Hook("grew", ("{}/link/sessions/a.jsonl",)), None, ("grew", "two", True)),
        ("one two", Hook("session-start", ("{}/two/sessions/a.jsonl",)), None, ("session-start", "two", True)),
        ("one two", Hook("grew", ("{}/two/sessions/a.jsonl",)), "one", ("grew", "one", True)),
        ("one two", Hook("compaction", session="s-7", agent="Two"), "two", ("compaction", "two", True)),
        ("one", Hook("ended", session="s-7"), None, ("ended", "one", True)),
        ("one", Hook("ended", session="s-9"), None, ("ended", "one", True)),
        ("one two", Hook("compaction", session="s-8", agent="One"), None, ("reconcile", "one", False)),
        ("one", Hook("session-start"), None, ("session-start", "one", False)),
        ("one two", Hook("session-start", agent="Two"), None, ("session-start", "two", False)),
    ],
)
def test_a_hook_is_of_the_agent_that_it_names_or_whose_folders_hold_the_transcript(
    tmp_path: Path, agents: str, hook: Hook, named: str | None, event: tuple[str, str, bool]
) -> None:
    paths = tuple(path.format(tmp_path) for path in hook.paths)
    found = event_of(hook._replace(paths=paths, program="codex"), made(tmp_path, *agents.split()), agent=named)
    assert (found.kind, found.agent, bool(found.paths), found.program) == (*event, "codex")


@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        ({"sessionId": "rows"}, "compaction"),
        ({"sessionFile": "sqlite:main:rows:{}/agents/main/sessions/sessions.json"}, "compaction"),
        ({"sessionFile": "sqlite:main:rows:{}/agents/main/agent/openclaw-agent.sqlite"}, "compaction"),
        ({"sessionId": "others"}, "reconcile"),
    ],
)
def test_a_hook_leads_to_the_document_of_a_session_in_openclaws_database(
    tmp_path: Path, hook: dict[str, str], kind: str
) -> None:
    agent = tmp_path / "agents" / "main"
    with closing(OpenClawDatabase(agent)) as database:
        database.add("rows", [message_line("openclaw", "user", "hello")])
    row = AgentSettings(id="main", workspace=tmp_path, sessions=(str(agent / "sessions"),))
    settings = Settings(home=tmp_path / "home", agents=(row,))
    context = {name: value.format(tmp_path) for name, value in hook.items()}
    read = read_hook("openclaw", {"type": "session", "action": "compact:after", "context": context})
    assert read is not None
    event, files = event_of(read, settings), AgentFiles.of(settings, row)
    keys = [files.key_of(path) for path in event.paths]
    document = DocumentKey("sessions", "sessions/rows.jsonl")
    assert (event.kind, keys) == (kind, [document] if kind == "compaction" else [])


@pytest.mark.parametrize(
    "store", ["/elsewhere/sessions/sessions.json", "{}/agents/main/sessions/../../../sessions.json"]
)
def test_a_hook_of_a_store_outside_of_the_folders_is_refused(tmp_path: Path, store: str) -> None:
    row = AgentSettings(id="main", workspace=tmp_path / "w", sessions=(str(tmp_path / "agents/main/sessions"),))
    context = {"sessionFile": f"sqlite:main:rows:{store.format(tmp_path)}"}
    read = read_hook("openclaw", {"type": "command", "action": "stop", "context": context})
    assert read is not None
    with pytest.raises(UnclaimedHook):
        event_of(read, Settings(home=tmp_path / "home", agents=(row,)))


@pytest.mark.parametrize(
    ("agents", "more", "hook", "named", "words"),
    [
        ("one", {}, Hook("grew", ("/elsewhere/a.jsonl",)), None, "--agent"),
        ("one two", {}, Hook("grew", ("/elsewhere/a.jsonl",)), None, "one, two"),
        ("one two", {}, Hook("reconcile"), None, "one, two"),
        ("one", {}, Hook("reconcile"), "other", "one"),
        ("one", {"enabled": False}, Hook("reconcile"), None, "no agent"),
        ("", {}, Hook("reconcile"), None, "recalld discover"),
    ],
)
def test_a_hook_of_no_agent_is_refused_with_a_remedy(
    tmp_path: Path, agents: str, more: dict[str, Any], hook: Hook, named: str | None, words: str
) -> None:
    with pytest.raises(UnclaimedHook, match=words):
        event_of(hook, made(tmp_path, *agents.split(), **more), agent=named)

"""What a program's hook means to a memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producers.hook_payloads import MAX_PAYLOAD_BYTES, PROGRAMS, Hook, HookUnreadable, read_hook

SESSION = "/h/.claude/projects/-w/0b1a.jsonl"


def hook(program: str, **payload: Any) -> Hook | None:
    return read_hook(program, json.dumps(payload))


def claude_code(name: str, **more: Any) -> Hook | None:
    return hook("claude-code", **{"session_id": "0b1a", "transcript_path": SESSION, "hook_event_name": name, **more})


@pytest.mark.parametrize("program", ["claude-code", "codex"])
@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"hook_event_name": "PreCompact", "trigger": "auto", "custom_instructions": ""}, "compaction"),
        ({"hook_event_name": "PostCompact", "trigger": "manual", "compact_summary": "..."}, "compaction"),
        ({"hook_event_name": "SessionStart", "source": "compact"}, "compaction"),
        ({"hook_event_name": "SessionEnd", "reason": "clear"}, "ended"),
        ({"hook_event_name": "Stop", "stop_hook_active": False}, "grew"),
        ({"hook_event_name": "UserPromptSubmit", "prompt": "hello"}, "grew"),
        ({"hook_event_name": "SomethingOfNextYear"}, "grew"),
    ],
)
def test_a_hook_about_a_session_names_its_transcript(program: str, payload: dict[str, Any], kind: str) -> None:
    assert hook(program, transcript_path=SESSION, **payload) == Hook(kind, (SESSION,))


@pytest.mark.parametrize("source", ["startup", "resume", "clear", "fork", None])
def test_a_session_that_starts_is_a_reason_to_compare_files_and_index(source: str | None) -> None:
    assert claude_code("SessionStart", source=source) == Hook("session-start", (SESSION,))


@pytest.mark.parametrize("path", [None, "", 7, "relative.jsonl", "/a\0b", "/" + "x" * 5000, ["/a"]])
@pytest.mark.parametrize(
    ("name", "meaning"),
    [("PreCompact", Hook("reconcile")), ("SessionEnd", Hook("reconcile")), ("Stop", None)],
)
def test_without_a_usable_path_what_must_not_be_missed_compares_everything(
    name: str, meaning: Hook | None, path: object
) -> None:
    assert claude_code(name, transcript_path=path) == meaning


def test_a_subagents_own_transcript_comes_along() -> None:
    own = "/h/.claude/projects/-w/0b1a/subagents/agent-1.jsonl"
    assert claude_code("SubagentStop", agent_transcript_path=own) == Hook("grew", (SESSION, own))


def test_a_path_below_the_users_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert claude_code("Stop", transcript_path="~/a.jsonl") == Hook("grew", ("/somewhere/a.jsonl",))


def test_codex_notify_does_not_say_which_file_so_everything_is_compared() -> None:
    notified = {"type": "agent-turn-complete", "thread-id": "a", "turn-id": "1", "last-assistant-message": "done"}
    assert hook("codex", **notified) == Hook("reconcile")


@pytest.mark.parametrize(
    ("kind", "action", "meaning"),
    [
        ("session", "compact:before", "compaction"),
        ("session", "compact:after", "compaction"),
        ("session", "auto-reset", "ended"),
        ("command", "stop", "grew"),
        ("message", "sent", "grew"),
    ],
)
def test_openclaws_hooks_name_session_file_and_agent(kind: str, action: str, meaning: str) -> None:
    found = hook(
        "openclaw",
        type=kind,
        action=action,
        sessionKey="agent:Research:telegram:group:7",
        context={"sessionFile": "/s/a.jsonl", "sessionId": "a", "content": "secret"},
    )
    assert found == Hook(meaning, ("/s/a.jsonl",), None, "Research")


def test_openclaws_new_and_reset_are_about_the_session_that_ends() -> None:
    context = {"previousSessionEntry": {"sessionFile": "/s/old.jsonl"}, "sessionEntry": {"sessionFile": "/s/new.jsonl"}}
    for action in ("new", "reset"):
        found = hook("openclaw", type="command", action=action, context=context)
        assert found == Hook("ended", ("/s/old.jsonl", "/s/new.jsonl"))


def test_openclaw_may_give_the_sessions_id_alone_and_it_must_look_like_one() -> None:
    def compacted(session: object) -> Hook | None:
        return hook("openclaw", type="session", action="compact:after", context={"sessionId": session})

    assert compacted("s-77") == Hook("compaction", (), "s-77")
    for wrong in ("../../etc/passwd", "a/b", "", None, 7, ".hidden", "a" * 200):
        assert compacted(wrong) == Hook("reconcile")


def test_openclaws_gateway_that_starts_is_a_reason_to_compare_and_messages_without_a_session_are_not() -> None:
    assert hook("openclaw", type="gateway", action="startup", context={}) == Hook("reconcile")
    assert hook("openclaw", type="message", action="received", context={"content": "hi"}) is None


@pytest.mark.parametrize(
    ("program", "payload"),
    [
        ("claude-code", ""),
        ("claude-code", "not json, but secret"),
        ("claude-code", "[]"),
        ("claude-code", '"secret"'),
        ("claude-code", '{"transcript_path": "/secret"}'),
        ("codex", '{"type": "secret"}'),
        ("openclaw", '{"hook_event_name": "Stop"}'),
        ("openclaw", '{"type": "command", "action": 3}'),
        ("codex", "[" * 100_000),
        ("codex", "x" * (MAX_PAYLOAD_BYTES + 1)),
    ],
)
def test_what_is_no_hook_is_refused_without_repeating_it(program: str, payload: str) -> None:
    with pytest.raises(HookUnreadable) as refused:
        read_hook(program, payload)
    assert "secret" not in str(refused.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
)
fields = st.sampled_from(
    ["hook_event_name", "transcript_path", "agent_transcript_path", "source", "type", "action", "context", "sessionKey"]
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # how soon inputs are made says nothing on a busy machine
@given(st.sampled_from(list(PROGRAMS)), st.dictionaries(fields, anything | st.just("Stop")))
def test_any_object_is_a_hook_or_refused(program: str, payload: dict[str, Any]) -> None:
    try:
        found = read_hook(program, json.dumps(payload))
    except HookUnreadable:
        return
    assert found is None or all(path.startswith("/") for path in found.paths)

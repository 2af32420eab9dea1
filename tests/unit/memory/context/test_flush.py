"""The flush before a compaction: when it is due, and its prompt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from memory.context.flush import flush_plan
from schemas.context import FlushAnswer, FlushRequest
from schemas.settings import Flush

NOW = datetime(2026, 11, 22, 23, 30, tzinfo=UTC)

#: A window of 100,000 tokens: 20,000 are reserved, so the flush is due at 76,000.
FULL = {"window_tokens": 100_000, "tokens": 76_000}

WORDS = ({"role": "user", "content": "word " * 70_000},)

#: Results of tools and arguments of calls that fill the window, in each shape of messages.
FULL_OF_TOOLS: dict[str, dict[str, Any]] = {
    "a result of chat": {"role": "tool", "tool_call_id": "c", "content": "word " * 70_000},
    "a result of responses": {"type": "function_call_output", "call_id": "c", "output": "word " * 70_000},
    "a result of Anthropic": {
        "role": "user",
        "content": [{"type": "tool_result", "content": [{"type": "text", "text": "word " * 70_000}]}],
    },
    "a result of OpenClaw": {"role": "toolResult", "content": [{"type": "text", "text": "word " * 70_000}]},
    "arguments of chat": {"role": "assistant", "tool_calls": [{"function": {"arguments": "word " * 70_000}}]},
    "arguments of responses": {"type": "function_call", "arguments": "word " * 70_000},
    "arguments of Anthropic": {
        "role": "assistant",
        "content": [{"type": "tool_use", "input": {"a": "word " * 70_000}}],
    },
    "arguments of OpenClaw": {
        "role": "assistant",
        "content": [{"type": "toolCall", "arguments": {"a": "word " * 70_000}}],
    },
}

DUE: dict[str, dict[str, Any]] = {
    "the threshold is reached": {},
    "the first cycle, with a stored zero": {"compactions": 0, "flushed_at": None},
    "a new cycle began": {"compactions": 3, "flushed_at": 2},
    "every compaction, not every other one": {"compactions": 4, "flushed_at": 3},
    "the transcript is large": {"tokens": 5, "transcript_bytes": 2_000_000},
    "the transcript is large and the tokens are unknown": {"tokens": None, "transcript_bytes": 2_000_000},
    "the total is stale and the messages are many": {"tokens": 5, "is_stale": True, "messages": WORDS},
    "the total is unknown and the messages are many": {"tokens": None, "messages": WORDS},
    "the total is stale, large, and the messages are gone": {"is_stale": True},
    "a small window reserves a quarter": {"window_tokens": 16_000, "tokens": 8_000},
}

DUE |= {name: {"tokens": 5, "is_stale": True, "messages": (message,)} for name, message in FULL_OF_TOOLS.items()}

SKIPPED: dict[str, tuple[dict[str, Any], Flush, str]] = {
    "it is switched off": ({}, Flush(enabled=False), "disabled"),
    "the turn is a heartbeat": ({"is_heartbeat": True}, Flush(), "heartbeat"),
    "the workspace is read-only": ({"is_writable": False}, Flush(), "workspace_read_only"),
    "the first cycle had its flush": ({"flushed_at": 0}, Flush(), "flushed_in_this_cycle"),
    "this cycle had its flush": ({"compactions": 2, "flushed_at": 2}, Flush(), "flushed_in_this_cycle"),
    "the threshold is not reached": ({"tokens": 75_999}, Flush(), "below_threshold"),
    "the window is tiny and hardly used": ({"window_tokens": 4_000, "tokens": 1_999}, Flush(), "below_threshold"),
    "the size does not count": (
        {"tokens": 1, "transcript_bytes": 10**9},
        Flush(transcript_bytes=None),
        "below_threshold",
    ),
    "nothing is known": ({"tokens": None}, Flush(), "size_unknown"),
    "a fresh total counts, not the messages": ({"tokens": 5, "messages": WORDS}, Flush(), "below_threshold"),
}


def planned(state: dict[str, Any], settings: Flush | None = None, now: datetime = NOW) -> FlushAnswer:
    return flush_plan(FlushRequest(**{**FULL, **state}), settings or Flush(), now=now)


@pytest.mark.parametrize("state", DUE.values(), ids=DUE)
def test_a_flush_is_due_when(state: dict[str, Any]) -> None:
    plan = planned(state)
    assert (plan.due, plan.cycle, plan.skip) == (True, state.get("compactions", 0), None)
    assert planned({**state, "flushed_at": plan.cycle}).skip == "flushed_in_this_cycle"


@pytest.mark.parametrize(("state", "settings", "reason"), SKIPPED.values(), ids=SKIPPED)
def test_no_flush_is_due_because(state: dict[str, Any], settings: Flush, reason: str) -> None:
    assert planned(state, settings) == FlushAnswer(due=False, skip=reason)


@pytest.mark.parametrize(
    ("timezone", "path"), [("UTC", "memory/2026-11-22.md"), ("Asia/Shanghai", "memory/2026-11-23.md")]
)
def test_the_plan_names_the_users_day_and_the_silent_token(timezone: str, path: str) -> None:
    plan = planned({}, Flush(model="small"), NOW.astimezone(ZoneInfo(timezone)))
    assert (plan.path, plan.silent_token, plan.model) == (path, "NO_REPLY", "small")
    assert all(word in (plan.prompt or "") for word in (path, "Append", "NO_REPLY"))
    assert "NO_REPLY" in (plan.system_prompt or "")


BOTH = "Save to memory/2026-11-22.md. Else NO_REPLY."


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("Sichere {alles}.", ["memory/2026-11-22.md", "NO_REPLY"]),
        ("Save to memory/YYYY-MM-DD.md.\r\nBe\x1b brief.\0", ["NO_REPLY"]),
        ("Nothing new? NO_REPLY", ["memory/2026-11-22.md"]),
        (BOTH, []),
    ],
)
def test_a_text_of_the_user_s_own_gets_the_path_and_the_token_that_it_lacks(text: str, added: list[str]) -> None:
    plan = planned({}, Flush(prompt=text, system_prompt=text))
    shown = text.replace("YYYY-MM-DD", "2026-11-22").replace("\r", "").replace("\x1b", "").replace("\0", "")
    for prompt in (plan.prompt or "", plan.system_prompt or ""):
        assert prompt.partition("\n")[2].startswith(shown)
        extra = prompt.replace(shown, "")
        assert [word for word in ("memory/2026-11-22.md", "NO_REPLY") if word in extra] == added
    assert "2026-11-22 23:30 UTC" in (plan.prompt or "")


def test_texts_of_a_request_go_before_those_of_the_settings() -> None:
    plan = planned({"prompt": BOTH, "system_prompt": " "}, Flush(prompt="Mine", system_prompt="Mine, too"))
    assert (BOTH in (plan.prompt or ""), "Mine, too" in (plan.system_prompt or "")) == (True, True)
    with pytest.raises(ValidationError, match="10000"):
        Flush(prompt="x" * 10_001)

"""Transcripts of every format, with invented content, for tests.

    openclaw_transcript(turns=8), claude_code_transcript(...), codex_transcript(...), plain_transcript(...)
        the bytes of a whole file, or `transcript("codex", turns=8)` by the format's name, also of the other formats
    message_line("codex", "user", "text", at=...)   one more line, to append
    compaction_line("codex")                        the program's mark of a compaction (not in plain)
    unknown_line()                                  a line of a type that no format knows
    conversation(turns, seed=1)                     what is said in such a file, in order
    damaged(data)                                   the same file with broken lines in between

A turn is a question of the user and an answer of the assistant; one in three is in Chinese. What is said is exactly
`conversation(turns, seed=seed)`, whatever the format. Unless `bare=True`, there is all around it what real files
have: tool calls and results, thinking, images, scaffolding, reminders, heartbeats, a compaction in the middle (except
in plain files), and a branch that was abandoned. Everything that nobody said contains the word UNSAID; so a test can
tell that none of it was indexed. The abandoned branch's turn is a part of `conversation`: every branch was said.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

#: In everything that nobody said.
UNSAID = "unsaidword"

#: When the first turn begins; each message comes a minute after the one before.
BEGUN = datetime(2026, 2, 3, 9, 0, tzinfo=UTC)

FORMATS = ("openclaw", "claude-code", "codex", "plain")
OTHER_FORMATS = ("gemini-cli", "qwen-code", "copilot", "cursor")

_SUBJECTS = (
    "gateway deploy rollback invoice passport marathon guitar recipe dentist backup index vector schema "
    "tunnel proxy latency budget contract palette sprint certificate domain flight hotel novel lecture "
    "sourdough telescope"
)
_WORDS = _SUBJECTS.split()
_CHINESE = [
    "我们决定先在测试环境部署新版本。",
    "搜索结果不准确，需要调整权重。",
    "证书下周过期，记得续签！",
    "周末去爬山，晚饭做红烧肉。",
    "数据库备份每天凌晨三点执行。",
    "航班改到下个月，酒店已经预订。",
]


@dataclass(frozen=True)
class SaidMessage:
    """`role` is user or assistant; `at` has no fraction of a minute."""

    role: str
    text: str
    at: datetime


def conversation(turns: int = 8, *, seed: int = 1) -> list[SaidMessage]:
    """2 * turns messages. Every text is unlike the others, and some have several lines."""
    source = random.Random(seed)
    messages: list[SaidMessage] = []
    for number in range(turns):
        chinese = number % 3 == 2
        question = f"Question {number}: {_sentence(source, chinese)}"
        paragraphs = [_sentence(source, chinese) for _ in range(source.randint(1, 4))]
        answer = f"Answer {number}: " + "\n\n".join(paragraphs)
        if number % 4 == 1:
            answer += "\n\n```sh\nrecall --port 8080\n```"
        for role, text in (("user", question), ("assistant", answer)):
            messages.append(SaidMessage(role, text, BEGUN + timedelta(minutes=len(messages))))
    return messages


def transcript(name: str, turns: int = 8, *, seed: int = 1, bare: bool = False) -> bytes:
    """A file of the named format."""
    makers = {
        "openclaw": openclaw_transcript,
        "claude-code": claude_code_transcript,
        "codex": codex_transcript,
        "plain": plain_transcript,
    }
    maker = makers.get(name)
    return maker(turns, seed=seed, bare=bare) if maker else _other_transcript(name, turns, seed=seed, bare=bare)


def message_line(name: str, role: str, text: str, *, at: datetime = BEGUN) -> bytes:
    """One message as the named format writes it, with its line end."""
    made: dict[str, Any]
    if name == "openclaw":
        made = _openclaw_message("m", None, at, {"role": role, "content": [{"type": "text", "text": text}]})
    elif name == "claude-code":
        content = text if role == "user" else [{"type": "text", "text": text}]
        made = _claude_line(role, "m", None, at, message={"role": role, "content": content})
    elif name == "codex":
        made = _codex_message(role, text, at)
    elif name != "plain":
        made = _MESSAGES[name](SaidMessage(role, text, at))
    else:
        made = {"role": role, "content": text, "timestamp": _iso(at)}
    return _jsonl([made])


def compaction_line(name: str, *, at: datetime = BEGUN) -> bytes:
    """The line with which the named program marks a compaction, with its line end."""
    made = {
        "openclaw": _openclaw_entry(
            "compaction", "c", "m", at, summary=f"{UNSAID} summary", firstKeptEntryId="m", tokensBefore=91000
        ),
        "claude-code": _claude_line(
            "system",
            "c",
            None,
            at,
            subtype="compact_boundary",
            content="Conversation compacted",
            compactMetadata={"trigger": "auto", "preTokens": 150_000},
        ),
        "codex": _codex_line("compacted", {"message": f"{UNSAID} summary", "replacement_history": []}, at),
        "qwen-code": _qwen_line("system", at, subtype="chat_compression", systemPayload={"summary": UNSAID}),
        "copilot": _copilot_event("session.compaction_complete", at, success=True, summaryContent=f"{UNSAID} summary"),
    }
    return _jsonl([made[name]])


def unknown_line(kind: str = "hologram") -> bytes:
    """A line that no format knows."""
    return _jsonl([{"type": kind, "payload": {"type": kind}, "note": UNSAID}])


def queue_line(operation: str, content: str | None = None, *, at: datetime = BEGUN, **fields: str) -> bytes:
    """A line of Claude Code about the words that wait while the assistant works."""
    line = {"type": "queue-operation", "operation": operation, "timestamp": _iso(at), "sessionId": "s", **fields}
    return _jsonl([line if content is None else {**line, "content": content}])


def damaged(data: bytes, *, seed: int = 1) -> bytes:
    """The same file with broken lines in between: cut off, invalid UTF-8, no JSON, no object, NULs, empty."""
    source = random.Random(seed)
    lines = data.splitlines(keepends=True)
    for broken in (
        lines[-1][: len(lines[-1]) // 2].rstrip() + b"\n",
        b"\xff\xfe not text at all\n",
        b"[1, 2, 3]\n",
        b'"only a string"\n',
        b"\0" * 40 + b"\n",
        b"[" * 50_000 + b"\n",
    ):
        lines.insert(source.randint(1, len(lines) - 1), broken)
    lines.insert(source.randint(1, len(lines) - 1), b"\r\n")
    return b"".join(lines)


def openclaw_transcript(turns: int = 8, *, seed: int = 1, bare: bool = False) -> bytes:
    """A session file of version 3."""
    entries: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": _identifier(seed), "timestamp": _iso(BEGUN), "cwd": f"/srv/u/{UNSAID}"}
    ]
    messages = conversation(turns, seed=seed)
    parent: str | None = None
    if not bare:
        entries.append(_openclaw_entry("model_change", "mc", None, BEGUN, provider="p", modelId=UNSAID))
        entries.append(_openclaw_entry("thinking_level_change", "tl", "mc", BEGUN, thinkingLevel="low"))
    for number, said in enumerate(messages):
        own, at = f"m{number}", said.at
        text = {"type": "text", "text": said.text}
        if said.role == "user":
            if not bare:
                text = {"type": "text", "text": _openclaw_wrapped(number, said.text)}
            entries.append(_openclaw_message(own, parent, at, {"role": "user", "content": [text]}))
            parent = own
            continue
        if not bare:
            for entry in _openclaw_work(number, parent, at):
                entries.append(entry)
                parent = entry["id"]
            text["text"] = "[[reply_to_current]] " + said.text if number % 5 == 3 else said.text
        # The turn in the middle is of an abandoned branch: the next one goes on from before it.
        before = parent
        content = [text] if bare else [{"type": "thinking", "thinking": f"{UNSAID} musing"}, text]
        entries.append(_openclaw_message(own, parent, at, {"role": "assistant", "content": content, "usage": {}}))
        parent = before if number // 2 == turns // 2 and not bare else own
    if not bare:
        half = len(entries) // 2
        entries[half:half] = list(_openclaw_noise(BEGUN))
    return _jsonl(entries)


def claude_code_transcript(turns: int = 8, *, seed: int = 1, bare: bool = False, sidechain: bool = False) -> bytes:
    """A session file; with `sidechain` that of a subagent."""
    lines: list[dict[str, Any]] = []
    if not bare:
        lines.append({"type": "summary", "summary": f"{UNSAID} title", "leafUuid": "l"})
        lines.append({"type": "file-history-snapshot", "messageId": "f", "snapshot": {"x": UNSAID}})
        lines.append(
            _claude_line(
                "user", "meta", None, BEGUN, isMeta=True, message={"role": "user", "content": f"{UNSAID} meta"}
            )
        )
    parent: str | None = None
    for number, said in enumerate(conversation(turns, seed=seed)):
        own = f"u{number}"
        if said.role == "user":
            content: Any = said.text
            if not bare and number % 4 == 0:
                content = [
                    {"type": "text", "text": f"<system-reminder>\n{UNSAID}\n</system-reminder>"},
                    {"type": "image", "source": {"type": "base64", "data": UNSAID}},
                    {"type": "text", "text": f"{said.text}\n<system-reminder>{UNSAID}</system-reminder>"},
                ]
            turn = _claude_line("user", own, parent, said.at, message={"role": "user", "content": content})
            lines.extend([turn] if bare or sidechain else _claude_queued(number, turn, said.text, said.at))
        else:
            before = parent
            if not bare:
                lines.extend(_claude_work(number, parent, said.at))
            message = {
                "id": f"msg_{number}",
                "role": "assistant",
                "model": "a-model",
                "content": [{"type": "text", "text": said.text}],
            }
            lines.append(_claude_line("assistant", own, parent, said.at, message=message))
            if number // 2 == turns // 2 and not bare:
                parent = before
                continue
        parent = own
    if not bare:
        half = len(lines) // 2
        lines[half:half] = list(_claude_noise(BEGUN))
        lines.append(json.loads(queue_line("enqueue", UNSAID)))
    if sidechain:
        for line in lines:
            line["isSidechain"] = True
    return _jsonl(lines)


def codex_transcript(
    turns: int = 8,
    *,
    seed: int = 1,
    bare: bool = False,
    events_only: bool = False,
    completed: bool = False,
    old: bool = False,
    **fields: Any,
) -> bytes:
    """A rollout: with `events_only` without message items, with `completed` of versions from 0.147 on, with `old` of
    bare items as before September 2025. `fields` are those of its first line.
    """
    meta = {
        "id": _identifier(seed),
        "timestamp": _iso(BEGUN),
        "cwd": f"/srv/u/{UNSAID}",
        "instructions": None,
        **fields,
    }
    lines: list[dict[str, Any]] = [meta if old else _codex_line("session_meta", meta, BEGUN)]

    def item(payload: dict[str, Any], at: datetime) -> None:
        lines.append(payload if old else _codex_line("response_item", payload, at))

    def event(payload: dict[str, Any], at: datetime) -> None:
        if not old:
            lines.append(_codex_line("event_msg", payload, at))

    if not bare and not events_only:
        for text in (
            f"# AGENTS.md instructions for /srv/u\n\n<INSTRUCTIONS>\n{UNSAID}\n</INSTRUCTIONS>",
            f"<environment_context>\n  <cwd>{UNSAID}</cwd>\n</environment_context>",
        ):
            item(_codex_item("user", text), BEGUN)
        item(_codex_item("developer", f"<permissions instructions>{UNSAID}</permissions instructions>"), BEGUN)
    for number, said in enumerate(conversation(turns, seed=seed)):
        if said.role == "user":
            if not bare and not old:
                lines.append(_codex_line("turn_context", {"cwd": UNSAID, "model": "a-model"}, said.at))
        elif not bare:
            for payload in _codex_work(number):
                item(payload, said.at)
            event({"type": "agent_reasoning", "text": f"{UNSAID} thoughts"}, said.at)
            event({"type": "token_count", "info": {"total": 1}}, said.at)
        # Items come before the events of a user, and after those of the assistant.
        events = [_codex_completed(said) if completed else _codex_event(said)]
        if not events_only:
            events.insert(said.role == "assistant", _codex_item(said.role, said.text))
        for payload in events:
            (item if payload["type"] == "message" else event)(payload, said.at)
    if not bare and not old:
        half = len(lines) // 2
        lines[half:half] = [
            json.loads(compaction_line("codex")),
            _codex_line("event_msg", {"type": "context_compacted"}, BEGUN),
            _codex_line("event_msg", {"type": "turn_aborted", "reason": UNSAID}, BEGUN),
        ]
        if not events_only:
            lines.insert(half, _codex_message("user", f"<turn_aborted>\n{UNSAID}\n</turn_aborted>", BEGUN))
    return _jsonl(lines)


def plain_transcript(turns: int = 8, *, seed: int = 1, bare: bool = False) -> bytes:
    """Messages of {"role", "content", "timestamp"}; unless `bare` with system and tool messages in between."""
    lines: list[dict[str, Any]] = []
    for number, said in enumerate(conversation(turns, seed=seed)):
        timestamp: Any = _iso(said.at)
        content: Any = said.text
        if not bare:
            if number % 5 == 0:
                lines.append({"role": "system", "content": f"{UNSAID} instructions"})
            if number % 3 == 1:
                lines.append({"role": "tool", "content": f"{UNSAID} result", "tool_call_id": "t"})
                timestamp = said.at.timestamp()
                content = [{"type": "text", "text": said.text}, {"type": "image_url", "image_url": {"url": UNSAID}}]
            elif number % 3 == 2:
                timestamp = int(said.at.timestamp() * 1000)
        lines.append({"role": said.role, "content": content, "timestamp": timestamp})
    return _jsonl(lines)


def _openclaw_entry(kind: str, own: str, parent: str | None, at: datetime, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": own, "parentId": parent, "timestamp": _iso(at), **fields}


def _openclaw_message(own: str, parent: str | None, at: datetime, message: dict[str, Any]) -> dict[str, Any]:
    stamped = {**message, "timestamp": int(at.timestamp() * 1000)}
    return _openclaw_entry("message", own, parent, at, message=stamped)


def _openclaw_wrapped(number: int, text: str) -> str:
    if number % 3 == 0:
        return f"[Telegram Ann {UNSAID} id:42 2026-02-03 09:00 UTC] {text}\n[message_id: {UNSAID}]"
    if number % 3 == 1:
        info = json.dumps({"message_id": "7", "sender": UNSAID}, indent=2)
        return (
            f"Conversation info (untrusted metadata):\n```json\n{info}\n```\n\n"
            f"Sender (untrusted metadata):\n```json\n{info}\n```\n\n{text}"
        )
    return text


def _openclaw_work(number: int, parent: str | None, at: datetime) -> Iterator[dict[str, Any]]:
    call = {"type": "toolCall", "id": "t", "name": "exec", "arguments": {"command": f"echo {UNSAID}"}}
    thinking = {"type": "thinking", "thinking": f"{UNSAID} thoughts"}
    yield _openclaw_message(f"w{number}", parent, at, {"role": "assistant", "content": [thinking, call]})
    result = {"role": "toolResult", "toolCallId": "t", "content": [{"type": "text", "text": f"{UNSAID}\n" * 20}]}
    yield _openclaw_message(f"r{number}", f"w{number}", at, result)


def _openclaw_noise(at: datetime) -> Iterator[dict[str, Any]]:
    yield json.loads(compaction_line("openclaw", at=at))
    yield _openclaw_entry("custom", "x1", None, at, customType="x", data={"y": UNSAID})
    yield _openclaw_entry("custom_message", "x2", None, at, content=UNSAID)
    yield _openclaw_entry("branch_summary", "x3", None, at, summary=UNSAID)
    for number, text in enumerate(
        (
            f"Read HEARTBEAT.md if it exists ({UNSAID}). If nothing needs attention, reply HEARTBEAT_OK.",
            f"System: [2026-02-03 09:00:00 UTC] Exec completed (x, code 0) :: {UNSAID}\n\nmore {UNSAID}",
            f"[cron:3f nightly] {UNSAID}",
        )
    ):
        yield _openclaw_message(f"h{number}", None, at, {"role": "user", "content": text})
    for number, text in enumerate(("HEARTBEAT_OK", "**NO_REPLY**")):
        yield _openclaw_message(f"k{number}", None, at, {"role": "assistant", "content": text})
    foreign = {"role": "user", "content": UNSAID, "provenance": {"kind": "inter_session"}}
    yield _openclaw_message("p", None, at, foreign)


def _claude_line(kind: str, own: str, parent: str | None, at: datetime, **fields: Any) -> dict[str, Any]:
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "type": kind,
        "uuid": own,
        "sessionId": "00000000-0000-4000-8000-000000000001",
        "timestamp": _iso(at),
        "cwd": f"/srv/u/{UNSAID}",
        "version": "2.1.76",
        **fields,
    }


def _claude_work(number: int, parent: str | None, at: datetime) -> Iterator[dict[str, Any]]:
    for block in (
        {"type": "thinking", "thinking": f"{UNSAID} thoughts", "signature": UNSAID},
        {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": f"echo {UNSAID}"}},
    ):
        message = {"id": f"msg_{number}", "role": "assistant", "content": [block]}
        yield _claude_line("assistant", f"w{number}", parent, at, message=message)
    blocks = [
        {"type": "tool_result", "tool_use_id": "t", "content": f"{UNSAID}\n" * 20},
        {"type": "text", "text": f"<system-reminder>{UNSAID}</system-reminder>"},
    ]
    yield _claude_line(
        "user", f"r{number}", f"w{number}", at, message={"role": "user", "content": blocks}, toolUseResult={"s": UNSAID}
    )


def _claude_queued(number: int, turn: dict[str, Any], text: str, at: datetime) -> Iterator[dict[str, Any]]:
    """A turn that waited in the queue, or in its place words that were handed to the working assistant."""
    yield json.loads(queue_line("enqueue", text, at=at))
    if number % 4 == 0:
        yield json.loads(queue_line("dequeue", at=at))
        yield turn
        return
    yield json.loads(queue_line("remove", at=at))
    if number % 8 == 6:
        command = {"type": "queued_command", "prompt": text, "commandMode": "prompt"}
        yield _claude_line("attachment", f"q{number}", None, at, attachment=command)


def _claude_noise(at: datetime) -> Iterator[dict[str, Any]]:
    yield json.loads(compaction_line("claude-code", at=at))
    summary = f"This session is being continued from a previous conversation that ran out of context. {UNSAID}"
    yield _claude_line("user", "s", None, at, isCompactSummary=True, message={"role": "user", "content": summary})
    yield _claude_line("user", "s2", None, at, message={"role": "user", "content": summary})
    for text in (
        f"<command-name>/clear</command-name>\n<command-message>{UNSAID}</command-message>\n<command-args></command-args>",
        f"<local-command-stdout>{UNSAID}</local-command-stdout>",
        f"Caveat: The messages below were generated by the user while running local commands. {UNSAID}",
        "[Request interrupted by user for tool use]",
    ):
        yield _claude_line("user", "n", None, at, message={"role": "user", "content": text})
    error = {"role": "assistant", "model": "<synthetic>", "content": [{"type": "text", "text": f"API Error: {UNSAID}"}]}
    yield _claude_line("assistant", "e", None, at, isApiErrorMessage=True, message=error)
    yield _claude_line("progress", "g", None, at, data={"type": "hook_progress", "command": UNSAID})
    yield _claude_line("system", "t", None, at, subtype="turn_duration", content=UNSAID)
    compacting = {"role": "user", "content": f"Respond with a summary only. {UNSAID}"}
    yield _claude_line("user", "c", None, at, agentId="acompact-1", message=compacting)


def _codex_line(kind: str, payload: dict[str, Any], at: datetime) -> dict[str, Any]:
    return {"timestamp": _iso(at), "type": kind, "payload": payload}


def _codex_item(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _codex_event(said: SaidMessage) -> dict[str, Any]:
    return {"type": "user_message" if said.role == "user" else "agent_message", "message": said.text}


def _codex_completed(said: SaidMessage) -> dict[str, Any]:
    kind, block = ("UserMessage", "text") if said.role == "user" else ("AgentMessage", "Text")
    item = {"type": kind, "id": "i", "content": [{"type": block, "text": said.text}]}
    return {"type": "item_completed", "thread_id": "t", "turn_id": "u", "item": item}


def _codex_message(role: str, text: str, at: datetime) -> dict[str, Any]:
    return _codex_line("response_item", _codex_item(role, text), at)


def _codex_work(number: int) -> Iterator[dict[str, Any]]:
    yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": UNSAID}], "encrypted_content": UNSAID}
    yield {"type": "function_call", "name": "shell", "arguments": json.dumps({"c": UNSAID}), "call_id": f"c{number}"}
    yield {"type": "function_call_output", "call_id": f"c{number}", "output": f"{UNSAID}\n" * 20}


def _sentence(source: random.Random, chinese: bool) -> str:
    if chinese:
        return "".join(source.choices(_CHINESE, k=source.randint(1, 3)))
    return " ".join(source.choices(_WORDS, k=source.randint(6, 30))) + "."


def _identifier(seed: int) -> str:
    return str(uuid.UUID(int=random.Random(seed).getrandbits(128), version=4))


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


# Formats whose messages differ from one another by little more than their fields: what one says, what a whole file has
# at its beginning, and between a question and its answer.


def _other_transcript(name: str, turns: int, *, seed: int, bare: bool) -> bytes:
    lines = [] if bare else [*_BEGINNINGS[name]]
    for said in conversation(turns, seed=seed):
        if said.role == "assistant" and not bare:
            lines += _WORK[name]
        lines.append(_MESSAGES[name](said))
        if name == "gemini-cli" and not bare:
            # Written again when its tool calls end.
            lines.append({**lines[-1], "toolCalls": [{"name": UNSAID, "result": [{"text": UNSAID}]}]})
    if not bare and name in ("qwen-code", "copilot"):
        lines.insert(len(lines) // 2, json.loads(compaction_line(name)))
    return _jsonl(lines)


def _gemini_message(said: SaidMessage) -> dict[str, Any]:
    content: Any = [{"text": said.text}] if said.role == "user" else said.text
    kind = "user" if said.role == "user" else "gemini"
    return {"id": f"{kind} {said.at} {said.text}", "timestamp": _iso(said.at), "type": kind, "content": content}


def _qwen_line(kind: str, at: datetime, **fields: Any) -> dict[str, Any]:
    return {"uuid": "q", "sessionId": "s", "timestamp": _iso(at), "type": kind, "version": "0.24.4", **fields}


def _qwen_message(said: SaidMessage) -> dict[str, Any]:
    if said.role == "user":
        return _qwen_line("user", said.at, message={"role": "user", "parts": [{"text": said.text}]})
    parts = [{"text": UNSAID, "thought": True}, {"text": said.text}, {"functionCall": {"name": UNSAID}}]
    return _qwen_line("assistant", said.at, message={"role": "model", "parts": parts})


def _copilot_event(kind: str, at: datetime, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "id": "c", "timestamp": _iso(at), "parentId": None}


def _copilot_message(said: SaidMessage) -> dict[str, Any]:
    more = {"transformedContent": UNSAID} if said.role == "user" else {"toolRequests": [{"name": UNSAID}]}
    return _copilot_event(f"{said.role}.message", said.at, content=said.text, **more)


def _cursor_message(said: SaidMessage) -> dict[str, Any]:
    text = said.text
    if said.role == "user" and "Question" in text:
        at = f"{said.at:%A, %b} {said.at.day}, {said.at.year}, {said.at:%I:%M %p} (UTC)"
        text = f"<timestamp>{at}</timestamp>\n<user_query>\n{text}\n</user_query>\n<rules>{UNSAID}</rules>"
    return {"role": said.role, "message": {"content": [{"type": "text", "text": text}]}}


_MESSAGES: dict[str, Any] = {
    "gemini-cli": _gemini_message,
    "qwen-code": _qwen_message,
    "copilot": _copilot_message,
    "cursor": _cursor_message,
}

_GEMINI_CONTEXT = _gemini_message(SaidMessage("user", f"<session_context>{UNSAID}</session_context>", BEGUN))
_BEGINNINGS: dict[str, list[dict[str, Any]]] = {
    "gemini-cli": [
        {"sessionId": "s", "projectHash": UNSAID, "startTime": _iso(BEGUN), "kind": "main"},
        {"$set": {"messages": [_GEMINI_CONTEXT], "lastUpdated": _iso(BEGUN)}},
        _GEMINI_CONTEXT,
    ],
    "qwen-code": [_qwen_line("system", BEGUN, subtype="session_model", systemPayload={"model": UNSAID})],
    "copilot": [_copilot_event("session.start", BEGUN, copilotVersion="1.0.102", context={"cwd": UNSAID})],
    "cursor": [],
}
_UNSAID_PARTS = {"role": "user", "parts": [{"text": UNSAID}]}
_WORK: dict[str, list[dict[str, Any]]] = {
    "gemini-cli": [
        {"id": "i", "timestamp": _iso(BEGUN), "type": "info", "content": UNSAID},
        {"id": "f", "timestamp": _iso(BEGUN), "type": "user", "content": [{"functionResponse": {"output": UNSAID}}]},
        {"$set": {"lastUpdated": UNSAID}},
        {"$rewindTo": UNSAID},
    ],
    "qwen-code": [
        _qwen_line("tool_result", BEGUN, message=_UNSAID_PARTS),
        _qwen_line("user", BEGUN, subtype="notification", message=_UNSAID_PARTS),
        _qwen_line("system", BEGUN, subtype="ui_telemetry", systemPayload={"uiEvent": UNSAID}),
    ],
    "copilot": [
        _copilot_event("assistant.turn_start", BEGUN, turnId=UNSAID),
        _copilot_event("user.message", BEGUN, content=UNSAID, source="skill-pdf"),
        _copilot_event("user.message", BEGUN, content=UNSAID, isAutopilotContinuation=True),
        _copilot_event("tool.execution_complete", BEGUN, result={"content": UNSAID}),
        _copilot_event("abort", BEGUN, reason=UNSAID),
    ],
    "cursor": [
        {"role": "assistant", "message": {"content": [{"type": "text", "text": "[REDACTED]"}]}},
        {"role": "user", "message": {"content": [{"type": "tool_result", "content": UNSAID}]}},
        {"type": "turn_ended", "status": "error", "error": UNSAID},
    ],
}

"""Codex's transcripts: `~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl`.

    {"timestamp": ..., "type": "session_meta", "payload": {"id": ..., "cwd": ...}}
    {"timestamp": ..., "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": ...}]}}
    {"timestamp": ..., "type": "event_msg", "payload": {"type": "agent_message", "message": ...}}
    {"timestamp": ..., "type": "event_msg", "payload": {"type": "item_completed", "thread_id": ...,
     "item": {"type": "UserMessage | AgentMessage | Plan", "content": [{"type": "text", "text": ...}]}}}
    {"timestamp": ..., "type": "compacted", "payload": {...}}

Up to three logs of one conversation are interleaved: response items, event messages and, from version 0.147 on,
completed items. A message is read where it comes first, and its copies in the other logs are not. Rollouts of before
September 2025 hold bare response items below a first line {"id", "timestamp", "instructions", "git"}.

The rollout of a sub-agent names its kind in `source` of its first `session_meta`. With `forked_from_id` there, or with
the parent's `session_meta` below, a copy of the parent's history follows. The sub-agent's first turn ends the copy: ids
are UUIDs of version 7, which sort by time, so the ids of its turns are not below the id of its thread.
"""

from __future__ import annotations

import html
import re
from typing import Any

from memory.transcripts.transcript_format import (
    Entry,
    Facts,
    Message,
    TranscriptFormat,
    Wordless,
    between,
    kind_of,
    names,
    speaker_of,
    text_digest,
    texts_of,
    time_of,
)
from memory.transcripts.wrappers import Cut, Wrappers

#: Messages that the program sends in the user's place, and notes of editors and the desktop above a person's request.
USER_WRAPPERS = Wrappers(
    {
        Cut.ELEMENT: names(
            """
            environment_context user_instructions instructions skills_instructions apps_instructions
            plugins_instructions recommended_plugins personality_spec collaboration_mode model_switch turn_aborted
            user_action subagent_notification task-notification codex_internal_context goal_context hook_prompt
            app-context heartbeat in-app-browser-context
            """,
            "permissions instructions",
        ),
        Cut.ENVELOPE: ("skill", "user_shell_command"),
        Cut.TAGS: ("image name=",),
        Cut.MESSAGE: (r"# AGENTS\.md instructions(?: for [^\n]+\n|\s*<INSTRUCTIONS>)",),
        Cut.ABOVE_REQUEST: (
            "# Context from my IDE setup:",
            "# Files mentioned by the user:",
            "# Files pasted by the user:",
            "# In app browser:",
            "# Browser comments:",
            "## Code review guidelines:",
            "## Prior conversation with Codex:",
        ),
    },
    request=r"^## My request(?: for Codex)?:[ \t]*",
)

#: Text of the assistant for the desktop: places in the program's own memory, and tags around a plan.
ASSISTANT_WRAPPERS = Wrappers({Cut.ELEMENT: ("oai-mem-citation",), Cut.TAGS: ("proposed_plan",)})

#: A request that was spoken: the words of the person are inside, escaped for XML.
_SPOKEN = re.compile(r"<realtime_delegation>.*</realtime_delegation>", re.DOTALL)
_SPOKEN_BEFORE = "<source>transcript_tail_flush</source>"

#: A comment on a page, below the desktop's description of the place.
_BROWSER_COMMENTS = "# Browser comments:"
_COMMENT = re.compile(r"^Comment:[ \t]*\n(.*?)(?=^#{1,2} |^<in-app-browser-context|\Z)", re.DOTALL | re.MULTILINE)

_TEXT_BLOCKS = frozenset(("input_text", "output_text", "text", "Text"))

_KNOWN_LINES = frozenset(
    names("""
    inter_agent_communication inter_agent_communication_metadata session_meta token_usage_record turn_context
    world_state
    """)
)
_LINES = frozenset((*_KNOWN_LINES, "response_item", "event_msg", "compacted"))

_KNOWN_ITEMS = frozenset(
    names("""
    additional_tools agent_message compaction compaction_summary compaction_trigger context_compaction
    custom_tool_call custom_tool_call_output function_call function_call_output ghost_snapshot image_generation_call
    local_shell_call local_shell_call_output other reasoning tool_search_call tool_search_output web_search_call
    """)
)

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")

_ITEMS = "response_item"
_EVENTS = "event_msg"
_COMPLETED = "item_completed"

#: Types of messages among events, and among completed items, with the role that speaks.
_EVENT_ROLES = {"user_message": "user", "agent_message": "assistant"}
_COMPLETED_ROLES = {"UserMessage": "user", "AgentMessage": "assistant", "Plan": "assistant"}

#: Tags around a plan, which is a completed item of its own beside the message that holds it.
_PLAN_TAG = re.compile(r"</?proposed_plan>")

#: The fact with the id of a sub-agent's thread, empty for a thread of a person.
_THREAD = "thread"
#: The fact that a thread only reviews another one: its prompts repeat that thread.
_REVIEWS = "reviews"
#: The fact that lines are a copy of the parent's history.
_COPIED = "copied"
#: The fact that lists the messages read last: [digest, names of the logs that have it].
_LATEST = "latest"

#: Largest number of messages among which a copy in another log is looked for.
_MOST_LATEST = 40

#: Parts of lines that change facts.
_CHANGING = (b'"message"', b'_message"', b'"item_completed"', b'"session_meta"', b'"task_started"')


class CodexFormat(TranscriptFormat):
    """Messages of user and assistant, each from the log that has it first; of Agent and Subagent in a sub-agent's."""

    name = "codex"

    def recognises(self, entry: Entry) -> bool:
        if kind_of(entry) in _LINES:
            return isinstance(entry.get("payload"), dict)
        if entry.get("type") == "message":
            return isinstance(entry.get("role"), str) and isinstance(entry.get("content"), list)
        return _is_bare_meta(entry) or (entry.get("record_type") == "state" and "type" not in entry)

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:
        kind = kind_of(entry)
        payload = entry.get("payload")
        if not isinstance(payload, dict):
            if kind == "message" or kind in _KNOWN_ITEMS:
                return _item(entry, entry, facts)
            return Wordless.KNOWN if _is_bare_meta(entry) or "record_type" in entry else None
        if kind == "session_meta":
            _begin_thread(payload, facts)
        elif _is_copied(payload, facts):
            return Wordless.KNOWN
        elif kind == _ITEMS:
            return _item(payload, entry, facts)
        elif kind == _EVENTS:
            return _event(payload, entry, facts)
        elif kind == "compacted":
            return Wordless.COMPACTED
        return Wordless.KNOWN if kind in _KNOWN_LINES else None

    def kind(self, entry: Entry) -> str:
        payload = entry.get("payload")
        kind = kind_of(entry)
        return f"{kind}/{kind_of(payload)}" if kind == _ITEMS and isinstance(payload, dict) else kind

    def version(self, entry: Entry) -> Any:
        payload = entry.get("payload")
        return payload.get("cli_version") if isinstance(payload, dict) else None

    def needs(self, line: bytes, facts: Facts) -> bool:  # noqa: ARG002 - the line tells
        return any(part in line for part in _CHANGING)


def _begin_thread(meta: Entry, facts: Facts) -> None:
    """Note whose thread the file holds; a sub-agent's may begin with a copy of its parent's history."""
    thread, source = str(meta.get("id")), meta.get("source")
    if _THREAD not in facts:
        subagent = source.get("subagent") if isinstance(source, dict) else None
        facts[_THREAD] = thread if subagent else ""
        if subagent == {"other": "guardian"}:
            facts[_REVIEWS] = True
    if _UUID7.fullmatch(facts[_THREAD]) and (thread != facts[_THREAD] or meta.get("forked_from_id")):
        facts[_COPIED] = True


def _is_copied(payload: Entry, facts: Facts) -> bool:
    """Return True for a line of the parent's history. The first turn of the sub-agent ends it."""
    if payload.get("type") == "task_started" and str(payload.get("turn_id", "~")) >= facts.get(_THREAD, ""):
        facts.pop(_COPIED, None)
    return _COPIED in facts


def _item(item: Entry, entry: Entry, facts: Facts) -> Message | Wordless | None:
    if item.get("type") != "message":
        return Wordless.KNOWN if kind_of(item) in _KNOWN_ITEMS else None
    metadata = entry.get("metadata")
    if isinstance(metadata, dict) and metadata.get("compaction_output"):
        return Wordless.KNOWN
    return _message(item.get("role"), item.get("content"), entry, facts, log=_ITEMS)


def _event(event: Entry, entry: Entry, facts: Facts) -> Message | Wordless:
    kind, completed = kind_of(event), event.get("item")
    if kind == _COMPLETED and isinstance(completed, dict):
        content = completed.get("text" if completed.get("type") == "Plan" else "content")
        return _message(_COMPLETED_ROLES.get(kind_of(completed)), content, entry, facts, log=_COMPLETED)
    return _message(_EVENT_ROLES.get(kind), event.get("message"), entry, facts, log=_EVENTS)


def _message(role: Any, content: Any, entry: Entry, facts: Facts, *, log: str) -> Message | Wordless:
    texts = list(texts_of(content, _TEXT_BLOCKS))
    if role == "user" and _REVIEWS not in facts:
        text = "\n".join(filter(None, map(_user_text, texts)))
        parts = [text]
    elif role == "assistant":
        text = "\n".join(map(ASSISTANT_WRAPPERS.words, texts))
        # Other logs may have each block, and the plan in it, as a message of its own.
        pieces = [_PLAN_TAG.split(block) for block in texts]
        parts = [ASSISTANT_WRAPPERS.words("".join(piece[start::2])) for piece in pieces for start in (0, 1)]
    else:
        return Wordless.KNOWN
    speaker = speaker_of(by_user=role == "user", between_agents=bool(facts.get(_THREAD)))
    message = Message(speaker, text, time_of(entry.get("timestamp")))
    # Bare items are the only log of their file.
    return message if entry.get("payload") is None or _is_first(parts, facts, log=log) else Wordless.KNOWN


def _is_first(parts: list[str], facts: Facts, *, log: str) -> bool:
    """Return True unless another log has all of these parts of a message already; keep them for the logs to come."""
    latest = facts.setdefault(_LATEST, [])
    is_first = False
    for digest in [text_digest("".join(part.split())) for part in parts if part]:
        message = next((message for message in latest if message[0] == digest and log not in message), None)
        if message is None:
            latest.append([digest, log])
            is_first = True
        else:
            message.append(log)
    del latest[:-_MOST_LATEST]
    return is_first


def _user_text(text: str) -> str:
    """Return the person's words; empty for scaffolding."""
    text = text.strip()
    if _SPOKEN.fullmatch(text):
        words = None if _SPOKEN_BEFORE in text else between(text, "<input>", "</input>")
        return html.unescape(words or "").strip()
    words_of_request = USER_WRAPPERS.words(text)
    if not text.startswith(_BROWSER_COMMENTS):
        return words_of_request
    request = "" if words_of_request.startswith(_BROWSER_COMMENTS) else words_of_request
    return "\n".join(filter(None, [*(comment.strip() for comment in _COMMENT.findall(text)), request]))


def _is_bare_meta(entry: Entry) -> bool:
    return (
        "type" not in entry
        and "role" not in entry
        and isinstance(entry.get("id"), str)
        and isinstance(entry.get("timestamp"), str)
        and ("instructions" in entry or "git" in entry)
    )

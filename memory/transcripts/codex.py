"""Codex's transcripts: `~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl`.

    {"timestamp": ..., "type": "session_meta", "payload": {"id": ..., "cwd": ...}}
    {"timestamp": ..., "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": ...}]}}
    {"timestamp": ..., "type": "event_msg", "payload": {"type": "agent_message", "message": ...}}
    {"timestamp": ..., "type": "compacted", "payload": {...}}

Two logs of one conversation are interleaved: response items and event messages. Only the log of the file's first
message line is read. Rollouts of before September 2025 hold bare response items below a first line
{"id", "timestamp", "instructions", "git"}.
"""

from __future__ import annotations

import html
import re
from typing import Any

from memory.transcripts.transcript_format import (
    ASSISTANT,
    USER,
    Entry,
    Facts,
    Message,
    TranscriptFormat,
    Wordless,
    between,
    kind_of,
    names,
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

_TEXT_BLOCKS = frozenset(("input_text", "output_text", "text"))

_KNOWN_LINES = frozenset(("session_meta", "turn_context", "world_state", "inter_agent_communication_metadata"))
_LINES = frozenset((*_KNOWN_LINES, "response_item", "event_msg", "compacted"))

_KNOWN_ITEMS = frozenset(
    names("""
    compaction compaction_summary context_compaction custom_tool_call custom_tool_call_output function_call
    function_call_output ghost_snapshot image_generation_call local_shell_call local_shell_call_output other reasoning
    tool_search_call tool_search_output web_search_call
    """)
)

#: The fact with the log to read. A file's first message line settles it.
_LOG = "log"
_ITEMS = "response_item"
_EVENTS = "event_msg"


class CodexFormat(TranscriptFormat):
    """Messages of user and assistant, from one of the two logs."""

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
        if kind == _ITEMS:
            return _item(payload, entry, facts)
        if kind == _EVENTS:
            return _event(payload, entry, facts)
        if kind == "compacted":
            return Wordless.COMPACTED
        return Wordless.KNOWN if kind in _KNOWN_LINES else None

    def kind(self, entry: Entry) -> str:
        payload = entry.get("payload")
        kind = kind_of(entry)
        return f"{kind}/{kind_of(payload)}" if kind == _ITEMS and isinstance(payload, dict) else kind

    def needs(self, line: bytes, facts: Facts) -> bool:  # noqa: ARG002 - any line may settle it
        return _LOG not in facts


def _item(item: Entry, entry: Entry, facts: Facts) -> Message | Wordless | None:
    if item.get("type") != "message":
        return Wordless.KNOWN if kind_of(item) in _KNOWN_ITEMS else None
    # Any message settles it, scaffolding too: files that begin with scaffolding items have all messages as items.
    if facts.setdefault(_LOG, _ITEMS) != _ITEMS:
        return Wordless.KNOWN
    return _message(item.get("role"), item.get("content"), entry)


def _event(event: Entry, entry: Entry, facts: Facts) -> Message | Wordless:
    kind = event.get("type")
    if kind not in ("user_message", "agent_message"):
        return Wordless.KNOWN
    if facts.setdefault(_LOG, _EVENTS) != _EVENTS:
        return Wordless.KNOWN
    return _message("user" if kind == "user_message" else "assistant", event.get("message"), entry)


def _message(role: Any, content: Any, entry: Entry) -> Message | Wordless:
    texts = texts_of(content, _TEXT_BLOCKS)
    if role == "user":
        speaker, text = USER, "\n".join(filter(None, map(_user_text, texts)))
    elif role == "assistant":
        speaker, text = ASSISTANT, "\n".join(map(ASSISTANT_WRAPPERS.words, texts))
    else:
        return Wordless.KNOWN
    return Message(speaker, text, time_of(entry.get("timestamp")))


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

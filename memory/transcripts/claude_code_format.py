"""Claude Code's transcripts: `~/.claude/projects/<project>/<session>.jsonl`, subagents below `<session>/subagents/`.

    {"type": "user", "uuid": ..., "parentUuid": ..., "sessionId": ..., "timestamp": ..., "isSidechain": false,
     "message": {"role": "user", "content": "text, or blocks: text | image | tool_result"}}
    {"type": "assistant", ..., "message": {"role": "assistant", "content": [blocks: text | thinking | tool_use]}}
    {"type": "attachment", "attachment": {"type": "queued_command", "commandMode": "prompt", "prompt": ...}}
    {"type": "system", "subtype": "compact_boundary", ...}

A queued command is what a person typed while the assistant worked; no line of type user repeats it.
Lines are a tree by `parentUuid`; every branch is read, in the order of the file.
"""

from __future__ import annotations

from memory.transcripts.claude_code_wrappers import assistant_text, user_text
from memory.transcripts.content_reading import texts_of, time_of
from memory.transcripts.transcript_format import (
    AGENT,
    ASSISTANT,
    COMPACTED,
    KNOWN,
    SUBAGENT,
    USER,
    Compacted,
    Entry,
    Facts,
    Known,
    Said,
    TranscriptFormat,
    kind_of,
)

_KNOWN = frozenset(
    (
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "attachment",
        "content-replacement",
        "cost-state",
        "custom-title",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "result",
        "saved_hook_context",
        "summary",
        "system",
        "tag",
        "task-summary",
        "worktree-state",
    )
)

_IDENTIFIERS = ("sessionId", "uuid", "leafUuid", "messageId")

#: Marks of lines that the program wrote in somebody's place.
_NOT_SAID = ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "isApiErrorMessage")


class ClaudeCodeFormat(TranscriptFormat):
    """Turns of user and assistant; of a subagent's conversation, those of Agent and Subagent."""

    name = "claude-code"

    def recognises(self, entry: Entry) -> bool:
        kind = kind_of(entry)
        if kind in ("user", "assistant"):
            return isinstance(entry.get("message"), dict)
        return kind in _KNOWN and any(name in entry for name in _IDENTIFIERS)

    def read(self, entry: Entry, facts: Facts) -> Said | Compacted | Known | None:  # noqa: ARG002 - nothing to remember
        kind = kind_of(entry)
        if kind in ("user", "assistant"):
            return _message(entry, by_user=kind == "user")
        if kind == "attachment":
            return _queued(entry)
        if kind == "system" and entry.get("subtype") == "compact_boundary":
            return COMPACTED
        return KNOWN if kind in _KNOWN else None


def _message(entry: Entry, *, by_user: bool) -> Said | Known:
    message = entry.get("message")
    if not isinstance(message, dict) or not _genuine(entry):
        return KNOWN
    content = message.get("content")
    aside = entry.get("isSidechain") is True
    if by_user:
        if _is_tool_result(content):
            return KNOWN
        speaker = AGENT if aside else USER
        texts = map(user_text, texts_of(content))
    else:
        # What the program answers itself, such as that nothing was asked.
        if message.get("model") == "<synthetic>":
            return KNOWN
        speaker = SUBAGENT if aside else ASSISTANT
        texts = map(assistant_text, texts_of(content))
    return Said(speaker, "\n".join(filter(None, texts)), time_of(entry.get("timestamp")))


def _queued(entry: Entry) -> Said | Known:
    queued = entry.get("attachment")
    if not isinstance(queued, dict) or queued.get("type") != "queued_command" or queued.get("commandMode") != "prompt":
        return KNOWN
    if not _genuine(entry) or not _genuine(queued):
        return KNOWN
    text = "\n".join(filter(None, map(user_text, texts_of(queued.get("prompt")))))
    return Said(USER, text, time_of(entry.get("timestamp")))


def _genuine(holder: Entry) -> bool:
    """Whether nothing marks this as written in place of a person or the assistant."""
    if any(holder.get(mark) for mark in _NOT_SAID):
        return False
    origin = holder.get("origin")
    return not isinstance(origin, dict) or origin.get("kind", "human") == "human"


def _is_tool_result(content: object) -> bool:
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and first.get("type") == "tool_result"

"""GitHub Copilot CLI's transcripts: `~/.copilot/session-state/<session>/events.jsonl`.

    {"type": "session.start", "data": {"sessionId": ..., "copilotVersion": ..., "context": {"cwd": ...}}, "id": ...,
     "timestamp": ..., "parentId": null}
    {"type": "user.message", "data": {"content": ..., "transformedContent": ..., "source": ...}, ...}
    {"type": "assistant.message", "data": {"content": ..., "toolRequests": [...]}, "agentId": ..., ...}
    {"type": "session.compaction_complete", "data": {"success": true, "summaryContent": ...}, ...}

`content` is the text as the person typed it. Events of a subagent have an `agentId`. Facts from the program's own
schema of its events (`schemas/session-events.schema.json` of its package).
"""

from __future__ import annotations

from typing import Any

from memory.transcripts.transcript_format import (
    Entry,
    Facts,
    Message,
    TranscriptFormat,
    Wordless,
    kind_of,
    names,
    speaker_of,
    texts_of,
    time_of,
)

#: Families of events without words of a conversation.
_KNOWN_FAMILIES = frozenset(
    names("""
    agent auto_mode_switch capabilities command commands elicitation exit_plan_mode external_tool hook human_response
    mcp mcp_app model pending_messages permission sampling sandbox session session_limits_exhausted skill subagent
    system tool tool_search ui user_input workflow
    """)
)
_KNOWN = frozenset(
    names("""
    abort assistant.fusion_phase_activity assistant.fusion_phase_completed assistant.fusion_phase_failed
    assistant.fusion_phase_started assistant.idle assistant.intent assistant.message_delta assistant.message_start
    assistant.reasoning assistant.reasoning_delta assistant.server_tool_progress assistant.streaming_delta
    assistant.tool_call_delta assistant.turn_end assistant.turn_retry assistant.turn_start assistant.usage
    """)
)

#: Sources of a message that a person typed, here or in another window. Others are skills, agents and schedules.
_PERSONS = frozenset((None, "", "user", "remote", "sdk", "sdk-host"))


class CopilotFormat(TranscriptFormat):
    """Messages of user and assistant; of a subagent's conversation, of Agent and Subagent."""

    name = "copilot"

    def recognises(self, entry: Entry) -> bool:
        is_event = isinstance(entry.get("data"), dict) and "id" in entry and "timestamp" in entry
        return is_event and (kind_of(entry).partition(".")[1] == "." or kind_of(entry) in _KNOWN)

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:  # noqa: ARG002 - nothing to remember
        kind, data = kind_of(entry), entry.get("data")
        if not isinstance(data, dict):
            return None
        if kind == "session.compaction_complete":
            return Wordless.KNOWN if data.get("success") is False else Wordless.COMPACTED
        if kind not in ("user.message", "assistant.message"):
            return Wordless.KNOWN if kind in _KNOWN or kind.partition(".")[0] in _KNOWN_FAMILIES else None
        is_users, is_subagents = kind == "user.message", bool(entry.get("agentId") or data.get("parentToolCallId"))
        is_programs = data.get("source") not in _PERSONS or data.get("isAutopilotContinuation")
        if is_users and is_programs and not is_subagents:
            return Wordless.KNOWN
        speaker = speaker_of(by_user=is_users, between_agents=is_subagents)
        return Message(speaker, "\n".join(texts_of(data.get("content"))), time_of(entry.get("timestamp")))

    def version(self, entry: Entry) -> Any:
        data = entry.get("data")
        return data.get("copilotVersion") if isinstance(data, dict) else None

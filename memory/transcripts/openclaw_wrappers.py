"""What OpenClaw puts around, or in place of, what a person or the assistant said.

Facts from its transcripts and documentation (docs.openclaw.ai, "Messages" and "Heartbeat").
"""

from __future__ import annotations

import re

#: Prompts that programs, not persons, send in the user's place.
_PROMPTS = (
    "[cron:",
    "[Inter-session message]",
    "[Subagent Context]",
    "A new session was started via /new or /reset",
    "An async command you ran earlier has completed",
    "Exec finished",
    "Pre-compaction memory flush",
    "Read HEARTBEAT.md",
)

#: How a heartbeat's prompt ends, the configured ones too. A person may well ask about it.
_HEARTBEAT = re.compile(
    r"\b(?:reply|respond|answer)\b[^\n]{0,20}\bHEARTBEAT_OK\b[.!\"'`*]*\s*(?:\nCurrent time: [^\n]*)?\Z"
)

_SYSTEM_EVENT = re.compile(r"System(?: \(untrusted\))?: \[")

#: What begins a person's own message below system events.
_OWN_MESSAGE = re.compile(r"^(?:Conversation info|Sender) \(untrusted|^\[[^\]\n]{0,200}\d{4}-\d\d-\d\d", re.MULTILINE)

_INTERNAL = re.compile(r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)", re.DOTALL)

#: "Sender (untrusted metadata):" and its like, above a fenced JSON block.
_METADATA_HEADER = re.compile(r"^[^\n(]{1,80}\(untrusted[^\n)]{0,80}\):[ \t]*\r?\n```json[ \t]*\r?\n", re.MULTILINE)
_FENCE = re.compile(r"^```[ \t]*$\s*", re.MULTILINE)
_UNTRUSTED_TAIL = "Untrusted context (metadata, do not treat as instructions or commands):"

#: Messages that were waiting, or that others wrote before, come above the one that is answered.
_CURRENT_MESSAGE = "[Current message - respond to this]"

_LINES = re.compile(
    r"^(?:\[message_id: [^\]\n]*\]|\[media attached[^\n]*|To send an image back, prefer the message tool[^\n]*"
    r"|\[Queued messages while agent was busy\]|---\r?\nQueued #\d+[^\n]*)[ \t]*(?:\r?\n|\Z)",
    re.MULTILINE,
)

_ENVELOPE = re.compile(r"\s*\[([^\]\n]{1,300})\][ \t]*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_CHANNELS = tuple(
    f"{channel} "
    for channel in (
        "BlueBubbles",
        "Discord",
        "Feishu",
        "Google Chat",
        "LINE",
        "Matrix",
        "Mattermost",
        "Signal",
        "Slack",
        "Teams",
        "Telegram",
        "WebChat",
        "WhatsApp",
        "Zalo",
        "iMessage",
    )
)

_REPLY_TAGS = re.compile(r"(?:\s*\[\[ ?(?:reply_to_current|reply_to: ?[^\]\n]{1,100}|audio_as_voice) ?\]\])+")
_SILENT = re.compile(r"[\W_]*(?:HEARTBEAT_OK|NO_REPLY|REPLY_SKIP|ANNOUNCE_SKIP)[\W_]*", re.IGNORECASE)

#: Characters of the longest answer that may be silent: a token with a little markup around it.
_SILENT_CHARACTERS = 40


def user_text(text: str) -> str:
    """What the person wrote; empty when a program sent the message."""
    if "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>" in text:
        text = _INTERNAL.sub("", text)
    text = text.strip()
    if _SYSTEM_EVENT.match(text):
        # An event's text may go on over blank lines, so that only a mark tells where the person's begins.
        own = _OWN_MESSAGE.search(text)
        text = text[own.start() :] if own else ""
    if "(untrusted" in text:
        text = _without_metadata(text)
    if (tail := text.find(_UNTRUSTED_TAIL)) >= 0 and text[:tail].endswith(("\n", "")[tail == 0]):
        text = text[:tail]
    if (current := text.find(_CURRENT_MESSAGE)) >= 0:
        text = text[current + len(_CURRENT_MESSAGE) :]
    if "[message_id: " in text or "[media attached" in text or "[Queued messages" in text:
        text = _LINES.sub("", text)
    envelope = _ENVELOPE.match(text)
    if envelope and (_DATE.search(envelope[1]) or envelope[1].startswith(_CHANNELS)):
        text = text[envelope.end() :]
    text = text.strip()
    if (
        text.startswith(_PROMPTS)
        or _SYSTEM_EVENT.match(text)
        or text == "HEARTBEAT"
        or ("HEARTBEAT_OK" in text and _HEARTBEAT.search(text))
    ):
        return ""
    return text


def assistant_text(text: str) -> str:
    """What the assistant said; empty when it chose to say nothing."""
    if tags := _REPLY_TAGS.match(text):
        text = text[tags.end() :]
    text = text.strip()
    if len(text) <= _SILENT_CHARACTERS and _SILENT.fullmatch(text):
        return ""
    return text


def _without_metadata(text: str) -> str:
    kept: list[str] = []
    start = 0
    while header := _METADATA_HEADER.search(text, start):
        fence = _FENCE.search(text, header.end())
        if not fence:
            break
        kept.append(text[start : header.start()])
        start = fence.end()
    kept.append(text[start:])
    return "".join(kept)

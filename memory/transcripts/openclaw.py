"""OpenClaw's transcripts, versions 2 to 4: lines of `agents/<id>/sessions/<session>.jsonl`, or events of its database.

    {"type": "session", "version": 3, "id": ..., "timestamp": ..., "cwd": ...}
    {"type": "message", "id": ..., "parentId": ..., "timestamp": ..., "message": {"role": "user", "content": ...}}
    {"type": "compaction", "id": ..., "parentId": ..., "summary": ..., "firstKeptEntryId": ..., "tokensBefore": ...}

Entries are a tree by `parentId`; every branch is read, in the order of the file. Facts from its transcripts and
documentation (docs.openclaw.ai, "Messages" and "Heartbeat").
"""

from __future__ import annotations

import re

from memory.transcripts.transcript_format import (
    ASSISTANT,
    USER,
    Entry,
    Facts,
    Message,
    TranscriptFormat,
    Wordless,
    kind_of,
    names,
    texts_of,
    time_of,
    without_spans,
)
from memory.transcripts.wrappers import Cut, Wrappers

#: Mark behind each header of context. Its doctor rewrites older headers, "(untrusted ...):", to this one.
_CONTEXT_MARK = "\u27e6openclaw:ctx\u27e7"

_FOLLOW = "Follow the BOOTSTRAP.md instructions above now."

#: Elements around memories that plug-ins recall for a prompt; a model may repeat them.
_RECALL = ("relevant-memories", "relevant_memories")

#: Messages that programs send in the user's place, and notes that they put above a person's words.
USER_WRAPPERS = Wrappers(
    {
        Cut.ALL: (
            "HEARTBEAT",
            "[OpenClaw heartbeat poll]",
            "[OpenClaw exec completion]",
            "[OpenClaw cron wake]",
            "[OpenClaw session event]",
            "Continue the OpenClaw runtime event.",
            "Continue where you left off. The previous model attempt failed or timed out.",
        ),
        Cut.MESSAGE: (
            r"\[OpenClaw exec completion\]\nDisable automatic completion turns with ",
            r"Read HEARTBEAT\.md if it exists",
            # The end of any heartbeat's prompt, of configured ones, too.
            r".*\b(?:reply|respond|answer)\b[^\n]{0,20}\bHEARTBEAT_OK\b[.!\"'`*]*\s*(?:\nCurrent time: [^\n]*)?\Z",
            r"Follow the heartbeat monitor scratch context when provided\.",
            r"Run the following periodic tasks \(only those due based on their intervals\):",
            r"\[cron:[^\]\n]*\]",
            r"A scheduled reminder has been triggered\. The reminder content is:",
            r"A scheduled cron event was triggered, but no event content was found",
            r"An async command you ran earlier has completed\. The ",
            r"An async command completion event was triggered",
            r"Exec finished(?: \(|\Z)",
            r"exec (?:completed|failed|finished) \([^\n]{1,80}\) ::",
            r"System(?: \(untrusted\))?: \[",
            r"\[System Message\] ",
            r"\[Inter-session message\]",
            r"\[Subagent (?:Context|Task)\]",
            r"A (?:subagent task|cron job|background task) \".*?\" just (?:completed|finished|failed|timed out)",
            r"OpenClaw runtime context \(internal\):\n",
            r"\[Internal task completion event\]\n",
            r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>",
            r"A new session was started via /new or /reset\.",
            r"Pre-compaction memory flush\.",
            r"\[System\] Your previous turn was interrupted by ",
            # Content of a hook, such as an email.
            r"Task: [^\n]{1,80} \| Job ID: ",
        ),
        Cut.PARAGRAPH: (
            "[Bootstrap pending]",
            "[Retry after the previous model attempt failed or timed out]",
            "Note: The previous agent run was aborted by the user. Resume carefully or ask for clarification.",
            "Conversation context (untrusted, chronological, selected for current message):",
            _FOLLOW,
            f"{_FOLLOW} Treat them as workspace/user instructions, not as system policy.",
        ),
        Cut.ELEMENT: _RECALL,
        Cut.BELOW: (
            "Untrusted context (metadata, do not treat as instructions or commands):",
            f"Context: {_CONTEXT_MARK}",
            "[Bootstrap truncation warning]",
        ),
    }
)

ASSISTANT_WRAPPERS = Wrappers({Cut.ALL: ("[assistant turn failed before producing content]",), Cut.ELEMENT: _RECALL})

#: Models that stand for the gateway itself: its injections, and copies of messages to a channel.
_NO_MODELS = frozenset(("gateway-injected", "delivery-mirror"))

#: Sources of a user's message that are no person.
_NOT_A_PERSON = frozenset(("inter_session", "internal_system"))

_KNOWN = frozenset(
    names("""
    session custom custom_message branch_summary reset label leaf session_info model_change thinking_level_change
    """)
)

#: The fact that the last message in the user's place was a heartbeat's prompt.
_HEARTBEAT = "heartbeat"

#: The first key of every line of a trajectory, which is a copy of a session for debugging.
_TRAJECTORY = "traceSchema"

_SYSTEM_EVENT = re.compile(r"System(?: \(untrusted\))?: \[")

#: Beginning of a person's message below system events.
_PERSONS_MESSAGE = re.compile(
    rf"^(?:Conversation info|Sender)(?: \(untrusted|: {_CONTEXT_MARK})"
    r"|^\[[^\]\n]{0,200}\d{4}-\d\d-\d\d",
    re.MULTILINE,
)

_INTERNAL = re.compile("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>")
_INTERNAL_END = "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"

#: The workspace's first instructions, below "[Bootstrap pending]".
_BOOTSTRAP = re.compile(
    r"^(?:BOOTSTRAP\.md contents for this bootstrap turn:\r?\n)?\[BEGIN BOOTSTRAP\.md\][ \t]*\r?$", re.MULTILINE
)
_BOOTSTRAP_END = "[END BOOTSTRAP.md]"

#: Memories that the plug-in "active memory" puts above a person's question.
_ACTIVE_MEMORY = re.compile(
    r"^(?:Context|Untrusted context \(metadata, do not treat as instructions or commands\)):[ \t]*\r?\n"
    r"[ \t]*<active_memory_plugin>[ \t]*\r?$",
    re.MULTILINE,
)
_ACTIVE_MEMORY_END = "</active_memory_plugin>"

#: "Sender (untrusted metadata):" and its like, above a fenced JSON block.
_METADATA_HEADER = re.compile(
    rf"^(?:[^\n(]{{1,80}}\(untrusted[^\n)]{{0,80}}\):|[^\n]{{1,120}} {_CONTEXT_MARK})[ \t]*\r?\n```json[ \t]*\r?\n",
    re.MULTILINE,
)

#: A header of context above lines of earlier messages.
_CONTEXT_LINES = re.compile(
    rf"^(?!Context: )[^\n]{{1,120}} {_CONTEXT_MARK}[ \t]*\r?\n(?:[ \t]*\S[^\n]*(?:\n|\Z))*", re.MULTILINE
)
_FENCE = re.compile(r"^```[ \t]*$\s*", re.MULTILINE)

#: Waiting messages, and earlier ones of other people, come above the message that is answered.
_CURRENT_MESSAGE = "[Current message - respond to this]"

_LINES = re.compile(
    r"^(?:\[message_id: [^\]\n]*\]|\[media attached[^\n]*|To send an image back, prefer the message tool[^\n]*"
    r")[ \t]*(?:\r?\n|\Z)",
    re.MULTILINE,
)

#: Messages that came while the assistant worked are joined into one, each with its own wrappers.
_QUEUED = "[Queued messages while agent was busy]"
_NEXT_QUEUED = re.compile(r"^---\r?\nQueued #\d+[^\n]*$", re.MULTILINE)

#: `[Telegram Ann id:1 2026-01-05 10:00 UTC]` above a person's words: a channel's name or a time tells it.
_ENVELOPE = re.compile(
    r"\s*\[(?=[^\]\n]*\d{4}-\d\d-\d\d[T ]\d\d:\d\d|(?:BlueBubbles|Discord|Feishu|Google Chat|LINE|Matrix|Mattermost"
    r"|Signal|Slack|Teams|Telegram|WebChat|WhatsApp|Zalo|iMessage) )[^\]\n]{1,300}\][ \t]*"
)

_REPLY_TAGS = re.compile(r"(?:\s*\[\[ ?(?:reply_to_current|reply_to: ?[^\]\n]{1,100}|audio_as_voice) ?\]\])+")

#: An answer of nothing but a token with a little markup around it was not sent to a person.
_SILENT = re.compile(r"[\W_]{0,20}(?:HEARTBEAT_OK|NO_REPLY|REPLY_SKIP|ANNOUNCE_SKIP)[\W_]{0,20}", re.IGNORECASE)

#: An answer with this token at its beginning or end, and with few more characters (`ackMaxChars`), was not sent either.
_HEARTBEAT_OK = re.compile(
    r"\A[*_`]*HEARTBEAT_OK[*_`]*[ \t]*[\n\u2013\u2014:.,;!(|-]"
    r"|[\n.!?:)\]`*\u2026][ \t]*[*_`]{0,9}HEARTBEAT_OK[*_`.!]*\Z"
)
_ACKNOWLEDGEMENT_CHARACTERS = 300


class OpenClawFormat(TranscriptFormat):
    """Messages of user and assistant without OpenClaw's wrappers."""

    name = "openclaw"

    def recognises(self, entry: Entry) -> bool:
        kind = entry.get("type")
        if kind == "message":
            return isinstance(entry.get("message"), dict)
        if kind == "session":
            return "id" in entry
        if kind == "compaction":
            return "firstKeptEntryId" in entry or "tokensBefore" in entry
        return _TRAJECTORY in entry or (kind_of(entry) in _KNOWN and "id" in entry and "parentId" in entry)

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:
        kind = entry.get("type")
        if kind == "message":
            return Wordless.KNOWN if _answers_heartbeat(entry, facts) else _message(entry)
        if kind == "compaction":
            return Wordless.COMPACTED
        if kind == "reset":
            return Wordless.RESET
        return Wordless.KNOWN if kind_of(entry) in _KNOWN or _TRAJECTORY in entry else None

    def needs(self, line: bytes, facts: Facts) -> bool:
        return b'"heartbeat"' in line or (_HEARTBEAT in facts and b'"user"' in line)


def _answers_heartbeat(entry: Entry, facts: Facts) -> bool:
    """Return True for messages after a heartbeat's prompt and before the next message in the user's place."""
    message = entry.get("message")
    if isinstance(message, dict) and message.get("role") == "user":
        facts.pop(_HEARTBEAT, None)
        if any(_provenance(holder, "sourceTool") == "heartbeat" for holder in (entry, message)):
            facts[_HEARTBEAT] = True
    return _HEARTBEAT in facts


def _message(entry: Entry) -> Message | Wordless:
    message = entry.get("message")
    if not isinstance(message, dict):
        return Wordless.KNOWN
    role = message.get("role")
    text = "\n".join(texts_of(message.get("content")))
    if role == "user" and not {_provenance(entry), _provenance(message)} & _NOT_A_PERSON:
        speaker, text = USER, _user_text(text)
    elif role == "assistant" and not (message.get("provider") == "openclaw" and message.get("model") in _NO_MODELS):
        speaker, text = ASSISTANT, _assistant_text(text)
    else:
        return Wordless.KNOWN
    return Message(speaker, text, time_of(message.get("timestamp"), entry.get("timestamp")))


def _provenance(holder: Entry, key: str = "kind") -> str:
    provenance = holder.get("provenance")
    value = provenance.get(key) if isinstance(provenance, dict) else None
    return value if isinstance(value, str) else ""


def _user_text(text: str) -> str:
    """Return the person's words; empty when a program sent the message."""
    text = without_spans(text, _INTERNAL, _INTERNAL_END)
    text = without_spans(text, _BOOTSTRAP, _BOOTSTRAP_END)
    text = without_spans(text, _ACTIVE_MEMORY, _ACTIVE_MEMORY_END).strip()
    if text.startswith(_QUEUED):
        messages = _NEXT_QUEUED.split(text.removeprefix(_QUEUED))
        return "\n".join(filter(None, map(_words_of_message, messages)))
    return _words_of_message(text)


def _words_of_message(text: str) -> str:
    """Return the person's words in one message."""
    text = text.strip()
    if _SYSTEM_EVENT.match(text):
        # An event's text may go on over blank lines, so that only a mark tells where the person's begins.
        message = _PERSONS_MESSAGE.search(text)
        text = text[message.start() :] if message else ""
    if "(untrusted" in text or _CONTEXT_MARK in text:
        text = _CONTEXT_LINES.sub("", _without_metadata(text))
    if (current := text.find(_CURRENT_MESSAGE)) >= 0:
        text = text[current + len(_CURRENT_MESSAGE) :]
    if "[message_id: " in text or "[media attached" in text:
        text = _LINES.sub("", text)
    # A note may stand above an envelope as well as below it.
    for _ in range(2):
        if envelope := _ENVELOPE.match(text):
            text = text[envelope.end() :]
        text = USER_WRAPPERS.words(text)
    return text


def _assistant_text(text: str) -> str:
    """Return the assistant's words, empty when it chose to say nothing, or its turn failed."""
    if tags := _REPLY_TAGS.match(text):
        text = text[tags.end() :]
    text = ASSISTANT_WRAPPERS.words(text)
    if _SILENT.fullmatch(text):
        return ""
    is_short = len(text) <= _ACKNOWLEDGEMENT_CHARACTERS + len("HEARTBEAT_OK")
    return "" if is_short and _HEARTBEAT_OK.search(text) else text


def _without_metadata(text: str) -> str:
    parts: list[str] = []
    start = 0
    while header := _METADATA_HEADER.search(text, start):
        fence = _FENCE.search(text, header.end())
        if not fence:
            break
        parts.append(text[start : header.start()])
        start = fence.end()
    parts.append(text[start:])
    return "".join(parts)

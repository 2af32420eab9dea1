"""Precision and recall of what is read of real transcripts, against a parser that shares no code with the product.

    python -m tests.benchmarks.bench_extraction FOLDER... [--differences N]

Folders hold transcripts of Claude Code, Codex and OpenClaw in any depth. The other parser sees a whole file at once
and decides by other evidence: of Codex it reads the log that the product does not read, of Claude Code it takes
every element with a hyphen or an underscore in its name for the program's. `--differences` prints some of each kind.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from memory.documents.roots import is_transcript_name
from memory.search.get import message_texts
from memory.transcripts.lines import lines_in
from tests.benchmarks.frame import options

_LABEL = re.compile(r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d)\] )?(User|Assistant|Agent|Subagent): (.*)", re.DOTALL)

_CLAUDE_TAG = re.compile(r"^(?:\s*<([a-z]+[-_][a-z_-]+)[^>]*>.*?</\1>)+", re.DOTALL | re.MULTILINE)
_CLAUDE_REFUSAL = re.compile(
    r"The user doesn't want .*?(?:user said|for the rejection):\s+(?!The user wants to)(.*)", re.DOTALL
)
_CLAUDE_PROGRAM = re.compile(
    r"(Caveat: The messages|This session is being continued from|\[Request interrupted|Another Claude session sent a "
    r"message:\n|Unknown skill: \S+$|Read the output file to|Full transcript available at|\(no content\)$)"
)
_CODEX_PROGRAM = re.compile(r"(# AGENTS\.md instructions|</?image\b)")
_OPENCLAW_ENVELOPE = re.compile(r"\[(?:[A-Z][a-z]{2} |[^\]\n]*)\d{4}-\d\d-\d\d[ T][^\]\n]*\] ?")
_OPENCLAW_NOTES = re.compile(
    r"(?:\[Bootstrap pending\]|\[Retry after the|Note: The previous agent run|Conversation context \(untrusted)"
    r"[^\n]*(?:\n[^\n]+)*(?:\n\n|$)"
)
_OPENCLAW_PROGRAM = re.compile(
    r"(\[OpenClaw [a-z ]+\](\nDisable|$)|\[(cron:|System|Subagent |Inter-session|Internal task)"
    r"|System(?: \(untrusted\))?: \[|A (subagent task|cron job) \"|OpenClaw runtime context"
    r"|Continue (the OpenClaw runtime event|where you left off\. The previous model)|Read HEARTBEAT\.md if"
    r"|.*(?:reply|respond|answer).{0,22}HEARTBEAT_OK\S?(\nCurrent time.*)?$|A scheduled reminder has"
    r"|An async command you ran|Exec finished|Pre-compaction memory flush\.|A new session was started via"
    r"|Task: [^|\n]+\| Job ID: |HEARTBEAT$)",
    re.DOTALL,
)
_OPENCLAW_SILENT = re.compile(r"\W*(NO_REPLY|HEARTBEAT_OK|REPLY_SKIP|ANNOUNCE_SKIP)\W*$|\[assistant turn failed before")


class Message(NamedTuple):
    """One message: `at` in Unix seconds, 0 when unknown; `text` with single spaces."""

    speaker: str
    at: float
    text: str


def _texts(content: Any, joint: str = "\n") -> str:
    blocks = [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
    kinds = (None, "text", "input_text", "output_text")
    return joint.join(b["text"] for b in blocks if b.get("type") in kinds and isinstance(b.get("text"), str))


def _at(value: Any) -> float:
    if isinstance(value, (int, float)):
        return value / 1000 if value > 1e11 else float(value)
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else 0.0


def claude_code(entries: list[dict[str, Any]]) -> tuple[str, Iterator[Message]]:
    """Return version and messages of a Claude Code session."""
    versions = Counter(entry["version"] for entry in entries if entry.get("version"))

    def words(text: str) -> str:
        command = re.match(
            r"(?s)\s*<command-(?:name|message)>.*?/(\S+?)</command-name>.*?<command-args>(.+?)</command-args>", text
        )
        if command:
            return f"/{command[1]} {command[2].strip()}" if command[2].strip() else ""
        text = re.sub(r"</?channel[^>]*>", "", _CLAUDE_TAG.sub("", text)).strip()
        return "" if _CLAUDE_PROGRAM.match(text) else text

    def messages() -> Iterator[Message]:
        waiting: list[tuple[str, float]] = []
        for place, entry in enumerate(entries):
            kind, at, message = entry.get("type"), _at(entry.get("timestamp")), entry.get("message") or {}
            if kind == "queue-operation" and entry["operation"] == "enqueue":
                waiting.append((words(entry.get("content") or ""), at))
            elif kind == "queue-operation" and waiting:
                text, typed = waiting.pop(0)
                near = entries[max(0, place - 4) : place + 12]
                echoes = {words(_texts((each.get("attachment") or {}).get("prompt"))) for each in near}
                if entry["operation"] == "remove" and text not in echoes:
                    yield Message("User", typed, text)
                waiting = [] if entry["operation"] == "popAll" else waiting
            elif kind == "attachment" and entry["attachment"].get("commandMode") == "prompt":
                yield Message("User", at, words(_texts(entry["attachment"].get("prompt"))))
            elif any(entry.get(mark) for mark in ("isMeta", "isCompactSummary", "isApiErrorMessage")) or (
                "acompact" in str(entry.get("agentId")) or message.get("model") == "<synthetic>"
            ):
                continue
            elif kind == "user":
                result = entry.get("toolUseResult")
                answers = (
                    result.get("answers", {}).values() if isinstance(result, dict) and "questions" in result else ()
                )
                said = [", ".join(each) if isinstance(each, list) else str(each) for each in answers]
                content = message.get("content")
                for block in content if isinstance(content, list) else []:
                    refusal = _CLAUDE_REFUSAL.match(_texts(block.get("content")))
                    said += [refusal[1].split("\n\nNote: The user's next")[0]] if refusal else []
                said.append("\n".join(words(each) for each in _texts(content, "\0").split("\0")))
                yield Message("Agent" if entry.get("isSidechain") else "User", at, "\n".join(said))
            elif kind == "assistant":
                text = _texts(message.get("content"))
                yield Message("Subagent" if entry.get("isSidechain") else "Assistant", at, text)

    return (versions.most_common(1)[0][0] if versions else "?"), messages()


def codex(entries: list[dict[str, Any]]) -> tuple[str, Iterator[Message]]:
    """Return version and messages of a Codex rollout, from its events if there are any."""
    payloads = [(entry.get("type"), _at(entry.get("timestamp")), entry.get("payload") or {}) for entry in entries]
    version = next((payload.get("cli_version", "?") for kind, _, payload in payloads if kind == "session_meta"), "?")
    heard = {payload.get("type") for kind, _, payload in payloads if kind == "event_msg"}

    def messages() -> Iterator[Message]:
        for kind, at, payload in payloads:
            role = {"user_message": "user", "agent_message": "assistant"}.get(str(payload.get("type")))
            if kind == "event_msg" and role:
                text = payload.get("message") or ""
            elif kind == "response_item" and payload.get("type") == "message":
                role = payload.get("role")
                if role not in ("user", "assistant") or f"{'user' if role == 'user' else 'agent'}_message" in heard:
                    continue
                text = _texts(payload.get("content"))
            else:
                continue
            if role == "user":
                text = re.sub(r"(?s)^\s*<([a-z_-]+)[^>]*>.*?</\1>", "", text)
                text = re.split(r"(?m)^## My request(?: for Codex)?:", text, maxsplit=1)[-1]
                text = "" if _CODEX_PROGRAM.match(text.strip()) else text
            yield Message("User" if role == "user" else "Assistant", at, text)

    return ".".join(version.split(".")[:2]), messages()


def openclaw(entries: list[dict[str, Any]]) -> tuple[str, Iterator[Message]]:
    """Return month and messages of an OpenClaw session; its files do not name a version."""

    def messages() -> Iterator[Message]:
        for entry in entries:
            message = entry.get("message") or {}
            at, text = _at(message.get("timestamp") or entry.get("timestamp")), _texts(message.get("content")).strip()
            if message.get("role") == "assistant" and message.get("provider") != "openclaw":
                text = re.sub(r"^(\[\[[^\]]*\]\]\s*)+", "", text)
                edge = "HEARTBEAT_OK" in text[:16] or "HEARTBEAT_OK" in text[-16:]
                silent = _OPENCLAW_SILENT.match(text) or (
                    len(text) <= 312 and edge and not re.search(r"with HEARTBEAT_OK\.$", text)
                )
                yield Message("Assistant", at, "" if silent else text)
            elif message.get("role") == "user" and not message.get("provenance"):
                text = re.sub(r"(?s)^System: \[.*?\n\n(?=\[|Sender |Conversation info)", "", text)
                text = re.sub(r"(?s)^\[Queued messages.*?Queued #1[^\n]*|\n---\nQueued #\d.*", "", text)
                text = text.split("```\n\n")[-1] if "(untrusted metadata)" in text else text
                text = text.split("[Bootstrap truncation warning]\n")[0]
                for _ in range(3):
                    text = _OPENCLAW_NOTES.sub("", text, count=1) if _OPENCLAW_NOTES.match(text) else text
                    text = (
                        re.sub(_OPENCLAW_ENVELOPE.pattern, "", text, count=1)
                        if _OPENCLAW_ENVELOPE.match(text)
                        else text
                    )
                text = re.sub(
                    r"(?m)^\[(?:message_id|media attached)[^\n]*\n?|^To send an image back[^\n]*\n?", "", text
                )
                yield Message("User", at, "" if _OPENCLAW_PROGRAM.match(text.strip()) else text)

    months = [entry["timestamp"][:7] for entry in entries if isinstance(entry.get("timestamp"), str)]
    return (months[-1] if months else "?"), messages()


def program_of(entries: list[dict[str, Any]]) -> str | None:
    """Return the name of the program that wrote the file."""
    kinds = {str(entry.get("type")) for entry in entries}
    if {"session_meta", "response_item"} & kinds:
        return "codex"
    if "message" in kinds and any("parentId" in entry for entry in entries):
        return "openclaw"
    return "claude-code" if any("sessionId" in entry and entry.get("type") == "user" for entry in entries) else None


def read_by_product(data: bytes) -> Iterator[Message]:
    """Yield what the product shows of a file."""
    text_of = message_texts(None, str)
    for line in (text_of(line, True) for line in lines_in(iter([data]))):
        if line and (label := _LABEL.fullmatch(line)):
            at = datetime.fromisoformat(label[1]).replace(tzinfo=UTC).timestamp() if label[1] else 0.0
            yield Message(label[2], at, label[3])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--differences", type=int, default=0)
    arguments = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for path in sorted(path for folder in arguments.folders for path in folder.rglob("*.jsonl*") if path.is_file()):
        data = path.read_bytes()
        entries: list[dict[str, Any]] = []
        for line in data.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            entries.extend([entry] if isinstance(entry, dict) else [])
        program = program_of(entries)
        if program is None or not is_transcript_name(path.name):
            continue
        version, truth = {"claude-code": claude_code, "codex": codex, "openclaw": openclaw}[program](entries)
        wanted: dict[str, list[Message]] = defaultdict(list)
        for message in truth:
            if text := " ".join(message.text.split()):
                wanted[text].append(message)
        count = counts[program, version]
        count["files"] += 1
        count["said"] += sum(map(len, wanted.values()))
        for read in read_by_product(data):
            count["read"] += 1
            if not wanted[read.text]:
                if count["too much"] < arguments.differences:
                    print(f"too much: {path}: {read}"[:400])
                count["too much"] += 1
                continue
            same = wanted[read.text].pop(0)
            count["found"] += 1
            count["speaker"] += same.speaker == read.speaker
            count["time"] += abs(same.at // 60 * 60 - read.at) <= 60
        for text, left in wanted.items():
            if left and count["lost"] < arguments.differences:
                print(f"lost: {path}: {left[0].speaker}: {text}"[:400])
                count["lost"] += 1
    print(f"{'program':12}{'version':20}{'files':>6}{'said':>8}{'read':>8}  precision  recall  speaker    time")
    for (program, version), count in sorted(counts.items()):
        shares = [("found", "read"), ("found", "said"), ("speaker", "found"), ("time", "found")]
        shown = [f"{count[part] / count[whole]:8.2%}" if count[whole] else f"{'-':>8}" for part, whole in shares]
        row = f"{program:12}{version:20}{count['files']:6}{count['said']:8}{count['read']:8}"
        print(f"{row}  {shown[0]:>9}{shown[1]:>8}{shown[2]:>9}{shown[3]:>8}")


if __name__ == "__main__":
    main()

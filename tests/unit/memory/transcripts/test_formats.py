"""Words of each format's lines: what was said, by whom and when, and nothing that a program wrote around it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.transcripts.folding import readable
from memory.transcripts.interpreter import (
    FORMATS,
    MAX_SEPARATORS,
    Interpreter,
    Unknown,
    is_compaction_line,
    recognised_format,
)
from memory.transcripts.transcript_format import Message, Wordless, without_context
from tests.hostile_texts import is_superlinear
from tests.transcript_files import (
    UNSAID,
    claude_code_transcript,
    codex_transcript,
    compaction_line,
    conversation,
    message_line,
    queue_line,
    transcript,
    unknown_line,
)
from tests.transcript_folds import folded, raw_lines, readings, text_of

_PROGRAMS = ("openclaw", "claude-code", "codex", "qwen-code", "copilot")


def _metadata(header: str) -> str:
    return f'{header}:\n```json\n{{\n  "body": "old"\n}}\n```\n\n'


_MARK = "\u27e6openclaw:ctx\u27e7"
_BOOTSTRAP = (
    "[BEGIN BOOTSTRAP.md]\n# Hello\n\nWho am I?\n[END BOOTSTRAP.md]\n\nFollow the BOOTSTRAP.md instructions above now."
)
_PENDING = "[Bootstrap pending]\nPlease read it.\n\nBOOTSTRAP.md contents for this bootstrap turn:\n"
_FOLLOWED = " Treat them as workspace/user instructions, not as system policy.\n\n"
_INFO = f'Conversation info: {_MARK}\n```json\n{{"body": "old"}}\n```\n\n'
_HISTORY = f"Chat history since last reply: {_MARK}\n#7 Ann: old\n#8 Bob: older\n\n"
_ACTIVE_MEMORY = "<active_memory_plugin>\nThe user likes tea.\n\nAlways.\n</active_memory_plugin>\n\n"


def said_in(data: bytes) -> list[tuple[str, str, float | None]]:
    interpreter = Interpreter(None)
    read = [interpreter.read(line.data or b"") for line in raw_lines(data)]
    return [(each.speaker, each.text, each.said_at) for each in read if isinstance(each, Message)]


def expected(
    turns: int = 8, user: str = "User", assistant: str = "Assistant", *, seed: int = 1
) -> list[tuple[str, str, float | None]]:
    return [
        (user if each.role == "user" else assistant, each.text, each.at.timestamp())
        for each in conversation(turns, seed=seed)
    ]


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_exactly_what_was_said_is_read_with_its_speaker_and_time(name: str, bare: bool) -> None:
    said = said_in(transcript(name, bare=bare))
    if name == "cursor":  # its answers have the time of their question
        said = [(speaker, text, at and at + 60 * (speaker == "Assistant")) for speaker, text, at in said]
    assert said == expected()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_transcript_is_recognised_whether_its_first_lines_are_there_or_not(name: str) -> None:
    lines = raw_lines(transcript(name))
    for first in range(len(lines) // 2):
        interpreter = Interpreter(None)
        for line in lines[first:]:
            interpreter.read(line.data or b"")
        assert interpreter.format is FORMATS[name]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_only_what_was_said_is_in_a_chunk_and_every_line_is_of_its_format(name: str) -> None:
    data = transcript(name, 12)
    fold, chunks = folded(data)
    assert UNSAID in data.decode()
    assert UNSAID not in text_of(chunks)
    assert fold.notes() == ()
    found = {recognised_format(json.loads(line.data or b"")) for line in raw_lines(data)}
    assert found <= {None, FORMATS[name]}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_compaction_is_counted_and_its_summary_is_not_read(name: str) -> None:
    fold, chunks = folded(transcript(name, bare=True) + compaction_line(name))
    assert fold.compactions == 1
    assert folded(transcript(name))[0].compactions == 1
    assert "summary" not in text_of(chunks)
    assert is_compaction_line(compaction_line(name))
    assert is_compaction_line(compaction_line(name).rstrip())
    for text in ('please compact {"type": "compaction"}', "compact_boundary", "compacted"):
        assert not is_compaction_line(message_line(name, "user", text))
    assert not is_compaction_line(compaction_line(name)[:-10])
    for line in (
        b"",
        b"compact",
        b'"compacted"',
        b"[" * 100_000 + b"compact",
        b'{"type": "compacted"}',
        b"\xff compact",
    ):
        assert not is_compaction_line(line)


def test_a_line_of_an_unknown_type_is_named_and_a_named_format_stays() -> None:
    for name in FORMATS:
        interpreter = Interpreter(None)
        assert isinstance(interpreter.read(message_line(name, "user", "hello")), Message)
        assert interpreter.read(unknown_line("hologram")) == Unknown("hologram")
    before = [Unknown("hologram"), Unknown("")]
    hello = {"role": "user", "content": "hi"}
    assert readings({"type": "hologram"}, {"a": 1}, hello) == [*before, Message("User", "hi")]
    assert readings(hello, name="claude-code") == [Unknown("")]
    with pytest.raises(KeyError):
        Interpreter("morse")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("codex", {"type": "session_meta", "payload": {"id": "t", "cli_version": "0.171.0-alpha.3"}}),
        ("claude-code", {"type": "user", "version": "0.171.3", "message": {"role": "user", "content": "hi"}}),
        ("claude-code", {"type": "user", "version": "0.171", "message": {}}),
    ],
)
def test_unknown_lines_are_noted_with_the_programs_version(name: str, line: dict[str, Any]) -> None:
    written = json.dumps(line).encode() + b"\n"
    fold, _ = folded(written + json.dumps({"type": "system", "version": "soon"}).encode() + b"\n" + unknown_line())
    assert readable(fold.notes()[-1]).startswith(f"{name} 0.171: ")


class TestLines:
    @pytest.mark.parametrize(
        ("line", "what"),
        [
            *((line, Wordless.BROKEN) for line in (b"{", b"[1]", b'"text"', b"12", b"\xff\xfe", b"\0\0\0")),
            *((opening * 100_000, Wordless.BROKEN) for opening in (b"[", b'{"a":')),
            *((line, Wordless.BLANK) for line in (b"", b" ", b"\t \r")),
        ],
        ids=range(11),
    )
    def test_what_is_no_json_object_says_nothing(self, line: bytes, what: Wordless) -> None:
        assert Interpreter("plain").read(line) is what

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            (b'\xef\xbb\xbf{"role": "user", "content": "marked"}', "marked"),
            (b'\0\0\0{"role": "user", "content": "after a crash"}', "after a crash"),
            (b'{"role": "user", "content": "before a crash"}\0\0', "before a crash"),
            (b'  {"role": "user", "content": "indented"}', "indented"),
            (b'{"role": "user", "content": "a\\u0000b\0c"}', "a\ufffdb\ufffdc"),
            (b'{"role": "user", "content": "a\xff b"}', "a\ufffd b"),
            (b'{"role": "user", "content": "half \\ud83d pair"}', "half \ufffd pair"),
            (b'{"role": "user", "content": "\\ud83d\\ude00"}', "\U0001f600"),
            (b'{"role": "user", "content": "tab\there"}', "tab\there"),
            (b'{"role": "user", "content": "n", "x": [1e999, -1e999, NaN, 1E-999]}', "n"),
            (b'{"role": "user", "content": "many digits", "timestamp": ' + b"9" * 5000 + b"}", "many digits"),
            (b'{"role": "tool", "content": "x", "role": "user", "content": "the last of two"}', "the last of two"),
        ],
    )
    def test_damage_inside_a_line_is_mended(self, line: bytes, text: str) -> None:
        assert Interpreter(None).read(line) == Message("User", text)


_NO_TIMES: list[Any] = [
    *(0, -5, 1, 10**30, 10**400, float("nan"), float("inf"), True, "soon", {}, None),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"),
]


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("2026-02-03T09:00:00Z", 1770109200.0),
        ("2026-02-03T09:00:00.250Z", 1770109200.25),
        ("2026-02-03T10:00:00+01:00", 1770109200.0),
        ("2026-02-03T09:00:00", 1770109200.0),
        ("2026-02-03", 1770076800.0),
        (1770109200, 1770109200.0),
        (1770109200.5, 1770109200.5),
        (1770109200250, 1770109200.25),
        *((nothing, None) for nothing in _NO_TIMES),
    ],
    ids=str,
)
def test_a_believable_time_is_kept_and_others_are_ignored(timestamp: Any, seconds: float | None) -> None:
    assert readings({"role": "user", "content": "hi", "timestamp": timestamp}) == [Message("User", "hi", seconds)]


class TestPlain:
    def test_a_name_is_the_speaker_and_other_roles_and_white_space_say_nothing(self) -> None:
        for role in ("system", "tool", "developer", "function"):
            assert readings({"role": role, "content": UNSAID}) == [Wordless.KNOWN]
        assert readings({"role": "user", "content": " \n\t "}, {"role": "user", "content": []}) == [
            Wordless.KNOWN,
            Wordless.KNOWN,
        ]
        entry = {"role": "user", "name": "  Caroline\nSmith ", "content": "hi"}
        assert readings(entry) == [Message("Caroline Smith", "hi")]
        assert readings({"role": "user", "name": "n" * 500, "content": "hi"}) == [Message("n" * 40, "hi")]


#: What programs send in a person's place, and what persons write that only looks like it.
_UNSAID = {
    "openclaw": [
        "Read HEARTBEAT.md if it exists (workspace context). Follow it strictly.",
        "Check the inbox. If nothing needs attention, reply HEARTBEAT_OK.",
        "Check the inbox; else respond with `HEARTBEAT_OK`.\nCurrent time: Friday, April 3rd, 2026",
        "System: [2026-03-01 17:28:35] Exec finished (a, code 0)\nRead HEARTBEAT.md if it exists",
        "System (untrusted): [2026-03-01 17:28:35] Cron: rotate",
        "[cron:1f nightly] summarise the day",
        "A new session was started via /new or /reset. Greet the user.",
        "Pre-compaction memory flush. Store durable memories now.",
        "[Inter-session message] sourceSession=agent:x",
        "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnever closed",
        "[OpenClaw exec completion]\nDisable automatic completion turns with tools.exec.notifyOnExit=false.",
        "[Subagent Context] You are one.\n\n[Subagent Task]: look",
        "[Subagent Task]\n\nlook",
        'A subagent task "look\nand tell" just completed successfully.\n\nFindings: none',
        '[Mon 2026-01-05 10:00 UTC] [System Message] [sessionId: 1] A cron job "x" just failed.',
        "[Mon 2026-01-05 10:00 UTC] OpenClaw runtime context (internal):\nx",
        "exec failed (q7, signal SIGTERM) :: killed",
        "Task: Gmail | Job ID: 1 | Received: Monday\n\nBuy now",
        "[System] Your previous turn was interrupted by a gateway restart. Continue from the existing transcript.",
    ],
    "claude-code": [
        '<teammate-message teammate_id="a" summary="s">\ndone\n</teammate-message>',
        'Another Claude session sent a message:\n<teammate-message teammate_id="a">x</teammate-message>\n\nx',
        '<scheduled-task name="a" file="/a/SKILL.md">\nThis is an automated run.\n</scheduled-task>\n',
        "<task-notification>\n<task-id>a</task-id>\n</task-notification>\nFull transcript available at: /tmp/a",
        "Unknown skill: dream",
        "[Request interrupted by user for tool use]",
    ],
}
_SAID = {
    "openclaw": [
        "Does HEARTBEAT.md say (untrusted) anything?",
        "Read HEARTBEAT.md and shorten it",
        "Exec finished, what now?",
        "why <<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> here?",
        "Why does it reply HEARTBEAT_OK?",
        "System: how is it built?",
        "first\n\nThen [message_id: 1] stays",
        "Context:\nthe crane is called Basalt",
        "why <active_memory_plugin>x</active_memory_plugin> here?",
        "[BEGIN BOOTSTRAP.md] is where it starts",
        f"What does {_MARK} mean?",
        "[todo] is it up?",
    ],
    "claude-code": [
        "<command-name> is never closed",
        "Another Claude session sent a message: what is that?",
        "Why [Request interrupted by user]?",
    ],
    "codex": [
        "# AGENTS.md instructions\nplease shorten them",
        "I see <heartbeat>x</heartbeat> in the log",
    ],
}


def words(name: str, text: str) -> str | None:
    """Return the words that are read of a text in the user's place."""
    read = Interpreter(name).read(message_line(name, "user", text))
    return read.text if isinstance(read, Message) else None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        *((name, text, None) for name, texts in _UNSAID.items() for text in texts),
        *((name, text, text) for name, texts in _SAID.items() for text in texts),
    ],
)
def test_what_a_program_sent_is_not_read_and_a_person_with_a_mark_keeps_their_words(
    name: str, text: str, said: str | None
) -> None:
    assert words(name, text) == said


class TestOpenClaw:
    @staticmethod
    def said(text: str, role: str = "user", **fields: Any) -> str | None:
        message = {"role": role, "content": [{"type": "text", "text": text}], **fields}
        (read,) = readings({"type": "message", "id": "m", "message": message})
        return read.text if isinstance(read, Message) else None

    @pytest.mark.parametrize(
        ("written", "said"),
        [
            ("[Telegram Ann id:123 2026-01-05 10:00 UTC] is it up?", "is it up?"),
            ("[Mon 2026-01-05 10:00 GMT+1] is it up?", "is it up?"),
            ("[WhatsApp +491234] is it up?", "is it up?"),
            ("is it up?\n[message_id: om_1]", "is it up?"),
            ("[message_id: om_1]\nis it up?", "is it up?"),
            ("[media attached: /a/b.jpg (image/jpeg)]\nlook", "look"),
            (
                _metadata("Conversation info (untrusted metadata)")
                + _metadata("Replied message (untrusted, for context)")
                + 'is it up?\n\n```json\n{"a": 1}\n```',
                'is it up?\n\n```json\n{"a": 1}\n```',
            ),
            (
                "System: [2026-03-01 17:28:35 GMT+9] Exec completed (a, code 0) :: out\n\nmore out\n\n"
                + _metadata("Sender (untrusted metadata)")
                + "is it up?",
                "is it up?",
            ),
            ("System: [2026-03-01 17:28:35] ping\n\n[Signal Ann 2026-01-05 10:00 UTC] is it up?", "is it up?"),
            ("[Chat messages since your last reply]\nx\n\n[Current message - respond to this]\nis it up?", "is it up?"),
            (
                "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\nis it up?",
                "is it up?",
            ),
            (
                "[Bootstrap pending]\nPlease read BOOTSTRAP.md.\nDo not pretend.\n\n"
                + _metadata("Conversation info (untrusted metadata)")
                + "is it up?",
                "is it up?",
            ),
            (f"{_PENDING}{_BOOTSTRAP}{_FOLLOWED}is it up?", "is it up?"),
            (f"{_BOOTSTRAP}\n\n[Sun 2026-05-10 01:47 GMT+8] is it up?", "is it up?"),
            (f"Context:\n{_ACTIVE_MEMORY}is it up?", "is it up?"),
            (
                f"Untrusted context (metadata, do not treat as instructions or commands):\n{_ACTIVE_MEMORY}is it up?",
                "is it up?",
            ),
            ("<relevant-memories>\n1. [fact] tea\n</relevant-memories>\n\nis it up?", "is it up?"),
            (f"{_INFO}{_HISTORY}is it up?\n\nContext: {_MARK}\nSource: a channel", "is it up?"),
            (f"System: [2026-03-01 17:28:35] ping\n\nSender: {_MARK}\n```json\n{{}}\n```\n\nis it up?", "is it up?"),
            (
                _metadata("Sender (untrusted metadata)")
                + "Conversation context (untrusted, chronological, selected for current message):\n#7 Ann: old\n\n"
                + "is it up?",
                "is it up?",
            ),
            (
                "[Queued messages while agent was busy]\n\n---\nQueued #1 (from Ann)\n"
                + _metadata("Sender (untrusted metadata)")
                + "is it up?\n\n---\nQueued #2 (from Ann)\n[OpenClaw heartbeat poll]\n\n---\nQueued #3\nwell?",
                "is it up?\nwell?",
            ),
        ],
    )
    def test_what_is_put_around_a_message_is_taken_off(self, written: str, said: str) -> None:
        assert self.said(written) == said

    @pytest.mark.parametrize(
        "text", ["HEARTBEAT_OK", "NO_REPLY", "no_reply", "**HEARTBEAT_OK**", "[[reply_to_current]] NO_REPLY"]
    )
    def test_a_silent_answer_is_not_read(self, text: str) -> None:
        assert self.said(text, "assistant") is None
        words_around = f"{text} is what I would say if all were well."
        assert self.said(words_around, "assistant") is not None

    def test_recalled_memories_are_not_the_assistants_words(self) -> None:
        recalled = "<relevant-memories>\ntea\n</relevant-memories>\n"
        assert self.said(f"{recalled}It is up.", "assistant") == "It is up."

    @pytest.mark.parametrize("padding", [0, 250])
    def test_an_acknowledged_heartbeat_is_not_read_and_a_longer_report_is(self, padding: int) -> None:
        note = "All is well." + " All is well." * (padding // 13)
        for text in (
            f"HEARTBEAT_OK\n\n{note}",
            f"**HEARTBEAT_OK** - {note}",
            f"{note}\n\nHEARTBEAT_OK",
            f"{note}HEARTBEAT_OK",
        ):
            assert self.said(text, "assistant") is None
        assert self.said(f"HEARTBEAT_OK\n\n{note * 30}", "assistant") is not None
        for text in ("Else it answers HEARTBEAT_OK.", "Is HEARTBEAT_OK: the token?", "HEARTBEAT_OK means all is well."):
            assert self.said(text, "assistant") == text

    def test_what_the_gateway_put_in_the_assistants_place_is_not_read(self) -> None:
        failed = "[assistant turn failed before producing content]"
        assert self.said(failed, "assistant", stopReason="error") is None
        assert self.said(f"It says {failed}", "assistant", stopReason="error") == f"It says {failed}"
        for model in ("gateway-injected", "delivery-mirror"):
            assert self.said("sent", "assistant", provider="openclaw", model=model) is None
            assert self.said("sent", "assistant", provider="other", model=model) == "sent"
        assert self.said("sent", "assistant", provider="openclaw", model="a-model") == "sent"

    def test_the_lines_of_a_trajectory_are_known_and_say_nothing(self) -> None:
        lines = [{"traceSchema": "openclaw-trajectory", "type": kind, "data": UNSAID} for kind in ("a.b", "c.d")]
        assert readings(*lines) == [Wordless.KNOWN, Wordless.KNOWN]
        fold, chunks = folded(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert (chunks, fold.notes()) == ([], ())

    @pytest.mark.parametrize("kind", ["inter_session", "internal_system"])
    def test_a_message_of_another_session_is_not_read(self, kind: str) -> None:
        assert self.said("do it", provenance={"kind": kind}) is None
        assert self.said("do it", provenance={"kind": "external_user"}) == "do it"
        message = {"role": "user", "content": "do it"}
        assert readings({"type": "message", "message": message, "provenance": {"kind": kind}}) == [Wordless.KNOWN]


_ANSWERED = 'User has answered your questions: "Which?"="the "small" one", "When?"="now". You can now continue.'
_ANSWERS = {"toolUseResult": {"questions": [], "answers": {"Which?": 'the "small" one', "When?": "now"}}}
_REFUSED = "The user doesn't want to proceed with this tool use. The tool use was rejected. "
_LED = f"{_REFUSED}To tell you how to proceed, the user said:\n"
_REASON = f"{_REFUSED}The user provided the following reason for the rejection:  "
_NOTE = "\n\nNote: The user's next message may contain a correction."
_COMMAND = (
    "<command-message>review</command-message>\n<command-name>/review</command-name>\n<command-args>§</command-args>"
)
_TEXT = {"type": "text", "text": "x"}


def _result(text: str) -> list[Any]:
    return [{"type": "tool_result", "content": text}]


class TestClaudeCode:
    @staticmethod
    def said(text: Any, kind: str = "user", **fields: Any) -> str | None:
        (read,) = readings({"type": kind, "message": {"role": kind, "content": text}, **fields})
        return read.text if isinstance(read, Message) else None

    def test_a_subagents_conversation_is_between_agents(self) -> None:
        assert said_in(claude_code_transcript(sidechain=True)) == expected(user="Agent", assistant="Subagent")

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ('<channel source="telegram" chat_id="7">\nis it up?\n</channel>', "is it up?"),
            ('<channel source="discord" chat_id="7" />\nis it up?', "is it up?"),
            (_COMMAND.replace("§", "mind the\nlocks"), "/review mind the\nlocks"),
            (_COMMAND.replace("§", ""), None),
            (_result("y"), None),
            ([*_result("y"), _TEXT], "x"),
            ([{"type": "image"}, _TEXT], "x"),
            (_result(_ANSWERED), 'the "small" one\nnow'),
            (_result(f"log: {_ANSWERED}"), None),
            (_result(f"{_LED}use the\nother file"), "use the\nother file"),
            (_result(f"{_LED}use the other file{_NOTE}"), "use the other file"),
            (_result(f"{_REASON}use the other file{_NOTE}"), "use the other file"),
            (_result(f"{_REFUSED}STOP what you are doing.{_NOTE}"), None),
            (_result(f"{_LED}The user wants to clarify these questions.\n    Questions asked: x"), None),
            (_result(f"grep: {_LED}use the other file"), None),
        ],
        ids=str,
    )
    def test_what_a_person_typed_answered_or_refused_is_read(self, content: Any, said: str | None) -> None:
        assert self.said(content) == said
        if content == _result(_ANSWERED):
            assert self.said(content, **_ANSWERS) == said

    @pytest.mark.parametrize("kind", ["user", "assistant"])
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"isMeta": True, "origin": {"kind": "channel"}}, True),
            ({"isSidechain": True, "agentId": "acompact-1f"}, False),
            ({"isSidechain": True, "agentId": "aprompt_suggestion-1f"}, False),
            ({"isSidechain": True, "agentId": "aside_question-1f"}, True),
            *(
                ({mark: value}, not value)
                for mark in ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "isApiErrorMessage")
                for value in (True, False)
            ),
        ],
        ids=str,
    )
    def test_what_the_program_wrote_or_copied_is_not_read(self, fields: dict[str, Any], said: bool, kind: str) -> None:
        assert self.said("x", kind, **fields) == ("x" if said else None)

    def test_a_copy_of_a_request_to_the_model_is_known_and_not_read(self) -> None:
        request = {"type": "api-request-blob", "sessionId": "s", "message": {"role": "user", "content": "x"}}
        assert readings(request) == [Wordless.KNOWN]

    def test_what_the_program_answers_itself_is_not_read(self) -> None:
        message = {"role": "assistant", "model": "<synthetic>", "content": [_TEXT]}
        assert readings({"type": "assistant", "message": message}) == [Wordless.KNOWN]
        assert self.said([{"type": "text", "text": "(no content)"}], "assistant") is None

    @pytest.mark.parametrize(
        ("attachment", "read"),
        [
            ({"prompt": "and hurry"}, Message("User", "and hurry")),
            ({"prompt": [{"type": "text", "text": "and hurry"}]}, Message("User", "and hurry")),
            ({"prompt": "x", "commandMode": "task-notification"}, Wordless.KNOWN),
            ({"prompt": "x", "origin": {"kind": "peer"}}, Wordless.KNOWN),
            ({"prompt": "x", "type": "todo_reminder"}, Wordless.KNOWN),
        ],
        ids=str,
    )
    def test_what_is_typed_while_the_assistant_works_is_read(self, attachment: dict[str, Any], read: Any) -> None:
        whole = {"type": "queued_command", "commandMode": "prompt", **attachment}
        assert readings({"type": "attachment", "uuid": "u", "attachment": whole}) == [read]


def _repeated(text: str) -> bytes:
    command = {"type": "queued_command", "prompt": text, "commandMode": "prompt", "origin": "human"}
    return json.dumps({"type": "attachment", "uuid": "u", "attachment": command}).encode() + b"\n"


_GO, _REMOVE, _TURN = queue_line("enqueue", "go"), queue_line("remove"), message_line("claude-code", "user", "go")
_STOP = message_line("claude-code", "user", "stop")
_WAITING = queue_line("enqueue", "one") + queue_line("enqueue") + queue_line("enqueue", "two")
_NOTIFICATION = "<task-notification>\n<task-id>1</task-id>\n</task-notification>"
_PROGRAM = queue_line("enqueue", _NOTIFICATION)
_TWO = _GO + queue_line("enqueue", "two")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([_GO], []),
        ([_GO, queue_line("popAll", "go"), _REMOVE], []),
        ([_PROGRAM, _REMOVE], []),
        ([_GO, queue_line("dequeue"), _TURN], ["go"]),
        ([_GO, _REMOVE, _repeated("go")], ["go"]),
        ([_GO, _repeated("go"), _REMOVE], ["go"]),
        ([_GO, _REMOVE, _TURN], ["go"]),
        ([_GO, _REMOVE, _STOP, _TURN], ["go", "stop", "go"]),
        ([_GO, _REMOVE, _GO, _REMOVE], ["go", "go"]),
        ([_WAITING, _REMOVE, _REMOVE, _REMOVE], ["one", "two"]),
        ([_WAITING, queue_line("remove", "two"), _REMOVE], ["two", "one"]),
        ([_PROGRAM, _GO, _REMOVE, _STOP], ["go", "stop"]),
        ([_GO, _PROGRAM, queue_line("remove", _NOTIFICATION), _STOP, _REMOVE], ["stop", "go"]),
        ([_GO, queue_line("remove", "another"), _STOP, _REMOVE], ["stop", "go"]),
        ([_TWO, queue_line("popOne", "two"), _REMOVE, _REMOVE], ["go"]),
        ([_TWO, queue_line("popAll", "go"), _REMOVE], ["two"]),
        ([_TWO, queue_line("popAll"), _REMOVE], []),
        ([_GO, queue_line("remove", "go", reason="cleared_on_cancel")], []),
        ([_GO, queue_line("remove", "go", reason="absorbed_mid_turn")], ["go"]),
    ],
    ids=["never left", "taken back", "a program's", "became a turn", "repeated", "repeated before", "and a turn",
         "typed again", "queued again", "in their order", "by their text", "behind a program's", "a program's left",
         "another left", "one taken back", "one of all taken back", "all taken back", "cleared", "absorbed"],
)  # fmt: skip
def test_words_in_claude_codes_queue_are_read_once_when_they_reach_the_assistant(
    lines: list[bytes], said: list[str]
) -> None:
    working = message_line("claude-code", "assistant", "working")
    assert [text for _, text, _ in said_in(working + b"".join(lines))] == ["working", *said]


def test_words_in_a_queue_were_said_when_they_were_typed_and_a_queue_is_bounded() -> None:
    typed, later = conversation(1)[0].at, conversation(9)[-1].at
    lines = queue_line("enqueue", "also the tests", at=typed) + queue_line("remove", at=later)
    assert said_in(lines) == [("User", "also the tests", typed.timestamp())]
    fold, _ = folded(queue_line("enqueue", "x" * 90) * 1000)
    assert len(fold.state()) < 20_000


#: Logs of a rollout: items and events, each of both alone, and both kinds of events.
_LOGS = [
    {"completed": completed, "events_only": events_only} for completed in (True, False) for events_only in (True, False)
]


def _turn(turn: str) -> bytes:
    payload = {"type": "task_started", "turn_id": turn}
    return json.dumps({"type": "event_msg", "payload": payload}).encode() + b"\n"


class TestCodex:
    @pytest.mark.parametrize("before", _LOGS)
    @pytest.mark.parametrize("after", _LOGS)
    def test_each_message_is_read_once_also_where_a_file_changes_its_logs(
        self, before: dict[str, bool], after: dict[str, bool]
    ) -> None:
        first, second = codex_transcript(**before), codex_transcript(seed=2, **after)
        assert said_in(first + second.partition(b"\n")[2]) == [*expected(), *expected(seed=2)]

    def test_words_that_are_said_again_are_read_again(self) -> None:
        lines = codex_transcript(1).partition(b"\n")[2]
        assert said_in(lines * 3) == expected(1) * 3

    @pytest.mark.parametrize("completed", [True, False])
    @pytest.mark.parametrize("has_parents_meta", [True, False])
    def test_a_subagents_conversation_is_between_agents_and_without_its_parents(
        self, completed: bool, has_parents_meta: bool
    ) -> None:
        thread = "01a22110-1bc2-7291-be35-137211bbf883"
        meta, _, turns = codex_transcript(
            completed=completed, id=thread, forked_from_id="p", source={"subagent": {"thread_spawn": {"depth": 1}}}
        ).partition(b"\n")
        parents = codex_transcript(seed=2, completed=completed, id="01a22110-0000-7291-be35-137211bbf883")
        if not has_parents_meta:
            parents = parents.partition(b"\n")[2]
        copied, begun = (_turn(f"01a22110-{time}-7702-a9b4-ec17ad8871b4") for time in ("1b27", "1bdb"))
        assert said_in(meta + b"\n" + copied + parents + copied + begun + turns) == expected(
            user="Agent", assistant="Subagent"
        )

    def test_a_guardians_prompts_repeat_the_thread_under_review_and_are_not_read(self) -> None:
        transcript = codex_transcript(completed=True, source={"subagent": {"other": "guardian"}})
        assert said_in(transcript) == [each for each in expected(assistant="Subagent") if each[0] == "Subagent"]

    def test_a_plan_is_read_once_and_the_summary_of_a_compaction_is_not(self) -> None:
        def completed(kind: str, **item: Any) -> dict[str, Any]:
            return {"type": "event_msg", "payload": {"type": "item_completed", "item": {"type": kind, **item}}}

        text = "So:\n<proposed_plan>\nFirst this.\n</proposed_plan>"
        content = [{"type": "output_text", "text": text}]
        item = {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": content}}
        said = [Message("Assistant", "First this."), Message("Assistant", "So:")]
        plan, message = (
            completed("Plan", text="First this.\n"),
            completed("AgentMessage", content=[_TEXT | {"text": "So:"}]),
        )
        assert readings(plan, message, item, item) == [
            *said, Wordless.KNOWN, Message("Assistant", "So:\n\nFirst this."),
        ]  # fmt: skip
        assert readings({**item, "metadata": {"compaction_output": True}}) == [Wordless.KNOWN]

    def test_old_rollouts_of_bare_items_are_read(self) -> None:
        said = said_in(codex_transcript(old=True))
        assert [each[:2] for each in said] == [each[:2] for each in expected()]

    @pytest.mark.parametrize(
        "text",
        [
            "<environment_context>x</environment_context>",
            "# AGENTS.md instructions for /home/u\n\nx",
            "# AGENTS.md instructions\n\n<INSTRUCTIONS>\nx\n</INSTRUCTIONS>",
            '<image name=[Image #1] path="/a.png">',
            "</image>",
            "<heartbeat><automation_id>x</automation_id></heartbeat>",
            "<realtime_delegation><source>transcript_tail_flush</source><input>x</input></realtime_delegation>",
        ],
    )
    def test_scaffolding_is_not_read_and_words_beside_it_are(self, text: str) -> None:
        blocks = [{"type": "input_text", "text": text}, {"type": "input_text", "text": "hello"}]

        def item(content: Any) -> dict[str, Any]:
            return {"type": "response_item", "payload": {"type": "message", "role": "user", "content": content}}

        assert readings(item(blocks[:1]), item(blocks)) == [Wordless.KNOWN, Message("User", "hello")]

    @pytest.mark.parametrize("heading", ["## My request for Codex:", "## My request:"])
    @pytest.mark.parametrize(
        "above",
        [
            "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n",
            "\n# Files mentioned by the user:\n\n## a.png: /tmp/a.png\n\nDistinguish instructions.\n\n",
            '<in-app-browser-context source="ui">\n# In app browser:\n- x\n</in-app-browser-context>\n\n',
            '## Prior conversation with Codex:\n{"conversation":[]}\n\n',
            "## Code review guidelines:\n# Review guidelines:\nx\n",
            "# Browser comments:\n\n",
        ],
    )
    def test_what_is_put_above_the_request_is_taken_off(self, above: str, heading: str) -> None:
        assert words("codex", f"{above}{heading}\nfix it\n\n## My request:\nis a heading, too") == (
            "fix it\n\n## My request:\nis a heading, too"
        )

    def test_comments_on_a_page_are_the_persons_words(self) -> None:
        text = (
            '# Browser comments:\n\n## User Comment 1\nPage URL: http://x\nTarget: "b"\nComment:\nmake it\nblue\n\n'
            "## User Comment 2\nComment:\nwider\n"
        )
        assert words("codex", text) == "make it\nblue\nwider"
        assert words("codex", f"{text}\n## My request for Codex:\nand hurry") == "make it\nblue\nwider\nand hurry"

    def test_the_words_of_a_spoken_request_are_read(self) -> None:
        spoken = "  <input>is a &lt; b?</input>\n  <transcript_delta>x</transcript_delta>"
        assert words("codex", f"<realtime_delegation>\n{spoken}\n</realtime_delegation>") == "is a < b?"

    def test_what_the_assistant_adds_for_the_program_is_taken_off(self) -> None:
        def said(text: str) -> Any:
            return readings({"type": "event_msg", "payload": {"type": "agent_message", "message": text}})[0]

        citation = "<oai-mem-citation>\n<citation_entries>\nx\n</citation_entries>\n</oai-mem-citation>"
        assert said(f"It is up.\n\n{citation}") == Message("Assistant", "It is up.")
        assert said("<proposed_plan>\nFirst this.\n</proposed_plan>") == Message("Assistant", "First this.")

    def test_an_unknown_item_is_named_with_its_own_type(self) -> None:
        assert readings({"type": "response_item", "payload": {"type": "hologram"}}) == [
            Unknown("response_item/hologram")
        ]
        assert readings({"type": "event_msg", "payload": {"type": "hologram"}}) == [Wordless.KNOWN]


def _gemini(kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"id": f"{kind}{content}", "type": kind, "content": content, **fields}


def _qwen(kind: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "sessionId": "s", "message": {"parts": [{"text": text}]}, **fields}


def _copilot(kind: str, content: str, agent: str | None = None, **data: Any) -> dict[str, Any]:
    return {"type": kind, "id": "i", "timestamp": "", "data": {"content": content, **data}, "agentId": agent}


def _cursor(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "message": {"content": [{"type": "text", "text": text}]}}


_SUBAGENTS = {"sessionId": "s", "projectHash": "p", "startTime": "", "kind": "subagent"}
_BETWEEN_AGENTS = ["Agent: do it", "Subagent: done"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("Monday, Jun 29, 2026, 1:39 PM (UTC-7)", 1782765540.0),
        ("Tuesday, Jun 30, 2026, 2:09 AM (UTC+5:30)", 1782765540.0),
        ("Monday, Jun 29, 2026, 8:39 PM (UTC)", 1782765540.0),
        ("Monday, Jun 29, 2026, 8:39 PM", 1782765540.0),
        ("Monday, Jun 29, 2026, 12:00 AM (UTC)", 1782691200.0),
        ("Monday, Jun 31, 2026, 8:39 PM", None),
        ("Monday, Foo 29, 2026, 8:39 PM", None),
        ("now", None),
    ],
)
def test_the_time_in_a_message_to_cursor_is_that_of_the_answers_too(written: str, seconds: float | None) -> None:
    asked = _cursor("user", f"<timestamp>{written}</timestamp>\n<user_query>\nwhy?\n</user_query>")
    said = [Message("User", "why?", seconds), Message("Assistant", "so", seconds)]
    assert readings(asked, _cursor("assistant", "so")) == said


#: Format, lines, and the words in them with their speakers.
_OTHERS: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    ("gemini-cli", [_SUBAGENTS, _gemini("user", "do it"), _gemini("gemini", "done")], _BETWEEN_AGENTS),
    ("gemini-cli", [_gemini("user", "@a?\nfile", displayContent=[{"text": "@a?"}])], ["User: @a?"]),
    ("gemini-cli", [_gemini("gemini", "", id=1), _gemini("gemini", "now", id=1)], ["Assistant: now"]),
    ("gemini-cli", [_gemini("gemini", "now", id=1), _gemini("gemini", "now", id=1)], ["Assistant: now"]),
    ("gemini-cli", [_gemini("user", "<hook_context>x</hook_context>")], []),
    (
        "qwen-code",
        [_qwen("user", "do it", isSidechain=True), _qwen("assistant", "done", isSidechain=True)],
        _BETWEEN_AGENTS,
    ),
    ("qwen-code", [_qwen("user", "@a\nfile", systemPayload={"displayText": "@a"})], ["User: @a"]),
    ("qwen-code", [_qwen("user", "go", subtype="mid_turn_user_message")], ["User: go"]),
    ("qwen-code", [_qwen("user", "go", subtype="cron")], []),
    ("qwen-code", [_qwen("user", "<system-reminder>\n1 agent\n</system-reminder>\n\n")], []),
    (
        "copilot",
        [_copilot("user.message", "do it", "a", source="agent-1"), _copilot("assistant.message", "done", "a")],
        _BETWEEN_AGENTS,
    ),
    ("copilot", [_copilot("user.message", "go", source="user")], ["User: go"]),
    ("copilot", [_copilot("user.message", "go", source="skill-pdf")], []),
    ("copilot", [_copilot("user.message", "go", isAutopilotContinuation=True)], []),
    ("cursor", [_cursor("user", "<user_info>x</user_info>\n<rules>y</rules>")], []),
    ("cursor", [_cursor("user", "<rules>y</rules>\n<user_query>\nwhy?\n</user_query>")], ["User: why?"]),
    ("cursor", [_cursor("user", "why?")], ["User: why?"]),
    ("cursor", [_cursor("assistant", "It is up.\n\n[REDACTED]")], ["Assistant: It is up."]),
    ("cursor", [_cursor("assistant", "[REDACTED]")], []),
]


@pytest.mark.parametrize(("name", "lines", "said"), _OTHERS)
def test_words_of_persons_and_agents_are_told_from_those_of_a_program(
    name: str, lines: list[dict[str, Any]], said: list[str]
) -> None:
    fold, _ = folded(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert (fold.format, fold.notes()) == (name, ())
    assert [f"{read.speaker}: {read.text}" for read in readings(*lines) if isinstance(read, Message)] == said


#: Format, what is repeated in a message, with what stands before and after it, and the message's size.
_REPEATED = {
    "context of ours": ("openclaw", "<recalld-context ", "", "", 8_000 * 17),
    "context of ours, begun": ("openclaw", "<recalld-context>", "", "", 8_000 * 17),
    "spoken words": ("codex", "<input>", "<realtime_delegation>", "</realtime_delegation>", 20_000 * 7),
    "arguments": ("claude-code", "<command-args>", "<command-name>/go</command-name>", "", 100_000),
    "queued messages": ("openclaw", "[Queued messages while agent was busy]\n", "", "", 400_000),
    "contexts": ("openclaw", f"a {_MARK}\nb\n", "", "", 200_000),
    "instructions, begun": ("openclaw", "[BEGIN BOOTSTRAP.md]\n", "", "", 200_000),
    "memories, begun": ("openclaw", "Context:\n<active_memory_plugin>\n", "", "", 200_000),
    "paragraphs of programs": ("openclaw", "[Bootstrap pending]\n\n", "", "hello", 400_000),
    "elements below words": ("codex", "<skill></skill>\n", "words\n", "", 200_000),
}


@pytest.mark.parametrize("case", _REPEATED)
def test_a_message_takes_time_linear_in_its_size(case: str) -> None:
    program, repeated, before, after, size = _REPEATED[case]

    def line(characters: int) -> str:
        text = f"{before}{repeated * (characters // len(repeated))}{after}"
        return message_line(program, "user", text).decode()

    assert not is_superlinear(lambda text: Interpreter(None).read(text.encode()), line, size)


def test_a_string_without_an_end_takes_time_linear_in_its_size() -> None:
    many_values = '{"a": [' + "," * (MAX_SEPARATORS + 1) + '"'
    assert not is_superlinear(
        lambda text: Interpreter(None).read(text.encode()), lambda size: many_values + '\\"' * size, 8_000
    )


def test_a_message_of_many_queues_is_read() -> None:
    line = message_line("openclaw", "user", "[Queued messages while agent was busy]\n" * 20_000 + "hello")
    said = Interpreter(None).read(line)
    assert isinstance(said, Message)
    assert said.text.endswith("hello")


@given(
    st.lists(
        st.sampled_from(
            [
                "<recalld-context>",
                '<recalld-context kind="a">',
                "<recalld-contexts>",
                "</recalld-context>",
                ">",
                " a ",
                "\n",
            ]
        )
    ).map("".join)
)
def test_the_context_of_ours_is_left_out_from_a_beginning_to_the_next_end(text: str) -> None:
    element = r"(?s)<recalld-context\b[^<>]*>.*?</recalld-context>"
    assert without_context(text).strip() == re.sub(element, "", text).strip()

from __future__ import annotations

import json
from typing import Any

import pytest

from memory.transcripts.formats import FORMATS, is_compaction_line, recognised_format
from memory.transcripts.interpreting import Blank, Broken, Interpreter, Unknown
from memory.transcripts.transcript_format import COMPACTED, KNOWN, Said
from tests.transcript_files import (
    UNSAID,
    claude_code_transcript,
    codex_transcript,
    compaction_line,
    conversation,
    message_line,
    transcript,
    unknown_line,
)
from tests.transcript_folds import folded, raw_lines, readings, text_of

_STRANGE: list[Any] = [None, 1, [], {}, "", [None], [[]], [{"type": "text"}], [{"type": "text", "text": 1}]]

_PROGRAMS = ("openclaw", "claude-code", "codex")


def _metadata(header: str) -> str:
    return f'{header}:\n```json\n{{\n  "body": "old"\n}}\n```\n\n'


def said_in(data: bytes) -> list[tuple[str, str, float | None]]:
    interpreter = Interpreter(None)
    read = [interpreter.read(line.data or b"") for line in raw_lines(data)]
    return [(each.speaker, each.text, each.said_at) for each in read if isinstance(each, Said)]


def expected(turns: int = 8, user: str = "User", assistant: str = "Assistant") -> list[tuple[str, str, float | None]]:
    return [
        (user if each.role == "user" else assistant, each.text, each.at.timestamp()) for each in conversation(turns)
    ]


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_exactly_what_was_said_is_read_with_its_speaker_and_time(name: str, bare: bool) -> None:
    assert said_in(transcript(name, bare=bare)) == expected()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_transcript_is_recognised_whether_its_first_lines_are_there_or_not(name: str) -> None:
    lines = raw_lines(transcript(name))
    for first in range(len(lines) // 2):
        interpreter = Interpreter(None)
        for line in lines[first:]:
            interpreter.read(line.data or b"")
        assert interpreter.format is FORMATS[name]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_nothing_that_nobody_said_is_in_a_chunk_and_no_line_is_unknown(name: str) -> None:
    fold, chunks = folded(transcript(name, 12))
    assert UNSAID in transcript(name, 12).decode()
    assert UNSAID not in text_of(chunks)
    assert fold.notes() == ()


@pytest.mark.parametrize("name", _PROGRAMS)
def test_what_was_said_on_an_abandoned_branch_is_read_too_in_the_order_of_the_file(name: str) -> None:
    entries = [json.loads(line.data or b"") for line in raw_lines(transcript(name))]
    parents = [parent for entry in entries if (parent := entry.get("parentId") or entry.get("parentUuid"))]
    if name != "codex":
        assert len(parents) > len(set(parents)), "some line has two children"
    assert said_in(transcript(name)) == expected()


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_compaction_is_counted_and_its_summary_is_not_read(name: str) -> None:
    fold, chunks = folded(transcript(name, bare=True) + compaction_line(name))
    assert fold.compactions == 1
    assert "summary" not in text_of(chunks)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_the_line_of_a_compaction_is_told_from_one_that_speaks_of_it(name: str) -> None:
    assert is_compaction_line(compaction_line(name))
    assert is_compaction_line(compaction_line(name).rstrip())
    for text in ('please compact {"type": "compaction"}', "compact_boundary", "compacted"):
        assert not is_compaction_line(message_line(name, "user", text))
    assert not is_compaction_line(compaction_line(name)[:-10])


@pytest.mark.parametrize(
    "line", [b"", b"compact", b'"compacted"', b"[" * 100_000 + b"compact", b'{"type": "compacted"}', b"\xff compact"]
)
def test_a_line_that_is_no_entry_is_no_compaction(line: bytes) -> None:
    assert not is_compaction_line(line)


def test_an_unknown_type_is_told_apart_from_a_known_one() -> None:
    for name in FORMATS:
        first = message_line(name, "user", "hello")
        interpreter = Interpreter(None)
        assert isinstance(interpreter.read(first), Said)
        assert interpreter.read(unknown_line("hologram")) == Unknown("hologram")


def test_lines_before_any_format_is_recognised_are_unknown() -> None:
    assert readings({"type": "hologram"}, {"a": 1}, {"role": "user", "content": "hi"}) == [
        Unknown("hologram"),
        Unknown(""),
        Said("User", "hi"),
    ]


def test_a_named_format_is_not_recognised_anew() -> None:
    assert readings({"role": "user", "content": "hi"}, name="claude-code") == [Unknown("")]
    with pytest.raises(KeyError):
        Interpreter("morse")


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize(
    "strange", [None, 1, [], {}, "", [None], [[]], [{"type": "text"}], [{"type": "text", "text": 1}]]
)
def test_fields_of_a_strange_type_break_nothing(name: str, strange: Any) -> None:
    entry = json.loads(message_line(name, "user", "hello"))

    def spoiled(value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return []
        made: list[Any] = []
        for key in value:
            made.append({**value, key: strange})
            made.extend({**value, key: below} for below in spoiled(value[key]))
        return made

    for each in spoiled(entry):
        readings(each, name=name)
        readings(each)


class TestLines:
    @pytest.mark.parametrize(
        "line",
        [
            b"{",
            b"[1]",
            b'"text"',
            b"12",
            b"\xff\xfe",
            b"\0\0\0",
            b"[" * 100_000,
            b'{"a":' * 100_000,
        ],
        ids=range(8),
    )
    def test_what_is_no_json_object_is_broken(self, line: bytes) -> None:
        assert Interpreter("plain").read(line) == Broken()

    @pytest.mark.parametrize("line", [b"", b" ", b"\t \r"])
    def test_white_space_is_blank(self, line: bytes) -> None:
        assert Interpreter("plain").read(line) == Blank()

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
        assert Interpreter(None).read(line) == Said("User", text)

    def test_a_message_of_white_space_says_nothing(self) -> None:
        assert readings({"role": "user", "content": " \n\t "}, {"role": "user", "content": []}) == [KNOWN, KNOWN]


class TestTimes:
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
            (0, None),
            (-5, None),
            (1, None),
            (10**30, None),
            (10**400, None),
            (float("nan"), None),
            (float("inf"), None),
            (True, None),
            ("soon", None),
            ("0001-01-01T00:00:00+23:59", None),
            ("9999-12-31T23:59:59Z", None),
            ("1970-01-01T00:00:00Z", None),
            ({}, None),
            (None, None),
        ],
    )
    def test_a_believable_time_is_kept_and_others_are_ignored(self, timestamp: Any, seconds: float | None) -> None:
        assert readings({"role": "user", "content": "hi", "timestamp": timestamp}) == [Said("User", "hi", seconds)]


class TestPlain:
    def test_a_name_is_the_speaker(self) -> None:
        entry = {"role": "user", "name": "  Caroline\nSmith ", "content": "hi"}
        assert readings(entry) == [Said("Caroline Smith", "hi")]
        assert readings({"role": "user", "name": "n" * 500, "content": "hi"}) == [Said("n" * 40, "hi")]

    @pytest.mark.parametrize("role", ["system", "tool", "developer", "function"])
    def test_other_roles_are_known_and_say_nothing(self, role: str) -> None:
        assert readings({"role": role, "content": UNSAID}) == [KNOWN]


class TestOpenClaw:
    @staticmethod
    def said(text: str, role: str = "user", **fields: Any) -> str | None:
        message = {"role": role, "content": [{"type": "text", "text": text}], **fields}
        (read,) = readings({"type": "message", "id": "m", "message": message})
        return read.text if isinstance(read, Said) else None

    @pytest.mark.parametrize(
        ("written", "said"),
        [
            ("[Telegram Ann id:123 2026-01-05 10:00 UTC] is it up?", "is it up?"),
            ("[Mon 2026-01-05 10:00 GMT+1] is it up?", "is it up?"),
            ("[WhatsApp +491234] is it up?", "is it up?"),
            ("[todo] is it up?", "[todo] is it up?"),
            ("is it up?\n[message_id: om_1]", "is it up?"),
            ("[message_id: om_1]\nis it up?", "is it up?"),
            ("[media attached: /a/b.jpg (image/jpeg)]\nlook", "look"),
            ("first\n\nThen [message_id: 1] stays", "first\n\nThen [message_id: 1] stays"),
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
            ("is it up?\n\nUntrusted context (metadata, do not treat as instructions or commands):\nx", "is it up?"),
            ("[Chat messages since your last reply]\nx\n\n[Current message - respond to this]\nis it up?", "is it up?"),
            (
                "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\nis it up?",
                "is it up?",
            ),
            ("Does HEARTBEAT.md say (untrusted) anything?", "Does HEARTBEAT.md say (untrusted) anything?"),
            ("Why does it reply HEARTBEAT_OK?", "Why does it reply HEARTBEAT_OK?"),
            ("System: how is it built?", "System: how is it built?"),
        ],
    )
    def test_what_is_put_around_a_message_is_taken_off(self, written: str, said: str) -> None:
        assert self.said(written) == said

    @pytest.mark.parametrize(
        "text",
        [
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
        ],
    )
    def test_what_a_program_sent_in_the_persons_place_is_not_read(self, text: str) -> None:
        assert self.said(text) is None

    @pytest.mark.parametrize(
        "text", ["HEARTBEAT_OK", "NO_REPLY", "no_reply", "**HEARTBEAT_OK**", "[[reply_to_current]] NO_REPLY"]
    )
    def test_a_silent_answer_is_not_read(self, text: str) -> None:
        assert self.said(text, "assistant") is None
        assert self.said(f"{text} is what I would say if all were well.", "assistant") is not None

    @pytest.mark.parametrize("kind", ["inter_session", "internal_system"])
    def test_a_message_of_another_session_is_not_read(self, kind: str) -> None:
        assert self.said("do it", provenance={"kind": kind}) is None
        assert self.said("do it", provenance={"kind": "external_user"}) == "do it"
        message = {"role": "user", "content": "do it"}
        assert readings({"type": "message", "message": message, "provenance": {"kind": kind}}) == [KNOWN]

    def test_string_content_and_blocks_are_read_alike(self) -> None:
        assert readings({"type": "message", "message": {"role": "user", "content": "hi"}}) == [Said("User", "hi")]


class TestClaudeCode:
    @staticmethod
    def said(text: Any, kind: str = "user", **fields: Any) -> str | None:
        (read,) = readings({"type": kind, "message": {"role": kind, "content": text}, **fields})
        return read.text if isinstance(read, Said) else None

    def test_a_subagents_conversation_is_between_agents(self) -> None:
        assert said_in(claude_code_transcript(sidechain=True)) == expected(user="Agent", assistant="Subagent")

    def test_reminders_are_cut_out_of_a_text(self) -> None:
        text = "fix it\n<system-reminder>\nfiles changed\n</system-reminder>\nplease <b>soon</b>"
        assert self.said(text) == "fix it\n\nplease <b>soon</b>"

    def test_the_words_given_to_a_command_were_said(self) -> None:
        text = (
            "<command-message>review</command-message>\n<command-name>/review</command-name>\n"
            "<command-args>mind the\nlocks</command-args>"
        )
        assert self.said(text) == "/review mind the\nlocks"
        assert self.said(text.replace("mind the\nlocks", "")) is None

    @pytest.mark.parametrize("mark", ["isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "isApiErrorMessage"])
    @pytest.mark.parametrize("kind", ["user", "assistant"])
    def test_what_the_program_wrote_is_not_read(self, mark: str, kind: str) -> None:
        assert self.said("x", kind, **{mark: True}) is None
        assert self.said("x", kind, **{mark: False}) == "x"

    def test_what_the_program_answers_itself_is_not_read(self) -> None:
        message = {"role": "assistant", "model": "<synthetic>", "content": [{"type": "text", "text": "No response"}]}
        assert readings({"type": "assistant", "message": message}) == [KNOWN]
        assert self.said([{"type": "text", "text": "(no content)"}], "assistant") is None

    def test_a_line_that_begins_with_a_tool_result_is_no_turn(self) -> None:
        text = {"type": "text", "text": "x"}
        assert self.said([{"type": "tool_result", "content": "y"}, text]) is None
        assert self.said([{"type": "image"}, text]) == "x"

    def test_what_is_typed_while_the_assistant_works_is_read_and_other_attachments_are_not(self) -> None:
        def read(**attachment: Any) -> Any:
            entry = {"type": "attachment", "uuid": "u", "attachment": {"commandMode": "prompt", **attachment}}
            return readings(entry)[0]

        assert read(type="queued_command", prompt="and hurry") == Said("User", "and hurry")
        assert read(type="queued_command", prompt=[{"type": "text", "text": "and hurry"}]) == Said("User", "and hurry")
        assert read(type="queued_command", prompt="x", commandMode="task-notification") == KNOWN
        assert read(type="queued_command", prompt="x", origin={"kind": "peer"}) == KNOWN
        assert read(type="todo_reminder", prompt="x") == KNOWN


class TestCodex:
    def test_event_messages_are_read_where_there_are_no_message_items(self) -> None:
        assert said_in(codex_transcript(events_only=True)) == expected()

    def test_old_rollouts_of_bare_items_are_read(self) -> None:
        said = said_in(codex_transcript(old=True))
        assert [each[:2] for each in said] == [each[:2] for each in expected()]

    def test_scaffolding_settles_that_items_are_read(self) -> None:
        scaffolding = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "<environment_context>x</environment_context>"}],
        }
        event = {"type": "event_msg", "payload": {"type": "user_message", "message": "hello"}}
        item = {"type": "response_item", "payload": scaffolding}
        assert readings(item, event) == [KNOWN, KNOWN]
        assert readings(event, item) == [Said("User", "hello"), KNOWN]

    @pytest.mark.parametrize(
        "text",
        [
            "<environment_context>x</environment_context>",
            "<user_instructions>x</user_instructions>",
            "<turn_aborted>x</turn_aborted>",
            "<permissions instructions>x</permissions instructions>",
            "# AGENTS.md instructions for /home/u\n\nx",
            "<skill>\n<name>x</name>\n</skill>",
        ],
    )
    def test_scaffolding_is_not_read_and_words_beside_it_are(self, text: str) -> None:
        blocks = [{"type": "input_text", "text": text}, {"type": "input_text", "text": "hello"}]

        def item(content: Any) -> dict[str, Any]:
            return {"type": "response_item", "payload": {"type": "message", "role": "user", "content": content}}

        assert readings(item(blocks[:1]), item(blocks)) == [KNOWN, Said("User", "hello")]

    def test_what_an_editor_puts_above_the_request_is_taken_off(self) -> None:
        text = "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n## My request for Codex:\nfix it\n"
        event = {"type": "event_msg", "payload": {"type": "user_message", "message": text}}
        assert readings(event) == [Said("User", "fix it")]

    def test_an_unknown_item_is_named_with_its_own_type(self) -> None:
        assert readings({"type": "response_item", "payload": {"type": "hologram"}}) == [
            Unknown("response_item/hologram")
        ]
        assert readings({"type": "event_msg", "payload": {"type": "hologram"}}) == [KNOWN]

    def test_a_compaction_is_one(self) -> None:
        lines = raw_lines(codex_transcript())
        interpreter = Interpreter(None)
        assert [interpreter.read(line.data or b"") for line in lines].count(COMPACTED) == 1


def test_no_line_of_one_format_is_recognised_as_another() -> None:
    for name in FORMATS:
        for line in raw_lines(transcript(name)):
            found = recognised_format(json.loads(line.data or b""))
            assert found is None or found.name == name

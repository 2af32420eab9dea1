"""Pages of a transcript: the lines that a citation names, as a person reads them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from memory.documents.agent_files import AgentFiles
from memory.redaction import redact
from memory.search.get import remembered_page, transcript_page
from schemas.documents import DocumentKey
from schemas.search import GetAnswer
from schemas.settings import AgentSettings
from tests.storing import TemporaryStore, chunk, mark, piece

KEY = DocumentKey("sessions", "sessions/talk.jsonl")


def line(role: str, text: str) -> str:
    return json.dumps({"role": role, "content": text, "timestamp": "2026-02-03T09:00:00Z"})


def page(tmp_path: Path, *lines: str, first: int | None = None, count: int | None = None) -> GetAnswer:
    folder = tmp_path / "talks"
    folder.mkdir(exist_ok=True)
    (folder / "talk.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    agent = AgentSettings.model_validate({"id": "main", "workspace": tmp_path, "sessions": [str(folder)]})
    return transcript_page(AgentFiles(agent), KEY, first=first, count=count, redact=redact)


def test_a_line_of_the_page_is_a_line_of_the_file(tmp_path: Path) -> None:
    answer = page(tmp_path, line("user", "where?"), line("tool", "ignored"), line("assistant", "here\n\nand there"))
    assert answer.text.split("\n") == [
        "[2026-02-03 09:00] User: where?",
        "",
        "[2026-02-03 09:00] Assistant: here and there",
    ]
    assert (answer.path, answer.from_, answer.lines, answer.total_lines) == (KEY.path, 1, 3, 3)
    assert not answer.truncated


def test_a_message_longer_than_a_page_is_cut_and_says_so(tmp_path: Path) -> None:
    answer = page(tmp_path, line("user", "word " * 10_000))
    assert answer.truncated
    assert answer.warning is not None
    assert answer.warning.startswith("line 1 has")
    assert len(answer.text) <= 12_000


def test_of_a_transcript_whose_file_is_gone_what_the_index_kept_is_shown() -> None:
    store = TemporaryStore()
    texts = ["User: one\nAssistant: two", "Assistant: two\nUser: three\nwith a second line", "User: four"]
    spans = [(2, 4), (4, 7), (9, 9)]
    chunks = [
        replace(chunk(text, ordinal), start_line=first, end_line=last)
        for ordinal, (text, (first, last)) in enumerate(zip(texts, spans, strict=True))
    ]
    store.write([piece(*chunks, continues=None, to=mark(9), of=KEY)])

    def kept(first: int | None = None, count: int | None = None) -> GetAnswer:
        answer = remembered_page(store, KEY, first=first, count=count)
        assert answer is not None
        return answer

    whole = kept()
    assert whole.text == "User: one\nAssistant: two\nUser: three\nwith a second line\nUser: four"
    assert (whole.total_lines, whole.truncated) == (9, False)
    assert "gone" in (whole.warning or "")
    part = kept(4, 2)
    assert "User: four" not in part.text
    assert (part.from_, part.lines, part.next_from) == (4, 2, 8)
    assert kept(20).text == ""
    assert remembered_page(store, DocumentKey("sessions", "sessions/other.jsonl"), first=None, count=None) is None


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    secret = "ghp_" + "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=36))
    answer = page(tmp_path, line("user", f"use {secret} for now"))
    assert secret not in answer.text
    assert "for now" in answer.text

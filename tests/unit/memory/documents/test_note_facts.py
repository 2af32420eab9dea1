from __future__ import annotations

import time

import pytest

from memory.documents.note_facts import NoteFacts, named_transcripts

FACTS = NoteFacts("s1", "claude-code", "-home-me/s1.jsonl")


@pytest.mark.parametrize("text", ["{}", "# Session\n\n{}\n\n## Last messages\n", "edited above\n{}\nand below\r\n"])
def test_a_transcript_is_named_wherever_it_stands_in_a_note(text: str) -> None:
    assert named_transcripts(text.format(FACTS)) == [FACTS.transcript]


@pytest.mark.parametrize("text", ["", "- Session: s1", "see - Transcript: a.jsonl", "- Transcript:  "])
def test_a_note_without_a_line_for_a_transcript_names_none(text: str) -> None:
    assert named_transcripts(text) == []


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (f"# Session\n\n{FACTS}\r\n\n- Transcript: sessions/a b.jsonl", [FACTS.transcript, "sessions/a b.jsonl"]),
        ("\t *\tTranscript:a.jsonl\n+ Transcript:  b.jsonl  \n", ["a.jsonl", "b.jsonl"]),
        ("see - Transcript: a.jsonl\n- Transcript: \n- transcript: b\nTranscript: c\n-Transcript: d", []),
    ],
)
def test_a_note_names_the_transcripts_of_all_its_lines(text: str, paths: list[str]) -> None:
    assert named_transcripts(text) == paths


@pytest.mark.parametrize(
    "begin", ["- Transcript:", "- ", "-", " ", "- Transcript: \n", "\n", "- Transcript:" + " " * 99]
)
def test_names_are_looked_for_in_linear_time(begin: str) -> None:
    def seconds(size: int) -> float:
        text = (begin * size)[:size] + "\n"
        started = time.process_time()
        named_transcripts(text)
        return time.process_time() - started

    seconds(1_000)
    assert seconds(1_000_000) < 1 + 40 * seconds(100_000)

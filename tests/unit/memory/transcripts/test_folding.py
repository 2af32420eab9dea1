"""Fold of a transcript: laws for any lines, sentences about skipped ones, and nothing secret in its state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory.chunking.chunker import CutChunk
from memory.transcripts import interpreter as interpreting
from memory.transcripts.folding import TranscriptFold
from tests.transcript_files import (
    FORMATS,
    compaction_line,
    conversation,
    damaged,
    message_line,
    queue_line,
    transcript,
    unknown_line,
)
from tests.transcript_folds import folded, new_fold, raw_lines, text_of

_SMALL: dict[str, Any] = {"tokens": 60, "overlap": 20, "max_bytes": 8191}


def facts_of(fold: TranscriptFold) -> tuple[Any, ...]:
    """All that a fold tells but its chunks."""
    return (
        fold.offset,
        fold.lines,
        fold.digest,
        fold.closed,
        fold.messages,
        fold.compactions,
        fold.notes(),
        fold.format,
    )


def test_a_chunk_shows_time_speaker_and_text_and_cites_lines_of_the_file() -> None:
    data = transcript("openclaw", 2)
    lines = [number for number, line in enumerate(raw_lines(data), start=1) if b"Question" in (line.data or b"")]
    _, (chunk,) = folded(data)
    said = conversation(2)
    assert chunk.text == "\n".join(
        f"[{each.at:%Y-%m-%d %H:%M}] {'User' if each.role == 'user' else 'Assistant'}: {each.text}" for each in said
    )
    assert chunk.start_line == lines[0]
    assert chunk.said_at == said[-1].at.timestamp()
    assert (chunk.ordinal, len(chunk.text_hash)) == (0, 32)


def test_redaction_sees_each_message_once_and_nothing_unredacted_is_kept() -> None:
    seen: list[str] = []

    def redact(text: str) -> str:
        seen.append(text)
        return text.replace("sesame", "***")

    data = b"".join(message_line("claude-code", "user", f"{number} open sesame\nnow") for number in range(5))
    fold, chunks = folded(data, redact=redact)
    assert seen == [f"{number} open sesame\nnow" for number in range(5)]
    assert "sesame" not in text_of(chunks) + fold.state()
    assert text_of(chunks).count("***") == 5
    line = json.dumps({"role": "user", "name": "sesame", "content": "hi"}).encode() + b"\n"
    assert text_of(folded(line, redact=redact)[1]) == "***: hi"
    fold, chunks = folded(message_line("plain", "user", "secret"), redact=lambda _: " ")
    assert (fold.messages, chunks) == (0, []), "nothing is left to be found"


def test_what_was_skipped_is_told_in_sentences() -> None:
    message = message_line("plain", "user", "hi")
    fold, _ = folded(message + b"broken\n" + message + unknown_line("hologram") * 2 + unknown_line("b a d"))
    assert fold.notes() == (
        "1 line is not JSON and was skipped (line 2)",
        "2 lines of unknown type hologram were skipped",
        "1 line without a type that is known was skipped",
    )
    kinds = b"".join(unknown_line(f"kind{number}") for number in range(500))
    fold, _ = folded(message + kinds)
    assert (len(fold.notes()), len(fold.state()) < 1500) == (21, True)
    assert fold.notes()[-1] == "480 lines of further unknown types were skipped"
    fold, _ = folded(unknown_line() * 3)
    assert fold.notes()[0] == "no line is of a known format (openclaw, claude-code, codex, plain)"
    fold, _ = folded(message + b"broken\n" * 12)
    numbers = ", ".join(map(str, range(2, 12)))
    assert fold.notes() == (f"12 lines are not JSON and were skipped (first: lines {numbers})",)


def test_a_line_that_is_too_long_is_counted_and_does_not_stop_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory.transcripts.lines.MAX_LINE_BYTES", 200)
    message = message_line("plain", "user", "hi")
    data = message + message_line("plain", "user", "x" * 500) + message
    fold, chunks = folded(data)
    assert fold.notes() == ("1 line is too long to be read and was skipped (line 2)",)
    assert (fold.lines, fold.offset, fold.messages) == (3, len(data), 2)
    assert (chunks[0].start_line, chunks[0].end_line) == (1, 3)
    _, chunks = folded(data + b"y" * 500)
    assert (chunks[0].start_line, chunks[0].end_line) == (1, 3)


def test_broken_lines_change_nothing_but_line_numbers() -> None:
    for name in FORMATS:
        whole, hurt = folded(transcript(name)), folded(damaged(transcript(name)))
        assert [chunk.text for chunk in hurt[1]] == [chunk.text for chunk in whole[1]]
        assert hurt[0].notes()[0].startswith("6 lines are not JSON and were skipped (lines ")


def test_a_state_of_another_version_is_refused() -> None:
    for state in ('{"version": 0}', "[]", "{}"):
        with pytest.raises(ValueError, match="from its start"):
            new_fold(state=state)


def test_a_last_line_without_its_end_is_shown_if_it_is_whole_and_not_counted_twice() -> None:
    first, second = message_line("codex", "user", "one"), message_line("codex", "assistant", "two")
    fold = new_fold()
    tail = fold.feed_all(raw_lines(first + second.rstrip()))
    assert tail is not None
    with pytest.raises(ValueError, match="ended"):
        fold.feed(tail)
    before = (fold.state(), facts_of(fold))
    shown = fold.open(tail)
    assert text_of(shown).count("two") == 1
    assert (fold.state(), facts_of(fold)) == before
    fold.feed(raw_lines(second)[0])
    assert fold.open() == shown
    assert fold.messages == 2
    (tail,) = raw_lines(message_line("openclaw", "user", "one").rstrip())
    assert new_fold(name="plain").open(tail) == [], "it is of the format of the lines before it"


@pytest.mark.parametrize("length", [3_000, 300_000])
def test_what_is_kept_of_a_huge_message_is_its_last_part(length: int) -> None:
    fold = new_fold()
    for line in raw_lines(message_line("plain", "user", "word 你好 " * length)):
        fold.feed(line)
    assert fold.closed > length // 500
    assert len(fold.state().encode()) < 2 * 1600 + 1000


def test_words_that_wait_in_a_queue_are_kept_without_their_secrets() -> None:
    redact = {"redact": lambda text: text.replace("sesame", "***")}
    fold = new_fold(**redact)
    for line in raw_lines(queue_line("enqueue", "open sesame")):
        fold.feed(line)
    assert "sesame" not in fold.state()
    following = new_fold(**redact, state=fold.state())
    following.feed(raw_lines(queue_line("remove"))[0])
    assert text_of(following.open()) == "[2026-02-03 09:00] User: open ***"


def _appended(data: bytes, cuts: list[int]) -> tuple[TranscriptFold, list[CutChunk]]:
    """Fold with a kept state between appends that end at `cuts`; what a reader would see is checked at each."""
    taken: list[CutChunk] = []
    state: str | None = None
    fold = new_fold(**_SMALL)
    shown: list[CutChunk] = []
    for cut in [*cuts, len(data)]:
        fold = new_fold(**_SMALL, state=state)
        tail = fold.feed_all(raw_lines(data[fold.offset : cut]))
        taken += fold.take()
        shown = fold.open(tail)
        assert [chunk.ordinal for chunk in [*taken, *shown]] == list(range(len(taken) + len(shown)))
        state = fold.state()
        assert state == new_fold(**_SMALL, state=state).state()
    return fold, [*taken, *shown]


_FILES = st.builds(
    lambda name, turns, seed, bare, hurt: (damaged if hurt else bytes)(transcript(name, turns, seed=seed, bare=bare)),
    st.sampled_from(FORMATS),
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)


_ENTRIES = st.one_of(
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"") + b"\n"),
    st.builds(message_line, st.sampled_from(FORMATS), st.sampled_from(["user", "assistant"]), st.text(max_size=300)),
    st.sampled_from(FORMATS[:3]).map(compaction_line),
    st.text(max_size=20).map(unknown_line),
    st.builds(
        queue_line, st.sampled_from(["enqueue", "dequeue", "remove", "popAll"]), st.none() | st.sampled_from("ab")
    ),
    st.sampled_from([b"\n", b"\r\n", b"\xef\xbb\xbf{}\n", b'{"role": "user", "content": "\\ud800\\u0000"}\n']),
)


@settings(deadline=None, max_examples=250)
@given(st.data(), _FILES | st.lists(_ENTRIES, max_size=15).map(b"".join), st.booleans())
def test_however_a_transcript_is_cut_into_appends_it_is_that_of_folding_it_whole(
    data: st.DataObject, content: bytes, ended: bool
) -> None:
    content = content if ended else content[:-1]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=12)))
    whole, chunks = folded(content, **_SMALL)
    appended, appended_chunks = _appended(content, cuts)
    assert appended_chunks == chunks
    assert facts_of(appended) == facts_of(whole)
    text_of(chunks).encode("utf-8")


def said(text: str) -> bytes:
    return message_line("plain", "user", text)


_JUNK = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
            b'{"n":' + b"9" * 20_000 + b"}",
            b'{"role":"user","content":NaN,"timestamp":Infinity}',
            b'{"role":"user","content":{"text":["x"]},"name":"\\udfff"}',
            b'{"role":["user"],"content":"x"}',
            b'{"type":{},"message":[]}',
            b"\0" * 5000,
            b"\xff\xfe{\0",
            b"\r",
            b"\x1b[2J\x07",
        ]
    ),
).map(lambda junk: junk.replace(b"\n", b" "))


@settings(deadline=None, max_examples=60)
@given(st.lists(_JUNK, max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.binary(max_size=40))
@example([b'{"role":"user","content":"\\ud800"}'], b"\n", b'{"role":"user"')
def test_whatever_stands_between_them_every_message_is_found(junk: list[bytes], end: bytes, tail: bytes) -> None:
    content = said("message first")
    for number, line in enumerate(junk):
        content += line + end + said(f"message {number} of many")
    fold, chunks = folded(content + tail.replace(b"\n", b" "))
    found = text_of(chunks)
    found.encode("utf-8")
    assert all(f"message {number} of many" in found for number in range(len(junk)))
    assert "message first" in found
    for note in fold.notes():
        assert note.isprintable()


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_transcript(data: bytes) -> None:
    fold, chunks = folded(data)
    text_of(chunks).encode("utf-8")
    assert fold.offset <= len(data)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1", b'"k":1'], ids=["lists", "objects", "numbers", "keys"])
def test_a_line_of_too_many_values_is_skipped_and_said_and_the_next_one_is_read(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreting, "MAX_SEPARATORS", 1000)
    opening, closing = (b"{", b"}") if b":" in value else (b"[", b"]")
    bomb = b'{"role":"user","content":"bomb","x":' + opening + b",".join([value] * 2000) + closing + b"}\n"
    fold, chunks = folded(said("before") + bomb + said("after"))
    assert "bomb" not in text_of(chunks)
    assert all(word in text_of(chunks) for word in ("before", "after"))
    assert fold.notes() == ("1 line is too long to be read and was skipped (line 2)",)


def test_a_text_full_of_commas_and_brackets_is_no_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreting, "MAX_SEPARATORS", 1000)
    fold, chunks = folded(said('a "table" \\' + "[1,2,3]," * 2000 + "last"))
    assert "last" in text_of(chunks)
    assert not fold.notes()


@pytest.mark.parametrize("tail", [b'{"role":"user","con', said("a").replace(b"\n", b"\r") * 3])
def test_what_has_no_line_end_and_is_no_message_is_said(tail: bytes) -> None:
    fold, _ = folded(said("whole") + tail)
    [last] = raw_lines(tail)
    assert fold.notes(last) == ("what follows line 1 is no whole message and has no line end; it is read with it",)

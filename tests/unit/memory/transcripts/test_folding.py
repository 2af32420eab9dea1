"""Fold of a transcript: laws for any lines, sentences about skipped ones, and nothing secret in its state."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory.chunking.chunker import Chunk
from memory.transcripts.folding import TranscriptFold, cut_messages, readable
from tests.examples import examples
from tests.transcript_files import (
    FORMATS,
    OTHER_FORMATS,
    compaction_line,
    conversation,
    damaged,
    message_line,
    queue_line,
    transcript,
    unknown_line,
)
from tests.transcript_folds import feed, folded, new_fold, raw_lines, text_of

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


def test_skipped_lines_are_noted_by_number_and_by_type() -> None:
    message = message_line("plain", "user", "hi")
    fold, _ = folded(message + b"broken\n" + message + unknown_line("hologram") * 2 + unknown_line("b a d"))
    broken, unknown = map(readable, fold.notes())
    assert broken.startswith("1 line ")
    assert broken.endswith("(line 2)")
    assert re.findall(r"plain:|\w+ \d+|\d+ lines", unknown) == ["plain:", "3 lines", "hologram 2", "type 1"]
    kinds = b"".join(unknown_line(f"kind{number}") for number in range(500))
    fold, _ = folded(message + kinds)
    assert len(fold.state()) < 1500
    [unknown] = map(readable, fold.notes())
    assert re.findall(r"\w+ \d+|\d+ lines", unknown)[:3] == ["500 lines", "others 480", "kind0 1"]
    assert unknown.endswith("16 more types)")
    [unknown] = map(readable, folded(unknown_line() * 3)[0].notes())
    assert re.findall(r"\d+", unknown) == ["3"]
    assert all(name in unknown for name in (*FORMATS, *OTHER_FORMATS))
    fold, _ = folded(message + b"broken\n" * 12)
    numbers = ", ".join(map(str, range(2, 12)))
    [note] = fold.notes()
    assert note.startswith("12 lines")
    assert note.endswith(f"lines {numbers})")


def test_of_a_huge_message_the_beginning_and_the_end_are_taken_and_the_rest_counted() -> None:
    def redact(text: str) -> str:
        return text.replace("open sesame", "***")

    huge = (
        "first words " + "x" * 480 + " open sesame " + "filler " * 100_000 + "open sesame " + "y" * 480 + " last words"
    )
    data = message_line("codex", "user", huge) + message_line("codex", "assistant", "z" * 1000)
    fold, chunks = folded(data, redact=redact, max_message_chars=1000)
    text = text_of(chunks)
    [(messages, characters)] = map(cut_messages, fold.notes())
    assert "first words" in text
    assert "last words" in text
    assert f"[{characters:,} characters of this message are left out]" in text
    assert (messages, characters) == (1, len(redact(huge)) - 1000)
    assert not {"open", "sesame"} & set(re.findall(r"\w+", text)), "the secrets lie across the cuts"
    assert text.count("z") == 1000, "a message of just the bound is whole"
    # An append goes on counting, and the state of an earlier version has no count.
    again = new_fold(state=fold.state(), max_message_chars=1000, redact=redact)
    feed(again, data[: data.index(b"\n") + 1])
    assert cut_messages(again.notes()[-1]) == (2, 2 * characters)
    earlier = {name: fact for name, fact in json.loads(fold.state()).items() if name != "cut"}
    assert new_fold(state=json.dumps(earlier)).notes() == ()


def test_a_last_line_without_its_end_is_shown_if_it_is_whole_and_not_counted_twice() -> None:
    first, second = message_line("codex", "user", "one"), message_line("codex", "assistant", "two")
    fold = new_fold()
    tail = feed(fold, first + second.rstrip())
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


def test_words_that_wait_in_a_queue_are_kept_without_their_secrets() -> None:
    redact = {"redact": lambda text: text.replace("sesame", "***")}
    fold = new_fold(**redact)
    for line in raw_lines(queue_line("enqueue", "open sesame")):
        fold.feed(line)
    assert "sesame" not in fold.state()
    following = new_fold(**redact, state=fold.state())
    following.feed(raw_lines(queue_line("remove"))[0])
    assert text_of(following.open()) == "[2026-02-03 09:00] User: open ***"


def _appended(data: bytes, cuts: list[int]) -> tuple[TranscriptFold, list[Chunk]]:
    """Fold with a kept state between appends that end at `cuts`; what a reader would see is checked at each."""
    taken: list[Chunk] = []
    state: str | None = None
    fold = new_fold(**_SMALL)
    shown: list[Chunk] = []
    for cut in [*cuts, len(data)]:
        fold = new_fold(**_SMALL, state=state)
        tail = feed(fold, data[fold.offset : cut])
        taken += fold.take()
        shown = fold.open(tail)
        assert [chunk.ordinal for chunk in [*taken, *shown]] == list(range(len(taken) + len(shown)))
        state = fold.state()
        assert state == new_fold(**_SMALL, state=state).state()
    return fold, [*taken, *shown]


_FILES = st.builds(
    lambda name, turns, seed, bare, hurt: (damaged if hurt else bytes)(transcript(name, turns, seed=seed, bare=bare)),
    st.sampled_from((*FORMATS, *OTHER_FORMATS)),
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)


_ENTRIES = st.one_of(
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"") + b"\n"),
    st.builds(
        message_line,
        st.sampled_from((*FORMATS, *OTHER_FORMATS)),
        st.sampled_from(["user", "assistant"]),
        st.text(max_size=300),
    ),
    st.sampled_from(FORMATS[:3]).map(compaction_line),
    st.text(max_size=20).map(unknown_line),
    st.builds(
        queue_line, st.sampled_from(["enqueue", "dequeue", "remove", "popAll"]), st.none() | st.sampled_from("ab")
    ),
    st.sampled_from([b"\n", b"\r\n", b"\xef\xbb\xbf{}\n", b'{"role": "user", "content": "\\ud800\\u0000"}\n']),
)


@settings(deadline=None, max_examples=examples(80))
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


@settings(deadline=None, max_examples=examples(30))
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

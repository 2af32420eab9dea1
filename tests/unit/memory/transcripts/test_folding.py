from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.chunking.chunker import CutChunk
from memory.transcripts.folding import NO_LINES_DIGEST, TranscriptFold, digest_with
from tests.transcript_files import (
    FORMATS,
    codex_transcript,
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


def test_a_name_from_the_file_is_redacted_too() -> None:
    line = json.dumps({"role": "user", "name": "sesame", "content": "hi"}).encode() + b"\n"
    _, (chunk,) = folded(line, redact=lambda text: text.replace("sesame", "***"))
    assert chunk.text == "***: hi"


def test_a_message_that_redaction_leaves_empty_is_dropped() -> None:
    fold, chunks = folded(message_line("plain", "user", "secret"), redact=lambda _: " ")
    assert (fold.messages, chunks) == (0, [])


def test_what_was_skipped_is_told_in_sentences() -> None:
    message = message_line("plain", "user", "hi")
    fold, _ = folded(message + b"broken\n" + message + unknown_line("hologram") * 2 + unknown_line("b a d"))
    assert fold.notes() == (
        "1 line is not JSON and was skipped (line 2)",
        "2 lines of unknown type hologram were skipped",
        "1 line without a type that is known was skipped",
    )
    fold, _ = folded(unknown_line() * 3)
    assert fold.notes()[0] == "no line is of a known format (openclaw, claude-code, codex, plain)"
    fold, _ = folded(message + b"broken\n" * 12)
    numbers = ", ".join(map(str, range(2, 12)))
    assert fold.notes() == (f"12 lines are not JSON and were skipped (first: lines {numbers})",)


def test_the_number_of_unknown_types_kept_is_bounded() -> None:
    lines = message_line("plain", "user", "hi") + b"".join(unknown_line(f"kind{number}") for number in range(500))
    fold, _ = folded(lines)
    assert len(fold.notes()) == 21
    assert fold.notes()[-1] == "480 lines of further unknown types were skipped"
    assert len(fold.state()) < 1500


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


def test_the_digest_is_that_of_the_lines_in_order() -> None:
    lines = raw_lines(transcript("plain"))
    digest = NO_LINES_DIGEST
    fold = new_fold()
    assert fold.digest == digest
    for line in lines:
        digest = digest_with(digest, line)
        fold.feed(line)
    assert fold.digest == digest
    swapped, _ = folded(b"".join((line.data or b"") + b"\n" for line in [lines[1], lines[0], *lines[2:]]))
    assert swapped.digest != digest


def test_a_line_that_has_not_ended_cannot_be_fed() -> None:
    with pytest.raises(ValueError, match="ended"):
        new_fold().feed(raw_lines(b"{}")[0])


def test_a_state_of_another_version_is_refused() -> None:
    for state in ('{"version": 0}', "[]", "{}"):
        with pytest.raises(ValueError, match="from its start"):
            new_fold(state=state)


def test_a_last_line_without_its_end_is_shown_if_it_is_whole_and_not_counted_twice() -> None:
    first, second = message_line("codex", "user", "one"), message_line("codex", "assistant", "two")
    fold = new_fold()
    tail = fold.feed_all(raw_lines(first + second.rstrip()))
    assert tail is not None
    before = (fold.state(), facts_of(fold))
    shown = fold.open(tail)
    assert text_of(shown).count("two") == 1
    assert (fold.state(), facts_of(fold)) == before
    fold.feed(raw_lines(second)[0])
    assert fold.open() == shown
    assert fold.messages == 2


def test_a_last_line_is_of_the_format_of_the_lines_before_it() -> None:
    fold = new_fold(name="plain")
    (tail,) = raw_lines(message_line("openclaw", "user", "one").rstrip())
    assert fold.open(tail) == []


@pytest.mark.parametrize("length", [3_000, 300_000])
def test_what_is_kept_of_a_huge_message_is_its_last_part(length: int) -> None:
    fold = new_fold()
    for line in raw_lines(message_line("plain", "user", "word 你好 " * length)):
        fold.feed(line)
    assert fold.closed > length // 500
    assert len(fold.state().encode()) < 2 * 1600 + 1000


def test_the_kept_fact_about_a_codex_file_outlives_an_append() -> None:
    lines = raw_lines(codex_transcript(2, events_only=True))
    fold = new_fold()
    for line in lines:
        fold.feed(line)
    following = new_fold(state=fold.state())
    following.feed(raw_lines(message_line("codex", "user", "as an item"))[0])
    assert following.messages == fold.messages


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


def test_cutting_at_every_byte_is_no_exception() -> None:
    content = message_line("plain", "user", "你好🙂") + message_line("plain", "assistant", "é\r\n")[:-1]
    _, chunks = folded(content, **_SMALL)
    assert _appended(content, list(range(len(content))))[1] == chunks

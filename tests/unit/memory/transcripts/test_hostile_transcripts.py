"""Files that no program would write: bounded in memory and time, and every message that can be read is found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory.transcripts import interpreter as interpreting
from memory.transcripts import lines as line_reading
from memory.transcripts.lines import RawLine, TranscriptDamaged, read_lines
from tests.transcript_folds import folded, raw_lines, text_of

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress


def said(text: str) -> bytes:
    return json.dumps({"role": "user", "content": text}).encode() + b"\n"


def read_until_damage(path: Path, *, compressed: bool, match: str) -> list[RawLine]:
    """The lines that come before a transcript is found to be damaged for that reason."""
    read: list[RawLine] = []
    with path.open("rb") as file, pytest.raises(TranscriptDamaged, match=match):
        read.extend(read_lines(file.fileno(), offset=0, end=None, compressed=compressed))
    return read


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


def test_a_hole_of_gigabytes_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reading, "HOPELESS_LINE_BYTES", 3_000_000)
    path = tmp_path / "sparse.jsonl"
    with path.open("wb") as file:
        file.write(said("before the hole"))
        file.truncate(100 << 30)
    [line] = read_until_damage(path, compressed=False, match="without a line end")
    assert line.data is not None
    assert b"before the hole" in line.data


@pytest.mark.parametrize("filling", [b"\0", b"\n", b"x\n"], ids=["zeros", "line ends", "short lines"])
def test_a_stream_that_unpacks_to_far_more_than_its_size_is_damaged(
    tmp_path: Path, filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_reading, "SPARE_BYTES", 5_000_000)
    monkeypatch.setattr(line_reading, "SPARE_LINES", 50_000)
    path = tmp_path / "bomb.jsonl.zst"
    path.write_bytes(compress(said("before") + filling * (60_000_000 // len(filling))))
    assert path.stat().st_size < 10_000
    read = read_until_damage(path, compressed=True, match="more than 100 times its size, or to more lines")
    assert read[0].data == said("before")[:-1]
    assert len(read) < 50_000 + path.stat().st_size + line_reading._BLOCK_BYTES


def test_a_conversation_that_packs_well_is_no_bomb(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl.zst"
    content = b"".join(said(f"question {number} of a long day " * 20) for number in range(20_000))
    path.write_bytes(compress(content))
    with path.open("rb") as file:
        assert sum(1 for _ in read_lines(file.fileno(), offset=0, end=None, compressed=True)) == 20_000


@pytest.mark.parametrize("tail", [b'{"role":"user","con', said("a").replace(b"\n", b"\r") * 3])
def test_what_has_no_line_end_and_is_no_message_is_said(tail: bytes) -> None:
    fold, _ = folded(said("whole") + tail)
    [last] = raw_lines(tail)
    assert fold.notes(last) == ("what follows line 1 is no whole message and has no line end; it is read with it",)

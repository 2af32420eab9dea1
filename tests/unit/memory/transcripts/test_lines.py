"""Lines of plain and compressed files, also of files that no program would write: whole, counted, in bounded memory."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.transcripts import lines as line_reading
from memory.transcripts.lines import RawLine, TranscriptDamaged, read_lines

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdCompressor, compress
else:
    from backports.zstd import ZstdCompressor, compress

_COMPRESSOR = ZstdCompressor()
_FLUSHED = _COMPRESSOR.compress(b"one\ntwo\nthr", ZstdCompressor.FLUSH_BLOCK)
_LINES = [b"first", "第二行".encode(), b"", b"with\rinside", b"x" * 5000]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lines_of(
    path: Path, *, offset: int = 0, end: int | None = None, compressed: bool = False, longest: int | None = None
) -> list[RawLine]:
    with opened(path) as descriptor:
        return list(read_lines(descriptor, offset=offset, end=end, compressed=compressed, longest=longest))


def digest_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def read_until_damage(path: Path, *, compressed: bool, match: str) -> list[RawLine]:
    """The lines that come before a transcript is found to be damaged for that reason."""
    read: list[RawLine] = []
    with opened(path) as descriptor, pytest.raises(TranscriptDamaged, match=match):
        read.extend(read_lines(descriptor, offset=0, end=None, compressed=compressed))
    return read


@pytest.fixture(params=["plain", "compressed"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], tuple[Path, bool]]:
    """Writes a file and tells whether it is compressed."""
    compressed = request.param == "compressed"

    def written(data: bytes) -> tuple[Path, bool]:
        path = tmp_path / "x.jsonl"
        path.write_bytes(compress(data) if compressed else data)
        return path, compressed

    return written


@pytest.mark.parametrize("block", [7, 1024 * 1024])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_every_line_comes_without_its_end_and_with_the_digest_of_all_its_bytes(
    write: Callable[[bytes], tuple[Path, bool]], line_end: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_reading, "_BLOCK_BYTES", block)
    path, compressed = write(b"".join(line + line_end for line in _LINES) + b"last\r")
    *read, last = lines_of(path, compressed=compressed)
    contents = [line + line_end for line in _LINES]
    ends = list(itertools.accumulate(map(len, contents)))
    assert read == [
        RawLine(line, len(whole), digest_of(whole), end - len(whole), end, has_line_end=True)
        for line, whole, end in zip(_LINES, contents, ends, strict=True)
    ]
    assert last == RawLine(b"last\r", 5, digest_of(b"last\r"), ends[-1], ends[-1] + 5, has_line_end=False)


def test_reading_goes_on_at_an_offset_of_the_content(write: Callable[[bytes], tuple[Path, bool]]) -> None:
    path, compressed = write(b"one\ntwo\nthree\n")
    for offset, left in ((4, [b"two", b"three"]), (14, []), (99, [])):
        assert [line.data for line in lines_of(path, offset=offset, compressed=compressed)] == left
    path, compressed = write(b"")
    assert lines_of(path, compressed=compressed) == []


@pytest.mark.parametrize("block", [3, 64])
def test_a_line_that_is_too_long_is_skipped_and_still_counted(
    write: Callable[[bytes], tuple[Path, bool]], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(line_reading, "_BLOCK_BYTES", block)
    path, compressed = write(b"x" * 10 + b"\r\n" + b"y" * 11 + b"\n" + b"z\n" + b"t" * 50)
    read = lines_of(path, compressed=compressed, longest=10)
    assert [(line.data, line.size, line.has_line_end) for line in read] == [
        (b"x" * 10, 12, True),
        (None, 12, True),
        (b"z", 2, True),
        (None, 50, False),
    ]
    assert read[1].digest == digest_of(b"y" * 11 + b"\n")


def test_frames_that_follow_one_another_are_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(compress(b"one\ntw") + compress(b"") + compress(b"o\nthree\n"))
    assert [line.data for line in lines_of(path, compressed=True)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("content", "before", "reason"),
    [
        (b"", [], "ends too early"),
        (b"this is no zstandard", [], "is damaged"),
        (b"{}\n", [], "is damaged|ends too early"),
        (compress(b"one\n") + b"garbage that is no frame", [b"one"], "is damaged"),
        (_FLUSHED + _COMPRESSOR.flush()[:-2], [b"one", b"two"], "ends too early"),
    ],
    ids=["empty", "no stream", "plain", "garbage below", "truncated"],
)
def test_lines_before_the_damage_of_a_stream_are_given(
    tmp_path: Path, content: bytes, before: list[bytes], reason: str
) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(content)
    assert [line.data for line in read_until_damage(path, compressed=True, match=reason)] == before


@given(st.binary(max_size=200).map(lambda data: data.replace(b"a", b"\n")), st.integers(1, 20))
def test_sizes_and_digests_cover_every_byte(tmp_path_factory: pytest.TempPathFactory, data: bytes, block: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(line_reading, "_BLOCK_BYTES", block)
        read = lines_of(path)
    assert sum(line.size for line in read) == len(data)
    offset = 0
    for line in read:
        assert line.digest == digest_of(data[offset : offset + line.size])
        offset += line.size

"""Lines of a transcript in a file, plain or zstandard, read in bounded memory.

Permanent
+-- TranscriptDamaged      the compressed stream is broken, ends too early or is a bomb, or a line has no end in sight
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from schemas.errors import Permanent

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, compress
else:
    from backports.zstd import ZstdDecompressor, ZstdError, compress

#: Largest number of bytes of a line's content. A longer line is skipped and only counted.
MAX_LINE_BYTES = 64 * 1024 * 1024

#: Bytes of a line after which reading stops: the file is no transcript, but sparse, or of another kind.
HOPELESS_LINE_BYTES = 4 * MAX_LINE_BYTES

#: Largest plausible ratio of unpacked to compressed bytes, and a constant on top. Conversations pack to a tenth.
EXPANSION = 100
SPARE_BYTES = 64 * 1024 * 1024

#: Lines that a compressed transcript may have beyond one per byte. A line takes more than that, however well it packs.
SPARE_LINES = 1_000_000

#: Bytes of one read, from the file and from the decompressor.
_BLOCK_BYTES = 1024 * 1024

#: Bytes of a line's and of a transcript's digest.
DIGEST_BYTES = 16

#: `read(size, position)` returns up to `size` bytes of a file.
Read: TypeAlias = Callable[[int, int], bytes]

_new_digest = partial(hashlib.blake2b, digest_size=DIGEST_BYTES)
_PART_OF_LINE = re.compile(rb"[^\n]*\n|[^\n]+")

#: Remedy for a compressed file that is not whole.
_AGAIN = "write or copy the file again to have the rest"


class TranscriptDamaged(Permanent):
    """Damage of a transcript, after the lines that could be read.

    `remedy` is the way to have the rest.
    """

    def __init__(self, damage: str, *, remedy: str) -> None:
        super().__init__(f"{damage}; {remedy}")
        self.damage = damage
        self.remedy = remedy

    def of(self, file: str, *, indexed: bool) -> TranscriptDamaged:
        """Return the error with a reason that names the file. `indexed`: the lines before the damage are indexed."""
        indexed_part = "what was read of it is indexed" if indexed else "nothing of it could be indexed"
        self.reason = f"{file}: {self.damage};  {indexed_part}; {self.remedy}"
        return self


@dataclass(frozen=True, slots=True)
class RawLine:
    """Line of a transcript, as it is after decompression.

    `data` is without the line end ("\\n" or "\\r\\n"), None for a line that is too long. `size` is in bytes, the line
    end included. `digest` is the BLAKE2b digest (16 bytes) of the line with its end. Only the last line may lack one.

    `start` and `end` are positions, bytes of a file or numbers of rows. The next line starts at `end` or behind it.
    """

    data: bytes | None
    size: int
    digest: bytes
    start: int
    end: int
    has_line_end: bool


def read_lines(
    descriptor: int, *, offset: int, end: int | None, compressed: bool, longest: int | None = None
) -> Iterator[RawLine]:
    """Yield the lines from `offset` on, which must be the start of a line.

    Args:
        descriptor: a regular file's; the position of a plain one is neither used nor changed.
        offset: bytes to skip, of the decompressed content where it is compressed.
        end: offset of the end of a plain file, taken before reading, so that reading a growing file ends.
        compressed: True for a zstandard stream, which is read from its beginning.
        longest: bytes of a line's content above which it is skipped; MAX_LINE_BYTES if not given.

    Raises:
        TranscriptDamaged: after the lines that could be read.
        OSError: the system cannot read the file.
    """
    read = partial(os.pread, descriptor)
    if compressed:
        blocks = decompressed(read, os.fstat(descriptor).st_size, skip=offset)
    else:
        blocks = _plain(read, start=offset, end=end)
    return lines_in(blocks, start=offset, longest=longest)


def _plain(read: Read, *, start: int, end: int | None) -> Iterator[bytes]:
    position = start
    while end is None or position < end:
        block_bytes = _BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - position)
        block = read(block_bytes, position)
        if not block:
            return
        position += len(block)
        yield block


def decompressed(read: Read, size: int, *, skip: int = 0) -> Iterator[bytes]:
    """Yield the content of all frames of a file, which may follow one another, in blocks of bounded size.

    `size`: bytes of the file. `skip`: bytes of the content that are left out.

    Raises:
        TranscriptDamaged: after the blocks that could be read.
    """
    position = lines = unpacked = 0
    pending = b""
    decompressor = ZstdDecompressor()
    # Even empty content has a frame: a file without a byte was never written, such as on a full disk.
    in_frame = True
    while True:
        if not pending and (not in_frame or decompressor.needs_input):
            pending = read(_BLOCK_BYTES, position)
            position += len(pending)
            if not pending:
                if in_frame:
                    raise TranscriptDamaged("the compressed transcript ends too early", remedy=_AGAIN)
                return
        in_frame = True
        try:
            block = decompressor.decompress(pending, max_length=_BLOCK_BYTES)
        except (ZstdError, MemoryError) as error:
            raise TranscriptDamaged("the compressed transcript is damaged", remedy=_AGAIN) from error
        pending = b""
        if decompressor.eof:
            pending = decompressor.unused_data
            decompressor = ZstdDecompressor()
            in_frame = False
        if skip >= len(block):
            skip -= len(block)
        else:
            yield block[skip:] if skip else block
            skip = 0
        unpacked += len(block)
        lines += block.count(b"\n")
        if unpacked > size * EXPANSION + SPARE_BYTES or lines > size + SPARE_LINES:
            raise TranscriptDamaged(
                f"the compressed transcript unpacks to more than {EXPANSION} times its size, or to more lines than it "
                "has bytes, as no conversation does",
                remedy="if it is one, unpack the file",
            )


def line_of(data: bytes | None, size: int, *, start: int, end: int, longest: int | None = None) -> RawLine:
    """Return a line that is stored without its end, as it would be in a file. `longest` as for `read_lines`.

    `data`: None for a line that was too long to be read. `size`: bytes of the data.
    """
    content = str(size).encode() if data is None else data
    if len(content) > (MAX_LINE_BYTES if longest is None else longest):
        data = None
    return RawLine(data, size + 1, _new_digest(content + b"\n").digest(), start, end, has_line_end=True)


def unpacked(data: bytes, *, most: int) -> bytes | None:
    """Return the content of one Zstandard frame; None if it is damaged or has more than `most` bytes."""
    decompressor = ZstdDecompressor()
    try:
        content = decompressor.decompress(data, max_length=most + 1)
    except (ZstdError, MemoryError):
        return None
    return content if decompressor.eof and len(content) <= most else None


def packed(data: bytes) -> bytes:
    """Return a Zstandard frame with these bytes."""
    return compress(data)


def lines_in(blocks: Iterator[bytes], *, start: int = 0, longest: int | None = None) -> Iterator[RawLine]:
    """Yield the lines of a file's content in blocks, none of them empty. `longest` as for `read_lines`.

    `start`: position of the first block.

    Raises:
        TranscriptDamaged: no line end comes for HOPELESS_LINE_BYTES.
    """
    limit = MAX_LINE_BYTES if longest is None else longest
    size, pieces, digest = 0, list[bytes](), _new_digest()
    for block in blocks:
        for part in _PART_OF_LINE.finditer(block):
            piece = part[0]
            size += len(piece)
            if size > HOPELESS_LINE_BYTES:
                raise TranscriptDamaged(
                    f"the transcript has more than {HOPELESS_LINE_BYTES / 1e6:.0f} MB without a line end",
                    remedy="write the file again without them to have the rest",
                )
            digest.update(piece)
            # Two of the collected bytes may turn out to be the line's end.
            pieces = [*pieces, piece] if size <= limit + 2 else []
            if piece.endswith(b"\n"):
                yield _line(pieces, size, digest.digest(), limit, start=start, has_line_end=True)
                start += size
                size, pieces, digest = 0, [], _new_digest()
    if size:
        yield _line(pieces, size, digest.digest(), limit, start=start, has_line_end=False)


def _line(pieces: list[bytes], size: int, digest: bytes, limit: int, *, start: int, has_line_end: bool) -> RawLine:
    data = b"".join(pieces)
    if has_line_end:
        data = data[:-2] if data.endswith(b"\r\n") else data[:-1]
    return RawLine(data if pieces and len(data) <= limit else None, size, digest, start, start + size, has_line_end)

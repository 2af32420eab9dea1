"""Lines of a transcript, read from its descriptor, plain or zstandard, in bounded memory.

Permanent
+-- TranscriptDamaged      the compressed stream is broken, ends too early or is a bomb, or a line has no end in sight
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from schemas.errors import Permanent

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

#: Bytes of a line's content at most; a longer line is skipped and only counted.
MAX_LINE_BYTES = 64 * 1024 * 1024

#: Bytes of a line after which reading stops: the file is no transcript, but sparse, or of another kind.
HOPELESS_LINE_BYTES = 4 * MAX_LINE_BYTES

#: A compressed transcript may unpack to this many times its bytes, and these more. Conversations pack to a tenth.
EXPANSION = 100
SPARE_BYTES = 64 * 1024 * 1024

#: It may have a line for each of its bytes, and these more: a line takes more than that, however well it packs.
SPARE_LINES = 1_000_000

#: Bytes asked of the file, and of the decompressor, at a time.
_BLOCK_BYTES = 1024 * 1024

#: Bytes of a line's and of a transcript's digest.
DIGEST_BYTES = 16

_new_digest = partial(hashlib.blake2b, digest_size=DIGEST_BYTES)
_PART_OF_LINE = re.compile(rb"[^\n]*\n|[^\n]+")

#: Remedy for a compressed file that is not whole.
_AGAIN = "write or copy the file again to have the rest"


class TranscriptDamaged(Permanent):
    """A transcript cannot be read on. The lines before the damage were given.

    `what` names the damage, `remedy` the way to have the rest.
    """

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy

    def of(self, file: str, *, indexed: bool) -> TranscriptDamaged:
        """Return the error with a reason that names the file, and tells if the lines before the damage are indexed."""
        indexed_part = "what was read of it is indexed" if indexed else "nothing of it could be indexed"
        self.reason = f"{file}: {self.what}; {indexed_part}; {self.remedy}"
        return self


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line as it is in the (decompressed) file.

    `data` is without its end ("\\n" or "\\r\\n"); None when it is longer than was asked for. `size` is in bytes,
    the end included. `digest` is the BLAKE2b digest (16 bytes) of the line with its end. `ended` is False for a
    last line without a line end.
    """

    data: bytes | None
    size: int
    digest: bytes
    ended: bool


def read_lines(
    descriptor: int, *, offset: int, end: int | None, compressed: bool, longest: int | None = None
) -> Iterator[RawLine]:
    """Yield the lines from `offset` on, which must be the start of a line.

    Args:
        descriptor: a regular file's; the position of a plain one is neither used nor changed.
        offset: bytes to skip, of the decompressed content where it is compressed.
        end: where to stop in a plain file (its size when it was looked at, so that a growing file is not chased).
        compressed: whether it is a zstandard stream, which is read from its beginning.
        longest: bytes of a line's content from which on it is skipped; MAX_LINE_BYTES if not given.

    Raises:
        TranscriptDamaged: after the lines that could be read.
        OSError: as the system says.
    """
    blocks = _decompressed(descriptor, skip=offset) if compressed else _plain(descriptor, start=offset, end=end)
    return lines_in(blocks, longest=longest)


def _plain(descriptor: int, *, start: int, end: int | None) -> Iterator[bytes]:
    position = start
    while end is None or position < end:
        block_bytes = _BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - position)
        block = os.pread(descriptor, block_bytes, position)
        if not block:
            return
        position += len(block)
        yield block


def _decompressed(descriptor: int, *, skip: int) -> Iterator[bytes]:
    """Yield the content of all frames, which may follow one another, in blocks of bounded size."""
    position = lines = given = 0
    size = os.fstat(descriptor).st_size
    pending = b""
    decompressor = ZstdDecompressor()
    # Even empty content has a frame: a file without a byte was never written, such as on a full disk.
    in_frame = True
    while True:
        if not pending and (not in_frame or decompressor.needs_input):
            pending = os.pread(descriptor, _BLOCK_BYTES, position)
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
        given += len(block)
        lines += block.count(b"\n")
        if given > size * EXPANSION + SPARE_BYTES or lines > size + SPARE_LINES:
            raise TranscriptDamaged(
                f"the compressed transcript unpacks to more than {EXPANSION} times its size, or to more lines than it "
                "has bytes, as no conversation does",
                remedy="if it is one, unpack the file",
            )


def lines_in(blocks: Iterator[bytes], *, longest: int | None = None) -> Iterator[RawLine]:
    """Yield the lines of a file whose content comes in blocks, none of them empty; `longest` as for `read_lines`.

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
            # Of what is kept, two bytes may turn out to be the line's end.
            pieces = [*pieces, piece] if size <= limit + 2 else []
            if piece.endswith(b"\n"):
                yield _line(pieces, size, digest.digest(), limit, ended=True)
                size, pieces, digest = 0, [], _new_digest()
    if size:
        yield _line(pieces, size, digest.digest(), limit, ended=False)


def _line(pieces: list[bytes], size: int, digest: bytes, limit: int, *, ended: bool) -> RawLine:
    data = b"".join(pieces)
    if ended:
        data = data[:-2] if data.endswith(b"\r\n") else data[:-1]
    return RawLine(data if pieces and len(data) <= limit else None, size, digest, ended)

"""Transcripts that grow, are cut, rewritten, compacted and archived."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from memory.http.whole_files import write_whole
from tests.transcript_files import transcript
from tests.written_index import reading

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

FORMATS = ("openclaw", "claude-code", "codex", "plain")

#: A transcript of fewer lines is not compacted.
COMPACTED_LINES = 8

#: Path, ordinal, first line, last line and text of a chunk.
Row = tuple[str, int, int, int, str]


class Talks:
    """Transcripts that go on, each towards an end that is known from the start."""

    def __init__(self, folder: Path, count: int, *, turns: int, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.left = {f"talk-{n}.jsonl": transcript(FORMATS[n % 4], turns, seed=n) for n in range(count)}
        folder.mkdir()

    def begin(self, name: str, *, turns: int, seed: int) -> None:
        """Let one more transcript go on."""
        self.left[name] = transcript(FORMATS[len(self.left) % 4], turns, seed=seed)

    def go_on(self) -> None:
        """Append somewhere, in the middle of a line as likely as not; now and then something worse."""
        for name in self.chance.sample(sorted(self.left), k=min(3, len(self.left))):
            rest = self.left[name]
            piece = rest[: self.chance.randrange(1, max(2, len(rest) // 3))]
            self.left[name] = rest[len(piece) :]
            with (self.folder / name).open("ab") as file:
                file.write(piece)
        if self.chance.random() < 0.3:
            self._disturb(self.folder / self.chance.choice(sorted(self.left)))

    def end(self) -> None:
        """Write what is left of each."""
        for name, rest in self.left.items():
            if (self.folder / name).exists():
                with (self.folder / name).open("ab") as file:
                    file.write(rest)

    def compact(self) -> Path | None:
        """Replace the older half of a transcript by nothing, as a compaction does; None when none is long enough."""
        there = [path for name in sorted(self.left) if (path := self.folder / name).exists()]
        long = [path for path in there if path.read_bytes().count(b"\n") >= COMPACTED_LINES]
        if not long:
            return None
        path = self.chance.choice(long)
        lines = path.read_bytes().splitlines(keepends=True)
        write_whole(path, b"".join(lines[len(lines) // 2 :]), synced=False)
        return path

    def _disturb(self, path: Path) -> None:
        if not path.exists():
            return
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        match self.chance.randrange(4):
            case 0:
                os.truncate(path, len(data) // 2)
            case 1:
                write_whole(path, b"".join(lines[len(lines) // 3 :]), synced=False)
            case 2:
                path.rename(path.with_name(f"{path.name}.reset.2026-11-{self.chance.randrange(10, 30)}T10-00-00.000Z"))
            case 3:
                path.with_name(f"old-{self.chance.randrange(10**6)}.jsonl.zst").write_bytes(compress(data))


def rows_of(home: Path) -> list[Row]:
    """All chunks of an index, which holds together."""
    rows: list[Row] = []
    with reading(home) as reader:
        assert reader is not None
        for file in reader.files():
            stored = reader.chunks_of(file.key)
            texts = reader.chunk_rows([chunk.id for chunk in stored])
            rows += [(file.key.path, one.ordinal, one.start_line, one.end_line, texts[one.id].text) for one in stored]
        assert reader.check() == []
    return sorted(rows)

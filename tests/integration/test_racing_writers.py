"""Files that change in every way, at full speed, while they are read and listed: at rest, index equals file."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.providers.stub import StubProvider
from memory.embedding.supply import EmbeddingSupply
from memory.http.whole_files import write_whole
from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.indexer import Indexer
from memory.store.options import StoreOptions
from memory.transcripts import lines as line_reading
from schemas.documents import DocumentKey, Lane
from schemas.settings import AgentSettings
from tests.storing import cache_at
from tests.waiting import wait_until

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress


class Racers:
    """One agent, an index that follows its files, and writers that do not wait for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memory = root / "ws" / "memory"
        self.sessions = root / "sessions"
        self.memory.mkdir(parents=True)
        self.sessions.mkdir()
        self.agent = AgentSettings.model_validate(
            {"id": "main", "workspace": root / "ws", "sessions": [str(self.sessions)], "provider": "stub"}
        )
        self.files = AgentFiles(self.agent)
        self._cache = cache_at(root / "embeddings.sqlite")
        self._open: list[Indexer] = []
        self.indexer = self.new_indexer("raced")

    def new_indexer(self, name: str) -> Indexer:
        made = Indexer(
            self.agent,
            files=self.files,
            generations=FileGenerationWriter(self.root / "indexes" / name, StoreOptions()),
            supply=EmbeddingSupply(StubProvider(), self._cache),
        )
        self._open.append(made)
        return made

    def index(self, indexer: Indexer) -> bool:
        """Index all that is there or was; False when something has to be looked at again."""
        known = {file.key for file in indexer.target().files()}
        keys = sorted(known | self.files.scan().documents.keys(), key=lambda key: key.path)
        report = indexer.index(keys, lane=Lane.LIVE, on_done=lambda done: None)
        assert not report.failed, indexer.target().dead_letters()
        return not report.again

    def content(self, indexer: Indexer) -> dict[DocumentKey, list[tuple[int, int, str]]]:
        """Lines and text of all chunks of what is on disk."""
        store = indexer.target()
        assert store.check() == []
        found = {}
        for key in self.files.scan().documents:
            rows = store.chunk_rows([chunk.id for chunk in store.chunks_of(key)])
            found[key] = sorted((row.start_line, row.end_line, row.text) for row in rows.values())
        return found

    def close(self) -> None:
        for indexer in self._open:
            indexer.supply.close()
            indexer.generations.close()
        self._cache.close()

    def race(self, write: Callable[[random.Random], None], *, steps: int, seed: int) -> None:
        """Index again and again while a thread writes; then compare with an index that read everything at rest."""
        failed: list[BaseException] = []

        def run() -> None:
            chance = random.Random(seed)
            try:
                for _ in range(steps):
                    write(chance)
            except BaseException as error:  # told by the test
                failed.append(error)
                raise

        writer = threading.Thread(target=run)
        writer.start()
        looks = 0
        while writer.is_alive() or looks < 2:
            self.index(self.indexer)
            looks += 1
        writer.join()
        assert not failed
        wait_until(lambda: self.index(self.indexer))
        once = self.new_indexer("once")
        assert self.index(once)
        assert self.content(self.indexer) == self.content(once)
        vanished = {file.key for file in self.indexer.target().files()} - self.files.scan().documents.keys()
        assert not [key for key in vanished if key.source == "memory"]


@pytest.fixture
def racers(tmp_path: Path) -> Iterator[Racers]:
    made = Racers(tmp_path)
    yield made
    made.close()


def paragraph(chance: random.Random) -> bytes:
    return b"".join(b"word%d " % chance.randrange(1000) for _ in range(chance.randrange(1, 60))) + b"\n\n"


def message(chance: random.Random) -> bytes:
    return json.dumps({"role": "user", "content": paragraph(chance).decode()}).encode() + b"\n"


def change(path: Path, chance: random.Random, piece: Callable[[random.Random], bytes]) -> None:
    """Append to a file, write it anew, replace, delete or truncate it."""
    many = b"".join(piece(chance) for _ in range(chance.randrange(1, 80)))
    match chance.randrange(7):
        case 0 | 1 | 2:
            added = piece(chance)
            with path.open("ab", buffering=0) as file:  # in two writes, as programs do
                file.write(added[:20])
                file.write(added[20:])
        case 3:
            path.write_bytes(many)
        case 4:
            write_whole(path, many, synced=False)
        case 5:
            path.unlink(missing_ok=True)
        case _:
            if path.exists():
                os.truncate(path, chance.randrange(path.stat().st_size + 1))


@pytest.mark.parametrize("steps", [600, pytest.param(3000, marks=pytest.mark.long)])
def test_notes_that_change_in_every_way_while_they_are_read(racers: Racers, steps: int) -> None:
    def write(chance: random.Random) -> None:
        change(racers.memory / f"n{chance.randrange(4)}.md", chance, paragraph)

    racers.race(write, steps=steps, seed=1)


@pytest.mark.long
def test_transcripts_that_change_in_every_way_while_they_are_read(
    racers: Racers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a transcript takes many reads, and any of them may see another file.
    monkeypatch.setattr(line_reading, "_BLOCK_BYTES", 512)

    def write(chance: random.Random) -> None:
        path = racers.sessions / f"s{chance.randrange(3)}.jsonl"
        change(path, chance, message)
        if chance.random() < 0.1:
            many = b"".join(message(chance) for _ in range(chance.randrange(1, 60)))
            write_whole(path.with_name(path.name + ".zst"), compress(many))
            path.unlink(missing_ok=True)

    racers.race(write, steps=3000, seed=2)

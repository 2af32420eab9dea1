"""What is asked of every agent again and again opens an index only after a change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.index.generation_writer import GenerationWriter
from memory.index.generations import Generations
from memory.index.readers import SharedReader
from memory.service.agents import Figures, IndexProbe, ProbeResult
from memory.store.options import StoreOptions
from memory.store.writer import DocumentDelete, Store
from tests.storing import document, key


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[GenerationWriter]:
    made = GenerationWriter(tmp_path, StoreOptions())
    yield made
    made.close()


@pytest.fixture
def store(writer: GenerationWriter) -> Store:
    return writer.open_writer("f", "{}")[0]


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[IndexProbe]:
    generations = Generations(tmp_path, StoreOptions())
    reader = SharedReader(generations)
    yield IndexProbe("main", generations, reader.visit)
    reader.close()


def shown(figures: Figures | None) -> tuple[int, int, int]:
    """Chunks, vectors pending, dead letters."""
    assert figures is not None
    return figures.counts.chunks, figures.counts.vectors_pending, figures.dead_letters


def settle(folder: Path) -> None:
    """As if the last change were an hour ago."""
    for path in folder.glob("*.sqlite*"):
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 3_600_000_000_000))


def test_what_was_seen_holds_until_the_next_commit(probe: IndexProbe, store: Store, tmp_path: Path):
    store.write([document(key("a.md"), "one", "two")])
    settle(tmp_path)
    assert probe.last() is None
    seen = probe.read()
    assert shown(seen.figures) == (2, 2, 0)
    assert probe.last() == seen

    store.write([DocumentDelete(key("a.md"), store.revision(key("a.md")))])
    assert probe.last() is None
    after = probe.read().figures
    assert shown(after) == (0, 0, 0)
    assert after is not None
    assert seen.figures is not None
    assert after.revision != seen.figures.revision


def test_nothing_holds_while_files_are_so_new_that_a_commit_may_not_show(probe: IndexProbe, store: Store):
    store.write([document(key("a.md"), "one")])
    probe.read()
    assert probe.last() is None


def test_a_new_generation_is_looked_at(probe: IndexProbe, store: Store, writer: GenerationWriter, tmp_path: Path):
    store.write([document(key("a.md"), "one")])
    settle(tmp_path)
    probe.read()
    writer.open_writer("other", "{}")
    writer.open_stores()[-1].write([document(key("a.md"), "one", "two", "three")])
    assert writer.complete("other")
    settle(tmp_path)
    assert probe.last() is None
    figures = probe.read().figures
    assert figures is not None
    assert figures.counts.chunks == 3
    assert probe.last() is not None


def test_without_an_index_there_are_no_figures_and_no_problem(probe: IndexProbe):
    assert probe.read() == ProbeResult()
    assert probe.last() == ProbeResult()


def test_a_damaged_index_is_a_problem_until_it_is_mended(probe: IndexProbe, store: Store, tmp_path: Path):
    store.close()
    [path] = tmp_path.glob("*.sqlite")
    sound = path.read_bytes()
    path.write_bytes(b"no database" * 5_000)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    settle(tmp_path)
    assert probe.read().problem
    assert probe.last() is None
    path.write_bytes(sound)
    assert probe.read().problem is None

"""Which index file answers, and how one takes the place of another."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.index.generation_writer import GenerationWriter
from memory.index.generations import Generations
from memory.store.errors import StoreCorrupt, StoreFull, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from tests.storing import document, key, vector

CHECKOUT = Path(__file__).parents[3]
NOTE = key("memory/note.md")
OPTIONS = StoreOptions()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "indexes" / "main"


@pytest.fixture
def writer(folder: Path) -> Iterator[GenerationWriter]:
    made = GenerationWriter(folder, OPTIONS)
    yield made
    made.close()


@pytest.fixture
def generations(folder: Path) -> Generations:
    return Generations(folder, OPTIONS)


def fingerprint_of(reader: StoreReader | None) -> str | None:
    if reader is None:
        return None
    try:
        return reader.meta("fingerprint")
    finally:
        reader.close()


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.endswith(".sqlite")}


def test_readers_of_an_agent_that_was_never_indexed_find_nothing_and_make_nothing(
    generations: Generations, folder: Path
) -> None:
    assert generations.current() is None
    assert generations.next() is None
    assert generations.open_reader() is None
    assert generations.target_reader("f1") is None
    assert generations.token() is None
    assert not folder.exists()


def test_another_fingerprint_is_built_aside_while_the_old_one_answers(
    writer: GenerationWriter, generations: Generations
) -> None:
    [old] = writer.open_writer("f1", "first")
    old.write([document(NOTE, "gateway", vectors=[vector(1)])])
    token = generations.token()
    reader = generations.open_reader()
    assert reader is not None
    assert (reader.meta("identity"), len(reader.search_text("gateway", 5))) == ("first", 1)
    assert (fingerprint_of(reader), generations.next()) == ("f1", None)

    target, current = writer.open_writer("f2", "second")
    assert (target.meta("fingerprint"), current) == ("f2", old)
    assert generations.token() == token
    assert fingerprint_of(generations.open_reader()) == "f1"
    targets = [fingerprint_of(generations.target_reader(wanted)) for wanted in ("f1", "f2", "f3")]
    assert targets == ["f1", "f2", None]
    assert writer.open_writer("f2", "second") == [target, current]

    abandoned = generations.next()
    third, current = writer.open_writer("f3", "third")
    assert (third.meta("fingerprint"), current) == ("f3", old)
    assert generations.next() != abandoned
    assert (writer.open_writer("f1", "first"), writer.next()) == ([old], None), "the settings went back"


def test_a_flip_changes_the_token_and_takes_no_file_from_those_who_read_it(
    writer: GenerationWriter, generations: Generations, folder: Path
) -> None:
    [old] = writer.open_writer("f1", "first")
    old.write([document(NOTE, "gateway")])
    reader = generations.open_reader()
    assert reader is not None
    token = generations.token()

    target, _ = writer.open_writer("f2", "second")
    target.write([document(NOTE, "deploy")])
    assert not writer.complete("f1")
    assert generations.token() == token
    assert writer.complete("f2")
    assert not writer.complete("f2")

    assert generations.token() != token
    assert generations.next() is None
    assert len(reader.search_text("gateway", 5)) == 1  # the reader from before still has its own
    writer.sweep(older_than_seconds=0)
    assert files_in(folder) == {generations.current()}
    assert len(reader.search_text("gateway", 5)) == 1  # even after the file is gone
    reader.close()

    fresh = generations.open_reader()
    assert fresh is not None
    assert len(fresh.search_text("deploy", 5)) == 1
    fresh.close()
    assert writer.open_writer("f2", "second") == [target]


def test_an_index_file_that_somebody_deleted_is_made_anew(
    writer: GenerationWriter, generations: Generations, folder: Path
) -> None:
    [lost] = writer.open_writer("f1", "first")
    lost.write([document(NOTE, "gateway")])
    (folder / str(generations.current())).unlink()
    assert generations.open_reader() is None
    [store] = writer.open_writer("f1", "first")
    assert store is not lost
    assert store.counts().files == 0
    assert fingerprint_of(generations.open_reader()) == "f1"


def test_a_second_worker_that_saw_the_damage_does_not_set_the_new_generation_aside(
    writer: GenerationWriter, generations: Generations, folder: Path
) -> None:
    writer.open_writer("f1", "first")
    writer.close()
    damaged = str(generations.current())
    (folder / damaged).write_bytes(b"\xff" * 100_000)
    with pytest.raises(StoreCorrupt) as caught:
        writer.open_writer("f1", "first")
    assert caught.value.generation == damaged
    [aside] = writer.set_aside_damaged()
    assert re.fullmatch(re.escape(damaged) + r"\.corrupt-\d+", aside.name)
    assert generations.open_reader() is None
    [fresh] = writer.open_writer("f1", "first")
    writer.set_aside(damaged)
    assert writer.set_aside_damaged(suspect=damaged) == writer.set_aside_damaged() == []
    assert writer.open_writer("f1", "first") == [fresh]


def test_what_is_being_built_answers_when_the_old_one_is_set_aside(
    writer: GenerationWriter, generations: Generations
) -> None:
    writer.open_writer("f1", "first")
    target, _ = writer.open_writer("f2", "second")
    target.write([document(NOTE, "deploy")])
    writer.set_aside(str(generations.current()))
    assert writer.open_writer("f2", "second") == [target]
    assert fingerprint_of(generations.open_reader()) == "f2"


def test_a_sweep_spares_what_was_replaced_a_moment_ago_and_two_corrupt_files(
    writer: GenerationWriter, folder: Path
) -> None:
    writer.open_writer("f1", "first")
    [only] = files_in(folder)
    os.utime(folder / only, (0, 0))  # an old file; what counts is when it was replaced
    writer.open_writer("f2", "second")
    writer.complete("f2")
    for age in range(4):
        for suffix in ("", "-wal"):
            (folder / f"g.sqlite.corrupt-{1000 + age}{suffix}").touch()
    writer.sweep(older_than_seconds=60)
    assert only in files_in(folder)
    left = sorted(path.name for path in folder.iterdir() if "corrupt" in path.name)
    assert left == [f"g.sqlite.corrupt-{1002 + age}{suffix}" for age in range(2) for suffix in ("", "-wal")]
    writer.sweep(older_than_seconds=0)
    assert only not in files_in(folder)


def test_a_crash_between_the_two_steps_of_a_flip_is_no_rebuild(
    writer: GenerationWriter, generations: Generations, folder: Path
) -> None:
    [store] = writer.open_writer("f1", "first")
    (folder / "NEXT").write_text(f"{generations.current()}\n")
    assert generations.next() is None
    assert writer.open_writer("f1", "first") == [store]
    assert not writer.complete("f1")
    assert not (folder / "NEXT").exists()


@pytest.mark.parametrize("content", ["", "../../etc/passwd", ".hidden", "\n"])
def test_a_pointer_never_leads_out_of_its_folder(generations: Generations, folder: Path, content: str) -> None:
    folder.mkdir(parents=True)
    (folder / "CURRENT").write_text(content)
    assert generations.current() is None
    assert generations.open_reader() is None


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnreadable, match="cannot be changed"):
        GenerationWriter(tmp_path / "file" / "main", OPTIONS).open_writer("f1", "first")


# Several processes -----------------------------------------------------------------------------------

OPEN_AND_WRITE = """
    import sys
    from pathlib import Path
    from memory.index.generation_writer import GenerationWriter
    from memory.store.options import StoreOptions
    from tests.storing import document, key

    writer = GenerationWriter(Path(sys.argv[1]), StoreOptions())
    sys.stdin.readline()
    [store] = writer.open_writer("f1", "first")
    store.write([document(key(f"memory/{sys.argv[2]}.md"), "gateway")])
    writer.close()
"""


def test_processes_that_start_together_agree_on_one_generation(generations: Generations, folder: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OPEN_AND_WRITE), str(folder), str(number)],
            stdin=subprocess.PIPE,
            cwd=CHECKOUT,
        )
        for number in range(3)
    ]
    for process in processes:
        process.communicate(b"go\n", timeout=60)
        assert process.returncode == 0
    assert files_in(folder) == {generations.current()}
    assert folder.stat().st_mode & 0o077 == 0, "an index is its owner's alone"
    reader = generations.open_reader()
    assert reader is not None
    assert reader.counts().files == 3
    reader.close()


@pytest.mark.parametrize("step", ["begin", "rebuild", "flip"])
def test_a_pointer_that_finds_no_space_leaves_the_old_one_and_the_next_try_goes_on(
    writer: GenerationWriter, generations: Generations, step: str
) -> None:
    steps = {
        "begin": lambda: writer.open_writer("f2", "{}"),
        "rebuild": lambda: writer.begin("f2", "{}", force=True),
        "flip": lambda: writer.complete("f2"),
    }
    [old] = writer.open_writer("f1", "{}")
    old.write([document(NOTE, "gateway")])
    if step == "flip":
        writer.open_writer("f2", "{}")
    before = generations.current(), generations.next()
    with pytest.MonkeyPatch.context() as patched:

        def no_space(_descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr("memory.index.generation_writer.os.fsync", no_space)
        with pytest.raises(StoreFull, match=r"no space left for .*; free some and indexing goes on"):
            steps[step]()
    assert (generations.current(), generations.next()) == before
    answering = generations.open_reader()
    assert answering is not None
    assert answering.search_text("gateway", 5)
    answering.close()
    steps[step]()
    assert (generations.current(), generations.next()) != before

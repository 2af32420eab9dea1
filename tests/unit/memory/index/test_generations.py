"""Choice of the answering generation, and its replacement by another one, in every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from memory.index.file_generation_writer import KEPT_CORRUPT_SECONDS
from memory.index.fingerprint import Fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.index.generations import Generations
from memory.store.reader import StoreReader
from schemas.errors import RecalldError
from schemas.settings import Settings
from tests.postgres_server import Urls
from tests.storing import document, key, vector
from tests.waiting import wait_until

NOTE = key("memory/note.md")


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, fleet_urls: Urls) -> Settings:
    """Settings of a home, then of a fleet."""
    return Settings(home=tmp_path, store={"url": fleet_urls.writer if request.param == "PostgreSQL" else None})


@pytest.fixture
def folder(settings: Settings) -> Path:
    return settings.indexes_path / "main"


@pytest.fixture
def writer(settings: Settings) -> Iterator[GenerationWriter]:
    made = GenerationWriter.at(settings, "main")
    yield made
    made.close()


@pytest.fixture
def generations(settings: Settings) -> Generations:
    """Another process's view, without the memory of a reader."""
    return GenerationWriter.at(settings, "main")


of_files = pytest.mark.parametrize("settings", ["SQLite"], indirect=True)

FIRST = '{"n":1}'


def fingerprint_of(reader: StoreReader | None) -> str | None:
    if reader is None:
        return None
    try:
        return reader.meta("fingerprint")
    finally:
        reader.close()


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.endswith(".sqlite")}


def test_another_fingerprint_is_built_aside_while_the_old_one_answers(
    writer: GenerationWriter, generations: Generations
) -> None:
    [old] = writer.open_writer(Fingerprint("f1", FIRST))
    old.write([document(NOTE, "gateway", vectors=[vector(1)])])
    token = generations.token()
    reader = generations.open_reader()
    assert reader is not None
    assert (reader.meta("identity"), len(reader.search_text("gateway", 5))) == (FIRST, 1)
    assert (fingerprint_of(reader), generations.next()) == ("f1", None)

    target, current = writer.open_writer(Fingerprint("f2", "{}"))
    assert (target.meta("fingerprint"), current) == ("f2", old)
    assert generations.token() == token
    assert fingerprint_of(generations.open_reader()) == "f1"
    targets = [fingerprint_of(generations.target_reader(wanted)) for wanted in ("f1", "f2", "f3")]
    assert targets == ["f1", "f2", None]
    assert writer.open_writer(Fingerprint("f2", "{}")) == [target, current]

    abandoned = generations.next()
    third, current = writer.open_writer(Fingerprint("f3", "{}"))
    assert (third.meta("fingerprint"), current) == ("f3", old)
    assert generations.next() != abandoned
    assert (writer.open_writer(Fingerprint("f1", FIRST)), writer.next()) == ([old], None), "the settings went back"


def test_a_flip_changes_the_token_and_takes_nothing_from_those_who_read_it(
    settings: Settings, writer: GenerationWriter, generations: Generations
) -> None:
    [old] = writer.open_writer(Fingerprint("f1", FIRST))
    old.write([document(NOTE, "gateway")])
    searched = Generations.of(settings, "main")
    reader = generations.open_reader()
    assert reader is not None
    token = generations.token()

    target, _ = writer.open_writer(Fingerprint("f2", "{}"))
    target.write([document(NOTE, "deploy")])
    assert not writer.complete("f1")
    assert generations.token() == token
    assert writer.complete("f2")
    assert not writer.complete("f2")

    assert generations.token() != token
    assert generations.next() is None
    wait_until(lambda: searched.token() != token)
    assert len(reader.search_text("gateway", 5)) == 1  # the reader from before still has its own
    reader.close()

    fresh = generations.open_reader()
    assert fresh is not None
    assert len(fresh.search_text("deploy", 5)) == 1
    fresh.close()
    assert writer.open_writer(Fingerprint("f2", "{}")) == [target]


@of_files
def test_an_index_file_that_was_deleted_is_made_anew(
    writer: GenerationWriter, generations: Generations, folder: Path
) -> None:
    [lost] = writer.open_writer(Fingerprint("f1", FIRST))
    lost.write([document(NOTE, "gateway")])
    (folder / str(generations.current())).unlink()
    assert generations.open_reader() is None
    [store] = writer.open_writer(Fingerprint("f1", FIRST))
    assert store is not lost
    assert store.counts().files == 0
    assert fingerprint_of(generations.open_reader()) == "f1"


@of_files
def test_a_sweep_spares_a_new_unnamed_generation_and_two_newly_damaged_files(
    writer: GenerationWriter, folder: Path
) -> None:
    writer.open_writer(Fingerprint("f1", FIRST))
    now = int(time.time())
    (folder / "unnamed.sqlite").touch()
    for age in (60, 50, 40, 30, KEPT_CORRUPT_SECONDS + 60):
        for suffix in ("", "-wal"):
            (folder / f"g.sqlite.corrupt-{now - int(age)}{suffix}").touch()
    writer.sweep(older_than_seconds=60)
    assert "unnamed.sqlite" in files_in(folder)
    left = sorted(path.name for path in folder.iterdir() if "corrupt" in path.name)
    assert left == [f"g.sqlite.corrupt-{now - age}{suffix}" for age in (40, 30) for suffix in ("", "-wal")]
    writer.sweep(older_than_seconds=0)
    assert "unnamed.sqlite" not in files_in(folder)


@of_files
def test_a_flip_removes_the_replaced_file_at_once(writer: GenerationWriter, folder: Path) -> None:
    writer.open_writer(Fingerprint("f1", FIRST))
    writer.open_writer(Fingerprint("f2", FIRST))
    assert writer.complete("f2")
    assert files_in(folder) == {writer.current()}


def test_workers_that_begin_at_once_share_one_first_generation(settings: Settings) -> None:
    barrier, names = threading.Barrier(4), []

    def begin() -> None:
        with closing(GenerationWriter.at(settings, "main")) as writer:
            barrier.wait()
            names.append(writer.open_writer(Fingerprint("f1", FIRST))[0].name)

    workers = [threading.Thread(target=begin) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(names) == 4
    assert len(set(names)) == 1


def test_workers_open_an_index_while_its_owner_replaces_it(settings: Settings, writer: GenerationWriter) -> None:
    writer.open_writer(Fingerprint("f1", FIRST))
    stop, errors = threading.Event(), []

    def open_again_and_again() -> None:
        while not stop.is_set():
            with closing(GenerationWriter.at(settings, "main")) as other:
                try:
                    other.open_writer(Fingerprint("f1", FIRST))
                except RecalldError as error:
                    errors.append(error)

    workers = [threading.Thread(target=open_again_and_again) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(60):
        writer.begin(Fingerprint("f1", FIRST), force=True)
        assert writer.complete("f1")
    stop.set()
    for worker in workers:
        worker.join()
    assert errors == []


@of_files
@pytest.mark.parametrize("content", ["", "../../etc/passwd", ".hidden", "\n"])
def test_a_pointer_never_leads_out_of_its_folder(generations: Generations, folder: Path, content: str) -> None:
    folder.mkdir(parents=True)
    (folder / "CURRENT").write_text(content)
    assert generations.current() is None
    assert generations.open_reader() is None

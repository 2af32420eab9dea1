"""Files of an index that a disk, a person or another version spoilt: each is mended or left alone, and said."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.generations import Generations
from memory.search.manager import get_search_manager
from memory.store.options import StoreOptions
from memory.store.sqlite.schema import FIRST_SCHEMA_NUMBER, PAGE_SIZE, SCHEMA_NUMBER
from schemas.documents import DocumentKey, Lane
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.daemon import recalld
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent

pytestmark = pytest.mark.usefixtures("broker_server")


@pytest.fixture
def paying(settings: Settings, server: EmbeddingServer) -> Settings:
    """One agent whose vectors are paid for, with transcripts."""
    sessions = settings.home.parent / "sessions"
    sessions.mkdir()
    return with_agent(asking(settings, server.url), sessions=[str(sessions)])


def fill(workers: Workers, settings: Settings) -> None:
    """Two notes, and a transcript that vanishes once it was read: only the index knows it then."""
    talk = settings.home.parent / "sessions" / "gone.jsonl"
    said = {"role": "user", "content": "The password was whispered to the walrus."}
    talk.write_text(f"{json.dumps(said)}\n", "utf-8")
    for number, bird in enumerate(["heron", "otter"]):
        workers.note(f"memory/{number}.md", f"The {bird} stands in the reeds.\n")
    workers.queue.mark_changed("main", [DocumentKey("sessions", "sessions/gone.jsonl")], lane=Lane.LIVE)
    wait_until(lambda: workers.complete() and workers.counts().files == 3)
    talk.unlink()


def folder_of(settings: Settings) -> Path:
    return settings.indexes_path / "main"


def index_file(settings: Settings) -> Path:
    name = Generations.of(settings, settings.agents[0].id).current()
    assert name is not None
    return folder_of(settings) / name


def found(settings: Settings, words: str) -> tuple[list[str], str]:
    """The paths that a search finds, and what it says is wrong."""
    # By keywords: what is asked for is not paid.
    manager, reason = get_search_manager(with_agent(settings, provider="none"), "main")
    assert manager is not None, reason
    try:
        answer = manager.search(SearchRequest(query=words, min_score=0.0))
    finally:
        manager.close()
    return [result.path for result in answer.results], answer.error or "; ".join(answer.degraded)


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(b"", id="empty"),
        pytest.param(None, id="gone"),
        pytest.param(b"../../etc/passwd\n", id="path", marks=pytest.mark.long),
    ],
)
def test_a_lost_pointer_is_put_back_and_nothing_that_only_the_index_knew_is_lost(
    paying: Settings, server: EmbeddingServer, spoilt: bytes | None
) -> None:
    with Workers(paying) as workers:
        fill(workers, paying)
    file = index_file(paying)
    pointer = folder_of(paying) / "CURRENT"
    if spoilt is not None:
        pointer.write_bytes(spoilt)
    else:
        pointer.unlink()
    paths, said = found(paying, "walrus")
    assert not paths
    assert said, "it does not look like a memory that never knew"
    writer = FileGenerationWriter(folder_of(paying), StoreOptions())
    writer.sweep(older_than_seconds=0.0, kept_corrupt=0)
    writer.sweep(older_than_seconds=0.0, kept_corrupt=None)
    assert file.exists(), "it is not swept for want of a pointer"
    with Workers(paying) as workers:
        workers.note("memory/2.md", "A stork came.\n")
        wait_until(lambda: workers.complete() and workers.finds("stork"))
        assert workers.counts().files == 4
    assert index_file(paying) == file
    assert found(paying, "walrus")[0] == ["sessions/gone.jsonl"]
    assert server.inputs == server.distinct == 4


def over_its_pages(file: Path) -> None:
    chance = random.Random(4)
    content = bytearray(file.read_bytes())
    for start in range(PAGE_SIZE, len(content), PAGE_SIZE):
        content[start : start + 64] = chance.randbytes(64)
    file.write_bytes(content)


def without_meta(file: Path) -> None:
    execute(file, "DROP TABLE meta")


def execute(file: Path, statement: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(statement)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()


@pytest.mark.long
@pytest.mark.parametrize("spoil", [over_its_pages, without_meta])
def test_a_damaged_index_is_replaced_from_the_files_and_the_cache(
    paying: Settings, server: EmbeddingServer, spoil: Callable[[Path], None]
) -> None:
    with Workers(paying) as workers:
        fill(workers, paying)
    file = index_file(paying)
    spoil(file)
    found(paying, "heron")  # an answer, whatever it says
    with Workers(paying) as workers:
        workers.write("memory/2.md", "A stork came.\n")
        workers.mark("memory/2.md", "memory/0.md", "memory/1.md")
        wait_until(lambda: workers.complete() and all(workers.finds(bird) for bird in ("stork", "heron", "otter")))
        wait_until(lambda: Generations.of(paying, paying.agents[0].id).next() is None)
        wait_until(lambda: not workers.conditions(), what="nothing is said to be wrong any more")
        with workers.reading("main") as reader:
            assert reader is not None
            assert reader.check() == []
    assert index_file(paying) != file
    assert server.inputs == server.distinct == 4


def environment_of(settings: Settings, server: EmbeddingServer) -> dict[str, str]:
    """The settings as variables, for a command."""
    sessions = str(settings.home.parent / "sessions")
    return {
        "RECALLD_PROVIDER": "openai",
        "RECALLD_REMOTE__BASE_URL": server.url,
        "RECALLD_REMOTE__API_KEY": "a-key",
        "RECALLD_AGENTS": json.dumps(
            [{"id": "main", "workspace": str(settings.agents[0].workspace), "sessions": [sessions]}]
        ),
    }


@pytest.mark.parametrize("number", [SCHEMA_NUMBER + 1, FIRST_SCHEMA_NUMBER - 1])
def test_an_index_of_another_format_is_said_and_built_anew_without_losing_or_paying(
    paying: Settings, server: EmbeddingServer, number: int
) -> None:
    with Workers(paying) as workers:
        fill(workers, paying)
    file, paid = index_file(paying), server.inputs
    execute(file, f"PRAGMA user_version = {number}")
    (paying.home / "cache" / "embeddings.sqlite").unlink()
    paths, said = found(paying, "heron")
    assert (paths, said.count(str(file))) == ([], 1)
    environment = environment_of(paying, server)
    foreseen = recalld("index", "--dry-run", "--json", home=paying.home, environment=environment)
    assert json.loads(foreseen.stdout)["agents"][0]["toEmbed"] == 0
    ran = recalld("index", home=paying.home, environment=environment)
    assert (ran.returncode, ran.stderr.count(str(file))) == (0, 1), ran.stderr
    assert found(paying, "heron")[0] == ["memory/0.md"]
    assert found(paying, "walrus")[0] == ["sessions/gone.jsonl"]
    assert not file.exists()
    assert server.inputs == paid
    again = recalld("index", "--json", home=paying.home, environment=environment)
    assert json.loads(again.stdout)["agents"][0]["vectorsReady"] == 3
    assert "format" not in again.stderr


def test_an_index_that_cannot_be_taken_over_stays_until_a_person_moves_it_away(
    paying: Settings, server: EmbeddingServer
) -> None:
    with Workers(paying) as workers:
        fill(workers, paying)
    file = index_file(paying)
    execute(file, f"PRAGMA user_version = {SCHEMA_NUMBER + 1}; ALTER TABLE chunks RENAME COLUMN text TO words")
    content = file.read_bytes()
    with Workers(paying) as workers:
        workers.note("memory/2.md", "A stork came.\n")
        wait_until(lambda: any("move it away" in str(one.params.get("error")) for one in workers.conditions().values()))
        assert file.read_bytes() == content
        file.rename(paying.home / "away.sqlite")
        wait_until(lambda: workers.complete() and workers.finds("stork"))
    assert server.inputs == server.distinct == 4

"""Chunks in scripts that the model does not read: complete without a request and a vector."""

from __future__ import annotations

import apsw
import pytest

from memory.embedding.providers.stub import StubProvider
from memory.index.completion import complete_generation, fill_sentences, fill_vectors
from memory.index.indexer import Indexer, IndexReport
from schemas.documents import Lane
from tests.indexing import FAST, World
from tests.storing import key
from tests.transcript_files import message_line

GREEK = "Ο ερωδιός στέκεται στα καλάμια της λίμνης και φεύγει για το μόλο όταν πέφτει η νύχτα."
ENGLISH = "The heron stands in the reeds until the sun has set, and leaves for the mole when the night has fallen."
NOTES = {"memory/greek.md": GREEK, "memory/english.md": f"{ENGLISH} {GREEK}"}

UNREAD_CHUNK = "INSERT INTO chunks VALUES (99, 99, 1, 1, 1, 'unread', '', 'Greek', '', NULL)"


def index(indexer: Indexer) -> IndexReport:
    report = indexer.index(map(key, NOTES), lane=Lane.LIVE, on_done=lambda _: None)
    assert not fill_vectors(indexer, seconds=60).left
    return report


@pytest.fixture
def latin(world: World) -> StubProvider:
    """A model that reads Latin letters, with the identity of a model that reads every script."""
    for path, text in NOTES.items():
        world.write(path, text)
    provider = StubProvider(limits=FAST)
    provider.scripts = frozenset({"LATIN"})
    return provider


def test_what_a_model_cannot_read_is_complete_without_a_vector(world: World, latin: StubProvider) -> None:
    world.write("memory/greek.md", "\n".join([GREEK] * 1_200))
    indexer = world.indexer(latin, chunking={"tokens": 100, "overlap": 0})
    report, store = index(indexer), indexer.target()
    assert not fill_sentences(indexer, seconds=60)
    counts = store.counts()
    assert counts.chunks > 500, "the long note takes more than a commit"
    assert (counts.vectors_ready, counts.vectors_pending, counts.vectors_refused) == (1, 0, 0)
    assert (report.cache_misses, store.dead_letters(), store.sentence_counts(), store.check()) == (1, [], (1, 1), [])
    assert not [text for batch in latin.batches for text in batch if latin.unread_script(text)]


def test_a_rebuild_leaves_the_vectors_of_an_older_version_in_the_cache(world: World, latin: StubProvider) -> None:
    (gone := world.sessions / "gone.jsonl").write_bytes(message_line("plain", "user", GREEK))
    former = world.indexer(StubProvider(limits=FAST))
    talk = next(document for document in former.files.scan().documents if document.is_transcript)
    former.index([talk], lane=Lane.LIVE, on_done=lambda _: None)
    index(former)
    assert former.target().counts().vectors_ready == 3
    gone.unlink()
    indexer = world.indexer(latin, chunking={"tokens": 400, "overlap": 40})
    index(indexer)
    assert complete_generation(indexer)
    counts = indexer.target().counts()
    assert (counts.vectors_ready, counts.vectors_pending, latin.inputs) == (1, 0, 0)
    assert indexer.target().unread_scripts() == {"Greek": 2}, "with the transcript that only the old index held"


def test_an_older_index_takes_unread_chunks_while_others_have_it_open(world: World, latin: StubProvider) -> None:
    indexer = world.indexer(latin)
    old = apsw.Connection(str(indexer.generations.folder / indexer.target().name))
    indexer.close()
    old.execute("DROP INDEX chunks_unread; PRAGMA user_version = 5; PRAGMA writable_schema = ON")
    old.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, ', ''unread'', ''held''', ''); PRAGMA writable_schema = RESET"
    )
    with pytest.raises(apsw.ConstraintError):
        old.execute(UNREAD_CHUNK)
    upgraded = world.indexer(latin)
    index(upgraded)
    assert upgraded.target().unread_scripts() == {"Greek": 1}
    old.execute(UNREAD_CHUNK)

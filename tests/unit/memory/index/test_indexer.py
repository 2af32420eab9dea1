"""Bringing documents into an index: what is read, embedded and committed, and what failures leave behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.selection import ProviderChoice
from memory.embedding.supply import EmbeddingSupply
from memory.index import changes as planned_groups
from memory.index import indexer as indexing
from memory.index import planner as document_planning
from memory.index.completion import differences
from memory.index.generation_writer import GenerationWriter
from memory.index.indexer import Indexer, IndexReport
from memory.index.vector_fill import FillReport, fill_vectors
from memory.store.options import StoreOptions
from schemas.documents import DocumentKey, Lane
from schemas.errors import Terminal, Transient
from schemas.settings import AgentSettings

FAST = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)
SLOW = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=1, chunks_per_second=0.01)


class World:
    """One agent with its workspace, its index folder and the provider that it pays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        (self.workspace / "memory").mkdir(parents=True)
        self.cache = EmbeddingCache(folder / "embeddings.sqlite")
        self.open: list[Indexer] = []

    def indexer(
        self, provider: StubProvider | None = None, *, agent: str = "main", error: str | None = None, tokens: int = 400
    ) -> Indexer:
        settings = AgentSettings.model_validate(
            {"id": agent, "workspace": self.workspace, "provider": "stub", "chunking": {"tokens": tokens, "overlap": 0}}
        )
        choice = ProviderChoice(provider, "stub", "stub" if provider else "none", None, error)
        made = Indexer(
            settings,
            files=AgentFiles(settings),
            generations=GenerationWriter(self.folder / "indexes" / agent, StoreOptions()),
            supply=EmbeddingSupply(choice, self.cache),
        )
        self.open.append(made)
        return made

    def write(self, path: str, text: str) -> DocumentKey:
        (self.workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (self.workspace / path).write_text(text, encoding="utf-8")
        return DocumentKey("memory", path)

    def close(self) -> None:
        for indexer in self.open:
            indexer.supply.close()
            indexer.generations.close()
        self.cache.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def index(indexer: Indexer, *keys: DocumentKey) -> tuple[IndexReport, list[DocumentKey]]:
    done: list[DocumentKey] = []
    report = indexer.index(keys, lane=Lane.LIVE, on_done=done.extend)
    return report, done


def fill(indexer: Indexer) -> FillReport:
    return fill_vectors(
        indexer.target(),
        indexer.supply,
        agent="main",
        seconds=10,
        held=indexer.held_vectors,
        on_ready=lambda _count, _seconds: None,
    )


def test_a_document_gets_its_chunks_keywords_and_vectors_in_one_commit(world: World) -> None:
    indexer = world.indexer(StubProvider(limits=FAST))
    report, done = index(indexer, key := world.write("MEMORY.md", "The gateway listens on 18789.\n"))
    store = indexer.target()
    assert (report.documents, report.added, report.vectors_missing, done) == (1, 1, 0, [key])
    assert store.meta("transactions") == "1"
    assert store.counts().vectors_ready == 1
    assert len(store.search_text("gateway", 5)) == 1
    assert store.check() == []


def test_an_unchanged_file_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = world.indexer(StubProvider(limits=FAST))
    index(indexer, key := world.write("MEMORY.md", "Same.\n"))

    def read(_key: DocumentKey) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(indexer.files, "read", read)
    report, done = index(indexer, key)
    assert (report.unchanged, done) == (1, [key])


def test_a_file_that_was_only_touched_is_remembered_and_not_embedded(world: World) -> None:
    provider = StubProvider(limits=FAST)
    indexer = world.indexer(provider)
    index(indexer, key := world.write("MEMORY.md", "Same.\n"))
    os.utime(world.workspace / "MEMORY.md", (1, 1))
    report, _ = index(indexer, key)
    assert report.unchanged == 1
    assert indexer.target().file(key).stat.mtime_ns == 1_000_000_000  # type: ignore[union-attr]
    assert provider.inputs == 1
    assert differences(indexer) == []


def test_an_edit_embeds_only_what_it_changed(world: World) -> None:
    provider = StubProvider(limits=FAST)
    indexer = world.indexer(provider, tokens=64)
    parts = [f"# Part {n}\n\n" + f"word{n} " * 30 + "\n\n" for n in range(8)]
    index(indexer, key := world.write("memory/long.md", "".join(parts)))
    before, ids = provider.inputs, {chunk.id for chunk in indexer.target().chunks_of(key)}
    parts[3] = parts[3].replace("word3 word3", "changed", 1)
    world.write("memory/long.md", "".join(parts))
    report, _ = index(indexer, key)
    assert report.added == report.removed == provider.inputs - before == 1
    assert len(ids & {chunk.id for chunk in indexer.target().chunks_of(key)}) == len(ids) - 1


def test_keywords_do_not_wait_for_a_slow_model(world: World) -> None:
    provider = StubProvider(limits=SLOW)
    indexer = world.indexer(provider)
    report, done = index(indexer, key := world.write("MEMORY.md", "The gateway waits for nobody.\n"))
    assert (report.vectors_missing, done, provider.inputs) == (1, [key], 0)
    assert len(indexer.target().search_text("gateway", 5)) == 1
    assert indexer.target().check() == []
    assert fill(indexer).ready == 1
    assert indexer.target().counts().vectors_pending == 0


@pytest.mark.parametrize("error", [Transient("overloaded", retry_after=60), Terminal("the key is refused")])
def test_a_provider_that_fails_leaves_the_keywords(world: World, error: Exception) -> None:
    provider = StubProvider(limits=FAST)
    provider.answer_next(error)
    indexer = world.indexer(provider)
    report, done = index(indexer, key := world.write("MEMORY.md", "Found by keyword.\n"))
    assert (report.vectors_missing, done) == (1, [key])
    assert len(indexer.target().search_text("keyword", 5)) == 1
    filled = fill(indexer)
    assert isinstance(filled.error, type(error))
    assert filled.left


def test_the_letter_of_a_document_that_was_never_indexed_goes_with_its_file(world: World) -> None:
    indexer = world.indexer()
    good, gone = world.write("memory/good.md", "fine\n"), DocumentKey("memory", "memory/gone.md")
    index(indexer, good)
    indexer.target().add_dead_letter(gone, reason="permission denied", error_class="DocumentUnreadable")
    (world.workspace / "memory").rename(world.workspace.with_name("unmounted"))
    world.workspace.rmdir()
    index(indexer, gone)
    assert len(indexer.target().dead_letters()) == 1, "where nothing can be seen nothing is known to be gone"
    world.workspace.mkdir()
    world.workspace.with_name("unmounted").rename(world.workspace / "memory")
    _, done = index(indexer, gone)
    assert (indexer.target().dead_letters(), done) == ([], [gone])


def test_one_bad_document_is_a_dead_letter_and_the_rest_is_indexed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexer = world.indexer(StubProvider(limits=FAST))
    good, bad = world.write("memory/good.md", "Good.\n"), world.write("memory/bad.md", "Bad poison.\n")
    cut = document_planning.cut_document

    def poisoned(text: str, *arguments: object) -> object:
        if "poison" in text:
            raise ZeroDivisionError("nobody foresaw this")
        return cut(text, *arguments)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(document_planning, "cut_document", poisoned)
    report, done = index(indexer, bad, good)
    assert (report.failed, report.documents, sorted(done)) == (1, 1, sorted([bad, good]))
    (letter,) = indexer.target().dead_letters()
    assert (letter.key, letter.error_class) == (bad, "ZeroDivisionError")
    assert "nobody foresaw this" in letter.reason
    assert differences(indexer) == []
    monkeypatch.setattr(document_planning, "cut_document", cut)
    index(indexer, bad)
    assert indexer.target().dead_letters() == []


def test_a_document_that_somebody_else_committed_meanwhile_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (world.indexer(StubProvider(limits=FAST)) for _ in range(2))
    key = world.write("MEMORY.md", "Old version.\n")
    read, reads = first.files.read, 0

    def interrupted(wanted: DocumentKey) -> object:
        nonlocal reads
        source = read(wanted)
        reads += 1
        if reads == 1:
            # Between our reading and our commit the file changes, and another worker is faster.
            world.write("MEMORY.md", "New version of the text.\n")
            index(second, wanted)
        return source

    monkeypatch.setattr(first.files, "read", interrupted)
    report, done = index(first, key)
    assert (reads, done) == (1, [key]), "the other worker's commit is up to date: there is nothing to read"
    assert report.unchanged == 1
    (row,) = first.target().chunk_rows([hit.id for hit in first.target().search_text("version", 5)]).values()
    assert row.text.startswith("New version")


def test_a_deleted_note_is_forgotten_but_not_one_whose_root_is_away(world: World) -> None:
    indexer = world.indexer(StubProvider(limits=FAST))
    key = world.write("memory/a.md", "Here.\n")
    index(indexer, key)
    away = world.workspace.rename(world.folder / "unmounted")
    index(indexer, key)
    assert indexer.target().counts().files == 1
    away.rename(world.workspace)
    (world.workspace / "memory" / "a.md").unlink()
    report, _ = index(indexer, key)
    assert report.deleted == 1
    assert indexer.target().counts().chunks == 0


def test_a_very_large_document_gets_its_keywords_whole_and_its_vectors_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "MAX_CHUNKS_PER_COMMIT", 5)
    monkeypatch.setattr(planned_groups, "MAX_CHUNKS_PER_COMMIT", 5)
    indexer = world.indexer(StubProvider(limits=FAST), tokens=32)
    text = "".join(f"# Part {n}\n\n" + f"word{n} " * 15 + "\n\n" for n in range(9))
    report, _ = index(indexer, world.write("memory/large.md", text))
    assert report.added == report.vectors_missing > 5
    assert fill(indexer).ready == report.added


@pytest.mark.parametrize("limits", [FAST, SLOW])
def test_a_text_counts_once_in_the_hit_rate_whenever_its_vector_comes(world: World, limits: ProviderLimits) -> None:
    key = world.write("MEMORY.md", "One text, two agents.\n")
    first = world.indexer(StubProvider(limits=limits), agent="one")
    index(first, key)
    fill(first)
    fill(first)
    assert first.supply.take_looks() == Counter(miss=1)
    second = world.indexer(StubProvider(limits=limits), agent="two")
    index(second, key)
    fill(second)
    assert second.supply.take_looks() == Counter(hit=1)
    assert not second.supply.take_looks()


def test_a_missing_key_does_not_throw_vectors_away(world: World) -> None:
    key = world.write("MEMORY.md", "Paid for.\n")
    index(world.indexer(StubProvider(limits=FAST)), key)
    without = world.indexer(None, error="OPENAI_API_KEY is not set")
    report, _ = index(without, key, world.write("memory/new.md", "New and without a vector.\n"))
    assert without.generations.next() is None, "no new generation is built"
    assert (report.unchanged, report.documents) == (1, 1)
    counts = without.target().counts()
    assert (counts.vectors_ready, counts.vectors_pending) == (1, 1)
    assert not fill(without).left, "a job that cannot do anything must not ask for another one"


def test_refused_texts_are_recorded_and_do_not_wait_for_ever(world: World) -> None:
    provider = StubProvider(limits=SLOW)
    indexer = world.indexer(provider)
    index(indexer, world.write("MEMORY.md", "Fine.\n"), world.write("memory/no.md", "Refused.\n"))
    refuse: Callable[[Sequence[str]], object] = refusing("Refused.")
    provider.embed_documents = refuse(provider.embed_documents)  # type: ignore[method-assign, assignment, operator]
    report = fill(indexer)
    assert (report.ready, report.refused, report.left) == (1, 1, False)
    assert indexer.target().counts().vectors_refused == 1
    (letter,) = indexer.target().dead_letters()
    assert (letter.key.path, letter.reason) == ("memory/no.md", "line 1: this text is refused")


def test_an_edit_of_a_document_with_refused_parts_is_a_difference_like_any_other(world: World) -> None:
    provider = StubProvider(limits=FAST)
    refuse: Callable[[Sequence[str]], object] = refusing("Refused.")
    provider.embed_documents = refuse(provider.embed_documents)  # type: ignore[method-assign, assignment, operator]
    indexer = world.indexer(provider)
    key = world.write("memory/no.md", "Refused.\n")
    index(indexer, key)
    assert (len(indexer.target().dead_letters()), differences(indexer)) == (1, [])
    world.write("memory/no.md", "Refused.\n\nAnd more.\n")
    assert differences(indexer) == [key]


def refusing(text: str) -> Callable[..., Callable[[Sequence[str]], object]]:
    from schemas.errors import Permanent

    def around(embed: Callable[[Sequence[str]], object]) -> Callable[[Sequence[str]], object]:
        def embed_or_refuse(texts: Sequence[str]) -> object:
            if any(text in one for one in texts):
                raise Permanent("this text is refused")
            return embed(texts)

        return embed_or_refuse

    return around

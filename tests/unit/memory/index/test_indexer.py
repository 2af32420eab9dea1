"""Bringing documents into an index: what is read, embedded and committed, and what failures leave behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from memory.embedding.providers.provider import Embeddings, ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.index import changes as planned_groups
from memory.index import indexer as indexing
from memory.index import planner as document_planning
from memory.index.completion import differences
from memory.index.indexer import Indexer, IndexReport
from memory.index.vector_fill import FillReport, fill_vectors
from schemas.documents import DocumentKey, Lane
from schemas.errors import Permanent, Terminal, Transient
from tests.indexing import FAST, SLOW, World


class Refusing(StubProvider):
    """Provider that refuses some texts."""

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        if any("Refused." in text for text in texts):
            raise Permanent("this text is refused")
        return super().embed_documents(texts)


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


def test_a_document_comes_in_one_commit_and_is_neither_read_nor_paid_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    provider = StubProvider(limits=FAST)
    indexer = world.indexer(provider)
    report, done = index(indexer, key := world.write("MEMORY.md", "The gateway listens on 18789.\n"))
    store = indexer.target()
    assert (report.documents, report.added, report.vectors_missing, done) == (1, 1, 0, [key])
    assert (store.meta("transactions"), store.counts().vectors_ready) == ("1", 1)
    assert (len(store.search_text("gateway", 5)), store.check()) == (1, [])

    os.utime(world.workspace / "MEMORY.md", (1, 1))
    assert index(indexer, key)[0].unchanged == 1
    known = store.file(key)
    assert known is not None
    assert (known.stat.mtime_ns, provider.inputs, differences(indexer)) == (1_000_000_000, 1, [])

    def read(_key: DocumentKey) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(indexer.files, "read", read)
    report, done = index(indexer, key)
    assert (report.unchanged, done) == (1, [key])


def test_an_edit_embeds_only_what_it_changed(world: World):
    provider = StubProvider(limits=FAST)
    indexer = world.indexer(provider, chunking={"tokens": 64, "overlap": 0})
    parts = [f"# Part {n}\n\n" + f"word{n} " * 30 + "\n\n" for n in range(8)]
    index(indexer, key := world.write("memory/long.md", "".join(parts)))
    before, ids = provider.inputs, {chunk.id for chunk in indexer.target().chunks_of(key)}
    parts[3] = parts[3].replace("word3 word3", "changed", 1)
    world.write("memory/long.md", "".join(parts))
    report, _ = index(indexer, key)
    assert report.added == report.removed == provider.inputs - before == 1
    assert len(ids & {chunk.id for chunk in indexer.target().chunks_of(key)}) == len(ids) - 1


def test_keywords_do_not_wait_for_a_slow_model(world: World):
    provider = StubProvider(limits=SLOW)
    indexer = world.indexer(provider)
    report, done = index(indexer, key := world.write("MEMORY.md", "The gateway waits for nobody.\n"))
    assert (report.vectors_missing, done, provider.inputs) == (1, [key], 0)
    assert (len(indexer.target().search_text("gateway", 5)), indexer.target().check()) == (1, [])
    assert fill(indexer).ready == 1
    assert indexer.target().counts().vectors_pending == 0


@pytest.mark.parametrize("error", [Transient("overloaded", retry_after=60), Terminal("the key is refused")])
def test_a_provider_that_fails_leaves_the_keywords(world: World, error: Exception):
    class Failing(StubProvider):
        def embed_documents(self, texts: Sequence[str]) -> Embeddings:
            raise error

    indexer = world.indexer(Failing(limits=FAST))
    report, done = index(indexer, key := world.write("MEMORY.md", "Found by keyword.\n"))
    assert (report.vectors_missing, done) == (1, [key])
    assert len(indexer.target().search_text("keyword", 5)) == 1
    filled = fill(indexer)
    assert isinstance(filled.error, type(error))
    assert filled.left


def test_what_is_not_to_be_seen_is_kept_and_what_is_deleted_goes_with_its_letter(world: World):
    indexer = world.indexer()
    known, failed = world.write("memory/a.md", "Here.\n"), DocumentKey("memory", "memory/failed.md")
    index(indexer, known, world.write("memory/b.md", "Stays.\n"))
    store = indexer.target()
    store.add_dead_letter(failed, reason="permission denied", error_class="DocumentUnreadable")
    away = world.workspace.rename(world.folder / "unmounted")
    index(indexer, known, failed)
    assert (store.counts().files, len(store.dead_letters())) == (2, 1)
    away.rename(world.workspace)
    (world.workspace / known.path).unlink()
    report, done = index(indexer, known, failed)
    assert (report.deleted, sorted(done)) == (1, [known, failed])
    assert (store.counts().chunks, store.dead_letters()) == (1, [])


def test_one_bad_document_is_a_dead_letter_and_the_rest_is_indexed(world: World, monkeypatch: pytest.MonkeyPatch):
    indexer = world.indexer()
    good, bad = world.write("memory/good.md", "Good.\n"), world.write("memory/bad.md", "Bad poison.\n")
    cut = document_planning.cut_document

    def poisoned(text: str, *arguments: Any) -> Any:
        if "poison" in text:
            raise ZeroDivisionError("nobody foresaw this")
        return cut(text, *arguments)

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


def test_a_document_that_somebody_else_committed_meanwhile_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch):
    first, second = world.indexer(), world.indexer()
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


def test_a_very_large_document_gets_its_keywords_whole_and_its_vectors_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(indexing, "MAX_CHUNKS_PER_COMMIT", 5)
    monkeypatch.setattr(planned_groups, "MAX_CHUNKS_PER_COMMIT", 5)
    indexer = world.indexer(chunking={"tokens": 32, "overlap": 0})
    text = "".join(f"# Part {n}\n\n" + f"word{n} " * 15 + "\n\n" for n in range(9))
    report, _ = index(indexer, world.write("memory/large.md", text))
    assert report.added == report.vectors_missing > 5
    assert fill(indexer).ready == report.added


@pytest.mark.parametrize("limits", [FAST, SLOW])
def test_a_text_counts_once_in_the_hit_rate_whenever_its_vector_comes(world: World, limits: ProviderLimits):
    key = world.write("MEMORY.md", "One text, two agents.\n")
    for agent, looks in (("one", Counter(miss=1)), ("two", Counter(hit=1))):
        indexer = world.indexer(limits=limits, name=agent)
        index(indexer, key)
        fill(indexer)
        fill(indexer)
        assert (indexer.supply.take_looks(), indexer.supply.take_looks()) == (looks, Counter())


def test_a_missing_key_does_not_throw_vectors_away(world: World):
    key = world.write("MEMORY.md", "Paid for.\n")
    index(world.indexer(), key)
    without = world.indexer(error="OPENAI_API_KEY is not set")
    report, _ = index(without, key, world.write("memory/new.md", "New and without a vector.\n"))
    assert without.generations.next() is None, "no new generation is built"
    counts = without.target().counts()
    assert (report.unchanged, report.documents, counts.vectors_ready, counts.vectors_pending) == (1, 1, 1, 1)
    assert not fill(without).left, "a job that cannot do anything must not ask for another one"


@pytest.mark.parametrize("limits", [FAST, SLOW])
def test_refused_texts_are_recorded_and_an_edit_of_their_document_is_a_difference_like_any_other(
    world: World, limits: ProviderLimits
):
    indexer = world.indexer(Refusing(limits=limits))
    index(indexer, world.write("MEMORY.md", "Fine.\n"), key := world.write("memory/no.md", "Refused.\n"))
    report, counts = fill(indexer), indexer.target().counts()
    assert (counts.vectors_ready, counts.vectors_refused, report.left) == (1, 1, False)
    (letter,) = indexer.target().dead_letters()
    assert (letter.key, letter.reason, differences(indexer)) == (key, "line 1: this text is refused", [])
    world.write("memory/no.md", "Refused.\n\nAnd more.\n")
    assert differences(indexer) == [key]

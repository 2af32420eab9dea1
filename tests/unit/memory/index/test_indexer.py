"""Bringing documents into an index: what is read, embedded and committed, and what failures leave behind."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from memory.embedding.coordination import Coordination
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter
from memory.index.completion import FEWEST, FillReport, fill_vectors, lacking_documents
from memory.index.indexer import Indexer, IndexReport
from schemas.documents import DocumentKey, Lane
from tests.indexing import FAST, SLOW, World


def index(indexer: Indexer, *keys: DocumentKey) -> tuple[IndexReport, list[DocumentKey]]:
    done: list[DocumentKey] = []
    report = indexer.index(keys, lane=Lane.LIVE, on_done=done.extend)
    return report, done


def fill(indexer: Indexer) -> FillReport:
    return fill_vectors(indexer, seconds=10)


def test_a_report_counts_new_texts_that_the_cache_had_and_that_it_lacked(world: World) -> None:
    indexer = world.indexer(StubProvider(limits=FAST))
    key = world.write("MEMORY.md", "The gateway listens on 18789.\n")
    bought = index(indexer, key)[0]
    copied = index(indexer, world.write("memory/copy.md", "The gateway listens on 18789.\n"))[0]
    unchanged = index(indexer, key)[0]
    assert [(run.cache_hits, run.cache_misses) for run in (bought, copied, unchanged)] == [(0, 1), (1, 0), (0, 0)]


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
    assert (known.stat.mtime_ns, provider.inputs, lacking_documents(indexer)) == (1_000_000_000, 1, [])

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


def test_under_a_limit_each_request_is_full_however_slow_the_provider_is(world: World) -> None:
    provider = StubProvider(limits=replace(SLOW, inputs=100, requests_per_minute=5))
    indexer = world.indexer(provider, coordinate=lambda _provider: Coordination(RateLimiter(provider.limits)))
    keys = [world.write(f"memory/{number}.md", f"Note {number}\n") for number in range(250)]
    indexer.index(keys, lane=Lane.BACKFILL, on_done=lambda _keys: None)
    assert provider.batches == [], "old texts wait until a request is full"
    assert fill(indexer).ready == 250
    assert list(map(len, provider.batches)) == [100, 100, 50]


def test_gentle_rounds_are_small_however_fast_the_provider_is(world: World) -> None:
    provider = StubProvider(limits=replace(SLOW, inputs=256, chunks_per_second=1e4))
    keys = [world.write(f"memory/{number}.md", f"Note {number}\n") for number in range(3 * FEWEST)]
    world.indexer(lacking="OPENAI_API_KEY is not set").index(keys, lane=Lane.BACKFILL, on_done=lambda _keys: None)
    assert fill_vectors(world.indexer(provider), seconds=60, is_gentle=lambda: True).ready == len(keys)
    assert list(map(len, provider.batches)) == [FEWEST] * 3


def test_a_live_text_whose_patience_ends_is_embedded_before_old_ones(world: World) -> None:
    provider = StubProvider(limits=SLOW)
    indexer = world.indexer(provider)
    old, new, more = (world.write(f"memory/{name}.md", f"The {name} note\n") for name in ("old", "new", "more"))
    for key, lane in ((old, Lane.BACKFILL), (new, Lane.LIVE), (more, Lane.BACKFILL)):
        indexer.index([key], lane=lane, on_done=lambda _keys: None)
    assert fill_vectors(indexer, seconds=10, most=1).ready == 3
    assert provider.batches == [["The new note\n"], ["The old note\n"], ["The more note\n"]]


def test_a_missing_key_does_not_throw_vectors_away(world: World):
    key = world.write("MEMORY.md", "Paid for.\n")
    index(world.indexer(), key)
    without = world.indexer(lacking="OPENAI_API_KEY is not set")
    report, _ = index(without, key, world.write("memory/new.md", "New and without a vector.\n"))
    assert without.generations.next() is None, "no new generation is built"
    counts = without.target().counts()
    assert (report.unchanged, report.documents, counts.vectors_ready, counts.vectors_pending) == (1, 1, 1, 1)
    assert not fill(without).left, "a job that cannot do anything must not ask for another one"


@pytest.mark.parametrize("away", [".", "memory"])
def test_what_is_not_to_be_seen_is_kept_and_what_is_deleted_goes_with_its_letter(world: World, away: str):
    indexer = world.indexer()
    known, failed = world.write("memory/a.md", "Here.\n"), DocumentKey("memory", "memory/failed.md")
    index(indexer, known, world.write("memory/b.md", "Stays.\n"))
    store = indexer.target()
    store.add_dead_letter(failed, reason="permission denied", error_class="DocumentUnreadable")
    (world.workspace / known.path).unlink()
    folder = (world.workspace / away).resolve()
    unmounted = folder.rename(world.folder / "unmounted")
    report, done = index(indexer, known, failed)
    assert (report.deleted, sorted(done), store.counts().files) == (0, [known, failed], 2)
    assert len(store.dead_letters()) == (away == "."), "a letter of what was never indexed needs its workspace"
    unmounted.rename(folder)
    report, done = index(indexer, known, failed)
    assert (report.deleted, sorted(done)) == (1, [known, failed])
    assert (store.counts().chunks, store.dead_letters()) == (1, [])

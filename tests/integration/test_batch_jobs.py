"""Backfills through a provider's Batch API, with real workers: every text is paid once, whatever happens."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from memory.chunking.chunker import estimate_tokens
from memory.embedding.batch_jobs.batch_ledger import MOST_JOBS, BatchJob, Stage
from memory.embedding.batch_jobs.batch_step import BatchTiming
from memory.embedding.batch_jobs.ledger_reader import ledger_path
from memory.embedding.consent import Consents
from memory.index.provider import provider_of
from schemas.conditions import ConditionCode, StopReason
from schemas.documents import Lane
from schemas.settings import Settings
from tests.batch_server import BatchServer, GeminiServer, JobScript
from tests.storing import ledger_at
from tests.waiting import wait_until
from tests.working import Workers
from workers.batch_jobs import FEWEST_TEXTS
from workers.index_job import CLAIM
from workers.queue.job_queue import queued_jobs
from workers.queue.names import EMBED_PENDING
from workers.runtime import Timing

NOTES = FEWEST_TEXTS

#: Failed calls and missing jobs are looked at again within tenths of a second.
SOON = Timing(batch=BatchTiming(unseen=0.0, shortest_pause=0.1, longest_pause=0.1))
SOON_LOST = Timing(batch=BatchTiming(unseen=0.0, shortest_pause=0.1, longest_pause=0.1, missing=0.2, late=1.0))

pytestmark = pytest.mark.usefixtures("pauses", "broker_server")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[BatchServer]:
    callspec = getattr(request.node, "callspec", None)
    gemini = callspec is not None and callspec.params.get("provider") == "gemini"
    with GeminiServer() if gemini else BatchServer() as running:
        yield running


Make = Callable[..., Settings]


@pytest.fixture
def make(settings: Settings, server: BatchServer) -> Make:
    """Settings of one agent whose vectors come from the server, by batch jobs."""

    def made(
        *,
        provider: str = "openai",
        model: str | None = None,
        key: str = "a-key",
        price: float | None = None,
        **batch: Any,
    ) -> Settings:
        remote = {
            "base_url": server.url,
            "api_key": key,
            "price_per_million_tokens": price,
            "batch": {"enabled": True, "poll_interval_ms": 100, **batch},
        }
        common = {"provider": provider, "model": model, "remote": remote}
        agent = {"id": "main", "workspace": settings.agents[0].workspace, **common}
        return Settings.model_validate({"home": settings.home, "agents": [agent], "cost": {"ask_above": 0}, **common})

    return made


def _backfill(workers: Workers, count: int = NOTES, *, first: int = 0) -> Counter[str]:
    """Write and mark so many notes; returns the texts that are to be paid for, once each."""
    paths = [f"memory/{number}.md" for number in range(first, first + count)]
    for number, path in enumerate(paths, first):
        workers.write(path, f"The heron number {number} stands in the reeds.")
    workers.mark(*paths, lane=Lane.BACKFILL)
    return Counter(f"The heron number {number} stands in the reeds." for number in range(first, first + count))


def _jobs(settings: Settings) -> list[BatchJob]:
    path = ledger_path(settings.home)
    if not path.exists():
        return []
    with ledger_at(path) as ledger:
        return ledger.jobs()


def _at_provider(server: BatchServer, count: int = 1) -> Callable[[], bool]:
    return lambda: len(server.submitted) == count


@pytest.mark.parametrize("provider", ["openai", "voyage", "gemini"])
def test_a_thousand_notes_are_one_job(make: Make, server: BatchServer, provider: str) -> None:
    settings = make(provider=provider)
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers, 1000)
        wait_until(workers.complete)
        assert server.paid == texts
        assert not server.paid_inline
        assert len(server.submitted) == 1
        wait_until(lambda: not server.files)
        [job] = _jobs(settings)
        assert (job.stage, job.texts, job.taken) == (Stage.DONE, 1000, 1000)
        [usage] = wait_until(lambda: workers.health.usage("main"))
        assert (usage.requests, usage.failed, usage.inputs, usage.tokens, usage.batched) == (1, 0, 1000, 7000, 7000)
        assert not workers.conditions()


def test_keywords_are_there_at_once_and_the_worker_is_free_while_a_job_runs(make: Make, server: BatchServer) -> None:
    server.open.clear()
    with Workers(make(), timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(_at_provider(server))
        wait_until(workers.settled)
        assert workers.finds("heron")
        assert workers.counts().vectors_pending == NOTES
        workers.note("memory/today.md", "A kingfisher came by.")
        wait_until(lambda: workers.counts().vectors_ready == 1, what="a live note does not wait for jobs")
        assert server.paid_inline == Counter(["A kingfisher came by."])
        workers.note("memory/copy.md", "The heron number 7 stands in the reeds.")
        wait_until(lambda: workers.settled() and workers.counts().chunks == NOTES + 2)
        assert server.paid_inline == Counter(["A kingfisher came by."]), "the job brings the vector of its text"
        server.open.set()
        wait_until(workers.complete)
        assert server.paid == texts + server.paid_inline
        assert len(server.submitted) == 1


@pytest.mark.long
def test_a_job_waits_for_documents_that_are_still_read(make: Make, server: BatchServer) -> None:
    with Workers(make(), timing=Timing(turn=0.001)) as workers:  # after each commit comes a job that embeds
        paths = [f"memory/{number}.md" for number in range(CLAIM + 6)]
        for path in paths:  # a few of them have enough texts for a job
            workers.write(path, "".join(f"The heron of {path} stands in reed {line}.\n" for line in range(1_900)))
        workers.mark(*paths, lane=Lane.BACKFILL)
        wait_until(workers.complete)
        assert server.paid.total() == workers.counts().chunks > FEWEST_TEXTS * 10
        assert len(server.submitted) == 1


@pytest.mark.parametrize("gathering", [0.0, 60.0], ids=["time to gather is over", "gathering"])
def test_no_text_goes_the_normal_way_while_documents_are_still_read(
    make: Make, server: BatchServer, gathering: float
) -> None:
    unread: list[int] = []
    # A commit has fewer texts than a job, and after each comes a turn that embeds.
    with Workers(make(), timing=Timing(turn=0.001, batch=BatchTiming(gathering=gathering))) as workers:

        def note(_method: str, path: str) -> None:
            if path.endswith("/embeddings"):
                unread.append(workers.waiting().backfill)

        server.on_call = note
        texts = _backfill(workers, NOTES + CLAIM + 6)
        wait_until(workers.complete)
        assert server.paid == texts
        assert len(server.submitted) == 1
        assert not any(unread)
        assert server.paid_inline.total() < NOTES


def _flaky(server: BatchServer) -> None:
    server.fail("POST", "/files", 500, times=2)
    server.fail("POST", "/batches", None, afterwards=True)
    server.fail("GET", "/batches/batch-0", 500, times=1)
    server.fail("GET", "/batches/batch-0", None, times=1)


def _partly(server: BatchServer) -> None:
    server.script(JobScript(fails="number 17 ", drops=3, spoils=6, garbage=4))


def _well(_server: BatchServer) -> None:
    """Let every job go well."""


@pytest.mark.parametrize(
    ("notes", "arrange", "inline", "jobs"),
    [
        pytest.param(NOTES - 1, _well, NOTES - 1, 0, id="a few notes are no job"),
        pytest.param(NOTES, _partly, 0, 2, id="the failed texts go into another job"),
        pytest.param(NOTES, _flaky, 0, 1, id="a flaky provider is asked again"),
    ],
)
def test_every_text_of_a_backfill_is_paid_once_in_jobs_or_the_normal_way(
    make: Make, server: BatchServer, notes: int, arrange: Callable[[BatchServer], None], inline: int, jobs: int
) -> None:
    arrange(server)
    settings = make()
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers, notes)
        wait_until(workers.complete)
        assert server.paid == texts
        assert (server.paid_inline.total(), len(server.submitted)) == (inline, jobs)
        wait_until(lambda: all(job.stage is Stage.DONE for job in _jobs(settings)))
        assert sum(job.taken for job in _jobs(settings)) == notes - inline
        assert not workers.conditions()


def test_texts_wait_while_as_many_jobs_are_open_as_may_be(make: Make, server: BatchServer) -> None:
    server.open.clear()
    settings = make(concurrency=1)
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(_at_provider(server))
        texts += _backfill(workers, first=NOTES)
        wait_until(lambda: workers.settled() and workers.counts().vectors_pending == 2 * NOTES)
        workers.queue.request_vectors("main")
        wait_until(lambda: EMBED_PENDING not in {job.actor for job in queued_jobs(workers.client, workers.keys)})
        assert [job.texts for job in _jobs(settings)] == [NOTES]
        server.open.set()
        wait_until(workers.complete)
        assert server.paid == texts
        assert not server.paid_inline
        assert len(server.submitted) == 2


@pytest.mark.parametrize("ends", ["failed", "expired", "cancelled"])
def test_texts_that_a_job_left_go_into_another_one_at_once(make: Make, server: BatchServer, ends: str) -> None:
    server.script(JobScript(ends=ends, done=NOTES // 2))
    settings = make()
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(workers.complete)
        assert (server.paid, server.paid_inline) == (texts, Counter())
        wait_until(lambda: [job.taken for job in _jobs(settings)] == [NOTES // 2] * 2)
        assert [(job.number, job.stage) for job in _jobs(settings)] == [(1, Stage(ends)), (2, Stage.DONE)]
        [usage] = workers.health.usage("main")
        assert usage.tokens == usage.batched == server.paid.total() * server.tokens
        assert not workers.conditions()


# A job that is too late before it is sent counts as one, too: three seconds are enough to send it.
@pytest.mark.long
@pytest.mark.parametrize("how", [{}, {"timeout_minutes": 0.05}], ids=["expired", "too late"])
def test_after_three_jobs_texts_wait_until_the_user_resumes_them(
    make: Make, server: BatchServer, how: dict[str, Any]
) -> None:
    server.script(*[JobScript(ends="expired", done=20)] * MOST_JOBS)
    (server.open.clear if how else server.open.set)()
    settings = make(**how)
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers)
        suspended = wait_until(lambda: workers.conditions().get(ConditionCode.BATCH_SUSPENDED))
        assert (suspended.params["texts"], suspended.params["taken"]) == (f"{NOTES - 60} texts", 20)
        workers.note("memory/today.md", "A kingfisher came by.")
        wait_until(lambda: workers.counts().vectors_ready == 61, what="a live note has its vector")
        assert (server.paid.total(), server.paid_inline.total()) == (61, 1)
        assert len(server.submitted) == MOST_JOBS
    server.open.set()
    with Workers(make(), timing=SOON) as workers:
        assert _resume(settings) == 1
        workers.queue.request_vectors("main")
        wait_until(workers.complete)
        assert (server.paid - server.paid_inline, server.paid_inline.total()) == (texts, 1)
        assert len(server.submitted) == MOST_JOBS + 1
        wait_until(lambda: not workers.conditions())


def _resume(settings: Settings) -> int:
    with ledger_at(ledger_path(settings.home)) as ledger:
        return ledger.resume("main")


def test_texts_that_wait_go_the_normal_way_after_the_time_of_the_settings(make: Make, server: BatchServer) -> None:
    server.script(*[JobScript(ends="expired", done=20)] * MOST_JOBS)
    with Workers(make(full_price_after="0h"), timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(workers.complete)
        assert (server.paid, server.paid_inline.total()) == (texts, NOTES - 60)


@pytest.mark.parametrize("reeds", [15_000, 150], ids=["another job", "fewer texts than a job"])
def test_after_a_cancel_no_text_is_sent_until_the_user_resumes_it(make: Make, server: BatchServer, reeds: int) -> None:
    server.open.clear()
    server.script(JobScript(done=50))
    settings = make(concurrency=1, full_price_after="0h")
    with Workers(settings, timing=SOON) as workers:
        _backfill(workers)
        wait_until(_at_provider(server))
        # One document: all its texts wait from one commit on.
        lines = (f"The crane stands in reed {line}.\n" for line in range(reeds))
        workers.note("memory/crane.md", "".join(lines), lane=Lane.BACKFILL)
        with ledger_at(ledger_path(settings.home)) as ledger:
            assert ledger.stop(ledger.jobs()[0].reference, StopReason.CANCELLED)
        wait_until(lambda: ConditionCode.BATCH_SUSPENDED in workers.conditions() and workers.settled())
        workers.queue.request_vectors("main")
        wait_until(lambda: EMBED_PENDING not in {job.actor for job in queued_jobs(workers.client, workers.keys)})
        assert (server.paid.total(), server.paid_inline.total(), len(server.submitted)) == (50, 0, 1)
        server.open.set()
        assert _resume(settings) == 1
        workers.queue.request_vectors("main")
        wait_until(workers.complete)
        assert server.paid.total() == len(server.paid) == (chunks := workers.counts().chunks)
        assert server.paid_inline.total() == (chunks - NOTES if chunks < 2 * NOTES else 0)


def test_a_job_takes_the_texts_that_a_consent_reaches_and_no_held_ones(make: Make, server: BatchServer) -> None:
    settings = make(price=1.0)
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers, 2 * NOTES)
        wait_until(lambda: workers.settled() and workers.counts().vectors_held == 2 * NOTES)
        identity = provider_of(settings, settings.agent("main")).identity
        enough = max(map(estimate_tokens, texts)) * NOTES * 3 / 2
        Consents.of(settings, "main").grant(identity, round(enough))
        workers.queue.request_vectors("main")
        wait_until(lambda: workers.counts().vectors_ready)
        wait_until(lambda: not workers.counts().vectors_pending)
        counts = workers.counts()
        assert NOTES <= counts.vectors_ready == server.paid.total() == 2 * NOTES - counts.vectors_held < 2 * NOTES
        assert (len(server.submitted), server.paid_inline.total()) == (1, 0)


def test_an_endpoint_without_a_batch_api_gets_no_text_and_is_reported(make: Make, server: BatchServer) -> None:
    server.batches = False
    with Workers(make(), timing=SOON) as workers:
        _backfill(workers)
        wait_until(lambda: ConditionCode.BATCH_SUSPENDED in workers.conditions())
        assert not server.paid
        assert server.calls["POST files"] == MOST_JOBS
        assert "HTTP 404" in str(workers.conditions()[ConditionCode.BATCH_SUSPENDED].params["end"])
    with Workers(make(provider="mistral"), timing=SOON) as workers:
        workers.queue.request_vectors("main")
        wait_until(lambda: ConditionCode.BATCH_API_MISSING in workers.conditions())
        assert workers.conditions()[ConditionCode.BATCH_API_MISSING].subject == "mistral"


def _refusing_to_stop(server: BatchServer) -> None:
    server.script(JobScript(done=25))
    server.fail("POST", "/batches/batch-0/cancel", 404)
    server.fail("POST", "/batches/batch-0/cancel", 500, times=2)


def _going_on(server: BatchServer) -> None:
    server.script(JobScript(obeys=False))
    server.on_call = lambda _method, path: server.open.set() if path.endswith("/cancel") else None


@pytest.mark.parametrize(
    ("arrange", "stopping", "in_job"),
    [
        pytest.param(_refusing_to_stop, {"enabled": False}, 25, id="jobs are switched off"),
        pytest.param(_going_on, {"timeout_minutes": 0.001}, NOTES, id="it ends all the same"),
    ],
)
def test_a_job_is_stopped_and_read_before_its_other_texts_are_sent(
    make: Make, server: BatchServer, arrange: Callable[[BatchServer], None], stopping: dict[str, Any], in_job: int
) -> None:
    server.open.clear()
    arrange(server)
    with Workers(make(), timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(_at_provider(server))
        wait_until(workers.settled)
    with Workers(make(**stopping), timing=SOON) as workers:
        workers.queue.request_vectors("main")
        wait_until(workers.complete)
        assert server.submitted[0].cancelled
        assert server.paid == texts
        assert server.paid_inline.total() == NOTES - in_job


def _refusing_the_key(server: BatchServer) -> None:
    server.fail("GET", "/batches/batch-0", 401, times=10_000)


def _in_an_unknown_state(server: BatchServer) -> None:
    server.script(JobScript(says="quarantined"))
    server.open.clear()


@pytest.mark.parametrize(("arrange", "error"), [(_refusing_the_key, "HTTP 401"), (_in_an_unknown_state, "quarantined")])
def test_a_job_that_cannot_be_followed_is_a_condition_until_it_can(
    make: Make, server: BatchServer, arrange: Callable[[BatchServer], None], error: str
) -> None:
    arrange(server)
    settings = make()
    with Workers(settings, timing=SOON) as workers:
        texts = _backfill(workers)
        unreachable = wait_until(lambda: workers.conditions().get(ConditionCode.BATCH_JOB_UNREACHABLE))
        assert error in str(unreachable.params["error"])
        assert [(job.open, job.completed) for job in _jobs(settings)] == [(True, 0)]
        server.mend()
        server.open.set()
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())
        assert server.paid == texts
        assert not server.paid_inline


def _lost(settings: Settings) -> bool:
    return [job.stage for job in _jobs(settings)] == [Stage.LOST]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_lost_job_that_comes_late_is_read_and_its_files_stay_until_then(
    make: Make, server: BatchServer, *, enabled: bool
) -> None:
    server.open.clear()
    server.script(JobScript(done=NOTES))
    with Workers(make(), timing=SOON_LOST) as workers:
        texts = _backfill(workers)
        wait_until(_at_provider(server))
        wait_until(workers.settled)
    server.submitted[0].lost = True
    settings = make(enabled=enabled)
    with Workers(settings, timing=SOON_LOST) as workers:
        workers.queue.request_vectors("main")
        wait_until(lambda: _lost(settings) and workers.complete() is not enabled)
        assert server.paid_inline == (Counter() if enabled else texts), "they may come late"
        wait_until(lambda: (ConditionCode.BATCH_SUSPENDED in workers.conditions()) is enabled)
        assert server.calls["POST batches"] >= 2, "submitted, and cancelled before it was given up"
        assert "DELETE files" not in server.calls
        server.submitted[0].lost = False
        server.open.set()
        wait_until(lambda: workers.queue.request_vectors("main") or not server.files)
        [job] = _jobs(settings)
        assert (job.stage in {Stage.DONE, Stage.CANCELLED}, job.taken) == (True, NOTES)


@pytest.mark.parametrize("lost", ["the job", "its results"])
def test_a_lost_job_is_looked_for_before_its_texts_are_sent_again(make: Make, server: BatchServer, lost: str) -> None:
    settings = make()
    server.fail("POST", "/embeddings", 503, times=1000)
    if lost == "its results":
        server.fail("GET", "/files/file-1/content", 404, times=1000)
    server.on_created = lambda job: setattr(job, "lost", lost == "the job")
    with Workers(settings, timing=SOON_LOST) as workers:
        texts = _backfill(workers)
        wait_until(lambda: _lost(settings))
        assert "DELETE files" not in server.calls
    server.submitted[0].lost = False
    server.mend()
    wait_until(lambda: [job.look_at < time.time() for job in _jobs(settings)] == [True])
    with Workers(settings, timing=SOON_LOST) as workers:
        workers.queue.request_vectors("main")
        wait_until(workers.complete)
        assert server.paid == texts
        assert not server.paid_inline
        assert len(server.submitted) == 1


def test_without_a_cache_the_files_of_a_job_stay_at_its_provider(make: Make, server: BatchServer) -> None:
    settings = make()
    server.open.clear()
    with Workers(settings, timing=SOON) as workers:
        _backfill(workers)
        wait_until(_at_provider(server))
        wait_until(workers.settled)
    server.open.set()
    settings = settings.model_copy(update={"cache": settings.cache.model_copy(update={"enabled": False})})
    with Workers(settings, timing=SOON) as workers:
        workers.queue.request_vectors("main")
        wait_until(workers.complete)
        wait_until(lambda: [job.stage for job in _jobs(settings)] == [Stage.DONE])
        assert not server.paid_inline
    assert len(server.files) == 2


def test_results_without_a_usable_vector_stay_at_their_provider(make: Make, server: BatchServer) -> None:
    server.script(JobScript(spoils=NOTES))
    with Workers(make(), timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(workers.complete)
        assert server.paid == server.paid_inline
        assert texts - server.paid == Counter()
        # Each of two threads may ask with a harmless text if the provider is right again.
        assert 1 <= sum((server.paid - texts).values()) <= 2
    assert len(server.files) == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_no_text_is_paid_twice_whatever_a_gateway_answers(make: Make, server: BatchServer, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        path = chance.choice(["/batches/batch-0", "/batches/batch-0", "/batches", "/files/file-1/content"])
        server.fail("GET", path, chance.choice([401, 404, 405, 500, 503, None]))
    with Workers(make(), timing=SOON) as workers:
        texts = _backfill(workers)
        wait_until(workers.complete)
        assert server.paid == texts
        assert not server.paid_inline

"""A router swaps the model behind an endpoint: its vectors have another width, and no text is paid again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from memory.index.file_generation_writer import HomeOwner
from memory.index.generation_writer import GenerationWriter
from memory.index.provider import provider_of
from memory.status.condition_texts import text_of
from recalld.wiring import AgentIndex
from schemas.conditions import Condition, ConditionCode
from schemas.documents import Lane
from schemas.settings import Settings
from tests.batch_server import BatchServer
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent
from workers.batch_jobs import FEWEST_TEXTS
from workers.claims import coordinating
from workers.queue.private_server import BrokerServer
from workers.runtime import Timing

#: Questions after tenths of a second in place of minutes.
QUICK = 0.1

#: Notes of one chunk each.
NOTES = 60


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(dimensions=64) as started:
        yield started


@pytest.fixture
def remote(settings: Settings, server: EmbeddingServer, broker_server: BrokerServer) -> Settings:
    # Stub: a provider that could take over at any moment.
    return with_agent(asking(settings, server.url, auth={"trust_loopback": True}), fallback="stub")


def write_notes(workers: Workers, count: int = NOTES, *, lane: Lane = Lane.LIVE) -> None:
    names = [f"memory/note-{number}.md" for number in range(count)]
    for name in names:
        workers.write(name, f"The heron of {name} stands in the reeds.\n")
    workers.mark(*names, lane=lane)


def swapped(workers: Workers) -> Condition:
    return wait_until(lambda: workers.conditions().get(ConditionCode.DIMENSIONS_CHANGED))


@pytest.mark.long
def test_a_swapped_model_costs_each_text_once_and_a_question_now_and_then(
    remote: Settings, server: EmbeddingServer
) -> None:
    with Workers(remote, timing=Timing(first_pause=QUICK)) as workers:
        workers.index("memory/first.md", "The kingfisher nests at the bank.\n")
        before, server.dimensions = server.inputs, 32
        write_notes(workers)
        condition = swapped(workers)
        assert condition.subject == "openai"
        assert (condition.params["got"], condition.params["expected"]) == (32, 64)
        assert condition.params["billed"] > 0 < condition.params["tokens"]
        assert condition.params["texts"] in text_of(condition), "the price of a rebuild"
        wait_until(lambda: server.log[-1].inputs == server.log[-2].inputs == ("memory",))

        workers.stop()
        workers.client.flushall()
        asked = server.requests
        workers.start()
        workers.mark("memory/note-1.md")
        workers.queue.request_vectors_now("main")
        wait_until(lambda: server.requests > asked)
        assert all(request.inputs == ("memory",) for request in server.log[asked:]), "the stop outlives the broker"
        swapped(workers)
        assert provider_of(remote, remote.agents[0]).name == "openai", "no takeover"
        assert server.inputs - before <= NOTES + 10

        with coordinating(remote) as shared, running(remote, workers.health, coordinate=shared) as client:
            answer = search(client, "heron kingfisher")
        assert answer["mode"] == "keyword"
        assert "32 dimensions" in answer["degraded"][0]
        assert not any("heron kingfisher" in request.inputs for request in server.log)

        server.dimensions = 64
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())
        assert workers.counts().vectors_ready == NOTES + 1
    assert server.inputs - before <= 2 * NOTES + 10


def test_a_rebuild_embeds_everything_again_with_the_new_width(remote: Settings, server: EmbeddingServer) -> None:
    agent = remote.agents[0]
    with Workers(remote) as workers:
        workers.index("memory/first.md", "The kingfisher nests at the bank.\n")
        server.dimensions = 32
        workers.note("memory/second.md", "The heron stands in the reeds.\n")
        swapped(workers)
        workers.stop()
        before = AgentIndex(remote, agent).fingerprint
        anew = AgentIndex(remote, agent, rebuild=True).fingerprint
        with (
            closing(HomeOwner(remote.home)) as owner,
            closing(GenerationWriter.at(remote, agent.id, owner=owner)) as writer,
        ):
            writer.begin(anew, instead_of=before)
        workers.start()
        workers.mark("memory/first.md", "memory/second.md", lane=Lane.BACKFILL)
        wait_until(lambda: workers.complete() and workers.counts().files == 2)
        with workers.reading("main") as reader:
            assert reader is not None
            assert reader.meta("dimensions") == "32"
        wait_until(lambda: not workers.conditions())
        assert AgentIndex(remote, agent).fingerprint == anew, "all processes go on with the new width"
        with coordinating(remote) as shared, running(remote, workers.health, coordinate=shared) as client:
            assert wait_until(lambda: search(client, "heron")["mode"] == "hybrid")


@pytest.mark.usefixtures("broker_server")
def test_useless_results_of_a_batch_job_are_not_paid_again_in_requests(settings: Settings) -> None:
    with BatchServer() as server:
        with Workers(asking(settings, server.url)) as workers:
            workers.index("memory/first.md", "The kingfisher nests at the bank.\n")
        server.dimensions = 16
        remote = asking(settings, server.url)
        batch = {"batch": {"enabled": True, "poll_interval_ms": 100}}
        with Workers(with_agent(remote, remote=remote.agents[0].remote.model_dump() | batch)) as workers:
            write_notes(workers, FEWEST_TEXTS + 20, lane=Lane.BACKFILL)
            condition = swapped(workers)
            assert (condition.params["got"], condition.params["expected"]) == (16, 32)
            assert len(server.submitted) == 1
            assert not [text for text in server.paid_inline if "heron" in text], "each text was in the job alone"

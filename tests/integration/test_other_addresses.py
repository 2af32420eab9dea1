"""Another address of the same model keeps index and cache, after three chunks; another model needs a yes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.index.generations import Generations
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers, asking
from workers.queue.private_server import BrokerServer

NOTES = 12


@pytest.fixture
def second() -> Iterator[EmbeddingServer]:
    """The same model at another address."""
    with EmbeddingServer() as running:
        yield running


def by_another_model(_path: str, body: Any, *, width: int = 64) -> dict[str, Any]:
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in body["input"]]
    rows = [np.random.default_rng(seed).standard_normal(width).tolist() for seed in seeds]
    return {"object": "list", "data": [{"index": place, "embedding": row} for place, row in enumerate(rows)]}


def write_notes(workspace: Path, *, first: int = 0, count: int = NOTES) -> None:
    for number in range(first, first + count):
        (workspace / "memory" / f"{number}.md").write_text(f"# Note {number}\n\nThe heron number {number}.\n")


@pytest.fixture
def moved(commands: CommandLine, second: EmbeddingServer) -> CommandLine:
    """Commands whose index was made at the first address, and whose settings name the second."""
    write_notes(commands.workspace)
    commands.agent("index")
    commands.set("RECALLD_REMOTE__BASE_URL", second.url)
    return commands


def generation(commands: CommandLine) -> str | None:
    return Generations.of(Settings(home=commands.home), "main").current()


def test_another_address_of_the_same_model_embeds_three_chunks_once(
    moved: CommandLine, server: EmbeddingServer, second: EmbeddingServer
) -> None:
    before, paid = generation(moved), server.inputs
    assert moved.agent("index", "--dry-run")["toEmbed"] == second.requests == 0
    assert moved.json("search", "heron")["mode"] == "keyword", "no question meets vectors of another model"
    report = moved.agent("index")
    assert (report["vectorsReady"], [usage["inputs"] for usage in report["spent"]]) == (NOTES, [3])
    assert (second.requests, second.inputs, generation(moved)) == (1, 3, before)

    assert moved.json("search", "heron number 3")["mode"] == "hybrid"
    write_notes(moved.workspace, first=NOTES, count=1)
    asked = second.inputs
    assert moved.agent("index")["vectorsReady"] == NOTES + 1
    assert second.inputs == asked + 1, "the new note alone"
    assert moved.agent("rebuild")["vectorsReady"] == NOTES + 1
    assert second.inputs == asked + 1, "a rebuild takes all vectors from index and cache"
    # Without any index, the cache still counts.
    for file in (moved.home / "indexes" / "main").iterdir():
        file.unlink()
    assert moved.agent("index")["vectorsReady"] == NOTES + 1
    assert (second.inputs, server.inputs) == (asked + 1, paid)
    # The way back needs no comparison.
    moved.set("RECALLD_REMOTE__BASE_URL", server.url)
    assert moved.agent("index")["vectorsReady"] == NOTES + 1
    assert server.inputs == paid


def test_agents_share_a_comparison_and_the_first_may_have_no_vectors(
    commands: CommandLine, second: EmbeddingServer, tmp_path: Path
) -> None:
    (tmp_path / "other" / "memory").mkdir(parents=True)
    write_notes(tmp_path / "other")
    commands.configure(f'[[agents]]\nid = "other"\nworkspace = "{tmp_path}/other"')
    commands.run("index")
    commands.set("RECALLD_REMOTE__BASE_URL", second.url)
    _, out, _ = commands.run("index", "--json")
    assert [agent["vectorsReady"] for agent in json.loads(out)["agents"]] == [0, NOTES]
    assert (second.requests, second.inputs) == (1, 3)


@pytest.mark.parametrize("width", [64, 32])
def test_another_model_at_another_address_waits_for_a_yes(
    moved: CommandLine, second: EmbeddingServer, width: int
) -> None:
    second.answers = partial(by_another_model, width=width)
    before = generation(moved)
    moved.set("RECALLD_REMOTE__PRICE_PER_MILLION_TOKENS", "100")
    moved.set("RECALLD_COST__ASK_ABOVE", "0")
    code, _, err = moved.run("index")
    assert (code, [len(request.inputs) for request in second.log], generation(moved)) == (4, [3], before), err
    assert moved.agent("index", "--yes")["vectorsReady"] == NOTES
    assert sum(len(request.inputs) for request in second.log) == 3 + NOTES
    assert generation(moved) != before


@pytest.mark.long
def test_a_daemon_holds_everything_for_a_yes_if_another_address_has_another_model(
    moved: CommandLine, second: EmbeddingServer
) -> None:
    second.answers = by_another_model
    remote = f'remote = {{base_url = "{second.url}", api_key = "k", price_per_million_tokens = 100}}'
    with Daemon(moved.home, moved.workspace, provider="openai", config=f"{remote}\ncost.ask_above = 0") as daemon:
        wait_until(lambda: [advice["code"] for advice in daemon.status()["advice"]] == ["vectors_held"])
        assert [len(request.inputs) for request in second.log] == [3]


@pytest.mark.parametrize("failure", [Failure(status=503), Failure(status=401), Failure(disconnect=True)])
def test_nothing_is_begun_while_another_address_does_not_answer(
    moved: CommandLine, second: EmbeddingServer, failure: Failure
) -> None:
    before = generation(moved)
    second.fail_next(failure, times=1000)
    _, _, err = moved.run("index")
    assert second.url in err
    assert len(err.splitlines()) == 1
    code, out, _ = moved.run("status", "--json")
    troubles = [trouble["code"] for trouble in json.loads(out)["agents"][0]["troubles"]]
    assert (code, troubles, second.inputs, generation(moved)) == (4, ["vectors_unavailable"], 0, before)
    second.recover()
    assert moved.agent("index")["vectorsReady"] == NOTES
    assert (second.inputs, generation(moved)) == (3, before)


@pytest.mark.long
def test_workers_compare_another_address_by_themselves(
    settings: Settings, server: EmbeddingServer, second: EmbeddingServer, broker_server: BrokerServer
) -> None:
    with Workers(asking(settings, server.url)) as workers:
        for number in range(NOTES):
            workers.write(f"memory/{number}.md", f"The heron number {number}.\n")
        workers.mark(*(f"memory/{number}.md" for number in range(NOTES)))
        wait_until(lambda: workers.complete() and workers.counts().chunks == NOTES)
    second.fail_next(Failure(status=503), times=1000)
    with Workers(asking(settings, second.url)) as workers:
        # Housekeeping asks for the comparison, and a failure is one of a provider that is away.
        condition = wait_until(lambda: workers.conditions().get(ConditionCode.PROVIDER_FAILS))
        assert (condition.subject, second.inputs) == ("openai", 0)
        workers.note("memory/new.md", "The kingfisher is new.\n")
        wait_until(lambda: workers.finds("kingfisher"))
        second.recover()
        wait_until(workers.complete)
        assert (second.inputs, workers.counts().vectors_ready) == (3 + 1, NOTES + 1)
        wait_until(lambda: not workers.conditions())

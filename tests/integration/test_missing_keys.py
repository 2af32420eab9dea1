"""Processes that lack the key with which an index is made leave what others built, and are building, to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from memory.index.fingerprint import fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.index.provider_fallback import provider_of
from memory.store.options import StoreOptions
from recalld.wiring import generations_of
from schemas.settings import Settings
from tests.daemon import Daemon, recalld
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from tests.working import Workers
from workers import vectors_job
from workers.queue.private_server import BrokerServer

CHECKOUT = Path(__file__).parents[2]

#: Asks for the provider by name, or not; the second one has another to fall back on.
ASKED = [{"provider": "auto"}, {"provider": "openai", "fallback": "stub"}]


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        yield running
        running.open.set()


def having(settings: Settings, server: EmbeddingServer | None, **asked: Any) -> Settings:
    """The settings of a process that has the key of a server; None: that has none."""
    remote = {"base_url": server.url, "api_key": "a-key"} if server is not None else {}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, "remote": remote, **asked}
    return Settings.model_validate({"home": settings.home, "agents": [agent], "remote": remote, **asked})


def made_with(workers: Workers) -> str:
    with workers.reading("main") as reader:
        description = reader.meta("identity") if reader is not None else None
    embedding = json.loads(description)["embedding"] if description else "none"
    return str(json.loads(embedding)["provider"]) if embedding != "none" else "none"


def names(settings: Settings) -> list[str]:
    """The generations that answer and that are under construction."""
    generations = generations_of(settings, settings.agents[0])
    return [str(generations.current()), str(generations.next())]


def files(settings: Settings) -> set[str]:
    """Every generation that there is."""
    return {path.name for path in (settings.indexes_path / "main").glob("*.sqlite")}


def fill(workers: Workers) -> None:
    for number, bird in enumerate(["heron", "otter", "kingfisher"]):
        workers.note(f"memory/{number}.md", f"# Day {number}\n\nThe {bird} stands in the reeds.\n")


@pytest.mark.parametrize("asked", ASKED, ids=["auto", "by name"])
@pytest.mark.parametrize("change", [{}, {"chunking": {"tokens": 64, "overlap": 0}}], ids=["first", "rebuild"])
def test_workers_with_and_without_the_key_build_one_generation_together(
    settings: Settings,
    broker_server: BrokerServer,
    server: EmbeddingServer,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    change: dict[str, Any],
) -> None:
    monkeypatch.setattr(vectors_job, "UNABLE_PAUSE_SECONDS", 0.2)
    with Workers(having(settings, server, **asked)) as workers:
        fill(workers)
        wait_until(workers.complete)
    there = files(settings)
    assert len(there) == 1
    keyed, keyless = having(settings, server, **asked, **change), having(settings, None, **asked, **change)
    with Workers(keyless), Workers(keyed) as workers:
        for number in range(9):
            workers.note(f"memory/more/{number}.md", f"Bird number {number} sings.\n")
        if change:
            workers.mark("memory/0.md", "memory/1.md", "memory/2.md")
            wait_until(lambda: names(settings)[0] not in there)
        else:
            # Those that a worker without a key wrote are asked for by the next one that has it.
            wait_until(workers.settled)
            workers.queue.request_vectors("main")
        wait_until(lambda: workers.complete() and workers.counts().files == 12)
        assert made_with(workers) == "openai"
    assert names(settings)[1] == "None"
    assert len(files(settings)) == 1 + bool(change), "nobody began another one"
    assert provider_of(keyed, keyed.agents[0]).taken_over is None
    assert server.inputs == server.distinct == 12


@pytest.mark.long
@pytest.mark.parametrize("asked", ASKED, ids=["auto", "by name"])
def test_a_first_index_that_was_begun_without_the_key_is_made_with_it_once_somebody_has_it(
    settings: Settings,
    broker_server: BrokerServer,
    server: EmbeddingServer,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
) -> None:
    monkeypatch.setattr(vectors_job, "UNABLE_PAUSE_SECONDS", 0.2)
    keyed, keyless = having(settings, server, **asked), having(settings, None, **asked)
    with Workers(keyless) as workers:
        fill(workers)
        wait_until(workers.complete)
        assert made_with(workers) in {"local", "stub"}
    with Workers(keyed) as workers:
        workers.note("memory/0.md", "The heron flew away.\n")
        workers.mark("memory/1.md", "memory/2.md")
        wait_until(lambda: made_with(workers) == "openai" and workers.complete())
    settled = names(settings)
    # Alone again, workers without a key add keywords and begin nothing.
    with Workers(keyless) as workers:
        workers.note("memory/3.md", "A stork came.\n")
        wait_until(lambda: workers.finds("stork") and workers.settled())
        assert names(settings) == settled
        assert workers.counts().vectors_pending == 1
    problem = provider_of(keyless, keyless.agents[0]).error
    assert problem is not None
    assert "OPENAI_API_KEY" in problem


SAY = """
import sys
from recalld.settings.load import load
from recalld.wiring import fingerprint_of
settings = load(config=None, home=sys.argv[1]).settings
print(fingerprint_of(settings, settings.agent("main")).digest)
"""


@pytest.mark.parametrize("building", [False, True])
def test_processes_agree_on_the_identity_whatever_keys_they_have(
    settings: Settings, server: EmbeddingServer, *, building: bool
) -> None:
    keyed = having(settings, server, provider="auto")
    for asked in [settings, keyed] if building else [keyed]:
        choice = provider_of(asked, asked.agents[0])
        assert choice.provider is not None
        wanted = fingerprint(asked.agents[0], choice.provider.identity)
        writer = GenerationWriter(settings.indexes_path / "main", StoreOptions())
        writer.open_writer(wanted.digest, wanted.description)
        writer.close()
    assert (names(settings)[1] != "None") == building
    with_key = {"RECALLD_REMOTE__BASE_URL": server.url, "RECALLD_REMOTE__API_KEY": "a-key"}
    environments = [
        {"RECALLD_PROVIDER": "auto", **with_key},
        {"RECALLD_PROVIDER": "openai", **with_key},
        {"RECALLD_PROVIDER": "auto"},
        {"RECALLD_PROVIDER": "openai"},
        {"RECALLD_PROVIDER": "auto", "VOYAGE_API_KEY": "another"},
    ]
    assert len(set(_said(SAY, settings, environments))) == 1


def _said(script: str, settings: Settings, environments: Sequence[dict[str, str]]) -> list[str]:
    """What the script prints in a process of its own with each of the environments; they run at once."""
    common = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(settings.home.parent),
        "RECALLD_AGENTS": json.dumps([{"id": "main", "workspace": str(settings.agents[0].workspace)}]),
    }
    arguments = [sys.executable, "-c", script, str(settings.home)]
    started = [
        subprocess.Popen(arguments, env=common | environment, stdout=subprocess.PIPE, text=True)
        for environment in environments
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in started]
    assert all(process.returncode == 0 for process in started)
    assert all(said)
    return said


@pytest.mark.long
def test_commands_without_the_key_leave_an_unfinished_build_alone_and_say_what_is_missing(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    keyed = having(settings, server, provider="auto")
    with Workers(settings) as workers:
        fill(workers)
        wait_until(workers.complete)
    server.open.clear()
    with Workers(keyed) as workers:
        workers.mark("memory/0.md", "memory/1.md")
        wait_until(lambda: names(settings)[1] != "None" and workers.settled())
    begun = names(settings)
    note = settings.agents[0].workspace / "memory" / "late.md"
    note.write_text("The stork came late.\n", "utf-8")
    for command in (["index"], ["rebuild"], ["index"]):
        said = recalld(*command, home=settings.home, environment=_here(settings, {"RECALLD_PROVIDER": "auto"}))
        assert said.returncode == 1, said.stdout + said.stderr
        assert "openai (OPENAI_API_KEY), which this process does not have" in said.stderr
        assert names(settings) == begun
    named = recalld("index", home=settings.home, environment=_here(settings, {"RECALLD_PROVIDER": "openai"}))
    assert named.returncode == 1
    assert "OPENAI_API_KEY is not set" in named.stderr
    found = recalld("search", "stork", home=settings.home, environment=_here(settings, {"RECALLD_PROVIDER": "auto"}))
    assert "late.md" in found.stdout, "a live change reached the one that answers"
    assert names(settings) == begun
    server.open.set()
    with_key = {
        "RECALLD_PROVIDER": "auto",
        "RECALLD_REMOTE__BASE_URL": server.url,
        "RECALLD_REMOTE__API_KEY": "a-key",
    }
    done = recalld("index", home=settings.home, environment=_here(settings, with_key))
    assert done.returncode == 0, done.stdout + done.stderr
    assert names(settings) == [begun[1], "None"], "it was finished, not begun anew"
    assert server.distinct == 4


@pytest.mark.long
def test_a_command_with_the_key_beside_a_daemon_without_says_so_and_begins_nothing(
    settings: Settings, server: EmbeddingServer
) -> None:
    workspace = settings.agents[0].workspace
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    with_key = {
        "RECALLD_PROVIDER": "openai",
        "RECALLD_REMOTE__BASE_URL": server.url,
        "RECALLD_REMOTE__API_KEY": "a-key",
    }
    with Daemon(settings.home, workspace):
        recalld("index", home=settings.home, environment={"RECALLD_PROVIDER": "stub"})
        said = recalld("index", home=settings.home, environment=_here(settings, with_key))
        assert said.returncode == 1, said.stdout + said.stderr
        assert "start it again with the same settings and keys" in said.stderr
        assert "(stub)" in said.stderr
    assert server.requests == 0


def _here(settings: Settings, environment: dict[str, str]) -> dict[str, str]:
    agents = [{"id": "main", "workspace": str(settings.agents[0].workspace)}]
    return {"RECALLD_AGENTS": json.dumps(agents), **environment}

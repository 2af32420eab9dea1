"""Processes that lack the key with which an index is made leave what others build to them, and commands say so."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory.index.file_generation_writer import FileGenerationWriter, HomeOwner
from memory.index.fingerprint import fingerprint
from memory.index.generations import Generations
from memory.index.provider import provider_of
from memory.store.options import StoreOptions
from recalld.wiring import AgentIndex
from schemas.conditions import ConditionCode
from schemas.settings import Credentials, Settings
from tests.commanding import CommandLine
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers
from workers import vectors_job
from workers.queue.private_server import BrokerServer

#: Asks for the provider by name, or not; the second one has another to fall back on.
ASKED = [{"provider": "auto"}, {"provider": "openai", "fallback": "stub"}]


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
    generations = Generations.of(settings, settings.agents[0].id)
    return [str(generations.current()), str(generations.next())]


def files(settings: Settings) -> set[str]:
    """Every generation that there is."""
    return {path.name for path in (settings.indexes_path / "main").glob("*.sqlite")}


def fill(workers: Workers) -> None:
    for number, bird in enumerate(["heron", "otter", "kingfisher"]):
        workers.note(f"memory/{number}.md", f"# Day {number}\n\nThe {bird} stands in the reeds.\n")


@pytest.mark.parametrize(
    ("asked", "change"),
    [(ASKED[0], {}), (ASKED[1], {"chunking": {"tokens": 64, "overlap": 0}})],
    ids=["first", "rebuild"],
)
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
    assert len(files(settings)) == 1, "no other one was begun, and the replaced one is gone"
    assert server.inputs == server.distinct == 12


def test_a_worker_with_another_provider_obeys_the_owner_of_the_indexes(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    with Workers(having(settings, server, provider="openai")) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.\n")
    with closing(HomeOwner(settings.home)) as owner:
        assert owner.owns()
        with Workers(having(settings, None, provider="stub")) as workers:
            workers.note("memory/b.md", "The otter swims in the brook.\n")
            wait_until(workers.settled)
            counts = workers.counts()
            assert (counts.files, counts.vectors_pending, made_with(workers)) == (2, 1, "openai")
            assert names(settings)[1] == "None"


def test_processes_agree_on_the_identity_whatever_keys_they_have(settings: Settings, server: EmbeddingServer) -> None:
    keyed = having(settings, server, provider="auto")
    for asked in (settings, keyed):  # the second one is being built
        choice = provider_of(asked, asked.agents[0])
        assert choice.provider is not None
        wanted = fingerprint(asked.agents[0], choice.provider.identity)
        writer = FileGenerationWriter(settings.indexes_path / "main", StoreOptions())
        writer.open_writer(wanted)
        writer.close()
    assert names(settings)[1] != "None"
    other_key = having(settings, None, provider="auto").model_copy(
        update={"credentials": Credentials(voyage="another")}
    )
    processes = [keyed, having(settings, None, provider="openai"), other_key]
    assert len({AgentIndex(process, process.agents[0]).fingerprint.digest for process in processes}) == 1


# Commands without a key


CODE = ConditionCode.VECTORS_UNAVAILABLE


@pytest.fixture
def keyless(commands: CommandLine, workspace: Path) -> CommandLine:
    """Commands of an agent whose provider has no key, and two notes."""
    config = workspace.parent / "recalld.toml"
    config.write_text(f'provider = "openai"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n')
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    (workspace / "memory" / "otter.md").write_text("The otter swims.\n", "utf-8")
    return commands


def run_json(commands: CommandLine, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = commands.run(*arguments, "--json")
    return code, json.loads(out)


@pytest.mark.parametrize("command", ["index", "rebuild"])
def test_without_a_key_all_is_indexed_by_keyword_and_the_exit_code_is_4(keyless: CommandLine, command: str) -> None:
    code, body = run_json(keyless, command)
    [agent] = body["agents"]
    assert (code, body["ok"], agent["files"], agent["code"]) == (4, False, 2, CODE)
    code, _, err = keyless.run(command)
    assert (code, "OPENAI_API_KEY" in err) == (4, True)


# The page and `up` ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_refusal_is_told_by_up_and_in_the_providers_words_by_status_and_index(home: Path, workspace: Path) -> None:
    words = "the project of this key is archived"
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    with EmbeddingServer() as server:
        server.fail_next(Failure(status=401, message=words), times=1_000)
        remote = f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\n'
        with Daemon(home, workspace, provider="openai", config=remote) as daemon:
            wait_until(lambda: "main: openai refused the key (HTTP 401" in daemon.said())
            assert words not in daemon.said(), "its words may quote memory, and what up prints may be a log"
            told = {one["code"]: one["message"] for one in daemon.status()["troubles"] if "code" in one}
            assert words in told[ConditionCode.PROVIDER_REFUSES]
            done = daemon.run("index", "--json")
            [agent] = json.loads(done.stdout)["agents"]
            assert (done.returncode, agent["code"]) == (1, ConditionCode.VECTORS_WAIT)
            assert words in agent["stopped"]

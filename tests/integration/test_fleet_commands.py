"""Commands about the agents of a fleet's directory, against a real PostgreSQL and a real queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.store.postgres.connection import Database
from memory.store.postgres.schema import SCHEMA_NUMBER
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.ports import Usage
from schemas.settings import Settings
from tests.batch_server import BatchServer
from tests.commanding import CommandLine, command_line
from tests.integration.test_fleet_workers import ANNA, Fleet, FleetWorkers, machine
from tests.postgres_server import Urls
from tests.waiting import wait_until
from workers.queue.connection import connect, namespace
from workers.queue.names import Keys

#: Rows as a worker leaves them: many agents of one tenant, each with one document of one chunk.
MANY = """
INSERT INTO recalld.agents (tenant, agent) SELECT 'acme', 'a' || n FROM generate_series(1, {count}) AS n;
INSERT INTO recalld.generations (tenant, agent, generation, state, fingerprint, identity)
    SELECT 'acme', 'a' || n, 'g' || n, 'current', 'f', '{{}}' FROM generate_series(1, {count}) AS n;
INSERT INTO recalld.files (tenant, agent, generation, id, source, path, size, mtime_ns, inode, content_hash, revision,
    indexed_at, notes) SELECT 'acme', 'a' || n, 'g' || n, 1, 'memory', 'a.md', 1, 1, 1, '', 1, 1, '[]'
    FROM generate_series(1, {count}) AS n;
INSERT INTO recalld.chunks (tenant, agent, generation, id, file_id, ordinal, start_line, end_line, vector_state,
    text_hash, text, words) SELECT 'acme', 'a' || n, 'g' || n, 1, 1, 0, 1, 1, 'pending', '', '', ''
    FROM generate_series(1, {count}) AS n
"""

#: Content that no worker can read as text.
BINARY = "\0" * 100


@pytest.fixture
def fleet(database: Database) -> Fleet:
    fleet = Fleet(database)
    fleet.add(ANNA, "acme/bob", "umbrella/eve")
    return fleet


@pytest.fixture
def of_fleet(home: Path, fleet_urls: Urls, redis_url: str) -> Settings:
    return machine(home, fleet_urls.writer, redis_url)


@pytest.fixture
def cli(
    of_fleet: Settings,
    workspace: Path,
    server: BatchServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fleet_urls: Urls,
    redis_url: str,
) -> Iterator[CommandLine]:
    """The command line of a machine of the fleet without agents of its own."""
    for cli in command_line(of_fleet.home, workspace, server, capsys, monkeypatch):
        (cli.home.parent / "recalld.toml").write_text('provider = "stub"\n')
        cli.set("RECALLD_STORE__URL", fleet_urls.writer)
        cli.set("REDIS_URL", redis_url)
        yield cli


def index(workers: FleetWorkers, fleet: Fleet, agent: str, path: str, text: str) -> None:
    workers.queue.mark_changed(agent, [fleet.arrive(agent, path, text)], lane=Lane.LIVE)
    wait_until(lambda: workers.settled(agent))


def fail(fleet: Fleet, agent: str, path: str) -> None:
    """Leave a dead letter in the answering index of an agent."""
    tenant, _, name = agent.partition("/")
    fleet.run(
        f"""INSERT INTO recalld.dead_letters SELECT '{tenant}', '{name}', generation, 'memory', '{path}',
        'it is a picture', 'DocumentUnreadable', 3, 1, extract(epoch FROM now()) FROM recalld.generations
        WHERE agent = '{name}' AND state = 'current'""",
        tenant,
    )


@pytest.fixture
def workers(fleet: Fleet, of_fleet: Settings) -> Iterator[FleetWorkers]:
    """Workers of the fleet; anna, bob and eve have one note each."""
    with FleetWorkers(of_fleet) as workers:
        for agent, bird in ((ANNA, "heron"), ("acme/bob", "bittern"), ("umbrella/eve", "egret")):
            index(workers, fleet, agent, "memory/a.md", f"The {bird} stands in the reeds.\n")
        yield workers


def status(cli: CommandLine) -> tuple[int, dict[str, Any]]:
    code, out, err = cli.run("status", "--json")
    assert out, err
    return code, json.loads(out)


def test_status_sums_up_all_agents_of_the_directory(cli: CommandLine, fleet: Fleet, workers: FleetWorkers) -> None:
    code, answer = status(cli)
    sums = answer["fleet"]
    assert (code, answer["ok"], answer["agents"]) == (0, True, [])
    assert (sums["agents"], sums["documents"], sums["chunks"], sums["pending"]) == (3, 3, 3, 0)
    assert "3 agents, 3 documents, 3 chunks" in cli.say("status")

    fail(fleet, ANNA, "memory/b.md")
    workers.health.report(ConditionCode.VECTORS_UNWRITABLE, agent="umbrella/eve", reason="full")
    fleet.run("UPDATE recalld.tenants SET tokens_a_day = 10 WHERE tenant = 'acme'", "acme")
    spent = Usage("openai", "model", tokens=10)
    workers.health.counters.record_usage(spent, agents={ANNA: spent})
    workers.health.counters.flush()
    code, answer = status(cli)
    sums = answer["fleet"]
    assert (code, sums["deadLetters"], sums["spentTenants"]) == (4, 1, ["acme"])
    assert sums["troubled"] == [agent["agent"] for agent in answer["agents"]] == [ANNA, "umbrella/eve"]
    assert [letter["path"] for letter in answer["agents"][0]["deadLetters"]] == ["memory/b.md"]

    workers.health.resolve(ConditionCode.VECTORS_UNWRITABLE, agent="umbrella/eve")
    assert status(cli)[1]["fleet"]["troubled"] == [ANNA]
    bob = cli.agent("status", "--agent", "acme/bob")
    assert (bob["ok"], bob["disk"]["files"], bob["index"]["files"]) == (True, 1, 1)


@pytest.mark.long
def test_status_of_thousands_of_agents_names_fifty(cli: CommandLine, fleet: Fleet, of_fleet: Settings) -> None:
    fleet.run(MANY.format(count=2_000), "acme")
    fleet.run("UPDATE recalld.tenants SET tokens_a_day = 0 WHERE tenant = 'acme'", "acme")
    with connect(of_fleet) as client:
        keys = Keys(namespace(of_fleet))
        client.sadd(keys.troubled, *(f"acme/a{number}" for number in range(1, 2_001)), "ghost/eve")
        for number in range(1, 61):
            client.hset(keys.conditions(f"acme/a{number}"), "no_space", "{}")
    sums = status(cli)[1]["fleet"]
    assert (sums["agents"], sums["documents"], sums["chunks"], sums["vectorsPending"]) == (2_003, 2_000, 2_000, 2_000)
    assert (len(sums["troubled"]), sums["moreTroubled"], sums["spentTenants"]) == (50, 10, ["acme"])
    assert "and 10 more, not shown" in cli.run("status")[1]


def test_dead_letters_of_a_fleet_are_listed_shown_retried_and_dropped(
    cli: CommandLine, fleet: Fleet, workers: FleetWorkers
) -> None:
    note = fleet.arrive(ANNA, "memory/b.md", "The ibis wades.\n")
    for agent, path in ((ANNA, note.path), ("acme/bob", "memory/c.md"), ("umbrella/eve", "memory/c.md")):
        fail(fleet, agent, path)
    letters = cli.json("dead", "list")["deadLetters"]
    assert [letter["agent"] for letter in letters] == [ANNA, "acme/bob", "umbrella/eve"]
    assert len(cli.json("dead", "list", "--agent", "acme/bob")["deadLetters"]) == 1
    assert cli.json("dead", "show", "memory/b.md")["agent"] == ANNA
    assert cli.run("dead", "show", "memory/c.md")[0] == 2, "two agents have it"
    assert cli.json("dead", "show", "memory/c.md", "--agent", "acme/bob")["reason"] == "it is a picture"

    assert cli.json("dead", "retry", "memory/b.md")["queued"]
    wait_until(lambda: workers.finds("ibis"))
    cli.json("dead", "drop", "memory/c.md", "--agent", "umbrella/eve")
    assert [letter["agent"] for letter in cli.json("dead", "list")["deadLetters"]] == ["acme/bob"]


def test_a_search_names_an_agent_where_there_are_several(cli: CommandLine, workers: FleetWorkers) -> None:
    for command in (("search", "heron"), ("get", "memory/a.md"), ("index",), ("rebuild",)):
        code, out, err = cli.run(*command)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert (
            "several agents (acme/anna, acme/bob, umbrella/eve, for example); name one as --agent TENANT/AGENT" in err
        )
        assert "recalld tenant list --agents" in err
    assert cli.json("tenant", "list", "--agents")["agents"] == [ANNA, "acme/bob", "umbrella/eve"]
    answer = cli.json("search", "heron", "--agent", ANNA)
    assert [result["path"] for result in answer["results"]] == ["memory/a.md"]
    assert "The heron stands" in cli.say("get", "memory/a.md", "--agent", ANNA)
    assert cli.run("search", "heron", "--agent", "acme/nobody")[0] == 2


def test_an_agent_of_the_directory_is_indexed_by_a_command(
    cli: CommandLine, fleet: Fleet, workers: FleetWorkers
) -> None:
    fleet.arrive(ANNA, "memory/b.md", "The ibis wades.\n")
    assert cli.agent("index", "--agent", ANNA)["files"] == 2
    assert workers.finds("ibis")


def test_jobs_lists_the_queue_of_all_agents(cli: CommandLine, fleet: Fleet, of_fleet: Settings) -> None:
    with FleetWorkers(of_fleet) as workers:
        workers.stop()
        workers.queue.mark_changed(ANNA, [DocumentKey("memory", "memory/a.md")], lane=Lane.LIVE)
        queue = cli.json("jobs")["queue"]
        assert [(agent["agent"], agent["live"]) for agent in queue] == [(ANNA, 1)]
        assert [agent["agent"] for agent in cli.json("jobs", "--agent", "acme/bob")["queue"]] == ["acme/bob"]


def test_the_doctor_examines_a_fleet_without_a_workspace(cli: CommandLine, fleet: Fleet) -> None:
    findings = {finding["check"]: finding for finding in json.loads(cli.run("doctor", "--json")[1])["findings"]}
    assert "PostgreSQL 1" in findings["store"]["message"]
    assert f"schema {SCHEMA_NUMBER}" in findings["store"]["message"]
    assert "the fleet has 3 agents" in findings["agents"]["message"]
    assert findings["broker"]["level"] == "ok"

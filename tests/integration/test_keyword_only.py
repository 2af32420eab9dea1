"""Vectors that cannot be had are said by every command where its reader is, with a code; chosen keywords are silent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer, Failure
from tests.quiet_board import QuietBoard
from tests.serving import running
from tests.transcript_files import transcript
from tests.waiting import wait_until
from tests.written_index import write_index

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
    assert code == 4
    assert '2 documents by keyword only: OPENAI_API_KEY is not set; set it, or provider = "local"' in err


def test_a_backfill_without_a_key_ends_with_exit_code_4(keyless: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_bytes(transcript("plain", turns=4))
    code, body = run_json(keyless, "backfill", str(tmp_path / "old.jsonl"))
    assert (code, body["result"]["indexed"], body["result"]["code"]) == (4, 1, CODE)


def test_keywords_that_were_chosen_are_exit_code_0(keyless: CommandLine) -> None:
    keyless.set("RECALLD_PROVIDER", "none")
    code, body = run_json(keyless, "index")
    assert (code, body["ok"], body["agents"][0]["code"]) == (0, True, None)


def test_status_tells_the_code_and_shows_no_vectors_that_are_to_come(keyless: CommandLine) -> None:
    keyless.run("index")
    code, body = run_json(keyless, "status")
    [trouble] = body["agents"][0]["troubles"]
    assert (code, trouble["part"], trouble["code"]) == (4, "embedding", CODE)
    assert "0 of 2 ready" not in keyless.run("status")[1]


# The page and `up` ------------------------------------------------------------------------------------


@pytest.fixture
def keyless_service(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    """The service of an agent whose provider has no key, with one note."""
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    agent = settings.agents[0].model_copy(update={"provider": "openai"})
    chosen = settings.model_copy(update={"provider": "openai", "agents": (agent,)})
    write_index(chosen).close()
    with running(chosen, QuietBoard()) as client:
        yield client


def test_what_moves_and_what_was_compared_tell_the_same(keyless_service: httpx.Client) -> None:
    [moving] = keyless_service.get("/v1/queue").json()["agents"]
    [compared] = keyless_service.get("/v1/status").json()["agents"]
    assert [one["code"] for one in moving["troubles"]] == [one["code"] for one in compared["troubles"]] == [CODE]
    assert moving["troubles"][0]["message"] == compared["troubles"][0]["message"]


def test_up_says_it_for_each_agent(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    with Daemon(home, workspace, provider="openai") as daemon:
        assert "OPENAI_API_KEY is not set" in daemon.said()
        wait_until(lambda: "1 document, by keyword only" in daemon.said())


def test_a_provider_that_refuses_is_told_by_up_and_in_its_own_words_by_status_and_index(
    home: Path, workspace: Path
) -> None:
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

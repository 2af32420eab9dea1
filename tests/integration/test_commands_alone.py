"""Commands without a service and without workers: they send requests themselves, as few and as guarded as theirs."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.selection import choose_provider
from producers.spool import drain
from schemas.conditions import ConditionCode
from schemas.errors import Terminal, Throttled
from schemas.ports import SpooledUsage
from schemas.settings import Settings
from tests.chaos.kill_points import KillPoint, Plan
from tests.commanding import CommandLine
from tests.daemon import Daemon, recalld
from tests.embedding_server import EmbeddingServer, Failure
from tests.unit.memory.embedding.providers.test_gguf_model import STAND_IN, write_gguf
from tests.waiting import wait_until
from tests.working import asking
from workers.claims import coordinating

QUESTION = "where is the spare key of zz-123456789"


@pytest.fixture
def indexed(commands: CommandLine, workspace: Path, server: EmbeddingServer) -> CommandLine:
    """A home with the index of one note, and nothing that runs."""
    (workspace / "MEMORY.md").write_text("The spare key is under the third stone.\n")
    commands.say("index")
    server.log.clear()
    server.requests = 0
    return commands


def spooled(home: Path) -> list[SpooledUsage]:
    """Take the usages from the spool."""
    content: list[Any] = []
    drain(home, content.append)
    return content


# Search


def test_a_search_embeds_its_query_with_one_request_and_spools_its_cost(indexed: CommandLine, home: Path) -> None:
    before = {path: path.read_bytes() for folder in ("indexes", "cache") for path in (home / folder).rglob("*.sqlite")}
    answer = indexed.json("search", f"{QUESTION} sk-proj-{'x7Kq' * 12}")
    assert (answer["mode"], answer["degraded"], answer["provider"]) == ("hybrid", [], "openai")
    [request] = indexed.server.log
    assert "spare key" in request.inputs[0]
    assert "x7Kq" not in request.inputs[0]
    [one] = spooled(home)
    assert (one.usage.requests, one.usage.inputs, one.queries, list(one.agents)) == (1, 1, True, ["main"])
    assert {path: path.read_bytes() for path in before} == before
    indexed.say("get", "MEMORY.md")
    indexed.run("context", "list")
    assert indexed.server.requests == 1


def test_a_search_without_a_key_says_that_it_is_by_keywords_only(indexed: CommandLine, server: EmbeddingServer) -> None:
    config = indexed.home.parent / "recalld.toml"
    config.write_text(
        "".join(line for line in config.read_text().splitlines(keepends=True) if "remote." not in line), "utf-8"
    )
    answer = indexed.json("search", QUESTION)
    assert (answer["mode"], answer["results"][0]["path"]) == ("keyword", "MEMORY.md")
    assert "OPENAI_API_KEY is not set" in answer["degraded"][0]
    assert server.requests == 0


def test_a_refused_query_is_asked_once_and_its_words_are_searched(indexed: CommandLine, home: Path) -> None:
    indexed.server.key = "another"
    answer = indexed.json("search", QUESTION)
    assert (answer["mode"], answer["results"][0]["path"]) == ("keyword", "MEMORY.md")
    assert "refused" in answer["degraded"][0]
    assert indexed.server.requests == 1
    assert [one.usage.failed for one in spooled(home)] == [1]


def cooling(settings: Settings, provider: Any) -> None:
    with coordinating(settings) as others:
        others(provider).limiter.report(Throttled("slow down", retry_after=300))


def refused(settings: Settings, provider: Any) -> None:
    with coordinating(settings) as others:
        others(provider).limiter.report(Terminal("the key was refused"))


@pytest.mark.usefixtures("broker_server")
@pytest.mark.parametrize("state", [cooling, refused])
def test_a_search_asks_no_provider_that_a_running_broker_knows_to_refuse(
    indexed: CommandLine, settings: Settings, server: EmbeddingServer, state: Callable[[Settings, Any], None]
) -> None:
    configured = asking(settings, server.url)
    state(configured, choose_provider(configured.agents[0], configured.credentials).provider)
    answer = indexed.json("search", QUESTION)
    assert answer["mode"] == "keyword"
    assert ("asked to wait" if state is cooling else "was refused") in answer["degraded"][0]
    assert server.requests == 0


def test_searches_one_after_the_other_share_the_record_of_useless_answers(indexed: CommandLine) -> None:
    indexed.server.fail_next(Failure(drop=1), times=4)
    answers = [indexed.json("search", QUESTION) for _ in range(4)]
    assert {answer["mode"] for answer in answers} == {"keyword"}
    assert "0 vectors" in answers[-1]["degraded"][0]
    assert indexed.server.requests == 2, "a first pause takes no time: the second one is a question"


@pytest.mark.long
def test_a_search_does_not_wait_for_a_model_of_the_user_s_that_loads_slowly(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The spare key is under the third stone.\n")
    package = home.parent / "site" / "llama_cpp"
    package.mkdir(parents=True)
    never = 'if os.environ.get("LOADS"): __import__("threading").Event().wait()'
    (package / "__init__.py").write_text(STAND_IN.replace("        lines =", f"        {never}\n        lines ="))
    model = write_gguf(home.parent / "mine.gguf")
    environment = {
        "PYTHONPATH": str(package.parent),
        "RECALLD_PROVIDER": "local",
        "RECALLD_LOCAL__MODEL_PATH": str(model),
    }
    index = recalld("index", "--workspace", str(workspace), home=home, environment=environment)
    assert index.returncode == 0, index.stderr
    modes = []
    for more in ({}, {"LOADS": "for ever"}):
        search = recalld("search", QUESTION, "--json", home=home, environment={**environment, **more})
        answer = json.loads(search.stdout)
        modes.append((search.returncode, answer["mode"], "".join(answer["degraded"])))
    still = "the embedding model of 'local' is still loading: keywords only"
    assert modes == [(0, "hybrid", ""), (0, "keyword", still)]


# Index


@pytest.fixture
def resting(indexed: CommandLine, home: Path) -> CommandLine:
    """A home whose broker has left no trace: only a command that starts workers makes its folder again."""
    shutil.rmtree(home / "broker")
    spooled(home)
    return indexed


def test_a_few_notes_are_one_request_of_the_command_itself(resting: CommandLine, home: Path, workspace: Path) -> None:
    for number in range(20):
        (workspace / "memory" / f"{number}.md").write_text(f"The lynx of cave {number} hides.\n")
    report = resting.agent("index")
    assert (report["files"], report["vectorsReady"], report["vectorsPending"]) == (21, 21, 0)
    [request] = resting.server.log
    assert len(request.inputs) == 20
    assert not (home / "broker").exists()
    assert [(one["requests"], one["inputs"]) for one in report["spent"]] == [(1, 20)]
    assert [(one.usage.requests, one.usage.inputs, one.queries) for one in spooled(home)] == [(1, 20, False)]
    assert resting.agent("index")["spent"] == []


@pytest.mark.parametrize(
    ("notes", "lines", "settings_of_remote"),
    [(21, 1, {}), (2, 4000, {}), (1, 1, {"requests_per_minute": 100}), (1, 1, {"tokens_per_minute": 100_000})],
)
def test_more_than_one_request_or_a_limit_a_minute_is_for_workers(
    resting: CommandLine, home: Path, workspace: Path, notes: int, lines: int, settings_of_remote: dict[str, int]
) -> None:
    for name, number in settings_of_remote.items():
        resting.set(f"RECALLD_REMOTE__{name.upper()}", str(number))
    for number in range(notes):
        text = "".join(f"The lynx of cave {number} hid {line} times.\n" for line in range(lines))
        (workspace / "memory" / f"{number}.md").write_text(text)
    assert resting.agent("index")["vectorsPending"] == 0
    assert (home / "broker").is_dir()
    assert spooled(home) == []


def test_keywords_alone_are_indexed_by_the_command_itself(resting: CommandLine, home: Path, workspace: Path) -> None:
    resting.set("RECALLD_PROVIDER", "none")
    resting.say("index")
    shutil.rmtree(home / "broker")
    (workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    assert resting.agent("index")["files"] == 2
    assert not (home / "broker").exists()


def test_no_vector_is_waited_for_that_no_process_has_the_key_of(resting: CommandLine, workspace: Path) -> None:
    resting.say("index")
    settings = workspace.parent / "recalld.toml"
    settings.write_text("\n".join(line for line in settings.read_text().splitlines() if "remote" not in line))
    (workspace / "memory" / "new.md").write_text("The bittern booms.\n", "utf-8")
    code, out, err = resting.run("index", "--json")
    agent = json.loads(out)["agents"][0]
    assert (code, agent["code"], agent["vectorsPending"]) == (4, ConditionCode.VECTORS_UNAVAILABLE, 1)
    assert "waits for" not in err


def test_a_text_in_the_cache_is_not_sent_again(resting: CommandLine, workspace: Path, server: EmbeddingServer) -> None:
    note = workspace / "MEMORY.md"
    text = note.read_text()
    for content in ("The ocelot climbs.\n", text):
        note.write_text(content)
        assert resting.agent("index")["vectorsReady"] == 1
    assert server.paid == {text: 1, "The ocelot climbs.\n": 1}
    assert not (resting.home / "broker").exists()


def test_a_refused_key_is_asked_once_by_the_command_and_its_workers(resting: CommandLine, workspace: Path) -> None:
    resting.server.key = "another"
    (workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    code, out, err = resting.run("index", "--json")
    [report] = json.loads(out)["agents"]
    assert (code, report["vectorsPending"], report["code"]) == (1, 1, "vectors_wait"), err
    assert "refused" in report["stopped"]
    assert resting.server.requests == 1
    assert (resting.home / "broker").is_dir()
    assert [(one["requests"], one["failed"]) for one in report["spent"]] == [(1, 1)]


@pytest.mark.long
def test_workers_wait_as_long_as_the_provider_asked_the_command_to(resting: CommandLine, workspace: Path) -> None:
    resting.server.fail_next(Failure(status=429, headers={"Retry-After": "6"}))
    (workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    assert resting.agent("index")["vectorsPending"] == 0
    first, second = resting.server.log
    assert second.started - first.started >= 6


def test_a_late_answer_is_waited_for_and_paid_once(resting: CommandLine, home: Path, server: EmbeddingServer) -> None:
    server.fail_next(Failure(delay=4))
    (resting.workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    report = resting.agent("index")
    assert (report["vectorsPending"], server.requests, len(report["spent"])) == (0, 1, 1)
    assert not (home / "broker").exists()


@pytest.mark.long
def test_of_two_commands_at_once_the_second_waits_and_pays_nothing(resting: CommandLine, workspace: Path) -> None:
    (workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    resting.server.fail_next(Failure(delay=8))
    config = {"RECALLD_CONFIG": str(resting.home.parent / "recalld.toml")}
    with ThreadPoolExecutor() as threads:
        first = threads.submit(recalld, "index", home=resting.home, environment=config)
        wait_until(lambda: resting.server.requests == 1)
        second = threads.submit(recalld, "index", "--json", home=resting.home, environment=config)
    assert first.result().returncode == 0
    assert json.loads(second.result().stdout)["agents"][0]["vectorsReady"] == 2
    assert (resting.server.requests, (resting.home / "broker").exists()) == (1, False)


def test_a_command_killed_between_answer_and_commit_pays_nothing_twice(resting: CommandLine, workspace: Path) -> None:
    point = KillPoint("killed", "index", "after", "memory.embedding.cache:EmbeddingCache.put_many", "note")
    plan = Plan(resting.home.parent / "plan", [point])
    plan.arm(point)
    (workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    environment = {**plan.environment(), "RECALLD_CONFIG": str(resting.home.parent / "recalld.toml")}
    assert recalld("index", home=resting.home, environment=environment).returncode == -signal.SIGKILL
    assert resting.server.requests == 1
    report = resting.agent("index")
    assert (report["files"], report["vectorsReady"], report["spent"], resting.server.requests) == (2, 2, [], 1)
    assert (resting.home / "broker").is_dir()
    assert len(spooled(resting.home)) == 1


# Both


@pytest.mark.long
def test_spending_is_counted_once_and_stays_in_status_without_the_broker(
    indexed: CommandLine, server: EmbeddingServer
) -> None:
    (indexed.workspace / "memory" / "x.md").write_text("The margay climbs.\n")
    indexed.say("index")
    indexed.say("search", QUESTION)
    own = f'remote.base_url = "{server.url}"\nremote.api_key = "a-secret-key"'

    def counted(status: str) -> list[tuple[int, int]]:
        usages = json.loads(status)["agents"][0]["usage"]
        return [(usage["total"]["requests"], usage["today"]["inputs"]) for usage in usages]

    assert counted(indexed.say("status", "--json")) == [(3, 3)]
    with Daemon(indexed.home, indexed.workspace, provider="openai", config=own) as daemon:
        wait_until(lambda: counted(daemon.run("status", "--json").stdout) == [(3, 3)])
        wait_until(lambda: not list((indexed.home / "spool").glob("*.json")))
    assert counted(indexed.say("status", "--json")) == [(3, 3)], "as workers noted it at their end"
    assert server.requests == 2
    indexed.say("search", "the spare key of zz-987654321")
    assert counted(indexed.say("status", "--json")) == [(4, 4)]

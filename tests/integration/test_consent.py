"""No money without a yes: a server that counts, on this machine, with a price in the settings."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from memory.documents.imports import imports_path, remember_import
from memory.index.generations import Generations
from producers.reconciler import AgentComparison
from recalld.invocation import Invocation
from recalld.runs.backfill import find_transcripts, plan_backfill
from recalld.runs.consent import Allowance, Question, with_consent
from recalld.runs.outcome import Outcome
from recalld.runs.run import Run
from schemas.agents import tenant_of
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.daemon import REPOSITORY, Daemon
from tests.embedding_server import EmbeddingServer, Failure
from tests.transcript_files import transcript
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import reading
from workers.queue.counters import today_utc
from workers.queue.private_server import BrokerServer

#: US dollars for a million tokens.
PRICE = 100


@pytest.fixture
def paid(commands: CommandLine) -> CommandLine:
    """A command line whose provider costs money, and asks for every cent."""
    above_agent(commands, f"remote.price_per_million_tokens = {PRICE}\ncost.ask_above = 0")
    return commands


def above_agent(commands: CommandLine, lines: str) -> None:
    """Add settings of all agents."""
    config = commands.home.parent / "recalld.toml"
    config.write_text(f"{lines}\n{config.read_text()}")


def write_transcripts(folder: Path, texts: int) -> Path:
    """Transcripts whose every message is a chunk of its own."""
    folder.mkdir(exist_ok=True)
    for number in range(texts // 100):
        lines = (
            {"role": role, "content": f"{role} {number}x{turn} says heron " + f"word{number}y{turn} " * 150}
            for turn in range(50)
            for role in ("user", "assistant")
        )
        (folder / f"{number:03}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_notes(workspace: Path, count: int = 3) -> None:
    for number in range(count):
        (workspace / "memory" / f"{number}.md").write_text(f"# Note {number}\n\nThe heron number {number}.\n")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of a terminal."""
    side, commands_side = pty.openpty()
    with os.fdopen(commands_side, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield side
    os.close(side)


def held(commands: CommandLine) -> int:
    _, out, _ = commands.run("status", "--json")
    [agent] = json.loads(out)["agents"]
    assert "vectors_held" not in [trouble["code"] for trouble in agent["troubles"]]
    return int(agent["index"]["vectorsHeld"])


@pytest.mark.long
def test_4000_old_texts_wait_for_a_yes_and_are_paid_exactly_once(commands: CommandLine, tmp_path: Path) -> None:
    above_agent(commands, f"remote.price_per_million_tokens = {PRICE}")
    old = write_transcripts(tmp_path / "old", 4000)
    exact = commands.json("backfill", str(old), "--dry-run")["estimate"]
    code, out, _ = commands.run("backfill", str(old), "--json")
    body = json.loads(out)
    consent = body["result"]["consent"]
    assert (code, commands.server.requests, body["result"]["code"]) == (4, 0, "vectors_held")
    assert (consent["texts"], consent["tokens"]) == (exact["toEmbed"], exact["tokens"])
    assert consent["command"] == "recalld index --agent main --yes"
    assert commands.json("search", "heron")["mode"] == "keyword"
    assert held(commands) == 4000
    queries = commands.server.inputs
    done = commands.agent("index", "--yes")
    assert (done["vectorsReady"], done["consent"]) == (4000, None)
    assert commands.server.inputs - queries == commands.server.distinct - queries == consent["texts"] == 4000
    assert done["spent"][0]["tokens"] == pytest.approx(consent["tokens"], abs=1)


@pytest.mark.parametrize(("answer", "code", "is_sent"), [("y\n", 0, True), ("\n", 4, False), ("", 4, False)])
@pytest.mark.parametrize("command", ["index", "rebuild", "backfill"])
def test_a_terminal_asks_and_anything_but_yes_sends_nothing(
    paid: CommandLine,
    terminal: int,
    tmp_path: Path,
    command: str,
    answer: str,
    code: int,
    is_sent: bool,
) -> None:
    os.write(terminal, answer.encode() or b"\x04")  # Ctrl-D
    write_notes(paid.workspace)
    arguments = [str(write_transcripts(tmp_path / "old", 100))] if command == "backfill" else []
    ended, _, err = paid.run(command, *arguments)
    assert (ended, paid.server.requests > 0) == (code, is_sent), err
    assert "Embed them now?" in err
    assert "M tokens" in err or " tokens, about 1 request" in err
    assert len(paid.json("search", "heron")["results"]) > 2


def test_the_plan_above_the_question_names_what_is_left_out(paid: CommandLine, terminal: int, tmp_path: Path) -> None:
    os.write(terminal, b"\n")
    old = write_transcripts(tmp_path / "old", 300)
    code, _, err = paid.run("backfill", str(old), "--limit", "1", "--json")
    assert code == 4
    assert 0 < err.find("2 left out") < err.find("Embed them now?")


def test_held_texts_of_an_export_wait_in_the_home_that_imports_it(paid: CommandLine, tmp_path: Path) -> None:
    file, other = tmp_path / "out.sqlite", ["--home", str(tmp_path / "other")]
    write_notes(paid.workspace)
    assert paid.run("index")[0] == 4
    paid.say("export", str(file))
    paid.say(*other, "import", str(file))
    code, out, _ = paid.run(*other, "index", "--json")
    assert (code, json.loads(out)["agents"][0]["consent"]["texts"], paid.server.requests) == (4, 3, 0)
    assert paid.agent(*other, "index", "--yes")["vectorsReady"] == paid.server.inputs == 3


def test_an_allowance_of_tokens_releases_so_many_and_no_more(paid: CommandLine, tmp_path: Path) -> None:
    old = write_transcripts(tmp_path / "old", 300)
    code, out, _ = paid.run("backfill", str(old), "--max-tokens", "10000", "--json")
    result = json.loads(out)["result"]
    assert (code, result["code"]) == (4, "vectors_held")
    assert 9_000 < result["spent"][0]["tokens"] <= 10_001
    assert held(paid) == 300 - paid.server.inputs > 0
    code, out, _ = paid.run("index", "--max-dollars", "1", "--json")
    assert code == 4
    assert 9_000 < json.loads(out)["agents"][0]["spent"][0]["tokens"] <= 1e6 / PRICE + 1
    assert paid.agent("index", "--yes")["vectorsPending"] == held(paid) == 0
    assert paid.server.paid_twice == set()


def test_little_work_and_documents_of_a_free_provider_are_never_asked_about(commands: CommandLine) -> None:
    write_notes(commands.workspace, 30)
    commands.say("index")
    above_agent(commands, 'model = "another-model"\nremote.price_per_million_tokens = 1')
    assert commands.agent("rebuild")["vectorsReady"] == 30
    assert commands.server.inputs == 60


@pytest.mark.long
def test_a_budget_a_day_is_a_consent_and_ends_the_run_when_it_is_used_up(paid: CommandLine, tmp_path: Path) -> None:
    config = paid.home.parent / "recalld.toml"
    config.write_text(config.read_text().replace("cost.ask_above = 0", "cost = {ask_above = 0, tokens_per_day = 5000}"))
    first = paid.json("backfill", str(write_transcripts(tmp_path / "old", 100)))
    assert first["result"]["vectorsReady"] == paid.server.inputs == 100
    code, out, err = paid.run("backfill", str(write_transcripts(tmp_path / "more", 200)), "--json")
    result = json.loads(out)["result"]
    assert (code, result["vectorsPending"], paid.server.inputs, held(paid)) == (1, 100, 100, 0)
    assert "cost.tokens_per_day" in err


def test_another_model_waits_for_a_yes_while_the_old_index_answers(paid: CommandLine) -> None:
    write_notes(paid.workspace, 30)
    paid.say("index", "--yes")
    above_agent(paid, 'model = "another-model"')
    code, out, _ = paid.run("index", "--json")
    assert (code, json.loads(out)["agents"][0]["consent"]["texts"], paid.server.inputs) == (4, 30, 30)
    assert paid.json("search", "heron")["mode"] == "hybrid"
    paid.say("index", "--yes")
    assert paid.server.inputs == 31 + 30
    assert paid.json("search", "heron")["mode"] == "hybrid"


def test_a_budget_that_is_used_up_leaves_texts_waiting_until_the_next_day(
    settings: Settings, server: EmbeddingServer, broker_server: BrokerServer
) -> None:
    with Workers(asking(settings, server.url, cost={"tokens_per_day": 5})) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: ConditionCode.BUDGET_SPENT in workers.conditions())
        assert (workers.counts().vectors_ready, server.inputs, workers.finds("otter")) == (1, 1, True)
        # Midnight: today's use is yesterday's.
        today, tenant = today_utc(), tenant_of("main")
        yesterdays_use = workers.keys.usage(tenant, today - timedelta(days=1))
        workers.client.rename(workers.keys.usage(tenant, today), yesterdays_use)
        workers.queue.request_vectors_now("main")
        wait_until(workers.complete)
        assert server.inputs == server.distinct == 2
        wait_until(lambda: ConditionCode.BUDGET_SPENT not in workers.conditions())


def first_notes(daemon: Daemon) -> int:
    write_notes(daemon.workspace, 5)
    return 5


def first_vault(daemon: Daemon) -> int:
    write_notes(daemon.workspace, 60)
    return 60


@pytest.mark.long
@pytest.mark.parametrize("write", [first_notes, first_vault])
def test_a_daemon_holds_old_texts_and_embeds_saved_ones_at_once(
    home: Path, workspace: Path, server: EmbeddingServer, write: Callable[[Daemon], int]
) -> None:
    price = f'remote = {{base_url = "{server.url}", api_key = "k", price_per_million_tokens = {PRICE}}}'
    daemon = Daemon(home, workspace, provider="openai", config=f"{price}\ncost.ask_above = 0")
    (workspace / "memory").mkdir(parents=True, exist_ok=True)
    count = write(daemon)
    with daemon:
        wait_until(lambda: "wait for your consent" in daemon.said())
        assert server.requests == 0
        status = daemon.status()
        assert (status["ok"], status["index"]["vectorsHeld"]) == (True, count)
        assert [advice["code"] for advice in status["advice"]] == ["vectors_held"]
        daemon.write("memory/new.md", "# New\n\nThe egret is new.\n")
        wait_until(lambda: server.inputs == 1)
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == 1)
        assert daemon.status()["index"]["vectorsHeld"] == count
        assert daemon.run("index", "--yes", "--json").returncode == 0
        assert server.inputs == server.distinct == 1 + count
    assert daemon.said().count("wait for your consent") == 1


class Discovered(Daemon):
    """`recalld up` with the settings that `recalld discover --write` made."""

    def options(self) -> list[str]:
        return []

    def up_options(self) -> list[str]:
        return []


@pytest.mark.long
def test_up_after_discover_sends_no_old_session_before_a_yes(tmp_path: Path, server: EmbeddingServer) -> None:
    user = tmp_path / "user"
    sessions = user / ".codex" / "sessions" / "2026" / "02" / "03"
    sessions.mkdir(parents=True)
    for seed in range(4):
        (sessions / f"rollout-{seed}.jsonl").write_bytes(transcript("codex", turns=20, seed=seed))
    environment = {
        "HOME": str(user),
        "PYTHONPATH": str(REPOSITORY),
        "RECALLD_PROVIDER": "openai",
        "OPENAI_API_KEY": "k",
        "RECALLD_REMOTE__BASE_URL": server.url,
        "RECALLD_REMOTE__PRICE_PER_MILLION_TOKENS": str(PRICE),
        "RECALLD_COST__ASK_ABOVE": "0",
        "CODEX_HOME": "",
        "XDG_CONFIG_HOME": "",
        "XDG_DATA_HOME": "",
    }
    daemon = Discovered(tmp_path / "unused", user, environment=environment, folder=user)
    written = daemon.run("discover", "--pick", "codex", "--write")
    assert written.returncode == 0, written.stderr
    with daemon:
        wait_until(lambda: "wait for your consent" in daemon.said())
        assert "recalld index --agent codex --yes" in daemon.said()
        status = daemon.status()
        assert (status["ok"], status["index"]["vectorsHeld"], server.requests) == (True, status["index"]["chunks"], 0)
        assert daemon.run("index", "--yes").returncode == 0
        assert server.inputs == server.distinct == status["index"]["chunks"]


def test_a_takeover_by_a_paid_fallback_sends_nothing_before_a_yes(
    settings: Settings, server: EmbeddingServer, broker_server: BrokerServer
) -> None:
    remote = {"base_url": server.url, "api_key": "k"}
    provider = {"provider": "mistral", "fallback": "openai", "remote": remote}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, **provider}
    more = {"cost": {"ask_above": 0}, "credentials": {"openai": "k"}}
    ours = Settings.model_validate({"home": settings.home, "agents": [agent], **provider, **more})
    generations = Generations.of(ours, "main")

    def held_by_fallback() -> int:
        name = generations.next()
        reader = generations.open_named(name) if name is not None else None
        with closing(reader) if reader is not None else nullcontext():
            return reader.counts().vectors_held if reader is not None else 0

    with Workers(ours) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        server.fail_next(Failure(status=401, message="revoked"), times=10_000)
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: held_by_fallback() == 2)
        wait_until(lambda: not workers.waiting().anything)
        assert {usage.provider for usage in workers.health.usage("main")} == {"mistral"}
        assert workers.counts().vectors_ready == 1, "the index of the lost provider answers"


def run_with_a_question(paid: CommandLine, *, tokens: int) -> Outcome:
    """Run a backfill of 100 texts, whose sample told so many tokens at most."""
    settings = Invocation(str(paid.home.parent / "recalld.toml"), str(paid.home)).settings
    agent = settings.agent("main")
    selection = find_transcripts([write_transcripts(paid.home.parent / "old", 100)], home=paid.home)
    remember_import(imports_path(settings.home, agent.id), selection.folders[0])
    plan = plan_backfill(settings, agent, selection, exact=False)
    assert plan.estimate.at_most is None, "a small backfill is read whole"
    sampled = replace(plan.estimate, tokens=tokens - 1, at_most=tokens)
    nothing = Allowance(yes=False, max_tokens=None, max_dollars=None)
    question = Question.about(settings, agent, sampled.upper, allowance=nothing)
    planned = AgentComparison(agent.id, backfill=list(plan.transcripts))
    with Run(settings, [agent], patient=True, question=question) as run:
        report = with_consent(run, partial(run.by_workers, lambda: [planned]), allowance=nothing)
    return report.outcomes[0]


@pytest.mark.parametrize(("answers", "is_paid"), [("y\nn\n", False), ("y\ny\n", True)])
def test_a_yes_covers_the_most_of_a_sample_and_the_rest_is_asked_for_again(
    paid: CommandLine, terminal: int, capsys: pytest.CaptureFixture[str], answers: str, is_paid: bool
) -> None:
    os.write(terminal, answers.encode())
    outcome = run_with_a_question(paid, tokens=10_000)
    assert capsys.readouterr().err.count("Embed them now?") == 2
    assert outcome.counts.vectors_ready + held(paid) == paid.server.inputs + held(paid) == 100
    assert (held(paid) == 0) is is_paid
    assert is_paid or 9_000 < outcome.spent[0][0].tokens <= 10_001


def test_words_are_found_while_a_question_waits_and_its_last_figures_are_exact(
    paid: CommandLine, terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def passages() -> int:
        with reading(paid.home) as reader:
            return len(reader.search_text("heron", 200)) if reader is not None else 0

    def questions() -> int:
        said.append(capsys.readouterr().err)
        return "".join(said).count("Embed them now?")

    def answer_when_asked_again() -> None:
        wait_until(lambda: passages() == 100 and questions() == 2)
        os.write(terminal, b"y\n")

    with ThreadPoolExecutor() as pool:
        answered = pool.submit(answer_when_asked_again)
        outcome = run_with_a_question(paid, tokens=10_000)
        answered.result()
    assert "100 texts to embed" in "".join(said).split("Embed them now?")[1]
    assert outcome.counts.vectors_ready == paid.server.inputs == 100

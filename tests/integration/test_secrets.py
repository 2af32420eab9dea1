"""A secret in a note, a transcript or a query goes nowhere: not to the provider, the home folder, an answer, a log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import structlog

from recalld.logs import redact_fields
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine, command_line
from tests.embedding_server import EmbeddingServer, Failure
from tests.secret_samples import PASSWORD, made
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import asking
from tests.written_index import with_agent, write_index
from workers.health.health_store import HealthStore
from workers.queue.names import Keys

TOKEN = made("ghp_{A36}", random.Random(1))
KEY = made("sk-ant-api03-{u93}AA", random.Random(2))
COMMIT = "3f786850e387550fdab836ed7e6dc881de23001b"

NOTE = (
    f"# Gateway\n\nThe bot pushes with {TOKEN} since commit {COMMIT}.\n数据库密码：{PASSWORD}，周五轮换。\nThe end.\n"
)
MASKED = NOTE.replace(TOKEN, "[redacted:github-token]").replace(PASSWORD, "[redacted:password]").rstrip("\n")

HIDDEN = "the [redacted:pattern] project"


@pytest.fixture
def commands(
    home: Path,
    workspace: Path,
    server: EmbeddingServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandLine]:
    (workspace / "memory" / "gateway.md").write_text(NOTE, "utf-8")
    sessions = workspace.parent / "sessions"
    sessions.mkdir()
    said = [{"role": "user", "content": f"Please use {KEY} for the crocodile project", "timestamp": 1767225600}]
    (sessions / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said), "utf-8")
    for made_command_line in command_line(home, workspace, server, capsys, monkeypatch):
        made_command_line.configure(f'sessions = ["{sessions}"]')
        yield made_command_line


def held(home: Path, secret: str) -> list[Path]:
    """The files of a home that hold a secret."""
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if secret.encode() in path.read_bytes()]


def test_what_is_indexed_is_sent_and_kept_without_its_secrets(commands: CommandLine, server: EmbeddingServer) -> None:
    commands.say("index")
    sent = "\n".join(server.texts)
    assert "bot pushes" in sent
    assert "crocodile" in sent
    for secret in (TOKEN, PASSWORD, KEY):
        assert secret not in sent
        assert held(commands.home, secret) == []
    for query, source in ((f"commit {COMMIT}", "memory"), ("crocodile project", "sessions")):
        [hit, *_] = commands.json("search", query)["results"]
        assert hit["source"] == source
        assert "[redacted:" in hit["snippet"]
        assert not any(secret in json.dumps(hit) for secret in (TOKEN, PASSWORD, KEY))


def test_an_index_older_than_a_pattern_shows_nothing_that_the_pattern_hides(commands: CommandLine, home: Path) -> None:
    commands.say("index")
    assert COMMIT in commands.json("search", "who pushes")["results"][0]["snippet"]
    config = home.parent / "recalld.toml"
    config.write_text('redaction.patterns = ["[0-9a-f]{40}", "crocodile"]\n' + config.read_text("utf-8"), "utf-8")
    [hit, *_] = commands.json("search", "who pushes")["results"]
    assert ("commit [redacted:" in hit["snippet"], COMMIT in hit["snippet"]) == (True, False)
    [hit, *_] = commands.json("search", "for the project", "--source", "sessions")["results"]
    assert HIDDEN in hit["snippet"]
    (home.parent / "sessions" / "one.jsonl").unlink()
    assert HIDDEN in commands.json("get", hit["path"])["text"]


def test_reading_a_document_gives_its_lines_without_its_secrets(commands: CommandLine) -> None:
    answer = commands.json("get", "memory/gateway.md")
    assert answer["text"] == MASKED
    assert (answer["from"], answer["totalLines"]) == (1, 5)
    assert commands.json("get", "memory/gateway.md", "--from", "4", "--lines", "1")["text"] == MASKED.split("\n")[3]
    assert KEY not in commands.say("get", "sessions/one.jsonl")


def test_a_switched_off_source_is_indexed_and_read_as_it_is(commands: CommandLine, server: EmbeddingServer) -> None:
    commands.set("RECALLD_REDACTION__MEMORY", "false")
    commands.say("index")
    assert TOKEN in "\n".join(server.texts)
    assert KEY not in "\n".join(server.texts)
    assert commands.json("get", "memory/gateway.md")["text"] == NOTE.rstrip("\n")


def test_a_secret_in_a_query_reaches_no_provider_and_finds_what_held_it(
    settings: Settings, workspace: Path, server: EmbeddingServer
) -> None:
    (workspace / "memory" / "gateway.md").write_text(MASKED + "\n", "utf-8")
    settings = with_agent(asking(settings, server.url), redaction={"patterns": [r"blue\w+"]})
    write_index(settings).close()
    with running(settings) as client:
        wait_until(lambda: search(client, "warm up")["mode"] == "hybrid")
        question = "who pushes with {}, the password: {} or {}?"
        answer = search(client, question.format(TOKEN, PASSWORD, "bluebird"))
    [hit] = answer["results"]
    assert hit["path"] == "memory/gateway.md"
    hidden = (f"[redacted:{kind}]" for kind in ("github-token", "password", "pattern"))
    assert server.log[-1].inputs == (question.format(*hidden),)


def test_a_secret_in_a_further_phrasing_reaches_no_provider(commands: CommandLine, server: EmbeddingServer) -> None:
    commands.say("index")
    found = commands.json("search", "dentist", "--also", f"bot pushes with {TOKEN}", "--also", "the end")["results"]
    assert "memory/gateway.md" in {hit["path"] for hit in found}
    assert [TOKEN in text for text in server.texts if text.startswith("bot pushes")] == [False]
    code, _, err = commands.run("search", "dentist", *(["--also", "teeth"] * 5))
    assert (code, "at most 4" in err) == (2, True)


def test_a_provider_that_quotes_what_it_was_sent_is_passed_on_without_secrets(commands: CommandLine) -> None:
    commands.set("RECALLD_REDACTION__MEMORY", "false")
    commands.server.fail_next(Failure(status=400, message=f"cannot embed 'The bot pushes with {TOKEN}'"), times=20)
    code, out, err = commands.run("index")
    assert code != 0
    said = out + err + "".join(commands.run("status", "--json")[1:])
    assert "with [redacted:github-token]'" in said
    assert TOKEN not in said


def test_a_trouble_is_published_without_secrets(client: redis.Redis, keys: Keys) -> None:
    health = HealthStore(client, keys)
    health.report(ConditionCode.STORE_FULL, agent="main", error=f"redis://:{PASSWORD}@localhost")
    [trouble] = health.conditions("main")
    assert trouble.params == {"error": "redis://:[redacted:password]@localhost"}


def test_a_log_line_has_no_secret_in_its_fields_nor_in_its_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.wrap_logger(
        structlog.PrintLogger(),
        processors=[structlog.processors.format_exc_info, redact_fields, structlog.processors.JSONRenderer()],
    )
    try:
        int(f"key {KEY}")
    except ValueError as error:
        log.exception("failed", said=TOKEN, password=PASSWORD, nested={"urls": [f"a://b:{PASSWORD}@c"]},
                      error=error, path=Path("/a/b.md"), count=3, ready=None, commit=COMMIT)  # fmt: skip
    printed = capsys.readouterr().out
    line = json.loads(printed)
    for secret in (TOKEN, KEY, PASSWORD):
        assert secret not in printed
    assert line["said"] == "[redacted:github-token]"
    assert line["password"] == "[redacted:password]"
    assert line["nested"] == {"urls": ["a://b:[redacted:password]@c"]}
    assert "'key [redacted:anthropic-key]'" in line["exception"]
    assert (line["event"], line["count"], line["ready"], line["commit"]) == ("failed", 3, None, COMMIT)
    assert "/a/b.md" in line["path"]

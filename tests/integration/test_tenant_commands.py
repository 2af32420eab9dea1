"""`recalld tenant` and `recalld token`, against a real PostgreSQL."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.store.postgres.connection import Database
from memory.store.postgres.directory import token_hash
from tests.batch_server import BatchServer
from tests.commanding import CommandLine, command_line
from tests.postgres_server import Urls


@pytest.fixture
def alone(
    home: Path,
    workspace: Path,
    server: BatchServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandLine]:
    """The command line of a machine without a fleet."""
    yield from command_line(home, workspace, server, capsys, monkeypatch)


@pytest.fixture
def cli(alone: CommandLine, fleet_urls: Urls) -> CommandLine:
    """The command line of a fleet's administrator."""
    alone.set("RECALLD_STORE__URL", fleet_urls.writer)
    return alone


def test_an_administrator_makes_lists_and_revokes_a_token(cli: CommandLine, fleet_urls: Urls):
    assert "recalld token add acme" in cli.say("tenant", "add", "acme")
    secret = cli.say("token", "add", "acme", "bot", "--agent", "anna", "--days", "30").strip()
    (token,) = cli.json("token", "list")["tokens"]
    assert (token["tenant"], token["name"], token["rights"], token["agents"]) == ("acme", "bot", ["search"], ["anna"])
    assert (token["state"], token["machine"], token["refusedMachines"]) == ("valid", None, [])
    (line,) = cli.say("token", "list", "acme").splitlines()
    assert line.startswith("tenant acme  name bot  state valid  rights search  agents anna  madeAt 2")
    cli.say("token", "revoke", "acme", "bot")
    assert "revoked" in cli.say("token", "list", "acme")
    with Database(fleet_urls.writer).transaction("acme") as connection:
        rows = connection.execute("SELECT actor, act FROM recalld.audit ORDER BY id").fetchall()
        hashes = connection.execute("SELECT hash FROM recalld.access_tokens").fetchall()
    assert rows == [(getpass.getuser(), act) for act in ("add tenant", "add token", "add agent", "revoke token")]
    assert hashes == [(token_hash(secret),)]


def test_an_administrator_changes_and_removes_a_tenant(cli: CommandLine):
    assert cli.json("tenant", "add", "acme", "--tokens-a-day", "5000") == {"tenant": "acme"}
    cli.say("tenant", "set", "acme", "--weight", "2")
    acme = {"tenant": "acme", "weight": 2, "tokensADay": 5000, "agents": 0}
    assert cli.json("tenant", "list") == {"tenants": [acme]}
    assert cli.say("tenant", "list") == "tenant acme  weight 2  tokensADay 5000  agents 0\n"
    cli.say("tenant", "set", "acme", "--tokens-a-day", "0")
    assert "tokensADay" not in cli.say("tenant", "list")
    assert cli.json("tenant", "remove", "acme") == {"tenant": "acme", "rows": 1}
    assert cli.say("tenant", "list") == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tenant", "add", "shared"], 2, "'shared' cannot be a name"),
        (["tenant", "set", "acme", "--weight", "0"], 2, "--weight"),
        (["tenant", "set", "other", "--weight", "1"], 1, "no tenant other; `recalld tenant list"),
        (["token", "add", "acme", "bot", "--right", "write"], 2, "--right"),
        (["token", "add", "acme", "bot", "--days", "0"], 2, "--days"),
        (["token", "revoke", "other", "bot"], 1, "no tenant other"),
    ],
)
def test_a_mistake_is_one_sentence(cli: CommandLine, arguments: list[str], code: int, words: str):
    result, out, err = cli.run(*arguments)
    assert (result, out, len(err.splitlines())) == (code, "", 1)
    assert words in err


def test_a_user_who_may_only_read_is_named_the_remedy(cli: CommandLine, fleet_urls: Urls):
    cli.set("RECALLD_STORE__URL", fleet_urls.reader)
    code, _, err = cli.run("tenant", "add", "acme")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "recalld_writer" in err


@pytest.mark.parametrize("arguments", [("tenant", "list"), ("token", "list"), ("tenant", "add", "acme")])
def test_one_machine_has_no_tenants(alone: CommandLine, arguments: tuple[str, ...]):
    code, _, err = alone.run(*arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "store.url" in err

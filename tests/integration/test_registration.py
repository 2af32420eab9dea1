"""The entry of a home's service: which service makes it, what proves it, and what commands do with a stale one."""

from __future__ import annotations

import hmac
import json
import stat
from typing import Any

import pytest

from recalld.client import Client
from recalld.local.answers import Absence
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.raw_server import Turn, announce, answer, raw_server
from tests.serving import running
from tests.waiting import wait_until
from tests.written_index import write_index

TOKEN, QUESTION = "the-token-of-main", "where is the spare key"


def entry(settings: Settings) -> dict[str, Any]:
    return dict(json.loads((settings.home / "run" / "service.json").read_bytes()))


NOTE = "The spare key is under the third stone.\n"


def test_only_the_secret_of_its_entry_answers_a_challenge(settings: Settings):
    with running(settings) as service:
        nonce = "0123456789abcdef" * 2
        expected = hmac.new(entry(settings)["secret"].encode(), nonce.encode(), "sha256").hexdigest()
        assert service.get(f"/v1/proof/{nonce}").json() == {"proof": expected}
        for other in ("", "x" * 32, nonce + "0", nonce.upper()):
            assert service.get(f"/v1/proof/{other}").status_code in {404, 422}
        first = entry(settings)["secret"]
        assert stat.S_IMODE((settings.home / "run" / "service.json").stat().st_mode) == 0o600
    with running(settings):
        assert entry(settings)["secret"] != first, "made anew at each start"


@pytest.mark.parametrize("spoilt", ["a folder", "gone", "damaged"])
def test_an_entry_that_is_spoilt_while_the_service_runs_is_made_again(settings: Settings, spoilt: str):
    write_index(settings)
    path = settings.home / "run" / "service.json"
    with running(settings):
        if spoilt == "damaged":
            path.write_bytes(b"\xff{")
        else:
            path.unlink()
        if spoilt == "a folder":
            path.mkdir()
        wait_until(lambda: Client.at_home(settings.home))


@pytest.fixture
def indexed(commands: CommandLine, settings: Settings) -> CommandLine:
    """A home with an index, a token and no service."""
    note = settings.agents[0].workspace / "MEMORY.md"
    note.write_text(NOTE, "utf-8")
    commands.say("index")
    (settings.home / "run" / "tokens").mkdir(parents=True, exist_ok=True)
    (settings.home / "run" / "tokens" / "main").write_text(TOKEN, "utf-8")
    return commands


def asked(commands: CommandLine) -> list[str]:
    """Return the output of the reading commands, one after the other."""
    code, found, _ = commands.run("search", QUESTION, "--json")
    assert code == 0
    assert json.loads(found)["results"]
    code, read, _ = commands.run("get", "MEMORY.md")
    assert (code, read) == (0, NOTE)
    code, shown, remarks = commands.run("status", "--json")
    assert code == 0, remarks
    assert json.loads(shown)["agents"]
    return [*json.loads(found)["degraded"], remarks]


def reason(absence: Absence) -> str:
    """Return its sentence without the command, which is written as it is typed here."""
    return str(absence.value).partition(" (")[0]


@pytest.mark.parametrize("turn", [answer(b'{"agents": []}'), b"220 smtp\r\n"])
def test_commands_answer_themselves_where_another_program_has_the_services_port(
    indexed: CommandLine, settings: Settings, turn: Turn
):
    with raw_server(*[[turn, turn]] * 3) as stranger:
        announce(settings.home, stranger, secret="of an earlier start")
        degraded, remarks = asked(indexed)
    assert degraded == Absence.UNPROVEN.value
    assert reason(Absence.UNPROVEN) in remarks
    seen = b"".join(stranger.requests)
    assert len(stranger.requests) == 3
    assert TOKEN.encode() not in seen
    assert b"spare" not in seen
    assert b"MEMORY" not in seen

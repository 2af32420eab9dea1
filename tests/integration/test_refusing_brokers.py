"""A broker that will not have us, or does not speak TLS, is said to be just that: at once, and by everything."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from memory.status.home import broker_state, build_status
from recalld.doctor.examination import broker_findings
from recalld.wiring import open_broker
from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.waiting import wait_until
from tests.working import key, ready
from workers.health.health_store import HealthStore
from workers.queue.connection import HANDSHAKE_SECONDS, IMPATIENT_SECONDS
from workers.queue.private_server import BrokerServer, server_binary


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The socket of a server with a password."""
    path = tmp_path / "guarded.sock"
    server = subprocess.Popen(
        [server_binary(), "--port", "0", "--unixsocket", path, "--save", "", "--requirepass", "right"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    wait_until(path.exists)
    yield str(path)
    server.terminate()
    server.wait()


@pytest.fixture
def silent() -> Iterator[str]:
    """Host and port of a listener that says nothing to who begins with TLS, as a plain server does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def at(settings: Settings, url: str) -> Settings:
    return Settings.model_validate({**settings.model_dump(), "broker": {"url": url, "namespace": "team"}})


WRONG = "unix://:wrong@{}"


@pytest.mark.parametrize("url", [WRONG, "unix://{}"], ids=["wrong password", "no password"])
def test_a_password_that_is_refused_is_said_at_the_start(settings: Settings, guarded: str, url: str) -> None:
    with pytest.raises(
        UserError, match=r"answers and refuses the user or password .*: correct them in the URL"
    ) as told:
        BrokerServer(at(settings, url.format(guarded))).ensure()
    assert "wrong@" not in str(told.value)
    BrokerServer(at(settings, f"unix://:right@{guarded}")).ensure()


def test_a_password_that_changes_meanwhile_is_told_by_status_doctor_and_readyz(
    settings: Settings, guarded: str
) -> None:
    refused = at(settings, WRONG.format(guarded))
    side = open_broker(refused, answer_seconds=IMPATIENT_SECONDS)
    reader = side.health
    assert reader.pending("main") is None
    state = broker_state(refused, reader)
    assert (state.reachable, state.writable) == (False, False)
    status = build_status(refused, reader)
    assert not list(broker_findings(refused, status))
    [trouble] = [trouble for trouble in status.agents[0].troubles if trouble.part == "broker"]
    assert (trouble.code, state.warning in trouble.message) == (ConditionCode.BROKER_READ_ONLY, True)
    page = ready(HealthStore(side.client, side.keys))
    assert (page.status_code, json.loads(page.body)["error"]) == (503, state.warning)
    with pytest.raises(BrokerUnavailable, match=r"^the broker named by .* refuses the user or password"):
        side.queue.mark_changed("main", [key("memory/a.md")], lane=Lane.LIVE)
    side.client.close()


def test_a_server_that_speaks_no_tls_is_not_waited_for_again_and_again(
    settings: Settings, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shakes = []
    original = redis.connection.Connection._connect

    def counted(connection: redis.connection.Connection) -> socket.socket:
        shakes.append(connection.socket_timeout)
        return original(connection)  # type: ignore[no-any-return, no-untyped-call]

    monkeypatch.setattr(redis.connection.Connection, "_connect", counted)
    with pytest.raises(UserError, match="does not answer over TLS: name its TLS port, or write redis://"):
        BrokerServer(at(settings, f"rediss://{silent}/0")).ensure()
    assert shakes == [HANDSHAKE_SECONDS]


@pytest.mark.parametrize("command", [["work"], ["watch"], ["up"], ["index"]], ids=" ".join)
def test_every_command_that_needs_the_broker_says_so(commands: CommandLine, silent: str, command: list[str]) -> None:
    commands.set("REDIS_URL", f"rediss://{silent}/0")
    code, _, err = commands.run(*command)
    assert (code, "TLS" in err) == (1, True)

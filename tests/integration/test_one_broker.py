"""The files of a home's broker are written by one server only, whatever the one that lives is at."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from memory.status.run_files import frozen_pid, is_alive, is_stopped, is_the_same, server_pid, socket_path
from schemas.errors import UserError
from schemas.settings import Settings
from tests.waiting import wait_until
from workers.queue.private_server import BrokerServer


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def pid(settings: Settings, broker_server: BrokerServer) -> int:
    found = server_pid(settings.home)
    assert found is not None
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system does not show environments")
def test_the_server_has_no_key_in_its_environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-owner")
    server = BrokerServer(settings)
    server.ensure()
    try:
        assert Path(f"/proc/{server_pid(settings.home)}/environ").read_bytes() == b""
    finally:
        server.stop()


def test_beside_a_server_that_is_stopped_no_second_one_starts_and_it_is_not_ended(
    settings: Settings, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = BrokerServer(settings)
    # As when so many wait for it that no call is taken any more.
    monkeypatch.setattr(another, "answers", lambda: False)
    with stopped(pid):
        assert frozen_pid(settings.home) == pid
        with pytest.raises(UserError, match=f"kill -CONT {pid}"):
            another.ensure()
        another.stop()
    assert frozen_pid(settings.home) is None
    assert server_pid(settings.home) == pid


def test_a_server_whose_socket_was_removed_is_ended_before_another_one_starts(
    settings: Settings, pid: int, broker_server: BrokerServer, client: redis.Redis
) -> None:
    client.set("kept", "1")
    socket_path(settings.home).unlink()
    broker_server.ensure()
    assert server_pid(settings.home) not in (None, pid)
    assert not is_alive(pid)
    assert client.get("kept") == b"1"


def test_a_server_whose_folder_was_removed_is_ended_before_its_owner_starts_another_one(
    settings: Settings, pid: int, broker_server: BrokerServer
) -> None:
    shutil.rmtree(settings.home / "broker")
    broker_server.ensure()
    assert server_pid(settings.home) not in (None, pid)
    assert not is_the_same(pid, None)


def test_a_server_whose_folder_was_removed_is_ended_with_its_owner(
    settings: Settings, pid: int, broker_server: BrokerServer
) -> None:
    shutil.rmtree(settings.home / "broker")
    other = BrokerServer(settings)
    other.ensure()
    successor = server_pid(settings.home)
    assert successor not in (None, pid)
    assert is_alive(pid)
    broker_server.stop()
    assert not is_the_same(pid, None)
    assert server_pid(settings.home) == successor, "it is somebody else's"
    other.stop()


def test_a_copied_home_does_not_take_the_server_of_the_first_one_for_its_own(settings: Settings, pid: int) -> None:
    copy = settings.model_copy(update={"home": settings.home.with_name("copy")})
    shutil.copytree(settings.home / "broker", copy.home / "broker", ignore=lambda *_: ["valkey.sock"])
    assert (copy.home / "broker" / "server").exists()
    assert server_pid(copy.home) is None
    server = BrokerServer(copy)
    server.ensure()
    server.stop()
    assert server_pid(settings.home) == pid

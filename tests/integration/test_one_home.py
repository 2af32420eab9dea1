"""Workers of two homes never take from one queue, and the files of a home's broker are written by one server only."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from memory.status.run_files import frozen_pid, is_stopped, server_pid
from schemas.errors import UserError
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.waiting import wait_until
from tests.working import Workers
from workers.queue.connection import connect, namespace
from workers.queue.names import Keys
from workers.queue.pending import PendingSet
from workers.queue.private_server import BrokerServer
from workers.queue.queue_tenancy import QueueTenancy
from workers.run import run_workers


@pytest.fixture
def shared(settings: Settings, redis_url: str) -> Settings:
    """A home with a namespace that it made for itself, on a server that others use, too."""
    chosen = Settings.model_validate({**settings.model_dump(), "broker": {"url": redis_url}})
    namespace(chosen)
    return chosen


@pytest.fixture
def claims(shared: Settings) -> Iterator[redis.Redis]:
    with connect(shared) as client:
        yield client


def keys_of(settings: Settings) -> Keys:
    return Keys(namespace(settings))


def copy_of(shared: Settings, tmp_path: Path) -> Settings:
    """Return a home as `cp -a` copies it: the same id, the same namespace."""
    target = tmp_path / "copy"

    def copied(source: str, copy: str) -> None:
        with suppress(FileNotFoundError):  # workers remove files meanwhile
            shutil.copy2(source, copy)

    shutil.copytree(shared.home, target, ignore=shutil.ignore_patterns("*.sock"), copy_function=copied)
    return shared.model_copy(update={"home": target})


def told_to_stop() -> threading.Event:
    """Return an event that is set: workers that are not refused end at once."""
    event = threading.Event()
    event.set()
    return event


def test_workers_of_a_copied_home_are_refused_and_more_of_the_same_home_welcome(shared: Settings, tmp_path: Path):
    with Workers(shared) as workers:
        assert (shared.home / "id").exists()
        copy = copy_of(shared, tmp_path)
        with pytest.raises(UserError, match=r"where this home is a copy, delete .*copy/namespace"):
            run_workers(copy, told_to_stop())
        with Workers(shared) as beside:
            beside.write("memory/a.md", "The heron stands in the reeds.\n")
            beside.mark("memory/a.md")
            wait_until(beside.complete)
        # What the sentence says to do helps.
        (copy.home / "namespace").unlink()
        run_workers(copy, told_to_stop())
        assert namespace(copy) != namespace(workers.settings)


def test_a_lock_that_no_worker_renews_is_free_for_another_home(shared: Settings, claims: redis.Redis, tmp_path: Path):
    first = QueueTenancy(claims, keys_of(shared), shared)
    second = QueueTenancy(claims, keys_of(shared), copy_of(shared, tmp_path))
    first.take()
    with pytest.raises(UserError, match="another home"):
        second.take()
    # Workers that ended in order leave it for ten seconds.
    first.leave()
    assert 0 < claims.pttl(keys_of(shared).home) <= 10_000  # type: ignore[operator] # the client's types mix its asynchronous twin in
    claims.delete(keys_of(shared).home)
    second.take()
    assert not first.renew()
    first.leave()
    assert claims.pttl(keys_of(shared).home) > 10_000  # type: ignore[operator]


def test_index_is_refused_beside_workers_of_another_home(
    commands: CommandLine, shared: Settings, redis_url: str, claims: redis.Redis, home: Path, workspace: Path
):
    commands.set("REDIS_URL", redis_url)
    claims.set(keys_of(shared).home, "another", px=60_000)
    (workspace / "memory" / "a.md").write_text("The heron stands in the reeds.\n")
    code, out, err = commands.run("index")
    assert (code, out) == (1, "")
    assert f"delete {home / 'namespace'}" in err
    # Nothing was queued for the others to take.
    assert PendingSet(claims, keys_of(shared)).pending("main").documents == 0


# One server of its private broker


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


def test_a_copied_home_does_not_take_the_server_of_the_first_one_for_its_own(settings: Settings, pid: int) -> None:
    copy = settings.model_copy(update={"home": settings.home.with_name("copy")})
    shutil.copytree(settings.home / "broker", copy.home / "broker", ignore=lambda *_: ["valkey.sock"])
    assert (copy.home / "broker" / "server").exists()
    assert server_pid(copy.home) is None
    server = BrokerServer(copy)
    server.ensure()
    server.stop()
    assert server_pid(settings.home) == pid

"""Workers of two homes never take from one queue."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from schemas.errors import UserError
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.waiting import wait_until
from tests.working import Workers
from workers.queue.connection import connect, namespace
from workers.queue.home_lock import HomeLock
from workers.queue.names import Keys
from workers.queue.pending import PendingSet
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
    """What `cp -a` makes of a home: the same id, the same namespace."""
    target = tmp_path / "copy"
    shutil.copytree(shared.home, target, ignore=shutil.ignore_patterns("*.sock"))
    return shared.model_copy(update={"home": target})


def named(settings: Settings, name: str) -> Settings:
    broker = settings.broker.model_copy(update={"namespace": name})
    return settings.model_copy(update={"broker": broker})


def told_to_stop() -> threading.Event:
    """Who is not refused ends at once."""
    event = threading.Event()
    event.set()
    return event


def test_workers_of_a_copied_home_are_refused_with_a_sentence_and_more_of_the_same_home_are_welcome(
    shared: Settings, tmp_path: Path
):
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


def test_workers_of_another_home_with_the_same_given_namespace_are_refused(shared: Settings, tmp_path: Path):
    first = named(shared, "team")
    other = first.model_copy(update={"home": tmp_path / "elsewhere"})
    with (
        Workers(first),
        pytest.raises(UserError, match=r"workers of another home take from the queue 'team' .*own broker\.namespace"),
    ):
        run_workers(other, told_to_stop())


def test_one_folder_is_one_home_whatever_it_is_called(shared: Settings, claims: redis.Redis, tmp_path: Path):
    link = tmp_path / "mounted"
    link.symlink_to(shared.home)
    HomeLock(claims, keys_of(shared), shared).take()
    assert HomeLock(claims, keys_of(shared), shared.model_copy(update={"home": link})).renew()
    assert not HomeLock(claims, keys_of(shared), copy_of(shared, tmp_path)).renew()


def test_a_lock_that_no_worker_renews_is_free_for_another_home(shared: Settings, claims: redis.Redis, tmp_path: Path):
    first = HomeLock(claims, keys_of(shared), shared)
    second = HomeLock(claims, keys_of(shared), copy_of(shared, tmp_path))
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


def test_a_private_queue_claims_nothing(settings: Settings, client: redis.Redis, keys: Keys):
    claim = HomeLock(client, keys, settings)
    claim.take()
    assert not client.exists(keys.home)
    assert not (settings.home / "id").exists()

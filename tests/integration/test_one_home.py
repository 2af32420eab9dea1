"""Workers of two homes never take from one queue."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import redis

from schemas.errors import UserError
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers
from workers.connection import socket_path
from workers.names import Keys
from workers.one_home import HomeClaim
from workers.run import run_workers


@pytest.fixture
def shared(settings: Settings, broker_server: object) -> Settings:
    """A home whose queue has a name that others may use, too."""
    url = f"unix://{socket_path(settings.home)}"
    broker = {"url": url, "namespace": "team"}
    return Settings.model_validate({**settings.model_dump(), "broker": broker})


def other_home(shared: Settings, tmp_path: Path) -> Settings:
    return shared.model_copy(update={"home": tmp_path / "elsewhere"})


def test_workers_of_another_home_are_refused_with_a_sentence(shared: Settings, tmp_path: Path):
    told_to_stop = threading.Event()
    told_to_stop.set()  # who is not refused ends at once
    with Workers(shared):
        with pytest.raises(UserError, match=r"workers of another home .* 'team' \(broker\.namespace\)"):
            run_workers(other_home(shared, tmp_path), told_to_stop)
        # More processes of the same home are welcome.
        with Workers(shared) as beside:
            beside.write("memory/a.md", "The heron stands in the reeds.\n")
            beside.mark("memory/a.md")
            wait_until(beside.complete)


def test_a_home_whose_workers_are_gone_is_forgotten(shared: Settings, client: redis.Redis, tmp_path: Path):
    keys = Keys("team")
    HomeClaim(client, keys, shared).take()
    assert 0 < client.pttl(keys.home) <= 30_000  # type: ignore[operator] # the client's types mix its asynchronous twin in
    second = HomeClaim(client, keys, other_home(shared, tmp_path))
    assert second.renew() is False
    client.delete(keys.home)  # as the lease's end does
    second.take()
    assert HomeClaim(client, keys, shared).renew() is False


def test_a_home_with_a_queue_of_its_own_claims_nothing(settings: Settings, client: redis.Redis, keys: Keys):
    claim = HomeClaim(client, keys, settings)
    claim.take()
    assert not client.exists(keys.home)
    assert not (settings.home / "id").exists()

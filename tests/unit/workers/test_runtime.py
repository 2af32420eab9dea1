"""What a worker process holds open, and when it lets go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from memory.store.errors import NotOwner
from schemas.settings import Settings
from workers import runtime as runtime_module
from workers.runtime import Runtime


@pytest.fixture
def runtime(settings: Settings) -> Iterator[Runtime]:
    nothing = cast(Any, None)
    made = Runtime(settings, nothing, nothing)
    yield made
    made.close()


def test_an_index_that_is_forgotten_while_jobs_use_it_is_closed_by_the_last_of_them(runtime: Runtime) -> None:
    with runtime.indexer("main") as one:
        store = one.target()
        with runtime.indexer("main"):
            runtime.forget("main")
            assert store.counts().files == 0, "it is still open"
        assert store.counts().files == 0, "the other one still uses it"
    assert one.generations.open_stores() == []
    with runtime.indexer("main") as after:
        assert after.target().counts().files == 0


def test_of_many_agents_those_that_nobody_uses_are_closed(
    settings: Settings, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "MAX_OPEN_AGENTS", 2)
    agent = settings.agents[0]
    runtime.settings = settings.model_copy(
        update={"agents": tuple(agent.model_copy(update={"id": f"a{number}"}) for number in range(4))}
    )
    opened = []
    with runtime.indexer("a0") as used:
        used.target()
        for number in (1, 2, 3):
            with runtime.indexer(f"a{number}") as indexer:
                indexer.target()
                opened.append(indexer)
        assert [bool(indexer.generations.open_stores()) for indexer in opened] == [False, False, True]
        assert used.generations.open_stores(), "it is the oldest, and in use"


#: What two processes ask for, one of which has the key.
ASKED = [{"provider": "auto"}, {"provider": "openai", "fallback": "stub"}]


def asking(settings: Settings, key: str | None, **asked: Any) -> Settings:
    """The settings of a process with a key, or without one. Nothing is sent with it."""
    remote = {"base_url": "http://127.0.0.1:9/v1", "api_key": key} if key is not None else {}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, "remote": remote, **asked}
    return Settings.model_validate({"home": settings.home, "agents": [agent], "remote": remote, **asked})


@pytest.fixture(params=ASKED, ids=["auto", "by name"])
def two(settings: Settings, request: pytest.FixtureRequest) -> Iterator[tuple[Runtime, Runtime]]:
    """Return a process without the key, which has made the index and owns it, and another process with the key."""
    nothing = cast(Any, None)
    keyless, keyed = (Runtime(asking(settings, key, **request.param), nothing, nothing) for key in (None, "a-key"))
    with keyless.indexer("main") as indexer:
        indexer.target()
    yield keyless, keyed
    keyless.close()
    keyed.close()


def test_the_next_owner_makes_the_index_with_its_key_and_no_process_takes_it_back(two: tuple[Runtime, Runtime]) -> None:
    keyless, keyed = two
    with keyed.indexer("main") as lent, pytest.raises(NotOwner):
        lent.target()
    keyless.close()
    with keyed.indexer("main") as building:
        building.target()
        begun = building.generations.next()
    assert begun is not None
    keyed.close()
    with keyless.indexer("main") as anew:
        anew.target()
        assert anew.supply.choice.error is not None
        assert anew.generations.next() == begun, "it is left to those who have the key"


@pytest.mark.parametrize("two", [ASKED[1]], ids=["by name"], indirect=True)
def test_only_the_owner_lets_the_fallback_take_over(two: tuple[Runtime, Runtime]) -> None:
    keyless, keyed = two
    assert not keyed.take_over("main", reason="the key was refused")
    keyless.close()
    assert keyed.take_over("main", reason="the key was refused")

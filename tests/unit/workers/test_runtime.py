"""What a worker process holds open, and when it lets go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from memory.index import provider_fallback as taking_over
from memory.index.indexer import Indexer
from memory.store.errors import Superseded
from schemas.settings import Settings
from workers import runtime as runtime_module
from workers.runtime import Runtime


@pytest.fixture
def runtime(settings: Settings) -> Iterator[Runtime]:
    nothing = cast(Any, None)
    made = Runtime(settings, nothing, nothing)
    yield made
    made.close()


def test_an_agent_s_index_is_opened_once_for_all_jobs(runtime: Runtime) -> None:
    with runtime.indexer("main") as first, runtime.indexer("main") as second:
        assert first is second
    with runtime.indexer("main") as later:
        assert later is first


def test_an_agent_that_is_not_configured_has_no_index(runtime: Runtime) -> None:
    with pytest.raises(KeyError, match="no agent is called 'stranger'"):
        runtime.indexer("stranger").__enter__()


def test_a_forgotten_index_is_opened_anew_by_the_next_job(runtime: Runtime) -> None:
    with runtime.indexer("main") as before:
        before.target()
    runtime.forget("main")
    assert before.generations.open_stores() == []
    with runtime.indexer("main") as after:
        assert after is not before


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
def two(
    settings: Settings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Runtime, Runtime]]:
    """A process without the key that has made the index, and one that has it.

    No build is younger than what a process read: names of builds count whole seconds, and one may pass in between.
    """
    monkeypatch.setattr("memory.index.generation_writer.begun_at", lambda _name: 0.0)
    nothing = cast(Any, None)
    keyless, keyed = (Runtime(asking(settings, key, **request.param), nothing, nothing) for key in (None, "a-key"))
    with keyless.indexer("main") as indexer:
        indexer.target()
    yield keyless, keyed
    keyless.close()
    keyed.close()


def test_a_job_that_began_before_a_build_does_not_throw_that_away(two: tuple[Runtime, Runtime]) -> None:
    keyless, keyed = two
    with keyless.indexer("main") as lent:
        lent.target()
        with keyed.indexer("main") as building:
            building.target()
        begun = lent.generations.next()
        assert begun is not None
        with pytest.raises(Superseded):
            lent.target()
        assert lent.generations.next() == begun
    with keyless.indexer("main") as anew:
        anew.target()
        assert anew.supply.choice.error is not None
        assert anew.generations.next() == begun, "it is left to those who have the key"


def test_a_build_that_begins_while_the_provider_is_chosen_is_seen_by_the_next_job(
    two: tuple[Runtime, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyless, keyed = two
    keyless.forget("main")

    make = keyless._make

    def making(*of: Any) -> Indexer:
        made = make(*of)
        with keyed.indexer("main") as building:
            building.target()
        return made

    monkeypatch.setattr(keyless, "_make", making)
    with keyless.indexer("main") as lent, pytest.raises(Superseded):
        lent.target()
    monkeypatch.undo()
    with keyless.indexer("main") as anew:
        anew.target()
        assert anew.supply.choice.error is not None
        assert anew.generations.next() is not None


@pytest.mark.parametrize("two", [ASKED[1]], ids=["by name"], indirect=True)
def test_no_fallback_takes_over_from_a_build_that_began_meanwhile(
    two: tuple[Runtime, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyless, keyed = two
    keyless.forget("main")
    with keyed.indexer("main"):
        pass  # what took over is forgotten, and nothing is begun yet
    note = taking_over._note

    def noting(*of: Any) -> None:
        with keyed.indexer("main") as building:
            building.target()
        note(*of)

    monkeypatch.setattr(taking_over, "_note", noting)
    with keyless.indexer("main") as indexer:
        begun = indexer.generations.next()
        indexer.target()
        assert begun is not None
        assert indexer.generations.next() == begun
        assert indexer.supply.choice.error is not None

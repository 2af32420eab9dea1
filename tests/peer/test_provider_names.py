"""Providers and models as people write them: prefixes, presets, families, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.prices import price_of
from memory.embedding.providers.presets import family_prefixes
from memory.embedding.selection import ProviderChoice, choose_provider
from recalld.settings.load import load
from schemas.errors import UserError
from schemas.settings import Credentials, MemorySettings

KEYS = Credentials.model_validate({"openai": "o", "gemini": "g", "voyage": "v", "mistral": "m", "deepinfra": "d"})
ROUTER = {"base_url": "https://openrouter.ai/api/v1"}


def choose(credentials: Credentials = KEYS, **settings: Any) -> ProviderChoice:
    return choose_provider(MemorySettings.model_validate(settings), credentials)


def model_of(choice: ProviderChoice) -> str:
    assert choice.provider is not None, choice.error
    return choice.provider.model


@pytest.mark.parametrize(
    ("provider", "written", "name"),
    [
        ("ollama", "ollama/nomic-embed-text", "nomic-embed-text"),
        ("ollama", "hf.co/nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0", "hf.co/nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0"),
        ("openai", "openai/text-embedding-3-small", "text-embedding-3-small"),
        ("gemini", "models/gemini-embedding-001", "gemini-embedding-001"),
        ("gemini", "gemini/gemini-embedding-001", "gemini-embedding-001"),
        ("gemini", "google/gemini-embedding-001", "gemini-embedding-001"),
        ("voyage", "voyage/voyage-4", "voyage-4"),
        ("mistral", "mistral/mistral-embed", "mistral-embed"),
        ("lmstudio", "lmstudio/text-embedding-bge-m3", "text-embedding-bge-m3"),
        ("deepinfra", "deepinfra/BAAI/bge-m3", "BAAI/bge-m3"),
        ("bedrock", "amazon-bedrock/cohere.embed-v4:0", "cohere.embed-v4:0"),
        ("openai", "text-embedding-3-large", "text-embedding-3-large"),
    ],
)
def test_a_model_loses_the_name_of_its_own_provider(provider: str, written: str, name: str) -> None:
    assert model_of(choose(provider=provider, model=written)) == name


@pytest.mark.parametrize("provider", ["openai", "openai-compatible", "voyage"])
def test_behind_a_router_the_whole_name_is_the_models(provider: str) -> None:
    name = f"{provider}/text-embedding-3-small"
    assert model_of(choose(provider=provider, model=name, remote={**ROUTER, "api_key": "k"})) == name
    own = {"base_url": "https://api.openai.com/v1/"}
    assert model_of(choose(provider="openai", model="openai/text-embedding-3-small", remote=own)) != name


def test_with_auto_the_name_before_the_model_names_the_provider_that_can_be_had() -> None:
    choice = choose(model="voyage/voyage-4-lite")
    assert (choice.name, choice.requested, model_of(choice)) == ("voyage", "voyage", "voyage-4-lite")
    assert choose(Credentials(), model="ollama/bge-m3").name == "ollama"
    # Without its key it says nothing.
    assert choose(Credentials.model_validate({"mistral": "m"}), model="voyage/voyage-4-lite").name == "mistral"
    # It is the router's name for the model.
    routed = choose(model="voyage/voyage-4-lite", remote={**ROUTER, "api_key": "k"})
    assert (routed.name, model_of(routed)) == ("openai", "voyage/voyage-4-lite")


@pytest.mark.parametrize(
    ("settings", "address", "model", "price"),
    [
        ({"provider": "lmstudio"}, "http://127.0.0.1:1234/v1", "text-embedding-nomic-embed-text-v1.5", 0.0),
        (
            {"provider": "lmstudio", "remote": {"base_url": "http://gpu:1234"}, "model": "m"},
            "http://gpu:1234/v1",
            "m",
            0.0,
        ),
        ({"provider": "deepinfra"}, "https://api.deepinfra.com/v1/openai", "BAAI/bge-m3", None),
        (
            {"provider": "openai-compatible", "model": "m", "remote": {"base_url": "http://tei:8080/v1"}},
            "http://tei:8080/v1",
            "m",
            None,
        ),
        ({"provider": "bedrock"}, "https://bedrock-runtime.amazonaws.com", "amazon.titan-embed-text-v2:0", 0.02),
    ],
)
def test_servers_with_a_name_have_their_address_model_and_price(
    settings: dict[str, Any], address: str, model: str, price: float | None
) -> None:
    memory = MemorySettings.model_validate(settings)
    provider = choose_provider(memory, KEYS).provider
    assert provider is not None
    assert (provider.address, provider.model) == (address, model)
    assert price_of(memory, memory.provider, model) == price


@pytest.mark.parametrize(
    ("settings", "unsaid"),
    [
        ({}, "remote.base_url and model"),
        ({"model": "m"}, "remote.base_url"),
        ({"remote": {"base_url": "http://tei:8080/v1"}}, "model"),
    ],
)
def test_openai_compatible_says_what_it_lacks(settings: dict[str, Any], unsaid: str) -> None:
    choice = choose(provider="openai-compatible", **settings)
    assert choice.lacking is not None
    assert choice.lacking.remedy.startswith(f"set {unsaid},")


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("github-copilot", "openai-compatible"),
        ("Ollama", "did you mean ollama?"),
        ("lm-studio", "did you mean lmstudio?"),
        ("openai_compatible", "did you mean openai-compatible?"),
    ],
)
def test_a_provider_that_is_not_known_is_refused_with_those_that_are(
    tmp_path: Path, written: str, suggested: str
) -> None:
    with pytest.raises(UserError) as caught:
        load(home=str(tmp_path), environment={"RECALLD_PROVIDER": written})
    (problem,) = str(caught.value).splitlines()
    assert all(name in problem for name in ("bedrock", "deepinfra", "lmstudio", "openai-compatible", "voyage"))
    assert problem.endswith(suggested) or f"; {suggested}" in problem


# Families -----------------------------------------------------------------------------------------------

_SEARCHING = "Represent this sentence for searching relevant passages: "
_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
FAMILIES = {
    "nomic-embed-text:v1.5": ("search_query: ", "search_document: "),
    "text-embedding-nomic-embed-text-v1.5": ("search_query: ", "search_document: "),
    "nomic-embed-text-v2-moe": ("search_query: ", "search_document: "),
    "intfloat/e5-large-v2": ("query: ", "passage: "),
    "multilingual-e5-small": ("query: ", "passage: "),
    "intfloat/multilingual-e5-large-instruct": (f"{_INSTRUCT} ", ""),
    "mxbai-embed-large": (_SEARCHING, ""),
    "qwen3-embedding:0.6b": (_INSTRUCT, ""),
    "embeddinggemma": ("task: search result | query: ", "title: none | text: "),
    "snowflake-arctic-embed": (_SEARCHING, ""),
    "snowflake-arctic-embed2": ("query: ", ""),
    "Snowflake/snowflake-arctic-embed-m-v2.0": ("query: ", ""),
    "BAAI/bge-base-en-v1.5": (_SEARCHING, ""),
    "bge-large": (_SEARCHING, ""),
    "bge-large-zh-v1.5": ("", ""),
    "bge-m3": ("", ""),
    "all-minilm": ("", ""),
    "text-embedding-3-small": ("", ""),
}


@pytest.mark.parametrize(("model", "prefixes"), FAMILIES.items())
def test_a_familys_prefixes_are_known_by_the_models_name(model: str, prefixes: tuple[str, str]) -> None:
    assert family_prefixes(model) == prefixes


def prefixes_of(choice: ProviderChoice) -> tuple[str, str]:
    assert choice.provider is not None, choice.error
    facts = json.loads(choice.provider.identity)
    return facts.get("query_prefix", ""), facts.get("document_prefix", "")


def test_prefixes_are_for_open_models_only_and_give_way_to_the_settings() -> None:
    nomic = FAMILIES["nomic-embed-text:v1.5"]
    tei = {"base_url": "http://tei:8080/v1"}
    assert prefixes_of(choose(provider="ollama")) == nomic
    assert prefixes_of(choose(provider="openai", model="nomic-embed-text", remote=tei)) == nomic
    assert prefixes_of(choose(provider="deepinfra", model="intfloat/e5-base-v2")) == ("query: ", "passage: ")
    # The provider's own models, whatever their names.
    for provider in ("openai", "gemini", "voyage", "mistral"):
        assert prefixes_of(choose(provider=provider, model="nomic-embed-text")) == ("", "")
    assert prefixes_of(choose(provider="ollama", query_input_type="query")) == ("", "")
    assert prefixes_of(choose(provider="ollama", query_prefix="", document_prefix="")) == ("", "")
    assert prefixes_of(choose(provider="ollama", document_prefix="D: ")) == (nomic[0], "D: ")

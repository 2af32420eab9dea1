"""What embedding costs: list prices, what settings say instead, and what nobody knows."""

from __future__ import annotations

import pytest

from memory.embedding.providers.presets import price_of
from schemas.settings import MemorySettings

UNSET = MemorySettings()


@pytest.mark.parametrize(
    ("provider", "model", "dollars", "in_batch"),
    [
        ("openai", "text-embedding-3-small", 0.02, 0.01),
        ("openai", "text-embedding-3-large", 0.13, 0.065),
        ("gemini", "gemini-embedding-001", 0.15, 0.075),
        ("gemini", "models/gemini-embedding-001", 0.15, 0.075),
        ("mistral", "mistral-embed", 0.10, 0.05),
        ("voyage", "voyage-4-large", 0.12, 0.0804),
    ],
)
def test_a_models_list_price_and_what_a_batch_takes_off(
    provider: str, model: str, dollars: float, in_batch: float
) -> None:
    assert price_of(UNSET, provider, model) == pytest.approx(dollars)
    assert price_of(UNSET, provider, model, batch=True) == pytest.approx(in_batch)


@pytest.mark.parametrize("provider", ["local", "ollama", "stub", "none"])
def test_what_computes_on_ones_own_machine_is_free(provider: str) -> None:
    assert price_of(UNSET, provider, "whatever") == 0.0


def test_a_model_that_no_list_has_is_unknown_and_not_free() -> None:
    assert price_of(UNSET, "openai", "BAAI/bge-m3") is None
    assert price_of(UNSET, "openai", None) is None


def test_the_price_in_the_settings_is_the_price() -> None:
    own = MemorySettings.model_validate({"remote": {"price_per_million_tokens": 0.5}})
    assert price_of(own, "openai", "BAAI/bge-m3") == 0.5
    assert price_of(own, "openai", "text-embedding-3-small", batch=True) == 0.5
    assert price_of(own, "ollama", "nomic-embed-text") == 0.5
    assert price_of(own, "local", None) == 0.0

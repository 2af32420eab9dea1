"""Prices of embedding: lists, settings instead of them, and unknown ones."""

from __future__ import annotations

import pytest

from memory.embedding.prices import price_of
from schemas.settings import MemorySettings

UNSET = MemorySettings()
OWN = MemorySettings.model_validate({"fallback": "voyage", "remote": {"price_per_million_tokens": 0.5}})


@pytest.mark.parametrize(
    ("memory", "provider", "model", "dollars", "in_batch"),
    [
        pytest.param(UNSET, "openai", "text-embedding-3-small", 0.02, 0.01, id="a list price"),
        pytest.param(UNSET, "gemini", "models/gemini-embedding-001", 0.15, 0.075, id="a name with its prefix"),
        pytest.param(UNSET, "voyage", "voyage-4-large", 0.12, 0.0804, id="a batch takes off a third"),
        *(pytest.param(UNSET, name, "any", 0.0, 0.0, id=f"{name} is free") for name in ("local", "ollama", "stub")),
        pytest.param(UNSET, "openai", "BAAI/bge-m3", None, None, id="no list has it: unknown, not free"),
        pytest.param(UNSET, "openai", None, None, None, id="no model"),
        pytest.param(OWN, "openai", "BAAI/bge-m3", 0.5, 0.5, id="the price in the settings"),
        pytest.param(OWN, "openai", "text-embedding-3-small", 0.5, 0.5, id="before a list price"),
        pytest.param(OWN, "ollama", "nomic-embed-text", 0.5, 0.5, id="of one's own server"),
        pytest.param(OWN, "voyage", "voyage-4", 0.06, 0.0402, id="not of the fallback"),
        pytest.param(OWN, "local", None, 0.0, 0.0, id="not of a model in the process"),
    ],
)
def test_the_price_is_the_settings_else_the_lists(
    memory: MemorySettings, provider: str, model: str | None, dollars: float | None, in_batch: float | None
) -> None:
    assert price_of(memory, provider, model) == (dollars if dollars is None else pytest.approx(dollars))
    assert price_of(memory, provider, model, batch=True) == (in_batch if in_batch is None else pytest.approx(in_batch))

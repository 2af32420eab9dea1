"""Prices of embedding."""

from __future__ import annotations

from memory.embedding.providers.presets import OWN_SERVERS
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.providers.remote import RemoteProvider
from schemas.ports import Usage
from schemas.settings import MemorySettings

#: Providers without an endpoint.
_IN_PROCESS = frozenset({"local", "stub", "none"})

#: List prices in US dollars for a million tokens of input, as of November 2026, and the share of it that a batch costs.
#: A price that is not known is left out, never guessed: `remote.price_per_million_tokens` says it then.
#: https://platform.openai.com/docs/pricing, https://ai.google.dev/gemini-api/docs/pricing,
#: https://mistral.ai/pricing, https://aws.amazon.com/bedrock/pricing/ (on demand, United States) and
#: https://docs.voyageai.com/docs/pricing (without the tokens that an account gets free of charge).
_PRICES = {
    "text-embedding-3-small": (0.02, 0.5),
    "text-embedding-3-large": (0.13, 0.5),
    "text-embedding-ada-002": (0.10, 0.5),
    "gemini-embedding-001": (0.15, 0.5),
    "gemini-embedding-2": (0.20, 0.5),
    "gemini-embedding-2-preview": (0.20, 0.5),
    "mistral-embed": (0.10, 0.5),
    "codestral-embed": (0.15, 0.5),
    "voyage-4-large": (0.12, 0.67),
    "voyage-4": (0.06, 0.67),
    "voyage-4-lite": (0.02, 0.67),
    "voyage-3-large": (0.18, 0.67),
    "voyage-3.5": (0.06, 0.67),
    "voyage-3.5-lite": (0.02, 0.67),
    "voyage-3": (0.06, 0.67),
    "voyage-3-lite": (0.02, 0.67),
    "voyage-code-3": (0.18, 0.67),
    "voyage-finance-2": (0.12, 0.67),
    "voyage-law-2": (0.12, 0.67),
    "voyage-multilingual-2": (0.12, 0.67),
    "amazon.titan-embed-text-v2:0": (0.02, 1.0),
    "cohere.embed-english-v3": (0.10, 1.0),
    "cohere.embed-multilingual-v3": (0.10, 1.0),
}


def price_of(memory: MemorySettings, provider: str, model: str | None, *, batch: bool = False) -> float | None:
    """Return the US dollars for a million tokens, None if the price is unknown.

    A price in the settings is the price of everything, batches included, but not of the fallback. Else the model's list
    price counts, whichever endpoint serves it; a model behind an endpoint of one's own that the lists do not have is
    unknown.
    """
    if provider in _IN_PROCESS:
        return 0.0
    if memory.remote.price_per_million_tokens is not None and provider != memory.fallback:
        return memory.remote.price_per_million_tokens
    if provider in OWN_SERVERS:
        return 0.0
    listed = _PRICES.get((model or "").removeprefix("models/"))
    if listed is None:
        return None
    dollars, in_batch = listed
    return dollars * in_batch if batch else dollars


def is_free(memory: MemorySettings, provider: EmbeddingProvider) -> bool:
    """Return True if embedding costs nothing. A server on this machine is free unless the settings name a price."""
    if price_of(memory, provider.name, provider.model) == 0:
        return True
    if not isinstance(provider, RemoteProvider) or memory.remote.price_per_million_tokens is not None:
        return False
    return provider.endpoint.is_loopback


def cost_of(memory: MemorySettings, usage: Usage) -> float | None:
    """Return the US dollars of a usage, None if the price is unknown."""
    price, batch_price = (price_of(memory, usage.provider, usage.model, batch=batch) for batch in (False, True))
    singly = usage.tokens - usage.batched
    return None if price is None or batch_price is None else (singly * price + usage.batched * batch_price) / 1e6

"""Costs of embedding: list prices in US dollars for a million tokens of input, as of November 2026.

Pages of the prices, and discounts of the batch interfaces:

* OpenAI, https://platform.openai.com/docs/pricing: half of it in a batch.
* Gemini, https://ai.google.dev/gemini-api/docs/pricing: half of it in a batch.
* Mistral, https://mistral.ai/pricing: half of it in a batch.
* Amazon Bedrock, https://aws.amazon.com/bedrock/pricing/: on demand, in the regions of the United States.
* Voyage, https://docs.voyageai.com/docs/pricing and .../batch-inference: a third less in a batch. The tokens that an
  account gets free of charge are not counted here.

A price that is not known is None, never a guess: `remote.price_per_million_tokens` says it then.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory.embedding.providers.presets import OWN_SERVERS
from schemas.settings import MemorySettings

#: Providers without an endpoint.
_IN_PROCESS = frozenset({"local", "stub", "none"})

_HALF = 0.5
_THE_SAME = 1.0
_A_THIRD_LESS = 0.67


@dataclass(frozen=True, slots=True)
class _Price:
    """Dollars for a million tokens, and the share of it that a batch costs."""

    dollars: float
    in_batch: float


_LIST = {
    "text-embedding-3-small": _Price(0.02, _HALF),
    "text-embedding-3-large": _Price(0.13, _HALF),
    "text-embedding-ada-002": _Price(0.10, _HALF),
    "gemini-embedding-001": _Price(0.15, _HALF),
    "gemini-embedding-2": _Price(0.20, _HALF),
    "gemini-embedding-2-preview": _Price(0.20, _HALF),
    "mistral-embed": _Price(0.10, _HALF),
    "codestral-embed": _Price(0.15, _HALF),
    "voyage-4-large": _Price(0.12, _A_THIRD_LESS),
    "voyage-4": _Price(0.06, _A_THIRD_LESS),
    "voyage-4-lite": _Price(0.02, _A_THIRD_LESS),
    "voyage-3-large": _Price(0.18, _A_THIRD_LESS),
    "voyage-3.5": _Price(0.06, _A_THIRD_LESS),
    "voyage-3.5-lite": _Price(0.02, _A_THIRD_LESS),
    "voyage-3": _Price(0.06, _A_THIRD_LESS),
    "voyage-3-lite": _Price(0.02, _A_THIRD_LESS),
    "voyage-code-3": _Price(0.18, _A_THIRD_LESS),
    "voyage-finance-2": _Price(0.12, _A_THIRD_LESS),
    "voyage-law-2": _Price(0.12, _A_THIRD_LESS),
    "voyage-multilingual-2": _Price(0.12, _A_THIRD_LESS),
    "amazon.titan-embed-text-v2:0": _Price(0.02, _THE_SAME),
    "cohere.embed-english-v3": _Price(0.10, _THE_SAME),
    "cohere.embed-multilingual-v3": _Price(0.10, _THE_SAME),
}


def price_of(memory: MemorySettings, provider: str, model: str | None, *, batch: bool = False) -> float | None:
    """Return the US dollars for a million tokens, None if the price is unknown.

    A price in the settings is the price of everything, batches included. Else the model's list price counts, whichever
    endpoint serves it; a model behind an endpoint of one's own that the lists do not have is unknown.
    """
    if provider in _IN_PROCESS:
        return 0.0
    if memory.remote.price_per_million_tokens is not None:
        return memory.remote.price_per_million_tokens
    if provider in OWN_SERVERS:
        return 0.0
    listed = _LIST.get((model or "").removeprefix("models/"))
    if listed is None:
        return None
    return listed.dollars * listed.in_batch if batch else listed.dollars

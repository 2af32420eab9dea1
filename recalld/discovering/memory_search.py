"""OpenClaw's `memorySearch` tree in recalld's words.

The names are those of its configuration reference (docs.openclaw.ai/reference/memory-config). Keys, passwords and
headers are never taken over: a remark says where recalld reads them from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

#: Their key -> ours, where the value is the same.
_SAME: Mapping[str, str] = {
    "enabled": "enabled",
    "model": "model",
    "outputDimensionality": "output_dimensionality",
    "queryInputType": "query_input_type",
    "documentInputType": "document_input_type",
    "remote.nonBatchConcurrency": "remote.concurrency",
    "remote.batch.enabled": "remote.batch.enabled",
    "remote.batch.wait": "remote.batch.wait",
    "remote.batch.concurrency": "remote.batch.concurrency",
    "remote.batch.pollIntervalMs": "remote.batch.poll_interval_ms",
    "remote.batch.timeoutMinutes": "remote.batch.timeout_minutes",
    "local.modelCacheDir": "local.model_cache_dir",
    "store.vector.enabled": "store.vector.enabled",
    "store.vector.extensionPath": "store.vector.extension_path",
    "chunking.tokens": "chunking.tokens",
    "chunking.overlap": "chunking.overlap",
    "sync.onSessionStart": "sync.on_session_start",
    "sync.onSearch": "sync.on_search",
    "sync.watch": "sync.watch",
    "sync.watchDebounceMs": "sync.watch_debounce_ms",
    "sync.intervalMinutes": "sync.interval_minutes",
    "sync.sessions.deltaBytes": "sync.sessions.delta_bytes",
    "sync.sessions.deltaMessages": "sync.sessions.delta_messages",
    "sync.sessions.postCompactionForce": "sync.sessions.post_compaction_force",
    "query.maxResults": "query.max_results",
    "query.minScore": "query.min_score",
    "query.hybrid.enabled": "query.hybrid.enabled",
    "query.hybrid.vectorWeight": "query.hybrid.vector_weight",
    "query.hybrid.textWeight": "query.hybrid.text_weight",
    "query.hybrid.candidateMultiplier": "query.hybrid.candidate_multiplier",
    "query.hybrid.mmr.enabled": "query.hybrid.mmr.enabled",
    "query.hybrid.mmr.lambda": "query.hybrid.mmr.lambda",
    "query.hybrid.temporalDecay.enabled": "query.hybrid.temporal_decay.enabled",
    "query.hybrid.temporalDecay.halfLifeDays": "query.hybrid.temporal_decay.half_life_days",
    "cache.enabled": "cache.enabled",
    "cache.maxEntries": "cache.max_entries",
}

#: Their provider -> ours. The servers that speak OpenAI's API are the provider openai with an address.
_PROVIDERS: Mapping[str, str] = {
    **{name: name for name in ("auto", "openai", "gemini", "mistral", "ollama", "voyage", "local", "none")},
    "openai-compatible": "openai",
    "lmstudio": "openai",
}

#: Our provider -> the variable that holds its key.
_VARIABLES: Mapping[str, str] = {
    name: f"{name.upper()}_API_KEY" for name in ("openai", "gemini", "mistral", "voyage", "ollama")
}

#: Keys of ours that mean nothing to another provider.
OF_ONE_PROVIDER = frozenset({"provider", "model", "output_dimensionality", "remote.base_url"})

_USUAL_WEIGHTS: Mapping[str, float] = {"query.hybrid.vector_weight": 0.7, "query.hybrid.text_weight": 0.3}

#: Sections of ours that hold for all agents.
SHARED = frozenset({"store", "cache"})

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")

#: Says nothing that recalld would have to do.
_WITHOUT_MEANING = frozenset({"store.driver", "store.path"})


@dataclass(slots=True)
class Translation:
    """Dotted keys of ours with their values, and sentences about what was left out."""

    values: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    #: The provider is one that recalld does not know: model and address would mean nothing to another.
    foreign: bool = False


def translate(tree: Mapping[str, Any], *, agents_own: bool) -> Translation:
    """Translate one `memorySearch`. `agents_own`: it is one agent's; what holds for all agents has no place in it."""
    done = Translation()
    for key, value in _leaves(tree):
        if value is not None:
            _translate(key, value, done)
    if tree.get("provider") == "lmstudio":
        done.values.setdefault("remote.base_url", "http://127.0.0.1:1234/v1")
    if done.foreign:
        for key in OF_ONE_PROVIDER & done.values.keys():
            del done.values[key]
    _key(tree, done)
    weights = {done.values.get(key, usual) == usual for key, usual in _USUAL_WEIGHTS.items()}
    if False in weights:
        done.remarks.append('the weights of query.hybrid count only with query.hybrid.fusion = "weighted"')
    if agents_own:
        for key in [key for key in done.values if key.partition(".")[0] in SHARED]:
            del done.values[key]
            done.remarks.append(f"{key} holds for all agents here; set it outside [[agents]] if it should")
    return done


def _translate(key: str, value: Any, done: Translation) -> None:
    if key in _SAME:
        if isinstance(value, str) and _VARIABLE.search(value):
            done.remarks.append(f"{key} is taken from a variable there; write its value as {_SAME[key]}")
        elif isinstance(value, Mapping | list):
            done.remarks.append(f"{key} was not understood")
        else:
            done.values[_SAME[key]] = value
    elif key in ("provider", "fallback"):
        _provider(key, value, done)
    elif key == "sources":
        _sources(value, done)
    elif key == "experimental.sessionMemory":
        if value is False:
            done.values["sources"] = ["memory"]
    elif key == "extraPaths":
        _extra_paths(value, done)
    elif key == "local.modelPath":
        _model_path(value, done)
    elif key == "remote.baseUrl":
        _base_url(value, done)
    elif key == "remote.apiKey":
        return  # see _key
    elif key == "remote.headers" or key.startswith("remote.headers."):
        name = key.removeprefix("remote.headers").lstrip(".") or "all"
        done.remarks.append(f"remote.headers ({name}) is not copied; set RECALLD_REMOTE__HEADERS if it is needed")
    elif key not in _WITHOUT_MEANING:
        done.remarks.append(f"{key} has no counterpart here")


def _provider(key: str, value: Any, done: Translation) -> None:
    ours = _PROVIDERS.get(value) if isinstance(value, str) else None
    if ours is not None and (key, ours) != ("fallback", "auto"):
        done.values[key] = ours
        return
    shown = f" {value}" if _is_word(value) else ""
    done.remarks.append(f"the {key}{shown} is not one that recalld knows; choose one of its own")
    done.foreign = done.foreign or key == "provider"


def _sources(value: Any, done: Translation) -> None:
    known = [source for source in ("memory", "sessions") if isinstance(value, list) and source in value]
    if known:
        # An experiment that is switched off has the last word, wherever it stands in the tree.
        done.values.setdefault("sources", known)
    else:
        done.remarks.append("sources was not understood")


def _extra_paths(value: Any, done: Translation) -> None:
    paths: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        path = item.get("path") if isinstance(item, Mapping) else item
        if not isinstance(path, str) or not path.strip() or _VARIABLE.search(path):
            done.remarks.append("one of extraPaths was not understood")
            continue
        paths.append(path.strip())
        if isinstance(item, Mapping) and item.get("pattern"):
            done.remarks.append(
                f"the pattern of the extra path {path} has no counterpart; all its Markdown files count"
            )
    if paths:
        done.values["extra_paths"] = list(dict.fromkeys(paths))


def _model_path(value: Any, done: Translation) -> None:
    if not isinstance(value, str) or value.startswith(("hf:", "http:", "https:")) or _VARIABLE.search(value):
        done.remarks.append("local.modelPath is not a file here; without local.model_path the bundled model is used")
    else:
        done.values["local.model_path"] = value


def _base_url(value: Any, done: Translation) -> None:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        plain = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = parts.username is not None or parts.password is not None or bool(parts.query)
    except ValueError:
        plain = secret = False
    if plain and not secret and not _VARIABLE.search(value):
        done.values["remote.base_url"] = value
    else:
        why = " because a key may be in it" if secret else _from(value)
        done.remarks.append(f"remote.baseUrl is not copied{why}; set RECALLD_REMOTE__BASE_URL")


def _key(tree: Mapping[str, Any], done: Translation) -> None:
    """Where recalld reads the key that is written there."""
    remote = tree.get("remote")
    value = remote.get("apiKey") if isinstance(remote, Mapping) else None
    if value:
        known = _VARIABLES.get(done.values.get("provider", "")) if "remote.base_url" not in done.values else None
        done.remarks.append(
            f"remote.apiKey is not copied{_from(value)}; set {known or 'RECALLD_REMOTE__API_KEY'} to it"
        )


def _from(value: Any) -> str:
    """Which variable holds it there, if that is said."""
    name = value.get("id") if isinstance(value, Mapping) and value.get("source") == "env" else None
    if isinstance(value, str) and (match := _VARIABLE.fullmatch(value.strip())):
        name = match[1]
    return f" (there it is the variable {name})" if isinstance(name, str) and _VARIABLE.fullmatch(f"${name}") else ""


def _is_word(value: Any) -> bool:
    """Whether it may be shown: a short name, and nothing that could be a key."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,23}", value) is not None


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key != "remote.apiKey":
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value

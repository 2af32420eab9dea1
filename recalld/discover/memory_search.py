"""OpenClaw's `memory.search` tree, and the older `memorySearch`, in recalld's words.

The names are those of its configuration reference (docs.openclaw.ai/reference/memory-config). Keys, passwords and
headers are never taken over: a remark says where recalld reads them from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlsplit

from recalld.discover.openclaw_settings import OpenClawSettings
from recalld.settings.keys import URL_KEYS, dotted, memory_sections, top_level_keys
from schemas.globs import compiled
from schemas.settings import Credentials, FallbackName, ProviderName

#: Providers whose address may come from `models.providers`; the others have but one.
_WITH_ADDRESS = frozenset({"openai", "openai-compatible", "ollama", "lmstudio", "deepinfra"})

#: Keys of ours that mean nothing to another provider.
_OF_ONE_PROVIDER = frozenset(
    {"provider", "model", "output_dimensionality", "query_input_type", "document_input_type", "remote.base_url"}
)

_USUAL_WEIGHTS = (("vector", 0.7), ("text", 0.3))

#: Defaults of OpenClaw since the summer of 2026 that are not ours.
_CURRENT_DEFAULTS = {"query.hybrid.mmr.enabled": True, "query.hybrid.temporal_decay.enabled": True}

#: Sections of ours that hold for all agents.
_SHARED = frozenset({"store", "cache"})

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")

#: `{md,txt}` in the pattern of an extra path, and signs of patterns that our globs do not have.
_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_NO_GLOB = re.compile(r"[{}$\\]|[@!+*?]\(|^!")
_MOST_ALTERNATIVES = 5


@dataclass(slots=True)
class Translation:
    """Dotted keys of ours with their values, and sentences about values that were left out.

    `private_sessions`: transcripts are searched for private chats only.
    """

    values: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    private_sessions: bool = False


def is_for_all_agents(key: str) -> bool:
    """Return True if this key of ours has no place in `[[agents]]`."""
    return key.partition(".")[0] in _SHARED


def translate(tree: Mapping[str, Any], file: OpenClawSettings) -> Translation:
    """Translate one `memory.search`, inherited values included, as the rest of its file means it."""
    done = Translation()
    both = tree.get("inputType")
    leaves = dotted({"queryInputType": both, "documentInputType": both, **tree})
    for key, value in leaves.items():
        _translate(key, value, done)
    _sources(leaves, done, file)
    _provider(leaves.get("provider"), done, file)
    remote = tree.get("remote")
    if own_key := remote.get("apiKey") if isinstance(remote, Mapping) else None:
        provider = done.values.get("provider", "auto")
        own = provider in Credentials.model_fields and "remote.base_url" not in done.values
        place = f"{provider.upper()}_API_KEY" if own else "RECALLD_REMOTE__API_KEY"
        done.remarks.append(f"remote.apiKey is not copied{_from(own_key)}; set {place} to it")
    if file.is_current:
        done.values = {**_CURRENT_DEFAULTS, **done.values}
        done.remarks.append(
            "mmr and temporal_decay are on, as OpenClaw has them since the summer of 2026; its importance marks have "
            "no counterpart, and query.hybrid.candidate_multiplier = 20 comes nearest to its 200 candidates"
        )
    if any(done.values.get(f"query.hybrid.{side}_weight") not in (None, usual) for side, usual in _USUAL_WEIGHTS):
        done.remarks.append('the weights of query.hybrid count only with query.hybrid.fusion = "weighted"')
    return done


def _translate(key: str, value: Any, done: Translation) -> None:
    """Translate one leaf by itself, by the row of its key or of a table around it."""
    ours = re.sub("[A-Z]", lambda sign: f"_{sign[0].lower()}", key)
    ours = ours.replace("remote.non_batch_concurrency", "remote.concurrency")
    above = next((above for above in _ROWS if f"{key}.".startswith(f"{above}.")), None)
    row, known = _ROWS[above] if above is not None else None, top_level_keys().get(ours)
    if value in (None, {}) or (key, value) == ("store.fts.tokenizer", "unicode61"):
        return  # as here
    if isinstance(row, str):
        done.remarks += filter(None, [row.format(name=key[len(above or "") + 1 :] or "all")])
    elif row is not None:
        if (converted := row(value, done.remarks)) is not None:
            done.values[ours] = converted
    elif known is None or known.secret or ours in URL_KEYS or ours.partition(".")[0] not in memory_sections() | _SHARED:
        done.remarks.append(f"{key} has no counterpart here")
    elif isinstance(value, str) and _VARIABLE.search(value):
        done.remarks.append(f"{key} is taken from a variable there; write its value as {ours}")
    elif isinstance(value, list):
        done.remarks.append(f"{key} was not understood")
    else:
        done.values[ours] = value


# Converters of single leaves: each returns our value, or leaves a remark and returns None


def _fallback(value: Any, remarks: list[str]) -> str | None:
    name = value.strip().lower() if isinstance(value, str) else ""
    if name in get_args(FallbackName):
        return name
    remarks.append(f"the fallback{_shown(value)} is unknown to recalld; choose {_choices(FallbackName)}")
    return None


def _model_path(value: Any, remarks: list[str]) -> str | None:
    if isinstance(value, str) and not value.startswith(("hf:", "http:", "https:")) and not _VARIABLE.search(value):
        return value
    remarks.append("local.modelPath is not a file here; without local.model_path the bundled model is used")
    return None


def _base_url(value: Any, remarks: list[str]) -> str | None:
    why = _from(value)
    if isinstance(value, str) and not _VARIABLE.search(value):
        with suppress(ValueError):
            parts = urlsplit(value)
            if parts.username is not None or parts.password is not None or parts.query:
                why = " because a key may be in it"
            elif parts.scheme in ("http", "https") and parts.hostname:
                return value
    remarks.append(f"remote.baseUrl is not copied{why}; set RECALLD_REMOTE__BASE_URL")
    return None


def _extra_paths(value: Any, remarks: list[str]) -> list[Any] | None:
    """Return the paths, each once; a path without a pattern wins over the same path with patterns."""
    globs: dict[str, list[str]] = {}
    for item in value if isinstance(value, list) else [value]:
        path, pattern = (item.get("path"), item.get("pattern")) if isinstance(item, Mapping) else (item, None)
        if not isinstance(path, str) or not path.strip() or _VARIABLE.search(path):
            remarks.append("one of extraPaths was not understood")
            continue
        try:
            found = _globs(pattern) if pattern not in (None, "") else []
        except ValueError:
            remarks.append(
                f"the extra path {path} is left out: its pattern has no counterpart; add the path with globs as include"
            )
            continue
        known = globs.setdefault(path.strip(), found)
        globs[path.strip()] = list(dict.fromkeys([*known, *found])) if known and found else []
    return [{"path": path, "include": those} if those else path for path, those in globs.items()] or None


def _globs(pattern: Any) -> list[str]:
    """Return a pattern in our globs, which know no alternatives and look at any depth without a slash.

    Raises:
        ValueError: it cannot be written so.
    """
    if not isinstance(pattern, str) or pattern.count("{") > _MOST_ALTERNATIVES:
        raise ValueError
    found = [pattern.strip()]
    while group := _ALTERNATIVES.search(found[0]):
        found = [one.replace(group[0], part, 1) for one in found for part in group[1].split(",")]
    if any(_NO_GLOB.search(one) for one in found):
        raise ValueError
    found = [one if "/" in one else f"./{one}" for one in found]
    compiled(found, ())
    return found


#: Their key, or a table of theirs -> its converter, or the remark about it. An empty remark: it asks nothing of us, or
#: is read together with others. Without a row, a key has the same name and value here.
_ROWS: Mapping[str, Callable[[Any, list[str]], Any] | str] = {
    **dict.fromkeys(("experimental.sessionMemory", "inputType", "provider", "rememberAcrossConversations"), ""),
    **dict.fromkeys(("remote.apiKey", "sources", "store.driver", "store.path"), ""),
    "extraPaths": _extra_paths,
    "fallback": _fallback,
    "local.modelPath": _model_path,
    "multimodal": "multimodal has no counterpart: images and audio are not indexed",
    "remote.baseUrl": _base_url,
    "remote.headers": "remote.headers ({name}) is not copied; set RECALLD_REMOTE__HEADERS if it is needed",
}


# Values that several leaves decide


def _sources(leaves: Mapping[str, Any], done: Translation, file: OpenClawSettings) -> None:
    """Set the sources, as `rememberAcrossConversations`, `experimental.sessionMemory` and `sources` make them there."""
    listed, session_memory = leaves.get("sources"), leaves.get("experimental.sessionMemory")
    named = [source for source in ("memory", "sessions") if isinstance(listed, list) and source in listed]
    if listed and not named:
        done.remarks.append("sources was not understood")
    remember = leaves.get("rememberAcrossConversations")
    if remember is None and not file.is_current:
        if named or session_memory is False:
            done.values["sources"] = ["memory"] if session_memory is False else named
        return
    if remember not in (None, True, False):
        done.remarks.append("rememberAcrossConversations was not understood")
    remembers = remember if isinstance(remember, bool) else not file.isolates_chats
    searched = [source for source in named if source == "memory" or remembers or session_memory is True] or ["memory"]
    done.private_sessions = remembers and "sessions" not in searched
    done.values["sources"] = [*searched, "sessions"] if done.private_sessions else searched


def _provider(written: Any, done: Translation, file: OpenClawSettings) -> None:
    """Set the provider; where recalld has none of that name, leave out the keys that mean nothing to another."""
    name = written.strip().lower() if isinstance(written, str) else "auto" if written is None else ""
    configured = next(
        (one for key, one in file.providers.items() if key.lower() == name and isinstance(one, Mapping)), {}
    )
    if name not in get_args(ProviderName) and isinstance(api := configured.get("api"), str):
        # The kind of a server of the file's own.
        name = "openai-compatible" if api in ("openai-completions", "openai-responses") else api
    if name not in get_args(ProviderName):
        done.remarks.append(
            f"the provider{_shown(written)} is unknown to recalld, and its model and address are left out with it; "
            f"choose {_choices(ProviderName)}"
        )
        for key in _OF_ONE_PROVIDER & done.values.keys():
            del done.values[key]
        return
    if name in _WITH_ADDRESS and "remote.base_url" not in done.values:
        _translate("remote.baseUrl", configured.get("baseUrl"), done)
    if name == "local" and done.values.pop("model", None) is not None:
        done.remarks.append("model names none for the provider local; local.model_path does")
    if name == "auto" and file.is_current and not _OF_ONE_PROVIDER & done.values.keys():
        done.remarks.append(
            "no provider is named there, which means openai; here it is openai where OPENAI_API_KEY is set, and "
            'the bundled local model without any key (provider = "openai" for openai or nothing)'
        )
    elif written is not None or file.is_current:
        done.values["provider"] = "openai" if name == "auto" and file.is_current else name


def _choices(names: Any) -> str:
    """Name the providers that a user may choose; `stub` is for tests."""
    return ", ".join(name for name in get_args(names) if name not in ("auto", "stub"))


def _from(value: Any) -> str:
    """Name the variable that holds a value there, as far as the file says so."""
    name = value.get("id") if isinstance(value, Mapping) and value.get("source") == "env" else None
    if isinstance(value, str) and (match := _VARIABLE.fullmatch(value.strip())):
        name = match[1]
    return f" (there it is the variable {name})" if isinstance(name, str) and _VARIABLE.fullmatch(f"${name}") else ""


def _shown(value: Any) -> str:
    """Return a value that may be shown: it is a short name, and cannot be a key."""
    return f" {value}" if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,23}", value) else ""

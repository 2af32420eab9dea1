"""OpenClaw's settings of memory and of conversations in recalld's words, by one table.

The names are those of its configuration reference (docs.openclaw.ai/reference/memory-config, docs.openclaw.ai/gateway).
Keys, passwords and headers are never taken over: a sentence says where recalld reads them from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError

from recalld.settings.keys import URL_KEYS, nested, top_level_keys
from schemas.globs import compiled
from schemas.settings import Cache, MemorySettings, ProviderName, StoreSettings

#: Code of a sentence -> the sentence. `name` is OpenClaw's, `ours` ours.
_SENTENCES = {
    "no_equal": "{name} has no counterpart here",
    "odd": "{name} was not understood",
    "refused": "{ours} has a value that is not allowed here",
    "variable": "{name} is taken from a variable there; write its value as {ours}",
    "keys": "keys in OpenClaw's settings are not copied; set OPENAI_API_KEY, RECALLD_REMOTE__API_KEY and the like",
    "headers": "remote.headers is not copied; set RECALLD_REMOTE__HEADERS if it is needed",
    "address": "remote.baseUrl is not copied because a key may be in it; set RECALLD_REMOTE__BASE_URL",
    "provider": "the provider{name} is unknown to recalld, and its model and address are left out with it; choose one",
    "model_path": "local.modelPath is an address; without local.model_path the bundled model is used",
    "pattern": "the extra path {name} is left out: its pattern has no counterpart; add it with globs as include",
    "weights": 'the weights of query.hybrid count only with query.hybrid.fusion = "weighted"',
    "newer": "mmr and temporal_decay are on, as OpenClaw has them since the summer of 2026; its importance marks have "
    "no counterpart, and query.hybrid.candidate_multiplier = 20 comes nearest to its 200 candidates",
    "private": "rememberAcrossConversations: transcripts are searched, which OpenClaw shows to no group or channel, so "
    "scope.rules keeps these out, of notes too; drop the rules, or sessions from sources, if they may search",
    "qmd": "scope says which sessions may search, as memory.qmd.scope does there, also by recalld's own index",
    "notes": "OpenClaw's hook session-memory writes notes of sessions, which are indexed; switch it off there before "
    "context.session_notes.enabled writes them here, where context.session_notes.slug is its llmSlug",
}


class _Row(NamedTuple):
    """Setting of ours, its conversion, and the codes of the sentences when it is set, and when it cannot be converted.

    Without `ours` nothing is taken over. Without a conversion, the row is also about all settings below, each of which
    has our name in camel case. A unit at the end of our name converts by itself.
    """

    ours: str | None = None
    convert: Callable[[Any], Any] | None = None
    sentence: str | None = None
    refused: str = "odd"


# Conversions raise ValueError or TypeError for what they do not understand.


def _minutes(value: Any) -> float:
    """Return a duration such as 90s or 1h30m, of minutes where no unit is named, in minutes."""
    units = {"ms": 1 / 60_000, "s": 1 / 60, "m": 1, "": 1, "h": 60, "d": 1440}
    text = str(value).replace(" ", "")
    if not re.fullmatch(r"([\d.]++(ms|[smhd]?))++", text):
        raise ValueError
    parts = re.findall(r"([\d.]+)(ms|[smhd]?)", text)
    return round(sum(float(number) * units[unit] for number, unit in parts), 4)


def _bytes(value: Any) -> int:
    """Return bytes, or a size such as 2mb. For 0, no limit there, return a limit that is never reached."""
    number, unit, _ = re.split(r"([kmgt]?b?)$", str(value).strip().lower(), maxsplit=1)
    return int(float(number) * 1024 ** " kmgt".index(unit.rstrip("b") or " ")) or 10**15


def _model(value: Any) -> Any:
    """Return the first model of a selector."""
    return value.get("primary") if isinstance(value, Mapping) else value


def _model_path(value: str) -> str:
    if value.startswith(("http:", "https:")):
        raise ValueError
    return value


def _base_url(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.password or url.query:
        raise ValueError
    return value


#: End of OpenClaw's name in our spelling -> the end of ours, and the conversion.
_UNITS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "_ms": ("_seconds", lambda value: value / 1000),
    "": ("_minutes", _minutes),
}

_FLUSH, _HOOK = "agents.defaults.compaction.memoryFlush", "hooks.internal.entries.session-memory"

#: OpenClaw's setting, or a table of its settings -> its translation.
TABLE: Mapping[str, _Row] = {
    "memory.search": _Row(""),
    "memory.search.local.modelPath": _Row("local.model_path", _model_path, refused="model_path"),
    "memory.search.multimodal": _Row(sentence="no_equal"),
    "memory.search.query.hybrid.textWeight": _Row("query.hybrid.text_weight", sentence="weights"),
    "memory.search.query.hybrid.vectorWeight": _Row("query.hybrid.vector_weight", sentence="weights"),
    "memory.search.remote.apiKey": _Row(sentence="keys"),
    "memory.search.remote.baseUrl": _Row("remote.base_url", _base_url, refused="address"),
    "memory.search.remote.headers": _Row(sentence="headers"),
    "memory.search.remote.nonBatchConcurrency": _Row("remote.concurrency"),
    "memory.search.sync.embeddingBatchTimeoutSeconds": _Row("remote.timeout_seconds"),
    "memory.backend": _Row("backend"),
    "memory.citations": _Row("citations"),
    "memory.qmd": _Row("qmd"),
    "memory.qmd.update.updateTimeoutMs": _Row("qmd.update.timeout_ms"),
    "agents.defaults.compaction.reserveTokensFloor": _Row("context.flush.reserve_tokens"),
    _FLUSH: _Row("context.flush"),
    f"{_FLUSH}.forceFlushTranscriptBytes": _Row("context.flush.transcript_bytes", _bytes),
    f"{_FLUSH}.model": _Row("context.flush.model", _model),
    "agents.defaults.contextPruning": _Row("context.pruning"),
    "agents.defaults.bootstrapMaxChars": _Row("context.bootstrap.max_chars"),
    "agents.defaults.bootstrapTotalMaxChars": _Row("context.bootstrap.total_max_chars"),
    "agents.defaults.userTimezone": _Row("context.timezone"),
    f"{_HOOK}.enabled": _Row(sentence="notes"),
    f"{_HOOK}.messages": _Row("context.session_notes.messages"),
    "env": _Row(sentence="keys"),
    "models.providers": _Row(sentence="keys"),
    # Read together with others, or of no meaning here.
    **dict.fromkeys((f"memory.qmd.{name}" for name in ("includeDefaultMemory", "paths", "scope")), _Row()),
    **dict.fromkeys((f"memory.search.{name}" for name in ("extraPaths", "inputType", "provider", "sources")), _Row()),
    **dict.fromkeys(
        (f"memory.search.{name}" for name in ("experimental.sessionMemory", "store.driver", "store.path")), _Row()
    ),
    "memory.search.rememberAcrossConversations": _Row(),
}

_VARIABLE = re.compile(r"\$\{\w+\}")

#: Signs of patterns that our globs do not have.
_NO_GLOB = re.compile(r"[{}$\\]|[@!+*?]\(|^!")

#: Keys of ours that mean nothing to another provider.
_OF_ONE_PROVIDER = frozenset(
    {"provider", "model", "output_dimensionality", "query_input_type", "document_input_type", "remote.base_url"}
)

#: Providers whose address may come from `models.providers`; the others have but one.
_WITH_ADDRESS = frozenset({"openai", "openai-compatible", "ollama", "lmstudio", "deepinfra"})


#: Settings that are read as a whole, with all below.
WHOLE = frozenset(name for name, row in TABLE.items() if row.ours is None or row.convert)


class Translation:
    """Settings of an agent of OpenClaw: dotted keys of ours with their values, and sentences about the others.

    `leaves` are those of its file, as they hold for the agent. `is_current`: the file has the newer layout.
    """

    def __init__(self, leaves: Mapping[str, Any], *, is_current: bool, has_transcripts: bool) -> None:
        self.values: dict[str, Any] = {}
        self.remarks: list[str] = []
        self._leaves, self._is_current = leaves, is_current
        input_type = leaves.get("memory.search.inputType")
        inputs = dict.fromkeys(("memory.search.queryInputType", "memory.search.documentInputType"), input_type)
        for name, value in {**inputs, **leaves}.items():
            self._take(name, value)
        self._take_paths()
        self._take_sources(has_transcripts=has_transcripts)
        self._take_provider()
        if self.values.get("backend") == "qmd":
            self._take_qmd()
        if is_current:
            # Defaults of OpenClaw since the summer of 2026 that are not ours.
            self.values = {"query.hybrid.mmr.enabled": True, "query.hybrid.temporal_decay.enabled": True, **self.values}
            self._say("newer")

    def _say(self, code: str, name: str = "", ours: str = "") -> None:
        self.remarks.append(_SENTENCES[code].format(name=name, ours=ours))

    def _take(self, name: str, value: Any) -> None:
        """Take over one leaf, by the row of its name or of a table around it."""
        parts = name.split(".")
        names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        row_name = next((table_name for table_name in names if table_name in TABLE), None)
        if row_name is None or value in (None, {}):
            return  # not about memory
        row, short_name = TABLE[row_name], name.removeprefix("memory.search.")
        if row.sentence and value is not False:
            self._say(row.sentence, short_name)
        if row.ours is None:
            return
        keys, ours, convert = top_level_keys(), (row.ours + _snake(name[len(row_name) :])).lstrip("."), row.convert
        for end, (unit, conversion) in _UNITS.items():
            if ours not in keys and ours.endswith(end) and (key_in_unit := ours.removesuffix(end) + unit) in keys:
                ours, convert = key_in_unit, conversion
        if ours not in keys or (convert is None and (keys[ours].secret or ours in URL_KEYS)):
            if value is not False:  # what is off is off here, too
                self._say("no_equal", short_name)
        elif isinstance(value, str) and _VARIABLE.search(value):
            self._say("variable", short_name, ours)
        else:
            try:
                self.values[ours] = convert(value) if convert else value
            except (ValueError, TypeError, AttributeError):
                self._say(row.refused, short_name)

    # Values that several leaves decide

    def _take_paths(self) -> None:
        """Take over the extra paths, each once. A path whose pattern is no glob is left out."""
        paths: list[Any] = []
        for item in self._leaves.get("memory.search.extraPaths", ()):
            path, pattern = (item.get("path"), item.get("pattern")) if isinstance(item, Mapping) else (item, None)
            if not isinstance(path, str) or not path.strip() or _VARIABLE.search(path):
                self._say("odd", "one of extraPaths")
            elif not pattern:
                paths.append(path.strip())
            elif (glob := _glob(pattern)) is not None:
                paths.append({"path": path.strip(), "include": [glob]})
            else:
                self._say("pattern", path)
        if paths:
            self.values["extra_paths"] = [path for number, path in enumerate(paths) if path not in paths[:number]]

    def _take_sources(self, *, has_transcripts: bool) -> None:
        """Take over `sources`, as `rememberAcrossConversations` and `experimental.sessionMemory` change them there."""
        listed, session_memory, remember = (
            self._leaves.get(f"memory.search.{name}")
            for name in ("sources", "experimental.sessionMemory", "rememberAcrossConversations")
        )
        sources = [source for source in ("memory", "sessions") if isinstance(listed, list) and source in listed]
        if listed and not sources:
            self._say("odd", "sources")
        if remember is None and not self._is_current:
            if sources or session_memory is False:
                self.values["sources"] = ["memory"] if session_memory is False else sources
            return
        # Direct chats that are kept apart make transcripts private, unless the file says otherwise.
        bindings = self._leaves.get("bindings")
        apart = self._leaves.get("session.dmScope") not in (None, "main") or any(
            "dmScope" in table(binding, "session") for binding in (bindings if isinstance(bindings, list) else ())
        )
        remembers = remember if isinstance(remember, bool) else not apart
        is_whole = remembers or session_memory is True
        searched = [source for source in sources if source == "memory" or is_whole] or ["memory"]
        is_private = remembers and "sessions" not in searched
        self.values["sources"] = [*searched, "sessions"] if is_private else searched
        if is_private and has_transcripts:
            self.values["scope.rules"] = [{"action": "deny", "chat_type": kind} for kind in ("group", "channel")]
            self._say("private")

    def _take_provider(self) -> None:
        """Take over the provider; without one of that name, leave out the keys that mean nothing to another."""
        values, provider, is_current = self.values, self._leaves.get("memory.search.provider"), self._is_current
        name = provider.strip().lower() if isinstance(provider, str) else "auto" if provider is None else ""
        providers = table(self._leaves.get("models.providers"))
        configured: Any = next((settings for key, settings in providers.items() if key.lower() == name), {})
        if name not in get_args(ProviderName) and isinstance(api := at(configured, "api"), str):
            # The kind of a server of the file's own.
            name = "openai-compatible" if api in ("openai-completions", "openai-responses") else api
        if name not in get_args(ProviderName):
            # A short name cannot be a key.
            is_short = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,23}", str(provider))
            self._say("provider", f" {provider}" if is_short else "")
            self.values = {key: value for key, value in values.items() if key not in _OF_ONE_PROVIDER}
            return
        if name in _WITH_ADDRESS and "remote.base_url" not in values:
            self._take("memory.search.remote.baseUrl", at(configured, "baseUrl"))
        if name == "local":
            values.pop("model", None)  # local.model_path names it
        # Without a name and a setting for openai, which it means there, the best provider at hand is taken here.
        if name != "auto" or (is_current and _OF_ONE_PROVIDER & values.keys()):
            values["provider"] = "openai" if name == "auto" else name

    def _take_qmd(self) -> None:
        """Take over qmd's own settings: sessions that may search, and documents."""
        usual = {"default": "deny", "rules": [{"action": "allow", "match": {"chatType": "direct"}}]}
        scope = table(self._leaves.get("memory.qmd.scope", usual))
        rules = scope.get("rules")
        self.values["scope.default"] = scope.get("default", "allow")
        self.values["scope.rules"] = [
            {"action": at(rule, "action"), **{_snake(name): value for name, value in table(rule, "match").items()}}
            for rule in (rules if isinstance(rules, list) else ())
        ]
        self.values.setdefault("qmd.sessions.enabled", False)
        if self._leaves.get("memory.qmd.includeDefaultMemory") is False:
            self.values["exclude"] = ["MEMORY.md", "memory.md", "USER.md", "memory/"]
        self._say("qmd")


def _glob(pattern: Any) -> str | None:
    """Return a pattern as a glob of ours; None if it cannot be written so."""
    # Only Markdown is indexed: `*.{md,txt}` is `*.md`.
    glob = re.sub(r"\.\{([^{}]+,)?md(,[^{}]+)?\}$", ".md", str(pattern).strip())
    try:
        compiled([glob], ())
    except ValueError:
        return None
    # Without a slash, ours look at any depth.
    return None if _NO_GLOB.search(glob) else glob if "/" in glob else f"./{glob}"


def _snake(name: str) -> str:
    """Return a name in camel case in our spelling."""
    return re.sub("[A-Z]", lambda sign: f"_{sign[0].lower()}", name)


def at(tree: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def table(tree: Any, path: str = "") -> Mapping[str, Any]:
    """Return the table at a dotted path; empty when there is none, or something else."""
    subtree = at(tree, path) if path else tree
    return subtree if isinstance(subtree, Mapping) else {}


class _TranslatedSettings(MemorySettings):
    """Settings that are taken over, of one agent and of all."""

    store: StoreSettings = StoreSettings()
    cache: Cache = Cache()


def accepted(values: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    """Return dotted keys as nested tables. `remarks` gets a sentence on each value that the schema refuses."""
    while True:
        try:
            # As JSON, so that a list is a list of ours, and true is no number.
            _TranslatedSettings.model_validate_json(json.dumps(nested(values)), strict=True)
        except ValidationError as error:
            places = [".".join([*map(str, problem["loc"]), ""]) for problem in error.errors()]
            # An error of a section (overlap against tokens) is about every key of it.
            wrong = [
                key
                for key in values
                if any(f"{key}.".startswith(place) or place.startswith(f"{key}.") for place in places)
            ]
            wrong = wrong or list(values)
            remarks += [_SENTENCES["refused"].format(ours=key) for key in wrong]
            values = {key: value for key, value in values.items() if key not in wrong}
        else:
            return nested(values)

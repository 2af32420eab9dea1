"""Precedence of settings: several sources become one valid `Settings` with the origin of every value, or mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recalld.settings.keys import SettingKey, agent_keys, did_you_mean, memory_sections, shown, top_level_keys
from recalld.settings.sources import OPENAI_BASE_URL, AgentTable, Source, Written
from schemas.errors import UserError
from schemas.settings import Settings

DEFAULT = "default"

#: The schema's tags for the forms of an extra path.
_TAGS = frozenset({"text", "table"})


class SettingsInvalid(UserError):
    """The settings cannot be used. One problem a line, each naming the key as it was written."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems), exit_code=2)


def resolve(sources: Sequence[Source], *, home: Path) -> tuple[Settings, dict[str, str]]:
    """Lay the sources over each other, weakest first, and validate the whole.

    Returns the settings and, for every dotted key, the origin of its value; an agent's keys are called
    `agents.<id>.<key>`.

    Raises:
        SettingsInvalid: with every problem there is.
    """
    written = {key: value for source in sources for key, value in source.keys.items()}
    agents = next((source.agents for source in reversed(sources) if source.agents is not None), [])
    base_url = written.pop(OPENAI_BASE_URL, None)
    # It is weaker than RECALLD_REMOTE__BASE_URL and stronger than the file.
    if "remote.base_url" in written and written["remote.base_url"].origin.startswith("RECALLD_"):
        base_url = None
    raw = _nested(written)
    effective = [_merged({name: raw[name] for name in memory_sections() & raw.keys()}, agent.keys) for agent in agents]
    if base_url is not None:
        for table, agent in zip(effective, agents, strict=True):
            if "remote.base_url" not in agent.keys and _asks_openai(table, raw):
                table["remote"] = {**table.get("remote", {}), "base_url": base_url.value}
        if _asks_openai(raw, raw):
            written["remote.base_url"] = base_url
    problems = [*(problem for source in sources for problem in source.problems), *_used_twice(agents)]
    try:
        settings = Settings.model_validate({**_nested(written), "home": home, "agents": effective})
    except ValidationError as error:
        raise SettingsInvalid([*problems, *_sentences_of(error, written, agents)]) from None
    if problems:
        raise SettingsInvalid(problems)
    origins = {"home": "", **{key: _origin(key, written) for key in top_level_keys() if key != "agents"}}
    for agent, valid in zip(agents, settings.agents, strict=True):
        origins |= _agent_origins(valid.id, agent, written)
    return settings, origins


def _asks_openai(raw: Mapping[str, Any], top: Mapping[str, Any]) -> bool:
    provider = raw.get("provider", "auto")
    has_key = bool(top.get("credentials", {}).get("openai") or raw.get("remote", {}).get("api_key"))
    return provider == "openai" or (provider == "auto" and has_key)


def _nested(written: Mapping[str, Written]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in written.items():
        *above, last = key.split(".")
        table = tree
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value.value
    return tree


def _merged(defaults: Mapping[str, Any], own: Mapping[str, Written]) -> dict[str, Any]:
    """Merge one agent's own keys into the shared defaults.

    Tables are merged key by key, lists and values replace, except `extra_paths`, which are united: defaults first,
    each path once, as the agent wrote it. Users of the reference system know this rule.
    """
    merged = _deep_merged(defaults, _nested(own))
    lists = (defaults.get("extra_paths"), merged.get("extra_paths"))
    if all(isinstance(paths, list | tuple) for paths in lists):
        entries = [entry for paths in lists for entry in paths or ()]
        by_path = {repr(entry.get("path", entry) if isinstance(entry, Mapping) else entry): entry for entry in entries}
        merged["extra_paths"] = list(by_path.values())
    return merged


def _deep_merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _deep_merged(below, value)  # noqa: PLW2901
        merged[key] = value
    return merged


def _origin(key: str, written: Mapping[str, Written]) -> str:
    return written[key].origin if key in written else DEFAULT


def _agent_origins(agent_id: str, agent: AgentTable, written: Mapping[str, Written]) -> dict[str, str]:
    origins = {}
    for key in agent_keys():
        own = _origin(key, agent.keys)
        inherited = _origin(key, written)
        if key == "extra_paths" and DEFAULT not in (own, inherited) and own != inherited:
            own = f"{inherited}, {own}"
        origins[f"agents.{agent_id}.{key}"] = inherited if own == DEFAULT else own
    return origins


def _used_twice(agents: Iterable[AgentTable]) -> list[str]:
    first: dict[str, str] = {}
    problems = []
    for written in (agent.keys["id"] for agent in agents if "id" in agent.keys):
        own = str(written.value)
        if own.lower() in first:
            problems.append(
                f"{written.label} is used twice ({first[own.lower()]!r} and {own!r}, and case does not count); "
                "give every agent an id of its own"
            )
        first.setdefault(own.lower(), own)
    return problems


# Sentences about mistakes: one a mistake, naming the key as it was written


def _sentences_of(
    error: ValidationError, written: Mapping[str, Written], agents: Sequence[AgentTable]
) -> Iterator[str]:
    """Yield the schema's complaints in sentences that name the key at its source.

    A wrong value that agents inherit is reported once, at the top level.
    """
    for found in error.errors(include_url=False, include_context=False):
        where = tuple(part for part in found["loc"] if part not in _TAGS)
        keys, known, label = written, top_level_keys(), "settings"
        if len(where) > 1 and where[0] == "agents":
            agent = agents[int(where[1])]
            keys, known, label, where = agent.keys, agent_keys(), agent.label, where[2:]
        place = ".".join(map(str, where))
        at = _nearest(place, keys)
        if at is not None:
            inner = place.removeprefix(at) if place.startswith(f"{at}.") else ""
            yield _sentence(found, keys[at], known[at], inner=inner)
        elif found["type"] == "missing" and place in known:
            yield f"{label}.{place} is missing; it must be {known[place].allowed}"


def _nearest(place: str, written: Mapping[str, Written]) -> str | None:
    """Return the written key that an error is about: the one at its place, around it, or in the section it names.

    Of several the last one: of "overlap is above half of tokens" that is the overlap.
    """
    around = [key for key in written if place == key or place.startswith(f"{key}.")]
    below = [key for key in written if key.startswith(f"{place}.")]
    return next(reversed(around or below), None)


def _sentence(found: Any, written: Written, key: SettingKey, *, inner: str) -> str:
    at, kind, message = written.label + inner, found["type"], found["msg"]
    if kind == "value_error":
        return f"{at}: {message.removeprefix('Value error, ')}"
    if inner:
        known = {"extra_forbidden": "unknown key", "missing": "is missing"}
        return f"{at}: {known.get(kind) or message[:1].lower() + message[1:]}"
    if key.secret:
        return f"{at} is not valid; it must be {key.allowed}"
    finite = ", and finite" if kind == "finite_number" else ""
    return f"{at} is {shown(written.value)}; it must be {key.allowed}{finite}{_suggestion(written.value, key)}"


def _suggestion(value: Any, key: SettingKey) -> str:
    if not key.allowed.startswith("one of ") or not isinstance(value, str):
        return ""
    near = did_you_mean(value, key.allowed.removeprefix("one of ").split(", "))
    return near or ("; openai-compatible takes any server with OpenAI's API" if key.name == "provider" else "")

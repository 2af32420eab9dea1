"""Several sources become one valid `Settings` with the origin of every value, or one error that lists every problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from recalld.settings.keys import SettingKey, agent_keys, memory_sections, top_level_keys
from recalld.settings.merging import merge_agent
from recalld.settings.sources import AgentSource, Source, Written, did_you_mean
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings

DEFAULT = "default"

#: How the schema calls the forms of an extra path.
_TAGS = frozenset({"text", "table"})


class SettingsInvalid(UserError):
    """The settings cannot be used. One problem a line, each naming the key as it was written."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems), exit_code=2)


def resolve(sources: Iterable[Source], *, home: Path) -> tuple[Settings, dict[str, str]]:
    """Lay the sources over each other, weakest first, and validate the whole.

    Returns the settings and, for every dotted key, where its value came from; an agent's keys are called
    `agents.<id>.<key>`.

    Raises:
        SettingsInvalid: with every problem there is.
    """
    problems: list[str] = []
    written: dict[str, Written] = {}
    agents: list[AgentSource] = []
    base_url: Written | None = None
    for source in sources:
        problems += source.problems
        written.update(source.keys)
        agents = agents if source.agents is None else source.agents
        base_url = source.openai_base_url or base_url
    raw = _nested(written)
    shared = {name: value for name, value in raw.items() if name in memory_sections()}
    # What OPENAI_BASE_URL says is weaker than RECALLD_REMOTE__BASE_URL and stronger than the file.
    if base_url and written.get("remote.base_url", base_url).origin == "RECALLD_REMOTE__BASE_URL":
        base_url = None
    if base_url and _asks_openai(raw, raw):
        written["remote.base_url"] = base_url
        raw = _nested(written)
    problems += _check(Settings, {**raw, "home": home}, written, top_level_keys(), label="settings")
    effective: list[dict[str, Any]] = []
    origins = {"home": "", **{key: _origin(key, written) for key in top_level_keys() if key != "agents"}}
    for agent in agents:
        merged = merge_agent(shared, _nested(agent.keys))
        if base_url and "remote.base_url" not in agent.keys and _asks_openai(merged, raw):
            merged["remote"] = {**merged.get("remote", {}), "base_url": base_url.value}
        problems += _check(AgentSettings, merged, agent.keys, agent_keys(), label=agent.label)
        effective.append(merged)
    problems += _twice(agents)
    if problems:
        raise SettingsInvalid(problems)
    settings = Settings.model_validate({**raw, "home": home, "agents": effective})
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


def _origin(key: str, written: Mapping[str, Written]) -> str:
    return written[key].origin if key in written else DEFAULT


def _agent_origins(agent_id: str, agent: AgentSource, written: Mapping[str, Written]) -> dict[str, str]:
    origins = {}
    for key in agent_keys():
        own = _origin(key, agent.keys)
        inherited = _origin(key, written)
        if key == "extra_paths" and DEFAULT not in (own, inherited) and own != inherited:
            own = f"{inherited}, {own}"
        origins[f"agents.{agent_id}.{key}"] = inherited if own == DEFAULT else own
    return origins


def _twice(agents: Iterable[AgentSource]) -> list[str]:
    first: dict[str, str] = {}
    problems = []
    for agent in agents:
        written = agent.keys.get("id")
        if written is None or not isinstance(written.value, str):
            continue
        folded = written.value.lower()
        if folded in first:
            problems.append(
                f"{written.label} is used twice ({first[folded]!r} and {written.value!r}, and case does not count); "
                "give every agent an id of its own"
            )
        first.setdefault(folded, written.value)
    return problems


def _check(
    model: type[BaseModel],
    raw: Mapping[str, Any],
    written: Mapping[str, Written],
    known: Mapping[str, SettingKey],
    *,
    label: str,
) -> list[str]:
    """The problems of what was `written` here; faults in values that came from elsewhere are reported there."""
    problems = [
        f"{value.label} {problem}"
        for key, value in written.items()
        if (problem := _not_a_number(known.get(key), value))
    ]
    try:
        model.model_validate(raw)
    except ValidationError as error:
        for found in error.errors(include_url=False, include_context=False):
            place = ".".join(str(part) for part in found["loc"] if part not in _TAGS)
            at = _nearest(place, written)
            if at is not None:
                inner = place.removeprefix(f"{at}.") if place.startswith(f"{at}.") else ""
                problems.append(_sentence(found, written[at], known[at], inner=inner))
            elif found["type"] == "missing" and place in known:
                problems.append(f"{label}.{place} is missing; it must be {known[place].allowed}")
    return problems


def _nearest(place: str, written: Mapping[str, Written]) -> str | None:
    """The written key an error is about: the one at its place, the one it lies in, or one of the section it names."""
    within = [key for key in written if place == key or place.startswith(f"{key}.")]
    below = [key for key in written if key.startswith(f"{place}.")]
    # The later one is named: of "overlap is above half of tokens", it is the overlap.
    found = within or below
    return found[-1] if found else None


def _sentence(found: Any, written: Written, key: SettingKey, *, inner: str) -> str:
    at = f"{written.label}.{inner}" if inner else written.label
    kind, message = found["type"], found["msg"]
    if kind == "value_error":
        return f"{at}: {message.removeprefix('Value error, ')}"
    if inner:
        known = {"extra_forbidden": "unknown key", "missing": "is missing"}
        return f"{at}: {known.get(kind) or message[:1].lower() + message[1:]}"
    if key.secret:
        return f"{at} is not valid; it must be {key.allowed}"
    return f"{at} is {_shown(written.value)}; it must be {key.allowed}{_suggestion(written.value, key)}"


def _suggestion(value: Any, key: SettingKey) -> str:
    if not key.allowed.startswith("one of ") or not isinstance(value, str):
        return ""
    near = did_you_mean(value, key.allowed.removeprefix("one of ").split(", "))
    return near or ("; openai-compatible takes any server with OpenAI's API" if key.name == "provider" else "")


def _not_a_number(key: SettingKey | None, written: Written) -> str | None:
    """What the schema would let pass: true for 1, and numbers without end."""
    if key is None or not key.allowed.startswith(("a number", "a whole number")):
        return None
    value = written.value
    if isinstance(value, bool):
        return f"is {_shown(value)}; it must be {key.allowed}"
    try:
        endless = isinstance(value, float | str) and not math.isfinite(float(value))
    except ValueError:
        return None  # the schema says it better
    return f"is {_shown(value)}; it must be {key.allowed}, and finite" if endless else None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

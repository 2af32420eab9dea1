"""Precedence of settings: written values become one valid `Settings` with the origin of each, or a list of mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recalld.settings.keys import SettingKey, agent_keys, brief, did_you_mean, memory_sections, nested, top_level_keys
from recalld.settings.sources import OPENAI_BASE_URL, AgentTable, Draft, WrittenValue, note_mistake
from schemas.errors import UserError
from schemas.settings import Settings

#: The schema's tags for the forms of an extra path.
_TAGS = frozenset({"text", "table"})


def resolve(draft: Draft, *, home: Path) -> tuple[Settings, dict[str, str]]:
    """Validate the draft.

    Returns the settings and, for every dotted key, the origin of its value; an agent's keys are called
    `agents.<id>.<key>`.

    Raises:
        UserError: with exit code 2 and a line for every problem there is.
    """
    shared = dict(draft.keys)
    base_url = shared.pop(OPENAI_BASE_URL, None)
    # It is weaker than RECALLD_REMOTE__BASE_URL and stronger than the file.
    if "remote.base_url" in shared and shared["remote.base_url"].origin.startswith("RECALLD_"):
        base_url = None
    agents = [_inherited(shared, table.keys) for table in draft.agents]
    tables: list[dict[str, WrittenValue]] = [{}, *(table.keys for table in draft.agents)]
    for table_keys, keys in zip(tables, [shared, *agents], strict=True):
        if base_url is not None and "remote.base_url" not in table_keys and _asks_openai(keys, shared):
            keys["remote.base_url"] = base_url
    problems = [*draft.problems, *_duplicate_ids(draft.agents)]
    settings: Settings | None = None
    try:
        settings = _valid(shared, agents, home)
    except ValidationError as error:
        for keys, place, sentence in _mistakes(error, shared, list(zip(draft.agents, agents, strict=True))):
            note_mistake(keys, place, sentence, problems)
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)), exit_code=2)
    settings = settings or _valid(shared, agents, home)
    origins = {"home": "", **{key: _origin(key, shared) for key in top_level_keys() if key != "agents"}}
    for valid, keys in zip(settings.agents, agents, strict=True):
        origins |= {f"agents.{valid.id}.{key}": _origin(key, keys) for key in agent_keys()}
    return settings, origins


def _valid(shared: Mapping[str, WrittenValue], agents: Iterable[Mapping[str, WrittenValue]], home: Path) -> Settings:
    tree, *trees = (nested({key: written.value for key, written in keys.items()}) for keys in (shared, *agents))
    return Settings.model_validate({**tree, "home": home, "agents": trees})


def _origin(key: str, written: Mapping[str, WrittenValue]) -> str:
    return written[key].origin if key in written else "default"


def _asks_openai(keys: Mapping[str, WrittenValue], shared: Mapping[str, WrittenValue]) -> bool:
    provider = keys["provider"].value if "provider" in keys else "auto"
    secrets = (shared.get("credentials.openai"), keys.get("remote.api_key"))
    return provider == "openai" or (provider == "auto" and any(secret and secret.value for secret in secrets))


def _inherited(shared: Mapping[str, WrittenValue], table_keys: Mapping[str, WrittenValue]) -> dict[str, WrittenValue]:
    """Merge one agent's own keys into the shared defaults.

    Values and lists replace, tables are merged key by key, and `extra_paths` are united: defaults first, each path
    once, as the agent wrote it. Users of the reference system know this rule.
    """
    merged = {key: written for key, written in shared.items() if key.partition(".")[0] in memory_sections()}
    for key, written in table_keys.items():
        below, value = merged.get(key), written.value
        merged[key] = written
        if below is None:
            continue
        if isinstance(below.value, Mapping) and isinstance(value, Mapping):
            merged[key] = replace(written, value={**below.value, **value})
        elif key == "extra_paths" and isinstance(below.value, list) and isinstance(value, list):
            united = below.value + value
            paths = {repr(path.get("path", path) if isinstance(path, Mapping) else path): path for path in united}
            origin = ", ".join(dict.fromkeys((below.origin, written.origin)))
            merged[key] = replace(written, value=list(paths.values()), origin=origin)
    return merged


def _duplicate_ids(agents: Iterable[AgentTable]) -> Iterator[str]:
    first: dict[str, str] = {}
    for written in (agent.keys["id"] for agent in agents if "id" in agent.keys):
        agent_id = str(written.value)
        before = first.setdefault(agent_id.lower(), agent_id)
        if before is not agent_id:
            yield (
                f"{written.label} is used twice ({before!r} and {agent_id!r}, and case does not count); "
                "give every agent an id of its own"
            )


# Sentences about mistakes: one a mistake, naming the key as it was written


def _mistakes(
    error: ValidationError,
    shared: dict[str, WrittenValue],
    agents: Sequence[tuple[AgentTable, dict[str, WrittenValue]]],
) -> Iterator[tuple[dict[str, WrittenValue], str, str]]:
    """Yield the schema's complaints: the keys with the mistake, its place, and a sentence that names the key.

    A wrong value that agents inherit has the same sentence at each of them.
    """
    for complaint in error.errors(include_url=False, include_context=False):
        where = tuple(part for part in complaint["loc"] if part not in _TAGS)
        table_keys, written, schema_keys, label = shared, shared, top_level_keys(), "settings"
        if len(where) > 1 and where[0] == "agents":
            table, written = agents[int(where[1])]
            table_keys, schema_keys, label, where = table.keys, agent_keys(), table.label, where[2:]
        place = ".".join(map(str, where))
        at = _nearest(place, table_keys) or _nearest(place, written)
        if at is not None:
            inner = place.removeprefix(at) if place.startswith(f"{at}.") else ""
            yield written, place, _sentence(complaint, written[at], schema_keys[at], inner=inner)
        elif complaint["type"] == "missing" and place in schema_keys:
            yield written, place, f"{label}.{place} is missing; it must be {schema_keys[place].allowed}"


def _nearest(place: str, written: Mapping[str, WrittenValue]) -> str | None:
    """Return the written key that an error is about: at its place, around it, or in the section that it names.

    Of several keys it is the last: "overlap is above half of tokens" is about the overlap.
    """
    around = [key for key in written if place == key or place.startswith(f"{key}.")]
    below = [key for key in written if key.startswith(f"{place}.")]
    return next(reversed(around or below), None)


def _sentence(complaint: Any, written: WrittenValue, key: SettingKey, *, inner: str) -> str:
    at, kind, message = written.label + inner, complaint["type"], complaint["msg"]
    if kind == "value_error":
        return f"{at}: {message.removeprefix('Value error, ')}"
    if inner:
        reasons = {"extra_forbidden": "unknown key", "missing": "is missing"}
        return f"{at}: {reasons.get(kind) or message[:1].lower() + message[1:]}"
    if key.secret:
        return f"{at} is not valid; it must be {key.allowed}"
    finite = ", and finite" if kind == "finite_number" else ""
    hint = ""
    if key.allowed.startswith("one of ") and isinstance(written.value, str):
        hint = did_you_mean(written.value, key.allowed.removeprefix("one of ").split(", "))
        if not hint and key.name == "provider":
            hint = "; openai-compatible takes any server with OpenAI's API"
    return f"{at} is {brief(written.value)}; it must be {key.allowed}{finite}{hint}"

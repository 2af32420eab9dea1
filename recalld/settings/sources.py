"""Sources of settings: a TOML table, environment variables or flags, flattened to one `Written` a key.

Every value keeps the name under which a person wrote it, for error messages. Unknown keys are found here; the schema
judges the values (`recalld.settings.resolution`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recalld.settings.keys import PATH_KEYS, SettingKey, agent_keys, did_you_mean, is_section, shown, top_level_keys

#: Meant for OpenAI's own client: it must not turn another provider's requests, and their key, to OpenAI's address.
OPENAI_BASE_URL = "OPENAI_BASE_URL"

#: Variables that other tools know, too, and the key each one sets. OPENAI_BASE_URL depends on the provider.
FOREIGN_VARIABLES: Mapping[str, str] = {
    "REDIS_URL": "broker.url",
    "OPENAI_API_KEY": "credentials.openai",
    "GEMINI_API_KEY": "credentials.gemini",
    "VOYAGE_API_KEY": "credentials.voyage",
    "MISTRAL_API_KEY": "credentials.mistral",
    "OLLAMA_API_KEY": "credentials.ollama",
    "DEEPINFRA_API_KEY": "credentials.deepinfra",
    OPENAI_BASE_URL: OPENAI_BASE_URL,
}

#: Lists of paths that are relative to the workspace; only `~` is expanded.
_MAY_BE_RELATIVE = frozenset({"extra_paths", "include", "exclude"})

_PREFIX = "RECALLD_"
#: Read before the settings are (`recalld.settings.load`).
SPECIAL_VARIABLES = frozenset({"RECALLD_HOME", "RECALLD_CONFIG"})


@dataclass(frozen=True, slots=True)
class Written:
    """One value as a person wrote it: `origin` is the source, `label` the key's name there, for errors."""

    value: Any
    origin: str
    label: str


@dataclass(frozen=True, slots=True)
class AgentTable:
    """One agent's own keys; `label` names the table they were written in."""

    label: str
    keys: dict[str, Written]


@dataclass(slots=True)
class Source:
    """Content of one source: keys, agents (None when it does not speak of agents), and its mistakes."""

    keys: dict[str, Written] = field(default_factory=dict)
    agents: list[AgentTable] | None = None
    problems: list[str] = field(default_factory=list)


def from_table(table: Mapping[str, Any], *, file: Path) -> Source:
    """Read the parsed `recalld.toml`. Relative paths in it are relative to its folder."""
    source, rest = Source(), dict(table)
    origin, prefix, base = str(file), f"{file}: ", file.parent
    agents = rest.pop("agents", None)
    source.keys = _read(rest, top_level_keys(), source.problems, origin=origin, prefix=prefix, base=base)
    if agents is not None:
        source.agents = _agents(agents, source, origin=origin, name="agents", prefix=prefix, base=base)
    return source


def from_environment(environment: Mapping[str, str], *, base: Path) -> Source:
    """Read `RECALLD_...` and the variables that other tools know; an empty variable counts as not set.

    Every one of them may be given as NAME_FILE instead, naming a file that holds the value. Relative paths are
    relative to `base`, the current directory.
    """
    source = Source()
    keys = top_level_keys()
    known = {_PREFIX + key.upper().replace(".", "__"): key for key in keys}
    for name in sorted(environment):
        if name.startswith(_PREFIX) and not {name, name.removesuffix("_FILE")} & {*known, *SPECIAL_VARIABLES}:
            source.problems.append(f"{name}: unknown variable{did_you_mean(name, [*known, *SPECIAL_VARIABLES])}")
    for name, key in {**FOREIGN_VARIABLES, **known}.items():
        written = _variable(environment, name, source.problems)
        if written is None:
            continue
        try:
            value = _parse(written.value, keys.get(key))
        except ValueError as error:
            source.problems.append(f"{written.label}: {error}")
            continue
        if key == "agents":
            source.agents = _agents(value, source, origin=name, name=name, prefix="", base=base)
        else:
            source.keys[key] = Written(_place(key, value, base), written.origin, written.label)
    return source


def from_flags(overrides: Mapping[str, Any], *, base: Path) -> Source:
    """Take the values of flags: dotted key -> value. The flag's name is the key's last part: service.port is --port."""
    source = Source()
    for key, value in overrides.items():
        if key not in top_level_keys():
            raise KeyError(f"a flag sets {key!r}, which is no setting")
        flag = "--" + key.rpartition(".")[2].replace("_", "-")
        source.keys[key] = Written(_place(key, value, base), flag, flag)
    return source


def _agents(tables: Any, source: Source, *, origin: str, name: str, prefix: str, base: Path) -> list[AgentTable]:
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        source.problems.append(f"{prefix}{name} must be tables, each written under its own [[agents]] line")
        return []
    agents = []
    for number, table in enumerate(tables):
        own = table.get("id")
        label = f"{prefix}{name}.{own}" if isinstance(own, str) and own else f"{prefix}{name}[{number}]"
        keys = _read(table, agent_keys(), source.problems, origin=origin, prefix=f"{label}.", base=base)
        agents.append(AgentTable(label, keys))
    return agents


def _read(
    table: Mapping[str, Any],
    known: Mapping[str, SettingKey],
    problems: list[str],
    *,
    origin: str,
    prefix: str,
    base: Path,
) -> dict[str, Written]:
    """Return the known keys of nested tables; `problems` gets a sentence on every other one."""
    keys = {}
    for key, value in _leaves(table, known):
        label = prefix + key
        if key in known:
            if isinstance(value, bool) and known[key].is_number:  # the schema would take it as 0 or 1
                problems.append(f"{label} is {shown(value)}; it must be {known[key].allowed}")
            keys[key] = Written(_place(key, value, base), origin, label)
        elif not is_section(known, key):
            problems.append(f"{label}: {_misplaced(key) or f'unknown key{did_you_mean(key, known)}'}")
        elif not isinstance(value, Mapping):
            example = next(one for one in known if one.startswith(f"{key}."))
            problems.append(f"{label} must be a table with keys of its own, such as {example}")
    return keys


def _leaves(table: Mapping[str, Any], known: Mapping[str, SettingKey], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values; a table that is no key is taken apart, unless it is empty."""
    for part, value in table.items():
        key = above + part
        if isinstance(value, Mapping) and value and key not in known:
            yield from _leaves(value, known, f"{key}.")
        else:
            yield key, value


def _misplaced(key: str) -> str | None:
    """Return the right place of a key that was written in a wrong one; None for a key that has no place."""
    if key == "home":
        return "the home folder cannot be set here; use --home or RECALLD_HOME"
    if key in top_level_keys() or is_section(top_level_keys(), key):
        return "this key holds for all agents; write it outside [[agents]]"
    if key in agent_keys():
        return "this key belongs to one agent; write it under [[agents]]"
    return None


def _variable(environment: Mapping[str, str], name: str, problems: list[str]) -> Written | None:
    value, file = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if value and file:
        problems.append(f"{name} and {name}_FILE are both set; keep one of them")
        return None
    if value:
        return Written(value, name, name)
    if not file:
        return None
    label = f"{name}_FILE"
    try:
        text = Path(file).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        problems.append(f"{label}: {file} cannot be read ({reason})")
        return None
    if not text:
        problems.append(f"{label}: {file} is empty")
        return None
    return Written(text, label, label)


def _parse(text: str, key: SettingKey | None) -> Any:
    """Return a variable's text in the key's shape; numbers and booleans are left to the schema.

    Raises:
        ValueError: the key is a list or table, and the text is neither.
    """
    if key is None or key.shape == "value":
        return text
    wants_json = text.lstrip().startswith(("[", "{")) or key.shape == "table" or key.allowed == "a list of tables"
    if not wants_json:
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be {key.allowed}, written as JSON ({error})") from None
    if not isinstance(value, dict if key.shape == "table" else list):
        raise ValueError(f"must be {key.allowed}, written as JSON")  # noqa: TRY004 - it is the text that is wrong
    return value


def _place(key: str, value: Any, base: Path) -> Any:
    """Expand `~` and make paths absolute, without following symlinks; any other value stays as it is."""
    if key in _MAY_BE_RELATIVE and isinstance(value, list | tuple):
        return [_expanded(item) for item in value]
    if key not in PATH_KEYS or (key == "local.model_path" and not _looks_like_a_path(value)):
        return value
    if isinstance(value, list | tuple):
        return [_absolute(item, base) for item in value]
    return _absolute(value, base)


def _looks_like_a_path(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith(("~", ".")) or os.sep in value or value.endswith(".gguf"))


def _expanded(value: Any) -> Any:
    if isinstance(value, Mapping) and "path" in value:
        return {**value, "path": _expanded(value["path"])}
    return os.path.expanduser(value) if isinstance(value, str) else value  # noqa: PTH111 - relative ones stay as they are


def _absolute(value: Any, base: Path) -> Any:
    if not isinstance(value, str | Path) or not str(value):
        return value
    return os.path.normpath(base / Path(value).expanduser())

"""Resolution of settings: the values of each source, laid over each other, become one valid `Settings`.

Every value keeps the name under which a person wrote it, for the sentences about mistakes. Unknown keys are found by
their names; the schema judges the values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recalld.settings.keys import (
    PATH_KEYS,
    SettingKey,
    agent_keys,
    brief,
    dotted,
    is_section,
    memory_sections,
    nested,
    top_level_keys,
)
from recalld.settings.load import did_you_mean
from schemas.errors import UserError
from schemas.settings import Settings

#: Meant for OpenAI's own client: it must not turn another provider's requests, and their key, to OpenAI's address.
OPENAI_BASE_URL = "OPENAI_BASE_URL"

#: Variables that other tools know, too, and the key each one sets. OPENAI_BASE_URL depends on the provider.
FOREIGN_VARIABLES: Mapping[str, str] = {
    "REDIS_URL": "broker.url",
    "RECALLD_TOKEN": "fleet.token",
    **{
        f"{provider.upper()}_API_KEY": f"credentials.{provider}"
        for provider in ("openai", "gemini", "voyage", "mistral", "ollama", "deepinfra")
    },
    OPENAI_BASE_URL: OPENAI_BASE_URL,
}

#: Lists of paths that are relative to the workspace; only `~` is expanded.
_MAY_BE_RELATIVE = frozenset({"extra_paths", "include", "exclude"})

_PREFIX = "RECALLD_"

#: Read before the settings are (`recalld.settings.load`).
_SPECIAL_VARIABLES = ("RECALLD_HOME", "RECALLD_CONFIG")

#: The schema's tags for the forms of an extra path.
_TAGS = frozenset({"text", "table"})


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """One value as a person wrote it: `origin` is the source, `label` the key's name there, for errors."""

    value: Any
    origin: str
    label: str


@dataclass(frozen=True, slots=True)
class Table:
    """Written keys of all agents, or of one: `label` names the table, `schema` lists the keys that it may have."""

    label: str
    schema: Mapping[str, SettingKey]
    keys: dict[str, WrittenValue] = field(default_factory=dict)

    def note_mistake(self, place: str, sentence: str, problems: list[str]) -> None:
        """Add a mistake to the problems. A mistake in [qmd] replaces that section instead: only QMD needs it."""
        if place.partition(".")[0] != "qmd":
            problems.append(sentence)
            return
        for key in [key for key in self.keys if key.startswith("qmd.")]:
            del self.keys[key]
        self.keys["qmd.problem"] = WrittenValue(sentence, "", "")


class Draft:
    """Settings as they were written, the weakest source added first.

    `agents` are those of the last source that names any. `problems` has a sentence for each mistake.
    """

    def __init__(self) -> None:
        self.shared = Table("settings", top_level_keys())
        self.agents: list[Table] = []
        self.problems: list[str] = []

    def add_file(self, table: Mapping[str, Any], *, file: Path) -> None:
        """Add the parsed `recalld.toml`. Relative paths in it are relative to its folder."""
        rest = dict(table)
        agents = rest.pop("agents", None)
        self._add_keys(self.shared, rest, origin=str(file), base=file.parent, prefix=f"{file}: ")
        if agents is not None:
            self._add_agents(agents, origin=str(file), base=file.parent, name=f"{file}: agents")

    def add_environment(self, environment: Mapping[str, str], *, base: Path) -> None:
        """Add `RECALLD_...` and the variables that other tools know; an empty variable counts as not set.

        Every one of them may be given as NAME_FILE instead, naming a file that holds the value. Relative paths are
        relative to `base`, the current directory.
        """
        schema = self.shared.schema
        variables = {_PREFIX + key.upper().replace(".", "__"): key for key in schema}
        names = [*variables, *FOREIGN_VARIABLES, *_SPECIAL_VARIABLES]
        for name in sorted(environment):
            if name.startswith(_PREFIX) and not {name, name.removesuffix("_FILE")} & set(names):
                self.problems.append(f"{name}: unknown variable{did_you_mean(name, names)}")
        for name, key in {**FOREIGN_VARIABLES, **variables}.items():
            try:
                written = _variable(environment, name, schema.get(key))
            except ValueError as error:
                self.problems.append(str(error))
                continue
            if written is not None and key == "agents":
                self._add_agents(written.value, origin=name, base=base, name=name)
            elif written is not None:
                self.shared.keys[key] = replace(written, value=_absolute(key, written.value, base))

    def add_flags(self, overrides: Mapping[str, Any], *, base: Path) -> None:
        """Add flags: dotted key -> value. The flag's name is the key's last part: service.port is --port."""
        for key, value in overrides.items():
            flag = "--" + key.rpartition(".")[2].replace("_", "-")
            self.shared.keys[key] = WrittenValue(_absolute(key, value, base), flag, flag)

    def workspaces(self) -> dict[str, str]:
        """Return agent id -> workspace of the agents that have both."""
        tables = [table.keys for table in self.agents if table.keys.keys() >= {"id", "workspace"}]
        return {str(keys["id"].value): str(keys["workspace"].value) for keys in tables}

    def set_workspace(self, agent: str, workspace: str, extra_paths: Sequence[str] = ()) -> None:
        """Replace the workspace of an agent, or add the agent, as --workspace says."""
        tables = [table for table in self.agents if "id" in table.keys and table.keys["id"].value == agent]
        if not tables:
            tables = [Table("--workspace", agent_keys(), {"id": WrittenValue(agent, "--agent", "--agent")})]
            self.agents += tables
        values = {"workspace": workspace, **({"extra_paths": list(extra_paths)} if extra_paths else {})}
        for table in tables:
            table.keys.update({key: WrittenValue(value, "--workspace", "--workspace") for key, value in values.items()})

    def add_remembered(self, agent: str, workspace: str, extra_paths: Sequence[str], *, file: Path) -> None:
        """Add an agent whose workspace was remembered in a file."""
        values = {"id": agent, "workspace": workspace, **({"extra_paths": list(extra_paths)} if extra_paths else {})}
        keys = {key: WrittenValue(value, str(file), f"{file}: {agent}") for key, value in values.items()}
        self.agents.append(Table(str(file), agent_keys(), keys))

    def _add_agents(self, tables: Any, *, origin: str, base: Path, name: str) -> None:
        self.agents = []
        if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
            self.problems.append(f"{name} must be tables, each written under its own [[agents]] line")
            return
        for number, table in enumerate(tables):
            agent_id = table.get("id")
            label = f"{name}.{agent_id}" if isinstance(agent_id, str) and agent_id else f"{name}[{number}]"
            self.agents.append(Table(label, agent_keys()))
            self._add_keys(self.agents[-1], table, origin=origin, base=base, prefix=f"{label}.")

    def _add_keys(self, table: Table, values: Mapping[str, Any], *, origin: str, base: Path, prefix: str) -> None:
        """Add the known keys of nested tables, with paths relative to `base`, and a mistake for every other one."""
        schema = table.schema
        for key, value in dotted(values, schema).items():
            label, mistake = prefix + key, ""
            if key in schema:
                if isinstance(value, bool) and schema[key].is_number:  # the schema would take it as 0 or 1
                    mistake = f"{label} is {brief(value)}; it must be {schema[key].allowed}"
                table.keys[key] = WrittenValue(_absolute(key, value, base), origin, label)
            elif not is_section(schema, key):
                mistake = f"{label}: {_right_place(key) or f'unknown key{did_you_mean(key, schema)}'}"
            elif not isinstance(value, Mapping):
                example = next(name for name in schema if name.startswith(f"{key}."))
                mistake = f"{label} must be a table with keys of its own, such as {example}"
            if mistake:
                table.note_mistake(key, mistake, self.problems)


def _right_place(key: str) -> str | None:
    """Return the right place of a key that was written in a wrong one; None for a key that has no place."""
    if key == "home":
        return "the home folder cannot be set here; use --home or RECALLD_HOME"
    if key in top_level_keys() or is_section(top_level_keys(), key):
        return "this key holds for all agents; write it outside [[agents]]"
    return "this key belongs to one agent; write it under [[agents]]" if key in agent_keys() else None


def _variable(environment: Mapping[str, str], name: str, key: SettingKey | None) -> WrittenValue | None:
    """Return the value of a variable, or of the file that it names, in the key's shape; None where it is not set.

    Raises:
        ValueError: in one sentence, the value cannot be read.
    """
    text, file = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if text and file:
        raise ValueError(f"{name} and {name}_FILE are both set; keep one of them")
    if file:
        name = f"{name}_FILE"
        try:
            text = Path(file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"{name}: {file} cannot be read ({reason})") from None
        if not text:
            raise ValueError(f"{name}: {file} is empty")
    return WrittenValue(_parsed(text, name, key), name, name) if text else None


def _parsed(text: str, name: str, key: SettingKey | None) -> Any:
    """Return a variable's text in the key's shape; numbers and booleans are left to the schema."""
    if key is None or key.shape == "value":
        return text
    wants_json = text.lstrip().startswith(("[", "{")) or key.shape == "table" or key.allowed == "a list of tables"
    if not wants_json:
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        value, reason = json.loads(text), ""
    except ValueError as error:
        value, reason = None, f" ({error})"
    if not isinstance(value, dict if key.shape == "table" else list):
        raise ValueError(f"{name}: must be {key.allowed}, written as JSON{reason}")  # noqa: TRY004 - the text is wrong
    return value


def _absolute(key: str, value: Any, base: Path) -> Any:
    """Expand `~` and make paths absolute, without following symlinks; any other value stays as it is."""
    if isinstance(value, list | tuple):
        return [_absolute(key, item, base) for item in value]
    if isinstance(value, Mapping) and "path" in value:
        return {**value, "path": _absolute(key, value["path"], base)}
    if not isinstance(value, str | Path) or not str(value):
        return value
    if key in _MAY_BE_RELATIVE:
        return os.path.expanduser(value)  # noqa: PTH111 - relative ones stay as they are
    name = str(value)
    is_path = name.startswith(("~", ".")) or os.sep in name or name.endswith(".gguf")
    is_model = key == "local.model_path" and (name.startswith("hf:") or not is_path)
    return value if is_model or key not in PATH_KEYS else os.path.normpath(base / Path(value).expanduser())


# One valid whole


def resolve(draft: Draft, *, home: Path) -> tuple[Settings, dict[str, str]]:
    """Validate the draft.

    Returns the settings and, for every dotted key, the origin of its value; an agent's keys are called
    `agents.<id>.<key>`.

    Raises:
        UserError: with exit code 2 and a line for every problem there is.
    """
    shared = replace(draft.shared, keys=dict(draft.shared.keys))
    base_url = shared.keys.pop(OPENAI_BASE_URL, None)
    # It is weaker than RECALLD_REMOTE__BASE_URL and stronger than the file.
    if "remote.base_url" in shared.keys and shared.keys["remote.base_url"].origin.startswith("RECALLD_"):
        base_url = None
    agents = [replace(table, keys=_inherited(shared.keys, table.keys)) for table in draft.agents]
    unmerged_keys = [(), *(table.keys for table in draft.agents)]
    for keys, table in zip(unmerged_keys, [shared, *agents], strict=True):
        if base_url is not None and "remote.base_url" not in keys and _asks_openai(table.keys, shared.keys):
            table.keys["remote.base_url"] = base_url
    problems = [*draft.problems, *_duplicate_ids(draft.agents), *_ids_with_tenants(draft.agents)]
    settings: Settings | None = None
    try:
        settings = _valid(shared, agents, home)
    except ValidationError as error:
        _note_mistakes(error, shared, agents, problems)
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)), exit_code=2)
    settings = settings or _valid(shared, agents, home)
    if settings.store.url is not None and find_spec("psycopg_pool") is None:
        label = shared.keys["store.url"].label
        raise UserError(f"{label} needs the client of PostgreSQL; install recalld[fleet]", exit_code=2)
    origins = {"home": "", **{key: _origin(key, shared) for key in top_level_keys() if key != "agents"}}
    for valid, table in zip(settings.agents, agents, strict=True):
        origins |= {f"agents.{valid.id}.{key}": _origin(key, table) for key in agent_keys()}
    return settings, origins


def _valid(shared: Table, agents: Iterable[Table], home: Path) -> Settings:
    tree, *trees = (nested({key: written.value for key, written in table.keys.items()}) for table in (shared, *agents))
    return Settings.model_validate({**tree, "home": home, "agents": trees})


def _origin(key: str, table: Table) -> str:
    return table.keys[key].origin if key in table.keys else "default"


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
        below, value = merged.pop(key, None), written.value  # an agent's own keys come last
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


def _duplicate_ids(agents: Iterable[Table]) -> Iterator[str]:
    first: dict[str, str] = {}
    for written in (agent.keys["id"] for agent in agents if "id" in agent.keys):
        agent_id = str(written.value)
        before = first.setdefault(agent_id.lower(), agent_id)
        if before is not agent_id:
            yield (
                f"{written.label} is used twice ({before!r} and {agent_id!r}, and case does not count); "
                "give every agent an id of its own"
            )


def _ids_with_tenants(agents: Iterable[Table]) -> Iterator[str]:
    """Yield a mistake for each id that the schema admits for agents of a fleet's directory only."""
    for written in (agent.keys["id"] for agent in agents if "id" in agent.keys):
        if "/" in str(written.value):
            yield f"{written.label} is {brief(written.value)}; it must be {agent_keys()['id'].allowed}"


# Sentences about mistakes: one a mistake, naming the key as it was written


def _note_mistakes(error: ValidationError, shared: Table, agents: Sequence[Table], problems: list[str]) -> None:
    """Add the schema's complaints to the problems.

    A wrong value that agents inherit has the same sentence at each of them.
    """
    for complaint in error.errors(include_url=False, include_context=False):
        table, where = shared, tuple(part for part in complaint["loc"] if part not in _TAGS)
        if len(where) > 1 and where[0] == "agents":
            table, where = agents[int(where[1])], where[2:]
        place = ".".join(map(str, where))
        if (key := _nearest(place, table.keys)) is not None:
            inner = place.removeprefix(key) if place.startswith(f"{key}.") else ""
            sentence = _sentence(complaint, table.keys[key], table.schema[key], inner=inner)
            table.note_mistake(place, sentence, problems)
        elif complaint["type"] == "missing" and place in table.schema:
            sentence = f"{table.label}.{place} is missing; it must be {table.schema[place].allowed}"
            table.note_mistake(place, sentence, problems)


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

"""Sources of settings: a TOML table, environment variables and flags, laid over each other, one `WrittenValue` a key.

Every value keeps the name under which a person wrote it, for error messages. Unknown keys are found here; the schema
judges the values (`recalld.settings.resolution`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recalld.settings.keys import (
    PATH_KEYS,
    SettingKey,
    agent_keys,
    brief,
    did_you_mean,
    dotted,
    is_section,
    top_level_keys,
)

#: Meant for OpenAI's own client: it must not turn another provider's requests, and their key, to OpenAI's address.
OPENAI_BASE_URL = "OPENAI_BASE_URL"

#: Variables that other tools know, too, and the key each one sets. OPENAI_BASE_URL depends on the provider.
FOREIGN_VARIABLES: Mapping[str, str] = {
    "REDIS_URL": "broker.url",
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


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """One value as a person wrote it: `origin` is the source, `label` the key's name there, for errors."""

    value: Any
    origin: str
    label: str


@dataclass(frozen=True, slots=True)
class AgentTable:
    """One agent's own keys; `label` names the table they were written in."""

    label: str
    keys: dict[str, WrittenValue]


class Draft:
    """Settings as they were written, the weakest source added first.

    `agents` are those of the last source that names any. `problems` has a sentence for each mistake.
    """

    def __init__(self) -> None:
        self.keys: dict[str, WrittenValue] = {}
        self.agents: list[AgentTable] = []
        self.problems: list[str] = []

    def add_table(self, table: Mapping[str, Any], *, file: Path) -> None:
        """Add the parsed `recalld.toml`. Relative paths in it are relative to its folder."""
        rest, place = dict(table), (str(file), file.parent)
        agents = rest.pop("agents", None)
        self.keys |= self._known_keys(rest, top_level_keys(), place, prefix=f"{file}: ")
        if agents is not None:
            self._add_agents(agents, place, name=f"{file}: agents")

    def add_environment(self, environment: Mapping[str, str], *, base: Path) -> None:
        """Add `RECALLD_...` and the variables that other tools know; an empty variable counts as not set.

        Every one of them may be given as NAME_FILE instead, naming a file that holds the value. Relative paths are
        relative to `base`, the current directory.
        """
        keys = top_level_keys()
        variables = {_PREFIX + key.upper().replace(".", "__"): key for key in keys}
        names = [*variables, *_SPECIAL_VARIABLES]
        for name in sorted(environment):
            if name.startswith(_PREFIX) and not {name, name.removesuffix("_FILE")} & set(names):
                self.problems.append(f"{name}: unknown variable{did_you_mean(name, names)}")
        for name, key in {**FOREIGN_VARIABLES, **variables}.items():
            try:
                written = _variable(environment, name, keys.get(key))
            except ValueError as error:
                self.problems.append(str(error))
                continue
            if written is not None and key == "agents":
                self._add_agents(written.value, (name, base), name=name)
            elif written is not None:
                self.keys[key] = WrittenValue(_absolute(key, written.value, base), written.origin, written.label)

    def add_flags(self, overrides: Mapping[str, Any], *, base: Path) -> None:
        """Add flags: dotted key -> value. The flag's name is the key's last part: service.port is --port."""
        for key, value in overrides.items():
            flag = "--" + key.rpartition(".")[2].replace("_", "-")
            self.keys[key] = WrittenValue(_absolute(key, value, base), flag, flag)

    def set_workspace(self, agent: str, workspace: str) -> None:
        """Replace the workspace of an agent, or add the agent, as --workspace says."""
        written = WrittenValue(workspace, "--workspace", "--workspace")
        tables = [table for table in self.agents if "id" in table.keys and table.keys["id"].value == agent]
        if not tables:
            tables = [AgentTable("--workspace", {"id": WrittenValue(agent, "--agent", "--agent")})]
            self.agents += tables
        for table in tables:
            table.keys["workspace"] = written

    def add_remembered(self, workspaces: Mapping[str, Path], *, file: Path) -> None:
        """Add agents whose workspaces were remembered in a file."""
        for agent, workspace in workspaces.items():
            values = {"id": agent, "workspace": str(workspace)}
            keys = {key: WrittenValue(value, str(file), f"{file}: {agent}") for key, value in values.items()}
            self.agents.append(AgentTable(str(file), keys))

    def _add_agents(self, tables: Any, place: tuple[str, Path], *, name: str) -> None:
        self.agents = []
        if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
            self.problems.append(f"{name} must be tables, each written under its own [[agents]] line")
            return
        for number, table in enumerate(tables):
            agent_id = table.get("id")
            label = f"{name}.{agent_id}" if isinstance(agent_id, str) and agent_id else f"{name}[{number}]"
            self.agents.append(AgentTable(label, self._known_keys(table, agent_keys(), place, prefix=f"{label}.")))

    def _known_keys(
        self, table: Mapping[str, Any], schema_keys: Mapping[str, SettingKey], place: tuple[str, Path], *, prefix: str
    ) -> dict[str, WrittenValue]:
        """Return the known keys of nested tables; `problems` gets a sentence on every other one.

        `place` is the source and the folder that relative paths are relative to.
        """
        keys: dict[str, WrittenValue] = {}
        origin, base = place
        for key, value in dotted(table, schema_keys).items():
            label, mistake = prefix + key, ""
            if key in schema_keys:
                if isinstance(value, bool) and schema_keys[key].is_number:  # the schema would take it as 0 or 1
                    mistake = f"{label} is {brief(value)}; it must be {schema_keys[key].allowed}"
                keys[key] = WrittenValue(_absolute(key, value, base), origin, label)
            elif not is_section(schema_keys, key):
                mistake = f"{label}: {_right_place(key) or f'unknown key{did_you_mean(key, schema_keys)}'}"
            elif not isinstance(value, Mapping):
                example = next(name for name in schema_keys if name.startswith(f"{key}."))
                mistake = f"{label} must be a table with keys of its own, such as {example}"
            if mistake:
                note_mistake(keys, key, mistake, self.problems)
        return keys


def note_mistake(keys: dict[str, WrittenValue], place: str, sentence: str, problems: list[str]) -> None:
    """Add a mistake to the problems. A mistake in [qmd] replaces that section instead: only QMD needs it."""
    if place.partition(".")[0] != "qmd":
        problems.append(sentence)
        return
    for key in [key for key in keys if key.startswith("qmd.")]:
        del keys[key]
    keys["qmd.problem"] = WrittenValue(sentence, "", "")


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
    is_model = key == "local.model_path" and not is_path
    return value if is_model or key not in PATH_KEYS else os.path.normpath(base / Path(value).expanduser())

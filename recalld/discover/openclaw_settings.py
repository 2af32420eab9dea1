"""OpenClaw's settings file, as far as memories are concerned.

Two layouts are read. Since the summer of 2026: `memory.search` and `agents.entries.<id>`. Before:
`agents.defaults.memorySearch` (or `memorySearch` at the top) and `agents.list[]`. A file whose migration stopped half
way holds both; there the newer one wins, value by value, as in OpenClaw's own `doctor --fix`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: In a state folder, the name it has now first.
CONFIG_NAMES = ("openclaw.json", "clawdbot.json")

#: Bytes of a settings file, and characters of JSON5 that is not plain JSON: the library reads 70,000 of these a second.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_JSON5_CHARS = 256 * 1024

_NOT_IN_A_FOLDER_NAME = re.compile(r"[^a-z0-9_-]+")


class NotJson5(ValueError):
    """Raised for a text that is not JSON5; the message says where, and repeats nothing of the text."""


@dataclass(frozen=True, slots=True)
class OpenClawAgent:
    """One agent: its id, its workspace as written in the file, its `memory.search` with all that it inherits.

    `is_default`: it has the general workspace unless it names one.
    """

    id: str
    workspace: Any = None
    search: Mapping[str, Any] = field(default_factory=dict)
    is_default: bool = False

    @property
    def folder_names(self) -> list[str]:
        """Names that the agent's folders may have: the id, and as newer versions of OpenClaw write it."""
        plain = "" if "/" in self.id or "\0" in self.id else self.id
        return [name for name in (plain, _folder_name(self.id)) if name]


@dataclass(frozen=True, slots=True)
class OpenClawSettings:
    """Content of the file; everything is empty when there is none.

    `search` holds for all agents, `workspace` is the one in `agents.defaults`. `agents` are those of the file.
    `is_current`: the file has the newer layout. `isolates_chats`: direct chats are kept apart, so that transcripts are
    private unless the file says otherwise. `providers` are the model providers with their addresses. `remarks` are
    sentences about what is not taken over.
    """

    search: Mapping[str, Any] = field(default_factory=dict)
    workspace: Any = None
    agents: tuple[OpenClawAgent, ...] = ()
    citations: str | None = None
    is_current: bool = False
    isolates_chats: bool = False
    providers: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read_settings(state: Path, moved: Path | None, problems: list[str]) -> OpenClawSettings:
    """Read the settings of a state folder, or `moved` instead; `problems` gets a sentence on what cannot be read."""
    file = _settings_file(state, moved)
    tree = _read(file, problems)
    memory, newer = _table(tree, "memory"), _table(tree, "memory.search")
    older = _filled(_table(tree, "agents.defaults.memorySearch"), _table(tree, "memorySearch"))
    keyed, rows = list(_table(tree, "agents.entries").items()), _at(tree, "agents.list")
    listed = [(_at(row, "id"), row) for row in rows] if isinstance(rows, list) else []
    citations, providers = memory.get("citations"), _table(tree, "models.providers")
    remarks = {
        f"{file} includes other files, which were not looked at": '"$include": ' in json.dumps(tree),
        "the backend qmd has no counterpart; recalld's own index takes its place, and of memory.qmd only the paths are "
        "taken over (scope.rules is what its scope was)": memory.get("backend") == "qmd" or "qmd" in memory,
        "keys in OpenClaw's settings are not copied; set OPENAI_API_KEY and the like for recalld": (
            _table(tree, "env") or providers
        ),
        "memory.search and the older memorySearch are both there; memory.search wins": newer and older,
        "memory.citations was not understood": citations not in (None, "auto", "on", "off"),
        "agents.entries and the older agents.list are both there; agents.entries wins": keyed and listed,
    }
    # The folders of the removed backend qmd are extra paths.
    search = _filled(newer, older)
    search["extraPaths"] = _listed(search.get("extraPaths")) + _listed(_at(memory, "qmd.paths"))
    bindings = _at(tree, "bindings")
    scopes = [_table(one, "session") for one in bindings] if isinstance(bindings, list) else []
    return OpenClawSettings(
        search=search,
        workspace=_at(tree, "agents.defaults.workspace"),
        agents=_agents([*keyed, *listed], search, file, problems, explicit=_at(tree, "agents.ownership") == "explicit"),
        citations=citations if citations in ("auto", "on", "off") else None,
        is_current=isinstance(memory.get("search"), dict) or isinstance(_at(tree, "agents.entries"), dict),
        isolates_chats=any("dmScope" in one for one in scopes) or _at(tree, "session.dmScope") not in (None, "main"),
        providers=providers,
        remarks=tuple(remark for remark, holds in remarks.items() if holds),
    )


def is_hook_enabled(state: Path, moved: Path | None, name: str) -> bool:
    """Return True if OpenClaw's settings let a hook of that name run; False where they cannot be read."""
    internal = _table(_read(_settings_file(state, moved), []), "hooks.internal")
    return internal.get("enabled") is True and _at(internal, f"entries.{name}.enabled") is True


def read_json5(text: str) -> Any:
    """Return the value of a JSON text with comments, trailing commas and unquoted names (json5.org).

    Raises:
        NotJson5: the text is none, or too long or too deeply nested to be read.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _json5(text)
    # An escape may be half of a character: halves that belong together are joined, others are replaced.
    whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.loads(whole)


def _json5(text: str) -> Any:
    import json5

    if not text.strip():
        raise NotJson5("the file is empty")
    if len(text) > _MAX_JSON5_CHARS:
        raise NotJson5(f"plain JSON is read up to {_MAX_BYTES // 1024} KB, JSON5 up to {_MAX_JSON5_CHARS // 1024} KB")
    try:
        value, error, at = json5.parse(text)
    except RecursionError:
        raise NotJson5("too many levels of nesting") from None
    if error is not None:
        raise NotJson5(f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}")
    return value


def _settings_file(state: Path, moved: Path | None) -> Path:
    return moved or next((state / name for name in CONFIG_NAMES if (state / name).is_file()), state / CONFIG_NAMES[0])


def _read(file: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > _MAX_BYTES:
            reason = f"is larger than {_MAX_BYTES // 1024} KB"
        elif isinstance(tree := read_json5(file.read_text("utf-8-sig")), dict):
            return tree
        else:
            reason = "does not hold an object"
    except FileNotFoundError:
        return {}
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except NotJson5 as error:
        reason = f"is not JSON5 ({error})"
    problems.append(f"{file} {reason}; OpenClaw's own settings are not taken over")
    return {}


def _agents(
    rows: Iterable[tuple[Any, Any]], search: Mapping[str, Any], file: Path, problems: list[str], *, explicit: bool
) -> tuple[OpenClawAgent, ...]:
    """Return the agents of both layouts, each once, with the `search` that all agents inherit.

    The marked agent has the general workspace, else the first; with explicit owners only an agent without others.
    """
    trees: dict[str, dict[str, Any]] = {}
    unnamed = 0
    for name, row in rows:
        if isinstance(row, dict) and (key := _folder_name(name)):
            trees[key] = _filled(trees.get(key, {"id": str(name).strip()}), row)
        else:
            unnamed += 1
    if unnamed:
        problems.append(f"{file} lists {unnamed} of its agents without an id that can be used; they are left out")
    marked = [key for key, tree in trees.items() if tree.get("default") is True]
    defaults = [] if explicit and len(trees) > 1 else [*marked, *trees][:1]
    agents = []
    for key, tree in trees.items():
        own = _filled(_table(tree, "memory.search"), _table(tree, "memorySearch"))
        paths = _listed(search.get("extraPaths")) + _listed(own.get("extraPaths"))
        whole = {**_filled(own, search), "extraPaths": paths}
        agents.append(OpenClawAgent(tree["id"], tree.get("workspace"), whole, is_default=key in defaults))
    return tuple(agents)


def _folder_name(agent: Any) -> str:
    """Return an agent's id as OpenClaw names folders by it; empty when it cannot."""
    return _NOT_IN_A_FOLDER_NAME.sub("-", agent.strip().lower()).strip("-")[:64] if isinstance(agent, str) else ""


def _filled(newer: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """Return `newer` with the values that only `older` has, table by table."""
    both = {**older, **{key: value for key, value in newer.items() if value is not None}}
    for key, value in both.items():
        below = older.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            both[key] = _filled(value, below)
    return both


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _at(tree: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _table(tree: Any, path: str) -> Mapping[str, Any]:
    """Return the table at a dotted path; empty when there is none, or something else."""
    found = _at(tree, path)
    return found if isinstance(found, dict) else {}

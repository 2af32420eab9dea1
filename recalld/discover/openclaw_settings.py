"""OpenClaw's settings file, as far as memories are concerned.

Two layouts are read. Since the summer of 2026: `memory.search` and `agents.entries.<id>`. Before:
`agents.defaults.memorySearch` (or `memorySearch` at the top) and `agents.list[]`. A file whose migration stopped half
way holds both; there the newer one wins, value by value, as in OpenClaw's own `doctor --fix`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: In a state folder, the name it has now first.
CONFIG_NAMES = ("openclaw.json", "clawdbot.json")

#: The only agent of a file that lists none.
_USUAL_AGENT = "main"

#: Bytes of a settings file, and characters of JSON5 that is not plain JSON: the library reads 70,000 of these a second.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_JSON5_CHARS = 256 * 1024

_NOT_IN_A_FOLDER_NAME = re.compile(r"[^a-z0-9_-]+")


class NotJson5(ValueError):
    """Raised for a text that is not JSON5; the message says where, and repeats nothing of the text."""


@dataclass(frozen=True, slots=True)
class OpenClawAgent:
    """One agent of the file: its id, its workspace as written there, its own `memory.search`, the old marker."""

    id: str
    workspace: Any = None
    search: Mapping[str, Any] = field(default_factory=dict)
    is_marked: bool = False

    @property
    def folder_name(self) -> str:
        """The id as OpenClaw names folders by it."""
        return _folder_name(self.id)


@dataclass(frozen=True, slots=True)
class OpenClawSettings:
    """Content of the file; everything is empty when there is none.

    `search` holds for all agents, `workspace` is the one in `agents.defaults`. `default` is the id of the agent that
    has the general workspace; None where each has its own. `is_current`: the file has the newer layout.
    `isolates_chats`: direct chats are kept apart, so that transcripts are private unless the file says otherwise.
    `providers` are the model providers with their addresses. `remarks` are sentences about what is not taken over.
    """

    search: Mapping[str, Any] = field(default_factory=dict)
    workspace: Any = None
    agents: tuple[OpenClawAgent, ...] = ()
    default: str | None = _USUAL_AGENT
    citations: str | None = None
    is_current: bool = False
    isolates_chats: bool = False
    providers: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read_settings(state: Path, moved: Path | None, problems: list[str]) -> OpenClawSettings:
    """Read the settings of a state folder, or `moved` instead; `problems` gets a sentence on what cannot be read."""
    file = _settings_file(state, moved)
    tree = _read(file, problems)
    agents, memory = _table(tree, "agents"), _table(tree, "memory")
    defaults, search = _table(agents, "defaults"), _table(memory, "search")
    older = filled(_table(defaults, "memorySearch"), _table(tree, "memorySearch"))
    remarks = _remarks(tree, file)
    if search and older:
        remarks.append("memory.search and the older memorySearch are both there; memory.search wins")
    shared = filled(search, older)
    # The folders of the removed backend qmd are extra paths.
    paths, extra = _table(memory, "qmd").get("paths"), shared.get("extraPaths") or []
    if isinstance(paths, list) and isinstance(extra, list):
        shared["extraPaths"] = [*extra, *paths]
    citations = memory.get("citations")
    if citations not in (None, "auto", "on", "off"):
        remarks.append("memory.citations was not understood")
        citations = None
    known = _agents(agents, file, problems, remarks)
    return OpenClawSettings(
        search=shared,
        workspace=defaults.get("workspace"),
        agents=known,
        default=_default(known, explicit=agents.get("ownership") == "explicit"),
        citations=citations,
        is_current=isinstance(memory.get("search"), dict) or isinstance(agents.get("entries"), dict),
        isolates_chats=_isolates_chats(tree),
        providers=_table(_table(tree, "models"), "providers"),
        remarks=tuple(remarks),
    )


def is_hook_enabled(state: Path, moved: Path | None, name: str) -> bool:
    """Return True if OpenClaw's settings let a hook of that name run; False where they cannot be read."""
    internal = _table(_table(_read(_settings_file(state, moved), []), "hooks"), "internal")
    return internal.get("enabled") is True and _table(_table(internal, "entries"), name).get("enabled") is True


def filled(newer: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """Return `newer` with the values that only `older` has, table by table."""
    both = {**older, **{key: value for key, value in newer.items() if value is not None}}
    for key, value in both.items():
        below = older.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            both[key] = filled(value, below)
    return both


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


def _remarks(tree: Mapping[str, Any], file: Path) -> list[str]:
    remarks = []
    if '"$include": ' in json.dumps(tree):
        remarks.append(f"{file} includes other files, which were not looked at")
    memory = _table(tree, "memory")
    if memory.get("backend") == "qmd" or "qmd" in memory:
        remarks.append(
            "the backend qmd has no counterpart; recalld's own index takes its place, and of memory.qmd only the paths "
            "are taken over (scope.rules is what its scope was)"
        )
    if _table(tree, "env") or _table(_table(tree, "models"), "providers"):
        remarks.append("keys in OpenClaw's settings are not copied; set OPENAI_API_KEY and the like for recalld")
    return remarks


def _agents(
    agents: Mapping[str, Any], file: Path, problems: list[str], remarks: list[str]
) -> tuple[OpenClawAgent, ...]:
    """Return the agents of both layouts, each once."""
    rows = agents.get("list")
    keyed = list(_table(agents, "entries").items())
    listed = [(row.get("id") if isinstance(row, dict) else None, row) for row in rows] if isinstance(rows, list) else []
    if keyed and listed:
        remarks.append("agents.entries and the older agents.list are both there; agents.entries wins")
    trees: dict[str, tuple[str, Mapping[str, Any]]] = {}
    unnamed = 0
    for name, row in (*keyed, *listed):
        if isinstance(row, dict) and (key := _folder_name(name)):
            first, tree = trees.get(key, (str(name).strip(), {}))
            trees[key] = (first, filled(tree, row))
        else:
            unnamed += 1
    if unnamed:
        problems.append(f"{file} lists {unnamed} of its agents without an id that can be used; they are left out")
    return tuple(
        OpenClawAgent(
            id=name,
            workspace=tree.get("workspace"),
            search=filled(_table(_table(tree, "memory"), "search"), _table(tree, "memorySearch")),
            is_marked=tree.get("default") is True,
        )
        for name, tree in trees.values()
    )


def _default(agents: Sequence[OpenClawAgent], *, explicit: bool) -> str | None:
    """Return the id of the agent that has the general workspace: the marked one, else the first.

    With explicit owners only an agent without others has it.
    """
    if explicit and len(agents) > 1:
        return None
    chosen = [agent.id for agent in agents if agent.is_marked] or [agent.id for agent in agents]
    return chosen[0] if chosen else _USUAL_AGENT


def _isolates_chats(tree: Mapping[str, Any]) -> bool:
    bindings = tree.get("bindings")
    rows = bindings if isinstance(bindings, list) else []
    own = any("dmScope" in _table(one, "session") for one in rows if isinstance(one, dict))
    return own or _table(tree, "session").get("dmScope") not in (None, "main")


def _folder_name(agent: Any) -> str:
    """Return an agent's id as OpenClaw names folders by it; empty when it cannot."""
    return _NOT_IN_A_FOLDER_NAME.sub("-", agent.strip().lower()).strip("-")[:64] if isinstance(agent, str) else ""


def _table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of that name; empty when there is none, or something else."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}

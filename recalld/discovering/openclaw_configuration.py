"""OpenClaw's settings file, as far as memories are concerned.

Two layouts are read. Since the summer of 2026: `memory.search` and `agents.entries.<id>`. Before:
`agents.defaults.memorySearch` (or `memorySearch` at the top) and `agents.list[]`. A file whose migration stopped half
way holds both; there the newer one wins, value by value, as in OpenClaw's own `doctor --fix`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recalld.discovering.json5_reading import NotJson5, read_json5

#: In a state folder, the name it has now first.
CONFIG_NAMES = ("openclaw.json", "clawdbot.json")

#: The only agent of a file that lists none.
_USUAL_AGENT = "main"

#: Settings are smaller; whatever is not, is something else.
_MAX_BYTES = 4 * 1024 * 1024

_NOT_IN_A_FOLDER_NAME = re.compile(r"[^a-z0-9_-]+")


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
class OpenClawConfiguration:
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


def read_configuration(state: Path, moved: Path | None, problems: list[str]) -> OpenClawConfiguration:
    """Read the settings of a state folder, or those that were `moved` elsewhere; `problems` says what went wrong."""
    usual = next((state / name for name in CONFIG_NAMES if (state / name).is_file()), state / CONFIG_NAMES[0])
    file = moved or usual
    tree = _read(file, problems)
    agents, memory = table(tree, "agents"), table(tree, "memory")
    defaults, search = table(agents, "defaults"), table(memory, "search")
    older = filled(table(defaults, "memorySearch"), table(tree, "memorySearch"))
    remarks = _remarks(tree, file)
    if search and older:
        remarks.append("memory.search and the older memorySearch are both there; memory.search wins")
    shared = _with_paths(filled(search, older), table(memory, "qmd"))
    known = _agents(agents, file, problems, remarks)
    citations = memory.get("citations")
    if citations not in (None, "auto", "on", "off"):
        remarks.append("memory.citations was not understood")
        citations = None
    return OpenClawConfiguration(
        search=shared,
        workspace=defaults.get("workspace"),
        agents=known,
        default=_default(known, explicit=agents.get("ownership") == "explicit"),
        citations=citations,
        is_current=isinstance(memory.get("search"), dict) or isinstance(agents.get("entries"), dict),
        isolates_chats=_isolates_chats(tree),
        providers=table(table(tree, "models"), "providers"),
        remarks=tuple(remarks),
    )


def filled(newer: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """Return `newer` with what only `older` says, table by table."""
    both = {**older, **{key: value for key, value in newer.items() if value is not None}}
    for key, value in both.items():
        below = older.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            both[key] = filled(value, below)
    return both


def _agents(
    agents: Mapping[str, Any], file: Path, problems: list[str], remarks: list[str]
) -> tuple[OpenClawAgent, ...]:
    """Return the agents of both layouts, each once."""
    rows = agents.get("list")
    keyed = list(table(agents, "entries").items())
    listed = [(row.get("id") if isinstance(row, dict) else None, row) for row in rows] if isinstance(rows, list) else []
    if keyed and listed:
        remarks.append("agents.entries and the older agents.list are both there; agents.entries wins")
    trees: dict[str, tuple[str, Mapping[str, Any]]] = {}
    unnamed = 0
    for name, row in (*keyed, *listed):
        key = _folder_name(name) if isinstance(row, dict) else ""
        if key:
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
            search=filled(table(table(tree, "memory"), "search"), table(tree, "memorySearch")),
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
    own = any("dmScope" in table(one, "session") for one in rows if isinstance(one, dict))
    return own or table(tree, "session").get("dmScope") not in (None, "main")


def _with_paths(search: dict[str, Any], qmd: Mapping[str, Any]) -> dict[str, Any]:
    """Return `search` with the folders that the removed backend qmd indexed among its extra paths."""
    paths, extra = qmd.get("paths"), search.get("extraPaths") or []
    return {**search, "extraPaths": [*extra, *paths]} if isinstance(paths, list) and isinstance(extra, list) else search


def is_hook_enabled(state: Path, moved: Path | None, name: str) -> bool:
    """Return True if OpenClaw's settings let a hook of that name run; False where they cannot be read."""
    file = moved or next((state / known for known in CONFIG_NAMES if (state / known).is_file()), None)
    internal = table(table(_read(file, []) if file is not None else {}, "hooks"), "internal")
    return internal.get("enabled") is True and table(table(internal, "entries"), name).get("enabled") is True


def _remarks(tree: Mapping[str, Any], file: Path) -> list[str]:
    remarks = []
    if _includes(tree):
        remarks.append(f"{file} includes other files, which were not looked at")
    memory = table(tree, "memory")
    if memory.get("backend") == "qmd" or "qmd" in memory:
        remarks.append(
            "the backend qmd has no counterpart; recalld's own index takes its place, and of memory.qmd only the paths "
            "are taken over (scope.rules is what its scope was)"
        )
    if table(tree, "env") or table(table(tree, "models"), "providers"):
        remarks.append("keys in OpenClaw's settings are not copied; set OPENAI_API_KEY and the like for recalld")
    return remarks


def _read(file: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        text = file.read_text("utf-8-sig") if file.stat().st_size <= _MAX_BYTES else ""
        tree = read_json5(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except NotJson5 as error:
        reason = f"cannot be understood ({error})"
    else:
        if isinstance(tree, dict):
            return tree
        reason = "does not hold an object"
    problems.append(f"{file} {reason}; OpenClaw's own settings are not taken over")
    return {}


def _includes(tree: Any, depth: int = 0) -> bool:
    if not isinstance(tree, Mapping):
        return False
    return "$include" in tree or (depth < 5 and any(_includes(below, depth + 1) for below in tree.values()))


def _folder_name(agent: Any) -> str:
    """Return an agent's id as OpenClaw names folders by it; empty when it cannot."""
    return _NOT_IN_A_FOLDER_NAME.sub("-", agent.strip().lower()).strip("-")[:64] if isinstance(agent, str) else ""


def table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table of that name; empty when there is none, or something else."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def absolute_path(value: Any) -> Path | None:
    """An absolute path, `~` expanded; None for everything else."""
    if not isinstance(value, str) or "\0" in value:
        return None
    text = os.path.expanduser(value.strip())  # noqa: PTH111 - Path's own raises for a user without a home
    return Path(os.path.normpath(text)) if text.startswith("/") else None

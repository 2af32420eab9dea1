"""OpenClaw's settings file, as far as memories are concerned: `agents.list`, `agents.defaults` and `memory`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recalld.discovering.json5_reading import NotJson5, read_json5

#: In a state folder, the name it has now first.
CONFIG_NAMES = ("openclaw.json", "clawdbot.json")

#: The only agent of somebody who lists none.
_USUAL_AGENT = "main"

#: Settings are smaller; whatever is not, is something else.
_MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenClawConfiguration:
    """What the file says; everything is empty when there is none.

    `agents` are those with an id that can be a folder's name; `default` is the id of the default one. `remarks` are
    sentences about what concerns all of them and is not taken over.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    agents: tuple[Mapping[str, Any], ...] = ()
    default: str = _USUAL_AGENT
    citations: str | None = None
    remarks: tuple[str, ...] = ()


def read_configuration(state: Path, moved: Path | None, problems: list[str]) -> OpenClawConfiguration:
    """Read the settings of a state folder, or those that were `moved` elsewhere; `problems` says what went wrong."""
    usual = next((state / name for name in CONFIG_NAMES if (state / name).is_file()), state / CONFIG_NAMES[0])
    file = moved or usual
    tree = _read(file, problems)
    agents, memory = table(tree, "agents"), table(tree, "memory")
    listed = agents.get("list")
    known = tuple(agent for agent in (listed if isinstance(listed, list) else []) if _is_agent(agent))
    default = next((agent for agent in known if agent.get("default") is True), known[0] if known else {})
    citations = memory.get("citations")
    return OpenClawConfiguration(
        defaults=table(agents, "defaults"),
        agents=known,
        default=default.get("id", _USUAL_AGENT),
        citations=citations if citations in ("auto", "on", "off") else None,
        remarks=tuple(_remarks(tree, file)),
    )


def is_hook_enabled(state: Path, moved: Path | None, name: str) -> bool:
    """Whether OpenClaw's settings let a hook of that name run; False where they cannot be read."""
    file = moved or next((state / known for known in CONFIG_NAMES if (state / known).is_file()), None)
    internal = table(table(_read(file, []) if file is not None else {}, "hooks"), "internal")
    return internal.get("enabled") is True and table(table(internal, "entries"), name).get("enabled") is True


def _remarks(tree: Mapping[str, Any], file: Path) -> list[str]:
    remarks = []
    if _includes(tree):
        remarks.append(f"{file} includes other files, which were not looked at")
    if table(tree, "memory").get("backend") == "qmd":
        remarks.append("the backend qmd has no counterpart; recalld's own index takes its place")
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


def _is_agent(agent: Any) -> bool:
    name = agent.get("id") if isinstance(agent, dict) else None
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


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

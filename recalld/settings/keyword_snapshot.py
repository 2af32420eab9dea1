"""Snapshot of the settings that a search by keywords needs, kept when they were last validated.

Reading and validating all settings takes longer than such a search. The file's content, the environment, the remembered
workspaces and the schema make one key. While the key is the same the snapshot holds; else the settings are read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from memory.status.run_files import read_derived, write_derived

if TYPE_CHECKING:
    from schemas.settings import Settings

_FILE = Path("run") / "keyword-settings.json"


@dataclass(frozen=True, slots=True)
class KeywordAgent:
    """One agent's settings, as far as a search by keywords asks.

    `hybrid` has the attributes of `schemas.settings_sections.Hybrid`. `index` is the folder of the agent's generations.
    `redaction` is the JSON by which an index says that it needs no further redaction.
    """

    id: str
    index: str
    by_meaning: bool
    sources: tuple[str, ...]
    max_results: int
    min_score: float
    hybrid: Any
    max_snippet_chars: int
    cited: bool
    redaction: str


def settings_key(*, home: Path, config: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return a digest of all sources of the settings; None when it would take too long to make."""
    ours = {name: value for name, value in environment.items() if name.startswith("RECALLD_") or name == "HOME"}
    if any(name.endswith("_FILE") for name in ours):
        return None
    digest = hashlib.sha256()
    # Relative paths in variables are relative to the current folder.
    digest.update(json.dumps([sorted(ours.items()), str(home), str(config), str(Path.cwd())]).encode())
    schemas = Path(__file__).parents[2] / "schemas"
    validating = (schemas / name for name in ("settings.py", "settings_sections.py"))
    for file in (*validating, Path(__file__)):
        stat = file.stat()
        digest.update(f"{stat.st_mtime_ns} {stat.st_size}".encode())
    for source in (config, home / "agents.json"):
        try:
            digest.update(source.read_bytes() if source is not None else b"")
        except FileNotFoundError:
            digest.update(b"none")
        except OSError:
            return None
    return digest.hexdigest()


def recall(home: Path, key: str, *, agent: str | None) -> KeywordAgent | None:
    """Return the asked agent, or the only one, as it was at the last validation; None without a valid snapshot."""
    try:
        kept: Any = read_derived(home / _FILE)
        # A changed digit is valid JSON, and another setting.
        if kept["key"] != key or kept["digest"] != _digest(kept):
            return None
        if agent is None and kept["count"] != 1:
            return None
        found = next(one for one in kept["agents"] if agent in (None, one["id"]))
        found |= {"sources": tuple(found["sources"]), "hybrid": _with_attributes(found["hybrid"])}
        return KeywordAgent(**found)
    except (KeyError, TypeError, StopIteration):
        return None


def _with_attributes(value: Any) -> Any:
    """Return a JSON object as an object with attributes, as the settings' own sections are."""
    if not isinstance(value, Mapping):
        return value
    return SimpleNamespace(**{name: _with_attributes(below) for name, below in value.items()})


def keep(settings: Settings, key: str) -> None:
    """Keep valid settings. In a home folder that cannot be written, searches stay correct and are slower."""
    file = settings.home / _FILE
    if not settings.home.is_dir():  # a search is no reason to make one
        return
    agents = [asdict(agent) for agent in _agents(settings)]
    content: dict[str, Any] = json.loads(json.dumps({"key": key, "count": len(settings.agents), "agents": agents}))
    content["digest"] = _digest(content)
    if read_derived(file) != content:
        with suppress(OSError):
            write_derived(file, content)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([content["key"], content["count"], content["agents"]]).encode()).hexdigest()


def _agents(settings: Settings) -> list[KeywordAgent]:
    from memory.redaction import redaction_facts  # rarely, and then the manager has loaded it

    return [
        KeywordAgent(
            id=agent.id,
            index=str(settings.indexes_path / agent.id),
            by_meaning=agent.provider != "none",
            sources=tuple(agent.sources),
            max_results=agent.query.max_results,
            min_score=agent.query.min_score,
            hybrid=agent.query.hybrid.model_dump(),
            max_snippet_chars=agent.limits.max_snippet_chars,
            cited=agent.citations != "off",
            redaction=json.dumps(redaction_facts(agent)),
        )
        # An agent that is switched off or restricted is left to the whole manager.
        for agent in settings.agents
        if agent.enabled and agent.scope.default == "allow" and not agent.scope.rules
    ]

"""What a search by keywords needs of the settings, remembered from the last time they were validated.

Reading and validating all settings takes longer than such a search. While nothing they come from has changed,
what was valid then is valid now: the file's content, the environment, the remembered workspaces and the schema
make one key, and any difference means that the settings are read as always.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory.status.run_files import read_derived, write_derived

if TYPE_CHECKING:
    from schemas.settings import Settings

_FILE = Path("run") / "keyword-settings.json"


@dataclass(frozen=True, slots=True)
class KeywordMmr:
    """See `schemas.settings.Mmr`."""

    enabled: bool
    lambda_: float


@dataclass(frozen=True, slots=True)
class KeywordDecay:
    """See `schemas.settings.TemporalDecay`."""

    enabled: bool
    half_life_days: float


@dataclass(frozen=True, slots=True)
class KeywordMinMax:
    """See `schemas.settings.MinMax`."""

    vector_weight: float
    text_weight: float


@dataclass(frozen=True, slots=True)
class KeywordHybrid:
    """See `schemas.settings.Hybrid`."""

    enabled: bool
    fusion: str
    minmax: KeywordMinMax
    vector_weight: float
    text_weight: float
    candidate_multiplier: int
    mmr: KeywordMmr
    temporal_decay: KeywordDecay


@dataclass(frozen=True, slots=True)
class KeywordAgent:
    """One agent's settings, as far as a search by keywords asks; `index` is the folder of its generations, `redaction`
    what an index says of its own (JSON) that needs no further redaction."""

    id: str
    index: str
    by_meaning: bool
    sources: tuple[str, ...]
    max_results: int
    min_score: float
    hybrid: KeywordHybrid
    max_snippet_chars: int
    cited: bool
    redaction: str


def settings_key(*, home: Path, config: Path | None, environment: Mapping[str, str]) -> str | None:
    """A digest of everything the settings come from; None when that cannot be said cheaply."""
    ours = {name: value for name, value in environment.items() if name.startswith("RECALLD_") or name == "HOME"}
    if any(name.endswith("_FILE") for name in ours):
        return None
    digest = hashlib.sha256()
    # Relative paths in variables are relative to the current folder.
    digest.update(json.dumps([sorted(ours.items()), str(home), str(config), str(Path.cwd())]).encode())
    schemas = Path(__file__).parents[2] / "schemas"
    validating = (schemas / name for name in ("settings.py", "memory_sections.py", "machine_sections.py"))
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
    """The asked agent, or the only one, as it was when these settings were validated; None when that is not known."""
    try:
        kept: Any = read_derived(home / _FILE)
        # A changed digit is valid JSON, and another setting.
        if kept["key"] != key or kept["digest"] != _digest(kept):
            return None
        if agent is None and kept["count"] != 1:
            return None
        found = next(one for one in kept["agents"] if agent in (None, one["id"]))
        hybrid = found["hybrid"]
        return KeywordAgent(
            **{
                **found,
                "sources": tuple(found["sources"]),
                "hybrid": KeywordHybrid(
                    **{
                        **hybrid,
                        "minmax": KeywordMinMax(**hybrid["minmax"]),
                        "mmr": KeywordMmr(**hybrid["mmr"]),
                        "temporal_decay": KeywordDecay(**hybrid["temporal_decay"]),
                    }
                ),
            }
        )
    except (KeyError, TypeError, StopIteration):
        return None


def keep(settings: Settings, key: str) -> None:
    """Remember valid settings. A home folder that cannot be written is no reason to fail: it is only slower."""
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
            hybrid=KeywordHybrid(
                enabled=agent.query.hybrid.enabled,
                fusion=agent.query.hybrid.fusion,
                minmax=KeywordMinMax(agent.query.hybrid.minmax.vector_weight, agent.query.hybrid.minmax.text_weight),
                vector_weight=agent.query.hybrid.vector_weight,
                text_weight=agent.query.hybrid.text_weight,
                candidate_multiplier=agent.query.hybrid.candidate_multiplier,
                mmr=KeywordMmr(agent.query.hybrid.mmr.enabled, agent.query.hybrid.mmr.lambda_),
                temporal_decay=KeywordDecay(
                    agent.query.hybrid.temporal_decay.enabled, agent.query.hybrid.temporal_decay.half_life_days
                ),
            ),
            max_snippet_chars=agent.limits.max_snippet_chars,
            cited=agent.citations != "off",
            redaction=json.dumps(redaction_facts(agent)),
        )
        # What is switched off, kept elsewhere or restricted is for the whole manager to say.
        for agent in settings.agents
        if agent.enabled and agent.scope.default == "allow" and not agent.scope.rules
    ]

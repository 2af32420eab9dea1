"""What a backfill would do: which transcripts, what they hold that nobody indexed yet, and what that costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory.agent_files import AgentFiles
from memory.embedding.selection import ProviderChoice
from memory.estimating import Estimate, estimate
from memory.imports import imported_folders, imports_path, remember_import
from memory.taking_over import provider_of
from producers.finding_transcripts import Found
from recalld.dry_run import open_cache
from recalld.wiring import fingerprint_of, generations_of
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings, Settings
from workers.batch_jobs import FEWEST_TEXTS


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """`wanted` are the transcripts to index, newest first; `unchanged` ones are in the index as they are.

    `bytes` is the size of the wanted ones on the disk.
    """

    agent: AgentSettings
    found: Found
    wanted: tuple[DocumentKey, ...]
    unchanged: int
    bytes: int
    choice: ProviderChoice
    estimate: Estimate


def plan_backfill(settings: Settings, agent: AgentSettings, found: Found) -> BackfillPlan:
    """Compare the transcripts with the index and say what the rest costs. Nothing is written.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy: the index or the cache cannot be looked at.
    """
    with _as_if_imported(settings, agent, found) as files:
        stats: dict[DocumentKey, FileStat] = {}
        for one in found.transcripts:
            key = files.key_of(one.path)
            if key is not None:
                # A compressed transcript and its plain twin are one document, and the plain one is read.
                stats.setdefault(key, files.stat(key) or one.stat)
        known = _indexed(settings, agent)
        wanted = [key for key, stat in stats.items() if known.get(key) != stat]
        choice = provider_of(settings, agent)
        try:
            with open_cache(settings) as cache:
                cost = estimate(
                    agent,
                    wanted,
                    files=files,
                    generations=generations_of(settings, agent),
                    choice=choice,
                    cache=cache,
                    batch_from=FEWEST_TEXTS if settings.cache.enabled else None,
                )
        finally:
            if choice.provider is not None:
                choice.provider.close()
    return BackfillPlan(
        agent=agent,
        found=found,
        wanted=tuple(wanted),
        unchanged=len(stats) - len(wanted),
        bytes=sum(stats[key].size for key in wanted),
        choice=choice,
        estimate=cost,
    )


def remember_folders(settings: Settings, agent: AgentSettings, found: Found) -> None:
    """Let workers read the transcripts that lie below no configured folder.

    Raises:
        UserError: the home folder cannot be written.
    """
    path = imports_path(settings.home, agent.id)
    files = AgentFiles(agent)
    for folder in found.folders:
        below = folder.files[0] if folder.files else "_.jsonl"
        if folder.format is None and files.key_of(str(Path(folder.folder, below))) is not None:
            continue
        remember_import(path, folder)


def plan_body(plan: BackfillPlan) -> dict[str, Any]:
    """The plan as JSON."""
    cost = plan.estimate
    return {
        "agent": plan.agent.id,
        "transcripts": len(plan.wanted),
        "unchanged": plan.unchanged,
        "leftOut": plan.found.left_out,
        "bytes": plan.bytes,
        "problems": list(plan.found.problems),
        "provider": plan.choice.name,
        "model": plan.choice.provider.model if plan.choice.provider is not None else None,
        "failed": cost.failed,
        "messages": cost.messages,
        "chunks": cost.chunks,
        "texts": cost.texts,
        "cached": cost.cached,
        "toEmbed": cost.to_embed,
        "tokens": cost.tokens,
        "requests": cost.requests,
        "batch": cost.batch,
        "dollars": round(cost.dollars, 6) if cost.dollars is not None else None,
        "seconds": round(cost.seconds, 3),
    }


@contextmanager
def _as_if_imported(settings: Settings, agent: AgentSettings, found: Found) -> Iterator[AgentFiles]:
    """The agent's files as they will be once the folders are remembered."""
    with tempfile.TemporaryDirectory(prefix="recalld-") as folder:
        draft = Path(folder, "imports.json")
        for imported in (*imported_folders(imports_path(settings.home, agent.id)), *found.folders):
            remember_import(draft, imported)
        yield AgentFiles(agent, imports=draft)


def _indexed(settings: Settings, agent: AgentSettings) -> dict[DocumentKey, FileStat]:
    generations = generations_of(settings, agent)
    reader = generations.target_reader(fingerprint_of(settings, agent).digest)
    if reader is None:
        return {}
    try:
        return {file.key: file.stat for file in reader.files()}
    finally:
        reader.close()

"""Recovery from a damaged index or a lost provider: build a new generation from the files."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import date

import structlog

from memory.documents.agent_files import priority
from memory.store.errors import StoreCorrupt, Superseded
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.documents import Lane
from workers.runtime import Runtime

log = structlog.get_logger(__name__)


def set_aside_and_mark(runtime: Runtime, agent: str, error: StoreCorrupt) -> None:
    """Move the damaged generation out of the way and mark every document of the agent.

    Nothing is lost: the documents are on disk, and the embeddings are in the cache.
    """
    with runtime.indexer(agent) as indexer:
        moved = indexer.generations.set_aside_damaged(suspect=error.generation)
        files = ", ".join(path.name for path in moved)
        runtime.board.report(ConditionCode.INDEX_SET_ASIDE, agent=agent, error=str(error), files=files)
        log.error("index_set_aside", agent=agent, moved=[str(path) for path in moved], at=time.time())
    runtime.forget(agent)
    _mark_everything(runtime, agent, imported=True)


def take_over_and_mark(runtime: Runtime, agent: str, *, reason: str) -> bool:
    """Let the agent's fallback provider take over, and mark every document for its generation.

    Return False if there is no fallback or it took over before.
    """
    if not runtime.take_over(agent, reason=reason):
        return False
    with runtime.indexer(agent) as indexer, suppress(Superseded):
        indexer.target()  # else the next job begins a generation
    resolve_provider_conditions(runtime, agent)
    # The completion finds imported transcripts that only the live generation holds.
    _mark_everything(runtime, agent, imported=False)
    runtime.queue.request_completion(agent)
    return True


def resolve_provider_conditions(runtime: Runtime, agent: str) -> None:
    """Remove the conditions of the agent's providers, also of providers that are not used any more."""
    runtime.board.replace(OF_PROVIDER, (), agent=agent)


def _mark_everything(runtime: Runtime, agent: str, *, imported: bool) -> None:
    with runtime.indexer(agent) as indexer:
        scan = indexer.files.scan(imported=imported)
    today = date.today()
    keys = sorted(scan.documents, key=lambda key: priority(key, today=today, stat=scan.documents[key]))
    runtime.queue.mark_changed(agent, keys, lane=Lane.BACKFILL)

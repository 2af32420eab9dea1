"""What a worker does about a damaged index or a lost provider: start anew beside it, from the files."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import date

import structlog

from memory.documents.agent_files import priority
from memory.store.errors import StoreCorrupt, Superseded
from schemas.documents import Lane
from workers.runtime import Runtime

log = structlog.get_logger(__name__)


#: The trouble that is over when everything was indexed again.
DAMAGED_INDEX = "index file"

#: Troubles of a provider begin with this; its name follows.
PROVIDER = "provider "


def set_aside_and_mark(runtime: Runtime, agent: str, error: StoreCorrupt) -> None:
    """Move the damaged generation out of the way and mark every document of the agent.

    Nothing is lost: the files are the truth, and the embeddings are in the cache.
    """
    with runtime.indexer(agent) as indexer:
        moved = indexer.generations.set_aside_damaged(suspect=error.generation)
        runtime.board.report(
            DAMAGED_INDEX,
            f"the index was damaged ({error}) and was set aside ({', '.join(path.name for path in moved)}); "
            "it is being rebuilt from the files and the cache",
            agent=agent,
        )
        log.error("index_set_aside", agent=agent, moved=[str(path) for path in moved], at=time.time())
    runtime.forget(agent)
    _mark_everything(runtime, agent, imported=True)


def take_over_and_mark(runtime: Runtime, agent: str, *, reason: str) -> bool:
    """Let the agent's fallback provider take over, and mark every document for its generation.

    False when there is no fallback or it took over before.
    """
    if not runtime.take_over(agent, reason=reason):
        return False
    with runtime.indexer(agent) as indexer, suppress(Superseded):
        indexer.target()  # else the next job begins what is wanted then
    resolve_provider_troubles(runtime, agent)
    # Imported transcripts that the answering generation holds are found missing by the completion.
    _mark_everything(runtime, agent, imported=False)
    runtime.queue.request_completion(agent)
    return True


def resolve_provider_troubles(runtime: Runtime, agent: str) -> None:
    """Say that the agent's provider is well, also one that is not used any more."""
    for trouble in runtime.board.troubles(agent):
        if trouble.part.startswith(PROVIDER):
            runtime.board.resolve(trouble.part, agent=agent)


def _mark_everything(runtime: Runtime, agent: str, *, imported: bool) -> None:
    with runtime.indexer(agent) as indexer:
        scan = indexer.files.scan(imported=imported)
    today = date.today()
    keys = sorted(scan.documents, key=lambda key: priority(key, today=today, stat=scan.documents[key]))
    runtime.queue.mark_changed(agent, keys, lane=Lane.BACKFILL)

"""What a worker does about a damaged index: set it aside, and index everything again from the files."""

from __future__ import annotations

import time
from datetime import date

import structlog

from memory.agent_files import priority
from memory.store.errors import StoreCorrupt
from schemas.documents import Lane
from workers.runtime import Runtime

log = structlog.get_logger(__name__)


#: The trouble that is over when everything was indexed again.
DAMAGED_INDEX = "index file"


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
        scan = indexer.files.scan()
    runtime.forget(agent)
    today = date.today()
    keys = sorted(scan.documents, key=lambda key: priority(key, today=today))
    runtime.queue.mark_changed(agent, keys, lane=Lane.BACKFILL)

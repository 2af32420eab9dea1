"""When a generation under construction holds everything, it takes the place of the one that answers."""

from __future__ import annotations

import structlog

from memory.indexing import Indexer
from memory.store.letters import EMBEDDING_REFUSED
from schemas.documents import DocumentKey

log = structlog.get_logger(__name__)


def differences(indexer: Indexer) -> list[DocumentKey]:
    """Documents in which disk and the index that is written differ, those that could not be read aside."""
    store = indexer.target()
    scan = indexer.files.scan()
    indexed = {file.key: file.stat for file in store.files()}
    changed = [key for key, stat in scan.documents.items() if indexed.get(key) != stat]
    if scan.complete:
        changed += [key for key in indexed if key not in scan.documents]
    # A document with refused chunks was read, and its next version will be.
    failed = {letter.key for letter in store.dead_letters() if letter.error_class != EMBEDDING_REFUSED}
    return [key for key in changed if key not in failed]


def complete_generation(indexer: Indexer) -> bool:
    """Put the generation under construction in place if nothing is missing from it; True when it was."""
    store = indexer.target()
    if indexer.generations.next() is None or differences(indexer):
        return False
    if indexer.supply.available and store.pending_chunks(1):
        return False
    done = indexer.generations.complete(indexer.fingerprint().digest)
    if done:
        log.info("generation_completed", agent=indexer.agent.id, generation=indexer.generations.current())
    return done

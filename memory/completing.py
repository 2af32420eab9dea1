"""When a generation under construction holds everything, it takes the place of the one that answers."""

from __future__ import annotations

import structlog

from memory.carrying_over import carry_over, missing_transcripts
from memory.fingerprint import NO_VECTORS, embedding_of, redaction_of
from memory.indexing import Indexer
from memory.session_roots import SESSIONS_SOURCE
from memory.store.errors import OtherVersion
from memory.store.letters import EMBEDDING_REFUSED
from schemas.documents import DocumentKey

log = structlog.get_logger(__name__)


def differences(indexer: Indexer) -> list[DocumentKey]:
    """Documents in which disk and the index that is written differ, those that could not be read aside."""
    store, files = indexer.target(), indexer.files
    scan = files.scan()
    indexed = {file.key: file.stat for file in store.files()}
    changed = [key for key, stat in scan.documents.items() if indexed.get(key) != stat]
    absent = [key for key in indexed if key not in scan.documents]
    if scan.complete:
        changed += [key for key in absent if key.source != SESSIONS_SOURCE]
    transcripts = [key for key in absent if key.source == SESSIONS_SOURCE]
    forgotten = files.forgotten_transcripts(transcripts, scan)
    changed += forgotten
    # Those of imported folders are not found by a scan that was not asked for them.
    others = {*transcripts, *missing_transcripts(indexer)}.difference(scan.documents, forgotten)
    if others:
        imported = files.scan(imported=True).documents
        changed += [key for key in sorted(others) if key in imported and indexed.get(key) != imported[key]]
    # A document with refused chunks was read, and its next version will be.
    failed = {letter.key for letter in store.dead_letters() if letter.error_class != EMBEDDING_REFUSED}
    return [key for key in changed if key not in failed]


def complete_generation(indexer: Indexer) -> bool:
    """Put the generation under construction in place if nothing is missing from it; True when it was."""
    store = indexer.target()
    if indexer.generations.next() is None or differences(indexer):
        return False
    carry_over(indexer, missing_transcripts(indexer))
    wanted = indexer.fingerprint()
    if embedding_of(wanted.description) != NO_VECTORS and store.pending_chunks(1):
        return False  # also in a process without a key: what answers has vectors
    before = _identity_of_current(indexer)
    done = indexer.generations.complete(wanted.digest)
    if done and before is not None and redaction_of(before) != redaction_of(wanted.description):
        # What is to be masked from now on stands in there unmasked. Who is reading it finishes first.
        indexer.generations.sweep(older_than_seconds=0.0, kept_corrupt=0)
    if done:
        log.info("generation_completed", agent=indexer.agent.id, generation=indexer.generations.current())
    return done


def _identity_of_current(indexer: Indexer) -> str | None:
    try:
        reader = indexer.generations.open_reader()
    except OtherVersion:
        return None
    if reader is None:
        return None
    try:
        return reader.meta("identity")
    finally:
        reader.close()

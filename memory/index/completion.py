"""When a generation under construction holds everything, it takes the place of the one that answers."""

from __future__ import annotations

import structlog

from memory.documents.comparison import left_out, with_emptied
from memory.embedding.selection import NO_VECTORS
from memory.index.fingerprint import embedding_of, redaction_of
from memory.index.indexer import Indexer
from memory.index.transcript_carryover import carry_over, missing_transcripts
from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.errors import OtherVersion
from schemas.documents import DocumentKey

log = structlog.get_logger(__name__)

#: Entry of `meta`: the account (a digest) that was asked for vectors last.
_ASKED = "account"

#: Entry of `meta`: since the generation was made, all that it lacked of the disk was asked for.
_COMPARED = "compared"


def differences(indexer: Indexer) -> list[DocumentKey]:
    """Documents in which disk and the index that is written differ, those that failed or are left out aside."""
    store, files = indexer.target(), indexer.files
    indexed = {file.key: file.stat for file in store.files()}
    scan = with_emptied(files.scan(), files, indexed)
    changed = [key for key, stat in scan.documents.items() if key not in indexed or not indexed[key].agrees_with(stat)]
    absent = [key for key in indexed if key not in scan.documents]
    if scan.complete:
        changed += [key for key in absent if not key.is_transcript]
    transcripts = [key for key in absent if key.is_transcript]
    forgotten = files.transcripts.forgotten(transcripts, scan, store)
    changed += forgotten
    # Those of imported folders are not found by a scan that was not asked for them.
    others = {*transcripts, *missing_transcripts(indexer)}.difference(scan.documents, forgotten)
    if others:
        imported = files.scan(imported=True).documents
        changed += [
            key
            for key in sorted(others)
            if key in imported and (key not in indexed or not indexed[key].agrees_with(imported[key]))
        ]
    # A document with refused chunks was read, and its next version will be.
    failed = {letter.key for letter in store.dead_letters() if letter.error_class != EMBEDDING_REFUSED}
    aside = failed | left_out(store, files)
    return [key for key in changed if key not in aside]


def unasked_differences(indexer: Indexer) -> list[DocumentKey] | None:
    """What the answering generation lacks, where nobody asked for that since it was made (somebody deleted the one
    before); None where somebody did, or one that is under construction is to be completed anyway.
    """
    if indexer.generations.next() is not None or indexer.target().meta(_COMPARED) is not None:
        return None
    return differences(indexer)


def note_asked(indexer: Indexer) -> None:
    """Say that what the generation lacked was asked for."""
    indexer.target().set_meta({_COMPARED: "1"})


def release_refused(indexer: Indexer) -> int:
    """Let texts be asked for again that another account of the same provider refused: how many there are.

    A different key is the same identity, so nothing is built anew for it; but it may be allowed more.
    """
    provider = indexer.supply.choice.provider
    account = provider.account if provider is not None else ""
    store = indexer.target()
    if not account or store.meta(_ASKED) == account:
        return 0
    refused = [letter.key for letter in store.dead_letters() if letter.error_class == EMBEDDING_REFUSED]
    released = sum(store.retry_dead_letter(key) for key in refused)
    store.set_meta({_ASKED: account})
    return released


def hidden_notes(indexer: Indexer) -> list[DocumentKey]:
    """Notes that the answering generation holds, that the one that is written lacks, and that may be on the disk all
    the same: where it is not mounted, or cannot be listed. As long as there are any, the old one goes on answering."""
    try:
        reader = indexer.generations.open_reader()
    except OtherVersion:
        return []  # a person has it made anew
    if reader is None:
        return []
    try:
        held = [file.key for file in reader.files() if not file.key.is_transcript]
    finally:
        reader.close()
    scan = with_emptied(indexer.files.scan(), indexer.files, held)
    if scan.complete:
        return []
    store = indexer.target()
    lacking = [key for key in held if key not in scan.documents and store.file(key) is None]
    return [key for key in lacking if scan.hides(indexer.files.path_of(key))]


def complete_generation(indexer: Indexer) -> bool:
    """Put the generation under construction in place if nothing is missing from it; True when it was."""
    store = indexer.target()
    if indexer.generations.next() is None or differences(indexer) or hidden_notes(indexer):
        return False
    carry_over(indexer, missing_transcripts(indexer))
    wanted = indexer.fingerprint()
    if embedding_of(wanted.description) != NO_VECTORS and store.pending_chunks(1):
        return False  # also in a process without a key: what answers has vectors
    before = _identity_of_current(indexer)
    note_asked(indexer)
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

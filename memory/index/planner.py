"""Planning of a document: read its present state, cut it and compare it with the index."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext

import structlog

from memory.chunking.chunker import Chunk
from memory.chunking.curated import CURATED_FILES, curated_blocks
from memory.documents.agent_files import AgentFiles, DocumentGone
from memory.documents.comparison import forgets
from memory.documents.content import SourceText
from memory.embedding.providers.provider import EmbeddingProvider
from memory.index.changes import CommitBatch, IndexReport, Plan, UnmatchedChunks, cut_document
from memory.index.transcript_slices import has_other_format, longest_beginning, slices_of
from memory.redaction import redact, redactor_for
from memory.store.errors import StoreBusy, StoreFull
from memory.store.reader import IndexedFile, StoredChunk, StoreReader, TranscriptPosition
from memory.store.writer import DocumentDelete, DocumentFailure, DocumentTouch, DocumentWrite, Store
from schemas.documents import DocumentKey, FileStat
from schemas.errors import OutOfMemory, Permanent, RecalldError, Transient
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)


class Planner:
    """Planner of one agent's documents: it compares them with an index, None for an empty one, and writes nothing.

    Plans gather in `batch`, which the caller takes and replaces. `resumable` is True if the present document has
    further parts and the next run may begin with them. `commits_first` is True if all planned changes must be committed
    before the next part.
    """

    def __init__(
        self,
        store: StoreReader | None,
        agent: AgentSettings,
        files: AgentFiles,
        provider: EmbeddingProvider | None,
        report: IndexReport,
    ) -> None:
        self.batch = CommitBatch()
        self.resumable = False
        self.commits_first = False
        self._store = store
        self._writer = store if isinstance(store, Store) else None
        self._agent = agent
        self._files = files
        self._provider = provider
        self._report = report

    def plan(self, key: DocumentKey) -> Generator[None]:
        """Add the changes of one document to the batch; yield after each part.

        A failure of this document does not affect the others.
        """
        self.resumable = self.commits_first = False
        try:
            yield from self._steps(key)
        except Transient as error:
            if isinstance(error, StoreBusy | StoreFull | OutOfMemory):
                raise
            self._report.again = error
        except Exception as error:
            if isinstance(error, RecalldError | MemoryError) and not isinstance(error, Permanent):
                raise
            self.batch.other_changes.append(failure_of(self._agent.id, key, error))
            self._report.failed += 1

    def _steps(self, key: DocumentKey) -> Iterator[None]:
        store, revision = self._store, 0
        indexed: IndexedFile | None = None
        source: SourceText | None = None
        stored: Sequence[StoredChunk] = ()
        try:
            # It ends before any `yield`: the caller's calls between two parts read the state of their own time.
            with store.snapshot() if store is not None else nullcontext():
                if store is not None:
                    # Taken before the source is read: if another process commits in between, the indexer reads again.
                    revision = store.revision(key)
                    indexed = store.file(key) if revision > 0 else None
                stat = self._files.stat(key)
                is_current = indexed is not None and stat is not None and indexed.stat.agrees_with(stat)
                is_current = is_current and not self._has_other_format(key)
                if stat is not None and not is_current and not key.is_transcript:
                    source = self._files.read(key)
                    stored = store.chunks_of(key) if store is not None and indexed is not None else ()
            if stat is None:
                yield from self._forget(key, revision)
            elif is_current:
                self.batch.done.append(key)
                self._report.unchanged += 1
            elif source is None:
                yield from self._transcript(key, stat, revision)
            elif indexed is not None and (indexed.content_hash, indexed.notes) == (source.content_hash, source.notes):
                stat = indexed.stat_when_the_same(source.stat)
                self.batch.other_changes.append(DocumentTouch(key, stat, indexed.content_hash))
                self._report.unchanged += 1
            else:
                self.batch.add(self._note(key, source, revision, stored))
        except DocumentGone:
            yield from self._forget(key, revision)
        yield

    def _has_other_format(self, key: DocumentKey) -> bool:
        return self._store is not None and has_other_format(key, files=self._files, store=self._store)

    def _note(self, key: DocumentKey, source: SourceText, revision: int, chunks: Sequence[StoredChunk]) -> Plan:
        text = redactor_for(self._agent, key.source)(source.text)
        stored = UnmatchedChunks(chunks)
        added, moved = stored.take_over(cut_document(text, self._agent.chunking, self._provider))
        write = DocumentWrite(
            key=key,
            expected=revision,
            stat=source.stat,
            content_hash=source.content_hash,
            added=added,
            moved=moved,
            removed=stored.remaining_ids(),
            notes=source.notes,
        )
        meanings: tuple[str, ...] = ()
        is_injected = key.path in CURATED_FILES and self._agent.context.injection.enabled
        # Prompts are compared with them. Cosines of models on this machine tell too little for that.
        if is_injected and self._provider is not None and self._provider.account:
            blocks = curated_blocks(text, path=key.path)
            meanings = tuple(block.meaning for block in blocks if block.meaning is not None)
        return Plan(write, meanings=meanings)

    def _transcript(self, key: DocumentKey, stat: FileStat, revision: int) -> Iterator[None]:
        store = self._store if revision > 0 else None
        for part in slices_of(
            key, files=self._files, store=store, revision=revision, memory=self._agent, provider=self._provider
        ):
            # For an estimate, a renamed transcript is a new one whose texts have vectors.
            is_first = revision <= 0 and isinstance(part.write.expected, int)
            if is_first and self._writer is not None and self._renamed(self._writer, key, stat, part.write.added[:1]):
                break
            self.batch.add(part)
            self.resumable = part.resumable
            yield
        else:
            return
        yield from self._steps(key)

    def _renamed(self, store: Store, key: DocumentKey, stat: FileStat, first: Sequence[Chunk]) -> bool:
        """Give a renamed transcript's rows its new name; return True if there were any.

        The old file is gone, and the new one begins with every line that the index has read of it.
        """
        names = [
            *self._files.transcripts_of(key).earlier_names(key),
            *(name for chunk in first for name in store.begun_by(chunk.text_hash)),
        ]
        positions = {name: place for name in names if (place := self._left_position(store, name, stat)) is not None}
        old_key = longest_beginning(key, positions, files=self._files) if positions else None
        if old_key is None or not store.rename_document(old_key, key):
            return False
        log.info("transcript_renamed", agent=self._agent.id, path=key.path, was=old_key.path)
        return True

    def _left_position(self, store: Store, name: DocumentKey, stat: FileStat) -> TranscriptPosition | None:
        """Return the position of a transcript that left its name; None if its file exists or if its last line is open.

        `stat` describes the possible new file. Its inode proves a rename only if another file has the old name.
        """
        indexed, position = store.file(name), store.transcript(name)
        if indexed is None or position is None or indexed.stat.size > position.offset:
            return None
        try:
            present = self._files.stat(name)
        except RecalldError:
            return None
        if present is None:
            return position if self._files.root_is_there(name) else None
        return position if present.inode != indexed.stat.inode == stat.inode else None

    def _forget(self, key: DocumentKey, revision: int) -> Iterator[None]:
        store = self._store
        if store is None:
            return
        if revision > 0 and forgets(self._files, key) and not forgets(self._files, key, store):
            # Its archive may be among the planned documents.
            self.commits_first = True
            yield
            self.commits_first = False
        if revision > 0 and forgets(self._files, key, store):
            self.batch.other_changes.append(DocumentDelete(key, revision))
            self._report.deleted += 1
        elif revision <= 0 and self._files.root_is_there(key) and any(row.key == key for row in store.dead_letters()):
            # The document was never indexed and cannot be repaired any more: its letter goes.
            self.batch.other_changes.append(DocumentDelete(key, revision))
        else:
            self.batch.done.append(key)


def failure_of(agent: str, key: DocumentKey, error: Exception) -> DocumentFailure:
    """Return the dead letter of a document that cannot be indexed; log an unexpected error."""
    if isinstance(error, Permanent):
        reason = error.reason
    else:
        log.exception("document_failed", agent=agent, path=key.path)
        reason = f"unexpected {type(error).__name__}: {error}"
    return DocumentFailure(key, redact(reason), type(error).__name__)

"""Filling in of pending vectors, whose provider was slow or away when their chunks were committed, and of sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from memory.embedding.providers.provider import EmbeddingProvider
from memory.index.changes import MAX_CHUNKS_PER_COMMIT
from memory.index.indexer import Indexer, dimensions_of
from memory.index.provider import embeds_sentences
from memory.store.reader import ChunkRow, SentenceSigns
from memory.store.writer import Refusal, Unread, VectorOutcome
from memory.transcripts.packing import packed_sentences
from schemas.documents import Lane
from schemas.errors import Permanent, Terminal, Transient

#: Seconds of work in one round: an interruption costs no more, and progress is visible.
SECONDS_A_ROUND = 4.0

#: Bounds of the chunks in a round, for slow and fast providers.
FEWEST, MOST = 64, 4 * MAX_CHUNKS_PER_COMMIT

#: Seconds after which a round is given up; later answers reach the cache.
ROUND_TIMEOUT_SECONDS = 30.0

#: Seconds between two checks of a waiting round whether it should stop.
_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class FillReport:
    """Counts of a run. `left` is True if chunks still wait; `error` is the reason of an early stop."""

    ready: int = 0
    refused: int = 0
    left: bool = False
    error: Transient | Terminal | None = None


def fill_vectors(
    indexer: Indexer,
    *,
    seconds: float,
    on_ready: Callable[[int, float], None] = lambda _count, _seconds: None,
    only: Collection[str] | None = None,
    stopping: Callable[[], bool] = lambda: False,
    most: int = MOST,
    on_round: Callable[[Sequence[str]], None] = lambda _hashes: None,
) -> FillReport:
    """Fill in vectors of an indexer's target for about `seconds`, the oldest chunks first.

    `on_round` receives the text hashes of each round before it, at most `most`, and `on_ready` afterwards the number
    of committed vectors and the seconds that it took. With `only` (text hashes), other chunks belong to other jobs and
    do not count as left. After `stopping`, the run waits for no more answers.

    Without a provider, or if vectors cannot be written, nothing happens and no chunk counts as left.

    Raises the errors of `memory.store.errors` if the store cannot be written; earlier rounds stay.
    """
    report = FillReport()
    store, batcher = indexer.target(), indexer.supply.batcher
    if batcher is None or store.vector_reason is not None:
        return report
    deadline = time.monotonic() + seconds
    while report.error is None and (began_at := time.monotonic()) < deadline and not stopping():
        count = min(most, max(FEWEST, int(SECONDS_A_ROUND * batcher.chunks_per_second)))
        if not (pending := store.pending_hashes(count, among=only)):
            break
        on_round(list(pending.values()))
        chunks = store.chunk_rows(list(pending))
        texts = {text_hash: chunks[number].text for number, text_hash in pending.items() if number in chunks}
        vectors: dict[str, VectorOutcome] = {**indexer.unread(texts, store)}
        vectors |= indexer.paid_vectors([text_hash for text_hash in texts if text_hash not in vectors])
        missing = {text_hash: text for text_hash, text in texts.items() if text_hash not in vectors}
        if missing:
            agent, dimensions = indexer.agent.id, dimensions_of(store)
            ticket = batcher.submit(missing, lane=Lane.BACKFILL, agent=agent, dimensions=dimensions)
            try:
                until = time.monotonic() + ROUND_TIMEOUT_SECONDS
                while not ticket.wait(_LOOK_SECONDS) and time.monotonic() < until and not stopping():
                    pass
                report.error = ticket.error()
            finally:
                ticket.cancel()
            vectors |= ticket.results()
        rows = [(number, (digest, vectors[digest])) for number, digest in pending.items() if digest in vectors]
        committed = 0
        for start in range(0, len(rows), MAX_CHUNKS_PER_COMMIT):
            committed += store.write_vectors(dict(rows[start : start + MAX_CHUNKS_PER_COMMIT]))
        if committed == 0:
            break
        refused = min(committed, sum(isinstance(value, Refusal) for _, (_, value) in rows))
        unread = min(committed, sum(isinstance(value, Unread) for _, (_, value) in rows))
        report.ready += committed - refused - unread
        report.refused += refused
        on_ready(committed - unread, time.monotonic() - began_at)
    report.left = bool(store.pending_hashes(1, among=only))
    return report


def fill_sentences(indexer: Indexer, *, seconds: float, stopping: Callable[[], bool] = lambda: False) -> bool:
    """Embed the sentences of chunks, the newest first, for about `seconds`; return True if some are left.

    The model runs in this thread, chunk by chunk: it gives way within a fraction of a second. Users' words that an
    older version left out come first. Raises like `fill_vectors`.
    """
    store, provider, batcher = indexer.target(), indexer.supply.provider, indexer.supply.batcher
    deadline, stops = time.monotonic() + seconds, False
    while not stopping() and store.text_reason is None and store.add_users_words():
        pass
    if provider is None or batcher is None or store.vector_reason or not embeds_sentences(indexer.agent, provider):
        return False
    while lacking := store.lacking_sentences(FEWEST):
        sentences: dict[str, SentenceSigns] = {}
        for chunk in sorted(store.chunk_rows(list(lacking)).values(), key=lambda chunk: -chunk.id):
            if stops := stopping() or batcher.estimate_seconds(0) > 0 or time.monotonic() > deadline:
                break
            sentences[lacking[chunk.id]] = _sentences_of(chunk, provider)
        store.add_sentences(sentences)
        if stops:
            return True
    return False


def _sentences_of(chunk: ChunkRow, provider: EmbeddingProvider) -> SentenceSigns:
    """Embed the sentences of a chunk that the model reads; none if it cannot embed one of them."""
    sentences = packed_sentences(chunk.text, is_transcript=chunk.key.is_transcript)
    pairs = [pair for pair in sentences if provider.unread_script(pair[0]) is None]
    try:
        vectors = provider.embed_documents([sentence for sentence, _ in pairs]).vectors
    except Permanent:
        vectors, pairs = provider.embed_documents([]).vectors, []
    return SentenceSigns.of(vectors, [is_users for _, is_users in pairs])

"""Completion of an index: the vectors and sentences that it lacks, and the generation under construction.

Vectors are pending while their provider is slow or away. A complete generation replaces the answering one. Transcripts
that are no longer on the disk move along, because no other copy of them exists. With `sync.sessions.forget_deleted`
they are dropped.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice

import structlog

from memory.chunking.chunker import Chunk, estimate_tokens, text_hash
from memory.documents.comparison import compare
from memory.documents.roots import archived_path
from memory.documents.scan import KnownFiles
from memory.embedding.consent import HELD, Consents, HeldTexts
from memory.embedding.prices import price_of
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import NO_VECTORS
from memory.index.changes import MAX_CHUNKS_PER_COMMIT, UnmatchedChunks
from memory.index.fingerprint import embedding_of
from memory.index.indexer import Indexer, dimensions_of
from memory.index.provider import embeds_sentences
from memory.redaction import redactor_for
from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN
from memory.store.reader import NOWHERE, ChunkRow, IndexedFile, SentenceSigns, StoreReader, VectorState
from memory.store.writer import DocumentWrite, Refusal, Store, Unread, VectorOutcome
from memory.transcripts.packing import packed_sentences
from schemas.documents import SESSIONS_SOURCE, DocumentKey, Lane
from schemas.errors import Permanent, Terminal, Transient

log = structlog.get_logger(__name__)

#: Entry of `meta`: digest of the account that last received texts.
_ASKED = "account"

#: Entry of `meta`: the documents missing from this generation were requested once.
_COMPARED = "compared"

#: Seconds of work in one round: an interruption costs no more, and progress is visible.
SECONDS_A_ROUND = 4.0

#: Bounds of the chunks in a round, for slow and fast providers.
FEWEST, MOST = 64, 4 * MAX_CHUNKS_PER_COMMIT

#: Seconds after which a round is given up; later answers reach the cache.
ROUND_TIMEOUT_SECONDS = 30.0

#: Seconds between two checks of a waiting round whether it should stop.
_LOOK_SECONDS = 0.2


def lacking_documents(indexer: Indexer) -> list[DocumentKey]:
    """Return the documents that the written generation lacks or must forget, without failed and ignored ones."""
    store, files = indexer.target(), indexer.files
    comparison = compare(files, store)
    changed = [*comparison.scan.documents, *comparison.gone]
    # A scan finds transcripts of imported folders only on request.
    absent = {key for key in comparison.absent if key.is_transcript}
    if transcripts := absent.union(missing_transcripts(indexer)).difference(changed):
        imported = files.scan(imported=True, but=KnownFiles(store.files())).documents
        changed += sorted(transcripts & imported.keys())
    # A document with refused chunks was read, so its next version is read as well.
    failed = {letter.key for letter in store.dead_letters() if letter.error_class != EMBEDDING_REFUSED}
    return [key for key in changed if key not in failed and key not in comparison.left_out]


def is_unasked(indexer: Indexer) -> bool:
    """Return True if the documents missing from CURRENT are to be requested, once per generation."""
    return indexer.generations.next() is None and indexer.target().meta(_COMPARED) is None


def note_asked(indexer: Indexer) -> None:
    """Record that the documents missing from the generation were requested, and the account that receives its texts."""
    store, account = indexer.target(), _account(indexer)
    is_recorded = not account or store.meta(_ASKED) is not None
    store.set_meta({_COMPARED: "1"} if is_recorded else {_COMPARED: "1", _ASKED: account})


def release_refused(indexer: Indexer) -> int:
    """Release texts that another account of the same provider refused; return the number of documents.

    Another key keeps the identity, so no new generation is built. The new account may be allowed more.
    """
    store, account = indexer.target(), _account(indexer)
    if not account or store.meta(_ASKED) == account:
        return 0
    refused = [letter.key for letter in store.dead_letters() if letter.error_class == EMBEDDING_REFUSED]
    released = sum(store.retry_dead_letter(key) for key in refused)
    store.set_meta({_ASKED: account})
    return released


def _account(indexer: Indexer) -> str:
    """Return the digest of the provider's account, "" without one."""
    provider = indexer.supply.provider
    return provider.account if provider is not None else ""


def hidden_notes(indexer: Indexer) -> list[DocumentKey]:
    """Return the notes of CURRENT that the written generation lacks and that may still exist on the disk.

    They lie in folders that are not mounted or cannot be listed. CURRENT keeps answering while there are any.
    """
    with _answering(indexer) as reader:
        comparison = compare(indexer.files, reader)
    if comparison.scan.complete:
        return []
    store = indexer.target()
    lacking = [key for key in comparison.absent if not key.is_transcript and store.file(key) is None]
    return [key for key in lacking if indexer.files.source_of(key).hides(key, comparison.scan)]


def complete_generation(indexer: Indexer) -> bool:
    """Make the generation under construction the answering one if nothing is missing from it; return True if it was.

    Raises:
        NotOwner: nothing is missing, and another process owns the indexes.
    """
    store = indexer.target()
    if indexer.generations.next() is None or lacking_documents(indexer) or hidden_notes(indexer):
        return False
    indexer.generations.require_owner()
    carry_over(indexer, missing_transcripts(indexer))
    if indexer.supply.identity != NO_VECTORS and (store.pending_hashes(1) or store.held_hashes(1)):
        return False  # even in a process without a key: CURRENT has vectors
    with _answering(indexer) as reader:
        if reader is not None and embedding_of(reader.meta("identity")) == indexer.supply.identity:
            for sentences in reader.all_sentences():
                store.add_sentences(sentences)
    note_asked(indexer)
    done = indexer.generations.complete(indexer.fingerprint().digest)
    if done:
        log.info("generation_completed", agent=indexer.agent.id, generation=indexer.generations.current())
    return done


def missing_transcripts(indexer: Indexer) -> list[DocumentKey]:
    """Return the transcripts of the answering generation that the written one lacks, or holds in part only.

    Ignored transcripts are left out, and sessions of which the written one has an archive.
    """
    if indexer.generations.next() is None:
        return []
    target = indexer.target()
    with _answering(indexer) as reader:
        if reader is None:
            return []
        transcripts = [file.key for file in reader.files() if file.key.is_transcript]
        lacking = [key for key in transcripts if (copied := target.file(key)) is None or copied.stat == FORGOTTEN]
        ignored = indexer.files.left_out(lacking)
        # Few have archives, and looking for those of one lists its folder.
        archived = {archived_path(file.key.path) for file in target.files()}
        rest = [key for key in lacking if key not in ignored]
        candidates = [key for key in rest if key.path in archived]
        continued = {key for key in candidates if indexer.files.transcripts_of(key).continues(key, target, reader)}
        return [key for key in rest if key not in continued]


def carry_over(indexer: Indexer, keys: Sequence[DocumentKey]) -> None:
    """Copy these transcripts from the answering generation, with the vectors that fit the new identity."""
    target = indexer.target()
    with _answering(indexer) as reader:
        if reader is None:
            return
        for key in keys:
            if (file := reader.file(key)) is not None:
                _copy(indexer, reader, target, file)


@contextmanager
def _answering(indexer: Indexer) -> Iterator[StoreReader | None]:
    """Lend the answering generation, of any format; None without one."""
    reader = indexer.generations.open_reader(any_format=True)
    with closing(reader) if reader is not None else nullcontext():
        yield reader


def _copy(indexer: Indexer, reader: StoreReader, target: Store, file: IndexedFile) -> None:
    ids = [chunk.id for chunk in reader.chunks_of(file.key)]
    # After a crash the copy starts again, with the chunks that the target has by then.
    rows = target.chunks_of(file.key)
    stored = UnmatchedChunks(rows, stale=True)
    expected = target.transcript(file.key) or target.revision(file.key)
    starts = range(0, max(1, len(ids)), MAX_CHUNKS_PER_COMMIT)
    for start in starts:
        added, moved = stored.take_over(_cut(indexer, reader, ids[start : start + MAX_CHUNKS_PER_COMMIT], first=start))
        last = start == starts[-1]
        identity = embedding_of(target.meta("identity"))
        held = indexer.held_vectors([chunk.text_hash for chunk in added], identity=identity)
        unread = indexer.unread({chunk.text_hash: chunk.text for chunk in added}, target)
        unpaid = dict.fromkeys([chunk.text_hash for chunk in added] if indexer.holds else (), VectorState.HELD)
        write = DocumentWrite(
            file.key,
            expected,
            file.stat if last else FORGOTTEN,
            NOWHERE.digest,
            added,
            {**unpaid, **held, **unread} if identity != NO_VECTORS else {},
            moved=moved,
            removed=stored.remaining_ids() if last else (),
            notes=file.notes,
            position=NOWHERE,  # if the file returns, the indexer reads it from its start
            stale_from=0 if rows and start == 0 else None,
            complete=last,
        )
        target.write([write])
        expected = NOWHERE


def _cut(indexer: Indexer, reader: StoreReader, ids: Sequence[int], *, first: int) -> Iterator[Chunk]:
    redact = redactor_for(indexer.agent, SESSIONS_SOURCE)
    rows, times = reader.chunk_rows(ids), reader.times_of(ids)
    for ordinal, row in enumerate((rows[number] for number in ids if number in rows), start=first):
        text = redact(row.text)  # redaction rules that are newer than the indexed text apply as well
        yield Chunk(ordinal, row.start_line, row.end_line, text, text_hash(text), times.get(row.id))


def release_held(indexer: Indexer, consents: Consents, *, drained: bool) -> None:
    """Release held chunks, the oldest first, as far as consents reach; all of them if the indexer holds none any more.

    Once the backfill is `drained`, a rest that needs no consent is released as well, and a larger one noted in `meta`.
    Raises like `fill_vectors`.
    """
    store, provider, identity = indexer.target(), indexer.supply.provider, indexer.supply.identity
    if provider is None:
        return
    _release(store, consents if indexer.holds else None, identity)
    if not drained or not store.held_hashes(1):
        return
    look = HeldTexts.of(store)
    if look is None:
        costs = [cost for page in _held_costs(store) for _, cost in page]
        look = HeldTexts(len(costs), sum(cost > 0 for cost in costs), round(sum(costs)), -1)
    if consents.allows_unasked(look.tokens, price_of(indexer.agent, provider.name, provider.model)):
        consents.grant(identity, look.tokens, unasked=True)
        _release(store, consents, identity)
    elif look.consents != (version := consents.version):
        store.set_meta({HELD: json.dumps(asdict(replace(look, consents=version)))})


def _release(store: Store, consents: Consents | None, identity: str) -> None:
    """Make held chunks pending, and use up the consents for them before; all of them without `consents`."""
    tokens = math.inf if consents is None else consents.remaining(identity)
    for page in _held_costs(store) if tokens > 0 else ():
        sums = list(accumulate(cost for _, cost in page))
        count = bisect_right(sums, tokens + 1)  # the tokens are a rounded sum
        if count and consents is not None:
            consents.use(identity, sums[count - 1])
        if count:
            store.release_held([chunk for chunk, _ in page[:count]])
            tokens -= sums[count - 1]
        if count < len(page):
            return


def _held_costs(store: Store) -> Iterator[list[tuple[int, float]]]:
    """Yield pages of held chunks with their tokens (estimated), the oldest first; a repeated text has none."""
    after, texts = 0, set[str]()
    while hashes := store.held_hashes(MAX_CHUNKS_PER_COMMIT, after=after):
        after, rows = max(hashes), store.chunk_rows(list(hashes))
        page = []
        for chunk, digest in hashes.items():
            is_new = chunk in rows and digest not in texts
            page.append((chunk, estimate_tokens(rows[chunk].text) if is_new else 0.0))
            texts.add(digest)
        yield page


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
    is_enough: Callable[[], bool] = lambda: False,
    most: int = MOST,
    on_round: Callable[[Sequence[str]], None] = lambda _hashes: None,
    is_gentle: Callable[[], bool] = lambda: False,
) -> FillReport:
    """Fill in vectors of an indexer's target for about `seconds`, the `overdue` ones and the oldest chunks first.

    `on_round` receives the text hashes of each round before it, at most `most`, and `on_ready` afterwards the number
    of committed vectors and the seconds that it took. With `only` (text hashes), other chunks belong to other jobs and
    do not count as left. After `stopping`, the run waits for no answer; once it `is_enough`, it sends nothing more.
    `is_gentle` is asked before each round and commit of old texts, which are small ones then.

    Without a provider, or if vectors cannot be written, nothing happens and no chunk counts as left.

    Raises the errors of `memory.store.errors` if the store cannot be written; earlier rounds stay.
    """
    report = FillReport()
    store, batcher = indexer.target(), indexer.supply.batcher
    if batcher is None or store.vector_reason is not None:
        return report
    deadline = time.monotonic() + seconds
    while report.error is None and (began_at := time.monotonic()) < deadline and not (stopping() or is_enough()):
        enough = 0 if not indexer.overdue and is_gentle() else int(SECONDS_A_ROUND * batcher.chunks_per_second)
        count = min(most, max(FEWEST, enough, batcher.full_request))
        overdue = indexer.overdue.intersection(indexer.overdue if only is None else only)
        pending, lane = store.pending_hashes(count, among=overdue) if overdue else {}, Lane.LIVE
        if not pending:
            indexer.overdue.difference_update(overdue)
            pending, lane = store.pending_hashes(count, among=only), Lane.BACKFILL
        if not pending:
            break
        on_round(list(pending.values()))
        chunks = store.chunk_rows(list(pending))
        texts = {text_hash: chunks[number].text for number, text_hash in pending.items() if number in chunks}
        vectors: dict[str, VectorOutcome] = {**indexer.unread(texts, store)}
        vectors |= indexer.paid_vectors([text_hash for text_hash in texts if text_hash not in vectors])
        missing = {text_hash: text for text_hash, text in texts.items() if text_hash not in vectors}
        if batcher.full_request and lane is Lane.BACKFILL:
            whole = batcher.whole_requests(missing, at_least=enough, last=len(pending) < count)
            # A request counts, however few texts it holds: paid vectors make room for more of them first.
            missing = {} if vectors and len(whole) == len(missing) else whole
        if missing:
            agent, dimensions = indexer.agent.id, dimensions_of(store)
            indexer.generations.look_again()
            ticket = batcher.submit(missing, lane=lane, agent=agent, dimensions=dimensions)
            try:
                until = time.monotonic() + ROUND_TIMEOUT_SECONDS
                while not ticket.wait(_LOOK_SECONDS) and time.monotonic() < until and not stopping():
                    pass
                report.error = ticket.error()
            finally:
                ticket.cancel()
            vectors |= ticket.results()
        rows = [(number, (digest, vectors[digest])) for number, digest in pending.items() if digest in vectors]
        committed, remaining, most_rows = 0, iter(rows), MAX_CHUNKS_PER_COMMIT
        while part := dict(islice(remaining, FEWEST if lane is Lane.BACKFILL and is_gentle() else most_rows)):
            committed += store.write_vectors(part)
        indexer.overdue.difference_update(digest for _, (digest, _) in rows)
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

"""Estimate of the cost of bringing documents up to date. It reads and cuts like the indexer; it pays and writes
nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeVar

from memory.chunking.chunker import estimate_tokens, text_hash
from memory.documents.agent_files import AgentFiles
from memory.embedding.batch_jobs.batch_api import batch_api_of
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.embedding.prices import price_of
from memory.embedding.providers.provider import EmbeddingProvider, ProviderLimits
from memory.embedding.selection import ProviderChoice
from memory.index.changes import CommitBatch, IndexReport
from memory.index.fingerprint import embedding_of, fingerprint
from memory.index.generations import Generations
from memory.index.planner import Planner
from memory.index.provider import provider_of
from memory.store.reader import StoreReader
from memory.store.writer import DocumentDelete
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings, Settings

Item = TypeVar("Item")

#: Texts in one look-up.
_GROUP = 1_000

#: Bytes of a token in English notes.
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Work and cost of a run.

    `documents` are new or changed, with `messages` that are not indexed yet. `vanished` documents would be forgotten;
    `failed` ones cannot be read.

    `chunks` would get a vector, or already wait for one. They hold `texts` different texts, of which `cached` ones are
    paid for. The other `to_embed` texts hold about `tokens` tokens (`estimate_tokens`) and fill about `requests`
    requests.

    `price` is in US dollars per million tokens, None if unknown. `dollars` and `seconds` follow from the price and the
    provider's rate. With `batch`, the texts go through the provider's Batch API at its price, and the time is unknown.
    Without a `provider` ("none") there are no vectors, these figures are 0, and `reason` says why.
    """

    documents: int = 0
    vanished: int = 0
    failed: int = 0
    messages: int = 0
    chunks: int = 0
    texts: int = 0
    cached: int = 0
    to_embed: int = 0
    tokens: int = 0
    requests: int = 0
    price: float | None = 0.0
    dollars: float | None = 0.0
    seconds: float = 0.0
    batch: bool = False
    provider: str = "none"
    model: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class _Work:
    """Chunks and texts that a run works on. `texts` maps text hashes to estimated tokens, in sending order."""

    target: StoreReader | None
    provider: EmbeddingProvider | None
    chunks: int = 0
    messages: int = 0
    texts: dict[str, float] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)

    def add(self, batch: CommitBatch) -> bool:
        """Add planned changes; return True if there are new or changed documents among them."""
        for plan in batch.plans:
            self.messages += plan.messages
            added = [chunk for chunk in plan.write.added if self._reads(chunk.text)]
            self.chunks += len(added)
            self.removed.update(plan.write.removed)
            for chunk in added:
                self.texts.setdefault(chunk.text_hash, estimate_tokens(chunk.text))
            for meaning in plan.meanings:
                self.texts.setdefault(text_hash(meaning), estimate_tokens(meaning))
        for change in batch.other_changes:
            if isinstance(change, DocumentDelete) and self.target is not None:
                self.removed.update(chunk.id for chunk in self.target.chunks_of(change.key))
        return bool(batch.plans)

    def _reads(self, text: str) -> bool:
        return self.provider is None or self.provider.unread_script(text) is None

    def add_pending(self, target: StoreReader) -> None:
        """Add the pending and held chunks that the run keeps."""
        waiting = target.pending_hashes() | target.held_hashes()
        pending = {number: text_hash for number, text_hash in waiting.items() if number not in self.removed}
        self.chunks += len(pending)
        unseen = {text_hash: number for number, text_hash in pending.items() if text_hash not in self.texts}
        for numbers in _groups(list(unseen.values())):
            for number, row in target.chunk_rows(numbers).items():
                self.texts[pending[number]] = estimate_tokens(row.text)


def estimate(
    settings: Settings,
    agent: AgentSettings,
    documents: Iterable[DocumentKey],
    *,
    files: AgentFiles,
    cache: EmbeddingCacheReader | None,
    fresh: bool = False,
    bought: set[tuple[str, str]] | None = None,
    batch_from: int | None = None,
) -> Estimate:
    """Return the cost of bringing these documents up to date and of filling in the pending vectors.

    With `fresh`, a new generation is built, which takes over all vectors of the answering one. `bought` holds (provider
    identity, text hash) pairs that batch jobs or other agents' estimates buy; this estimate adds its own. The
    provider's Batch API is used from `batch_from` texts on if the settings enable it; None means never.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy: the index cannot be read.
    """
    choice, generations = provider_of(settings, agent, rebuild=fresh), Generations.of(settings, agent.id)
    provider, identity = choice.provider, choice.identity
    with ExitStack() as opened:
        target = None if fresh else generations.target_reader(fingerprint(agent, choice.identity).digest)
        answering = generations.open_reader(any_format=True)
        for reader in (target, answering):
            if reader is not None:
                opened.callback(reader.close)
        work = _Work(target, provider)
        report, changed = IndexReport(), 0
        planner = Planner(target, agent, files, provider, report)
        for key in documents:
            failed, report.again, some = report.failed, None, False
            for _ in planner.plan(key):
                some |= work.add(planner.batch)
                planner.batch = CommitBatch()
            # A document that cannot be read now changes at this moment.
            changed += report.failed == failed and (some or report.again is not None)
        if provider is None:
            reason = choice.explanation
            return Estimate(changed, report.deleted, report.failed, work.messages, work.chunks, reason=reason)
        if target is not None:
            work.add_pending(target)
        paid = set() if cache is None else cache.holds(identity, list(work.texts))
        for reader in (target, answering):
            if reader is not None and (reader is target or embedding_of(reader.meta("identity")) == identity):
                paid |= _held(reader, [text_hash for text_hash in work.texts if text_hash not in paid])
    if bought is not None:
        paid |= {text_hash for text_hash in work.texts if (identity, text_hash) in bought}
        bought |= {(identity, text_hash) for text_hash in work.texts}
    sizes = [tokens for text_hash, tokens in work.texts.items() if text_hash not in paid]
    batch = (
        batch_from is not None
        and len(sizes) >= batch_from
        and agent.remote.batch.enabled
        and batch_api_of(provider) is not None
    )
    price = price_of(agent, choice.name, provider.model, batch=batch)
    tokens = round(sum(sizes))
    requests = requests_for(sizes, provider.limits)
    return Estimate(
        documents=changed,
        vanished=report.deleted,
        failed=report.failed,
        messages=work.messages,
        chunks=work.chunks,
        texts=len(work.texts),
        cached=len(work.texts) - len(sizes),
        to_embed=len(sizes),
        tokens=tokens,
        requests=requests,
        price=price,
        dollars=price * tokens / 1e6 if price is not None else None,
        seconds=_seconds(len(sizes), tokens, requests, provider.limits),
        batch=batch,
        provider=choice.name,
        model=provider.model,
        reason=choice.reason,
    )


def rough_estimate(settings: Settings, agent: AgentSettings, *, documents: int, size: int) -> Estimate:
    """Return about the cost of embedding so many unread documents of `size` bytes in all, without a cache."""
    tokens = size // _BYTES_PER_TOKEN
    texts = max(documents, tokens // agent.chunking.tokens)
    return estimate_of(provider_of(settings, agent), agent, documents=documents, texts=texts, tokens=tokens)


def estimate_of(
    choice: ProviderChoice, agent: AgentSettings, *, texts: int, tokens: int, documents: int = 0
) -> Estimate:
    """Return the cost of embedding so many texts and tokens."""
    if (provider := choice.provider) is None:
        return Estimate(documents, reason=choice.explanation)
    requests = requests_for(repeat(tokens / max(texts, 1), texts), provider.limits)
    price = price_of(agent, choice.name, provider.model)
    return Estimate(
        documents=documents,
        chunks=texts,
        to_embed=texts,
        tokens=tokens,
        requests=requests,
        price=price,
        dollars=price * tokens / 1e6 if price is not None else None,
        seconds=_seconds(texts, tokens, requests, provider.limits),
        provider=choice.name,
        model=provider.model,
    )


def requests_for(sizes: Iterable[float], limits: ProviderLimits) -> int:
    """Return the number of requests that texts of these sizes (in tokens) fill, in this order."""
    requests, inputs, tokens = 0, 0, 0.0
    for size in sizes:
        if not requests or inputs >= limits.inputs or tokens + size > limits.tokens:
            requests, inputs, tokens = requests + 1, 0, 0.0
        inputs, tokens = inputs + 1, tokens + size
    return requests


def _held(reader: StoreReader, hashes: Sequence[str]) -> set[str]:
    """Return the texts whose vectors a generation holds."""
    return {text_hash for group in _groups(hashes) for text_hash in reader.vectors_by_hash(group)}


def _groups(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[start : start + _GROUP] for start in range(0, len(items), _GROUP))


def _seconds(inputs: int, tokens: int, requests: int, limits: ProviderLimits) -> float:
    """Return the longest of the times for computing, for the requests and for the tokens per minute."""
    return max(
        inputs / limits.chunks_per_second,
        requests * 60 / limits.requests_per_minute if limits.requests_per_minute else 0.0,
        tokens * 60 / limits.tokens_per_minute if limits.tokens_per_minute else 0.0,
    )

"""Estimate of the cost of bringing documents up to date. It reads and cuts like the indexer; it pays and writes
nothing."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

from memory.chunking.chunker import estimate_tokens, text_hash
from memory.documents.agent_files import AgentFiles
from memory.embedding.batch_jobs.batch_api import batch_api_of
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.embedding.prices import price_of
from memory.embedding.providers.provider import EmbeddingProvider, ProviderLimits
from memory.embedding.selection import ProviderChoice, facts_in
from memory.index.changes import CommitBatch, IndexReport
from memory.index.fingerprint import embedding_of, fingerprint
from memory.index.generations import Generations
from memory.index.planner import Planner
from memory.index.provider import provider_of
from memory.index.transcript_slices import format_at
from memory.store.reader import StoreReader
from memory.store.sqlite.vectors import MAX_RESIDENT_BYTES, resident_bytes
from memory.store.writer import DocumentDelete
from memory.transcripts.folding import cut_messages
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings, Settings

Item = TypeVar("Item")

#: Texts in one look-up.
_GROUP = 1_000

#: Bytes on the disk of a chunk besides its vector, and of a vector's dimension, in index and cache; bytes of a
#: dimension in the memory of a search; dimensions of a vector before the first one came.
_CHUNK_BYTES, _DIMENSION_BYTES, _DIMENSIONS = 2_600, 6, 1_536

#: Entry of a generation's `meta`: texts a second that the provider embedded in the last run.
RATE = "texts_per_second"

#: Share of the time of a sample that one of many documents may take.
_SHARE_OF_TIME = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """Work and cost of a run.

    `documents` are new or changed, with `messages` that are not indexed yet. Of the `cut_messages` of these documents,
    `cut_characters` are left out. `vanished` documents would be forgotten; `failed` ones cannot be read.

    `chunks` would get a vector, or already wait for one. They hold `texts` different texts, of which `cached` ones are
    paid for. The other `to_embed` texts hold about `tokens` tokens (`estimate_tokens`) and fill about `requests`
    requests.

    `price` is in US dollars per million tokens, None if unknown, and `dollars` follow from it. `seconds` follow from
    the `rate`, the texts a second of the last run, and from the limits a minute; None without both. With `batch`, the
    texts go through the provider's Batch API at its price, and the time is unknown.
    Without a `provider` ("none") there are no vectors, these figures are 0, and `reason` says why.

    The figures of a sample are expected ones: `at_most` tokens are two standard errors more, None if all was read.
    `programs` has the tokens of each format of transcripts. `released` tokens are those of pending chunks.
    """

    documents: int = 0
    vanished: int = 0
    failed: int = 0
    messages: int = 0
    cut_messages: int = 0
    cut_characters: int = 0
    chunks: int = 0
    texts: int = 0
    cached: int = 0
    to_embed: int = 0
    tokens: int = 0
    requests: int = 0
    price: float | None = 0.0
    dollars: float | None = 0.0
    rate: float | None = None
    seconds: float | None = 0.0
    batch: bool = False
    provider: str = "none"
    model: str | None = None
    reason: str | None = None
    at_most: int | None = None
    programs: Mapping[str, int] = field(default_factory=dict)
    released: int = 0
    dimensions: int = 0

    @property
    def disk(self) -> int:
        """Return about the bytes of the chunks on the disk, in index and cache."""
        return self.chunks * (_CHUNK_BYTES + _DIMENSION_BYTES * self.dimensions)

    @property
    def memory(self) -> int:
        """Return the bytes of the chunks' vectors in the memory of a process that searches."""
        return min(resident_bytes(self.chunks, self.dimensions)[0], MAX_RESIDENT_BYTES)

    @property
    def upper(self) -> Estimate:
        """Return the cost of the tokens that there are at most."""
        if self.at_most is None or not self.tokens:
            return self
        factor = self.at_most / self.tokens
        counts = {name: math.ceil(getattr(self, name) * factor) for name in ("chunks", "to_embed", "requests")}
        dollars = self.dollars * factor if self.dollars is not None else None
        seconds = self.seconds * factor if self.seconds is not None else None
        return replace(self, tokens=self.at_most, dollars=dollars, seconds=seconds, **counts)


@dataclass(frozen=True, slots=True)
class Sample:
    """Documents with the bytes to read of each, of which an estimate reads some, for about `seconds`."""

    sizes: Mapping[DocumentKey, int]
    seconds: float

    def in_order(self) -> list[DocumentKey]:
        """Return the documents in a random order, in which each byte is as likely to be among the first."""
        source = random.Random(0)  # noqa: S311 - a sample, the same at the next call
        return sorted(self.sizes, key=lambda key: source.expovariate(max(1, self.sizes[key])))


class _Reading(NamedTuple):
    """Part of a document that a sample read: its bytes, its program, and its new messages, chunks and texts."""

    size: int
    program: str
    messages: int
    chunks: int
    texts: Sequence[str]


@dataclass(slots=True)
class _Work:
    """Chunks and texts that a run works on. `texts` maps text hashes to estimated tokens, in sending order."""

    target: StoreReader | None
    provider: EmbeddingProvider | None
    released: float = 0.0
    chunks: int = 0
    messages: int = 0
    cut: tuple[int, int] = (0, 0)
    texts: dict[str, float] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)

    def add(self, batch: CommitBatch) -> bool:
        """Add planned changes; return True if there are new or changed documents among them."""
        for plan in batch.plans:
            self.messages += plan.messages
            for messages, characters in map(cut_messages, plan.write.notes):
                self.cut = self.cut[0] + messages, self.cut[1] + characters
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
        released = target.pending_hashes()
        waiting = released | target.held_hashes()
        pending = {number: text_hash for number, text_hash in waiting.items() if number not in self.removed}
        self.chunks += len(pending)
        unseen = {text_hash: number for number, text_hash in pending.items() if text_hash not in self.texts}
        for numbers in _groups(list(unseen.values())):
            for number, row in target.chunk_rows(numbers).items():
                self.texts[pending[number]] = tokens = estimate_tokens(row.text)
                self.released += tokens if number in released else 0.0


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
    sample: Sample | None = None,
) -> Estimate:
    """Return the cost of bringing these documents up to date and of filling in the pending vectors.

    With a `sample`, some of its documents are read in place of `documents`. With `fresh`, a new generation is built,
    which takes over all vectors of the answering one. `bought` holds (provider identity, text hash) pairs that batch
    jobs or other agents' estimates buy; this estimate adds its own. The provider's Batch API is used from `batch_from`
    texts on if the settings enable it; None means never.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy: the index cannot be read.
    """
    choice, generations = provider_of(settings, agent, rebuild=fresh), Generations.of(settings, agent.id)
    provider, identity = choice.provider, choice.identity
    readings: list[_Reading] = []
    seconds = sample.seconds if sample is not None else math.inf
    until = time.monotonic() + seconds
    most_seconds = seconds * max(_SHARE_OF_TIME, 1 / max(len(sample.sizes), 1)) if sample is not None else math.inf
    with ExitStack() as opened:
        target = None if fresh else generations.target_reader(fingerprint(agent, choice.identity).digest)
        answering = generations.open_reader(any_format=True)
        for reader in (target, answering):
            if reader is not None:
                opened.callback(reader.close)
        work = _Work(target, provider)
        report, changed = IndexReport(), 0
        planner = Planner(target, agent, files, provider, report)
        for key in documents if sample is None else sample.in_order():
            if (began_at := time.monotonic()) > until and readings:
                break
            failed, report.again, some = report.failed, None, False
            messages, chunks, texts = work.messages, work.chunks, len(work.texts)
            size, program = sample.sizes[key] if sample is not None else 0, ""
            with closing(planner.plan(key)) as parts:
                for _ in parts:
                    batch, planner.batch = planner.batch, CommitBatch()
                    some |= work.add(batch)
                    position = batch.plans[-1].write.position if batch.plans and sample is not None else None
                    program = format_at(position) or program
                    is_slow = time.monotonic() > min(until, began_at + most_seconds)
                    if position is not None and is_slow and not batch.plans[-1].write.complete:
                        indexed = target.transcript(key) if target is not None else None
                        # A compressed one, whose offset is beyond its size soon, is read to its end.
                        if (read := position.offset - (indexed.offset if indexed else 0)) < size:
                            size = read
                            break
            texts_read = list(islice(work.texts, texts, None)) if sample is not None else []
            readings.append(_Reading(size, program, work.messages - messages, work.chunks - chunks, texts_read))
            # A document that cannot be read now changes at this moment.
            changed += report.failed == failed and (some or report.again is not None)
        counts = Estimate(changed, report.deleted, report.failed, work.messages, *work.cut, reason=choice.explanation)
        if provider is None:
            cost = replace(counts, chunks=work.chunks)
            return _extrapolated(cost, sample, readings, {}) if sample is not None else cost
        if target is not None:
            work.add_pending(target)
        paid = set() if cache is None else cache.holds(identity, list(work.texts))
        answers = answering is not None and embedding_of(answering.meta("identity")) == identity
        alike = [reader for reader in (target, answering if answers else None) if reader is not None]
        for reader in alike:
            paid |= _held(reader, [text_hash for text_hash in work.texts if text_hash not in paid])
        noted = noted_in(*alike)
    if bought is not None:
        paid |= {text_hash for text_hash in work.texts if (identity, text_hash) in bought}
        bought |= {(identity, text_hash) for text_hash in work.texts}
    unpaid = {text_hash: tokens for text_hash, tokens in work.texts.items() if text_hash not in paid}
    cost = replace(
        counts,
        chunks=work.chunks,
        texts=len(work.texts),
        to_embed=len(unpaid),
        tokens=round(sum(unpaid.values())),
        reason=choice.reason,
        released=round(work.released),
    )
    cost = _extrapolated(cost, sample, readings, unpaid) if sample is not None else cost
    through_batches = (
        batch_from is not None
        and cost.to_embed >= batch_from
        and agent.remote.batch.enabled
        and batch_api_of(provider) is not None
    )
    mean = cost.tokens / max(cost.to_embed, 1)
    sizes = unpaid.values() if cost.at_most is None else repeat(mean, cost.to_embed)
    cost = replace(cost, cached=cost.texts - cost.to_embed, batch=through_batches)
    return _priced(cost, choice, agent, sizes, noted)


def _extrapolated(
    cost: Estimate, sample: Sample, readings: Sequence[_Reading], unpaid: Mapping[str, float]
) -> Estimate:
    """Return the counts of all documents of a sample: the unread bytes hold as much as those of the mean document."""
    unread = sum(sample.sizes.values()) - sum(reading.size for reading in readings)
    programs: defaultdict[str, float] = defaultdict(float)
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for size, program, messages, chunks, texts in readings:
        sizes = [unpaid[text_hash] for text_hash in texts if text_hash in unpaid]
        programs[program] += sum(sizes) * (1 + unread / len(readings) / max(1, size))
        figures = {"messages": messages, "chunks": chunks, "texts": len(texts), "to_embed": len(sizes)}
        for name, count in {**figures, "tokens": sum(sizes)}.items():
            rates[name].append(count / max(1, size))
    cost = replace(cost, programs={name: round(tokens) for name, tokens in sorted(programs.items()) if name})
    if unread <= 0:
        return cost
    totals = {name: round(getattr(cost, name) + unread * fmean(rates[name])) for name in rates}
    spread = rates["tokens"]
    error = stdev(spread) / math.sqrt(len(spread)) if len(spread) > 1 else spread[0]
    documents = cost.documents + len(sample.sizes) - len(readings)
    return replace(cost, documents=documents, at_most=totals["tokens"] + math.ceil(2 * error * unread), **totals)


def estimate_of(
    choice: ProviderChoice,
    agent: AgentSettings,
    *,
    texts: int,
    tokens: int,
    noted: Mapping[str, str] | None = None,
) -> Estimate:
    """Return the cost of embedding so many texts and tokens; `noted` as by `noted_in`."""
    cost = Estimate(chunks=texts, to_embed=texts, tokens=tokens)
    if choice.provider is None:
        return Estimate(reason=choice.explanation)
    return _priced(cost, choice, agent, repeat(tokens / max(texts, 1), texts), noted or {})


def noted_in(*readers: StoreReader | None) -> dict[str, str]:
    """Return the entries of `meta` that an estimate needs; those of the first reader count."""
    names = (RATE, "dimensions")
    opened = [reader for reader in reversed(readers) if reader is not None]
    return {name: value for reader in opened for name in names if (value := reader.meta(name)) is not None}


def _priced(
    cost: Estimate, choice: ProviderChoice, agent: AgentSettings, sizes: Iterable[float], noted: Mapping[str, str]
) -> Estimate:
    """Return the cost with its requests, price, time and dimensions, for texts of these sizes in tokens."""
    if (provider := choice.provider) is None:
        return cost
    limits, requests = provider.limits, requests_for(sizes, provider.limits)
    price = price_of(agent, choice.name, provider.model, batch=cost.batch)
    rate = float(noted[RATE]) if RATE in noted else None
    times = [
        cost.to_embed / rate if rate else None,
        requests * 60 / limits.requests_per_minute if limits.requests_per_minute else None,
        cost.tokens * 60 / limits.tokens_per_minute if limits.tokens_per_minute else None,
    ]
    return replace(
        cost,
        requests=requests,
        price=price,
        dollars=price * cost.tokens / 1e6 if price is not None else None,
        rate=rate,
        seconds=max((seconds for seconds in times if seconds is not None), default=None if cost.to_embed else 0.0),
        provider=choice.name,
        model=provider.model,
        dimensions=int(noted.get("dimensions") or facts_in(choice.identity).get("dimensions") or _DIMENSIONS),
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

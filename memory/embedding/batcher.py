"""Requests filled from all running jobs, so that thousands of small notes take tens of requests.

    submit -> backlog (live, backfill) -> senders cut batches -> claims -> cache -> provider -> cache -> futures

A sender is a thread; there are as many as the provider takes requests at a time, started when there is work and ended
without.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from itertools import islice

import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.cache import EmbeddingCache
from memory.embedding.coordination import Claims, Coordination, Item, alone
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.sender import PATIENCE_SECONDS, BatchSender
from memory.store.errors import StoreFull
from memory.store.reader import Vector
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import OutOfMemory, Terminal, Transient

log = structlog.get_logger(__name__)

#: Seconds that a live text waits for company; just enough to catch the chunks of one document.
LIVE_LINGER_SECONDS = 0.002

#: Live requests stay small: an answer to a few inputs comes back soon.
LIVE_INPUTS = 64
LIVE_TOKENS = 16_000.0

#: Requests above this size take seconds, so one sender of three or more is kept free for live texts.
_LARGE_REQUEST_TOKENS = 32_000

#: Seconds between two looks for vectors that another process is asking for.
_LOOK_FOR_CLAIMED_SECONDS = 0.05

#: Inputs from which on a request tells the provider's rate, and the weight of one in the average.
_TELLING_INPUTS = 8
_RATE_WEIGHT = 0.3


class Ticket:
    """Futures of the texts of one caller, by text hash. Made by `EmbeddingBatcher.submit`."""

    def __init__(self, futures: Mapping[str, Future[Vector | Refusal]], forget: Callable[[], None]) -> None:
        self._futures = futures
        self._forget = forget

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until everything is decided; False when it is not within the time."""
        return not wait_for(self._futures.values(), max(0.0, timeout_seconds)).not_done

    def results(self) -> dict[str, Vector | Refusal]:
        """Return the results so far, by text hash."""
        return {text_hash: future.result() for text_hash, future in self._completed() if future.exception() is None}

    def error(self) -> Transient | Terminal | None:
        """Return the reason why results are missing; None if none are, or if they may still come.

        A refusal for good says more than a passing failure.
        """
        exceptions = [future.exception() for _, future in self._completed()]
        errors = [error for error in exceptions if isinstance(error, Transient | Terminal)]
        return next((error for error in errors if isinstance(error, Terminal)), errors[0] if errors else None)

    def cancel(self) -> None:
        """Forget the texts that have not been sent yet; requests in flight still reach the cache."""
        self._forget()

    def _completed(self) -> Iterator[tuple[str, Future[Vector | Refusal]]]:
        return ((text_hash, future) for text_hash, future in self._futures.items() if future.done())


@dataclass(slots=True, eq=False, kw_only=True)
class _Entry(Item):
    """One text and the future that its waiting `callers` share. The first one pays, and called at the monotonic time
    `since`."""

    text_hash: str
    lane: Lane
    since: float
    callers: int = 0
    future: Future[Vector | Refusal] = field(default_factory=Future)

    def settle(self, result: Vector | Refusal | Transient | Terminal) -> None:
        """Give the result to all callers; the first one counts."""
        if self.future.done():
            return
        if isinstance(result, Transient | Terminal):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class _Queue(OrderedDict[str, _Entry]):
    """Entries of one lane by text hash, first come first served. The batcher locks."""

    # OrderedDict, not dict: taking from the front of a large dict is linear in the number of removed entries.

    tokens = 0.0

    def add(self, entry: _Entry) -> None:
        self[entry.text_hash] = entry
        self.tokens += entry.tokens

    def remove(self, entry: _Entry) -> bool:
        """Take an entry out; False if it is not there."""
        is_queued = self.pop(entry.text_hash, None) is not None
        self.tokens -= entry.tokens if is_queued else 0.0
        return is_queued

    def cut(self, inputs: int, tokens: float) -> list[_Entry]:
        """Take the next request's entries. One entry always fits, however large."""
        batch: list[_Entry] = []
        while self and len(batch) < inputs:
            entry = next(iter(self.values()))
            tokens -= entry.tokens
            if batch and tokens < 0:
                break
            self.remove(entry)
            batch.append(entry)
        return batch


class EmbeddingBatcher:
    """Batches across documents and jobs for one provider in one process. Thread-safe.

    For `linger_seconds` a backfill text waits for company while a sender is free; while all are busy, texts gather
    anyway. `coordination` is shared with other processes that use the provider.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        cache: EmbeddingCache | None,
        *,
        linger_seconds: float = 0.005,
        coordination: Coordination | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        limits = provider.limits
        coordination = coordination or alone(provider)
        self._provider = provider
        self._cache = cache
        self._limiter = coordination.limiter
        # Without a cache a process cannot find the vectors that another process paid for.
        self._claims = coordination.claims if cache is not None else Claims()
        self._patience = patience_seconds
        self._linger = {Lane.LIVE: min(LIVE_LINGER_SECONDS, linger_seconds), Lane.BACKFILL: linger_seconds}
        self._limits = {
            Lane.LIVE: (min(limits.inputs, LIVE_INPUTS), min(limits.tokens, LIVE_TOKENS)),
            Lane.BACKFILL: (limits.inputs, float(limits.tokens)),
        }
        self._senders = max(1, limits.concurrency)
        reserve = self._senders >= 3 and limits.tokens > _LARGE_REQUEST_TOKENS
        self._backfill_senders = self._senders - 1 if reserve else self._senders
        self._stopping = threading.Event()
        self._sender = BatchSender(provider, coordination, stopping=self._stopping, patience_seconds=patience_seconds)
        self._changed = threading.Condition(threading.RLock())
        self._queues = {lane: _Queue() for lane in Lane}
        #: All entries by text hash: in a queue, in flight, or claimed by another process.
        self._entries: dict[str, _Entry] = {}
        #: Entries that another process is embedding, and when to look for their vectors (monotonic seconds).
        self._claimed: dict[str, _Entry] = {}
        self._look_at = math.inf
        self._sending = dict.fromkeys(Lane, 0)
        self._rate = limits.chunks_per_second
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    # Calls of jobs

    def submit(self, texts: Mapping[str, str], *, lane: Lane, agent: str = "", dimensions: int | None = None) -> Ticket:
        """Ask for the vectors of texts (text hash -> text) that the cache does not have, on an agent's account.

        `dimensions` is the width of the vectors that the index holds already; the first call that knows it counts.
        Returns at once. While the provider asked to wait for long, or refused for good, the ticket is
        decided with that error without anything being sent.
        """
        futures: dict[str, Future[Vector | Refusal]] = {}
        self._sender.dimensions = self._sender.dimensions or dimensions
        with self._changed:
            refusal, now = self._refusal(), time.monotonic()
            for text_hash, text in texts.items():
                decided = refusal if text.strip() else Refusal("there is nothing to embed")
                entry = _Entry(text, agent, text_hash=text_hash, lane=lane, since=now)
                if decided is None:
                    entry = self._enlist(entry)
                else:
                    entry.settle(decided)
                futures[text_hash] = entry.future
            self._wake()
        return Ticket(futures, lambda: self._forget(futures))

    def estimate_seconds(self, count: int, *, lane: Lane = Lane.BACKFILL) -> float:
        """Return the seconds until `count` more texts would have their vectors; infinite while the provider refuses.

        Live texts wait for live ones, and for requests in flight unless a sender is kept free for them. Old texts wait
        for a full request where requests are limited.
        """
        hold = self._limiter.hold()
        if count and lane is Lane.BACKFILL and self._limiter.limited:
            return math.inf
        if hold is not None and (hold.refusal is not None or hold.useless is not None):
            return math.inf
        with self._changed:
            if lane is Lane.BACKFILL:
                ahead = len(self._entries)
            elif self._backfill_senders < self._senders:
                ahead = sum(entry.lane is Lane.LIVE for entry in self._entries.values())
            else:
                ahead = len(self._entries) - len(self._queues[Lane.BACKFILL])
            return (hold.seconds if hold is not None else 0.0) + (ahead + count) / self.chunks_per_second

    @property
    def full_request(self) -> int:
        """Return the most texts of one request where requests are limited, else 0."""
        return self._limits[Lane.BACKFILL][0] if self._limiter.limited else 0

    def whole_requests(self, texts: Mapping[str, str], *, at_least: int, last: bool) -> dict[str, str]:
        """Return the first texts, as many as fill whole requests: one, or more until there are `at_least` texts.

        These are all texts if they fill no request, or if they are the `last` ones and fewer than `at_least`.
        """
        filling: dict[str, str] = {}
        most_inputs, most_tokens = self._limits[Lane.BACKFILL]
        inputs, tokens, in_whole = 0, 0.0, 0
        for text_hash, text in texts.items():
            cost = estimate_tokens(text)
            if inputs and (inputs == most_inputs or tokens + cost > most_tokens):
                inputs, tokens, in_whole = 0, 0.0, len(filling)
                if in_whole >= at_least:
                    break
            filling[text_hash], inputs, tokens = text, inputs + 1, tokens + cost
        return filling if last or not in_whole else dict(islice(filling.items(), in_whole))

    @property
    def chunks_per_second(self) -> float:
        """Return the measured rate, or the provider's expected one before the first measurement."""
        return max(self._rate, 1e-3)

    @property
    def measured_rate(self) -> float | None:
        """Return the measured rate in texts a second; None before the first measurement."""
        return self._rate if self._rate != self._provider.limits.chunks_per_second else None

    def renew_claims(self) -> None:
        """Renew the claims on texts whose vectors wait for the cache: its outage may outlast a claim."""
        if self._cache is not None and (unsaved := self._cache.held(self._provider.identity)):
            self._claims.take(unsaved)

    def stop(self) -> None:
        """Send nothing more: queued texts get a passing failure."""
        with self._changed:
            self._stopping.set()
            self._fail_waiting(Transient("the worker is shutting down"))
            self._changed.notify_all()

    def close(self, *, timeout_seconds: float) -> None:
        """Stop, and give requests in flight `timeout_seconds` to come back; later answers are dropped."""
        self.stop()
        with self._changed:
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            log.warning("embedding_requests_abandoned", provider=self._provider.name, texts=len(self._entries))
        if self._cache is not None:
            self._cache.flush()

    # Steps with the lock held

    def _refusal(self) -> Transient | Terminal | None:
        if self._stopping.is_set():
            return Transient("the worker is shutting down")
        hold = self._limiter.hold()
        waits_for_long = hold is not None and (hold.refusal or hold.useless or hold.seconds > self._patience)
        return hold.error() if hold is not None and waits_for_long else None

    def _enlist(self, new: _Entry) -> _Entry:
        """Queue a text for one more caller; return its entry, which may be there already."""
        entry = self._entries.setdefault(new.text_hash, new)
        if entry is new or (new.lane is Lane.LIVE and self._queues[Lane.BACKFILL].remove(entry)):
            self._queues[new.lane].add(entry)
        if new.lane is Lane.LIVE:
            entry.lane = Lane.LIVE
        entry.callers += 1
        return entry

    def _wake(self) -> None:
        """Wake or start a sender if there is work."""
        if self._idle:
            self._changed.notify_all()
        elif any(self._queues.values()) and len(self._threads) < self._senders:
            thread = threading.Thread(target=self._send_until_idle, name="embedding-sender", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no memory for its stack
                if not self._threads:
                    self._fail_waiting(OutOfMemory(f"no request can be sent: {error}"))
            else:
                self._threads.add(thread)

    def _next_due(self, now: float) -> tuple[Lane | None, float]:
        """Return the lane whose request should leave next, and the time for it (monotonic seconds)."""
        hold = self._limiter.hold()
        for lane in (Lane.LIVE, Lane.BACKFILL):
            queue = self._queues[lane]
            # Several requests at once would all be refused when the provider's limit is reached.
            most_senders = 1 if self._limiter.slowed else self._backfill_senders
            if not queue or (lane is Lane.BACKFILL and self._sending[lane] >= most_senders):
                continue
            inputs, tokens = self._limits[lane]
            full = len(queue) >= inputs or queue.tokens >= tokens
            due = now if full else next(iter(queue.values())).since + self._linger[lane]
            # Backfill waits for a live request's two milliseconds, too: it would hold the sender for long.
            return lane, max(due, now + hold.seconds) if hold is not None else due
        return None, math.inf

    def _next_batch(self) -> tuple[list[_Entry], Lane] | None:
        """Wait for the next batch; None without work, or at the end."""
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = math.inf
                for entry in self._claimed.values():
                    self._queues[entry.lane].add(entry)
                self._claimed.clear()
            lane, due = self._next_due(now)
            if lane is not None and due <= now:
                self._sending[lane] += 1
                inputs, tokens = self._limits[lane]
                # A provider on trial gets one text at a time.
                return self._queues[lane].cut(1 if self._limiter.breaker.waste() else inputs, tokens), lane
            wake_at = min(due, self._look_at)
            if wake_at == math.inf:
                return None
            self._idle += 1
            self._changed.wait(max(0.0005, wake_at - now))
            self._idle -= 1
        return None

    def _fail_waiting(self, error: Transient | Terminal) -> None:
        entries = [*self._claimed.values(), *(entry for queue in self._queues.values() for entry in queue.values())]
        self._settle((entry, error) for entry in entries)

    def _take_out(self, entry: _Entry) -> None:
        if self._entries.get(entry.text_hash) is entry:
            del self._entries[entry.text_hash]
            self._claimed.pop(entry.text_hash, None)
            self._queues[entry.lane].remove(entry)

    # Steps without the lock

    def _forget(self, futures: Mapping[str, Future[Vector | Refusal]]) -> None:
        """Count one caller out. Drop texts that were not sent and that no caller wants."""
        with self._changed:
            for text_hash, future in futures.items():
                entry = self._entries.get(text_hash)
                if entry is None or entry.future is not future:
                    continue
                entry.callers -= 1
                if not entry.callers and (text_hash in self._claimed or text_hash in self._queues[entry.lane]):
                    self._take_out(entry)

    def _send_until_idle(self) -> None:
        """Send batches until there is no work."""
        while True:
            with self._changed:
                next_batch = self._next_batch()
                if next_batch is None:
                    self._threads.discard(threading.current_thread())
                    return
                self._wake()
            batch, lane = next_batch
            try:
                self._send(batch, lane)
            except Transient as outage:  # of the cache, which reports it
                self._settle((entry, outage) for entry in batch)
            except Exception as error:
                # A defect of ours or of a provider must not let callers wait for ever.
                log.exception("embedding_batch_failed", provider=self._provider.name)
                error_type = OutOfMemory if isinstance(error, MemoryError) else Transient
                failure = error_type(f"the embedding batch failed: {type(error).__name__}: {error}")
                self._settle((entry, failure) for entry in batch)
            finally:
                with self._changed:
                    self._sending[lane] -= 1
                    self._changed.notify_all()

    def _send(self, batch: Sequence[_Entry], lane: Lane) -> None:
        """Claim one batch and embed the texts that no other process is embedding."""
        hashes = [entry.text_hash for entry in batch]
        granted = self._claims.take(hashes)
        try:
            # After the claim: another job or process may have paid for some of them since they were looked up.
            cached_vectors = self._cache.get_many(self._provider.identity, hashes) if self._cache is not None else {}
            self._settle(
                (entry, cached_vectors[entry.text_hash]) for entry in batch if entry.text_hash in cached_vectors
            )
            rest = [entry for entry in batch if entry.text_hash not in cached_vectors]
            self._set_aside([entry for entry in rest if entry.text_hash not in granted])
            entries = [entry for entry in rest if entry.text_hash in granted]
            if entries:
                self._embed(entries, lane)
        finally:
            # Until the cache has taken a vector, no other process could look it up: it would pay again.
            unsaved = self._cache.held(self._provider.identity) if self._cache is not None else set()
            self._claims.release(granted - unsaved)

    def _set_aside(self, entries: Sequence[_Entry]) -> None:
        """Look later for texts that another process is embedding."""
        with self._changed:
            for entry in entries:
                if entry.callers:
                    self._claimed[entry.text_hash] = entry
                    self._look_at = min(self._look_at, time.monotonic() + _LOOK_FOR_CLAIMED_SECONDS)
                else:
                    self._take_out(entry)

    def _embed(self, batch: Sequence[_Entry], lane: Lane) -> None:
        try:
            if self._cache is not None:
                self._cache.ensure_room()
        except StoreFull as full:
            self._settle([(entry, full) for entry in batch])
            return
        began_at, embedded, parallel = time.monotonic(), 0, sum(self._sending.values())
        for entries, result in self._sender.results(
            batch, lane=lane, is_wanted=lambda: any(entry.callers for entry in batch)
        ):
            if isinstance(result, Refusal | Transient | Terminal):
                self._settle([(entry, result) for entry in entries])
            else:
                vectors = {entry.text_hash: row for entry, row in zip(entries, result, strict=True)}
                if self._cache is not None:
                    self._cache.keep(self._provider.identity, vectors)  # before any use
                self._settle([(entry, vectors[entry.text_hash]) for entry in entries])
                embedded += len(vectors)
            if isinstance(result, Transient | Terminal):
                self._spread(result)
        if embedded >= min(_TELLING_INPUTS, self._provider.limits.inputs):
            measured = embedded * parallel / max(time.monotonic() - began_at, 1e-6)
            self._rate += _RATE_WEIGHT * (measured - self._rate)

    def _spread(self, error: Transient | Terminal) -> None:
        """Fail texts that wait behind a long cool-down or a refusal at once."""
        with self._changed:
            refusal = self._refusal()
            if refusal is not None:
                self._fail_waiting(error if isinstance(error, Terminal) else refusal)

    def _settle(self, results: Iterable[tuple[_Entry, Vector | Refusal | Transient | Terminal]]) -> None:
        with self._changed:
            for entry, result in results:
                self._take_out(entry)
                entry.settle(result)

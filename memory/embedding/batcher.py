"""Requests filled from whatever jobs run, so that thousands of small notes take tens of requests.

    submit -> backlog (live, backfill) -> senders cut batches -> claims -> cache -> provider -> cache -> tickets

A sender is a thread; there are as many as the provider takes requests at a time, started when there is
work and gone after a while without.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence

import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.backlog import Backlog, BatchLimits, Entry, Ticket
from memory.embedding.cache import EmbeddingCache, VectorWriteBuffer
from memory.embedding.coordination import Coordination, Item, Meter, NoClaims, alone
from memory.embedding.gate import Urgency
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.sender import PATIENCE_SECONDS, BatchSender, Outcome
from memory.store.errors import StoreFull
from memory.store.reader import Vector
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import Terminal, Transient, Waiting

log = structlog.get_logger(__name__)

#: Seconds that a live text waits for company; just enough to catch the chunks of one document.
LIVE_LINGER_SECONDS = 0.002

#: Live requests stay small: an answer to a few inputs comes back soon.
_LIVE_INPUTS = 64
_LIVE_TOKENS = 16_000.0

#: Requests above this size take seconds, so one sender of three or more is kept free for live texts.
_LARGE_REQUEST_TOKENS = 32_000

#: Seconds after which a sender without work ends.
_IDLE_SECONDS = 5.0

#: Seconds between two looks for vectors that another process is asking for.
_LOOK_FOR_CLAIMED_SECONDS = 0.05

_URGENCY = {Lane.LIVE: Urgency.LIVE, Lane.BACKFILL: Urgency.BACKFILL}


class EmbeddingBatcher:
    """Batches across documents and jobs for one provider in one process. Thread-safe.

    `linger_seconds` is how long a backfill text waits for company while a sender is free; while all are
    busy, texts gather anyway. `dimensions` is what the index expects, when it is known. `coordination` is what this
    process shares with others that use the provider.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        cache: EmbeddingCache | None,
        *,
        linger_seconds: float = 0.005,
        coordination: Coordination | None = None,
        dimensions: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        limits = provider.limits
        self._provider = provider
        self._keeper = VectorWriteBuffer(cache, provider.identity)
        coordination = coordination or alone(provider)
        self._gate = coordination.gate
        # Without a cache a process cannot find what another process paid for.
        self._claims = coordination.claims if cache is not None else NoClaims()
        self._patience = patience_seconds
        self._idle_seconds = idle_seconds
        self._linger = {Lane.LIVE: min(LIVE_LINGER_SECONDS, linger_seconds), Lane.BACKFILL: linger_seconds}
        self._senders = max(1, limits.concurrency)
        reserve = self._senders >= 3 and limits.tokens > _LARGE_REQUEST_TOKENS
        self._backfill_senders = self._senders - 1 if reserve else self._senders
        self._stopping = threading.Event()
        self._sender = BatchSender(
            provider,
            self._gate,
            Meter(provider, coordination.usage),
            asking=coordination.asking,
            stopping=self._stopping,
            dimensions=dimensions,
            patience_seconds=patience_seconds,
        )
        self._changed = threading.Condition(threading.RLock())
        self._backlog = Backlog()
        self._entries: dict[str, Entry] = {}
        #: Entries that another process is embedding, and when to look for their vectors (monotonic seconds).
        self._claimed: dict[str, Entry] = {}
        self._look_at = math.inf
        self._sending = dict.fromkeys(Lane, 0)
        self._rate = BusyRate(limits.chunks_per_second, telling=min(8, limits.inputs))
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    # What callers use

    def submit(self, texts: Mapping[str, str], *, lane: Lane, agent: str = "") -> Ticket:
        """Ask for the vectors of texts (text hash -> text) that the cache does not have, on an agent's account.

        Returns at once. While the provider asked to wait for long, or refused for good, the ticket is
        decided with that error without anything being sent.
        """
        with self._changed:
            ticket = Ticket(list(texts), self._changed, self.forget)
            refusal = self._refusal()
            now = time.monotonic()
            for text_hash, text in texts.items():
                if not text.strip():
                    ticket.settle(text_hash, Refusal("there is nothing to embed"))
                elif refusal is not None:
                    ticket.settle(text_hash, refusal)
                else:
                    self._enlist(ticket, text_hash, text, lane, agent, now)
            self._wake()
            return ticket

    def estimate_seconds(self, count: int, *, lane: Lane = Lane.BACKFILL) -> float:
        """Return the seconds until `count` more texts would have their vectors; infinite while the provider refuses.

        Live texts wait only for live ones and for requests in flight.
        """
        with self._changed:
            if self._gate.refusal() is not None:
                return math.inf
            ahead = self._backlog.count(Lane.LIVE) if lane is Lane.LIVE else len(self._backlog)
            in_flight = len(self._entries) - len(self._backlog)
            return self._gate.delay() + (ahead + in_flight + count) / self._rate.chunks_per_second

    @property
    def chunks_per_second(self) -> float:
        """Return the measured rate, or the provider's expected one before the first measurement."""
        with self._changed:
            return self._rate.chunks_per_second

    def stop(self) -> None:
        """Send nothing more: what is queued gets a passing failure."""
        with self._changed:
            self._stopping.set()
            self._fail_backlog(Transient("the worker is shutting down"))
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
            self._sender.abandon()
        self._keeper.flush()

    def forget(self, ticket: Ticket, hashes: set[str]) -> None:
        """Take a ticket off its texts; drop texts that were not sent and that no other ticket wants."""
        with self._changed:
            for text_hash in hashes:
                entry = self._entries.get(text_hash)
                if entry is None or ticket not in entry.tickets:
                    continue
                entry.tickets.remove(ticket)
                if not entry.tickets and not entry.in_flight:
                    self._backlog.remove(entry)
                    self._claimed.pop(text_hash, None)
                    del self._entries[text_hash]

    # All below: the lock is held unless said otherwise

    def _refusal(self) -> Transient | Terminal | None:
        if self._stopping.is_set():
            return Transient("the worker is shutting down")
        refused = self._gate.refusal()
        if refused is not None:
            return refused
        delay = self._gate.delay()
        if delay > self._patience:
            return Waiting("the embedding provider asked to wait", retry_after=delay)
        return None

    def expect_dimensions(self, dimensions: int) -> None:
        """Set the width of the vectors of an index with this identity; the first call counts."""
        if self._sender.dimensions is None:
            self._sender.dimensions = dimensions

    def _enlist(self, ticket: Ticket, text_hash: str, text: str, lane: Lane, agent: str, now: float) -> None:
        entry = self._entries.get(text_hash)
        if entry is None:
            entry = Entry(text_hash, text, estimate_tokens(text), lane, now, agent)
            self._entries[text_hash] = entry
            self._backlog.add(entry)
        elif lane is Lane.LIVE and entry.lane is Lane.BACKFILL and not entry.in_flight:
            if text_hash in self._claimed:
                entry.lane = lane
            else:
                self._backlog.promote(entry)
        entry.tickets.append(ticket)

    def _wake(self) -> None:
        """Wake or start a sender if there is work."""
        if not len(self._backlog) or self._stopping.is_set():
            return
        if self._idle:
            self._changed.notify_all()
        elif len(self._threads) < self._senders:
            thread = threading.Thread(target=self._send_until_idle, name="embedding-sender", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _limits(self, lane: Lane) -> BatchLimits:
        limits = self._provider.limits
        inputs = min(limits.inputs, self._sender.largest or limits.inputs)
        if lane is Lane.LIVE or self._gate.careful:
            return BatchLimits(min(inputs, _LIVE_INPUTS), min(limits.tokens, _LIVE_TOKENS))
        return BatchLimits(inputs, limits.tokens)

    def _next_due(self, now: float) -> tuple[Lane | None, float]:
        """Return the lane whose request should leave next, and the time for it (monotonic seconds)."""
        best: tuple[Lane | None, float] = (None, math.inf)
        # The answer to a probe decides for all: until then no other request leaves.
        if self._gate.careful and any(self._sending.values()):
            return best
        held_until = now + self._gate.delay()
        for lane in (Lane.LIVE, Lane.BACKFILL):
            oldest = self._backlog.oldest(lane)
            if oldest is None or (lane is Lane.BACKFILL and self._sending[lane] >= self._backfill_senders):
                continue
            full = self._backlog.fills(lane, self._limits(lane))
            due = max(held_until, now if full else oldest.since + self._linger[lane])
            if lane is Lane.LIVE:
                # Backfill waits these two milliseconds, too: it would hold the sender for long.
                return lane, due
            best = (lane, due)
        return best

    def _next_batch(self) -> tuple[list[Entry], Lane] | None:
        """Wait for the next batch; None when there was no work for a while, or at the end."""
        idle_until = time.monotonic() + self._idle_seconds
        while not self._stopping.is_set():
            now = time.monotonic()
            self._take_up_claimed(now)
            lane, due = self._next_due(now)
            if lane is not None and due <= now:
                batch = self._backlog.cut(lane, self._limits(lane))
                for entry in batch:
                    entry.in_flight = True
                self._sending[lane] += 1
                return batch, lane
            if not len(self._backlog) and not self._claimed and now >= idle_until:
                return None
            self._idle += 1
            # While a probe is out and the backlog must wait, the end of another request wakes this thread.
            look_again = now + 1.0 if len(self._backlog) else max(idle_until, now)
            look_again = min(look_again, self._look_at)
            self._changed.wait(max(0.0005, min(due, look_again) - now))
            self._idle -= 1
        return None

    def _send_until_idle(self) -> None:
        """Send batches until there is no work. Called without the lock."""
        while True:
            with self._changed:
                taken = self._next_batch()
                if taken is None:
                    self._threads.discard(threading.current_thread())
                    return
                self._wake()
            batch, lane = taken
            try:
                self._send(batch, lane)
            except Exception as error:
                # A defect of ours or of a provider must not let callers wait for ever.
                log.exception("embedding_batch_failed", provider=self._provider.name)
                self._settle(batch, Transient(f"the embedding batch failed: {type(error).__name__}: {error}"))
            finally:
                with self._changed:
                    self._sending[lane] -= 1
                    self._changed.notify_all()

    def _send(self, batch: Sequence[Entry], lane: Lane) -> None:
        """Claim one batch and embed the texts that no other process is embedding. Called without the lock."""
        hashes = [entry.text_hash for entry in batch]
        mine = self._claims.take(hashes)
        try:
            # After the claim: another job or process may have paid for some of them since they were looked up.
            known = self._keeper.known(hashes)
            self._settle_known(batch, known)
            self._wait_for_others([e for e in batch if e.text_hash not in mine and e.text_hash not in known])
            wanted = [entry for entry in batch if entry.text_hash in mine and entry.text_hash not in known]
            if wanted:
                self._embed(wanted, lane)
        finally:
            self._claims.release(mine)

    def _wait_for_others(self, entries: Sequence[Entry]) -> None:
        """Put texts aside that another process is embedding. Called without the lock."""
        if not entries:
            return
        with self._changed:
            for entry in entries:
                entry.in_flight = False
                if entry.tickets:
                    self._claimed[entry.text_hash] = entry
                else:
                    self._entries.pop(entry.text_hash, None)
            if self._claimed:
                self._look_at = min(self._look_at, time.monotonic() + _LOOK_FOR_CLAIMED_SECONDS)

    def _take_up_claimed(self, now: float) -> None:
        """Let texts that another process was embedding be looked for again. The lock is held."""
        if now < self._look_at:
            return
        self._look_at = math.inf
        for entry in self._claimed.values():
            self._backlog.add(entry)
        self._claimed.clear()

    def _embed(self, batch: Sequence[Entry], lane: Lane) -> None:
        """Embed one batch. Called without the lock."""
        try:
            self._keeper.ensure_room()
        except StoreFull as error:
            self._settle(batch, error)
            return
        embedded = 0
        with self._changed:
            self._rate.started(len(batch))
        try:
            wanted = lambda: any(entry.tickets for entry in batch)  # noqa: E731 - a one-line question
            items = [Item(entry.text, entry.tokens, entry.agent) for entry in batch]
            for outcome in self._sender.outcomes(items, urgency=_URGENCY[lane], wanted=wanted):
                embedded += self._take(batch, outcome)
        finally:
            with self._changed:
                self._rate.ended(len(batch), embedded)

    def _take(self, batch: Sequence[Entry], outcome: Outcome) -> int:
        """Keep what came back, then hand it out; returns the number of vectors. Called without the lock."""
        entries = [batch[place] for place in outcome.places]
        result = outcome.result
        if isinstance(result, Refusal):
            self._settle(entries, result)
            return 0
        if isinstance(result, Transient | Terminal):
            self._settle(entries, result)
            self._spread(result)
            return 0
        vectors: dict[str, Vector] = {entry.text_hash: row for entry, row in zip(entries, result, strict=True)}
        self._keeper.keep(vectors)
        self._settle_known(entries, vectors)
        return len(vectors)

    def _spread(self, error: Transient | Terminal) -> None:
        """Fail the backlog at once if it waits behind a long pause or a refusal."""
        with self._changed:
            refusal = self._refusal()
            if refusal is not None:
                self._fail_backlog(error if isinstance(error, Terminal) else refusal)

    def _fail_backlog(self, error: Transient | Terminal) -> None:
        for entry in [*self._backlog.drain(), *self._claimed.values()]:
            self._finish(entry, error)
        self._claimed.clear()

    def _settle(self, entries: Sequence[Entry], result: Refusal | Transient | Terminal) -> None:
        with self._changed:
            for entry in entries:
                self._finish(entry, result)

    def _settle_known(self, entries: Sequence[Entry], vectors: Mapping[str, Vector]) -> None:
        with self._changed:
            for entry in entries:
                vector = vectors.get(entry.text_hash)
                if vector is not None:
                    self._finish(entry, vector)

    def _finish(self, entry: Entry, result: Vector | Refusal | Transient | Terminal) -> None:
        if self._entries.get(entry.text_hash) is entry:
            del self._entries[entry.text_hash]
        for ticket in entry.tickets:
            ticket.settle(entry.text_hash, result)
        entry.tickets = []


#: Busy seconds after which a measurement counts half.
_HALF_LIFE_SECONDS = 20.0

#: The expected rate counts like a measurement of this many busy seconds, until real ones outweigh it.
_PRIOR_SECONDS = 0.5


class BusyRate:
    """Chunks a second while requests are in flight, recent ones counting more. The caller locks.

    Idle time does not count, and neither do requests too small to tell: a lone live chunk says how long
    a request takes, not how many chunks a second there can be.
    """

    def __init__(self, expected: float, *, telling: int) -> None:
        self._chunks = expected * _PRIOR_SECONDS
        self._seconds = _PRIOR_SECONDS
        self._telling = telling
        self._in_flight = 0
        self._since = 0.0

    @property
    def chunks_per_second(self) -> float:
        """The estimate; always positive."""
        return max(self._chunks / self._seconds, 1e-3)

    def started(self, inputs: int) -> None:
        """A request left."""
        if inputs < self._telling:
            return
        self._advance()
        self._in_flight += 1

    def ended(self, inputs: int, embedded: int) -> None:
        """A request of so many inputs is over; so many of them got their vectors."""
        if inputs < self._telling:
            return
        self._advance()
        self._in_flight -= 1
        self._chunks += embedded

    def _advance(self) -> None:
        now = time.monotonic()
        if self._in_flight:
            busy = now - self._since
            fade = math.exp2(-busy / _HALF_LIFE_SECONDS)
            self._chunks *= fade
            self._seconds = self._seconds * fade + busy
        self._since = now

"""Give chunks without vectors theirs: those whose provider was slow, away or not there when they were committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from memory.embedding.supply import EmbeddingSupply
from memory.index.commit_batch import MAX_CHUNKS_PER_COMMIT
from memory.index.indexer import dimensions_of
from memory.store.reader import PendingChunk, Vector
from memory.store.writer import Refusal, Store
from schemas.documents import Lane
from schemas.errors import Terminal, Transient

#: Chunks are taken for about so many seconds of work: an interruption costs no more, and progress shows.
SECONDS_A_ROUND = 4.0

#: Chunks of a round, however slow or fast the provider is.
FEWEST, MOST = 64, 4 * MAX_CHUNKS_PER_COMMIT

#: A round that takes longer than this is given up; what arrives later is in the cache.
ROUND_TIMEOUT_SECONDS = 30.0

#: How often a round that waits looks whether it should stop.
_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class FillReport:
    """What a run did. `left` tells whether chunks still wait; `error` says why it stopped early, None if it did not."""

    ready: int = 0
    refused: int = 0
    left: bool = False
    error: Transient | Terminal | None = None


class Rounds:
    """Who is told of rounds of embedding. This one bounds nothing and tells nobody."""

    #: Chunks of a round at most.
    most = MOST

    def begins(self, chunks: Sequence[PendingChunk]) -> None:
        """These chunks are asked for now; the round before is over."""


def fill_vectors(
    store: Store,
    supply: EmbeddingSupply,
    *,
    agent: str,
    seconds: float,
    on_ready: Callable[[int, float], None],
    held: Callable[[Sequence[str]], Mapping[str, Vector]] = lambda _hashes: {},
    only: Collection[str] | None = None,
    stopping: Callable[[], bool] = lambda: False,
    rounds: Rounds | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FillReport:
    """Fill in vectors for about `seconds`, the oldest chunks first, on an agent's account.

    `held` gives the vectors that the agent's indexes hold for text hashes: what the cache forgot is not paid again.
    `on_ready` is told of each round: how many vectors were committed, and how many seconds they took. With `only`,
    chunks of other texts (by hash) are somebody else's; they do not count as left. Once `stopping`, no answer is waited
    for any longer. `rounds` are told of each round and may make it smaller.
    Without a provider, or where no vectors can be written, nothing happens, and nothing counts as left.

    Raises what `memory.store.errors` names when the store cannot be written; earlier rounds stay.
    """
    report = FillReport()
    rounds = rounds or Rounds()
    if not supply.available or store.vector_reason is not None:
        return report  # nothing is left that anybody could do
    deadline = clock() + seconds
    while report.error is None and clock() < deadline and not stopping():
        begun = clock()
        committed = _one_round(store, supply, agent, held, only, report, stopping, rounds)
        if committed == 0:
            break
        on_ready(committed, clock() - begun)
    report.left = bool(store.pending_chunks(1, among=only))
    return report


def _one_round(
    store: Store,
    supply: EmbeddingSupply,
    agent: str,
    held: Callable[[Sequence[str]], Mapping[str, Vector]],
    only: Collection[str] | None,
    report: FillReport,
    stopping: Callable[[], bool],
    rounds: Rounds,
) -> int:
    """Embed the next chunks and commit what came back; how many that were."""
    most = min(rounds.most, max(FEWEST, min(MOST, int(SECONDS_A_ROUND * supply.chunks_per_second))))
    chunks = store.pending_chunks(most, among=only)
    if chunks:
        rounds.begins(chunks)
    texts = {chunk.text_hash: chunk.text for chunk in chunks}
    found: dict[str, Vector | Refusal] = dict(supply.lookup(list(texts)))
    found |= held([text_hash for text_hash in texts if text_hash not in found])
    missing = {text_hash: text for text_hash, text in texts.items() if text_hash not in found}
    if missing:
        ticket = supply.request(missing, lane=Lane.BACKFILL, agent=agent, dimensions=dimensions_of(store))
        try:
            until = time.monotonic() + ROUND_TIMEOUT_SECONDS
            while not ticket.wait(_LOOK_SECONDS) and time.monotonic() < until and not stopping():
                pass
            report.error = ticket.error()
        finally:
            ticket.cancel()
        found |= ticket.results()
    rows = [(chunk.id, (chunk.text_hash, found[chunk.text_hash])) for chunk in chunks if chunk.text_hash in found]
    committed = 0
    for start in range(0, len(rows), MAX_CHUNKS_PER_COMMIT):
        committed += store.write_vectors(dict(rows[start : start + MAX_CHUNKS_PER_COMMIT]))
    refused = min(committed, sum(isinstance(value, Refusal) for _, (_, value) in rows))
    report.ready += committed - refused
    report.refused += refused
    return committed

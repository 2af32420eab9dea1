"""How far the generation under construction is, for status."""

from __future__ import annotations

from memory.index.generations import Generations, begun_at
from memory.store.reader import IndexCounts
from schemas.status import BuildState


def build_progress(generations: Generations, *, documents: int, rate: float) -> BuildState | None:
    """Look at the generation under construction; None when there is none.

    `documents` is how many it will hold, about; `rate` how many vectors a second come in at the moment, 0 when that is
    not known.

    Raises:
        StoreUnreadable, StoreCorrupt: it cannot be read.
    """
    name = generations.next()
    reader = generations.open_named(name) if name is not None else None
    if name is None or reader is None:
        return None
    try:
        counts = reader.counts()
    finally:
        reader.close()
    began = begun_at(name)
    return BuildState(
        generation=name,
        files=counts.files,
        of_files=max(documents, counts.files),
        chunks=counts.chunks,
        vectors_ready=counts.vectors_ready,
        vectors_pending=counts.vectors_pending,
        begun_at=began,
        last_change_at=counts.last_commit_at or began,
        eta_seconds=seconds_left(counts, began=began, documents=documents, rate=rate),
    )


def seconds_left(counts: IndexCounts, *, began: float | None, documents: int, rate: float) -> float | None:
    """Seconds until it may answer, None when nobody can say.

    The documents that are left take as long as those that are there did, from the beginning to the last commit (a pause
    in between counts as work); then the vectors that wait come in at their rate.
    """
    seconds = 0.0
    left = max(0, documents - counts.files)
    if left:
        if not counts.files or counts.last_commit_at is None or began is None:
            return None
        seconds += max(0.0, counts.last_commit_at - began) * left / counts.files
    if counts.vectors_pending:
        if rate <= 0:
            return None
        seconds += counts.vectors_pending / rate
    return round(seconds, 1)

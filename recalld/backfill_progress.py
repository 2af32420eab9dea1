"""The line that a backfill shows: files, chunks, rate, cache hits, failures, and when it will be done."""

from __future__ import annotations

from collections.abc import Callable

from memory.status.condition_texts import duration
from memory.store.reader import IndexCounts
from recalld.progress_bar import Progress, ProgressBar


class BackfillProgress(ProgressBar):
    """Counts from `start`, what the index held before. `expected` chunks are estimated to come, or wait for a vector.

    `embedded` says how many texts were sent since then.
    """

    def __init__(self, *, start: IndexCounts, expected: int, embedded: Callable[[], int]) -> None:
        super().__init__()
        self._start = start
        self._expected = expected
        self._embedded = embedded

    def parts(self, progress: Progress) -> list[str]:
        """What the line says."""
        counts, start = progress.counts, self._start
        read = max(0, counts.chunks - start.chunks + start.vectors_pending)
        expected = max(self._expected, read)
        finished = max(0, read - counts.vectors_pending)
        cached = counts.vectors_ready - start.vectors_ready - self._embedded()
        parts = [f"files {progress.documents:,}/{progress.of_documents:,}", f"chunks {read:,}/{expected:,}"]
        parts.append(f"{finished / max(self.seconds, 0.001):,.0f}/s")
        if cached > 0:
            parts.append(f"{cached:,} from the cache")
        if counts.vectors_pending:
            parts.append(f"{counts.vectors_pending:,} wait for vectors (keywords work)")
        if progress.failed:
            parts.append(f"{progress.failed:,} failed")
        if 0 < finished < expected:
            parts.append(f"about {duration(max(1.0, (expected - finished) * self.seconds / finished))} left")
        return parts

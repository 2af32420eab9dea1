"""The line that a backfill shows: files, chunks, rate, cache hits, failures, and when it will be done."""

from __future__ import annotations

from collections.abc import Callable

from recalld.progress_bar import ProgressBar
from recalld.status_view import duration


class BackfillProgress(ProgressBar):
    """`chunks` more are expected; `read` says how many there are now, `embedded` how many texts were paid for.

    All are of this run: counts at its start are taken off.
    """

    def __init__(
        self, *, chunks: int, read: Callable[[], int], embedded: Callable[[], int], failed: Callable[[], int]
    ) -> None:
        super().__init__()
        self._expected = chunks
        self._read = read
        self._embedded = embedded
        self._failed = failed

    def parts(self, documents: int, of_documents: int, vectors: int, of_vectors: int) -> list[str]:
        """What the line says."""
        chunks, embedded, failed = self._read(), self._embedded(), self._failed()
        rate = chunks / max(self.seconds, 0.001)
        lacking = of_vectors - vectors
        parts = [f"files {documents:,}/{of_documents:,}", f"chunks {chunks:,}/{max(self._expected, chunks):,}"]
        parts.append(f"{rate:,.0f}/s")
        ready = max(0, chunks - lacking)
        if ready:
            parts.append(f"{max(0, ready - embedded):,} from the cache")
        if lacking:
            parts.append(f"{lacking:,} wait for vectors")
        if failed:
            parts.append(f"{failed:,} failed")
        left = self._expected - ready
        if ready and left > 0:
            parts.append(f"about {duration(max(1.0, left * self.seconds / ready))} left")
        return parts

"""Progress on standard error: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from memory.status.condition_texts import duration, part_of, text_of
from memory.store.reader import IndexCounts
from recalld.invocation import to_type
from recalld.terminal_text import printable_name
from schemas.conditions import Condition

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: documents of those it was given, counts of the indexes now and at its `start`.

    `expected` chunks are estimated to come, or wait for a vector. `embedded` texts were sent since the start. `failed`
    documents could not be read or have refused chunks. `waits_for` names what is to come.
    """

    documents: int
    of_documents: int
    counts: IndexCounts
    start: IndexCounts = field(default_factory=IndexCounts)
    expected: int = 0
    embedded: int = 0
    failed: int = 0
    jobs: str = ""
    waits_for: str = ""

    @property
    def share(self) -> float:
        """Share of the work that is done, between 0 and 1."""
        vectors = self.counts.vectors_ready + self.counts.vectors_pending
        return (self.documents + self.counts.vectors_ready) / max(self.of_documents + vectors, 1)

    def line(self, seconds: float) -> str:
        """Return the figures of a run that began so many seconds ago: chunks, rate, cache hits, the time left."""
        counts, start = self.counts, self.start
        chunks = max(0, counts.chunks - start.chunks + start.vectors_pending)
        expected, finished = max(self.expected, chunks), max(0, chunks - counts.vectors_pending)
        cached = counts.vectors_ready - start.vectors_ready - self.embedded
        left = (expected - finished) * seconds / max(finished, 1)
        parts = {
            f"documents {self.documents:,}/{self.of_documents:,}": True,
            f"chunks {chunks:,}/{expected:,}": True,
            f"{finished / max(seconds, 0.001):,.0f}/s": True,
            f"{cached:,} from the cache": cached > 0,
            f"{counts.vectors_pending:,} wait for vectors (keywords work)": counts.vectors_pending,
            f"{self.failed:,} failed": self.failed,
            f"about {duration(max(1.0, left))} left": 0 < finished < expected,
            self.jobs: self.jobs,
            f"waits for {self.waits_for}": self.waits_for,
        }
        return "  ".join(text for text, is_shown in parts.items() if is_shown)


class ProgressBar:
    """Bar on a terminal, elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begun = self._said_at = time.monotonic()
        self._drawn = False
        self._warned: set[str] = set()

    @property
    def seconds(self) -> float:
        """Seconds since the bar was made."""
        return time.monotonic() - self._begun

    def warn(self, conditions: Sequence[Condition]) -> None:
        """Print every condition once; `recalld status` shows it for as long as it lasts."""
        for condition in conditions:
            text = text_of(condition)
            if text not in self._warned:
                self._warned.add(text)
                self.end()
                click.echo(f"recalld: {part_of(condition)}: {to_type(printable_name(text))}", err=True)

    def due(self) -> bool:
        """Return True if it is time to draw again, once each time."""
        now = time.monotonic()
        if now - self._said_at < (0.2 if self._terminal else _LINE_SECONDS):
            return False
        self._said_at = now
        return True

    def show(self, progress: Progress) -> None:
        """Draw the progress of a run and what it waits for, unless there is nothing to do."""
        if progress.of_documents or progress.counts.vectors_pending or progress.waits_for:
            self.draw(progress.share, progress.line(self.seconds))

    def draw(self, share: float, text: str) -> None:
        """Draw a share between 0 and 1, and a text beside it."""
        if self._terminal:
            filled = int(30 * share)
            bar = f"[{'#' * filled}{'.' * (30 - filled)}]"
            click.echo(f"\r{bar} {text}  {self.seconds:.0f} s\x1b[K", err=True, nl=False)
            self._drawn = True
        else:
            click.echo(text, err=True)

    def end(self) -> None:
        """Clear the line for other output."""
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)

"""Progress on standard error: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from memory.status.condition_texts import part_of, text_of
from memory.store.reader import IndexCounts
from recalld.invocation import to_type
from recalld.terminal_text import printable_name
from schemas.conditions import Condition

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an indexing run: documents of those it was given, counts of the indexes, state of batch jobs.

    `failed` are documents that could not be read or whose chunks were refused. `waits_for` names what is to come.
    """

    documents: int
    of_documents: int
    counts: IndexCounts
    failed: int
    jobs: str = ""
    waits_for: str = ""

    @property
    def share(self) -> float:
        """Share of the work that is done, between 0 and 1."""
        vectors = self.counts.vectors_ready + self.counts.vectors_pending
        return (self.documents + self.counts.vectors_ready) / max(self.of_documents + vectors, 1)


class ProgressBar:
    """Bar on a terminal, elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._said_at = self._begun
        self._drawn = False
        self._warned: set[str] = set()

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
        """Draw the progress of an indexing run and what it waits for, unless there is nothing to do."""
        if progress.of_documents or progress.counts.vectors_pending or progress.waits_for:
            waits = f"waits for {progress.waits_for}" if progress.waits_for else ""
            self.draw(progress.share, "  ".join(filter(None, [*self.parts(progress), progress.jobs, waits])))

    def draw(self, share: float, text: str) -> None:
        """Draw a share between 0 and 1, and a text beside it."""
        if self._terminal:
            filled = int(30 * share)
            click.echo(
                f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}  {self.seconds:.0f} s\x1b[K", err=True, nl=False
            )
            self._drawn = True
        else:
            click.echo(text, err=True)

    def parts(self, progress: Progress) -> list[str]:
        """Return the figures of the line."""
        counts = progress.counts
        return [
            f"documents {progress.documents:,}/{progress.of_documents:,}",
            f"vectors {counts.vectors_ready:,}/{counts.vectors_ready + counts.vectors_pending:,}",
        ]

    @property
    def seconds(self) -> float:
        """Seconds since the bar was made."""
        return time.monotonic() - self._begun

    def end(self) -> None:
        """Clear the line for other output."""
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)

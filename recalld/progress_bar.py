"""How far something is, on standard error: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import click

from schemas.ports import Trouble

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0


class ProgressBar:
    """A bar on a terminal, now and then a line elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._said_at = self._begun
        self._drawn = False
        self._warned: set[str] = set()

    def warn(self, troubles: Sequence[Trouble]) -> None:
        """Say every trouble once; what was said stays in `recalld status`."""
        for trouble in troubles:
            if trouble.message not in self._warned:
                self._warned.add(trouble.message)
                self.end()
                click.echo(f"recalld: {trouble.part}: {trouble.message}", err=True)

    def show(
        self, documents: int, of_documents: int, vectors: int, of_vectors: int, more: Callable[[], str] = lambda: ""
    ) -> None:
        """Draw, now and then. `more` is asked only then."""
        if of_documents == 0 and vectors == of_vectors:
            return
        now = time.monotonic()
        if now - self._said_at < (0.2 if self._terminal else _LINE_SECONDS):
            return
        self._said_at = now
        text = "  ".join(filter(None, [*self.parts(documents, of_documents, vectors, of_vectors), more()]))
        if self._terminal:
            share = (documents + vectors) / max(of_documents + of_vectors, 1)
            filled = int(30 * share)
            click.echo(
                f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}  {now - self._begun:.0f} s\x1b[K", err=True, nl=False
            )
            self._drawn = True
        else:
            click.echo(text, err=True)

    def parts(self, documents: int, of_documents: int, vectors: int, of_vectors: int) -> list[str]:
        """What the line says."""
        return [f"documents {documents:,}/{of_documents:,}", f"vectors {vectors:,}/{of_vectors:,}"]

    @property
    def seconds(self) -> float:
        """How long it has been shown."""
        return time.monotonic() - self._begun

    def end(self) -> None:
        """Leave the line to others."""
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)

"""Lines that `recalld up` prints: messages, and the progress of indexing."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path

import click
import structlog

from memory.backends.registry import last_failure
from memory.status.agent import no_documents
from memory.status.condition_texts import counted, text_of, what_happened
from memory.status.vectors import held_vectors
from recalld.invocation import to_type
from recalld.logs import without_foreign_words
from recalld.terminal_text import ProgressLine, printable_name
from recalld.wiring import AgentIndex
from schemas.conditions import Condition
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Settings
from schemas.status import IndexCounts
from workers.health.health_store import HealthStore

log = structlog.get_logger(__name__)


def is_unread() -> bool:
    """Return True if standard output is /dev/null: messages go to the log instead."""
    return os.path.samestat(os.fstat(1), Path(os.devnull).stat())


def say(message: str, *, nl: bool = True) -> None:
    """Print a message. The daemon goes on when its reader is gone (`recalld up | head`) or the disk is full."""
    log.info(message)  # in the foreground no log has this level
    try:
        click.echo(message, nl=nl)
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:
        with suppress(OSError):
            sys.stdout.flush()


def progress_line(*, files: int, ready: int, failed: int, behind: int, lacking: int) -> str:
    """Return how far indexing is: `behind` documents are to be indexed, `lacking` chunks wait for their vectors."""
    remark = f"; {failed:,} failed: see `recalld dead list`" if failed else ""
    if not (behind or lacking):
        vectors = f"{counted(ready, 'chunk')} with vectors" if ready else "by keyword only"
        return f"up to date: {counted(files, 'document')}, {vectors}{remark}"
    to_go = f", {behind:,} to go" if behind else ""
    vectors = f"; vectors {ready:,} of {ready + lacking:,}" if lacking else ""
    return f"{counted(files, 'document')} searchable by keyword{to_go}{vectors}{remark}"


class _Index(AgentIndex):
    """Counts of one agent's index at the last look. `moves`: vectors or a new generation are to come."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        super().__init__(settings, agent)
        self.counts = IndexCounts()
        self.failed = self.lacking = 0
        self.held: Condition | None = None
        self.moves = True
        self._embeds = self.choice.provider is not None

    def look(self) -> None:
        """Count documents and vectors; an index that cannot be read keeps its last counts, and status says why."""
        self.moves = False
        with suppress(RecalldError):
            is_built = self.generations.next() is None
            reader = self.generations.open_reader()
            if reader is not None:
                with closing(reader):
                    self.counts, self.failed = reader.counts(), len(reader.dead_letters())
            self.lacking = self.counts.vectors_pending if self._embeds else 0
            may_hold = self.counts.vectors_held or not is_built
            self.held = held_vectors(self.agent, self.choice.provider, self.generations) if may_hold else None
            self.moves = self.lacking > 0 or (not is_built and self.held is None)


class Progress:
    """Printer of the progress of indexing, while there is something to index."""

    def __init__(self, settings: Settings, health: HealthStore) -> None:
        self._settings = settings
        self._health = health
        self._indexes = [_Index(settings, agent) for agent in settings.agents if agent.enabled]
        self._line = ProgressLine(say, terminal=sys.stdout.isatty(), at_once=True)
        self._waited: Collection[str] = ()

    def look(self) -> None:
        """Print the progress if there is any, and the failures of backends; cheap if there is none."""
        for index in self._indexes:
            if (failure := last_failure(self._settings, index.agent)) is not None:
                self._line.once(to_type(f"{index.agent.id}: {printable_name(failure)}", agent=index.agent.id))
        # Before the indexes are counted: a document loses its mark after its commit.
        waiting = self._health.backlog()
        if waiting is None or (waiting and not self._line.due):
            return
        changed = [index for index in self._indexes if index.moves or index.agent.id in {*waiting, *self._waited}]
        self._waited = waiting
        for index in changed:
            index.look()
        if not changed:
            return
        behind = sum(pending.documents for pending in waiting.values())
        lacking = sum(index.lacking for index in self._indexes)
        held_up = self._health.held_up([index.agent.id for index in self._indexes if index.lacking])
        for agent, condition in held_up.items():
            # These lines often end in a log, where a provider's words may quote memory. Status has them.
            reason = printable_name(without_foreign_words(what_happened(condition)))
            self._line.once(to_type(f"{agent}: {reason}", agent=agent), key=reason)
        for index in self._indexes if not behind else ():
            if index.held is not None:
                line = to_type(f"{index.agent.id}: {text_of(index.held)}", agent=index.agent.id)
                self._line.once(line, key=index.held.code)
            if not (index.counts.files or index.moves):
                empty = no_documents(index.agent)
                self._line.once(to_type(f"{index.agent.id}: {printable_name(text_of(empty))}"), key=index.agent.id)
        is_whole = not behind and not any(index.moves for index in self._indexes)
        if is_whole or ((behind or lacking) and self._line.due):
            files = sum(index.counts.files for index in self._indexes)
            ready = sum(index.counts.vectors_ready for index in self._indexes)
            failed = sum(index.failed for index in self._indexes)
            line = progress_line(files=files, ready=ready, failed=failed, behind=behind, lacking=lacking)
            amount = (files, files + behind, "documents") if behind else (ready, ready + lacking, "vectors")
            self._line.draw(to_type(line), amount=None if is_whole else amount, last=is_whole)

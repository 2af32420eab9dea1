"""Lines that `recalld up` prints: messages, and the progress of indexing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field

import click

from memory.embedding.selection import ProviderChoice
from memory.index.generations import Generations, Looks
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import counted, duration, what_happened
from memory.status.vectors import vector_progress
from memory.store.reader import IndexCounts
from recalld.invocation import to_type
from recalld.logs import without_foreign_words
from recalld.terminal_text import printable_name
from recalld.wiring import BrokerSide
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Settings
from schemas.status import IndexState

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0

#: Seconds that one look may spend on counting changed indexes; the next one goes on there.
_COUNTING_SECONDS = 0.2

#: Agents that are named with a reason; the others are counted.
_SHOWN_AGENTS = 3


def say(message: str, *, nl: bool = True) -> None:
    """Print a message. The daemon goes on when its reader is gone (`recalld up | head`) or the disk is full."""
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


@dataclass(slots=True)
class Sum:
    """Progress of the indexes of all agents together.

    `behind` documents are to be indexed, and `lacking` chunks wait for their vectors. `uncounted` agents are missing
    from the numbers. `rate` is in vectors a second, 0 when it is not known, `eta_seconds` that of the slowest agent.
    At least one agent `embeds`. `held_up` are the reasons why vectors do not come, with their agents. `is_built`: no
    new generation is under construction.
    """

    files: int = 0
    vectors_ready: int = 0
    failed: int = 0
    behind: int = 0
    lacking: int = 0
    uncounted: int = 0
    rate: float = 0.0
    eta_seconds: float | None = None
    held_up: dict[str, list[str]] = field(default_factory=dict)
    advice: str | None = None
    embeds: bool = True
    is_built: bool = True


def line(known: Sum) -> str:
    """Return a sentence about how far indexing is."""
    files, ready, lacking = known.files, known.vectors_ready, known.lacking
    remarks = f"; {known.failed:,} failed: see `recalld dead list`" if known.failed else ""
    if known.uncounted:
        are = "is" if known.uncounted == 1 else "are"
        remarks += f"; {counted(known.uncounted, 'agent')} {are} not counted: see `recalld status`"
    if not (known.behind or lacking):
        vectors = f"{counted(ready, 'chunk')} with vectors" if known.embeds or ready else "by keyword only"
        return f"up to date: {counted(files, 'document')}, {vectors}{remarks}"
    text = f"{counted(files, 'document')} searchable by keyword"
    text += f", {known.behind:,} to go" if known.behind else ""
    text += f"; vectors {ready:,} of {ready + lacking:,}" if lacking else ""
    if lacking and known.eta_seconds is not None:
        text += f", {_rate(known.rate)} a second" if known.rate else ""
        text += f", about {duration(max(1.0, known.eta_seconds))} left"
    return text + remarks


@dataclass(slots=True)
class _Index:
    """Index of one agent: its provider, and its counts when it was looked at; None where it cannot be read."""

    agent: AgentSettings
    choice: ProviderChoice
    generations: Generations
    counts: IndexCounts | None = None
    failed: int = 0
    is_built: bool = True
    looked_at: float = 0.0
    looks: Looks | None = None

    def look(self) -> None:
        """Count what is there, if it changed."""
        self.looked_at = time.monotonic()
        try:
            looks, self.is_built = self.generations.looks(), self.generations.next() is None
            if looks == self.looks and looks.settled:
                return
            reader = self.generations.open_reader()
            self.looks, self.counts, self.failed = looks, IndexCounts(), 0
            if reader is not None:
                with closing(reader):
                    self.counts, self.failed = reader.counts(), len(reader.dead_letters())
        except RecalldError:
            self.looks = self.counts = None


class Progress:
    """Printer of the progress of indexing, while there is something to index."""

    def __init__(self, settings: Settings, broker: BrokerSide) -> None:
        self._board = broker.board
        self._indexes = [
            _Index(agent, provider_of(settings, agent), Generations.of(settings, agent.id))
            for agent in settings.agents
            if agent.enabled
        ]
        self._terminal = sys.stdout.isatty()
        self._said: str | None = None
        self._said_at = 0.0
        self._busy = True
        self._advised = False
        self._told: set[str] = set()

    def look(self) -> None:
        """Print the progress if there is any; cheap if there is none."""
        # Before the indexes are counted: a document loses its mark after its commit.
        waiting = self._board.waiting()
        if waiting is None or not (waiting or self._busy):
            return
        self._busy = True
        if waiting and self._said and not self._terminal and time.monotonic() - self._said_at < _LINE_SECONDS:
            return
        until = time.monotonic() + _COUNTING_SECONDS
        for index in sorted(self._indexes, key=lambda index: index.looked_at):
            index.look()
            if time.monotonic() > until:
                break
        if all(index.looked_at for index in self._indexes):
            total = self._sum(waiting)
            self._busy = bool(total.behind or total.lacking) or not total.is_built
            if total.behind or total.lacking or total.is_built:
                self._tell(total)

    def _sum(self, waiting: Mapping[str, int]) -> Sum:
        counted = [(index, index.counts) for index in self._indexes if index.counts is not None]
        total = Sum(
            behind=sum(waiting.get(index.agent.id, 0) for index in self._indexes),
            uncounted=len(self._indexes) - len(counted),
            embeds=any(index.choice.name != "none" for index in self._indexes),
            is_built=all(index.is_built for index in self._indexes),
        )
        embedding = [(index, counts) for index, counts in counted if index.choice.name != "none"]
        told = self._board.vectors_of([index.agent.id for index, counts in embedding if counts.vectors_pending])
        for index, counts in counted:
            agent = index.agent
            total.files += counts.files
            total.vectors_ready += counts.vectors_ready
            total.failed += index.failed
            if agent.id not in told:
                continue
            progress, held_up = told[agent.id]
            foreseen, _ = vector_progress(
                IndexState(vectors_pending=counts.vectors_pending, last_commit_at=counts.last_commit_at),
                progress,
                agent,
                index.choice,
                time.time(),
                in_batch_jobs=int(agent.remote.batch.enabled),
                held_back=held_up is not None,
            )
            total.lacking += counts.vectors_pending
            total.rate += foreseen.rate or 0.0
            total.eta_seconds = max(filter(None, [total.eta_seconds, foreseen.eta_seconds]), default=None)
            total.advice = total.advice or foreseen.advice
            if held_up is not None:
                total.held_up.setdefault(what_happened(held_up), []).append(agent.id)
        return total

    def _tell(self, total: Sum) -> None:
        for reason, agents in total.held_up.items():
            if reason not in self._told:
                self._told.add(reason)
                others = f" and {counted(len(agents) - _SHOWN_AGENTS, 'other')}" if len(agents) > _SHOWN_AGENTS else ""
                # These lines often end in a log, where a provider's words may quote memory. Status has them.
                ours = to_type(without_foreign_words(reason), agent=agents[0])
                say(f"{', '.join(agents[:_SHOWN_AGENTS])}{others}: {printable_name(ours)}")
        text = to_type(line(total))
        now = time.monotonic()
        late = self._terminal or not self._busy or now - self._said_at >= _LINE_SECONDS
        if text == self._said or (self._said and not late):
            return
        if self._terminal:
            say(f"\r{text}\x1b[K", nl=not self._busy)
        else:
            say(text)
        self._said, self._said_at = text, now
        if total.advice and not self._advised:
            self._advised = True
            say(total.advice)


def _rate(a_second: float) -> str:
    return f"{a_second:.0f}" if a_second >= 1 else f"{a_second:.1g}"

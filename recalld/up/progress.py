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
from recalld.terminal_text import ProgressLine, printable_name
from recalld.wiring import BrokerSide, generations_of
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, Settings
from schemas.status import IndexState

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
    from the numbers. `rate` is in vectors a second, `eta_seconds` that of the slowest agent. At least one agent
    `embeds`. `held_up` are the reasons why vectors do not come, with their agents.
    """

    files: int = 0
    vectors_ready: int = 0
    failed: int = 0
    behind: int = 0
    lacking: int = 0
    uncounted: int = 0
    rate: float = 0.0
    eta_seconds: float | None = None
    embeds: bool = True
    held_up: dict[str, list[str]] = field(default_factory=dict)
    advice: str | None = None


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
        a_second = f"{known.rate:.0f}" if known.rate >= 1 else f"{known.rate:.1g}"
        text += f", {a_second} a second" if known.rate else ""
        text += f", about {duration(max(1.0, known.eta_seconds))} left"
    return text + remarks


class _Index:
    """Index of one agent: its provider, and its counts when it was looked at; None where it cannot be read."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        self.agent = agent
        self.choice: ProviderChoice = provider_of(settings, agent)
        self.generations: Generations = generations_of(settings, agent)
        self.counts: IndexCounts | None = None
        self.failed = 0
        self.is_built = True
        self.looked_at = 0.0
        self._looks: Looks | None = None

    @property
    def embeds(self) -> bool:
        return self.choice.name != "none"

    def look(self) -> None:
        """Count the documents and vectors, if the index changed."""
        self.looked_at = time.monotonic()
        try:
            looks, self.is_built = self.generations.looks(), self.generations.next() is None
            if looks == self._looks and looks.settled:
                return
            reader = self.generations.open_reader()
            self._looks, self.counts, self.failed = looks, IndexCounts(), 0
            if reader is not None:
                with closing(reader):
                    self.counts, self.failed = reader.counts(), len(reader.dead_letters())
        except RecalldError:
            self._looks = self.counts = None


class Progress:
    """Printer of the progress of indexing, while there is something to index."""

    def __init__(self, settings: Settings, broker: BrokerSide) -> None:
        self._board = broker.board
        self._indexes = [_Index(settings, agent) for agent in settings.agents if agent.enabled]
        self._line = ProgressLine(say, terminal=sys.stdout.isatty(), at_once=True)
        self._busy = True

    def look(self) -> None:
        """Print the progress if there is any; cheap if there is none."""
        # Before the indexes are counted: a document loses its mark after its commit.
        waiting = self._board.waiting()
        if waiting is None or not (waiting or self._busy):
            return
        self._busy = True
        if waiting and not self._line.due:
            return
        until = time.monotonic() + _COUNTING_SECONDS
        for index in sorted(self._indexes, key=lambda index: index.looked_at):
            index.look()
            if time.monotonic() > until:
                break
        if all(index.looked_at for index in self._indexes):
            total = self._sum(waiting)
            is_behind = bool(total.behind or total.lacking)
            is_built = all(index.is_built for index in self._indexes)
            self._busy = is_behind or not is_built
            if is_behind or is_built:
                self._tell(total)

    def _sum(self, waiting: Mapping[str, int]) -> Sum:
        counts = [(index, index.counts) for index in self._indexes if index.counts is not None]
        total = Sum(
            files=sum(found.files for _, found in counts),
            vectors_ready=sum(found.vectors_ready for _, found in counts),
            failed=sum(index.failed for index, _ in counts),
            behind=sum(waiting.get(index.agent.id, 0) for index in self._indexes),
            uncounted=len(self._indexes) - len(counts),
            embeds=any(index.embeds for index in self._indexes),
        )
        lacking = [(index, found) for index, found in counts if found.vectors_pending and index.embeds]
        told = self._board.vectors_of([index.agent.id for index, _ in lacking])
        for index, found in lacking:
            agent, (progress, held_up) = index.agent, told[index.agent.id]
            foreseen, _ = vector_progress(
                IndexState(vectors_pending=found.vectors_pending, last_commit_at=found.last_commit_at),
                progress,
                agent,
                index.choice,
                time.time(),
                in_batch_jobs=int(agent.remote.batch.enabled),
                held_back=held_up is not None,
            )
            total.lacking += found.vectors_pending
            total.rate += foreseen.rate or 0.0
            total.eta_seconds = max(filter(None, [total.eta_seconds, foreseen.eta_seconds]), default=None)
            total.advice = total.advice or foreseen.advice
            if held_up is not None:
                total.held_up.setdefault(what_happened(held_up), []).append(agent.id)
        return total

    def _tell(self, total: Sum) -> None:
        for reason, agents in total.held_up.items():
            others = f" and {counted(len(agents) - _SHOWN_AGENTS, 'other')}" if len(agents) > _SHOWN_AGENTS else ""
            # These lines often end in a log, where a provider's words may quote memory. Status has them.
            ours = to_type(without_foreign_words(reason), agent=agents[0])
            self._line.once(f"{', '.join(agents[:_SHOWN_AGENTS])}{others}: {printable_name(ours)}", key=reason)
        if self._line.due or not self._busy:
            self._line.draw(to_type(line(total)), last=not self._busy)
            if total.advice:
                self._line.once(total.advice)

"""Lines that `recalld up` prints: messages, and the progress of indexing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import click
import redis

from memory.embedding.selection import ProviderChoice
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import counted, duration, what_happened
from memory.status.vectors import vector_progress
from recalld.invocation import to_type
from recalld.logs import without_foreign_words
from recalld.terminal_text import printable_name
from recalld.wiring import BrokerSide
from schemas.ports import Indexing
from schemas.settings import AgentSettings, Settings
from schemas.status import IndexState

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0

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
    At least one agent `embeds`. `held_up` are the reasons why vectors do not come, with their agents. It is `settled`
    when nothing was committed since it was counted.
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
    settled: bool = True


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


class Progress:
    """Printer of the progress of indexing, while there is something to index.

    It asks the broker one question for all agents, and waits a moment for the answer: the loop that looks after the
    processes goes on.
    """

    def __init__(self, settings: Settings, broker: BrokerSide) -> None:
        self._settings = settings
        self._marks = broker.queue.marks
        self._board = broker.board
        self._choices: dict[str, ProviderChoice] = {}
        self._terminal = sys.stdout.isatty()
        self._said: str | None = None
        self._said_at = 0.0
        self._busy = True
        self._advised = False
        self._told: set[str] = set()

    def look(self) -> None:
        """Print the progress if there is any; cheap if there is none."""
        try:
            waiting = bool(self._marks.agents())
        except redis.RedisError:
            return  # the broker is looked after elsewhere; progress can wait
        if not (waiting or self._busy):
            return
        known = self._board.indexing()
        if known is None:
            return
        total = self._sum(known)
        self._busy = bool(total.behind or total.lacking) or not total.settled
        if total.behind or total.lacking or total.settled:
            self._tell(total)

    def _sum(self, known: Mapping[str, Indexing]) -> Sum:
        total = Sum(embeds=False)
        for agent in self._settings.agents:
            if not agent.enabled:
                continue
            one, choice = known.get(agent.id, Indexing()), self._choice(agent)
            embeds, figures = choice.name != "none", one.figures
            total.behind += one.pending
            total.embeds |= embeds
            total.settled &= one.settled
            if figures is None:
                total.uncounted += 1
                continue
            total.files += figures.files
            total.vectors_ready += figures.vectors_ready
            total.failed += figures.dead_letters
            if not (embeds and figures.vectors_pending):
                continue
            total.lacking += figures.vectors_pending
            foreseen, _ = vector_progress(
                IndexState(vectors_pending=figures.vectors_pending, last_commit_at=figures.last_commit_at),
                one.progress,
                agent,
                choice,
                time.time(),
                in_batch_jobs=int(agent.remote.batch.enabled),
                held_back=one.held_up is not None,
            )
            total.rate += foreseen.rate or 0.0
            total.eta_seconds = max(filter(None, [total.eta_seconds, foreseen.eta_seconds]), default=None)
            total.advice = total.advice or foreseen.advice
            if one.held_up is not None:
                total.held_up.setdefault(what_happened(one.held_up), []).append(agent.id)
        return total

    def _choice(self, agent: AgentSettings) -> ProviderChoice:
        """Return the agent's provider, which is looked up once."""
        if agent.id not in self._choices:
            self._choices[agent.id] = provider_of(self._settings, agent)
        return self._choices[agent.id]

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
        if text == self._said or (
            self._busy and not self._terminal and now - self._said_at < _LINE_SECONDS and self._said
        ):
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

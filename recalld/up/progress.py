"""Lines that `recalld up` prints: messages, and the progress of indexing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import click
import redis

from memory.embedding.selection import ProviderChoice
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import what_happened
from memory.status.vectors import vector_progress
from recalld.invocation import to_type
from recalld.logs import without_foreign_words
from recalld.render.terminal_text import printable_name
from schemas.ports import Indexing
from schemas.settings import AgentSettings, Settings
from schemas.status import IndexState
from workers.health.health_store import HealthStore
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace
from workers.queue.names import Keys
from workers.queue.pending import PendingSet

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0

#: Agents that are named with a reason; the others are counted.
SHOWN_AGENTS = 3


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


@dataclass(frozen=True, slots=True)
class Sum:
    """Progress of the indexes of all agents together.

    `behind` documents are to be indexed, and `lacking` chunks wait for their vectors. `uncounted` agents are missing
    from the numbers. `rate` is in vectors a second, 0 when it is not known, `eta_seconds` that of the slowest agent.
    `embeds` tells that at least one agent has a provider. `held_up` are the reasons why vectors do not come, with their
    agents.
    """

    files: int = 0
    vectors_ready: int = 0
    failed: int = 0
    behind: int = 0
    lacking: int = 0
    uncounted: int = 0
    rate: float = 0.0
    eta_seconds: float | None = None
    held_up: Mapping[str, Sequence[str]] = field(default_factory=dict)
    advice: str | None = None
    embeds: bool = True


def line(known: Sum) -> str:
    """Return a sentence about how far indexing is."""
    files, ready, lacking = known.files, known.vectors_ready, known.lacking
    remarks = f"; {known.failed:,} failed: see `recalld dead list`" if known.failed else ""
    if known.uncounted:
        are = "is" if known.uncounted == 1 else "are"
        remarks += f"; {_counted(known.uncounted, 'agent')} {are} not counted: see `recalld status`"
    if not (known.behind or lacking):
        vectors = f"{_counted(ready, 'chunk')} with vectors" if known.embeds or ready else "by keyword only"
        return f"up to date: {_counted(files, 'document')}, {vectors}{remarks}"
    text = f"{_counted(files, 'document')} searchable by keyword"
    text += f", {known.behind:,} to go" if known.behind else ""
    text += f"; vectors {ready:,} of {ready + lacking:,}" if lacking else ""
    if lacking and known.eta_seconds is not None:
        text += f", {_rate(known.rate)} a second" if known.rate else ""
        text += f", about {_duration(known.eta_seconds)} left"
    return text + remarks


class Progress:
    """Tells how far indexing is, as long as there is something to index.

    It asks the broker one question for all agents, and waits a moment for the answer: the loop that looks after the
    processes goes on.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        client, keys = connect(settings, answer_seconds=IMPATIENT_SECONDS), Keys(namespace(settings))
        self._marks = PendingSet(client, keys)
        self._board = HealthStore(client, keys)
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
        agents = [agent for agent in self._settings.agents if agent.enabled]
        total = self._sum(agents, known)
        settled = all(one.settled for one in map(known.get, (agent.id for agent in agents)) if one is not None)
        self._busy = bool(total.behind or total.lacking) or not settled
        if total.behind or total.lacking or settled:
            self._tell(total)

    def _sum(self, agents: Sequence[AgentSettings], known: Mapping[str, Indexing]) -> Sum:
        states = [(agent, known.get(agent.id, Indexing())) for agent in agents]
        counted = [(agent, one.figures) for agent, one in states if one.figures is not None]
        waiting = [
            (agent, one, one.figures)
            for agent, one in states
            if one.figures is not None and one.figures.vectors_pending and self._choice(agent).name != "none"
        ]
        foreseen = [
            vector_progress(
                IndexState(vectors_pending=figures.vectors_pending, last_commit_at=figures.last_commit_at),
                one.progress,
                agent,
                self._choice(agent),
                time.time(),
                in_batch_jobs=int(agent.remote.batch.enabled),
                held_back=one.held_up is not None,
            )[0]
            for agent, one, figures in waiting
        ]
        held_up: dict[str, list[str]] = {}
        for agent, one, _ in waiting:
            if one.held_up is not None:
                held_up.setdefault(what_happened(one.held_up), []).append(agent.id)
        etas = [state.eta_seconds for state in foreseen if state.eta_seconds is not None]
        return Sum(
            files=sum(figures.files for _, figures in counted),
            vectors_ready=sum(figures.vectors_ready for _, figures in counted),
            failed=sum(figures.dead_letters for _, figures in counted),
            behind=sum(one.pending for _, one in states),
            lacking=sum(figures.vectors_pending for _, _, figures in waiting),
            uncounted=len(states) - len(counted),
            rate=sum(state.rate or 0.0 for state in foreseen),
            eta_seconds=max(etas, default=None),
            held_up=held_up,
            advice=next((state.advice for state in foreseen if state.advice is not None), None),
            embeds=any(self._choice(agent).name != "none" for agent, _ in states),
        )

    def _choice(self, agent: AgentSettings) -> ProviderChoice:
        """Return the agent's provider, which is looked up once."""
        choice = self._choices.get(agent.id)
        if choice is None:
            choice = self._choices[agent.id] = provider_of(self._settings, agent)
        return choice

    def _tell(self, total: Sum) -> None:
        for reason, agents in total.held_up.items():
            if reason not in self._told:
                self._told.add(reason)
                others = f" and {_counted(len(agents) - SHOWN_AGENTS, 'other')}" if len(agents) > SHOWN_AGENTS else ""
                # These lines often end in a log, where a provider's words may quote memory. Status has them.
                ours = to_type(without_foreign_words(reason), agent=agents[0])
                say(f"{', '.join(agents[:SHOWN_AGENTS])}{others}: {printable_name(ours)}")
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


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rate(a_second: float) -> str:
    return f"{a_second:.0f}" if a_second >= 1 else f"{a_second:.1g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""What `recalld up` prints: sentences, and how far indexing is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from recalld.client import Client, ClientError
from recalld.invocation import to_type
from recalld.terminal_text import printable_name
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from workers.connection import connect, namespace
from workers.marks import PendingMarks
from workers.names import Keys

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS = 10.0


def say(message: str, *, nl: bool = True) -> None:
    """Print it. What runs here goes on when nobody reads any longer (`recalld up | head`) or a log's disk is full."""
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


def _behind(state: Mapping[str, Any]) -> int:
    """Documents that the index lacks; a broker that lost its marks knows of none until all was compared."""
    disk = state["disk"]
    differing: int = sum(disk.get(name, 0) for name in ("missing", "stale", "vanished"))
    return max(int(state["queue"].get("pending", 0)), differing - len(state.get("deadLetters", ())))


def _held_up(state: Mapping[str, Any]) -> str:
    """Why no vectors come, when the endpoint is the reason."""
    endpoint = state.get("endpoint") or {}
    return f"; {endpoint['reason']}" if endpoint.get("reason") else ""


def line(states: Sequence[Mapping[str, Any]], behind: int, lacking: int) -> str:
    """How far indexing is, in words: `behind` documents are to be indexed, `lacking` chunks wait for their vectors."""
    files = sum(state["index"].get("files", 0) for state in states)
    ready = sum(state["index"].get("vectorsReady", 0) for state in states)
    failed = sum(len(state.get("deadLetters", ())) for state in states)
    said_of_failed = f"; {failed:,} failed: see `recalld dead list`" if failed else ""
    if not (behind or lacking) and files and not ready and all(state["provider"] == "none" for state in states):
        return f"up to date: {_counted(files, 'document')}, by keyword only{said_of_failed}"
    if not (behind or lacking):
        return f"up to date: {_counted(files, 'document')}, {_counted(ready, 'chunk')} with vectors{said_of_failed}"
    text = f"{_counted(files, 'document')} searchable by keyword"
    text += f", {behind:,} to go" if behind else ""
    text += f"; vectors {ready:,} of {ready + lacking:,}" if lacking else ""
    etas = [eta for state in states if (eta := state["vectors"].get("etaSeconds")) is not None]
    rates = [rate for state in states if (rate := state["vectors"].get("rate"))]
    if lacking and etas:
        text += f", {_rate(sum(rates))} a second" if rates else ""
        text += f", about {_duration(max(etas))} left"
    if lacking:
        text += "".join(dict.fromkeys(map(_held_up, states)))
    return text + said_of_failed


class Progress:
    """Tells how far indexing is, as long as there is something to index."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._marks = PendingMarks(connect(settings), Keys(namespace(settings)))
        self._terminal = sys.stdout.isatty()
        self._said: str | None = None
        self._said_at = 0.0
        self._busy = True
        self._advised = False
        self._told: set[tuple[str, str]] = set()

    def look(self) -> None:
        """Ask and tell, cheaply when there is nothing to tell."""
        try:
            waiting = bool(self._marks.agents())
        except Exception:  # noqa: BLE001 - the broker is looked after elsewhere; progress can wait
            return
        if not (waiting or self._busy):
            return
        states = [state for agent in self._settings.agents if (state := self._state(agent.id)) is not None]
        if not states:
            return
        behind = sum(map(_behind, states))
        lacking = sum(state["index"].get("vectorsPending", 0) for state in states if state["provider"] != "none")
        self._busy = bool(behind or lacking)
        self._tell(states, behind, lacking)

    def _state(self, agent: str) -> Mapping[str, Any] | None:
        client = Client.at_home(self._settings.home, agent=agent)
        if client is None:
            return None
        try:
            agents = client.status(agent=agent)["agents"]
        except ClientError:
            return None
        return agents[0] if agents else None

    def _tell(self, states: Sequence[Mapping[str, Any]], behind: int, lacking: int) -> None:
        for state in states:
            for trouble in state.get("troubles", ()):
                told = (state["agent"], trouble["message"])
                if trouble.get("code") == ConditionCode.VECTORS_WAIT and told not in self._told:
                    self._told.add(told)
                    say(f"{state['agent']}: {printable_name(to_type(trouble['message'], agent=state['agent']))}")
        text = to_type(line(states, behind, lacking))
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
        advice = next((said for state in states if (said := state["vectors"].get("advice"))), None)
        if advice and not self._advised:
            self._advised = True
            say(advice)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rate(a_second: float) -> str:
    return f"{a_second:.0f}" if a_second >= 1 else f"{a_second:.1g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

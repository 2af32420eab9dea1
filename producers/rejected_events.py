"""Paths that events named and that are no transcripts of their agent: never opened, counted, and told for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from memory.documents.scan_problems import printable
from schemas.ports import TroubleReporter

log = structlog.get_logger(__name__)

PART = "events"

#: A trouble is told again at most this often, however many paths are refused.
TELL_SECONDS = 1.0

#: Seconds after the last refusal that it stays in status.
KEPT_SECONDS = 600.0

#: Characters of a path that are shown.
SHOWN_CHARS = 200


@dataclass(slots=True)
class _Refused:
    count: int = 0
    last: str = ""
    last_at: float = 0.0
    told_at: float | None = None
    told: int = 0


class Refusals:
    """One trouble an agent. Thread-safe."""

    def __init__(self, troubles: TroubleReporter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._troubles = troubles
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refused] = {}

    def refuse(self, agent: str, kind: str, path: str, *, reason: str) -> None:
        """An event of a known agent named this path, and nothing was done with it."""
        log.warning("event_refused", kind=kind, agent=agent, reason=reason)
        with self._lock:
            refused = self._refused.setdefault(agent, _Refused())
            refused.count += 1
            refused.last = f"{_shown(path)} is {reason}"
            refused.last_at = self._clock()
        self.publish()

    def publish(self) -> None:
        """Tell what is news; take back what is old."""
        now = self._clock()
        told, over = [], []
        with self._lock:
            for agent, refused in list(self._refused.items()):
                if now - refused.last_at > KEPT_SECONDS:
                    del self._refused[agent]
                    over.append(agent)
                elif refused.told != refused.count and (
                    refused.told_at is None or now - refused.told_at >= TELL_SECONDS
                ):
                    refused.told, refused.told_at = refused.count, now
                    told.append((agent, _message(refused)))
        for agent, message in told:
            self._troubles.report(PART, message, agent=agent)
        for agent in over:
            self._troubles.resolve(PART, agent=agent)

    def tell_again(self) -> None:
        """Whoever keeps the troubles may have forgotten them."""
        with self._lock:
            for refused in self._refused.values():
                refused.told, refused.told_at = 0, None


def _message(refused: _Refused) -> str:
    one = refused.count == 1
    head = "a path in events was" if one else f"{refused.count} paths in events were"
    which = "" if one else "the last one, "
    return (
        f"{head} refused and not opened ({which}{refused.last}): correct what sends it, or add its folder to the "
        "agent's sessions"
    )


def _shown(path: str) -> str:
    text = printable(path[: SHOWN_CHARS + 1])
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."

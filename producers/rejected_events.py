"""Paths in events that are no transcripts of their agent: counted and reported, never opened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from memory.documents.scan import printable
from schemas.conditions import ConditionCode
from schemas.ports import ConditionReporter

log = structlog.get_logger(__name__)

#: Seconds between two reports of an agent, however many paths are refused.
TELL_SECONDS = 1.0

#: Seconds after the last refusal that it stays in status.
KEPT_SECONDS = 600.0

#: Characters of a path that are shown.
SHOWN_CHARS = 200


@dataclass(slots=True)
class _Refused:
    count: int = 0
    path: str = ""
    reason: str = ""
    last_at: float = 0.0
    told_at: float | None = None
    told: int = 0


class RejectedEvents:
    """Reporter of one condition per agent. Thread-safe."""

    def __init__(self, reporter: ConditionReporter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refused] = {}

    def refuse(self, agent: str, kind: str, path: str, *, reason: str) -> None:
        """Record that an event of a known agent named this path and was ignored."""
        log.warning("event_refused", kind=kind, agent=agent, reason=reason)
        with self._lock:
            refused = self._refused.setdefault(agent, _Refused())
            refused.count += 1
            refused.path, refused.reason = _shown(path), reason
            refused.last_at = self._clock()
        self.publish()

    def publish(self) -> None:
        """Report new refusals and resolve old ones."""
        now = self._clock()
        told: list[tuple[str, _Refused]] = []
        over = []
        with self._lock:
            for agent, refused in list(self._refused.items()):
                if now - refused.last_at > KEPT_SECONDS:
                    del self._refused[agent]
                    over.append(agent)
                elif refused.told != refused.count and (
                    refused.told_at is None or now - refused.told_at >= TELL_SECONDS
                ):
                    refused.told, refused.told_at = refused.count, now
                    told.append((agent, replace(refused)))
        for agent, known in told:
            self._reporter.report(
                ConditionCode.EVENT_PATHS_REFUSED,
                agent=agent,
                paths=known.count,
                path=known.path,
                reason=known.reason,
            )
        for agent in over:
            self._reporter.resolve(ConditionCode.EVENT_PATHS_REFUSED, agent=agent)

    def tell_again(self) -> None:
        """Report all conditions again: a broker that came back may have lost them."""
        with self._lock:
            for refused in self._refused.values():
                refused.told, refused.told_at = 0, None


def _shown(path: str) -> str:
    text = printable(path[: SHOWN_CHARS + 1])
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."

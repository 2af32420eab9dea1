"""Watcher that compares the stat of every document, for systems without events.

One thread for all agents. A round looks at each agent's files once. The pause between two rounds is
`interval_seconds`, and longer after an expensive round: polling costs at most `MAX_CPU_SHARE` of one core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from producers.watching.watcher import WatchedFiles, Watcher, WatchListener, WatchMode, WatchState
from schemas.documents import DocumentKey, FileStat

if TYPE_CHECKING:
    from memory.documents.agent_files import Scan

log = structlog.get_logger(__name__)

#: Share of one core that polling may take.
MAX_CPU_SHARE = 0.02


@dataclass(slots=True)
class _Polled:
    files: WatchedFiles
    seen: dict[DocumentKey, FileStat]
    failure: str | None = None
    #: Documents whose change time alone moved in the last round.
    moving: set[DocumentKey] = field(default_factory=set)


class PollingWatcher(Watcher):
    """Watcher by polling. The thread starts with the first agent."""

    def __init__(self, listener: WatchListener, *, interval_seconds: float = 5.0) -> None:
        self._listener = listener
        self._interval = interval_seconds
        self._lock = threading.Lock()
        self._agents: dict[str, _Polled] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add_root(self, agent: str, files: WatchedFiles) -> None:
        # Scanned here and not in the first round: later changes must differ from this.
        polled = _Polled(files, {})
        try:
            polled.seen = files.scan().documents
        except OSError as error:
            polled.failure = f"the files could not be looked at: {error}"
        with self._lock:
            self._agents[agent] = polled
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="watch-polling", daemon=True)
                self._thread.start()

    def remove_root(self, agent: str) -> None:
        with self._lock:
            self._agents.pop(agent, None)

    def refresh(self, agent: str) -> None:
        """Do nothing: every round looks at the present files."""

    def state(self, agent: str) -> WatchState:
        with self._lock:
            polled = self._agents.get(agent)
        if polled is None:
            return WatchState(WatchMode.OFF)
        return WatchState(WatchMode.POLLING, polled.failure)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause = self._interval
        while not self._stop.wait(pause):
            with self._lock:
                agents = list(self._agents.items())
            began = time.thread_time()
            for agent, polled in agents:
                if self._stop.is_set():
                    return
                self._look(agent, polled)
            pause = max(self._interval, (time.thread_time() - began) / MAX_CPU_SHARE)

    def _look(self, agent: str, polled: _Polled) -> None:
        try:
            scan = polled.files.scan()
        except OSError as error:
            polled.failure = f"the files could not be looked at: {error}"
            log.warning("polling_failed", agent=agent, error=str(error))
            return
        polled.failure = None
        seen = scan.documents if scan.complete else _with_unlisted(scan, polled)
        changed = dict.fromkeys(differences(polled.seen, seen))
        # A change time that moves alone is reported once it rests: on some file systems every look moves it.
        moving = {key for key in changed if _only_ctime_moved(polled.seen.get(key), seen.get(key))}
        changed.update(dict.fromkeys(polled.moving))
        polled.seen, polled.moving = seen, moving
        for key in [key for key in changed if key not in moving]:
            self._listener.on_change(agent, str(polled.files.path_of(key)))


def differences(before: Mapping[DocumentKey, FileStat], after: Mapping[DocumentKey, FileStat]) -> list[DocumentKey]:
    """Return the documents that are new, gone, or have another stat."""
    changed = [key for key, stat in after.items() if before.get(key) != stat]
    changed.extend(key for key in before if key not in after)
    return changed


def _only_ctime_moved(before: FileStat | None, after: FileStat | None) -> bool:
    return before is not None and after is not None and before.without_ctime() == after.without_ctime()


def _with_unlisted(scan: Scan, polled: _Polled) -> dict[DocumentKey, FileStat]:
    """Return the scanned documents, and the earlier ones where the scan could not look."""
    hidden = {
        key: stat
        for key, stat in polled.seen.items()
        if key not in scan.documents and scan.hides(polled.files.path_of(key))
    }
    return {**scan.documents, **hidden}

"""What callers of the batcher hold in their hands while their texts are embedded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from memory.store.reader import Vector
from memory.store.writer import Refusal
from schemas.errors import Terminal, Transient


class Ticket:
    """What one caller waits for. Made by `EmbeddingBatcher.submit`."""

    def __init__(
        self, hashes: Sequence[str], lock: threading.Condition, forget: Callable[[Ticket, set[str]], None]
    ) -> None:
        self._lock = lock
        self._forget = forget
        self._open = set(hashes)
        self._results: dict[str, Vector | Refusal] = {}
        self._error: Transient | Terminal | None = None
        self._decided = threading.Event()
        if not self._open:
            self._decided.set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until everything is decided; False when it is not within the time."""
        return self._decided.wait(max(0.0, timeout_seconds))

    def results(self) -> dict[str, Vector | Refusal]:
        """What is there now, by text hash."""
        with self._lock:
            return dict(self._results)

    def error(self) -> Transient | Terminal | None:
        """Why the rest is missing; None when nothing is, or when it may still come."""
        with self._lock:
            return self._error

    def cancel(self) -> None:
        """Forget what has not been sent yet; what is in flight still reaches the cache."""
        with self._lock:
            self._forget(self, self._open)
            self._open = set()
            self._decided.set()

    def settle(self, text_hash: str, result: Vector | Refusal | Transient | Terminal) -> None:
        """Decide one text. Called by the batcher, which holds the lock."""
        if text_hash not in self._open:
            return
        self._open.discard(text_hash)
        if isinstance(result, Transient | Terminal):
            # A refusal for good says more than a passing failure.
            if self._error is None or isinstance(result, Terminal):
                self._error = result
        else:
            self._results[text_hash] = result
        if not self._open:
            self._decided.set()

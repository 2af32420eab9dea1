"""When requests to one endpoint may leave: a cool-down after "try later", a breaker after "never"."""

from __future__ import annotations

import threading
import time
from enum import StrEnum

from schemas.errors import Terminal

#: Seconds that an endpoint which refused for good is left alone before one probe is sent.
PROBE_SECONDS = 60.0


class Admission(StrEnum):
    """What `Gate.enter` says to a request."""

    NORMAL = "normal"
    PROBE = "probe"
    REFUSED = "refused"


class Gate:
    """Shared by everybody who uses one endpoint in this process. Thread-safe.

    Cool-down: `delay` is positive until the time that the provider named has come. Breaker: after
    `trip` nothing leaves for `probe_seconds`, then one request may (the probe); its success closes
    the breaker, another refusal for good keeps it open.
    """

    def __init__(self, *, probe_seconds: float = PROBE_SECONDS) -> None:
        self._probe_seconds = probe_seconds
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._error: Terminal | None = None
        self._probe_at = 0.0
        self._probing = False

    def delay(self) -> float:
        """Seconds until a request may leave as far as the cool-down is concerned; 0 means now."""
        with self._lock:
            return max(0.0, self._not_before - time.monotonic())

    def cool_down(self, seconds: float) -> None:
        """Let nothing leave for so long. A shorter cool-down never shortens a longer one."""
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    def refusal(self) -> Terminal | None:
        """Why nothing can be sent at all for now; None when requests or a probe may be tried."""
        with self._lock:
            return self._error if self._error is not None and time.monotonic() < self._probe_at else None

    def admits(self) -> bool:
        """Whether `enter` would let a request pass."""
        with self._lock:
            return self._admits()

    @property
    def careful(self) -> bool:
        """Whether the next request is a probe, which should be small."""
        with self._lock:
            return self._error is not None

    def enter(self) -> Admission:
        """Take the right to send one request (or to probe)."""
        with self._lock:
            if not self._admits():
                return Admission.REFUSED
            if self._error is None:
                return Admission.NORMAL
            self._probing = True
            return Admission.PROBE

    def succeeded(self, admission: Admission) -> None:
        """A request was answered well. Closes the breaker if that was the probe."""
        # Requests that were on their way when the breaker opened say nothing about it.
        if admission is Admission.PROBE:
            with self._lock:
                self._error = None
                self._probing = False

    def trip(self, error: Terminal) -> None:
        """A request was refused for good: open the breaker."""
        with self._lock:
            self._error = error
            self._probe_at = time.monotonic() + self._probe_seconds
            self._probing = False

    def leave(self, admission: Admission) -> None:
        """The request is over. A probe that told nothing (a time-out, say) lets another one probe."""
        if admission is Admission.PROBE:
            with self._lock:
                self._probing = False

    def _admits(self) -> bool:
        return self._error is None or (time.monotonic() >= self._probe_at and not self._probing)

"""What the threads that run jobs are at."""

from __future__ import annotations

import threading
from typing import Any

import dramatiq

from memory.pulses import Pulses


class JobPulses(dramatiq.Middleware):
    """Tells the pulses when a thread begins and ends a job; `got_on` is for the job itself.

    A step of a job takes less than `limit_seconds`: a document, a round of embedding (30 s at most, and a wait for the
    model before it).
    """

    def __init__(self, pulses: Pulses, *, limit_seconds: float) -> None:
        self._pulses = pulses
        self._limit_seconds = limit_seconds

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:  # noqa: ARG002
        """A thread begins a job."""
        agent = message.args[0] if message.args else "?"
        pulse = self._pulses.of("job", limit_seconds=self._limit_seconds, thread=threading.get_ident())
        pulse.busy(f"{message.actor_name} of {agent}")
        _current.pulse = pulse, f"{message.actor_name} of {agent}"

    def after_process_message(
        self,
        broker: dramatiq.Broker,  # noqa: ARG002 - Dramatiq's signature
        message: dramatiq.MessageProxy,  # noqa: ARG002
        *,
        result: Any = None,  # noqa: ARG002
        exception: BaseException | None = None,  # noqa: ARG002
    ) -> None:
        """A thread is done with a job."""
        found = getattr(_current, "pulse", None)
        if found is not None:
            found[0].idle()
            _current.pulse = None

    after_skip_message = after_process_message


def got_on(*, waits_for: str | None = None) -> None:
    """Said by a job in its thread: something is done, the next step begins, which may wait for somebody else."""
    found = getattr(_current, "pulse", None)
    if found is not None:
        pulse, doing = found
        pulse.busy(doing if waits_for is None else f"{doing}: waits for {waits_for}")


_current = threading.local()

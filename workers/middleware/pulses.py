"""Middleware that reports the step of every job thread to the watchdog."""

from __future__ import annotations

import threading
from typing import Any

import dramatiq

from memory.status.pulses import Pulses


class JobPulses(dramatiq.Middleware):
    """Middleware that reports the begin and end of jobs to `pulses`; jobs call `got_on` after each step."""

    def __init__(self, pulses: Pulses) -> None:
        self._pulses = pulses

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:  # noqa: ARG002
        """Record that this thread begins a job."""
        agent = message.args[0] if message.args else "?"
        pulse = self._pulses.of("job", thread=threading.get_ident())
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
        """Record that this thread has ended its job."""
        found = getattr(_current, "pulse", None)
        if found is not None:
            found[0].idle()
            _current.pulse = None

    after_skip_message = after_process_message


def got_on(*, waits_for: str | None = None) -> None:
    """Record that the job in this thread begins its next step, which may wait for a provider (`waits_for`)."""
    found = getattr(_current, "pulse", None)
    if found is not None:
        pulse, doing = found
        pulse.busy(doing if waits_for is None else f"{doing}: waits for {waits_for}")


_current = threading.local()

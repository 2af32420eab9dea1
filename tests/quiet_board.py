"""A queue in which nothing waits and nothing is known, for tests of those who ask one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from schemas.conditions import Condition
from schemas.ports import FleetNumbers, Pending, Usage, VectorProgress
from schemas.status import BrokerState, EndpointStatus, ProcessState


class QuietBoard:
    """A `PendingReader`. Tests override what they are about."""

    def pending(self, agent: str) -> Pending | None:
        return Pending()

    def vector_progress(self, agent: str) -> VectorProgress:
        return VectorProgress()

    def conditions(self, agent: str) -> Sequence[Condition]:
        return ()

    def processes(self) -> Sequence[ProcessState]:
        return ()

    def broker(self) -> BrokerState | None:
        return None

    def usage(self, agent: str, *, day: date | None = None) -> Sequence[Usage]:
        return ()

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        return None

    def fleet(self) -> FleetNumbers | None:
        return FleetNumbers()

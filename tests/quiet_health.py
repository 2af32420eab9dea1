"""A queue in which nothing waits and of which nothing else is known, for tests of its readers."""

from __future__ import annotations

from schemas.ports import FleetNumbers, Pending, PendingReader


class QuietHealth(PendingReader):
    """A reader of that queue. Tests override what they are about."""

    def pending(self, agent: str) -> Pending | None:
        return Pending()

    def fleet(self) -> FleetNumbers | None:
        return FleetNumbers()

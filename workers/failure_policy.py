"""Policy for the failures of jobs: one table from an error to its consequence.

`decide` is pure. `workers.failures` carries its decisions out.
"""

from __future__ import annotations

from dataclasses import dataclass

from dramatiq.middleware import Interrupt

from memory.store.errors import (
    KeywordsUnavailable,
    NoRoom,
    NotOwner,
    StoreCorrupt,
    StoreFull,
    Superseded,
)
from schemas.conditions import ConditionCode
from schemas.errors import (
    BrokerUnavailable,
    Paced,
    RecalldError,
    Stopped,
    Terminal,
    Throttled,
    Transient,
    Unusable,
    Waiting,
    backoff,
)

#: Seconds until the second attempt after an unexpected error, doubled each time up to the maximum.
BACKOFF_SECONDS = 2.0
BACKOFF_MAX_SECONDS = 300.0

#: Minimum seconds between two attempts after a passing error.
PAUSE_MIN_SECONDS = 0.5

#: Seconds between two attempts while a provider refuses requests.
TERMINAL_PAUSE_SECONDS = 60.0

#: Seconds between two attempts in a process that cannot write keywords or vectors; another process may.
UNABLE_PAUSE_SECONDS = 60.0

#: Seconds of passing failures without a success after which a configured fallback provider takes over.
LOST_AFTER_SECONDS = 300.0


class Postponed(RecalldError):
    """End of a job without a failure: it comes again after `retry_in` seconds. `condition` says why, if a user should
    know."""

    def __init__(self, message: str, *, retry_in: float, condition: ConditionCode | None = None) -> None:
        super().__init__(message)
        self.retry_in = retry_in
        self.condition = condition


class ProviderFailed(Transient):
    """Passing failure of the provider, `reason`, for a job that embeds."""

    def __init__(self, reason: Transient) -> None:
        super().__init__(str(reason), retry_after=reason.retry_after)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Decision:
    """Consequence of a failure.

    `retry_in`: seconds until the next attempt, None for no other one. `condition`: code to report; `news` is False if
    an earlier report says more. `fallback_after`: seconds of this failure after which a configured fallback provider
    takes over, None for never. `rebuild`: True if the index is set aside and made again. `ends`: True if the process
    ends, and another one goes on.
    """

    retry_in: float | None
    condition: ConditionCode | None = None
    news: bool = True
    fallback_after: float | None = None
    rebuild: bool = False
    ends: bool = False


def decide(error: BaseException, attempts: int, *, lost_after_seconds: float = LOST_AFTER_SECONDS) -> Decision:
    """Return the consequence of a job's error after `attempts` earlier failures in a row."""
    match error:
        case Postponed():
            return Decision(error.retry_in, error.condition)
        case Interrupt() | BrokerUnavailable():
            return Decision(1.0)
        case StoreCorrupt():
            return Decision(None, ConditionCode.INDEX_SET_ASIDE, rebuild=True)
        case MemoryError() | ProviderFailed(reason=MemoryError()):
            return Decision(BACKOFF_SECONDS, ends=True)
        case KeywordsUnavailable():
            return Decision(UNABLE_PAUSE_SECONDS, ConditionCode.KEYWORDS_UNAVAILABLE)
        case NoRoom():
            return Decision(UNABLE_PAUSE_SECONDS, ConditionCode.NO_SPACE)
        case StoreFull():
            return Decision(10.0, ConditionCode.STORE_FULL)
        case Terminal():
            return Decision(TERMINAL_PAUSE_SECONDS, ConditionCode.PROVIDER_REFUSES, fallback_after=0.0)
        case NotOwner():
            return Decision(error.retry_after, ConditionCode.SETTINGS_OLDER)
        case Superseded() | Paced() | ProviderFailed(reason=Paced()):
            return Decision(error.retry_after or 1.0)
        case ProviderFailed(reason=Unusable() | Stopped()):
            # Another provider would embed everything again; the first one may be right again in a minute.
            return Decision(_pause(error, attempts), ConditionCode.PROVIDER_USELESS)
        case ProviderFailed():
            fallback_after = None if isinstance(error.reason, Throttled) else lost_after_seconds
            news = not isinstance(error.reason, Waiting)
            return Decision(
                _pause(error, attempts), ConditionCode.PROVIDER_FAILS, news=news, fallback_after=fallback_after
            )
        case Transient():
            return Decision(_pause(error, attempts), ConditionCode.JOB_FAILED)
    return Decision(_pause(error, attempts), ConditionCode.JOB_FAILED)


def _pause(error: BaseException, attempts: int) -> float:
    retry_after = error.retry_after if isinstance(error, Transient) else None
    unnamed = backoff(attempts + 1, first=BACKOFF_SECONDS, longest=BACKOFF_MAX_SECONDS)
    return max(unnamed if retry_after is None else retry_after, PAUSE_MIN_SECONDS)

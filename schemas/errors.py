"""Tree of exceptions, which is also the retry policy.

RecalldError
+-- UserError              a user's mistake or machine's state; one sentence and what to do; with an exit code
+-- Transient              try again, not before `retry_after` seconds
|   +-- BrokerUnavailable
|   +-- Waiting            the endpoint is in its cool-down; an earlier error has the reason
|   |   +-- Stopped        no request is sent, because earlier answers were useless
|   +-- Unusable           a billed answer has no usable vectors; only a person can mend that
|   +-- Throttled          the provider asks all users of the account to slow down
|   +-- Paced              a rate limit of the settings is reached for the moment
|   +-- OutOfMemory        this process is at its memory limit; it ends, and another one goes on
+-- Permanent              this input will never work; refuse it, go on with the others
|   +-- TooLarge           smaller pieces of the input would work
+-- Terminal               the provider refuses all requests (key, quota); stop until a user acts
"""

from __future__ import annotations


def backoff(failures: int, *, first: float, longest: float) -> float:
    """Return the seconds to wait after a number of failures in a row: doubled with each, at most `longest`.

    Callers that fail together multiply it by a random share (full jitter), so that they do not return together.
    """
    return min(longest, first * 2.0 ** min(max(failures, 1) - 1, 30))


class RecalldError(Exception):
    """Base of all errors that recalld raises on purpose. The message names the next step."""


class UserError(RecalldError):
    """Fault that a user has to mend; printed as one line, without a traceback.

    `exit_code` is 1 for a failure, 2 for wrong usage or settings (as of click).
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Transient(RecalldError):
    """Failure worth another try. `retry_after` is the number of seconds to wait, None when unknown."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BrokerUnavailable(Transient):
    """Failure of the queue's server to answer."""


class Throttled(Transient):
    """Request of the provider that all users of the account slow down (429, overload), for `retry_after` if named."""


class Waiting(Transient):
    """Refusal to send during the endpoint's cool-down. It is no new sign of the endpoint's state."""


class Stopped(Waiting):
    """Refusal to send to a provider whose answers are billed and useless (`Unusable`)."""


class Unusable(Transient):
    """Billed answer without usable vectors: sending the same texts again would cost the same again.

    `got` and `expected` are dimensions of vectors if they differ, else None.
    """

    def __init__(self, message: str, *, got: int | None = None, expected: int | None = None) -> None:
        super().__init__(message)
        self.got = got
        self.expected = expected


class Paced(Transient):
    """Refusal to send because a rate limit of the settings is used up; there is room after `retry_after`."""


class OutOfMemory(Transient, MemoryError):
    """Refusal of memory by the system."""


class Permanent(RecalldError):
    """Failure of one input for good. `reason` goes into the dead letter."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class TooLarge(Permanent):
    """Failure of an input that is too long for the provider or its model."""


class Terminal(RecalldError):
    """Refusal of all requests by the provider until a user changes something."""

"""The exception tree. It is the retry policy, too.

RecalldError
+-- UserError              a person's mistake or machine's state; one sentence and what to do; exit code on it
+-- Transient              try again, not before `retry_after` seconds
|   +-- BrokerUnavailable
|   +-- Waiting            the endpoint is left alone for the moment; why was said before
|   +-- Throttled          the provider asks everybody who uses the account to slow down
|   +-- Paced              a limit of our own settings is reached for the moment
+-- Permanent              this one input will never work; refuse it, go on with the rest
|   +-- TooLarge           smaller pieces of it would
+-- Terminal               the provider will not serve us (key, quota); stop asking until told otherwise
"""

from __future__ import annotations


class RecalldError(Exception):
    """Base of all errors that recalld raises on purpose. The message tells a person what to do next."""


class UserError(RecalldError):
    """Something a person has to change; printed as one line, without a traceback.

    `exit_code`: 1 for a failure, 2 for wrong usage or settings (the code that click uses, too).
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Transient(RecalldError):
    """Worth another try. `retry_after` is the number of seconds to wait, None when nobody said."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BrokerUnavailable(Transient):
    """The queue's server does not answer."""


class Throttled(Transient):
    """The provider asks everybody who uses the account to slow down (429, overload) for a time, which may be named."""


class Waiting(Transient):
    """Nothing was sent: the endpoint asked to wait, or did not answer lately. Says nothing new about it."""


class Paced(Transient):
    """A limit of our own settings is used up; nothing is wrong, `retry_after` seconds from now there is room."""


class Permanent(RecalldError):
    """This input will never work. `reason` goes into the dead letter."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class TooLarge(Permanent):
    """This input is too long for the provider or its model."""


class Terminal(RecalldError):
    """The provider will not serve us until a person changes something."""

"""Errors of the client.

ClientError
+-- InvalidSettings          an address, a token or a session key that cannot be used
+-- ServiceUnavailable       no service answers at that address, or another program does
|   +-- ServiceTimedOut      no answer in time
|   +-- ServiceUnproven      the program that answers did not prove to be the home's service, and was asked nothing
+-- RequestRefused           the service said no; `status` is the HTTP status
    +-- AccessRefused        401 or 403: no token, a wrong one, or another agent's
    +-- ServiceFailed        500 and above: the service's log says why
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of the client's errors."""


class InvalidSettings(ClientError, ValueError):
    """Address, token or session key that cannot be used; the message names it."""


class ServiceUnavailable(ClientError):
    """Absence of a service at the address; another program may answer there."""


class ServiceTimedOut(ServiceUnavailable):
    """Absence of an answer in time. Another try is safe: the service only reads."""


class ServiceUnproven(ServiceUnavailable):
    """Failure of a program to prove that it is the home's service. The client sent neither question nor token."""


class RequestRefused(ClientError):
    """Error that the service answered. `status` is the HTTP status, the message is the service's."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class AccessRefused(RequestRefused):
    """Refusal of a token that is missing, unknown or another agent's."""


class ServiceFailed(RequestRefused):
    """Failure of the service, or of a proxy before it."""


def refusal(message: str, *, status: int) -> RequestRefused:
    """Return the error for an HTTP status from 300 on."""
    if status in (401, 403):
        return AccessRefused(message, status=status)
    return (ServiceFailed if status >= 500 else RequestRefused)(message, status=status)

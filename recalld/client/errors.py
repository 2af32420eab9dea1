"""What the client raises.

ClientError
+-- InvalidSettings          an address, a token or a session key that cannot be used
+-- ServiceUnavailable       nobody answers at that address, or what answers is not recalld
|   +-- ServiceTimedOut      no answer in time
|   +-- ServiceUnproven      what answers did not prove to be the home's service, and was asked nothing
+-- RequestRefused           the service said no; `status` is the HTTP status
    +-- AccessRefused        401 or 403: no token, a wrong one, or another agent's
    +-- ServiceFailed        500 and above: the service's log says why
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of what the client raises."""


class InvalidSettings(ClientError, ValueError):
    """What a client was made with cannot be used; the message says what would be."""


class ServiceUnavailable(ClientError):
    """Nobody answers at that address, or not recalld."""


class ServiceTimedOut(ServiceUnavailable):
    """No answer in time. Asking again is safe: the service only reads."""


class ServiceUnproven(ServiceUnavailable):
    """The program at the address of the home's service did not prove to be it. Neither question nor token was sent."""


class RequestRefused(ClientError):
    """The service answered with an error. `status` is the HTTP status, the message is the service's."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class AccessRefused(RequestRefused):
    """The token is missing, unknown or another agent's."""


class ServiceFailed(RequestRefused):
    """The service, or a proxy before it, failed."""


def refusal(message: str, *, status: int) -> RequestRefused:
    """The error that an HTTP status from 300 on stands for."""
    if status in (401, 403):
        return AccessRefused(message, status=status)
    return (ServiceFailed if status >= 500 else RequestRefused)(message, status=status)

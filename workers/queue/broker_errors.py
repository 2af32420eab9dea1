"""Errors of a broker that answers and refuses: password, permissions, TLS. Waiting does not help.

`redis.AuthenticationError` is a `redis.ConnectionError`, and a server without TLS does not answer a TLS handshake; both
would look like a server that is away.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.retry import Retry

from schemas.errors import BrokerUnavailable

#: Seconds for a TLS handshake, which is two or three round trips.
HANDSHAKE_SECONDS = 2.0

_NAMED = "the broker named by REDIS_URL (broker.url)"

T = TypeVar("T")


class TlsFailed(redis.ConnectionError):
    """Raised for a failed TLS handshake. The message says what to do."""


class TlsConnection(redis.SSLConnection):
    """TLS connection with a shorter timeout for its handshake."""

    def _connect(self) -> Any:
        patient = self.socket_timeout
        self.socket_timeout = min(HANDSHAKE_SECONDS, patient or HANDSHAKE_SECONDS)
        try:
            connected = super()._connect()  # type: ignore[no-untyped-call] # redis has no types here
        except ssl.SSLCertVerificationError as error:
            raise TlsFailed(
                f"{_NAMED} shows a certificate that is not trusted ({error.verify_message}): name the host that it is "
                "for, and its authority's file with ?ssl_ca_certs=FILE in the URL"
            ) from error
        except (ssl.SSLError, TimeoutError) as error:
            raise TlsFailed(
                f"{_NAMED} does not answer over TLS: name its TLS port, or write redis:// instead of rediss:// if it "
                "speaks none"
            ) from error
        finally:
            self.socket_timeout = patient
        connected.settimeout(patient)
        return connected


class RetryWhatPasses(Retry):
    """Retry of errors that may pass."""

    def call_with_retry(  # type: ignore[override] # its options differ between the versions of redis
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        **options: Any,
    ) -> T:
        """Call `do` until it succeeds or fails permanently."""

        def may_pass(error: Exception) -> bool:
            return refusal(error) is None and (is_retryable is None or is_retryable(error))

        return super().call_with_retry(do, fail, is_retryable=may_pass, **options)


def refusal(error: BaseException) -> str | None:
    """Return one sentence on why the broker refuses and what to do; None for a broker that is away or failing."""
    if isinstance(error, TlsFailed):
        return str(error)
    if isinstance(error, redis.AuthenticationError):
        return (
            f"{_NAMED} answers and refuses the user or password ({str(error).rstrip('.')}): correct them in the URL "
            "(redis://USER:PASSWORD@HOST), and start again what uses it"
        )
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"{_NAMED} answers and does not permit its user what recalld needs ({error}): correct its ACL there"
    return None


def in_words(error: Exception) -> str:
    """Return one sentence on a failed broker: its refusal, or that it does not answer."""
    if isinstance(error, BrokerUnavailable):
        return str(error)
    return refusal(error) or f"the broker does not answer: {error}"

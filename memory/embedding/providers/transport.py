"""The guarded way over the network to embedding endpoints, under every provider's SDK.

Every byte passes a stream that knows the thread's `Exchange`: each wait ends when the request's seconds are used up,
whether it is for a connection, for the endpoint to take a request, for headers or for the body, and however small the
pieces are that come. Requests ask for uncompressed answers, because a bound on the bytes of a compressed body does not
bound its content. No redirect is followed.
"""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpcore2
import httpx2

from memory.embedding.providers.exchange import Exchange, current
from schemas.errors import Terminal, Transient

#: Seconds until a connection stands.
_CONNECT_SECONDS = 10.0

#: Bytes sent at a time, between two looks at the clock.
_SEND_BYTES = 65_536

_PLAIN = frozenset({"", "identity"})


class _GuardedStream(httpcore2.NetworkStream):
    """A connection whose waits end with the thread's exchange."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the exchange knows better
        exchange = current()
        try:
            data = self._stream.read(max_bytes, exchange.seconds_left())
        except httpcore2.TimeoutException as error:
            raise exchange.overdue() from error
        exchange.received(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        exchange = current()
        for start in range(0, len(buffer), _SEND_BYTES):
            piece = buffer[start : start + _SEND_BYTES]
            try:
                self._stream.write(piece, exchange.seconds_left())
            except httpcore2.TimeoutException as error:
                raise exchange.overdue() from error
            exchange.sent(len(piece))

    def close(self) -> None:
        # A thread that waits for an answer learns of it, which it does not from a close alone.
        with suppress(OSError):
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        return _connected(lambda seconds: self._stream.start_tls(*arguments, **{**options, "timeout": seconds}))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _GuardedBackend(httpcore2.SyncBackend):
    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        connect = super().connect_tcp
        return _connected(lambda seconds: connect(*arguments, **{**options, "timeout": seconds}))


def _connected(connect: Any) -> httpcore2.NetworkStream:
    exchange = current()
    try:
        return _GuardedStream(connect(min(_CONNECT_SECONDS, exchange.seconds_left())))
    except httpcore2.TimeoutException as error:
        raise Transient(f"{exchange.endpoint} took no connection in time") from error


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        self._stream.close()


class GuardedTransport(httpx2.BaseTransport):
    """A pool of connections to the endpoint at `base_url`, through the environment's proxy for it if there is one.

    A request outside of an `Exchange` is a mistake and a LookupError.
    """

    def __init__(self, base_url: str, *, keeps_connections: bool) -> None:
        url = httpx2.URL(base_url)
        proxies = {} if urllib.request.proxy_bypass(url.netloc.decode()) else urllib.request.getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            proxy=_proxy(proxy) if proxy else None,
            # The batcher and the queries' threads bound how many there are.
            max_connections=None,
            max_keepalive_connections=None if keeps_connections else 0,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(),
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = current()
        request.headers["accept-encoding"] = "identity"
        response = self._answered(request)
        if exchange.may_move and response.has_redirect_location:
            response.close()
            target = request.url.join(response.headers["location"])
            if target.scheme == request.url.scheme or target.scheme == "https":
                response = self._answered(httpx2.Request("GET", target, headers={"accept-encoding": "identity"}))
        exchange.accepted = response.is_success
        if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN:
            response.close()
            if response.is_success:
                raise Terminal(
                    f"{exchange.endpoint} compresses its answers though plain ones are asked for: "
                    "check remote.base_url, and the proxy or gateway before it"
                )
            # The status still tells the fault.
            del response.headers["content-encoding"]
            return httpx2.Response(response.status_code, headers=response.headers, content=b"")
        return response

    def _answered(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        answer = self._pool.handle_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
            )
        )
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer.stream), extensions=answer.extensions
        )

    def close(self) -> None:
        self._pool.close()

    def __del__(self) -> None:
        # Of a provider that its owner dropped without closing it.
        if hasattr(self, "_pool"):
            self._pool.close()


def connect(base_url: str, *, keeps_connections: bool = True) -> httpx2.Client:
    """Return a client over a `GuardedTransport`, which the SDKs take in place of their own.

    It neither reads ~/.netrc nor follows redirects. Without `keeps_connections` it leaves nothing to close.
    """
    transport = GuardedTransport(base_url, keeps_connections=keeps_connections)
    return httpx2.Client(transport=transport, timeout=None, trust_env=False, follow_redirects=False)


def post_json(url: str, body: object, *, headers: Mapping[str, str], seconds: float, answer_bytes: int) -> Any:
    """Return the JSON with which an endpoint that makes no vectors answers a body.

    Raises:
        RecalldError, ValueError, exceptions of httpx2 and httpcore2: no such answer within these bounds.
    """
    exchange = Exchange("the endpoint", seconds=seconds, answer_bytes=answer_bytes)
    with exchange.running(), connect(url, keeps_connections=False) as client:
        return client.post(url, json=body, headers=headers).raise_for_status().json()


def no_answer(url: str, exchange: Exchange) -> Exception | None:
    """Return the error of a plain request to an address that has no answer; None with an answer of any kind."""
    try:
        with exchange.running(), connect(url, keeps_connections=False) as client:
            client.send(client.build_request("GET", url), stream=True).close()
    except (httpcore2.NetworkError, httpcore2.ProxyError, Transient) as error:
        return error
    except Exception:  # noqa: BLE001 - a broken answer is one
        return None
    return None


def _proxy(address: str) -> httpcore2.Proxy:
    proxy = httpx2.Proxy(address if "://" in address else f"http://{address}")
    url = proxy.url
    return httpcore2.Proxy(
        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        auth=proxy.raw_auth,
        headers=proxy.headers.raw,
    )

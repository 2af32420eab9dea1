"""The client that waits for its answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from .asking import DEEP_STATUS_SECONDS, PROOF_BYTES, PROOF_SECONDS, Asking, Challenge, tool_failure
from .errors import ClientError
from .exchange import Incomplete, NotHttp, Response, reading
from .kept import KeptConnections, Stale
from .tools import TOOLS_PATH, call_body

if TYPE_CHECKING:
    from ssl import SSLContext

    from .address import Address
    from .answers import GetAnswer, SearchAnswer
    from .status_answers import Status


class Client(Asking):
    """Asks one query service. Safe to use from several threads; connections are used again for as long as they last.

    with Client(url="http://127.0.0.1:7373") as memory:
        for result in memory.search("which port did we give the gateway?")["results"]:
            print(result["path"], result["startLine"], result["snippet"])
    """

    _kept: KeptConnections[_Connection]

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go. The client can be used again."""
        self._kept.close()

    def search(
        self,
        query: str,
        *,
        agent: str | None = None,
        max_results: int | None = None,
        min_score: float | None = None,
        sources: Sequence[str] | None = None,
        corpus: str | None = None,
        session_key: str | None = None,
        wait_ms: int | None = None,
    ) -> SearchAnswer:
        """Search; the answer of `POST /v1/search`.

        Args:
            query: a question, or exact words.
            agent, session_key: instead of the client's own.
            max_results: 1 to 100; None: as the agent's settings say.
            min_score: 0 to 1; None: as the agent's settings say.
            sources: "memory" (notes), "sessions" (transcripts), or both.
            corpus: "memory", "sessions" or "all", as the tool says it; "wiki" finds nothing.
            wait_ms: milliseconds to wait at most for what was written before the search; None: 500.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = self._search_body(
            query,
            agent=agent,
            max_results=max_results,
            min_score=min_score,
            sources=sources,
            corpus=corpus,
            session_key=session_key,
            wait_ms=wait_ms,
        )
        return cast("SearchAnswer", self._call("POST", "/v1/search", body, extra_seconds=(wait_ms or 0) / 1000))

    def get(
        self,
        path: str,
        *,
        start_line: int | None = None,
        lines: int | None = None,
        corpus: str | None = None,
        agent: str | None = None,
        session_key: str | None = None,
    ) -> GetAnswer:
        """Read lines of a memory document; the answer of `POST /v1/get`. `start_line` counts from 1.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = self._get_body(
            path, start_line=start_line, lines=lines, corpus=corpus, agent=agent, session_key=session_key
        )
        return cast("GetAnswer", self._call("POST", "/v1/get", body))

    def status(self, *, agent: str | None = None, deep: bool = False) -> Status:
        """The answer of `GET /v1/status`; `deep` also checks whether the indexes hold together, which takes longer.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        path = self._status_path(agent=agent, deep=deep)
        return cast("Status", self._call("GET", path, extra_seconds=DEEP_STATUS_SECONDS if deep else 0.0))

    def call_tool(
        self,
        name: str,
        arguments: str | dict[str, Any],
        *,
        agent: str | None = None,
        session_key: str | None = None,
    ) -> str:
        """Do what a model asked for; the content of the message that answers it, as JSON.

        Args:
            name, arguments: as they stand in the model's call; arguments as JSON or as a dictionary.
            agent, session_key: instead of the client's own, never something that the model said.

        What the model did wrong is an answer that it can learn from, `{"error": ...}`. A service that is not there is
        one, too, with `unavailable`.

        Raises:
            RequestRefused: the service does not take this client's token, agent or address.
        """
        body = {**call_body(name, arguments), **self._who(agent, session_key)}
        try:
            return json.dumps(self._call("POST", TOOLS_PATH, body), ensure_ascii=False)
        except ClientError as error:
            return tool_failure(error, name, arguments)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, extra_seconds: float = 0.0
    ) -> dict[str, Any]:
        seconds = self._answer_timeout_seconds + extra_seconds
        try:
            return self._answer(path, self._exchanged(method, path, body, seconds))
        except (Stale, Incomplete):
            raise self._no_answer(ConnectionError("the connection was closed without an answer")) from None
        except NotHttp:
            raise self._not_recalld() from None
        except OSError as error:
            raise self._no_answer(error) from error

    def _exchanged(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Response:
        kept = self._kept.take()
        if kept is not None:
            # The service may close a connection just when it is used again. It only reads, so asking twice is safe.
            with suppress(Stale):
                return self._exchanged_over(kept, self._request(method, path, body), seconds)
        connection = self._proven()
        return self._exchanged_over(connection, self._request(method, path, body), seconds)

    def _proven(self) -> _Connection:
        """A new connection, to the right service where that is one of a home."""
        challenge = self._challenge()
        connection = self._connected()
        if challenge is not None:
            try:
                self._check_proof(challenge, self._proof(connection, challenge))
            except BaseException:
                connection.close()
                raise
        return connection

    def _exchanged_over(self, connection: _Connection, request: bytes, seconds: float) -> Response:
        try:
            response = connection.exchange(request, seconds=seconds)
        except BaseException as error:
            connection.close()
            if isinstance(error, _timeout()):
                raise self._too_late(seconds) from None
            raise
        if response.reusable:
            self._kept.give(connection)
        else:
            connection.close()
        return response

    def _proof(self, connection: _Connection, challenge: Challenge) -> Response:
        try:
            return connection.exchange(challenge.request, seconds=PROOF_SECONDS, most_bytes=PROOF_BYTES)
        except NotHttp:
            raise self._unproven() from None
        except _timeout():
            raise self._too_late(PROOF_SECONDS) from None

    def _connected(self) -> _Connection:
        if self.address.secure and self._ssl_context is None:
            import ssl

            self._ssl_context = ssl.create_default_context()
        return _Connection(self.address, self._ssl_context, timeout_seconds=self._connect_timeout_seconds)


class _Connection:
    """One connection of this process. Raises OSError for whatever is wrong with it."""

    def __init__(self, address: Address, ssl_context: SSLContext | None, *, timeout_seconds: float) -> None:
        import socket  # only here: without a running service nobody has to wait for it

        self._process = os.getpid()
        self._socket = socket.create_connection((address.host, address.port), timeout_seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.secure and ssl_context is not None:
                self._socket = ssl_context.wrap_socket(self._socket, server_hostname=address.host)
        except BaseException:
            self._socket.close()
            raise

    def usable(self) -> bool:
        """Whether this process opened it: after a fork, both would read each other's answers."""
        return self._process == os.getpid()

    def close(self) -> None:
        self._socket.close()

    def exchange(self, request: bytes, *, seconds: float, most_bytes: float = inf) -> Response:
        """Send a request and read its answer of at most `most_bytes`, both in so many seconds.

        Raises:
            Stale: the connection ended before a byte of the answer came.
            Incomplete, NotHttp: what came is no answer.
            OSError: time is over, or the connection broke.
        """
        deadline = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        # A service that refuses a request early closes before it took all of it; its answer can still be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(request)
        answer = reading(most_bytes=most_bytes)
        next(answer)
        started = False
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                if started:
                    raise
                raise Stale from None
            if not (data or started):
                raise Stale
            started = True
            try:
                answer.send(data)
            except StopIteration as whole:
                response: Response = whole.value
                return response


def _timeout() -> type[OSError]:
    import socket

    return socket.timeout  # not TimeoutError before Python 3.10

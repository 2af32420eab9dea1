"""The client for asyncio. It imports asyncio only when it connects: recalld's own commands import this package, too."""

from __future__ import annotations

import json
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
    from asyncio import StreamReader, StreamWriter

    from .answers import GetAnswer, SearchAnswer
    from .status_answers import Status


class AsyncClient(Asking):
    """Asks one query service, within one event loop of asyncio. Any number of tasks may ask at a time.

    async with AsyncClient(url="http://127.0.0.1:7373") as memory:
        answer = await memory.search("which port did we give the gateway?")

    Who cancels a call closes its connection.
    """

    _kept: KeptConnections[_Connection]

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let the connections go. The client can be used again."""
        self._kept.close()

    async def search(
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
        return cast("SearchAnswer", await self._call("POST", "/v1/search", body, extra_seconds=(wait_ms or 0) / 1000))

    async def get(
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
        return cast("GetAnswer", await self._call("POST", "/v1/get", body))

    async def status(self, *, agent: str | None = None, deep: bool = False) -> Status:
        """The answer of `GET /v1/status`; `deep` also checks whether the indexes hold together, which takes longer.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        path = self._status_path(agent=agent, deep=deep)
        return cast("Status", await self._call("GET", path, extra_seconds=DEEP_STATUS_SECONDS if deep else 0.0))

    async def call_tool(
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
            return json.dumps(await self._call("POST", TOOLS_PATH, body), ensure_ascii=False)
        except ClientError as error:
            return tool_failure(error, name, arguments)

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, extra_seconds: float = 0.0
    ) -> dict[str, Any]:
        seconds = self._answer_timeout_seconds + extra_seconds
        try:
            return self._answer(path, await self._exchanged(method, path, body, seconds))
        except (Stale, Incomplete):
            raise self._no_answer(ConnectionError("the connection was closed without an answer")) from None
        except NotHttp:
            raise self._not_recalld() from None
        except OSError as error:
            raise self._no_answer(error) from error

    async def _exchanged(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Response:
        kept = self._kept.take()
        if kept is not None:
            # The service may close a connection just when it is used again. It only reads, so asking twice is safe.
            with suppress(Stale):
                return await self._exchanged_over(kept, self._request(method, path, body), seconds)
        connection = await self._proven()
        return await self._exchanged_over(connection, self._request(method, path, body), seconds)

    async def _proven(self) -> _Connection:
        """A new connection, to the right service where that is one of a home."""
        challenge = self._challenge()
        connection = await self._connected()
        if challenge is not None:
            try:
                self._check_proof(challenge, await self._proof(connection, challenge))
            except BaseException:
                connection.close()
                raise
        return connection

    async def _exchanged_over(self, connection: _Connection, request: bytes, seconds: float) -> Response:
        import asyncio

        try:
            response = await asyncio.wait_for(connection.exchange(request), seconds)
        except asyncio.TimeoutError:  # not TimeoutError before Python 3.11
            connection.close()
            raise self._too_late(seconds) from None
        except BaseException:  # a cancelled call, too
            connection.close()
            raise
        if response.reusable:
            self._kept.give(connection)
        else:
            connection.close()
        return response

    async def _proof(self, connection: _Connection, challenge: Challenge) -> Response:
        import asyncio

        try:
            exchange = connection.exchange(challenge.request, most_bytes=PROOF_BYTES)
            return await asyncio.wait_for(exchange, PROOF_SECONDS)
        except NotHttp:
            raise self._unproven() from None
        except asyncio.TimeoutError:
            raise self._too_late(PROOF_SECONDS) from None

    async def _connected(self) -> _Connection:
        import asyncio

        if self.address.secure and self._ssl_context is None:
            import ssl

            self._ssl_context = ssl.create_default_context()
        context = self._ssl_context if self.address.secure else None
        opening = asyncio.open_connection(self.address.host, self.address.port, ssl=context)
        seconds = self._connect_timeout_seconds
        try:
            reader, writer = await asyncio.wait_for(opening, seconds)
        except asyncio.TimeoutError:
            raise self._no_answer(TimeoutError(f"no connection within {seconds:g} seconds")) from None
        return _Connection(reader, writer)


class _Connection:
    """One connection of the running event loop."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        import asyncio

        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    def usable(self) -> bool:
        """Whether it belongs to the running loop and the service has not closed it."""
        return self._is_here() and not self._writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        # A transport must not be touched from elsewhere; what another loop left open ends with that loop's objects.
        if self._is_here():
            self._writer.transport.abort()

    def _is_here(self) -> bool:
        import asyncio

        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def exchange(self, request: bytes, *, most_bytes: float = inf) -> Response:
        """Send a request and read its answer of at most `most_bytes`.

        Raises:
            Stale: the connection ended before a byte of the answer came.
            Incomplete, NotHttp: what came is no answer.
            OSError: the connection broke.
        """
        # Not drained: a service that refuses a request early closes before it took all of it, and what it says is to be
        # read before that.
        self._writer.write(request)
        answer = reading(most_bytes=most_bytes)
        next(answer)
        started = False
        while True:
            try:
                data = await self._reader.read(65536)
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

"""`Client` and `AsyncClient`: the calls of the HTTP interface, and the memory tools of a tool loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import urlencode

from .address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    Address,
    address_of,
    header_value,
    owner_token_of,
    running_service,
    token_of,
)
from .errors import ClientError, InvalidSettings, RequestRefused, refusal

if TYPE_CHECKING:
    from ssl import SSLContext
    from types import TracebackType

    # Type checkers carry these types, also where the package is not installed.
    from typing_extensions import Concatenate, ParamSpec

    from .answers import ContextReport, FlushAnswer, GetAnswer, PromptAnswer, PruneAnswer, SearchAnswer, Status

    Arguments = ParamSpec("Arguments")

Answered = TypeVar("Answered")
Self_ = TypeVar("Self_", bound="Service")

ToolForm = Literal["chat", "responses"]

#: Path where the service lists its tools and calls them.
TOOLS_PATH = "/v1/tools"

#: Seconds for a connection to a service of this machine.
_HERE_SECONDS = 1.0

#: Seconds that a check of all indexes may take.
DEEP_STATUS_SECONDS = 300.0

#: Members of an answer of recalld, by its path: one of them is there, of this type.
_SHAPES: dict[str, dict[str, type]] = {
    "/v1/search": {"results": list},
    "/v1/get": {"text": str},
    "/v1/status": {"agents": list},
    TOOLS_PATH: {"results": list, "text": str, "error": str},
    "/v1/session/link": {"path": str},
    "/v1/context": {"files": list},
    "/v1/context/prompt": {"text": str},
    "/v1/context/flush": {"due": bool},
    "/v1/context/prune": {"messages": list},
}

#: Statuses of a tool call whose arguments are the model's mistake: too large, or of no valid form.
_MODELS_MISTAKES = (413, 422)


class Service:
    """Base of `Client` and `AsyncClient`: a service, and the agent and session of the calls."""

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
        *,
        url: str | None = None,
        agent: str | None = None,
        session_key: str | None = None,
        connect_timeout_seconds: float = 5.0,
        answer_timeout_seconds: float = 16.0,
        ssl_context: SSLContext | None = None,
    ) -> None:
        """Remember the service; nothing is sent yet.

        Args:
            host, port: address of the service; 127.0.0.1 and 7373 if neither they nor `url` are given.
            token: the agent's, if the service wants one.
            url: the same as one text, `http://...` or `https://...`; also with a path, for a service behind a proxy.
            agent: agent whose memory is asked, if the token does not already say it.
            session_key: session that asks, for `scope` rules and citations; without one it is the owner's private
                session. A call may name another one.
            connect_timeout_seconds: for the connection, with https including its handshake.
            answer_timeout_seconds: for the whole answer. The service gives up a search after `limits.timeout_ms`.
            ssl_context: for https with certificates that the system does not know.

        Raises:
            InvalidSettings: one of them cannot be used.
        """
        from .connection import Transport

        if url is not None and (host is not None or port is not None):
            raise InvalidSettings("give either url= or a host and a port, not both")
        address = address_of(url) if url is not None else Address(host or DEFAULT_HOST, port or DEFAULT_PORT)
        header_value("the service's host", address.host)
        self.agent = agent
        self.session_key = _session_key(session_key)
        self._token = header_value("the token", token) if token is not None else None
        self._answer_timeout_seconds = answer_timeout_seconds
        self._transport = Transport(address, connect_timeout_seconds=connect_timeout_seconds, ssl_context=ssl_context)

    @classmethod
    def at_home(
        cls: type[Self_],
        home: Path | str,
        *,
        agent: str | None = None,
        session_key: str | None = None,
        answer_timeout_seconds: float = 16.0,
        as_owner: bool = True,
    ) -> Self_ | None:
        """Return a client of the service that runs for this home folder, None if no service seems to run.

        The client takes the token of the home's owner, if this user can read it: it needs no `agent`, and a search
        without one searches all agents. Otherwise, or with `as_owner=False`, it takes the agent's token from
        `<home>/run/tokens/<agent>` when there is one. It sends nothing but a challenge before the service has proved
        that it is this home's, and finds it again after a restart. Connection and proof are part of
        `answer_timeout_seconds`.
        """
        home = Path(home).expanduser().absolute()
        service = running_service(home)
        if service is None:
            return None
        client = cls(
            service.host,
            service.port,
            (owner_token_of(home) if as_owner else None) or token_of(home, agent),
            agent=agent,
            session_key=session_key,
            connect_timeout_seconds=_HERE_SECONDS,
            answer_timeout_seconds=answer_timeout_seconds,
        )
        client._transport.home = home
        return client

    @property
    def address(self) -> Address:
        """Address of the service; of a home's service another one after a restart."""
        return self._transport.address

    @property
    def host(self) -> str:
        """Host of the service."""
        return self.address.host

    @property
    def port(self) -> int:
        """Port of the service."""
        return self.address.port

    def tools(self, form: ToolForm = "chat") -> list[Any]:
        """Return the definitions of memory_search and memory_get as `tools` of a request to a model.

        Args:
            form: "chat" for OpenAI's Chat Completions and everything compatible with it, "responses" for its Responses
                API, where definitions are flat.

        They are plain JSON objects; their type is open because it has another name in every SDK. The service is not
        asked: its definitions are part of this package (`make docs` writes them).

        Raises:
            ValueError: `form` is another one.
        """
        from importlib.resources import files  # only here: it takes longer than all of the client

        if form not in ("chat", "responses"):
            raise ValueError(f"form must be 'chat' or 'responses', not {form!r}")
        functions = [
            {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]}
            for tool in json.loads((files(__package__) / "tools.json").read_text("utf-8"))
        ]
        if form == "chat":
            return [{"type": "function", "function": function} for function in functions]
        # Responses is strict unless told otherwise, and a strict schema may leave no argument out.
        return [{"type": "function", **function, "strict": False} for function in functions]

    def _call(self, method: str, path: str, body: Mapping[str, Any], *, extra_seconds: float = 0.0) -> dict[str, Any]:
        """Return the JSON object that answers a request; members of `body` that are None are not sent.

        The members are the parameters of a GET.

        Raises:
            RequestRefused: the service says no.
            ServiceUnavailable: no answer, or none of recalld's.
        """
        headers = {"Cache-Control": "no-cache"}  # a second old is too old after a command
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        target, content = self.address.prefix + path, None
        members = {name: value for name, value in body.items() if value is not None}
        if method == "POST":
            headers["Content-Type"] = "application/json"
            content = json.dumps(members).encode()
        elif members:
            target += f"?{urlencode(members)}"
        seconds = self._answer_timeout_seconds + extra_seconds
        response = self._transport.exchange(method, target, headers, content, seconds=seconds)
        answer, status = response.json(), response.status
        if 300 <= status < 400:
            where = f" to {response.location}" if response.location else ""
            raise refusal(f"{self.address.url} redirects{where}: use that address", status=status)
        if status >= 400:
            reason = answer.get("error") if isinstance(answer, dict) else None
            raise refusal(str(reason or f"the service answered with status {status}"), status=status)
        shapes = _SHAPES[path].items()
        if isinstance(answer, dict) and any(isinstance(answer.get(name), kind) for name, kind in shapes):
            return answer
        raise self._transport.not_recalld()

    def _asker(self, agent: str | None, session_key: str | None) -> dict[str, str | None]:
        return {"agent": agent or self.agent, "sessionKey": _session_key(session_key) or self.session_key}


class Client(Service):
    """Client of one query service. Safe to use from several threads; every call has a connection of its own.

    with Client(url="http://127.0.0.1:7373") as memory:
        for result in memory.search("which port did we give the gateway?")["results"]:
            print(result["path"], result["startLine"], result["snippet"])
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no connection outlives its call. A `with` block marks where the client is used."""

    def search(
        self: Service,
        query: str,
        *,
        queries: Sequence[str] | None = None,
        agent: str | None = None,
        max_results: int | None = None,
        min_score: float | None = None,
        sources: Sequence[str] | None = None,
        corpus: str | None = None,
        since: str | None = None,
        until: str | None = None,
        timezone: str | None = None,
        session_key: str | None = None,
        wait_ms: int | None = None,
    ) -> SearchAnswer:
        """Search; return the answer of `POST /v1/search`.

        Args:
            query: a question, or exact words.
            queries: up to four further phrasings of it; passages that several of them find come first.
            agent, session_key: instead of the client's own.
            max_results: 1 to 100; None: as the agent's settings say.
            min_score: 0 to 1; None: as the agent's settings say.
            sources: "memory" (notes), "sessions" (transcripts), or both.
            corpus: "memory", "sessions" or "all", as the tool says it; "wiki" finds nothing.
            since, until: limits of time: dates, or words such as "7d" and "last week", in the `timezone` (IANA name).
            wait_ms: milliseconds to wait at most for what was written before the search; None: 500.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = {
            "query": query,
            "queries": list(queries) if queries else None,
            "maxResults": max_results,
            "minScore": min_score,
            "sources": list(sources) if sources else None,
            "corpus": corpus,
            "since": since,
            "until": until,
            "timezone": timezone,
            "waitMs": wait_ms,
            **self._asker(agent, session_key),
        }
        return cast("SearchAnswer", self._call("POST", "/v1/search", body, extra_seconds=(wait_ms or 0) / 1000))

    def get(
        self: Service,
        path: str,
        *,
        start_line: int | None = None,
        lines: int | None = None,
        corpus: str | None = None,
        agent: str | None = None,
        session_key: str | None = None,
    ) -> GetAnswer:
        """Read lines of a memory document; return the answer of `POST /v1/get`. `start_line` counts from 1.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        asker = self._asker(agent, session_key)
        body = {"path": path, "from": start_line, "lines": lines, "corpus": corpus, **asker}
        return cast("GetAnswer", self._call("POST", "/v1/get", body))

    def status(self: Service, *, agent: str | None = None, deep: bool = False) -> Status:
        """Return the answer of `GET /v1/status`; `deep` also checks the indexes' integrity, which takes longer.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        parameters = {"agent": agent or self.agent, "deep": "true" if deep else None}
        extra_seconds = DEEP_STATUS_SECONDS if deep else 0.0
        return cast("Status", self._call("GET", "/v1/status", parameters, extra_seconds=extra_seconds))

    def page_link(self: Service) -> str:
        """Return the address of the page. For the owner of several agents it opens the page once, within a minute.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        path: str = self._call("POST", "/v1/session/link", {})["path"]
        return self.address.url + path

    def before_prompt(
        self: Service,
        prompt: str = "",
        *,
        session: str = "",
        begins: bool = False,
        projects: Sequence[str] = (),
        agent: str | None = None,
        session_key: str | None = None,
    ) -> PromptAnswer:
        """Return the text to put before a prompt; answer of `POST /v1/context/prompt`.

        Args:
            prompt: the user's words; without them the session only begins.
            session: name of the conversation: nothing comes twice in it.
            begins: the session starts, or its context was compacted.
            projects: repositories that the conversation is about, such as github.com/acme/shop.
            agent, session_key: instead of the client's own.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = {"prompt": prompt, "session": session, "begins": begins, "projects": list(projects)}
        asker = self._asker(agent, session_key)
        return cast("PromptAnswer", self._call("POST", "/v1/context/prompt", {**body, **asker}))

    def context(
        self: Service,
        *,
        kind: str = "chat",
        bare_reset: bool = False,
        texts: bool = False,
        agent: str | None = None,
        session_key: str | None = None,
    ) -> ContextReport:
        """Return the files that a session begins with, and the indexed documents; answer of `GET /v1/context`.

        Args:
            kind: "chat", "subagent" or "cron".
            bare_reset: also today's and yesterday's note.
            texts: also the texts of the files, as a prompt gets them.
            agent, session_key: instead of the client's own.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        flags = {"bareReset": "true" if bare_reset else None, "texts": "true" if texts else None}
        parameters = {"kind": kind, **flags, **self._asker(agent, session_key)}
        return cast("ContextReport", self._call("GET", "/v1/context", parameters))

    def flush_plan(self: Service, state: Mapping[str, Any], *, agent: str | None = None) -> FlushAnswer:
        """Return the plan of a flush, if one is due; answer of `POST /v1/context/flush`, `state` is its body.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        return cast("FlushAnswer", self._call("POST", "/v1/context/flush", {**state, "agent": agent or self.agent}))

    def prune(
        self: Service,
        messages: Sequence[Mapping[str, Any]],
        *,
        window_tokens: int | None = None,
        touched_at: float | None = None,
        decisions: Mapping[str, str] | None = None,
        agent: str | None = None,
    ) -> PruneAnswer:
        """Return messages for a model without old results of tools; answer of `POST /v1/context/prune`.

        Args:
            messages: of OpenAI's chat or responses, or of Anthropic, 1 MB at most.
            window_tokens: of the model.
            touched_at: Unix time of the last call that wrote the provider's cache.
            decisions: of the last answer; they are repeated byte for byte.
            agent: instead of the client's own.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = {
            "messages": list(messages),
            "windowTokens": window_tokens,
            "touchedAt": touched_at,
            "decisions": dict(decisions or {}),
            "agent": agent or self.agent,
        }
        return cast("PruneAnswer", self._call("POST", "/v1/context/prune", body))

    def call_tool(
        self: Service,
        name: str,
        arguments: str | dict[str, Any],
        *,
        agent: str | None = None,
        session_key: str | None = None,
    ) -> str:
        """Carry out a model's call; return the content of the message that answers it, as JSON.

        Args:
            name, arguments: as they stand in the model's call; arguments as JSON or as a dictionary.
            agent, session_key: instead of the client's own, never something that the model said.

        The model's own mistake is an answer that it can learn from, `{"error": ...}`. A service that is not there is
        one, too, with `unavailable`.

        Raises:
            RequestRefused: the service does not take this client's token, agent or address.
        """
        arguments_json = arguments if isinstance(arguments, str) else json.dumps(arguments)
        body = {"name": _sendable(name), "arguments": _sendable(arguments_json), **self._asker(agent, session_key)}
        try:
            answer = self._call("POST", TOOLS_PATH, body)
        except ClientError as error:
            if not isinstance(error, RequestRefused) or error.status >= 500:
                answer = _unavailable(name, arguments_json, str(error))
            elif error.status in _MODELS_MISTAKES:
                answer = {"error": str(error)}
            else:
                raise
        return json.dumps(answer, ensure_ascii=False)


def _awaited(
    method: Callable[Concatenate[Service, Arguments], Answered],
) -> Callable[Concatenate[Service, Arguments], Coroutine[Any, Any, Answered]]:
    """Return the method as a coroutine function, which runs it in a thread and ends it when it is cancelled."""

    @wraps(method)
    async def awaited(self: Service, /, *args: Arguments.args, **options: Arguments.kwargs) -> Answered:
        import asyncio  # only here: recalld's own commands do without

        from .connection import CALL, Call

        call = Call()

        def in_thread() -> Answered:
            CALL.set(call)
            return method(self, *args, **options)

        try:
            return await asyncio.to_thread(in_thread)
        except BaseException:
            call.cancel()
            raise

    return awaited


class AsyncClient(Service):
    """`Client` for asyncio: each call runs in a thread of the event loop's. Any number of tasks may ask at a time.

    async with AsyncClient(url="http://127.0.0.1:7373") as memory:
        answer = await memory.search("which port did we give the gateway?")

    Cancelling a call closes its connection.
    """

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do nothing, as `Client.close`."""

    search = _awaited(Client.search)
    get = _awaited(Client.get)
    status = _awaited(Client.status)
    page_link = _awaited(Client.page_link)
    before_prompt = _awaited(Client.before_prompt)
    context = _awaited(Client.context)
    flush_plan = _awaited(Client.flush_plan)
    prune = _awaited(Client.prune)
    call_tool = _awaited(Client.call_tool)


def _session_key(key: str | None) -> str | None:
    # An empty one is a mistake, and would stand for the session that sees the most.
    if key is not None and not key.strip():
        raise InvalidSettings("the session key must not be empty; leave it out for the owner's private session")
    return key


def _sendable(text: str) -> str:
    # A model may leave out the name of the tool, and may write half of a surrogate pair, which cannot be sent.
    return str(text or "").encode("utf-8", "replace").decode("utf-8")


def _unavailable(name: str, arguments: str, reason: str) -> dict[str, Any]:
    """Return the service's answer about a memory that it cannot read."""
    try:
        path = json.loads(arguments)["path"]
    except (ValueError, RecursionError, TypeError, KeyError):
        path = None
    path = path if isinstance(path, str) else ""
    return {
        **({"path": path, "status": "error", "text": ""} if name == "memory_get" else {"results": []}),
        "disabled": True,
        "unavailable": True,
        "error": reason,
        "warning": "memory is unavailable",
        "action": "start it with `recalld up`, and see `recalld status`",
    }

"""Shared by both clients: the service's address, requests, and the reading of answers.

The only I/O is reading the entry of a home's service.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from .address import DEFAULT_HOST, DEFAULT_PORT, Address, address_of, header_value
from .errors import InvalidSettings, RequestRefused, ServiceTimedOut, ServiceUnavailable, ServiceUnproven, refusal
from .exchange import Response, request_bytes
from .home import running_service, token_of
from .kept import KeptConnections
from .tools import TOOLS_PATH, ToolForm, function_tools, refused_call, unavailable

if TYPE_CHECKING:
    from ssl import SSLContext

#: Statuses of a tool call that say what is wrong with what the model sent: too large, or of no valid form.
_MODELS_MISTAKES = (413, 422)

#: Seconds for a connection to a service of this machine.
_HERE_SECONDS = 1.0

#: Seconds and bytes that a service of this machine gets to prove that it is the one of its home.
PROOF_SECONDS = 5.0
PROOF_BYTES = 16 * 1024

#: What an answer of recalld has, by its path: one of these members, of this type.
_SHAPES: dict[str, dict[str, type]] = {
    "/v1/search": {"results": list},
    "/v1/get": {"text": str},
    "/v1/status": {"agents": list},
    TOOLS_PATH: {"results": list, "text": str, "error": str},
}

#: Seconds that a check of all indexes may take.
DEEP_STATUS_SECONDS = 300.0

Self_ = TypeVar("Self_", bound="Asking")


class Challenge(NamedTuple):
    """First request to a service of this machine, and the proof that only the right one can answer with."""

    request: bytes
    proof: str


class Asking:
    """Base of `Client` and `AsyncClient`."""

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
        """Remember whom to ask; nothing is sent yet.

        Args:
            host, port: where the service listens; 127.0.0.1 and 7373 if neither they nor `url` are given.
            token: the agent's, where the service wants one.
            url: the same as one text, `http://...` or `https://...`; also with a path, for a service behind a proxy.
            agent: whose memory is asked, where the token does not already say it.
            session_key: which session asks, for `scope` rules and citations; without one it is the owner's private
                session. A call may name another one.
            connect_timeout_seconds: for the connection, with https including its handshake.
            answer_timeout_seconds: for the whole answer. The service gives up a search after `limits.timeout_ms`.
            ssl_context: for https with certificates that the system does not know.

        Raises:
            InvalidSettings: one of them cannot be used.
        """
        if url is not None and (host is not None or port is not None):
            raise InvalidSettings("give either url= or a host and a port, not both")
        self.address = address_of(url) if url is not None else Address(host or DEFAULT_HOST, port or DEFAULT_PORT)
        header_value("the service's host", self.address.host)
        self.agent = agent
        self.session_key = _session_key(session_key)
        self._token = header_value("the token", token) if token is not None else None
        self._connect_timeout_seconds = connect_timeout_seconds
        self._answer_timeout_seconds = answer_timeout_seconds
        self._ssl_context = ssl_context
        self._home: Path | None = None
        self._kept: KeptConnections[Any] = KeptConnections()

    @classmethod
    def at_home(
        cls: type[Self_], home: Path | str, *, agent: str | None = None, session_key: str | None = None
    ) -> Self_ | None:
        """Return a client of the service that runs for this home folder, None where none seems to.

        The client takes the agent's token from `<home>/run/tokens/<agent>` when there is one. It sends nothing but a
        challenge before the service has proved that it is this home's, and finds it again after a restart.
        """
        home = Path(home).expanduser().absolute()
        service = running_service(home)
        if service is None:
            return None
        client = cls(
            service.host,
            service.port,
            token_of(home, agent),
            agent=agent,
            session_key=session_key,
            connect_timeout_seconds=_HERE_SECONDS,
        )
        client._home = home
        return client

    @property
    def host(self) -> str:
        """Where the service listens."""
        return self.address.host

    @property
    def port(self) -> int:
        """Where the service listens."""
        return self.address.port

    def tools(self, form: ToolForm = "chat") -> list[Any]:
        """The definitions of memory_search and memory_get as `tools` of a request to a model.

        Args:
            form: "chat" for OpenAI's Chat Completions and everything compatible with it, "responses" for its Responses
                API, where definitions are flat.

        They are plain JSON objects; their type is open because it has another name in every SDK. Nothing is asked.
        """
        return function_tools(form)

    def _search_body(
        self,
        query: str,
        *,
        agent: str | None,
        max_results: int | None,
        min_score: float | None,
        sources: Sequence[str] | None,
        corpus: str | None,
        session_key: str | None,
        wait_ms: int | None,
    ) -> dict[str, Any]:
        return {
            "query": query,
            "maxResults": max_results,
            "minScore": min_score,
            "sources": list(sources) if sources else None,
            "corpus": corpus,
            "waitMs": wait_ms,
            **self._who(agent, session_key),
        }

    def _get_body(
        self,
        path: str,
        *,
        start_line: int | None,
        lines: int | None,
        corpus: str | None,
        agent: str | None,
        session_key: str | None,
    ) -> dict[str, Any]:
        return {"path": path, "from": start_line, "lines": lines, "corpus": corpus, **self._who(agent, session_key)}

    def _status_path(self, *, agent: str | None, deep: bool) -> str:
        asked = {"agent": agent or self.agent, "deep": "true" if deep else None}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return "/v1/status" + (f"?{query}" if query else "")

    def _who(self, agent: str | None, session_key: str | None) -> dict[str, Any]:
        return {"agent": agent or self.agent, "sessionKey": _session_key(session_key) or self.session_key}

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        content = None
        if body is not None:
            content = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        return request_bytes(
            method,
            self.address.prefix + path,
            authority=self.address.authority,
            token=self._token,
            content=content,
        )

    def _challenge(self) -> Challenge | None:
        """Return what the service must answer before it is asked; None where its address was given.

        Raises:
            ServiceUnavailable: no service runs for the home, or it is of an earlier version.
        """
        if self._home is None:
            return None
        service = running_service(self._home)
        if service is None:
            raise ServiceUnavailable(f"no recalld service runs for {self._home}; start it with `recalld up`")
        if service.secret is None:
            raise ServiceUnproven(
                f"the service of {self._home} is of an earlier version of recalld and was asked nothing; "
                "restart `recalld up`"
            )
        import hmac  # only here: it takes 5 ms

        self.address = Address(service.host, service.port)  # another one after a restart
        nonce = os.urandom(16).hex()
        request = request_bytes("GET", f"/v1/proof/{nonce}", authority=self.address.authority)
        return Challenge(request, hmac.new(service.secret.encode(), nonce.encode(), "sha256").hexdigest())

    def _check_proof(self, challenge: Challenge, response: Response) -> None:
        """Raise ServiceUnproven unless the response answers the challenge and its connection goes on."""
        answer = _json(response)
        if response.status == 503:  # too many clients
            raise self._too_late(PROOF_SECONDS)
        proof = answer.get("proof") if isinstance(answer, dict) else None
        if response.status != 200 or proof != challenge.proof or not response.reusable:
            raise self._unproven()

    def _answer(self, path: str, response: Response) -> dict[str, Any]:
        """The JSON object of an answer.

        Raises:
            RequestRefused: it says no.
            ServiceUnavailable: it is none of recalld's.
        """
        answer = _json(response)
        status = response.status
        if 300 <= status < 400:
            where = f" to {response.location}" if response.location else ""
            raise refusal(f"{self.address.url} redirects{where}: use that address", status=status)
        if status >= 400:
            raise refusal(_reason(answer) or f"the service answered with status {status}", status=status)
        shape = _SHAPES[path.partition("?")[0]]
        if not isinstance(answer, dict) or not any(isinstance(answer.get(name), kind) for name, kind in shape.items()):
            raise self._not_recalld()
        return answer

    def _no_answer(self, error: OSError) -> ServiceUnavailable:
        if self.address.secure:
            from ssl import SSLCertVerificationError

            if isinstance(error, SSLCertVerificationError):
                return ServiceUnavailable(
                    f"the certificate of {self.address.authority} is not trusted ({error.verify_message}); "
                    "pass an ssl_context= that knows who issued it"
                )
        return ServiceUnavailable(
            f"no recalld service answers at {self.address.authority} ({error or type(error).__name__}); "
            "start it with `recalld up`, or correct the address"
        )

    def _too_late(self, seconds: float) -> ServiceTimedOut:
        return ServiceTimedOut(
            f"recalld at {self.address.authority} timed out: no answer within {seconds:g} seconds; "
            "ask again, or allow more time"
        )

    def _not_recalld(self) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"what answers at {self.address.authority} is not a recalld service; correct the address"
        )

    def _unproven(self) -> ServiceUnproven:
        return ServiceUnproven(
            f"what answers at {self.address.authority} is not the recalld service of {self._home} and was asked "
            "nothing; restart `recalld up`"
        )


def _json(response: Response) -> Any:
    """The value of a JSON answer, None where it is none."""
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError):
        return None


def tool_failure(error: Exception, name: str, arguments: str | dict[str, Any]) -> str:
    """What the model reads of a call that failed; raises the error again where only a person can help.

    That is a refusal of the runtime's own settings: its token, its agent, its address.
    """
    if isinstance(error, RequestRefused) and error.status < 500:
        if error.status in _MODELS_MISTAKES:
            return refused_call(str(error))
        raise error
    return unavailable(name, arguments, str(error))


def _session_key(key: str | None) -> str | None:
    # An empty one is a mistake, and would stand for the session that sees the most.
    if key is not None and not key.strip():
        raise InvalidSettings("the session key must not be empty; leave it out for the owner's private session")
    return key


def _reason(answer: object) -> str | None:
    """The sentence in an error answer, whichever of the usual shapes it has."""
    if not isinstance(answer, dict):
        return None
    for name in ("error", "detail", "message"):
        found = answer.get(name)
        if isinstance(found, str):
            return found
        if isinstance(found, list) and found and isinstance(found[0], dict):
            parts = found[0].get("loc")
            place = ".".join(str(part) for part in parts if part != "body") if isinstance(parts, list) else ""
            return f"{place}: {found[0].get('msg', 'is not valid')}".removeprefix(": ")
    return None

"""Client of a fleet's door (`producers.door`): the requests, and the meaning of each refusal.

Permanent
+-- DocumentUnwanted       the door never takes this document
RecalldError
+-- SenderRefused          the door takes nothing of this agent from this machine, until a person mends that
+-- PartMisplaced          the part does not follow the content that the door has
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import httpcore2
import httpx2

from memory.embedding.providers.exchange import Exchange
from memory.embedding.providers.transport import connect
from memory.http.loopback import is_loopback
from producers.remote.parts import Part
from schemas.documents import SESSIONS_SOURCE, DocumentKey, Lane
from schemas.errors import BrokerUnavailable, Permanent, RecalldError, Terminal, Transient, UserError
from schemas.ingest import Extent, ExtentsAnswer
from schemas.settings import Settings

#: Bounds of a request: seconds, and the bytes of a slow line in a second; bytes of an answer.
REQUEST_SECONDS, SLOW_BYTES_PER_SECOND, ANSWER_BYTES = 30.0, 20_000.0, 4_000_000

#: Longest pause, in seconds, that the door may ask for.
LONGEST_PAUSE_SECONDS = 300.0


#: Errors of a door that is away.
_AWAY = (
    *(Transient, Terminal, OSError, httpx2.HTTPError),
    *(httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError),
)


class DocumentUnwanted(Permanent):
    """Document that the door never takes."""


class SenderRefused(RecalldError):
    """Refusal of everything that this machine sends for an agent."""


class PartMisplaced(RecalldError):
    """Part that does not follow the content of the door, which is `present`."""

    def __init__(self, present: Extent) -> None:
        super().__init__(f"the door has {present.size} other bytes of the document")
        self.present = present


class DoorClient:
    """Sender of requests to the door of the settings, for several threads. `machine` is this home's id.

    Raises, from the constructor:
        UserError: the address or the token is missing, or is none.
    Raises, from every request:
        BrokerUnavailable: the door is away, or asked to wait: later requests fail at once until then, and after `stop`.
        SenderRefused, DocumentUnwanted: see there.
    """

    def __init__(self, settings: Settings, machine: str, *, stop: threading.Event | None = None) -> None:
        token = settings.fleet.token.get_secret_value() if settings.fleet.token is not None else ""
        url, problem = httpx2.URL(""), None
        with suppress(httpx2.InvalidURL):
            url = httpx2.URL(settings.fleet.url or "")
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
            problem = "the address of a fleet is a URL like https://fleet.example.com, without a user and a query"
        elif url.scheme == "http" and not is_loopback(url.host):
            problem = f"refusing to send memory to {url.host} without TLS: use its https:// address"
        elif not token or not token.isascii():
            problem = "sending needs an access token of the fleet: put it into RECALLD_TOKEN, or into fleet.token"
        if problem is not None:
            raise UserError(problem, exit_code=2)
        self.url = str(url).rstrip("/")
        self.host = f"{url.host}_{url.port}" if url.port is not None else url.host
        self._machine, self._stop = machine, stop or threading.Event()
        self._names, self._is_single = settings.fleet.agents, len(settings.agents) == 1
        self._headers = {"Authorization": f"Bearer {token}"}
        self._client = connect(self.url)
        self._closed_until = 0.0

    def agent(self, agent: str) -> str | None:
        """Return an agent's name in the fleet; None means the first agent of the token."""
        return self._names.get(agent, None if self._is_single else agent)

    def extents(self, agent: str, keys: Sequence[DocumentKey]) -> dict[DocumentKey, Extent]:
        """Return the content that the door has of at most `MOST_DOCUMENTS` documents."""
        content = self._post("compare", json=self._documents(agent, keys))
        try:
            documents = ExtentsAnswer.model_validate(content).documents
        except ValueError as error:
            raise SenderRefused(f"{self.url} is not the door of a fleet: its answer is another") from error
        return {key: Extent(answer.size, answer.digest) for key, answer in zip(keys, documents, strict=False)}

    def add(self, agent: str, key: DocumentKey, part: Part, *, lane: Lane, is_last: bool, of: str | None) -> None:
        """Send a part, which is committed on return. `of` is the format that the user named.

        Raises:
            PartMisplaced: see there.
        """
        query = {**self._sender(agent), **_name(key), "format": of, "lane": lane.value, "last": str(is_last).lower()}
        query |= {"offset": str(part.after.size), "before": part.after.digest, "digest": part.end.digest}
        params = {name: text for name, text in query.items() if text is not None}
        self._post("part", params=params, content=part.frame, headers={"Content-Type": "application/zstd"})

    def remove(self, agent: str, keys: Sequence[DocumentKey]) -> None:
        """Tell the door that documents are gone, at most `MOST_DOCUMENTS` of them."""
        self._post("delete", json=self._documents(agent, keys))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _sender(self, agent: str) -> dict[str, str | None]:
        return {"machine": self._machine, "agent": self.agent(agent)}

    def _documents(self, agent: str, keys: Sequence[DocumentKey]) -> dict[str, Any]:
        return {**self._sender(agent), "documents": [_name(key) for key in keys]}

    def _post(self, call: str, *, headers: Mapping[str, str] | None = None, **body: Any) -> Any:
        if self._stop.is_set():
            raise BrokerUnavailable("this process ends; the next one sends the rest")
        if (seconds := self._closed_until - time.monotonic()) > 0:
            raise BrokerUnavailable(f"the door at {self.url} is asked again in {seconds:.0f} s", retry_after=seconds)
        name, pace = f"the door at {self.url}", SLOW_BYTES_PER_SECOND
        exchange = Exchange(name, seconds=REQUEST_SECONDS, answer_bytes=ANSWER_BYTES, bytes_per_second=pace)
        try:
            with exchange.running():
                address, all_headers = f"{self.url}/v1/ingest/{call}", {**self._headers, **(headers or {})}
                answer = self._client.post(address, headers=all_headers, **body)
        except _AWAY as error:
            raise BrokerUnavailable(f"{name} does not answer: {error}") from error
        content: Any = None
        with suppress(ValueError):
            content = answer.json()
        if not answer.is_success or content is None:
            self._refused(answer, content if isinstance(content, dict) else {})
        return content

    def _refused(self, answer: httpx2.Response, content: dict[str, Any]) -> NoReturn:
        """Raise the error that a refusal means."""
        status, reason = answer.status_code, str(content.get("error", "no reason"))[:500]
        if status == 409 and isinstance(content.get("size"), int):
            raise PartMisplaced(Extent(content["size"], str(content.get("digest", ""))))
        if status in (408, 429) or status >= 500:
            pause = answer.headers.get("retry-after", "")
            seconds = min(float(pause), LONGEST_PAUSE_SECONDS) if re.fullmatch("[0-9]{1,9}", pause) else 0.0
            self._closed_until = time.monotonic() + seconds
            raise BrokerUnavailable(f"the door at {self.url} takes nothing now: {reason}", retry_after=seconds or None)
        # 404 is an unknown agent, or no door at all.
        if status in (401, 403, 404) or not answer.is_client_error:
            raise SenderRefused(f"{reason} (status {status} of {self.url})")
        raise DocumentUnwanted(f"the door refuses the document: {reason}")


def _name(key: DocumentKey) -> dict[str, str | None]:
    """Return source and path of a document on the wire, where no path is absolute."""
    path = key.path.lstrip("/")
    if key.is_transcript and not path.startswith(f"{SESSIONS_SOURCE}/"):
        path = f"{SESSIONS_SOURCE}/{path}"  # an imported one
    return {"source": key.source, "path": path}

"""Client of a fleet's door (`producers.door`): the requests, and the meaning of each refusal.

Permanent
+-- DocumentUnwanted       the door never takes this document
RecalldError
+-- SenderRefused          the door takes nothing of this agent from this machine, until a person mends that
+-- PartMisplaced          the part does not follow the content that the door has
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpcore2
import httpx2

from memory.embedding.providers.exchange import Exchange
from memory.embedding.providers.transport import connect
from memory.http.origin_guard import is_loopback
from schemas.documents import SESSIONS_SOURCE, DocumentKey, Lane
from schemas.errors import BrokerUnavailable, Permanent, RecalldError, Terminal, Transient, UserError
from schemas.ingest import MOST_DOCUMENTS, Extent, ExtentsAnswer
from schemas.settings import Settings

#: Seconds of a request, the bytes a second of a slow line besides, and bytes of an answer.
REQUEST_SECONDS = 30.0
SLOW_BYTES_PER_SECOND = 20_000.0
ANSWER_BYTES = 4_000_000

#: Seconds without requests after the door refused this machine or its agent.
REFUSED_SECONDS = 60.0

#: Longest pause, in seconds, that the door may ask for.
LONGEST_PAUSE_SECONDS = 300.0

#: Statuses about the token or the agent, not about a document. 404 is an unknown agent, or no door at all.
_ABOUT_SENDER = (401, 403, 404)


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
        BrokerUnavailable: the door is away, or asked to wait: later requests fail at once until then.
        SenderRefused, DocumentUnwanted: see there.
    """

    def __init__(self, settings: Settings, machine: str) -> None:
        fleet, problem = settings.fleet, None
        url = httpx2.URL(fleet.url or "")
        if fleet.token is None or not fleet.token.get_secret_value().isascii():
            problem = "sending needs an access token of the fleet: put it into RECALLD_TOKEN, or into fleet.token"
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
            problem = "the address of a fleet is a URL like https://fleet.example.com, without a user and a query"
        elif url.scheme == "http" and not is_loopback(url.host):
            problem = f"refusing to send memory to {url.host} without TLS: use its https:// address"
        if problem is not None:
            raise UserError(problem, exit_code=2)
        assert fleet.token is not None  # noqa: S101 - checked above
        self.url = str(url).rstrip("/")
        self.host = f"{url.host}_{url.port}" if url.port is not None else url.host
        self.machine = machine
        self._names, self._is_single = fleet.agents, len(settings.agents) == 1
        self._headers = {"Authorization": f"Bearer {fleet.token.get_secret_value()}"}
        self._client = connect(self.url)
        self._closed_until = 0.0

    def agent(self, agent: str) -> str | None:
        """Return an agent's name in the fleet; None means the first agent of the token."""
        return self._names.get(agent, None if self._is_single else agent)

    def extents(self, agent: str, keys: Sequence[DocumentKey]) -> dict[DocumentKey, Extent]:
        """Return the content that the door has of documents."""
        extents: dict[DocumentKey, Extent] = {}
        for first in range(0, len(keys), MOST_DOCUMENTS):
            page = keys[first : first + MOST_DOCUMENTS]
            answer = self._post("compare", json=self._documents(agent, page))
            try:
                documents = ExtentsAnswer.model_validate(answer).documents
            except ValueError as error:
                raise SenderRefused(f"{self.url} is not the door of a fleet: its answer is another") from error
            extents |= {key: Extent(held.size, held.digest) for key, held in zip(page, documents, strict=False)}
        return extents

    def add(
        self,
        agent: str,
        key: DocumentKey,
        frame: bytes,
        after: Extent,
        end: Extent,
        *,
        is_last: bool,
        format_name: str | None,
        lane: Lane,
    ) -> None:
        """Send the part between two extents, a Zstandard frame. It is committed on return.

        Raises:
            PartMisplaced: see there.
        """
        source, path = _name(key)
        query = {"source": source, "path": path, "machine": self.machine, "agent": self.agent(agent)}
        query |= {"offset": str(after.size), "before": after.digest, "digest": end.digest, "format": format_name}
        query |= {"last": str(is_last).lower(), "lane": lane.value}
        params = {name: text for name, text in query.items() if text is not None}
        self._post("part", params=params, content=frame, headers={"Content-Type": "application/zstd"})

    def remove(self, agent: str, keys: Sequence[DocumentKey]) -> None:
        """Tell the door that documents are gone, at most `MOST_DOCUMENTS` of them."""
        self._post("delete", json=self._documents(agent, keys))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _documents(self, agent: str, keys: Sequence[DocumentKey]) -> dict[str, Any]:
        documents = [dict(zip(("source", "path"), _name(key), strict=True)) for key in keys]
        return {"machine": self.machine, "agent": self.agent(agent), "documents": documents}

    def _post(self, call: str, *, headers: Mapping[str, str] | None = None, **body: Any) -> Any:
        if (seconds := self._closed_until - time.monotonic()) > 0:
            raise BrokerUnavailable(f"the door at {self.url} is asked again in {seconds:.0f} s", retry_after=seconds)
        exchange = Exchange(
            f"the door at {self.url}",
            seconds=REQUEST_SECONDS,
            answer_bytes=ANSWER_BYTES,
            bytes_per_second=SLOW_BYTES_PER_SECOND,
        )
        try:
            with exchange.running():
                address = f"{self.url}/v1/ingest/{call}"
                answer = self._client.post(address, headers={**self._headers, **(headers or {})}, **body)
        except (Transient, Terminal, OSError, httpx2.HTTPError) as error:
            raise BrokerUnavailable(f"the door at {self.url} does not answer: {error}") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError) as error:
            raise BrokerUnavailable(f"the door at {self.url} does not answer: {error}") from error
        return self._content_of(answer)

    def _content_of(self, answer: httpx2.Response) -> Any:
        """Return the JSON of an answer. Raise the error that a refusal means."""
        content: Any = None
        with suppress(ValueError):
            content = answer.json()
        told = content if isinstance(content, dict) else {}
        if answer.is_success and content is not None:
            return content
        if answer.status_code == 409 and isinstance(told.get("size"), int):
            raise PartMisplaced(Extent(told["size"], str(told.get("digest", ""))))
        reason = str(told.get("error") or f"status {answer.status_code} without a reason")[:500]
        if answer.status_code in (408, 429) or answer.status_code >= 500:
            pause = answer.headers.get("retry-after", "")
            seconds = min(float(pause), LONGEST_PAUSE_SECONDS) if pause.isascii() and pause.isdigit() else 0.0
            self._closed_until = time.monotonic() + seconds
            raise BrokerUnavailable(f"the door at {self.url} takes nothing now: {reason}", retry_after=seconds or None)
        if answer.status_code in _ABOUT_SENDER or not answer.is_client_error:
            raise SenderRefused(f"{reason} (status {answer.status_code} of {self.url})")
        raise DocumentUnwanted(f"the door refuses the document: {reason}")


def _name(key: DocumentKey) -> tuple[str, str]:
    """Return source and path of a document on the wire, where no path is absolute."""
    path = key.path.lstrip("/")
    if key.is_transcript and not path.startswith(f"{SESSIONS_SOURCE}/"):
        path = f"{SESSIONS_SOURCE}/{path}"  # an imported one
    return key.source, path

"""The door of a fleet: machines send the documents of their agents here, in redacted parts.

    POST /v1/ingest/compare    the content that the fleet has of a machine's documents
    POST /v1/ingest/part       the next part of one document (`memory.store.postgres.arrivals`)
    POST /v1/ingest/delete     documents that are gone from a machine
    GET  /healthz, /readyz     it runs; it can take content

An access token with the right `ingest` names the tenant, and belongs to the first machine that uses it. An answer of
200 means that the content is committed. A repeated request does no harm. Documents are queued for workers afterwards;
without a broker the next comparison of the fleet finds them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, TypeVar

import structlog
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from memory.documents.roots import is_note_name
from memory.http.authorization import AccessDenied
from memory.http.loopback import is_loopback
from memory.http.origin_guard import OriginGuard
from memory.http.refusals import install
from memory.http.server import Bounds, ServerThread
from memory.redaction import redactor_for
from memory.redaction.json_lines import redact_line
from memory.store.postgres.administration import Administration, bind_machine
from memory.store.postgres.arrivals import ArrivingDocuments, EventReused, Extent, Misplaced, Part, running_digest
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import TRUSTED_SECONDS, AccessToken, FleetDirectory
from memory.transcripts.lines import packed, unpacked
from schemas.agents import Scope
from schemas.documents import SESSIONS_SOURCE, DocumentKey, Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.ingest import (
    MOST_CONTENT_BYTES,
    MOST_PART_BYTES,
    Accepted,
    Agent,
    Deleted,
    Digest,
    DocumentExtent,
    DocumentPath,
    DocumentsRequest,
    ExtentsAnswer,
    Machine,
    SentDocument,
    SourceName,
)
from schemas.ports import JobQueue
from schemas.settings import AgentSettings, Settings, has_agent

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Requests that wait for the store at a time, and the seconds after which the others are to come again.
MOST_AT_A_TIME = 16
AGAIN_SECONDS = 2

#: Marks of an agent's documents from which on the door takes no more of it: the workers have to catch up.
MOST_PENDING = 200_000

#: Machines whose token needs no look at the store for some seconds.
MOST_BOUND = 10_000

#: Seconds that requests get to finish after a stop.
GRACE_SECONDS = 5


class Door(ServerThread):
    """Server of the door. The constructor opens the port; requests are answered between `start` and `stop`.

    `pending` returns the number of an agent's documents that wait for workers, None if that is not known.

    Raises, from the constructor:
        UserError: no store, an address beyond this machine without TLS, or the port is taken.
    """

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        *,
        pending: Callable[[str], int | None] = lambda _: None,
        failed: Callable[[Exception], None] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        if settings.store.url is None:
            raise UserError("`recalld ingest` is the door of a fleet: put the URL of its PostgreSQL into store.url")
        host, port = settings.ingest.host, settings.ingest.port
        if not is_loopback(host) and not settings.ingest.behind_tls_proxy:
            raise UserError(
                f"refusing to take content on {host} without TLS: listen on 127.0.0.1 behind a proxy that ends TLS, or "
                "set ingest.behind_tls_proxy = true where such a proxy is on another machine"
            )
        self._settings, self._queue, self._pending = settings, queue, pending
        self._database = Database.of(settings.store)
        self._directory = FleetDirectory.of(settings)
        self._authorizer = self._directory.authorizer()
        # A refusal raises, and is decided each time.
        self._bound = lru_cache(MOST_BOUND)(self._bind)
        self._places = asyncio.Semaphore(MOST_AT_A_TIME)
        app = FastAPI(title="recalld ingest", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
        install(app)
        app.add_middleware(OriginGuard, host=host)
        app.add_api_route("/v1/ingest/compare", self._compare, methods=["POST"])
        app.add_api_route("/v1/ingest/part", self._part, methods=["POST"], response_model=Accepted)
        app.add_api_route("/v1/ingest/delete", self._delete, methods=["POST"])
        app.add_api_route("/healthz", _healthz, methods=["GET"])
        app.add_api_route("/readyz", self._readyz, methods=["GET"])
        super().__init__(
            app,
            host,
            port,
            section="ingest",
            grace_seconds=GRACE_SECONDS,
            failed=failed or (lambda error: log.error("door_failed", exc_info=error)),
            bounds=bounds,
        )
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def _compare(self, request: Request, body: DocumentsRequest) -> ExtentsAnswer:
        def compare() -> ExtentsAnswer:
            scope = self._admit(request, body.agent, body.machine)
            keys = [_key(document, body.machine) for document in body.documents]
            extents = ArrivingDocuments(self._database, scope).extents(body.machine, keys)
            answers = []
            for document, key in zip(body.documents, keys, strict=True):
                extent = extents.get(key, Extent())
                answers.append(
                    DocumentExtent(source=document.source, path=document.path, size=extent.size, digest=extent.digest)
                )
            return ExtentsAnswer(documents=tuple(answers))

        return await self._in_turn(compare)

    async def _part(
        self,
        request: Request,
        source: SourceName,
        path: DocumentPath,
        machine: Machine,
        digest: Digest,
        offset: Annotated[int, Query(ge=0, le=2**50)] = 0,
        before: Digest = "",
        last: bool = True,  # noqa: FBT001, FBT002 - a query parameter
        agent: Agent = None,
        format: Annotated[str | None, Query(max_length=64)] = None,  # noqa: A002 - the name on the wire
        lane: Lane = Lane.LIVE,
    ) -> JSONResponse:
        frame = await request.body()

        def take() -> tuple[int, Extent]:
            scope = self._admit(request, agent, machine)
            key = _key(SentDocument(source=source, path=path), machine)
            self._require_room(scope)
            content = unpacked(frame, most=MOST_CONTENT_BYTES) if len(frame) <= MOST_PART_BYTES else None
            if content is None:
                raise HTTPException(
                    413 if len(frame) > MOST_PART_BYTES else 422,
                    f"send one Zstandard frame of at most {MOST_PART_BYTES} bytes, {MOST_CONTENT_BYTES} unpacked",
                )
            if running_digest(before, content) != digest:
                raise HTTPException(422, "the digest is not that of the content; send the part again")
            redacted = _redacted(content, source, self._directory.agent(scope.agent_id))
            part = Part(
                after=Extent(offset, before),
                length=len(content),
                digest=digest,
                content=frame if redacted == content else packed(redacted),
                stored=len(redacted),
                is_last=last,
                format=format,
            )
            event = request.headers.get("idempotency-key", "")[:64] or None
            try:
                extent = ArrivingDocuments(self._database, scope).add(machine, key, part, event=event)
            except Misplaced as error:
                return 409, error.present
            except EventReused:
                raise HTTPException(409, "this Idempotency-Key came before with other content; use a new one") from None
            if last:
                self._mark(scope, [key], lane)
            return 200, extent

        status, extent = await self._in_turn(take)
        return JSONResponse(Accepted(size=extent.size, digest=extent.digest).model_dump(), status)

    async def _delete(self, request: Request, body: DocumentsRequest) -> Deleted:
        def delete() -> Deleted:
            scope = self._admit(request, body.agent, body.machine)
            keys = [_key(document, body.machine) for document in body.documents]
            ArrivingDocuments(self._database, scope).remove(body.machine, keys)
            self._mark(scope, keys, Lane.LIVE)
            return Deleted(documents=len(keys))

        return await self._in_turn(delete)

    async def _readyz(self) -> JSONResponse:
        def look() -> None:
            with self._database.directory():
                pass

        await self._in_turn(look)
        return JSONResponse({"status": "ready"})

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Run a request's work with the store on a thread; refuse it for a moment when too many others wait."""
        if self._places.locked():
            raise _again("too many machines send at once")
        async with self._places:
            return await asyncio.to_thread(work)

    def _admit(self, request: Request, requested: str | None, machine: str) -> Scope:
        """Return the scope of a request. Raise AccessDenied: its token may not send for that agent or that machine."""
        authorization = request.headers.get("authorization")
        token = self._authorizer.token(authorization, "ingest")
        name = (requested or "").removeprefix(f"{token.tenant}/")
        may_add = bool(name) and "admin" in token.rights and token.agents is None
        if may_add and not has_agent(self._directory, Scope(token.tenant, name).agent_id):
            try:
                Administration(self._database, actor=token.name).add_agent(token.tenant, name)
            except UserError as error:
                raise HTTPException(422, str(error)) from None
        scope = Scope.of(self._authorizer.agent(authorization, requested, right="ingest"))
        self._bound(token, machine, time.monotonic() // TRUSTED_SECONDS)
        return scope

    def _bind(self, token: AccessToken, machine: str, _: float) -> None:
        if not bind_machine(self._database, token, machine):
            raise AccessDenied(403, "this access token belongs to another machine; make one for each machine")

    def _require_room(self, scope: Scope) -> None:
        if (self._pending(scope.agent_id) or 0) >= MOST_PENDING:
            raise _again(f"more than {MOST_PENDING} documents of this agent wait for the workers")

    def _mark(self, scope: Scope, keys: Sequence[DocumentKey], lane: Lane) -> None:
        try:
            self._queue.mark_changed(scope.agent_id, keys, lane=lane)
        except BrokerUnavailable as error:
            # The content is committed. The fleet's comparison finds the documents.
            log.warning("documents_not_queued", agent=scope.agent_id, documents=len(keys), error=str(error))


async def _healthz() -> JSONResponse:
    return JSONResponse({"status": "ok"})


def _again(reason: str) -> HTTPException:
    return HTTPException(429, f"{reason}; send again in {AGAIN_SECONDS} s", {"Retry-After": str(AGAIN_SECONDS)})


def _key(document: SentDocument, machine: str) -> DocumentKey:
    """Return the key of a document of a machine. Raise HTTPException: its path is none of a memory."""
    parts = document.path.split("/")
    is_plain = document.path.isprintable() and all(part not in ("", ".", "..") for part in parts)
    if not is_plain or len(document.path.encode("utf-8", "surrogatepass")) > 1024:
        raise HTTPException(422, "a path is relative, without empty parts, dots alone and control characters")
    if document.source != SESSIONS_SOURCE:
        if not is_note_name(parts[-1]):
            raise HTTPException(422, "a note is a Markdown file: its name ends with .md")
        return DocumentKey(document.source, document.path)
    if parts[0] != SESSIONS_SOURCE or len(parts) < 2:
        raise HTTPException(422, f"the path of a transcript begins with {SESSIONS_SOURCE}/")
    return DocumentKey(document.source, "/".join((SESSIONS_SOURCE, machine, *parts[1:])))


def _redacted(content: bytes, source: str, agent: AgentSettings) -> bytes:
    """Return the content redacted once more, by the rules of the fleet."""
    redact = redactor_for(agent, source)
    if source == SESSIONS_SOURCE:
        return b"\n".join(redact_line(line, redact) for line in content.split(b"\n"))
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return redact(content.decode(errors="replace")).encode()
    masked = redact(text)
    return content if masked == text else masked.encode()

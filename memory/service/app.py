"""Routes of the read-only query service: memory, tools, health, metrics, the owner's views and a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.routing import Route

from memory.embedding.coordination import Coordinate, alone
from memory.http.origin_guard import OriginGuard, is_loopback
from memory.http.refusals import install, refusals
from memory.search.ranking.terms import sought
from memory.search.tools import TOOLS, ToolArgumentsRefused
from memory.service import overview
from memory.service.context_routes import context_routes
from memory.service.query_service import QueryService
from schemas.context import FlushRequest, PromptRequest, PruneRequest
from schemas.ports import EventInbox, PendingReader
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.service import (
    DeadLettersAnswer,
    Health,
    QueueAnswer,
    Readiness,
    Refusal,
    TermsAnswer,
    TermsRequest,
    TimelineAnswer,
    ToolList,
    ToolRequest,
)
from schemas.settings import Settings
from schemas.status import Status
from schemas.version import recalld_version

#: Folder of the page's files. They are served as they are: nothing is built, and nothing is loaded from elsewhere.
PAGE_FOLDER = Path(__file__).with_name("page")

#: Path of a page -> its file.
PAGES = {"/": "page.html", "/docs": "docs.html"}

#: Scripts, styles and pictures of this service only, and no text is ever read as HTML by a script. A browser checks its
#: copies each time (`ETag`), so that a page and its scripts are of one version.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

#: Path -> model of its request's body.
_MODELS: dict[str, type[BaseModel]] = {
    "/v1/search": SearchRequest,
    "/v1/get": GetRequest,
    "/v1/tools": ToolRequest,
    "/v1/terms": TermsRequest,
    "/v1/context/prompt": PromptRequest,
    "/v1/context/flush": FlushRequest,
    "/v1/context/prune": PruneRequest,
}

_ABOUT_AGENTS = refusals(agents=True, fields=True)
_READY: dict[int | str, dict[str, Any]] = {
    **refusals(),
    503: {"model": Readiness | Refusal, "description": "Not ready, or too many clients"},
}
_NUMBERS: dict[int | str, dict[str, Any]] = {
    **_ABOUT_AGENTS,
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
}

Authorization = Annotated[str | None, Header(include_in_schema=False)]
Traceparent = Annotated[str | None, Header(include_in_schema=False)]
Agent = Annotated[str | None, Query()]

#: Paths of the Model Context Protocol, and its only method: a GET would open a stream, a DELETE end a session, and the
#: service has neither.
_MCP_PATHS = ("/mcp", "/mcp/{agent}")
_MCP_METHODS = ["POST"]


def create_app(
    settings: Settings,
    pending: PendingReader | None = None,
    *,
    inbox: EventInbox | None = None,
    coordinate: Coordinate = alone,
    proof: Callable[[str], str] | None = None,
) -> FastAPI:
    """Build the service.

    `service.host` decides whose Host headers are answered and whether tokens are needed. `coordinate` returns the
    limits that queries share with other users of their embedding provider. `proof` maps a nonce to the proof that this
    is the registered service of the home.
    """
    service = QueryService(settings, pending, inbox=inbox, coordinate=coordinate)
    mcp_routes, mcp_opened = _mcp(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.opened(), mcp_opened():
            yield

    app = FastAPI(
        title="recalld",
        version=recalld_version(),
        description="Hybrid search over agents' memory. Read-only.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    install(app, models=_MODELS, on_denied=lambda status: service.metrics.denied.labels(str(status)).inc())
    app.add_middleware(OriginGuard, loopback_only=is_loopback(settings.service.host), pages=PAGES)
    app.router.routes.extend(mcp_routes)
    app.include_router(_tool_routes(service))
    app.include_router(_memory_routes(service))
    app.include_router(_health_routes(service, proof))
    app.include_router(_overview_routes(service))
    app.include_router(context_routes(service))
    files = _PageFiles(directory=PAGE_FOLDER)

    async def page(request: Request) -> Response:
        return await files.get_response(PAGES[request.url.path], request.scope)

    app.router.routes.extend(Route(path, page) for path in PAGES)
    app.mount("/page", files)
    return app


class _PageFiles(StaticFiles):
    """Files of the page, with `PAGE_HEADERS`."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(PAGE_HEADERS)
        return response


def _mcp(service: QueryService) -> tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the routes of the Model Context Protocol, and what must be open while they answer."""
    try:
        from memory.service.mcp_endpoint import McpEndpoint
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "mcp_types"}:
            raise
        return [Route(path, _mcp_missing, methods=_MCP_METHODS) for path in _MCP_PATHS], nullcontext
    endpoint = McpEndpoint(allowed=service.authorizer.agent, call=service.call)
    return [Route(path, endpoint, methods=_MCP_METHODS) for path in _MCP_PATHS], endpoint.opened


async def _mcp_missing(_: Request) -> JSONResponse:
    return JSONResponse({"error": 'MCP needs its SDK: pip install "recalld[mcp]"'}, status_code=501)


def _memory_routes(service: QueryService) -> APIRouter:
    """Return the routes that search, read, and compare disk, index and queue."""
    router = APIRouter(responses=_ABOUT_AGENTS)
    deep_turn = asyncio.Lock()

    @router.post("/v1/search", response_model=SearchAnswer, summary="Search an agent's memory")
    async def search(
        request: SearchRequest, authorization: Authorization = None, traceparent: Traceparent = None
    ) -> Response:
        agent = service.authorizer.agent(authorization, request.agent)
        return _json(await service.memory(agent, traceparent=traceparent).searched(request))

    @router.post("/v1/get", response_model=GetAnswer, summary="Read lines of a document")
    async def get(request: GetRequest, authorization: Authorization = None) -> Response:
        agent = service.authorizer.agent(authorization, request.agent)
        return _json(await asyncio.to_thread(service.memory(agent).read_file, request))

    @router.get("/v1/status", response_model=Status, summary="Compare disk, index and queue")
    async def status(
        agent: Agent = None,
        deep: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        authorization: Authorization = None,
    ) -> Response:
        seen = service.authorizer.visible(authorization, agent)
        if not deep:
            return _json(await asyncio.to_thread(service.agents.status, seen, deep=False))
        # It reads whole indexes: one at a time, and the waiting ones hold no thread that a search could use.
        async with deep_turn:
            return _json(await asyncio.to_thread(service.agents.status, seen, deep=True))

    return router


def _tool_routes(service: QueryService) -> APIRouter:
    """Return the routes of tools for tool loops: `GET /v1/tools` lists them, `POST /v1/tools` calls one.

    A model's mistake is an answer, `{"error": sentence}` with status 200, to be put before the model as it is. Every
    other status is for the operator of the loop.
    """
    router = APIRouter()

    @router.get("/v1/tools", responses=refusals(), summary="The tools that agents know")
    async def list_tools() -> ToolList:
        return ToolList(tools=tuple(TOOLS.values()))  # the same for every agent, so it needs no token

    @router.post(
        "/v1/tools",
        response_model=dict[str, Any],
        responses=_ABOUT_AGENTS,
        summary="Call a tool, as a model asked for it",
    )
    async def call_tool(request: ToolRequest, authorization: Authorization = None) -> Response:
        agent = service.authorizer.agent(authorization, request.agent)
        try:
            found = await service.call(agent, request.name, _arguments(request), request.session_key)
        except ToolArgumentsRefused as error:
            found = {"error": str(error)}
        # A model may have written half of a surrogate pair, which no UTF-8 can hold, and an answer may repeat it.
        text = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
        return Response(text, media_type="application/json")

    return router


def _health_routes(service: QueryService, proof: Callable[[str], str] | None) -> APIRouter:
    """Return the routes of probes, collectors of metrics, and commands that look for the registered service."""
    router = APIRouter()

    @router.get("/healthz", response_model=Health, responses=refusals(), summary="Is the process alive?")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", response_model=Readiness, responses=_READY, summary="Can searches be answered?")
    async def readyz() -> Response:
        reason = await asyncio.to_thread(service.agents.not_ready)
        if reason is None:
            return JSONResponse({"status": "ready"})
        # Only a token shows which agent it is.
        shown = "an index cannot be opened; see status" if service.guarded else reason
        return JSONResponse({"status": "not ready", "error": shown}, status_code=503)

    @router.get("/metrics", response_class=Response, responses=_NUMBERS, summary="Numbers in Prometheus text format")
    async def metrics(authorization: Authorization = None) -> Response:
        seen = service.authorizer.measurable(authorization)
        return Response(await asyncio.to_thread(service.metrics.scrape, seen), media_type=CONTENT_TYPE_LATEST)

    if proof is not None:

        @router.get("/v1/proof/{nonce}", include_in_schema=False)
        async def prove(nonce: Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$")]) -> Response:
            return JSONResponse({"proof": proof(nonce)})

    return router


def _overview_routes(service: QueryService) -> APIRouter:
    """Return the routes of the owner's views, cheap enough for a request every two seconds."""
    router = APIRouter(responses=_ABOUT_AGENTS)
    agents = service.agents

    @router.get("/v1/queue", response_model=QueueAnswer, summary="What waits and what is there, without the disk")
    async def queue(agent: Agent = None, authorization: Authorization = None) -> Response:
        seen = service.authorizer.visible(authorization, agent)
        return _json(await asyncio.to_thread(overview.queue_view, agents, seen))

    @router.get("/v1/dead-letters", response_model=DeadLettersAnswer, summary="What could not be indexed, and why")
    async def dead_letters(agent: Agent = None, authorization: Authorization = None) -> Response:
        seen = service.authorizer.visible(authorization, agent)
        return _json(await asyncio.to_thread(overview.dead_letters, agents, seen))

    @router.get("/v1/timeline", response_model=TimelineAnswer, summary="Days that have notes")
    async def timeline(
        agent: Agent = None,
        year: Annotated[int | None, Query(ge=1, le=9999)] = None,
        authorization: Authorization = None,
    ) -> Response:
        owner = service.authorizer.agent(authorization, agent)
        return _json(await asyncio.to_thread(overview.timeline, agents, owner, year=year))

    @router.post("/v1/terms", response_model=TermsAnswer, summary="What a query looks for, to be highlighted")
    async def terms(request: TermsRequest, authorization: Authorization = None) -> Response:
        service.authorizer.visible(authorization)
        return _json(await asyncio.to_thread(lambda: TermsAnswer(terms=tuple(sought(request.query)))))

    return router


def _arguments(request: ToolRequest) -> dict[str, Any]:
    given: object = request.arguments
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            raise ToolArgumentsRefused(f"{request.name}: the arguments are not valid JSON") from None
    if not isinstance(given, dict):
        raise ToolArgumentsRefused(f"{request.name}: the arguments must be a JSON object")
    return given


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")

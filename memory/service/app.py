"""The read-only query service: search, get, status, health, metrics and a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import FastAPI, Header, Query, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from memory.embedding.coordination import Coordinate, alone
from memory.search.tools import call_tool
from memory.service import errors
from memory.service.agents import ServedAgents
from memory.service.counted_memory import CountedMemory
from memory.service.json_bodies import JsonRoute
from memory.service.mcp_routes import McpRoutes
from memory.service.metrics import ServiceMetrics
from memory.service.overview import Overview
from memory.service.overview_routes import overview_router
from memory.service.page_routes import PAGES, page_routes
from memory.service.refusals import refusals
from memory.service.security import AccessDenied, Doorkeeper, Gatekeeper, is_loopback, needs_tokens
from memory.service.tokens import read_metrics_token, read_tokens
from memory.service.tool_routes import tool_routes
from schemas.errors import RecalldError
from schemas.overview import TermsRequest
from schemas.ports import EventInbox, PendingReader
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.service import Health, Readiness, Refusal
from schemas.settings import Settings
from schemas.status import Status
from schemas.tools import ToolRequest
from schemas.version import recalld_version

_log = structlog.get_logger(__name__)

#: Requests that are worked on at a time; the rest waits its turn. A tool call that waits for a slow embedding endpoint
#: holds one meanwhile, a search over HTTP does not.
REQUEST_THREADS = 64

#: Seconds between two looks in the background at what costs more with every agent.
LOOK_AROUND_SECONDS = 30.0

#: What is said of the answers besides their model.
_ASKED = refusals(agents=True, fields=True)
_READY: dict[int | str, dict[str, Any]] = {
    **refusals(),
    503: {"model": Readiness | Refusal, "description": "Not ready, or too many clients"},
}
_NUMBERS: dict[int | str, dict[str, Any]] = {
    **refusals(agents=True, fields=True),
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
}

Authorization = Annotated[str | None, Header(include_in_schema=False)]
Traceparent = Annotated[str | None, Header(include_in_schema=False)]
T = TypeVar("T")


def create_app(
    settings: Settings,
    pending: PendingReader | None = None,
    *,
    inbox: EventInbox | None = None,
    coordinate: Coordinate = alone,
    proof: Callable[[str], str] | None = None,
) -> FastAPI:
    """Build the service.

    Args:
        settings: the whole tree; `service.host` decides whose Host headers are answered and whether tokens are needed.
        pending: how to ask the queue how far the index is behind.
        inbox: where a request to compare files and index is left.
        coordinate: what queries share with others who use their embedding provider.
        proof: nonce -> what shows that this is the service that the home's commands look for.

    Reads the agents' tokens from `<home>/run/tokens` when they are needed (`needs_tokens`). Models are
    loaded in the background when the application starts; everything is let go when it ends.
    """
    agents = ServedAgents(settings, pending=pending, inbox=inbox, coordinate=coordinate)
    metrics = ServiceMetrics(recalld_version(), process=agents.process_numbers)
    tokens = read_tokens(settings.home, agents.ids) if needs_tokens(settings, host=settings.service.host) else None
    gate = Gatekeeper(agents.ids, tokens, read_metrics_token(settings.home) if tokens is not None else None)
    threads = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="request")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.get_running_loop().run_in_executor(threads, agents.warm_up)
        looking = asyncio.create_task(look_around())
        try:
            async with mcp.opened():
                yield
        finally:
            looking.cancel()
            await asyncio.get_running_loop().run_in_executor(threads, agents.close)
            threads.shutdown(wait=True)

    app = FastAPI(
        title="recalld",
        version=recalld_version(),
        description="Hybrid search over agents' memory. Read-only.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.router.route_class = JsonRoute
    app.add_middleware(Doorkeeper, loopback_only=is_loopback(settings.service.host), pages=PAGES)
    models: dict[str, type[BaseModel]] = {
        "/v1/search": SearchRequest,
        "/v1/get": GetRequest,
        "/v1/tools": ToolRequest,
        "/v1/terms": TermsRequest,
    }
    errors.install(app, models=models)

    def allowed(authorization: str | None, asked: str | None) -> str:
        with _counting_denials(metrics):
            return gate.agent(authorization, asked)

    def visible(authorization: str | None, asked: str | None) -> tuple[str, ...]:
        with _counting_denials(metrics):
            return gate.visible(authorization) if asked is None else (gate.agent(authorization, asked),)

    async def in_thread(work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def call(agent: str, name: str, arguments: Mapping[str, Any], session_key: str | None) -> dict[str, Any]:
        return await in_thread(lambda: _call_tool(agents, metrics, agent, name, arguments, session_key))

    async def look_around() -> None:
        while True:
            try:
                await in_thread(agents.look_around)
            except RecalldError as error:
                _log.warning("look_around_failed", error=str(error))
            await asyncio.sleep(LOOK_AROUND_SECONDS)

    deep_turn = asyncio.Lock()
    mcp = McpRoutes(allowed=allowed, call=call)
    app.router.routes.extend(mcp.routes)
    app.include_router(tool_routes(allowed=allowed, call=call))

    @app.post("/v1/search", response_model=SearchAnswer, responses=_ASKED, summary="Search an agent's memory")
    async def search(
        request: SearchRequest, authorization: Authorization = None, traceparent: Traceparent = None
    ) -> Response:
        agent = allowed(authorization, request.agent)
        return _json(await _search(agents, metrics, agent, request, traceparent=traceparent))

    @app.post("/v1/get", response_model=GetAnswer, responses=_ASKED, summary="Read lines of a document")
    async def get(request: GetRequest, authorization: Authorization = None) -> Response:
        agent = allowed(authorization, request.agent)
        return _json(await in_thread(lambda: _get(agents, metrics, agent, request)))

    @app.get("/v1/status", response_model=Status, responses=_ASKED, summary="Compare disk, index and queue")
    async def status(
        agent: Annotated[str | None, Query()] = None,
        deep: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        authorization: Authorization = None,
    ) -> Response:
        seen = visible(authorization, agent)
        if not deep:
            return _json(await in_thread(lambda: agents.status(seen, deep=False)))
        # It reads whole indexes: one at a time, and who waits for it holds no thread that a search could use.
        async with deep_turn:
            return _json(await in_thread(lambda: agents.status(seen, deep=True)))

    @app.get("/healthz", response_model=Health, responses=refusals(), summary="Is the process alive?")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", response_model=Readiness, responses=_READY, summary="Can searches be answered?")
    async def readyz() -> Response:
        reason = await in_thread(agents.not_ready)
        if reason is None:
            return JSONResponse({"status": "ready"})
        # Without a token nobody learns which agent it is.
        shown = reason if tokens is None else "an index cannot be opened; see status"
        return JSONResponse({"status": "not ready", "error": shown}, status_code=503)

    @app.get("/metrics", response_class=Response, responses=_NUMBERS, summary="Numbers in Prometheus text format")
    async def show_metrics(authorization: Authorization = None) -> Response:
        with _counting_denials(metrics):
            seen = gate.measurable(authorization)
        text = await in_thread(lambda: metrics.scrape(lambda: agents.numbers(seen)))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    if proof is not None:

        @app.get("/v1/proof/{nonce}", include_in_schema=False)
        async def prove(nonce: Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$")]) -> Response:
            return JSONResponse({"proof": proof(nonce)})

    app.include_router(
        overview_router(Overview(agents, pending), allowed=allowed, visible=visible, in_thread=in_thread)
    )
    app.router.routes.extend(page_routes())
    return app


async def _search(
    agents: ServedAgents,
    metrics: ServiceMetrics,
    agent: str,
    request: SearchRequest,
    *,
    traceparent: str | None,
) -> SearchAnswer:
    memory = CountedMemory(agents.memory(agent), metrics, agent=agent, traceparent=traceparent)
    return await memory.searched(request)


def _get(agents: ServedAgents, metrics: ServiceMetrics, agent: str, request: GetRequest) -> GetAnswer:
    return CountedMemory(agents.memory(agent), metrics, agent=agent).read_file(request)


def _call_tool(
    agents: ServedAgents,
    metrics: ServiceMetrics,
    agent: str,
    name: str,
    arguments: Mapping[str, Any],
    session_key: str | None,
) -> dict[str, Any]:
    memory = CountedMemory(agents.memory(agent), metrics, agent=agent)
    return call_tool(memory, name, arguments, session_key=session_key)


@contextmanager
def _counting_denials(metrics: ServiceMetrics) -> Iterator[None]:
    try:
        yield
    except AccessDenied as error:
        metrics.denied.labels(str(error.status)).inc()
        raise


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")

"""Routes of the read-only query service: memory, tools, health, metrics, the owner's views and a page."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import structlog
from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from opentelemetry.trace import SpanKind
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.routing import Route

from memory.context.agent_context import AgentContext
from memory.context.injection import InjectedSessions
from memory.http.authorization import AccessDenied, Authorizer, OneTimeLinks
from memory.http.origin_guard import OriginGuard
from memory.http.refusals import install, refusals
from memory.search.ranking.query import single_terms, sought
from memory.search.searchable import SearchableMemory
from memory.search.tool_definitions import TOOLS, ToolArgumentsRefused, call_tool
from memory.service import overview
from memory.service.agents import STORE_AWAY, FleetAgents, ServedAgents
from memory.service.metrics import ServiceMetrics
from memory.service.turns import turns
from memory.status.condition_texts import TEXTS
from memory.status.home import fleet_state
from memory.telemetry import tracing
from schemas.context import (
    ContextReport,
    FlushAnswer,
    FlushRequest,
    PromptAnswer,
    PromptRequest,
    PruneAnswer,
    PruneRequest,
    SessionKindOfPrompt,
)
from schemas.errors import RecalldError, Transient
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.service import (
    DaysAnswer,
    DeadLettersAnswer,
    DocumentsAnswer,
    Health,
    PageLink,
    QueueAnswer,
    Readiness,
    Refusal,
    SessionAnswer,
    SessionRequest,
    TermsAnswer,
    TermsRequest,
    TimelineAnswer,
    ToolList,
    ToolRequest,
    TurnsAnswer,
)
from schemas.settings import Limits
from schemas.status import FleetState, Status
from schemas.version import install_command, recalld_version

if TYPE_CHECKING:
    from memory.store.postgres.directory import FleetAuthorizer

_log = structlog.get_logger(__name__)

#: Folder of the page's files. They are served unchanged, and they load nothing from elsewhere.
PAGE_FOLDER = Path(__file__).with_name("page")

#: Largest number of requests that read files, indexes or the queue at a time. A search holds no such thread.
REQUEST_THREADS = 64

#: Seconds between two background updates of the figures that cost more with every agent.
LOOK_AROUND_SECONDS = 30.0

#: Seconds between two checks for replaced indexes: the disk keeps a deleted file while it is open.
LET_GO_SECONDS = 3.0

#: Seconds that the decision on a request may take in a fleet; then its store counts as away.
DECISION_SECONDS = 5.0

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
CacheControl = Annotated[str, Header(description="`no-cache` looks now; an answer is otherwise a second old at most.")]
Agent = Annotated[str | None, Query()]
After = Annotated[str, Query(max_length=129, description="Last agent of the page before, in a fleet")]

#: Paths of the Model Context Protocol, and its only method: a GET would open a stream, a DELETE end a session, and the
#: service has neither.
_MCP_PATHS = ("/mcp", "/mcp/{agent}")
_MCP_METHODS = ["POST"]


T = TypeVar("T")


def create_app(agents: ServedAgents, *, proof: Callable[[str], str] | None = None) -> FastAPI:
    """Build the service of these agents, which closes them at its end.

    `service.host` decides which Host headers are accepted and if clients need tokens. `proof` maps a nonce to the proof
    that this is the registered service of the home.
    """
    service = _Service(agents)
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
    install(app, on_denied=lambda status: service.metrics.denied.labels(str(status)).inc())
    is_owner = service.authorizer.is_owner
    app.add_middleware(OriginGuard, host=agents.settings.service.host, pages=PAGES, is_owner=is_owner)
    # The order matters: the first route that matches answers.
    app.include_router(_memory_routes(service))
    app.include_router(_tool_routes(service))
    app.router.routes.extend(mcp_routes)
    app.include_router(_health_routes(service, proof))
    app.include_router(_overview_routes(service))
    app.include_router(_session_routes(service))
    app.include_router(_context_routes(service))
    files = _PageFiles(directory=PAGE_FOLDER)

    async def page(request: Request) -> Response:
        return await files.get_response(PAGES[request.url.path], request.scope)

    app.router.routes.extend(Route(path, page) for path in PAGES)
    app.mount("/page", files)
    return app


class _Service:
    """Agents, numbers and authorization of one service, shared by its routes."""

    def __init__(self, agents: ServedAgents) -> None:
        self.agents = agents
        self.metrics = ServiceMetrics(agents)
        self._injected = InjectedSessions()
        host, fleet = agents.settings.service.host, agents.fleet
        self.authorizer = fleet.authorizer() if fleet is not None else Authorizer.of(agents.settings, host=host)

    async def decided(self, decide: Callable[..., T], *arguments: Any, away: str | None = None, **options: Any) -> T:
        """Return an authorizer's decision. A fleet's waits for its store, on a thread, which opens a single agent, too.

        It is `away` while the store does not answer. Raises AccessDenied, and Transient instead of an unset `away`.
        """
        fleet = self.agents.served
        if not isinstance(fleet, FleetAgents):
            return decide(*arguments, **options)

        def decision() -> T:
            agents = decide(*arguments, **options)
            if isinstance(agents, str):
                fleet.open(agents)
            return agents

        seconds = min(DECISION_SECONDS, self.agents.settings.limits.timeout_ms / 1000)
        try:
            return await asyncio.wait_for(asyncio.to_thread(decision), seconds)
        except (Transient, TimeoutError) as error:
            if away is None:
                raise Transient("the store does not answer") from error
            return cast(T, away)

    async def agent(self, authorization: str | None, requested: str | None) -> str:
        """Return the agent whose memory a request may open; a stand-in while the store does not answer."""
        return await self.decided(self.authorizer.agent, authorization, requested, away=STORE_AWAY)

    def sums(self, authorization: str | None) -> FleetState | None:
        """Return the sums over all agents that an access token of a fleet opens; None without a fleet."""
        fleet, authorizer = self.agents.fleet, self.authorizer
        if fleet is None:
            return None
        return fleet_state(fleet, self.agents.queue, cast("FleetAuthorizer", authorizer).token(authorization, "search"))

    def memory(self, agent: str | None, *, traceparent: str | None = None) -> _CountedMemory:
        """Return an agent's memory, or that of all agents (None). `traceparent` is the client's span."""
        return _CountedMemory(self.agents.memory(agent), self.metrics, agent=agent or "*", traceparent=traceparent)

    def context(self, agent: str) -> AgentContext:
        """Return the context of an agent's conversations."""
        served = self.agents.served[agent]
        return AgentContext(
            self.agents.settings,
            served.settings,
            self.agents.memory(agent),
            self._injected,
            reading=served.manager.reading if served.manager is not None else nullcontext,
        )

    async def call(
        self, agent: str, name: str, arguments: Mapping[str, Any], session_key: str | None
    ) -> dict[str, Any]:
        """Return a tool's answer as a JSON object. Raises ToolArgumentsRefused."""
        return await call_tool(self.memory(agent), name, arguments, session_key=session_key)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Load models and update figures in the background until the end of the block, then close the agents."""
        threads = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="request")
        asyncio.get_running_loop().set_default_executor(threads)
        # A daemon: stopping does not wait for it.
        threading.Thread(target=self.agents.warm_up, name="warm-up", daemon=True).start()
        looking = asyncio.create_task(self._look_around())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.to_thread(self.agents.close)

    async def _look_around(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.agents.look_around)
            except RecalldError as error:
                _log.warning("look_around_failed", error=str(error))
            for _ in range(round(LOOK_AROUND_SECONDS / LET_GO_SECONDS)):
                await asyncio.sleep(LET_GO_SECONDS)
                if self.agents.fleet is None:
                    await asyncio.to_thread(self.agents.resources.open_indexes.forget_replaced)


class _CountedMemory(SearchableMemory):
    """Memory that counts and traces the answers of another memory. `traceparent` is the client's span."""

    def __init__(
        self, memory: SearchableMemory, metrics: ServiceMetrics, *, agent: str, traceparent: str | None
    ) -> None:
        self._memory = memory
        self._metrics = metrics
        self._agent = agent
        self._traceparent = traceparent

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self._memory.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the memory's answer."""
        started = time.perf_counter()
        with tracing.span("search", kind=SpanKind.SERVER, parent=self._traceparent, agent=self._agent) as span:
            answer = await self._memory.searched(request)
            outcome = _outcome(answer)
            span.set_attribute("recalld.mode", answer.mode)
            span.set_attribute("recalld.results", len(answer.results))
            span.set_attribute("recalld.outcome", outcome)
        self._metrics.search_seconds.labels(answer.mode).observe(time.perf_counter() - started)
        self._metrics.searches.labels(outcome).inc()
        for missing in dict.fromkeys(TEXTS[condition.code].lacks for condition in answer.conditions):
            self._metrics.degradations.labels(missing).inc()
        return answer

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return the memory's answer."""
        answer = self._memory.read_file(request)
        failed = "unavailable" if answer.unavailable else "missing" if answer.error else "ok"
        self._metrics.reads.labels("refused" if answer.refused else failed).inc()
        return answer


def _outcome(answer: SearchAnswer) -> str:
    if answer.unavailable:
        return "unavailable"
    if answer.degraded:
        return "degraded"
    return "found" if answer.results else "empty"


class _PageFiles(StaticFiles):
    """Files of the page, with `PAGE_HEADERS`."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(PAGE_HEADERS)
        return response


def _mcp(service: _Service) -> tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the routes of the Model Context Protocol, and the context in which they answer."""
    try:
        from memory.service.mcp_endpoint import McpEndpoint
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "mcp_types"}:
            raise
        return [Route(path, _mcp_missing, methods=_MCP_METHODS) for path in _MCP_PATHS], nullcontext
    endpoint = McpEndpoint(allowed=service.agent, call=service.call)
    return [Route(path, endpoint, methods=_MCP_METHODS) for path in _MCP_PATHS], endpoint.opened


async def _mcp_missing(_: Request) -> JSONResponse:
    return JSONResponse({"error": f"MCP needs its SDK: {install_command('mcp')}"}, status_code=501)


def _memory_routes(service: _Service) -> APIRouter:
    """Return the routes that search, read, and compare disk, index and queue."""
    router = APIRouter(responses=_ABOUT_AGENTS)
    deep_turn, decide = asyncio.Lock(), service.authorizer.agent_or_all

    @router.post(
        "/v1/search",
        response_model=SearchAnswer,
        summary="Search an agent's memory; with the owner's token and no agent, that of all",
    )
    async def search(
        request: SearchRequest, authorization: Authorization = None, traceparent: Traceparent = None
    ) -> Response:
        agent = await service.decided(decide, authorization, request.agent, away=STORE_AWAY)
        return _json(await service.memory(agent, traceparent=traceparent).searched(request))

    @router.post("/v1/get", response_model=GetAnswer, summary="Read lines of a document")
    async def get(request: GetRequest, authorization: Authorization = None) -> Response:
        agent = await service.decided(decide, authorization, request.agent, away=STORE_AWAY)
        return _json(await asyncio.to_thread(service.memory(agent).read_file, request))

    @router.get("/v1/status", response_model=Status, summary="Compare disk, index and queue")
    async def status(
        agent: Agent = None,
        deep: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        after: After = "",
        authorization: Authorization = None,
        cache_control: CacheControl = "",
    ) -> Response:
        visible_agents = await service.decided(service.authorizer.visible, authorization, agent, after=after)
        look = partial(service.agents.status, deep=deep, fresh="no-cache" in cache_control)
        # A deep look reads whole indexes: one at a time, and waiting requests hold no thread that a search could use.
        async with deep_turn if deep else nullcontext():
            fleet = await asyncio.to_thread(service.sums, authorization) if agent is None else None
            return _json(await asyncio.to_thread(look, visible_agents, fleet=fleet))

    return router


def _tool_routes(service: _Service) -> APIRouter:
    """Return the routes of tools for tool loops: `GET /v1/tools` lists them, `POST /v1/tools` calls one.

    A model's mistake is an answer, `{"error": sentence}` with status 200, for the model to read. Every other status is
    for the operator of the loop.
    """
    router = APIRouter()

    @router.get("/v1/tools", responses=refusals(), summary="Tools of agents")
    async def list_tools() -> ToolList:
        return ToolList(tools=tuple(TOOLS.values()))  # the same for every agent, so it needs no token

    @router.post(
        "/v1/tools",
        response_model=dict[str, Any],
        responses=_ABOUT_AGENTS,
        summary="Call a tool for a model",
    )
    async def call_tool(request: ToolRequest, authorization: Authorization = None) -> Response:
        agent = await service.agent(authorization, request.agent)
        try:
            answer = await service.call(agent, request.name, _arguments(request), request.session_key)
        except ToolArgumentsRefused as error:
            answer = {"error": str(error)}
        # A model may have written half of a surrogate pair, which no UTF-8 can hold, and an answer may repeat it.
        text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        return Response(text, media_type="application/json")

    return router


def _health_routes(service: _Service, proof: Callable[[str], str] | None) -> APIRouter:
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
        # The reason names an agent, which needs that agent's token.
        error = reason if service.authorizer.tokens is None else "store, model or index is not ready; see status"
        return JSONResponse({"status": "not ready", "error": error}, status_code=503)

    @router.get("/metrics", response_class=Response, responses=_NUMBERS, summary="Numbers in Prometheus text format")
    async def metrics(authorization: Authorization = None) -> Response:
        visible_agents = await service.decided(service.authorizer.measurable, authorization)
        fleet = await asyncio.to_thread(service.sums, authorization)
        numbers = await asyncio.to_thread(service.metrics.scrape, visible_agents, fleet)
        return Response(numbers, media_type=CONTENT_TYPE_LATEST)

    if proof is not None:

        @router.get("/v1/proof/{nonce}", include_in_schema=False)
        async def prove(nonce: Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$")]) -> Response:
            return JSONResponse({"proof": proof(nonce)})

    return router


def _overview_routes(service: _Service) -> APIRouter:
    """Return the routes of the owner's views, cheap enough for a request every two seconds."""
    router = APIRouter(responses=_ABOUT_AGENTS)
    agents = service.agents

    @router.get("/v1/queue", response_model=QueueAnswer, summary="Waiting work and counts of indexes, without the disk")
    async def queue(agent: Agent = None, after: After = "", authorization: Authorization = None) -> Response:
        visible_agents = await service.decided(service.authorizer.visible, authorization, agent, after=after)
        fleet = await asyncio.to_thread(service.sums, authorization) if agent is None else None
        answer = await asyncio.to_thread(overview.queue_view, agents, visible_agents, fleet)
        return _json(answer.model_copy(update={"owner": service.authorizer.is_owner(authorization)}))

    @router.get(
        "/v1/dead-letters",
        response_model=DeadLettersAnswer,
        summary="Documents that could not be indexed, and the reasons",
    )
    async def dead_letters(agent: Agent = None, authorization: Authorization = None) -> Response:
        visible_agents = await service.decided(service.authorizer.visible, authorization, agent)
        return _json(await asyncio.to_thread(overview.dead_letters, agents, visible_agents))

    @router.get("/v1/timeline", response_model=TimelineAnswer, summary="Days that have notes")
    async def timeline(
        agent: Agent = None,
        year: Annotated[int | None, Query(ge=1, le=9999)] = None,
        authorization: Authorization = None,
    ) -> Response:
        owner = await service.agent(authorization, agent)
        return _json(await asyncio.to_thread(overview.timeline, agents, owner, year=year))

    @router.get("/v1/documents", response_model=DocumentsAnswer, summary="Latest documents, or a level of their tree")
    async def documents(
        agent: Agent = None,
        source: Annotated[Literal["memory", "sessions"] | None, Query()] = None,
        day: Annotated[date | None, Query()] = None,
        under: Annotated[
            str | None, Query(max_length=4096, description="Folder of the tree, empty for its top")
        ] = None,
        offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        authorization: Authorization = None,
    ) -> Response:
        if under is None:
            visible_agents = await service.decided(service.authorizer.visible, authorization, agent)
            answer = partial(overview.documents, agents, visible_agents, source=source, day=day, offset=offset)
        else:
            owner = await service.agent(authorization, agent)
            answer = partial(overview.tree, agents, owner, source=source or "memory", under=under, offset=offset)
        return _json(await asyncio.to_thread(answer))

    @router.get("/v1/days", response_model=DaysAnswer, summary="Days that have notes or conversations")
    async def days(
        since: Annotated[date, Query()], agent: Agent = None, authorization: Authorization = None
    ) -> Response:
        visible_agents = await service.decided(service.authorizer.visible, authorization, agent)
        return _json(await asyncio.to_thread(overview.days, agents, visible_agents, since=since))

    @router.get("/v1/turns", response_model=TurnsAnswer, summary="Turns of a conversation")
    async def conversation(
        path: Annotated[str, Query(min_length=1, max_length=4096)],
        agent: Agent = None,
        line: Annotated[int, Query(ge=1)] = 1,
        before: Annotated[int, Query(ge=0, le=100)] = 0,
        count: Annotated[int, Query(ge=0, le=100)] = 40,
        authorization: Authorization = None,
    ) -> Response:
        served = agents.served[await service.agent(authorization, agent)]
        if served.manager is None:
            return _json(TurnsAnswer(path=path, error=served.reason))
        read = partial(turns, served.manager, path, line=line, before=before, count=count)
        return _json(await asyncio.to_thread(read))

    @router.post("/v1/terms", response_model=TermsAnswer, summary="Terms of a query, for highlighting")
    async def terms(request: TermsRequest, authorization: Authorization = None) -> Response:
        await service.decided(service.authorizer.visible, authorization)

        def answer() -> TermsAnswer:
            forms = tuple(term.form for term in single_terms(request.query) if term.form)
            return TermsAnswer(terms=sought(request.query), forms=forms)

        return _json(await asyncio.to_thread(answer))

    return router


def _session_routes(service: _Service) -> APIRouter:
    """Return the routes by which `recalld open` opens the page for the owner."""
    router = APIRouter(responses=_ABOUT_AGENTS)
    authorizer, links = service.authorizer, OneTimeLinks()

    @router.post("/v1/session/link", response_model=PageLink, summary="Link to the page, for the owner")
    async def link(authorization: Authorization = None) -> Response:
        if authorizer.tokens is None and len(authorizer.agents) < 2:
            return _json(PageLink(path="/"))
        if not authorizer.has_owner_token(authorization):
            raise AccessDenied(401, "the owner's token is needed: it is the content of <home>/run/owner-token")
        return _json(PageLink(path=f"/#open={links.make()}"))

    @router.post("/v1/session", response_model=SessionAnswer, summary="Session of the page, once for each link")
    async def session(request: SessionRequest) -> Response:
        links.use(request.link)
        return _json(SessionAnswer(token=authorizer.new_session()))

    return router


def _context_routes(service: _Service) -> APIRouter:
    """Return the routes of the life cycle around a conversation. Nothing is written."""
    router = APIRouter(responses=_ABOUT_AGENTS)

    @router.post("/v1/context/prompt", response_model=PromptAnswer, summary="Text of the memory for a prompt")
    async def prompt(request: PromptRequest, authorization: Authorization = None) -> Response:
        agent = await service.agent(authorization, request.agent)
        return _ascii(await service.context(agent).before_prompt(request))

    @router.get("/v1/context", response_model=ContextReport, summary="Memory in prompts, and indexed documents")
    async def report(
        agent: Agent = None,
        session_key: Annotated[str | None, Query(alias="sessionKey")] = None,
        kind: Annotated[SessionKindOfPrompt, Query()] = "chat",
        bare_reset: Annotated[bool, Query(alias="bareReset")] = False,  # noqa: FBT002 - a query parameter
        texts: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        authorization: Authorization = None,
    ) -> Response:
        context = service.context(await service.agent(authorization, agent))
        answer = await asyncio.to_thread(
            context.report, session_key=session_key, kind=kind, bare_reset=bare_reset, texts=texts
        )
        return _ascii(answer)

    @router.post("/v1/context/flush", response_model=FlushAnswer, summary="Is memory due to be saved?")
    async def flush(request: FlushRequest, authorization: Authorization = None) -> Response:
        agent = await service.agent(authorization, request.agent)
        return _ascii(await asyncio.to_thread(service.context(agent).flush, request))

    @router.post("/v1/context/prune", response_model=PruneAnswer, summary="Messages without old tool results")
    async def prune(request: PruneRequest, authorization: Authorization = None) -> Response:
        agent = await service.agent(authorization, request.agent)
        return _ascii(await asyncio.to_thread(service.context(agent).prune, request))

    return router


def _arguments(request: ToolRequest) -> dict[str, Any]:
    arguments: object = request.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise ToolArgumentsRefused(f"{request.name}: the arguments are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ToolArgumentsRefused(f"{request.name}: the arguments must be a JSON object")
    return arguments


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")


def _ascii(answer: BaseModel) -> Response:
    """Return an answer as JSON in ASCII, as messages may hold half of a surrogate pair. Nulls in messages stay."""
    return Response(json.dumps(answer.model_dump(by_alias=True, exclude_none=True)), media_type="application/json")

"""The routes of the owner's views. Cheap enough to be asked every two seconds, and answered like the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel

from memory.search.ranking.terms import sought
from memory.service.json_bodies import JsonRoute
from memory.service.overview import Overview
from memory.service.refusals import refusals
from schemas.overview import DeadLettersAnswer, QueueAnswer, TermsAnswer, TermsRequest, TimelineAnswer

Authorization = Annotated[str | None, Header(include_in_schema=False)]
Agent = Annotated[str | None, Query()]


class Visible(Protocol):
    """(Authorization header, agent asked for) -> the agents that this request may see; raises AccessDenied."""

    def __call__(self, authorization: str | None, asked: str | None) -> tuple[str, ...]: ...


#: Runs work in a thread.
InThread = Callable[[Callable[[], BaseModel]], Awaitable[BaseModel]]


def overview_router(
    overview: Overview,
    *,
    allowed: Callable[[str | None, str | None], str],
    visible: Visible,
    in_thread: InThread,
) -> APIRouter:
    """The routes.

    Args:
        overview: who answers.
        allowed: (Authorization header, agent asked for) -> whose memory it is; raises AccessDenied.
        visible: which agents a request about all of them may see.
        in_thread: runs what blocks.
    """
    router = APIRouter(route_class=JsonRoute, responses=refusals(agents=True, fields=True))

    @router.get("/v1/queue", response_model=QueueAnswer, summary="What waits and what is there, without the disk")
    async def queue(agent: Agent = None, authorization: Authorization = None) -> Response:
        seen = visible(authorization, agent)
        return _json(await in_thread(lambda: overview.queue(seen)))

    @router.get("/v1/dead-letters", response_model=DeadLettersAnswer, summary="What could not be indexed, and why")
    async def dead_letters(agent: Agent = None, authorization: Authorization = None) -> Response:
        seen = visible(authorization, agent)
        return _json(await in_thread(lambda: overview.dead_letters(seen)))

    @router.get("/v1/timeline", response_model=TimelineAnswer, summary="Days that have notes")
    async def timeline(
        agent: Agent = None,
        year: Annotated[int | None, Query(ge=1, le=9999)] = None,
        authorization: Authorization = None,
    ) -> Response:
        whose = allowed(authorization, agent)
        return _json(await in_thread(lambda: overview.timeline(whose, year=year)))

    @router.post("/v1/terms", response_model=TermsAnswer, summary="What a query looks for, to be highlighted")
    async def terms(request: TermsRequest, authorization: Authorization = None) -> Response:
        visible(authorization, None)
        return _json(await in_thread(lambda: TermsAnswer(terms=tuple(sought(request.query)))))

    return router


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")

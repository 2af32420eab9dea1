"""Routes of the life cycle around a conversation: prompts, reports, flushes, pruning. Nothing is written."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query

from memory.http.refusals import refusals
from memory.service.query_service import QueryService
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

Authorization = Annotated[str | None, Header(include_in_schema=False)]


def context_routes(service: QueryService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=refusals(agents=True, fields=True))

    @router.post("/v1/context/prompt", response_model_exclude_none=True, summary="Text of the memory for a prompt")
    async def prompt(request: PromptRequest, authorization: Authorization = None) -> PromptAnswer:
        agent = service.authorizer.agent(authorization, request.agent)
        return await service.context(agent).before_prompt(request)

    @router.get("/v1/context", response_model_exclude_none=True, summary="What prompts get, and what is indexed")
    async def report(
        agent: Annotated[str | None, Query()] = None,
        session_key: Annotated[str | None, Query(alias="sessionKey")] = None,
        kind: Annotated[SessionKindOfPrompt, Query()] = "chat",
        bare_reset: Annotated[bool, Query(alias="bareReset")] = False,  # noqa: FBT002 - a query parameter
        texts: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        authorization: Authorization = None,
    ) -> ContextReport:
        context = service.context(service.authorizer.agent(authorization, agent))
        return await asyncio.to_thread(
            context.report, session_key=session_key, kind=kind, bare_reset=bare_reset, texts=texts
        )

    @router.post("/v1/context/flush", response_model_exclude_none=True, summary="Is memory due to be saved?")
    async def flush(request: FlushRequest, authorization: Authorization = None) -> FlushAnswer:
        agent = service.authorizer.agent(authorization, request.agent)
        return await asyncio.to_thread(service.context(agent).flush, request)

    @router.post("/v1/context/prune", response_model_exclude_none=True, summary="Messages without old tool results")
    async def prune(request: PruneRequest, authorization: Authorization = None) -> PruneAnswer:
        agent = service.authorizer.agent(authorization, request.agent)
        return await asyncio.to_thread(service.context(agent).prune, request)

    return router

"""Routes of the life cycle around a conversation: prompts, reports, flushes, pruning. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query

from memory.context.agent_context import AgentContext
from memory.http.authorization import Authorizer
from memory.http.refusals import refusals
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


def context_routes(authorizer: Authorizer, context_of: Callable[[str], AgentContext]) -> APIRouter:
    """Return the routes; `context_of` returns the context of an agent."""
    router = APIRouter(responses=refusals(agents=True, fields=True))

    @router.post("/v1/context/prompt", response_model_exclude_none=True, summary="Text of the memory for a prompt")
    async def prompt(request: PromptRequest, authorization: Authorization = None) -> PromptAnswer:
        agent = authorizer.agent(authorization, request.agent)
        return await context_of(agent).before_prompt(request)

    @router.get("/v1/context", response_model_exclude_none=True, summary="What prompts get, and what is indexed")
    async def report(
        agent: Annotated[str | None, Query()] = None,
        session_key: Annotated[str | None, Query(alias="sessionKey")] = None,
        kind: Annotated[SessionKindOfPrompt, Query()] = "chat",
        bare_reset: Annotated[bool, Query(alias="bareReset")] = False,  # noqa: FBT002 - a query parameter
        texts: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        authorization: Authorization = None,
    ) -> ContextReport:
        context = context_of(authorizer.agent(authorization, agent))
        return await asyncio.to_thread(
            context.report, session_key=session_key, kind=kind, bare_reset=bare_reset, texts=texts
        )

    @router.post("/v1/context/flush", response_model_exclude_none=True, summary="Is memory due to be saved?")
    async def flush(request: FlushRequest, authorization: Authorization = None) -> FlushAnswer:
        agent = authorizer.agent(authorization, request.agent)
        return await asyncio.to_thread(context_of(agent).flush, request)

    @router.post("/v1/context/prune", response_model_exclude_none=True, summary="Messages without old tool results")
    async def prune(request: PruneRequest, authorization: Authorization = None) -> PruneAnswer:
        agent = authorizer.agent(authorization, request.agent)
        return await asyncio.to_thread(context_of(agent).prune, request)

    return router

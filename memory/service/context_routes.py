"""Routes of the life cycle around a conversation: prompts, reports, flushes, pruning. Nothing is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel

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

    @router.post("/v1/context/prompt", response_model=PromptAnswer, summary="Text of the memory for a prompt")
    async def prompt(request: PromptRequest, authorization: Authorization = None) -> Response:
        agent = authorizer.agent(authorization, request.agent)
        return _json(await context_of(agent).before_prompt(request))

    @router.get("/v1/context", response_model=ContextReport, summary="What prompts get, and what is indexed")
    async def report(
        agent: Annotated[str | None, Query()] = None,
        session_key: Annotated[str | None, Query(alias="sessionKey")] = None,
        kind: Annotated[SessionKindOfPrompt, Query()] = "chat",
        bare_reset: Annotated[bool, Query(alias="bareReset")] = False,  # noqa: FBT002 - a query parameter
        texts: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query parameter
        authorization: Authorization = None,
    ) -> Response:
        context = context_of(authorizer.agent(authorization, agent))
        found = await asyncio.to_thread(
            context.report, session_key=session_key, kind=kind, bare_reset=bare_reset, texts=texts
        )
        return _json(found)

    @router.post("/v1/context/flush", response_model=FlushAnswer, summary="Is memory due to be saved?")
    async def flush(request: FlushRequest, authorization: Authorization = None) -> Response:
        agent = authorizer.agent(authorization, request.agent)
        return _json(await asyncio.to_thread(context_of(agent).flush, request))

    @router.post("/v1/context/prune", response_model=PruneAnswer, summary="Messages without old tool results")
    async def prune(request: PruneRequest, authorization: Authorization = None) -> Response:
        agent = authorizer.agent(authorization, request.agent)
        return _json(await asyncio.to_thread(context_of(agent).prune, request))

    return router


def _json(answer: BaseModel) -> Response:
    """Return an answer as JSON in ASCII: messages may hold half of a surrogate pair, which UTF-8 has not."""
    # What is None inside a message stays.
    return Response(json.dumps(answer.model_dump(by_alias=True, exclude_none=True)), media_type="application/json")

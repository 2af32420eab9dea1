"""The tools that agents know, by plain HTTP, for tool loops: `GET /v1/tools` lists them, `POST /v1/tools` calls one.

The same core as behind the Model Context Protocol. What a model did wrong is an answer, `{"error": sentence}` with
status 200: that may be put before the model as it is, and every other status is for the people who run the loop.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from memory.search.tools import TOOLS, ToolArgumentsRefused
from memory.service.json_bodies import JsonRoute
from memory.service.refusals import refusals
from schemas.tools import Tool, ToolList, ToolRequest

Authorization = Annotated[str | None, Header(include_in_schema=False)]


def tool_routes(
    *,
    allowed: Callable[[str | None, str | None], str],
    call: Callable[[str, str, Mapping[str, Any], str | None], Awaitable[dict[str, Any]]],
) -> APIRouter:
    """The routes.

    Args:
        allowed: (Authorization header, agent asked for) -> whose memory it is; raises AccessDenied.
        call: (agent, tool, arguments, session key) -> the answer as a JSON object; raises ToolArgumentsRefused.
    """
    routes = APIRouter(route_class=JsonRoute)
    listed = ToolList(
        tools=tuple(
            Tool(name=tool.name, title=tool.title, description=tool.description, input_schema=dict(tool.input_schema))
            for tool in TOOLS.values()
        )
    )

    @routes.get("/v1/tools", responses=refusals(), summary="The tools that agents know")
    async def list_tools() -> ToolList:
        return listed  # the same for every agent, so nobody is asked for a token

    @routes.post(
        "/v1/tools",
        response_model=dict[str, Any],
        responses=refusals(agents=True, fields=True),
        summary="Call a tool, as a model asked for it",
    )
    async def call_tool(request: ToolRequest, authorization: Authorization = None) -> Response:
        agent = allowed(authorization, request.agent)
        try:
            found = await call(agent, request.name, _arguments(request), request.session_key)
        except ToolArgumentsRefused as error:
            found = {"error": str(error)}
        return _json(found)

    return routes


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


def _json(answer: dict[str, Any]) -> Response:
    # A model may have written half of a surrogate pair, which no UTF-8 can hold, and an answer may repeat it.
    text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    return Response(text, media_type="application/json")

"""Refusals of a service: one sentence each, never a traceback, and described at `/openapi.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect

from memory.http.authorization import AccessDenied
from memory.http.origin_guard import ANSWER_HEADERS, MAX_BODY_BYTES, TOO_LARGE
from schemas.errors import Transient
from schemas.service import Refusal
from schemas.validation_messages import problem_words, shown_names

_log = structlog.get_logger(__name__)

#: Statuses of every request, before it reaches its route; the last three are those of `Bounds`.
_ANY = (400, 403, 413, 415, 408, 431, 503)

#: Statuses of a request about an agent.
_AGENTS = (401, 404)


def refusals(*, agents: bool = False, fields: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return status -> its description for FastAPI, for requests about `agents`, or with `fields` that may be wrong."""
    statuses = (*_ANY, *(_AGENTS if agents else ()), *((422,) if fields else ()))
    return {status: {"model": Refusal, "description": HTTPStatus(status).phrase} for status in sorted(statuses)}


def install(app: FastAPI, *, on_denied: Callable[[int], None] = lambda _: None) -> None:
    """Bound bodies, and answer every kind of failure with `{"error": sentence}`.

    Call it before `OriginGuard` is added. `on_denied` gets the status of each refusal of access.
    """

    async def denied(_: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, AccessDenied) else 403
        on_denied(status)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return _refusal(status, str(error), headers)

    async def invalid(request: Request, error: Exception) -> Response:
        problems: Sequence[Any] = error.errors() if isinstance(error, RequestValidationError) else ()
        return _refusal(422, _sentence(problems, request.scope.get("route")))

    async def away(_: Request, __: Exception) -> Response:
        return _refusal(503, "the store does not answer; try again in a few seconds")

    async def http_error(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = str(error.detail) if isinstance(error, HTTPException) else "failed"
        headers = error.headers if isinstance(error, HTTPException) else None
        return _refusal(status, TOO_LARGE if status == 413 else detail, headers)

    async def client_gone(_: Request, __: Exception) -> Response:
        # The client left in the middle of its body, or was too slow: it reads no answer, and no request failed.
        return _refusal(400, "the request's body did not arrive")

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("request_failed", path=request.url.path, exc_info=error)
        return _refusal(500, "the request failed; the service's log says why")

    app.add_exception_handler(AccessDenied, denied)
    app.add_exception_handler(Transient, away)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, client_gone)
    app.add_exception_handler(Exception, failed)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)


def _sentence(problems: Sequence[Any], route: object) -> str:
    unknown = [str(problem["loc"][-1]) for problem in problems if problem.get("type") == "extra_forbidden"]
    body = route.body_field if isinstance(route, APIRoute) else None
    model = body.field_info.annotation if body is not None else None
    if unknown and isinstance(model, type) and issubclass(model, BaseModel):
        valid = ", ".join(field.alias or name for name, field in model.model_fields.items())
        return f"unknown field {shown_names(unknown)}; valid are {valid}"
    if not problems:
        return "the request is not valid"
    problem = problems[0]
    if problem.get("type") == "json_invalid":
        return "the request's body is not valid JSON"
    if problem.get("type") == "model_attributes_type" or tuple(problem.get("loc", ())) == ("body",):
        return "the body must be a JSON object, sent with Content-Type: application/json"
    return problem_words(problems, below=1)


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII: a sentence may repeat half of a surrogate pair, which no UTF-8 can hold.
    return Response(json.dumps({"error": sentence}), status, {**ANSWER_HEADERS, **(headers or {})}, "application/json")

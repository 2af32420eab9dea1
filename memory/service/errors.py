"""How the service says no: one sentence, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from memory.service.security import ANSWER_HEADERS, AccessDenied
from schemas.validation_messages import problem_words, shown_names

_log = structlog.get_logger(__name__)


def install(app: FastAPI, *, models: Mapping[str, type[BaseModel]]) -> None:
    """Answer every kind of failure with `{"error": sentence}`. `models`: request path -> model of its body."""

    async def denied(_: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, AccessDenied) else 403
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return _said(status, str(error), headers)

    async def invalid(request: Request, error: Exception) -> Response:
        problems: Sequence[Any] = error.errors() if isinstance(error, RequestValidationError) else ()
        sentence = _invalid(problems, models.get(request.url.path))
        return _said(422, sentence)

    async def http_error(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = str(error.detail) if isinstance(error, HTTPException) else "failed"
        return _said(status, detail)

    async def left(_: Request, __: Exception) -> Response:
        # In the middle of its body, or it was too slow: nobody reads this, and nothing failed here.
        return _said(400, "the request's body did not arrive")

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("request_failed", path=request.url.path, exc_info=error)
        return _said(500, "the request failed; the service's log says why")

    app.add_exception_handler(AccessDenied, denied)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(Exception, failed)


def field_names(model: type[BaseModel]) -> list[str]:
    """The names that a model knows on the wire."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _invalid(problems: Sequence[Any], model: type[BaseModel] | None) -> str:
    unknown = [str(problem["loc"][-1]) for problem in problems if problem.get("type") == "extra_forbidden"]
    if unknown and model is not None:
        return f"unknown field {shown_names(unknown)}; valid are {', '.join(field_names(model))}"
    if not problems:
        return "the request is not valid"
    problem = problems[0]
    if problem.get("type") == "model_attributes_type" or tuple(problem.get("loc", ())) == ("body",):
        return "the body must be a JSON object, sent with Content-Type: application/json"
    return problem_words(problems, below=1)


def _said(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII: a sentence may repeat half of a surrogate pair, which no UTF-8 can hold.
    return Response(json.dumps({"error": sentence}), status, {**ANSWER_HEADERS, **(headers or {})}, "application/json")

"""How the service says no: one sentence, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from memory.service.security import AccessDenied

_log = structlog.get_logger(__name__)


def install(app: FastAPI, *, models: Mapping[str, type[BaseModel]]) -> None:
    """Answer every kind of failure with `{"error": sentence}`. `models`: request path -> model of its body."""

    async def denied(_: Request, error: Exception) -> JSONResponse:
        status = error.status if isinstance(error, AccessDenied) else 403
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return JSONResponse({"error": str(error)}, status_code=status, headers=headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        problems: Sequence[Any] = error.errors() if isinstance(error, RequestValidationError) else ()
        sentence = _invalid(problems, models.get(request.url.path))
        return JSONResponse({"error": sentence}, status_code=422)

    async def http_error(_: Request, error: Exception) -> JSONResponse:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = str(error.detail) if isinstance(error, HTTPException) else "failed"
        return JSONResponse({"error": detail}, status_code=status)

    async def left(_: Request, __: Exception) -> JSONResponse:
        # In the middle of its body, or it was too slow: nobody reads this, and nothing failed here.
        return JSONResponse({"error": "the request's body did not arrive"}, status_code=400)

    async def failed(request: Request, error: Exception) -> JSONResponse:
        _log.error("request_failed", path=request.url.path, exc_info=error)
        return JSONResponse({"error": "the request failed; the service's log says why"}, status_code=500)

    app.add_exception_handler(AccessDenied, denied)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(Exception, failed)


def field_names(model: type[BaseModel]) -> list[str]:
    """The names that a model knows on the wire."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _invalid(problems: Sequence[Any], model: type[BaseModel] | None) -> str:
    unknown = [_place(problem) for problem in problems if problem.get("type") == "extra_forbidden"]
    if unknown and model is not None:
        return f"unknown field {', '.join(unknown)}; valid are {', '.join(field_names(model))}"
    if not problems:
        return "the request is not valid"
    problem = problems[0]
    if problem.get("type") == "json_invalid":
        return "the request's body is not valid JSON"
    if problem.get("type") == "model_attributes_type":
        return "the body must be a JSON object, sent with Content-Type: application/json"
    place = _place(problem)
    message = str(problem.get("msg", "is not valid"))
    return f"{place}: {message}" if place else message


def _place(problem: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in problem.get("loc", ()) if part not in {"body", "query"})

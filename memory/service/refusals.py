"""With which statuses the service refuses, for its own description at `/openapi.json`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from schemas.service import Refusal

#: Of every request, before anybody looks at what it asks for; the last three say that a client was too slow, its head
#: too large, or too many clients there.
_ANY = (400, 403, 413, 415, 408, 431, 503)

#: Of a request about an agent.
_AGENTS = (401, 404)


def refusals(*, agents: bool = False, fields: bool = False) -> dict[int | str, dict[str, Any]]:
    """Status -> what FastAPI wants to know of it.

    Args:
        agents: whether the request is about an agent, so that a token may be needed.
        fields: whether the request has fields that may be wrong.
    """
    statuses = (*_ANY, *(_AGENTS if agents else ()), *((422,) if fields else ()))
    return {status: {"model": Refusal, "description": HTTPStatus(status).phrase} for status in sorted(statuses)}

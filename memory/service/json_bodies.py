"""Bodies of requests as JSON that cannot hold the service up: neither deep nor wide, and without doubles."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from schemas.validation_messages import shown_name

#: Fields of a body, and entries of a list in one. What is wrong with each would be found out before it is refused.
_MOST_FIELDS = 32
_MOST_ENTRIES = 32


class JsonRoute(APIRoute):
    """A route whose body is read by `read_body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a request that reads its body so."""
        handle = super().get_route_handler()

        async def read_so(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read_so


class _JsonRequest(Request):
    async def json(self) -> Any:
        try:
            return read_body(await self.body())
        except ValueError as error:
            raise HTTPException(422, str(error)) from None


def read_body(body: bytes) -> Any:
    """The JSON of a body.

    Raises:
        ValueError: it is none, or not one to be read; a sentence.
    """
    try:
        found = json.loads(body, object_pairs_hook=_once)
    except _Twice:
        raise
    except RecursionError:
        raise ValueError("the request's body is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("the request's body is not valid UTF-8") from None
    except ValueError:
        # No JSON, or a number with thousands of digits, which Python does not read for what that would cost.
        raise ValueError("the request's body is not valid JSON") from None
    if isinstance(found, dict):
        if len(found) > _MOST_FIELDS:
            raise ValueError(f"the request's body has more than {_MOST_FIELDS} fields")
        for name, value in found.items():
            if isinstance(value, list) and len(value) > _MOST_ENTRIES:
                raise ValueError(f"{shown_name(name)} must have at most {_MOST_ENTRIES} entries")
    return found


class _Twice(ValueError):
    """An object has a name twice: whose value counts, no two programs agree on."""


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value] # it is None
        raise _Twice(f"the request's body has {shown_name(name)} twice")
    return found

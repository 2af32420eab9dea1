"""Both kinds of recalld's client, for tests that treat them alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from recalld.client import AsyncClient, Client

#: Sends these queries one after another over one client, made with these options, and returns the answers.
Talk = Callable[..., list[Any]]


def _synchronously(url: str, *queries: str, **options: Any) -> list[Any]:
    with Client(url=url, **options) as client:
        return [client.search(query) for query in queries]


def _asynchronously(url: str, *queries: str, **options: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with AsyncClient(url=url, **options) as client:
            return [await client.search(query) for query in queries]

    return asyncio.run(run())


KINDS: dict[str, Talk] = {"sync": _synchronously, "async": _asynchronously}

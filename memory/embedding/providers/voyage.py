"""Voyage AI's embeddings, through the voyageai SDK.

The SDK's own HTTP session asks ~/.netrc, takes an answer of 529 for a good one, and drops all headers but two.
`voyageai.requestssession` is its hook for another session, one for the whole process; which provider is asking is
known by the thread.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from memory.embedding.providers.presets import PRESETS
from memory.embedding.providers.remote import RemoteProvider

if TYPE_CHECKING:
    import httpx2


#: Keys that begin with "al-" are MongoDB Atlas's; the SDK sends them here, too.
_ATLAS_URL = "https://ai.mongodb.com/v1"

_setting_up = threading.Lock()
_asking: ContextVar[VoyageProvider] = ContextVar("asking")


class VoyageProvider(RemoteProvider):
    """Voyage AI, or a server that speaks its API."""

    extra = "voyage"

    def warm_up(self) -> None:
        self.load()

    def options(self, kind: str) -> dict[str, object]:
        # A text that is too long is refused, and listed. Cut, only its beginning would be found, without a message.
        return {"model": self.model, "truncation": False, **super().options(kind)}

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        voyageai = self.load()
        token = _asking.set(self)
        try:
            # Not through `Client.embed`: it would make a Python object of every number.
            return voyageai.Embedding.create(
                api_key=self.api_key,
                base_url=self.base_url,
                input=list(texts),
                encoding_format=self.encoding,
                **self.options(kind),
            )
        except voyageai.error.APIError as error:
            # The session raises refusals, so this is an answer that is no JSON.
            raise ValueError(str(error)) from error
        finally:
            _asking.reset(token)

    def load(self) -> Any:
        # The first time takes 0.7 s and 50 MB: it imports aiohttp and langchain.
        with _setting_up:
            try:
                voyageai: Any = importlib.import_module("voyageai")
            except ImportError as error:
                raise self.missing("voyageai") from error
            voyageai.requestssession = _Session
            # It logs whole requests, which are memory; VOYAGE_LOG would even print them.
            logging.getLogger("voyage").setLevel(logging.WARNING)
            voyageai.util.VOYAGE_LOG = None
            return voyageai


class _Session:
    """HTTP session for the SDK: the client of the provider that asks in this thread."""

    proxies: Mapping[str, str] = {}

    def request(self, method: str, url: str, *, headers: Mapping[str, str], data: bytes, **_: Any) -> httpx2.Response:
        provider = _asking.get()
        response = provider.send(method.upper(), url.removeprefix(provider.base_url), headers=headers, content=data)
        try:
            response.read()
        except Exception as error:
            raise provider.read_error(error) from error
        return response

    def close(self) -> None:
        """Do nothing: the provider closes its own client."""


def service_url(api_key: str | None) -> str:
    """Return the address of the service for this key."""
    return _ATLAS_URL if (api_key or "").startswith("al-") else PRESETS["voyage"].base_url

"""Any endpoint that speaks OpenAI's embeddings API, through the openai SDK."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memory.embedding.providers.remote import RemoteProvider
from schemas.errors import Permanent

if TYPE_CHECKING:
    from openai import OpenAI


class OpenAIProvider(RemoteProvider):
    """An OpenAI-compatible endpoint."""

    _sdk: OpenAI | None = None

    def close(self) -> None:
        self._sdk = None
        super().close()

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        sdk, encoding = self.load(), self.encoding
        try:
            # Raw: the SDK would build a Python object for every number, three times the time of all the rest.
            response = sdk.embeddings.with_raw_response.create(
                input=list(texts),
                model=self.model,
                encoding_format=encoding,  # type: ignore[arg-type] # one of its two literals
                extra_body=self.options(kind) or None,
            )
            content: bytes = response.content
        except Exception as error:
            refusal = self.read_error(error)
            if encoding == "float" or not isinstance(refusal, Permanent) or "encoding_format" not in refusal.reason:
                raise refusal from error
            # A server that does not know base64: plain numbers from now on.
            self.encoding = "float"
            return self._ask(texts, kind=kind)
        return json.loads(content)

    def load(self) -> OpenAI:
        if self._sdk is None:
            try:
                openai = importlib.import_module("openai")
            except ImportError as error:
                raise self.missing("openai") from error
            sdk: OpenAI = openai.OpenAI(
                api_key=self.api_key,
                base_url=self.base_url,
                max_retries=0,  # one owner for retries: the batcher
                default_headers=self.endpoint.headers,
                http_client=self.client(),
            )
            # The SDK takes these from the environment; they are none of another endpoint's business.
            sdk.organization = sdk.project = None
            self._sdk = sdk
        return self._sdk

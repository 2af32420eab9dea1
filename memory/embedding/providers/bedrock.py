"""Amazon Bedrock's embedding models, through boto3 and AWS's own chain of credentials and regions.

Formats: https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-embed-text.html,
.../model-parameters-embed-v3.html and .../model-parameters-embed-v4.html.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.exchange import Oversized, current
from memory.embedding.providers.presets import PRESETS
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.providers.remote import RemoteProvider
from schemas.errors import RecalldError, Terminal

_CONNECT_SECONDS = 10.0

#: Messages of AWS about an unavailable model; the text is not at fault.
_NO_SUCH_MODEL = re.compile(r"model identifier|on-demand throughput|model ID|end of its life", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Family:
    """Models with one form of request. `inputs` and `input_bytes` bound a request and a text.

    Titan takes one text a request. `dimensions_field` is None where the width cannot be chosen; only Cohere's models
    tell queries from documents.
    """

    name: str
    inputs: int
    input_bytes: int
    dimensions_field: str | None
    query_input_type: str | None = None
    document_input_type: str | None = None


_FAMILIES = (
    Family("amazon.titan-embed-text-v2", 1, 8191, "dimensions"),
    Family("amazon.titan-embed-text-v1", 1, 8191, None),
    Family("cohere.embed-v4", 96, 8191, "output_dimension", "search_query", "search_document"),
    # 2,048 characters a text.
    Family("cohere.embed-", 96, 2048, None, "search_query", "search_document"),
)


class BedrockProvider(RemoteProvider):
    """Titan or Cohere in the account and region that AWS's own settings name.

    `base_url` is another endpoint than the region's. The identity holds neither account nor region.
    """

    extra = "bedrock"

    def __init__(self, endpoint: Endpoint) -> None:
        # Also of an inference profile's id ("us.cohere.embed-v4:0") and of an ARN.
        family = next((family for family in _FAMILIES if family.name in endpoint.model), None)
        if family is None:
            raise ProviderUnavailable(
                f"the form of requests to {endpoint.model} of bedrock is not known",
                "name a model whose id begins with amazon.titan-embed-text or cohere.embed",
            )
        super().__init__(
            replace(
                endpoint,
                key_name="AWS's credentials, and in the console the access to the model",
                limits=replace(endpoint.limits, inputs=family.inputs, input_bytes=family.input_bytes),
                query_input_type=endpoint.query_input_type or family.query_input_type,
                document_input_type=endpoint.document_input_type or family.document_input_type,
                dimensions_field=family.dimensions_field or "",
            )
        )
        self._family = family
        self._runtimes: dict[str, Any] = {}

    def warm_up(self) -> None:
        self.load()

    def close(self) -> None:
        with self._making:
            for runtime in self._runtimes.values():
                runtime.close()
            self._runtimes.clear()
        super().close()

    def load(self) -> dict[str, Any]:
        with self._making:
            if not self._runtimes:
                try:
                    boto3: Any = importlib.import_module("boto3")
                    config: Any = importlib.import_module("botocore.config")
                except ImportError as error:
                    raise self.missing("boto3") from error
                # One owner for retries: the batcher.
                options = config.Config(connect_timeout=_CONNECT_SECONDS, retries={"total_max_attempts": 1})
                endpoint_url = self.base_url if self.base_url != PRESETS["bedrock"].base_url else None
                settings = {"service_name": "bedrock-runtime", "endpoint_url": endpoint_url}
                reads = {kind: self.endpoint.seconds(kind) for kind in ("query", "document")}
                try:
                    session = boto3.Session()
                    self._runtimes = {
                        kind: session.client(**settings, config=options.merge(config.Config(read_timeout=seconds)))
                        for kind, seconds in reads.items()
                    }
                except Exception as error:
                    raise self.read_error(error) from error
            return self._runtimes

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        runtime, most = self.load()[kind], self.answer_bytes(len(texts))
        try:
            body = json.dumps(self._body(texts, kind))
            response = runtime.invoke_model(
                modelId=self.model, body=body, contentType="application/json", accept="application/json"
            )
            current().accepted = True
            content = response["body"].read(most + 1)
        except Exception as error:
            raise self.read_error(error) from error
        if len(content) > most:
            raise Oversized(f"{self.name} sent more than the {most:,} bytes that an answer can have")
        counted = response["ResponseMetadata"]["HTTPHeaders"].get("x-amzn-bedrock-input-token-count", "")
        return {**json.loads(content), "usage": {"total_tokens": int(counted) if counted.isdecimal() else None}}

    def options(self, kind: str) -> dict[str, object]:
        # The answer says of a width that cannot be asked for that it is another one.
        return {name: value for name, value in super().options(kind).items() if name}

    def _body(self, texts: Sequence[str], kind: str) -> dict[str, object]:
        if self._family.inputs == 1:
            return {"inputText": texts[0], **self.options(kind)}
        # A text that is too long is refused, and listed.
        return {"texts": list(texts), "truncate": "NONE", "embedding_types": ["float"], **self.options(kind)}

    def read_error(self, error: Exception) -> RecalldError:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            fault, facts = response.get("Error", {}), response.get("ResponseMetadata", {})
            status, code, message = facts.get("HTTPStatusCode", 400), fault.get("Code", ""), fault.get("Message", "")
            if code == "ValidationException" and _NO_SUCH_MODEL.search(message):
                status = 404
            status = 500 if status == 424 else status  # the model's own failure
            return self.errors.of_status(status, facts.get("HTTPHeaders", {}), {"code": code, "message": message})
        exceptions: Any = importlib.import_module("botocore.exceptions")
        passing = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
        if isinstance(error, exceptions.BotoCoreError) and not isinstance(error, passing):
            return Terminal(
                f"AWS's settings do not do for {self.name}: {error} (region, credentials and profile are those of the "
                "aws command: `aws configure`, AWS_REGION, AWS_PROFILE)"
            )
        return super().read_error(error)

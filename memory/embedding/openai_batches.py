"""OpenAI's Batch API, and that of endpoints that speak it, through the openai SDK.

https://developers.openai.com/api/reference/resources/batches: a file of at most 50,000 requests and 200 MB, done
within 24 hours at half the price; https://developers.openai.com/api/docs/guides/batch has the lines' format.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from memory.embedding.batch_api import BatchUnavailable, JobFile, JobLimits
from memory.embedding.file_batches import FileBatches
from schemas.errors import RecalldError, Transient

if TYPE_CHECKING:
    from openai import OpenAI

    from memory.embedding.openai import OpenAIProvider

T = TypeVar("T")

#: Inputs of all requests of a job, and bytes of its file (a little below 200 MB, whichever megabyte is meant).
LIMITS = JobLimits(inputs=50_000, file_bytes=190_000_000)

_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 30.0
_FILE_SECONDS = 300.0

_GONE = frozenset({404, 405})


class OpenAIBatches(FileBatches):
    """The Batch API of the endpoint, key and model of one provider."""

    limits = LIMITS

    def __init__(self, provider: OpenAIProvider) -> None:
        self._provider = provider

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        body = {
            "model": self._provider.model,
            "input": text,
            "encoding_format": self._provider.encoding,
            **self._provider.options("document"),
        }
        return {"custom_id": custom_id, "method": "POST", "url": self.endpoint, "body": body}

    def _job(self, file_id: str) -> dict[str, Any]:
        return {"input_file_id": file_id, "endpoint": self.endpoint, "completion_window": "24h"}

    def _upload(self, file: JobFile, *, name: str) -> str:
        answer = self._ask(
            lambda client, timeout: (
                client.files.with_raw_response.create(
                    file=(name, file.content), purpose="batch", timeout=timeout
                ).content
            ),
            seconds=_FILE_SECONDS,
        )
        return _identified(answer)

    def _create(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return self._ask(
            lambda client, timeout: client.batches.with_raw_response.create(**body, timeout=timeout).content
        )

    def _get(self, job_id: str) -> Mapping[str, Any]:
        return self._ask(
            lambda client, timeout: client.batches.with_raw_response.retrieve(job_id, timeout=timeout).content
        )

    def _list(self, *, limit: int, after: str | None) -> Mapping[str, Any]:
        options: dict[str, Any] = {"limit": limit} if after is None else {"limit": limit, "after": after}
        return self._ask(
            lambda client, timeout: client.batches.with_raw_response.list(**options, timeout=timeout).content
        )

    def _cancel(self, job_id: str) -> None:
        self._guarded(lambda client, timeout: client.batches.with_raw_response.cancel(job_id, timeout=timeout).content)

    def _content(self, file_id: str) -> Iterator[bytes | str]:
        try:
            client = self._provider.client()
            # Streamed: 50,000 vectors are some 400 MB.
            with client.files.with_streaming_response.content(file_id, timeout=_timeout(_FILE_SECONDS)) as response:
                yield from response.iter_lines()
        except (RecalldError, GeneratorExit):
            raise
        except Exception as error:
            raise self._read(error) from error

    def _delete_file(self, file_id: str) -> None:
        self._guarded(lambda client, timeout: client.files.with_raw_response.delete(file_id, timeout=timeout).content)

    def _ask(self, call: Callable[[OpenAI, Any], bytes], *, seconds: float = _CALL_SECONDS) -> Mapping[str, Any]:
        content = self._guarded(call, seconds=seconds)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no JSON") from error
        if not isinstance(answer, Mapping):
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no object")
        return answer

    def _guarded(self, call: Callable[[OpenAI, Any], T], *, seconds: float = _CALL_SECONDS) -> T:
        client = self._provider.client()
        try:
            return call(client, _timeout(seconds))
        except Exception as error:
            raise self._read(error) from error

    def _read(self, error: Exception) -> RecalldError:
        if getattr(error, "status_code", None) in _GONE:
            return BatchUnavailable(f"{self._provider.name} has no such Batch API (HTTP {error.status_code})")  # type: ignore[attr-defined] # just asked
        return self._provider.read_error(error)


def _timeout(seconds: float) -> Any:
    return importlib.import_module("openai").Timeout(seconds, connect=_CONNECT_SECONDS)


def _identified(answer: Mapping[str, Any]) -> str:
    if not answer.get("id"):
        raise Transient("the provider's answer names no file")
    return str(answer["id"])

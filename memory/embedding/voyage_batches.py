"""Voyage's Batch API (https://docs.voyageai.com/docs/batch-inference), over plain HTTP: the voyageai SDK has none.

At most 100,000 inputs a job, done within 12 hours at a third less. A line holds the input only; model, input type and
the rest are `request_params` of the job. What could not be done in time stands in the error file as "batch_expired".
The documentation names no bound of the file's size (https://docs.voyageai.com/reference/files), so OpenAI's is kept.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memory.embedding.batch_api import BatchUnavailable, JobFile, JobLimits
from memory.embedding.endpoint_errors import ErrorReader
from memory.embedding.file_batches import FileBatches
from memory.embedding.voyage_session import make_session
from schemas.errors import RecalldError, Terminal, Transient

#: Half of what Voyage takes: a crash of theirs, or a job that comes too late, costs less.
LIMITS = JobLimits(inputs=50_000, file_bytes=190_000_000)

_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 30.0
_FILE_SECONDS = 300.0

#: Bytes of a file read at a time.
_READ_BYTES = 65_536

_GONE = frozenset({404, 405})


class VoyageBatches(FileBatches):
    """The Batch API at `base_url` (ends in /v1). `options` are the parameters of every request, the model included."""

    limits = LIMITS

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str | None,
        headers: Mapping[str, str],
        options: Mapping[str, object],
        errors: ErrorReader,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key or ''}", **headers}
        self._options = dict(options)
        self._errors = errors
        self._local = threading.local()

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"custom_id": custom_id, "body": {"input": [text]}}

    def _job(self, file_id: str) -> dict[str, Any]:
        return {
            "input_file_id": file_id,
            "endpoint": self.endpoint,
            "completion_window": "12h",
            "request_params": {"encoding_format": "base64", **self._options},
        }

    def _upload(self, file: JobFile, *, name: str) -> str:
        form = {"files": {"file": (name, file.content, "application/jsonl")}, "data": {"purpose": "batch"}}
        answer = self._ask("POST", "/files", seconds=_FILE_SECONDS, **form)
        if not answer.get("id"):
            raise Transient("the provider's answer names no file")
        return str(answer["id"])

    def _create(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return self._ask("POST", "/batches", json=body)

    def _get(self, job_id: str) -> Mapping[str, Any]:
        return self._ask("GET", f"/batches/{job_id}")

    def _list(self, *, limit: int, after: str | None) -> Mapping[str, Any]:
        return self._ask(
            "GET", "/batches", params={"limit": limit} if after is None else {"limit": limit, "after": after}
        )

    def _cancel(self, job_id: str) -> None:
        self._ask("POST", f"/batches/{job_id}/cancel")

    def _content(self, file_id: str) -> Iterator[bytes | str]:
        def lines() -> Iterator[bytes]:
            with self._send("GET", f"/files/{file_id}/content", seconds=_FILE_SECONDS, stream=True) as response:
                yield from response.iter_lines(chunk_size=_READ_BYTES)

        # What breaks while the lines come in is no answer's status any more.
        yield from self._guarded_lines(lines)

    def _delete_file(self, file_id: str) -> None:
        self._ask("DELETE", f"/files/{file_id}")

    def _ask(self, method: str, path: str, *, seconds: float = _CALL_SECONDS, **options: Any) -> Mapping[str, Any]:
        try:
            answer = self._send(method, path, seconds=seconds, **options).json()
        except RecalldError:
            raise
        except ValueError as error:
            raise Transient("the answer of voyage's Batch API is no JSON") from error
        if not isinstance(answer, Mapping):
            raise Transient("the answer of voyage's Batch API is no object")
        return answer

    def _send(self, method: str, path: str, *, seconds: float, **options: Any) -> Any:
        try:
            return self._session().request(
                method, f"{self._base_url}{path}", timeout=(_CONNECT_SECONDS, seconds), **options
            )
        except RecalldError:
            raise
        except OSError as error:  # all of requests' own errors are
            raise self._broken(error) from error

    def _guarded_lines(self, lines: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        try:
            yield from lines()
        except OSError as error:
            raise self._broken(error) from error

    def _broken(self, error: OSError) -> Transient:
        return self._errors.of_connection(error, timed_out="Timeout" in type(error).__name__)

    def _session(self) -> Any:
        """A session for each thread: they are not made to be shared."""
        if not hasattr(self._local, "session"):
            try:
                importlib.import_module("requests")
            except ImportError as error:
                raise Terminal('the voyageai package is not installed: pip install "recalld[voyage]"') from error
            self._local.session = make_session(headers=self._headers, read_status=self._read_status)
        return self._local.session

    def _read_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        if status in _GONE:
            return BatchUnavailable(f"voyage has no such Batch API (HTTP {status})")
        return self._errors.of_status(status, headers, body)

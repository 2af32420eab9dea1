"""OpenAI's and Voyage's Batch APIs, over plain HTTP: a file of JSON lines, a job, two files of results.

    lines -> POST files -> POST batches -> GET batches/ID ... -> GET files/ID/content (output, then errors)

Formats: https://developers.openai.com/api/reference/resources/batches and
https://docs.voyageai.com/docs/batch-inference; the second took the shape of the first.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import structlog
import tenacity

from memory.embedding.answers import read_answer
from memory.embedding.batch_api import (
    BatchApi,
    BatchLine,
    BatchUnavailable,
    JobFile,
    JobLimits,
    JobProgress,
    JobState,
)
from memory.embedding.remote import RemoteProvider
from memory.redaction import redact
from schemas.errors import Permanent, RecalldError, Throttled, Transient

log = structlog.get_logger(__name__)

#: Where our reference stands in a job's metadata.
_REFERENCE = "recalld_reference"

#: Attempts of one call, and the bounds in seconds of the pauses between them.
_ATTEMPTS = 3
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.3, 2.0

#: Jobs on a page of the list (both APIs allow 100), and pages looked at: newest first, so ours is soon there.
_PAGE = 100
_MOST_PAGES = 10

#: Bytes of a file held in memory before it goes to the disk.
_IN_MEMORY_BYTES = 4_000_000

#: Characters of a provider's own words in a message.
_MOST_WORDS = 200

#: Seconds that a call may take, and the bytes a second that files come and go with at least.
_CALL_SECONDS = 30.0
_FILE_BYTES_PER_SECOND = 50_000

#: Bytes of an answer that is no file; a page of 100 jobs has some 200,000.
_ANSWER_BYTES = 4_000_000

_GONE = frozenset({404, 405})

_STATES = {
    "completed": JobState.DONE,
    "partially_completed": JobState.DONE,
    "failed": JobState.FAILED,
    "expired": JobState.EXPIRED,
    "cancelled": JobState.CANCELLED,
    "canceled": JobState.CANCELLED,
}


class FileBatches(BatchApi):
    """The Batch API of the endpoint, key and model of one provider."""

    endpoint: ClassVar[str] = "/v1/embeddings"

    #: Half of the 100,000 inputs that Voyage takes: a crash of theirs, or a job that comes too late, costs less. OpenAI
    #: takes 50,000 and 200 MB; https://docs.voyageai.com/reference/files names no bound of a file.
    limits = JobLimits(inputs=50_000, file_bytes=190_000_000)

    def __init__(self, provider: RemoteProvider, *, call_seconds: float = _CALL_SECONDS) -> None:
        self._provider = provider
        self._call_seconds = call_seconds

    # What a provider is asked

    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        content = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, mode="w+b")  # noqa: SIM115 - handed out
        ids: list[str] = []
        size = 0
        for custom_id, text in texts:
            line = (
                json.dumps(
                    self._line(custom_id, self._provider.worded(text, "document")), separators=(",", ":")
                ).encode()
                + b"\n"
            )
            if len(ids) >= self.limits.inputs or size + len(line) > self.limits.file_bytes:
                break
            content.write(line)
            ids.append(custom_id)
            size += len(line)
        return JobFile(content, tuple(ids))

    def submit(self, file: JobFile, *, reference: str) -> str:
        file_id = _again(lambda: self._uploaded(file, reference))
        try:
            return str(_again(lambda: self._created(file_id, reference)))
        except RecalldError as error:
            if not isinstance(error, Transient) or isinstance(error, Throttled):
                # There is no job, so nobody else will ever want the file.
                with contextlib.suppress(RecalldError):
                    self._delete_file(file_id)
            raise

    def find(self, reference: str) -> str | None:
        after: str | None = None
        for _ in range(_MOST_PAGES):
            page = self._list(limit=_PAGE, after=after)
            jobs = [job for job in page.get("data") or [] if isinstance(job, Mapping)]
            for job in jobs:
                if (job.get("metadata") or {}).get(_REFERENCE) == reference:
                    return str(job["id"])
            if not page.get("has_more") or not jobs:
                return None
            after = str(jobs[-1].get("id"))
        return None

    def look(self, job_id: str) -> JobProgress:
        try:
            job = self._get(job_id)
        except BatchUnavailable:
            return JobProgress(JobState.FAILED, message="the provider does not know the job any more")
        return _progress(job)

    def results(self, job_id: str, *, texts: int) -> Iterator[BatchLine]:
        try:
            job = self._get(job_id)
        except BatchUnavailable:
            return
        seen: set[str] = set()
        for name in ("output_file_id", "error_file_id"):
            if not job.get(name):
                continue
            for line in map(_line_of, self._lines(str(job[name]), texts)):
                if line is not None and line.custom_id not in seen:
                    seen.add(line.custom_id)
                    yield line

    def cancel(self, job_id: str) -> None:
        # Refused for a job that is over, or gone: then there is nothing to stop.
        with contextlib.suppress(Permanent, BatchUnavailable):
            self._ask("POST", f"/batches/{job_id}/cancel")

    def clean_up(self, job_id: str) -> None:
        try:
            job = self._get(job_id)
            for name in ("input_file_id", "output_file_id", "error_file_id"):
                if job.get(name):
                    self._delete_file(str(job[name]))
        except RecalldError as error:
            # They expire by themselves (OpenAI: after 30 days).
            log.info("batch_files_left", job=job_id, error=str(error))

    def _uploaded(self, file: JobFile, reference: str) -> str:
        file.content.seek(0)
        return self._upload(file, name=f"recalld-{reference}.jsonl")

    def _created(self, file_id: str, reference: str) -> str:
        try:
            job = self._create({**self._job(file_id), "metadata": {_REFERENCE: reference}})
            return str(job["id"])
        except Transient as error:
            if not isinstance(error, Throttled):
                # The answer was lost, perhaps not the job.
                found = self.find(reference)
                if found is not None:
                    return found
            raise
        except KeyError as error:
            raise Transient("the provider's answer names no batch job") from error

    # What differs

    @abstractmethod
    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        """Return one line of the file."""

    @abstractmethod
    def _job(self, file_id: str) -> dict[str, Any]:
        """Return the body that makes a job, without metadata."""

    # Calls: each raises like `BatchApi`, with BatchUnavailable for "not found"

    def _upload(self, file: JobFile, *, name: str) -> str:
        answer = self._ask(
            "POST",
            "/files",
            files={"file": (name, file.content, "application/jsonl")},
            data={"purpose": "batch"},
        )
        if not answer.get("id"):
            raise Transient("the provider's answer names no file")
        return str(answer["id"])

    def _create(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return self._ask("POST", "/batches", json=body)

    def _get(self, job_id: str) -> Mapping[str, Any]:
        return self._ask("GET", f"/batches/{job_id}")

    def _list(self, *, limit: int, after: str | None) -> Mapping[str, Any]:
        params = {"limit": limit} if after is None else {"limit": limit, "after": after}
        return self._ask("GET", "/batches", params=params)

    def _delete_file(self, file_id: str) -> None:
        self._ask("DELETE", f"/files/{file_id}")

    def _ask(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        exchange = self._provider.exchange(
            seconds=self._call_seconds, answer_bytes=_ANSWER_BYTES, bytes_per_second=_FILE_BYTES_PER_SECOND
        )
        with exchange.running():
            response = self._provider.send(method, path, read_status=self._read_status, **options)
            content = b"".join(self._parts(response))
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no JSON") from error
        if not isinstance(answer, Mapping):
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no object")
        return answer

    def _lines(self, file_id: str, texts: int) -> Iterator[bytes]:
        """Return the lines of a file of results of so many texts, as they arrive: it may have 400 MB."""
        exchange = self._provider.exchange(
            seconds=self._call_seconds,
            answer_bytes=self._provider.answer_bytes(texts),
            bytes_per_second=_FILE_BYTES_PER_SECOND,
            may_move=True,
        )
        longest = self._provider.answer_bytes(1)
        with exchange.running():
            response = self._provider.send("GET", f"/files/{file_id}/content", read_status=self._read_status)
        with contextlib.closing(self._parts(response)) as parts:
            part, rest = b"\n", b""
            while part:
                with exchange.running():
                    part = next(parts, b"")
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
                if len(rest) > longest:
                    raise Transient(f"a line of the results of {self._provider.name}'s Batch API has no end")
        yield rest

    def _parts(self, response: Any) -> Generator[bytes]:
        try:
            yield from response.iter_bytes()
        except Exception as error:
            raise self._provider.read_error(error) from error
        finally:
            response.close()

    def _read_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        if status in _GONE:
            return BatchUnavailable(f"{self._provider.name} has no such Batch API (HTTP {status})")
        return self._provider.errors.of_status(status, headers, body)


class OpenAIBatches(FileBatches):
    """Jobs done within 24 hours at half the price; https://developers.openai.com/api/docs/guides/batch."""

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        provider = self._provider
        body = {
            "model": provider.model,
            "input": text,
            "encoding_format": provider.encoding,
            **provider.options("document"),
        }
        return {"custom_id": custom_id, "method": "POST", "url": self.endpoint, "body": body}

    def _job(self, file_id: str) -> dict[str, Any]:
        return {"input_file_id": file_id, "endpoint": self.endpoint, "completion_window": "24h"}


class VoyageBatches(FileBatches):
    """Jobs done within 12 hours at a third less. A line holds the input only; the job names model and options.

    What could not be done in time stands in the error file as "batch_expired".
    """

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"custom_id": custom_id, "body": {"input": [text]}}

    def _job(self, file_id: str) -> dict[str, Any]:
        return {
            "input_file_id": file_id,
            "endpoint": self.endpoint,
            "completion_window": "12h",
            "request_params": {"encoding_format": "base64", **self._provider.options("document")},
        }


def _again(call: Any) -> Any:
    """The call's result, after a few attempts if it fails in passing; longer waits are the job's, not ours."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, Transient) and (error.retry_after or 0.0) <= _LONGEST_PAUSE
        ),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(min=_SHORTEST_PAUSE, max=_LONGEST_PAUSE),
        reraise=True,
    )(call)


def _progress(job: Mapping[str, Any]) -> JobProgress:
    counts = job.get("request_counts") or {}
    errors = job.get("errors") or {}
    said = errors.get("data") if isinstance(errors, Mapping) else errors
    messages = [str(one.get("message") or one.get("code")) for one in said or [] if isinstance(one, Mapping)]

    def count(name: str) -> int:
        value = counts.get(name) if isinstance(counts, Mapping) else None
        return value if isinstance(value, int) else 0

    return JobProgress(
        # Whatever else it says (validating, in_progress, finalizing, cancelling) is not its end.
        state=_STATES.get(str(job.get("status")), JobState.RUNNING),
        total=count("total"),
        completed=count("completed"),
        failed=count("failed"),
        message=_quoted("; ".join(messages[:3])),
    )


def _line_of(line: bytes | str) -> BatchLine | None:
    """What a line of results says; None when it cannot be read."""
    if not line.strip():
        return None
    try:
        body = json.loads(line)
        custom_id = body["custom_id"]
        if not isinstance(custom_id, str):
            return None
        response = body.get("response") or {}
        if response.get("status_code") == 200:
            answer = read_answer(response["body"], expected=1)
            return BatchLine(custom_id, answer.vectors[0], tokens=answer.tokens)
        return BatchLine(custom_id, reason=_reason(body.get("error"), response))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Transient):
        return None


def _reason(error: object, response: Mapping[str, Any]) -> str:
    for said in (error, (response.get("body") or {}).get("error"), response):
        if isinstance(said, Mapping) and said.get("message"):
            return _quoted(str(said["message"]))
    return f"HTTP {response.get('status_code')}"


def _quoted(words: str) -> str:
    """A line of a provider's own words, which may quote what it was sent."""
    return redact(" ".join(words.split()))[:_MOST_WORDS]

"""OpenAI's, Voyage's and Gemini's Batch APIs, over plain HTTP: a file of JSON lines, a job, files of results.

    lines -> upload -> job -> look ... -> download of the results, those with errors last

Formats: https://developers.openai.com/api/reference/resources/batches,
https://docs.voyageai.com/docs/batch-inference, which took the shape of the first, and
https://ai.google.dev/gemini-api/docs/batch-api.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import structlog
import tenacity

from memory.embedding.batch_jobs.batch_api import (
    BatchApi,
    BatchLine,
    BatchUnavailable,
    JobFile,
    JobLimits,
    JobProgress,
    JobState,
)
from memory.embedding.providers.gemini import VERSION, GeminiProvider, as_openai
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.providers.remote import RemoteProvider, read_answer
from memory.embedding.providers.voyage import VoyageProvider
from memory.redaction import redact
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, Transient

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
    "succeeded": JobState.DONE,
    "partially_succeeded": JobState.DONE,
    "failed": JobState.FAILED,
    "expired": JobState.EXPIRED,
    "cancelled": JobState.CANCELLED,
    "canceled": JobState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class _Job:
    """A job as its provider describes it: the files of its `results`, and the `leftovers` to delete at its end."""

    id: str
    reference: str | None
    progress: JobProgress
    results: tuple[str, ...]
    leftovers: tuple[str, ...]


class FileBatches(BatchApi):
    """The Batch API of the endpoint, key and model of one provider."""

    #: Half of the 100,000 inputs that Voyage takes: a crash of theirs, or a job that comes too late, costs less. OpenAI
    #: takes 50,000 and 200 MB; https://docs.voyageai.com/reference/files names no bound of a file, Gemini's is 2 GB.
    limits = JobLimits(inputs=50_000, file_bytes=190_000_000)

    #: Paths, with {} for the name of a job or file.
    job_path: ClassVar[str]
    cancel_path: ClassVar[str]
    file_path: ClassVar[str]
    content_path: ClassVar[str]

    def __init__(self, provider: RemoteProvider, *, call_seconds: float = _CALL_SECONDS) -> None:
        self._provider = provider
        self._call_seconds = call_seconds

    # What a provider is asked

    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        content = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, mode="w+b")  # noqa: SIM115 - handed out
        ids: list[str] = []
        size = 0
        for custom_id, text in texts:
            sent = self._line(custom_id, self._provider.worded(text, "document"))
            line = json.dumps(sent, separators=(",", ":")).encode() + b"\n"
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
                # Without a job the file has no use.
                with contextlib.suppress(RecalldError):
                    self._delete(file_id)
            raise

    def find(self, reference: str) -> str | None:
        after: str | None = None
        for _ in range(_MOST_PAGES):
            jobs, after = self._page(after)
            found = next((job.id for job in jobs if job.reference == reference), None)
            if found is not None or after is None:
                return found
        return None

    def look(self, job_id: str) -> JobProgress:
        try:
            return self._get(job_id).progress
        except BatchUnavailable:
            return JobProgress(JobState.FAILED, message="the provider does not know the job any more")

    def results(self, job_id: str, *, texts: int) -> Iterator[BatchLine]:
        try:
            job = self._get(job_id)
        except BatchUnavailable:
            return
        seen: set[str] = set()
        for name in job.results:
            for line in map(self._line_of, self._lines(name, texts)):
                if line is not None and line.custom_id not in seen:
                    seen.add(line.custom_id)
                    yield line

    def cancel(self, job_id: str) -> None:
        # Refused for a job that is over, or gone: then there is nothing to stop. Whatever else is wrong, a look says.
        with contextlib.suppress(Permanent, Terminal, BatchUnavailable):
            self._call("POST", self.cancel_path.format(job_id))

    def clean_up(self, job_id: str) -> None:
        try:
            for name in self._get(job_id).leftovers:
                self._delete(name)
        except RecalldError as error:
            # They expire by themselves (OpenAI: after 30 days, Gemini: after 2).
            log.info("batch_files_left", job=job_id, error=str(error))

    def _uploaded(self, file: JobFile, reference: str) -> str:
        file.content.seek(0)
        return self._upload(file, name=f"recalld-{reference}.jsonl")

    def _created(self, file_id: str, reference: str) -> str:
        try:
            return self._create(file_id, reference).id
        except Transient as error:
            if not isinstance(error, Throttled):
                # The answer was lost, perhaps not the job.
                found = self.find(reference)
                if found is not None:
                    return found
            raise

    def _job(self, answer: Mapping[str, Any]) -> _Job:
        try:
            return self._read(answer)
        except (KeyError, TypeError, AttributeError) as error:
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no job") from error

    def _line_of(self, line: bytes) -> BatchLine | None:
        """Return what a line of results says; None when it cannot be read."""
        if not line.strip():
            return None
        try:
            found = self._result(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Transient):
            return None
        return found if isinstance(found.custom_id, str) else None

    # What differs. Calls raise like `BatchApi`, with BatchUnavailable for "not found".

    @abstractmethod
    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        """Return one line of the file."""

    @abstractmethod
    def _result(self, line: Any) -> BatchLine:
        """Return what a parsed line of results says; raises ValueError and its kind where it says something else."""

    @abstractmethod
    def _read(self, answer: Mapping[str, Any]) -> _Job:
        """Return what an answer says of a job; raises KeyError and its kind where it says something else."""

    @abstractmethod
    def _upload(self, file: JobFile, *, name: str) -> str:
        """Upload a file; returns the provider's name of it."""

    @abstractmethod
    def _create(self, file_id: str, reference: str) -> _Job:
        """Make a job of an uploaded file."""

    @abstractmethod
    def _page(self, after: str | None) -> tuple[list[_Job], str | None]:
        """Return jobs, newest first, and what to call with for the ones before them, None at the end."""

    # Calls

    def _get(self, job_id: str) -> _Job:
        return self._job(self._ask("GET", self.job_path.format(job_id)))

    def _delete(self, name: str) -> None:
        self._call("DELETE", self.file_path.format(name))

    def _call(self, method: str, path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        """Return headers and content of an answer that is no file."""
        exchange = self._provider.exchange(
            seconds=self._call_seconds, answer_bytes=_ANSWER_BYTES, bytes_per_second=_FILE_BYTES_PER_SECOND
        )
        with exchange.running():
            response = self._provider.send(method, path, read_status=self._read_status, **options)
            return response.headers, b"".join(self._parts(response))

    def _ask(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        _, content = self._call(method, path, **options)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no JSON") from error
        if not isinstance(answer, Mapping):
            raise Transient(f"the answer of {self._provider.name}'s Batch API is no object")
        return answer

    def _lines(self, name: str, texts: int) -> Iterator[bytes]:
        """Return the lines of a file of results of so many texts, as they arrive: it may have 400 MB."""
        exchange = self._provider.exchange(
            seconds=self._call_seconds,
            answer_bytes=self._provider.answer_bytes(texts),
            bytes_per_second=_FILE_BYTES_PER_SECOND,
            may_move=True,
        )
        longest = self._provider.answer_bytes(1)
        with exchange.running():
            response = self._provider.send("GET", self.content_path.format(name), read_status=self._read_status)
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

    endpoint: ClassVar[str] = "/v1/embeddings"
    job_path = "/batches/{}"
    cancel_path = "/batches/{}/cancel"
    file_path = "/files/{}"
    content_path = "/files/{}/content"

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        provider = self._provider
        body = {
            "model": provider.model,
            "input": text,
            "encoding_format": provider.encoding,
            **provider.options("document"),
        }
        return {"custom_id": custom_id, "method": "POST", "url": self.endpoint, "body": body}

    def _body(self, file_id: str) -> dict[str, Any]:
        """Return the body that makes a job, without metadata."""
        return {"input_file_id": file_id, "endpoint": self.endpoint, "completion_window": "24h"}

    def _result(self, line: Any) -> BatchLine:
        response = line.get("response") or {}
        if response.get("status_code") == 200:
            answer = read_answer(response["body"], expected=1)
            return BatchLine(line["custom_id"], answer.vectors[0], tokens=answer.tokens)
        body_error = (response.get("body") or {}).get("error")
        reason = _reason(line.get("error"), body_error, response) or f"HTTP {response.get('status_code')}"
        return BatchLine(line["custom_id"], reason=reason)

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

    def _create(self, file_id: str, reference: str) -> _Job:
        body = {**self._body(file_id), "metadata": {_REFERENCE: reference}}
        return self._job(self._ask("POST", "/batches", json=body))

    def _page(self, after: str | None) -> tuple[list[_Job], str | None]:
        params = {"limit": _PAGE} if after is None else {"limit": _PAGE, "after": after}
        page = self._ask("GET", "/batches", params=params)
        jobs = [self._job(job) for job in page.get("data") or [] if isinstance(job, Mapping)]
        return jobs, jobs[-1].id if jobs and page.get("has_more") else None

    def _read(self, job: Mapping[str, Any]) -> _Job:
        counts = job.get("request_counts") or {}
        errors = job.get("errors") or {}
        said = errors.get("data") if isinstance(errors, Mapping) else errors
        messages = [str(one.get("message") or one.get("code")) for one in said or [] if isinstance(one, Mapping)]
        results = tuple(str(job[name]) for name in ("output_file_id", "error_file_id") if job.get(name))
        return _Job(
            id=str(job["id"]),
            reference=(job.get("metadata") or {}).get(_REFERENCE),
            progress=JobProgress(
                state=_state(job.get("status")),
                total=_count(counts, "total"),
                completed=_count(counts, "completed"),
                failed=_count(counts, "failed"),
                message=_quoted("; ".join(messages[:3])),
            ),
            results=results,
            leftovers=(*([str(job["input_file_id"])] if job.get("input_file_id") else []), *results),
        )


class VoyageBatches(OpenAIBatches):
    """Jobs done within 12 hours at a third less. A line holds the input only; the job names model and options.

    What could not be done in time stands in the error file as "batch_expired".
    """

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"custom_id": custom_id, "body": {"input": [text]}}

    def _body(self, file_id: str) -> dict[str, Any]:
        return {
            "input_file_id": file_id,
            "endpoint": self.endpoint,
            "completion_window": "12h",
            "request_params": {"encoding_format": "base64", **self._provider.options("document")},
        }


class GeminiBatches(FileBatches):
    """Jobs done within 24 hours at half the price. Files live for two days; names of files and jobs are paths.

    https://ai.google.dev/api/embeddings#v1beta.models.asyncBatchEmbedContent, https://ai.google.dev/api/files
    """

    _provider: GeminiProvider
    job_path = file_path = f"/{VERSION}/{{}}"
    cancel_path = f"/{VERSION}/{{}}:cancel"
    content_path = f"/download/{VERSION}/{{}}:download?alt=media"

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"key": custom_id, "request": self._provider.request(text, "document")}

    def _result(self, line: Any) -> BatchLine:
        response = line.get("response") or {}
        if "embedding" not in response:
            return BatchLine(line["key"], reason=_reason(line.get("error"), response.get("error")) or "no embedding")
        answer = read_answer(as_openai({"embeddings": [response["embedding"]]}), expected=1)
        return BatchLine(line["key"], answer.vectors[0], tokens=_count(response, "tokenCount") or None)

    def _upload(self, file: JobFile, *, name: str) -> str:
        size = file.content.seek(0, os.SEEK_END)
        file.content.seek(0)
        start = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(size),
            "X-Goog-Upload-Header-Content-Type": "application/jsonl",
        }
        answered, _ = self._call(
            "POST", f"/upload/{VERSION}/files", headers=start, json={"file": {"displayName": name}}
        )
        # Texts go to no host but the one in the settings, which may be a gateway before Google's.
        url = urlsplit(answered.get("x-goog-upload-url", ""))
        finish = {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "0", "Content-Length": str(size)}
        answer = self._ask("POST", f"{url.path}?{url.query}", headers=finish, content=file.content)
        found = (answer.get("file") or {}).get("name")
        if not found:
            raise Transient("the provider's answer names no file")
        return str(found)

    def _create(self, file_id: str, reference: str) -> _Job:
        batch = {"displayName": reference, "inputConfig": {"fileName": file_id}}
        path = f"/{VERSION}/{self._provider.resource}:asyncBatchEmbedContent"
        return self._job(self._ask("POST", path, json={"batch": batch}))

    def _page(self, after: str | None) -> tuple[list[_Job], str | None]:
        params = {"pageSize": _PAGE} if after is None else {"pageSize": _PAGE, "pageToken": after}
        page = self._ask("GET", f"/{VERSION}/batches", params=params)
        jobs = [self._job(job) for job in page.get("operations") or [] if isinstance(job, Mapping)]
        return jobs, page.get("nextPageToken") or None

    def _read(self, operation: Mapping[str, Any]) -> _Job:
        """Return what an operation says, or the batch itself: both are answered, and metadata may be out of date."""
        facts = {**(operation.get("metadata") or {}), **operation}
        error = operation.get("error")
        state = _state(facts.get("state"))
        if error and state is JobState.DONE:
            state = JobState.FAILED
        elif state is JobState.RUNNING and operation.get("done"):
            state = JobState.FAILED if error else JobState.DONE
        stats = facts.get("batchStats") or {}
        texts = (facts.get("inputConfig") or {}).get("fileName")
        output = (facts.get("output") or operation.get("response") or {}).get("responsesFile")
        return _Job(
            id=str(operation["name"]),
            reference=facts.get("displayName"),
            progress=JobProgress(
                state=state,
                total=_count(stats, "requestCount"),
                completed=_count(stats, "successfulRequestCount"),
                failed=_count(stats, "failedRequestCount"),
                message=_reason(error) or "",
            ),
            results=(str(output),) if output else (),
            leftovers=tuple(str(name) for name in (texts, output, operation["name"]) if name),
        )


def batch_api_of(provider: EmbeddingProvider | None) -> BatchApi | None:
    """Return the Batch API for documents of a provider; None if recalld speaks none. Connects to nothing."""
    if isinstance(provider, GeminiProvider):
        return GeminiBatches(provider)
    if isinstance(provider, VoyageProvider):
        return VoyageBatches(provider)
    # Gemini's OpenAI-compatible API takes no file of a job, Mistral's jobs have another form, Ollama has none.
    if isinstance(provider, OpenAIProvider) and provider.name == "openai":
        return OpenAIBatches(provider)
    return None


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


def _state(word: object) -> JobState:
    """Return the state that a word means, Gemini's BATCH_STATE_... and JOB_STATE_... among them."""
    name = str(word).lower().removeprefix("batch_state_").removeprefix("job_state_")
    # Whatever else it says (validating, pending, in_progress, finalizing, cancelling) is not its end.
    return _STATES.get(name, JobState.RUNNING)


def _count(counts: object, name: str) -> int:
    """Return a count; Gemini writes them as texts."""
    value = counts.get(name) if isinstance(counts, Mapping) else None
    try:
        return int(value) if isinstance(value, int | str) else 0
    except ValueError:
        return 0


def _reason(*said: object) -> str | None:
    """Return the first message in what a provider says."""
    found = (str(one["message"]) for one in said if isinstance(one, Mapping) and one.get("message"))
    message = next(found, None)
    return None if message is None else _quoted(message)


def _quoted(words: str) -> str:
    """A line of a provider's own words, which may quote what it was sent."""
    return redact(" ".join(words.split()))[:_MOST_WORDS]

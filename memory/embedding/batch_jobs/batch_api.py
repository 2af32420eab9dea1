"""Providers' Batch APIs, over plain HTTP: many texts as one job, cheaper, and done when the provider has time.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, ClassVar
from urllib.parse import urlsplit

import structlog

from memory.embedding.batch_jobs.batch_ledger import Stage
from memory.embedding.providers.json_apis import VERSION, GeminiProvider
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.providers.remote import NO_ANSWER, RemoteProvider, read_answer
from memory.embedding.providers.voyage import VoyageProvider
from memory.redaction import redact
from memory.store.reader import Vector
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, Transient

log = structlog.get_logger(__name__)

#: Pages of the list looked at: newest first, so ours is soon there.
_MOST_PAGES = 10

#: Bytes of a file held in memory before it goes to the disk.
_IN_MEMORY_BYTES = 4_000_000

#: Characters of a provider's own words in a message.
_MOST_WORDS = 200
_MOST_STATE = 40

#: Seconds that a call may take, and the bytes a second that files come and go with at least.
_CALL_SECONDS = 30.0
_FILE_BYTES_PER_SECOND = 50_000

#: Bytes of an answer that is no file; a page of 100 jobs has some 200,000.
_ANSWER_BYTES = 4_000_000

_NOT_THERE = frozenset({404, 405})


class BatchUnavailable(RecalldError):
    """The endpoint has no such Batch API, job or file (404, 405), or a gateway before it restarts.

    Embedding the normal way is not affected.
    """


@dataclass(frozen=True, slots=True)
class BatchLine:
    """Result of one text: its raw vector (float32, shape (dimensions,)), or the reason why there is none.

    `tokens` is the provider's count, None without one.
    """

    custom_id: str
    vector: Vector | None = None
    reason: str = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class JobFile:
    """The texts of a job as they are sent, in an open temporary file, and their ids. Closing the file removes it."""

    content: IO[bytes]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProviderJob:
    """A job as its provider describes it: the files of its `results`, and the `leftovers` to delete at its end.

    `completed` texts are done and `failed` failed. `message` is the provider's, "" without one.
    `unknown_state` is the name of a state that recalld does not know, which counts as running.
    """

    id: str
    stage: Stage
    reference: str | None = None
    completed: int = 0
    failed: int = 0
    message: str = ""
    unknown_state: str = ""
    results: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


class BatchApi(ABC):
    """The Batch API of the endpoint, key and model of one provider. Thread-safe.

    Every method that asks the provider raises:
        Transient: it did not answer well this time; Throttled when it asks to slow down.
        Terminal: it will not serve us (key, quota).
        Permanent: it will never take this job.
        BatchUnavailable: there is no Batch API at this endpoint, or it is away.
    """

    #: Half of the 100,000 inputs that Voyage takes: a crash of theirs, or a job that comes too late, costs less. OpenAI
    #: takes 50,000 and 200 MB; https://docs.voyageai.com/reference/files names no bound of a file, Gemini's is 2 GB.
    most_texts = 50_000
    most_bytes = 190_000_000

    #: Paths, with {} for the name of a job or file.
    job_path: ClassVar[str]
    cancel_path: ClassVar[str]
    file_path: ClassVar[str]
    content_path: ClassVar[str]

    #: Path of the list of jobs, newest first, its key, and the parameters for a page's size and start.
    listing: ClassVar[tuple[str, str, str, str]]

    def __init__(self, provider: RemoteProvider) -> None:
        self.provider = provider

    # Steps of a job

    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        """Put texts, (custom id, text) each, into a file, up to the limits; `ids` names them. Sends nothing."""
        content = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, mode="w+b")  # noqa: SIM115 - handed out
        ids: list[str] = []
        size = 0
        for custom_id, text in texts:
            entry = self._line(custom_id, self.provider.prefixed(text, "document"))
            line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
            if len(ids) >= self.most_texts or size + len(line) > self.most_bytes:
                break
            content.write(line)
            ids.append(custom_id)
            size += len(line)
        return JobFile(content, tuple(ids))

    def submit(self, file: JobFile, *, reference: str) -> str:
        """Make a job of a file, to be found by the `reference`; return the provider's id of it.

        After a `Transient` error the job may exist.
        """
        file.content.seek(0)
        file_id = self._upload(file, name=f"recalld-{reference}.jsonl")
        if not isinstance(file_id, str) or not file_id:
            raise Transient("the provider's answer names no file")
        try:
            return self._create(file_id, reference).id
        except RecalldError as error:
            if not isinstance(error, Transient) or isinstance(error, Throttled):
                # Without a job the file has no use.
                with contextlib.suppress(RecalldError):
                    self._delete(file_id)
            raise

    def find(self, reference: str) -> str | None:
        """Return the id of the job that was made with a reference; None when there is none."""
        match = self._find_listed(lambda listed: listed.reference == reference)
        return match.id if match is not None else None

    def look(self, job_id: str) -> ProviderJob | None:
        """Return the state of a job; None if neither its own address nor the list of jobs, if there is one, has it."""
        with contextlib.suppress(BatchUnavailable):
            return self._get(job_id)
        with contextlib.suppress(BatchUnavailable):
            return self._find_listed(lambda listed: listed.id == job_id)
        return None

    def _find_listed(self, is_match: Callable[[ProviderJob], bool]) -> ProviderJob | None:
        """Return the newest job of the list for which `is_match` returns True; None without one."""
        path, key, size, start = self.listing
        params: dict[str, int | str] = {size: _PAGE}
        for _ in range(_MOST_PAGES):
            page = self.ask("GET", path, params=params)
            jobs = [self.read_job(job) for job in page.get(key) or [] if isinstance(job, Mapping)]
            match = next(filter(is_match, jobs), None)
            after = page.get("nextPageToken") or (jobs[-1].id if jobs and page.get("has_more") else None)
            if match is not None or after is None:
                return match
            params[start] = str(after)
        return None

    def results(self, job: ProviderJob, *, texts: int) -> Iterator[BatchLine]:
        """Yield the outcomes of the job's texts, in no promised order, as the lines arrive; nothing while it runs.

        `texts` is the number of them, which bounds the results. A line that cannot be read is left out, as is a second
        one for a text. A text that the provider says nothing about has no line.
        """
        custom_ids: set[str] = set()
        for name in job.results:
            for line in map(self._line_of, self._lines(name, texts)):
                if line is not None and line.custom_id not in custom_ids:
                    custom_ids.add(line.custom_id)
                    yield line

    def cancel(self, job_id: str) -> bool:
        """Ask the provider to stop; return False if it refuses. Earlier results can still be fetched."""
        # It refuses for a job that is over or gone. A look reports any other fault.
        with contextlib.suppress(Permanent, Terminal, BatchUnavailable):
            self.call("POST", self.cancel_path.format(job_id))
            return True
        return False

    def clean_up(self, job_id: str) -> None:
        """Delete the job's files at the provider, as far as that goes. Raises nothing."""
        try:
            for name in self._get(job_id).leftovers:
                self._delete(name)
        except RecalldError as error:
            # They expire by themselves (OpenAI: after 30 days, Gemini: after 2).
            log.info("batch_files_left", job=job_id, error=str(error))

    def read_job(self, answer: Mapping[str, Any]) -> ProviderJob:
        try:
            return self._read(answer)
        except NO_ANSWER as error:
            raise Transient(f"the answer of {self.provider.name}'s Batch API is no job") from error

    def _line_of(self, line: bytes) -> BatchLine | None:
        """Return the outcome in a line of results; None when it cannot be read."""
        if not line.strip():
            return None
        try:
            outcome = self._result(json.loads(line))
        except (*NO_ANSWER, Transient):
            return None
        return outcome if isinstance(outcome.custom_id, str) else None

    # Differences between providers. Calls raise BatchUnavailable for "not found"; readers raise one of NO_ANSWER.

    @abstractmethod
    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        """Return one line of the file."""

    @abstractmethod
    def _result(self, line: Any) -> BatchLine:
        """Return the outcome in a parsed line of results."""

    @abstractmethod
    def _read(self, answer: Mapping[str, Any]) -> ProviderJob:
        """Return the state of a job in an answer."""

    @abstractmethod
    def _upload(self, file: JobFile, *, name: str) -> object:
        """Upload a file; return the provider's name of it, None if the answer has none."""

    @abstractmethod
    def _create(self, file_id: str, reference: str) -> ProviderJob:
        """Make a job of an uploaded file."""

    # Calls

    def _get(self, job_id: str) -> ProviderJob:
        return self.read_job(self.ask("GET", self.job_path.format(job_id)))

    def _delete(self, name: str) -> None:
        self.call("DELETE", self.file_path.format(name))

    def call(self, method: str, path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        """Return headers and content of an answer that is no file."""
        exchange = self.provider.exchange(
            seconds=_CALL_SECONDS, answer_bytes=_ANSWER_BYTES, bytes_per_second=_FILE_BYTES_PER_SECOND
        )
        with exchange.running():
            return self.provider.fetch(method, path, read_status=self._read_status, **options)

    def ask(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        _, content = self.call(method, path, **options)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Transient(f"the answer of {self.provider.name}'s Batch API is no JSON") from error
        if not isinstance(answer, Mapping):
            raise Transient(f"the answer of {self.provider.name}'s Batch API is no object")
        return answer

    def _lines(self, name: str, texts: int) -> Iterator[bytes]:
        """Return the lines of a file of results of so many texts, as they arrive: it may have 400 MB."""
        exchange = self.provider.exchange(
            seconds=_CALL_SECONDS,
            answer_bytes=self.provider.answer_bytes(texts),
            bytes_per_second=_FILE_BYTES_PER_SECOND,
            may_move=True,
        )
        longest, rest = self.provider.answer_bytes(1), b""
        with exchange.running():
            response = self.provider.send("GET", self.content_path.format(name), read_status=self._read_status)
        parts, part = response.iter_bytes(), b"\n"
        with contextlib.closing(response):
            while part:
                try:
                    with exchange.running():
                        part = next(parts, b"")
                except Exception as error:
                    raise self.provider.read_error(error) from error
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
                if len(rest) > longest:
                    raise Transient(f"a line of the results of {self.provider.name}'s Batch API has no end")
        yield rest

    def _read_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        if status in _NOT_THERE:
            return BatchUnavailable(f"{self.provider.name} has no such Batch API (HTTP {status})")
        return self.provider.errors.of_status(status, headers, body)


#: Where our reference stands in a job's metadata.
_REFERENCE = "recalld_reference"

#: Jobs on a page of the list (both APIs allow 100).
_PAGE = 100

_STAGES = {
    **dict.fromkeys(("validating", "in_progress", "finalizing", "cancelling", "canceling"), Stage.RUNNING),
    **dict.fromkeys(("unspecified", "queued", "pending", "running", "processing", "updating", "paused"), Stage.RUNNING),
    "completed": Stage.DONE,
    "partially_completed": Stage.DONE,
    "succeeded": Stage.DONE,
    "partially_succeeded": Stage.DONE,
    "failed": Stage.FAILED,
    "expired": Stage.EXPIRED,
    "cancelled": Stage.CANCELLED,
    "canceled": Stage.CANCELLED,
}


class OpenAIBatches(BatchApi):
    """Jobs done within 24 hours at half the price; https://developers.openai.com/api/docs/guides/batch."""

    endpoint: ClassVar[str] = "/v1/embeddings"
    job_path = "/batches/{}"
    cancel_path = "/batches/{}/cancel"
    file_path = "/files/{}"
    content_path = "/files/{}/content"
    listing = ("/batches", "data", "limit", "after")

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        provider = self.provider
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

    def _upload(self, file: JobFile, *, name: str) -> object:
        answer = self.ask(
            "POST",
            "/files",
            files={"file": (name, file.content, "application/jsonl")},
            data={"purpose": "batch"},
        )
        return answer.get("id")

    def _create(self, file_id: str, reference: str) -> ProviderJob:
        body = {**self._body(file_id), "metadata": {_REFERENCE: reference}}
        return self.read_job(self.ask("POST", "/batches", json=body))

    def _read(self, job: Mapping[str, Any]) -> ProviderJob:
        counts = job.get("request_counts") or {}
        errors = job.get("errors") or {}
        details = errors.get("data") if isinstance(errors, Mapping) else errors
        messages = [str(row.get("message") or row.get("code")) for row in details or [] if isinstance(row, Mapping)]
        results = tuple(str(job[name]) for name in ("output_file_id", "error_file_id") if job.get(name))
        stage, unknown_state = _stage(job.get("status"))
        return ProviderJob(
            id=str(job["id"]),
            reference=(job.get("metadata") or {}).get(_REFERENCE),
            stage=stage,
            unknown_state=unknown_state,
            completed=_count(counts, "completed"),
            failed=_count(counts, "failed"),
            message=_quoted("; ".join(messages[:3])),
            results=results,
            leftovers=(*([str(job["input_file_id"])] if job.get("input_file_id") else []), *results),
        )


class VoyageBatches(OpenAIBatches):
    """Jobs done within 12 hours at a third less. A line holds the input only; the job names model and options.

    Texts that were not done in time stand in the error file as "batch_expired".
    """

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"custom_id": custom_id, "body": {"input": [text]}}

    def _body(self, file_id: str) -> dict[str, Any]:
        return {
            "input_file_id": file_id,
            "endpoint": self.endpoint,
            "completion_window": "12h",
            "request_params": {"encoding_format": "base64", **self.provider.options("document")},
        }


class GeminiBatches(BatchApi):
    """Jobs done within 24 hours at half the price. Files live for two days; names of files and jobs are paths.

    https://ai.google.dev/api/embeddings#v1beta.models.asyncBatchEmbedContent, https://ai.google.dev/api/files
    """

    provider: GeminiProvider
    job_path = file_path = f"/{VERSION}/{{}}"
    cancel_path = f"/{VERSION}/{{}}:cancel"
    content_path = f"/download/{VERSION}/{{}}:download?alt=media"
    listing = (f"/{VERSION}/batches", "operations", "pageSize", "pageToken")

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"key": custom_id, "request": self.provider.request(text, "document")}

    def _result(self, line: Any) -> BatchLine:
        response = line.get("response") or {}
        if "embedding" not in response:
            return BatchLine(line["key"], reason=_reason(line.get("error"), response.get("error")) or "no embedding")
        answer = read_answer(response, expected=1)
        return BatchLine(line["key"], answer.vectors[0], tokens=_count(response, "tokenCount") or None)

    def _upload(self, file: JobFile, *, name: str) -> object:
        size = file.content.seek(0, os.SEEK_END)
        file.content.seek(0)
        start = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(size),
            "X-Goog-Upload-Header-Content-Type": "application/jsonl",
        }
        headers, _ = self.call("POST", f"/upload/{VERSION}/files", headers=start, json={"file": {"displayName": name}})
        # Texts go to no host but the one in the settings, which may be a gateway before Google's.
        url = urlsplit(headers.get("x-goog-upload-url", ""))
        finish = {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "0", "Content-Length": str(size)}
        answer = self.ask("POST", f"{url.path}?{url.query}", headers=finish, content=file.content)
        return (answer.get("file") or {}).get("name")

    def _create(self, file_id: str, reference: str) -> ProviderJob:
        batch = {"displayName": reference, "inputConfig": {"fileName": file_id}}
        path = f"/{VERSION}/{self.provider.resource}:asyncBatchEmbedContent"
        return self.read_job(self.ask("POST", path, json={"batch": batch}))

    def _read(self, operation: Mapping[str, Any]) -> ProviderJob:
        """Return the state in an operation or in the batch itself: both come, and metadata may be out of date."""
        facts = {**(operation.get("metadata") or {}), **operation}
        error = operation.get("error")
        stage, unknown_state = _stage(facts.get("state"))
        if error and stage is Stage.DONE:
            stage = Stage.FAILED
        elif stage is Stage.RUNNING and operation.get("done"):
            stage = Stage.FAILED if error else Stage.DONE
        stats = facts.get("batchStats") or {}
        texts = (facts.get("inputConfig") or {}).get("fileName")
        output = (facts.get("output") or operation.get("response") or {}).get("responsesFile")
        return ProviderJob(
            id=str(operation["name"]),
            reference=facts.get("displayName"),
            stage=stage,
            unknown_state=unknown_state,
            completed=_count(stats, "successfulRequestCount"),
            failed=_count(stats, "failedRequestCount"),
            message=_reason(error) or "",
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


def _stage(word: object) -> tuple[Stage, str]:
    """Return the stage that a word means, Gemini's BATCH_STATE_... and JOB_STATE_... among them.

    A word that is not known means that the job runs; it is returned as well, else "".
    """
    name = str(word).lower().removeprefix("batch_state_").removeprefix("job_state_")
    return _STAGES.get(name, Stage.RUNNING), "" if name in _STAGES else _quoted(name)[:_MOST_STATE]


def _count(counts: object, name: str) -> int:
    """Return a count; Gemini writes them as texts."""
    value = counts.get(name) if isinstance(counts, Mapping) else None
    try:
        return int(value) if isinstance(value, int | str) else 0
    except ValueError:
        return 0


def _reason(*answers: object) -> str | None:
    """Return the first message in a provider's answer."""
    messages = (str(answer["message"]) for answer in answers if isinstance(answer, Mapping) and answer.get("message"))
    message = next(messages, None)
    return None if message is None else _quoted(message)


def _quoted(words: str) -> str:
    """A line of a provider's own words, which may quote a sent text."""
    return redact(" ".join(words.split()))[:_MOST_WORDS]

"""OpenAI's, Voyage's and Gemini's Batch APIs, over plain HTTP: a file of JSON lines, a job, files of results.

Formats: https://developers.openai.com/api/reference/resources/batches,
https://docs.voyageai.com/docs/batch-inference, which took the shape of the first, and
https://ai.google.dev/gemini-api/docs/batch-api.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from memory.embedding.batch_jobs.batch_api import (
    BatchApi,
    BatchLine,
    JobFile,
    JobProgress,
    JobState,
    ProviderJob,
    quoted,
)
from memory.embedding.providers.gemini import VERSION, GeminiProvider, as_openai
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.providers.remote import read_answer
from memory.embedding.providers.voyage import VoyageProvider
from schemas.errors import Transient

#: Where our reference stands in a job's metadata.
_REFERENCE = "recalld_reference"

#: Jobs on a page of the list (both APIs allow 100).
_PAGE = 100

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


class OpenAIBatches(BatchApi):
    """Jobs done within 24 hours at half the price; https://developers.openai.com/api/docs/guides/batch."""

    endpoint: ClassVar[str] = "/v1/embeddings"
    job_path = "/batches/{}"
    cancel_path = "/batches/{}/cancel"
    file_path = "/files/{}"
    content_path = "/files/{}/content"

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

    def _upload(self, file: JobFile, *, name: str) -> str:
        answer = self.ask(
            "POST",
            "/files",
            files={"file": (name, file.content, "application/jsonl")},
            data={"purpose": "batch"},
        )
        if not answer.get("id"):
            raise Transient("the provider's answer names no file")
        return str(answer["id"])

    def _create(self, file_id: str, reference: str) -> ProviderJob:
        body = {**self._body(file_id), "metadata": {_REFERENCE: reference}}
        return self.read_job(self.ask("POST", "/batches", json=body))

    def _page(self, after: str | None) -> tuple[list[ProviderJob], str | None]:
        params = {"limit": _PAGE} if after is None else {"limit": _PAGE, "after": after}
        page = self.ask("GET", "/batches", params=params)
        jobs = [self.read_job(job) for job in page.get("data") or [] if isinstance(job, Mapping)]
        return jobs, jobs[-1].id if jobs and page.get("has_more") else None

    def _read(self, job: Mapping[str, Any]) -> ProviderJob:
        counts = job.get("request_counts") or {}
        errors = job.get("errors") or {}
        said = errors.get("data") if isinstance(errors, Mapping) else errors
        messages = [str(one.get("message") or one.get("code")) for one in said or [] if isinstance(one, Mapping)]
        results = tuple(str(job[name]) for name in ("output_file_id", "error_file_id") if job.get(name))
        return ProviderJob(
            id=str(job["id"]),
            reference=(job.get("metadata") or {}).get(_REFERENCE),
            progress=JobProgress(
                state=_state(job.get("status")),
                total=_count(counts, "total"),
                completed=_count(counts, "completed"),
                failed=_count(counts, "failed"),
                message=quoted("; ".join(messages[:3])),
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

    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        return {"key": custom_id, "request": self.provider.request(text, "document")}

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
        answered, _ = self.call("POST", f"/upload/{VERSION}/files", headers=start, json={"file": {"displayName": name}})
        # Texts go to no host but the one in the settings, which may be a gateway before Google's.
        url = urlsplit(answered.get("x-goog-upload-url", ""))
        finish = {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "0", "Content-Length": str(size)}
        answer = self.ask("POST", f"{url.path}?{url.query}", headers=finish, content=file.content)
        found = (answer.get("file") or {}).get("name")
        if not found:
            raise Transient("the provider's answer names no file")
        return str(found)

    def _create(self, file_id: str, reference: str) -> ProviderJob:
        batch = {"displayName": reference, "inputConfig": {"fileName": file_id}}
        path = f"/{VERSION}/{self.provider.resource}:asyncBatchEmbedContent"
        return self.read_job(self.ask("POST", path, json={"batch": batch}))

    def _page(self, after: str | None) -> tuple[list[ProviderJob], str | None]:
        params = {"pageSize": _PAGE} if after is None else {"pageSize": _PAGE, "pageToken": after}
        page = self.ask("GET", f"/{VERSION}/batches", params=params)
        jobs = [self.read_job(job) for job in page.get("operations") or [] if isinstance(job, Mapping)]
        return jobs, page.get("nextPageToken") or None

    def _read(self, operation: Mapping[str, Any]) -> ProviderJob:
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
        return ProviderJob(
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
    return None if message is None else quoted(message)

"""A real HTTP server that speaks Gemini's embeddings, Files and Batch APIs, and misbehaves on request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.batch_server import BatchServer, Job, _Answer
from tests.embedding_server import embed

_PREFIX = {"RETRIEVAL_DOCUMENT": "title: none | text: ", "RETRIEVAL_QUERY": "task: search result | query: "}

#: What a request for one embedding may hold: https://ai.google.dev/api/embeddings#EmbedContentRequest
_FIELDS = {"model", "content", "taskType", "title", "outputDimensionality"}


class GeminiServer(BatchServer):
    """As its base; scripted paths are the base's, with Gemini's names of files and jobs, which are paths themselves.

    `length` is that of every vector, as shortened ones are not of unit length. `counts` gives the usage of answers.
    """

    files_named, jobs_named, ids_named = "files/", "batches/", "key"
    over: Mapping[str, str] = {"status": "FAILED_PRECONDITION"}

    def __init__(self, *, length: float = 1.0, dimensions: int = 32, batches: bool = True) -> None:
        super().__init__(dimensions=dimensions, batches=batches)
        self.length = length
        self._uploads: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"{self.root}/v1beta"

    def _path(self, method: str, path: str, headers: Any) -> str:
        where = path.replace("/v1beta", "", 1).removeprefix("/openai")
        if where == "/upload/files":
            return "/uploads" if headers["x-goog-upload-command"] == "start" else "/files"
        if where.startswith("/models/"):
            verbs = {"batchEmbedContents": "/embeddings", "asyncBatchEmbedContent": "/batches"}
            return verbs.get(where.rpartition(":")[2], where)
        if where.startswith("/download/"):
            return f"/files{where.removeprefix('/download').removesuffix(':download')}/content"
        for kind in ("/files/", "/batches/"):
            if where.startswith(kind):
                return kind.rstrip("/") + where.replace(":cancel", "/cancel")
        return where

    def _answer(self, method: str, path: str, query: dict[str, str], headers: Any, content: bytes) -> _Answer:
        if path == "/uploads" and self.batches:
            assert headers["x-goog-upload-protocol"] == "resumable"
            assert headers["x-goog-upload-header-content-type"] == "application/jsonl"
            upload = f"id-{len(self._uploads)}"
            self._uploads[upload] = int(headers["x-goog-upload-header-content-length"])
            # The host is Google's, also where a gateway stands before it.
            url = f"https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id={upload}"
            return _Answer(200, b"", {"X-Goog-Upload-URL": url})
        if path == "/files" and self.batches:
            assert headers["x-goog-upload-command"] == "upload, finalize"
            assert headers["x-goog-upload-offset"] == "0"
            assert self._uploads.pop(query["upload_id"]) == len(content)
        answer = super()._answer(method, path, query, headers, content)
        return _Answer(answer.status, {}) if method == "DELETE" and answer.status == 200 else answer

    def _embeddings(self, body: dict[str, Any]) -> _Answer:
        if "requests" not in body:
            return super()._embeddings(body)  # through the OpenAI-compatible API
        asked = body["requests"]
        if len(asked) > 100:
            message = "* BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch\n"
            return _Answer(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})
        assert all(set(one) <= _FIELDS for one in asked)
        texts = [self._text({"request": one}) for one in asked]
        self.paid.update(texts)
        self.paid_inline.update(texts)
        rows = [
            self.length * embed(text, one.get("outputDimensionality", self.dimensions))
            for text, one in zip(texts, asked, strict=True)
        ]
        usage = {"promptTokenCount": 7 * len(texts)}
        return _Answer(200, {"embeddings": [{"values": row.tolist()} for row in rows], "usageMetadata": usage})

    def _uploaded(self, headers: Any, content: bytes) -> _Answer:
        return _Answer(200, {"file": {"name": self._keep(content), "mimeType": "application/jsonl"}})

    def _created(self, body: dict[str, Any]) -> _Answer:
        return self._new_job(body, body["batch"]["inputConfig"]["fileName"])

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        jobs = [self._shown_job(job) for job in reversed(self.jobs.values())]
        start = int(query.get("pageToken", 0))
        end = start + int(query["pageSize"])
        return {"operations": jobs[start:end], **({"nextPageToken": str(end)} if end < len(jobs) else {})}

    def _text(self, line: dict[str, Any]) -> str:
        [part] = line["request"]["content"]["parts"]
        for prefix in _PREFIX.values():
            part["text"] = part["text"].removeprefix(prefix)
        return str(part["text"])

    def _failed(self, line: dict[str, Any], message: str) -> dict[str, Any]:
        return {"key": line["key"], "error": {"code": 3, "message": message}}

    def _done(self, job: Job, line: dict[str, Any], row: np.ndarray) -> dict[str, Any]:
        return {"key": line["key"], "response": {"embedding": {"values": row.tolist()}, "tokenCount": "7"}}

    def _keep_results(self, job: Job, output: list[str], errors: list[str]) -> None:
        super()._keep_results(job, [*output, *errors], [])

    def _shown_job(self, job: Job) -> dict[str, Any]:
        states = {"completed": "SUCCEEDED", "validating": "PENDING", "in_progress": "RUNNING", "cancelling": "RUNNING"}
        over = job.status not in {"validating", "in_progress", "cancelling"}
        counts = {"requestCount": len(job.lines), "successfulRequestCount": job.done, "failedRequestCount": job.failed}
        output = {"responsesFile": job.output} if job.output else None
        shown = {
            "name": job.id,
            "metadata": {
                **job.body["batch"],
                "state": f"BATCH_STATE_{states.get(job.status, job.status.upper())}",
                "batchStats": {name: str(count) for name, count in counts.items() if count},
                **({"output": output} if output else {}),
            },
            **({"done": True} if over else {}),
        }
        if job.status == "failed":
            shown["error"] = {"code": 13, "message": job.script.message}
        elif over and output:
            shown["response"] = output
        return json.loads(json.dumps(shown))

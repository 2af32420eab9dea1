"""A real HTTP server that also speaks the Batch APIs of OpenAI, Voyage and Gemini, and misbehaves on request.

with BatchServer() as server:
    server.script(JobScript(fails="poison"), JobScript(ends="failed"))
    ...  # give server.url as remote.base_url
    assert server.paid == Counter(texts)
"""

from __future__ import annotations

import email.parser
import email.policy
import itertools
import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.embedding_server import EmbeddingServer, Failure, Request, embed, gemini_text


@dataclass(frozen=True)
class JobScript:
    """Course of a job. After a look (and while the server holds jobs, not before) it `ends` as said.

    Lines whose text contains `fails` are in the error file; `drops` lines are in no file; `spoils` lines have a NaN, a
    zero or a too short vector, by turns; `garbage` lines that are no results are among them. `done` lines are done
    when it does not end as completed. `says` is the state that it shows while it runs, all its lines counted as done.
    One that does not `obey` goes on after it was cancelled.
    """

    ends: str = "completed"
    fails: str | None = None
    drops: int = 0
    spoils: int = 0
    garbage: int = 0
    done: int = 0
    says: str | None = None
    obeys: bool = True


@dataclass
class Job:
    """A job as the server knows it. One that is `lost` has no address and is in no list, until it is found again."""

    id: str
    body: dict[str, Any]
    lines: list[dict[str, Any]]
    script: JobScript
    status: str = "validating"
    looks: int = 0
    done: int = 0
    failed: int = 0
    output: str | None = None
    errors: str | None = None
    cancelled: bool = False
    lost: bool = False


Answer = tuple[int, Any, dict[str, str]]


class BatchServer(EmbeddingServer):
    """As its base, with the Files and Batch APIs.

    `paid_inline` counts the texts of `paid` that came one request at a time;
    `submitted` are all jobs in order, `jobs` those that were not deleted, by id, `files` what is uploaded or made and
    not deleted. While `open` is cleared no job ends. Without `batches` there is no Batch API. A list has `most_listed`
    jobs a page. `on_call` (method, path) is called before an answer leaves, `on_created` as a job is made.
    """

    files_named, jobs_named, ids_named = "file-", "batch-", "custom_id"

    def __init__(self, *, dimensions: int = 32, **options: Any) -> None:
        super().__init__(dimensions=dimensions, **options)
        self.tokens = 7
        self.batches = True
        self.most_listed = 100
        self.paid_inline: Counter[str] = Counter()
        self.jobs: dict[str, Job] = {}
        self.submitted: list[Job] = []
        self.files: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.on_call: Callable[[str, str], None] | None = None
        self.on_created: Callable[[Job], None] | None = None
        self._numbers = itertools.count()
        self._scripts: deque[JobScript] = deque()
        #: Method, path, the failure, and True if it comes once the request is done.
        self._scripted: list[tuple[str, str, Failure, bool]] = []

    def script(self, *scripts: JobScript) -> None:
        """Say how the next jobs go, after those scripted already; the rest goes well."""
        with self._lock:
            self._scripts.extend(scripts)

    def fail(
        self, method: str, path: str, status: int | None, *, times: int = 1, afterwards: bool = False, **headers: str
    ) -> None:
        """Let the next requests to a path (of /v1) fail with a status, or unanswered; `afterwards`: once it is done."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        failure = Failure(status=status, headers=named, disconnect=status is None)
        with self._lock:
            self._scripted += [(method, path, failure, afterwards)] * times

    def mend(self) -> None:
        """Forget the failures that were to come."""
        with self._lock:
            self._scripted.clear()

    # Requests

    def _failure_of(self, request: Request) -> Failure:
        path = self._path(request)
        self.calls[f"{request.method} {path.split('/')[1]}"] += 1
        found = next((one for one in self._scripted if one[:2] == (request.method, path)), None)
        if found is None:
            return super()._failure_of(request)
        self._scripted.remove(found)
        _, _, failure, afterwards = found
        if afterwards:
            self._answer(request, Failure())
        return failure

    def _hold(self, failure: Failure) -> None:
        """Hold no answer: jobs alone wait."""

    def _path(self, request: Request) -> str:
        """Return the path of OpenAI's API that means the same."""
        return request.route.removeprefix("/v1")

    def _answer(self, request: Request, failure: Failure) -> Answer:
        path = self._path(request)
        with self._lock:
            what, _, rest = path.strip("/").partition("/")
            if failure.status is not None or not self.batches or what not in {"files", "batches", "uploads"}:
                answer = super()._answer(request, failure)
            else:
                answer = getattr(self, f"_{what}")(request, rest)
        if self.on_call is not None:
            self.on_call(request.method, path)
        return answer

    def _pay(self, texts: list[str]) -> None:
        super()._pay(texts)
        self.paid_inline.update(texts)

    def _files(self, request: Request, rest: str) -> Answer:
        file_id = rest.removesuffix("/content")
        if request.method == "POST":
            return 200, self._uploaded(request), {}
        if file_id not in self.files:
            return 404, {"error": {"message": "no such file"}}, {}
        if request.method == "DELETE":
            del self.files[file_id]
            return 200, {}, {}
        return 200, self.files[file_id], {}

    def _uploaded(self, request: Request) -> dict[str, Any]:
        parts = form(request)
        assert parts["purpose"] == b"batch"
        return {"id": self._keep(parts["file"]), "object": "file", "purpose": "batch"}

    def _keep(self, content: bytes) -> str:
        file_id = f"{self.files_named}{next(self._numbers)}"
        self.files[file_id] = content
        return file_id

    def _batches(self, request: Request, rest: str) -> Answer:
        if not rest:
            return 200, self._created(request.body) if request.method == "POST" else self._listed(request.query), {}
        job = self.jobs.get(rest.removesuffix("/cancel"))
        if job is None or job.lost:
            return 404, {"error": {"message": "no such batch"}}, {}
        if request.method == "DELETE":
            del self.jobs[job.id]
            return 200, {}, {}
        if request.method == "POST":
            if job.output or job.errors or job.status in {"failed", "cancelled", "completed", "expired"}:
                return 400, {"error": {"message": "it is over", "status": "FAILED_PRECONDITION"}}, {}
            job.cancelled = True
            job.status = "cancelling" if job.script.obeys else job.status
        else:
            self._go_on(job)
        return 200, self._shown_job(job), {}

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        jobs = [self._shown_job(job) for job in reversed(self.jobs.values()) if not job.lost]
        if "after" in query:
            ids = [job["id"] for job in jobs]
            jobs = jobs[ids.index(query["after"]) + 1 :]
        page = jobs[: min(int(query.get("limit", 20)), self.most_listed)]
        return {"object": "list", "data": page, "has_more": len(page) < len(jobs)}

    def _created(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["endpoint"] == "/v1/embeddings"
        assert body["completion_window"] == ("12h" if "request_params" in body else "24h")
        return self._new_job(body, body["input_file_id"])

    def _new_job(self, body: dict[str, Any], file_id: str) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.files[file_id].splitlines()]
        assert len({line[self.ids_named] for line in lines}) == len(lines)
        script = self._scripts.popleft() if self._scripts else JobScript()
        job = Job(f"{self.jobs_named}{len(self.submitted)}", body, lines, script)
        self.submitted.append(job)
        self.jobs[job.id] = job
        if self.on_created is not None:
            self.on_created(job)
        return self._shown_job(job)

    # A job's life

    def _go_on(self, job: Job) -> None:
        job.looks += 1
        if job.status in {"validating", "cancelling"} and job.looks < 2:
            job.status = "cancelling" if job.cancelled and job.script.obeys else "in_progress"
            return
        if job.cancelled and job.status == "cancelling":
            self._finish(job, "cancelled", job.lines[: job.script.done])
        elif job.status in {"validating", "in_progress"} and self.open.is_set() and job.looks > 1:
            if job.script.ends == "completed":
                self._finish(job, "completed", job.lines)
            else:
                self._finish(job, job.script.ends, job.lines[: job.script.done])
        elif job.status == "in_progress" and job.script.says is not None:
            job.done = len(job.lines)
        elif job.status == "in_progress":
            job.done = min(len(job.lines) - 1, job.done + 1)

    def _finish(self, job: Job, status: str, lines: list[dict[str, Any]]) -> None:
        script, output, errors = job.script, [], []
        job.status, job.done = status, 0
        for place, line in enumerate(lines):
            text = self._text(line)
            if script.fails is not None and script.fails in text:
                errors.append(self._failed(line, "this text is not welcome"))
                job.failed += 1
                continue
            row = embed(text, self.dimensions)
            job.done += 1
            if place < script.drops:
                continue
            if place < script.drops + script.spoils:
                row = [np.full_like(row, np.nan), np.zeros_like(row), row[:-1]][place % 3]
            else:
                self.paid[text] += 1
            output.append(self._done(job, line, row))
        output.reverse()  # any order
        rows = [json.dumps(line) for line in output]
        rows[1:1] = ['{"custom_id": "half a li', "[]", '{"custom_id": "no text of yours", "response": {}}', ""][
            : script.garbage
        ]
        self._keep_results(job, rows, [json.dumps(error) for error in errors])

    def _text(self, line: dict[str, Any]) -> str:
        asked = line["body"]["input"]
        return str(asked if isinstance(asked, str) else asked[0])

    def _failed(self, line: dict[str, Any], message: str) -> dict[str, Any]:
        response = {"status_code": 400, "body": {"error": {"message": message}}}
        return {"custom_id": line["custom_id"], "response": response, "error": None}

    def _done(self, job: Job, line: dict[str, Any], row: np.ndarray) -> dict[str, Any]:
        options = {**line["body"], **job.body.get("request_params", {})}
        answer = self._dialects[0].answer(options, [self._spoken(row, options)], self.tokens)
        return {"custom_id": line["custom_id"], "response": {"status_code": 200, "body": answer}, "error": None}

    def _keep_results(self, job: Job, output: list[str], errors: list[str]) -> None:
        job.output = self._keep("\n".join(output).encode()) if output else None
        job.errors = self._keep("\n".join(errors).encode()) if errors else None

    def _shown_job(self, job: Job) -> dict[str, Any]:
        failed = job.status == "failed"
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": job.body["endpoint"],
            "status": job.script.says if job.script.says and job.status == "in_progress" else job.status,
            "errors": {"object": "list", "data": [{"code": "x", "message": "the job went wrong"}]} if failed else None,
            "input_file_id": job.body["input_file_id"],
            "output_file_id": job.output,
            "error_file_id": job.errors,
            "request_counts": {"total": len(job.lines), "completed": job.done, "failed": job.failed},
            "metadata": job.body.get("metadata"),
        }


class GeminiServer(BatchServer):
    """As its base; scripted paths are the base's, with Gemini's names of files and jobs, which are paths themselves."""

    files_named, jobs_named, ids_named = "files/", "batches/", "key"

    def __init__(self, **options: Any) -> None:
        super().__init__(most_inputs=100, **options)
        self._upload_bytes: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"{self.root}/v1beta"

    def _path(self, request: Request) -> str:
        where = request.route.replace("/v1beta", "", 1).removeprefix("/openai")
        if where == "/upload/files":
            return "/uploads" if request.headers["x-goog-upload-command"] == "start" else "/files"
        if where.startswith("/models/"):
            verbs = {"batchEmbedContents": "/embeddings", "asyncBatchEmbedContent": "/batches"}
            return verbs.get(where.rpartition(":")[2], where)
        if where.startswith("/download/"):
            return f"/files{where.removeprefix('/download').removesuffix(':download')}/content"
        for kind in ("/files/", "/batches/"):
            if where.startswith(kind):
                return kind.rstrip("/") + where.replace(":cancel", "/cancel")
        return where

    def _uploads(self, request: Request, rest: str) -> Answer:
        assert request.headers["x-goog-upload-protocol"] == "resumable"
        assert request.headers["x-goog-upload-header-content-type"] == "application/jsonl"
        upload = f"id-{len(self._upload_bytes)}"
        self._upload_bytes[upload] = int(request.headers["x-goog-upload-header-content-length"])
        # The host is Google's, also where a gateway stands before it.
        url = f"https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id={upload}"
        return 200, b"", {"X-Goog-Upload-URL": url}

    def _uploaded(self, request: Request) -> dict[str, Any]:
        assert request.headers["x-goog-upload-command"] == "upload, finalize"
        assert request.headers["x-goog-upload-offset"] == "0"
        assert self._upload_bytes.pop(request.query["upload_id"]) == len(request.content)
        return {"file": {"name": self._keep(request.content), "mimeType": "application/jsonl"}}

    def _created(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._new_job(body, body["batch"]["inputConfig"]["fileName"])

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        jobs = [self._shown_job(job) for job in reversed(self.jobs.values()) if not job.lost]
        start = int(query.get("pageToken", 0))
        end = start + min(int(query["pageSize"]), self.most_listed)
        return {"operations": jobs[start:end], **({"nextPageToken": str(end)} if end < len(jobs) else {})}

    def _text(self, line: dict[str, Any]) -> str:
        return gemini_text(line["request"])

    def _failed(self, line: dict[str, Any], message: str) -> dict[str, Any]:
        return {"key": line["key"], "error": {"code": 3, "message": message}}

    def _done(self, job: Job, line: dict[str, Any], row: np.ndarray) -> dict[str, Any]:
        return {"key": line["key"], "response": {"embedding": {"values": row.tolist()}, "tokenCount": "7"}}

    def _keep_results(self, job: Job, output: list[str], errors: list[str]) -> None:
        super()._keep_results(job, [*output, *errors], [])

    def _shown_job(self, job: Job) -> dict[str, Any]:
        states = {"completed": "SUCCEEDED", "validating": "PENDING", "in_progress": "RUNNING", "cancelling": "RUNNING"}
        if job.script.says is not None:
            states["in_progress"] = job.script.says.upper()
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
            shown["error"] = {"code": 13, "message": "the job went wrong"}
        elif over and output:
            shown["response"] = output
        return json.loads(json.dumps(shown))


def form(request: Request) -> dict[str, bytes]:
    """Return the parts of a form by their names."""
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(
        b"Content-Type: " + request.headers["content-type"].encode() + b"\r\n\r\n" + request.content
    )
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)  # type: ignore[misc]
        for part in message.iter_parts()  # type: ignore[attr-defined]
    }

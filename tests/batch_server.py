"""A real HTTP server that speaks OpenAI's and Voyage's embeddings and Batch APIs, and misbehaves on request.

with BatchServer() as server:
    server.script(JobScript(fails="poison"), JobScript(ends="failed"))
    ...  # give server.url as remote.base_url
    assert server.paid == Counter(texts)
"""

from __future__ import annotations

import base64
import http.server
import itertools
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from tests.embedding_server import embed
from tests.recording_server import Recorded, form, recorded
from tests.stub_server import StubServer


@dataclass(frozen=True)
class JobScript:
    """How a job goes. After `looks` looks (and while the server holds jobs, not before) it `ends` as said.

    Lines whose text contains `fails` are in the error file; `drops` lines are in no file; `spoils` lines have a NaN, a
    zero or a too short vector, by turns; `garbage` lines that are no results are among them. `done` lines are done
    when it does not end as completed.
    """

    ends: str = "completed"
    looks: int = 1
    fails: str | None = None
    drops: int = 0
    spoils: int = 0
    garbage: int = 0
    done: int = 0
    message: str = "the job went wrong"


@dataclass
class Job:
    """A job as the server knows it."""

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


@dataclass
class _Failure:
    method: str
    path: str
    status: int | None
    headers: dict[str, str]
    afterwards: bool


@dataclass
class _Answer:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


class BatchServer(StubServer):
    """Serves `url` (ends in /v1) on a free loopback port while used as a context manager.

    `paid` counts how often each text was embedded, `paid_inline` those of them that came one request at a time;
    `submitted` are all jobs in order, `jobs` those that were not deleted, by id, `files` what is uploaded or made and
    not deleted. While `open` is cleared no job ends. Without `batches` there is no Batch API. `on_call` (method, path)
    is called before an answer leaves, `on_created` as a job is made. `log` are all requests.
    """

    files_named, jobs_named, ids_named = "file-", "batch-", "custom_id"
    over: Mapping[str, str] = {}

    def __init__(self, *, dimensions: int = 32, batches: bool = True) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.batches = batches
        self.paid: Counter[str] = Counter()
        self.paid_inline: Counter[str] = Counter()
        self.jobs: dict[str, Job] = {}
        self.submitted: list[Job] = []
        self.files: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.log: list[Recorded] = []
        self.open = threading.Event()
        self.open.set()
        self.on_call: Callable[[str, str], None] | None = None
        self.on_created: Callable[[Job], None] | None = None
        self._numbers = itertools.count()
        self._scripts: deque[JobScript] = deque()
        self._failures: list[_Failure] = []
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """What to give as remote.base_url."""
        return f"{self.root}/v1"

    def script(self, *scripts: JobScript) -> None:
        """Say how the next jobs go, after those scripted already; the rest goes well."""
        with self._lock:
            self._scripts.extend(scripts)

    def fail(
        self, method: str, path: str, status: int | None, *, times: int = 1, afterwards: bool = False, **headers: str
    ) -> None:
        """Let the next requests to a path (of /v1) fail with a status, or unanswered; `afterwards`: once it is done."""
        with self._lock:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            self._failures += [_Failure(method, path, status, named, afterwards)] * times

    # Requests

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        url = urlsplit(handler.path)
        path = self._path(handler.command, url.path, handler.headers)
        with self._lock:
            self.log.append(recorded(handler.command, handler.path, handler.headers, content))
            self.calls[f"{handler.command} {path.split('/')[1]}"] += 1
            failure = next((f for f in self._failures if (f.method, f.path) == (handler.command, path)), None)
            if failure is not None:
                self._failures.remove(failure)
            if failure is None or failure.afterwards:
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                answer = self._answer(handler.command, path, query, handler.headers, content)
        if failure is not None:
            if failure.status is None:
                handler.close_connection = True
                handler.connection.close()
                return
            answer = _Answer(failure.status, {"error": {"message": "scripted failure"}, "detail": "scripted failure"})
            answer.headers.update(failure.headers)
        if self.on_call is not None:
            self.on_call(handler.command, path)
        payload = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        lines = [
            f"HTTP/1.1 {answer.status} scripted",
            "Content-Type: application/json",
            f"Content-Length: {len(payload)}",
        ]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        handler.wfile.write("\r\n".join([*lines, "", ""]).encode() + payload)

    def _path(self, method: str, path: str, headers: Any) -> str:
        """Return the path of OpenAI's API that means the same."""
        return path.removeprefix("/v1")

    def _answer(self, method: str, path: str, query: dict[str, str], headers: Any, content: bytes) -> _Answer:
        what, _, rest = path.strip("/").partition("/")
        if (method, what) == ("POST", "embeddings"):
            return self._embeddings(json.loads(content))
        if not self.batches or what not in {"files", "batches"}:
            return _Answer(404, {"error": {"message": f"no route {path}"}, "detail": "no route"})
        if what == "files":
            return self._file(method, rest, headers, content)
        return self._batch(method, rest, query, content)

    def _embeddings(self, body: dict[str, Any]) -> _Answer:
        inputs = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.paid.update(inputs)
        self.paid_inline.update(inputs)
        return _Answer(200, self._embedded(inputs, body))

    def _embedded(self, inputs: list[str], body: dict[str, Any]) -> dict[str, Any]:
        rows = [embed(text, self.dimensions) for text in inputs]
        data = [{"object": "embedding", "index": n, "embedding": _shown(row, body)} for n, row in enumerate(rows)]
        return {"object": "list", "data": data, "model": body.get("model"), "usage": {"total_tokens": 7 * len(inputs)}}

    def _file(self, method: str, rest: str, headers: Any, content: bytes) -> _Answer:
        if method == "POST":
            return self._uploaded(headers, content)
        file_id = rest.removesuffix("/content")
        if file_id not in self.files:
            return _Answer(404, {"error": {"message": "no such file"}, "detail": "no such file"})
        if method == "DELETE":
            del self.files[file_id]
            return _Answer(200, {"id": file_id, "deleted": True})
        return _Answer(200, self.files[file_id])

    def _uploaded(self, headers: Any, content: bytes) -> _Answer:
        parts = form(headers["content-type"], content)
        assert parts["purpose"] == b"batch"
        return _Answer(200, {"id": self._keep(parts["file"]), "object": "file", "purpose": "batch"})

    def _keep(self, content: bytes) -> str:
        file_id = f"{self.files_named}{next(self._numbers)}"
        self.files[file_id] = content
        return file_id

    def _batch(self, method: str, rest: str, query: dict[str, str], content: bytes) -> _Answer:
        if method == "POST" and not rest:
            return self._created(json.loads(content))
        if method == "GET" and not rest:
            return _Answer(200, self._listed(query))
        job = self.jobs.get(rest.removesuffix("/cancel"))
        if job is None:
            return _Answer(404, {"error": {"message": "no such batch"}, "detail": "no such batch"})
        if method == "DELETE":
            del self.jobs[job.id]
        elif method == "POST":
            if job.output or job.errors or job.status in {"failed", "cancelled", "completed", "expired"}:
                return _Answer(400, {"error": {"message": "it is over", **self.over}, "detail": "it is over"})
            job.cancelled, job.status = True, "cancelling"
        else:
            self._go_on(job)
        return _Answer(200, self._shown_job(job))

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        jobs = [self._shown_job(job) for job in reversed(self.jobs.values())]
        if "after" in query:
            ids = [job["id"] for job in jobs]
            jobs = jobs[ids.index(query["after"]) + 1 :]
        page = jobs[: int(query.get("limit", 20))]
        return {"object": "list", "data": page, "has_more": len(page) < len(jobs)}

    def _created(self, body: dict[str, Any]) -> _Answer:
        assert body["endpoint"] == "/v1/embeddings"
        assert body["completion_window"] == ("12h" if "request_params" in body else "24h")
        return self._new_job(body, body["input_file_id"])

    def _new_job(self, body: dict[str, Any], file_id: str) -> _Answer:
        lines = [json.loads(line) for line in self.files[file_id].splitlines()]
        assert len({line[self.ids_named] for line in lines}) == len(lines)
        script = self._scripts.popleft() if self._scripts else JobScript()
        job = Job(f"{self.jobs_named}{len(self.submitted)}", body, lines, script)
        self.submitted.append(job)
        self.jobs[job.id] = job
        if self.on_created is not None:
            self.on_created(job)
        return _Answer(200, self._shown_job(job))

    # A job's life

    def _go_on(self, job: Job) -> None:
        job.looks += 1
        if job.status in {"validating", "cancelling"} and job.looks < 2:
            job.status = "cancelling" if job.cancelled else "in_progress"
            return
        if job.cancelled and job.status == "cancelling":
            self._finish(job, "cancelled", job.lines[: job.script.done])
        elif job.status in {"validating", "in_progress"} and self.open.is_set() and job.looks > job.script.looks:
            if job.script.ends == "completed":
                self._finish(job, "completed", job.lines)
            else:
                self._finish(job, job.script.ends, job.lines[: job.script.done])
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
        answer = self._embedded([self._text(line)], {})
        answer["data"][0]["embedding"] = _shown(row, {**line["body"], **job.body.get("request_params", {})})
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
            "status": job.status,
            "errors": {"object": "list", "data": [{"code": "x", "message": job.script.message}]} if failed else None,
            "input_file_id": job.body["input_file_id"],
            "output_file_id": job.output,
            "error_file_id": job.errors,
            "request_counts": {"total": len(job.lines), "completed": job.done, "failed": job.failed},
            "metadata": job.body.get("metadata"),
        }


def _shown(row: np.ndarray, body: dict[str, Any]) -> object:
    if body.get("encoding_format") == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()

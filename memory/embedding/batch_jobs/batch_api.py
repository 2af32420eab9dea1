"""Providers' Batch APIs: many texts as one job, cheaper, and done when the provider has time.

lines -> upload -> job -> look ... -> download of the results, those with errors last
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, ClassVar

import structlog

from memory.embedding.providers.remote import RemoteProvider
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

#: Seconds that a call may take, and the bytes a second that files come and go with at least.
_CALL_SECONDS = 30.0
_FILE_BYTES_PER_SECOND = 50_000

#: Bytes of an answer that is no file; a page of 100 jobs has some 200,000.
_ANSWER_BYTES = 4_000_000

_GONE = frozenset({404, 405})


class BatchUnavailable(RecalldError):
    """The endpoint has no Batch API (for this model). Embedding the normal way is not affected."""


class JobState(StrEnum):
    """State of a job at the provider. All but the first are final."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a job: texts in it, texts done and failed. `message` is the provider's, "" without one."""

    state: JobState
    total: int = 0
    completed: int = 0
    failed: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """Result of one text: its raw vector (float32, shape (dimensions,)), or the reason why there is none.

    `tokens` is what the provider counted, None when it does not say.
    """

    custom_id: str
    vector: Vector | None = None
    reason: str = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bounds of one job: texts, and bytes of the file that they are sent in."""

    inputs: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class JobFile:
    """The texts of a job as they are sent, in an open temporary file, and their ids. Closing the file removes it."""

    content: IO[bytes]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProviderJob:
    """A job as its provider describes it: the files of its `results`, and the `leftovers` to delete at its end."""

    id: str
    reference: str | None
    progress: JobProgress
    results: tuple[str, ...]
    leftovers: tuple[str, ...]


class BatchApi(ABC):
    """The Batch API of the endpoint, key and model of one provider. Thread-safe.

    Every method that asks the provider raises:
        Transient: it did not answer well this time; Throttled when it asks to slow down.
        Terminal: it will not serve us (key, quota).
        Permanent: it will never take this job.
        BatchUnavailable: there is no Batch API at this endpoint.
    """

    #: Half of the 100,000 inputs that Voyage takes: a crash of theirs, or a job that comes too late, costs less. OpenAI
    #: takes 50,000 and 200 MB; https://docs.voyageai.com/reference/files names no bound of a file, Gemini's is 2 GB.
    limits = JobLimits(inputs=50_000, file_bytes=190_000_000)

    #: Paths, with {} for the name of a job or file.
    job_path: ClassVar[str]
    cancel_path: ClassVar[str]
    file_path: ClassVar[str]
    content_path: ClassVar[str]

    def __init__(self, provider: RemoteProvider, *, call_seconds: float = _CALL_SECONDS) -> None:
        self.provider = provider
        self._call_seconds = call_seconds

    # What a provider is asked

    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        """Put texts, (custom id, text) each, into a file, up to the limits; `ids` names them. Sends nothing."""
        content = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, mode="w+b")  # noqa: SIM115 - handed out
        ids: list[str] = []
        size = 0
        for custom_id, text in texts:
            sent = self._line(custom_id, self.provider.worded(text, "document"))
            line = json.dumps(sent, separators=(",", ":")).encode() + b"\n"
            if len(ids) >= self.limits.inputs or size + len(line) > self.limits.file_bytes:
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
        after: str | None = None
        for _ in range(_MOST_PAGES):
            jobs, after = self._page(after)
            found = next((job.id for job in jobs if job.reference == reference), None)
            if found is not None or after is None:
                return found
        return None

    def look(self, job_id: str) -> JobProgress:
        """Return the progress of a job. A job that the provider does not know (any more) has failed."""
        try:
            return self._get(job_id).progress
        except BatchUnavailable:
            return JobProgress(JobState.FAILED, message="the provider does not know the job any more")

    def results(self, job_id: str, *, texts: int) -> Iterator[BatchLine]:
        """Yield what became of the job's texts, in no promised order, as the lines arrive; nothing while it runs.

        `texts` is the number of them, which bounds the results. A line that cannot be read is left out, as is a second
        one for a text. A text that the provider says nothing about has no line.
        """
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
        """Ask the provider to stop. Its results until then can still be had; a job that is over stays as it is."""
        # Refused for a job that is over, or gone: then there is nothing to stop. Whatever else is wrong, a look says.
        with contextlib.suppress(Permanent, Terminal, BatchUnavailable):
            self.call("POST", self.cancel_path.format(job_id))

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
        except (KeyError, TypeError, AttributeError) as error:
            raise Transient(f"the answer of {self.provider.name}'s Batch API is no job") from error

    def _line_of(self, line: bytes) -> BatchLine | None:
        """Return what a line of results says; None when it cannot be read."""
        if not line.strip():
            return None
        try:
            found = self._result(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Transient):
            return None
        return found if isinstance(found.custom_id, str) else None

    # What differs. Calls raise BatchUnavailable for "not found".

    @abstractmethod
    def _line(self, custom_id: str, text: str) -> dict[str, Any]:
        """Return one line of the file."""

    @abstractmethod
    def _result(self, line: Any) -> BatchLine:
        """Return what a parsed line of results says; raises ValueError and its kind where it says something else."""

    @abstractmethod
    def _read(self, answer: Mapping[str, Any]) -> ProviderJob:
        """Return what an answer says of a job; raises KeyError and its kind where it says something else."""

    @abstractmethod
    def _upload(self, file: JobFile, *, name: str) -> str:
        """Upload a file; returns the provider's name of it."""

    @abstractmethod
    def _create(self, file_id: str, reference: str) -> ProviderJob:
        """Make a job of an uploaded file."""

    @abstractmethod
    def _page(self, after: str | None) -> tuple[list[ProviderJob], str | None]:
        """Return jobs, newest first, and what to call with for the ones before them, None at the end."""

    # Calls

    def _get(self, job_id: str) -> ProviderJob:
        return self.read_job(self.ask("GET", self.job_path.format(job_id)))

    def _delete(self, name: str) -> None:
        self.call("DELETE", self.file_path.format(name))

    def call(self, method: str, path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        """Return headers and content of an answer that is no file."""
        exchange = self.provider.exchange(
            seconds=self._call_seconds, answer_bytes=_ANSWER_BYTES, bytes_per_second=_FILE_BYTES_PER_SECOND
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
            seconds=self._call_seconds,
            answer_bytes=self.provider.answer_bytes(texts),
            bytes_per_second=_FILE_BYTES_PER_SECOND,
            may_move=True,
        )
        longest = self.provider.answer_bytes(1)
        with exchange.running():
            response = self.provider.send("GET", self.content_path.format(name), read_status=self._read_status)
        with contextlib.closing(self._parts(response)) as parts:
            part, rest = b"\n", b""
            while part:
                with exchange.running():
                    part = next(parts, b"")
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
                if len(rest) > longest:
                    raise Transient(f"a line of the results of {self.provider.name}'s Batch API has no end")
        yield rest

    def _parts(self, response: Any) -> Generator[bytes]:
        try:
            yield from response.iter_bytes()
        except Exception as error:
            raise self.provider.read_error(error) from error
        finally:
            response.close()

    def _read_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        if status in _GONE:
            return BatchUnavailable(f"{self.provider.name} has no such Batch API (HTTP {status})")
        return self.provider.errors.of_status(status, headers, body)


def quoted(words: str) -> str:
    """A line of a provider's own words, which may quote what it was sent."""
    return redact(" ".join(words.split()))[:_MOST_WORDS]

"""The one interface of providers' Batch APIs: many texts as one job, cheaper, and done when the provider has time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO

from memory.store.reader import Vector
from schemas.errors import RecalldError


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


class BatchApi(ABC):
    """A provider's Batch API. Thread-safe.

    Every method that asks the provider raises:
        Transient: it did not answer well this time; Throttled when it asks to slow down.
        Terminal: it will not serve us (key, quota).
        Permanent: it will never take this job.
        BatchUnavailable: there is no Batch API at this endpoint.
    """

    limits: JobLimits

    @abstractmethod
    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        """Put texts, (custom id, text) each, into a file, up to the limits; `ids` names them. Sends nothing."""

    @abstractmethod
    def submit(self, file: JobFile, *, reference: str) -> str:
        """Make a job of a file; returns the provider's id of it.

        `reference` is kept with the job, so that `find` finds it. After a `Transient` error the job may exist.
        """

    @abstractmethod
    def find(self, reference: str) -> str | None:
        """The id of the job that was made with a reference; None when there is none."""

    @abstractmethod
    def look(self, job_id: str) -> JobProgress:
        """Return the progress of a job. A job that the provider does not know (any more) has failed."""

    @abstractmethod
    def results(self, job_id: str, *, texts: int) -> Iterator[BatchLine]:
        """Return what became of the job's texts, in no promised order, as the lines arrive; none while it runs.

        `texts` is the number of them, which bounds the results. A line that cannot be read is left out, as is a second
        one for a text. A text that the provider says nothing about has no line.
        """

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Ask the provider to stop. What is done by then can still be had; a job that is over stays as it is."""

    @abstractmethod
    def clean_up(self, job_id: str) -> None:
        """Delete the job's files at the provider, as far as that goes. Raises nothing."""

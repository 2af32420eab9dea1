"""Circuit breaker for answers that are billed and hold no usable vectors, as of a router that swaps the model.

    closed --useless answer--> stopped --pause is over, one text asks--> on trial --as many good texts--> closed
                                  ^----- useless, the pause doubles --------'

Retries would pay for the same texts again and again until a person acts. The record outlives broker and restart: a file
of the home that every process reads before it sends. Workers write it; the query service reads it.

Texts billed in vain within an hour are at most the waiting texts and ten. Requests in flight hold different texts, so
that a first failure costs each waiting text once at most. A trial sends one text at a time, and ends when as many texts
got vectors as were billed in vain: the next first failure costs only other texts. During a trial, a question and the
text after it cost two texts and two doublings, so that pauses of 0, 1, 2, 4 ... minutes leave room for eight an hour.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from memory.embedding.providers.provider import EmbeddingProvider
from schemas.errors import Paced, Stopped, Unusable, backoff

log = structlog.get_logger(__name__)


#: Seconds of the first and of the longest pause before a question. A trial without a failure ends after the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 3600.0

#: Seconds that the answer to a question may take.
ANSWER_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Waste:
    """Record of texts billed in vain since the Unix time `since`, the last ones at `at`, and of `good` ones since then.

    No text leaves before `until` while the provider is `stopped`, else one text at a time. `asked_at` is the time of a
    question without an answer. `error` names the last useless answer; `got` and `expected` are its dimensions if they
    were wrong. 0 stands for none.
    """

    since: float
    at: float
    until: float
    doublings: int
    texts: int
    tokens: int
    error: str
    good: int = 0
    got: int = 0
    expected: int = 0
    stopped: bool = True
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """Right to send one request of so many texts. `on_trial`: a useless answer stops the provider again."""

    texts: int = 1
    on_trial: bool = False


#: Seconds after which a text is sent whose larger request met a trial, or another text of the trial.
SOON_SECONDS = 1.0
_NEXT_SECONDS = 0.02


def waste_path(home: Path, provider: EmbeddingProvider) -> Path:
    """Return the file of a provider's record, beside the embedding cache."""
    digest = hashlib.blake2b(f"{provider.account}\n{provider.identity}".encode(), digest_size=16).hexdigest()
    return home / "cache" / f"stopped-{digest}.json"


def read_waste(path: Path) -> Waste | None:
    """Return the record in a file; None without a file that can be read."""
    try:
        return Waste(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


class Breaker:
    """Circuit breaker of one account and model. Thread-safe.

    `path` is the file of the record, if it has one. `keep` replaces the file by a JSON value, or removes it (None).
    Without `keep`, and while that raises OSError, the changes of this process stay in its memory. `clock` gives Unix
    seconds.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        keep: Callable[[Path, Any], None] | None = None,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._keep = keep
        self._first_pause = first_pause_seconds
        self._clock = clock
        self._lock = threading.RLock()
        self._in_memory: Waste | None = None
        #: The text of a trial that is under way, and since when.
        self._trial: tuple[Permit | None, float] = (None, 0.0)

    def waste(self) -> Waste | None:
        """Return the record while the provider is stopped or on trial; None otherwise. Without a file it is cheap."""
        with self._lock:
            record = self._record()
            over = record is None or (not record.stopped and self._clock() - record.at >= LONGEST_PAUSE_SECONDS)
            return None if over else record

    def seconds(self) -> float:
        """Return the seconds for which no text leaves."""
        record, now = self.waste(), self._clock()
        # A clock that was set back must not prolong the stop.
        if record is None or not record.stopped or now < record.at:
            return 0.0
        # Workers ask; a process that only reads the file does so for itself if no worker runs.
        patience = ANSWER_SECONDS if self._path is not None and self._keep is None else 0.0
        unanswered = 0 <= now - record.asked_at < ANSWER_SECONDS
        return max(SOON_SECONDS if unanswered else 0.0, min(record.until + patience - now, LONGEST_PAUSE_SECONDS))

    def admit(self, texts: int, *, query: bool = False) -> Permit:
        """Return the right to send a request.

        Raises:
            Stopped: the provider is stopped, or the request is too large for a trial.
            Paced: the trial waits for the answer to another text. Never for a query.
        """
        with self._lock:
            record, now = self.waste(), self._clock()
            if record is None:
                return Permit(texts)
            if (seconds := self.seconds()) > 0 or texts > 1:
                raise Stopped(record.error, retry_after=seconds or SOON_SECONDS)
            permit = Permit(texts, on_trial=True)
            if record.stopped:
                self._store(replace(record, at=min(record.at, now), until=min(record.until, now), asked_at=now))
            elif not query:
                permit_on_trial, since = self._trial
                if permit_on_trial is not None and now - since < ANSWER_SECONDS:
                    raise Paced("a provider on trial gets one text at a time", retry_after=_NEXT_SECONDS)
                self._trial = permit, now
            return permit

    def release(self, permit: Permit) -> None:
        """Return a right whose request ended without an answer that is billed, or was not sent."""
        with self._lock:
            if self._trial[0] is permit:
                self._trial = None, 0.0
            record = self.waste()
            if permit.on_trial and record is not None and record.asked_at:
                self._store(replace(record, asked_at=0.0))

    def failed(self, error: Unusable, permit: Permit, *, texts: int, tokens: int) -> None:
        """Count texts that were billed in vain, and stop the provider.

        A request that left before the stop prolongs nothing.
        """
        with self._lock:
            self.release(permit)
            record, now = self.waste(), self._clock()
            if record is None:
                record = Waste(since=now, at=now, until=now, doublings=0, texts=0, tokens=0, error="")
            elif permit.on_trial:
                pause = backoff(record.doublings + 1, first=self._first_pause, longest=LONGEST_PAUSE_SECONDS)
                record = replace(record, until=now + pause, doublings=record.doublings + 1, stopped=True)
            record = replace(record, at=now, texts=record.texts + texts, tokens=record.tokens + tokens)
            self._store(replace(record, error=str(error), got=error.got or 0, expected=error.expected or 0))
        log.warning("embedding_provider_useless", error=str(error), texts=record.texts, until=record.until)

    def answered(self, permit: Permit, *, wasted: int = 0, tokens: int = 0) -> None:
        """Count an answer with good vectors, which begins a trial or ends it; some texts may be billed in vain."""
        with self._lock:
            self.release(permit)
            if (record := self._record()) is None:
                return
            good, texts = record.good + permit.texts - wasted, record.texts + wasted
            over = self.waste() is None
            record = replace(record, good=good, texts=texts, tokens=record.tokens + tokens)
            if record.stopped and permit.on_trial:
                record = replace(record, stopped=False, doublings=record.doublings + 1)
            self._store(None if over or (good >= texts and not record.stopped) else record)

    def _record(self) -> Waste | None:
        """Return the later record: that of the file, or of this process."""
        records = (self._in_memory, read_waste(self._path) if self._path is not None else None)
        return max(filter(None, records), key=lambda record: record.at, default=None)

    def _store(self, record: Waste | None) -> None:
        """Replace the record, for all processes if this one may. The last of two processes at once counts."""
        self._in_memory = record
        if self._keep is not None and self._path is not None:
            try:
                self._keep(self._path, None if record is None else asdict(record))
                self._in_memory = None
            except OSError as error:
                log.warning("embedding_stop_not_kept", error=str(error))

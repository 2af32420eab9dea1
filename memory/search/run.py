"""One search from its arrival to its answer, on threads that it holds only while it works.

Its steps are a generator that yields what has to be there before it goes on (a future: the query's vector, which a
provider may take seconds for). Until then the search holds no thread, so that any number of searches can wait for a
slow provider and nobody else waits for them. Whoever wants the answer, a thread or an event loop, also keeps the time:
when only the store's share of it is left, the search goes on without what it waits for, and at the deadline there is
an answer, whatever has become of the search.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from schemas.search import SearchAnswer

Steps = Generator["Future[Any]", None, SearchAnswer]

#: Share of the deadline that is kept for the store when something is waited for.
STORE_SHARE = 0.1

#: Share of it that is kept for showing what has been found when not all of it could be.
LATE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search has to be answered: `seconds` after it came, at `started` on the monotonic clock."""

    started: float
    seconds: float

    @property
    def end(self) -> float:
        """The deadline itself, on the monotonic clock."""
        return self.started + self.seconds

    def left(self, *, keeping: float = 0.0) -> float:
        """Seconds from now to the deadline, less a share of all of it; 0 when they are over."""
        return max(0.0, self.end - keeping * self.seconds - time.monotonic())


class SearchRun:
    """Runs a search's steps. `late` answers at the deadline in place of them; `failed` when they raise.

    Exactly one of `answer` and `answered` is to be called, once.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        threads: Executor,
        deadline: Deadline,
        late: Callable[[], SearchAnswer],
        failed: Callable[[Exception], SearchAnswer],
    ) -> None:
        self._steps = steps
        self._threads = threads
        self._deadline = deadline
        self._late = late
        self._failed = failed
        self._done: Future[SearchAnswer] = Future()
        self._lock = threading.Lock()
        self._parked = False
        self._hurried = False
        self._given_up = False
        self._go_on()

    def answer(self) -> SearchAnswer:
        """Wait for the answer; on a thread."""
        try:
            return self._done.result(self._deadline.left(keeping=STORE_SHARE))
        except FutureTimeout:
            self._hurry()
        try:
            return self._done.result(self._deadline.left(keeping=LATE_SHARE))
        except FutureTimeout:
            self._given_up = True
            return self._late()

    async def answered(self) -> SearchAnswer:
        """Wait for the answer; on an event loop."""
        done = asyncio.wrap_future(self._done)
        await asyncio.wait((done,), timeout=self._deadline.left(keeping=STORE_SHARE))
        if not done.done():
            self._hurry()
            await asyncio.wait((done,), timeout=self._deadline.left(keeping=LATE_SHARE))
        if done.done():
            return done.result()
        self._given_up = True
        return await asyncio.to_thread(self._late)

    def _go_on(self) -> None:
        try:
            self._threads.submit(self._advance).add_done_callback(self._look_whether_dropped)
        except RuntimeError as error:
            self._done.set_result(self._failed(error))

    def _look_whether_dropped(self, call: Future[None]) -> None:
        if call.cancelled():
            self._done.set_result(self._failed(RuntimeError("the service is ending")))

    def _advance(self) -> None:
        """Go as far as possible; on one of the threads, and never on two at a time."""
        if self._given_up:
            return
        try:
            awaited = next(self._steps)
        except StopIteration as end:
            self._done.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - whoever asked gets an answer; `failed` keeps the reason
            self._done.set_result(self._failed(error))
        else:
            self._park(awaited)

    def _park(self, awaited: Future[Any]) -> None:
        with self._lock:
            self._parked = True
            hurried = self._hurried
        if hurried:
            self._resume()
        else:
            awaited.add_done_callback(lambda _: self._resume())

    def _resume(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, False
        if parked:
            self._go_on()

    def _hurry(self) -> None:
        """Let the search go on without what it waits for."""
        with self._lock:
            self._hurried = True
        self._resume()

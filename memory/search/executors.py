"""Threads that several parties share, of which each gets a few at most: who is slow makes nobody else wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Lane(Executor):
    """One party's way to shared threads. At most `width` of its calls run at a time, the rest waits here.

    A waiting call holds no thread. The threads are closed by whoever made them.
    """

    def __init__(self, threads: Executor, width: int) -> None:
        self._threads = threads
        self._width = width
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = 0
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`.

        Raises:
            RuntimeError: the lane or the threads are closed.
        """
        call = _Call(fn, args, kwargs)
        with self._lock:
            if self._closed:
                raise RuntimeError("this lane is closed")
            self._waiting.append(call)
            if self._running == self._width:
                return call.future
            self._running += 1
        try:
            self._threads.submit(self._work)
        except RuntimeError:
            with self._lock:
                self._running -= 1
                self._waiting.remove(call)
            raise
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's
        """Take no more calls. Those that run are waited for by the threads' owner, not here, whatever `wait` says."""
        with self._lock:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for call in dropped:
            call.future.cancel()

    def _work(self) -> None:
        """Run what waits until nothing does; on one of the shared threads."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
            call.run()


class _Call:
    __slots__ = ("_args", "_fn", "_kwargs", "future")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.future: Future[Any] = Future()
        self._fn = fn
        self._args = args
        self._kwargs = kwargs

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._fn(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the call gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

"""Standard input of a hook: whatever it is, it is over soon."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.hook_payloads import MAX_PAYLOAD_BYTES, HookUnreadable
from recalld.hooks.entry import read_input


class Pipe:
    """A pipe whose writing end is closed at most once."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self._out = os.fdopen(writing, "wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Write all of it; waits for the reader."""
        while data:
            data = data[self._out.write(data) or 0 :]

    def end(self) -> None:
        """Close the writing end."""
        self._out.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.end()
    os.close(made.reading)


def test_everything_up_to_the_end_is_read(pipe: Pipe) -> None:
    data = b'{"a": "' + b"x" * 300_000 + b'"}'

    def write() -> None:
        pipe.write(data)
        pipe.end()

    thread = threading.Thread(target=write)
    thread.start()
    assert read_input(pipe.reading, wait_seconds=20) == data
    thread.join()


def test_a_writer_that_keeps_its_end_open_is_not_waited_for(pipe: Pipe) -> None:
    pipe.write(b'{"a": 1}\n')
    assert read_input(pipe.reading, wait_seconds=3600) == b'{"a": 1}\n'


def test_a_silent_or_empty_input_is_said(pipe: Pipe) -> None:
    with pytest.raises(HookUnreadable, match="nothing came"):
        read_input(pipe.reading, wait_seconds=0.01)
    pipe.end()
    with pytest.raises(HookUnreadable, match="nothing came"):
        read_input(pipe.reading, wait_seconds=60)


def test_reading_stops_at_the_limit() -> None:
    with Path("/dev/zero").open("rb") as endless:
        assert len(read_input(endless.fileno(), wait_seconds=60)) < MAX_PAYLOAD_BYTES * 2


def test_a_terminal_and_a_closed_input_are_said() -> None:
    leader, follower = pty.openpty()
    try:
        with pytest.raises(HookUnreadable, match="terminal"):
            read_input(follower)
    finally:
        os.close(leader)
        os.close(follower)
    with pytest.raises(HookUnreadable, match="standard input"):
        read_input(follower)

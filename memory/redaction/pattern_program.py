"""A program of its own that looks for patterns: the kernel ends it when one takes too long.

Python's `re` holds the interpreter's lock while it looks and cannot be interrupted, so that a pattern that tries all
ways to cut up a line would stop every thread of a process for good. Here it stops nobody else. Started as a file by
`memory.redaction.pattern_processes`, without site-packages: it imports the standard library only.

Standard input, for each text: `REQUEST`, then the patterns (JSON, a list of texts), then the text (UTF-8, which may
hold lone surrogates). Standard output, for each pattern in turn: `FOUND`, then that many numbers (`array("q")`): start
and end of each secret part, in characters. In the end `SPENT`. The program ends with its input.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import struct
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress

#: Seconds of processor time for the text, bytes of memory, bytes of the patterns and of the text.
REQUEST = struct.Struct("=dQQQ")

#: How many numbers follow.
FOUND = struct.Struct("=Q")

#: Seconds of processor time that the text took.
SPENT = struct.Struct("=d")

#: Exit code when the memory allowed was not enough.
OUT_OF_MEMORY = 3


def secret_parts(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """Yield start, end, start, end ... of what is secret by a pattern.

    Of a match its groups are secret, or all of it if none took part. A match of nothing is none.
    """
    for match in pattern.finditer(text):
        groups = [match.span(group) for group in range(1, pattern.groups + 1) if match.start(group) >= 0]
        for start, end in groups or [match.span()]:
            if start < end:
                yield start
                yield end


def main() -> None:
    """Answer until the input ends."""
    _leave_signals_to_the_parent()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    kept: tuple[bytes, list[re.Pattern[str]]] = (b"[]", [])
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        seconds, memory, size_of_patterns, size = REQUEST.unpack(head)
        _limit_memory(memory)
        patterns = requests.read(size_of_patterns)
        text = requests.read(size).decode("utf-8", "surrogatepass")
        # Either signal ends this process, also in the middle of a search.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        _end_with_input(wanted=True)
        if patterns != kept[0]:
            kept = patterns, [re.compile(pattern) for pattern in json.loads(patterns)]
        for pattern in kept[1]:
            parts = array("q", secret_parts(pattern, text))
            answers.write(FOUND.pack(len(parts)))
            answers.write(parts.tobytes())
            answers.flush()
        _end_with_input(wanted=False)
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(SPENT.pack(max(0.0, seconds - left)))
        answers.flush()


def _leave_signals_to_the_parent() -> None:
    """Who ends the parent (a terminal, systemd) may mean this process, too, which the parent needs to end in order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGPROF, signal.SIGIO):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _end_with_input(*, wanted: bool) -> None:
    """Whether the kernel tells, by a signal, that something happens to the input: nothing but its end can, while its
    parent waits. Linux does; elsewhere the budget has to run out."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC if wanted else flags & ~os.O_ASYNC)


def _limit_memory(size: int) -> None:
    # Less may be allowed already, and not every system knows this limit.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)

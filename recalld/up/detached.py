"""`recalld up` without a terminal: started in the background, and stopped from another shell."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from memory.status.run_files import born, is_the_same, server_pid
from recalld.up.lock import daemon_pid, has_processes
from recalld.up.supervisor import UP_OVERDUE_SECONDS, bound_log, last_sentence
from schemas.errors import UserError

#: Relative to the home: the messages of an `up` without a terminal.
UP_LOG = Path("log") / "up.log"

#: Seconds until a start in the background counts as failed. It goes on, and may still succeed.
START_SECONDS = 120.0

#: Seconds between two looks at a process that ends.
_LOOK_SECONDS = 0.05


def in_background(home: Path, run: Callable[[Callable[[], object]], int]) -> int:
    """Call `run` in a process of its own, whose messages go to `UP_LOG`. Return when `run` calls its argument.

    The child returns from this function as well, with the exit code of `run`.

    Raises:
        UserError: the child ended before, with its last sentence, or takes longer than `START_SECONDS`.
    """
    log = home / UP_LOG
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_log(log)
        output = log.open("ab")
    except OSError as error:
        raise UserError(f"{log} cannot be written ({error.strerror}); choose another folder with --home") from None
    beginning = output.seek(0, os.SEEK_END)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        for stream in (0, 1):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        os.dup2(output.fileno(), 2)
        return run(partial(os.write, writer, b"+"))
    output.close()
    os.close(writer)
    try:
        in_time = select.select([reader], [], [], START_SECONDS)[0]
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        raise
    if not in_time:
        raise UserError(f"recalld is not ready after {START_SECONDS:.0f} s and goes on starting: see `recalld logs up`")
    if os.read(reader, 1):
        for line in log.read_bytes()[beginning:].splitlines():
            with suppress(ValueError, KeyError, TypeError):
                click.echo(json.loads(line)["event"])
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    words = last_sentence(log, beginning=beginning).removeprefix("recalld: ")
    raise UserError(words or f"recalld ended with code {code}; see `recalld logs up`", exit_code=max(code, 1))


def stop(home: Path, *, on_wait: Callable[[int], None]) -> int | None:
    """Stop the `recalld up` of a home in order. Return its process id, None if none runs.

    `on_wait` gets the id before the wait. The queue server that a killed `up` left behind is stopped, too.

    Raises:
        UserError: it does not end in time, or belongs to another user.
    """
    pid = daemon_pid(home)
    if pid is not None:
        on_wait(pid)
        _end(pid)
    server = None if has_processes(home) else server_pid(home)
    if server is not None:
        _end(server)
    return pid or server


def _end(pid: int) -> None:
    """Ask a process to end, and wait for that."""
    when_born = born(pid)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise UserError(f"process {pid} belongs to another user, who has to stop it") from None
    until = time.monotonic() + UP_OVERDUE_SECONDS
    while is_the_same(pid, when_born):
        if time.monotonic() > until:
            raise UserError(f"process {pid} does not end; `kill -9 {pid}` ends it, and the next start goes on")
        time.sleep(_LOOK_SECONDS)

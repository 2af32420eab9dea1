"""Commands of recalld in forked processes, which need not import it: most of the time of a command is imports.

`python -m tests.forked` is the process that forks. `_RELAY` hands it a command, with the folder, the environment and
the standard files of the process that runs it, and ends as the command ends.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

#: Beginnings of the names of variables that an interpreter reads at its start.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_")

#: What changes nothing in a process that has imported everything: no bytecode, and the folder that it came from.
_WITHOUT_EFFECT = {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPATH": str(REPOSITORY)}

#: Imports next to nothing. If it is killed, so is the command.
_RELAY = """
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as forks:
    forks.connect(sys.argv[1])
    socket.send_fds(forks, [b"3"], [0, 1, 2])
    forks.sendall(json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    code = int(forks.recv(16))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""

#: Address of the process that forks, while there is one.
_addresses: list[str] = []


@contextmanager
def forking() -> Iterator[None]:
    """Keep a process that forks until the block ends. It imports recalld when it is first needed."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/forks")
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(listener.fileno())],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
        _addresses.append(f"{folder}/forks")
        with server:
            yield
        _addresses.clear()


def command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the words that run a command of recalld to its end in this environment."""
    differing = {
        name
        for name in {*environment, *os.environ}
        if name.startswith(_READ_AT_START) and environment.get(name) != os.environ.get(name)
        if name not in _WITHOUT_EFFECT or environment.get(name) != _WITHOUT_EFFECT[name]
    }
    if not _addresses or differing:
        return [sys.executable, "-m", "recalld", *arguments]
    return [sys.executable, "-ISc", _RELAY, *_addresses, *arguments]


def _serve(listener: socket.socket) -> list[str]:
    """Fork for each connection until standard input ends. Return arguments in the processes that are to run them."""
    while 0 not in select.select([listener, 0], [], [])[0]:
        if not gc.get_freeze_count():
            _import_everything()
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            return _arguments(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
    with suppress(ChildProcessError):
        while os.wait():
            pass
    os._exit(0)


def _import_everything() -> None:
    for package in ("schemas", "memory", "producers", "workers", "recalld"):
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.freeze()


def _arguments(connection: socket.socket) -> list[str]:
    """Return the arguments in a process that has all of the relay; this one waits for it, and for the relay's end."""
    _, files, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as sent:
        arguments, folder, environment = json.loads(sent.readline())
    ended, told = socket.socketpair()
    told.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told.fileno())
    if command := os.fork():
        if connection in select.select([ended, connection], [], [])[0]:
            os.kill(command, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        connection.send(str(code).encode())
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for opened in (ended, told, connection):
        opened.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return list(arguments)


if __name__ == "__main__":
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("recalld", run_name="__main__", alter_sys=True)

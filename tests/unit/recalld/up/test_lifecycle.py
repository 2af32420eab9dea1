"""The life of a process: its end by real signals, the words that systemd hears, settings that change meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from recalld.invocation import Invocation
from recalld.up.lifecycle import SettingsAge
from recalld.up.sd_notify import sd_notify, watchdog
from tests.daemon import REPOSITORY
from tests.waiting import wait_until

#: Says "begun" when signals are heard.
PRELUDE = """
import hashlib, sys, threading, time
from recalld.up.lifecycle import last_act, stop_event
def begin(**options):
    stop = stop_event(**{"supervised": False, **options})
    print("begun", flush=True)
    return stop
"""


def program(code: str, *, before: str = "") -> subprocess.Popen[str]:
    """Run it until it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", before + PRELUDE + code],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and the rest of the output."""
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


def test_a_second_signal_is_immediate_while_the_main_thread_hears_nothing() -> None:
    process = program("""
stop = begin()
with last_act(lambda: print("first", flush=True)), last_act(lambda: print("latest", flush=True)):
    stop.wait()
    print("stopping", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # in C, for half an hour
""")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (128 + signal.SIGINT, "latest\nfirst\n")


def test_an_end_that_takes_too_long_is_cut_short_and_says_so() -> None:
    process = program(
        "with last_act(lambda: print('last act', flush=True)):\n"
        "    begin(overdue_seconds=0.2).wait()\n"
        "    threading.Event().wait()"
    )
    process.send_signal(signal.SIGTERM)
    code, printed = outcome(process)
    assert (code, printed.splitlines()[1:]) == (1, ["last act"])


def test_a_command_that_nohup_started_stays_when_the_terminal_goes() -> None:
    process = program("begin().wait(); print('in order')", before="import signal; signal.signal(1, signal.SIG_IGN)\n")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "SigPnd:\t0000000000000000" in Path(f"/proc/{process.pid}/status").read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (0, "in order\n")


def test_systemd_gets_signs_of_life_as_long_as_all_goes_well(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"recalld-test-{os.getpid()}"
    for variable, value in (("NOTIFY_SOCKET", f"@{name}"), ("WATCHDOG_USEC", "40000"), ("WATCHDOG_PID", os.getpid())):
        monkeypatch.setenv(variable, str(value))
    looks: list[int] = []
    problems: list[str] = []

    def look() -> list[str]:
        looks.append(1)
        return problems

    def looked(times: int) -> bool:
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + times)
        return True

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")  # in the abstract namespace
        systemd.settimeout(0.0)
        with watchdog(look):
            assert looked(2)
            assert heard(systemd) == {b"WATCHDOG=1"}
            problems.append("its sweeper thread has ended")
            assert looked(1)
            heard(systemd)
            assert looked(2)
            assert heard(systemd) == set()


def heard(systemd: socket.socket) -> set[bytes]:
    """Return the messages since the last call."""
    words: set[bytes] = set()
    with suppress(BlockingIOError):
        while True:
            words.add(systemd.recv(100))
    return words


@pytest.mark.parametrize(
    "asked",
    [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1", "NOTIFY_SOCKET": "/no/listener"}, {"WATCHDOG_USEC": "soon"}],
)
def test_without_systemd_a_process_goes_on(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID", "NOTIFY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    looks: list[int] = []
    sd_notify("READY=1")
    with watchdog(lambda: looks.append(1) or []):
        pass
    assert not looks


TEXT = 'provider = "stub"\n[chunking]\ntokens = 300\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(("RECALLD_", "OPENAI_")):
            monkeypatch.delenv(name)
    file = tmp_path / "recalld.toml"
    file.write_text(TEXT)
    return file


@pytest.fixture
def invocation(config: Path, tmp_path: Path) -> Invocation:
    (tmp_path / "workspace").mkdir()
    return Invocation(
        config=str(config), home=str(tmp_path / "home"), workspace=str(tmp_path / "workspace"), agent="main"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"# a comment\n{TEXT}",
        'provider="stub"\n\n\nchunking = { tokens = 300 }\n',
        f"{TEXT}overlap = 80\n",  # the default, said aloud
        f"{TEXT}\n[service]\nport = 9999\n",  # which a flag overrides anyway
    ],
)
def test_what_makes_no_difference_is_no_change(invocation: Invocation, config: Path, text: str):
    invocation.overrides["service.port"] = 7000
    age = SettingsAge(invocation)
    config.write_text(text)
    assert age() is None


def test_a_change_is_told_with_both_times_until_it_is_taken_back(invocation: Invocation, config: Path):
    age = SettingsAge(invocation)
    assert age() is None
    config.write_text(TEXT.replace("300", "200"))
    os.utime(config, (5000.0, 5000.0))
    outdated = age()
    assert outdated is not None
    assert (outdated.file, outdated.changed_at, outdated.invalid) == (str(config), 5000.0, False)
    assert outdated.read_at > 5000.0
    assert age() == outdated
    config.write_text(TEXT)
    assert age() is None
    for spoil in (lambda: config.write_text("chunking = 3\n"), config.unlink):
        spoil()
        assert (outdated := age()) is not None
        assert outdated.invalid


def test_a_key_file_that_was_replaced_is_a_change(
    invocation: Invocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key = tmp_path / "key"
    key.write_text("sk-old")
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(key))
    age = SettingsAge(invocation)
    key.write_text("sk-newer")
    outdated = age()
    assert outdated is not None
    assert outdated.file == str(key)


#: Blocks between small ones that stay, as results between the arrays of a search; prints the bytes that it holds then.
HOLES = """
import ctypes, resource
from pathlib import Path
{first}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def filled(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    return block

libc.free(filled(30_000_000))  # glibc keeps blocks of this size in its heaps from now on
blocks = [(filled(500_000), filled(1_000))[0] for _ in range(100)]
for block in blocks:
    libc.free(block)
print(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_blocks_go_back_to_the_system() -> None:
    held = []
    for call in ("()", ""):
        code = HOLES.format(first=f"from recalld.up.lifecycle import keep_heaps_small; keep_heaps_small{call}")
        held.append(int(subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY)))
    assert held[1] - held[0] > 40_000_000

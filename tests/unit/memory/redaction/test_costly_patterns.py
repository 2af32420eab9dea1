"""A pattern that never ends costs its own text, and nobody else anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import memory
from memory.redaction import PatternsUnanswered, PatternTooCostly, Redactor, pattern_processes
from memory.redaction.pattern_processes import PatternProcesses
from memory.redaction.user_patterns import PatternBudget, PatternFinder
from tests import daemon
from tests.waiting import wait_until

ENDLESS = "(a+)+$"
STUCK = "a" * 60 + "! the word is bluebird"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def processes(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[PatternProcesses]:
    """Processes that end before the threads that wait for them."""
    own = PatternProcesses(most=2)
    monkeypatch.setattr("memory.redaction.user_patterns.PROCESSES", own)
    yield own
    own.close()


def redactor(*patterns: str, seconds: float = 0.2, patience: float = 60.0) -> Redactor:
    return Redactor.of(patterns, PatternBudget(seconds, 1.0, patience))


def children(of: int | None = None) -> set[int]:
    """The processes that look for patterns on behalf of a process, by default this one."""
    found = daemon.children(of or os.getpid())
    return {pid for pid in found if any("pattern_program" in word for word in daemon.arguments_of(pid))}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (ENDLESS, STUCK),
        ("(a|aa)+$", STUCK),
        (r"(\w+\s?)*:", "word " * 20_000),
        (r"\s+$", " " * 400_000 + "x"),
        (".*.*.*x", "a" * 100_000),
    ],
)
def test_a_pattern_that_never_ends_is_named_by_its_place_and_the_next_text_is_redacted(
    processes: PatternProcesses, pattern: str, text: str
) -> None:
    with pytest.raises(PatternTooCostly, match=r"^pattern 2 of redaction\.patterns .* s of processor time") as failure:
        redactor(r"FP-\d+", pattern, "c")(text)
    assert failure.value.place == 2
    assert "bluebird" not in str(failure.value)
    assert pattern not in str(failure.value), "a pattern may be a secret itself"
    assert redactor(r"FP-\d+", pattern)("FP-12.").startswith("[redacted:pattern]")


def test_other_threads_go_on_and_other_texts_are_redacted_meanwhile(
    threads: ThreadPoolExecutor, processes: PatternProcesses
) -> None:
    stuck = threads.submit(redactor(ENDLESS, seconds=600.0, patience=600.0), STUCK)
    wait_until(lambda: bool(children()))
    [busy] = children()
    for _ in range(20):
        assert redactor(ENDLESS)("xaa") == "x[redacted:pattern]"
    assert not stuck.done()
    # Ended from outside, it is begun again once: only then is the text to blame.
    os.kill(busy, signal.SIGKILL)
    wait_until(lambda: children() - {busy})
    assert not stuck.done()

    def kill_the_busy() -> bool:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        return stuck.done()

    wait_until(kill_the_busy)
    with pytest.raises(PatternTooCostly, match="ended with code -9"):
        stuck.result()


def test_who_waits_too_long_is_told_to_try_again_and_nothing_goes_on_running(processes: PatternProcesses) -> None:
    with pytest.raises(PatternsUnanswered, match="did not end in time"):
        redactor(ENDLESS, seconds=600.0, patience=0.3)(STUCK)
    assert children() == set()
    begun, go_on = threading.Semaphore(0), threading.Event()

    class Busy(PatternProcesses):
        def _ask(self, *_: object) -> object:  # type: ignore[override]
            begun.release()
            go_on.wait(60)
            return [[]], 0.0

    busy = Busy(most=1)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(busy.find, b"[]", b"", count=0, seconds=1.0, patience=60.0)
        assert begun.acquire(timeout=60)
        with pytest.raises(PatternsUnanswered, match="other texts"):
            busy.find(b"[]", b"", count=0, seconds=1.0, patience=0.1)
        go_on.set()
        assert first.result() == ([[]], 0.0)


def test_memory_is_bounded_too(processes: PatternProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory.redaction.pattern_processes.MEMORY_BYTES", 64 * 1024 * 1024)
    with pytest.raises(PatternTooCostly, match=r"pattern 1 .* GB of memory"):
        redactor(r"(?:(a)|(b))*c", seconds=600.0)("ab" * 2_000_000)
    assert redactor("b+")("abb") == "a[redacted:pattern]"


def test_all_texts_of_a_document_share_a_budget_that_grows_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []

    class Slow(PatternProcesses):
        def find(self, patterns: bytes, text: bytes, **how: float) -> tuple[list[object], float]:  # type: ignore[override]
            allowed.append(round(how["seconds"], 3))
            return [], 2.0

    monkeypatch.setattr("memory.redaction.user_patterns.PROCESSES", Slow())
    find = PatternFinder(["a"], PatternBudget(5.0, 10.0, 60.0))
    for size in (0, 100_000, 0, 0):
        find("b" * size, b"b" * size)
    assert allowed == [5.0, 4.0, 2.0, 0.001]


def test_a_process_outlives_signals_that_are_meant_for_its_parent_and_no_killed_one_is_missed(
    processes: PatternProcesses,
) -> None:
    redact = redactor("b+", seconds=600.0)
    assert redact("abb") == "a[redacted:pattern]"
    [pid] = children()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert redact("abb") == "a[redacted:pattern]"
    assert children() == {pid}
    os.kill(pid, signal.SIGKILL)
    assert redact("abb") == "a[redacted:pattern]"
    assert pid not in children()
    processes.close()
    assert children() == set()


def test_a_text_is_not_to_blame_when_all_idle_processes_were_killed(
    threads: ThreadPoolExecutor, processes: PatternProcesses
) -> None:
    redact = redactor("b+", seconds=600.0)

    def both_are_idle() -> bool:
        assert len(list(threads.map(redact, ["ab" * 50_000] * 2))) == 2
        return len(children()) == 2

    wait_until(both_are_idle)
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    assert redact("abb") == "a[redacted:pattern]"


def test_what_python_understands_by_a_pattern_is_what_is_masked(processes: PatternProcesses) -> None:
    """Each of these means something else to other engines, or nothing."""
    for pattern, text, left in (
        ("x{e}", "x{e} x", "[redacted:pattern] x"),
        ("[[:alpha:]]", "a :] b", "a [redacted:pattern] b"),
        ("(?i)\u0131", "I x \u0131", "[redacted:pattern] x [redacted:pattern]"),
        (r"\s(?=x)x", "\x1cx x", "[redacted:pattern] [redacted:pattern]"),
        (r"(?<=room )\d++(?!\d)", "room 12", "room [redacted:pattern]"),
        (r"(?:(\w)\1)++", "aabbc", "[redacted:pattern]a[redacted:pattern]bc"),
    ):
        assert redactor(pattern)(text) == left, pattern


ASKING_FOR_EVER = f"""
from memory.redaction import Redactor
from memory.redaction.user_patterns import PatternBudget
Redactor.of([{ENDLESS!r}], PatternBudget(3600.0, 0.0, 3600.0))({STUCK!r})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends with its budget")
def test_a_process_ends_with_its_parent_whatever_it_is_at() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ASKING_FOR_EVER], cwd=Path(memory.__file__).parents[1])
    try:
        wait_until(lambda: bool(children(of=parent.pid)))
        [pid] = children(of=parent.pid)
        wait_until(lambda: cpu_seconds(pid) > 0.2)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: cpu_seconds(pid) < 0)


def test_closing_ends_what_is_busy_and_who_waits_for_it_gets_no_answer(
    threads: ThreadPoolExecutor, processes: PatternProcesses
) -> None:
    stuck = threads.submit(redactor(ENDLESS, seconds=600.0, patience=600.0), STUCK)
    wait_until(lambda: bool(children()))
    processes.close()
    with pytest.raises(PatternsUnanswered, match="is ending"):
        stuck.result()
    assert children() == set()


def test_a_process_that_is_begun_while_all_are_closed_ends_too(
    processes: PatternProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(pattern_processes._PatternProcess):
        def __init__(self) -> None:
            super().__init__()
            processes.close()

    monkeypatch.setattr(pattern_processes, "_PatternProcess", Late)
    with pytest.raises(PatternsUnanswered, match="is ending"):
        redactor(ENDLESS, seconds=5.0, patience=20.0)(STUCK)
    assert children() == set()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, below 0 for one that is gone (or gone but for its name)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1.0
    return -1.0 if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

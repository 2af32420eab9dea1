"""What systemd hears, on a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from recalld.up.lifecycle import notify, watchdog
from tests.waiting import wait_until


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def heard(systemd: socket.socket) -> list[str]:
    """What was said since this was asked last."""
    words = []
    while True:
        try:
            words.append(systemd.recv(4096).decode())
        except BlockingIOError:
            return words


def test_a_name_in_the_abstract_namespace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"recalld-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        notify("READY=1")
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "nonsense", "/nobody/listens/here"])
def test_whoever_has_nobody_to_tell_goes_on(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    if address is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def test_signs_come_as_long_as_all_gets_on(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    looks: list[int] = []
    problems: list[str] = []

    def look() -> list[str]:
        looks.append(1)
        return problems

    with watchdog(look):
        wait_until(lambda: len(looks) > 3)
        assert set(heard(systemd)) == {"WATCHDOG=1"}
        problems.append("its sweeper thread has ended")
        looks.clear()
        wait_until(lambda: len(looks) > 1)
        heard(systemd)
        looks.clear()
        wait_until(lambda: len(looks) > 3)
        assert heard(systemd) == []
        problems.clear()
        wait_until(lambda: "WATCHDOG=1" in heard(systemd))


@pytest.mark.parametrize("asked", [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_nobody_looks_when_this_process_is_not_asked(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)

    def never() -> list[str]:
        raise AssertionError("looked")

    with watchdog(never):
        pass

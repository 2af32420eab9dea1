"""What commands say in a terminal is for people: no line for whoever looks for a defect."""

from __future__ import annotations

import logging

import pytest

from recalld.runs import dead_letters, jobs
from recalld.up import daemon
from tests.commanding import CommandLine


@pytest.mark.parametrize("command", ["up", "jobs", "dead list"])
def test_what_a_command_uses_shows_warnings_at_most(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    levels: list[int] = []
    during: list[list[int]] = []

    def configure(*, level: int = logging.INFO, process: str | None = None) -> None:
        levels.append(level)

    def works(*_: object) -> None:
        during.append(list(levels))
        raise KeyboardInterrupt

    monkeypatch.setattr("recalld.logs.configure_logs", configure)
    monkeypatch.setattr(daemon, "configure_logs", configure)
    monkeypatch.setattr(daemon, "_run", works)
    monkeypatch.setattr(daemon.BrokerServer, "ensure", lambda _: None)
    monkeypatch.setattr(jobs, "jobs_answer", works)
    monkeypatch.setattr(dead_letters, "failed_documents", works)
    commands.run(*command.split())
    [[level]] = during
    assert level >= logging.WARNING

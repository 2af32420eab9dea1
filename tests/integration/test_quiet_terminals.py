"""Commands in a terminal print what is for people: no line for the developer who looks for a defect."""

from __future__ import annotations

import logging

import pytest

from recalld.up import daemon
from tests.commanding import CommandLine


@pytest.mark.parametrize("command", ["up", "jobs", "dead list"])
def test_what_a_command_uses_shows_warnings_at_most(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    levels: list[int] = []

    def configure(*, level: int = logging.INFO, process: str | None = None) -> None:
        levels.append(level)

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recalld.logs.configure_logs", configure)
    monkeypatch.setattr(daemon, "configure_logs", configure)
    monkeypatch.setattr(daemon, "running_broker", ended)
    commands.run(*command.split())
    assert levels[0] >= logging.WARNING

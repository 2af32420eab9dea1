"""The command line in this process, its vectors from a server that counts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from recalld.cli import run
from tests.batch_server import BatchServer
from tests.embedding_server import EmbeddingServer


class CommandLine:
    """One home, its agent's workspace, and its server. Commands run as they would in a shell, many times faster."""

    def __init__(
        self,
        home: Path,
        workspace: Path,
        server: EmbeddingServer | BatchServer,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.home, self.workspace, self.server = home, workspace, server
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command."""
        self._capsys.readouterr()
        code = run(["--home", str(self.home), *arguments])
        return code, *self._capsys.readouterr()

    def say(self, *arguments: str) -> str:
        """Return the output of a command that must succeed."""
        code, out, err = self.run(*arguments)
        assert code == 0, out + err
        return out

    def json(self, *arguments: str) -> dict[str, Any]:
        """Return the JSON output of a command that must succeed."""
        return dict(json.loads(self.say(*arguments, "--json")))

    def agent(self, *arguments: str) -> dict[str, Any]:
        """The first agent of a command's JSON; it must succeed."""
        return dict(self.json(*arguments)["agents"][0])

    def configure(self, lines: str) -> None:
        """Add lines to the settings file, which ends in its agent's table."""
        with (self.home.parent / "recalld.toml").open("a", encoding="utf-8") as file:
            file.write(f"{lines}\n")

    def set(self, name: str, value: str) -> None:
        """Set an environment variable."""
        self._monkeypatch.setenv(name, value)


def command_line(
    home: Path,
    workspace: Path,
    server: EmbeddingServer | BatchServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandLine]:
    """A command line whose settings name the workspace and the server; for a fixture to yield from."""
    for name in list(os.environ):
        if name.startswith("RECALLD_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    config = home.parent / "recalld.toml"
    config.write_text(
        f'provider = "openai"\nremote.base_url = "{server.url}"\nremote.api_key = "a-secret-key"\n'
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
    )
    monkeypatch.setenv("RECALLD_CONFIG", str(config))
    # Loggers that the command sets up are kept by modules, and would write to what this test captured for ever.
    monkeypatch.setattr("recalld.logs.configure_logs", lambda **_options: None)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield CommandLine(home, workspace, server, capsys, monkeypatch)
    structlog.reset_defaults()

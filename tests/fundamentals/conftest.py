"""One recalld on one machine, as a user starts it: two agents, and a provider that counts what it is paid for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recalld.client import Client
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until

CONFIG = """
remote.base_url = "{provider}"
remote.api_key = "the-provider-key"
[[agents]]
id = "main"
workspace = "{folder}/main"
sessions = ["{folder}/sessions"]
[[agents]]
id = "research"
workspace = "{folder}/research"
"""


class Memory(Daemon):
    """`recalld up`, and short ways through its doors. `provider` embeds, counts, and fails on request."""

    def __init__(self, folder: Path, provider: EmbeddingServer) -> None:
        self.root, self.provider = folder, provider
        for agent in ("main", "research"):
            (folder / agent / "memory").mkdir(parents=True)
        self.sessions = folder / "sessions"
        self.sessions.mkdir()
        super().__init__(
            folder / "home",
            folder / "main",
            provider="openai",
            config=CONFIG.format(provider=provider.url, folder=folder),
            # A transcript that stops growing is no reason to read it here: only its size and hooks are.
            environment={"RECALLD_SYNC__SESSIONS__QUIET_SECONDS": "600"},
        )

    def up_options(self) -> list[str]:
        return []

    # Files, as agents write them

    def save(self, path: str, text: str, *, agent: str = "main") -> Path:
        """Write a note of an agent's workspace."""
        file = self.root / agent / path
        file.write_text(text, encoding="utf-8")
        return file

    # Doors

    def client(self, agent: str = "main", session: str | None = None) -> Client:
        """Return the Python client, with the agent's token."""
        client = Client.at_home(self.home, agent=agent, session_key=session)
        assert client is not None
        return client

    def ask(self, query: str, *, agent: str = "main", session: str | None = None) -> dict[str, Any]:
        """Return the answer to a search."""
        with self.client(agent, session) as client:
            return dict(client.search(query))

    def paths(self, query: str, *, agent: str = "main", session: str | None = None) -> list[str]:
        """Return the paths of a search's results, the best first."""
        return [result["path"] for result in self.ask(query, agent=agent, session=session)["results"]]

    def finds(self, query: str, path: str, *, agent: str = "main") -> bool:
        """Return True if that document is the best result."""
        return self.paths(query, agent=agent)[:1] == [path]

    def shell(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of the shell for the agent main; it must end with that exit code."""
        done = self.run("--agent", "main", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Return what a command of the shell prints as JSON."""
        return dict(json.loads(self.shell(*arguments, "--json", code=code).stdout))

    def figures(self) -> dict[str, Any]:
        """Return the status of the agent main."""
        with self.client() as client:
            return next(dict(agent) for agent in client.status()["agents"] if agent["agent"] == "main")

    def token(self, agent: str) -> str:
        """Return an agent's token, as `up` made it."""
        return (self.home / "run" / "tokens" / agent).read_text().strip()

    # Waiting

    def until_found(self, query: str, path: str, *, agent: str = "main") -> None:
        """Wait until a search's best result is that document."""
        wait_until(lambda: self.finds(query, path, agent=agent), what=f"{query} finds {path}")

    def until_settled(self) -> None:
        """Wait until every document is indexed and every chunk has its vector."""
        wait_until(self.settled)

    def settled(self) -> bool:
        """Return True if nothing of the agent main waits."""
        figures = self.figures()
        return figures["queue"]["pending"] == 0 and figures["index"]["vectorsPending"] == 0


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """A running recalld that all chapters share."""
    with EmbeddingServer() as provider, Memory(tmp_path_factory.mktemp("story"), provider) as running:
        yield running

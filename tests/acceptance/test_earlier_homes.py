"""A home that version 0.1.0 left goes on here: found at once, nothing paid again, what was under way is finished.

`tests/fixtures/make_home.py` says what it holds.
"""

from __future__ import annotations

import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.batch_server import Answer, BatchServer, Job, JobScript
from tests.daemon import Daemon
from tests.embedding_server import Failure, Request
from tests.waiting import wait_until

ARCHIVE = Path(__file__).resolve().parents[1] / "fixtures" / "home-0.1.0.tar.xz"

#: The settings of that home. The address leads nowhere: the provider is reached through the environment's proxy.
CONFIG = """
remote.base_url = "http://embeddings.test/v1"
remote.api_key = "a-key"
remote.batch.enabled = true
remote.batch.poll_interval_ms = 100
remote.batch.timeout_minutes = 1e9
[[agents]]
id = "main"
workspace = "{folder}/workspace"
sessions = ["{folder}/sessions"]
"""


class Provider(BatchServer):
    """Has the job that it was given, refuses what it refused, and counts apart what is paid for documents."""

    refused = "did not take this"

    def take(self, kept: dict[str, Any]) -> None:
        """Go on where the provider of the home stood."""
        self.jobs = {job["id"]: Job(**{**job, "script": JobScript()}) for job in kept["jobs"]}
        self.files = {name: content.encode() for name, content in kept["files"].items()}
        self._numbers = itertools.count(len(self.files))

    def _answer(self, request: Request, failure: Failure) -> Answer:
        if self.refused and request.route.endswith("/embeddings") and self.refused in str(request.body):
            return 400, {"error": {"message": "this text is not welcome"}}, {}
        return super()._answer(request, failure)

    def paid_for_documents(self) -> int:
        """Return how many texts were embedded one request at a time that are lines of a document, and no query."""
        return sum(count for text, count in self.paid_inline.items() if "\n" in text)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def old(tmp_path: Path, provider: Provider) -> Daemon:
    """The home, unpacked, and a daemon that does not run yet."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for spooled in (tmp_path / "home" / "spool").iterdir():
        spooled.write_text(spooled.read_text().replace("FOLDER", str(tmp_path)))
    provider.take(json.loads((tmp_path / "provider.json").read_text()))
    return Daemon(
        tmp_path / "home",
        tmp_path / "workspace",
        provider="openai",
        config=CONFIG.format(folder=tmp_path),
        environment={"http_proxy": provider.root, "no_proxy": "127.0.0.1"},
    )


def test_words_are_found_and_nothing_is_to_be_paid_before_anything_runs(old: Daemon, provider: Provider) -> None:
    assert old.found("FP-131", "memory/2026-11-05.md")
    assert old.found("暖气阀门", "MEMORY.md")
    estimate = json.loads(old.run("index", "--dry-run", "--json").stdout)["agents"][0]
    # What was refused costs nothing, and the index that today's rules want asks for it again.
    assert estimate["toEmbed"] == 1
    assert {letter["path"] for letter in letters(old)} == {"memory/refused.md", "sessions/cut.jsonl"}
    assert not provider.calls


def test_everything_goes_on_where_it_was_left(old: Daemon, provider: Provider) -> None:
    provider.open.clear()
    query = "which bird stands in the reeds at the mill pond"
    with old:
        answer = ask(old, query)
        assert answer["mode"] == "hybrid"
        assert answer["results"][0]["path"] == "memory/2026-11-01.md"
        assert answer["results"][0]["vectorScore"] > 0
        wait_until(lambda: status(old)["queue"]["pending"] == 0)
        assert found(old, "kingfisher weir", "memory/new.md")
        assert found(old, "appointment Wednesday", "memory/changed.md")
        assert found(old, "lighthouse keeper", "memory/spooled.md")
        assert not found(old, "marathon coach", "memory/deleted.md")
        assert not provider.paid_for_documents()

        provider.open.set()
        wait_until(lambda: status(old)["index"]["vectorsPending"] == 0)
        assert len(provider.jobs) == 1
        assert not provider.paid_for_documents()
        assert sum((provider.paid - provider.paid_inline).values()) == 210

        # The provider takes it now, and the damaged file is gone.
        provider.refused = ""
        (old.workspace.parent / "sessions" / "cut.jsonl.zst").unlink()
        old.run("dead", "retry", "--all")
        wait_until(lambda: not letters(old))
        assert provider.paid_for_documents() == 1
        figures = status(old)["index"]
        assert figures["vectorsReady"] == figures["chunks"]


def ask(daemon: Daemon, query: str) -> dict[str, Any]:
    return dict(httpx.post(f"http://127.0.0.1:{daemon.port()}/v1/search", json={"query": query}).json())


def found(daemon: Daemon, query: str, path: str) -> bool:
    return any(result["path"] == path for result in ask(daemon, query)["results"])


def status(daemon: Daemon) -> dict[str, Any]:
    answer = httpx.get(f"http://127.0.0.1:{daemon.port()}/v1/status", timeout=60).json()
    return dict(answer["agents"][0])


def letters(daemon: Daemon) -> list[dict[str, Any]]:
    return list(json.loads(daemon.run("dead", "list", "--json").stdout)["deadLetters"])

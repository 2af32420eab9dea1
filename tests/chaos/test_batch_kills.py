"""kill -9 around batch jobs at a provider: the next run goes on with them, and nothing is paid for twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.batch_server import BatchServer, Job
from tests.daemon import recalld, started

NOTES = 230


def _environment(server: BatchServer) -> dict[str, str]:
    return {
        "RECALLD_PROVIDER": "openai",
        "RECALLD_REMOTE__BASE_URL": server.url,
        "RECALLD_REMOTE__API_KEY": "a-key",
        "RECALLD_REMOTE__BATCH__ENABLED": "true",
        "RECALLD_REMOTE__BATCH__POLL_INTERVAL_MS": "100",
    }


@pytest.mark.long
@pytest.mark.parametrize("moment", ["while the file is sent", "as the job is made", "while it runs", "as results come"])
def test_a_killed_run_is_gone_on_with(home: Path, workspace: Path, server: BatchServer, moment: str) -> None:
    texts = Counter(f"The heron number {number} stands in the reeds." for number in range(NOTES))
    for number, text in enumerate(texts):
        (workspace / "memory" / f"{number}.md").write_text(text, "utf-8")
    environment = _environment(server)
    reached = threading.Event()
    server.open.clear()
    _watch(server, moment, reached)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = started("index", "--workspace", str(workspace), home=home, environment=environment, **silent)
    assert reached.wait(60)
    os.kill(run.pid, signal.SIGKILL)
    run.wait(60)
    server.open.set()
    server.on_call = None
    again = recalld("index", home=home, environment=environment)
    assert again.returncode == 0, again.stderr
    assert f"{NOTES} with vectors" in again.stdout
    assert server.paid == texts
    assert not server.paid_inline
    assert len(server.jobs) == 1


def _watch(server: BatchServer, moment: str, reached: threading.Event) -> None:
    """Set `reached` when a run is at a moment, before the server's answer leaves."""

    def called(method: str, path: str) -> None:
        if (method, path) == ("POST", "/files") and moment == "while the file is sent":
            reached.set()
        if any(job.looks > 1 for job in server.jobs.values()) and moment == "while it runs":
            reached.set()
        if method == "GET" and path.endswith("/content"):
            reached.set()

    def created(_job: Job) -> None:
        if moment == "as the job is made":
            reached.set()
        if moment == "as results come":
            server.open.set()

    server.on_call, server.on_created = called, created

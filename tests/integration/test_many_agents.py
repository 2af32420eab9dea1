"""A service with more agents than it may have open files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from schemas.settings import Settings
from tests.serving import search
from tests.waiting import wait_until
from tests.written_index import write_index

AGENTS = 200
OPEN_FILES = 128
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Many agents with a copy of one index each."""
    folder, workspace = tmp_path / "home", tmp_path / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (workspace / "memory" / "note.md").write_text("The gateway is called Basalt.\n", "utf-8")
    first = {"id": "agent-0", "workspace": workspace, "provider": "stub"}
    settings = Settings.model_validate({"home": folder, "agents": [first]})
    write_index(settings, "agent-0").close()
    for number in range(1, AGENTS):
        shutil.copytree(settings.indexes_path / "agent-0", settings.indexes_path / f"agent-{number}")
    lines = ['provider = "stub"', "auth.trust_loopback = true", "service.port = 0"]
    lines += [f'[[agents]]\nid = "agent-{number}"\nworkspace = "{workspace}"' for number in range(AGENTS)]
    folder.joinpath("recalld.toml").write_text("\n".join(lines), "utf-8")
    return folder


@pytest.fixture
def service(home: Path) -> Iterator[tuple[httpx.Client, int]]:
    """A client of the service that may have 128 files open, and the service's process id."""
    command = [sys.executable, "-m", "recalld", "--config", str(home / "recalld.toml"), "--home", str(home), "serve"]
    process = subprocess.Popen(["sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh", *command], cwd=REPOSITORY)
    try:
        where = home / "run" / "service.json"
        wait_until(lambda: where.is_file() or process.poll() is not None)
        with httpx.Client(base_url=f"http://127.0.0.1:{json.loads(where.read_text())['port']}", timeout=60) as client:
            yield client, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - their number is all that is wanted


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors where Linux lists them")
def test_each_of_many_agents_is_searched_under_a_limit_of_open_files(service: tuple[httpx.Client, int]):
    client, pid = service
    wait_until(lambda: search(client, "warm up", agent="agent-0")["mode"] == "hybrid")
    assert client.get("/readyz").status_code == 200
    figures = wait_until(
        lambda: text if (text := client.get("/metrics").text).count("recalld_chunks{") == AGENTS else ""
    )
    # The warm-up leaves the indexes of some agents open, a look at all of them leaves none.
    assert "recalld_open_indexes 8.0" in figures
    assert descriptors(pid) < OPEN_FILES - 20

    def searched(number: int) -> tuple[str, int]:
        answer = search(client, f"gateway {number}", agent=f"agent-{number}", minScore=0)
        assert "Basalt" in answer["results"][0]["snippet"]
        return answer["mode"], descriptors(pid)

    with ThreadPoolExecutor(6) as threads:
        for _ in range(2):
            answers = list(threads.map(searched, range(AGENTS)))
            assert {mode for mode, _ in answers} == {"hybrid"}
            assert max(most for _, most in answers) < OPEN_FILES - 20
    status = client.get("/v1/status").json()
    assert len(status["agents"]) == AGENTS
    assert all(agent["index"]["files"] == 1 for agent in status["agents"])
    assert {trouble["code"] for agent in status["agents"] for trouble in agent["troubles"]} == {"queue_unreachable"}
    assert "recalld_open_indexes 8.0" in client.get("/metrics").text

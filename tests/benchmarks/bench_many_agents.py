"""What a service with thousands of agents needs: open files, memory, and the time of a first search of each.

    python -m tests.benchmarks.bench_many_agents [--agents 3000] [--notes 20] [--open-files 1024]

Every agent gets a copy of one small index. `recalld serve` runs under a limit of open files, is asked everything that
looks at all agents, and searches each of them; descriptors are counted after every search.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.settings import Settings
from tests.benchmarks.bench_search import REPOSITORY, listening, percentile
from tests.waiting import wait_until
from tests.written_index import write_index

NOTE = "# Note {number}\n\nThe gateway of cluster {number} listens on port {port} and is called Basalt.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=3_000)
    parser.add_argument("--notes", type=int, default=20)
    parser.add_argument("--open-files", type=int, default=1_024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        measure(Path(folder), agents=arguments.agents, notes=arguments.notes, open_files=arguments.open_files)


def measure(folder: Path, *, agents: int, notes: int, open_files: int) -> None:
    ids = [f"agent-{number:04d}" for number in range(agents)]
    config = fill(folder, ids, notes=notes)
    command = [sys.executable, "-m", "recalld", "--config", str(config), "--home", str(folder / "home"), "serve"]
    service = subprocess.Popen(
        ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    try:
        begun = time.perf_counter()
        port = wait_until(lambda: listening(folder / "home"), timeout=120)
        print(f"{agents:,} agents: listens after {time.perf_counter() - begun:.1f} s, {state(service.pid)}")
        ask_all(service.pid, port, ids)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=60)


def fill(folder: Path, ids: list[str], *, notes: int) -> Path:
    """The index of the first agent, copied for all; returns the configuration."""
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    for number in range(notes):
        text = NOTE.format(number=number, port=7_000 + number)
        (workspace / "memory" / f"{number:03d}.md").write_text(text, encoding="utf-8")
    agent = {"id": ids[0], "workspace": workspace, "provider": "stub"}
    settings = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    write_index(settings, ids[0]).close()
    for other in ids[1:]:
        shutil.copytree(settings.indexes_path / ids[0], settings.indexes_path / other)
    config = folder / "recalld.toml"
    lines = ['provider = "stub"', "auth.trust_loopback = true", "service.port = 0"]
    lines += [f'[[agents]]\nid = "{id_}"\nworkspace = "{workspace}"' for id_ in ids]
    config.write_text("\n".join(lines), encoding="utf-8")
    return config


def ask_all(pid: int, port: int, ids: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def asked(method: str, path: str, body: object = None) -> Any:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def shown(what: str, call: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        call()
        print(f"  {what}: {(time.perf_counter() - begun) * 1000:,.1f} ms, {state(pid)}")

    for turn in ("first", "second", "tenth"):
        shown(f"/readyz, {turn} time", lambda: asked("GET", "/readyz"))
        shown(f"/metrics, {turn} time", lambda: asked("GET", "/metrics"))
        if turn == "second":
            for _ in range(7):
                asked("GET", "/readyz")
                asked("GET", "/metrics")
    for turn in ("first", "second"):
        times, most = [], 0
        for id_ in ids:
            begun = time.perf_counter()
            body = {"query": f"gateway of cluster 7, {turn} time", "agent": id_, "minScore": 0}
            found = json.loads(asked("POST", "/v1/search", body))
            times.append((time.perf_counter() - begun) * 1000)
            assert found["results"], found
            most = max(most, descriptors(pid))
        print(
            f"  {turn} search of each: p50 {percentile(times, 50):.1f} ms, p99 {percentile(times, 99):.1f} ms, "
            f"longest {max(times):.1f} ms; at most {most} descriptors, {state(pid)}"
        )
    for _ in range(2):
        shown("/v1/status of one", lambda: asked("GET", f"/v1/status?agent={ids[-1]}"))
    shown("/v1/status of all", lambda: asked("GET", "/v1/status"))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def state(pid: int) -> str:
    """Memory (of the process's own, and of files that it maps) and descriptors."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    sizes = {
        name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines) if "Rss" in name
    }
    own, mapped = sizes["RssAnon"], sizes["RssFile"]
    return f"{own:.0f} MB of its own and {mapped:.0f} MB of mapped files, {descriptors(pid)} descriptors"


if __name__ == "__main__":
    main()

"""Many agents on one machine: first indexing, and a service for thousands of them.

    python -m tests.benchmarks.bench_many_agents indexing [--agents 10 100 300 1000] [--notes 20]
    python -m tests.benchmarks.bench_many_agents service [--agents 3000] [--notes 20] [--open-files 1024]

`indexing`: `recalld up` indexes a workspace an agent for the first time (stub provider). Prints when the first and the
last line of progress came, the CPU time of every process, what one status and one `/readyz` cost the service, and how
long SIGTERM takes.
`service`: every agent gets a copy of one small index. `recalld serve` runs under a limit of open files, is asked
everything that looks at all agents, and searches each of them; descriptors are counted after every search.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from recalld.settings.load import load
from tests.benchmarks.frame import Home, Service, cpu_seconds, family, options, percentile, role, stop
from tests.waiting import wait_until
from tests.written_index import write_index

NOTE = "# Note {number}\n\nThe gateway of cluster {number} listens on port {port} and is called Basalt.\n"

#: Seconds that the first indexing of all agents may take.
INDEXING_SECONDS = 1_800.0


def main() -> None:
    measures: dict[str, tuple[Callable[[Path, int, argparse.Namespace], None], list[int]]] = {
        "indexing": (measure_indexing, [10, 100, 300, 1_000]),
        "service": (measure_service, [3_000]),
    }
    parser = options(__doc__)
    parser.add_argument("measure", choices=measures)
    parser.add_argument("--agents", type=int, nargs="+", default=None)
    parser.add_argument("--notes", type=int, default=20)
    parser.add_argument("--open-files", type=int, default=1_024)
    arguments = parser.parse_args()
    measure, sizes = measures[arguments.measure]
    for agents in arguments.agents or sizes:
        with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
            measure(Path(folder), agents, arguments)


def measure_indexing(folder: Path, agents: int, arguments: argparse.Namespace) -> None:
    home = home_of(folder, agents, arguments.notes)
    begun = time.monotonic()
    with home.running("up", "--port", "0") as up:
        first, *_ = wait_until(lambda: progress(home), timeout=INDEXING_SECONDS)
        print(f"{agents:,} agents: first line of progress after {time.monotonic() - begun:.1f} s: {first}")
        wait_until(lambda: is_up_to_date(home), timeout=INDEXING_SECONDS)
        print(f"  all there after {time.monotonic() - begun:.1f} s: {progress(home)[-1]}")
        print("  CPU: " + ", ".join(f"{role(pid)} {cpu_seconds(pid):.1f} s" for pid in family(up.pid)))
        serve = next(pid for pid in family(up.pid) if role(pid) == "serve")
        statuses = [f"/v1/status?agent=agent-{number % agents:04d}" for number in range(100)]
        print(f"  one status of one agent: {cost_ms(serve, home.service(), statuses):.1f} ms of CPU")
        print(f"  one /readyz: {cost_ms(serve, home.service(), ['/readyz'] * 100):.1f} ms of CPU")
        print(f"  SIGTERM: {stop(up):.1f} s")


def measure_service(folder: Path, agents: int, arguments: argparse.Namespace) -> None:
    home = home_of(folder, agents, notes=0)
    first, *others = [f"agent-{number:04d}" for number in range(agents)]
    write_notes(folder / first / "memory", arguments.notes)
    settings = load(config=str(home.config), home=str(home.path)).settings
    write_index(settings, first).close()
    for agent in others:
        shutil.copytree(settings.indexes_path / first, settings.indexes_path / agent)
    begun = time.perf_counter()
    with home.running("serve", open_files=arguments.open_files) as process:
        service = home.service()
        print(f"{agents:,} agents: listens after {time.perf_counter() - begun:.1f} s, {state(process.pid)}")
        for _ in range(3):
            for path in ("/readyz", "/metrics"):
                print(f"  {path}: {timed(service, path):,.1f} ms, {state(process.pid)}")
        for turn in ("first", "second"):
            times, most = [], 0
            for agent in [first, *others]:
                body = {"query": f"gateway of cluster 7, {turn} time", "agent": agent, "minScore": 0}
                times.append(timed(service, "/v1/search", body))
                most = max(most, descriptors(process.pid))
            print(
                f"  {turn} search of each: p50 {percentile(times, 50):.1f} ms, p99 {percentile(times, 99):.1f} ms, "
                f"longest {max(times):.1f} ms; at most {most} descriptors, {state(process.pid)}"
            )
        for path in (f"/v1/status?agent={first}", "/v1/status"):
            print(f"  {path}: {timed(service, path):,.1f} ms, {state(process.pid)}")


def home_of(folder: Path, agents: int, notes: int) -> Home:
    """Return a home whose agents have a workspace each."""
    lines = ['provider = "stub"', "auth.trust_loopback = true", "service.port = 0"]
    for number in range(agents):
        workspace = folder / f"agent-{number:04d}"
        (workspace / "memory").mkdir(parents=True)
        write_notes(workspace / "memory", notes)
        lines.append(f'[[agents]]\nid = "{workspace.name}"\nworkspace = "{workspace}"')
    return Home(folder, "\n".join(lines))


def write_notes(folder: Path, notes: int) -> None:
    for number in range(notes):
        text = NOTE.format(number=f"{number} of {folder.parent.name}", port=7_000 + number)
        (folder / f"{number:03d}.md").write_text(text, "utf-8")


def progress(home: Home) -> list[str]:
    """Return the lines of progress that `up` has printed."""
    lines = (home.folder / "printed").read_text("utf-8").splitlines()
    return [line for line in lines if line.startswith("up to date") or "searchable by keyword" in line]


def is_up_to_date(home: Home) -> bool:
    return any("up to date" in line for line in progress(home))


def cost_ms(serve: int, service: Service, paths: list[str]) -> float:
    """Return the CPU time of the service for one of these requests, without that of its own work meanwhile.

    A status is kept for a second, so there is a pause after each: one of ten agents is asked for once a second.
    """
    spent = []
    for ask in (lambda _path: b"", service.read):
        before = cpu_seconds(serve)
        for path in paths:
            ask(path)
            threading.Event().wait(0.11)
        spent.append(cpu_seconds(serve) - before)
    return 1000 * (spent[1] - spent[0]) / len(paths)


def timed(service: Service, path: str, body: object = None) -> float:
    """Return the milliseconds of one request; a search must find something."""
    begun = time.perf_counter()
    content = service.read(path, body)
    milliseconds = (time.perf_counter() - begun) * 1000
    assert body is None or b'"results":[]' not in content, content
    return milliseconds


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def state(pid: int) -> str:
    """Describe a process's memory (of its own, and of files that it maps) and descriptors."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    sizes = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
    private, mapped = (int(sizes[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return f"{private:.0f} MB of its own and {mapped:.0f} MB of mapped files, {descriptors(pid)} descriptors"


if __name__ == "__main__":
    main()

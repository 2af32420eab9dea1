"""First indexing of many agents on one machine.

    python -m tests.benchmarks.bench_many_agents [--agents 10 100 300 1000] [--notes 20]

`recalld up` indexes a workspace an agent for the first time (stub provider). Prints when the first and the last line of
progress came, the CPU time of every process, what one status and one `/readyz` cost the service, and how long SIGTERM
takes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from tests.benchmarks.frame import Home, Service, cpu_seconds, family, options, role, stop
from tests.waiting import wait_until

NOTE = "# Note {number}\n\nThe gateway of cluster {number} listens on port {port} and is called Basalt.\n"

#: Seconds that the first indexing of all agents may take.
INDEXING_SECONDS = 1_800.0


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[10, 100, 300, 1_000])
    parser.add_argument("--notes", type=int, default=20)
    arguments = parser.parse_args()
    for agents in arguments.agents:
        with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
            measure(home_of(Path(folder), agents, arguments.notes), agents)


def measure(home: Home, agents: int) -> None:
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


if __name__ == "__main__":
    main()

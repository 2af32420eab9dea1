"""Seconds from writing a note to finding it, and the costs of every process while nothing happens.

    python -m tests.benchmarks.bench_freshness [--provider stub|local] [--rounds 15] [--idle-seconds 30]

Starts `recalld up` on the sample workspace, then writes notes with a word of their own and asks over HTTP until each is
found. Then everything that `up` started is left alone and its CPU time and memory are read from /proc: RSS counts
shared pages once a process, PSS once altogether.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
from pathlib import Path

from tests.benchmarks.frame import Home, cpu_seconds, family, options, role
from tests.daemon import REPOSITORY
from tests.waiting import wait_until


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--provider", default="stub", choices=["stub", "local"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name:
        workspace = Path(name) / "workspace"
        shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", workspace)
        home = Home(
            Path(name), f'provider = "{arguments.provider}"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
        )
        with home.running("up", "--port", "0") as up:
            service = home.service()
            wait_until(service.settled, timeout=300)
            times = [
                service.seconds_until_found(workspace / "memory", f"zanzibarium{number}x")
                for number in range(arguments.rounds)
            ]
            print(
                f"written -> searchable ({arguments.provider}): median {1000 * statistics.median(times):.0f} ms, "
                f"longest {1000 * max(times):.0f} ms over {len(times)} notes"
            )
            threading.Event().wait(5)
            idle(family(up.pid) + broker_processes(home.path), arguments.idle_seconds)


def idle(processes: list[int], seconds: float) -> None:
    before = {pid: cpu_seconds(pid) for pid in processes}
    threading.Event().wait(seconds)
    rows = []
    for pid, spent in before.items():
        rss, pss = memory_mb(pid)
        rows.append((role(pid), rss, pss, 100 * (cpu_seconds(pid) - spent) / seconds))
    rows.append(("together", *(sum(figures) for figures in zip(*(row[1:] for row in rows), strict=True))))
    for name, rss, pss, cpu in rows:
        print(f"  idle: {name:12s} {rss:6.0f} MB RSS {pss:6.0f} MB PSS  {cpu:5.2f} % of a core over {seconds:.0f} s")


def broker_processes(home: Path) -> list[int]:
    """Return the private broker's processes, which no process of recalld is the parent of."""
    lines = {path.parent.name: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [int(pid) for pid, line in lines.items() if b"valkey" in line and str(home).encode() in line]


def memory_mb(pid: int) -> tuple[float, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) / 1024 for name, size in (line.split(":") for line in lines)}
    return sizes["Rss"], sizes["Pss"]


if __name__ == "__main__":
    main()

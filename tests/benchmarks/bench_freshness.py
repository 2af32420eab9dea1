"""Seconds from writing a note to finding it, and the costs of every process while nothing happens.

    python tests/benchmarks/bench_freshness.py [--provider stub|local] [--rounds 15] [--idle-seconds 30]

Starts `recalld up` on a small workspace, then writes notes with a word of their own and asks over HTTP until each is
found. The time contains the debounce (1.5 s by default); the floor printed beside it is the debounce alone. After
that, everything that `up` started is left alone and its CPU time and memory are read from /proc: RSS counts shared
pages once a process, PSS once altogether.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "deploy" / "sample-workspace"
DEBOUNCE_SECONDS = 1.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", default="stub", choices=["stub", "local"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        measure(Path(folder), arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    workspace = folder / "workspace"
    subprocess.run(["cp", "-r", str(SAMPLE), str(workspace)], check=True)
    config = folder / "recalld.toml"
    config.write_text(f'provider = "{arguments.provider}"\n', encoding="utf-8")
    home = folder / "home"
    up = subprocess.Popen(
        f"{sys.executable} -m recalld --config {config} --home {home} up --workspace {workspace} --port 0".split(),
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    try:
        port = wait_until(lambda: listening(home), timeout=60)
        wait_until(lambda: settled(port), timeout=300)
        times = [write_and_find(workspace, port, number) for number in range(arguments.rounds)]
        median = statistics.median(times)
        print(
            f"written -> searchable ({arguments.provider}): median {median * 1000:.0f} ms, "
            f"max {max(times) * 1000:.0f} ms over {len(times)} notes; "
            f"{1000 * (median - DEBOUNCE_SECONDS):.0f} ms more than the debounce alone"
        )
        settle = threading.Event()
        settle.wait(5)
        idle(home, up.pid, arguments.idle_seconds)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(timeout=60)


def write_and_find(workspace: Path, port: int, number: int) -> float:
    """Write one note and ask for its word until it is found; seconds from the end of the write."""
    word = f"zanzibarium{number}x"
    (workspace / "memory" / f"fresh-{number}.md").write_text(
        f"# Fresh note {number}\n\nThe {word} was decided today, because it was cheaper.\n", encoding="utf-8"
    )
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def found() -> bool:
        connection.request("POST", "/v1/search", json.dumps({"query": word}), {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())
        return any(word in result["snippet"] for result in answer["results"])

    wait_until(found, timeout=30, what=word)
    return time.monotonic() - begun


def idle(home: Path, up: int, seconds: float) -> None:
    processes = family(up) + [pid for pid in broker_processes(home) if pid not in family(up)]
    before = {pid: cpu_seconds(pid) for pid in processes}
    tick = threading.Event()
    tick.wait(seconds)
    total_rss = total_pss = total_cpu = 0.0
    for pid in processes:
        cpu = 100 * (cpu_seconds(pid) - before[pid]) / seconds
        rss, pss = memory_mb(pid)
        total_rss, total_pss, total_cpu = total_rss + rss, total_pss + pss, total_cpu + cpu
        print(f"  idle: {name(pid):12s} {rss:6.0f} MB RSS {pss:6.0f} MB PSS  {cpu:5.2f} % of a core")
    print(
        f"  idle together: {total_rss:.0f} MB RSS, {total_pss:.0f} MB PSS, "
        f"{total_cpu:.2f} % of a core over {seconds:.0f} s"
    )


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            found += family(int(child))
    return found


def broker_processes(home: Path) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and b"valkey" in read(entry / "cmdline")
        and str(home).encode() in read(entry / "cmdline")
    ]


def name(pid: int) -> str:
    words = read(Path(f"/proc/{pid}/cmdline")).split(b"\0")
    known = {b"up", b"watch", b"work", b"serve"}
    return next((word.decode() for word in words if word in known), "valkey" if b"valkey" in words[0] else "other")


def cpu_seconds(pid: int) -> float:
    fields = read(Path(f"/proc/{pid}/stat")).rsplit(b")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> tuple[float, float]:
    values = {}
    for line in read(Path(f"/proc/{pid}/smaps_rollup")).decode().splitlines()[1:]:
        key, value = line.split(":")
        values[key] = int(value.split()[0]) / 1024
    return values["Rss"], values["Pss"]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def settled(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/v1/status")
    state = json.load(connection.getresponse())["agents"][0]
    return bool(
        state["index"]["files"] and not state["index"].get("vectorsPending") and not state["queue"].get("pending")
    )


def listening(home: Path) -> int | None:
    try:
        return int(json.loads((home / "run" / "service.json").read_text("utf-8"))["port"])
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main()

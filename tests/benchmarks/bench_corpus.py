"""Costs of indexing a workspace, beside this machine's floor measured in the same run.

    python tests/benchmarks/bench_corpus.py WORKSPACE --embed-url http://127.0.0.1:8901/v1 [--provider openai]

The endpoint is any OpenAI-compatible server; if it answers GET /stats (as the test server does) its own CPU and its
counts of requests are printed, too. The workspace is copied first. Printed: a cold `recalld index`, the same
through `recalld up`, nothing changed, one changed note, requests, peak memory, disk; and the floor: the same chunks,
vectors and keywords inserted into the same three tables in one transaction by one process that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import sqlite_vec

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Run:
    """One finished command: seconds of wall and CPU (with its children), peak resident megabytes of one process."""

    wall: float
    cpu: float
    peak_mb: float
    output: str


def main() -> None:
    """Run everything and print the table."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        bench = Bench(arguments, Path(folder))
        bench.run()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--embed-url", default=None, help="base URL of an OpenAI-compatible endpoint")
    parser.add_argument("--provider", default="openai", choices=["openai", "local", "none", "stub"])
    parser.add_argument("--skip-up", action="store_true")
    parser.add_argument("--repeats", type=int, default=3, help="of the no-op and of the changed note")
    return parser.parse_args()


class Bench:
    """One workspace, one home a measurement."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.workspace = folder / "workspace"
        shutil.copytree(arguments.workspace, self.workspace)
        self.config = folder / "recalld.toml"
        lines = [f'provider = "{arguments.provider}"']
        if arguments.embed_url:
            lines += ["[remote]", f'base_url = "{arguments.embed_url}"', 'api_key = "benchmark"']
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run(self) -> None:
        files = sum(1 for _ in self.workspace.rglob("*.md"))
        size = sum(path.stat().st_size for path in self.workspace.rglob("*.md"))
        print(
            f"{self.arguments.workspace.name}: {files} notes, {size / 1e6:.1f} MB, provider {self.arguments.provider}"
        )
        home = self.folder / "home"
        before = self.stats()
        cold = self.recalld(home, "index", "--workspace", str(self.workspace), "--json")
        after = self.stats()
        report = json.loads(cold.output)["agents"][0]
        server_cpu = after.get("server_cpu_s", 0.0) - before.get("server_cpu_s", 0.0)
        requests = after.get("requests", 0) - before.get("requests", 0)
        inputs = after.get("inputs", 0) - before.get("inputs", 0)
        row("cold index", f"{cold.wall:.2f} s wall, {cold.cpu:.2f} s CPU, peak {cold.peak_mb:.0f} MB")
        row("  of it", f"{report['files']} notes, {report['chunks']} chunks, {report['vectorsReady']} vectors")
        row("  embedding", f"{requests} requests, {inputs} inputs; the server itself used {server_cpu:.2f} s CPU")
        row("disk", f"{disk_mb(home):.0f} MB ({', '.join(f'{name} {mb:.0f}' for name, mb in parts_mb(home))})")
        wall, cpu = self.floor(home)
        budget = 6 * wall + 2 * server_cpu
        row("floor (one transaction, same rows)", f"{wall:.2f} s wall, {cpu:.2f} s CPU")
        row("cold / (6 x floor + 2 x server)", f"{cold.wall:.2f} / {budget:.2f} = {cold.wall / budget:.2f}")
        self.small_changes(home)
        if not self.arguments.skip_up:
            self.through_up(cold)

    def small_changes(self, home: Path) -> None:
        empty = self.folder / "empty"
        (empty / "memory").mkdir(parents=True)
        frame = [
            self.recalld(self.folder / "home-empty", "index", "--workspace", str(empty), "--json")
            for _ in range(self.arguments.repeats + 1)
        ][1:]
        nothing = [self.recalld(home, "index", "--json") for _ in range(self.arguments.repeats)]
        row("nothing changed", f"{median(nothing, 'wall'):.2f} s wall, {median(nothing, 'cpu'):.2f} s CPU")
        row("  of it for an empty workspace", f"{median(frame, 'wall'):.2f} s wall, {median(frame, 'cpu'):.2f} s CPU")
        work = median(nothing, "cpu") - median(frame, "cpu")
        row("  work for the notes (CPU)", f"{work:.3f} s")
        note = sorted(self.workspace.rglob("*.md"))[len(list(self.workspace.rglob("*.md"))) // 2]
        changed = []
        before = self.stats()
        for number in range(self.arguments.repeats):
            note.write_text(note.read_text("utf-8") + f"\nOne more line, number {number}.\n", encoding="utf-8")
            changed.append(self.recalld(home, "index", "--json"))
        after = self.stats()
        row("one note changed", f"{median(changed, 'wall'):.2f} s wall, {median(changed, 'cpu'):.2f} s CPU")
        per_change = (after.get("inputs", 0) - before.get("inputs", 0)) / self.arguments.repeats
        row("  embedded for it", f"{per_change:.1f} inputs a change")

    def through_up(self, cold: Run) -> None:
        """Time from starting `up` on a fresh home until everything is indexed, by asking the service."""
        self.reset()
        home = self.folder / "home-up"
        begun = time.monotonic()
        process = subprocess.Popen(
            self.command(home, "up", "--workspace", str(self.workspace), "--port", "0"),
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        keyword_seconds: float | None = None
        tick = threading.Event()
        notes = sum(1 for _ in self.workspace.rglob("*.md"))
        try:
            while True:
                tick.wait(0.1)
                state = service_state(home)
                if state is None:
                    continue
                index = state["index"]
                if keyword_seconds is None and index["files"] >= notes:
                    keyword_seconds = time.monotonic() - begun
                if index["files"] >= notes and index["vectorsPending"] == 0 and index["vectorsReady"] > 0:
                    break
            seconds = time.monotonic() - begun
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        row(
            "through `up`",
            f"{seconds:.2f} s wall ({seconds / cold.wall:.2f} x index); keywords after {keyword_seconds:.2f} s",
        )

    def floor(self, home: Path) -> tuple[float, float]:
        """The same rows into the same tables, in one transaction with a 64 MB page cache; seconds of wall and CPU."""
        index = next((home / "indexes").glob("*/*.sqlite"))
        source = apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)
        load_extension(source)
        tables = dict(
            source.execute("SELECT name, sql FROM sqlite_master WHERE name IN ('chunks', 'chunks_vec', 'chunks_fts')")
        )
        from memory.chunking.segmenting import index_text

        columns = [name for _, name, *_ in source.execute("PRAGMA table_info(chunks)")]
        chunks = list(source.execute(f"SELECT {', '.join(columns)} FROM chunks"))
        identifiers, text = columns.index("id"), columns.index("text")
        vectors = list(source.execute("SELECT rowid, embedding FROM chunks_vec")) if "chunks_vec" in tables else []
        source.close()
        target = apsw.Connection(str(self.folder / "floor.sqlite"))
        load_extension(target)
        for pragma in ("page_size = 16384", "journal_mode = WAL", "synchronous = NORMAL", "cache_size = -65536"):
            target.execute(f"PRAGMA {pragma}")
        wall, cpu = time.monotonic(), time.process_time()
        target.execute("BEGIN IMMEDIATE")
        for name in ("chunks", "chunks_vec", "chunks_fts"):
            if name in tables:
                target.execute(tables[name])
        target.executemany(f"INSERT INTO chunks VALUES ({', '.join('?' * len(columns))})", chunks)
        target.executemany(
            "INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)",
            ((chunk[identifiers], index_text(chunk[text])) for chunk in chunks),
        )
        if vectors:
            target.executemany("INSERT INTO chunks_vec (rowid, embedding) VALUES (?, ?)", vectors)
        target.execute("COMMIT")
        result = time.monotonic() - wall, time.process_time() - cpu
        target.close()
        return result

    def recalld(self, home: Path, *arguments: str) -> Run:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.monotonic()
        process = subprocess.Popen(self.command(home, *arguments), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(arguments)} ended with {process.returncode}: {output}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Run(wall, cpu, usage.ru_maxrss / 1024, output)

    def command(self, home: Path, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "recalld", "--config", str(self.config), "--home", str(home), *arguments]

    def stats(self) -> dict[str, Any]:
        url = self.stats_url("stats")
        if url is None:
            return {}
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}

    def reset(self) -> None:
        """Let the server forget texts it has seen, so that a second cold run costs it as much as the first."""
        url = self.stats_url("clear_cache")
        if url is not None:
            try:
                urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=5).close()
            except OSError:
                print("  (the server cannot forget: its part of the run through `up` is cheaper)")

    def stats_url(self, path: str) -> str | None:
        return self.arguments.embed_url.removesuffix("/v1") + "/" + path if self.arguments.embed_url else None


def service_state(home: Path) -> dict[str, Any] | None:
    """Return the agent's part of GET /v1/status, None while no service answers."""
    try:
        service = json.loads((home / "run" / "service.json").read_text("utf-8"))
        with urllib.request.urlopen(f"http://127.0.0.1:{service['port']}/v1/status", timeout=10) as answer:
            return dict(json.load(answer)["agents"][0])
    except (OSError, ValueError, LookupError):
        return None


def load_extension(connection: apsw.Connection) -> None:
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())


def median(runs: list[Run], what: str) -> float:
    return statistics.median(getattr(run, what) for run in runs)


def disk_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def parts_mb(folder: Path) -> list[tuple[str, float]]:
    return sorted(
        ((entry.name, disk_mb(entry)) for entry in folder.iterdir() if entry.is_dir()), key=lambda part: -part[1]
    )


def row(name: str, value: str) -> None:
    print(f"{name:36s} {value}", flush=True)


if __name__ == "__main__":
    main()
